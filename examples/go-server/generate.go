package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"iter"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"llamabi"
)

// job is a request that was found good.
type job struct {
	common
	given     int    // of the n of each prompt, the best
	sequences int    // prompts times n
	haveText  []bool // of each prompt: it is not empty, nor of control tokens only
	events    events
	echo      bool
	logprobs  bool
	shape     shape
	tools     *toolUse // that the answers may call; nil: none
}

// events are what the model says to a request.
type events func(context.Context, common) iter.Seq2[llamabi.Event, error]

// shape is what differs between the two protocols' answers.
type shape interface {
	prefix() string                // of the id
	input() string                 // the field that has the prompts
	object(stream bool) string     // type of the answer or of a chunk
	start() any                    // delta that begins a choice, nil: none
	delta(p piece) map[string]any  // choice of a chunk
	choice(p piece) map[string]any // choice of a whole answer
}

// piece is text and tokens of a choice: of one event, or all of them.
type piece struct {
	text   string
	tokens []scored
	calls  []toolCall
	finish any     // a text in the last one, else nil
	score  float32 // of the last one
}

// progress is how far a choice has come.
type progress struct {
	seen     bool // it has had an event
	last     time.Time
	spelling *spelling
	reader   *answerReader // nil: all is text
	text     strings.Builder
	tokens   []scored
	calls    []toolCall
	finish   any
	logprobs []float32 // for mean, where the best are looked for
	mean     float64
}

type usage struct {
	PromptTokens        int `json:"prompt_tokens"`
	CompletionTokens    int `json:"completion_tokens"`
	TotalTokens         int `json:"total_tokens"`
	PromptTokensDetails *struct {
		CachedTokens int `json:"cached_tokens"`
	} `json:"prompt_tokens_details,omitempty"` // nil: that is not reported
	// nil: there was no prediction.
	CompletionTokensDetails *completionDetails `json:"completion_tokens_details,omitempty"`
}

type answer struct {
	ID                string          `json:"id"`
	Object            string          `json:"object"`
	Created           int64           `json:"created"`
	Model             string          `json:"model"`
	SystemFingerprint string          `json:"system_fingerprint"`
	Choices           []any           `json:"choices"`
	Beam              *beam           `json:"beam,omitempty"`
	Usage             json.RawMessage `json:"usage,omitempty"`
	Timings           *timings        `json:"timings,omitempty"`
}

// timings are of the first sequence, in milliseconds.
type timings struct {
	FirstToken float64 `json:"first_token_ms"`
	Total      float64 `json:"total_ms"`
}

// errLeft is why nothing more can be written.
var errLeft = errors.New("the client has left")

// errTimedOut is the end of a request that has taken too long.
var errTimedOut = errors.New("the request's time is over")

// nginx's number. Here it is for every request whose client has not taken all of its answer.
const statusLeft = 499

// serve runs a job and answers it, whole or as a stream.
func (s *server) serve(w http.ResponseWriter, r *http.Request, j job) {
	input, copies := j.shape.input(), j.copies()
	out := &sink{w: w, control: http.NewResponseController(w), job: j, base: answer{
		ID: j.shape.prefix() + rand.Text(), Object: j.shape.object(j.stream), Created: time.Now().Unix(),
		Model: j.model, SystemFingerprint: "llamabi-" + llamabi.Version(),
	}}
	ctx, end := s.limitTime(r)
	defer end()
	err := s.run(ctx, j, out, recordOf(r))
	if err == nil && out.whole != nil {
		writeBody(w, http.StatusOK, out.whole)
		err = out.flush()
	}
	if err != nil && out.started && !s.left(r, ctx, err) {
		err = out.send(s.asAPIError(causeOf(ctx, err), input, copies).body())
	}
	if err != nil {
		s.fail(w, r, ctx, err, input, copies)
	}
}

