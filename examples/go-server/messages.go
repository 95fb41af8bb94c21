package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"llamabi"
)

// tags are what Meta's chat format is made of. The library looks for them in a dialog; the
// beginning of an answer is not part of one.
var tags = []string{"[INST]", "[/INST]", "<<SYS>>", "<</SYS>>"}

// tagsRefused is what the library says then.
const tagsRefused = "Error: special tags are not allowed as part of the prompt."

// dialog makes of a request's messages a dialog as Meta's format has it, and the beginning of the
// answer.
//
// The format has one system prompt, in front, and then user and assistant in turn. So system
// messages, wherever they are, become one, and so do messages of one role in a row: with a blank
// line between them. An assistant's message at the end is what the answer begins with.
func (f *fields) dialog() (dialog []llamabi.Message, begun string) {
	list := f.messages()
	type turn struct {
		role  string
		texts []string
	}
	var system []string
	var turns []turn
	var last string
	for i, value := range list {
		name := fmt.Sprintf("messages[%d]", i)
		role, text := f.message(name, value)
		last = role
		switch {
		case role == "system":
			system = append(system, text)
		case len(turns) > 0 && turns[len(turns)-1].role == role:
			turns[len(turns)-1].texts = append(turns[len(turns)-1].texts, text)
		case len(turns) == 0 && role == "assistant":
			f.fail(name+".role", "The first message that is not of 'system' must be of 'user', '%s' is of 'assistant'.", name)
		default:
			turns = append(turns, turn{role, []string{text}})
		}
		if f.err != nil {
			return nil, ""
		}
	}
	if f.err == nil && len(turns) == 0 {
		f.fail("messages", "'messages' must have a message of 'user'.")
	}
	if len(system) > 0 {
		dialog = append(dialog, llamabi.Message{Role: "system", Content: strings.Join(system, "\n\n")})
	}
	for _, t := range turns {
		dialog = append(dialog, llamabi.Message{Role: t.role, Content: strings.Join(t.texts, "\n\n")})
	}
	if f.err != nil || turns[len(turns)-1].role == "user" {
		return dialog, ""
	}
	if last != "assistant" {
		f.fail(fmt.Sprintf("messages[%d].role", len(list)-1), "After an answer the last message must be of 'user', or of 'assistant' to be continued, not of '%s'.", last)
	}
	begun = dialog[len(dialog)-1].Content
	if slices.ContainsFunc(tags, func(tag string) bool { return strings.Contains(begun, tag) }) {
		f.fail("messages", "%s", tagsRefused)
	}
	return dialog[:len(dialog)-1], begun
}

// messages are a request's, at least one.
func (f *fields) messages() []any {
	list, ok := f.body["messages"].([]any)
	switch {
	case f.body["messages"] == nil:
		f.fail("messages", "You must provide a 'messages' parameter.")
	case !ok:
		f.fail("messages", "'messages' must be an array of messages, not %s.", kind(f.body["messages"]))
	case len(list) == 0:
		f.fail("messages", "messages is empty: it must have at least one message.")
	}
	return list
}

// message is role and text of one message.
func (f *fields) message(name string, value any) (role, text string) {
	message, ok := value.(map[string]any)
	if !ok {
		f.fail(name, "'%s' must be an object with a 'role' and a 'content', not %s.", name, kind(value))
		return
	}
	role = f.role(name, message)
	if role != "system" && role != "user" && role != "assistant" {
		f.fail(name+".role", "'%s.role' is '%.100s'; the model's chat format has 'system' (or 'developer'), 'user' and 'assistant'.", name, role)
	}
	known := []string{"role", "content"}
	if role == "assistant" {
		known = append(known, parsed)
	}
	f.onlyHas(name, message, append(known, typeOf(message)...)...)
	return role, f.content(name+".content", message["content"])
}

func (f *fields) role(name string, message map[string]any) string {
	role, ok := message["role"].(string)
	switch {
	case message["role"] == nil:
		f.fail(name+".role", "'%s.role' is missing.", name)
	case !ok:
		f.fail(name+".role", "'%s.role' must be a string, not %s.", name, kind(message["role"]))
	case role == "developer": // the newer name of the same
		return "system"
	}
	return role
}

// parsed is of OpenAI's clients: they add to an answer's message the value of its JSON, to a call's
// function that of its arguments, and its index where they have put a stream together. Who sends
// the message back sends these, too. They say nothing that the texts do not.
const parsed = "parsed"

// typeOf is the field `type` of a message whose value is what messages are: lm-evaluation-harness
// sends it with each.
func typeOf(message map[string]any) []string {
	if message["type"] == "text" {
		return []string{"type"}
	}
	return nil
}

// onlyHas refuses other fields of a part of a request, unless they are null or empty.
func (f *fields) onlyHas(name string, object map[string]any, known ...string) {
	for _, key := range slices.Sorted(maps.Keys(object)) {
		value := object[key]
		list, isList := value.([]any)
		if slices.Contains(known, key) || value == nil || isList && len(list) == 0 {
			continue
		}
		f.fail(name+"."+key, "'%s.%s' is not supported: the model's chat format has no place for it.", name, key)
	}
}

// content is a text, or a list of parts that are texts.
func (f *fields) content(name string, value any) string {
	if text, ok := value.(string); ok {
		return text
	}
	parts, ok := value.([]any)
	if !ok {
		f.fail(name, "'%s' must be a string or an array of parts, not %s.", name, kind(value))
	}
	texts := make([]string, len(parts))
	for i, value := range parts {
		at := fmt.Sprintf("%s[%d]", name, i)
		part, ok := value.(map[string]any)
		if !ok {
			f.fail(at, "'%s' must be an object with a 'type', not %s.", at, kind(value))
			continue
		}
		if part["type"] != "text" {
			f.fail(at+".type", "'%s.type' must be 'text': the model reads nothing else.", at)
		}
		if texts[i], ok = part["text"].(string); !ok {
			f.fail(at+".text", "'%s.text' must be a string, not %s.", at, kind(part["text"]))
		}
		f.onlyHas(at, part, "type", "text")
	}
	return strings.Join(texts, "")
}
