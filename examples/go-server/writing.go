package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"
)

const (
	writePatience = 30 * time.Second // a client that takes nothing for so long has left
	pieceBytes    = 64 << 10         // of an answer that are written at a time
	mostUnsent    = 256 << 20        // bytes of whole answers that may wait for their clients
)

// sink writes an answer, as a stream or whole.
type sink struct {
	w       http.ResponseWriter
	control *http.ResponseController
	job     job
	base    answer
	started bool
	whole   []byte // the answer that is no stream, once it is made
}

// start begins a stream, unless it has begun.
func (o *sink) start() error {
	if o.started {
		return nil
	}
	o.w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	o.w.Header().Set("Cache-Control", "no-cache")
	o.started = true
	for i := range o.job.sequences {
		if start := o.job.shape.start(); start != nil {
			if err := o.sendChoice(i, map[string]any{"delta": start, "logprobs": nil, "finish_reason": nil}); err != nil {
				return err
			}
		}
	}
	return nil
}

// beam streams what became of a beam.
func (o *sink) beam(b *beam) error {
	if err := o.start(); err != nil {
		return err
	}
	chunk := o.base
	chunk.Choices, chunk.Beam = []any{}, b
	return o.sendChunk(chunk)
}

// chunk streams what an event brought, if that is anything.
func (o *sink) chunk(index int, p piece) error {
	if err := o.start(); err != nil {
		return err
	}
	if p.text == "" && len(p.tokens) == 0 && len(p.calls) == 0 && p.finish == nil {
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
	for _, call := range p.calls {
		for _, delta := range call.deltas() {
			if err := o.sendChoice(index, map[string]any{"delta": delta, "logprobs": nil, "finish_reason": nil}); err != nil {
				return err
			}
		}
	}
	if last != nil {
		choice := o.job.shape.delta(piece{finish: last})
		if o.job.includeBeams {
			choice["score"] = p.score
		}
		return o.sendChoice(index, choice)
	}
	return nil
}

func (o *sink) sendChoice(index int, choice map[string]any) error {
	choice["index"] = index
	chunk := o.base
	chunk.Choices = []any{choice}
	return o.sendChunk(chunk)
}

func (o *sink) sendChunk(chunk answer) error {
	if o.job.includeUsage {
		chunk.Usage = json.RawMessage("null")
	}
	return o.send(chunk)
}

// send writes one server-sent event.
func (o *sink) send(v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return o.sendData(data)
}

func (o *sink) sendData(data []byte) error {
	fmt.Fprintf(o.w, "data: %s\n\n", data) // what fails here fails in Flush too
	return o.flush()
}

func (o *sink) flush() error {
	if err := o.control.Flush(); err != nil {
		return fmt.Errorf("%w: %v", errLeft, err)
	}
	return nil
}

// end ends a stream, or makes the whole answer.
func (o *sink) end(choices []progress, total usage, first *timings) error {
	figures, err := json.Marshal(total)
	if err != nil {
		return err
	}
	if o.job.stream {
		if o.job.includeUsage {
			chunk := o.base
			chunk.Choices, chunk.Usage, chunk.Timings = []any{}, figures, first
			if err := o.send(chunk); err != nil {
				return err
			}
		}
		return o.sendData([]byte("[DONE]"))
	}
	whole := o.base
	whole.Usage, whole.Timings = figures, first
	for i, c := range o.job.best(choices) {
		if o.job.logprobs && c.tokens == nil { // an answer without tokens has empty lists of them
			c.tokens = []scored{}
		}
		choice := o.job.shape.choice(piece{text: c.text.String(), tokens: c.tokens, calls: c.calls, finish: c.finish})
		choice["index"] = i
		whole.Choices = append(whole.Choices, choice)
	}
	o.whole, err = jsonOf(whole)
	return err
}

// recorder writes an answer as fast as its client takes it, and records what became of that.
type recorder struct {
	http.ResponseWriter
	control *http.ResponseController
	rec     *record
	unsent  *unsent
	code    int
	bytes   int64
	err     error // of what could not be written: the client has left
	dropped bool  // by unsent
}

func newRecorder(w http.ResponseWriter, rec *record, unsent *unsent) *recorder {
	return &recorder{ResponseWriter: w, control: http.NewResponseController(w), rec: rec, unsent: unsent, code: http.StatusOK}
}

func (r *recorder) WriteHeader(code int) {
	r.code = code
	r.ResponseWriter.WriteHeader(code)
}

// Write takes a whole answer, or a part of one that comes as it is made.
func (r *recorder) Write(b []byte) (written int, err error) {
	if len(b) > pieceBytes {
		defer r.unsent.leave(r)
	}
	for written < len(b) && err == nil {
		r.unsent.wait(r, len(b))
		var n int
		n, err = r.ResponseWriter.Write(b[written:min(written+pieceBytes, len(b))])
		written += n
	}
	r.bytes += int64(written)
	r.failed(err)
	return written, err
}

// FlushError is what http.ResponseController flushes with, in the time of the last Write.
func (r *recorder) FlushError() error {
	err := r.control.Flush()
	r.failed(err)
	return err
}

// Unwrap lets http.ResponseController do all else.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

func (r *recorder) failed(err error) {
	if r.err == nil {
		r.err = err
	}
}

// unsent are the answers of more than a piece that wait for their clients.
type unsent struct {
	mu      sync.Mutex
	most    int // bytes that they may have
	bytes   int // that they have
	waiting []waiting
}

// waiting is an answer of so many bytes. In front is the one of which nothing has been taken for
// longest.
type waiting struct {
	*recorder
	size int
}

// wait lets a client have its time for the next piece of so large an answer. Where all have more
// than most bytes, those are cut of which nothing has been taken for longest, but for the last one.
func (u *unsent) wait(r *recorder, size int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.forget(r)
	if r.dropped {
		return
	}
	until := time.Now().Add(writePatience)
	if !r.rec.deadline.IsZero() && r.rec.deadline.Before(until) {
		until = r.rec.deadline
	}
	r.control.SetWriteDeadline(until)
	if size <= pieceBytes {
		return
	}
	u.waiting = append(u.waiting, waiting{r, size})
	for u.bytes += size; u.bytes > u.most && len(u.waiting) > 1; {
		longest := u.waiting[0].recorder
		longest.dropped = true
		longest.control.SetWriteDeadline(time.Unix(1, 0))
		u.forget(longest)
	}
}

func (u *unsent) leave(r *recorder) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.forget(r)
}

func (u *unsent) forget(r *recorder) {
	for i, one := range u.waiting {
		if one.recorder == r {
			u.bytes -= one.size
			u.waiting = slices.Delete(u.waiting, i, i+1)
			return
		}
	}
}