// run runs a job, and streams its answer or leaves it in out. A whole answer is in nobody's way:
// however slowly it is taken, its job has left the queue.
func (s *server) run(ctx context.Context, j job, out *sink, rec *record) error {
	// What a request cannot have running at a time keeps nobody out: the model takes requests in turn.
	weight := min(j.slots(), s.slots)
	if err := s.queue.enter(weight); err != nil {
		return err
	}
	defer s.queue.leave(weight)
	err := s.constrained(ctx, j, out, rec)
	switch {
	case err == nil:
	case strings.HasSuffix(err.Error(), "the options leave no token possible"):
		return j.forbidsAll(err)
	case j.constraint != nil && isAboutGrammar(err.Error()):
		return s.asAPIError(causeOf(ctx, err), j.constraint.field, j.copies())
	}
	return err
}

// forbidsAll is the refusal of options that leave no token possible, as the library's error says.
func (j job) forbidsAll(err error) error {
	fields := j.forbidding
	if j.constraint != nil {
		fields = append(fields, j.constraint.field)
	}
	if len(fields) == 0 {
		return err
	}
	return badRequest(fields[0], "The options leave no token possible: '%s'.", strings.Join(fields, "', '"))
}

// constrained runs a job with the grammar of its constraint, if it has one.
func (s *server) constrained(ctx context.Context, j job, out *sink, rec *record) error {
	if j.constraint == nil {
		return s.generate(ctx, j, out, rec)
	}
	grammar, release, err := s.grammars.take(ctx, s.model, j.constraint)
	if errors.Is(err, llamabi.ErrInvalidArgument) || errors.Is(err, llamabi.ErrUTF8) || errors.Is(err, llamabi.ErrUnsupported) {
		return badRequest(j.constraint.field, "%s", sentenceOf(err))
	} else if err != nil {
		return err
	}
	defer release()
	j.opts = append(j.opts, llamabi.WithGrammar(grammar))
	return s.generate(ctx, j, out, rec)
}

// limitTime is a request's context with the end that its time has.
func (s *server) limitTime(r *http.Request) (context.Context, context.CancelFunc) {
	if s.timeout == 0 {
		return r.Context(), func() {}
	}
	// A moment more to write, so that the client hears of that end.
	recordOf(r).deadline = time.Now().Add(s.timeout + time.Second)
	return context.WithTimeoutCause(r.Context(), s.timeout, errTimedOut)
}

// causeOf is why a request failed: err, or that its time was over.
func causeOf(ctx context.Context, err error) error {
	if context.Cause(ctx) == errTimedOut {
		return errTimedOut
	}
	return err
}

// left says whether a request failed because nobody was there to take its answer.
func (s *server) left(r *http.Request, ctx context.Context, err error) bool {
	if errors.Is(err, errLeft) {
		return context.Cause(ctx) != errTimedOut
	}
	return r.Context().Err() != nil && !s.abandoning.Load()
}

// fail answers a request with what went wrong, unless its client has left.
func (s *server) fail(w http.ResponseWriter, r *http.Request, ctx context.Context, err error, input string, n int) {
	if s.left(r, ctx, err) || errors.Is(err, errLeft) {
		recordOf(r).Status = statusLeft
		return
	}
	writeError(w, s.asAPIError(causeOf(ctx, err), input, n))
}

