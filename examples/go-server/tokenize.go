package main

import (
	"math"
	"net/http"
	"unicode/utf8"
)

// tokenize is /tokenize, as llama-server has it.
func (s *server) tokenize(w http.ResponseWriter, r *http.Request) {
	f, err := s.read(w, r)
	if err != nil {
		writeError(w, err)
		return
	}
	f.checkNames("content", "add_special", "parse_special", "with_pieces")
	content, isText := f.body["content"].(string)
	addSpecial, withPieces := f.flag("add_special"), f.flag("with_pieces")
	switch {
	case !isText:
		f.fail("content", "'content' must be a string, not %s.", kind(f.body["content"]))
	case f.flag("parse_special"):
		f.fail("parse_special", "'parse_special' must be false: a special token's text is a text as any other here.")
	}
	if f.err == nil {
		f.err = s.queue.enter(1)
	}
	if f.err != nil {
		writeError(w, f.err)
		return
	}
	defer s.queue.leave(1)
	ctx, end := s.limitTime(r)
	defer end()
	tokens, err := s.model.EncodeBounded(ctx, content, addSpecial, false, math.MaxInt)
	if err != nil {
		s.fail(w, r, ctx, err, "content", 1)
		return
	}
	if !withPieces {
		writeJSON(w, http.StatusOK, map[string]any{"tokens": tokens})
		return
	}
	pieces := make([]any, len(tokens))
	for i, token := range tokens {
		bytes, err := s.model.TokenBytes(token)
		if err != nil {
			writeError(w, s.asAPIError(err, "content", 1))
			return
		}
		pieces[i] = map[string]any{"id": token, "piece": pieceOf(bytes)}
	}
	writeJSON(w, http.StatusOK, map[string]any{"tokens": pieces})
}

// pieceOf is a text; for a part of a code point a list of its bytes.
func pieceOf(bytes []byte) any {
	if utf8.Valid(bytes) {
		return string(bytes)
	}
	numbers := make([]int, len(bytes))
	for i, b := range bytes {
		numbers[i] = int(b)
	}
	return numbers
}

// detokenize is /detokenize, as llama-server has it.
func (s *server) detokenize(w http.ResponseWriter, r *http.Request) {
	f, err := s.read(w, r)
	if err != nil {
		writeError(w, err)
		return
	}
	f.checkNames("tokens")
	tokens := f.tokens("tokens", "tokens", f.body["tokens"], s.vocabSize)
	if f.err == nil {
		f.err = s.queue.enter(1)
	}
	if f.err != nil {
		writeError(w, f.err)
		return
	}
	defer s.queue.leave(1)
	text, err := s.model.Decode(tokens)
	if err != nil {
		writeError(w, s.asAPIError(err, "tokens", 1))
		return
	}
	writeJSON(w, http.StatusOK, map[string]any{"content": text})
}
