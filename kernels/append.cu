// Writes K and V of the step's rows to an 8-bit KV cache: as codes, with one scale for the vector
// of each head.
//
// The epilogue of the product cannot do this. A scale needs the whole vector, and several blocks of
// the product compute one vector together (eight blocks for a head of 128), so they would have to
// wait for one another.
#include "gpu.h"

// `greatest` is the greatest magnitude that a code stands for. `code_of` is the code of a number
// that has been divided by the scale.
DEVICE float greatest(Cached8) { return 127.0f; }
DEVICE float greatest(CachedF8) { return 448.0f; }
// Adding 1.5 * 2^23 rounds to the nearest integer, ties to even.
DEVICE uint32_t code_of(float x, Cached8) { return (as_bits(x + 12582912.0f) + 128) & 255; }
DEVICE uint32_t code_of(float x, CachedF8) { return e4m3_of(x); }

// Each block is one warp and works on one vector. A lane has up to eight numbers of it.
template <class C> DEVICE void append(const AppendParams &p) {
    const uint32_t lane = threadIdx.x, row = blockIdx.y, part = blockIdx.x / p.n_kv_heads,
                   head = blockIdx.x % p.n_kv_heads;
    const float *from =
        p.fresh + ((size_t)row * 2 + part) * p.n_kv_heads * p.head_dim + head * p.head_dim;
    start_next();
#ifdef PLANT_READ_EARLY
    const float early = p.slots[row] == GPU_NO_SLOT ? 0 : from[lane % p.head_dim];
#endif
    wait_for_last();
    const uint32_t slot = p.slots[row];
    if (slot == GPU_NO_SLOT) return;
    float v[8], max = 0, odd = 0;
    UNROLL
    for (uint32_t e = 0; e < 8; e++) {
        uint32_t d = lane * 8 + e;
        v[e] = d < p.head_dim ? from[d] : 0;
#ifdef PLANT_READ_EARLY
        if (d == lane) v[e] = early;
#endif
        max = fmaxf(max, fabsf(v[e]));
        odd += v[e] * 0.0f; // becomes NaN if a number is not finite
    }
    const float unit = group_max(max, 32) / greatest(C()) + group_sum(odd, 32);
    // The reciprocal of a smaller number would overflow.
    const float inverse = unit > 1e-30f ? 1.0f / unit : 0;
    Words2 codes = {};
    UNROLL
    for (int e = 0; e < 8; e++) codes.w[e / 4] |= code_of(v[e] * inverse, C()) << (e % 4 * 8);
    C *to = (C *)(part ? p.v_pages : p.k_pages) +
            (size_t)(slot / GPU_PAGE * p.n_kv_heads + head) * head_of_page<C>(p.head_stride);
    if (lane * 8 < p.head_stride) store8(to + slot % GPU_PAGE * p.head_stride + lane * 8, codes);
    if (lane == 0) ((float *)(to + GPU_PAGE * p.head_stride))[slot % GPU_PAGE] = unit;
}

KERNEL(append_int8) { append<Cached8>(p); }
KERNEL(append_fp8) { append<CachedF8>(p); }
