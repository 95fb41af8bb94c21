package main

import (
	"context"
	"slices"
	"sync"

	"llamabi"
)

// mostGrammars are kept, those that were used last.
const mostGrammars = 64

// grammars are languages that were asked for, compiled once.
type grammars struct {
	mu   sync.Mutex
	kept []*compiled // the last used in front
}

// compiled is a grammar, once done is closed, or why there is none.
type compiled struct {
	kind    grammarKind
	source  string
	done    chan struct{}
	grammar *llamabi.Grammar
	err     error
	users   int  // requests that have it
	dropped bool // and is closed after the last of them
}

// take is the grammar of a constraint, until release is called.
func (g *grammars) take(ctx context.Context, model *llamabi.Model, c *constraint) (grammar *llamabi.Grammar, release func(), err error) {
	entry, isNew := g.find(c)
	release = func() { g.release(entry) }
	if isNew {
		entry.grammar, entry.err = c.compile(model)
		if entry.err != nil {
			g.forget(entry)
		}
		close(entry.done)
	}
	select {
	case <-entry.done:
		err = entry.err
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		release()
		return nil, nil, err
	}
	return entry.grammar, release, nil
}

// find is an entry with one more user; a new one has to be compiled.
func (g *grammars) find(c *constraint) (entry *compiled, isNew bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	at := slices.IndexFunc(g.kept, func(one *compiled) bool { return one.kind == c.kind && one.source == c.source })
	if isNew = at < 0; isNew {
		entry = &compiled{kind: c.kind, source: c.source, done: make(chan struct{})}
	} else {
		entry = g.kept[at]
		g.kept = slices.Delete(g.kept, at, at+1)
	}
	entry.users++
	g.kept = slices.Insert(g.kept, 0, entry)
	if len(g.kept) > mostGrammars {
		g.drop(mostGrammars)
	}
	return entry, isNew
}

// forget leaves out an entry that is no grammar: whoever asks again hears why again.
func (g *grammars) forget(entry *compiled) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if at := slices.Index(g.kept, entry); at >= 0 {
		g.drop(at)
	}
}

func (g *grammars) drop(at int) {
	entry := g.kept[at]
	g.kept = slices.Delete(g.kept, at, at+1)
	entry.dropped = true
	entry.close()
}

func (g *grammars) release(entry *compiled) {
	g.mu.Lock()
	defer g.mu.Unlock()
	entry.users--
	entry.close()
}

// close frees what nobody has and nobody can get any more. The garbage collector would, too, but
// knows nothing of how large it is.
func (c *compiled) close() {
	if c.dropped && c.users == 0 && c.grammar != nil {
		c.grammar.Close()
	}
}
