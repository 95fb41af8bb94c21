package llamabi

// #include <llamabi.h>
import "C"

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"unicode/utf8"
	"unsafe"
)

// Grammar is a language that generated text is kept in, for the model that made it and any number
// of its calls at a time. Close it, or leave it to the garbage collector.
type Grammar struct {
	model   *Model
	c       *C.llama_grammar_t // an opaque number to C, and no pointer to the garbage collector
	cleanup runtime.Cleanup
}

// NewGrammarJSONSchema makes the language of the JSON values that a JSON Schema describes.
func (m *Model) NewGrammarJSONSchema(schema string) (*Grammar, error) {
	return m.newGrammar(C.LLAMA_GRAMMAR_JSON_SCHEMA, schema)
}

// NewGrammarJSON makes the language of all JSON objects.
func (m *Model) NewGrammarJSON() (*Grammar, error) {
	return m.newGrammar(C.LLAMA_GRAMMAR_JSON, "")
}

// NewGrammarRegex makes the language of the texts that a regular expression matches as a whole.
func (m *Model) NewGrammarRegex(expression string) (*Grammar, error) {
	return m.newGrammar(C.LLAMA_GRAMMAR_REGEX, expression)
}

// NewGrammarLark makes the language of a grammar in llguidance's dialect of Lark.
func (m *Model) NewGrammarLark(grammar string) (*Grammar, error) {
	return m.newGrammar(C.LLAMA_GRAMMAR_LARK, grammar)
}

// NewGrammarChoice makes the language of these texts: distinct, none empty.
func (m *Model) NewGrammarChoice(texts ...string) (*Grammar, error) {
	for i, text := range texts {
		if !utf8.ValidString(text) { // json would make another text of it
			return nil, &Error{Status: ErrUTF8, Message: fmt.Sprintf("texts[%d] %q is not valid UTF-8", i, text)}
		}
	}
	array, err := json.Marshal(append([]string{}, texts...))
	if err != nil {
		return nil, err
	}
	return m.newGrammar(C.LLAMA_GRAMMAR_CHOICE, string(array))
}

func (m *Model) newGrammar(kind C.int32_t, source string) (*Grammar, error) {
	end, err := m.call()
	if err != nil {
		return nil, err
	}
	defer end()
	s := (*C.char)(unsafe.Pointer(unsafe.StringData(source)))
	switch {
	case kind == C.LLAMA_GRAMMAR_JSON:
		s = nil
	case source == "":
		s = new(C.char) // not NULL
	}
	g := &Grammar{model: m}
	var cerr cError
	status := C.llama_grammar_new(m.c, kind, s, C.size_t(len(source)), &g.c, cerr.init())
	if status != C.LLAMA_OK {
		return nil, cerr.toError(context.Background(), status, m.handle)
	}
	g.cleanup = runtime.AddCleanup(g, func(c *C.llama_grammar_t) { C.llama_grammar_free(c) }, g.c)
	return g, nil
}

// Close frees the grammar; calls and streams that were given it go on with it. It may be called
// again. What is called with the grammar afterwards fails with [ErrInvalidArgument].
func (g *Grammar) Close() error {
	g.cleanup.Stop()
	C.llama_grammar_free(g.c)
	return nil
}

// Mask says which tokens may follow these generated ones: bit t%32 of word t/32 for token t.
func (g *Grammar) Mask(tokens []int32) ([]uint32, error) {
	if g == nil || g.c == nil {
		return nil, invalid("the grammar is nil, or no function has made it")
	}
	flat, lens := flatten([][]int32{tokens})
	defer runtime.KeepAlive(g)
	return fill[uint32](context.Background(), g.model, 4096, func(buf *C.uint32_t, cap C.size_t, n *C.size_t, err *C.llama_error) C.llama_status {
		return C.llama_grammar_mask(g.c, unsafe.SliceData(flat), lens[0], buf, cap, n, err)
	})
}

// WithGrammar keeps the text in a language: one that was made by the model that is called. Not with
// [IgnoreEOS].
func WithGrammar(g *Grammar) GenerateOption {
	return func(o *generateOptions) {
		if g == nil || g.c == nil { // to C the latter would be no grammar
			o.err = invalid("the grammar is nil, or no function has made it")
			return
		}
		o.c.grammar = g.c
	}
}
