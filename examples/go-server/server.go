package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"llamabi"
)

type server struct {
	model      *llamabi.Model // set before loaded is
	name       string
	adapters   []adapter // set before loaded is
	created    int64
	vocabSize  int           // this and what follows up to noChat by measure
	room       int           // most tokens of a sequence
	longest    int           // bytes of a token
	eachByte   bool          // see replacesEachByte
	template   *chatTemplate // nil: chats have Meta's Llama 2 format
	noChat     bool          // or none
	maxBody    int64
	maxAnswer  int           // tokens, with alternatives, of an answer that is sent as a whole
	slots      int           // sequences that run at the same time
	draft      bool          // there is a draft model
	medusa     bool          // there are Medusa heads
	timeout    time.Duration // of a request in all; 0: none
	access     access
	cached     bool // say in usage what came from the prefix cache
	accessLog  *accessLog
	grammars   grammars
	queue      queue
	unsent     unsent
	metrics    metrics
	loaded     atomic.Bool
	draining   atomic.Bool // it will take no new requests soon, or takes none
	abandoning atomic.Bool // those that run are cancelled
	broken     atomic.Bool // the model cannot be used any more
}

func newServer(set settings, log *accessLog) *server {
	return &server{name: set.name, created: time.Now().Unix(), maxBody: int64(set.maxBody), maxAnswer: set.maxAnswer, slots: set.maxBatchSize,
		timeout: set.timeout, access: set.access, cached: set.cachedTokens, accessLog: log,
		queue: queue{limit: set.maxBatchSize + set.queue}, unsent: unsent{most: mostUnsent}, metrics: newMetrics()}
}

// measure asks the model for its limits.
func (s *server) measure() error {
	info, err := s.model.Info()
	if err != nil {
		return err
	}
	s.draft, s.medusa = info.HasDraft, info.MedusaHeads > 0
	for token := range info.VocabSize {
		bytes, err := s.model.TokenBytes(int32(token))
		if err != nil {
			return err
		}
		s.longest = max(s.longest, len(bytes), 1)
	}
	if s.eachByte, err = replacesEachByte(s.model); err != nil {
		return err
	}
	s.vocabSize, s.room = info.VocabSize, info.MaxSeqLen
	s.noChat = info.ChatFormat == llamabi.ChatNone
	if !s.noChat && info.ChatFormat != llamabi.ChatLlama2 {
		s.template, err = probeTemplate(s.model)
	}
	return err
}

// serving is the table of routes, by path and method. Paths are compared as they were sent.
// http.ServeMux would redirect those that are another's in other words, //healthz for one.
func (s *server) serving() map[string]map[string]http.HandlerFunc {
	return map[string]map[string]http.HandlerFunc{
		"/v1/completions":      {"POST": s.completions},
		"/v1/chat/completions": {"POST": s.chatCompletions},
		"/tokenize":            {"POST": s.tokenize},
		"/detokenize":          {"POST": s.detokenize},
		"/v1/models":           {"GET": s.models},
		modelRoute:             {"GET": s.oneModel},
		"/healthz":             {"GET": s.health},
		"/readyz":              {"GET": s.ready},
		"/health":              {"GET": s.ready}, // the name that gateways ask by
		"/metrics":             {"GET": s.showMetrics},
	}
}

const (
	modelRoute   = "/v1/models/{id}"
	unknownRoute = "/"
)

// probes are what those ask who start a service, and who send it requests; without a key.
var probes = map[string]bool{"/healthz": true, "/readyz": true, "/health": true}

// routes serves the table, and answers what is not in it.
func (s *server) routes() http.Handler {
	table := s.serving()
	routeOf := func(r *http.Request) string {
		path := r.URL.EscapedPath()
		if strings.HasPrefix(path, "/v1/models/") {
			return modelRoute
		} else if table[path] != nil {
			return path
		}
		return unknownRoute
	}
	counted := s.count(routeOf, s.guard(func(w http.ResponseWriter, r *http.Request, route string) {
		methods := table[route]
		method := r.Method
		if method == http.MethodHead {
			method = http.MethodGet
		}
		if handler := methods[method]; handler != nil {
			handler(w, r)
		} else if methods == nil {
			writeError(w, &apiError{status: http.StatusNotFound, kind: "invalid_request_error", code: "unknown_url",
				message: fmt.Sprintf("unknown URL: %s %s", r.Method, r.URL.EscapedPath())})
		} else {
			allowed := slices.Collect(maps.Keys(methods))[0] // no route has two
			w.Header().Set("Allow", allowed)
			writeError(w, &apiError{status: http.StatusMethodNotAllowed, kind: "invalid_request_error",
				message: fmt.Sprintf("%s is not allowed here; use %s", r.Method, allowed)})
		}
	}))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// net/http reads what a handler leaves of a body before it sends a short answer: without a
		// deadline, a client that sends no more of it has no answer and keeps its connection.
		if r.ContentLength != 0 {
			http.NewResponseController(w).SetReadDeadline(time.Now().Add(s.patience()))
		}
		if !s.loaded.Load() && !probes[r.URL.Path] {
			writeError(w, unavailable("loading", "The model is being loaded. Try again later."))
			return
		}
		counted.ServeHTTP(w, r)
	})
}

// guard lets those through who may ask.
func (s *server) guard(handle func(w http.ResponseWriter, r *http.Request, route string)) func(http.ResponseWriter, *http.Request, string) {
	return func(w http.ResponseWriter, r *http.Request, route string) {
		if err := s.access.checkHost(r); err != nil {
			writeError(w, err)
			return
		}
		if !utf8.ValidString(r.URL.Path) {
			writeError(w, badRequest("", "The escapes of the URL are not valid."))
			return
		}
		if s.access.cors(w, r) {
			return
		}
		salt, err := s.access.admit(r, route)
		if err != nil {
			writeError(w, err)
			return
		}
		recordOf(r).salt = salt
		handle(w, r, route)
	}
}

