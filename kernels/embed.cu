// Embedding: rows of the table, widened to float32.
#include "gpu.h"

template <class W> DEVICE void embed(const EmbedParams &p) {
    int32_t token = p.tokens[blockIdx.x];
    if (token < 0) return;
    const W *from = (const W *)p.table + (size_t)token * p.w_stride;
    float *to = p.x + (size_t)blockIdx.x * p.x_stride;
    for (uint32_t i = threadIdx.x * 8; i < p.dim; i += blockDim.x * 8) {
        float v[8];
#ifdef PLANT_MISALIGNED
        load8(v, from + i + 1);
#else
        load8(v, from + i);
#endif
        UNROLL
        for (int e = 0; e < 8; e++)
            if (i + e < p.dim) to[i + e] = v[e];
    }
}

KERNEL(embed_f32, EmbedParams, 128) { embed<float>(p); }
KERNEL(embed_f16, EmbedParams, 128) { embed<f16>(p); }
KERNEL(embed_bf16, EmbedParams, 128) { embed<bf16>(p); }
