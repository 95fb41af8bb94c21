// Decode: products of weights with a few activation rows, on tensor cores. Part of gpu.h.
//
// Weights are operand A of mma.m16n8k16: sixteen weight rows are m and activation rows n, so eight activation rows cost
// what one costs, and a warp with NT tiles of eight reads the weights once for all of them.
//
// Which column is which k of an mma is free as long as both operands agree. It is chosen so that the matrices that
// prefill reads are in fragment order as they are: a lane's share of a line (128 bytes of a weight row, 64 columns of
// 16 bits, 128 of 8 or 256 of 4) is its pieces t and t + 4 of 16 bytes, t = lane % 4. Nothing of the weights passes
// through shared memory. In each step of 32 columns, two mmas, a lane has four columns from START * t on and
// four that lie GAP behind them.
//
// Batch invariance. An output is, whatever kernel and however many rows: for each warp w of eight the mmas over lines
// w, w + 8, .. in this order (quantised: each step from zero, scaled and added in float32), then the eight sums in the
// order of the warps. Columns of an mma do not see each other. A row is rounded to 16 bits as prepare.cu does
// it, with one function for the scale of its norm, or where it was made (attention, the feed-forward's first half). Hence one row alone is also a product of n = 8: a dot product of
// its own would round otherwise, and where memory is the limit the seven idle columns cost nothing.

// This warp's share of the sum of the squares of a row of `width`; 256 threads.
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

// A lane's share of one line of a pair of weight rows, which are rows g and g + 8 of an m16 tile, g = lane / 4.
template <class W> struct FloatLine {
    using T = W;
    static constexpr uint32_t STEPS = 2, START = 8, GAP = 4;
    Words4 pieces[2][2]; // [row][step]

    DEVICE_MEMBER static uint32_t codes(uint32_t) { return 0; }
    // `steps`: how many of the line there are; what lies behind the end of K is not loaded.
    DEVICE_MEMBER void load(const unsigned char *const (&rows)[2], uint32_t line, uint32_t steps, uint32_t) {
        UNROLL
        for (uint32_t i = 0; i < 2; i++)
            UNROLL
            for (uint32_t s = 0; s < 2; s++)
                if (s < steps) pieces[i][s] = load_stream(rows[i] + line * 128 + s * 64 + threadIdx.x % 4 * 16);
    }
    DEVICE_MEMBER void fragments(uint32_t (&a)[2][4], uint32_t step, const uint32_t *) const {
        UNROLL
        for (uint32_t h = 0; h < 2; h++)
            UNROLL
            for (uint32_t i = 0; i < 4; i++) a[h][i] = pieces[i % 2][step].w[h * 2 + i / 2];
    }
};

template <class Q> struct QuantisedLine {
    using T = f16;
    static constexpr uint32_t STEPS = Q::STEPS, START = 4, GAP = 16;
    Words4 pieces[2][2]; // [row][half of 32 columns]
    typename Q::LineScales scales[2];

    DEVICE_MEMBER static uint32_t codes(uint32_t k) { return code_bytes<Q>(k); }
    DEVICE_MEMBER void load(const unsigned char *const (&rows)[2], uint32_t line, uint32_t, uint32_t codes) {
        UNROLL
        for (uint32_t i = 0; i < 2; i++) {
            UNROLL
            for (uint32_t h = 0; h < 2; h++) pieces[i][h] = load_stream(rows[i] + line * 128 + h * 64 + threadIdx.x % 4 * 16);
            Q::load_scales(scales[i], rows[i] + codes + line * (uint32_t)sizeof(typename Q::LineScales));
        }
    }
    DEVICE_MEMBER void fragments(uint32_t (&a)[2][4], uint32_t step, const uint32_t *table) const {
        UNROLL
        for (uint32_t h = 0; h < 2; h++)
            UNROLL
            for (uint32_t i = 0; i < 2; i++) {
                uint32_t pairs[2];
                Q::decode_pairs(pairs, pieces[i][h].w, step, table);
                a[h][i] = pairs[0], a[h][2 + i] = pairs[1];
            }
    }
    DEVICE_MEMBER float scale(uint32_t row, uint32_t step) const {
        const uint32_t group = step * 32 / Q::GROUP;
        return to_float(f16{(uint16_t)(scales[row].w[group / 2] >> group % 2 * 16)});
    }
};
template <class W, bool> struct LineOf { using type = FloatLine<W>; };
template <class W> struct LineOf<W, true> { using type = QuantisedLine<W>; };
template <class W> using Line = typename LineOf<W, QUANTISED<W>>::type;

