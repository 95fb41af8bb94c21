// Decode: multiplies weights by up to eight activation rows on tensor cores. Part of gpu.h.
//
// Weights are operand A of mma.m16n8k16: m counts weight rows and n counts activation rows. So
// eight activation rows cost no more than one.
//
// An mma does not care which matrix column is which k, as long as both operands agree. The
// assignment here lets a lane take its fragment of operand A from 16-byte pieces of the same
// matrices that prefill reads, so lanes exchange no weights. A line is 128 bytes of a weight row:
// 64 columns of 16 bits, 128 of 8, or 256 of 4. A lane has two pieces of it: t and t + 4, where t =
// lane % 4. In each step of 32 columns (two mmas), a lane has four columns from START * t on and
// four from START * t + GAP on.
//
// Batch invariance: every kernel computes an output in the same order, for any number of rows.
// - Each warp w of eight runs the mmas over lines w, w + 8, .. in turn. For quantised weights, the
//   sum of each step (k6 and k8: of each half of a step) starts from zero, is scaled, and is added
//   in float32; before that, for k4, k5 and uint4, the step's minimum times its sum of activations
//   is subtracted.
// - The sums of warps 2i and 2i + 1 are added, for i = 0 .. 3.
// - These four sums are added in ascending order.
// The columns of an mma do not affect each other. A row is rounded to 16 bits either as prepare.cu
// does it, with the same function for the scale of its norm, or in the kernel that produced the row
// (attention, ffn_up). One row alone is a product with n = 8 as well: a separate dot product would
// round differently. The seven idle columns cost nothing where memory is the limit.

// The number of lines in a ring (see `few`) for floats and 8-bit codes. A fourth line made a step
// of one row 0.6 (int8) to 0.8 % (bf16) shorter on an H100. Machine code for other architectures
// has three lines, because four do not fit where a multiprocessor has 100 KB of shared memory. The
// emulator has three lines too.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
constexpr uint32_t FEW_SLOTS = GPU_FEW_SLOTS_90;
#else
constexpr uint32_t FEW_SLOTS = GPU_FEW_SLOTS;
#endif

// One thread's part of a row of `width` numbers, in a block of 256 threads. It covers SPAN columns
// from `first` on; of each 1024 columns the thread has four neighbouring ones. Columns beyond the
// width are zero, whatever the padding holds.
//
// No load depends on a condition, so all loads are in flight together. An earlier loop asked before
// each load whether the column exists. There each load waited for the previous one, and norms took
// 9 us on an H100. N is the number of loads: 4 where registers suffice for the loaded numbers.
template <uint32_t N> struct RowPart {
    static constexpr uint32_t LOADS = N, SPAN = N * 1024;
    float v[LOADS][4];

    DEVICE_MEMBER static uint32_t column(uint32_t first, uint32_t i) {
        return first + i * 1024 + threadIdx.x * 4;
    }
    // `load4_from(v, at)` loads four numbers from column `at` on, which is less than the width.
    template <class Load>
    DEVICE_MEMBER void load(uint32_t first, uint32_t width, const Load &load4_from) {
        UNROLL
        for (uint32_t i = 0; i < LOADS; i++)
            load4_from(v[i], column(first, i) < width ? column(first, i) : 0);
        UNROLL
        for (uint32_t i = 0; i < LOADS; i++) UNROLL
        for (uint32_t e = 0; e < 4; e++)
            if (column(first, i) + e >= width) v[i][e] = 0;
    }
    // Numbers that the previous launch may have written.
    DEVICE_MEMBER void load_row(const float *x, uint32_t first, uint32_t width) {
        load(first, width, [&](float (&v)[4], uint32_t at) { fresh4(v, x + at); });
    }
    DEVICE_MEMBER void load_norm(const float *norm, uint32_t first, uint32_t width) {
        load(first, width, [&](float (&v)[4], uint32_t at) { load4(v, norm + at); });
    }
    DEVICE_MEMBER void add_squares(float &square) const {
        UNROLL
        for (uint32_t i = 0; i < LOADS; i++) UNROLL
        for (uint32_t e = 0; e < 4; e++) square = fmaf(v[i][e], v[i][e], square);
    }
};
// This warp's share of the sum of squares of a row of `width` numbers. `part` is this thread's part
// of the row's first columns.
template <uint32_t N> DEVICE float squares_of(RowPart<N> part, const float *x, uint32_t width) {
    float square = 0;
    part.add_squares(square);
    UNROLL_BY(1)
    for (uint32_t first = N * 1024; first < width; first += N * 1024) {
        part.load_row(x, first, width);
        part.add_squares(square);
    }
    return group_sum(square, 32);
}
// The scale of RMSNorm from the shares of eight warps.
DEVICE float norm_scale(const float *shares, uint32_t width, float eps) {
    float square = 0;
#ifdef PLANT_SHARED_BOUNDS
    for (int i = 0; i < 9; i++) square += shares[i];
#else
    for (int i = 0; i < 8; i++) square += shares[i];
#endif
    return 1.0f / sqrtf(square / (float)width + eps);
}

