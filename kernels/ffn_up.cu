// The first half of the feed-forward: multiplies the normed row by gate and by up, adds their
// biases, then computes silu(gate) * up.
#include "gpu.h"

// Stores the output in column j of a row.
DEVICE void put_one(const FfnUpParams &p, int32_t row, uint32_t j, float value) {
    with_type(p.h_type, [&](auto type) {
        from_float(((decltype(type) *)p.h)[(size_t)row * p.h_stride + j], bounded(value, p.h_type));
    });
}

// The output of column j from its two sums. `fast`: silu_of_prompt.
DEVICE float output_of(const FfnUpParams &p, uint32_t j, float gate, float up, bool fast) {
    if (p.bias) {
        gate += load_const_float(p.bias + j);
        up += load_const_float(p.bias + p.ffn_dim + j);
    }
    return (fast ? silu_of_prompt(gate) : silu(gate)) * up;
}

DEVICE void ffn_up_float(const FfnUpParams &p) {
    const uint32_t j = blockIdx.x * 8 + threadIdx.x / 32;
    if (j >= p.ffn_dim) return;
    const float *gate = (const float *)p.w + (size_t)j * p.w_stride,
                *up = gate + (size_t)p.ffn_dim * p.w_stride;
    const uint32_t first = blockIdx.y * GEMV_ROWS;
    start_next();
    prefetch_row(gate, p.w_stride, threadIdx.x % 32);
    prefetch_row(up, p.w_stride, threadIdx.x % 32);
    wait_for_last();
    with_rows(p.n_rows - first, [&](auto count) {
        constexpr int R = decltype(count)::value;
        RowSet<R> rows(p.rows, p.n_rows, first, p.x_stride);
        float sums[2][R];
        norm_dot2<R>(sums, gate, up, (const float *)p.x, rows, p.norm, p.dim, p.eps);
        const Finish f = finish(sums, p.rows, p.n_rows, first);
        if (f.row >= 0) put_one(p, f.row, j, output_of(p, j, f.a, f.b, false));
    });
}

// Pair j is row first + j of gate and the same row of up (see Pairs in few.h).
struct GatePairs {
    const FfnUpParams &p;
    uint32_t first;

    DEVICE_MEMBER void rows(uint32_t (&rows)[2], uint32_t j) const {
        rows[0] = first + j < p.ffn_dim ? first + j : first;
        rows[1] = rows[0] + p.ffn_dim;
    }
    struct None {};
    DEVICE_MEMBER uint32_t column(uint32_t j) const { return first + j; }
    DEVICE_MEMBER int32_t row(uint32_t i) const { return i < p.n_rows ? p.rows[i] : -1; }
    DEVICE_MEMBER None find(int32_t, uint32_t) const { return {}; }
    DEVICE_MEMBER void put(int32_t row, uint32_t j, None, float gate, float up) const {
        if (row >= 0 && j < p.ffn_dim) put_one(p, row, j, output_of(p, j, gate, up, false));
    }
};

// What a row is to the epilogues of HopperGemm and HopperCodes: its number, or -1.
struct GateRows {
    struct None {};
    const FfnUpParams &p;
    DEVICE_MEMBER int32_t row(uint32_t i) const { return i < p.n_rows ? p.rows[i] : -1; }
    DEVICE_MEMBER void expect(uint32_t, uint32_t, uint32_t) const {}
    template <class Column> DEVICE_MEMBER None find(int32_t, const Column &) const { return {}; }
};

// The same pairs for HopperCodes. h is f16 and its columns are in permuted order. The pairs are in
// that order too, so that neighbouring pairs have neighbouring outputs in h.
struct PermutedGates : GateRows {
    uint32_t first;

