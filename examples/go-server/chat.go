package main

import (
	"context"
	"fmt"
	"iter"
	"math"
	"net/http"
	"slices"
	"strings"

	"llamabi"
)

func (s *server) chatCompletions(w http.ResponseWriter, r *http.Request) {
	f, err := s.read(w, r)
	if err != nil {
		writeError(w, err)
		return
	}
	f.checkNames(append(shared, "messages", "max_completion_tokens", "logprobs", "top_logprobs")...)
	request := f.common(s)
	// The second is the newer name of the same.
	f.maxTokens(&request, f.either("max_tokens", "max_completion_tokens"), -1)
	logprobs, top := f.flag("logprobs"), f.integer("top_logprobs", 0, 0, 20)
	if f.body["top_logprobs"] != nil && !logprobs {
		f.fail("top_logprobs", "'top_logprobs' needs 'logprobs' to be true.")
	}
	dialog, begun := f.dialog()
	s.checkAnswer(f, request.stream, request.n*request.mostTokens(s.room, 0), top)
	if f.err != nil {
		writeError(w, f.err)
		return
	}
	if logprobs {
		request.opts = append(request.opts, llamabi.Logprobs(), llamabi.TopLogprobs(top))
	}
	request.opts = append(request.opts, llamabi.CacheSalt(recordOf(r).salt))
	s.serve(w, r, job{
		common: request, sequences: request.n, continues: []bool{begun != ""}, logprobs: logprobs, shape: chatShape{},
		events: func(ctx context.Context) iter.Seq2[llamabi.Event, error] {
			if begun == "" {
				return s.model.StreamChat(ctx, slices.Repeat([][]llamabi.Message{dialog}, request.n), request.opts...)
			}
			return s.streamBegun(ctx, dialog, begun, request)
		},
	})
}

// streamBegun answers a dialog with an answer that begins as given.
func (s *server) streamBegun(ctx context.Context, dialog []llamabi.Message, begun string, c common) iter.Seq2[llamabi.Event, error] {
	return func(yield func(llamabi.Event, error) bool) {
		tokens, err := s.begin(ctx, dialog, begun)
		if err != nil {
			yield(llamabi.Event{}, err)
			return
		}
		s.model.Stream(ctx, slices.Repeat([][]int32{tokens}, c.n), c.opts...)(yield)
	}
}

// begin is the tokens of a dialog and of the beginning of its answer. What is far too long is not
// encoded, which can take seconds and would not end with the request.
func (s *server) begin(ctx context.Context, dialog []llamabi.Message, begun string) ([]int32, error) {
	bytes := len(begun)
	for _, m := range dialog {
		bytes += len(m.Content)
	}
	if bytes > s.mostBytes {
		return nil, &apiError{status: http.StatusBadRequest, kind: "invalid_request_error", param: "messages", code: "context_length_exceeded",
			message: fmt.Sprintf("'messages' has %d bytes of text, more than the %d tokens that the model has room for.", bytes, s.room)}
	}
	tokens, err := s.model.EncodeDialog(dialog)
	if err != nil {
		return nil, err
	}
	answer, err := s.model.EncodeBounded(ctx, begun, false, false, math.MaxInt)
	return append(tokens, answer...), err
}

type chatShape struct{}

func (chatShape) prefix() string { return "chatcmpl-" }
func (chatShape) input() string  { return "messages" }

func (chatShape) object(stream bool) string {
	if stream {
		return "chat.completion.chunk"
	}
	return "chat.completion"
}

func (chatShape) start() any { return map[string]any{"role": "assistant", "content": ""} }

func (chatShape) delta(p piece) map[string]any {
	delta := map[string]any{}
	if p.finish == nil {
		delta["content"] = p.text
	}
	return map[string]any{"delta": delta, "logprobs": rows(p.tokens), "finish_reason": p.finish}
}

func (chatShape) choice(p piece) map[string]any {
	message := map[string]any{"role": "assistant", "content": p.text, "refusal": nil}
	return map[string]any{"message": message, "logprobs": rows(p.tokens), "finish_reason": p.finish}
}

// row is a token's log probability as this protocol has it.
type row struct {
	Token   string  `json:"token"`
	Logprob float32 `json:"logprob"`
	Bytes   []int   `json:"bytes"`
}

func rows(tokens []scored) any {
	if tokens == nil {
		return nil
	}
	content := make([]any, len(tokens))
	for i, t := range tokens {
		top := make([]row, len(t.top))
		for k, a := range t.top {
			top[k] = rowOf(a)
		}
		r := rowOf(t)
		content[i] = map[string]any{"token": r.Token, "logprob": r.Logprob, "bytes": r.Bytes, "top_logprobs": top}
	}
	return map[string]any{"content": content, "refusal": nil}
}

func rowOf(t scored) row {
	bytes := make([]int, len(t.bytes))
	for i, b := range t.bytes {
		bytes[i] = int(b)
	}
	return row{Token: strings.ToValidUTF8(string(t.bytes), "\ufffd"), Logprob: t.logprob, Bytes: bytes}
}
