package main

import (
	"encoding/json"
	"slices"
	"strings"
)

// form is how a model writes tool calls: a marker, then JSON that begins with open, then perhaps
// closing. Without its marker a call of a bare form may still begin the answer, or follow another
// call.
type form struct {
	marker  string
	open    byte
	closing string
	bare    bool
}

// forms are those that chat templates ask for.
var forms = map[string]form{
	"hermes":  {marker: "<tool_call>", open: '{', closing: "</tool_call>"}, // Hermes, Qwen
	"mistral": {marker: "[TOOL_CALLS]", open: '['},
	"llama":   {marker: "<|python_tag|>", open: '{', closing: ";", bare: true}, // Llama 3.1
}

const (
	spaces         = " \t\n\r"
	outsideStrings = spaces + ",:+-.0123456789truefalsnE" // what JSON has there, but for brackets
)

// call is one that the model makes; arguments is JSON of an object.
type call struct{ name, arguments string }

// callReader takes an answer's text as it comes, and parts it into calls and the rest. A call is
// given out once it is whole. What turns out to be none is part of the rest, unchanged. White space
// before a call, or between a call and the end, belongs to the call.
type callReader struct {
	form  form
	names []string // the request's tools: a bare call must be of one of them

	state  readerState
	held   string   // not yet decided about
	scan   jsonScan // of held, in atCall
	space  string   // white space that would be dropped before a call
	behind bool     // nothing but white space has come since the last call

	text  strings.Builder
	calls []call
}

type readerState int

const (
	inText  readerState = iota
	atStart             // a bare call may begin here
	atCall
	afterCall
)

// jsonScan is how far the JSON of a call has been followed.
type jsonScan struct {
	at, start       int // start is -1 before its first byte
	depth           int
	marked          bool
	quoted, escaped bool
}

func newCallReader(f form, names []string) *callReader {
	r := &callReader{form: f, names: names}
	r.state = r.between()
	return r
}

// between is the state where no call is under way.
func (r *callReader) between() readerState {
	if r.form.bare {
		return atStart
	}
	return inText
}

// push is what is certain with more of the answer.
func (r *callReader) push(text string) (string, []call) {
	r.held += text
	for r.step() {
	}
	return r.take()
}

// end is what the end of the answer adds. A call that is not whole is text.
func (r *callReader) end() (string, []call) {
	if r.state != afterCall {
		r.say(r.held)
	}
	if !r.behind {
		r.text.WriteString(r.space)
	}
	return r.take()
}

func (r *callReader) take() (string, []call) {
	text, calls := r.text.String(), r.calls
	r.text.Reset()
	r.calls = nil
	return text, calls
}

// step says whether there is more to be done with what is held.
func (r *callReader) step() bool {
	switch r.state {
	case atStart:
		r.sayUpTo(leadingSpaces(r.held))
		if r.held == "" {
			return false
		}
		if r.held[0] == r.form.open {
			r.begin(0)
		} else {
			r.state = inText
		}
		return true
	case inText:
		if at := strings.Index(r.held, r.form.marker); at >= 0 {
			r.sayUpTo(at)
			r.begin(len(r.form.marker))
			return true
		}
		kept := min(len(r.form.marker)-1, len(r.held))
		for !strings.HasPrefix(r.form.marker, r.held[len(r.held)-kept:]) {
			kept--
		}
		r.sayUpTo(len(r.held) - kept)
		return false
	case atCall:
		return r.follow()
	default:
		r.sayUpTo(leadingSpaces(r.held))
		closing := r.form.closing
		if len(r.held) < len(closing) && strings.HasPrefix(closing, r.held) {
			return false
		}
		if closing != "" && strings.HasPrefix(r.held, closing) {
			r.held, r.space = r.held[len(closing):], ""
		}
		r.state = r.between()
		return true
	}
}

func leadingSpaces(text string) int { return len(text) - len(strings.TrimLeft(text, spaces)) }

func (r *callReader) begin(at int) {
	r.state = atCall
	r.scan = jsonScan{at: at, start: -1, marked: at > 0}
}

// follow goes through the JSON of a call as far as it has come.
func (r *callReader) follow() bool {
	scan := &r.scan
	for ; scan.at < len(r.held); scan.at++ {
		c := r.held[scan.at]
		if scan.start < 0 {
			if strings.IndexByte(spaces, c) >= 0 {
				continue
			}
			if c != r.form.open {
				return r.fail(scan.at)
			}
			scan.start = scan.at
		}
		switch {
		case scan.escaped:
			scan.escaped = false
		case scan.quoted:
			scan.escaped = c == '\\'
			scan.quoted = c != '"'
		case c == '"':
			scan.quoted = true
		case c == '{', c == '[':
			if scan.depth++; scan.depth > mostNested {
				return r.fail(scan.at)
			}
		case c == '}', c == ']':
			if scan.depth--; scan.depth == 0 {
				return r.complete(scan.at + 1)
			}
		case strings.IndexByte(outsideStrings, c) < 0:
			return r.fail(scan.at)
		}
	}
	return false
}

// fail is that what is held up to there is no call.
func (r *callReader) fail(at int) bool {
	r.sayUpTo(at)
	r.state = inText
	return true
}

func (r *callReader) complete(end int) bool {
	calls := callsIn([]byte(r.held[r.scan.start:end]), r.scan.marked, r.names)
	if calls == nil {
		return r.fail(end)
	}
	r.calls = append(r.calls, calls...)
	r.held, r.space = r.held[end:], ""
	r.behind = true
	r.state = afterCall
	return true
}

func (r *callReader) sayUpTo(end int) {
	text := r.held[:end]
	r.held = r.held[end:]
	r.say(text)
}

func (r *callReader) say(text string) {
	if said := strings.TrimRight(text, spaces); said != "" {
		r.text.WriteString(r.space + said)
		r.space, r.behind = "", false
		text = text[len(said):]
	}
	r.space += text
}

// callsIn is the calls of an object, or of an array of these; nil where it is anything else. One
// without a marker must be of one of the names.
func callsIn(text []byte, marked bool, names []string) []call {
	items := []json.RawMessage{text}
	if text[0] == '[' && json.Unmarshal(text, &items) != nil {
		return nil
	}
	var calls []call
	for _, item := range items {
		call, ok := callIn(item, marked, names)
		if !ok {
			return nil
		}
		calls = append(calls, call)
	}
	return calls
}

func callIn(text []byte, marked bool, names []string) (c call, ok bool) {
	var object map[string]json.RawMessage
	if json.Unmarshal(text, &object) != nil || !isString(object["name"], &c.name) || c.name == "" {
		return c, false
	}
	if !marked && !slices.Contains(names, c.name) {
		return c, false
	}
	given, ok := object["arguments"]
	if !ok {
		given = object["parameters"] // Llama
	}
	switch {
	case given == nil || string(given) == "null":
		c.arguments = "{}"
		return c, marked
	case given[0] == '{':
		c.arguments = string(given)
		return c, true
	default:
		return c, isString(given, &c.arguments) && isObjectText(c.arguments)
	}
}

// isString says whether a value is a string, and puts that into text.
func isString(value json.RawMessage, text *string) bool {
	return len(value) > 0 && value[0] == '"' && json.Unmarshal(value, text) == nil
}

// isObjectText says whether a text is JSON of an object.
func isObjectText(text string) bool {
	return strings.HasPrefix(strings.TrimLeft(text, spaces), "{") && json.Valid([]byte(text))
}
