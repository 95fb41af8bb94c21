// What the LoRA adapters of rows add to products: y += B (scale * A x). Each row has its own
// adapter, or none.
//
// adapt_in computes the few numbers scale * A x, which wait in float32. adapt_out adds B times
// these to float32 sums; adapt_up does so for gate and up, and finishes the row as ffn_up's
// epilogue does. So the products themselves know nothing of adapters. All sums are in float32 and
// are rounded nowhere but in what adapt_up stores. They run in an order that depends on the sizes
// of A and B only, whatever the other rows are.
//
// A block of the kernels for prompts has eight neighbouring rows. Rows of one adapter mostly are
// neighbours, so it reads A and B once for a run of them. The other kernels have one row in a
// block: the rows of a decode step mostly have different adapters.
#include "gpu.h"

// Ranks of a block of adapt_in.
#define RANKS 4

// The number of rows from `row` on, before `end`, that have the same adapter.
DEVICE uint32_t run_of(const AdapterPart *const *adapters, uint32_t row, uint32_t end) {
    uint32_t n = 1;
    while (row + n < end && adapters[row + n] == adapters[row]) n++;
    return n;
}

// Loads columns k .. k + 7 of an input row; k is a multiple of 8. Padding becomes zero.
DEVICE void load_input(float (&v)[8], const AdaptInParams &p, uint32_t row, uint32_t k) {
    const size_t at = (size_t)row * p.x_stride + k;
    if (p.x_type == GPU_F32) {
        fresh4(v, (const float *)p.x + at);
        fresh4(v + 4, (const float *)p.x + at + 4);
    } else {
        const uint16_t *x = (const uint16_t *)p.x + at;
        uint32_t pairs[4];
        if (p.permuted) {
            // Half of sixteen columns: two pieces of four numbers, in which pairs of columns
            // alternate (permuted_of in quant.h).
            x -= k % 16 / 2;
            const Words2 even = load_fresh8(x), odd = load_fresh8(x + 8);
            pairs[0] = even.w[0], pairs[1] = odd.w[0], pairs[2] = even.w[1], pairs[3] = odd.w[1];
        } else {
            const Words4 all = load_fresh(x);
            UNROLL
            for (int i = 0; i < 4; i++) pairs[i] = all.w[i];
        }
        UNROLL
        for (int i = 0; i < 4; i++) {
            const uint16_t low = (uint16_t)pairs[i], high = (uint16_t)(pairs[i] >> 16);
            v[2 * i] = p.x_type == GPU_BF16 ? to_float(bf16{low}) : to_float(f16{low});
            v[2 * i + 1] = p.x_type == GPU_BF16 ? to_float(bf16{high}) : to_float(f16{high});
        }
    }
    if (p.cols - k < 8) {
        UNROLL
        for (uint32_t e = 0; e < 8; e++)
            if (k + e >= p.cols) v[e] = 0;
    }
}

