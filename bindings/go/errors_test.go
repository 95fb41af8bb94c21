package llamabi_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"llamabi"
)

// A path that is missing is fs.ErrNotExist, too, whichever of a checkpoint's it is.
func TestNotExist(t *testing.T) {
	empty := t.TempDir()
	half := t.TempDir() // a tokenizer, and no checkpoint
	tokenizer := must(os.ReadFile(filepath.Join(demo, "tokenizer.model")))(t)
	if err := os.WriteFile(filepath.Join(half, "tokenizer.model"), tokenizer, 0o600); err != nil {
		t.Fatal(err)
	}
	for dir, opts := range map[string][]llamabi.Option{
		"no/such/model": nil,
		empty:           nil,
		half:            nil,
		demo:            {llamabi.WithTokenizer("no/such/tokenizer")},
	} {
		_, err := llamabi.Open(t.Context(), dir, opts...)
		wantError(t, err, llamabi.ErrIO)
		if !errors.Is(err, os.ErrNotExist) || !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v is not os.ErrNotExist", dir, err)
		}
		var e *llamabi.Error
		if errors.As(err, &e) && err.Error() != "llamabi: "+e.Message {
			t.Errorf("%s: %q has more than the library's sentence", dir, err)
		}
	}
	_, err := llamabi.Open(t.Context(), demo, llamabi.WithAdapter("no/such/adapter", 1))
	wantError(t, err, llamabi.ErrIO)
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v is not os.ErrNotExist", err)
	}
	// A tokenizer.json will do, and is there, though it cannot be read.
	unreadable := t.TempDir()
	config := must(os.ReadFile(filepath.Join(demo, "../hf/config.json")))(t)
	if err := os.WriteFile(filepath.Join(unreadable, "config.json"), config, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(unreadable, "tokenizer.json"), 0o700); err != nil {
		t.Fatal(err)
	}
	_, err = llamabi.Open(t.Context(), unreadable)
	if err == nil || errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v is os.ErrNotExist", err)
	}
	// A directory that is there and no checkpoint is another error, as is a file in its place.
	_, err = llamabi.Open(t.Context(), filepath.Join(demo, "tokenizer.model"))
	if err == nil || errors.Is(err, os.ErrNotExist) && !errors.Is(err, llamabi.ErrIO) {
		t.Errorf("got %v", err)
	}
	_, err = llamabi.Open(t.Context(), demo, llamabi.WithTokenizer(filepath.Join(demo, "consolidated.00.pth")))
	if errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v is os.ErrNotExist", err)
	}
}

func TestNilOptions(t *testing.T) {
	_, err := llamabi.Open(t.Context(), demo, llamabi.WithMaxSeqLen(64), nil)
	wantError(t, err, llamabi.ErrInvalidArgument, "option 1 of 2 is nil")
	model := open(t, demo)
	_, err = model.TextCompletion(t.Context(), []string{"a"}, nil)
	wantError(t, err, llamabi.ErrInvalidArgument, "option 0 of 1 is nil")
	for _, err := range model.StreamText(t.Context(), []string{"a"}, llamabi.Seed(1), nil) {
		wantError(t, err, llamabi.ErrInvalidArgument, "option 1 of 2 is nil")
	}
}

// The limits that are checked before C can be asked are C's.
func TestLimits(t *testing.T) {
	build := func(sentence string, opt llamabi.Option) {
		t.Helper()
		_, err := llamabi.Open(t.Context(), demo, opt)
		wantError(t, err, llamabi.ErrInvalidArgument, sentence)
	}
	build("max_seq_len is -8, must be at least 1", llamabi.WithMaxSeqLen(-8))
	build("max_seq_len is 0, must be at least 1", llamabi.WithMaxSeqLen(0))
	build("max_batch_size is -8, must be at least 1", llamabi.WithMaxBatchSize(-8))
	build("n_threads is 1025, must be at most 1024", llamabi.WithThreads(1025))
	build("n_threads is 1099511627776, must be at most 1024", llamabi.WithThreads(1<<40))
	build("model_parallel_size is -1, must be at least 0", llamabi.WithModelParallelSize(-1))
	build("device_index is -1, must be at least 0", llamabi.WithDevice(llamabi.DeviceCPU, -1))
	build("max_waiting is -1, must be at least 0", llamabi.WithMaxWaiting(-1))
	build("max_stall_ms is -2, must be at least 0", llamabi.WithMaxStall(-2*time.Millisecond))
	build("max_step_ms is -1, must be at least 0", llamabi.WithMaxStep(-1))
	build("max_unread_ms is 4294968000, must be at most 4294967294", llamabi.WithMaxUnread(4294968*time.Second))
	open(t, demo, llamabi.WithMaxUnread(llamabi.Never), llamabi.WithMaxStall(time.Nanosecond))

	model := open(t, demo)
	generate := func(sentence string, opt llamabi.GenerateOption) {
		t.Helper()
		_, err := model.TextCompletion(t.Context(), []string{"a"}, opt)
		wantError(t, err, llamabi.ErrInvalidArgument, sentence)
	}
	generate("top_k is -3, must be at least 0", llamabi.TopK(-3))
	generate("top_k is -1099511627776, must be at least 0", llamabi.TopK(-1<<40))
	generate("max_gen_len is -1, must be at least 0", llamabi.MaxGenLen(-1))
	generate("max_time_ms is -1, must be at least 0", llamabi.MaxTime(-500*time.Microsecond))
	generate("top_logprobs is 1025, must be at most the vocabulary, 1024", llamabi.TopLogprobs(1025))
	generate("top_logprobs is 1099511627776, must be at most 4294967295", llamabi.TopLogprobs(1<<40))
}

