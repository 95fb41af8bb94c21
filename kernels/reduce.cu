// The sum of what the ranks of a model have computed, in the order of the ranks, so that its bits
// depend on nothing but their number. Sums of a library that moves the parts would depend on the
// length of the message and on how the devices are connected.
//
// reduce adds parts that something else has moved to this device. reduce_peers reads them from the
// memory of the other devices, in one launch. One-shot sums of this kind are known from
// TensorRT-LLM and vLLM (their custom all-reduce). Ours needs no barrier at its end, because parts
// take turns (params.h).
#include "gpu.h"

// Sums numbers i .. i + 3 of all parts; `part` loads them. With `adds`, adds the sums to the same
// numbers of x, otherwise stores the sums there. Sets numbers i .. i + 3 of `cleared` to zero.
template <class Part> DEVICE void add_parts(
    float *x, float *cleared, uint64_t i, uint32_t ranks, uint32_t adds, const Part &part) {
    const auto load = [&](uint32_t rank) {
#ifdef PLANT_OTHER_ORDER
        rank = ranks - 1 - rank;
#endif
        return part(rank);
    };
    float sum[4], before[4];
    const Words4 first = load(0);
    UNROLL
    for (int e = 0; e < 4; e++) sum[e] = as_float(first.w[e]);
    UNROLL_BY(4)
    for (uint32_t rank = 1; rank < ranks; rank++) {
        const Words4 next = load(rank);
        UNROLL
        for (int e = 0; e < 4; e++) sum[e] += as_float(next.w[e]);
    }
    if (adds) {
        fresh4(before, x + i);
        UNROLL
        for (int e = 0; e < 4; e++) sum[e] = before[e] + sum[e];
    }
    store16(x + i, words_of(sum));
#ifndef PLANT_PART_LEFT
    store16(cleared + i, Words4{});
#endif
}

DEVICE void add_gathered(const ReduceParams &p) {
    start_next();
    const uint64_t i = ((uint64_t)blockIdx.x * blockDim.x + threadIdx.x) * 4;
    if (i >= p.n) return;
    add_parts(p.x, p.own, i, p.ranks, p.adds,
        [&](uint32_t rank) { return load_fresh(p.parts + rank * p.n + i); });
}

// How often a thread looks at the flags before it looks at the host's word again, which is far
// away.
#define LOOKS 256

// Tells the other ranks that this launch has begun, so that they may read what this rank computed
// before it. Then waits until all other ranks have told the same. Each block that adds numbers does
// so. It waits for any block of each other rank, not for a certain one: the devices run blocks in
// orders of their own, and perhaps not all blocks at the same time.
DEVICE void meet(const ReducePeersParams &p, uint32_t turn) {
    const uint32_t rank = threadIdx.x;
    if (rank < p.ranks) store_released(p.turns[rank] + p.rank, turn);
    // No thread may wait before the other threads of its warp have told their ranks: those ranks
    // might be waiting for it.
    warp_sync();
#ifndef PLANT_NO_WAIT_PEERS
    const uint32_t *told = p.turns[p.rank] + rank;
    // The difference, because turns begin at 0 again after a few days.
    for (uint32_t looks = 1; rank < p.ranks && (int32_t)(load_acquired(told) - turn) < 0; looks++) {
        if (looks % LOOKS == 0 && load_acquired(p.given_up)) break;
        let_others_run();
    }
#endif
#ifndef PLANT_NO_BARRIER_PEERS
    block_sync();
#endif
}

DEVICE void add_peers(const ReducePeersParams &p) {
    start_next();
    const uint32_t turn = p.turn[blockIdx.x] + 1;
    const uint64_t first = (uint64_t)blockIdx.x * blockDim.x * 4;
    if (first < p.n)
        meet(p, turn);
    else
        block_sync();
    // All threads of the block have read p.turn by now.
    if (threadIdx.x == 0) p.turn[blockIdx.x] = turn;
    for (uint64_t i = first + threadIdx.x * 4; i < p.n; i += (uint64_t)gridDim.x * blockDim.x * 4)
        add_parts(p.x, p.next, i, p.ranks, p.adds,
            [&](uint32_t rank) { return load_fenced16(p.parts[rank] + i); });
}

// There is no wait_for_last, because these kernels are not launched before the previous launch has
// ended.
KERNEL(reduce) { add_gathered(p); }
KERNEL(reduce_peers) { add_peers(p); }
