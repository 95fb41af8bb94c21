package main

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"unicode/utf8"

	"llamabi"
)

// prompts is a text, texts, tokens, or lists of tokens.
type prompts struct {
	texts  []string
	tokens [][]int32
}

func (p *prompts) UnmarshalJSON(b []byte) error {
	var texts oneOrMany
	var one []int32
	switch {
	case json.Unmarshal(b, &texts) == nil:
		p.texts = texts
	case json.Unmarshal(b, &one) == nil:
		p.tokens = [][]int32{one}
	case json.Unmarshal(b, &p.tokens) == nil:
	default:
		return badRequest("prompt", "'prompt' must be a text, a list of texts, a list of tokens or a list of such lists.")
	}
	return nil
}

func (s *server) completions(w http.ResponseWriter, r *http.Request) {
	var request struct {
		common
		Prompt   prompts `json:"prompt"`
		Echo     bool    `json:"echo"`
		Logprobs *int    `json:"logprobs"`
		BestOf   *int    `json:"best_of"`
	}
	err := s.read(w, r, &request)
	if err != nil {
		writeError(w, err)
		return
	}
	if request.MaxTokens == nil {
		sixteen := 16 // the protocol's default
		request.MaxTokens = &sixteen
	}
	opts, err := request.check(s)
	top, topErr := within(request.Logprobs, "logprobs", 0, 0, 20)
	n := len(request.Prompt.texts) + len(request.Prompt.tokens)
	switch {
	case err != nil:
	case topErr != nil:
		err = topErr
	case n == 0:
		err = badRequest("prompt", "You must provide a 'prompt' parameter.")
	case request.BestOf != nil && *request.BestOf != *request.N:
		err = badRequest("best_of", "'best_of' is not supported.")
	}
	if err != nil {
		writeError(w, err)
		return
	}
	if request.Logprobs != nil {
		opts = append(opts, llamabi.Logprobs(), llamabi.TopLogprobs(top))
	}
	opts = append(opts, llamabi.CacheSalt(recordOf(r).salt))
	if request.Echo {
		opts = append(opts, llamabi.Echo())
	}
	s.serve(w, r, job{
		request: &request.common, sequences: n * *request.N, echo: request.Echo,
		logprobs: request.Logprobs != nil, shape: completionShape{},
		events: func(ctx context.Context) iter.Seq2[llamabi.Event, error] {
			if request.Prompt.texts != nil {
				return s.model.StreamText(ctx, eachTimes(*request.N, request.Prompt.texts), opts...)
			}
			return s.model.Stream(ctx, eachTimes(*request.N, request.Prompt.tokens), opts...)
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
	var texts []string
	var logprobs, tops []any
	var offsets []int
	for _, t := range tokens {
		texts = append(texts, printable(t.bytes))
		offsets = append(offsets, t.offset)
		if !t.known {
			logprobs, tops = append(logprobs, nil), append(tops, nil)
			continue
		}
		top := map[string]float32{}
		for _, a := range t.top {
			if text := printable(a.bytes); !contains(top, text) { // control tokens have no text; the likeliest counts
				top[text] = a.logprob
			}
		}
		logprobs, tops = append(logprobs, t.logprob), append(tops, top)
	}
	return map[string]any{"tokens": texts, "token_logprobs": logprobs, "top_logprobs": tops, "text_offset": offsets}
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
