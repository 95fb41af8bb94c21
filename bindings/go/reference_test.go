package llamabi_test

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"testing"

	"llamabi"
)

const (
	referenceDir = "../../tests/data/reference"
	// Float32 throughout, in another order of summation.
	logprobTolerance = 2e-3
)

// referenceCase is one of cases.json: arguments of Meta's functions, and what they returned.
type referenceCase struct {
	Kind string
	Args struct {
		PromptTokens [][]int32 `json:"prompt_tokens"`
		Prompts      []string
		Dialogs      [][]llamabi.Message
		MaxGenLen    int `json:"max_gen_len"`
		Echo         bool
	}
	Tokens       [][]int32
	Logprobs     [][]float32
	PromptTokens [][]int32 `json:"prompt_tokens"`
	Result       []struct {
		Generation json.RawMessage // text, or a message
		Tokens     []string
		Logprobs   []float32
	}
}

func TestReference(t *testing.T) {
	behaviour(t, "reference")
	for _, name := range []string{"mha-f32", "gqa-bf16", "gqa-f16-mp2"} {
		text, err := os.ReadFile(filepath.Join(referenceDir, name, "cases.json"))
		if err != nil {
			t.Fatal(err)
		}
		var file struct{ Cases []referenceCase }
		if err := json.Unmarshal(text, &file); err != nil {
			t.Fatal(err)
		}
		for _, form := range []string{"meta", "hf"} {
			t.Run(name+"/"+form, func(t *testing.T) {
				model := open(t, filepath.Join(referenceDir, name, form), llamabi.WithWeightsDtype(llamabi.DtypeF32),
					llamabi.WithMaxSeqLen(64), llamabi.WithMaxBatchSize(4))
				checked := map[string]int{}
				for _, c := range file.Cases {
					checkCase(t, model, c)
					checked[c.Kind]++
				}
				for _, kind := range []string{"generate", "text_completion", "chat_completion"} {
					if checked[kind] == 0 {
						t.Errorf("no case of kind %s", kind)
					}
				}
			})
		}
	}
}

func checkCase(t *testing.T, model *llamabi.Model, c referenceCase) {
	t.Helper()
	opts := []llamabi.GenerateOption{llamabi.Temperature(0), llamabi.Logprobs(), llamabi.MaxGenLen(c.Args.MaxGenLen)}
	if c.Args.Echo {
		opts = append(opts, llamabi.Echo())
	}
	ctx := t.Context()
	switch c.Kind {
	case "generate":
		results := must(model.Generate(ctx, c.Args.PromptTokens, opts...))(t)
		for i, r := range results {
			equal(t, r.Tokens, c.Tokens[i])
			near(t, r.Logprobs, c.Logprobs[i])
			equal(t, r.Text, must(model.Decode(r.Tokens))(t))
		}
		equal(t, len(results), len(c.Tokens))
	case "text_completion":
		results := must(model.TextCompletion(ctx, c.Args.Prompts, opts...))(t)
		equal(t, len(results), len(c.Result))
		for i, r := range results {
			equal(t, must(model.Encode(c.Args.Prompts[i], true, false))(t), c.PromptTokens[i])
			checkCompletion(t, model, r, c, i)
		}
	case "chat_completion":
		results := must(model.Chat(ctx, c.Args.Dialogs, opts...))(t)
		equal(t, len(results), len(c.Result))
		for i, r := range results {
			checkCompletion(t, model, r, c, i)
		}
	}
}

func checkCompletion(t *testing.T, model *llamabi.Model, got llamabi.Result, c referenceCase, i int) {
	t.Helper()
	want := c.Result[i]
	var text string
	if c.Kind == "chat_completion" {
		var message llamabi.Message
		if err := json.Unmarshal(want.Generation, &message); err != nil {
			t.Fatal(err)
		}
		text = message.Content
	} else if err := json.Unmarshal(want.Generation, &text); err != nil {
		t.Fatal(err)
	}
	equal(t, got.Text, text)
	pieces := make([]string, len(got.Tokens))
	for j, token := range got.Tokens {
		pieces[j] = must(model.Decode([]int32{token}))(t)
	}
	equal(t, pieces, want.Tokens)
	near(t, got.Logprobs, want.Logprobs)
}

func near(t *testing.T, got, want []float32) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("got %d values, want %d", len(got), len(want))
		return
	}
	for i := range got {
		if !(math.Abs(float64(got[i]-want[i])) <= logprobTolerance) {
			t.Errorf("value %d is %v, reference has %v", i, got[i], want[i])
		}
	}
}
