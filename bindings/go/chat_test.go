package llamabi_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"llamabi"
)

const chatTemplate = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{{ tools | length if tools }}{{ x }}" +
	"{{ raise_exception('no ' ~ messages[0].role) if messages[0].role == 'critic' }}{% if add_generation_prompt %}assistant:{% endif %}"

func TestChatTemplates(t *testing.T) {
	behaviour(t, "chat_templates")
	model := open(t, demo, llamabi.WithChatTemplate(chatTemplate), llamabi.WithChatNow(time.Unix(1000000000, 0)))
	request := llamabi.ChatRequest{Messages: json.RawMessage(`[{"role": "user", "content": "Once"}]`)}
	equal(t, must(model.RenderChat(request))(t), "user: Once\nassistant:")
	request.Tools = []map[string]any{{"type": "function", "function": map[string]any{"name": "f"}}}
	request.Variables = map[string]any{"x": []int{1}}
	equal(t, must(model.RenderChat(request))(t), "user: Once\n1[1]assistant:")
	request.NoGenerationPrompt = true
	text := must(model.RenderChat(request))(t)
	equal(t, text, "user: Once\n1[1]")
	equal(t, must(model.EncodeChat(request))(t), must(model.Encode(text, false, false))(t))
	request.Template = "{{ strftime_now('%Y') }}"
	equal(t, must(model.RenderChat(request))(t), "2001")

	request = llamabi.ChatRequest{Messages: []map[string]string{{"role": "user", "content": "Once"}}}
	opts := []llamabi.GenerateOption{llamabi.Temperature(0), llamabi.MaxGenLen(20)}
	result := must(model.ChatMessages(t.Context(), request, opts...))(t)
	streamed := must(collected(t, 1, model.StreamMessages(t.Context(), request, opts...)))(t)
	equal(t, result.Text, streamed[0].Text)
	dialog := []llamabi.Message{{Role: "user", Content: "Once"}}
	plain := must(model.Chat(t.Context(), [][]llamabi.Message{dialog}, opts...))(t)
	equal(t, plain[0].Text, result.Text)
	same := must(model.ChatMessages(t.Context(), llamabi.ChatRequest{Messages: dialog}, opts...))(t)
	equal(t, same.Text, result.Text)

	// What a stream answers is what it was made with, though it begins later.
	changing := []any{map[string]string{"role": "user", "content": "Once"}}
	later := model.StreamMessages(t.Context(), llamabi.ChatRequest{Messages: &changing}, opts...)
	changing[0] = func() {}
	equal(t, must(collected(t, 1, later))(t)[0].Text, result.Text)

	// It has one result to give; the stream gives all.
	two := append(opts, llamabi.NumReturnSequences(2))
	_, err := model.ChatMessages(t.Context(), request, two...)
	if !errors.Is(err, llamabi.ErrInvalidArgument) || !strings.Contains(err.Error(), "num_return_sequences is 2, must be 1") {
		t.Error(err)
	}
	equal(t, must(collected(t, 2, model.StreamMessages(t.Context(), request, two...)))(t)[1].Text, result.Text)

	request.Messages = json.RawMessage(`[{"role": "critic", "content": "x"}]`)
	_, err = model.ChatMessages(t.Context(), request)
	if !errors.Is(err, llamabi.ErrInvalidArgument) || !strings.Contains(err.Error(), "no critic") {
		t.Error(err)
	}
	request.Messages = func() {}
	_, err = model.RenderChat(request)
	if !errors.Is(err, llamabi.ErrInvalidArgument) {
		t.Error(err)
	}
}
