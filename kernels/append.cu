// Writes K and V of the step's rows to the KV cache, where qkv does not: to an 8-bit cache, as
// codes with one scale for the vector of each head; and where something comes between the product
// and the cache beside RoPE: norms of the heads of q and k, before RoPE or after it, or what
// adapters add.
//
// The epilogue of the product cannot do this. A scale or a norm needs the whole vector, and several
// blocks of the product compute one vector together (eight blocks for a head of 128), so they would
// have to wait for one another.
#include "gpu.h"

// `greatest` is the greatest magnitude that a code stands for. `code_of` is the code of a number
// that has been divided by the scale.
DEVICE float greatest(Cached8) { return 127.0f; }
DEVICE float greatest(CachedF8) { return 448.0f; }
// Adding 1.5 * 2^23 rounds to the nearest integer, ties to even.
DEVICE uint32_t code_of(float x, Cached8) { return (as_bits(x + 12582912.0f) + 128) & 255; }
DEVICE uint32_t code_of(float x, CachedF8) { return e4m3_of(x); }

// Applies the norm, if there is one, and RoPE to a vector. RoPE does not change a vector's length,
// so only the norm's weights have to wait where RoPE comes first. A lane has numbers lane * 8 ..
// lane * 8 + 7 of the vector; those from head_dim on are zero.
DEVICE void turn(const AppendParams &p, float (&v)[8], const float *norm, uint32_t row) {
    const uint32_t lane = threadIdx.x;
    float scale = 1;
    if (norm) {
        float square = 0;
        UNROLL
        for (int e = 0; e < 8; e++) square = fmaf(v[e], v[e], square);
        scale = 1.0f / sqrtf(group_sum(square, 32) / (float)p.head_dim + p.eps);
    }
    const size_t angles = (size_t)p.positions[row] * (p.head_dim / 2);
    UNROLL
    for (uint32_t e = 0; e < 8; e += 2) {
        const uint32_t d = lane * 8 + e;
        if (d >= p.head_dim) break;
        const float first = norm ? norm[d] : 1, second = norm ? norm[d + 1] : 1,
                    cos = p.cos[angles + d / 2], sin = p.sin[angles + d / 2];
        float a = v[e] * scale, b = v[e + 1] * scale;
        if (!p.rope_first) a *= first, b *= second;
        v[e] = a * cos - b * sin;
        v[e + 1] = a * sin + b * cos;
        if (p.rope_first) v[e] *= first, v[e + 1] *= second;
    }
}

// Stores a vector in its slot of a head of a page.
template <class C>
DEVICE void store_vector(C *head, uint32_t head_stride, uint32_t slot, const float (&v)[8]) {
    const uint32_t lane = threadIdx.x;
    C *to = head + slot * head_stride + lane * 8;
    if constexpr (SCALED<C>) {
        float max = 0, odd = 0;
        UNROLL
        for (int e = 0; e < 8; e++) {
            max = fmaxf(max, fabsf(v[e]));
            odd += v[e] * 0.0f; // becomes NaN if a number is not finite
        }
        const float unit = group_max(max, 32) / greatest(C()) + group_sum(odd, 32);
        // The reciprocal of a smaller number would overflow.
        const float inverse = unit > 1e-30f ? 1.0f / unit : 0;
        Words2 codes = {};
        UNROLL
        for (int e = 0; e < 8; e++) codes.w[e / 4] |= code_of(v[e] * inverse, C()) << (e % 4 * 8);
        if (lane * 8 < head_stride) store8(to, codes);
        if (lane == 0) ((float *)(head + GPU_PAGE * head_stride))[slot] = unit;
    } else if (lane * 8 < head_stride) {
        UNROLL
        for (int e = 0; e < 8; e += 2) store_pair(to + e, v[e], v[e + 1]);
    }
}

// Each block is one warp and works on one vector: of K, of V, or of q. A lane has up to eight
// numbers of it.
template <class C> DEVICE void append(const AppendParams &p) {
    const uint32_t lane = threadIdx.x, row = blockIdx.y, part = blockIdx.x / p.n_kv_heads;
    const bool is_q = part >= 2;
    const uint32_t head = blockIdx.x - (is_q ? 2 : part) * p.n_kv_heads;
    float *const q = p.q + (size_t)row * p.q_stride + head * p.head_dim;
    const float *from =
        is_q ? q
             : p.fresh + ((size_t)row * 2 + part) * p.n_kv_heads * p.head_dim + head * p.head_dim;
    start_next();
#ifdef PLANT_READ_EARLY
    const float early = p.slots[row] == GPU_NO_SLOT ? 0 : from[lane % p.head_dim];
#endif
    wait_for_last();
    // A row without a slot has a q, unless it is padding.
    const uint32_t slot = is_q ? 0 : p.slots[row];
    if (is_q ? p.tokens[row] < 0 : slot == GPU_NO_SLOT) return;
    float v[8];
    UNROLL
    for (uint32_t e = 0; e < 8; e++) {
        uint32_t d = lane * 8 + e;
        v[e] = d < p.head_dim ? from[d] : 0;
#ifdef PLANT_READ_EARLY
        if (d == lane) v[e] = early;
#endif
    }
    if (p.cos && part != 1) turn(p, v, is_q ? p.q_norm : p.k_norm, row);
    if (is_q) {
        UNROLL
        for (uint32_t e = 0; e < 8; e++)
            if (lane * 8 + e < p.head_dim) q[lane * 8 + e] = v[e];
        return;
    }
    C *to = (C *)(part ? p.v_pages : p.k_pages) +
            (size_t)(slot / GPU_PAGE * p.n_kv_heads + head) * head_of_page<C>(p.head_stride);
    store_vector(to, p.head_stride, slot % GPU_PAGE, v);
}

KERNEL(append_f32) { append<float>(p); }
KERNEL(append_f16) { append<f16>(p); }
KERNEL(append_bf16) { append<bf16>(p); }
KERNEL(append_int8) { append<Cached8>(p); }
KERNEL(append_fp8) { append<CachedF8>(p); }
