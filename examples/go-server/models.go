package main

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"llamabi"
)

// adapter is a LoRA adapter that requests choose by its name, as their model.
type adapter struct {
	name, dir string
	id        uint32 // to the library
}

// addAdapter parses a flag NAME=DIR.
func (s *settings) addAdapter(given string) error {
	name, dir, isThere := strings.Cut(given, "=")
	if !isThere || name == "" || dir == "" {
		return errors.New("must be NAME=DIR")
	}
	s.adapters = append(s.adapters, adapter{name: name, dir: dir})
	return nil
}

// checkNames refuses a name that two of the models have.
func (s *settings) checkNames() error {
	seen := map[string]bool{s.name: true}
	for _, a := range s.adapters {
		if seen[a.name] {
			return fmt.Errorf("--adapter %s=%s: there is a model of that name", a.name, a.dir)
		}
		seen[a.name] = true
	}
	return nil
}

// addAdapters loads them beside the model.
func (s *server) addAdapters(adapters []adapter) error {
	for _, a := range adapters {
		var err error
		if a.id, err = s.model.AddAdapter(a.dir, 1); err != nil {
			return fmt.Errorf("--adapter %s=%s: %w", a.name, a.dir, err)
		}
		s.adapters = append(s.adapters, a)
	}
	return nil
}

// adapterOf is the library's id for the model of that name; 0: it is no adapter.
func (s *server) adapterOf(name string) (uint32, error) {
	if name == s.name {
		return 0, nil
	}
	names := "'" + s.name + "'"
	for _, a := range s.adapters {
		if a.name == name {
			return a.id, nil
		}
		names += ", '" + a.name + "'"
	}
	return 0, &apiError{status: http.StatusNotFound, kind: "invalid_request_error", param: "model", code: "model_not_found",
		message: fmt.Sprintf("The model '%s' does not exist; this server has %s.", name, names)}
}

// describe is a model in the protocol's form; an adapter has a parent, as vLLM says it.
func (s *server) describe(name string) any {
	model := map[string]any{"id": name, "object": "model", "created": s.created, "owned_by": "llamabi"}
	if name != s.name {
		model["parent"] = s.name
	}
	return model
}

func (s *server) models(w http.ResponseWriter, _ *http.Request) {
	data := []any{s.describe(s.name)}
	for _, a := range s.adapters {
		data = append(data, s.describe(a.name))
	}
	writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": data})
}

func (s *server) oneModel(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(r.URL.Path, "/v1/models/")
	if _, err := s.adapterOf(name); err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, s.describe(name))
}

// model reads which model a request is for.
func (f *fields) model(s *server, c *common) {
	name, ok := f.body["model"].(string)
	switch {
	case f.body["model"] == nil || ok && name == "":
		f.fail("model", "You must provide a 'model' parameter.")
	case !ok:
		f.fail("model", "'model' must be a string, not %s.", kind(f.body["model"]))
	case f.err == nil:
		var id uint32
		id, f.err = s.adapterOf(name)
		c.model, c.opts = name, append(c.opts, llamabi.Adapter(id))
	}
}
