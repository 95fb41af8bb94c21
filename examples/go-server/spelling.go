package main

import (
	"math/bits"
	"slices"
	"strings"
	"unicode/utf8"

	"llamabi"
)

// scored is a token with its log probability, at offset code points into the choice's text.
type scored struct {
	token   int32
	bytes   []byte // what it adds to the text
	logprob float32
	known   bool // false: nothing came before this token
	offset  int
	top     []scored
	guessed bool // whether draft is asked for
	draft   any  // what became of a guess at it: a text, or nil

	open int // of its bytes, how many may still turn out to be no part of a code point
}

// spelling makes a choice's text of what the library tells of it, and with it the tokens that spell
// it: their bytes, joined, are the text's.
//
// The library decodes as Meta's code does: a text begins without the space of its first token. A
// text that continues another one gets that space back, in any other the first token loses it.
type spelling struct {
	model     *llamabi.Model
	continues bool
	listed    bool     // the tokens are asked for
	drafts    bool     // and what became of guesses at them
	stops     []string // see open
	eachByte  bool     // see replacesEachByte
	// A token that has a text here and no bytes of its own; -1: none.
	marker      int32
	markerBytes string

	silent []int32   // tokens before the text's first, which have added nothing to it
	begun  bool      // there is a token that has
	first  []*scored // the text's first tokens, for open
	held   string
	opened bool
	ended  bool // a stop string begins the text

	tokens []*scored // not yet given out
	part   []byte    // of a code point that later bytes may complete
	owners []*scored // the token of each of these bytes
	sent   int       // bytes of text given out
	at     int       // bytes of the tokens given out
	points int       // their whole code points
	rest   int       // bytes that the next one lacks, if it has begun
}

// newSpelling has the call's stop strings.
func newSpelling(model *llamabi.Model, continues, listed bool, stops []string) *spelling {
	s := &spelling{model: model, continues: continues, listed: listed, marker: -1}
	if continues {
		for _, stop := range stops {
			if stop[0] == ' ' {
				s.stops = append(s.stops, stop)
			}
		}
	}
	s.opened = len(s.stops) == 0
	return s
}

// token is what a token's event adds; known says whether its log probability is one.
func (s *spelling) token(ev llamabi.Event, known bool) (piece, error) {
	if s.ended {
		return piece{}, nil
	}
	text := ev.Text
	if s.listed || !s.opened || s.continues && !s.begun {
		bytes, space, err := s.look(ev.Token)
		if err != nil {
			return piece{}, err
		}
		t := &scored{token: ev.Token, bytes: bytes[s.cut(space):], logprob: writable(ev.Logprob), known: known, guessed: s.drafts, draft: outcome(ev.Draft)}
		s.decode(t)
		if !s.opened && (len(t.bytes) > 0 || t.open > 0) {
			s.first = append(s.first, t)
		}
		if s.listed {
			for _, a := range ev.TopLogprobs {
				bytes, space, err := s.look(a.Token)
				if err != nil {
					return piece{}, err
				}
				t.top = append(t.top, scored{token: a.Token, bytes: bytes[s.cut(space):], logprob: writable(a.Logprob)})
			}
			s.tokens = append(s.tokens, t)
		}
		if s.continues {
			text = strings.Repeat(" ", space) + text
		}
		if len(bytes) > space {
			s.begun, s.silent = true, nil
		} else if !s.begun {
			s.silent = append(s.silent, ev.Token)
		}
	}
	text = s.open(text)
	s.sent += len(text)
	return piece{text: text, tokens: s.take()}, nil
}

// finish is what the end of the choice adds. Tokens behind the text's end, which a stop string has
// cut, are left out, and one that it has cut in two has its first part only.
func (s *spelling) finish(text string) piece {
	if s.ended {
		return piece{}
	}
	s.settle(true)
	if text = s.open(text); !s.ended {
		text += s.held
	}
	s.sent += len(text)
	tokens := s.take()
	if len(s.tokens) > 0 && s.at < s.sent {
		s.tokens = s.tokens[:1]
		s.tokens[0].bytes = s.tokens[0].bytes[:s.sent-s.at]
		tokens = append(tokens, s.take()...)
	}
	return piece{text: text, tokens: tokens}
}

// look is what a token adds in the middle of a text, and how many spaces of that it does not add
// here.
func (s *spelling) look(token int32) (bytes []byte, space int, err error) {
	if token == s.marker {
		return []byte(s.markerBytes), 0, nil
	}
	bytes, err = s.model.TokenBytes(token)
	if err != nil || s.begun || len(bytes) == 0 || bytes[0] != ' ' {
		return bytes, 0, err
	}
	text, err := s.model.Decode(append(slices.Clip(s.silent), token))
	spaces := func(s string) int { return len(s) - len(strings.TrimLeft(s, " ")) }
	return bytes, spaces(string(bytes)) - spaces(text), err
}

