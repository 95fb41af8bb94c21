package main

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
)

// toolUse is what a request lets the model call.
type toolUse struct {
	names  []string
	form   form
	single bool        // of an answer's calls only the first
	marker int32       // as chatTemplate has it
	forced *constraint // nil: the model may call or not
}

// tools reads the tools that the model may call: nil and nil where there are none. An answer that
// is no call is in the language of answer, if that is not nil.
func (f *fields) tools(t *chatTemplate, answer *constraint) (*toolUse, json.RawMessage) {
	choice := f.toolChoice()
	single := f.body["parallel_tool_calls"] != nil && !f.flag("parallel_tool_calls")
	list, ok := f.body["tools"].([]any)
	if !ok && f.body["tools"] != nil {
		f.fail("tools", "'tools' must be an array of tools, not %s.", kind(f.body["tools"]))
	}
	if len(list) == 0 {
		if choice.forces() {
			f.fail("tool_choice", "'tool_choice' asks for a call, but there are no 'tools'.")
		}
		return nil, nil
	}
	switch {
	case t == nil || !t.tools:
		f.fail("tools", "'tools' is not supported: the model's chat format has no place for tools.")
	case t.form == nil:
		f.fail("tools", "'tools' is not supported: the model's chat format has calls in a form that the service does not know.")
	}
	var names []string
	for i, value := range list {
		at := fmt.Sprintf("tools[%d]", i)
		tool, ok := value.(map[string]any)
		if !ok {
			f.fail(at, "'%s' must be an object with a 'type' and a 'function', not %s.", at, kind(value))
		} else if tool["type"] != "function" {
			f.fail(at+".type", "'%s.type' must be 'function': the service has no tools of its own.", at)
		}
		function, ok := tool["function"].(map[string]any)
		if !ok {
			f.fail(at+".function", "'%s.function' must be an object with a 'name', not %s.", at, kind(tool["function"]))
		}
		name, ok := function["name"].(string)
		if !ok || name == "" {
			f.fail(at+".function.name", "'%s.function.name' must be a string with a name.", at)
		}
		names = append(names, name)
	}
	if choice.name != "" && !slices.Contains(names, choice.name) {
		f.fail("tool_choice", "'tool_choice' is '%.100s', which is none of 'tools'.", choice.name)
	}
	if f.err != nil || choice.mode == "none" {
		return nil, nil // what the model does not hear of it does not call
	}
	use := &toolUse{names: names, form: *t.form, single: single, marker: t.marker}
	if choice.forces() || answer != nil {
		use.forced = f.forced(use, choice, answer)
	}
	return use, f.raw("tools")
}

// variables are those that the template sees beside.
func (f *fields) variables(t *chatTemplate) json.RawMessage {
	const name = "chat_template_kwargs"
	object, ok := f.body[name].(map[string]any)
	if !ok && f.body[name] != nil {
		f.fail(name, "'%s' must be an object, not %s.", name, kind(f.body[name]))
	}
	if len(object) > 0 && t == nil {
		f.fail(name, "'%s' is not supported: the model has no chat template.", name)
	}
	for _, key := range slices.Sorted(maps.Keys(object)) {
		if key == "messages" || key == "tools" {
			f.fail(name+"."+key, "'%s.%s' is not supported: the request has '%s' for that.", name, key, key)
		}
	}
	if len(object) == 0 || f.err != nil {
		return nil
	}
	return f.raw(name)
}

// raw is a field, or a part of one, as it was sent, with the order of its keys and every digit, but
// that half of a surrogate pair is U+FFFD, as in all that has been read.
func (f *fields) raw(path ...string) json.RawMessage {
	return escapes.ReplaceAllFunc(rawPart(f.text, path...), func(escape []byte) []byte {
		if len(escape) == len(`\ud800`) {
			return []byte(`\ufffd`)
		}
		return escape
	})
}

