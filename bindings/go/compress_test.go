package llamabi_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"llamabi"
)

func TestCompression(t *testing.T) {
	behaviour(t, "compression")
	model := open(t, demo)
	const story = "Once upon a time there was a little girl who had 12 apples.\nShe went to the river every day, and she sang a song."
	prompt := []llamabi.Segment{{"Tell me.", llamabi.SegmentKeep}, {story, llamabi.SegmentCompress}, {"Who sang?", llamabi.SegmentQuestion}}
	left := must(model.Compress(t.Context(), prompt, llamabi.CompressOptions{TargetTokens: 20, Window: 8, Coarse: 1}))(t)
	equal(t, len(left[0].Tokens)+len(left[1].Tokens)+len(left[2].Tokens), 20)
	equal(t, left[0].Text+left[2].Text, "Tell me.Who sang?")
	equal(t, len(left[1].Logprobs), len(left[1].Tokens))
	equal(t, int(left[1].Stats.PromptTokens), len(must(model.Encode(story, false, false))(t)))

	one := []llamabi.Segment{{story, llamabi.SegmentCompress}}
	kept := must(model.Compress(t.Context(), one, llamabi.CompressOptions{KeepNewlines: true, KeepDigits: true}))(t)[0].Text
	for _, part := range []string{"1", "2", "\n"} {
		if !strings.Contains(kept, part) {
			t.Errorf("%q is not in %q", part, kept)
		}
	}
	equal(t, must(model.Compress(t.Context(), one, llamabi.CompressOptions{Rate: 1}))(t)[0].Text, story)
	_, err := model.Compress(t.Context(), one, llamabi.CompressOptions{Rate: 2})
	wantError(t, err, llamabi.ErrInvalidArgument, "rate is 2")
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := model.Compress(cancelled, one, llamabi.CompressOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}
