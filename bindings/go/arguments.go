// What options and calls share on their way to C.

package llamabi

// #include <llamabi.h>
import "C"

import (
	"math"
	"runtime"
	"time"
	"unsafe"
)

// number checks that v fits into what C takes, and remembers the first that does not. The sentence
// is C's, with the limits that C has: it cannot say it of a number that it cannot be given.
func number[T C.uint32_t | C.int32_t](err *error, name string, v, least, most int) T {
	if *err == nil {
		switch {
		case v < least:
			*err = invalid("%s is %d, must be at least %d", name, v, least)
		case v > most:
			*err = invalid("%s is %d, must be at most %d", name, v, most)
		}
	}
	return T(v)
}

// milliseconds32 is a duration for C, rounded away from 0: what is not 0 shall not become the
// default.
func milliseconds32(err *error, name string, d time.Duration) C.uint32_t {
	ms := d / time.Millisecond
	switch rest := d % time.Millisecond; {
	case rest > 0:
		ms++
	case rest < 0:
		ms--
	}
	return number[C.uint32_t](err, name, int(ms), 0, math.MaxUint32-1)
}

// apply applies options in order. One that is nil is a mistake of the caller's, not a default.
func apply[O any, F ~func(*O)](opts []F, o *O) error {
	for i, opt := range opts {
		if opt == nil {
			return invalid("option %d of %d is nil", i, len(opts))
		}
		opt(o)
	}
	return nil
}

func cTokens(c []C.int32_t, tokens []int32) []C.int32_t {
	for _, token := range tokens {
		c = append(c, C.int32_t(token))
	}
	return c
}

// pinned is a list for C; NULL where it is empty.
func pinned[T any](list []T, pin *runtime.Pinner) (*T, C.size_t) {
	if len(list) == 0 {
		return nil, 0
	}
	pin.Pin(unsafe.SliceData(list))
	return unsafe.SliceData(list), C.size_t(len(list))
}

// cStrings copies texts into one buffer, pinned by pin, each with a NUL.
func cStrings(texts []string, pin *runtime.Pinner) ([]*C.char, []C.size_t) {
	size := 1 // so that there is something to pin
	for _, s := range texts {
		size += len(s) + 1
	}
	buffer := make([]byte, 0, size)
	pin.Pin(unsafe.SliceData(buffer))
	pointers := make([]*C.char, len(texts))
	lens := make([]C.size_t, len(texts))
	for i, s := range texts {
		start := len(buffer)
		buffer = append(append(buffer, s...), 0)
		pointers[i] = (*C.char)(unsafe.Pointer(&buffer[start]))
		lens[i] = C.size_t(len(s))
	}
	return pointers, lens
}
