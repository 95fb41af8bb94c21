// Attention of generated rows to a chunk of 256 keys of a 16-bit or 8-bit cache, on tensor cores.
// Part of gpu.h.
//
// Each of eight warps has 32 keys, and goes its own way until the results of all are added up:
//   scores    operand A: the queries (16 rows); operand B: keys (8 columns). A query is the sum of
//             two 16-bit numbers, since one alone would lose what float32 activations have. Rows
//             0 .. 7 are the upper parts of eight heads, rows 8 .. 15 the lower parts. So the lower
//             parts cost no further product.
//   outputs   operand A: values, transposed (16 columns of the output); operand B: the weights (8
//             heads). The scores have the layout that operand B needs. Weights are sums of two
//             16-bit numbers, too, and have two products.
// With one query head to a KV head, seven eighths of this are products with zeros. They are still
// fewer instructions than float32 takes, whose sums must be brought together from 16 lanes.
//
// Two 16-bit numbers have 16 significant bits together (bf16) or 22 (f16). Of small numbers in f16
// the lower one is subnormal, and together they are off by up to 2^-25: harmless in queries, not in
// weights, which a power of two makes larger. A query beyond f16 becomes NaN, and its head is
// computed once more in float32. attend_prefill_* takes queries and weights as one number.

// The warps of a block, the keys of a warp, and the most query heads of a block.
constexpr uint32_t ATTEND_WARPS = 8, WARP_KEYS = 32, HEADS = GPU_ATTEND_HEADS;

// The type that tensor cores take for a cache of type C. F16: whether that is f16.
template <class C> struct TensorType {
    using type = f16;
    static constexpr bool F16 = true;
};
template <> struct TensorType<bf16> {
    using type = bf16;
    static constexpr bool F16 = false;
};

