// How calls end: cancelled, stopped, abandoned, refused.

package llamabi_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"llamabi"
)

func TestCancelMidPrefill(t *testing.T) {
	behaviour(t, "cancel_mid_prefill")
	const length = 60_000
	model := open(t, demo, llamabi.WithMaxSeqLen(length+1), llamabi.WithMaxBatchSize(1))
	prompt := make([]int32, length)
	for i := range prompt {
		prompt[i] = int32(3 + i*i%1000)
	}
	steps := func() uint64 { return must(model.Timings())(t).Steps }
	before := steps()
	const part = 4096
	must(model.Generate(t.Context(), [][]int32{prompt[:part]}, llamabi.MaxGenLen(1)))(t)
	whole := (steps() - before) * (length / part) // of the prompt, or a few less
	if whole < 60 {
		t.Fatalf("%d tokens are %d steps: too few to see that it ended early", length, whole)
	}
	prompt[0], prompt[1] = prompt[1], prompt[0] // not those of before, which are cached
	calls := map[string]func(context.Context) error{
		"generate": func(ctx context.Context) error {
			results, err := model.Generate(ctx, [][]int32{prompt})
			equal(t, len(results[0].Tokens), 0)
			equal(t, results[0].FinishReason, llamabi.FinishCancelled)
			return err
		},
		"stream": func(ctx context.Context) error {
			_, err := collected(t, 1, model.Stream(ctx, [][]int32{prompt}))
			return err
		},
	}
	for name, call := range calls {
		ctx, cancel := context.WithCancelCause(t.Context())
		why := errors.New("the client left")
		before := steps()
		cancelled := make(chan uint64, 1)
		go func() {
			eventually(t, name+" is in its prefill", func() bool { return steps() > before+1 })
			cancel(why)
			cancelled <- steps()
		}()
		err := call(ctx)
		wantError(t, err, llamabi.ErrCancelled)
		if !errors.Is(err, context.Canceled) || !errors.Is(err, why) {
			t.Errorf("%s: %v does not say why", name, err)
		}
		idle(t, model)
		// It ends as soon as the context's watcher has its turn, and nothing says when a busy machine
		// gives it one: before half of the prompt, far from its end.
		at := <-cancelled
		if ran := steps() - before; ran > at-before+whole/2 {
			t.Errorf("%s: cancelled after %d steps, it ended after %d; the whole prompt is %d", name, at-before, ran, whole)
		}
	}
	equal(t, must(model.Timings())(t).GeneratedTokens, uint64(1))
}

func TestCancelMidDecode(t *testing.T) {
	behaviour(t, "cancel_mid_decode")
	model := open(t, demo, llamabi.WithMaxSeqLen(50_000))
	opts := []llamabi.GenerateOption{llamabi.IgnoreEOS(), llamabi.Temperature(0)}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		eventually(t, "tokens are generated", func() bool { return must(model.Timings())(t).GeneratedTokens > 5 })
		cancel()
	}()
	results, err := model.Generate(ctx, [][]int32{{1}}, opts...)
	wantError(t, err, llamabi.ErrCancelled, "context canceled")
	n := len(results[0].Tokens)
	if n < 5 || n > 49_000 {
		t.Errorf("%d tokens", n)
	}
	equal(t, results[0].FinishReason, llamabi.FinishCancelled)
	equal(t, results[0].Text, must(model.Decode(results[0].Tokens))(t))
	equal(t, results[0].Stats.GeneratedTokens, n)

	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	seen, last := 0, llamabi.Event{}
	for ev, err := range model.Stream(ctx, [][]int32{{1}}, opts...) {
		if err != nil {
			wantError(t, err, llamabi.ErrCancelled, "context canceled")
			break
		}
		if seen++; seen == 5 {
			cancel()
		}
		last = ev
	}
	equal(t, last.FinishReason, llamabi.FinishCancelled)
	if seen < 5 || seen > 49_000 {
		t.Errorf("%d events", seen)
	}

	// Done before it begins: no step is run.
	idle(t, model)
	steps := must(model.Timings())(t).Steps
	results, err = model.Generate(ctx, [][]int32{{1}, {2}}, opts...)
	wantError(t, err, llamabi.ErrCancelled, "context canceled")
	equal(t, len(results), 2)
	equal(t, len(results[1].Tokens), 0)
	results, err = collected(t, 1, model.Stream(ctx, [][]int32{{1}}, opts...))
	wantError(t, err, llamabi.ErrCancelled, "context canceled")
	equal(t, len(results[0].Tokens), 0)
	idle(t, model)
	// The stream's last step may have been under way.
	if now := must(model.Timings())(t).Steps; now > steps+1 {
		t.Errorf("%d steps for calls that were cancelled before they began", now-steps)
	}
	_, err = llamabi.Open(ctx, demo)
	wantError(t, err, llamabi.ErrCancelled, "context canceled")
}

