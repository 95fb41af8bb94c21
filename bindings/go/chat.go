package llamabi

// #include <llamabi.h>
import "C"

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"reflect"
	"runtime"
	"unicode/utf8"
	"unsafe"
)

// ChatRequest is a dialog for the model's chat template, with what surrounds it.
type ChatRequest struct {
	// Messages marshals to a JSON array in OpenAI's shape: objects with role, content and perhaps
	// tool_calls, tool_call_id, name, reasoning_content. A [json.RawMessage] is taken as it is.
	Messages any
	// Tools marshals to a JSON array of {"type": "function", "function": ...}; nil: none.
	Tools any
	// Variables marshals to a JSON object of what the template sees beside: enable_thinking, ...; nil:
	// none.
	Variables any
	// Template is the text of a Jinja template instead of the model's; empty: the model's.
	Template string
	// NoGenerationPrompt leaves the beginning of the answer out.
	NoGenerationPrompt bool
	// ContinueFinal cuts behind the last message's content, for the model to go on with it.
	ContinueFinal bool
	// ParseSpecial makes special tokens of their texts in messages, too. Without it only what the
	// template writes becomes special tokens.
	ParseSpecial bool
}

// cChat is a request as C takes it; its texts are pinned.
type cChat struct {
	messages []*C.char
	lens     []C.size_t
	c        C.llama_chat_options
}

func (r *ChatRequest) toC(pin *runtime.Pinner) (*cChat, error) {
	texts, err := r.texts()
	if err != nil {
		return nil, err
	}
	return r.withTexts(texts, pin), nil
}

// texts are those of its parts that are JSON, and of its template.
func (r *ChatRequest) texts() ([]string, error) {
	texts := make([]string, 0, 4)
	for _, part := range []struct {
		name  string
		value any
	}{{"messages", r.Messages}, {"tools", r.Tools}, {"variables", r.Variables}} {
		if part.value == nil && part.name != "messages" {
			texts = append(texts, "")
			continue
		}
		text, err := json.Marshal(part.value)
		if err != nil {
			return nil, invalid("%s: %v", part.name, err)
		}
		if string(text) == "null" && part.name != "messages" { // a nil slice or map
			text = nil
		}
		// What json writes of a byte that is no UTF-8, though it may stand in a RawMessage, too.
		if bytes.Contains(text, []byte(`\ufffd`)) {
			if not, found := notUTF8(reflect.ValueOf(part.value)); found {
				return nil, &Error{Status: ErrUTF8, Message: fmt.Sprintf("%s has a text that is not valid UTF-8, %.200q", part.name, not)}
			}
		}
		texts = append(texts, string(text))
	}
	return append(texts, r.Template), nil
}

// notUTF8 is a text in v that is not valid UTF-8, of those that json would write another text for.
func notUTF8(v reflect.Value) (text string, found bool) {
	switch v.Kind() {
	case reflect.String:
		return v.String(), !utf8.ValidString(v.String())
	case reflect.Interface, reflect.Pointer:
		if !v.IsNil() {
			return notUTF8(v.Elem())
		}
	case reflect.Slice, reflect.Array:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return "", false
		}
		for i := 0; i < v.Len() && !found; i++ {
			text, found = notUTF8(v.Index(i))
		}
	case reflect.Map:
		for entries := v.MapRange(); !found && entries.Next(); {
			if text, found = notUTF8(entries.Key()); !found {
				text, found = notUTF8(entries.Value())
			}
		}
	case reflect.Struct:
		for i := 0; i < v.NumField() && !found; i++ {
			if field := v.Type().Field(i); field.IsExported() && field.Tag.Get("json") != "-" {
				text, found = notUTF8(v.Field(i))
			}
		}
	}
	return text, found
}

