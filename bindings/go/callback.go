package llamabi

// #include <stdlib.h>
// #include "callback.h"
import "C"

import (
	"fmt"
	"iter"
	"runtime"
	"runtime/cgo"
	"runtime/debug"
	"sync/atomic"
	"unsafe"
)

// The library calls back only on a thread that is inside one of its functions. Nothing may unwind
// through C: a function that panics or calls runtime.Goexit ends the call, and does so again where
// the call returns.

// ending is how a function of the user's ended if it did not return.
type ending struct {
	panicked any  // the panic's value, with the stack that will be gone when it goes on
	exited   bool // by runtime.Goexit, as t.FailNow does
}

// run calls the user's function of that name. It does so in a coroutine, because Goexit, which no
// deferred function can stop, needs a stack to unwind that has no C on it. Unlike a goroutine
// behind a channel a coroutine costs about a microsecond and stays on the thread, by which the
// library refuses calls from inside a callback, which would wait for themselves. The one thing f
// may not do is leave the thread locked another way (runtime.LockOSThread) than it was.
func (e *ending) run(name string, f func()) {
	next, _ := iter.Pull(func(func(struct{}) bool) {
		returned := false
		defer func() {
			if returned {
				return
			}
			if p := recover(); p != nil {
				e.panicked = fmt.Sprintf("llamabi: the %s function panicked: %v\n%s", name, p, debug.Stack())
			} else {
				e.exited = true
			}
			panic(e) // which next passes on in place of a Goexit
		}()
		f()
		returned = true
	})
	defer func() { _ = recover() }()
	next()
}

// returned says whether none of its functions has ended otherwise.
func (e *ending) returned() bool { return e.panicked == nil && !e.exited }

// goOn lets a panic or Goexit go on.
func (e *ending) goOn() {
	was := *e
	*e = ending{}
	if was.exited {
		runtime.Goexit()
	}
	if was.panicked != nil {
		panic(was.panicked)
	}
}

type progressCall struct {
	ending
	report func(fraction float32) bool
}

//export llamabiGoProgress
func llamabiGoProgress(h C.uintptr_t, fraction C.float) C.int32_t {
	call := cgo.Handle(h).Value().(*progressCall)
	more := false
	call.run("progress", func() { more = call.report(float32(fraction)) })
	if more {
		return 1
	}
	return 0
}

// LogitsRow is what a token of a sequence is drawn from. Its slices are the library's: do not keep
// them.
type LogitsRow struct {
	// Index of the sequence in the call.
	Index int
	// Tokens of the prompt, NPrompt of them, and of the output so far.
	Tokens  []int32
	NPrompt int
	// Logits of the whole vocabulary, after penalties, biases, bans and grammar. They may be changed;
	// one that is not finite makes its token impossible.
	Logits []float32
}

// deciders are the functions of a call that decide.
type deciders struct {
	ending
	logits func(row LogitsRow)
	stop   func(index int, tokens []int32, nPrompt int) bool
}

// put makes them the callbacks of a call. release must be called after the call or stream.
func (d *deciders) put(c *C.llama_generate_options) (release func()) {
	if d.logits == nil && d.stop == nil {
		return func() {}
	}
	// The handle is an integer, and user_data a pointer to be seen by Go's collector.
	h := cgo.NewHandle(d)
	box := (*C.uintptr_t)(C.malloc(C.sizeof_uintptr_t))
	*box = C.uintptr_t(h)
	c.user_data = unsafe.Pointer(box)
	if d.logits != nil {
		c.on_logits = C.llamabi_go_on_logits
	}
	if d.stop != nil {
		c.on_stop = C.llamabi_go_on_stop
	}
	return func() {
		C.free(unsafe.Pointer(box))
		h.Delete()
	}
}

//export llamabiGoLogits
func llamabiGoLogits(h C.uintptr_t, row *C.llama_logits) C.int32_t {
	d := cgo.Handle(h).Value().(*deciders)
	if d.returned() {
		d.run("logits", func() {
			d.logits(LogitsRow{
				Index:   int(row.index),
				Tokens:  unsafe.Slice((*int32)(row.tokens), row.n_tokens),
				NPrompt: int(row.n_prompt),
				Logits:  unsafe.Slice((*float32)(row.logits), row.n_logits),
			})
		})
	}
	if !d.returned() {
		return 0
	}
	return 1
}

//export llamabiGoStop
func llamabiGoStop(h C.uintptr_t, index C.uint32_t, tokens *C.int32_t, n, nPrompt C.size_t) C.int32_t {
	d := cgo.Handle(h).Value().(*deciders)
	ends := false
	if d.returned() {
		d.run("stop", func() {
			ends = d.stop(int(index), unsafe.Slice((*int32)(tokens), n), int(nPrompt))
		})
	}
	// Otherwise every sequence ends with its next token.
	if ends || !d.returned() {
		return 1
	}
	return 0
}

type logSink struct {
	log   func(level LogLevel, line string)
	ended atomic.Pointer[ending]
}

//export llamabiGoLog
func llamabiGoLog(h C.uintptr_t, level C.int32_t, msg *C.char, length C.size_t) {
	sink := cgo.Handle(h).Value().(*logSink)
	var e ending
	e.run("log", func() {
		sink.log(LogLevel(level), string(unsafe.Slice((*byte)(unsafe.Pointer(msg)), length)))
	})
	if !e.returned() {
		sink.ended.CompareAndSwap(nil, &e)
	}
}

// goOn lets the first panic or Goexit of a log function go on, in the call that returns next.
func (s *logSink) goOn() {
	if e := s.ended.Swap(nil); e != nil {
		e.goOn()
	}
}
