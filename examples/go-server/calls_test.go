package main

import (
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"testing"
)

// callRow is an answer's text in a form, of a request with tools, and what it is.
type callRow struct {
	About, Form   string
	Tools         []string
	Text, Content string
	Calls         [][2]string
}

func (row callRow) read(parts ...string) (content string, calls [][2]string) {
	reader := newCallReader(forms[row.Form], row.Tools)
	calls = [][2]string{}
	add := func(text string, more []call) {
		content += text
		for _, c := range more {
			calls = append(calls, [2]string{c.name, c.arguments})
		}
	}
	for _, part := range parts {
		add(reader.push(part))
	}
	add(reader.end())
	return content, calls
}

// The table is node-server's, too (tests/services/calls.mjs).
func TestToolCallsAreFoundHoweverTheTextIsCut(t *testing.T) {
	file, err := os.ReadFile("../../tests/services/calls.json")
	if err != nil {
		t.Fatal(err)
	}
	var table []callRow
	if err := json.Unmarshal(file, &table); err != nil || len(table) == 0 {
		t.Fatal(err, len(table))
	}
	for _, row := range table {
		check := func(parts ...string) {
			content, calls := row.read(parts...)
			if content != row.Content || !reflect.DeepEqual(calls, row.Calls) {
				t.Errorf("%s: %s: of %q are made %q and %q, not %q and %q", row.Form, row.About, parts, content, calls, row.Content, row.Calls)
			}
		}
		check(row.Text)
		check(strings.Split(row.Text, "")...)
		for i := range row.Text {
			check(row.Text[:i], row.Text[i:])
		}
	}
}
