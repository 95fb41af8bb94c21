package main

import "llamabi"

// searchFields are what only a beam search has.
var searchFields = []string{"early_stopping", "length_penalty", "num_beams"}

// search reads the fields of a beam search. Its width is num_beams, or best_of, or n. The answers
// are the n best, and nothing is drawn at random.
func (f *fields) search(s *server, c *common) {
	if !f.flag("use_beam_search") {
		for _, name := range searchFields {
			if f.body[name] != nil {
				f.fail(name, "'%s' needs 'use_beam_search' to be true.", name)
			}
		}
		return
	}
	if c.stream && !c.includeBeams {
		const why = "which answers are best is not known before their end ('stream_options.include_beams' shows the search)"
		f.fail("use_beam_search", "'use_beam_search' and 'stream' are true: %s.", why)
	}
	width := f.either("num_beams", "best_of")
	c.beams = f.integer(width, float64(c.n), 1, float64(s.slots))
	if f.body[width] == nil {
		width = "n"
	}
	switch {
	case c.beams > s.slots:
		f.fail(width, "'%s' is %d, more beams than the %d that run at the same time.", width, c.beams, s.slots)
	case c.beams < c.n:
		f.fail(width, "'%s' is %d, must be at least 'n', %d.", width, c.beams, c.n)
	}
	early := llamabi.EarlyFalse
	switch value := f.body["early_stopping"]; value {
	case nil, false:
	case true:
		early = llamabi.EarlyTrue
	case "never":
		early = llamabi.EarlyNever
	default:
		f.fail("early_stopping", "'early_stopping' must be true, false or 'never'.")
	}
	c.opts = append(c.opts,
		llamabi.LengthPenalty(float32(f.number("length_penalty", 1, -64, 64))),
		llamabi.EarlyStopping(early),
		llamabi.NumBeams(max(c.beams, 1)),
		llamabi.NumReturnSequences(max(c.n, 1)),
		llamabi.Temperature(0), // a search of one beam takes the most likely token
	)
	if c.includeBeams && c.beams > 1 {
		c.opts = append(c.opts, llamabi.BeamEvents())
	}
}

// copies is how often the model gets each prompt: a search has all answers of one.
func (c common) copies() int {
	if c.beams > 0 {
		return 1
	}
	return c.n
}

// slots is how many sequences the model runs for a job.
func (j job) slots() int { return j.sequences / j.n * max(j.beams, j.n) }