// rawPart is a part of JSON's text, by the names of the objects that it is in.
func rawPart(text json.RawMessage, path ...string) json.RawMessage {
	for _, name := range path {
		var parts map[string]json.RawMessage
		json.Unmarshal(text, &parts) // it could be read before
		text = parts[name]
	}
	return text
}

// escapes are a pair of surrogates, half of one, and the first two bytes of any other escape.
var escapes = regexp.MustCompile(`(?is)\\(?:ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2}|ud[89a-f][0-9a-f]{2}|.)`)

// chatMessage is a message as templates see it.
type chatMessage struct {
	Role       string     `json:"role"`
	Content    *string    `json:"content"`
	Reasoning  *string    `json:"reasoning_content,omitempty"`
	Name       *string    `json:"name,omitempty"`
	ToolCalls  []toolCall `json:"tool_calls,omitempty"`
	ToolCallID *string    `json:"tool_call_id,omitempty"`
}

// toolCall is a call in the protocol's form.
type toolCall struct {
	Index    *int   `json:"index,omitempty"` // of a stream's
	ID       string `json:"id,omitempty"`
	Type     string `json:"type,omitempty"`
	Function struct {
		Name      string `json:"name,omitempty"`
		Arguments string `json:"arguments"`
	} `json:"function"`
}

// conversation makes of a request's messages what the template gets. With begun the last of them is
// what the answer begins with.
func (f *fields) conversation(t *chatTemplate) (messages []chatMessage, begun bool) {
	list := f.messages()
	for i, value := range list {
		messages = append(messages, f.templated(fmt.Sprintf("messages[%d]", i), value, t, i == len(list)-1))
		if f.err != nil {
			return nil, false
		}
	}
	if f.err != nil {
		return nil, false
	}
	last := messages[len(messages)-1]
	if last.Role != "assistant" {
		return messages, false
	}
	if *last.Content == "" { // nothing is begun
		if messages = messages[:len(messages)-1]; len(messages) == 0 {
			f.fail("messages", "'messages' must have a message before the one of 'assistant' that is continued.")
		}
		return messages, false
	}
	return messages, true
}

// templated reads one message.
func (f *fields) templated(at string, value any, t *chatTemplate, isLast bool) (m chatMessage) {
	message, ok := value.(map[string]any)
	if !ok {
		f.fail(at, "'%s' must be an object with a 'role' and a 'content', not %s.", at, kind(value))
		return
	}
	m.Role = f.role(at, message)
	known, roles := []string{"role", "content", "name"}, []string{"system", "user", "assistant"}
	more := ", 'user' and 'assistant'"
	if t.results {
		roles, more = append(roles, "tool"), ", 'user', 'assistant' and 'tool'"
	}
	switch {
	case !slices.Contains(roles, m.Role):
		f.fail(at+".role", "'%s.role' is '%.100s'; the model's chat format has 'system' (or 'developer')%s.", at, m.Role, more)
	case m.Role == "assistant":
		known = append(known, "reasoning_content", parsed)
		if t.calls {
			known = append(known, "tool_calls")
		}
	case m.Role == "tool":
		known = append(known, "tool_call_id")
		if message["tool_call_id"] == nil {
			f.fail(at+".tool_call_id", "'%s.tool_call_id' is missing.", at)
		}
	}
	f.onlyHas(at, message, append(known, typeOf(message)...)...)
	optional := func(name string) *string {
		text, ok := message[name].(string)
		if message[name] == nil {
			return nil
		} else if !ok {
			f.fail(at+"."+name, "'%s.%s' must be a string, not %s.", at, name, kind(message[name]))
		}
		return &text
	}
	m.Name, m.Reasoning, m.ToolCallID = optional("name"), optional("reasoning_content"), optional("tool_call_id")
	m.ToolCalls = f.toolCalls(at+".tool_calls", message["tool_calls"])
	if isLast && len(m.ToolCalls) > 0 {
		f.fail(at+".tool_calls", "'%s.tool_calls' must be followed by a message of 'tool' for each call.", at)
	}
	content := message["content"]
	switch {
	case content == nil && len(m.ToolCalls) > 0 && t.nulls:
	case content == nil && len(m.ToolCalls) > 0:
		m.Content = new(string)
	default:
		text := f.content(at+".content", content)
		m.Content = &text
	}
	return m
}

