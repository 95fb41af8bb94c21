package llamabi_test

import (
	"runtime"
	"sync/atomic"
	"testing"

	"llamabi"
)

// runtime.Goexit in a function that the library calls, which is what t.FailNow does: it ends the
// call and goes on behind it; the thread and the model are as good as before.
func TestGoexitInCallback(t *testing.T) {
	model := open(t, demo)
	say := func(opts ...llamabi.GenerateOption) func() {
		return func() { _, _ = model.TextCompletion(t.Context(), []string{"Once", "One day"}, opts...) }
	}
	stream := func(opts ...llamabi.GenerateOption) func() {
		return func() {
			for range model.StreamText(t.Context(), []string{"Once", "One day"}, opts...) { //nolint:revive // all of them
			}
		}
	}
	load := func(opt llamabi.Option) func() {
		return func() { _, _ = llamabi.Open(t.Context(), demo, opt) }
	}
	stop := llamabi.WithStopFunc(func(int, []int32, int) bool { runtime.Goexit(); return false })
	logits := llamabi.WithLogits(func(llamabi.LogitsRow) { runtime.Goexit() })
	for name, call := range map[string]func(){
		"stop": say(stop), "logits": say(logits), "stop, stream": stream(stop), "logits, stream": stream(logits),
		"progress": load(llamabi.WithProgress(func(float32) bool { runtime.Goexit(); return true })),
		"log":      load(llamabi.WithLog(llamabi.LogInfo, func(llamabi.LogLevel, string) { runtime.Goexit() })),
	} {
		t.Run(name, func(t *testing.T) {
			var returned atomic.Bool
			ended := make(chan error)
			go func() {
				runtime.LockOSThread() // for the thread that the callback was on to be asked again
				defer func() {
					_, err := model.TextCompletion(t.Context(), []string{"Once"}, llamabi.MaxGenLen(2))
					ended <- err
				}()
				call()
				returned.Store(true)
			}()
			if err := <-ended; err != nil {
				t.Error(err)
			}
			if returned.Load() {
				t.Error("Goexit did not go on")
			}
			idle(t, model)
		})
	}
}

// A call from inside a callback is refused by its thread; on another it would wait for itself.
func TestCallInsideCallback(t *testing.T) {
	model := open(t, demo)
	var err error
	inside := llamabi.WithStopFunc(func(int, []int32, int) bool {
		_, err = model.TextCompletion(t.Context(), []string{"Once"})
		return true
	})
	must(model.TextCompletion(t.Context(), []string{"Once"}, inside))(t)
	wantError(t, err, llamabi.ErrInvalidArgument, "inside a callback, where only llama_cancel_trigger, llama_stream_stop and")
}
