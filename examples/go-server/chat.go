package main

import (
	"context"
	"fmt"
	"iter"
	"math"
	"net/http"
	"slices"

	"llamabi"
)

func (s *server) chatCompletions(w http.ResponseWriter, r *http.Request) {
	f, err := s.read(w, r)
	if err != nil {
		writeError(w, err)
		return
	}
	f.checkNames(append(shared, "messages", "max_completion_tokens", "logprobs", "top_logprobs", "tools", "tool_choice", "chat_template_kwargs", "prediction")...)
	request := f.common(s)
	// The second is the newer name of the same.
	f.maxTokens(&request, f.either("max_tokens", "max_completion_tokens"), -1)
	logprobs, top := f.flag("logprobs"), f.integer("top_logprobs", 0, 0, 20)
	if f.body["top_logprobs"] != nil && !logprobs {
		f.fail("top_logprobs", "'top_logprobs' needs 'logprobs' to be true.")
	}
	f.checkStreamOptions(request, logprobs)
	request.prediction = f.prediction()
	prompt := s.chatPrompt(f, request.constraint)
	if prompt.tools != nil && prompt.tools.forced != nil {
		request.constraint = prompt.tools.forced
	}
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
		common: request, given: request.n, sequences: request.n, haveText: []bool{prompt.begun}, logprobs: logprobs, shape: chatShape{}, tools: prompt.tools,
		events: s.predicting(prompt.stream),
	})
}

// chatPrompt is what a chat asks the model.
type chatPrompt struct {
	begun  bool     // the answer continues a text
	tools  *toolUse // nil: the answer is a text
	stream events
}

// chatPrompt reads tools and messages: for the model's template, or for Meta's Llama 2 format,
// which has no tools, where the model has no template.
func (s *server) chatPrompt(f *fields, answer *constraint) chatPrompt {
	if s.noChat {
		f.fail("messages", "The model has no chat template; it continues texts (/v1/completions).")
		return chatPrompt{}
	}
	tools, texts := f.tools(s.template, answer)
	variables := f.variables(s.template)
	if s.template == nil {
		dialog, begun := f.dialog()
		return chatPrompt{begun: begun != "", stream: func(ctx context.Context, c common) iter.Seq2[llamabi.Event, error] {
			if begun == "" {
				return s.model.StreamChat(ctx, slices.Repeat([][]llamabi.Message{dialog}, c.copies()), c.opts...)
			}
			return s.streamEncoded(ctx, c, func() ([]int32, error) { return s.begin(ctx, dialog, begun) })
		}}
	}
	messages, begun := f.conversation(s.template)
	request := llamabi.ChatRequest{Messages: messages, ContinueFinal: begun}
	if texts != nil {
		request.Tools = texts
	}
	if variables != nil {
		request.Variables = variables
	}
	return chatPrompt{begun: begun, tools: tools, stream: func(ctx context.Context, c common) iter.Seq2[llamabi.Event, error] {
		if tools != nil && tools.marker >= 0 {
			c.opts = append(c.opts, llamabi.Special())
		}
		if c.copies() == 1 {
			return s.model.StreamMessages(ctx, request, c.opts...)
		}
		return s.streamEncoded(ctx, c, func() ([]int32, error) {
			bytes := 0
			for _, m := range messages {
				if m.Content != nil {
					bytes += len(*m.Content)
				}
			}
			if err := s.checkLength(bytes); err != nil {
				return nil, err
			}
			return s.model.EncodeChat(request)
		})
	}}
}

// streamEncoded answers tokens, as often as the request asks.
func (s *server) streamEncoded(ctx context.Context, c common, encode func() ([]int32, error)) iter.Seq2[llamabi.Event, error] {
	return func(yield func(llamabi.Event, error) bool) {
		tokens, err := encode()
		if err != nil {
			yield(llamabi.Event{}, err)
			return
		}
		s.model.Stream(ctx, slices.Repeat([][]int32{tokens}, c.copies()), c.opts...)(yield)
	}
}

// checkLength refuses so much text. What is far too long is not encoded, which can take seconds and
// would not end with the request.
func (s *server) checkLength(bytes int) error {
	least := (bytes + s.longest - 1) / s.longest
	if least <= s.room {
		return nil
	}
	return &apiError{status: http.StatusBadRequest, kind: "invalid_request_error", param: "messages", code: "context_length_exceeded",
		message: fmt.Sprintf("'messages' has %d bytes of text, more than the %d tokens that the model has room for.", bytes, s.room),
		more:    map[string]any{"n_prompt_tokens_min": least, "n_ctx": s.room}}
}

// begin is the tokens of a dialog and of the beginning of its answer.
func (s *server) begin(ctx context.Context, dialog []llamabi.Message, begun string) ([]int32, error) {
	bytes := len(begun)
	for _, m := range dialog {
		bytes += len(m.Content)
	}
	if err := s.checkLength(bytes); err != nil {
		return nil, err
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
	if len(p.calls) > 0 {
		calls := slices.Clone(p.calls)
		for i := range calls {
			calls[i].Index = nil // which only a stream has
		}
		message["tool_calls"] = calls
		if p.text == "" {
			message["content"] = nil
		}
	}
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
		one := map[string]any{"token": r.Token, "logprob": r.Logprob, "bytes": r.Bytes, "top_logprobs": top}
		if t.guessed {
			one["draft"] = t.draft
		}
		content[i] = one
	}
	return map[string]any{"content": content, "refusal": nil}
}

func rowOf(t scored) row {
	bytes := make([]int, len(t.bytes))
	for i, b := range t.bytes {
		bytes[i] = int(b)
	}
	return row{Token: wellFormed(t.bytes), Logprob: t.logprob, Bytes: bytes}
}
