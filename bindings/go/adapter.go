package llamabi

// #include <llamabi.h>
import "C"

import (
	"context"
	"os"
	"strings"
	"unsafe"
)

// AddAdapter loads the LoRA adapter in dir, weighted by scale, for calls to choose with [Adapter],
// and gives its id. Calls run on meanwhile, and different adapters share steps.
func (m *Model) AddAdapter(dir string, scale float32) (id uint32, err error) {
	if strings.ContainsRune(dir, 0) {
		return 0, invalid("dir %q contains a NUL", dir)
	}
	end, err := m.call()
	if err != nil {
		return 0, err
	}
	defer end()
	var cid C.uint32_t
	var cerr cError
	path := append([]byte(dir), 0)
	status := C.llama_adapter_add(m.c, (*C.char)(unsafe.Pointer(unsafe.SliceData(path))), C.float(scale), &cid, cerr.init())
	if status != C.LLAMA_OK {
		err := cerr.toError(context.Background(), status, m.handle)
		if _, cause := os.Stat(dir); err.Status == ErrIO && cause != nil {
			err.causes = append(err.causes, cause)
		}
		return 0, err
	}
	return uint32(cid), nil
}

// DropAdapter takes an adapter back: no new call may name it, and its memory is free when the last
// call that runs with it has ended.
func (m *Model) DropAdapter(id uint32) error {
	end, err := m.call()
	if err != nil {
		return err
	}
	defer end()
	var cerr cError
	if status := C.llama_adapter_drop(m.c, C.uint32_t(id), cerr.init()); status != C.LLAMA_OK {
		return cerr.toError(context.Background(), status, m.handle)
	}
	return nil
}
