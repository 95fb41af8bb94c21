package llamabi

// #include <llamabi.h>
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