// health says whether the service works: whether to start it anew.
func (s *server) health(w http.ResponseWriter, _ *http.Request) {
	switch {
	case !s.loaded.Load():
		http.Error(w, "the model is being loaded", http.StatusServiceUnavailable)
	case s.unwell():
		http.Error(w, "the model is unusable", http.StatusServiceUnavailable)
	default:
		fmt.Fprintln(w, "ok")
	}
}

// unwell says whether the model cannot be used any more, as a request has found or the model knows.
func (s *server) unwell() bool {
	return s.broken.Load() || s.model != nil && errors.Is(s.model.Health(), llamabi.ErrPoisoned)
}

// ready says whether to send it requests.
func (s *server) ready(w http.ResponseWriter, r *http.Request) {
	if s.draining.Load() {
		http.Error(w, "shutting down", http.StatusServiceUnavailable)
		return
	}
	s.health(w, r)
}

// queue counts the sequences that run or wait, and takes requests while they are fewer than limit.
type queue struct {
	mu            sync.Mutex
	inside, limit int
}

// enter admits a request of n sequences, or of n that it can have running at a time; leave must
// follow. That a request itself has more than there is room for does not matter: on a busy service
// such a one would never come in.
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
	more              map[string]any
}

func (e *apiError) Error() string { return e.message }

func badRequest(param, format string, args ...any) *apiError {
	return &apiError{status: http.StatusBadRequest, kind: "invalid_request_error", param: param, message: fmt.Sprintf(format, args...)}
}

func busy(format string, args ...any) *apiError {
	return &apiError{status: http.StatusTooManyRequests, kind: "rate_limit_error", code: "rate_limit_exceeded", message: fmt.Sprintf(format, args...)}
}

func unavailable(code, message string) *apiError {
	return &apiError{status: http.StatusServiceUnavailable, kind: "server_error", code: code, message: message}
}

func shuttingDown() *apiError { return unavailable("shutting_down", "The server is shutting down.") }

// body is what a client gets to see; an empty param or code is null.
func (e *apiError) body() any {
	orNull := func(s string) any {
		if s == "" {
			return nil
		}
		return s
	}
	fields := map[string]any{"message": e.message, "type": e.kind, "param": orNull(e.param), "code": orNull(e.code)}
	maps.Copy(fields, e.more)
	return map[string]any{"error": fields}
}

// asAPIError says whose fault an error of the model is; input is the field that has the prompts,
// each of them n times.
func (s *server) asAPIError(err error, input string, n int) *apiError {
	var api *apiError
	if errors.As(err, &api) {
		return api
	}
	message := sentenceOf(err)
	switch {
	case errors.Is(err, llamabi.ErrTooLong):
		more := promptLength(message)
		more["n_ctx"] = s.room
		return &apiError{http.StatusBadRequest, "invalid_request_error", input, "context_length_exceeded", tooLong(message, input, n), more}
	case errors.Is(err, llamabi.ErrInvalidArgument), errors.Is(err, llamabi.ErrUTF8), errors.Is(err, llamabi.ErrBatch):
		return badRequest(input, "%s", message)
	case errors.Is(err, errTimedOut):
		return unavailable("timeout", fmt.Sprintf("The request took longer than %v s, the most that this server allows.", s.timeout.Seconds()))
	case errors.Is(err, llamabi.ErrBusy): // more calls than the model lets wait
		return busy("The queue is full. Try again later.")
	case errors.Is(err, llamabi.ErrCancelled), errors.Is(err, llamabi.ErrClosed), errors.Is(err, context.Canceled):
		return shuttingDown()
	case errors.Is(err, llamabi.ErrPoisoned), errors.Is(err, llamabi.ErrPeer), errors.Is(err, llamabi.ErrDevice), errors.Is(err, llamabi.ErrInternal):
		s.broken.Store(true)
	}
	log.Printf("internal error: %v", err)
	return internalError("", message)
}

// sentenceOf is what the library says of an error.
func sentenceOf(err error) string {
	var lib *llamabi.Error
	if errors.As(err, &lib) {
		return lib.Message
	}
	return err.Error()
}

func internalError(code, message string) *apiError {
	return &apiError{status: http.StatusInternalServerError, kind: "server_error", code: code, message: message}
}

var tokensForm = regexp.MustCompile(`(at least )?(\d+) tokens`)

// promptLength is the length of a prompt that does not fit, by llama-server's name, so that a page
// can say it in its own words. The library counts a very long text only as far as it must, and says
// "at least".
func promptLength(message string) map[string]any {
	found := tokensForm.FindStringSubmatch(message)
	if found == nil {
		return map[string]any{}
	}
	n, _ := strconv.Atoi(found[2])
	if found[1] != "" {
		return map[string]any{"n_prompt_tokens_min": n}
	}
	return map[string]any{"n_prompt_tokens": n}
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
	if api.status == http.StatusTooManyRequests || api.status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	writeJSON(w, api.status, api.body())
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	body, err := jsonOf(v) // what cannot be written must not begin as a success
	if err != nil {
		log.Printf("internal error: %v", err)
		status = http.StatusInternalServerError
		body, _ = jsonOf(internalError("", "The answer cannot be written as JSON.").body())
	}
	writeBody(w, status, body)
}

func jsonOf(v any) ([]byte, error) {
	var body bytes.Buffer
	encoder := json.NewEncoder(&body)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(v)
	return body.Bytes(), err
}

func writeBody(w http.ResponseWriter, status int, json []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(json)))
	w.WriteHeader(status)
	w.Write(json) // fails only where the client has left
}
