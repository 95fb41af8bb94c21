// Decode: products of weight rows with a few activation rows, straight from memory. Part of gpu.h.
//
// One warp has two weight rows; its lanes split K in runs of eight. No shared memory and no barrier: every
// weight is used once by one lane, activations come from the first cache. A lane's sum runs through k
// upwards and lanes are added in a butterfly, for any number of activation rows: batch invariance.

// Activation rows of one block, at most.
#define GEMV_ROWS 8

template <int N> struct Count { static constexpr int value = N; };

// Calls `body` with the smallest count of 1, 2, 4, 8 that holds `n` rows.
template <class Body> DEVICE void with_rows(uint32_t n, const Body &body) {
    if (n <= 1) body(Count<1>());
    else if (n <= 2) body(Count<2>());
    else if (n <= 4) body(Count<4>());
    else body(Count<8>());
}

DEVICE void unpack8(float (&v)[8], const Words4 (&raw)[2], float) {
    UNROLL
    for (int i = 0; i < 8; i++) v[i] = as_float(raw[i / 4].w[i % 4]);
}
template <class W> DEVICE void unpack8(float (&v)[8], const Words4 (&raw)[1], W) {
    UNROLL
    for (int i = 0; i < 4; i++) {
        v[2 * i] = to_float(W{(uint16_t)raw[0].w[i]});
        v[2 * i + 1] = to_float(W{(uint16_t)(raw[0].w[i] >> 16)});
    }
}
// Codes of the int8 cache, without their scale.
DEVICE void unpack8(float (&v)[8], const Words2 &raw) {
    UNROLL
    for (int i = 0; i < 8; i++) v[i] = byte_as_float(raw.w[i / 4], i % 4) - 8388736.0f;
}
// Eight numbers, widened. `p` is a multiple of 8 elements into an aligned row.
template <class W> DEVICE void load8(float (&v)[8], const W *p) {
    Words4 raw[sizeof(W) / 2];
    UNROLL
    for (int i = 0; i < (int)sizeof(W) / 2; i++) raw[i] = load_const((const char *)p + 16 * i);
    unpack8(v, raw, W());
}

// The activation rows of a block, as offsets into x. 32 bits hold any activation buffer, and registers are
// what these loops are short of. Padding is row 0, computed and dropped.
template <int R> struct RowSet {
    uint32_t at[R];
    DEVICE_MEMBER RowSet(const int32_t *rows, uint32_t n_rows, uint32_t first, uint32_t stride) {
        UNROLL
        for (int r = 0; r < R; r++) {
            int32_t id = first + r < n_rows ? rows[first + r] : -1;
            at[r] = (uint32_t)(id < 0 ? 0 : id) * stride;
        }
    }
};

// What lane r finishes for row r: its two sums, and the row, -1 where there is none.
struct Finish { float a, b; int32_t row; };
template <int R> DEVICE Finish finish(const float (&sums)[2][R], const int32_t *rows, uint32_t n_rows, uint32_t first) {
    const uint32_t lane = threadIdx.x % 32;
    Finish f = {0, 0, -1};
    UNROLL
    for (int r = 0; r < R; r++)
        if ((int)lane == r) f.a = sums[0][r], f.b = sums[1][r];
    if (lane < R && first + lane < n_rows) f.row = rows[first + lane];
    return f;
}

