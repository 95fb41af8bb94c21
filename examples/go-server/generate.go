package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"strings"
	"time"

	"llamabi"
)

// job is a request that was found good.
type job struct {
	common
	sequences int    // prompts times n
	continues []bool // of each prompt: the choices' text goes on from a text, and is not one of its own
	events    func(context.Context) iter.Seq2[llamabi.Event, error]
	echo      bool
	logprobs  bool
	shape     shape
}

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
	finish any // a text in the last one, else nil
}

// progress is how far a choice has come.
type progress struct {
	seen     bool // it has had an event
	last     time.Time
	spelling *spelling
	text     strings.Builder
	tokens   []scored
	finish   any
}

type usage struct {
	PromptTokens        int `json:"prompt_tokens"`
	CompletionTokens    int `json:"completion_tokens"`
	TotalTokens         int `json:"total_tokens"`
	PromptTokensDetails *struct {
		CachedTokens int `json:"cached_tokens"`
	} `json:"prompt_tokens_details,omitempty"` // nil: that is not reported
}

type answer struct {
	ID                string          `json:"id"`
	Object            string          `json:"object"`
	Created           int64           `json:"created"`
	Model             string          `json:"model"`
	SystemFingerprint string          `json:"system_fingerprint"`
	Choices           []any           `json:"choices"`
	Usage             json.RawMessage `json:"usage,omitempty"`
}

// errLeft is why nothing more can be written.
var errLeft = errors.New("the client has left")

// errTimedOut is the end of a request that has taken too long.
var errTimedOut = errors.New("the request's time is over")

const statusLeft = 499 // as nginx has it

// serve runs a job and answers it, whole or as a stream.
func (s *server) serve(w http.ResponseWriter, r *http.Request, j job) {
	if err := s.queue.enter(j.sequences); err != nil {
		writeError(w, err)
		return
	}
	defer s.queue.leave(j.sequences)
	out := &sink{w: w, control: http.NewResponseController(w), job: j, base: answer{
		ID: j.shape.prefix() + rand.Text(), Object: j.shape.object(j.stream), Created: time.Now().Unix(),
		Model: s.name, SystemFingerprint: "llamabi-" + llamabi.Version(),
	}}
	ctx := r.Context()
	if s.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, s.timeout, errTimedOut)
		defer cancel()
		// A moment more than the request, so that its client hears of that.
		out.deadline = time.Now().Add(s.timeout + time.Second)
		out.control.SetWriteDeadline(out.deadline)
	}
	err := s.generate(ctx, j, out, recordOf(r))
	if err != nil && context.Cause(ctx) == errTimedOut {
		err = errTimedOut
	}
	switch {
	case err == nil:
	case errors.Is(err, errLeft), r.Context().Err() != nil && !s.abandoning.Load():
		s.metrics.abandoned.Add(1)
		if !out.started {
			w.WriteHeader(statusLeft) // for the metrics; nobody is there to read it
		}
	case out.started:
		out.send(s.asAPIError(err, j.shape.input(), j.n).body())
	default:
		writeError(w, s.asAPIError(err, j.shape.input(), j.n))
	}
}

// generate gives a job's events to out.
func (s *server) generate(ctx context.Context, j job, out *sink, rec *record) error {
	var total usage
	if s.cached {
		total.PromptTokensDetails = new(struct {
			CachedTokens int `json:"cached_tokens"`
		})
	}
	choices := make([]progress, j.sequences)
	for ev, err := range j.events(ctx) {
		if err != nil {
			return err
		}
		c := &choices[ev.Index]
		if c.spelling == nil {
			c.spelling = newSpelling(s.model, j.continues[ev.Index/j.n], j.logprobs, j.stops)
		}
		var p piece
		if ev.Kind == llamabi.EventFinish {
			s.metrics.sequence(ev.Stats)
			rec.GeneratedTokens += ev.Stats.GeneratedTokens
			p = c.spelling.finish(ev.Text)
			switch ev.FinishReason {
			case llamabi.FinishCancelled:
				continue // the error comes next
			case llamabi.FinishUnsafe:
				return badRequest("messages", "%s", ev.Text)
			case llamabi.FinishLength:
				p.finish = "length"
			case llamabi.FinishStop, llamabi.FinishStopString:
				p.finish = "stop"
			case llamabi.FinishNotFinite: // the model goes on with others
				return &apiError{http.StatusInternalServerError, "server_error", "", "not_finite",
					"The model made no finite number for this input, so no token is possible."}
			case llamabi.FinishUnread:
				return &apiError{http.StatusServiceUnavailable, "server_error", "", "unread", "The answer was not read for too long."}
			default:
				reason := ev.FinishReason.String()
				return &apiError{http.StatusInternalServerError, "server_error", "", reason, "The answer ended early: " + reason + "."}
			}
			if c.spelling.ended {
				p.finish = "stop"
			}
			total.add(ev.Stats, ev.Index%j.n == 0)
			rec.PromptTokens = total.PromptTokens
		} else {
			now := time.Now()
			if c.seen && !j.echo { // of a prompt that is echoed, the tokens were not generated
				s.metrics.betweenTokens.observe(now.Sub(c.last))
			}
			c.last = now
			if p, err = c.spelling.token(ev, !j.echo || c.seen); err != nil {
				return err
			}
		}
		c.seen = true
		if j.stream {
			if err := out.chunk(ev.Index, p); err != nil {
				return err
			}
			continue
		}
		c.text.WriteString(p.text)
		c.tokens = append(c.tokens, p.tokens...)
		c.finish = p.finish
	}
	return out.end(choices, total)
}