// Activations as operand B. get(n, line, step): row g of tile n, the lane's eight columns of the step; of the line that
// was staged last.

// Up to GPU_FEW_ROWS rows of float32, normed and rounded here: a warp does that for each of its lines and keeps
// them in shared memory of its own, in the order in which lanes read them.
template <class L> struct FreshRows {
    static constexpr uint32_t BYTES = 512 + 8 * L::STEPS * 512;
    float *shares, *scales;
    unsigned char *staged;
    const float *x, *norm;
    const int32_t *rows;
    uint32_t stride, n, k;
    float eps;

    // `shared`: BYTES of it. `rows`: the block's, n of them.
    DEVICE_MEMBER FreshRows(unsigned char *shared, const void *x, uint32_t stride, const float *norm, const int32_t *rows,
                            uint32_t n_rows, uint32_t k, float eps)
        : shares((float *)shared), scales((float *)shared + 64), staged(shared + 512 + threadIdx.x / 32 * (L::STEPS * 512)),
          x((const float *)x), norm(norm), rows(rows), stride(stride), n(n_rows < GPU_FEW_ROWS ? n_rows : (uint32_t)GPU_FEW_ROWS), k(k), eps(eps) {}
    // Padding is row 0, computed and dropped.
    DEVICE_MEMBER const float *row(uint32_t r) const { return x + (size_t)(rows[r] < 0 ? 0 : rows[r]) * stride; }
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
    DEVICE_MEMBER void stage(uint32_t line) {
        const uint32_t lane = threadIdx.x % 32;
        warp_sync(); // others may still read the line before
        for (uint32_t i = lane; i < n * L::STEPS * 8; i += 32) {
            const uint32_t r = i / (L::STEPS * 8), step = i / 8 % L::STEPS, four = i % 8, column = (line * L::STEPS + step) * 32 + four * 4;
            if (column >= (k + 31) / 32 * 32) continue;
            const uint32_t t = L::GAP == 4 ? four / 2 : four % 4, half = L::GAP == 4 ? four % 2 : four / 4;
            float v[4], g[4];
            fresh4(v, row(r) + column);
            load4(g, norm + column);
            UNROLL
            for (uint32_t e = 0; e < 4; e++) v[e] = column + e < k ? v[e] * scales[r] * g[e] : 0; // padding may hold anything
            store8(staged + ((step * 8 + r) * 4 + t) * 16 + half * 8, Words2{{pair_of(v[0], v[1], typename L::T()), pair_of(v[2], v[3], typename L::T())}});
        }
#ifndef PLANT_NO_WARP_SYNC
        warp_sync();
#endif
    }
    DEVICE_MEMBER Words4 get(int, uint32_t, uint32_t step) const {
        const uint32_t g = threadIdx.x % 32 / 4, r = g < n ? g : n - 1;
        return load_shared(staged + ((step * 8 + r) * 4 + threadIdx.x % 4) * 16);
    }
};

// Rows that are rounded already, up to 8 * NT from row `first` of the launch on; padding columns are zeros.
template <class L, int NT> struct PreparedRows {
    using T = typename L::T;
    const T *x;
    uint32_t row, last, stride;

    DEVICE_MEMBER PreparedRows(const void *x, uint32_t stride, uint32_t first, uint32_t n_rows)
        : x((const T *)x + threadIdx.x % 4 * L::START), row(first + threadIdx.x % 32 / 4), last(n_rows - 1), stride(stride) {}
    DEVICE_MEMBER void begin() {}
    DEVICE_MEMBER void stage(uint32_t) {}
    DEVICE_MEMBER Words4 get(int n, uint32_t line, uint32_t step) const {
        const uint32_t i = row + (uint32_t)n * 8; // the last one for those that are not there
        const T *p = x + ((i < last ? i : last) * stride + (line * L::STEPS + step) * 32);
        if (L::GAP == 4) return load_fresh(p);
        const Words2 low = load_fresh8(p), high = load_fresh8(p + L::GAP);
        return Words4{{low.w[0], low.w[1], high.w[0], high.w[1]}};
    }
};