// sums[i][r] += w_i . x_r over this lane's columns first, first + step, ... (eight each), and with a norm
// w_i . (x_r * norm) and squares[r] += x_r . x_r: the scale of RMSNorm is one factor for the whole row, so
// it is left to the caller.
template <class W, int R, bool NORM>
DEVICE void dot2_floats(float (&sums)[2][R], float (&squares)[R], const W *w0, const W *w1, const float *x,
                        const RowSet<R> &rows, const float *norm, uint32_t k, uint32_t first, uint32_t step) {
    constexpr int PIECES = sizeof(W) / 2; // 16-byte loads for eight weights
    // Loads on their way: eight for one row, four for some; with eight rows arithmetic covers the latency, and
    // more would not fit into 128 registers.
    constexpr int WANTED = (R == 1 ? 4 : R < 8 ? 2 : 1) / PIECES, U = WANTED > 0 ? WANTED : 1;
    for (uint32_t i = first; i < k; i += U * step) {
        Words4 raw[U][2][PIECES];
        UNROLL
        for (int u = 0; u < U; u++) {
            uint32_t j = i + u * step < k ? i + u * step : i; // loaded twice rather than behind the end
            UNROLL
            for (int q = 0; q < PIECES; q++) {
                raw[u][0][q] = load_stream((const char *)(w0 + j) + 16 * q);
                raw[u][1][q] = load_stream((const char *)(w1 + j) + 16 * q);
            }
        }
        UNROLL
        for (int u = 0; u < U; u++) {
            uint32_t j = i + u * step;
            if (j >= k) break;
            float a[8], b[8], g[8];
            unpack8(a, raw[u][0], W());
            unpack8(b, raw[u][1], W());
            if (NORM) load8(g, norm + j);
            UNROLL
            for (int r = 0; r < R; r++) {
                float v[8];
                fresh4(v, x + (rows.at[r] + j));
                fresh4(v + 4, x + (rows.at[r] + j + 4));
                if (k - j < 8) { // padding may hold anything
                    UNROLL
                    for (int e = 0; e < 8; e++) {
                        if (j + e >= k) v[e] = 0, g[e] = 0;
                    }
                }
                UNROLL
                for (int e = 0; e < 8; e++) {
                    float y = v[e];
                    if (NORM) {
                        squares[r] = fmaf(y, y, squares[r]);
                        y *= g[e];
                    }
                    sums[0][r] = fmaf(a[e], y, sums[0][r]);
                    sums[1][r] = fmaf(b[e], y, sums[1][r]);
                }
            }
        }
    }
}

DEVICE void load4(float (&v)[4], const float *p) {
    Words4 raw = load_const(p);
    UNROLL
    for (int e = 0; e < 4; e++) v[e] = as_float(raw.w[e]);
}

// Four columns of two quantised rows, decoded in w, and their scales, with those of the activations at `column`.
template <int R, bool NORM>
DEVICE void dot2_four(float (&sums)[2][R], float (&squares)[R], const float (&w)[2][4], const float (&scale)[2], const float *x,
                      const RowSet<R> &rows, const float *norm, uint32_t column, uint32_t n) {
    float g[4];
    if (NORM) load4(g, norm + column);
    UNROLL
    for (int r = 0; r < R; r++) {
        float y[4];
        fresh4(y, x + (rows.at[r] + column));
        UNROLL
        for (uint32_t e = 0; e < 4; e++) {
            if (e >= n) y[e] = 0, g[e] = 0; // padding may hold anything
            if (NORM) {
                squares[r] = fmaf(y[e], y[e], squares[r]);
                y[e] *= g[e];
            }
        }
        UNROLL
        for (int i = 0; i < 2; i++) {
            float four = w[i][0] * y[0];
            UNROLL
            for (int e = 1; e < 4; e++) four = fmaf(w[i][e], y[e], four);
            sums[i][r] = fmaf(four, scale[i], sums[i][r]);
        }
    }
}