// toolCalls are an assistant's earlier calls.
func (f *fields) toolCalls(name string, value any) []toolCall {
	list, ok := value.([]any)
	if !ok && value != nil {
		f.fail(name, "'%s' must be an array of calls, not %s.", name, kind(value))
	}
	calls := make([]toolCall, len(list))
	for i, value := range list {
		at := fmt.Sprintf("%s[%d]", name, i)
		object, ok := value.(map[string]any)
		if !ok {
			f.fail(at, "'%s' must be an object with an 'id' and a 'function', not %s.", at, kind(value))
		}
		text := func(at string, object map[string]any, name string) string {
			text, ok := object[name].(string)
			if !ok {
				f.fail(at+"."+name, "'%s.%s' must be a string, not %s.", at, name, kind(object[name]))
			}
			return text
		}
		c := &calls[i]
		c.ID, c.Type = text(at, object, "id"), "function"
		if object["type"] != nil && object["type"] != "function" {
			f.fail(at+".type", "'%s.type' must be 'function'.", at)
		}
		f.onlyHas(at, object, "id", "type", "function", "index") // see parsed
		function, ok := object["function"].(map[string]any)
		at += ".function"
		if !ok {
			f.fail(at, "'%s' must be an object with a 'name' and 'arguments', not %s.", at, kind(object["function"]))
		}
		c.Function.Name, c.Function.Arguments = text(at, function, "name"), text(at, function, "arguments")
		if c.Function.Arguments == "" { // as some models write a call without any
			c.Function.Arguments = "{}"
		}
		if nestedTooDeep([]byte(c.Function.Arguments)) || !isObjectText(c.Function.Arguments) {
			f.fail(at+".arguments", "'%s.arguments' must be a JSON object in a string.", at)
		}
		f.onlyHas(at, function, "name", "arguments", "parsed_arguments")
	}
	return calls
}

// begin makes a reader of an answer.
func (t *toolUse) begin() *answerReader {
	return &answerReader{tools: t, calls: newCallReader(t.form, t.names)}
}

// answerReader makes of an answer's text the protocol's text and calls.
type answerReader struct {
	tools *toolUse
	calls *callReader
	made  int
}

// read takes the next piece of the answer.
func (r *answerReader) read(p piece) piece {
	text, calls := r.calls.push(p.text)
	if p.finish != nil {
		more, last := r.calls.end()
		text, calls = text+more, append(calls, last...)
	}
	p.text = text
	for _, c := range calls {
		if r.tools.single && r.made > 0 {
			break
		}
		index := r.made
		call := toolCall{Index: &index, ID: r.id(), Type: "function"}
		call.Function.Name, call.Function.Arguments = c.name, c.arguments
		p.calls = append(p.calls, call)
		r.made++
	}
	if p.finish == "stop" && r.made > 0 {
		p.finish = "tool_calls"
	}
	return p
}

// id is a new call's: for Mistral's templates, which take no other, of nine letters and digits.
func (r *answerReader) id() string {
	if r.tools.form == forms["mistral"] {
		return rand.Text()[:9]
	}
	return "call_" + rand.Text()[:24]
}

// deltas are what a stream has of a call: first id and name, then the arguments.
func (c toolCall) deltas() []map[string]any {
	head, rest := c, toolCall{Index: c.Index}
	head.Function.Arguments, rest.Function.Arguments = "", c.Function.Arguments
	return []map[string]any{{"tool_calls": []toolCall{head}}, {"tool_calls": []toolCall{rest}}}
}
