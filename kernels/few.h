// Decode: multiplies weights by up to eight activation rows on tensor cores. Part of gpu.h.
//
// Weights are operand A of mma.m16n8k16: m counts weight rows and n counts activation rows. So
// eight activation rows cost no more than one.
//
// An mma does not care which matrix column is which k, as long as both operands agree. The
// assignment here lets a lane load its fragment of operand A directly from the same matrices that
// prefill reads, so no weight passes through shared memory. A line is 128 bytes of a weight row: 64
// columns of 16 bits, 128 of 8, or 256 of 4. A lane loads two 16-byte pieces of it: t and t + 4,
// where t = lane % 4. In each step of 32 columns (two mmas), a lane has four columns from START * t
// on and four from START * t + GAP on.
//
// Batch invariance: every kernel computes an output in the same order, for any number of rows.
// - Each warp w of eight runs the mmas over lines w, w + 8, .. in turn. For quantised weights, the
//   sum of each step (k6 and k8: of each half of a step) starts from zero, is scaled, and is added
//   in float32; before that, for k4 and k5, the step's minimum times its sum of activations is subtracted.
// - The sums of warps 2i and 2i + 1 are added, for i = 0 .. 3.
// - These four sums are added in ascending order.
// The columns of an mma do not affect each other. A row is rounded to 16 bits either as prepare.cu
// does it, with the same function for the scale of its norm, or in the kernel that produced the row
// (attention, ffn_up). One row alone is a product with n = 8 as well: a separate dot product would
// round differently. The seven idle columns cost nothing where memory is the limit.

// This warp's share of the sum of squares of a row of `width`; the block has 256 threads.
DEVICE float squares_of(const float *x, uint32_t width) {
    float square = 0;
    for (uint32_t i = threadIdx.x; i < width; i += 256) square = fmaf(x[i], x[i], square);
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
    static constexpr bool SCALED = false, SIXTEENS = false, MINIMA = false;
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
    DEVICE_MEMBER void fragments(uint32_t (&a)[2][4], uint32_t step, const uint32_t *) const {
        UNROLL
        for (uint32_t h = 0; h < 2; h++) UNROLL
        for (uint32_t i = 0; i < 4; i++) a[h][i] = pieces[i % 2][step].w[h * 2 + i / 2];
    }
};

