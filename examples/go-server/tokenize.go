package main

import (
	"context"
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
	if f.err != nil {
		writeError(w, f.err)
		return
	}
	ctx, end := s.limitTime(r)
	defer end()
	whole, err := s.tokensOf(ctx, content, addSpecial, withPieces)
	if err != nil {
		s.fail(w, r, ctx, err, "content", 1)
		return
	}
	writeBody(w, http.StatusOK, whole)
}

// tokensOf is the answer that has a text's tokens.
func (s *server) tokensOf(ctx context.Context, content string, addSpecial, withPieces bool) ([]byte, error) {
	if err := s.queue.enter(1); err != nil {
		return nil, err
	}
	defer s.queue.leave(1)
	tokens, err := s.model.EncodeBounded(ctx, content, addSpecial, false, math.MaxInt)
	if err != nil {
		return nil, err
	}
	if !withPieces {
		return jsonOf(map[string]any{"tokens": tokens})
	}
	return s.piecesOf(ctx, tokens)
}

// piecesOf is the answer that has tokens and their texts. It is put together here: as a list of
// values, a million of them took 700 MB.
func (s *server) piecesOf(ctx context.Context, tokens []int32) ([]byte, error) {
	whole := []byte(`{"tokens":[`)
	written := map[int32][]byte{} // of each token that has been met, what the list has for it
	for i, token := range tokens {
		item := written[token]
		if item == nil {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			bytes, err := s.model.TokenBytes(token)
			if err != nil {
				return nil, err
			}
			if item, err = jsonOf(map[string]any{"id": token, "piece": pieceOf(bytes)}); err != nil {
				return nil, err
			}
			item = item[:len(item)-1] // without the line feed
			written[token] = item
		}
		if i > 0 {
			whole = append(whole, ',')
		}
		whole = append(whole, item...)
	}
	return append(whole, "]}\n"...), nil
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
	if f.err != nil {
		writeError(w, f.err)
		return
	}
	whole, err := s.textOf(tokens)
	if err != nil {
		writeError(w, s.asAPIError(err, "tokens", 1))
		return
	}
	writeBody(w, http.StatusOK, whole)
}

// textOf is the answer that has the text of tokens.
func (s *server) textOf(tokens []int32) ([]byte, error) {
	if err := s.queue.enter(1); err != nil {
		return nil, err
	}
	defer s.queue.leave(1)
	text, err := s.model.Decode(tokens)
	if err != nil {
		return nil, err
	}
	return jsonOf(map[string]any{"content": text})
}
