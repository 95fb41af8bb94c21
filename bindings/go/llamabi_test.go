package llamabi_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"llamabi"
)

func TestRanks(t *testing.T) {
	behaviour(t, "ranks")
	model := open(t, demo, llamabi.WithDevices(0, 0))
	if err := model.Health(); err != nil {
		t.Error(err)
	}
	info, first, second := must(model.Info())(t), must(model.Rank(0))(t), must(model.Rank(1))(t)
	equal(t, info.ModelParallelSize, 2)
	equal(t, first.WeightBytes+second.WeightBytes, info.WeightBytes)
	equal(t, first.KVBytes+second.KVBytes, info.KVBytes)
	equal(t, first.PID, os.Getpid())
	equal(t, second.Rank, 1)
	_, err := model.Rank(2)
	wantError(t, err, llamabi.ErrInvalidArgument, "rank is 2, must be below the number of ranks, 2")
}

func TestDraftModel(t *testing.T) {
	behaviour(t, "draft_model")
	model, plainly := open(t, demo, llamabi.WithDraft(demo), llamabi.WithDraftDtypes(llamabi.DtypeInt4, llamabi.DtypeAuto)), open(t, demo)
	equal(t, must(model.Info())(t).HasDraft, true)
	equal(t, must(plainly.Info())(t).HasDraft, false)
	say := func(model *llamabi.Model, opts ...llamabi.GenerateOption) (llamabi.Result, error) {
		opts = append(opts, llamabi.Temperature(0), llamabi.MaxGenLen(60))
		results, err := model.TextCompletion(t.Context(), []string{"Once upon a time"}, opts...)
		if err != nil {
			return llamabi.Result{}, err
		}
		return results[0], nil
	}
	want := must(say(plainly))(t)
	got := must(say(model, llamabi.Speculate(llamabi.SpecDraft)))(t)
	equal(t, got.Text, want.Text)
	if got.Stats.AcceptedTokens == 0 {
		t.Error("no guess was right")
	}
	if must(say(model, llamabi.Contrast(4, 0.01)))(t).Text == want.Text {
		t.Error("contrast changes nothing")
	}
	_, err := say(plainly, llamabi.Speculate(llamabi.SpecDraft))
	wantError(t, err, llamabi.ErrInvalidArgument, "draft model")
	_, err = say(plainly, llamabi.Contrast(4, 0.01))
	wantError(t, err, llamabi.ErrInvalidArgument, "contrast_beta")
}

func TestMedusaHeads(t *testing.T) {
	behaviour(t, "medusa_heads")
	model := open(t, demo)
	equal(t, must(model.Info())(t).MedusaHeads, 0)
	_, err := model.TextCompletion(t.Context(), []string{"a"}, llamabi.Speculate(llamabi.SpecMedusa))
	wantError(t, err, llamabi.ErrInvalidArgument, "medusa_dir")
	_, err = llamabi.Open(t.Context(), demo, llamabi.WithMedusa("/nonexistent"))
	wantError(t, err, llamabi.ErrIO, "/nonexistent")
}

func TestProgressAndLog(t *testing.T) {
	var fractions []float32
	var lines []string
	model := open(t, demo,
		llamabi.WithProgress(func(f float32) bool { fractions = append(fractions, f); return true }),
		llamabi.WithLog(llamabi.LogInfo, func(level llamabi.LogLevel, line string) {
			if level > llamabi.LogInfo {
				t.Errorf("a line of level %d", level)
			}
			lines = append(lines, line)
		}))
	if n := len(fractions); n < 2 || fractions[n-1] != 1 {
		t.Errorf("progress: %v", fractions)
	}
	if len(lines) == 0 || lines[0] == "" {
		t.Errorf("log: %q", lines)
	}
	model.Close()

	_, err := llamabi.Open(t.Context(), demo, llamabi.WithProgress(func(float32) bool { return false }))
	wantError(t, err, llamabi.ErrCancelled)

	panics := func(opt llamabi.Option) (p any) {
		defer func() { p = recover() }()
		llamabi.Open(t.Context(), demo, opt)
		return nil
	}
	for _, opt := range []llamabi.Option{
		llamabi.WithProgress(func(float32) bool { panic("of mine") }),
		llamabi.WithLog(llamabi.LogDebug, func(llamabi.LogLevel, string) { panic("of mine") }),
	} {
		if p := fmt.Sprint(panics(opt)); !strings.Contains(p, "of mine") || !strings.Contains(p, "llamabi_test.go") {
			t.Errorf("the panic became %v", p)
		}
	}
}

func TestTokens(t *testing.T) {
	model := open(t, demo)
	info := must(model.Info())(t)
	equal(t, []int{info.VocabSize, info.Dim, info.NLayers, info.NHeads, info.NKVHeads, info.MaxSeqLen, info.MaxBatchSize},
		[]int{1024, 192, 4, 6, 2, 512, 8})
	equal(t, info.WeightsDtype, llamabi.DtypeBF16)
	if info.DeviceName == "" || info.Device != llamabi.DeviceCPU {
		t.Errorf("device %v %q", info.Device, info.DeviceName)
	}
	for _, text := range []string{"", " ", "The cat sat.", "naïve ✓ 你好\x00!", strings.Repeat("x ", 3000)} {
		tokens := must(model.Encode(text, true, true))(t)
		equal(t, tokens[0], info.BosID)
		equal(t, tokens[len(tokens)-1], info.EosID)
		if len(tokens) > len(text)+3 {
			t.Errorf("%d tokens for %q", len(tokens), text)
		}
		equal(t, must(model.Decode(tokens))(t), text)
	}
	// More bytes than the first guess: U+FFFD for each byte.
	lone := must(model.Encode("✓", false, false))(t)
	repeated := make([]int32, 0, 3000)
	for range 1000 {
		repeated = append(repeated, lone[1:]...)
	}
	if text := must(model.Decode(repeated))(t); len(text) < 2000 {
		t.Errorf("%d bytes", len(text))
	}
	var bytes []byte
	for _, token := range lone[1:] {
		bytes = append(bytes, must(model.TokenBytes(token))(t)...)
	}
	equal(t, string(bytes), "✓")
	dialog := []llamabi.Message{{Role: "user", Content: "Hi!"}}
	tokens := must(model.EncodeDialog(dialog))(t)
	result := must(model.Chat(t.Context(), [][]llamabi.Message{dialog}, llamabi.Temperature(0), llamabi.Echo()))(t)[0]
	equal(t, result.Tokens[:len(tokens)], tokens)
	equal(t, llamabi.Version(), "0.1.0")
	equal(t, llamabi.ABIVersion(), 0)
}
