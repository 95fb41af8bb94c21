// Prefill attention with tensor cores: FlashAttention-2 (Dao 2023, algorithm 1) over the paged
// cache. attend_hopper.h has the kernel for compute capability 9.0.
//
// A block has 128 threads and 64 rows of one head; each warp has 16 rows. Keys come in tiles of 64
// at absolute positions, in two stages of cp.async. A cache with scales is read by ordinary loads
// instead and widened to f16 on the way. A row's result depends on its own keys alone: tiles of
// keys that the row does not see leave its state unchanged. So neither the way a prompt is cut into
// chunks nor the other rows of a block matter.
//
// A kernel for heads of 128 has 146 KB of machine code (165 for a cache with scales), of which 33
// (52) lie before the last product. The rest stores the sums: each pair of a thread's registers, in
// each type that outputs may have. A block runs through the code of one type, once.
#include "gpu.h"

#define KEYS 64

// Loads eight numbers of a cache with scales, multiplies them by their scale, rounds them, and
// stores them in shared memory.
template <class C> DEVICE void widen8(
    void *to, const C *head, uint32_t head_stride, uint32_t slot, uint32_t d, bool valid) {
    Words2 raw = valid ? load_fresh8(head + slot * head_stride + d) : Words2{};
    const float unit = valid ? unit_of(head, head_stride, slot) : 0;
    float v[8];
    Words4 out;
    unpack8(v, raw, C());
    UNROLL
    for (int i = 0; i < 4; i++) {
        f16 a, b;
        from_float(a, v[2 * i] * unit);
        from_float(b, v[2 * i + 1] * unit);
        out.w[i] = a.bits | (uint32_t)b.bits << 16;
    }
    store16(to, out);
}

