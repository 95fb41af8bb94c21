package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"llamabi"
)

// common is what the two protocols share.
type common struct {
	model  string // its name
	n      int
	beams  int // of a search; 0: there is none
	stream bool
	streamOptions
	guessed    bool // the usage says what became of guesses
	maxTokens  int  // -1: as many as there is room for
	stops      []string
	opts       []llamabi.GenerateOption
	constraint *constraint // nil: the answers may be anything
	forbidding []string    // the fields with which the request forbids tokens
	prediction *string     // what the answers may repeat; nil: nothing is known of that
}

// ignored are OpenAI's fields that change nothing here whatever they say.
var ignored = []string{"metadata", "parallel_tool_calls", "prompt_cache_key", "prompt_cache_retention",
	"safety_identifier", "service_tier", "store", "user"}

// harmless are values of further fields with which they ask for nothing.
var harmless = map[string][]any{
	"function_call": {"auto", "none"},
	"functions":     {[]any{}},
	"modalities":    {[]any{"text"}},
	"suffix":        {""},
	"tool_choice":   {"auto", "none"},
	"tools":         {[]any{}},
}

// shared are the fields that both protocols have. Each appends its own, at the same time as others.
var shared = slices.Clip(append([]string{"bad_words", "draft_len", "early_stopping", "guided_choice", "guided_grammar", "guided_json",
	"guided_regex", "ignore_eos", "length_penalty", "logit_bias", "max_tokens", "model", "n", "num_beams",
	"repeat_penalty", "repetition_penalty", "response_format", "seed", "speculation", "stop", "stop_token_ids", "stream",
	"stream_options", "structured_outputs", "use_beam_search"}, numbers...))

// As the library has them.
const (
	maxStops     = 1024
	maxStopBytes = 4096
	maxBadTokens = 65536
	maxSequences = 65536
)

// fields reads a request's object, and keeps the first thing that is wrong with it.
type fields struct {
	body map[string]any
	text []byte // of the request
	err  error
}

func (f *fields) fail(param, format string, args ...any) {
	if f.err == nil {
		f.err = badRequest(param, format, args...)
	}
}

// kind is what a JSON value is, in words.
func kind(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case bool:
		return "a boolean"
	case float64:
		return "a number"
	case string:
		return "a string"
	case []any:
		return "an array"
	default:
		return "an object"
	}
}

// shown writes a number as JavaScript does.
func shown(v float64) string {
	text, _ := json.Marshal(v + 0) // without the sign of -0; it is finite, as all that JSON can say
	return string(text)
}

// checkNames refuses fields that are not known, unless they change nothing.
func (f *fields) checkNames(known ...string) {
	for _, name := range slices.Sorted(maps.Keys(f.body)) {
		value := f.body[name]
		if value == nil || slices.Contains(known, name) || slices.Contains(ignored, name) {
			continue
		}
		same := func(other any) bool { return reflect.DeepEqual(value, other) }
		if values, some := harmless[name]; !some {
			f.fail(name, "'%s' is not supported.", name)
		} else if !slices.ContainsFunc(values, same) {
			f.fail(name, "'%s' is not supported with this value.", name)
		}
	}
}

// number is a field from lowest to highest, or missing where there is none.
func (f *fields) number(name string, missing, lowest, highest float64) float64 {
	value := f.body[name]
	if value == nil {
		return missing
	}
	v, ok := value.(float64)
	if !ok {
		f.fail(name, "'%s' must be a number, not %s.", name, kind(value))
	} else if !(v >= lowest && v <= highest) {
		f.fail(name, "'%s' is %s, must be from %s to %s.", name, shown(v), shown(lowest), shown(highest))
	}
	return v
}

func (f *fields) integer(name string, missing, lowest, highest float64) int {
	v := f.number(name, missing, lowest, highest)
	if v != math.Trunc(v) {
		f.fail(name, "'%s' is %s, must be an integer.", name, shown(v))
	}
	if f.err != nil {
		return 0
	}
	return int(v)
}

// below is a number that is less than highest as a float32, too.
func (f *fields) below(name string, missing, lowest, highest float64) float64 {
	v := f.number(name, missing, lowest, highest)
	if float32(v) >= float32(highest) {
		f.fail(name, "'%s' is %s, must be less than %s.", name, shown(v), shown(highest))
	}
	return v
}

func (f *fields) flag(name string) bool {
	v, ok := f.body[name].(bool)
	if !ok && f.body[name] != nil {
		f.fail(name, "'%s' must be true or false, not %s.", name, kind(f.body[name]))
	}
	return v
}

