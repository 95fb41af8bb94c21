package main

import (
	"context"
	"encoding/json"
	"iter"
	"net/http"
	"slices"
	"strings"

	"llamabi"
)

type chatMessage struct {
	Role    string   `json:"role"`
	Content *content `json:"content"`
}

// content is a text, or a list of parts that are texts.
type content string

func (c *content) UnmarshalJSON(b []byte) error {
	if json.Unmarshal(b, (*string)(c)) == nil {
		return nil
	}
	var parts []struct {
		Type string
		Text *string
	}
	if json.Unmarshal(b, &parts) != nil {
		return badRequest("messages", "A message's 'content' must be a text or a list of parts.")
	}
	for _, part := range parts {
		if part.Type != "text" {
			return badRequest("messages", "A part of type '%s' is not supported; 'text' is.", part.Type)
		}
		if part.Text == nil {
			return badRequest("messages", "A part has no 'text'.")
		}
		*c += content(*part.Text)
	}
	return nil
}

func (s *server) chatCompletions(w http.ResponseWriter, r *http.Request) {
	var request struct {
		common
		Messages            []chatMessage `json:"messages"`
		MaxCompletionTokens *int          `json:"max_completion_tokens"`
		Logprobs            bool          `json:"logprobs"`
		TopLogprobs         *int          `json:"top_logprobs"`
	}
	err := s.read(w, r, &request)
	if err != nil {
		writeError(w, err)
		return
	}
	if request.MaxCompletionTokens != nil { // the newer name of the same
		request.MaxTokens = request.MaxCompletionTokens
	}
	opts, err := request.check(s)
	top, topErr := within(request.TopLogprobs, "top_logprobs", 0, 0, 20)
	switch {
	case err != nil:
	case topErr != nil:
		err = topErr
	case request.TopLogprobs != nil && !request.Logprobs:
		err = badRequest("top_logprobs", "'top_logprobs' needs 'logprobs' to be true.")
	case request.Messages == nil:
		err = badRequest("messages", "You must provide a 'messages' parameter.")
	case len(request.Messages) == 0:
		err = badRequest("messages", "messages is empty")
	case slices.ContainsFunc(request.Messages, func(m chatMessage) bool { return m.Content == nil }):
		err = badRequest("messages", "A message has no 'content'.")
	}
	if err != nil {
		writeError(w, err)
		return
	}
	if request.Logprobs {
		opts = append(opts, llamabi.Logprobs(), llamabi.TopLogprobs(top))
	}
	opts = append(opts, llamabi.CacheSalt(recordOf(r).salt))
	dialog := make([]llamabi.Message, len(request.Messages))
	for i, m := range request.Messages {
		if m.Role == "developer" { // the newer name of the same
			m.Role = "system"
		}
		dialog[i] = llamabi.Message{Role: m.Role, Content: string(*m.Content)}
	}
	dialogs := slices.Repeat([][]llamabi.Message{dialog}, *request.N)
	s.serve(w, r, job{
		request: &request.common, sequences: len(dialogs), logprobs: request.Logprobs, shape: chatShape{},
		events: func(ctx context.Context) iter.Seq2[llamabi.Event, error] {
			return s.model.StreamChat(ctx, dialogs, opts...)
		},
	})
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
