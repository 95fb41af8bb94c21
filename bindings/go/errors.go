package llamabi

// #include <llamabi.h>
import "C"

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unsafe"
)

// Status is the kind of an error, for errors.Is: errors.Is(err, llamabi.ErrBusy).
type Status int32

// What a call can fail with. llamabi.h says which function fails with what.
const (
	// ErrCancelled is not a failure: what was generated so far is returned with it.
	ErrCancelled       Status = C.LLAMA_CANCELLED
	ErrInvalidArgument Status = C.LLAMA_E_INVALID_ARGUMENT
	ErrABI             Status = C.LLAMA_E_ABI
	ErrIO              Status = C.LLAMA_E_IO
	ErrFormat          Status = C.LLAMA_E_FORMAT
	ErrUnsupported     Status = C.LLAMA_E_UNSUPPORTED
	ErrNoMemory        Status = C.LLAMA_E_NO_MEMORY
	ErrDevice          Status = C.LLAMA_E_DEVICE
	ErrDeviceMemory    Status = C.LLAMA_E_DEVICE_MEMORY
	ErrTooLong         Status = C.LLAMA_E_TOO_LONG
	ErrBatch           Status = C.LLAMA_E_BATCH
	ErrUTF8            Status = C.LLAMA_E_UTF8
	ErrBusy            Status = C.LLAMA_E_BUSY
	ErrPoisoned        Status = C.LLAMA_E_POISONED
	ErrPeer            Status = C.LLAMA_E_PEER
	ErrInternal        Status = C.LLAMA_E_INTERNAL
)

// ErrClosed is what calls on a closed [Model] fail with.
var ErrClosed = errors.New("llamabi: the model is closed")

// Error says the status in a few words.
func (s Status) Error() string { return C.GoString(C.llama_status_string(C.llama_status(s))) }

// Error is what calls fail with, for errors.As. It also is its Status and, where a context or
// Close ended the call, the context's error or [ErrClosed]; where [Open] found a path missing,
// [fs.ErrNotExist].
type Error struct {
	Status Status
	// Message is the library's sentence: it names the file, tensor or argument and both values.
	Message string
	causes  []error
}

func (e *Error) Error() string {
	s := "llamabi: " + e.Message
	if e.Message == "" {
		s = "llamabi: " + e.Status.Error()
	}
	if e.Status == ErrCancelled && len(e.causes) > 0 { // of others the sentence has it
		s += ": " + e.causes[len(e.causes)-1].Error()
	}
	return s
}

// Unwrap makes errors.Is find the Status and what ended the call.
func (e *Error) Unwrap() []error { return append([]error{e.Status}, e.causes...) }

func invalid(format string, args ...any) error {
	return &Error{Status: ErrInvalidArgument, Message: fmt.Sprintf(format, args...)}
}

// missing is why a checkpoint, its tokenizer or an adapter cannot be found, nil if they can.
// C has a sentence for people; which error of the system's it was is looked up again here.
func missing(dir, tokenizer string, adapters []string) error {
	named := append([]string{dir}, adapters...)
	if tokenizer != "" {
		named = append(named, tokenizer)
	}
	for _, path := range named {
		if _, err := os.Stat(path); err != nil {
			return err
		}
	}
	entries, err := os.ReadDir(dir)
	isGGUF := func(entry os.DirEntry) bool { return strings.HasSuffix(entry.Name(), ".gguf") }
	if err != nil || slices.ContainsFunc(entries, isGGUF) {
		return nil // a file, or a directory with one, that has all there is
	}
	if tokenizer == "" {
		if err := oneOf(dir, "tokenizer.model", "tokenizer.json"); err != nil {
			return err
		}
	}
	return oneOf(dir, "params.json", "config.json")
}

// oneOf is why none of these files is in dir, nil if one is.
func oneOf(dir string, names ...string) (first error) {
	for _, name := range names {
		_, err := os.Stat(filepath.Join(dir, name))
		if err == nil {
			return nil
		}
		if first == nil {
			first = err
		}
	}
	return first
}

// cError is where C writes its sentence.
type cError struct{ c C.llama_error }

func (e *cError) init() *C.llama_error {
	e.c.struct_size = C.sizeof_llama_error
	return &e.c
}

// toError is the error of a status that is not LLAMA_OK; ctx and h (nil: none) may be why.
func (e *cError) toError(ctx context.Context, status C.llama_status, h *handle) *Error {
	err := &Error{Status: Status(status), Message: C.GoString((*C.char)(unsafe.Pointer(&e.c.message)))}
	// Close came between the call's beginning and the library, which knows no such handle any more.
	if err.Status == ErrInvalidArgument && h != nil && h.isClosed() {
		err.Status, err.Message = ErrCancelled, ""
	}
	if err.Status == ErrCancelled {
		if ctx.Err() != nil {
			err.causes = []error{ctx.Err()}
			if cause := context.Cause(ctx); cause != ctx.Err() {
				err.causes = append(err.causes, cause)
			}
		} else if h != nil && h.isClosed() {
			err.causes = []error{ErrClosed}
		}
	}
	return err
}
