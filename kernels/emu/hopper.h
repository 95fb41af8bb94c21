// The implementation of kernels/hopper.h for other compilers than nvcc: barriers at which copies
// arrive, copies of boxes, warpgroup products.
//
// Copies and products happen later than they are requested. A copy lands when the scheduler picks
// it, in any order, and in each block of a cluster at another time; its destination is NaN until
// then. A product is computed when a thread waits for it; its sums are NaN until then.
//
// Shared memory exists twice: as threads see it, and as copies and products see it. async_fence
// transfers from the first to the second what the calling thread has written with store_operand.
// Other writes are never transferred, because the emulator does not know which thread made them.
#ifndef LLAMABI_EMU_HOPPER_H
#define LLAMABI_EMU_HOPPER_H

#include "device.h"

#include "../params.h"

namespace emu {

void async_init(const void *barrier, uint32_t count, int line);
// Here and below, `barrier` lies in the memory of the running block. The functions mean the barrier
// at the same place in the memory of block `rank` of the cluster.
void async_arrive(const void *barrier, uint32_t bytes, unsigned rank, int line);
void async_wait(const void *barrier, uint32_t parity, int line);
void async_fence(int line);
// Records that this thread has stored bytes that products will read.
void operand_stored(const void *, uint32_t bytes);
// Checks a copy and returns its number of bytes.
uint32_t box_begins(
    const void *to, const TensorMap &, const void *barrier, unsigned rank, int line);
void box_copies(const void *to, const TensorMap &, int32_t column, int32_t row, const void *barrier,
    unsigned rank);
unsigned cluster_blocks();
unsigned cluster_rank();
// The same place in the shared memory of another block of the cluster.
void *at_rank(const void *, unsigned rank, int line);
void cluster_fence(int line);
void cluster_sync(int line);
void wgmma_begin(int line);
// The operands of a product. `registers`: operand A, if it is in registers; if null, `a` is its
// descriptor. `fresh`: the sums start from zero.
struct Factors {
    const uint32_t *registers;
    uint64_t a, b;
    bool transposed, fresh;
};
void wgmma(float *d, unsigned n, const Factors &, Op, int line);
void wgmma_commit(int line);
void wgmma_wait(unsigned left, int line);
// For TSan, lists what the products that this thread has just waited for have read: each call
// returns the address of the next 16 bytes, and null at the end.
const void *wgmma_read();
void wgmma_waited(int line);
void set_registers(unsigned count, int line);

} // namespace emu

DEVICE uint32_t shared_address(const void *p) {
    return (uint32_t)((const unsigned char *)p - emu::view().shared);
}

DEVICE void touch_barrier(const AsyncBarrier *b) { (void)*(volatile const uint64_t *)&b->word; }
DEVICE void barrier_init(AsyncBarrier *b, uint32_t count, EMU_LINE) {
    *(volatile uint64_t *)&b->word = count;
    emu::async_init(b, count, line);
}
DEVICE void barrier_arrive(AsyncBarrier *b, EMU_LINE) {
    touch_barrier(b);
    emu::async_arrive(b, 0, emu::cluster_rank(), line);
}
DEVICE void barrier_arrive_at(AsyncBarrier *b, uint32_t rank, EMU_LINE) {
    touch_barrier((const AsyncBarrier *)emu::at_rank(b, rank, line));
    emu::async_arrive(b, 0, rank, line);
}
DEVICE uint32_t lane_of_warp() { return threadIdx.x % 32; }
DEVICE void barrier_expect(AsyncBarrier *b, uint32_t bytes, EMU_LINE) {
    touch_barrier(b);
    emu::async_arrive(b, bytes, emu::cluster_rank(), line);
}
DEVICE void barrier_wait(AsyncBarrier *b, uint32_t parity, EMU_LINE) {
    touch_barrier(b);
    emu::async_wait(b, parity, line);
}
DEVICE void async_fence(EMU_LINE) { emu::async_fence(line); }
DEVICE uint32_t cluster_blocks() { return emu::cluster_blocks(); }
DEVICE uint32_t cluster_rank() { return emu::cluster_rank(); }
DEVICE void cluster_fence(EMU_LINE) { emu::cluster_fence(line); }
DEVICE void cluster_sync(EMU_LINE) { emu::cluster_sync(line); }
template <class W> DEVICE void store_operand(void *p, W v, EMU_LINE) {
    if ((uintptr_t)p % sizeof(W))
        emu::fail(line, "%d-byte store to an address that is no multiple of that", (int)sizeof(W));
    *(W *)p = v;
    emu::operand_stored(p, sizeof(W));
}