// scale * A x for ranks j0 .. j0 + RANKS - 1 of one part, and `n` <= R rows of one adapter. All
// threads of the block share the columns.
template <class W, int R> DEVICE void multiply(const AdaptInParams &p, float *shares,
    const AdapterPart &low, uint32_t part, uint32_t j0, uint32_t row, uint32_t n) {
    constexpr uint32_t SUMS = (RANKS + 1) * R;
    // Steps of columns whose loads are in flight together.
    constexpr uint32_t U = R == 1 ? 2 : 1, STEP = 256 * 8;
    const uint32_t t = threadIdx.x, stride = (p.cols + 31) / 32 * 32;
    const W *a = (const W *)low.a + (size_t)j0 * stride;
    float sums[RANKS][R] = {}, squares[R] = {};
    for (uint32_t i = t * 8; i < p.cols; i += U * STEP) {
        Words4 raw[U][RANKS][sizeof(W) / 2];
        UNROLL
        for (uint32_t u = 0; u < U; u++) {
            // loads the same numbers twice rather than beyond the end
            const uint32_t k = i + u * STEP < p.cols ? i + u * STEP : i;
            UNROLL
            for (uint32_t j = 0; j < RANKS; j++) UNROLL
            for (uint32_t q = 0; q < sizeof(W) / 2; q++)
                raw[u][j][q] = load_stream((const char *)(a + j * stride + k) + 16 * q);
        }
        UNROLL
        for (uint32_t u = 0; u < U; u++) {
            const uint32_t k = i + u * STEP;
            if (k >= p.cols) break;
            float numbers[RANKS][8], g[8];
            UNROLL
            for (uint32_t j = 0; j < RANKS; j++) unpack8(numbers[j], raw[u][j], W());
            if (p.norm) load8(g, p.norm + k);
            UNROLL
            for (uint32_t r = 0; r < R; r++) {
                float v[8];
                load_input(v, p, row + (r < n ? r : n - 1), k);
                UNROLL
                for (uint32_t e = 0; e < 8; e++) {
                    if (p.norm) {
                        squares[r] = fmaf(v[e], v[e], squares[r]);
                        v[e] = k + e < p.cols ? v[e] * g[e] : 0; // padding may hold anything
                    }
                    UNROLL
                    for (uint32_t j = 0; j < RANKS; j++)
                        sums[j][r] = fmaf(numbers[j][e], v[e], sums[j][r]);
                }
            }
        }
    }
    float *mine = shares + t / 32 * SUMS;
    UNROLL
    for (uint32_t r = 0; r < R; r++) {
        UNROLL
        for (uint32_t j = 0; j < RANKS; j++) {
            const float sum = group_sum(sums[j][r], 32);
            if (t % 32 == 0) mine[j * R + r] = sum;
        }
        const float square = group_sum(squares[r], 32);
        if (t % 32 == 0) mine[RANKS * R + r] = square;
    }
#ifndef PLANT_NO_BARRIER_ADAPT
    block_sync();
#endif
    const uint32_t r = t % R;
    if (t < RANKS * R && r < n) {
        float sum = 0, square = 0;
        UNROLL
        for (uint32_t w = 0; w < 8; w++) {
            sum += shares[w * SUMS + t];
            square += shares[w * SUMS + RANKS * R + r];
        }
        if (p.norm) sum *= 1.0f / sqrtf(square / (float)p.cols + p.eps);
        p.thin[(size_t)(row + r) * GPU_THIN + part * GPU_MAX_RANK + j0 + t / R] = sum * low.scale;
    }
    if (R > 1) block_sync(); // the next run writes `shares` again
}

template <class W, int R> DEVICE void adapt_in(const AdaptInParams &p) {
    SHARED(shared);
    const uint32_t chunks = p.rank / RANKS, part = blockIdx.x / chunks,
                   j0 = blockIdx.x % chunks * RANKS, first = blockIdx.y * R,
                   end = first + R < p.n_rows ? first + R : p.n_rows;
    start_next();
    if (R == 1 && p.adapters[first]) {
        // What A and the list of parts hold was there before the step.
        const AdapterPart &low = p.adapters[first][p.first_part + part];
        const uint32_t bytes = (p.cols + 31) / 32 * 32 * RANKS * (uint32_t)sizeof(W);
        const char *a = (const char *)low.a + (size_t)j0 / RANKS * bytes;
        for (uint32_t at = threadIdx.x * 128; j0 < low.rank && at < bytes; at += 256 * 128)
            prefetch(a + at);
    }
    wait_for_last();
    for (uint32_t row = first, n; row < end; row += n) {
        n = run_of(p.adapters, row, end);
        if (!p.adapters[row]) continue;
        const AdapterPart &low = p.adapters[row][p.first_part + part];
        if (j0 < low.rank) multiply<W, R>(p, (float *)shared, low, part, j0, row, n);
    }
}

// sums[r] = B x for row `i` of B and the numbers that adapt_in has left for `n` <= R rows.
template <class W, int R> DEVICE void expand(
    float (&sums)[R], const AdapterPart &low, uint32_t i, const float *thin, uint32_t n) {
    const W *b = (const W *)low.b + (size_t)i * low.rank;
    UNROLL
    for (uint32_t r = 0; r < R; r++) sums[r] = 0;
    for (uint32_t j = 0; j < low.rank; j += 8) {
        float numbers[8];
        load8(numbers, b + j);
        UNROLL
        for (uint32_t r = 0; r < R; r++) {
            const float *from = thin + (size_t)(r < n ? r : n - 1) * GPU_THIN + j;
            float v[8];
            fresh4(v, from);
            fresh4(v + 4, from + 4);
            UNROLL
            for (uint32_t e = 0; e < 8; e++) sums[r] = fmaf(numbers[e], v[e], sums[r]);
        }
    }
}

