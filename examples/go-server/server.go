package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net/http"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"llamabi"
)

type server struct {
	model      *llamabi.Model // set before loaded is
	name       string
	created    int64
	vocabSize  int // this and the next two by measure
	room       int // most tokens of a sequence
	mostBytes  int // of a text that can fit
	maxBody    int64
	timeout    time.Duration // of a request in all; 0: none
	access     access
	cached     bool // say in usage what came from the prefix cache
	accessLog  *accessLog
	queue      queue
	metrics    metrics
	loaded     atomic.Bool
	draining   atomic.Bool // no new requests come
	abandoning atomic.Bool // those that run are cancelled
	broken     atomic.Bool // the model cannot be used any more
}

func newServer(set settings, log *accessLog) *server {
	return &server{name: set.name, created: time.Now().Unix(), maxBody: int64(set.maxBody),
		timeout: set.timeout, access: set.access, cached: set.cachedTokens, accessLog: log,
		queue: queue{limit: set.maxBatchSize + set.queue}, metrics: newMetrics()}
}

// measure asks the model for its limits.
func (s *server) measure() error {
	info, err := s.model.Info()
	if err != nil {
		return err
	}
	longest := 0
	for token := range info.VocabSize {
		bytes, err := s.model.TokenBytes(int32(token))
		if err != nil {
			return err
		}
		longest = max(longest, len(bytes))
	}
	s.vocabSize, s.room, s.mostBytes = info.VocabSize, info.MaxSeqLen, longest*info.MaxSeqLen
	return nil
}

func (s *server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/completions", s.completions)
	mux.HandleFunc("POST /v1/chat/completions", s.chatCompletions)
	mux.HandleFunc("POST /tokenize", s.tokenize)
	mux.HandleFunc("POST /detokenize", s.detokenize)
	mux.HandleFunc("GET /v1/models", s.models)
	mux.HandleFunc("GET /v1/models/{id...}", s.models)
	mux.HandleFunc("GET /healthz", s.health)
	mux.HandleFunc("GET /metrics", s.showMetrics)
	for _, path := range []string{"/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"} {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Allow", "POST")
			writeError(w, &apiError{http.StatusMethodNotAllowed, "invalid_request_error", "", "", r.Method + " is not allowed here; use POST"})
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		writeError(w, &apiError{http.StatusNotFound, "invalid_request_error", "", "unknown_url", fmt.Sprintf("unknown URL: %s %s", r.Method, r.URL.Path)})
	})
	counted := s.count(mux, s.guard(mux))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !s.loaded.Load() && r.URL.Path != "/healthz" {
			writeError(w, &apiError{http.StatusServiceUnavailable, "server_error", "", "loading", "The model is being loaded. Try again later."})
			return
		}
		counted.ServeHTTP(w, r)
	})
}

// guard lets those through who may ask.
func (s *server) guard(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := s.access.checkHost(r); err != nil {
			writeError(w, err)
			return
		}
		if s.access.cors(w, r) {
			return
		}
		salt, err := s.access.admit(r)
		if err != nil {
			writeError(w, err)
			return
		}
		recordOf(r).salt = salt
		mux.ServeHTTP(w, r)
	})
}

func (s *server) health(w http.ResponseWriter, _ *http.Request) {
	switch {
	case !s.loaded.Load():
		http.Error(w, "the model is being loaded", http.StatusServiceUnavailable)
	case s.broken.Load():
		http.Error(w, "the model is unusable", http.StatusServiceUnavailable)
	case s.draining.Load():
		http.Error(w, "shutting down", http.StatusServiceUnavailable)
	default:
		fmt.Fprintln(w, "ok")
	}
}

func (s *server) models(w http.ResponseWriter, r *http.Request) {
	model := map[string]any{"id": s.name, "object": "model", "created": s.created, "owned_by": "llamabi"}
	if id := r.PathValue("id"); id == "" {
		writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": []any{model}})
	} else if err := s.checkModel(id); err != nil {
		writeError(w, err)
	} else {
		writeJSON(w, http.StatusOK, model)
	}
}

func (s *server) checkModel(id string) error {
	if id != s.name {
		return &apiError{http.StatusNotFound, "invalid_request_error", "model", "model_not_found",
			fmt.Sprintf("The model '%s' does not exist; this server has '%s'.", id, s.name)}
	}
	return nil
}