DEVICE void prefetch_map(const TensorMap &) {}
DEVICE void copy_box(
    void *to, const TensorMap &map, uint32_t column, uint32_t row, AsyncBarrier *b, EMU_LINE) {
    touch_barrier(b);
    const unsigned rank = emu::cluster_rank();
    const uint32_t bytes = emu::box_begins(to, map, b, rank, line);
    for (uint32_t i = 0; i < bytes / 8; i++) ((volatile uint64_t *)to)[i] = ~0ull;
    emu::box_copies(to, map, (int32_t)column, (int32_t)row, b, rank);
}
DEVICE void copy_box_to_both(
    void *to, const TensorMap &map, uint32_t column, uint32_t row, AsyncBarrier *b, EMU_LINE) {
    for (unsigned rank = 0; rank < 2; rank++) {
        touch_barrier((const AsyncBarrier *)emu::at_rank(b, rank, line));
        const uint32_t bytes = emu::box_begins(to, map, b, rank, line);
        volatile uint64_t *const there = (volatile uint64_t *)emu::at_rank(to, rank, line);
        for (uint32_t i = 0; i < bytes / 8; i++) there[i] = ~0ull;
        emu::box_copies(to, map, (int32_t)column, (int32_t)row, b, rank);
    }
}

DEVICE void wgmma_begin(EMU_LINE) { emu::wgmma_begin(line); }
DEVICE emu::Op wgmma_type(bf16) { return emu::Op::MmaBf16; }
DEVICE emu::Op wgmma_type(f16) { return emu::Op::MmaF16; }
template <int N, class T> DEVICE void wgmma(float (&d)[N], uint64_t a, uint64_t b, T t, EMU_LINE) {
    emu::wgmma(d, N, {nullptr, a, b, false, false}, wgmma_type(t), line);
}
template <int N, class T>
DEVICE void wgmma_new(float (&d)[N], uint64_t a, uint64_t b, T t, EMU_LINE) {
    emu::wgmma(d, N, {nullptr, a, b, false, true}, wgmma_type(t), line);
}
template <int N, class T>
DEVICE void wgmma(float (&d)[N], const uint32_t (&a)[4], uint64_t b, T t, EMU_LINE) {
    emu::wgmma(d, N, {a, 0, b, true, false}, wgmma_type(t), line);
}
template <int N, class T>
DEVICE void wgmma_registers(float (&d)[N], const uint32_t (&a)[4], uint64_t b, T t, EMU_LINE) {
    emu::wgmma(d, N, {a, 0, b, false, false}, wgmma_type(t), line);
}
DEVICE void wgmma_commit(EMU_LINE) { emu::wgmma_commit(line); }
template <int LEFT> DEVICE void wgmma_wait(EMU_LINE) {
    emu::wgmma_wait(LEFT, line);
    while (const void *p = emu::wgmma_read()) (void)*(volatile const uint64_t *)p;
    emu::wgmma_waited(line);
}
template <int LEFT, int N> DEVICE void wgmma_wait(float (&)[N], EMU_LINE) {
    wgmma_wait<LEFT>(line);
}
template <int N> DEVICE void wgmma_finish(float (&)[N], EMU_LINE) { wgmma_wait<0>(line); }

template <int COUNT> DEVICE void give_registers(EMU_LINE) { emu::set_registers(COUNT, line); }
template <int COUNT> DEVICE void take_registers(EMU_LINE) { emu::set_registers(COUNT, line); }

#define HOPPER

#endif
