package main

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
)

// access says who may ask: by which names of the host, pages of which origins, with which API keys;
// and whose cached prefixes a request finds.
type access struct {
	hosts   []string // besides those of the loopback address
	origins []string
	keys    [][]byte // their digests
	scope   string   // request, key (or nothing) or all
	bound   string   // the name that the address has in Host, "" if any name will do
}

// secret is this process's: digests are of equal length, and tell nothing of a key.
var secret = []byte(rand.Text())

func digest(text string) []byte {
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(text))
	return mac.Sum(nil)
}

var keyForm = regexp.MustCompile(`^[\x21-\x7e]+$`)

func (a *access) addKeys(given string) error {
	for key := range strings.SplitSeq(given, ",") {
		if !keyForm.MatchString(key) {
			return errors.New("must be keys of visible ASCII characters, with commas between them")
		}
		a.keys = append(a.keys, digest(key))
	}
	return nil
}

func (a *access) readKeys(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	before := len(a.keys)
	for line := range strings.Lines(string(text)) {
		key := strings.TrimSpace(line)
		if key == "" || key[0] == '#' {
			continue
		}
		if !keyForm.MatchString(key) {
			return fmt.Errorf("--api_key_file %s has a key with other than visible ASCII characters", file)
		}
		a.keys = append(a.keys, digest(key))
	}
	if len(a.keys) == before {
		return fmt.Errorf("--api_key_file %s has no key", file)
	}
	return nil
}

var originForm = regexp.MustCompile(`(?i)^[a-z][a-z0-9+.-]*://[^/\s]+$`)

func (a *access) addOrigin(given string) error {
	if given != "*" && !originForm.MatchString(given) {
		return errors.New("must be an origin, as https://example.org, or *")
	}
	a.origins = append(a.origins, given)
	return nil
}

var hostForm = regexp.MustCompile(`(?i)^(\[[0-9a-f:.]+\]|[^\s:/[\]]+)$`)

func (a *access) addHost(given string) error {
	if !hostForm.MatchString(given) {
		return errors.New("must be a host's name without a port")
	}
	a.hosts = append(a.hosts, strings.ToLower(given))
	return nil
}

func (a *access) setScope(given string) error {
	if !slices.Contains([]string{"request", "key", "all"}, given) {
		return errors.New("must be one of request, key, all")
	}
	a.scope = given
	return nil
}

// listensOn decides whether the names in requests matter.
func (a *access) listensOn(address net.Addr) {
	tcp, ok := address.(*net.TCPAddr)
	if !ok || !tcp.IP.IsLoopback() && len(a.hosts) == 0 {
		return
	}
	a.bound = tcp.IP.String()
	if tcp.IP.To4() == nil {
		a.bound = "[" + a.bound + "]"
	}
}

var portForm = regexp.MustCompile(`:\d*$`)

// checkHost refuses names that this host is not known by. A page of another site can have its own
// name lead to this address (DNS rebinding): then the browser takes it for that site's own server,
// but still sends that name.
func (a *access) checkHost(r *http.Request) error {
	if r.URL.User != nil { // what stands before the host's name in a whole URL is no part of it to Go
		return badRequest("", "The Host header is not valid.")
	}
	name := portForm.ReplaceAllString(strings.ToLower(r.Host), "")
	if a.bound == "" || slices.Contains([]string{"localhost", "127.0.0.1", "[::1]", a.bound}, name) || slices.Contains(a.hosts, name) {
		return nil
	}
	return &apiError{status: http.StatusForbidden, kind: "invalid_request_error", code: "host_not_allowed",
		message: "This host is not known by that name; --allowed-host allows further ones."}
}

// cors lets pages of the origins that were named read the answer. True: the request was the
// browser's question whether it may send another one, and has been answered.
func (a *access) cors(w http.ResponseWriter, r *http.Request) bool {
	if len(a.origins) == 0 {
		return false
	}
	header, origin := w.Header(), r.Header.Get("Origin")
	header.Set("Vary", "Origin")
	if origin == "" || !slices.Contains(a.origins, "*") && !slices.Contains(a.origins, origin) {
		return false
	}
	header.Set("Access-Control-Allow-Origin", origin)
	header.Set("Access-Control-Expose-Headers", "x-request-id, retry-after")
	if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
		return false
	}
	header.Set("Access-Control-Allow-Methods", "GET, POST")
	header.Set("Access-Control-Allow-Headers", r.Header.Get("Access-Control-Request-Headers"))
	header.Set("Access-Control-Max-Age", "600")
	w.WriteHeader(http.StatusNoContent)
	return true
}

var bearerForm = regexp.MustCompile(`(?i)^bearer +(\S+) *$`)

// admit is the salt of a request's cached prefixes; it fails where the request brings none of the
// keys.
func (a *access) admit(r *http.Request, route string) (uint64, error) {
	given := r.Header.Get("X-Api-Key")
	if match := bearerForm.FindStringSubmatch(r.Header.Get("Authorization")); match != nil {
		given = match[1]
	}
	var known []byte
	// As in llama-server, these need no key.
	open := probes[route] || route == "/v1/models" || route == modelRoute
	if len(a.keys) > 0 && !open {
		mine := digest(given)
		// All of them are compared, so that the time tells nothing.
		for _, key := range a.keys {
			if hmac.Equal(key, mine) {
				known = mine
			}
		}
		if known == nil {
			message := "The API key is not valid."
			if given == "" {
				message = "An API key is missing."
			}
			return 0, &apiError{status: http.StatusUnauthorized, kind: "authentication_error", code: "invalid_api_key", message: message}
		}
	}
	switch {
	case a.scope == "request":
		known = digest(rand.Text())
	case a.scope == "all" || known == nil:
		return 0, nil
	}
	return binary.LittleEndian.Uint64(known) | 1, nil // 0 would be the prefixes of all
}