// What one lane loads of one line of a pair of weight rows. The pair is rows g and g + 8 of an m16
// tile, where g = lane / 4.
template <class W> struct FloatLine {
    using T = W;
    static constexpr uint32_t STEPS = 2, START = 8, GAP = 4;
    static constexpr bool SCALED = false, SIXTEENS = false, MINIMA = false, APART = true;
    Words4 pieces[2][2]; // [row][step]

    DEVICE_MEMBER static uint32_t codes(uint32_t) { return 0; }
    // `steps`: how many of the line's steps exist. Steps beyond the end of K are not loaded.
    DEVICE_MEMBER void load(
        const unsigned char *const (&rows)[2], uint32_t line, uint32_t steps, uint32_t) {
        UNROLL
        for (uint32_t i = 0; i < 2; i++) UNROLL
        for (uint32_t s = 0; s < 2; s++)
            if (s < steps)
                pieces[i][s] = load_stream(rows[i] + line * 128 + s * 64 + threadIdx.x % 4 * 16);
    }
    // RING: whether lines come through shared memory. SLOT: the bytes that a line of all weight
    // rows of a block takes there. A thread copies only those pieces that it multiplies itself.
    static constexpr bool RING = true;
    static constexpr uint32_t SLOT = GPU_SLOT, SLOTS = FEW_SLOTS;
    // Begins to copy a line to a slot. Steps beyond the end of K are not copied.
    DEVICE_MEMBER static void ask(unsigned char *slot, const unsigned char *const (&rows)[2],
        uint32_t line, uint32_t steps, uint32_t) {
        UNROLL
        for (uint32_t i = 0; i < 2; i++) UNROLL
        for (uint32_t s = 0; s < 2; s++)
            if (s < steps)
                cp_async(slot + ((i * 2 + s) * 256 + threadIdx.x) * 16,
                    rows[i] + line * 128 + s * 64 + threadIdx.x % 4 * 16, true);
    }
    DEVICE_MEMBER void take(unsigned char *slot, uint32_t) {
        UNROLL
        for (uint32_t i = 0; i < 2; i++) UNROLL
        for (uint32_t s = 0; s < 2; s++)
            pieces[i][s] = load_shared(slot + ((i * 2 + s) * 256 + threadIdx.x) * 16);
    }
    DEVICE_MEMBER void fragments(uint32_t (&a)[2][4], uint32_t step, const uint32_t *) const {
        UNROLL
        for (uint32_t h = 0; h < 2; h++) UNROLL
        for (uint32_t i = 0; i < 4; i++) a[h][i] = pieces[i % 2][step].w[h * 2 + i / 2];
    }
};