// What a warp does. B: head_stride rounded up to 64, 128 or 256; columns from head_stride on hold
// zero bytes, which are finite numbers in every type, and nothing comes of them.
//
// The warp has its own part of shared memory, with SLOTS tiles. A tile has 16 keys or values (a
// page) and up to 128 columns. All slots are filled at the beginning, in the order in which tiles
// are needed: first the tiles of the keys, then the tiles of the values. (The last slot is filled
// when the queries that lie there have been read.) A slot takes the next tile when its own tile has
// been used.
template <class C, uint32_t B> struct Chunk {
    using T = typename TensorType<C>::type;
    static constexpr uint32_t PAGES = WARP_KEYS / GPU_PAGE, COLUMNS = B < 128 ? B : 128,
                              HALVES = B / COLUMNS, STEPS = COLUMNS / 16;
    // PIECES: pieces of 16 bytes in a row of a tile. TILE: bytes of a tile.
    static constexpr uint32_t PIECES = COLUMNS * sizeof(C) / 16, TILE = GPU_PAGE * PIECES * 16,
                              TILES = 2 * PAGES * HALVES;
    static constexpr uint32_t MOST = B == 256 ? 8192 : GPU_ATTEND_SLOTS / ATTEND_WARPS,
                              SLOTS = TILES * TILE < MOST ? TILES : MOST / TILE;
    // RESULT: the numbers that a warp leaves for the other warps for each head: B sums of weighted
    // values, the largest score, the sum of the weights, the factor for the values, and a zero.
    static constexpr uint32_t RESULT = B + 4, RESULTS = HEADS * RESULT * 4;
    // Bytes of a warp's tiles, and later of its results.
    static constexpr uint32_t WARP =
        (SLOTS * TILE > RESULTS ? SLOTS * TILE : RESULTS + 127) & ~127u;

    // What the host asks for (params.h).
    static constexpr uint32_t ALL = 512 * B * sizeof(C) / ATTEND_WARPS;
    static_assert(B == 256 ? ATTEND_WARPS * WARP + GPU_ATTEND_OTHER + 32 * B == GPU_ATTEND_256
                           : WARP == (ALL < MOST ? ALL : MOST));
    // What a block may have on compute capability 8.6 and 8.9.
    static_assert(GPU_ATTEND_SLOTS + GPU_ATTEND_OTHER <= 99 << 10);

    const Block &b;
    unsigned char *const shared;
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, own = warp * WARP;
    const uint32_t first = blockIdx.y * GPU_CHUNK + warp * WARP_KEYS; // the warp's first key
    const uint32_t seen = b.seen(first);                              // a bit for each of its keys
    // Where this lane's first piece of each page is, in keys.k and in a tile.
    static_assert(PAGES == 2, "page is not looked up by a number known at run time only");
    size_t page[PAGES] = {};
    const uint32_t to = offset_of(lane / PIECES, lane % PIECES);
    // What this lane gives to ldmatrix: its row, and piece 0 or 1.
    const uint32_t matrix = own + offset_of(lane / 16 * 8 + lane % 8, lane / 8 % 2);

    // Offsets are swizzled so that ldmatrix reads from each bank once: the lower bits of the piece
    // change with the row. So other offsets are found from these two by exclusive or.
    DEVICE_MEMBER static uint32_t offset_of(uint32_t row, uint32_t piece) {
        return PIECES == 4 ? swizzle64(row, piece) : row * PIECES * 16 + ((piece ^ (row & 7)) << 4);
    }
    // The offset of another piece of the row. `at` is the offset of piece 0 or 1, and `further` is
    // even.
    DEVICE_MEMBER static uint32_t further_piece(uint32_t at, uint32_t further) {
        return (at ^ further % 8 << 4) + further / 8 * 128;
    }
    // The queries lie in the last slots of the warps, two rows in each, until all warps have loaded
    // them. In heads of more than 128 numbers they would take too many registers, so they stay.
    static constexpr bool STAY = B == 256;
    DEVICE_MEMBER static uint32_t query_at(uint32_t row, uint32_t piece) {
        return (STAY ? ATTEND_WARPS * WARP + GPU_ATTEND_OTHER + row * B * 2
                     : row / 2 * WARP + (SLOTS - 1) * TILE + row % 2 * B * 2) +
               ((piece ^ (row & 7)) << 4);
    }
    DEVICE_MEMBER void load_query(uint32_t (&q)[4], uint32_t step) const {
        ldmatrix(q, shared + further_piece(query_at(lane % 16, lane / 16), 2 * step));
    }
    // The scales of the warp's keys, then the scales of its values.
    DEVICE_MEMBER float *units() const {
        return (float *)(shared + ATTEND_WARPS * WARP) + warp * 2 * WARP_KEYS;
    }

    DEVICE_MEMBER void store_queries() const {
        constexpr uint32_t AT_ONCE = ATTEND_WARPS * 32 / (B / 2); // heads
        const uint32_t d = threadIdx.x % (B / 2) * 2;
        // In operand B, a lane has four neighbouring codes of 8 bits.
        const uint32_t place = SCALED<C> ? permuted_of(d) : d;
        UNROLL
        for (uint32_t i = 0; i < HEADS; i += AT_ONCE) {
            const uint32_t h = i + threadIdx.x / (B / 2);
            const float *const from = b.query(h) + d;
            const float x = h < b.count && d < b.p.head_dim ? from[0] : 0,
                        y = h < b.count && d + 1 < b.p.head_dim ? from[1] : 0;
            const uint32_t high = pair_of(x, y, T()),
                           low = pair_of(x - to_float(T{(uint16_t)high}),
                               y - to_float(T{(uint16_t)(high >> 16)}), T());
            *(uint32_t *)(shared + query_at(h, place / 8) + place % 8 * 2) = high;
            *(uint32_t *)(shared + query_at(h + HEADS, place / 8) + place % 8 * 2) = low;
        }
    }
    // Begins to copy a tile, or nothing if there is none. Each call is one group of copies.
    DEVICE_MEMBER void copy(uint32_t tile) const {
        if (tile < TILES) {
            constexpr uint32_t ROWS = 32 / PIECES; // at once
            const uint32_t i = tile / HALVES % PAGES, half = tile % HALVES;
            const C *from = (const C *)(tile < TILES / 2 ? b.p.k_pages : b.p.v_pages) +
                            (i ? page[1] : page[0]) + half * COLUMNS;
            // What is not seen may never have been written. Its bytes become zero, a finite number
            // in every type, because 0 * NaN would be NaN.
            const uint32_t column = half * COLUMNS + lane % PIECES * (16 / sizeof(C)),
                           mask = column < b.p.head_stride ? seen >> lane / PIECES : 0;
            UNROLL
            for (uint32_t j = 0; j < GPU_PAGE / ROWS; j++) {
                const uint32_t row = j * ROWS, swizzled = PIECES == 4 ? to : to ^ (row & 7) << 4;
                cp_async_if(mask & 1u << (i * GPU_PAGE + row),
                    shared + (own + swizzled) + (tile % SLOTS * TILE + row * PIECES * 16), from);
                from += ROWS * b.p.head_stride;
            }
        }
        cp_commit();
    }
    // Waits until a tile is there, for all lanes. Returns its offset.
    DEVICE_MEMBER uint32_t arrived(uint32_t tile) const {
#ifdef PLANT_WEAK_WAIT_ATTEND
        cp_wait<SLOTS>();
#else
        cp_wait<SLOTS - 1>();
#endif
        warp_sync();
        return tile % SLOTS * TILE;
    }
    DEVICE_MEMBER void used(uint32_t tile) const {
        if (tile + SLOTS < TILES) warp_sync();
        copy(tile + SLOTS);
    }

    DEVICE_MEMBER void run() {
        const Keys<C> keys = b.keys<C>();
        const size_t kv_head = keys.k - (const C *)b.p.k_pages,
                     at = lane / PIECES * b.p.head_stride + lane % PIECES * (16 / sizeof(C));
        size_t head_at[PAGES];
        UNROLL
        for (uint32_t i = 0; i < PAGES; i++) {
            // A page of which no key is seen may not be in the table.
            const bool has = seen >> i * GPU_PAGE & 0xffff;
            head_at[i] = kv_head;
            if (has) head_at[i] += keys.pages[first / GPU_PAGE + i] * keys.page_stride;
            page[i] = head_at[i] + at;
        }
        wait_for_last();
        store_queries();
        if (seen) {
            UNROLL
            for (uint32_t tile = 0; tile + 1 < SLOTS; tile++) copy(tile);
            if constexpr (SCALED<C>) {
                const size_t of = lane < GPU_PAGE ? head_at[0] : head_at[1];
                const bool has = seen >> lane & 1;
                units()[lane] =
                    has ? unit_of((const C *)b.p.k_pages + of, b.p.head_stride, lane % GPU_PAGE)
                        : 0;
                units()[WARP_KEYS + lane] =
                    has ? unit_of((const C *)b.p.v_pages + of, b.p.head_stride, lane % GPU_PAGE)
                        : 0;
            }
        }
        block_sync();
        uint32_t q[STAY ? 2 : B / 16][4];
        if (!STAY) {
            UNROLL
            for (uint32_t step = 0; step < B / 16; step++) load_query(q[step], step);
#ifndef PLANT_QUERIES_OVERWRITTEN
            block_sync();
#endif
        }
        if (seen) {
            copy(SLOTS - 1);
            attend(q);
        }
    }

    // Scores of head g with keys c and c + 1 of each eight of the warp's. (g, c: as in attend.)
    template <uint32_t N>
    DEVICE_MEMBER void scores(float (&s)[WARP_KEYS / 8][2], uint32_t (&q)[N][4]) const {
        UNROLL
        for (uint32_t i = 0; i < PAGES; i++) {
            // Two sums for each, so that fewer products wait for one another.
            float sums[2][2][4] = {};
            UNROLL_BY(STAY ? 1 : HALVES)
            for (uint32_t half = 0; half < HALVES; half++) {
                const uint32_t tile = arrived(i * HALVES + half);
                UNROLL
                for (uint32_t j = 0; j < PIECES; j += 2) {
                    uint32_t k[4];
                    ldmatrix(k, shared + further_piece(matrix, j) + tile);
                    if constexpr (SCALED<C>) {
                        const uint32_t step = half * STEPS + j;
                        if (STAY) load_query(q[0], step), load_query(q[1], step + 1);
                        UNROLL
                        for (uint32_t e = 0; e < 4; e++)
                            mma(sums[e % 2][e / 2], q[STAY ? e % 2 : step + e % 2],
                                neighbours_of(k[e], 0, C()), neighbours_of(k[e], 2, C()), T());
                    } else {
                        const uint32_t step = half * STEPS + j / 2, at = STAY ? step % 2 : step;
                        if (STAY) load_query(q[at], step);
                        mma(sums[step % 2][0], q[at], k[0], k[1], T());
                        mma(sums[step % 2][1], q[at], k[2], k[3], T());
                    }
                }
                used(i * HALVES + half);
            }
            UNROLL
            for (uint32_t n = 0; n < 2; n++) UNROLL
            for (uint32_t e = 0; e < 2; e++)
                s[i * 2 + n][e] =
                    (sums[0][n][e] + sums[1][n][e]) + (sums[0][n][e + 2] + sums[1][n][e + 2]);
        }
    }

    // Leaves the results of the warp's keys where its first tiles were.
    template <uint32_t N> DEVICE_MEMBER void attend(uint32_t (&q)[N][4]) const {
        const uint32_t g = lane / 4, c = lane % 4 * 2;
        float s[WARP_KEYS / 8][2];
        scores(s, q);
        // Four neighbouring lanes have the scores of a head. fmaxf ignores a score that is NaN, but
        // the sum becomes NaN.
        float max = -INFINITY_F, sum = 0, most = 0;
        UNROLL
        for (uint32_t n = 0; n < WARP_KEYS / 8; n++) UNROLL
        for (uint32_t e = 0; e < 2; e++) {
            if (SCALED<C>) s[n][e] *= units()[n * 8 + c + e];
            s[n][e] =
                seen >> c & 1u << (n * 8 + e) ? s[n][e] * b.p.scale * 1.44269504f : -INFINITY_F;
            max = fmaxf(max, s[n][e]);
        }
        max = group_max(max, 4);
        const float base = max == -INFINITY_F ? 0 : max;
        UNROLL
        for (uint32_t n = 0; n < WARP_KEYS / 8; n++) UNROLL
        for (uint32_t e = 0; e < 2; e++) {
            s[n][e] = exp2_fast(s[n][e] - base);
            sum += s[n][e];
            if (SCALED<C>) s[n][e] *= units()[WARP_KEYS + n * 8 + c + e];
            most = fmaxf(most, s[n][e]);
        }
        sum = group_sum(sum, 4);
        // f16 has few exponents, so a power of two brings the largest weight to 2^12. Where values
        // have no scales, the largest weight is 1.
        uint32_t exponent = TensorType<C>::F16 ? 127 : 139;
        if (SCALED<C>) exponent = as_bits(group_max(most, 4)) >> 23;
        exponent = exponent < 27 ? 27 : exponent > 227 ? 227 : exponent;
        const float factor = as_float((266 - exponent) << 23);
        // Operands B of each page: first the upper parts of the weights, then the lower parts.
        uint32_t weights[PAGES][4];
        UNROLL
        for (uint32_t n = 0; n < WARP_KEYS / 8; n++) {
            const float x = s[n][0] * factor, y = s[n][1] * factor;
            const uint32_t pair = pair_of(x, y, T());
            weights[n / 2][n % 2] = pair;
            weights[n / 2][2 + n % 2] = pair_of(
                x - to_float(T{(uint16_t)pair}), y - to_float(T{(uint16_t)(pair >> 16)}), T());
        }

        // Rows g and g + 8 of each sixteen of operand A are columns; c and c + 1 are heads. With
        // codes of 8 bits, a lane gets two neighbouring columns: these are rows g and g + 8.
        float o[B / 16][4] = {};
        UNROLL_BY(STAY ? 1 : PAGES)
        for (uint32_t i = 0; i < PAGES; i++) {
            uint32_t w[4];
            UNROLL
            for (uint32_t e = 0; e < 4; e++) w[e] = i ? weights[1][e] : weights[0][e];
            UNROLL
            for (uint32_t half = 0; half < HALVES; half++) {
                const uint32_t at = (PAGES + i) * HALVES + half;
                const uint32_t tile = arrived(at);
                UNROLL
                for (uint32_t step = 0; step < STEPS; step += 2) {
                    uint32_t v[2][4];
                    if constexpr (SCALED<C>) {
                        uint32_t codes[4];
                        ldmatrix_trans(codes, shared + further_piece(matrix, step) + tile);
                        UNROLL
                        for (uint32_t e = 0; e < 8; e++)
                            v[e / 4][e % 4] =
                                alternate_of(codes[e / 4 + e % 4 / 2 * 2], (int)(e % 2), C());
                    } else {
                        ldmatrix_trans(v[0], shared + further_piece(matrix, 2 * step) + tile);
                        ldmatrix_trans(v[1], shared + further_piece(matrix, 2 * step + 2) + tile);
                    }
                    float (&left)[4] = o[half * STEPS + step],
                          (&right)[4] = o[half * STEPS + step + 1];
                    mma(left, v[0], w[0], w[1], T());
                    mma(right, v[1], w[0], w[1], T());
                    mma(left, v[0], w[2], w[3], T());
                    mma(right, v[1], w[2], w[3], T());
                }
                used(at);
            }
        }
        warp_sync(); // all lanes have read the last tile
        float *const result = (float *)(shared + own);
        UNROLL
        for (uint32_t e = 0; e < 2; e++) {
            if (c + e >= b.count) continue;
            float *const row = result + (c + e) * RESULT;
            UNROLL
            for (uint32_t i = 0; i < B / 16; i++)
                if (SCALED<C>)
                    store_pair(row + i * 16 + 2 * g, o[i][e], o[i][2 + e]);
                else
                    row[i * 16 + g] = o[i][e], row[i * 16 + g + 8] = o[i][2 + e];
        }
        if (c == 0 && g < b.count)
            store16(
                result + g * RESULT + B, words_of({max, sum, as_float((exponent - 12) << 23), 0}));
    }
};