// either is which of two names of the same field is there.
func (f *fields) either(name, other string) string {
	a, b := f.body[name], f.body[other]
	if a != nil && b != nil && !reflect.DeepEqual(a, b) {
		f.fail(other, "'%s' and '%s' are two names of the same, but have different values.", name, other)
	}
	if b != nil {
		return other
	}
	return name
}

func (f *fields) stops() []string {
	var stops []string
	switch value := f.body["stop"].(type) {
	case nil:
	case string:
		stops = []string{value}
	case []any:
		for i, v := range value {
			stop, ok := v.(string)
			if !ok {
				f.fail("stop", "'stop[%d]' must be a string, not %s.", i, kind(v))
			}
			stops = append(stops, stop)
		}
	default:
		f.fail("stop", "'stop' must be a string or an array of strings, not %s.", kind(value))
	}
	if len(stops) > maxStops {
		f.fail("stop", "'stop' has %d strings, at most %d are looked for.", len(stops), maxStops)
	}
	for _, stop := range stops {
		switch {
		case stop == "":
			f.fail("stop", "'stop' has an empty string, which would stop everything.")
		case len(stop) > maxStopBytes:
			f.fail("stop", "'stop' has a string of %d bytes, at most %d are looked for.", len(stop), maxStopBytes)
		case strings.Contains(stop, "\x00"):
			f.fail("stop", "'stop' has a string with a NUL character, which is not looked for.")
		}
	}
	return stops
}

// bodyPatience is how long a request's body may take to arrive at most.
const bodyPatience = 30 * time.Second

// read parses a request's body.
func (s *server) read(w http.ResponseWriter, r *http.Request) (*fields, error) {
	mediaType, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	if !strings.EqualFold(strings.TrimSpace(mediaType), "application/json") {
		// A form of another site's page can send other types, without the browser asking first.
		return nil, &apiError{status: http.StatusUnsupportedMediaType, kind: "invalid_request_error", code: "unsupported_media_type",
			message: "The request's Content-Type must be application/json."}
	}
	if coding := strings.Join(r.Header.Values("Content-Encoding"), ","); coding != "" && !strings.EqualFold(strings.TrimSpace(coding), "identity") {
		w.Header().Set("Accept-Encoding", "identity")
		return nil, &apiError{status: http.StatusUnsupportedMediaType, kind: "invalid_request_error", code: "unsupported_content_encoding",
			message: "The request has a Content-Encoding; only bodies without one are read."}
	}
	body, err := s.readBody(w, r)
	if err != nil {
		return nil, err
	}
	if !utf8.Valid(body) {
		return nil, badRequest("", "The request is not UTF-8.")
	}
	if nestedTooDeep(body) {
		return nil, badRequest("", "The request is nested more than %d deep.", mostNested)
	}
	var value any
	if err := json.Unmarshal(body, &value); err != nil {
		var number *json.UnmarshalTypeError
		if errors.As(err, &number) {
			err = errors.New("a number is too large")
		}
		return nil, badRequest("", "The request is not valid JSON: %v.", err)
	}
	object, ok := value.(map[string]any)
	if !ok {
		return nil, badRequest("", "The request must be a JSON object, not %s.", kind(value))
	}
	return &fields{body: object, text: body}, nil
}

// patience is how long the body of a request may take to arrive, which is no longer than its
// answer may take.
func (s *server) patience() time.Duration {
	if s.timeout > 0 {
		return min(bodyPatience, s.timeout)
	}
	return bodyPatience
}

func (s *server) readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	control := http.NewResponseController(w)
	control.SetReadDeadline(time.Now().Add(s.patience()))
	// A body that does not come must not hold up the service's end.
	arrived := context.AfterFunc(r.Context(), func() { control.SetReadDeadline(time.Unix(1, 0)) })
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, s.maxBody))
	if arrived() {
		control.SetReadDeadline(time.Time{})
	}
	var tooLarge *http.MaxBytesError
	var broken *net.OpError
	switch {
	case err == nil:
		return body, nil
	case errors.As(err, &tooLarge):
		return nil, &apiError{status: http.StatusRequestEntityTooLarge, kind: "invalid_request_error",
			message: fmt.Sprintf("The request has more than %d bytes.", tooLarge.Limit)}
	case s.abandoning.Load():
		return nil, shuttingDown()
	case errors.Is(err, os.ErrDeadlineExceeded):
		w.Header().Set("Connection", "close")
		return nil, &apiError{status: http.StatusRequestTimeout, kind: "invalid_request_error", code: "request_timeout",
			message: fmt.Sprintf("The request's body took longer than %v s to arrive.", s.patience().Seconds())}
	case errors.Is(err, io.ErrUnexpectedEOF), errors.As(err, &broken):
		return nil, &apiError{status: statusLeft} // nobody is there to read it
	}
	return nil, badRequest("", "The request could not be read: %v.", err)
}

