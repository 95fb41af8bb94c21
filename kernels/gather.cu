// Puts the columns that each rank of a model has of the logits side by side.
#include "gpu.h"

// No wait_for_last: it is not launched before the previous launch has ended.
KERNEL(gather) {
    start_next();
    const uint32_t rank = blockIdx.z, first = p.firsts[rank];
#ifdef PLANT_WIDEST
    const uint32_t width = p.share_stride;
#else
    const uint32_t width = p.firsts[rank + 1] - first;
#endif
    const float *from = p.shares + ((size_t)rank * p.n_rows + blockIdx.y) * p.share_stride;
    float *to = p.out + (size_t)blockIdx.y * p.out_stride + first;
    // Rows that the host reads begin anywhere, so columns go one by one.
    UNROLL
    for (uint32_t e = 0; e < 4; e++) {
        const uint32_t i = blockIdx.x * 1024 + e * 256 + threadIdx.x;
        if (i < width) to[i] = from[i];
    }
}
