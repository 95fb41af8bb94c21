// Attention to a chunk of 256 keys of the paged cache, in float32: `attend` of a float32 cache, and
// `attend_prefill_fma`. Part of gpu.h.
//
// A block has 128 threads and reads each key once for up to four queries. In decode, these are
// query heads that share a KV head; in prefill, consecutive rows of one head. A key has head_stride
// numbers, which WIDTH lanes load, eight numbers each. So a warp reads 32 / WIDTH neighbouring keys
// at a time. WIDTH is 16 or 32. A width that is known only at run time would keep the shuffles in a
// loop, one after another.

constexpr uint32_t CHUNK_QUERIES = 4;

// Calls `body` with WIDTH for this head_stride.
template <class Body> DEVICE void with_width(uint32_t head_stride, const Body &body) {
    if (head_stride <= 128)
        body(Count<16>());
    else
        body(Count<32>());
}

// Sums each of LEFT numbers over the lanes whose numbers differ in the bits from MASK down to LAST.
// For each bit, a lane gives one half of its numbers to its neighbour and keeps the other, so that
// 16 sums over 16 lanes take 15 shuffles and not 64. Leaves the sums of numbers i, i + 1, ... in
// v[0], v[1], ..., and returns i. If there are fewer numbers than lanes, several lanes have the
// same sum. The order of additions does not depend on LEFT.
template <uint32_t LEFT, uint32_t MASK, uint32_t LAST, uint32_t N>
DEVICE uint32_t sum_apart(float (&v)[N]) {
    if constexpr (MASK < LAST) {
        return 0;
    } else if constexpr (LEFT == 1) {
        v[0] += shuffle_xor(v[0], MASK);
        return sum_apart<1, MASK / 2, LAST>(v);
    } else {
        constexpr uint32_t HALF = LEFT / 2;
        const bool upper = threadIdx.x & MASK;
        UNROLL
        for (uint32_t i = 0; i < HALF; i++) {
            const float given = shuffle_xor(upper ? v[i] : v[i + HALF], MASK);
            v[i] = (upper ? v[i + HALF] : v[i]) + given;
        }
        return (upper ? HALF : 0) + sum_apart<HALF, MASK / 2, LAST>(v);
    }
}

// Shared memory, in floats: [4][256] weights of keys | [4] max | [4] sum |
// [4][head_stride] queries | [4][head_stride] result | [4 warps][4][head_stride] partial results.
struct Layout {
    float *p, *max, *sum, *q, *o, *parts;
    DEVICE_MEMBER Layout(unsigned char *shared, uint32_t head_stride) {
        p = (float *)shared;
        max = p + CHUNK_QUERIES * GPU_CHUNK;
        sum = max + CHUNK_QUERIES;
        q = sum + CHUNK_QUERIES;
        o = q + CHUNK_QUERIES * head_stride;
        parts = o + CHUNK_QUERIES * head_stride;
    }
};