func TestAbandonStream(t *testing.T) {
	behaviour(t, "abandon_stream")
	model := open(t, demo, llamabi.WithMaxSeqLen(50_000), llamabi.WithMaxBatchSize(2))
	for range 20 {
		n := 0
		for _, err := range model.Stream(t.Context(), [][]int32{{1}, {1, 5}}, llamabi.IgnoreEOS()) {
			if err != nil {
				t.Fatal(err)
			}
			if n++; n == 3 {
				break
			}
		}
		equal(t, n, 3)
	}
	idle(t, model)
	func() { // a panic in the loop leaves it as well
		defer func() { recover() }()
		for range model.Stream(t.Context(), [][]int32{{1}}, llamabi.IgnoreEOS()) {
			panic("in the loop")
		}
	}()
	idle(t, model)
}

func TestUseAfterClose(t *testing.T) {
	behaviour(t, "use_after_close")
	closed := open(t, demo)
	for range 3 {
		if err := closed.Close(); err != nil {
			t.Error(err)
		}
	}
	for _, model := range []*llamabi.Model{closed, new(llamabi.Model), nil} {
		model.Close()
		ctx, errs := t.Context(), []error{}
		add := func(_ any, err error) { errs = append(errs, err) }
		add(model.Generate(ctx, [][]int32{{1}}))
		add(model.TextCompletion(ctx, []string{"a"}))
		add(model.Chat(ctx, [][]llamabi.Message{{{Role: "user", Content: "a"}}}))
		add(model.Encode("a", true, true))
		add(model.EncodeDialog(nil))
		add(model.Decode([]int32{1}))
		add(model.TokenBytes(1))
		add(model.Info())
		add(model.Timings())
		for _, err := range model.Stream(ctx, [][]int32{{1}}) {
			errs = append(errs, err)
		}
		for _, err := range model.StreamText(ctx, []string{"a"}) {
			errs = append(errs, err)
		}
		for _, err := range model.StreamChat(ctx, [][]llamabi.Message{{{Role: "user", Content: "a"}}}) {
			errs = append(errs, err)
		}
		equal(t, len(errs), 12)
		for i, err := range errs {
			if !errors.Is(err, llamabi.ErrClosed) {
				t.Errorf("call %d: %v", i, err)
			}
		}
	}
}

func TestCloseWhileRunning(t *testing.T) {
	behaviour(t, "close_while_running")
	for range 5 {
		var lines atomic.Int64
		model := open(t, demo, llamabi.WithMaxSeqLen(50_000), llamabi.WithMaxBatchSize(4),
			llamabi.WithLog(llamabi.LogDebug, func(llamabi.LogLevel, string) { lines.Add(1) }))
		var all sync.WaitGroup
		for i := range 8 { // four run, four wait
			all.Add(1)
			go func() {
				defer all.Done()
				var err error
				if i%2 == 0 {
					_, err = model.Generate(context.Background(), [][]int32{{1}}, llamabi.IgnoreEOS())
				} else {
					_, err = collected(t, 1, model.Stream(context.Background(), [][]int32{{1}}, llamabi.IgnoreEOS()))
				}
				wantError(t, err, llamabi.ErrCancelled)
				if !errors.Is(err, llamabi.ErrClosed) {
					t.Errorf("%v does not say that the model was closed", err)
				}
			}()
		}
		eventually(t, "four run and four wait", func() bool {
			now := must(model.Timings())(t)
			return now.Running == 4 && now.Waiting == 4
		})
		for range 3 {
			go model.Close()
		}
		all.Wait()
		if lines.Load() == 0 {
			t.Error("no log line")
		}
	}
	// From inside the loop, too.
	model := open(t, demo)
	var last error
	for _, err := range model.Stream(t.Context(), [][]int32{{1}}, llamabi.IgnoreEOS()) {
		model.Close()
		last = err
	}
	wantError(t, last, llamabi.ErrCancelled)
}

// closing is a context that closes the model when a call, which has begun, asks whether it ends.
type closing struct {
	context.Context
	model *llamabi.Model
}

func (c closing) Done() <-chan struct{} {
	c.model.Close()
	return nil
}