func (r *ChatRequest) withTexts(texts []string, pin *runtime.Pinner) *cChat {
	c := &cChat{}
	C.llama_chat_options_init(&c.c, C.sizeof_llama_chat_options)
	pointers, lens := cStrings(texts, pin)
	c.messages, c.lens = pointers[:1], lens[:1]
	if lens[1] > 0 {
		c.c.tools, c.c.tools_len = pointers[1], lens[1]
	}
	if lens[2] > 0 {
		c.c.variables, c.c.variables_len = pointers[2], lens[2]
	}
	if lens[3] > 0 {
		c.c.chat_template, c.c.chat_template_len = pointers[3], lens[3]
	}
	for _, flag := range []struct {
		set bool
		bit C.uint32_t
	}{
		{r.NoGenerationPrompt, C.LLAMA_CHAT_NO_GENERATION_PROMPT},
		{r.ContinueFinal, C.LLAMA_CHAT_CONTINUE_FINAL},
		{r.ParseSpecial, C.LLAMA_CHAT_PARSE_SPECIAL},
	} {
		if flag.set {
			c.c.flags |= flag.bit
		}
	}
	return c
}

// ChatMessages answers a dialog by the model's chat template, as [Model.Generate] continues tokens,
// but once: not with [NumReturnSequences], which is for [Model.StreamMessages].
func (m *Model) ChatMessages(ctx context.Context, request ChatRequest, opts ...GenerateOption) (Result, error) {
	var pin runtime.Pinner
	defer pin.Unpin()
	c, err := request.toC(&pin)
	if err != nil {
		return Result{}, err
	}
	many := 1
	results, err := m.run(ctx, 1, opts, func(_ *runtime.Pinner, o *C.llama_generate_options, out **C.llama_result_t, err *C.llama_error) C.llama_status {
		if many = int(o.num_return_sequences); many > 1 { // others would be computed and lost
			return C.LLAMA_E_INVALID_ARGUMENT
		}
		return C.llama_chat(m.c, unsafe.SliceData(c.messages), unsafe.SliceData(c.lens), 1, &c.c, o, out, err)
	})
	if many > 1 {
		return Result{}, invalid("num_return_sequences is %d, must be 1 for one result: StreamMessages gives all of them", many)
	}
	if len(results) == 0 {
		return Result{}, err
	}
	return results[0], err
}

// StreamMessages answers the dialog of [Model.ChatMessages], as [Model.Stream] continues tokens.
// It is the dialog that the request has now, whenever the sequence is ranged over.
func (m *Model) StreamMessages(ctx context.Context, request ChatRequest, opts ...GenerateOption) iter.Seq2[Event, error] {
	texts, err := request.texts()
	if err != nil {
		return func(yield func(Event, error) bool) { yield(Event{}, err) }
	}
	return m.stream(ctx, opts, func(pin *runtime.Pinner, o *C.llama_generate_options, out **C.llama_stream_t, err *C.llama_error) C.llama_status {
		c := request.withTexts(texts, pin)
		return C.llama_stream_open_messages(m.c, unsafe.SliceData(c.messages), unsafe.SliceData(c.lens), 1, &c.c, o, out, err)
	})
}

// RenderChat is the text that the template makes of a dialog.
func (m *Model) RenderChat(request ChatRequest) (string, error) {
	var pin runtime.Pinner
	defer pin.Unpin()
	c, err := request.toC(&pin)
	if err != nil {
		return "", err
	}
	text, err := fill[byte](context.Background(), m, int(c.lens[0])+1024, func(buf *C.char, cap C.size_t, n *C.size_t, err *C.llama_error) C.llama_status {
		return C.llama_render_chat(m.c, c.messages[0], c.lens[0], &c.c, buf, cap, n, err)
	})
	return string(text), err
}

// EncodeChat makes tokens of a dialog, as [Model.ChatMessages] gives them to the model.
func (m *Model) EncodeChat(request ChatRequest) ([]int32, error) {
	var pin runtime.Pinner
	defer pin.Unpin()
	c, err := request.toC(&pin)
	if err != nil {
		return nil, err
	}
	return fill[int32](context.Background(), m, int(c.lens[0])+256, func(buf *C.int32_t, cap C.size_t, n *C.size_t, err *C.llama_error) C.llama_status {
		return C.llama_encode_chat(m.c, c.messages[0], c.lens[0], &c.c, buf, cap, n, err)
	})
}
