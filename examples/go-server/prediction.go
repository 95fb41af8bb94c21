package main

import (
	"context"
	"errors"
	"iter"

	"llamabi"
)

// mostPredicted is how many tokens a prediction may have.
const mostPredicted = 65536

// prediction is a text that the answer may repeat in parts, as an edited file repeats the old one;
// nil: there is none.
func (f *fields) prediction() *string {
	value := f.body["prediction"]
	if value == nil {
		return nil
	}
	object, ok := value.(map[string]any)
	if !ok {
		f.fail("prediction", "'prediction' must be an object with a 'type' and a 'content', not %s.", kind(value))
		return nil
	}
	if object["type"] != "content" {
		f.fail("prediction.type", "'prediction.type' must be 'content'.")
	}
	for name, value := range object {
		if value != nil && name != "type" && name != "content" {
			f.fail("prediction", "'prediction' has other fields than 'type' and 'content'.")
		}
	}
	text := f.content("prediction.content", object["content"])
	return &text
}

// predicting streams answers that are guessed at with the request's prediction. The same tokens
// come as without it, sooner.
func (s *server) predicting(stream events) events {
	return func(ctx context.Context, c common) iter.Seq2[llamabi.Event, error] {
		if c.prediction == nil {
			return stream(ctx, c)
		}
		return func(yield func(llamabi.Event, error) bool) {
			tokens, err := s.model.EncodeBounded(ctx, *c.prediction, false, false, mostPredicted)
			if errors.Is(err, llamabi.ErrTooLong) {
				err = badRequest("prediction", "'prediction.content' has more than %d tokens.", mostPredicted)
			}
			if err != nil {
				yield(llamabi.Event{}, err)
				return
			}
			c.opts = append(c.opts, llamabi.Predicted(tokens...))
			stream(ctx, c)(yield)
		}
	}
}

// completionDetails are the tokens of the answers that were guessed at, and how many of the guesses
// were right.
type completionDetails struct {
	Accepted int `json:"accepted_prediction_tokens"`
	Rejected int `json:"rejected_prediction_tokens"`
}

func (d *completionDetails) add(stats llamabi.RequestStats) {
	d.Accepted += stats.AcceptedTokens
	d.Rejected += stats.DraftedTokens - stats.AcceptedTokens
}
