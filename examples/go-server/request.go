package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"llamabi"
)

// common is what the two protocols share.
type common struct {
	Model         string    `json:"model"`
	Temperature   *float32  `json:"temperature"`
	TopP          *float32  `json:"top_p"`
	N             *int      `json:"n"`
	Seed          *int64    `json:"seed"`
	Stop          oneOrMany `json:"stop"`
	Stream        bool      `json:"stream"`
	StreamOptions struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
	MaxTokens *int `json:"max_tokens"`

	// As other servers have them; not of OpenAI.
	TopK              *int     `json:"top_k"`
	MinP              *float32 `json:"min_p"`
	RepetitionPenalty *float32 `json:"repetition_penalty"`
}

// ignored are OpenAI's fields that change nothing here whatever they say.
var ignored = []string{"metadata", "parallel_tool_calls", "prediction", "prompt_cache_key", "prompt_cache_retention",
	"safety_identifier", "service_tier", "store", "user"}

// harmless are values of further fields with which they ask for nothing.
var harmless = map[string][]any{
	"frequency_penalty": {0.0},
	"function_call":     {"auto", "none"},
	"functions":         {[]any{}},
	"logit_bias":        {map[string]any{}},
	"modalities":        {[]any{"text"}},
	"presence_penalty":  {0.0},
	"response_format":   {map[string]any{"type": "text"}},
	"suffix":            {""},
	"tool_choice":       {"auto", "none"},
	"tools":             {[]any{}},
}

// checkNames refuses fields that v, a struct, does not have, unless they change nothing.
func checkNames(fields map[string]any, v any) error {
	known := slices.Clone(ignored)
	for _, field := range reflect.VisibleFields(reflect.TypeOf(v).Elem()) {
		known = append(known, field.Tag.Get("json"))
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		value := fields[name]
		same := func(other any) bool { return reflect.DeepEqual(value, other) }
		if value != nil && !slices.Contains(known, name) && !slices.ContainsFunc(harmless[name], same) {
			return badRequest(name, "'%s' is not supported, or not with this value.", name)
		}
	}
	return nil
}

// oneOrMany is a text or a list of texts.
type oneOrMany []string

func (o *oneOrMany) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '"' {
		*o = make(oneOrMany, 1)
		return json.Unmarshal(b, &(*o)[0])
	}
	return json.Unmarshal(b, (*[]string)(o))
}

// read parses a request's body into v.
func (s *server) read(w http.ResponseWriter, r *http.Request, v any) error {
	kind, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	if !strings.EqualFold(strings.TrimSpace(kind), "application/json") {
		// A form of another site's page can send other types, without the browser asking first.
		return &apiError{http.StatusUnsupportedMediaType, "invalid_request_error", "", "unsupported_media_type",
			"The request's Content-Type must be application/json."}
	}
	control := http.NewResponseController(w)
	control.SetReadDeadline(time.Now().Add(30 * time.Second))
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, s.maxBody))
	control.SetReadDeadline(time.Time{})
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return &apiError{http.StatusRequestEntityTooLarge, "invalid_request_error", "", "",
			fmt.Sprintf("The request has more than %d bytes.", tooLarge.Limit)}
	} else if err != nil {
		return badRequest("", "The request could not be read: %v.", err)
	}
	if !utf8.Valid(body) {
		return badRequest("", "The request is not UTF-8.")
	}
	if nestedTooDeep(body) {
		return badRequest("", "The request is nested more than %d deep.", mostNested)
	}
	var fields map[string]any
	if err = json.Unmarshal(body, &fields); err == nil {
		err = checkNames(fields, v)
	}
	if err == nil {
		err = json.Unmarshal(body, v)
	}
	var api *apiError
	var wrongType *json.UnmarshalTypeError
	if errors.As(err, &api) {
		return api
	} else if errors.As(err, &wrongType) && wrongType.Field == "" {
		return badRequest("", "The request is not a JSON object.")
	} else if errors.As(err, &wrongType) {
		field := strings.TrimPrefix(wrongType.Field, "common.")
		return badRequest(field, "'%s' is a %s, which it cannot be.", field, wrongType.Value)
	} else if err != nil {
		return badRequest("", "The request is not valid JSON: %v.", err)
	}
	return nil
}

const mostNested = 64 // as deep as nothing is that the protocol has

func nestedTooDeep(body []byte) bool {
	depth, quoted := 0, false
	for i := 0; i < len(body); i++ {
		switch c := body[i]; {
		case c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '[', c == '{':
			if depth++; depth > mostNested {
				return true
			}
		case c == ']', c == '}':
			depth--
		}
	}
	return false
}

// check finds what cannot be done, and turns the rest into the model's options.
func (c *common) check(s *server) ([]llamabi.GenerateOption, error) {
	if c.Model == "" {
		return nil, badRequest("model", "You must provide a 'model' parameter.")
	}
	if err := s.checkModel(c.Model); err != nil {
		return nil, err
	}
	n, err := within(c.N, "n", 1, 1, 128)
	if err != nil {
		return nil, err
	}
	c.N = &n
	temperature, err := within(c.Temperature, "temperature", 1, 0, 2)
	if err != nil {
		return nil, err
	}
	topP, err := within(c.TopP, "top_p", 1, 0, 1)
	if err != nil {
		return nil, err
	}
	topK, err := within(c.TopK, "top_k", 0, 0, math.MaxInt32)
	if err != nil {
		return nil, err
	}
	minP, err := within(c.MinP, "min_p", 0, 0, 1)
	if err != nil {
		return nil, err
	}
	penalty := float32(1)
	if c.RepetitionPenalty != nil {
		penalty = *c.RepetitionPenalty
	}
	if penalty <= 0 {
		return nil, badRequest("repetition_penalty", "'repetition_penalty' is %v, must be more than 0.", penalty)
	}
	opts := []llamabi.GenerateOption{llamabi.Temperature(temperature), llamabi.TopP(topP), llamabi.TopK(topK),
		llamabi.MinP(minP), llamabi.RepetitionPenalty(penalty), llamabi.Stop(c.Stop...)}
	if c.MaxTokens != nil {
		if _, err := within(c.MaxTokens, "max_tokens", 0, 0, math.MaxInt32); err != nil {
			return nil, err
		}
		opts = append(opts, llamabi.MaxGenLen(*c.MaxTokens))
	}
	if c.Seed != nil {
		seed := uint64(*c.Seed)
		if seed == 0 { // to the model: a seed of its own choice
			seed = 1 << 63
		}
		opts = append(opts, llamabi.Seed(seed))
	}
	return opts, nil
}

// within is *v, or missing where there is none, from lowest to highest.
func within[T int | float32](v *T, name string, missing, lowest, highest T) (T, error) {
	if v == nil {
		return missing, nil
	}
	if !(*v >= lowest && *v <= highest) {
		return 0, badRequest(name, "'%s' is %v, must be %v to %v.", name, *v, lowest, highest)
	}
	return *v, nil
}