const mostNested = 64 // as deep as nothing is that the protocol has

func nestedTooDeep(body []byte) bool {
	depth, quoted := 0, false
	for i := 0; i < len(body); i++ {
		switch c := body[i]; {
		case c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '[', c == '{':
			if depth++; depth > mostNested {
				return true
			}
		case c == ']', c == '}':
			depth--
		}
	}
	return false
}

// common reads what the two protocols share.
func (f *fields) common(s *server) common {
	var c common
	f.model(s, &c)
	c.n, c.stream, c.stops = f.integer("n", 1, 1, 128), f.flag("stream"), f.stops()
	c.streamOptions = f.streamOptions(c.stream)
	penalty := f.either("repetition_penalty", "repeat_penalty")
	repetition := f.number(penalty, 1, -math.MaxFloat32, math.MaxFloat32)
	if float32(repetition) <= 0 {
		f.fail(penalty, "'%s' is %s, must be more than 0.", penalty, shown(repetition))
	}
	c.opts = append(c.opts, llamabi.RepetitionPenalty(float32(repetition)), llamabi.Stop(c.stops...))
	c.opts = append(c.opts, f.numbers()...)
	f.edits(s, &c)
	for _, name := range []string{"bad_words", "logit_bias", "no_repeat_ngram_size", "min_tokens"} {
		if f.body[name] != nil {
			c.forbidding = append(c.forbidding, name)
		}
	}
	f.search(s, &c)
	f.speculation(s, &c)
	c.constraint = f.constraint()
	if seed, ok := f.seed(); ok {
		c.opts = append(c.opts, llamabi.Seed(seed))
	}
	return c
}

// Numbers of examples/requests.txt, in its order. A top_k of -1 is vLLM's for none.
var numbers = []string{
	"temperature",
	"top_p",
	"top_k",
	"min_p",
	"min_tokens",
	"presence_penalty",
	"frequency_penalty",
	"typical_p",
	"epsilon_cutoff",
	"eta_cutoff",
	"no_repeat_ngram_size",
}

// numbers reads them.
func (f *fields) numbers() []llamabi.GenerateOption {
	return []llamabi.GenerateOption{
		llamabi.Temperature(float32(f.number("temperature", 1, 0, 2))),
		llamabi.TopP(float32(f.number("top_p", 1, 0, 1))),
		llamabi.TopK(max(f.integer("top_k", 0, -1, math.MaxInt32), 0)),
		llamabi.MinP(float32(f.number("min_p", 0, 0, 1))),
		llamabi.MinGenLen(f.integer("min_tokens", 0, 0, math.MaxInt32)),
		llamabi.PresencePenalty(float32(f.number("presence_penalty", 0, -2, 2))),
		llamabi.FrequencyPenalty(float32(f.number("frequency_penalty", 0, -2, 2))),
		llamabi.TypicalP(float32(f.number("typical_p", 0, 0, 1))),
		llamabi.EpsilonCutoff(float32(f.below("epsilon_cutoff", 0, 0, 1))),
		llamabi.EtaCutoff(float32(f.below("eta_cutoff", 0, 0, 1))),
		llamabi.NoRepeatNgramSize(f.integer("no_repeat_ngram_size", 0, 0, math.MaxInt32)),
	}
}

// End of numbers

// edits adds what else changes which tokens are possible, and which is the last.
func (f *fields) edits(s *server, c *common) {
	c.opts = append(c.opts, llamabi.LogitBias(f.logitBias(s.vocabSize)), llamabi.BadWords(f.badWords(s)...))
	if tokens := f.body["stop_token_ids"]; tokens != nil {
		c.opts = append(c.opts, llamabi.StopTokens(f.tokens("stop_token_ids", "stop_token_ids", tokens, s.vocabSize)...))
	}
	if f.flag("ignore_eos") {
		c.opts = append(c.opts, llamabi.IgnoreEOS())
	}
}