// A block of eight warps has 8 * MT pairs of weight rows. `pair(n, i)`: n becomes the two rows of w that pair i is;
// such as there are not may be any that there are. out(i, j, a, b): activation row i of the source, pair j.
// `sums_of`: 4096 * MT * NT bytes of shared memory. DEPTH: lines on their way.
template <class W, int MT, int NT, int DEPTH, class Rows, class Pair, class Out>
DEVICE void few(unsigned char *sums_of, const uint32_t *table, const void *w, uint32_t stride, uint32_t k, Rows &source, const Pair &pair, const Out &out) {
    using L = Line<W>;
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t steps = (k + 31) / 32, lines = (steps + L::STEPS - 1) / L::STEPS, codes = L::codes(k);
    uint32_t rows[MT][2]; // in units of 16 bytes: half the registers of pointers
    start_next();
    UNROLL
    for (uint32_t m = 0; m < MT; m++) {
        pair(rows[m], m * 8 + lane / 4);
        UNROLL
        for (int i = 0; i < 2; i++) rows[m][i] *= QUANTISED<W> ? stride : stride / 8;
    }
    L ahead[DEPTH][MT];
    auto load = [&](L(&to)[MT], uint32_t line) {
        if (line >= lines) return;
        UNROLL
        for (uint32_t m = 0; m < MT; m++)
            to[m].load({(const unsigned char *)w + (size_t)rows[m][0] * 16, (const unsigned char *)w + (size_t)rows[m][1] * 16}, line,
                       steps - line * L::STEPS, codes);
    };
    UNROLL
    for (uint32_t d = 0; d < DEPTH; d++) load(ahead[d], warp + d * 8);
    wait_for_last(); // with the first weights on their way
    source.begin();
    float sums[MT][NT][4] = {};
    // The next step's activations are on their way while one is multiplied.
    Words4 b[2][NT];
    auto fetch = [&](Words4(&to)[NT], uint32_t line, uint32_t step) {
        if (line * L::STEPS + step >= steps) return;
        UNROLL
        for (int n = 0; n < NT; n++) to[n] = source.get(n, line, step);
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
                UNROLL
                for (int m = 0; m < MT; m++) {
                    uint32_t a[2][4];
                    ahead[d][m].fragments(a, step, table);
                    UNROLL
                    for (int n = 0; n < NT; n++) {
                        const Words4 &from = b[step % 2][n];
                        float part[4] = {};
                        float(&to)[4] = QUANTISED<W> ? part : sums[m][n];
                        mma(to, a[0], from.w[0], from.w[1], typename L::T());
                        mma(to, a[1], from.w[2], from.w[3], typename L::T());
                        if constexpr (QUANTISED<W>) {
                            UNROLL
                            for (int e = 0; e < 4; e++) sums[m][n][e] = fmaf(ahead[d][m].scale((uint32_t)e / 2, step), part[e], sums[m][n][e]);
                        }
                    }
                }
            }
            load(ahead[d], line + 8 * DEPTH);
        }
    }
    // [m][n][warp][lane] of four sums.
    UNROLL
    for (uint32_t m = 0; m < MT; m++)
        UNROLL
        for (uint32_t n = 0; n < NT; n++) {
            Words4 words;
            UNROLL
            for (int e = 0; e < 4; e++) words.w[e] = as_bits(sums[m][n][e]);
            store16(sums_of + (((m * NT + n) * 8 + warp) * 32 + lane) * 16, words);
        }
#ifndef PLANT_NO_BARRIER_SUMS
    block_sync();
