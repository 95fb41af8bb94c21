package main

import (
	"maps"
	"slices"

	"llamabi"
)

// streamOptions are what a stream says beside its choices, if it is asked.
type streamOptions struct {
	includeUsage  bool
	includeBeams  bool // those of a search, in every step
	includeDrafts bool // what became of the guesses at tokens
}

// streamOptions reads the field of that name.
func (f *fields) streamOptions(stream bool) (wanted streamOptions) {
	options, ok := f.body["stream_options"].(map[string]any)
	if f.body["stream_options"] == nil {
		return wanted
	} else if !ok {
		f.fail("stream_options", "'stream_options' must be an object, not %s.", kind(f.body["stream_options"]))
		return wanted
	}
	if !stream {
		f.fail("stream_options", "'stream_options' needs 'stream' to be true.")
	}
	ignored := false
	read := map[string]*bool{"include_usage": &wanted.includeUsage, "include_obfuscation": &ignored,
		"include_beams": &wanted.includeBeams, "include_drafts": &wanted.includeDrafts}
	for _, name := range slices.Sorted(maps.Keys(options)) {
		if read[name] == nil && options[name] != nil {
			f.fail("stream_options."+name, "'stream_options.%s' is not supported.", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(read)) {
		own := "stream_options." + name // as an error names it
		of := fields{body: map[string]any{own: options[name]}}
		if *read[name] = of.flag(own); f.err == nil {
			f.err = of.err
		}
	}
	return wanted
}

// checkStreamOptions refuses what a stream of such a request has nothing of.
func (f *fields) checkStreamOptions(c common, logprobs bool) {
	if c.includeBeams && c.beams == 0 {
		f.fail("stream_options.include_beams", "'stream_options.include_beams' needs 'use_beam_search' to be true.")
	}
	if c.includeDrafts && !logprobs {
		f.fail("stream_options.include_drafts", "'stream_options.include_drafts' needs 'logprobs'.")
	}
}

// beam is what a stream says of a beam: its last token, where that stands in the tree, and how good
// it is.
type beam struct {
	Index        int     `json:"index"`
	Step         int     `json:"step"`
	Beam         int     `json:"beam"`
	Parent       int     `json:"parent"`
	Token        int32   `json:"token"`
	Text         string  `json:"text"`
	SumLogprob   float32 `json:"sum_logprob"`
	Score        float32 `json:"score"`
	FinishReason *string `json:"finish_reason"`
}

// beamOf has the first token of a text without the space that the text drops.
func (s *server) beamOf(ev llamabi.Event, isFirst bool) (*beam, error) {
	bytes, err := s.model.TokenBytes(ev.Token)
	if isFirst && err == nil {
		var space int
		bytes, space, err = newSpelling(s.model, false, false, nil).look(ev.Token)
		bytes = bytes[space:]
	}
	if err != nil {
		return nil, err
	}
	b := &beam{Index: ev.Index, Step: ev.Step, Beam: ev.Beam, Parent: ev.Parent, Token: ev.Token, Text: printable(bytes),
		SumLogprob: writable(ev.SumLogprob), Score: writable(ev.Score)}
	if ev.FinishReason != 0 {
		reason := "stop"
		if ev.FinishReason == llamabi.FinishLength || ev.FinishReason == llamabi.FinishTime {
			reason = "length"
		}
		b.FinishReason = &reason
	}
	return b, nil
}

// outcome is a draft's as JSON has it; nil: there was none.
func outcome(draft llamabi.Draft) any {
	switch draft {
	case llamabi.DraftAccepted:
		return "accepted"
	case llamabi.DraftRejected:
		return "rejected"
	}
	return nil
}

// speculation reads whether tokens are guessed at, and by what.
func (f *fields) speculation(s *server, c *common) {
	how := llamabi.SpecOff
	switch value := f.body["speculation"]; value {
	case nil:
		if s.draft || s.medusa {
			how = llamabi.SpecAuto
		} else if f.body["prediction"] != nil {
			how = llamabi.SpecNGram
		}
	case "off":
	case "auto":
		how = llamabi.SpecAuto
	case "ngram":
		how = llamabi.SpecNGram
	case "draft":
		if how = llamabi.SpecDraft; !s.draft {
			f.fail("speculation", "'speculation' is 'draft', and this service has no draft model.")
		}
	case "medusa":
		if how = llamabi.SpecMedusa; !s.medusa {
			f.fail("speculation", "'speculation' is 'medusa', and this service has no Medusa heads.")
		}
	default:
		f.fail("speculation", "'speculation' must be 'off', 'auto', 'ngram', 'draft' or 'medusa'.")
	}
	c.guessed = f.body["prediction"] != nil || f.body["speculation"] != nil && how != llamabi.SpecOff
	// The same tokens come as without it, sooner.
	c.opts = append(c.opts, llamabi.Speculate(how), llamabi.DraftLen(f.integer("draft_len", 0, 0, 16)))
}