// What had begun before Close ends as cancelled, though the library never saw it while the model
// was open; what begins later is refused. There is no third end.
func TestCloseBetween(t *testing.T) {
	between := func() (context.Context, *llamabi.Model) {
		model := open(t, demo)
		return closing{context.Background(), model}, model
	}
	cancelled := func(results []llamabi.Result, err error) {
		t.Helper()
		wantError(t, err, llamabi.ErrCancelled, "the model is closed")
		equal(t, errors.Is(err, llamabi.ErrClosed), true)
		for _, result := range results {
			equal(t, result, llamabi.Result{FinishReason: llamabi.FinishCancelled})
		}
	}
	user := [][]llamabi.Message{{{Role: "user", Content: "a"}}}

	ctx, model := between()
	results, err := model.Generate(ctx, [][]int32{{1}, {2}}, llamabi.NumReturnSequences(3))
	cancelled(results, err)
	equal(t, len(results), 6)
	ctx, model = between()
	results, err = model.TextCompletion(ctx, []string{"a", "b"})
	cancelled(results, err)
	equal(t, len(results), 2)
	ctx, model = between()
	results, err = model.Chat(ctx, user)
	cancelled(results, err)
	equal(t, len(results), 1)
	ctx, model = between()
	result, err := model.ChatMessages(ctx, llamabi.ChatRequest{Messages: json.RawMessage(`[]`)})
	cancelled([]llamabi.Result{result}, err)
	ctx, model = between()
	cancelled(model.Compress(ctx, []llamabi.Segment{{Text: "a"}}, llamabi.CompressOptions{}))
	ctx, model = between()
	for _, err := range model.Stream(ctx, [][]int32{{1}}) {
		cancelled(nil, err)
	}
	ctx, model = between()
	for _, err := range model.StreamText(ctx, []string{"a"}) {
		cancelled(nil, err)
	}
	ctx, model = between()
	for _, err := range model.StreamChat(ctx, user) {
		cancelled(nil, err)
	}
}

// The same of calls without a context, which Close meets wherever they are.
func TestCloseBeside(t *testing.T) {
	const data = "../../tests/data/adapters/"
	for name, call := range map[string]func(*llamabi.Model) error{
		"Timings":    func(m *llamabi.Model) error { _, err := m.Timings(); return err },
		"Info":       func(m *llamabi.Model) error { _, err := m.Info(); return err },
		"Encode":     func(m *llamabi.Model) error { _, err := m.Encode("a", true, true); return err },
		"Decode":     func(m *llamabi.Model) error { _, err := m.Decode([]int32{5}); return err },
		"NewGrammar": func(m *llamabi.Model) error { _, err := m.NewGrammarJSON(); return err },
		"AddAdapter": func(m *llamabi.Model) error { _, err := m.AddAdapter(data+"plain", 1); return err },
	} {
		for range 50 {
			model := open(t, data+"base", llamabi.WithMaxSeqLen(16))
			var all sync.WaitGroup
			for range 4 {
				all.Add(1)
				go func() {
					defer all.Done()
					var err error
					for err == nil {
						err = call(model)
					}
					if !errors.Is(err, llamabi.ErrClosed) {
						t.Errorf("%s: %v", name, err)
					}
				}()
			}
			runtime.Gosched()
			model.Close()
			all.Wait()
		}
	}
}

// The bytes of a token are the library's, which Close must not take away while they are copied.
func TestCloseBesideTokenBytes(t *testing.T) {
	for range 100 {
		model := open(t, demo, llamabi.WithMaxSeqLen(16))
		want := make([][]byte, 1024)
		for token := range want {
			want[token] = must(model.TokenBytes(int32(token)))(t)
		}
		var all sync.WaitGroup
		for i := range 4 {
			all.Add(1)
			go func() {
				defer all.Done()
				for token := i; ; token = (token + 1) % len(want) {
					got, err := model.TokenBytes(int32(token))
					if err != nil {
						equal(t, err, llamabi.ErrClosed)
						return
					}
					if !bytes.Equal(got, want[token]) {
						t.Errorf("token %d is %q, was %q", token, got, want[token])
					}
				}
			}()
		}
		runtime.Gosched()
		model.Close()
		all.Wait()
	}
}

// A model that nobody closed is closed by the garbage collector.
func TestCleanup(t *testing.T) {
	var alive atomic.Int64
	func() {
		model, err := llamabi.Open(t.Context(), demo, llamabi.WithLog(llamabi.LogDebug, func(llamabi.LogLevel, string) {}))
		if err != nil {
			t.Fatal(err)
		}
		alive.Add(1)
		runtime.AddCleanup(model, func(struct{}) { alive.Add(-1) }, struct{}{})
		must(model.Generate(t.Context(), [][]int32{{1}}, llamabi.MaxGenLen(1)))(t)
	}()
	threads := func() int { return len(must(os.ReadDir("/proc/self/task"))(t)) }
	before := threads()
	eventually(t, "the model is collected", func() bool { runtime.GC(); return alive.Load() == 0 })
	eventually(t, "its threads end", func() bool { return threads() < before })
}
