// The emulated device as C functions: memory, copies, launches. For the Rust tests and kernels/tests.
//
// Build kernels/*.cu (as C++) and emu/*.cpp with
//     -std=c++17 -O2 -fno-strict-aliasing -ffp-contract=off
// and see kernels/test.sh for the sanitizers.
//
// Threads may use it at the same time: a launch runs on the calling thread, start to end, and touches
// nothing shared but the list of buffers. Every function that can fail returns 0, or 1 and a sentence
// in `error` (cut to error_len, always terminated).
#ifndef LLAMABI_EMU_H
#define LLAMABI_EMU_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// A device buffer of exactly `size` bytes, aligned to 256, full of 0xff (NaN in every type). 0: no memory.
uint64_t emu_alloc(size_t size);

// Fails where something was written behind the end (or before the beginning) of the buffer.
int emu_free(uint64_t address, char *error, size_t error_len);

// Copies inside one buffer's bounds: [address, address + size) must lie in one buffer, at any offset.
int emu_copy_to_device(uint64_t to, const void *from, size_t size, char *error, size_t error_len);
int emu_copy_to_host(void *to, uint64_t from, size_t size, char *error, size_t error_len);
int emu_copy_on_device(uint64_t to, uint64_t from, size_t size, char *error, size_t error_len);
int emu_fill(uint64_t to, uint8_t byte, size_t size, char *error, size_t error_len);

// What stands for a CUtensorMap of 16-bit numbers, [rows, columns], rows `pitch` bytes apart: 128 bytes at `map`, aligned to 64.
// Its boxes are 64 columns wide, and swizzled by 128 bytes. Fails where the driver would, and where the matrix is not in one
// buffer.
int emu_tensor_map(void *map, uint64_t address, uint64_t columns, uint64_t rows, uint64_t pitch, uint32_t box_columns,
                   uint32_t box_rows, char *error, size_t error_len);

// Run a kernel to its end. `seed` picks the order of blocks, warps and lanes; the same seed, the same
// order. Fails for an unknown kernel, another size of parameters or block than the kernel has, a
// grid or shared size no GPU takes, and for what a kernel does wrong: barriers that not all threads
// reach, exited threads at a barrier, lanes that disagree about a warp operation, misaligned vector
// accesses, shared memory or device memory written out of bounds, bank conflicts of ldmatrix. After a
// failure what the kernel wrote stays written.
int emu_launch(const char *kernel, const void *params, size_t params_size, const unsigned grid[3],
               const unsigned block[3], size_t shared_bytes, uint64_t seed, char *error,
               size_t error_len);

// The same of a launch that may start before the one before it has ended. Where emu_strict(1) was called, it sees nothing
// of what launches before it wrote since the last copy or ordinary launch, but 0xff, until a thread calls
// wait_for_last; it fails if it has written anything before that, or if no thread calls it. Strict is one thread
// at a time, and slow: all memory is compared.
int emu_launch_dependent(const char *kernel, const void *params, size_t params_size, const unsigned grid[3],
                         const unsigned block[3], size_t shared_bytes, uint64_t seed, char *error,
                         size_t error_len);
void emu_strict(int on);

#ifdef __cplusplus
}
#endif

#endif