    // Of two neighbouring outputs: the place in h, and the columns of gate.
    struct Column {
        uint32_t at, gates[2];
    };
    DEVICE_MEMBER PermutedGates(const FfnUpParams &p, uint32_t first) : GateRows{p}, first(first) {}
    DEVICE_MEMBER void rows(uint32_t (&rows)[2], uint32_t j) const {
        rows[0] = column_of(first + j) < p.ffn_dim ? column_of(first + j) : first;
        rows[1] = rows[0] + p.ffn_dim;
    }
    DEVICE_MEMBER Column column(uint32_t c) const {
        const uint32_t at = first + c / 2;
        return {at, {column_of(at), column_of(at + 1)}};
    }
    // a and b: gate and up of either output.
    DEVICE_MEMBER void put(int32_t row, const Column &c, None, Pair a, Pair b) const {
        if (row < 0) return;
        f16 *const h = (f16 *)p.h + (size_t)row * p.h_stride + c.at;
        const bool has_a = c.gates[0] < p.ffn_dim, has_b = c.gates[1] < p.ffn_dim;
        const float first = has_a ? bounded(output_of(p, c.gates[0], a.x, a.y, true), p.h_type) : 0,
                    second =
                        has_b ? bounded(output_of(p, c.gates[1], b.x, b.y, true), p.h_type) : 0;
        if (has_a && has_b)
            store_pair(h, first, second);
        else if (has_a)
            from_float(h[0], first);
        else if (has_b)
            from_float(h[1], second);
    }
};

// Multiplies up to eight rows; with BATCH, any number of rows that prepare has made.
template <class W, bool BATCH> DEVICE void ffn_up(const FfnUpParams &p) {
    SHARED(shared);
    if constexpr (BATCH)
        batch_rows<W>(shared, p.w, p.w_stride, p.x, p.x_stride, p.n_rows, p.dim,
            {p.scratch, p.splits}, GatePairs{p, blockIdx.y * GPU_BATCH_PAIRS});
    else
        few_rows<W>(shared, p.w, p.w_stride, p.x, p.x_stride, p.norm, p.rows, p.n_rows, p.dim,
            p.eps, p.ffn_dim, [&](uint32_t first) { return GatePairs{p, first}; });
}

// Stores the outputs in columns j and j + 1 of a row.
DEVICE void join(const FfnUpParams &p, int32_t row, uint32_t j, Pair gate, Pair up, bool fast) {
    if (row < 0 || j >= p.ffn_dim) return;
    const float a = output_of(p, j, gate.x, up.x, fast);
    if (j + 1 < p.ffn_dim) {
        const float b = output_of(p, j + 1, gate.y, up.y, fast);
        with_type(p.h_type, [&](auto type) {
            store_pair((decltype(type) *)p.h + (size_t)row * p.h_stride + j, bounded(a, p.h_type),
                bounded(b, p.h_type));
        });
    } else
        put_one(p, row, j, a);
}

template <class W> DEVICE void ffn_up_prefill(const FfnUpParams &p) {
    SHARED(shared);
    using G = Gemm<W>;
    const uint32_t j0 = blockIdx.x * (G::N / 2);
    G::run(
        shared, p.x, p.x_stride, p.w, p.w_stride, p.n_rows, p.dim,
        [&](uint32_t r) -> int64_t {
            uint32_t j = j0 + r / (2 * G::HALF) * G::HALF + r % G::HALF;
            return j < p.ffn_dim ? (int64_t)j + (r / G::HALF % 2 ? p.ffn_dim : 0) : -1;
        },
        [&](uint32_t i, uint32_t c, Pair gate, Pair up) {
            join(p, p.rows[i], j0 + c / (2 * G::HALF) * G::HALF + c % G::HALF, gate, up,
                QUANTISED<W> || sizeof(W) == 2);
        });
}

// The columns of gate and up that a thread of HopperGemm has of each of its rows.
struct GateTile : GateRows {
    uint32_t j0;