// add adds a sequence's figures; those of its prompt only for the first choice that it has.
func (u *usage) add(stats llamabi.RequestStats, first bool) {
	if first {
		u.PromptTokens += stats.PromptTokens
		if u.PromptTokensDetails != nil {
			u.PromptTokensDetails.CachedTokens += stats.CachedTokens
		}
	}
	u.CompletionTokens += stats.GeneratedTokens
	u.TotalTokens = u.PromptTokens + u.CompletionTokens
}

// sink writes an answer, as a stream or whole.
type sink struct {
	w       http.ResponseWriter
	control *http.ResponseController
	job     job
	base    answer
	started bool
	// When the last byte must have been written; zero: whenever.
	deadline time.Time
}

// chunk streams what an event brought, if that is anything.
func (o *sink) chunk(index int, p piece) error {
	if !o.started {
		o.w.Header().Set("Content-Type", "text/event-stream")
		o.w.Header().Set("Cache-Control", "no-cache")
		o.started = true
		for i := range o.job.sequences {
			if start := o.job.shape.start(); start != nil {
				if err := o.sendChoice(i, map[string]any{"delta": start, "logprobs": nil, "finish_reason": nil}); err != nil {
					return err
				}
			}
		}
	}
	if p.text == "" && len(p.tokens) == 0 && p.finish == nil {
		return nil
	}
	last := p.finish
	for ; len(p.tokens) > 1; p.tokens = p.tokens[1:] { // a chunk has one token
		if err := o.sendChoice(index, o.job.shape.delta(piece{tokens: p.tokens[:1]})); err != nil {
			return err
		}
	}
	if p.text != "" || len(p.tokens) > 0 {
		p.finish = nil
		if err := o.sendChoice(index, o.job.shape.delta(p)); err != nil {
			return err
		}
	}
	if last != nil {
		return o.sendChoice(index, o.job.shape.delta(piece{finish: last}))
	}
	return nil
}

func (o *sink) sendChoice(index int, choice map[string]any) error {
	choice["index"] = index
	chunk := o.base
	chunk.Choices = []any{choice}
	if o.job.includeUsage {
		chunk.Usage = json.RawMessage("null")
	}
	return o.send(chunk)
}

// send writes one server-sent event. A client that takes none for half a minute has left.
func (o *sink) send(v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return o.sendData(data)
}

func (o *sink) sendData(data []byte) error {
	patience := time.Now().Add(30 * time.Second)
	if !o.deadline.IsZero() && o.deadline.Before(patience) {
		patience = o.deadline
	}
	o.control.SetWriteDeadline(patience)
	fmt.Fprintf(o.w, "data: %s\n\n", data) // what fails here fails in Flush too
	if err := o.control.Flush(); err != nil {
		return fmt.Errorf("%w: %v", errLeft, err)
	}
	return nil
}

func (o *sink) end(choices []progress, total usage) error {
	figures, err := json.Marshal(total)
	if err != nil {
		return err
	}
	if o.job.stream {
		if o.job.includeUsage {
			chunk := o.base
			chunk.Choices, chunk.Usage = []any{}, figures
			if err := o.send(chunk); err != nil {
				return err
			}
		}
		return o.sendData([]byte("[DONE]"))
	}
	whole := o.base
	whole.Usage = figures
	for i := range choices {
		c := &choices[i]
		choice := o.job.shape.choice(piece{text: c.text.String(), tokens: c.tokens, finish: c.finish})
		choice["index"] = i
		whole.Choices = append(whole.Choices, choice)
	}
	writeJSON(o.w, http.StatusOK, whole)
	return nil
}
