// Decode: multiplies weights by up to GPU_BATCH_ROWS activation rows, which are already rounded, on
// tensor cores. Part of gpu.h.
//
// Every block reads all activation rows, and that is much memory traffic: for each column of K, 32
// activation rows are 64 bytes, while 128 weight rows of 4-bit codes are 72 bytes with their
// scales. Therefore a block has many weight rows, and a small matrix gets enough blocks by split-K.
// Each warp multiplies sixteen of the block's weight rows over the whole of the block's K. Weights
// go from memory to registers as in few.h, or through a ring. Activations come through shared
// memory, where all eight warps read them.
//
// Batch invariance: this code adds in the same order as few.h. There, each of eight warps sums
// every eighth line (a class of lines). Here one warp computes the sums of the eight classes one
// after another and joins them in the same order. So neither NT nor the number of blocks that share
// a K changes the bits. With many rows, registers do not suffice for the sums of two classes, so
// finished sums wait in shared memory until they are joined.
//
// A kernel has more than 64 KB of machine code, because it contains the loop over K and the code
// behind it three times: for R = 16, 32 and 64 activation rows (params.h). A launch runs one of the
// three.

// n: the number of blocks that share a K. scratch: the memory in which they exchange sums
// (params.h).
struct Split {
    void *scratch;
    uint32_t n;
};

