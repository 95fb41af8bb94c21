package main

import (
	"context"
	"encoding/json"
	"math"
	"slices"
	"strings"

	"llamabi"
)

// chatTemplate is what the model's chat template has a place for.
type chatTemplate struct {
	tools   bool  // for a request's tools
	calls   bool  // for the calls of an assistant's message
	results bool  // for messages of tool
	nulls   bool  // it takes null as the content of a message with calls; otherwise that is ""
	form    *form // how it writes calls; nil: in none of the forms
	marker  int32 // token that is the form's marker and has a text only where one asks; -1: none
}

// What the probe says; each is looked for in the text that the template makes of it.
const (
	probeTool     = "probe_tool"
	probeCall     = "probe_call"
	probeArgument = `{"probe_argument": "probe_value"}`
	probeResult   = "probe_result"
	probeID       = "probe0001" // Mistral's templates want nine letters and digits
)

// probeTemplate finds out by rendering a dialog with a tool, a call and its result: templates are
// programs, and say nothing about themselves.
func probeTemplate(model *llamabi.Model) (*chatTemplate, error) {
	t := &chatTemplate{nulls: true, marker: -1}
	text, err := model.RenderChat(probe(nil))
	if err != nil {
		t.nulls = false
		text, err = model.RenderChat(probe(new(string)))
	}
	if err != nil {
		return t, nil // such a dialog is refused
	}
	t.tools, t.results = strings.Contains(text, probeTool), strings.Contains(text, probeResult)
	at := strings.Index(text, probeCall)
	if t.calls = at >= 0; !t.calls {
		return t, nil
	}
	for _, name := range []string{"hermes", "mistral", "llama"} {
		form := forms[name]
		if form.wrote(text, at) {
			t.form = &form
			break
		}
	}
	if t.form == nil {
		return t, nil
	}
	tokens, err := model.EncodeSpecial(context.Background(), t.form.marker, false, false, math.MaxInt)
	if err != nil {
		return nil, err
	}
	for _, token := range tokens {
		if bytes, err := model.TokenBytes(token); err != nil {
			return nil, err
		} else if len(bytes) == 0 {
			t.marker = token
		}
	}
	return t, nil
}

func probe(content *string) llamabi.ChatRequest {
	question, result, id := "probe_question", probeResult, probeID
	var called toolCall
	called.ID, called.Type, called.Function.Name, called.Function.Arguments = id, "function", probeCall, probeArgument
	return llamabi.ChatRequest{
		Messages: []chatMessage{
			{Role: "user", Content: &question},
			{Role: "assistant", Content: content, ToolCalls: []toolCall{called}},
			{Role: "tool", Content: &result, ToolCallID: &id},
		},
		Tools: json.RawMessage(`[{"type": "function", "function": {"name": "` + probeTool + `", "description": "probe", "parameters":
			{"type": "object", "properties": {"probe_argument": {"type": "string", "description": "probe"}}, "required": ["probe_argument"]}}}]`),
	}
}

// wrote says whether a text has, around at, the probe's call in this form.
func (f form) wrote(text string, at int) bool {
	var starts []int
	if begin := strings.LastIndex(text[:at], f.marker); begin >= 0 {
		starts = append(starts, begin)
	}
	if begin := strings.LastIndexByte(text[:at], f.open); f.bare && begin >= 0 {
		starts = append(starts, begin)
	}
	return slices.ContainsFunc(starts, func(begin int) bool {
		_, calls := newCallReader(f, []string{probeCall}).push(text[begin:])
		var arguments map[string]string
		return len(calls) > 0 && calls[0].name == probeCall &&
			json.Unmarshal([]byte(calls[0].arguments), &arguments) == nil && arguments["probe_argument"] == "probe_value"
	})
}
