package main

import (
	"encoding/json"
	"fmt"
	"strings"
)

// toolChoice is what a request wants of its tools: auto, none, or required; with a name, a call of
// that tool.
type toolChoice struct{ mode, name string }

func (c toolChoice) forces() bool { return c.mode == "required" }

func (f *fields) toolChoice() toolChoice {
	const name = "tool_choice"
	switch value := f.body[name].(type) {
	case nil:
		return toolChoice{mode: "auto"}
	case string:
		if value == "auto" || value == "none" || value == "required" {
			return toolChoice{mode: value}
		}
	case map[string]any:
		function, _ := value["function"].(map[string]any)
		called, _ := function["name"].(string)
		if value["type"] == "function" && called != "" {
			f.knowsOnly(name, value, "type", "function")
			f.knowsOnly(name+".function", function, "name")
			return toolChoice{"required", called}
		}
	}
	f.fail(name, "'%s' must be 'auto', 'none', 'required', or an object with the 'type' 'function' and a 'function' that has a 'name'.", name)
	return toolChoice{mode: "auto"}
}

// forced is the language of the calls that a request asks for, in the form that the model has for
// them: their names are those of tools, their arguments as the tools' parameters say. Where the
// request asks for no call, an answer may also be in the language of its own.
func (f *fields) forced(use *toolUse, choice toolChoice, answer *constraint) *constraint {
	field := "tools"
	var alternatives []string
	if answer != nil {
		expression, ok := answer.inLark()
		switch {
		case choice.forces():
			f.fail("tool_choice", "'tool_choice' asks for a call, and '%s' for another answer.", answer.field)
		case !ok:
			f.fail(answer.field, "'%s' is not supported with 'tools', unless 'tool_choice' is 'none'.", answer.field)
		}
		field, alternatives = answer.field, append(alternatives, expression)
	}
	var texts []json.RawMessage
	json.Unmarshal(f.raw("tools"), &texts)
	rules := strings.Builder{}
	var calls []string
	for i, name := range use.names {
		if choice.name != "" && name != choice.name {
			continue
		}
		parameters := f.parameters(i, texts[i])
		key := "arguments"
		if use.form.bare {
			key = "parameters"
		}
		begin := fmt.Sprintf(`{"name": %s, "%s": `, written(name), key)
		fmt.Fprintf(&rules, "call%d: %s arguments%d \"}\"\narguments%d: %%json %s\n", i, literal(begin), i, i, parameters)
		calls = append(calls, fmt.Sprintf("call%d", i))
	}
	several := !use.single && choice.name == ""
	alternatives = append(alternatives, use.form.calls(use.marker, several))
	return &constraint{field, lark, fmt.Sprintf("start: %s\ncall: %s\n%s", strings.Join(alternatives, " | "), strings.Join(calls, " | "), &rules)}
}

// calls is an expression of one call, or of several.
func (f form) calls(marker int32, several bool) string {
	mark := literal(f.marker)
	if marker >= 0 {
		mark = fmt.Sprintf("<[%d]>", marker)
	}
	switch {
	case f.open == '[':
		one := "call"
		if several {
			one += ` (", " call)*`
		}
		return fmt.Sprintf(`%s "[" %s "]"`, mark, one)
	case f.bare:
		if several {
			return `call ("; " call)*`
		}
		return "call"
	default:
		one := fmt.Sprintf(`%s "\n" call %s`, mark, literal("\n"+f.closing))
		if several {
			return fmt.Sprintf(`(%s) ("\n" %s)*`, one, one)
		}
		return one
	}
}

// parameters is the schema of a tool's arguments: of an object, for nothing else is a call.
func (f *fields) parameters(i int, tool json.RawMessage) string {
	at := fmt.Sprintf("tools[%d].function.parameters", i)
	given := f.body["tools"].([]any)[i].(map[string]any)["function"].(map[string]any)["parameters"]
	if given == nil {
		return `{"type": "object", "properties": {}, "additionalProperties": false}`
	}
	object, ok := given.(map[string]any)
	if !ok {
		f.fail(at, "'%s' must be an object, not %s.", at, kind(given))
		return ""
	}
	if object["type"] != nil && object["type"] != "object" {
		f.fail(at+".type", "'%s.type' must be 'object'.", at)
	}
	schema := string(rawPart(tool, "function", "parameters"))
	if object["type"] == nil {
		schema = withMember(schema, `"type": "object"`)
	}
	return schema
}

// literal is a text in Lark, which has JSON's strings.
func literal(text string) string { return written(text) }

// written is a text in JSON, with the escapes that it needs and no others: the model has to write
// them.
func written(text string) string {
	var out strings.Builder
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	encoder.Encode(text)
	return strings.TrimSuffix(out.String(), "\n")
}
