package llamabi

// #include <stdlib.h>
// #include "callback.h"
import "C"

import (
	"fmt"
	"runtime/cgo"
	"runtime/debug"
	"sync/atomic"
	"unsafe"
)

// The library calls back only on a thread that is inside one of its functions, so the Go functions
// below run on the goroutine that made the call. A panic must not unwind through C: it is kept, and
// goes on where the call returns.

type progressCall struct {
	report   func(fraction float32) bool
	panicked any
}

//export llamabiGoProgress
func llamabiGoProgress(h C.uintptr_t, fraction C.float) C.int32_t {
	call := cgo.Handle(h).Value().(*progressCall)
	goOn := false
	func() {
		defer func() { call.panicked = keepPanic("progress", recover()) }()
		goOn = call.report(float32(fraction))
	}()
	if goOn {
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
	logits   func(row LogitsRow)
	stop     func(index int, tokens []int32, nPrompt int) bool
	panicked any
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

// repanic lets a panic go on.
func (d *deciders) repanic() {
	if p := d.panicked; p != nil {
		d.panicked = nil
		panic(p)
	}
}

//export llamabiGoLogits
func llamabiGoLogits(h C.uintptr_t, row *C.llama_logits) C.int32_t {
	d := cgo.Handle(h).Value().(*deciders)
	if d.panicked == nil {
		func() {
			defer func() { d.panicked = keepPanic("logits", recover()) }()
			d.logits(LogitsRow{
				Index:   int(row.index),
				Tokens:  unsafe.Slice((*int32)(row.tokens), row.n_tokens),
				NPrompt: int(row.n_prompt),
				Logits:  unsafe.Slice((*float32)(row.logits), row.n_logits),
			})
		}()
	}
	if d.panicked != nil {
		return 0
	}
	return 1
}

//export llamabiGoStop
func llamabiGoStop(h C.uintptr_t, index C.uint32_t, tokens *C.int32_t, n, nPrompt C.size_t) C.int32_t {
	d := cgo.Handle(h).Value().(*deciders)
	ends := false
	if d.panicked == nil {
		func() {
			defer func() { d.panicked = keepPanic("stop", recover()) }()
			ends = d.stop(int(index), unsafe.Slice((*int32)(tokens), n), int(nPrompt))
		}()
	}
	// After a panic every sequence ends with its next token.
	if ends || d.panicked != nil {
		return 1
	}
	return 0
}

type logSink struct {
	log      func(level LogLevel, line string)
	panicked atomic.Pointer[any]
}

//export llamabiGoLog
func llamabiGoLog(h C.uintptr_t, level C.int32_t, msg *C.char, length C.size_t) {
	sink := cgo.Handle(h).Value().(*logSink)
	defer func() {
		if p := keepPanic("log", recover()); p != nil {
			sink.panicked.CompareAndSwap(nil, &p)
		}
	}()
	sink.log(LogLevel(level), string(unsafe.Slice((*byte)(unsafe.Pointer(msg)), length)))
}

// repanic lets the first panic of a log function go on, in the call that returns next.
func (s *logSink) repanic() {
	if p := s.panicked.Swap(nil); p != nil {
		panic(*p)
	}
}

// keepPanic adds the stack that will be gone when the panic goes on.
func keepPanic(function string, p any) any {
	if p == nil {
		return nil
	}
	return fmt.Sprintf("llamabi: the %s function panicked: %v\n%s", function, p, debug.Stack())
}
