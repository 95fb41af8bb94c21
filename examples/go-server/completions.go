package main

import (
	"context"
	"fmt"
	"iter"
	"math"
	"net/http"
	"unicode/utf8"

	"llamabi"
)

// prompts are texts or tokens, one list of which is empty.
type prompts struct {
	texts  []string
	tokens [][]int32
}

func (p prompts) len() int { return len(p.texts) + len(p.tokens) }

// lengths are how many tokens each can have.
func (p prompts) lengths() []int {
	lengths := make([]int, 0, p.len())
	for _, text := range p.texts {
		lengths = append(lengths, len(text)+2) // BOS, and a space in front
	}
	for _, tokens := range p.tokens {
		lengths = append(lengths, len(tokens))
	}
	return lengths
}

// prompts reads a text, texts, tokens, or lists of tokens below vocabSize.
func (f *fields) prompts(vocabSize int) prompts {
	value := f.body["prompt"]
	list, isList := value.([]any)
	text, isText := value.(string)
	switch {
	case isText:
		return prompts{texts: []string{text}}
	case value == nil || isList && len(list) == 0:
		f.fail("prompt", "You must provide a 'prompt' parameter.")
	case !isList:
		f.fail("prompt", "'prompt' must be a string, an array of strings, of tokens, or of arrays of tokens, not %s.", kind(value))
	default:
		switch first := list[0].(type) {
		case string:
			texts := make([]string, len(list))
			for i, v := range list {
				if texts[i], isText = v.(string); !isText {
					f.fail("prompt", "'prompt[%d]' must be a string as the first one is, not %s.", i, kind(v))
				}
			}
			return prompts{texts: texts}
		case float64:
			return prompts{tokens: [][]int32{f.tokens("prompt", "prompt", list, vocabSize)}}
		case []any:
			tokens := make([][]int32, len(list))
			for i, v := range list {
				tokens[i] = f.tokens("prompt", fmt.Sprintf("prompt[%d]", i), v, vocabSize)
				if f.err == nil && len(tokens[i]) == 0 {
					f.fail("prompt", "'prompt[%d]' is empty: it must have at least one token.", i)
				}
			}
			return prompts{tokens: tokens}
		default:
			f.fail("prompt", "'prompt[0]' must be a string, a token or an array of tokens, not %s.", kind(first))
		}
	}
	return prompts{}
}

// tokens reads the array called name, which is the field param or part of it.
func (f *fields) tokens(param, name string, value any, vocabSize int) []int32 {
	list, ok := value.([]any)
	if !ok {
		f.fail(param, "'%s' must be an array of tokens, not %s.", name, kind(value))
	}
	tokens := make([]int32, len(list))
	for i, v := range list {
		token, ok := v.(float64)
		if !ok {
			f.fail(param, "'%s[%d]' must be a token, not %s.", name, i, kind(v))
		} else if token != math.Trunc(token) || token < 0 || token >= float64(vocabSize) {
			f.fail(param, "'%s[%d]' is %s, must be a token from 0 to %d.", name, i, shown(token), vocabSize-1)
		}
		if f.err != nil {
			return nil
		}
		tokens[i] = int32(token)
	}
	return tokens
}

// haveText says of each prompt whether it has any: a text that continues one without begins as
// every text does.
func (p prompts) haveText(model *llamabi.Model) ([]bool, error) {
	have := make([]bool, p.len())
	for i, text := range p.texts {
		have[i] = text != ""
	}
	silent := map[int32]bool{} // tokens without a text
	for i, tokens := range p.tokens {
		for _, token := range tokens {
			if silent[token] {
				continue
			}
			bytes, err := model.TokenBytes(token)
			if err != nil {
				return nil, err
			}
			if have[i] = len(bytes) > 0; have[i] {
				break
			}
			silent[token] = true
		}
	}
	return have, nil
}