// generate gives a job's events to out.
func (s *server) generate(ctx context.Context, j job, out *sink, rec *record) error {
	var total usage
	if s.cached {
		total.PromptTokensDetails = new(struct {
			CachedTokens int `json:"cached_tokens"`
		})
	}
	if j.guessed {
		total.CompletionTokensDetails = new(completionDetails)
	}
	choices := make([]progress, j.sequences)
	var first *timings
	for ev, err := range j.events(ctx, j.common) {
		if err != nil {
			return err
		}
		if ev.Kind == llamabi.EventBeam {
			b, err := s.beamOf(ev, ev.Step == 1 && !j.isBehindText(ev.Index))
			if err == nil {
				err = out.beam(b)
			}
			if err != nil {
				return err
			}
			continue
		}
		c := &choices[ev.Index]
		if c.spelling == nil {
			c.spelling = newSpelling(s.model, j.isBehindText(ev.Index) && !j.echo, j.logprobs, j.stops)
			c.spelling.drafts, c.spelling.eachByte = j.includeDrafts, s.eachByte
			if j.tools != nil {
				c.spelling.marker, c.spelling.markerBytes = j.tools.marker, j.tools.form.marker
				c.reader = j.tools.begin()
			}
		}
		var p piece
		if ev.Kind == llamabi.EventFinish {
			s.metrics.sequence(ev.Stats)
			rec.GeneratedTokens += ev.Stats.GeneratedTokens
			p = c.spelling.finish(ev.Text)
			reason := ev.FinishReason
			if c.spelling.ended && reason != llamabi.FinishCancelled && reason != llamabi.FinishUnsafe {
				reason = llamabi.FinishStop // whatever came behind the stop string
			}
			switch reason {
			case llamabi.FinishCancelled:
				continue // the error comes next
			case llamabi.FinishUnsafe:
				return badRequest("messages", "%s", ev.Text)
			case llamabi.FinishLength, llamabi.FinishTime:
				p.finish = "length"
			case llamabi.FinishStop, llamabi.FinishStopString:
				p.finish = "stop"
			case llamabi.FinishNotFinite: // the model goes on with others
				return internalError("not_finite", "The model made no finite number for this input, so no token is possible.")
			case llamabi.FinishUnread:
				return unavailable("unread", "The answer was not read for too long.")
			default:
				why := reason.String()
				return internalError(why, "The answer ended early: "+why+".")
			}
			p.score = writable(ev.Score)
			c.rate(ev.Stats.GeneratedTokens)
			total.add(ev.Stats, ev.Index%j.n == 0)
			if ev.Index == 0 {
				first = &timings{ms(ev.Stats.FirstToken), ms(ev.Stats.Total)}
			}
			rec.PromptTokens = total.PromptTokens
		} else {
			now := time.Now()
			if c.seen && !j.echo { // of a prompt that is echoed, the tokens were not generated
				s.metrics.betweenTokens.observe(now.Sub(c.last))
			}
			c.last = now
			if j.given < j.n {
				c.logprobs = append(c.logprobs, ev.Logprob)
			}
			if p, err = c.spelling.token(ev, !j.echo || c.seen); err != nil {
				return err
			}
		}
		c.seen = true
		if c.reader != nil {
			p = c.reader.read(p)
		}
		if j.stream {
			if err := out.chunk(ev.Index, p); err != nil {
				return err
			}
			continue
		}
		c.text.WriteString(p.text)
		c.tokens = append(c.tokens, p.tokens...)
		c.calls = append(c.calls, p.calls...)
		c.finish = p.finish
	}
	return out.end(choices, total, first)
}

// isBehindText says whether what the model adds to a choice goes on from a text, and does not begin
// one. A text in a language is that, without the space that it would have behind another one.
func (j job) isBehindText(index int) bool {
	return j.haveText[index/j.n] && (j.echo || j.constraint == nil)
}

// rate finds out how good a sequence is, of which so many tokens were generated.
func (c *progress) rate(generated int) {
	own := c.logprobs[max(0, len(c.logprobs)-generated):] // behind those of a prompt that is echoed
	sum := 0.0
	for _, logprob := range own {
		sum += float64(writable(logprob))
	}
	if c.mean = math.Inf(-1); len(own) > 0 {
		c.mean = sum / float64(len(own))
	}
	c.logprobs = nil
}

// best are those of a job's choices that are given: of each prompt's, the ones whose tokens have
// the highest mean log probability.
func (j job) best(choices []progress) []progress {
	if j.given == j.n {
		return choices
	}
	var best []progress
	for own := range slices.Chunk(choices, j.n) {
		slices.SortStableFunc(own, func(a, b progress) int { return cmp.Compare(b.mean, a.mean) })
		best = append(best, own[:j.given]...)
	}
	return best
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }

// add adds a sequence's figures; those of its prompt only for the first choice that it has.
func (u *usage) add(stats llamabi.RequestStats, first bool) {
	if first {
		u.PromptTokens += stats.PromptTokens
		if u.PromptTokensDetails != nil {
			u.PromptTokensDetails.CachedTokens += stats.CachedTokens
		}
	}
	if u.CompletionTokensDetails != nil {
		u.CompletionTokensDetails.add(stats)
	}
	u.CompletionTokens += stats.GeneratedTokens
	u.TotalTokens = u.PromptTokens + u.CompletionTokens
}
