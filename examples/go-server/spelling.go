package main

import (
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

	partial bool // bytes may still turn out to be no part of a code point
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
	// A token that has a text here and no bytes of its own; -1: none.
	marker      int32
	markerBytes string

	silent []int32 // tokens before the text's first, which have added nothing to it
	begun  bool    // there is a token that has
	raw    string  // what the model has written, for open
	held   string
	opened bool
	ended  bool // a stop string begins the text

	tokens []*scored // not yet given out
	pieces []*scored // of those, the single bytes whose code point is not whole
	sent   int       // bytes of text given out
	at     int       // bytes of the tokens given out
	points int       // their code points
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
		if !s.opened {
			s.raw += string(bytes)
		}
		if s.listed {
			t := &scored{token: ev.Token, bytes: bytes[s.cut(space):], logprob: writable(ev.Logprob), known: known, guessed: s.drafts, draft: outcome(ev.Draft)}
			for _, a := range ev.TopLogprobs {
				bytes, space, err := s.look(a.Token)
				if err != nil {
					return piece{}, err
				}
				t.top = append(t.top, scored{token: a.Token, bytes: bytes[s.cut(space):], logprob: writable(a.Logprob)})
			}
			s.add(t)
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
	if text = s.open(text); !s.ended {
		text += s.held
	}
	s.sent += len(text)
	s.settle(true)
	tokens := s.take()
	if len(s.tokens) > 0 && s.at < s.sent {
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
	if slices.ContainsFunc(s.stops, func(stop string) bool { return strings.HasPrefix(s.raw, stop) }) {
		s.ended = true
		return ""
	}
	if slices.ContainsFunc(s.stops, func(stop string) bool { return strings.HasPrefix(stop, s.raw) }) {
		return ""
	}
	s.opened = true
	text, s.held, s.raw = s.held, "", ""
	return text
}

// add takes a token into the list.
func (s *spelling) add(t *scored) {
	s.tokens = append(s.tokens, t)
	t.partial = len(t.bytes) == 1 && t.bytes[0] >= utf8.RuneSelf
	if t.partial {
		s.pieces = append(s.pieces, t)
	}
	s.settle(!t.partial)
}

// settle decides about pieces as the library's decoder does: a byte that is no part of a code point
// is U+FFFD in the text. Where nothing can complete them any more, all are decided.
func (s *spelling) settle(all bool) {
	for len(s.pieces) > 0 {
		var bytes []byte
		for _, t := range s.pieces {
			bytes = append(bytes, t.bytes...)
		}
		if !all && !utf8.FullRune(bytes) {
			return
		}
		point, size := utf8.DecodeRune(bytes)
		if point == utf8.RuneError && size <= 1 {
			s.pieces[0].bytes = []byte("\ufffd")
		}
		for _, t := range s.pieces[:size] {
			t.partial = false
		}
		s.pieces = s.pieces[size:]
	}
}

// take gives out the tokens whose text is.
func (s *spelling) take() []scored {
	var taken []scored
	for len(s.tokens) > 0 && !s.tokens[0].partial && s.at+len(s.tokens[0].bytes) <= s.sent {
		t := s.tokens[0]
		t.offset = s.points
		for i, b := range t.bytes {
			if utf8.RuneStart(b) {
				s.points++
			} else if i == 0 { // the code point has been counted
				t.offset--
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