func (s *server) completions(w http.ResponseWriter, r *http.Request) {
	f, err := s.read(w, r)
	if err != nil {
		writeError(w, err)
		return
	}
	f.checkNames(append(shared, "prompt", "echo", "logprobs", "best_of")...)
	request := f.common(s)
	f.maxTokens(&request, "max_tokens", 16) // the protocol's default
	echo, top := f.flag("echo"), f.integer("logprobs", -1, 0, 20)
	f.checkStreamOptions(request, top >= 0)
	given := request.n
	switch best := f.integer("best_of", float64(given), 1, 128); {
	case request.beams > 0: // the search ranks its answers
	case best < given:
		f.fail("best_of", "'best_of' is %d, must be at least 'n', %d.", best, given)
	case best > given && request.stream:
		f.fail("best_of", "'best_of' is %d, more than 'n', %d: which answers are best is not known before their end, and 'stream' is true.", best, given)
	default:
		request.n = best
	}
	asked := f.prompts(s.vocabSize)
	sequences := asked.len() * request.n
	if sequences > maxSequences { // said before there are so many
		f.fail("prompt", "The request is for %d sequences, at most %d are taken.", sequences, maxSequences)
	}
	most := 0
	for _, length := range asked.lengths() {
		if !echo {
			length = 0
		}
		most += request.n * request.mostTokens(s.room, length)
	}
	s.checkAnswer(f, request.stream, most, max(top, 0))
	if f.err != nil {
		writeError(w, f.err)
		return
	}
	haveText, err := asked.haveText(s.model)
	if err != nil {
		writeError(w, s.asAPIError(err, "prompt", 1))
		return
	}
	request.opts = append(request.opts, llamabi.CacheSalt(recordOf(r).salt))
	if top >= 0 {
		request.opts = append(request.opts, llamabi.TopLogprobs(top))
	}
	if top >= 0 || request.n > given {
		request.opts = append(request.opts, llamabi.Logprobs())
	}
	if echo {
		request.opts = append(request.opts, llamabi.Echo())
	}
	s.serve(w, r, job{
		common: request, given: given, sequences: sequences, haveText: haveText, echo: echo, logprobs: top >= 0, shape: completionShape{},
		events: func(ctx context.Context, c common) iter.Seq2[llamabi.Event, error] {
			if asked.texts != nil {
				return s.model.StreamText(ctx, eachTimes(c.copies(), asked.texts), c.opts...)
			}
			return s.model.Stream(ctx, eachTimes(c.copies(), asked.tokens), c.opts...)
		},
	})
}

// eachTimes is n of the first, n of the second, and so on.
func eachTimes[T any](n int, items []T) []T {
	all := make([]T, 0, n*len(items))
	for _, item := range items {
		for range n {
			all = append(all, item)
		}
	}
	return all
}

type completionShape struct{}

func (completionShape) prefix() string     { return "cmpl-" }
func (completionShape) input() string      { return "prompt" }
func (completionShape) object(bool) string { return "text_completion" }
func (completionShape) start() any         { return nil }

func (c completionShape) delta(p piece) map[string]any { return c.choice(p) }

func (completionShape) choice(p piece) map[string]any {
	return map[string]any{"text": p.text, "logprobs": columns(p.tokens), "finish_reason": p.finish}
}

// columns are log probabilities as this protocol has them: a list for each property.
func columns(tokens []scored) any {
	if tokens == nil {
		return nil
	}
	texts, offsets, logprobs, tops := []string{}, []int{}, []any{}, []any{}
	for _, t := range tokens {
		texts = append(texts, printable(t.bytes))
		offsets = append(offsets, t.offset)
		if !t.known {
			logprobs, tops = append(logprobs, nil), append(tops, nil)
			continue
		}
		top := map[string]float32{}
		for _, a := range t.top {
			// Control tokens have no text, so several may share a key: the likeliest counts.
			if text := printable(a.bytes); !contains(top, text) {
				top[text] = a.logprob
			}
		}
		logprobs, tops = append(logprobs, t.logprob), append(tops, top)
	}
	lists := map[string]any{"tokens": texts, "token_logprobs": logprobs, "top_logprobs": tops, "text_offset": offsets}
	if len(tokens) > 0 && tokens[0].guessed {
		drafts := make([]any, len(tokens))
		for i, t := range tokens {
			drafts[i] = t.draft
		}
		lists["drafts"] = drafts
	}
	return lists
}

func contains(m map[string]float32, key string) bool { _, ok := m[key]; return ok }

// printable writes a part of a code point as the protocol does.
func printable(b []byte) string {
	if utf8.Valid(b) {
		return string(b)
	}
	text := "bytes:"
	for _, c := range b {
		text += fmt.Sprintf("\\x%02x", c)
	}
	return text
}
