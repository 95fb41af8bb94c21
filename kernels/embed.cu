// Embedding: copies rows of the table and widens them to float32.
#include "gpu.h"

// The row of the table that this block copies, or ~0 if there is none. A token of another rank
// gives zeros.
DEVICE uint32_t row_to_copy(const EmbedParams &p, float *to) {
    const int32_t token = p.tokens[blockIdx.x];
    if (token < 0) return ~0u;
    const uint32_t row = (uint32_t)token - p.first;
#ifdef PLANT_FOREIGN
    if (row <= p.n) return row;
#else
    if (row < p.n) return row;
#endif
    for (uint32_t i = threadIdx.x; i < p.dim; i += blockDim.x) to[i] = 0;
    return ~0u;
}

template <class W> DEVICE void embed(const EmbedParams &p) {
    start_next();
    float *to = p.x + (size_t)blockIdx.x * p.x_stride;
    const uint32_t row = row_to_copy(p, to);
    if (row == ~0u) return;
    const W *from = (const W *)p.table + (size_t)row * p.w_stride;
    for (uint32_t i = threadIdx.x * 8; i < p.dim; i += blockDim.x * 8) {
        float v[8];
#ifdef PLANT_MISALIGNED
        load8(v, from + i + 1);
#else
        load8(v, from + i);
#endif
        // Stores of single numbers, 32 bytes from lane to lane, took four times as long (H100).
        if (i + 8 <= p.dim) {
            store16(to + i, words_of({v[0], v[1], v[2], v[3]}));
            store16(to + i + 4, words_of({v[4], v[5], v[6], v[7]}));
            continue;
        }
        UNROLL
        for (int e = 0; e < 8; e++)
            if (i + e < p.dim) to[i + e] = v[e];
    }
}

// The same for a quantised table. The embedding is quantised where it is also the head (tied
// weights), or where a GGUF file has it so.
template <class Q> DEVICE void embed_quantised(const EmbedParams &p) {
    start_next();
    float *to = p.x + (size_t)blockIdx.x * p.x_stride;
    const uint32_t row = row_to_copy(p, to);
    if (row == ~0u) return;
    const unsigned char *codes = row_of<Q>(p.table, p.w_stride, row);
    for (uint32_t i = threadIdx.x * 4; i < p.dim; i += blockDim.x * 4) {
        float v[4];
        const uint32_t word = word_of<Q>(codes, i);
        Q::decode(v, &word, 0, Q::values());
        typename Q::Scale scale;
        Q::load_scale(scale, codes + code_bytes<Q>(p.dim), i, blocks_of(p.dim));
        Q::apply(v, scale);
        if (i + 4 <= p.dim) {
            store16(to + i, words_of(v));
            continue;
        }
        UNROLL
        for (int e = 0; e < 4; e++)
            if (i + e < p.dim) to[i + e] = v[e];
    }
}

// No embed kernel calls wait_for_last. Embedding is the first launch of a step; it follows copies,
// which are complete before it starts.
KERNEL(embed_f32) { embed<float>(p); }
KERNEL(embed_f16) { embed<f16>(p); }
KERNEL(embed_bf16) { embed<bf16>(p); }
KERNEL(embed_int8) { embed_quantised<Int8>(p); }
KERNEL(embed_int4) { embed_quantised<Int4>(p); }
KERNEL(embed_k4) { embed_quantised<K4>(p); }
KERNEL(embed_k5) { embed_quantised<K5>(p); }
KERNEL(embed_k6) { embed_quantised<K6>(p); }
KERNEL(embed_k8) { embed_quantised<K8>(p); }
KERNEL(embed_iq4) { embed_quantised<Iq4>(p); }
KERNEL(embed_uint4) { embed_quantised<Uint4>(p); }
