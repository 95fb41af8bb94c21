package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"llamabi"
)

type metrics struct {
	mu            sync.Mutex
	requests      map[request]uint64
	durations     map[string]*histogram // by route
	running       atomic.Int64          // requests that have no whole answer yet
	abandoned     atomic.Uint64
	queue         histogram
	firstToken    histogram
	betweenTokens histogram
}

type request struct {
	route string
	code  int
}

func newMetrics() metrics {
	return metrics{requests: map[request]uint64{}, durations: map[string]*histogram{},
		queue: newHistogram(waits), firstToken: newHistogram(waits), betweenTokens: newHistogram(gaps)}
}

// count counts the requests of a handler by route and status, and writes them down.
func (s *server) count(routeOf func(*http.Request) string, handle func(http.ResponseWriter, *http.Request, string)) http.Handler {
	m := &s.metrics
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		begin := time.Now()
		m.running.Add(1)
		defer m.running.Add(-1)
		rec, r := recorded(w, r)
		recorder := newRecorder(w, rec, &s.unsent)
		route := routeOf(r)
		handle(recorder, r, route)
		took := time.Since(begin)
		if recorder.err != nil {
			rec.Status = statusLeft
		}
		rec.Route, rec.Status, rec.Bytes = route, cmp.Or(rec.Status, recorder.code), recorder.bytes
		if rec.Status == statusLeft {
			m.abandoned.Add(1)
		}
		if r.Method == http.MethodHead {
			rec.Bytes = 0
		}
		rec.DurationMs = float64(took.Microseconds()) / 1e3
		s.accessLog.write(rec)
		m.mu.Lock()
		defer m.mu.Unlock()
		m.requests[request{rec.Route, rec.Status}]++
		if m.durations[rec.Route] == nil {
			h := newHistogram(durations)
			m.durations[rec.Route] = &h
		}
		m.durations[rec.Route].observe(took)
		if rec.Status == statusLeft {
			// Cuts the connection. Whoever has only closed its own half of that, which counts as leaving,
			// would get an empty 200 otherwise, or a stream with an end.
			panic(http.ErrAbortHandler)
		}
	})
}

// sequence counts a sequence that has ended.
func (m *metrics) sequence(stats llamabi.RequestStats) {
	m.queue.observe(stats.Queue)
	if stats.FirstToken > 0 {
		m.firstToken.observe(stats.FirstToken)
	}
}

// Upper bounds of buckets, in seconds.
var (
	waits     = []float64{0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120}
	gaps      = []float64{0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5}
	durations = []float64{0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600}
)

// histogram of seconds, as Prometheus has them.
type histogram struct {
	mu     *sync.Mutex
	bounds []float64
	counts []uint64
	sum    float64
}

func newHistogram(bounds []float64) histogram {
	return histogram{mu: &sync.Mutex{}, bounds: bounds, counts: make([]uint64, len(bounds)+1)}
}

func (h *histogram) observe(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	i, _ := slices.BinarySearch(h.bounds, d.Seconds())
	h.counts[i]++
	h.sum += d.Seconds()
}

// write writes its lines; labels is what stands before le, with a comma.
func (h *histogram) write(w io.Writer, name, labels string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var total uint64
	for i, bound := range h.bounds {
		total += h.counts[i]
		fmt.Fprintf(w, "%s_bucket{%sle=\"%v\"} %d\n", name, labels, bound, total)
	}
	total += h.counts[len(h.bounds)]
	own := ""
	if labels != "" {
		own = "{" + strings.TrimSuffix(labels, ",") + "}"
	}
	fmt.Fprintf(w, "%s_bucket{%sle=\"+Inf\"} %d\n%s_sum%s %v\n%s_count%s %d\n", name, labels, total, name, own, h.sum, name, own, total)
}

func (s *server) showMetrics(w http.ResponseWriter, _ *http.Request) {
	now, err := s.model.Timings()
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	head := func(name, kind, help string) { fmt.Fprintf(w, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind) }
	one := func(name, kind, help string, value any) {
		head(name, kind, help)
		fmt.Fprintf(w, "%s %v\n", name, value)
	}
	one("llamabi_sequences_running", "gauge", "Sequences that run now.", now.Running)
	one("llamabi_sequences_waiting", "gauge", "Sequences that wait for a slot.", now.Waiting)
	one("llamabi_sequences_parked", "gauge", "Sequences that have given their slots up: nobody reads their answers.", now.Parked)
	one("llamabi_kv_pages_used", "gauge", "Pages of the KV cache that sequences hold.", now.PagesUsed)
	one("llamabi_kv_pages", "gauge", "Pages of the KV cache.", now.PagesTotal)
	one("llamabi_kv_usage", "gauge", "Share of the KV cache that sequences hold, 0 to 1.", float64(now.PagesUsed)/float64(max(now.PagesTotal, 1)))
	one("llamabi_prompt_tokens_total", "counter", "Prompt tokens of all requests.", now.PromptTokens)
	one("llamabi_cached_tokens_total", "counter", "Prompt tokens taken from the prefix cache.", now.CachedTokens)
	one("llamabi_generated_tokens_total", "counter", "Tokens generated.", now.GeneratedTokens)
	one("llamabi_drafted_tokens_total", "counter", "Tokens that were guessed at.", now.DraftedTokens)
	one("llamabi_accepted_tokens_total", "counter", "Guesses that were right.", now.AcceptedTokens)
	one("llamabi_steps_total", "counter", "Passes through the model.", now.Steps)
	one("llamabi_prefill_seconds_total", "counter", "Time in steps with prompt tokens.", now.Prefill.Seconds())
	one("llamabi_decode_seconds_total", "counter", "Time in steps without prompt tokens.", now.Decode.Seconds())
	one("llamabi_abandoned_requests_total", "counter", "Requests whose client left before it had all of the answer.", s.metrics.abandoned.Load())
	buckets := func(name, help string, h *histogram) {
		head(name, "histogram", help)
		h.write(w, name, "")
	}
	buckets("llamabi_queue_seconds", "From the call to the first step, of each sequence that has ended.", &s.metrics.queue)
	buckets("llamabi_first_token_seconds", "From the call to the first token, of each sequence that has ended.", &s.metrics.firstToken)
	buckets("llamabi_between_tokens_seconds", "From one generated token of a sequence to the next, as they come out of the model.", &s.metrics.betweenTokens)
	if bytes, ok := residentBytes(); ok {
		one("process_resident_memory_bytes", "gauge", "Resident memory.", bytes)
	}

	s.metrics.mu.Lock()
	defer s.metrics.mu.Unlock()
	head("llamabi_request_duration_seconds", "histogram", "From a request to the end of its answer, by route.")
	for _, route := range slices.Sorted(maps.Keys(s.metrics.durations)) {
		s.metrics.durations[route].write(w, "llamabi_request_duration_seconds", fmt.Sprintf("route=%q,", route))
	}
	head("llamabi_requests_total", "counter", "Requests answered, by route and status.")
	sorted := slices.SortedFunc(maps.Keys(s.metrics.requests), func(a, b request) int {
		return cmp.Or(cmp.Compare(a.route, b.route), cmp.Compare(a.code, b.code))
	})
	for _, r := range sorted {
		fmt.Fprintf(w, "llamabi_requests_total{route=%q,code=\"%d\"} %d\n", r.route, r.code, s.metrics.requests[r])
	}
}

func residentBytes() (int64, bool) {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0, false
	}
	var size, resident int64
	_, err = fmt.Sscan(string(text), &size, &resident)
	return resident * int64(os.Getpagesize()), err == nil
}
