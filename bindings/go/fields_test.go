package llamabi_test

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"reflect"
	"strings"
	"testing"
	"time"

	"llamabi"
)

// Sets every option to what tests/bindings/fields.txt has, with the library of
// tests/bindings/fields.sh.
func TestEveryField(t *testing.T) {
	if isChild() {
		everyField(t)
		return
	}
	behaviour(t, "every_field")
	dir := t.TempDir()
	const script = "../../tests/bindings/fields.sh"
	if out, err := exec.Command(script, "lib", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	said, err := child(t, dir)
	if err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	check := exec.Command(script, "check")
	check.Stdin = strings.NewReader(said)
	if out, err := check.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

func everyField(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	sentence := func(err error) string {
		var e *llamabi.Error
		if !errors.As(err, &e) {
			t.Fatalf("got %v", err)
		}
		return e.Message
	}
	_, err := llamabi.Open(ctx, "say", llamabi.WithMaxSeqLen(101), llamabi.WithMaxBatchSize(102),
		llamabi.WithModelParallelSize(103), llamabi.WithDevice(llamabi.DeviceCUDA, 104), llamabi.WithThreads(105),
		llamabi.WithWeightsDtype(llamabi.DtypeNF4), llamabi.WithKVDtype(llamabi.DtypeInt8), llamabi.WithSeed(5000000106),
		llamabi.WithProgress(func(float32) bool { return true }),
		llamabi.WithLog(llamabi.LogDebug, func(llamabi.LogLevel, string) {}),
		llamabi.WithGPUMemory(5000000107), llamabi.WithMaxWaiting(108), llamabi.WithPrecision(llamabi.PrecisionFast), llamabi.WithMaxStall(109*time.Millisecond),
		llamabi.WithMaxUnread(110*time.Millisecond), llamabi.WithStallMemory(5000000111),
		llamabi.WithDevices(0, 1, 2), llamabi.WithRankTimeout(113*time.Millisecond),
		llamabi.WithChatTemplate("a"), llamabi.WithChatNow(time.Unix(5000000112, 0)),
		llamabi.WithDraft("a"), llamabi.WithDraftDtypes(llamabi.DtypeInt4, llamabi.DtypeBF16), llamabi.WithMedusa("b"), llamabi.WithMaxStep(114*time.Millisecond),
		llamabi.WithAdapter("a", 1), llamabi.WithAdapter("b", 0.5))
	fmt.Println("\nllama_build_options", sentence(err))

	model := open(t, "a model")
	_, err = model.TextCompletion(ctx, []string{"a"},
		// Numbers of llamabi.h.
		llamabi.MaxGenLen(201),
		llamabi.Temperature(0.5),
		llamabi.TopP(0.25),
		llamabi.TopK(202),
		llamabi.MinP(0.125),
		llamabi.RepetitionPenalty(1.5),
		llamabi.Seed(5000000203),
		llamabi.TopLogprobs(204),
		llamabi.CacheSalt(5000000205),
		llamabi.NumReturnSequences(206),
		llamabi.NumBeams(211),
		llamabi.MinGenLen(207),
		llamabi.NoRepeatNgramSize(208),
		llamabi.PresencePenalty(0.75),
		llamabi.FrequencyPenalty(-0.75),
		llamabi.TypicalP(0.625),
		llamabi.EpsilonCutoff(0.375),
		llamabi.EtaCutoff(0.875),
		llamabi.MaxTime(209*time.Millisecond),
		llamabi.LengthPenalty(1.75),
		llamabi.DraftLen(212),
		// End of numbers.
		llamabi.Stop("a", "b"),
		llamabi.WithGrammar(must(model.NewGrammarJSON())(t)),
		llamabi.LogitBias(map[int32]float32{1: 0.5}), llamabi.StopTokens(1, 2, 3), llamabi.BadWords([]int32{1}, []int32{2, 3}, []int32{4}, []int32{5}),
		llamabi.Adapter(210), llamabi.EarlyStopping(llamabi.EarlyNever), llamabi.BeamEvents(),
		llamabi.WithStopFunc(func(int, []int32, int) bool { return false }),
		llamabi.Speculate(llamabi.SpecNGram), llamabi.Predicted(1, 2, 3, 4, 5),
		llamabi.Contrast(0.15625, 0.1875),
		llamabi.ForceWords([][]int32{{1}, {2, 3}}, [][]int32{{4}}),
		llamabi.Echo(), llamabi.Logprobs(), llamabi.NoWait(), llamabi.IgnoreEOS(), llamabi.Special())
	fmt.Println("llama_generate_options", sentence(err))

	fmt.Printf("llama_info %+v\n", must(model.Info())(t))
	fmt.Println("llama_timings", inMilliseconds(must(model.Timings())(t)))
	var reasons []llamabi.FinishReason
	var stats llamabi.RequestStats
	for ev, err := range model.StreamText(ctx, []string{"a"}) {
		if err != nil {
			t.Fatal(err)
		}
		reasons, stats = append(reasons, ev.FinishReason), ev.Stats
	}
	fmt.Println("llama_finish", reasons)
	fmt.Println("llama_request_stats", inMilliseconds(stats))
}

// inMilliseconds is the fields of a struct, with durations as C has them.
func inMilliseconds(v any) (values []any) {
	for i := range reflect.ValueOf(v).NumField() {
		value := reflect.ValueOf(v).Field(i).Interface()
		if d, ok := value.(time.Duration); ok {
			value = d.Milliseconds()
		}
		values = append(values, value)
	}
	return values
}