template <class Q> struct QuantisedLine {
    using T = f16;
    static constexpr uint32_t STEPS = Q::STEPS, START = 4, GAP = 16;
    static constexpr bool SCALED = true, SIXTEENS = Q::SIXTEENS, MINIMA = Q::MINIMA;
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
    // sums[e] -= the minimum of a step times the sum of the activations, in x[e].
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
        // Each row of this operand is ones, so each row of the product is the sums of activations.
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

// The two types below provide activations as operand B. get(line, step) returns the lane's eight
// columns of a step in row g. `line` must be the line that was staged last.

// Up to GPU_FEW_ROWS rows in float32, to which norm and rounding are applied here. Each warp does
// this anew for each of its lines. It keeps the result in shared memory of its own, in the order in
// which lanes read it.
template <class L> struct FreshRows {
    static constexpr uint32_t BYTES = 512 + 8 * L::STEPS * 512;
    float *shares, *scales;
    unsigned char *staged;
    const float *x, *norm;
    const int32_t *rows;
    uint32_t stride, n, k;
    float eps;

    // `shared`: BYTES of shared memory. `rows`: begins with the block's rows.
    DEVICE_MEMBER FreshRows(unsigned char *shared, const void *x, uint32_t stride,
        const float *norm, const int32_t *rows, uint32_t n_rows, uint32_t k, float eps)
        : shares((float *)shared), scales((float *)shared + 64),
          staged(shared + 512 + threadIdx.x / 32 * (L::STEPS * 512)), x((const float *)x),
          norm(norm), rows(rows), stride(stride),
          n(n_rows < GPU_FEW_ROWS ? n_rows : (uint32_t)GPU_FEW_ROWS), k(k), eps(eps) {}
    // For padding it returns row 0; the results of padding are dropped.
    DEVICE_MEMBER const float *row(uint32_t r) const {
        return x + (size_t)(rows[r] < 0 ? 0 : rows[r]) * stride;
    }
    DEVICE_MEMBER void begin() {
        for (uint32_t r = 0; r < n; r++) {
            float share = squares_of(row(r), k);
            if (threadIdx.x % 32 == 0) shares[r * 8 + threadIdx.x / 32] = share;
        }
        block_sync();
        if (threadIdx.x < n) scales[threadIdx.x] = norm_scale(shares + threadIdx.x * 8, k, eps);
#ifndef PLANT_NO_BARRIER_FEW
        block_sync();
#endif
    }
    DEVICE_MEMBER static float finite_of(float x) {
        return L::SCALED ? bounded(x, GPU_F16_FINITE) : x;
    }
    DEVICE_MEMBER void stage(uint32_t line) {
        const uint32_t lane = threadIdx.x % 32;
        warp_sync(); // other lanes may still read the previous line
        for (uint32_t i = lane; i < n * L::STEPS * 8; i += 32) {
            const uint32_t r = i / (L::STEPS * 8), step = i / 8 % L::STEPS, four = i % 8,
                           column = (line * L::STEPS + step) * 32 + four * 4;
            if (column >= (k + 31) / 32 * 32) continue;
            const uint32_t t = L::GAP == 4 ? four / 2 : four % 4,
                           half = L::GAP == 4 ? four % 2 : four / 4;
            float v[4], g[4];
            fresh4(v, row(r) + column);
            load4(g, norm + column);
            UNROLL
            for (uint32_t e = 0; e < 4; e++)
                v[e] = column + e < k ? finite_of(v[e] * scales[r] * g[e])
                                      : 0; // padding may hold anything
            store8(staged + ((step * 8 + r) * 4 + t) * 16 + half * 8,
                Words2{
                    {pair_of(v[0], v[1], typename L::T()), pair_of(v[2], v[3], typename L::T())}});
        }
#ifndef PLANT_NO_WARP_SYNC
        warp_sync();
#endif
    }
    DEVICE_MEMBER Words4 get(uint32_t, uint32_t step) const {
        const uint32_t g = threadIdx.x % 32 / 4, r = g < n ? g : n - 1;
        return load_shared(staged + ((step * 8 + r) * 4 + threadIdx.x % 4) * 16);
    }
};

// Rows that are already rounded, from row `first` of the launch on. Their padding columns are zero.
template <class L> struct PreparedRows {
    using T = typename L::T;
    const T *x; // row g, or the last row where row g does not exist

    DEVICE_MEMBER PreparedRows(const void *x, uint32_t stride, uint32_t first, uint32_t n_rows) {
        const uint32_t row = first + threadIdx.x % 32 / 4;
        this->x =
            (const T *)x + (row < n_rows ? row : n_rows - 1) * stride + threadIdx.x % 4 * L::START;
    }
    DEVICE_MEMBER void begin() {}
    DEVICE_MEMBER void stage(uint32_t) {}
    DEVICE_MEMBER Words4 get(uint32_t line, uint32_t step) const {
        const T *p = x + (line * L::STEPS + step) * 32;
        if (L::GAP == 4) return load_fresh(p);
        const Words2 low = load_fresh8(p), high = load_fresh8(p + L::GAP);
        return Words4{{low.w[0], low.w[1], high.w[0], high.w[1]}};
    }
};

// The products of few.h, batch.h and codes_hopper.h take an object `pairs`. It says which pairs of
// weight rows to multiply and what to do with their sums. One thread gets both sums of a pair. Its
// methods are:
//   rows(n, j)           sets n to the two rows of w that are pair j of the block; for a pair that
//                        does not exist, to any rows that do
//   find(i, j)           loads what pair j of row i of the launch needs; row i may not exist
//   put(found, j, a, b)  takes the pair's two sums and stores the results
// A thread calls find for all its pairs before it calls put for the first one. The compiler moves
// no load ahead of a store, so if the calls alternated, each pair would wait for memory in turn.

// A block of eight warps multiplies eight pairs of weight rows by the activation rows from row
// `first_row` of the launch on. `sums_of`: 4096 bytes of shared memory.
template <class W, class Rows, class Pairs> DEVICE void few(unsigned char *sums_of,
    const uint32_t *table, const void *w, uint32_t stride, uint32_t k, Rows &source,
    uint32_t first_row, const Pairs &pairs) {
    using L = Line<W>;
    constexpr uint32_t DEPTH = QUANTISED<W> ? 2 : 4; // lines in flight
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t steps = (k + 31) / 32, lines = (steps + L::STEPS - 1) / L::STEPS,
                   codes = L::codes(k);
    uint32_t rows[2];
    start_next();
    pairs.rows(rows, lane / 4);
    const unsigned char *const from[2] = {
        row_of<W>(w, stride, rows[0]), row_of<W>(w, stride, rows[1])};
    L ahead[DEPTH];
    auto load = [&](L &to, uint32_t line) {
        if (line < lines) to.load(from, line, steps - line * L::STEPS, codes);
    };
    UNROLL
    for (uint32_t d = 0; d < DEPTH; d++) load(ahead[d], warp + d * 8);
    wait_for_last(); // The first loads of weights are in flight by now.
    source.begin();
    float sums[4] = {};
    // The loads of the next step's activations are in flight while this step is multiplied.
    Words4 b[2];
    auto fetch = [&](Words4 &to, uint32_t line, uint32_t step) {
        if (line * L::STEPS + step < steps) to = source.get(line, step);
    };
    for (uint32_t first = warp; first < lines; first += 8 * DEPTH) {
        UNROLL
        for (uint32_t d = 0; d < DEPTH; d++) {
            const uint32_t line = first + d * 8;
            if (line >= lines) break;
            source.stage(line);
            fetch(b[0], line, 0);
            UNROLL
            for (uint32_t step = 0; step < L::STEPS; step++) {
                if (line * L::STEPS + step >= steps) break;
                if (step + 1 < L::STEPS) fetch(b[(step + 1) % 2], line, step + 1);
                uint32_t a[2][4];
                ahead[d].fragments(a, step, table);
                multiply_step(sums, ahead[d], a, step, b[step % 2]);
            }
            load(ahead[d], line + 8 * DEPTH);
        }
    }
    // The layout of sums_of is [warp][lane], four sums each.
    store16(sums_of + threadIdx.x * 16, words_of(sums));
    const uint32_t i = first_row + lane % 4 * 2, j = lane / 4;
    const auto found = pairs.find(warp == 0 ? i : ~0u, j),
               next = pairs.find(warp == 0 ? i + 1 : ~0u, j);
#ifndef PLANT_NO_BARRIER_SUMS
    block_sync();
#endif
    if (warp > 0) return;
    float sum[4];
    UNROLL
    for (uint32_t w = 0; w < 8; w += 2) {
        const Words4 even = load_shared(sums_of + (w * 32 + lane) * 16),
                     odd = load_shared(sums_of + (w * 32 + 32 + lane) * 16);
        UNROLL
        for (int e = 0; e < 4; e++) {
            const float two = as_float(even.w[e]) + as_float(odd.w[e]);
            sum[e] = w == 0 ? two : sum[e] + two;
        }
    }
    pairs.put(found, j, sum[0], sum[2]);
    pairs.put(next, j, sum[1], sum[3]);
}

// The part of a product that one block computes: up to GPU_FEW_ROWS rows from row blockIdx.y *
// GPU_FEW_ROWS of the launch on.
template <class W, class Pairs> DEVICE void few_rows(unsigned char *shared, const void *w,
    uint32_t w_stride, const void *x, uint32_t stride, const float *norm, const int32_t *rows,
    uint32_t n_rows, uint32_t k, float eps, const Pairs &pairs) {
    using Source = FreshRows<Line<W>>;
    const uint32_t first = blockIdx.y * GPU_FEW_ROWS;
    Source source(shared + GPU_TABLE_BYTES, x, stride, norm, rows + first, n_rows - first, k, eps);
    few<W>(shared + GPU_TABLE_BYTES + Source::BYTES, pair_table<W>(shared), w, w_stride, k, source,
        first, pairs);
}

// The same as few_rows, for rows that are already rounded.
template <class W, class Pairs> DEVICE void few_rounded(unsigned char *shared, const void *w,
    uint32_t w_stride, const void *x, uint32_t stride, uint32_t n_rows, uint32_t k,
    const Pairs &pairs) {
    const uint32_t first = blockIdx.y * GPU_FEW_ROWS;
    PreparedRows<Line<W>> source(x, stride, first, n_rows);
    few<W>(shared + GPU_TABLE_BYTES, pair_table<W>(shared), w, w_stride, k, source, first, pairs);
}
