// The end of a Medusa head's residual block: adds the SiLU of the product to the hidden state. The
// product adds to `t`, so `t` is left at zero for the next one.
#include "gpu.h"

// No wait_for_last: it is not launched before the previous launch has ended.
KERNEL(silu_add) {
    start_next();
    const size_t row = (size_t)blockIdx.x * p.stride;
    for (uint32_t i = threadIdx.x; i < p.width; i += blockDim.x) {
        p.out[row + i] = p.h[row + i] + silu(p.t[row + i]);
#ifndef PLANT_SUMS_LEFT
        p.t[row + i] = 0;
#endif
    }
}
