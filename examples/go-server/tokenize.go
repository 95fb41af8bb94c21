package main

import (
	"net/http"
	"unicode/utf8"
)

// tokenize is /tokenize, as llama-server has it.
func (s *server) tokenize(w http.ResponseWriter, r *http.Request) {
	var request struct {
		Content      *string `json:"content"`
		AddSpecial   bool    `json:"add_special"`
		ParseSpecial bool    `json:"parse_special"`
		WithPieces   bool    `json:"with_pieces"`
	}
	err := s.read(w, r, &request)
	switch {
	case err != nil:
	case request.Content == nil:
		err = badRequest("content", "'content' must be a text.")
	case request.ParseSpecial:
		err = badRequest("parse_special", "'parse_special' must be false: a special token's text is a text as any other here.")
	default:
		err = s.queue.enter(1)
	}
	if err != nil {
		writeError(w, err)
		return
	}
	defer s.queue.leave(1)
	tokens, err := s.model.Encode(*request.Content, request.AddSpecial, false)
	if err != nil {
		writeError(w, s.asAPIError(err, "content"))
		return
	}
	if !request.WithPieces {
		writeJSON(w, http.StatusOK, map[string]any{"tokens": tokens})
		return
	}
	pieces := make([]any, len(tokens))
	for i, token := range tokens {
		bytes, err := s.model.TokenBytes(token)
		if err != nil {
			writeError(w, s.asAPIError(err, "content"))
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
	var request struct {
		Tokens []int32 `json:"tokens"`
	}
	err := s.read(w, r, &request)
	switch {
	case err != nil:
	case request.Tokens == nil:
		err = badRequest("tokens", "'tokens' must be a list of tokens.")
	default:
		err = s.queue.enter(1)
	}
	if err != nil {
		writeError(w, err)
		return
	}
	defer s.queue.leave(1)
	text, err := s.model.Decode(request.Tokens)
	if err != nil {
		writeError(w, s.asAPIError(err, "tokens"))
		return
	}
	writeJSON(w, http.StatusOK, map[string]any{"content": text})
}
