// Prepares the activations for a product of many rows: gathers the rows, applies the norm, and
// rounds to the type of the product's weights.
#include "gpu.h"

template <class W> DEVICE void prepare(const PrepareParams &p) {
    SHARED(shared);
    float *parts = (float *)shared; // [8]: one sum of squares for each warp
    const uint32_t t = threadIdx.x, padded = (p.width + 31) / 32 * 32;
    start_next();
    wait_for_last();
    const int32_t id = p.rows[blockIdx.x];
    const float *x = p.x + (size_t)(id < 0 ? 0 : id) * p.x_stride;
    W *out = (W *)p.out + (size_t)blockIdx.x * p.out_stride;
    float scale = 1;
    if (id >= 0) {
        float share = squares_of(x, p.width);
        if (t % 32 == 0) parts[t / 32] = share;
#ifdef PLANT_DIVERGENT_BARRIER
        if (t < 128)
            block_sync();
        else
#endif
#ifndef PLANT_NO_BARRIER
            block_sync();
#endif
        scale = norm_scale(parts, p.width, p.eps);
    }
    for (uint32_t i = t; i < padded; i += 256) {
        from_float(out[permuted_of(i, p.permuted)],
            id >= 0 && i < p.width ? bounded(x[i] * scale * p.norm[i], p.out_type) : 0);
    }
}

KERNEL(prepare_f32) { prepare<float>(p); }
KERNEL(prepare_f16) { prepare<f16>(p); }
KERNEL(prepare_bf16) { prepare<bf16>(p); }
