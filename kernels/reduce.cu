// The sum of what the ranks of a model have computed, in the order of the ranks, so that its bits
// depend on nothing but their number. Sums of a library that moves the parts would depend on the
// length of the message and on how the devices are connected.
#include "gpu.h"

// No wait_for_last: it is not launched before the previous launch has ended.
KERNEL(reduce) {
    start_next();
    const uint64_t i = ((uint64_t)blockIdx.x * blockDim.x + threadIdx.x) * 4;
    if (i >= p.n) return;
    const auto part = [&](uint32_t rank) {
#ifdef PLANT_OTHER_ORDER
        rank = p.ranks - 1 - rank;
#endif
        return p.parts + rank * p.n + i;
    };
    float sum[4], next[4];
    fresh4(sum, part(0));
    UNROLL_BY(4)
    for (uint32_t rank = 1; rank < p.ranks; rank++) {
        fresh4(next, part(rank));
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
    store16(p.own + i, Words4{});
#endif
}