func TestFinishReasonText(t *testing.T) {
	type answer struct{ Finish llamabi.FinishReason }
	for reason, text := range map[llamabi.FinishReason]string{
		0:                        `{"Finish":"none"}`,
		llamabi.FinishStop:       `{"Finish":"stop"}`,
		llamabi.FinishStopString: `{"Finish":"stop_string"}`,
		llamabi.FinishTime:       `{"Finish":"time"}`,
		llamabi.FinishUnread:     `{"Finish":"unread"}`,
		77:                       `{"Finish":"77"}`,
	} {
		equal(t, string(must(json.Marshal(answer{reason}))(t)), text)
		var back answer
		if err := json.Unmarshal([]byte(text), &back); err != nil || back.Finish != reason {
			t.Errorf("%s became %v, %v", text, back, err)
		}
	}
	var back answer
	wantError(t, json.Unmarshal([]byte(`{"Finish":"bored"}`), &back), llamabi.ErrInvalidArgument, "bored")
}

func TestBusy(t *testing.T) {
	behaviour(t, "busy")
	model := open(t, demo, llamabi.WithMaxSeqLen(50_000), llamabi.WithMaxBatchSize(1))
	for range model.Stream(t.Context(), [][]int32{{1}}, llamabi.IgnoreEOS()) {
		_, err := model.Generate(t.Context(), [][]int32{{1}}, llamabi.NoWait())
		wantError(t, err, llamabi.ErrBusy)
		for _, err := range model.Stream(t.Context(), [][]int32{{1}}, llamabi.NoWait()) {
			wantError(t, err, llamabi.ErrBusy)
		}
		break
	}
	idle(t, model)
	must(model.Generate(t.Context(), [][]int32{{1}}, llamabi.NoWait(), llamabi.MaxGenLen(1)))(t)
}

