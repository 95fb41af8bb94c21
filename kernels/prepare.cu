// Prepares the activations for a product of many rows: gathers the rows, applies the norm, and
// rounds to the type of the product's weights.
#include "gpu.h"

template <class W> DEVICE void prepare(const PrepareParams &p) {
    SHARED(shared);
    float *parts = (float *)shared; // [8]: one sum of squares for each warp
    const uint32_t t = threadIdx.x, padded = (p.width + 31) / 32 * 32;
    start_next();
    using Part = RowPart<4>;
    Part norm, x;
    norm.load_norm(p.norm, 0, p.width);
    wait_for_last();
    const int32_t id = p.rows[blockIdx.x];
    const float *row = p.x + (size_t)(id < 0 ? 0 : id) * p.x_stride;
    W *out = (W *)p.out + (size_t)blockIdx.x * p.out_stride;
    x.load_row(row, 0, p.width);
    float scale = 1;
    if (id >= 0) {
        float share = squares_of(x, row, p.width);
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
    for (uint32_t first = 0; first < padded; first += Part::SPAN) {
        if (first > 0) {
            x.load_row(row, first, p.width);
            norm.load_norm(p.norm, first, p.width);
        }
        UNROLL
        for (uint32_t i = 0; i < Part::LOADS; i++) {
            const uint32_t column = Part::column(first, i);
            if (column >= padded) break;
            float v[4];
            UNROLL
            for (uint32_t e = 0; e < 4; e++)
                v[e] = id >= 0 ? bounded(x.v[i][e] * scale * norm.v[i][e], p.out_type) : 0;
            UNROLL
            for (uint32_t e = 0; e < 4; e += 2)
                store_pair(out + permuted_of(column + e, p.permuted), v[e], v[e + 1]);
        }
    }
}

KERNEL(prepare_f32) { prepare<float>(p); }
KERNEL(prepare_f16) { prepare<f16>(p); }
KERNEL(prepare_bf16) { prepare<bf16>(p); }
