// The sum of what the ranks of a model have computed, read from the memory of their devices: one
// launch where reduce.cu needs a library that moves the parts before it. The additions are the same.
//
// One-shot sums of this kind are known from TensorRT-LLM and vLLM (their custom all-reduce). Ours
// needs no barrier at its end, because parts take turns (params.h).
#include "gpu.h"

// How often a thread looks at the flags before it looks at the host's word again, which is far away.
#define LOOKS 256

// Tells the ranks that this launch has begun, so that what this rank computed before it can be read,
// and waits for theirs. Each block does so, and waits for any block of the others, not for a certain
// one: the devices run blocks in orders of their own, and perhaps not all of them at the same time.
DEVICE void meet(const ReducePeersParams &p, uint32_t turn) {
    const uint32_t rank = threadIdx.x;
    if (rank < p.ranks) store_released(p.turns[rank] + p.rank, turn);
    // No thread may wait before the others of its warp have told their ranks, which might wait for
    // that.
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

// The sum of four numbers.
DEVICE void add_up(const ReducePeersParams &p, uint64_t i) {
    const auto part = [&](float *v, uint32_t rank) {
#ifdef PLANT_OTHER_ORDER
        rank = p.ranks - 1 - rank;
#endif
        const Words4 w = load_fenced16(p.parts[rank] + i);
        UNROLL
        for (int e = 0; e < 4; e++) v[e] = as_float(w.w[e]);
    };
    float sum[4], next[4];
    part(sum, 0);
    UNROLL_BY(4)
    for (uint32_t rank = 1; rank < p.ranks; rank++) {
        part(next, rank);
        UNROLL
        for (int e = 0; e < 4; e++) sum[e] += next[e];
    }
    if (p.adds) {
        fresh4(next, p.x + i);
        UNROLL
        for (int e = 0; e < 4; e++) sum[e] = next[e] + sum[e];
    }
    store16(p.x + i, words_of(sum));
#ifndef PLANT_PART_LEFT
    store16(p.next + i, Words4{});
#endif
}

// No wait_for_last: it is not launched before the previous launch has ended.
KERNEL(reduce_peers) {
    start_next();
    const uint32_t turn = p.turn[blockIdx.x] + 1;
    const uint64_t first = (uint64_t)blockIdx.x * blockDim.x * 4;
    if (first < p.n)
        meet(p, turn);
    else
        block_sync();
    // All threads of the block have read it.
    if (threadIdx.x == 0) p.turn[blockIdx.x] = turn;
    for (uint64_t i = first + threadIdx.x * 4; i < p.n; i += (uint64_t)gridDim.x * blockDim.x * 4)
        add_up(p, i);
}