template <class Q> struct QuantisedLine {
    using T = f16;
    static constexpr uint32_t STEPS = Q::STEPS, START = 4, GAP = 16;
    // APART: whether the compiler must not mingle the steps of a line. Formats with planes or zero
    // points need this, because they leave few registers.
    static constexpr bool SCALED = true, SIXTEENS = Q::SIXTEENS, MINIMA = Q::MINIMA,
                          APART = Q::PLANE > 0 || sizeof(typename Q::LineScales) > 24;
    Words4 pieces[2][2]; // [row][half of 32 columns]
    uint32_t planes[2][2][Q::PLANE > 0 ? Q::PLANE : 1];
    typename Q::LineScales scales[2];

    DEVICE_MEMBER static uint32_t codes(uint32_t k) { return code_bytes<Q>(k); }
    DEVICE_MEMBER void load(
        const unsigned char *const (&rows)[2], uint32_t line, uint32_t, uint32_t codes) {
        UNROLL
        for (uint32_t i = 0; i < 2; i++) {
            UNROLL
            for (uint32_t h = 0; h < 2; h++)
                pieces[i][h] = load_stream(rows[i] + line * 128 + h * 64 + threadIdx.x % 4 * 16);
            const uint32_t blocks = codes / BLOCK_BYTES<Q>;
            if constexpr (Q::PLANE > 0)
                Q::load_planes(planes[i], rows[i] + blocks * (Q::LINES * 128), line);
            Q::load_scales(scales[i], rows[i] + codes, line, blocks);
        }
    }
    // As in FloatLine. The scales of a weight row are in the slot only once, although four lanes
    // use them. Of the four lanes of a pair of weight rows, one copies the scales of the first row
    // and one copies the scales of the second. So the warp must synchronise between the wait for a
    // line and `take`, and again between `take` and the next `ask` for the slot.
    static constexpr bool RING = Q::SCALE_BYTES > 0;
    static constexpr uint32_t SLOT = GPU_SLOT + 128 * Q::SCALE_BYTES,
                              SLOTS = STEPS == 8 ? (uint32_t)GPU_FEW_SLOTS : FEW_SLOTS;
    DEVICE_MEMBER static unsigned char *scales_at(unsigned char *slot, uint32_t i) {
        const uint32_t row = threadIdx.x / 32 * 16 + i * 8 + threadIdx.x % 32 / 4;
        return slot + GPU_SLOT + row * Q::SCALE_BYTES;
    }
    DEVICE_MEMBER static void ask(unsigned char *slot, const unsigned char *const (&rows)[2],
        uint32_t line, uint32_t, uint32_t codes) {
        UNROLL
        for (uint32_t i = 0; i < 2; i++) UNROLL
        for (uint32_t h = 0; h < 2; h++)
            cp_async(slot + ((i * 2 + h) * 256 + threadIdx.x) * 16,
                rows[i] + line * 128 + h * 64 + threadIdx.x % 4 * 16, true);
        const uint32_t i = threadIdx.x % 4;
        if (i < 2) Q::ask_scales(scales_at(slot, i), (i ? rows[1] : rows[0]) + codes, line);
    }
    DEVICE_MEMBER void take(unsigned char *slot, uint32_t line) {
        UNROLL
        for (uint32_t i = 0; i < 2; i++) {
            UNROLL
            for (uint32_t h = 0; h < 2; h++)
                pieces[i][h] = load_shared(slot + ((i * 2 + h) * 256 + threadIdx.x) * 16);
            Q::take_scales(scales[i], scales_at(slot, i), line);
        }
    }
    DEVICE_MEMBER void fragments(uint32_t (&a)[2][4], uint32_t step, const uint32_t *table) const {
        UNROLL
        for (uint32_t h = 0; h < 2; h++) UNROLL
        for (uint32_t i = 0; i < 2; i++) {
            uint32_t pairs[2];
            if constexpr (Q::PLANE > 0)
                Q::decode_planed(pairs, pieces[i][h].w, planes[i][h], step);
            else
                Q::decode_pairs(pairs, pieces[i][h].w, step, table);
            a[h][i] = pairs[0], a[h][2 + i] = pairs[1];
        }
    }
    // sums[e] += the scale of a step times part[e]; `half` is for formats in which each sixteen
    // columns have a scale.
    DEVICE_MEMBER void add(
        float (&sums)[4], const float (&part)[4], uint32_t step, uint32_t half) const {
        UNROLL
        for (uint32_t e = 0; e < 4; e++) {
            if constexpr (Q::SIXTEENS)
                sums[e] = fmaf(Q::scale_of(scales[e / 2], step, half), part[e], sums[e]);
            else
                sums[e] = fmaf(Q::scale_of(scales[e / 2], step), part[e], sums[e]);
        }
    }
    // sums[e] -= the minimum of a step times x[e], the sum of the activations.
    DEVICE_MEMBER void subtract(float (&sums)[4], const float (&x)[4], uint32_t step) const {
        UNROLL
        for (uint32_t e = 0; e < 4; e++)
            sums[e] = fmaf(-Q::minimum_of(scales[e / 2], step), x[e], sums[e]);
    }
};
template <class W, bool> struct LineOf {
    using type = FloatLine<W>;
};
template <class W> struct LineOf<W, true> {
    using type = QuantisedLine<W>;
};
template <class W> using Line = typename LineOf<W, QUANTISED<W>>::type;