// cut is how many bytes a token that has dropped a space is listed without.
func (s *spelling) cut(space int) int {
	if s.continues {
		return 0
	}
	return space
}

// open is a text, once it is certain that no stop string begins it. The library has dropped the
// first space of the text. It does not find a stop string of spaces alone there. One that begins
// with the space it finds, but then it does not say that the text is cut before the space. So what
// the model has written is compared here, too.
func (s *spelling) open(text string) string {
	if s.opened || s.ended {
		return text
	}
	s.held += text
	var all []byte
	for _, t := range s.first {
		all = append(all, t.bytes...)
	}
	written := string(all)
	if slices.ContainsFunc(s.stops, func(stop string) bool { return strings.HasPrefix(written, stop) }) {
		s.ended = true
		return ""
	}
	if slices.ContainsFunc(s.stops, func(stop string) bool { return strings.HasPrefix(stop, written) }) {
		return ""
	}
	s.opened = true
	text, s.held, s.first = s.held, "", nil
	return text
}

// decode makes of a token's bytes what the library's decoder makes of them in the text, as soon as
// that is certain.
func (s *spelling) decode(t *scored) {
	bytes := t.bytes
	switch {
	case len(bytes) == 0 && s.eachByte: // SentencePiece ends a code point at a control token
		s.settle(true)
		return
	case len(s.part) == 0 && utf8.Valid(bytes):
		return
	}
	t.bytes, t.open = nil, len(bytes)
	for _, b := range bytes {
		s.part, s.owners = append(s.part, b), append(s.owners, t)
		s.settle(false)
	}
}

// settle decides about a part of a code point: about all of it where nothing can complete it any
// more, otherwise if its last byte is the code point's last or none of it.
//
// What is no code point is U+FFFD in the text, once for each byte or once for all of them. The
// token of the first byte has that then, and the others have nothing.
func (s *spelling) settle(all bool) {
	for len(s.part) > 0 {
		size, whole := len(s.part), utf8.Valid(s.part)
		if !whole && utf8.FullRune(s.part) {
			size = max(size-1, 1) // the last byte may begin another code point
		} else if !whole && !all {
			return
		}
		for i, t := range s.owners[:size] {
			if whole {
				t.bytes = append(t.bytes, s.part[i])
			} else if i == 0 || s.eachByte {
				t.bytes = append(t.bytes, "\ufffd"...)
			}
			t.open--
		}
		s.part, s.owners = s.part[size:], s.owners[size:]
	}
}

// wellFormed is a text of bytes, whatever they are.
func wellFormed(bytes []byte) string {
	t, alone := scored{bytes: bytes}, spelling{}
	alone.decode(&t)
	alone.settle(true)
	return string(t.bytes)
}

// replacesEachByte says how the model's tokenizer decodes what is no part of a code point. U+FFFD
// stands for each byte of it in SentencePiece's texts. In those of byte-level tokenizers it stands
// for as many bytes as could have become one code point, and control tokens between them change
// nothing.
func replacesEachByte(model *llamabi.Model) (bool, error) {
	tokens, err := model.Encode("\U0010fffd", false, false) // has no token of its own
	if err != nil || len(tokens) == 0 {
		return false, err
	}
	text, err := model.Decode(tokens[:len(tokens)-1])
	return strings.Count(text, "\ufffd") > 1, err
}

// take gives out the tokens whose text is.
func (s *spelling) take() []scored {
	var taken []scored
	for len(s.tokens) > 0 && s.tokens[0].open == 0 && s.at+len(s.tokens[0].bytes) <= s.sent {
		t := s.tokens[0]
		t.offset = s.points
		for _, b := range t.bytes {
			if utf8.RuneStart(b) {
				s.rest = max(bits.LeadingZeros8(^b), 1) // as many bytes as the first has leading ones
			}
			if s.rest--; s.rest == 0 {
				s.points++
			}
		}
		for i := range t.top {
			if t.top[i].token == t.token {
				t.top[i].bytes = t.bytes
			}
		}
		s.at += len(t.bytes)
		s.tokens = s.tokens[1:]
		taken = append(taken, *t)
	}
	return taken
}

// writable is a log probability that JSON can hold: the protocol's "very unlikely" for minus
// infinity.
func writable(logprob float32) float32 { return max(logprob, -9999) }
