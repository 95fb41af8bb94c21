// Prefill attention in float32: for float32 weights, for float32 caches, for head_dim above 128.
//
// A block has 128 threads and up to four consecutive rows of one head. It goes over the keys by
// chunks of 256 (attend_chunk.h), and joins each chunk to what it has of the rows.
#include "gpu.h"

template <class T> DEVICE void attend_prefill_fma(const AttendPrefillParams &p) {
    SHARED(shared);
    const uint32_t t = threadIdx.x, head = blockIdx.x, kv_head = head / (p.n_heads / p.n_kv_heads);
    const AttendTile tile = p.tiles[blockIdx.y];
    if (tile.n == 0) return;
    Layout l(shared, p.head_stride);
    for (uint32_t i = t; i < CHUNK_QUERIES * p.head_stride; i += 128) {
        uint32_t j = i / p.head_stride, d = i % p.head_stride;
        int32_t row = j < tile.n ? p.rows[tile.first + j] : -1;
        l.q[i] =
            row >= 0 && d < p.head_dim ? p.q[(size_t)row * p.q_stride + head * p.head_dim + d] : 0;
    }
    block_sync();
    Keys<T> keys(p.k_pages, p.v_pages, p.pages + tile.pages, kv_head, p.n_kv_heads, p.head_stride);
    uint32_t begin[CHUNK_QUERIES], end[CHUNK_QUERIES];
    UNROLL
    for (uint32_t j = 0; j < CHUNK_QUERIES; j++) {
        end[j] = tile.position + j + 1;
        begin[j] = first_key(end[j], p.window);
    }

    // This thread computes numbers t, t + 128, ... of the result [4][head_stride <= 256].
    constexpr int OWN = CHUNK_QUERIES * GPU_MAX_HEAD_DIM / 128;
    float o[OWN], max[OWN], sum[OWN];
    UNROLL
    for (int c = 0; c < OWN; c++) o[c] = sum[c] = 0, max[c] = -INFINITY_F;
    const uint32_t n_keys = tile.position + tile.n;
    for (uint32_t first = begin[0] / GPU_CHUNK * GPU_CHUNK; first < n_keys; first += GPU_CHUNK) {
        with_width(p.head_stride, [&](auto width) {
            attend_chunk<T, CHUNK_QUERIES, true, decltype(width)::value>(
                l, keys, first, smaller(n_keys - first, GPU_CHUNK), begin, end, p.scale);
        });
        UNROLL
        for (int c = 0; c < OWN; c++) {
            uint32_t i = t + c * 128, j = i / p.head_stride;
            if (i >= CHUNK_QUERIES * p.head_stride) break;
            // A chunk that a row does not see changes nothing, because its factor `now` is
            // exp2(-inf) = 0.
            float most = fmaxf(max[c], l.max[j]), base = most == -INFINITY_F ? 0 : most;
            float before = exp2_fast(max[c] - base), now = exp2_fast(l.max[j] - base);
            o[c] = o[c] * before + l.o[i] * now;
            sum[c] = sum[c] * before + l.sum[j] * now;
            max[c] = most;
        }
        block_sync();
    }
    UNROLL
    for (int c = 0; c < OWN; c++) {
        uint32_t i = t + c * 128, j = i / p.head_stride, d = i % p.head_stride;
        int32_t row = j < tile.n ? p.rows[tile.first + j] : -1;
        if (row < 0 || d >= p.head_dim) continue;
        const size_t at = (size_t)row * p.y_stride + permuted_of(head * p.head_dim + d, p.permuted);
        const float y = bounded(o[c] / sum[c], p.y_type);
        with_type(p.y_type, [&](auto type) { from_float(((decltype(type) *)p.y)[at], y); });
    }
}

KERNEL(attend_prefill_fma_f32) { attend_prefill_fma<float>(p); }
KERNEL(attend_prefill_fma_f16) { attend_prefill_fma<f16>(p); }
KERNEL(attend_prefill_fma_bf16) { attend_prefill_fma<bf16>(p); }
KERNEL(attend_prefill_fma_int8) { attend_prefill_fma<Cached8>(p); }
KERNEL(attend_prefill_fma_fp8) { attend_prefill_fma<CachedF8>(p); }
