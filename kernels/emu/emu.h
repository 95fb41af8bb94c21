// The emulated device as C functions: memory, copies, launches. The Rust tests and kernels/tests
// call them.
//
// Build kernels/*.cu (as C++) and emu/*.cpp with
//     -std=c++17 -O2 -fno-strict-aliasing -ffp-contract=off
// kernels/test.sh has the flags for sanitizers.
//
// Several threads may use the device at the same time: a launch runs on the calling thread from
// start to end, and launches share only the list of buffers. Every function that can fail returns 0
// on success. On failure it returns 1 and writes a message to `error`, cut to error_len and always
// terminated.
#ifndef LLAMABI_EMU_H
#define LLAMABI_EMU_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// A device buffer of exactly `size` bytes, aligned to 256 and filled with 0xff (NaN in every type).
// Returns 0 if there is no memory.
uint64_t emu_alloc(size_t size);

// Frees a buffer. Fails if something was written before or after it.
int emu_free(uint64_t address, char *error, size_t error_len);

// Copy and fill memory. Each range [address, address + size) on the device must lie in one buffer,
// at any offset.
int emu_copy_to_device(uint64_t to, const void *from, size_t size, char *error, size_t error_len);
int emu_copy_to_host(void *to, uint64_t from, size_t size, char *error, size_t error_len);
int emu_copy_on_device(uint64_t to, uint64_t from, size_t size, char *error, size_t error_len);
int emu_fill(uint64_t to, uint8_t byte, size_t size, char *error, size_t error_len);

// Writes a stand-in for a CUtensorMap to `map` (128 bytes, aligned to 64). It describes a matrix of
// 16-bit numbers, [rows, columns], with rows `pitch` bytes apart. Its boxes are 64 columns wide and
// swizzled by 128 bytes. Fails where the driver would fail, and also if the matrix does not lie in
// one buffer.
int emu_tensor_map(void *map, uint64_t address, uint64_t columns, uint64_t rows, uint64_t pitch,
    uint32_t box_columns, uint32_t box_rows, char *error, size_t error_len);

// Runs a kernel to its end. `seed` decides the order of blocks, warps and lanes; the same seed
// gives the same order. Fails
// - for an unknown kernel, for parameters or a block of another size than the kernel's, and for a
//   grid or shared memory that no GPU takes;
// - for errors of the kernel: a barrier that not all threads reach, threads that exit before a
//   barrier, lanes that disagree about a warp operation, misaligned vector accesses, writes outside
//   shared or device memory, bank conflicts of ldmatrix.
// After a failure, memory keeps what the kernel wrote.
int emu_launch(const char *kernel, const void *params, size_t params_size, const unsigned grid[3],
    const unsigned block[3], size_t shared_bytes, uint64_t seed, char *error, size_t error_len);

// The same in clusters: `cluster` blocks that are neighbours in grid[0], 1 or 2, run at the same
// time. Only kernels for compute capability 9.0 take more than one.
int emu_launch_clusters(const char *kernel, const void *params, size_t params_size,
    const unsigned grid[3], const unsigned block[3], size_t shared_bytes, unsigned cluster,
    uint64_t seed, char *error, size_t error_len);

// The same for a dependent launch, which may start before the previous one has ended. After
// emu_strict(1), wait_for_last is checked: until the launch's threads have called it, the launch
// sees 0xff in place of everything that launches have written since the last copy or ordinary
// launch. The launch fails if it writes anything before it calls wait_for_last, if none of its
// threads calls it, if it copies by TMA what such launches have written, or if one reads what has
// been written since then, or in this launch, by a load for memory that nobody writes (load_const
// and its like). Strict mode is for one thread at a time, and slow: it compares all memory.
int emu_launch_dependent(const char *kernel, const void *params, size_t params_size,
    const unsigned grid[3], const unsigned block[3], size_t shared_bytes, unsigned cluster,
    uint64_t seed, char *error, size_t error_len);
void emu_strict(int on);

#ifdef __cplusplus
}
#endif

#endif
