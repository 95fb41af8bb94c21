// Decode in float32: multiplies weight rows, read straight from memory, by a few activation rows.
// Part of gpu.h.
//
// One warp has two weight rows; its lanes take K in turn, eight columns at a time. Shared memory
// and barriers are not needed: each weight is used by one lane, once, and activations come from L1.
// A lane sums over k in ascending order, and a butterfly adds up the lanes, for any number of
// activation rows. This gives batch invariance.

// The largest number of activation rows of one block.
#define GEMV_ROWS 8

template <int N> struct Count {
    static constexpr int value = N;
};

// Calls `body` with the smallest count of 1, 2, 4, 8 that holds `n` rows.
template <class Body> DEVICE void with_rows(uint32_t n, const Body &body) {
    if (n <= 1)
        body(Count<1>());
    else if (n <= 2)
        body(Count<2>());
    else if (n <= 4)
        body(Count<4>());
    else
        body(Count<8>());
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
// Unpacks codes of the KV cache. The caller applies their scale.
DEVICE void unpack8(float (&v)[8], const Words2 &raw, Cached8) {
    UNROLL
    for (int i = 0; i < 8; i++) v[i] = byte_as_float(raw.w[i / 4], i % 4) - 8388736.0f;
}
DEVICE void unpack8(float (&v)[8], const Words2 &raw, CachedF8) {
    UNROLL
    for (int i = 0; i < 4; i++) {
        const uint32_t pair = e4m3_pair(raw.w[i / 2] >> i % 2 * 16);
        v[2 * i] = to_float(f16{(uint16_t)pair});
        v[2 * i + 1] = to_float(f16{(uint16_t)(pair >> 16)});
    }
}
// Loads eight numbers and widens them. `p` is a multiple of eight elements from the beginning of an
// aligned row.
template <class W> DEVICE void load8(float (&v)[8], const W *p) {
    Words4 raw[sizeof(W) / 2];
    UNROLL
    for (int i = 0; i < (int)sizeof(W) / 2; i++) raw[i] = load_const((const char *)p + 16 * i);
    unpack8(v, raw, W());
}

// The activation rows of a block, as offsets into x. The offsets have 32 bits because these loops
// are short of registers; that suffices for any activation buffer. For padding the offset is that
// of row 0; the results of padding are dropped.
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

// What lane r needs for the epilogue of row r: the row's two sums, and its number in the step.
// `row` is -1 where there is nothing to store.
struct Finish {
    float a, b;
    int32_t row;
};
template <int R> DEVICE Finish finish(
    const float (&sums)[2][R], const int32_t *rows, uint32_t n_rows, uint32_t first) {
    const uint32_t lane = threadIdx.x % 32;
    Finish f = {0, 0, -1};
    UNROLL
    for (int r = 0; r < R; r++)
        if ((int)lane == r) f.a = sums[0][r], f.b = sums[1][r];
    if (lane < R && first + lane < n_rows) f.row = rows[first + lane];
    return f;
}

// sums[i][r] += w_i . x_r over this lane's columns. `parts` lanes (whole warps) share the columns,
// eight at a time; this lane is number `part` of them. With a norm: sums[i][r] += w_i . (x_r *
// norm) and squares[r] += x_r . x_r. The scale of RMSNorm is one factor for the whole row, so the
// caller applies it to the sums.
template <int R, bool NORM> DEVICE void dot2(float (&sums)[2][R], float (&squares)[R],
    const float *w0, const float *w1, const float *x, const RowSet<R> &rows, const float *norm,
    uint32_t k, uint32_t part, uint32_t parts) {
    // With one row, eight loads of weights are in flight, otherwise four: the arithmetic of several
    // rows covers the latency.
    constexpr int U = R == 1 ? 2 : 1;
    const uint32_t step = parts * 8;
    for (uint32_t i = part * 8; i < k; i += U * step) {
        Words4 raw[U][2][2];
        UNROLL
        for (int u = 0; u < U; u++) {
            // loads the same weights twice rather than beyond the end
            uint32_t j = i + u * step < k ? i + u * step : i;
            UNROLL
            for (int q = 0; q < 2; q++) {
                raw[u][0][q] = load_stream(w0 + j + 4 * q);
                raw[u][1][q] = load_stream(w1 + j + 4 * q);
            }
        }
        UNROLL
        for (int u = 0; u < U; u++) {
            uint32_t j = i + u * step;
            if (j >= k) break;
            float a[8], b[8], g[8];
            unpack8(a, raw[u][0], float());
            unpack8(b, raw[u][1], float());
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

// The same as dot2 over all of K with all lanes of the warp, and with RMSNorm. Every lane gets the
// results.
template <int R> DEVICE void norm_dot2(float (&sums)[2][R], const float *w0, const float *w1,
    const float *x, const RowSet<R> &rows, const float *norm, uint32_t k, float eps) {
    float squares[R];
    UNROLL
    for (int r = 0; r < R; r++) sums[0][r] = sums[1][r] = squares[r] = 0;
    dot2<R, true>(sums, squares, w0, w1, x, rows, norm, k, threadIdx.x % 32, 32);
    UNROLL
    for (int r = 0; r < R; r++) {
        float scale = 1.0f / sqrtf(group_sum(squares[r], 32) / (float)k + eps);
        sums[0][r] = group_sum(sums[0][r], 32) * scale;
        sums[1][r] = group_sum(sums[1][r], 32) * scale;
    }
}

DEVICE float silu(float x) { return x / (1.0f + expf(-x)); }
// silu for the rows of prompts whose weights have at most 16 bits. The result is rounded to 16 bits
// too, so six instructions are enough where the exact function takes thirty. The relative error is
// at most 3e-6 where the result is a normal number of f16 (|x| <= 14). All kernels for such rows
// call this one, adapt_up too, because rows without an adapter take either way.
DEVICE float silu_of_prompt(float x) {
    return x * reciprocal_fast(1.0f + exp2_fast(x * -1.44269504f)); // 1 / ln 2
}