// sums += sixteen weight rows times eight activation rows, over a step of 32 columns. `b` holds the
// lane's fragments of the activation rows.
template <class L> DEVICE void multiply_step(
    float (&sums)[4], const L &weights, const uint32_t (&a)[2][4], uint32_t step, const Words4 &b) {
    using T = typename L::T;
    if constexpr (L::MINIMA) {
        // All numbers of this operand A are 1, so each row of the product holds the sums of the
        // activations.
        const uint32_t ones[4] = {0x3c003c00, 0x3c003c00, 0x3c003c00, 0x3c003c00};
        float x[4] = {};
        mma(x, ones, b.w[0], b.w[1], T());
        mma(x, ones, b.w[2], b.w[3], T());
        weights.subtract(sums, x, step);
    }
    float part[4] = {};
    float (&to)[4] = L::SCALED ? part : sums;
    mma(to, a[0], b.w[0], b.w[1], T());
    if constexpr (L::SIXTEENS) {
        float other[4] = {};
        mma(other, a[1], b.w[2], b.w[3], T());
        weights.add(sums, part, step, 0);
        weights.add(sums, other, step, 1);
        return;
    }
    mma(to, a[1], b.w[2], b.w[3], T());
    if constexpr (L::SCALED) weights.add(sums, part, step, 0);
}
DEVICE Words4 words_of(const float (&v)[4]) {
    return Words4{{as_bits(v[0]), as_bits(v[1]), as_bits(v[2]), as_bits(v[3])}};
}

