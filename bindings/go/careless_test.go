package llamabi_test

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"llamabi"
)

// What a careless caller gives is refused with the argument and its value, and not taken for
// something else.
func TestCareless(t *testing.T) {
	model := open(t, demo)
	const invalid = llamabi.ErrInvalidArgument

	_, err := llamabi.Open(nil, demo) //nolint:staticcheck // nil is what is tested
	wantError(t, err, invalid, "ctx is nil")
	_, err = model.TextCompletion(nil, []string{"a"}) //nolint:staticcheck
	wantError(t, err, invalid, "ctx is nil")
	for _, err := range model.StreamText(nil, []string{"a"}) { //nolint:staticcheck
		wantError(t, err, invalid, "ctx is nil")
	}

	_, err = model.EncodeBounded(t.Context(), "a b", false, false, -5)
	wantError(t, err, invalid, "max_tokens is -5, must be at least 0")
	_, err = model.EncodeSpecial(t.Context(), "a b", false, false, -5)
	wantError(t, err, invalid, "max_tokens is -5, must be at least 0")
	_, err = model.Rank(-1)
	wantError(t, err, invalid, "rank is -1, must be at least 0")
	_, err = model.Rank(math.MaxInt64)
	wantError(t, err, invalid, "rank is 9223372036854775807, must be at most 4294967295")

	// A grammar that no function has made would be none to C.
	_, err = model.TextCompletion(t.Context(), []string{"a"}, llamabi.WithGrammar(new(llamabi.Grammar)))
	wantError(t, err, invalid, "no function has made it")
	_, err = new(llamabi.Grammar).Mask(nil)
	wantError(t, err, invalid, "no function has made it")
	equal(t, new(llamabi.Grammar).Close(), nil)

	stopper := new(llamabi.Stopper)
	for range model.StreamText(t.Context(), []string{"a"}, llamabi.WithStopper(stopper)) {
		wantError(t, stopper.Stop(1), invalid, "i is 1, the stream has no such sequence")
		break
	}
}

// Text that is not UTF-8 is refused as in other calls, though json would make U+FFFD of it.
func TestChatUTF8(t *testing.T) {
	model := open(t, demo)
	render := func(messages, tools, variables any) (string, error) {
		return model.RenderChat(llamabi.ChatRequest{Messages: messages, Tools: tools, Variables: variables,
			Template: "{{ messages[0].content }}{{ tools is none }}"})
	}
	message := func(text string) []llamabi.Message { return []llamabi.Message{{Role: "user", Content: text}} }
	_, err := render(message("a\xff"), nil, nil)
	wantError(t, err, llamabi.ErrUTF8, "messages has a text that is not valid UTF-8", `"a\xff"`)
	half := "\xc3"
	_, err = render(message("a"), []any{map[string]*string{"x": &half}}, nil)
	wantError(t, err, llamabi.ErrUTF8, "tools has", `"\xc3"`)
	_, err = render(message("a"), nil, map[string]int{"\xff": 1})
	wantError(t, err, llamabi.ErrUTF8, "variables has")
	// U+FFFD may be meant, however it is written.
	equal(t, must(render(message("\ufffd \\ufffd"), nil, nil))(t), "\ufffd \\ufffdTrue")
	equal(t, must(render(json.RawMessage(`[{"role": "user", "content": "\ufffd"}]`), nil, nil))(t), "\ufffdTrue")
	// A nil slice or map is none.
	equal(t, must(render(message("a"), []map[string]any(nil), map[string]any(nil)))(t), "aTrue")
}

// 1970-01-01 is a time, and not the clock's.
func TestChatNow(t *testing.T) {
	for _, now := range []time.Time{time.Unix(0, 0), time.Unix(1e9, 0), time.Unix(-1e8, 0)} {
		model := open(t, demo, llamabi.WithChatNow(now), llamabi.WithMaxSeqLen(16))
		got := must(model.RenderChat(llamabi.ChatRequest{Messages: []llamabi.Message{{Role: "user", Content: "a"}},
			Template: "{{ strftime_now('%Y') }}"}))(t)
		equal(t, got, now.Local().Format("2006"))
	}
}
