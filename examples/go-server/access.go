package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"regexp"
	"sync"
	"time"
)

// record is what is written down of a request: no prompt, no key, no unknown path.
type record struct {
	Time            string  `json:"time"`
	RequestID       string  `json:"request_id"`
	Remote          string  `json:"remote"`
	Method          string  `json:"method"`
	Route           string  `json:"route"`
	Status          int     `json:"status"`
	Bytes           int64   `json:"bytes"`
	DurationMs      float64 `json:"duration_ms"`
	PromptTokens    int     `json:"prompt_tokens"`
	GeneratedTokens int     `json:"generated_tokens"`

	salt     uint64    // of the prefixes that it finds
	deadline time.Time // when the last byte must have been written; zero: whenever
}

type recordKey struct{}

// recordOf is the record of a request, for whoever runs it to write tokens into.
func recordOf(r *http.Request) *record { return r.Context().Value(recordKey{}).(*record) }

var idForm = regexp.MustCompile(`^[\w.:-]{1,128}$`)

// recorded gives a request its record and an id, the client's own if it has one.
func recorded(w http.ResponseWriter, r *http.Request) (*record, *http.Request) {
	id := r.Header.Get("X-Request-Id")
	if !idForm.MatchString(id) {
		id = rand.Text()
	}
	w.Header().Set("X-Request-Id", id)
	remote, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		remote = r.RemoteAddr
	}
	rec := &record{Time: time.Now().UTC().Format("2006-01-02T15:04:05.000Z"), RequestID: id, Remote: remote, Method: r.Method}
	return rec, r.WithContext(context.WithValue(r.Context(), recordKey{}, rec))
}

// accessLog writes records as lines of JSON.
type accessLog struct {
	mu  sync.Mutex
	out io.Writer
}

// openAccessLog opens a file, "-" is standard output, "none" nothing.
func openAccessLog(name string) (*accessLog, error) {
	switch name {
	case "none":
		return &accessLog{out: io.Discard}, nil
	case "-":
		return &accessLog{out: os.Stdout}, nil
	}
	file, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	return &accessLog{out: file}, err
}

func (l *accessLog) write(r *record) {
	line, err := json.Marshal(r)
	if err == nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		_, err = l.out.Write(append(line, '\n'))
	}
	if err != nil {
		log.Printf("the access log cannot be written: %v", err)
	}
}