template <class W, int R> DEVICE void adapt_out(const AdaptOutParams &p) {
    const uint32_t column = blockIdx.x * 256 + threadIdx.x, first = blockIdx.y * R,
                   end = first + R < p.n_rows ? first + R : p.n_rows;
    const uint32_t part = (column >= p.second) + (column >= p.third), begin = part == 0   ? 0
                                                                              : part == 1 ? p.second
                                                                                          : p.third;
    start_next();
    if (R == 1 && column < p.n && p.adapters[first]) {
        const AdapterPart &low = p.adapters[first][p.first_part + part];
        if (low.rank) prefetch((const W *)low.b + (size_t)(column - begin) * low.rank);
    }
    wait_for_last();
    if (column >= p.n) return;
    for (uint32_t row = first, n; row < end; row += n) {
        n = run_of(p.adapters, row, end);
        if (!p.adapters[row]) continue;
        const AdapterPart &low = p.adapters[row][p.first_part + part];
        if (!low.rank) continue;
        float sums[R];
#ifdef PLANT_OTHER_PART
        expand<W, R>(sums, low, column - begin, p.thin + (size_t)row * GPU_THIN, n);
#else
        expand<W, R>(
            sums, low, column - begin, p.thin + (size_t)row * GPU_THIN + part * GPU_MAX_RANK, n);
#endif
        UNROLL
        for (uint32_t r = 0; r < R; r++) {
            if (r >= n) break;
            float *y = part == 0 ? p.y + (size_t)(row + r) * p.y_stride + column
                                 : p.other + (size_t)(row + r) * p.other_stride + column - p.second;
            *y += p.factor * sums[r];
        }
    }
}

template <class W, int R> DEVICE void adapt_up(const AdaptUpParams &p) {
    const uint32_t j = blockIdx.x * 256 + threadIdx.x, first = blockIdx.y * R,
                   end = first + R < p.n_rows ? first + R : p.n_rows;
    start_next();
    if (R == 1 && j < p.ffn_dim && p.adapters[first]) {
        const AdapterPart *low = p.adapters[first] + p.first_part;
        for (uint32_t part = 0; part < 2; part++)
            if (low[part].rank) prefetch((const W *)low[part].b + (size_t)j * low[part].rank);
    }
    wait_for_last();
    if (j >= p.ffn_dim) return;
    for (uint32_t row = first, n; row < end; row += n) {
#ifdef PLANT_ONE_RUN
        n = end - row;
#else
        n = run_of(p.adapters, row, end);
#endif
        float more[2][R];
        const AdapterPart *low = p.adapters[row];
        if (low) {
            UNROLL
            for (uint32_t part = 0; part < 2; part++)
                expand<W, R>(more[part], low[p.first_part + part], j,
                    p.thin + (size_t)row * GPU_THIN + part * GPU_MAX_RANK, n);
        }
        UNROLL
        for (uint32_t r = 0; r < R; r++) {
            if (r >= n || p.rows[row + r] < 0) continue;
            const float *sums = p.sums + (size_t)(row + r) * p.sums_stride + j;
            float gate = sums[0], up = sums[p.ffn_dim];
            if (low) gate += more[0][r], up += more[1][r];
            const float out = (R > 1 && p.fast ? silu_of_prompt(gate) : silu(gate)) * up;
            with_type(p.h_type, [&](auto type) {
                from_float(
                    ((decltype(type) *)
                            p.h)[(size_t)p.rows[row + r] * p.h_stride + permuted_of(j, p.permuted)],
                    bounded(out, p.h_type));
            });
        }
    }
}

KERNEL(adapt_in_f32) { adapt_in<float, 1>(p); }
KERNEL(adapt_in_bf16) { adapt_in<bf16, 1>(p); }
KERNEL(adapt_in_prefill_f32) { adapt_in<float, GPU_ADAPT_ROWS>(p); }
KERNEL(adapt_in_prefill_bf16) { adapt_in<bf16, GPU_ADAPT_ROWS>(p); }
KERNEL(adapt_out_f32) { adapt_out<float, 1>(p); }
KERNEL(adapt_out_bf16) { adapt_out<bf16, 1>(p); }
KERNEL(adapt_out_prefill_f32) { adapt_out<float, GPU_ADAPT_ROWS>(p); }
KERNEL(adapt_out_prefill_bf16) { adapt_out<bf16, GPU_ADAPT_ROWS>(p); }
KERNEL(adapt_up_f32) { adapt_up<float, 1>(p); }
KERNEL(adapt_up_bf16) { adapt_up<bf16, 1>(p); }
KERNEL(adapt_up_prefill_f32) { adapt_up<float, GPU_ADAPT_ROWS>(p); }
KERNEL(adapt_up_prefill_bf16) { adapt_up<bf16, GPU_ADAPT_ROWS>(p); }
