package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"time"

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
	TopK *int     `json:"top_k"`
	MinP *float32 `json:"min_p"`

	// Refused unless they ask for nothing.
	PresencePenalty  float64            `json:"presence_penalty"`
	FrequencyPenalty float64            `json:"frequency_penalty"`
	LogitBias        map[string]float64 `json:"logit_bias"`
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
	decoder := json.NewDecoder(bytes.NewReader(body))
	err = decoder.Decode(v)
	if err == nil && decoder.More() {
		err = errors.New("there is something after it")
	}
	var api *apiError
	var wrongType *json.UnmarshalTypeError
	if errors.As(err, &api) {
		return api
	} else if errors.As(err, &wrongType) {
		field := strings.TrimPrefix(wrongType.Field, "common.")
		return badRequest(field, "'%s' is a %s, which it cannot be.", field, wrongType.Value)
	} else if err != nil {
		return badRequest("", "The request is not valid JSON: %v.", err)
	}
	return nil
}

// check finds what cannot be done, and turns the rest into the model's options.
func (c *common) check(s *server) ([]llamabi.GenerateOption, error) {
	if c.Model == "" {
		return nil, badRequest("model", "You must provide a 'model' parameter.")
	}
	if err := s.checkModel(c.Model); err != nil {
		return nil, err
	}
	for name, asked := range map[string]bool{"presence_penalty": c.PresencePenalty != 0,
		"frequency_penalty": c.FrequencyPenalty != 0, "logit_bias": len(c.LogitBias) > 0} {
		if asked {
			return nil, badRequest(name, "'%s' is not supported.", name)
		}
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
	opts := []llamabi.GenerateOption{llamabi.Temperature(temperature), llamabi.TopP(topP), llamabi.TopK(topK),
		llamabi.MinP(minP), llamabi.Stop(c.Stop...)}
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