// The activation rows of a block as operand B. They lie in shared memory, rounded, in the order in
// which lanes read them. A step of a row is 64 bytes: sixteen bytes for each t = lane % 4. The
// steps of a line follow one another. In odd rows, each two neighbouring steps are swapped, so that
// rows that are read at the same time lie in different banks.
template <class L> struct StagedRows {
    using T = typename L::T;
    unsigned char *staged;
    uint32_t n, k;

    // The place of columns column .. column + 3 of row r; `column` is a multiple of 4.
    DEVICE_MEMBER unsigned char *place(uint32_t r, uint32_t column) const {
        const uint32_t line = column / (L::STEPS * 32), step = column / 32 % L::STEPS,
                       four = column / 4 % 8, t = L::GAP == 4 ? four / 2 : four % 4,
                       half = L::GAP == 4 ? four % 2 : four / 4;
        return staged + ((line * n + r) * L::STEPS + (step ^ (r & 1))) * 64 + t * 16 + half * 8;
    }
    // The end of the columns of all lines. Columns from k up to this end are zero.
    DEVICE_MEMBER uint32_t end() const {
        return (k + L::STEPS * 32 - 1) / (L::STEPS * 32) * (L::STEPS * 32);
    }

    // Rounds rows of float32, with a norm. `x_of(r)` is row r. `shares`: GPU_FEW_NORMS bytes.
    template <class Row>
    DEVICE_MEMBER void round(float *shares, const Row &x_of, const float *norm, float eps) const {
        // Without a ring, loads of weights that are in flight take registers.
        using Part = RowPart<L::RING ? 4 : 2>;
        float *const scales = shares + 64;
        Part g, x;
        g.load_norm(norm, 0, k);
        UNROLL_BY(1)
        for (uint32_t r = 0; r < n; r++) {
            x.load_row(x_of(r), 0, k);
            float share = squares_of(x, x_of(r), k);
            if (threadIdx.x % 32 == 0) shares[r * 8 + threadIdx.x / 32] = share;
        }
        block_sync();
        if (threadIdx.x < n) scales[threadIdx.x] = norm_scale(shares + threadIdx.x * 8, k, eps);
#ifndef PLANT_NO_BARRIER_FEW
        block_sync();
#endif
        UNROLL_BY(1)
        for (uint32_t r = 0; r < n; r++) UNROLL_BY(1)
        for (uint32_t first = 0; first < end(); first += Part::SPAN) {
            x.load_row(x_of(r), first, k);
            if (k > Part::SPAN) g.load_norm(norm, first, k);
            const float scale = scales[r];
            UNROLL
            for (uint32_t i = 0; i < Part::LOADS; i++) {
                const uint32_t column = Part::column(first, i);
                float v[4];
                UNROLL
                for (uint32_t e = 0; e < 4; e++)
                    v[e] = bounded(
                        x.v[i][e] * scale * g.v[i][e], L::SCALED ? GPU_F16_FINITE : GPU_F32);
                if (column < end())
                    store8(place(r, column),
                        Words2{{pair_of(v[0], v[1], T()), pair_of(v[2], v[3], T())}});
            }
        }
    }
    // Copies rows that are already rounded. Their padding columns are zero.
    template <class Row> DEVICE_MEMBER void copy(const Row &x_of) const {
        constexpr uint32_t LOADS = 4;
        UNROLL_BY(1)
        for (uint32_t r = 0; r < n; r++) UNROLL_BY(1)
        for (uint32_t first = threadIdx.x * 8; first < end(); first += LOADS * 2048) {
            const T *x = x_of(r);
            const uint32_t width = (k + 31) / 32 * 32;
            Words4 v[LOADS];
            // As in RowPart, no load depends on a condition.
            UNROLL
            for (uint32_t i = 0; i < LOADS; i++)
                v[i] = load_fresh(x + (first + i * 2048 < width ? first + i * 2048 : 0));
            UNROLL
            for (uint32_t i = 0; i < LOADS; i++) {
                const uint32_t column = first + i * 2048;
                if (column >= width) v[i] = Words4{};
                if (column >= end()) continue;
                store8(place(r, column), Words2{{v[i].w[0], v[i].w[1]}});
                store8(place(r, column + 4), Words2{{v[i].w[2], v[i].w[3]}});
            }
        }
    }
    // The lane's columns of a step of a line, in row g = lane / 4; in the last row if row g does
    // not exist.
    DEVICE_MEMBER Words4 get(uint32_t line, uint32_t step) const {
        const uint32_t g = threadIdx.x % 32 / 4, r = g < n ? g : n - 1;
        const unsigned char *const at =
            staged + (line * n + r) * (L::STEPS * 64) + threadIdx.x % 4 * 16;
        return load_shared(at + (r + step) % 2 * 64 + step / 2 * 128);
    }
};