// NT: number of tiles of eight activation rows.
template <class W, int NT> struct Batch {
    using L = Line<W>;
    using T = typename L::T;
    static constexpr uint32_t ROWS = 8 * NT, NONE = ~0u;
    // A stage holds the activations of one line of weights; for 4-bit codes, of half a line. RING:
    // whether weights come through shared memory, too (few.h says why); with 64 rows there is no
    // room. A slot of the ring holds a line of weights. The line is asked for together with the
    // activations of its first part.
    static constexpr bool RING = L::RING && NT < 8;
    static constexpr uint32_t STEPS = L::STEPS < 4 ? L::STEPS : 4, PARTS = L::STEPS / STEPS,
                              STAGES = RING ? (NT == 4 && QUANTISED<W> && PARTS == 1 ? 2 : 3)
                                       : QUANTISED<W> && NT == 8 ? 2
                                                                 : 4,
                              SLOTS = RING ? (STAGES + PARTS - 2) / PARTS + 1 : 0,
                              RING_BYTES = SLOTS * L::SLOT;
    // DEPTH: lines in flight. Two lines of codes would spill registers where a thread has 32 sums,
    // that is with NT = 8. With k8, whose sums are scaled twice as often, they would also spill
    // with 16 sums, that is with NT = 4.
    static constexpr uint32_t DEPTH = QUANTISED<W> && (NT == 8 || (NT == 4 && L::SIXTEENS)) ? 1 : 2;
    // BREAKS: whether each step of a line asks whether it lies within K. Rows of 16-bit numbers
    // need this, because they may end with a part of a line. Quantised rows end with whole lines,
    // and all steps of a whole line can be multiplied. Quantised formats ask only where registers
    // are short.
    static constexpr bool BREAKS = !L::SCALED || L::SIXTEENS || NT >= 4;
    static constexpr uint32_t PITCH = STEPS * 64, STAGE_BYTES = ROWS * PITCH,
                              LEVEL_BYTES = NT * 4096;
    static_assert(
        RING || STAGES * STAGE_BYTES ==
                    NT * (QUANTISED<W> && NT < 8 ? GPU_BATCH_SHARED_CODES : GPU_BATCH_SHARED),
        "params.h");

    // The offset of 16-byte piece `piece` of a row in a stage. It is swizzled so that lanes that
    // read at the same time use all banks.
    DEVICE_MEMBER static uint32_t offset_of(uint32_t row, uint32_t piece) {
        return row * PITCH + (piece ^ (L::GAP == 4 ? (row & 1) << 2 : (row & 3) << 1)) * 16;
    }
    // The lane's eight columns of a step, in row g = lane / 4 of tile n.
    DEVICE_MEMBER static Words4 get(const unsigned char *stage, uint32_t n, uint32_t step) {
        const uint32_t row = n * 8 + threadIdx.x % 32 / 4, t = threadIdx.x % 4;
        if (L::GAP == 4) return load_shared(stage + offset_of(row, step * 4 + t));
        const Words2 low = load_shared8(stage + offset_of(row, step * 4 + t / 2) + t % 2 * 8),
                     high = load_shared8(stage + offset_of(row, step * 4 + 2 + t / 2) + t % 2 * 8);
        return Words4{{low.w[0], low.w[1], high.w[0], high.w[1]}};
    }
    // The address of this thread's four sums of tile n in the array of sums at `to`.
    DEVICE_MEMBER static unsigned char *own(unsigned char *to, uint32_t n) {
        return to + (n * 256 + threadIdx.x) * 16;
    }
    DEVICE_MEMBER static void save(unsigned char *to, const float (&sums)[NT][4]) {
        UNROLL
        for (uint32_t n = 0; n < NT; n++) store16(own(to, n), words_of(sums[n]));
    }
    DEVICE_MEMBER static void join(float (&sums)[4], const Words4 &before) {
        UNROLL
        for (int e = 0; e < 4; e++) sums[e] = as_float(before.w[e]) + sums[e];
    }
    DEVICE_MEMBER static void join_saved(float (&sums)[NT][4], unsigned char *from) {
        UNROLL
        for (uint32_t n = 0; n < NT; n++) join(sums[n], load_shared(own(from, n)));
    }

    // Computes the block's tile. Of the blocks that share a K, the last one to finish runs the
    // epilogue.
    template <class Pairs> DEVICE_MEMBER static void run(unsigned char *shared,
        const uint32_t *table, const void *w, uint32_t w_stride, const void *x, uint32_t x_stride,
        uint32_t n_rows, uint32_t k, const Split &split, const Pairs &pairs) {
        const uint32_t t = threadIdx.x, lane = t % 32, warp = t / 32, first = blockIdx.x * ROWS;
        const uint32_t steps = (k + 31) / 32, lines = (steps + L::STEPS - 1) / L::STEPS,
                       codes = L::codes(k);
        // This block sums the classes of lines begin .. end.
        const uint32_t begin = blockIdx.z * (8 / split.n), end = begin + 8 / split.n;
        auto next = [&](uint32_t line) {
            if (line + 8 < lines) return line + 8;
            const uint32_t other = line % 8 + 1;
            return other < end && other < lines ? other : NONE;
        };
        const uint32_t start = begin < lines ? begin : NONE;
        start_next();
        uint32_t rows[2];
        const uint32_t j = warp * 8 + lane / 4;
        pairs.rows(rows, j);
        const unsigned char *const from[2] = {
            row_of<W>(w, w_stride, rows[0]), row_of<W>(w, w_stride, rows[1])};
        // Without a ring, lines come to registers. With a DEPTH of 2, the other line is asked for
        // after the first step of one line has been multiplied. Asking for it earlier would turn
        // the wait for the one line into a wait for both.
        L ahead[DEPTH];
        uint32_t to_load = start;
        auto load = [&](L &to) {
            if (to_load == NONE) return;
            to.load(from, to_load, steps - to_load * L::STEPS, codes);
            to_load = next(to_load);
        };
        unsigned char *const ring = shared + STAGES * STAGE_BYTES;
        uint32_t slot_to_fill = 0;
        auto ask = [&] {
            if constexpr (RING) {
                if (to_load == NONE) return;
                L::ask(ring + slot_to_fill * L::SLOT, from, to_load, steps - to_load * L::STEPS,
                    codes);
                slot_to_fill = slot_to_fill + 1 == SLOTS ? 0 : slot_to_fill + 1;
                to_load = next(to_load);
            }
        };
        if constexpr (RING) {
            UNROLL
            for (uint32_t s = 0; s + 1 < STAGES; s += PARTS) ask();
        } else {
            load(ahead[0]);
        }
        wait_for_last();
        uint32_t to_copy = start;
        // A thread copies the same piece of each EACH-th row. Pieces that do not exist are zero.
        constexpr uint32_t EACH = 256 / (STEPS * 4);
        const uint32_t piece = t % (STEPS * 4), row = t / (STEPS * 4);
        const uint32_t source = (first + row) * x_stride + piece * 8;
        auto copy = [&](uint32_t stage, uint32_t part) {
            if (to_copy != NONE) {
                const uint32_t column = (to_copy * PARTS + part) * (STEPS * 32);
                unsigned char *const to = shared + stage * STAGE_BYTES + offset_of(row, piece);
                // With 64 rows and 4-bit codes, unrolling spills registers.
                UNROLL_BY(NT == 8 ? 1 : 2)
                for (uint32_t i = 0; i < ROWS; i += EACH)
                    if (ROWS >= EACH || row < ROWS)
                        cp_async(to + i * PITCH, (const T *)x + (source + i * x_stride + column),
                            first + row + i < n_rows && column + piece * 8 < steps * 32);
                if (part == PARTS - 1) to_copy = next(to_copy);
            }
            cp_commit();
        };
        UNROLL
        for (uint32_t s = 0; s + 1 < STAGES; s++) copy(s, s % PARTS);

        float sums[NT][4] = {};
        uint32_t stage = 0, slot = 0;
        auto multiply = [&](L &weights, uint32_t line, L &other) {
            UNROLL
            for (uint32_t part = 0; part < PARTS; part++) {
#ifdef PLANT_WEAK_WAIT_BATCH
                cp_wait<STAGES - 1>();
#else
                cp_wait<STAGES - 2>();
#endif
#ifndef PLANT_NO_BARRIER_BATCH
                block_sync();
#endif
                if constexpr (RING) {
                    if (part == 0) {
                        weights.take(ring + slot * L::SLOT, line);
                        slot = slot + 1 == SLOTS ? 0 : slot + 1;
                    }
                    if ((part + STAGES - 1) % PARTS == 0) ask();
                }
                // Copies into the stage that all warps have finished reading.
                copy((stage + STAGES - 1) % STAGES, (part + STAGES - 1) % PARTS);
                UNROLL
                for (uint32_t s = 0; s < STEPS; s++) {
                    const uint32_t step = part * STEPS + s;
                    // Quantised rows end with whole lines, and columns beyond K have the scale
                    // zero. But where registers are short, the steps of a line must not mingle.
                    if (BREAKS && line * L::STEPS + step >= steps) break;
                    uint32_t a[2][4];
                    weights.fragments(a, step, table);
                    UNROLL
                    for (uint32_t n = 0; n < NT; n++)
                        multiply_step(
                            sums[n], weights, a, step, get(shared + stage * STAGE_BYTES, n, s));
                    if (!RING && DEPTH == 2 && step == 0) load(other);
                }
                stage = (stage + 1) % STAGES;
            }
        };
        // Runs after the last line of a class. The sums of two classes are joined to a quarter, and
        // the four quarters are added up. So a block that has all of K keeps two levels of waiting
        // sums. If four blocks share a K, a block keeps only the first level; if eight blocks share
        // it, a block keeps none.
        unsigned char *const even = ring + RING_BYTES, *const total = even + LEVEL_BYTES;
        auto finish = [&](uint32_t sum_of) {
            if (split.n < 8 && sum_of % 2 == 0) save(even, sums);
            if (split.n < 8 && sum_of % 2 == 1) {
                join_saved(sums, even);
                if (split.n == 1) {
                    if (sum_of > 1) join_saved(sums, total);
                    if (sum_of < 7) save(total, sums);
                }
            }
            if (sum_of + 1 == end) return;
            UNROLL
            for (int n = 0; n < NT; n++) UNROLL
            for (int e = 0; e < 4; e++) sums[n][e] = 0;
        };
        for (uint32_t line = start; line != NONE;) {
            UNROLL
            for (uint32_t d = 0; d < (RING ? 1 : DEPTH); d++) {
                if (line == NONE) break;
                multiply(ahead[d], line, ahead[(d + 1) % DEPTH]);
                if (!RING && DEPTH == 1) load(ahead[d]);
                if (line + 8 >= lines) finish(line % 8);
                line = next(line);
            }
        }
        // Classes without lines end too.
        for (uint32_t of = larger(begin, lines); of < end; of++) finish(of);
        cp_wait<0>();

        if (split.n > 1) {
            const uint32_t tile = blockIdx.y * ((n_rows + ROWS - 1) / ROWS) + blockIdx.x;
            unsigned char *parts = (unsigned char *)split.scratch + GPU_SPLIT_BELOW * 4 +
                                   (size_t)tile * split.n * LEVEL_BYTES;
            save(parts + blockIdx.z * LEVEL_BYTES, sums);
            // The last block to finish this tile adds the parts up.
#ifndef PLANT_NO_BARRIER_SPLIT
            block_sync();
#endif
            uint32_t *const counter = (uint32_t *)split.scratch + tile;
            if (!is_last_block(counter, split.n, (uint32_t *)shared)) return;
            const auto column = pairs.column(j);
            // The loads of all parts of a tile are in flight before the first part is added.
            auto join_parts = [&](auto count) {
                constexpr uint32_t N = decltype(count)::value;
                UNROLL_BY(1)
                for (uint32_t n = 0; n < NT; n++) {
                    const uint32_t i = first + n * 8 + lane % 4 * 2;
                    const auto row = pairs.row(i), next = pairs.row(i + 1);
                    const auto found = pairs.find(row, column), other = pairs.find(next, column);
                    Words4 part[N];
                    UNROLL
                    for (uint32_t s = 0; s < N; s++)
                        part[s] = load_fenced16(own(parts + s * LEVEL_BYTES, n));
                    float sum[4];
                    UNROLL
                    for (uint32_t s = 0; s < N; s += N / 4) {
                        UNROLL
                        for (int e = 0; e < 4; e++) {
                            float quarter = as_float(part[s].w[e]);
                            if (N == 8) quarter += as_float(part[s + N / 8].w[e]);
                            sum[e] = s == 0 ? quarter : sum[e] + quarter;
                        }
                    }
                    pairs.put(row, column, found, sum[0], sum[2]);
                    pairs.put(next, column, other, sum[1], sum[3]);
                }
            };
            if (split.n == 4)
                join_parts(Count<4>());
            else
                join_parts(Count<8>());
            return;
        }
        const auto column = pairs.column(j);
        constexpr uint32_t AT_ONCE = NT < 4 ? NT : 4;
        UNROLL
        for (uint32_t n = 0; n < NT; n += AT_ONCE) {
            decltype(pairs.row(0u)) rows[2 * AT_ONCE];
            decltype(pairs.find(rows[0], column)) found[2 * AT_ONCE];
            UNROLL
            for (uint32_t e = 0; e < 2 * AT_ONCE; e++) {
                rows[e] = pairs.row(first + (n + e / 2) * 8 + lane % 4 * 2 + e % 2);
                found[e] = pairs.find(rows[e], column);
            }
            UNROLL
            for (uint32_t e = 0; e < 2 * AT_ONCE; e++)
                pairs.put(
                    rows[e], column, found[e], sums[n + e / 2][e % 2], sums[n + e / 2][e % 2 + 2]);
        }
    }
};

template <class W, class Pairs> DEVICE void batch_rows(unsigned char *shared, const void *w,
    uint32_t w_stride, const void *x, uint32_t stride, uint32_t n_rows, uint32_t k,
    const Split &split, const Pairs &pairs) {
    const uint32_t *table = pair_table<W>(shared);
    auto run = [&](auto tiles) {
        Batch<W, decltype(tiles)::value>::run(
            shared + GPU_TABLE_BYTES, table, w, w_stride, x, stride, n_rows, k, split, pairs);
    };
    if (n_rows <= 16)
        run(Count<2>());
    else if (n_rows <= 32)
        run(Count<4>());
    else
        run(Count<8>());
}
