// What the tests share.

package llamabi_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"llamabi"
)

const demo = "../../demo/meta"

// behaviour reports a line of bindings/behaviours.txt as done, if the test passes.
func behaviour(t *testing.T, name string) {
	t.Cleanup(func() {
		if !t.Failed() && !t.Skipped() {
			fmt.Printf("\nbehaviour %s ok\n", name)
		}
	})
}

func open(t testing.TB, dir string, opts ...llamabi.Option) *llamabi.Model {
	t.Helper()
	model, err := llamabi.Open(context.Background(), dir, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { model.Close() })
	return model
}

// must is the value of a call that has to succeed: must(f())(t).
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// patience is for what hangs, and more than a busy machine needs for anything else.
const patience = 2 * time.Minute

func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited for %v: %s", patience, what)
		}
	}
}

func idle(t *testing.T, model *llamabi.Model) {
	t.Helper()
	eventually(t, "nothing is running, waiting or holding pages", func() bool {
		now := must(model.Timings())(t)
		return now.Running == 0 && now.Waiting == 0 && now.PagesUsed == 0
	})
}

// wantError checks an error's status, and that its sentence contains what it must.
func wantError(t *testing.T, err error, status llamabi.Status, contains ...string) {
	t.Helper()
	var e *llamabi.Error
	if !errors.Is(err, status) || !errors.As(err, &e) || e.Status != status {
		t.Errorf("got %v, want %v", err, status)
		return
	}
	for _, part := range contains {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not contain %q", err, part)
		}
	}
}

// collected is a stream put together as results.
func collected(t *testing.T, n int, stream func(func(llamabi.Event, error) bool)) ([]llamabi.Result, error) {
	t.Helper()
	results := make([]llamabi.Result, n)
	for ev, err := range stream {
		if err != nil {
			return results, err
		}
		r := &results[ev.Index]
		if r.FinishReason != 0 {
			t.Errorf("an event for sequence %d after its end", ev.Index)
		}
		r.Text += ev.Text
		if ev.Kind == llamabi.EventFinish {
			r.FinishReason, r.Stats = ev.FinishReason, ev.Stats
			r.SumLogprob, r.Score = ev.SumLogprob, ev.Score
			continue
		}
		r.Tokens = append(r.Tokens, ev.Token)
		r.Logprobs = append(r.Logprobs, ev.Logprob)
		r.TopLogprobs = append(r.TopLogprobs, ev.TopLogprobs)
	}
	return results, nil
}

// withoutTimes leaves of the figures those that another call has too: neither times nor what the
// prefix cache held.
func withoutTimes(results []llamabi.Result) []llamabi.Result {
	for i := range results {
		stats := &results[i].Stats
		*stats = llamabi.RequestStats{PromptTokens: stats.PromptTokens, GeneratedTokens: stats.GeneratedTokens}
	}
	return results
}

func equal(t *testing.T, got, want any) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