    DEVICE_MEMBER GateTile(const FfnUpParams &p, uint32_t j0) : GateRows{p}, j0(j0) {}
    DEVICE_MEMBER uint32_t column(uint32_t c) const { return j0 + c; }
    DEVICE_MEMBER void put(int32_t row, uint32_t j, None, Pair gate, Pair up) const {
        join(p, row, j, gate, up, true);
    }
};

template <class T, uint32_t COLUMNS> DEVICE void ffn_up_hopper(const FfnUpHopperParams &h) {
    SHARED(shared);
    using G = HopperGemm<T, COLUMNS>;
    const uint32_t j0 = blockIdx.y * G::HALF;
    G::run(shared, h.x, 0, h.w, h.groups, h.p.n_rows, h.p.dim, j0, h.p.ffn_dim + j0,
        GateTile(h.p, j0));
}

template <class Q, uint32_t ROWS> DEVICE void ffn_up_codes(const FfnUpHopperParams &h) {
    SHARED(shared);
    using G = HopperCodes<Q, ROWS>;
    const PermutedGates gates(h.p, G::place(h.across) * (h.groups * 32));
    G::run(shared, h.x, 0, h.p.w, h.p.w_stride, h.groups, h.across, h.p.dim, gates, gates);
}

// The epilogue of a product that a library computed. h has type T.
template <class T> DEVICE void put_sums(const FfnUpParams &p) {
    const int32_t row = p.rows[blockIdx.y];
    const uint32_t j = (blockIdx.x * 256 + threadIdx.x) * 4;
    if (row < 0 || j >= p.ffn_dim) return;
#ifdef PLANT_UP_AT_STRIDE
    const float *gate = (const float *)p.x + (size_t)blockIdx.y * p.x_stride + j,
                *up = gate + p.x_stride / 2;
#else
    const float *gate = (const float *)p.x + (size_t)blockIdx.y * p.x_stride + j,
                *up = gate + p.ffn_dim;
#endif
    T *h = (T *)p.h + (size_t)row * p.h_stride + j;
    if (p.ffn_dim % 4) { // then `up` is not aligned to 16 bytes
        for (uint32_t e = 0; e < 4 && j + e < p.ffn_dim; e++)
            from_float(h[e], bounded(output_of(p, j + e, gate[e], up[e], true), p.h_type));
        return;
    }
    float g[4], u[4];
    fresh4(g, gate);
    fresh4(u, up);
    UNROLL
    for (uint32_t e = 0; e < 4; e++)
        u[e] = bounded(output_of(p, j + e, g[e], u[e], true), p.h_type);
    store8(h, Words2{{pair_of(u[0], u[1], T()), pair_of(u[2], u[3], T())}});
}