// Adds up what the warps have left. A thread has eight columns of a head. `warp_bytes` and
// `columns` are WARP and B of the chunk.
template <class C> DEVICE void merge(
    const Block &b, const unsigned char *shared, uint32_t warp_bytes, uint32_t columns) {
    const uint32_t lane = threadIdx.x % 32, threads = columns / 8; // of a head
    // The keys of the chunk that the row sees, and the first and the last warp that has some.
    const uint32_t begin = larger(b.begin, blockIdx.y * GPU_CHUNK),
                   end = smaller(b.end, (blockIdx.y + 1) * GPU_CHUNK),
                   first_warp = begin / WARP_KEYS % ATTEND_WARPS,
                   last_warp = (end - 1) / WARP_KEYS % ATTEND_WARPS;
    UNROLL_BY(1)
    for (uint32_t i = threadIdx.x; i - lane < b.count * threads; i += ATTEND_WARPS * 32) {
        const uint32_t h = i / threads, d = i % threads * 8;
        const bool has = h < b.count && d < b.p.head_stride;
        const unsigned char *const from = shared + (has ? h * (columns + 4) * 4 : 0);
        float max = -INFINITY_F, sum = 0, o[8] = {};
        Words4 tail[ATTEND_WARPS];
        UNROLL
        for (uint32_t w = 0; w < ATTEND_WARPS; w++) {
            tail[w] = words_of({-INFINITY_F, 0, 0, 0});
            if (w < first_warp || w > last_warp) continue;
            tail[w] = load_shared(from + w * warp_bytes + columns * 4);
            max = fmaxf(max, as_float(tail[w].w[0]));
        }
        const float base = max == -INFINITY_F ? 0 : max;
        UNROLL
        for (uint32_t w = 0; w < ATTEND_WARPS; w++) {
            if (w < first_warp || w > last_warp) continue;
            const float weight = exp2_fast(as_float(tail[w].w[0]) - base),
                        factor = weight * as_float(tail[w].w[2]);
            sum = fmaf(as_float(tail[w].w[1]), weight, sum);
            float part[8];
            const float *const values = (const float *)(from + w * warp_bytes) + (has ? d : 0);
            fresh4(part, values), fresh4(part + 4, values + 4);
            UNROLL
            for (uint32_t e = 0; e < 8; e++) o[e] = fmaf(part[e], factor, o[e]);
        }
        // The lower part of a number may be zero or have the other sign. So infinity times the
        // number is infinite, but the sum of infinity times the parts may be NaN. Where a result is
        // NaN, float32 says what it is. The threads of a head are neighbours in a warp.
        bool lost = false;
        UNROLL
        for (uint32_t e = 0; e < 8; e++) lost |= o[e] != o[e];
        uint32_t lanes = warp_ballot(has && lost);
#ifdef PLANT_LOST_ATTEND
        lanes = 0;
#endif
        UNROLL_BY(1)
        for (uint32_t part = 0; lanes && part < 32 / threads; part++) {
            if ((lanes >> part * threads & ~0u >> (32 - threads)) == 0) continue;
            float exact[8], most, total;
            attend_exactly(b.keys<C>(), b.query((i - lane) / threads + part), b.p.head_dim,
                lane % threads, threads, begin, end, b.p.scale, exact, most, total);
            if (lane / threads != part) continue;
            max = most, sum = total;
            UNROLL
            for (uint32_t e = 0; e < 8; e++) o[e] = exact[e];
        }
        if (has) b.leave(h, d, o, max, sum);
    }
}
