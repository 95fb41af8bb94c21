// Attention in float32 over the paged cache, by chunks of 256 keys. `attend` is for decode:
// split-K, with the query heads of a head group in one block. `attend_prefill_fma` is for prefill
// in the float32 mode.
//
// A block has 128 threads and reads each key once for up to four queries. In decode, these are
// query heads that share a KV head; in prefill, consecutive rows of one head. A key has head_stride
// numbers, which `width` lanes load, eight numbers each. So a warp reads 32 / width neighbouring
// keys at a time.
#include "gpu.h"

#define QUERIES 4

DEVICE uint32_t smaller(uint32_t a, uint32_t b) { return a < b ? a : b; }
DEVICE uint32_t larger(uint32_t a, uint32_t b) { return a > b ? a : b; }

// Shared memory, in floats: [4][256] weights of keys | [4] max | [4] sum | [8] flags |
// [4][head_stride] queries | [4][head_stride] result | [4 warps][4][head_stride] partial results.
struct Layout {
    float *p, *max, *sum, *flags, *q, *o, *parts;
    DEVICE_MEMBER Layout(unsigned char *shared, uint32_t head_stride) {
        p = (float *)shared;
        max = p + QUERIES * GPU_CHUNK;
        sum = max + QUERIES;
        flags = sum + QUERIES;
        q = flags + 8;
        o = q + QUERIES * head_stride;
        parts = o + QUERIES * head_stride;
    }
};

// Attends to keys first .. first + n (n <= 256) for the H queries in l.q. Query h sees the keys from
// begin[h] to before end[h]; both ascend with h, and without DIFFER they are the same for all. Keys
// before begin[0] are not read. Leaves three results for each query: in l.max the largest score
// (times 1 / ln 2), in l.sum the sum of the weights, in l.o the weighted sum of the values.
template <class T, int H, bool DIFFER> DEVICE void attend_chunk(const Layout &l,
    const Keys<T> &keys, uint32_t first, uint32_t n, const uint32_t (&begin)[H],
    const uint32_t (&end)[H], float scale) {
    constexpr int U = 8 / sizeof(T); // keys in flight
    const uint32_t t = threadIdx.x, lane = t % 32, warp = t / 32, stride = keys.head_stride;
    uint32_t width = 2;
    while (width * 8 < stride) width *= 2;
    const uint32_t e0 = lane % width * 8, step = 128 / width, own = (warp * 32 + lane) / width;
    // The warp's first key of a step. A warp skips keys beyond the end all together.
    const uint32_t warp_key = warp * (32 / width);
    const bool has = e0 < stride;
    // The first key that is read, and where the loops over keys start. Whichever rows share a block,
    // a key has the same lanes, and a lane has its keys in the same order; keys that a row does not
    // see add zero.
    const uint32_t least = begin[0] > first ? begin[0] - first : 0,
                   start = least / larger(U * step, 32) * larger(U * step, 32);

    float q[H][8];
    UNROLL
    for (int h = 0; h < H; h++) UNROLL
    for (int e = 0; e < 8; e++) q[h][e] = has ? l.q[h * stride + e0 + e] : 0;
    for (uint32_t i = start; i < n; i += U * step) {
        Eight<T> raw[U] = {};
        float unit[U];
        UNROLL
        for (int u = 0; u < U; u++) {
            uint32_t key = i + u * step + own;
            const bool read = key >= least && key < n;
            if (has && read) raw[u].load(keys.k + keys.at(first + key) + e0);
            unit[u] = keys.unit(keys.k, first + key, read);
        }
        UNROLL
        for (int u = 0; u < U; u++) {
            if (i + u * step + warp_key >= n) break;
            uint32_t key = i + u * step + own;
            float k[8];
            raw[u].unpack(k);
            UNROLL
            for (int h = 0; h < H; h++) {
                float s = 0;
                UNROLL
                for (int e = 0; e < 8; e++) s = fmaf(q[h][e], k[e], s);
                s = group_sum(s, width);
                if (lane % width == 0 && key < n)
                    l.p[h * GPU_CHUNK + key] = first + key >= begin[h] && first + key < end[h]
                                                   ? s * unit[u] * scale * 1.44269504f
                                                   : -INFINITY_F;
            }
        }
    }
#ifndef PLANT_NO_BARRIER_ATTEND
    block_sync();
#endif
    // Turns scores into weights; each warp does it for one query. fmaxf ignores a score that is
    // NaN, but the sum becomes NaN.
    if (warp < H) {
        float *p = l.p + warp * GPU_CHUNK, max = -INFINITY_F, sum = 0;
        for (uint32_t key = start + lane; key < n; key += 32) max = fmaxf(max, p[key]);
        max = group_max(max, 32);
        const float base = max == -INFINITY_F ? 0 : max;
        for (uint32_t key = start + lane; key < n; key += 32) {
            p[key] = exp2_fast(p[key] - base);
            sum += p[key];
        }
        sum = group_sum(sum, 32);
        if (lane == 0) {
            l.max[warp] = max;
            l.sum[warp] = sum;
        }
    }
    block_sync();
    float o[H][8] = {};
    for (uint32_t i = start; i < n; i += U * step) {
        Eight<T> raw[U] = {};
        float unit[U];
        UNROLL
        for (int u = 0; u < U; u++) {
            uint32_t key = i + u * step + own;
            const bool read = key >= least && key < n;
            if (has && read) raw[u].load(keys.v + keys.at(first + key) + e0);
            unit[u] = keys.unit(keys.v, first + key, read);
        }
        UNROLL
        for (int u = 0; u < U; u++) {
            if (i + u * step + warp_key >= n) break;
            uint32_t key = i + u * step + own;
            float v[8];
            raw[u].unpack(v);
            UNROLL
            for (int h = 0; h < H; h++) {
                float p = key < n ? l.p[h * GPU_CHUNK + key] * unit[u] : 0;
                // A zero weight is not enough: the value of a key that another row sees may be
                // infinite, and so may its scale.
                if (DIFFER && (first + key < begin[h] || first + key >= end[h])) continue;
                UNROLL
                for (int e = 0; e < 8; e++) o[h][e] = fmaf(p, v[e], o[h][e]);
            }
        }
    }
    UNROLL
    for (int h = 0; h < H; h++) UNROLL
    for (int e = 0; e < 8; e++) {
        float sum = across_sum(o[h][e], width);
        if (has && lane < width) l.parts[(warp * QUERIES + h) * stride + e0 + e] = sum;
    }
    block_sync();
    for (uint32_t i = t; i < H * stride; i += 128) {
        const float *part = l.parts + i;
        l.o[i] = part[0] + part[QUERIES * stride] + part[2 * QUERIES * stride] +
                 part[3 * QUERIES * stride];
    }
    block_sync();
}

