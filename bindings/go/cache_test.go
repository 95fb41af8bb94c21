package llamabi_test

import (
	"context"
	"math"
	"strings"
	"testing"

	"llamabi"
)

func TestCacheSaltKeepsPrefixesApart(t *testing.T) {
	model := open(t, demo)
	prompt := strings.Repeat("Once upon a time there was a fox. ", 10)
	run := func(opts ...llamabi.GenerateOption) llamabi.Result {
		opts = append(opts, llamabi.MaxGenLen(20), llamabi.Temperature(0))
		return must(model.TextCompletion(context.Background(), []string{prompt}, opts...))(t)[0]
	}
	first, again := run(), run(llamabi.CacheSalt(0))
	if first.Stats.CachedTokens != 0 || again.Stats.CachedTokens == 0 {
		t.Fatalf("without a salt %d, then %d cached tokens", first.Stats.CachedTokens, again.Stats.CachedTokens)
	}
	for _, salt := range []uint64{7, math.MaxUint64} {
		alone, twice := run(llamabi.CacheSalt(salt)), run(llamabi.CacheSalt(salt))
		if alone.Stats.CachedTokens != 0 || twice.Stats.CachedTokens != again.Stats.CachedTokens {
			t.Errorf("salt %d: %d, then %d cached tokens", salt, alone.Stats.CachedTokens, twice.Stats.CachedTokens)
		}
		if alone.Text != first.Text || twice.Text != first.Text {
			t.Errorf("salt %d changes the text", salt)
		}
	}
}