// Attends to keys first .. first + n (n <= 256) for the H queries in l.q. Query h sees the keys
// from begin[h] to before end[h]; both ascend with h, and without DIFFER they are the same for all.
// Keys before begin[0] are not read. Leaves three results for each query: in l.max the largest
// score (times 1 / ln 2), in l.sum the sum of the weights, in l.o the weighted sum of the values.
template <class T, uint32_t H, bool DIFFER, uint32_t WIDTH>
DEVICE void attend_chunk(const Layout &l, const Keys<T> &keys, uint32_t first, uint32_t n,
    const uint32_t (&begin)[H], const uint32_t (&end)[H], float scale) {
    constexpr uint32_t U = sizeof(T) == 4 ? 2 : 4, // keys in flight
        STEP = 128 / WIDTH;
    const uint32_t t = threadIdx.x, lane = t % 32, warp = t / 32, stride = keys.head_stride;
    const uint32_t e0 = lane % WIDTH * 8, own = t / WIDTH;
    // The warp's first key of a step. A warp skips keys beyond the end all together.
    const uint32_t warp_key = warp * (32 / WIDTH);
    const bool has = e0 < stride;
    // The first key that is read, and where the loops over keys start. Whichever rows share a
    // block, a key has the same lanes, and a lane has its keys in the same order; keys that a row
    // does not see add zero.
    constexpr uint32_t TOGETHER = U * STEP > 32 ? U * STEP : 32;
    const uint32_t least = begin[0] > first ? begin[0] - first : 0,
                   start = least / TOGETHER * TOGETHER;

    float q[H][8];
    UNROLL
    for (uint32_t h = 0; h < H; h++) UNROLL
    for (uint32_t e = 0; e < 8; e++) q[h][e] = has ? l.q[h * stride + e0 + e] : 0;
    UNROLL_BY(1)
    for (uint32_t i = start; i + warp_key < n; i += U * STEP) {
        Eight<T> raw[U] = {};
        float unit[U], s[U * H];
        UNROLL
        for (uint32_t u = 0; u < U; u++) {
            const uint32_t key = i + u * STEP + own;
            const bool read = key >= least && key < n;
            if (has && read) raw[u].load(keys.k + keys.at(first + key) + e0);
            unit[u] = keys.unit(keys.k, first + key, read);
        }
        UNROLL
        for (uint32_t u = 0; u < U; u++) {
            float k[8];
            raw[u].unpack(k);
            UNROLL
            for (uint32_t h = 0; h < H; h++) {
                float sum = 0;
                UNROLL
                for (uint32_t e = 0; e < 8; e++) sum = fmaf(q[h][e], k[e], sum);
                s[h * U + u] = sum;
            }
        }
        const uint32_t which = sum_apart<U * H, WIDTH / 2, 1>(s), h = which / U, u = which % U;
        float factor = unit[0];
        if constexpr (SCALED<T>) UNROLL
        for (uint32_t other = 1; other < U; other++)
            if (u == other) factor = unit[other];
        // Where there are fewer sums than lanes, neighbours have the same.
        if (lane % (WIDTH / (U * H)) == 0)
            l.p[h * GPU_CHUNK + i + u * STEP + own] = s[0] * factor * scale * 1.44269504f;
    }
#ifndef PLANT_NO_BARRIER_CHUNK
    block_sync();
#endif
    // Turns scores into weights; each warp does it for one query. fmaxf ignores a score that is
    // NaN, but the sum becomes NaN.
    if (warp < H) {
        float *p = l.p + warp * GPU_CHUNK, max = -INFINITY_F, sum = 0;
        uint32_t from = begin[0], to = end[0];
        UNROLL
        for (uint32_t h = 1; h < H; h++)
            if (DIFFER && warp == h) from = begin[h], to = end[h];
        UNROLL_BY(1)
        for (uint32_t key = start + lane; key < n; key += 32) {
            if (first + key < from || first + key >= to) p[key] = -INFINITY_F;
            max = fmaxf(max, p[key]);
        }
        max = group_max(max, 32);
        const float base = max == -INFINITY_F ? 0 : max;
        UNROLL_BY(1)
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
    float o[H * 8] = {};
    UNROLL_BY(1)
    for (uint32_t i = start; i + warp_key < n; i += U * STEP) {
        Eight<T> raw[U] = {};
        float unit[U];
        UNROLL
        for (uint32_t u = 0; u < U; u++) {
            const uint32_t key = i + u * STEP + own;
            const bool read = key >= least && key < n;
            if (has && read) raw[u].load(keys.v + keys.at(first + key) + e0);
            unit[u] = keys.unit(keys.v, first + key, read);
        }
        UNROLL
        for (uint32_t u = 0; u < U; u++) {
            const uint32_t key = i + u * STEP + own;
            float v[8];
            raw[u].unpack(v);
            UNROLL
            for (uint32_t h = 0; h < H; h++) {
                const float p = key < n ? l.p[h * GPU_CHUNK + key] * unit[u] : 0;
                // A zero weight is not enough: the value of a key that another row sees may be
                // infinite, and so may its scale.
                if (DIFFER && (first + key < begin[h] || first + key >= end[h])) continue;
                UNROLL
                for (uint32_t e = 0; e < 8; e++) o[h * 8 + e] = fmaf(p, v[e], o[h * 8 + e]);
            }
        }
    }
    const uint32_t which = sum_apart<H * 8, 16, WIDTH>(o);
    UNROLL
    for (uint32_t i = 0; i < H * 8 * WIDTH / 32; i++) {
        const uint32_t h = (which + i) / 8, e = (which + i) % 8;
        if (has) l.parts[(warp * CHUNK_QUERIES + h) * stride + e0 + e] = o[i];
    }
    block_sync();
    UNROLL_BY(1)
    for (uint32_t i = t; i < H * stride; i += 128) {
        const float *part = l.parts + i;
        l.o[i] = part[0] + part[CHUNK_QUERIES * stride] + part[2 * CHUNK_QUERIES * stride] +
                 part[3 * CHUNK_QUERIES * stride];
    }
    block_sync();
}
