package llamabi_test

import (
	"errors"
	"strings"
	"testing"

	"llamabi"
)

func TestGrammar(t *testing.T) {
	behaviour(t, "grammar")
	model := open(t, demo)
	one := func(g *llamabi.Grammar) llamabi.Result {
		opts := []llamabi.GenerateOption{llamabi.WithGrammar(g), llamabi.Seed(1), llamabi.MaxGenLen(60)}
		result := must(model.TextCompletion(t.Context(), []string{"Once"}, opts...))(t)[0]
		streamed := must(collected(t, 1, model.StreamText(t.Context(), []string{"Once"}, opts...)))(t)
		equal(t, streamed[0].Text, result.Text)
		equal(t, result.FinishReason, llamabi.FinishStop)
		return result
	}
	regex := must(model.NewGrammarRegex("(ab){2}[0-9]"))(t)
	if text := one(regex).Text; len(text) != 5 || !strings.HasPrefix(text, "abab") {
		t.Errorf("%q", text)
	}
	if text := one(must(model.NewGrammarChoice("yes", "no"))(t)).Text; text != "yes" && text != "no" {
		t.Errorf("%q", text)
	}
	equal(t, one(must(model.NewGrammarJSONSchema(`{"const": 17}`))(t)).Text, "17")
	equal(t, one(must(model.NewGrammarLark(`start: "x"`))(t)).Text, "x")

	mask := must(must(model.NewGrammarJSON())(t).Mask(nil))(t)
	equal(t, len(mask), (must(model.Info())(t).VocabSize+31)/32)
	for text, allowed := range map[string]uint32{"{": 1, "x": 0} {
		tokens := must(model.Encode(text, false, false))(t)
		last := tokens[len(tokens)-1]
		equal(t, mask[last/32]>>(last%32)&1, allowed)
	}
	if timings := must(model.Timings())(t); timings.Masks == 0 || timings.Mask <= 0 {
		t.Errorf("%+v", timings)
	}

	_, err := model.NewGrammarRegex("(a")
	if !errors.Is(err, llamabi.ErrInvalidArgument) || !strings.Contains(err.Error(), "the grammar: ") {
		t.Error(err)
	}
	_, err = model.NewGrammarChoice("a", "\xff")
	wantError(t, err, llamabi.ErrUTF8, "texts[1]")
	_, err = model.NewGrammarRegex("\xff")
	wantError(t, err, llamabi.ErrUTF8)
	equal(t, regex.Close(), nil)
	equal(t, regex.Close(), nil)
	_, err = model.TextCompletion(t.Context(), []string{"Once"}, llamabi.WithGrammar(regex))
	if !errors.Is(err, llamabi.ErrInvalidArgument) || !strings.Contains(err.Error(), "grammar is not a live") {
		t.Error(err)
	}
	_, err = model.TextCompletion(t.Context(), []string{"Once"}, llamabi.WithGrammar(nil))
	wantError(t, err, llamabi.ErrInvalidArgument, "grammar is nil")
}