// C: the type of the cache. T: the type that the tensor cores take. B: head_stride rounded up to
// 32, 64 or 128. The columns from head_stride to B are zero; the loops skip the blocks of sixteen
// columns that are all zero.
template <class C, class T, uint32_t B> DEVICE void attend_prefill(const AttendPrefillParams &p) {
    SHARED(shared);
    const uint32_t t = threadIdx.x, lane = t % 32, warp = t / 32, g = lane / 4, c = lane % 4 * 2;
    const uint32_t head = blockIdx.x, kv_head = head / (p.n_heads / p.n_kv_heads);
    const AttendTile tile = p.tiles[blockIdx.y];
    if (tile.n == 0) return;
    const uint32_t n_keys = tile.position + tile.n, n_tiles = (n_keys + KEYS - 1) / KEYS;
    // The first key that any of the rows sees, and its tile.
    const uint32_t begin = first_key(tile.position + 1, p.window), first_tile = begin / KEYS;
    const uint32_t sixteens = p.head_stride / 16;

    // The offset of chunk `chunk` (8 numbers) of a row. It is swizzled so that ldmatrix reads from
    // each bank once.
    auto offset_of = [](uint32_t row, uint32_t chunk) -> uint32_t {
        return B == 32 ? swizzle64(row, chunk) : row * B * 2 + ((chunk ^ (row & 7)) << 4);
    };
    const size_t page_stride = p.n_kv_heads * head_of_page<C>(p.head_stride),
                 base = kv_head * head_of_page<C>(p.head_stride);
    constexpr uint32_t HALF_STAGE = KEYS * B * 2;
    auto load = [&](uint32_t j) {
        unsigned char *stage = shared + j % 2 * 2 * HALF_STAGE;
        constexpr uint32_t CHUNKS = B / 8;
        UNROLL
        for (uint32_t i = 0; i < KEYS * CHUNKS / 128; i++) {
            uint32_t row = (t + i * 128) / CHUNKS, chunk = (t + i * 128) % CHUNKS,
                     key = j * KEYS + row;
            // Positions beyond the end may never have been written. They are read as zeros, because
            // 0 * NaN would be NaN. So are those that no row sees.
            bool valid = key >= begin && key < n_keys && chunk * 8 < p.head_stride;
            size_t head = valid ? p.pages[tile.pages + key / GPU_PAGE] * page_stride + base : 0;
            const C *k = (const C *)p.k_pages + head, *v = (const C *)p.v_pages + head;
            unsigned char *to = stage + offset_of(row, chunk);
            if constexpr (SCALED<C>) {
                widen8(to, k, p.head_stride, key % GPU_PAGE, chunk * 8, valid);
                widen8(to + HALF_STAGE, v, p.head_stride, key % GPU_PAGE, chunk * 8, valid);
            } else {
                size_t at = valid ? key % GPU_PAGE * p.head_stride + chunk * 8 : 0;
                cp_async(to, k + at, valid);
                cp_async(to + HALF_STAGE, v + at, valid);
            }
        }
        cp_commit();
    };
    load(first_tile);

    // The fragments of the queries. This lane has rows g and g + 8 of the warp's sixteen rows.
    const bool active = warp * 16 < tile.n;
    uint32_t q[B / 16][4];
    int32_t row[2];
    UNROLL
    for (uint32_t h = 0; h < 2; h++) {
        uint32_t j = warp * 16 + g + h * 8;
        row[h] = j < tile.n ? p.rows[tile.first + j] : -1;
        UNROLL
        for (uint32_t i = 0; i < B / 8; i++) {
            uint32_t d = i * 8 + c;
            T pair[2] = {};
            if (row[h] >= 0 && d < p.head_dim) {
                const float *from = p.q + (size_t)row[h] * p.q_stride + head * p.head_dim + d;
                from_float(pair[0], from[0]);
                from_float(pair[1], from[1]);
            }
            q[i / 2][i % 2 * 2 + h] = pair[0].bits | (uint32_t)pair[1].bits << 16;
        }
    }

    float o[B / 8][4] = {}, max[2] = {-INFINITY_F, -INFINITY_F}, sum[2] = {0, 0};
    const float scale = p.scale * 1.44269504f; // 1 / ln 2: exp2 computes the weights
    const uint32_t first_row = tile.position + warp * 16;
    // seen: the first key that the warp's first row sees. from: the first keys that this lane's two
    // rows see.
    const uint32_t seen = first_key(first_row + 1, p.window),
                   from[2] = {first_key(first_row + g + 1, p.window),
                       first_key(first_row + g + 9, p.window)};
    for (uint32_t j = first_tile; j < n_tiles; j++) {
        if (j + 1 < n_tiles) {
            load(j + 1);
            cp_wait<1>();
        } else {
            cp_wait<0>();
        }
        block_sync();
        const unsigned char *k_tile = shared + j % 2 * 2 * HALF_STAGE,
                            *v_tile = k_tile + HALF_STAGE;
        if (active && j * KEYS <= first_row + 15 && j * KEYS + KEYS > seen) {
            float s[KEYS / 8][4] = {};
            UNROLL
            for (uint32_t i = 0; i < B / 16; i++) {
                if (i >= sixteens) break;
                UNROLL
                for (uint32_t b = 0; b < KEYS / 16; b++) {
                    uint32_t k[4];
                    ldmatrix(k, k_tile + offset_of(b * 16 + lane / 16 * 8 + lane % 8,
                                             i * 2 + lane / 8 % 2));
                    mma(s[2 * b], q[i], k[0], k[1], T());
                    mma(s[2 * b + 1], q[i], k[2], k[3], T());
                }
            }
            float larger[2] = {max[0], max[1]}, base2[2], fade[2];
            UNROLL
            for (uint32_t i = 0; i < KEYS / 8; i++) UNROLL
            for (uint32_t e = 0; e < 4; e++) {
                uint32_t key = j * KEYS + i * 8 + c + e % 2, own = first_row + g + e / 2 * 8;
                s[i][e] = key - from[e / 2] <= own - from[e / 2] ? s[i][e] * scale : -INFINITY_F;
                larger[e / 2] = fmaxf(larger[e / 2], s[i][e]);
            }
            UNROLL
            for (uint32_t h = 0; h < 2; h++) {
                larger[h] = group_max(larger[h], 4);
                base2[h] = larger[h] == -INFINITY_F ? 0 : larger[h];
                fade[h] = exp2_fast(max[h] - base2[h]);
                max[h] = larger[h];
                sum[h] *= fade[h];
            }
            uint32_t w[KEYS / 16][4];
            UNROLL
            for (uint32_t i = 0; i < KEYS / 8; i++) UNROLL
            for (uint32_t h = 0; h < 2; h++) {
                float a = exp2_fast(s[i][2 * h] - base2[h]),
                      b = exp2_fast(s[i][2 * h + 1] - base2[h]);
                sum[h] += a + b;
                T pair[2];
                from_float(pair[0], a);
                from_float(pair[1], b);
                w[i / 2][i % 2 * 2 + h] = pair[0].bits | (uint32_t)pair[1].bits << 16;
            }
            UNROLL
            for (uint32_t i = 0; i < B / 16; i++) {
                if (i >= sixteens) break;
                UNROLL
                for (uint32_t e = 0; e < 4; e++) {
                    o[2 * i][e] *= fade[e / 2];
                    o[2 * i + 1][e] *= fade[e / 2];
                }
                UNROLL
                for (uint32_t b = 0; b < KEYS / 16; b++) {
                    uint32_t v[4];
                    ldmatrix_trans(v, v_tile + offset_of(b * 16 + lane % 16, i * 2 + lane / 16));
                    mma(o[2 * i], w[b], v[0], v[1], T());
                    mma(o[2 * i + 1], w[b], v[2], v[3], T());
                }
            }
        }
#ifndef PLANT_WRITE_AFTER_READ_ATTEND
        block_sync();
#endif
    }
    if (!active) return;
    bool lost[2] = {};
    UNROLL
    for (uint32_t h = 0; h < 2; h++) {
        float total = group_sum(sum[h], 4);
        if (row[h] < 0) continue;
        UNROLL
        for (uint32_t i = 0; i < B / 8; i++) UNROLL
        for (uint32_t e = 2 * h; e < 2 * h + 2; e++)
            // What float32 has of a cache with scales may be infinite in f16.
            lost[h] |= SCALED<C> ? !(fabsf(o[i][e]) < INFINITY_F) : o[i][e] != o[i][e];
        lost[h] &= total == total;
        with_type(p.y_type, [&](auto type) {
            auto *y = (decltype(type) *)p.y + (size_t)row[h] * p.y_stride;
            UNROLL
            for (uint32_t i = 0; i < B / 8; i++)
                if (i * 8 + c < p.head_dim)
                    store_pair(y + permuted_of(head * p.head_dim + i * 8 + c, p.permuted),
                        bounded(o[i][2 * h] / total, p.y_type),
                        bounded(o[i][2 * h + 1] / total, p.y_type));
        });
    }
#ifndef PLANT_LOST
    attend_lost<C>(p, tile, warp * 16, lost);
#endif
}

