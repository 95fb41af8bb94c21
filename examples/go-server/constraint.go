package main

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"llamabi"
)

// constraint is the language of a request's answers.
type constraint struct {
	field  string // of the request, that asks for it
	kind   grammarKind
	source string
}

type grammarKind int

const (
	jsonSchema grammarKind = iota
	regex
	lark
	choice
)

// constraints are the fields that ask for a language. An answer can have one.
var constraints = []string{"guided_choice", "guided_grammar", "guided_json", "guided_regex", "response_format", "structured_outputs"}

// constraint reads the language that the answers are to be in; nil: any.
func (f *fields) constraint() *constraint {
	var found *constraint
	for _, name := range constraints {
		value := f.body[name]
		if value == nil {
			continue
		}
		var c *constraint
		switch name {
		case "response_format":
			c = f.responseFormat(name, value)
		case "structured_outputs":
			c = f.structuredOutputs(name, value)
		default:
			c = f.guided(strings.TrimPrefix(name, "guided_"), value, name)
		}
		if c != nil && found != nil {
			f.fail(name, "'%s' and '%s' are two constraints; an answer can have one.", found.field, name)
		} else if c != nil {
			found = c
		}
	}
	if found != nil && f.flag("ignore_eos") {
		f.fail("ignore_eos", "'ignore_eos' and '%s' exclude each other: an answer of a language ends where that does.", found.field)
	}
	return found
}

// guided reads one of vLLM's fields, which lies at path; what is its name without the prefix.
func (f *fields) guided(what string, value any, path ...string) *constraint {
	name := strings.Join(path, ".")
	switch what {
	case "choice":
		return &constraint{name, choice, f.choices(name, value)}
	case "grammar":
		return &constraint{name, lark, f.sourceText(name, value)}
	case "regex":
		return &constraint{name, regex, f.sourceText(name, value)}
	default:
		return f.guidedJSON(value, path...)
	}
}

// structuredOutputs is vLLM's newer name of its fields: an object with one of them, without their
// prefix, or json_object.
func (f *fields) structuredOutputs(name string, value any) *constraint {
	given, ok := value.(map[string]any)
	if !ok {
		f.fail(name, "'%s' must be an object, not %s.", name, kind(value))
	}
	parts := []string{"choice", "grammar", "json", "json_object", "regex"}
	f.knowsOnly(name, given, parts...)
	var found *constraint
	for _, part := range parts {
		value, at := given[part], name+"."+part
		isTrue, isBool := value.(bool)
		if part == "json_object" && value != nil && !isBool {
			f.fail(at, "'%s' must be true or false, not %s.", at, kind(value))
		}
		if value == nil || part == "json_object" && !isTrue {
			continue
		}
		if found != nil {
			f.fail(at, "'%s' and '%s' are two constraints; an answer can have one.", found.field, at)
		}
		if part == "json_object" {
			found = &constraint{at, jsonSchema, `{"type": "object"}`}
		} else {
			found = f.guided(part, value, name, part)
		}
	}
	if found == nil {
		f.fail(name, "'%s' must have one of 'choice', 'grammar', 'json', 'json_object' and 'regex'.", name)
	}
	return found
}

func (f *fields) sourceText(name string, value any) string {
	text, ok := value.(string)
	if !ok {
		f.fail(name, "'%s' must be a string, not %s.", name, kind(value))
	}
	return text
}

func (f *fields) choices(name string, value any) string {
	list, ok := value.([]any)
	if !ok {
		f.fail(name, "'%s' must be an array of strings, not %s.", name, kind(value))
	}
	for i, v := range list {
		if _, ok := v.(string); !ok {
			f.fail(name, "'%s[%d]' must be a string, not %s.", name, i, kind(v))
		}
	}
	source, _ := json.Marshal(list) // it has been JSON
	return string(source)
}

// guidedJSON is a schema: an object, or its JSON in a string.
func (f *fields) guidedJSON(value any, path ...string) *constraint {
	name := strings.Join(path, ".")
	switch value := value.(type) {
	case string:
		return &constraint{name, jsonSchema, value}
	case map[string]any:
		return &constraint{name, jsonSchema, string(f.raw(path...))}
	default:
		f.fail(name, "'%s' must be an object or a string, not %s.", name, kind(value))
		return nil
	}
}

// responseFormat is OpenAI's way to ask for JSON.
func (f *fields) responseFormat(name string, value any) *constraint {
	format, ok := value.(map[string]any)
	if !ok {
		f.fail(name, "'%s' must be an object, not %s.", name, kind(value))
	}
	given := format["type"]
	if given != "json_schema" {
		f.knowsOnly(name, format, "type")
	}
	switch given {
	case "text":
		return nil
	case "json_object":
		return &constraint{name, jsonSchema, `{"type": "object"}`}
	case "json_schema":
	default:
		f.fail(name+".type", "'%s.type' must be 'text', 'json_object' or 'json_schema'.", name)
		return nil
	}
	f.knowsOnly(name, format, "type", "json_schema")
	at := name + ".json_schema"
	described, ok := format["json_schema"].(map[string]any)
	if !ok {
		f.fail(at, "'%s' must be an object with a 'schema', not %s.", at, kind(format["json_schema"]))
	}
	f.knowsOnly(at, described, "description", "name", "schema", "strict")
	for _, name := range []string{"description", "name"} {
		if _, ok := described[name].(string); !ok && described[name] != nil {
			f.fail(at+"."+name, "'%s.%s' must be a string, not %s.", at, name, kind(described[name]))
		}
	}
	// The answer keeps to the schema either way.
	if _, ok := described["strict"].(bool); !ok && described["strict"] != nil {
		f.fail(at+".strict", "'%s.strict' must be true or false, not %s.", at, kind(described["strict"]))
	}
	if _, ok := described["schema"].(map[string]any); !ok {
		f.fail(at+".schema", "'%s.schema' must be an object, not %s.", at, kind(described["schema"]))
	}
	return &constraint{name, jsonSchema, string(f.raw(name, "json_schema", "schema"))}
}

// withMember is JSON of an object with one more member, the first.
func withMember(object, member string) string {
	inside := strings.TrimLeft(strings.TrimLeft(object, spaces)[1:], spaces)
	if inside[0] != '}' {
		member += ", "
	}
	return "{" + member + inside
}

// knowsOnly refuses other fields of a part of a request, unless they are null.
func (f *fields) knowsOnly(at string, object map[string]any, known ...string) {
	for _, name := range slices.Sorted(maps.Keys(object)) {
		if object[name] != nil && !slices.Contains(known, name) {
			f.fail(at+"."+name, "'%s.%s' is not supported.", at, name)
		}
	}
}

// inLark is a language as an expression of Lark; false: none can say it.
func (c *constraint) inLark() (string, bool) {
	return "%json " + c.source, c.kind == jsonSchema
}

func (c *constraint) compile(model *llamabi.Model) (*llamabi.Grammar, error) {
	switch c.kind {
	case jsonSchema:
		return model.NewGrammarJSONSchema(c.source)
	case regex:
		return model.NewGrammarRegex(c.source)
	case lark:
		return model.NewGrammarLark(c.source)
	default:
		var texts []string
		json.Unmarshal([]byte(c.source), &texts)
		return model.NewGrammarChoice(texts...)
	}
}

// isAboutGrammar says whether the library's sentence is about a call's grammar.
func isAboutGrammar(message string) bool { return strings.Contains(message, "the grammar: ") }