// logitBias reads an object of tokens and numbers, of which -100 and below ban.
func (f *fields) logitBias(vocabSize int) map[int32]float32 {
	object, ok := f.body["logit_bias"].(map[string]any)
	if !ok && f.body["logit_bias"] != nil {
		f.fail("logit_bias", "'logit_bias' must be an object, not %s.", kind(f.body["logit_bias"]))
	}
	biases := map[int32]float32{}
	for _, key := range slices.Sorted(maps.Keys(object)) {
		token, err := strconv.Atoi(key)
		bias, ok := object[key].(float64)
		switch {
		case err != nil || strconv.Itoa(token) != key || token < 0 || token >= vocabSize:
			f.fail("logit_bias", "'logit_bias' has '%s', which is no token from 0 to %d.", key, vocabSize-1)
		case !ok:
			f.fail("logit_bias", "'logit_bias.%s' must be a number, not %s.", key, kind(object[key]))
		case bias > 100:
			f.fail("logit_bias", "'logit_bias.%s' is %s, must be at most 100.", key, shown(bias))
		case bias <= -100:
			biases[int32(token)] = float32(math.Inf(-1))
		default:
			biases[int32(token)] = float32(bias)
		}
	}
	return biases
}

// badWords reads texts, as the tokens that they have at the start of a text and behind a space.
func (f *fields) badWords(s *server) [][]int32 {
	list, ok := f.body["bad_words"].([]any)
	switch {
	case !ok && f.body["bad_words"] != nil:
		f.fail("bad_words", "'bad_words' must be an array of strings, not %s.", kind(f.body["bad_words"]))
	case len(list) > maxStops:
		f.fail("bad_words", "'bad_words' has %d strings, at most %d are taken.", len(list), maxStops)
	}
	var words [][]int32
	tokens := 0
	for i, v := range list {
		word, ok := v.(string)
		switch {
		case f.err != nil:
			return nil
		case !ok:
			f.fail("bad_words", "'bad_words[%d]' must be a string, not %s.", i, kind(v))
		case strings.TrimLeft(word, " ") == "":
			f.fail("bad_words", "'bad_words' has an empty string, which would forbid everything.")
		case len(word) > maxStopBytes:
			f.fail("bad_words", "'bad_words' has a string of %d bytes, at most %d are taken.", len(word), maxStopBytes)
		}
		if f.err != nil {
			return nil
		}
		word = strings.TrimLeft(word, " ")
		bare, err := s.model.Encode(word, false, false)
		spaced, err2 := s.model.Encode(" "+word, false, false)
		if err := errors.Join(err, err2); err != nil {
			f.err = s.asAPIError(err, "bad_words", 1)
			return nil
		}
		if len(bare) == 0 { // a tokenizer may drop characters
			f.fail("bad_words", "'bad_words[%d]' has no tokens, so nothing can be forbidden.", i)
			return nil
		}
		words = append(words, bare)
		if len(spaced) == len(bare) && spaced[0] != bare[0] {
			words = append(words, spaced)
			tokens += len(spaced)
		}
		if tokens += len(bare); tokens > maxBadTokens {
			f.fail("bad_words", "'bad_words' has more than %d tokens, the most that are taken.", maxBadTokens)
			return nil
		}
	}
	return words
}

// seed is the model's seed, false: one of its own choice.
func (f *fields) seed() (uint64, bool) {
	v := f.number("seed", -1, -(1 << 63), 1<<63)
	if v != math.Trunc(v) {
		f.fail("seed", "'seed' is %s, must be an integer.", shown(v))
	}
	switch {
	case f.err != nil || v == -1:
		return 0, false
	case v == 0: // to the model: a seed of its own choice
		return 1 << 63, true
	case v < 0:
		return uint64(int64(v)), true
	default:
		return uint64(v), true
	}
}

// maxTokens adds the option of that name, if the field is there or has a default that is not
// negative.
func (f *fields) maxTokens(c *common, name string, missing float64) {
	c.maxTokens = f.integer(name, missing, 0, math.MaxInt32)
	if least, _ := f.body["min_tokens"].(float64); c.maxTokens >= 0 && least > float64(c.maxTokens) {
		f.fail("min_tokens", "'min_tokens' is %s, must be at most '%s', %d.", shown(least), name, c.maxTokens)
	}
	if c.maxTokens >= 0 {
		c.opts = append(c.opts, llamabi.MaxGenLen(c.maxTokens))
	}
}

// checkAnswer refuses an answer that would take too much memory until it is whole: one that may
// have so many tokens, each with so many alternatives.
func (s *server) checkAnswer(f *fields, stream bool, tokens, alternatives int) {
	if tokens *= 1 + alternatives; !stream && tokens > s.maxAnswer {
		f.fail("max_tokens", "The answer may have %d tokens and alternatives, at most %d are sent as a whole; a stream may have any number.", tokens, s.maxAnswer)
	}
}

// mostTokens is how many tokens a sequence can have in its answer; prompt is how many of them may
// be the prompt's.
func (c common) mostTokens(room, prompt int) int {
	if c.maxTokens < 0 {
		return room
	}
	return min(room, prompt+c.maxTokens)
}