// queue counts the sequences that run or wait, and takes requests while they are fewer than limit.
type queue struct {
	mu            sync.Mutex
	inside, limit int
}

// enter admits a request of n sequences; leave must follow. That a request itself has more than
// there is room for does not matter: on a busy service such a one would never come in.
func (q *queue) enter(n int) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.inside >= q.limit {
		return busy("The queue is full: %d sequences run or wait, and requests are taken while they are fewer than %d. Try again later.", q.inside, q.limit)
	}
	q.inside += n
	return nil
}

func (q *queue) leave(n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.inside -= n
}

// apiError is an error in the protocol's form.
type apiError struct {
	status            int
	kind, param, code string
	message           string
}

func (e *apiError) Error() string { return e.message }

func badRequest(param, format string, args ...any) error {
	return &apiError{http.StatusBadRequest, "invalid_request_error", param, "", fmt.Sprintf(format, args...)}
}

func busy(format string, args ...any) *apiError {
	return &apiError{http.StatusTooManyRequests, "rate_limit_error", "", "rate_limit_exceeded", fmt.Sprintf(format, args...)}
}

// body is what a client gets to see; an empty param or code is null.
func (e *apiError) body() any {
	orNull := func(s string) any {
		if s == "" {
			return nil
		}
		return s
	}
	return map[string]any{"error": map[string]any{
		"message": e.message, "type": e.kind, "param": orNull(e.param), "code": orNull(e.code)}}
}

// asAPIError says whose fault an error of the model is; input is the field that has the prompts,
// each of them n times.
func (s *server) asAPIError(err error, input string, n int) *apiError {
	var api *apiError
	var lib *llamabi.Error
	message := err.Error()
	if errors.As(err, &api) {
		return api
	}
	if errors.As(err, &lib) {
		message = lib.Message
	}
	switch {
	case errors.Is(err, llamabi.ErrTooLong):
		return &apiError{http.StatusBadRequest, "invalid_request_error", input, "context_length_exceeded", tooLong(message, input, n)}
	case errors.Is(err, llamabi.ErrInvalidArgument), errors.Is(err, llamabi.ErrUTF8), errors.Is(err, llamabi.ErrBatch):
		return &apiError{http.StatusBadRequest, "invalid_request_error", input, "", message}
	case errors.Is(err, errTimedOut):
		return &apiError{http.StatusServiceUnavailable, "server_error", "", "timeout",
			fmt.Sprintf("The request took longer than %v s, the most that this server allows.", s.timeout.Seconds())}
	case errors.Is(err, llamabi.ErrBusy): // more calls than the model lets wait
		return busy("The queue is full. Try again later.")
	case errors.Is(err, llamabi.ErrCancelled), errors.Is(err, llamabi.ErrClosed), errors.Is(err, context.Canceled):
		return &apiError{http.StatusServiceUnavailable, "server_error", "", "shutting_down", "The server is shutting down."}
	case errors.Is(err, llamabi.ErrPoisoned), errors.Is(err, llamabi.ErrDevice), errors.Is(err, llamabi.ErrInternal):
		s.broken.Store(true)
	}
	log.Printf("internal error: %v", err)
	return &apiError{http.StatusInternalServerError, "server_error", "", "", message}
}

var lengths = regexp.MustCompile(`^(?:prompt|dialog) (\d+) has (.+?)[,;] max_seq_len is (\d+)`)

// tooLong is the library's sentence about a prompt in the request's terms.
func tooLong(message, input string, n int) string {
	found := lengths.FindStringSubmatch(message)
	if found == nil {
		return message
	}
	which := ""
	if index, _ := strconv.Atoi(found[1]); index >= n {
		which = fmt.Sprintf("[%d]", index/n)
	}
	return fmt.Sprintf("'%s%s' has %s; the model has room for %s tokens, those of the answer included.", input, which, found[2], found[3])
}

func writeError(w http.ResponseWriter, err error) {
	api := err.(*apiError)
	if api.status == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", "1")
	}
	writeJSON(w, api.status, api.body())
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	var body bytes.Buffer // what cannot be written must not begin as a success
	encoder := json.NewEncoder(&body)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(v); err != nil {
		log.Printf("internal error: %v", err)
		status = http.StatusInternalServerError
		body.Reset()
		encoder.Encode((&apiError{status, "server_error", "", "", "The answer cannot be written as JSON."}).body())
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	w.Write(body.Bytes()) // fails only where the client has left
}