// The products of few.h, batch.h and codes_hopper.h take an object `pairs`. It says which pairs of
// weight rows to multiply and what to do with their sums. One thread gets both sums of a pair. Its
// methods are:
//   rows(n, j)           sets n to the two rows of w that are pair j of the block; if pair j does
//                        not exist, to any existing rows
//   column(j)            computes what pair j needs for every row
//   row(i)               computes what row i of the launch, which may not exist, needs for every
//                        pair
//   find(row, column)    loads what depends on both row and pair
//   put(row, column, found, a, b)  takes the pair's two sums and stores the results
// A thread calls find for all its pairs before it calls put for the first one. The compiler moves
// no load ahead of a store, so if the calls alternated, each pair would wait for memory in turn.

// A block of eight warps multiplies tiles of eight pairs of weight rows by activation rows. The
// matrix has `n_pairs` pairs; the block takes its tiles blockIdx.x, blockIdx.x + gridDim.x, and so
// on. The activation rows begin at row `first_row` of the launch. `pairs_of(first)` returns the
// pairs of the tile whose first pair is `first`. The sums take 4096 bytes of shared memory for each
// tile of the block, up to GPU_FEW_TILES.
//
// The block reads its tiles as one stream: while a line is multiplied, the next lines are in
// flight, also when they belong to the next tile. Each warp leaves its sums of up to GPU_FEW_TILES
// tiles in shared memory. Then each warp joins the eight warps' sums of one tile. `ring` is shared
// memory for L::SLOTS lines, for formats that have a ring, followed by the sums.
//
// Lines in flight are copies to a ring in shared memory, because a warp waits for a copy by its
// place in the order of copies. For a load to registers, it waits by a counter. A warp has six such
// counters, and nvcc gave all loads of this loop the same one. So a warp that waited for a line
// also waited for the lines behind it. On an H100, the ring made a step of one row of an 8B model
// 1.18 (bf16) to 1.27 (int8) times as fast. The types that only files have, such as the K types,
// have no ring; a warp asks for two lines at once and waits for both.
template <class W, class Prepare, class PairsOf> DEVICE void few(unsigned char *ring,
    const uint32_t *table, const void *w, uint32_t stride, const StagedRows<Line<W>> &x,
    const Prepare &prepare, uint32_t first_row, uint32_t n_pairs, const PairsOf &pairs_of) {
    using L = Line<W>;
    // SLOTS: lines in the ring. AT_ONCE: lines that a warp has in registers.
    constexpr bool RING = L::RING;
    constexpr uint32_t SLOTS = RING ? L::SLOTS : 1, AT_ONCE = RING ? 1 : 2;
    unsigned char *const sums_of = ring + (RING ? SLOTS * L::SLOT : 0);
    // gpu.h says which compute capability is short of registers here.
    const auto lane = [] { return thread_again_if_short() % 32; };
    const auto warp = [] { return thread_again_if_short() / 32; };
    const uint32_t steps = (x.k + 31) / 32, lines = (steps + L::STEPS - 1) / L::STEPS,
                   codes = L::codes(x.k), tiles = (n_pairs + 7) / 8;
    start_next();
    for (uint32_t first = blockIdx.x; first < tiles; first += GPU_FEW_TILES * gridDim.x) {
        const uint32_t end = smaller(tiles, first + GPU_FEW_TILES * gridDim.x);
        const unsigned char *from[2];
        // A warp without lines, because K is short, loads and multiplies nothing.
        uint32_t tile_to_load = warp() < lines ? first : end, line_to_load = warp();
        auto find_rows = [&] {
            uint32_t rows[2];
            pairs_of(tile_to_load * 8).rows(rows, lane() / 4);
            UNROLL
            for (uint32_t i = 0; i < 2; i++) from[i] = row_of<W>(w, stride, rows[i]);
        };
        L ahead[AT_ONCE];
        auto next_to_load = [&] {
            line_to_load += 8;
            if (line_to_load < lines) return;
            line_to_load = warp(), tile_to_load += gridDim.x;
#ifndef PLANT_SAME_TILE
            find_rows();
#endif
        };
        auto load = [&](L &to) {
            if (tile_to_load >= end) return;
            to.load(from, line_to_load, steps - line_to_load * L::STEPS, codes);
            next_to_load();
        };
        auto ask = [&](uint32_t slot) {
            if constexpr (RING) {
                if (tile_to_load < end) {
                    L::ask(ring + slot * L::SLOT, from, line_to_load,
                        steps - line_to_load * L::STEPS, codes);
                    next_to_load();
                }
                cp_commit();
            }
        };
        find_rows();
        UNROLL
        for (uint32_t d = 0; d < (RING ? SLOTS : AT_ONCE); d++) {
            if (RING)
                ask(d);
            else
                load(ahead[d]);
        }
        // The epilogue needs numbers from memory besides the sums of the warp's tile. Where
        // registers suffice, they are asked for before the sums are computed. `column` and `row`
        // are called while the previous launch still runs, and `find` after `prepare`. On an H100,
        // this takes bf16 0.5 % and int4 2.7 % less time than asking for everything behind the
        // loop. Calling `find` before `prepare` was slower: a warp then had to wait for its rows
        // there, and bf16 took 1.5 % longer than with everything behind the loop.
        const auto finished = [&] { return first + warp() * gridDim.x; };
        const auto pairs = [&] { return pairs_of(finished() * 8); };
        decltype(pairs().column(0u)) column;
        decltype(pairs().row(0u)) rows[2];
        decltype(pairs().find(rows[0], column)) found[2];
        const auto find_places_of_sums = [&] {
            column = pairs().column(lane() / 4);
            UNROLL
            for (uint32_t e = 0; e < 2; e++)
                rows[e] = pairs().row(finished() < end ? first_row + lane() % 4 * 2 + e : ~0u);
        };
        const auto find_what_both_need = [&] {
            UNROLL
            for (uint32_t e = 0; e < 2; e++) found[e] = pairs().find(rows[e], column);
        };
        if (RING) find_places_of_sums();
        if (first == blockIdx.x) {
            wait_for_last(); // The first loads of weights are in flight by now.
            prepare();
#ifndef PLANT_NO_BARRIER_STAGED
            block_sync();
#endif
        }
        if (RING) find_what_both_need();
        // The layout of sums_of is [tile][warp][lane], with four sums for each lane.
        uint32_t place = 0;
        float sums[4] = {};
        auto end_of_tile = [&] {
            store16(sums_of + (thread_again_if_short() * 16 + place), words_of(sums));
            place += 4096;
            UNROLL
            for (float &sum : sums) sum = 0;
        };
        uint32_t tile = first, line = warp();
        for (; line >= lines && tile < end; tile += gridDim.x) end_of_tile();
        uint32_t slot = 0;
        while (tile < end) {
            if constexpr (RING) {
#ifdef PLANT_WEAK_WAIT_FEW
                cp_wait<SLOTS>();
#else
                cp_wait<SLOTS - 1>();
#endif
#ifndef PLANT_NO_SYNC_TAKE
                warp_sync();
#endif
                ahead[0].take(ring + slot * L::SLOT, line);
            }
            UNROLL
            for (uint32_t d = 0; d < AT_ONCE; d++) {
                if (tile >= end) break;
                UNROLL
                for (uint32_t step = 0; step < L::STEPS; step++) {
                    // Only rows of floats can end inside a line. Quantised rows end with whole
                    // lines, and columns beyond K have the scale zero. They ask only where the
                    // steps of a line must not mingle (APART).
                    if (L::APART && line * L::STEPS + step >= steps) break;
                    uint32_t a[2][4];
                    ahead[d].fragments(a, step, table);
                    multiply_step(sums, ahead[d], a, step, x.get(line, step));
                }
                line += 8;
                if (line >= lines) {
                    line = warp(), tile += gridDim.x;
                    end_of_tile();
                }
            }
            if constexpr (RING) {
                // The mma instructions have brought the warp together. But nothing guarantees that
                // they order the lanes' reads of the slot before the copies into it that follow.
                warp_sync();
                ask(slot);
                slot = slot + 1 == SLOTS ? 0 : slot + 1;
            } else {
                UNROLL
                for (uint32_t d = 0; d < AT_ONCE; d++) load(ahead[d]);
            }
        }

        if (!RING) find_places_of_sums(), find_what_both_need();
#ifndef PLANT_NO_BARRIER_SUMS
        block_sync();
#endif
        if (finished() < end) {
            float sum[4];
            UNROLL
            for (uint32_t w = 0; w < 8; w += 2) {
                const unsigned char *at = sums_of + ((warp() * 8 + w) * 32 + lane()) * 16;
                const Words4 even = load_shared(at), odd = load_shared(at + 512);
                UNROLL
                for (int e = 0; e < 4; e++) {
                    const float two = as_float(even.w[e]) + as_float(odd.w[e]);
                    sum[e] = w == 0 ? two : sum[e] + two;
                }
            }
            pairs().put(rows[0], column, found[0], sum[0], sum[2]);
            pairs().put(rows[1], column, found[1], sum[1], sum[3]);
        }
        if (first + GPU_FEW_TILES * gridDim.x >= tiles) return;
#ifndef PLANT_NO_BARRIER_TURN
        block_sync(); // The sums of the next tiles overwrite these.
#endif
    }
}