#endif
    for (uint32_t tile = warp; tile < MT * NT; tile += 8) {
        float sum[4] = {};
        UNROLL
        for (uint32_t w = 0; w < 8; w++) {
            const Words4 words = load_shared(sums_of + ((tile * 8 + w) * 32 + lane) * 16);
            UNROLL
            for (int e = 0; e < 4; e++) sum[e] += as_float(words.w[e]);
        }
        const uint32_t i = tile % NT * 8 + lane % 4 * 2, j = tile / NT * 8 + lane / 4;
        out(i, j, sum[0], sum[2]);
        out(i + 1, j, sum[1], sum[3]);
    }
}

// A block's share of a product of up to GPU_FEW_ROWS rows, of those from blockIdx.y * GPU_FEW_ROWS on; eight pairs. out as
// of few, with the row of the launch.
template <class W, class Pair, class Out>
DEVICE void few_rows(unsigned char *shared, const void *w, uint32_t w_stride, const void *x, uint32_t stride, const float *norm,
                     const int32_t *rows, uint32_t n_rows, uint32_t k, float eps, const Pair &pair, const Out &out) {
    using Source = FreshRows<Line<W>>;
    const uint32_t first = blockIdx.y * GPU_FEW_ROWS;
    Source source(shared + GPU_TABLE_BYTES, x, stride, norm, rows + first, n_rows - first, k, eps);
    few<W, 1, 1, QUANTISED<W> ? 2 : 4>(shared + GPU_TABLE_BYTES + Source::BYTES, pair_table<W>(shared), w, w_stride, k, source, pair,
                    [&](uint32_t i, uint32_t j, float a, float b) {
                        if (first + i < n_rows) out(first + i, j, a, b);
                    });
}

// The same of rows that are rounded already.
template <class W, class Pair, class Out>
DEVICE void few_rounded(unsigned char *shared, const void *w, uint32_t w_stride, const void *x, uint32_t stride, uint32_t n_rows, uint32_t k,
                        const Pair &pair, const Out &out) {
    const uint32_t first = blockIdx.y * GPU_FEW_ROWS;
    PreparedRows<Line<W>, 1> source(x, stride, first, n_rows);
    few<W, 1, 1, QUANTISED<W> ? 2 : 4>(shared + GPU_TABLE_BYTES, pair_table<W>(shared), w, w_stride, k, source, pair, [&](uint32_t i, uint32_t j, float a, float b) {
        if (first + i < n_rows) out(first + i, j, a, b);
    });
}

// The same of up to GPU_BATCH_ROWS of them and `pairs` pairs, 16 or more: every block reads all rows, which is what the
// second cache has to give, so that a large matrix wants few blocks and a small one as many as there are multiprocessors.
// Blocks that have the same weights are neighbours. (32 pairs of codes, too, would be 255 registers and spills.)
template <class W, class Pair, class Out>
DEVICE void batch_rows(unsigned char *shared, uint32_t pairs, const void *w, uint32_t w_stride, const void *x, uint32_t stride, uint32_t n_rows,
                       uint32_t k, const Pair &pair, const Out &out) {
    constexpr int WIDE = (QUANTISED<W> ? GPU_WIDE_CODES : GPU_WIDE) / 8;
    const uint32_t first = blockIdx.x * GPU_BATCH_ROWS;
    auto run = [&](auto m, auto n) {
        constexpr int MT = decltype(m)::value, NT = decltype(n)::value;
        PreparedRows<Line<W>, NT> source(x, stride, first, n_rows);
        few<W, MT, NT, MT == 2 ? 2 : 1>(shared + GPU_TABLE_BYTES, pair_table<W>(shared), w, w_stride, k, source, pair, [&](uint32_t i, uint32_t j, float a, float b) {
            if (first + i < n_rows) out(first + i, j, a, b);
        });
    };
    const bool half = n_rows - first <= GPU_BATCH_ROWS / 2;
    if (pairs == 16) half ? run(Count<2>(), Count<2>()) : run(Count<2>(), Count<4>());
    else half ? run(Count<WIDE>(), Count<2>()) : run(Count<WIDE>(), Count<4>());
}
