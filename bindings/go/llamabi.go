// Package llamabi runs Llama-family language models inside a Go program, through the shared library
// libllamabi.
//
// A [Model] is opened once and used by any number of goroutines: calls that run at the same time
// share batches and do not change each other's results. Every call takes a context; when it ends,
// the call stops within one step of the model and returns what there is by then, with an error that
// is both [ErrCancelled] and the context's.
//
// The package is a thin layer over the C API: what an option, a figure or an error means is said in
// llamabi.h. cgo finds the library with pkg-config; README.md has the three commands.
package llamabi

/*
#cgo pkg-config: llamabi
#include "callback.h"
*/
import "C"

import (
	"context"
	"fmt"
	"runtime"
	"runtime/cgo"
	"sync"
	"unsafe"
)

// Model is weights, tokenizer and KV cache, ready to generate. All methods may be called from any
// goroutine. The zero Model, and a nil one, is closed.
type Model struct {
	*handle
	cleanup runtime.Cleanup
}

// Open loads the model in dir: Meta's form (params.json, consolidated.NN.pth), Hugging Face's
// (config.json, *.safetensors or pytorch_model.bin) or GGUF, where dir may be the file. The
// tokenizer is the model's own unless [WithTokenizer] says otherwise. It stops at the next tensor
// once ctx is done.
func Open(ctx context.Context, dir string, opts ...Option) (*Model, error) {
	if got := C.llama_abi_version(); got != C.LLAMABI_ABI_VERSION {
		return nil, &Error{Status: ErrABI, Message: fmt.Sprintf(
			"libllamabi %s has ABI version %d, this program was compiled for ABI version %d (%s): install that one, or compile again",
			Version(), got, uint(C.LLAMABI_ABI_VERSION), C.LLAMABI_VERSION)}
	}
	var o buildOptions
	C.llama_build_options_init(&o.c, C.sizeof_llama_build_options, C.LLAMABI_ABI_VERSION)
	if err := apply(opts, &o); err != nil {
		return nil, err
	}
	ckptDir := o.path("ckpt_dir", dir)
	var tokenizer *C.char
	if o.tokenizer != "" {
		tokenizer = o.path("tokenizer_path", o.tokenizer)
	}
	var pin runtime.Pinner
	defer pin.Unpin()
	if o.draft != "" {
		o.c.draft_dir = o.path("draft_dir", o.draft)
		pin.Pin(o.c.draft_dir)
	}
	if o.medusa != "" {
		o.c.medusa_dir = o.path("medusa_dir", o.medusa)
		pin.Pin(o.c.medusa_dir)
	}
	if o.template != "" {
		o.c.chat_template = o.path("chat_template", o.template)
		pin.Pin(o.c.chat_template)
	}
	if len(o.adapters) > 0 {
		for _, dir := range o.adapters {
			o.path("adapters", dir) // for its check
		}
		dirs, _ := cStrings(o.adapters, &pin)
		pin.Pin(unsafe.SliceData(dirs))
		pin.Pin(unsafe.SliceData(o.scales))
		o.c.adapters = unsafe.SliceData(dirs)
		o.c.adapter_scales = (*C.float)(unsafe.SliceData(o.scales))
		o.c.n_adapters = C.size_t(len(dirs))
	}
	if len(o.devices) > 0 {
		pin.Pin(unsafe.SliceData(o.devices))
		o.c.devices = unsafe.SliceData(o.devices)
		o.c.n_devices = C.uint32_t(len(o.devices))
	}
	if o.err != nil {
		return nil, o.err
	}
	flag, release, err := cancelFlag(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	o.c.cancel = flag

	var progress progressCall
	var progressHandle C.uintptr_t
	if o.progress != nil {
		progress.report = o.progress
		h := cgo.NewHandle(&progress)
		defer h.Delete()
		progressHandle = C.uintptr_t(h)
	}
	m := &Model{handle: &handle{}}
	if o.log != nil {
		m.sink.log = o.log
		m.logHandle = cgo.NewHandle(&m.sink)
	}
	var cerr cError
	status := C.llamabi_go_build(ckptDir, tokenizer, &o.c, progressHandle, C.uintptr_t(m.logHandle), &m.c, cerr.init())
	if status != C.LLAMA_OK {
		m.handle.close()
		m.sink.goOn()
		progress.goOn()
		err := cerr.toError(ctx, status, nil)
		if err.Status == ErrIO {
			if cause := missing(dir, o.tokenizer, o.adapters); cause != nil {
				err.causes = append(err.causes, cause)
			}
		}
		return nil, err
	}
	// A net for models that nobody closed; the handle does not refer to the Model.
	m.cleanup = runtime.AddCleanup(m, (*handle).close, m.handle)
	m.sink.goOn()
	return m, nil
}

// Close cancels the calls and streams that have begun, which end with [ErrCancelled] and what they
// have; the last of them drops the weights. Close does not wait for them, and may be called again,
// at any time, from anywhere. What is called afterwards fails with [ErrClosed].
func (m *Model) Close() error {
	if m != nil && m.handle != nil {
		m.cleanup.Stop()
		m.handle.close()
	}
	return nil
}

// handle owns the C handle and counts the calls inside it: the log function may be called until
// llama_destroy and all of them have returned.
type handle struct {
	c         *C.llama_t // an opaque number to C, and no pointer to the garbage collector
	logHandle cgo.Handle // of &sink; 0: no log
	sink      logSink

	mu      sync.Mutex
	closed  bool
	calls   int
	borrows int // calls that read memory of the library's, which has to wait for them
}

func (h *handle) close() {
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		return
	}
	h.closed = true
	h.calls++
	borrowed := h.borrows > 0
	h.mu.Unlock()
	if !borrowed {
		C.llama_destroy(h.c)
	}
	h.leave()
}