// The number of activation rows of a block: up to GPU_FEW_ROWS, from row blockIdx.y * GPU_FEW_ROWS
// of the launch on.
DEVICE uint32_t few_of(uint32_t n_rows) {
    return smaller(n_rows - blockIdx.y * GPU_FEW_ROWS, GPU_FEW_ROWS);
}

// One block's part of a product of rows in float32. Norm and rounding are applied here. `rows` is
// the launch's list of the numbers of its rows.
template <class W, class PairsOf> DEVICE void few_rows(unsigned char *shared, const void *w,
    uint32_t w_stride, const void *x, uint32_t stride, const float *norm, const int32_t *rows,
    uint32_t n_rows, uint32_t k, float eps, uint32_t n_pairs, const PairsOf &pairs_of) {
    const uint32_t first = blockIdx.y * GPU_FEW_ROWS;
    const StagedRows<Line<W>> staged{shared + GPU_TABLE_BYTES + GPU_FEW_NORMS, few_of(n_rows), k};
    prefetch_row(norm, k, threadIdx.x);
    // No launch of a step writes `rows`, so a block may read it before the previous launch has
    // ended. A lone row is found in that time.
    const int32_t first_id = rows[first];
    auto prepare = [&] {
        // For padding, row 0 is read; the results of padding are dropped.
        auto row = [&](uint32_t r) {
            const int32_t id = r == 0 ? first_id : rows[first + r];
            return (const float *)x + (size_t)(id < 0 ? 0 : id) * stride;
        };
        staged.round((float *)(shared + GPU_TABLE_BYTES), row, norm, eps);
    };
    few<W>(staged.staged + staged.n * staged.end() * 2, pair_table<W>(shared), w, w_stride, staged,
        prepare, first, n_pairs, pairs_of);
}

// The same for rows that are already rounded.
template <class W, class PairsOf> DEVICE void few_rounded(unsigned char *shared, const void *w,
    uint32_t w_stride, const void *x, uint32_t stride, uint32_t n_rows, uint32_t k,
    uint32_t n_pairs, const PairsOf &pairs_of) {
    using L = Line<W>;
    const uint32_t first = blockIdx.y * GPU_FEW_ROWS;
    const StagedRows<L> staged{shared + GPU_TABLE_BYTES, few_of(n_rows), k};
    auto prepare = [&] {
        staged.copy(
            [&](uint32_t r) { return (const typename L::T *)x + (size_t)(first + r) * stride; });
    };
    few<W>(staged.staged + staged.n * staged.end() * 2, pair_table<W>(shared), w, w_stride, staged,
        prepare, first, n_pairs, pairs_of);
}