template <class T, int H>
DEVICE void attend_group(const AttendParams &p, const Layout &l, int32_t row, uint32_t head) {
    const uint32_t t = threadIdx.x, kv_head = blockIdx.x, split = blockIdx.y,
                   group = p.n_heads / p.n_kv_heads;
    const uint32_t n_keys = (uint32_t)p.positions[row] + 1, first = split * GPU_CHUNK;
    const uint32_t n = smaller(n_keys - first, GPU_CHUNK);
    // Query heads beyond this head group are computed as zeros and dropped.
    const uint32_t last = kv_head * group + group;
    for (uint32_t i = t; i < H * p.head_stride; i += 128) {
        uint32_t h = head + i / p.head_stride, d = i % p.head_stride;
        l.q[i] =
            h < last && d < p.head_dim ? p.q[(size_t)row * p.q_stride + h * p.head_dim + d] : 0;
    }
    block_sync();
    Keys<T> keys(
        p.k_pages, p.v_pages, p.pages + p.row_pages[row], kv_head, p.n_kv_heads, p.head_stride);
    uint32_t begin[H], end[H];
    UNROLL
    for (int h = 0; h < H; h++) begin[h] = first_key(n_keys, p.window), end[h] = n_keys;
    attend_chunk<T, H, false>(l, keys, first, n, begin, end, p.scale);
    const uint32_t width = p.head_stride + 4;
    for (uint32_t i = t; i < H * width; i += 128) {
        uint32_t h = i / width, d = i % width;
        if (head + h >= last || d > p.head_stride + 1) continue;
        float v = d < p.head_stride    ? l.o[h * p.head_stride + d]
                  : d == p.head_stride ? l.max[h]
                                       : l.sum[h];
        p.partial[(((size_t)blockIdx.z * p.n_heads + head + h) * p.max_splits + split) * width +
                  d] = v;
    }
    block_sync();
}

