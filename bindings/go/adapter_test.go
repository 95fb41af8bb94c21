package llamabi_test

import (
	"errors"
	"os"
	"slices"
	"testing"

	"llamabi"
)

func TestAdapters(t *testing.T) {
	behaviour(t, "adapters")
	const data = "../../tests/data/adapters/"
	f32 := llamabi.WithWeightsDtype(llamabi.DtypeF32)
	model := open(t, data+"base", f32)
	merged := open(t, data+"base", f32, llamabi.WithAdapter(data+"plain", 1))
	generate := func(m *llamabi.Model, opts ...llamabi.GenerateOption) ([]int32, error) {
		opts = append(opts, llamabi.Temperature(0), llamabi.MaxGenLen(4))
		results, err := m.Generate(t.Context(), [][]int32{{71, 294, 35, 133}}, opts...)
		if err != nil {
			return nil, err
		}
		return results[0].Tokens, nil
	}
	expected := must(generate(merged))(t)
	if slices.Equal(expected, must(generate(model))(t)) {
		t.Error("the adapter changes nothing")
	}
	id := must(model.AddAdapter(data+"plain", 1))(t)
	equal(t, must(generate(model, llamabi.Adapter(id)))(t), expected)
	info := must(model.Info())(t)
	equal(t, info.ModelType+" "+info.StoredFormat, "llama bf16")
	if err := model.DropAdapter(id); err != nil {
		t.Error(err)
	}
	_, err := generate(model, llamabi.Adapter(id))
	wantError(t, err, llamabi.ErrInvalidArgument, "adapter is 1")
	wantError(t, model.DropAdapter(id), llamabi.ErrInvalidArgument, "id is 1")
	_, err = model.AddAdapter(data+"with-head", 1)
	wantError(t, err, llamabi.ErrUnsupported, "lm_head")
	_, err = model.AddAdapter("no/such/adapter", 1)
	wantError(t, err, llamabi.ErrIO, "no/such/adapter")
	equal(t, errors.Is(err, os.ErrNotExist), true)
	_, err = model.AddAdapter("a\x00b", 1)
	wantError(t, err, llamabi.ErrInvalidArgument, "NUL")
}
