package llamabi_test

import (
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"

	"llamabi"
)

func TestDeciding(t *testing.T) {
	behaviour(t, "deciding")
	model := open(t, demo)
	prompts := []string{"Once upon a time", "One day"}
	opts := func(more ...llamabi.GenerateOption) []llamabi.GenerateOption {
		return append([]llamabi.GenerateOption{llamabi.Seed(3), llamabi.MaxGenLen(30), llamabi.IgnoreEOS(),
			llamabi.Logprobs()}, more...)
	}
	whole := must(model.TextCompletion(t.Context(), prompts, opts()...))(t)
	asked := 0
	stop := llamabi.WithStopFunc(func(index int, tokens []int32, nPrompt int) bool {
		asked++
		equal(t, tokens[:nPrompt], must(model.Encode(prompts[index], true, false))(t))
		output := tokens[nPrompt:]
		equal(t, output, whole[index].Tokens[:len(output)])
		return len(output) == 7+index
	})
	cut := must(model.TextCompletion(t.Context(), prompts, opts(stop)...))(t)
	texts, tokens := make([]string, 2), make([]int, 2)
	for ev, err := range model.StreamText(t.Context(), prompts, opts(stop)...) {
		if err != nil {
			t.Fatal(err)
		}
		texts[ev.Index] += ev.Text
		if ev.Kind == llamabi.EventToken {
			tokens[ev.Index]++
		} else {
			equal(t, ev.FinishReason, llamabi.FinishCaller)
		}
	}
	for i, result := range cut {
		n := 7 + i
		equal(t, result.FinishReason, llamabi.FinishCaller)
		equal(t, result.Tokens, whole[i].Tokens[:n])
		equal(t, result.Logprobs, whole[i].Logprobs[:n])
		equal(t, texts[i], result.Text)
		equal(t, tokens[i], n)
	}
	equal(t, asked, 2*(7+8))

	// Logits: seen, and changed as a bias changes them.
	rows := 0
	never := whole[0].Tokens[3]
	see := llamabi.WithLogits(func(row llamabi.LogitsRow) {
		rows++
		equal(t, len(row.Logits), must(model.Info())(t).VocabSize)
	})
	same := must(model.TextCompletion(t.Context(), prompts, opts(see)...))(t)
	ban := llamabi.WithLogits(func(row llamabi.LogitsRow) { row.Logits[never] = float32(math.NaN()) })
	banned := must(model.TextCompletion(t.Context(), prompts, opts(ban)...))(t)
	bias := llamabi.LogitBias(map[int32]float32{never: float32(math.Inf(-1))})
	biased := must(model.TextCompletion(t.Context(), prompts, opts(bias)...))(t)
	for i := range prompts {
		equal(t, same[i].Tokens, whole[i].Tokens)
		equal(t, same[i].Logprobs, whole[i].Logprobs)
		equal(t, banned[i].Tokens, biased[i].Tokens)
		equal(t, banned[i].Logprobs, biased[i].Logprobs)
	}
	equal(t, rows, 60)

	// What panics in them goes on behind the call.
	for _, opt := range []llamabi.GenerateOption{
		llamabi.WithStopFunc(func(int, []int32, int) bool { panic("why") }),
		llamabi.WithLogits(func(llamabi.LogitsRow) { panic("why") }),
		llamabi.WithLogits(func(llamabi.LogitsRow) { defer panic("why"); runtime.Goexit() }),
	} {
		for _, call := range []func(){
			func() { _, _ = model.TextCompletion(t.Context(), prompts, opts(opt)...) },
			func() {
				for range model.StreamText(t.Context(), prompts, opts(opt)...) { //nolint:revive // all of them
				}
			},
		} {
			func() {
				defer func() {
					if p := fmt.Sprint(recover()); !strings.Contains(p, "panicked: why") {
						t.Errorf("recovered %s", p)
					}
				}()
				call()
			}()
		}
	}

	// One sequence of a stream, in its loop.
	var stopper llamabi.Stopper
	equal(t, stopper.Stop(7), nil)
	_, err := model.TextCompletion(t.Context(), prompts, opts(llamabi.WithStopper(&stopper))...)
	wantError(t, err, llamabi.ErrInvalidArgument, "streams")
	tokens = make([]int, 2)
	for ev, err := range model.StreamText(t.Context(), prompts, opts(llamabi.WithStopper(&stopper))...) {
		if err != nil {
			t.Fatal(err)
		}
		if ev.Kind == llamabi.EventToken {
			tokens[ev.Index]++
		}
		if tokens[1] == 4 {
			equal(t, stopper.Stop(1), nil)
			wantError(t, stopper.Stop(2), llamabi.ErrInvalidArgument, "")
		}
	}
	equal(t, tokens, []int{30, 4})
	equal(t, stopper.Stop(0), nil)
}