KERNEL(attend_prefill_f16_32) { attend_prefill<f16, f16, 32>(p); }
KERNEL(attend_prefill_f16_64) { attend_prefill<f16, f16, 64>(p); }
KERNEL(attend_prefill_f16_128) { attend_prefill<f16, f16, 128>(p); }
KERNEL(attend_prefill_bf16_32) { attend_prefill<bf16, bf16, 32>(p); }
KERNEL(attend_prefill_bf16_64) { attend_prefill<bf16, bf16, 64>(p); }
KERNEL(attend_prefill_bf16_128) { attend_prefill<bf16, bf16, 128>(p); }
KERNEL(attend_prefill_int8_32) { attend_prefill<Cached8, f16, 32>(p); }
KERNEL(attend_prefill_int8_64) { attend_prefill<Cached8, f16, 64>(p); }
KERNEL(attend_prefill_int8_128) { attend_prefill<Cached8, f16, 128>(p); }
KERNEL(attend_prefill_fp8_32) { attend_prefill<CachedF8, f16, 32>(p); }
KERNEL(attend_prefill_fp8_64) { attend_prefill<CachedF8, f16, 64>(p); }
KERNEL(attend_prefill_fp8_128) { attend_prefill<CachedF8, f16, 128>(p); }
#ifdef HOPPER
// The tiles with the most keys run first, so that only short ones are left for the end of the
// launch.
template <class T, uint32_t B> DEVICE void attend_hopper(const AttendHopperParams &h) {
    SHARED(shared);
    const AttendTile tile = h.p.tiles[h.p.n_tiles - 1 - blockIdx.y];
    start_next();
    wait_for_last();
    if (tile.n > 0) HopperAttention<T, B>{shared, h, tile}.run();
}
KERNEL_WIDE(attend_hopper_f16_64) { attend_hopper<f16, 64>(p); }
KERNEL_WIDE(attend_hopper_f16_128) { attend_hopper<f16, 128>(p); }
KERNEL_WIDE(attend_hopper_bf16_64) { attend_hopper<bf16, 64>(p); }
KERNEL_WIDE(attend_hopper_bf16_128) { attend_hopper<bf16, 128>(p); }
#endif
