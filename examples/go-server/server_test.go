package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"llamabi"
)

func TestAnswers503UntilTheModelIsLoaded(t *testing.T) {
	s := newServer(settings{name: "model", maxBatchSize: 1}, &accessLog{out: io.Discard})
	routes := s.routes()
	status := func(path string) int {
		answer := httptest.NewRecorder()
		routes.ServeHTTP(answer, httptest.NewRequest("GET", path, nil))
		return answer.Code
	}
	for _, path := range []string{"/healthz", "/metrics", "/v1/models"} {
		if got := status(path); got != http.StatusServiceUnavailable {
			t.Errorf("%s is %d before the model is loaded", path, got)
		}
	}
	s.loaded.Store(true)
	if got := status("/healthz"); got != http.StatusOK {
		t.Errorf("/healthz is %d with the model loaded", got)
	}
}

func TestTheQueueTakesARequestOfAnySizeWhileThereIsRoom(t *testing.T) {
	q := queue{limit: 3}
	if err := q.enter(128); err != nil {
		t.Errorf("an idle service refuses 128 sequences: %v", err)
	}
	if err := q.enter(1); err == nil || err.(*apiError).status != http.StatusTooManyRequests {
		t.Errorf("with 128 sequences inside and room for 3, one more gives %v", err)
	}
	q.leave(126)
	if err := q.enter(5); err != nil {
		t.Errorf("with 2 sequences inside and room for 3, 5 more give %v", err)
	}
}

// A model may be closed while a request is read.
func TestTextsThatCannotBeEncodedAreAnAnswer(t *testing.T) {
	model, err := llamabi.Open(t.Context(), "../../demo/meta", llamabi.WithThreads(1))
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(settings{name: "model", maxBatchSize: 1, maxBody: 1 << 20, maxAnswer: 1 << 20}, &accessLog{out: io.Discard})
	s.model = model
	if err := s.measure(); err != nil {
		t.Fatal(err)
	}
	s.loaded.Store(true)
	if err := model.Close(); err != nil {
		t.Fatal(err)
	}
	for _, route := range []struct{ path, body string }{
		{"/v1/completions", `{"model": "model", "prompt": "a", "bad_words": ["b"]}`},
		{"/v1/completions", `{"model": "model", "prompt": [5]}`},
		{"/v1/completions", `{"model": "model", "prompt": "a"}`},
		{"/v1/chat/completions", `{"model": "model", "messages": [{"role": "user", "content": "a"}], "bad_words": ["b"]}`},
		{"/tokenize", `{"content": "a"}`},
		{"/detokenize", `{"tokens": [5]}`},
	} {
		request := httptest.NewRequest("POST", route.path, strings.NewReader(route.body))
		request.Host = "localhost"
		request.Header.Set("Content-Type", "application/json")
		answer := httptest.NewRecorder()
		s.routes().ServeHTTP(answer, request)
		if text := answer.Body.String(); answer.Code != http.StatusServiceUnavailable || !strings.Contains(text, "shutting_down") {
			t.Errorf("%s of %s is %d with a closed model: %s", route.path, route.body, answer.Code, text)
		}
	}
}

func TestATokensTextHasOneReplacementForEachPartOfACodePoint(t *testing.T) {
	for bytes, text := range map[string]string{
		"a😀": "a😀", "\xf0\x9f": "\ufffd", "\x98\x80": "\ufffd\ufffd", " \xf0\x9f\xe2\x82a": " \ufffd\ufffda", "\xed\xa0\x80": "\ufffd\ufffd\ufffd", "\xf0\x9f\x98\xf0": "\ufffd\ufffd",
	} {
		if row := rowOf(scored{bytes: []byte(bytes)}); row.Token != text || len(row.Bytes) != len(bytes) {
			t.Errorf("%q is listed as %q with %d bytes", bytes, row.Token, len(row.Bytes))
		}
	}
}