func TestBadArguments(t *testing.T) {
	behaviour(t, "bad_arguments")
	model := open(t, demo, llamabi.WithMaxSeqLen(32), llamabi.WithMaxBatchSize(2))
	generate := func(prompts [][]int32, opts ...llamabi.GenerateOption) error {
		_, err := model.Generate(t.Context(), prompts, opts...)
		for _, streamed := range model.Stream(t.Context(), prompts, opts...) {
			if fmt.Sprint(streamed) != fmt.Sprint(err) {
				t.Errorf("the stream says %v, generate %v", streamed, err)
			}
		}
		return err
	}
	one := [][]int32{{1}}
	wantError(t, generate(one, llamabi.Temperature(-1)), llamabi.ErrInvalidArgument, "temperature", "-1")
	wantError(t, generate(one, llamabi.Temperature(float32(math.NaN()))), llamabi.ErrInvalidArgument, "temperature")
	wantError(t, generate(one, llamabi.TopP(1.5)), llamabi.ErrInvalidArgument, "top_p", "1.5")
	wantError(t, generate(one, llamabi.TopK(-3)), llamabi.ErrInvalidArgument, "top_k", "-3")
	wantError(t, generate(one, llamabi.MinP(2)), llamabi.ErrInvalidArgument, "min_p", "2")
	wantError(t, generate(one, llamabi.RepetitionPenalty(0)), llamabi.ErrInvalidArgument, "repetition_penalty")
	wantError(t, generate(one, llamabi.MaxGenLen(-1)), llamabi.ErrInvalidArgument, "max_gen_len", "-1")
	wantError(t, generate(one, llamabi.TopLogprobs(1<<40)), llamabi.ErrInvalidArgument, "top_logprobs")
	wantError(t, generate(one, llamabi.Stop("a\x00b")), llamabi.ErrInvalidArgument, "stop", "NUL")
	wantError(t, generate(one, llamabi.Stop("\xff")), llamabi.ErrUTF8, "stop")
	wantError(t, generate([][]int32{{1, 1024}}), llamabi.ErrInvalidArgument, "1024")
	wantError(t, generate([][]int32{{1, -1}}), llamabi.ErrInvalidArgument, "-1")
	wantError(t, generate([][]int32{{}}), llamabi.ErrInvalidArgument)
	wantError(t, generate([][]int32{make([]int32, 33)}), llamabi.ErrTooLong, "33", "32")
	wantError(t, generate(nil), llamabi.ErrBatch, "0")
	wantError(t, generate(make([][]int32, 65537)), llamabi.ErrBatch, "65537", "65536")

	_, err := model.TextCompletion(t.Context(), []string{"good", "bad\xff"})
	wantError(t, err, llamabi.ErrUTF8, "1", "3")
	_, err = collected(t, 2, model.StreamText(t.Context(), []string{"good", "bad\xff"}))
	wantError(t, err, llamabi.ErrUTF8, "1", "3")
	_, err = model.TextCompletion(t.Context(), nil)
	wantError(t, err, llamabi.ErrBatch)
	_, err = collected(t, 0, model.StreamText(t.Context(), nil))
	wantError(t, err, llamabi.ErrBatch)
	_, err = collected(t, 0, model.StreamChat(t.Context(), nil))
	wantError(t, err, llamabi.ErrBatch)
	_, err = model.Chat(t.Context(), [][]llamabi.Message{{{Role: "wizard", Content: "hi"}}})
	wantError(t, err, llamabi.ErrInvalidArgument, "wizard")
	_, err = collected(t, 1, model.StreamChat(t.Context(), [][]llamabi.Message{{{Role: "wizard", Content: "hi"}}}))
	wantError(t, err, llamabi.ErrInvalidArgument, "wizard")
	_, err = model.Chat(t.Context(), [][]llamabi.Message{{}})
	wantError(t, err, llamabi.ErrInvalidArgument)
	_, err = model.Encode("\xff", false, false)
	wantError(t, err, llamabi.ErrUTF8)
	_, err = model.Decode([]int32{1 << 20})
	wantError(t, err, llamabi.ErrInvalidArgument, "1048576")
	_, err = model.TokenBytes(-5)
	wantError(t, err, llamabi.ErrInvalidArgument, "-5")

	for _, bad := range []struct {
		opt      llamabi.Option
		status   llamabi.Status
		contains string
	}{
		{llamabi.WithMaxSeqLen(0), llamabi.ErrInvalidArgument, "max_seq_len"},
		{llamabi.WithMaxBatchSize(-8), llamabi.ErrInvalidArgument, "max_batch_size"},
		{llamabi.WithModelParallelSize(2), llamabi.ErrInvalidArgument, "model_parallel_size"},
		{llamabi.WithDevice(99, 0), llamabi.ErrInvalidArgument, "device"},
		{llamabi.WithThreads(1 << 20), llamabi.ErrInvalidArgument, "n_threads"},
		{llamabi.WithWeightsDtype(99), llamabi.ErrInvalidArgument, "weights_dtype"},
		{llamabi.WithKVDtype(-1), llamabi.ErrInvalidArgument, "kv_dtype"},
		{llamabi.WithTokenizer(demo + "/consolidated.00.pth"), llamabi.ErrFormat, "consolidated.00.pth"},
		{llamabi.WithTokenizer("a\x00b"), llamabi.ErrInvalidArgument, "tokenizer_path"},
	} {
		_, err := llamabi.Open(t.Context(), demo, bad.opt)
		wantError(t, err, bad.status, bad.contains)
	}
}

func TestBoundedEncode(t *testing.T) {
	behaviour(t, "bounded_encode")
	model := open(t, demo)
	text := "Once upon a time"
	whole := must(model.Encode(text, true, true))(t)
	equal(t, must(model.EncodeBounded(t.Context(), text, true, true, len(whole)))(t), whole)
	_, err := model.EncodeBounded(t.Context(), text, true, true, len(whole)-1)
	wantError(t, err, llamabi.ErrTooLong, "max_tokens")
	_, err = model.EncodeBounded(t.Context(), text, true, true, 0)
	wantError(t, err, llamabi.ErrTooLong, "max_tokens is 0")
	done, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = model.EncodeBounded(done, text, true, true, len(whole))
	wantError(t, err, llamabi.ErrCancelled, "context canceled")
}

func TestMissingCheckpoint(t *testing.T) {
	behaviour(t, "missing_checkpoint")
	_, err := llamabi.Open(t.Context(), "no/such/model")
	wantError(t, err, llamabi.ErrIO, "no/such/model")
	_, err = llamabi.Open(t.Context(), demo, llamabi.WithTokenizer("no/such/tokenizer"))
	wantError(t, err, llamabi.ErrIO, "no/such/tokenizer")
	_, err = llamabi.Open(t.Context(), "..")
	wantError(t, err, llamabi.ErrIO, "params.json")
}