KERNEL(ffn_up_f32) { ffn_up_float(p); }
KERNEL_WIDE(ffn_up_f16) { ffn_up<f16, false>(p); }
KERNEL_WIDE(ffn_up_bf16) { ffn_up<bf16, false>(p); }
KERNEL_WIDE(ffn_up_int8) { ffn_up<Int8, false>(p); }
KERNEL_WIDE(ffn_up_int4) { ffn_up<Int4, false>(p); }
KERNEL_WIDE(ffn_up_nf4) { ffn_up<Nf4, false>(p); }
KERNEL_WIDE(ffn_up_fp8) { ffn_up<Fp8, false>(p); }
KERNEL(ffn_up_k4) { ffn_up<K4, false>(p); }
KERNEL(ffn_up_k5) { ffn_up<K5, false>(p); }
KERNEL(ffn_up_k6) { ffn_up<K6, false>(p); }
KERNEL(ffn_up_k8) { ffn_up<K8, false>(p); }
KERNEL(ffn_up_iq4) { ffn_up<Iq4, false>(p); }
KERNEL(ffn_up_uint4) { ffn_up<Uint4, false>(p); }
KERNEL(ffn_up_batch_f16) { ffn_up<f16, true>(p); }
KERNEL(ffn_up_batch_bf16) { ffn_up<bf16, true>(p); }
KERNEL(ffn_up_batch_int8) { ffn_up<Int8, true>(p); }
KERNEL(ffn_up_batch_int4) { ffn_up<Int4, true>(p); }
KERNEL(ffn_up_batch_nf4) { ffn_up<Nf4, true>(p); }
KERNEL(ffn_up_batch_fp8) { ffn_up<Fp8, true>(p); }
KERNEL_WIDE(ffn_up_batch_k4) { ffn_up<K4, true>(p); }
KERNEL_WIDE(ffn_up_batch_k5) { ffn_up<K5, true>(p); }
KERNEL_WIDE(ffn_up_batch_k6) { ffn_up<K6, true>(p); }
KERNEL_WIDE(ffn_up_batch_k8) { ffn_up<K8, true>(p); }
KERNEL_WIDE(ffn_up_batch_iq4) { ffn_up<Iq4, true>(p); }
KERNEL_WIDE(ffn_up_batch_uint4) { ffn_up<Uint4, true>(p); }
KERNEL(ffn_up_prefill_f32) { ffn_up_prefill<float>(p); }
KERNEL(ffn_up_prefill_f16) { ffn_up_prefill<f16>(p); }
KERNEL(ffn_up_prefill_bf16) { ffn_up_prefill<bf16>(p); }
KERNEL(ffn_up_prefill_int8) { ffn_up_prefill<Int8>(p); }
KERNEL(ffn_up_prefill_int4) { ffn_up_prefill<Int4>(p); }
KERNEL(ffn_up_prefill_nf4) { ffn_up_prefill<Nf4>(p); }
KERNEL(ffn_up_prefill_fp8) { ffn_up_prefill<Fp8>(p); }
KERNEL(ffn_up_prefill_k4) { ffn_up_prefill<K4>(p); }
KERNEL_WIDE(ffn_up_prefill_k5) { ffn_up_prefill<K5>(p); }
KERNEL_WIDE(ffn_up_prefill_k6) { ffn_up_prefill<K6>(p); }
KERNEL(ffn_up_prefill_k8) { ffn_up_prefill<K8>(p); }
KERNEL(ffn_up_prefill_iq4) { ffn_up_prefill<Iq4>(p); }
KERNEL(ffn_up_prefill_uint4) { ffn_up_prefill<Uint4>(p); }
KERNEL(ffn_up_epilogue_f16) { put_sums<f16>(p); }
KERNEL(ffn_up_epilogue_bf16) { put_sums<bf16>(p); }
#ifdef HOPPER
KERNEL_WIDE(ffn_up_hopper_f16) { ffn_up_hopper<f16, 256>(p); }
KERNEL(ffn_up_hopper_half_f16) { ffn_up_hopper<f16, 128>(p); }
KERNEL_WIDE(ffn_up_hopper_bf16) { ffn_up_hopper<bf16, 256>(p); }
KERNEL(ffn_up_hopper_half_bf16) { ffn_up_hopper<bf16, 128>(p); }
KERNEL_WIDE(ffn_up_hopper_int8) { ffn_up_codes<Int8, 256>(p); }
KERNEL_WIDE(ffn_up_hopper_half_int8) { ffn_up_codes<Int8, 128>(p); }
KERNEL_WIDE(ffn_up_hopper_int4) { ffn_up_codes<Int4, 256>(p); }
KERNEL_WIDE(ffn_up_hopper_half_int4) { ffn_up_codes<Int4, 128>(p); }
KERNEL_WIDE(ffn_up_hopper_nf4) { ffn_up_codes<Nf4, 256>(p); }
KERNEL_WIDE(ffn_up_hopper_half_nf4) { ffn_up_codes<Nf4, 128>(p); }
KERNEL_WIDE(ffn_up_hopper_fp8) { ffn_up_codes<Fp8, 256>(p); }
KERNEL_WIDE(ffn_up_hopper_half_fp8) { ffn_up_codes<Fp8, 128>(p); }
#endif
