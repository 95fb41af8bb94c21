package main

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

type metrics struct {
	mu         sync.Mutex
	requests   map[request]uint64
	abandoned  atomic.Uint64
	firstToken histogram
}

type request struct {
	route string
	code  int
}

// count counts the requests of a handler by route and status.
func (m *metrics) count(handler *http.ServeMux) http.Handler {
	m.requests = map[request]uint64{}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		recorder := &recorder{ResponseWriter: w, code: http.StatusOK}
		handler.ServeHTTP(recorder, r)
		_, route, _ := strings.Cut(r.Pattern, " ")
		m.mu.Lock()
		defer m.mu.Unlock()
		m.requests[request{cmp.Or(route, r.Pattern), recorder.code}]++
	})
}

type recorder struct {
	http.ResponseWriter
	code int
}

func (r *recorder) WriteHeader(code int) {
	r.code = code
	r.ResponseWriter.WriteHeader(code)
}

// Unwrap lets http.ResponseController flush and set deadlines.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// histogram of seconds, as Prometheus has them.
type histogram struct {
	mu     sync.Mutex
	counts [len(bounds) + 1]uint64
	sum    float64
}

var bounds = [...]float64{0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30}

func (h *histogram) observe(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	i, _ := slices.BinarySearch(bounds[:], d.Seconds())
	h.counts[i]++
	h.sum += d.Seconds()
}

func (h *histogram) write(w http.ResponseWriter, name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var total uint64
	for i, bound := range bounds {
		total += h.counts[i]
		fmt.Fprintf(w, "%s_bucket{le=\"%v\"} %d\n", name, bound, total)
	}
	total += h.counts[len(bounds)]
	fmt.Fprintf(w, "%s_bucket{le=\"+Inf\"} %d\n%s_sum %v\n%s_count %d\n", name, total, name, h.sum, name, total)
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
	one("llamabi_kv_pages_used", "gauge", "Pages of the KV cache that sequences hold.", now.PagesUsed)
	one("llamabi_kv_pages_total", "gauge", "Pages of the KV cache.", now.PagesTotal)
	one("llamabi_prompt_tokens_total", "counter", "Prompt tokens of all requests.", now.PromptTokens)
	one("llamabi_cached_tokens_total", "counter", "Prompt tokens taken from the prefix cache.", now.CachedTokens)
	one("llamabi_generated_tokens_total", "counter", "Tokens generated.", now.GeneratedTokens)
	one("llamabi_steps_total", "counter", "Passes through the model.", now.Steps)
	one("llamabi_prefill_seconds_total", "counter", "Time in steps with prompt tokens.", now.Prefill.Seconds())
	one("llamabi_decode_seconds_total", "counter", "Time in steps without prompt tokens.", now.Decode.Seconds())
	one("llamabi_abandoned_requests_total", "counter", "Requests whose client left.", s.metrics.abandoned.Load())
	head("llamabi_first_token_seconds", "histogram", "From a request to the first token of each of its sequences that has ended.")
	s.metrics.firstToken.write(w, "llamabi_first_token_seconds")
	if bytes, ok := residentBytes(); ok {
		one("process_resident_memory_bytes", "gauge", "Resident memory.", bytes)
	}

	head("llamabi_requests_total", "counter", "Requests answered, by route and status.")
	s.metrics.mu.Lock()
	defer s.metrics.mu.Unlock()
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