// borrow begins, inside a call, a look at memory that llama_destroy frees: Close leaves the handle
// to the last that gives back.
func (h *handle) borrow() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return ErrClosed
	}
	h.borrows++
	return nil
}

func (h *handle) giveBack() {
	h.mu.Lock()
	h.borrows--
	last := h.closed && h.borrows == 0
	h.mu.Unlock()
	if last {
		C.llama_destroy(h.c)
	}
}

// enter begins a call. The handle's C number is good until leave, and refused by C, not
// dereferenced, after close.
func (h *handle) enter() error {
	if h == nil {
		return ErrClosed
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return ErrClosed
	}
	h.calls++
	return nil
}

func (h *handle) leave() {
	h.mu.Lock()
	h.calls--
	last := h.closed && h.calls == 0
	h.mu.Unlock()
	if last && h.logHandle != 0 {
		h.logHandle.Delete()
	}
}

func (h *handle) isClosed() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.closed
}

// call begins a call on m; the function it returns ends it. m itself is kept alive in between, or
// the clean-up could close it.
func (m *Model) call() (end func(), err error) {
	if m == nil { // where the error of Open went unread
		return nil, ErrClosed
	}
	if err := m.enter(); err != nil {
		return nil, err
	}
	return func() {
		m.leave()
		runtime.KeepAlive(m)
		m.sink.goOn()
	}, nil
}

// cancelFlag makes a flag that is triggered when ctx is done. release frees it, and must be called
// after everything that was given the flag. A context that can never be done has no flag.
func cancelFlag(ctx context.Context) (flag *C.llama_cancel_t, release func(), err error) {
	if ctx == nil {
		return nil, nil, invalid("ctx is nil")
	}
	if ctx.Done() == nil {
		return nil, func() {}, nil
	}
	flag = C.llama_cancel_new()
	if flag == nil {
		return nil, nil, &Error{Status: ErrNoMemory, Message: "there are too many cancel flags"}
	}
	if ctx.Err() != nil { // do not leave it to the goroutine that AfterFunc starts
		C.llama_cancel_trigger(flag)
	}
	triggered := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		C.llama_cancel_trigger(flag)
		close(triggered)
	})
	return flag, func() {
		if !stop() {
			<-triggered
		}
		C.llama_cancel_free(flag)
	}, nil
}

// Version is the version of the library that was loaded.
func Version() string { return C.GoString(C.llama_version()) }

// ABIVersion is the number of the binary interface of the library that was loaded.
func ABIVersion() int { return int(C.llama_abi_version()) }