template <class T> DEVICE void attend(const AttendParams &p) {
    SHARED(shared);
    const uint32_t t = threadIdx.x, kv_head = blockIdx.x, group = p.n_heads / p.n_kv_heads;
    start_next();
    wait_for_last();
    const int32_t row = p.rows[blockIdx.z];
    if (row < 0) return;
    const uint32_t n_keys = (uint32_t)p.positions[row] + 1, n_splits = (n_keys - 1) / GPU_CHUNK + 1,
                   first_split = first_key(n_keys, p.window) / GPU_CHUNK;
    if (blockIdx.y < first_split || blockIdx.y >= n_splits) return;
    Layout l(shared, p.head_stride);
    uint32_t *counter = p.counters + (size_t)blockIdx.z * p.n_kv_heads + kv_head;
#ifdef PLANT_COUNTED_EARLY
    const uint32_t counted = *counter;
#endif
    if (group == 1)
        attend_group<T, 1>(p, l, row, kv_head);
    else
        for (uint32_t h = 0; h < group; h += QUERIES)
            attend_group<T, QUERIES>(p, l, row, kv_head * group + h);

    // The last block to finish for this row and KV head adds up the splits, always in the same
    // order.
#ifndef PLANT_NO_DEVICE_FENCE
    device_fence();
#endif
    block_sync();
    if (t == 0) {
#ifdef PLANT_COUNTED_EARLY
        *counter = counted + 1;
        bool is_last = counted == n_splits - first_split - 1;
#else
        bool is_last = atomic_add(counter, 1) == n_splits - first_split - 1;
#endif
        if (is_last) *counter = 0;
        l.flags[0] = is_last;
    }
    block_sync();
    if (l.flags[0] == 0) return;
    device_fence();
    const uint32_t width = p.head_stride + 4;
    for (uint32_t i = t; i < group * p.head_dim; i += 128) {
        const uint32_t head = kv_head * group + i / p.head_dim, d = i % p.head_dim;
        const float *part =
            p.partial + ((size_t)blockIdx.z * p.n_heads + head) * p.max_splits * width;
        float max = -INFINITY_F, sum = 0, o = 0;
        for (uint32_t s = first_split; s < n_splits; s++)
            max = fmaxf(max, load_fenced(part + s * width + p.head_stride));
        if (max == -INFINITY_F) max = 0;
        for (uint32_t s = first_split; s < n_splits; s++) {
            float weight = exp2_fast(load_fenced(part + s * width + p.head_stride) - max);
            sum = fmaf(load_fenced(part + s * width + p.head_stride + 1), weight, sum);
            o = fmaf(load_fenced(part + s * width + d), weight, o);
        }
        with_type(p.y_type, [&](auto type) {
            from_float(((decltype(type) *)p.y)[(size_t)row * p.y_stride + head * p.head_dim + d],
                bounded(o / sum, p.y_type));
        });
    }
}

template <class T> DEVICE void attend_prefill_fma(const AttendPrefillParams &p) {
    SHARED(shared);
    const uint32_t t = threadIdx.x, head = blockIdx.x, kv_head = head / (p.n_heads / p.n_kv_heads);
    const AttendTile tile = p.tiles[blockIdx.y];
    if (tile.n == 0) return;
    Layout l(shared, p.head_stride);
    for (uint32_t i = t; i < QUERIES * p.head_stride; i += 128) {
        uint32_t j = i / p.head_stride, d = i % p.head_stride;
        int32_t row = j < tile.n ? p.rows[tile.first + j] : -1;
        l.q[i] =
            row >= 0 && d < p.head_dim ? p.q[(size_t)row * p.q_stride + head * p.head_dim + d] : 0;
    }
    block_sync();
    Keys<T> keys(p.k_pages, p.v_pages, p.pages + tile.pages, kv_head, p.n_kv_heads, p.head_stride);
    uint32_t begin[QUERIES], end[QUERIES];
    UNROLL
    for (uint32_t j = 0; j < QUERIES; j++) {
        end[j] = tile.position + j + 1;
        begin[j] = first_key(end[j], p.window);
    }

    // This thread computes numbers t, t + 128, ... of the result [4][head_stride <= 256].
    constexpr int OWN = QUERIES * GPU_MAX_HEAD_DIM / 128;
    float o[OWN], max[OWN], sum[OWN];
    UNROLL
    for (int c = 0; c < OWN; c++) o[c] = sum[c] = 0, max[c] = -INFINITY_F;
    const uint32_t n_keys = tile.position + tile.n;
    for (uint32_t first = begin[0] / GPU_CHUNK * GPU_CHUNK; first < n_keys; first += GPU_CHUNK) {
        attend_chunk<T, QUERIES, true>(
            l, keys, first, smaller(n_keys - first, GPU_CHUNK), begin, end, p.scale);
        UNROLL
        for (int c = 0; c < OWN; c++) {
            uint32_t i = t + c * 128, j = i / p.head_stride;
            if (i >= QUERIES * p.head_stride) break;
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
        with_type(p.y_type, [&](auto type) {
            from_float(((decltype(type) *)p.y)[(size_t)row * p.y_stride +
                                               permuted_of(head * p.head_dim + d, p.permuted)],
                bounded(o[c] / sum[c], p.y_type));
        });
    }
}

KERNEL(attend_f32) { attend<float>(p); }
KERNEL(attend_f16) { attend<f16>(p); }
KERNEL(attend_bf16) { attend<bf16>(p); }
KERNEL(attend_int8) { attend<Cached8>(p); }
KERNEL(attend_fp8) { attend<CachedF8>(p); }
KERNEL(attend_prefill_fma_f32) { attend_prefill_fma<float>(p); }
KERNEL(attend_prefill_fma_f16) { attend_prefill_fma<f16>(p); }
KERNEL(attend_prefill_fma_bf16) { attend_prefill_fma<bf16>(p); }
KERNEL(attend_prefill_fma_int8) { attend_prefill_fma<Cached8>(p); }
KERNEL(attend_prefill_fma_fp8) { attend_prefill_fma<CachedF8>(p); }