// As dot2_floats, of quantised rows: eight lanes have blocks first, first + step, ...
template <class Q, int R, bool NORM>
DEVICE void dot2_quantised(float (&sums)[2][R], float (&squares)[R], const unsigned char *w0, const unsigned char *w1,
                           const float *x, const RowSet<R> &rows, const float *norm, uint32_t k, uint32_t first, uint32_t step) {
    SHARED(shared);
    // For one row at least four loads of codes and as many of scales on their way.
    constexpr int U = R == 1 ? 2 : R == 2 ? 2 / (int)Q::LINES : 1;
    constexpr uint32_t SCALE_BYTES = GPU_BLOCK_K / Q::GROUP * 2;
    const float *table = Q::table(shared);
    const uint32_t whole = k / GPU_BLOCK_K, number = threadIdx.x % 8, all_codes = code_bytes<Q>(k);
    const unsigned char *row[2] = {w0, w1};
    for (uint32_t b = first; b < whole; b += U * step) {
        uint32_t codes[U][2][4 * Q::LINES];
        typename Q::Scales scales[U][2];
        UNROLL
        for (int u = 0; u < U; u++)
            UNROLL
            for (int i = 0; i < 2; i++) {
                const uint32_t at = b + u * step;
                const bool has = at < whole;
                UNROLL
                for (uint32_t l = 0; l < Q::LINES; l++) {
                    Words4 piece = has ? load_stream(row[i] + (at * Q::LINES + l) * 128 + number * 16) : Words4{};
                    UNROLL
                    for (int e = 0; e < 4; e++) codes[u][i][l * 4 + e] = piece.w[e];
                }
                scales[u][i] = has ? Q::load_scales(row[i] + all_codes + at * SCALE_BYTES) : typename Q::Scales{};
            }
        UNROLL
        for (int u = 0; u < U; u++) {
            const uint32_t at = b + u * step;
            if (at >= whole) break;
            // Words and scales move to the front as they are used up. Written out it costs nothing; with eight rows it
            // is a loop, for the compiler would load ahead until registers run out.
            UNROLL_BY(R == 8 ? 1 : 4)
            for (uint32_t c = 0; c < 4; c++) {
                UNROLL
                for (uint32_t half = 0; half < 2; half++) {
                    float w[2][4], scale[2];
                    UNROLL
                    for (int i = 0; i < 2; i++) {
                        Q::decode(w[i], codes[u][i], (int)half, table);
                        scale[i] = scale_of<Q>(scales[u][i], (int)half);
                    }
                    dot2_four<R, NORM>(sums, squares, w, scale, x, rows, norm, at * GPU_BLOCK_K + c * 64 + half * 32 + number * 4, 4);
                }
                UNROLL
                for (int i = 0; i < 2; i++) {
                    UNROLL
                    for (int e = Q::WORDS; e < 4 * (int)Q::LINES; e++) codes[u][i][e - Q::WORDS] = codes[u][i][e];
                    next_scales(scales[u][i]);
                }
            }
        }
    }
    // What is left of K; models have nothing.
    if (whole % step != first) return;
    UNROLL_BY(1)
    for (uint32_t column = whole * GPU_BLOCK_K + number * 4; column < k; column += 32) {
        float w[2][4], scale[2];
        UNROLL
        for (int i = 0; i < 2; i++) {
            const uint32_t word = word_of<Q>(row[i], column);
            Q::decode(w[i], &word, 0, table);
            scale[i] = to_float(((const f16 *)(row[i] + all_codes))[column / Q::GROUP]);
        }
        dot2_four<R, NORM>(sums, squares, w, scale, x, rows, norm, column, k - column);
    }
}

// Of `parts` lanes (whole warps) that share K, this is number `part`.
template <class W, int R, bool NORM>
DEVICE void dot2(float (&sums)[2][R], float (&squares)[R], const unsigned char *w0, const unsigned char *w1, const float *x,
                 const RowSet<R> &rows, const float *norm, uint32_t k, uint32_t part, uint32_t parts) {
    if constexpr (QUANTISED<W>) dot2_quantised<W, R, NORM>(sums, squares, w0, w1, x, rows, norm, k, part / 8, parts / 8);
    else dot2_floats<W, R, NORM>(sums, squares, (const W *)w0, (const W *)w1, x, rows, norm, k, part * 8, parts * 8);
}

// The same over all of K and all lanes of the warp, with RMSNorm: every lane has the results.
template <class W, int R>
DEVICE void norm_dot2(float (&sums)[2][R], const unsigned char *w0, const unsigned char *w1, const float *x,
                      const RowSet<R> &rows, const float *norm, uint32_t k, float eps) {
    float squares[R];
    UNROLL
    for (int r = 0; r < R; r++) sums[0][r] = sums[1][r] = squares[r] = 0;
    dot2<W, R, true>(sums, squares, w0, w1, x, rows, norm, k, threadIdx.x % 32, 32);
    UNROLL
    for (int r = 0; r < R; r++) {
        float scale = 1.0f / sqrtf(group_sum(squares[r], 32) / (float)k + eps);
        sums[0][r] = group_sum(sums[0][r], 32) * scale;
        sums[1][r] = group_sum(sums[1][r], 32) * scale;
    }
}

DEVICE float silu(float x) { return x / (1.0f + expf(-x)); }
