// Computes q | k | v of a layer: product, bias, RoPE. q stays float32; k and v are written to their
// page. Where heads have norms, append.cu does what follows the bias.
#include "gpu.h"

// Stores two floats; with ALONE, by one store of 8 bytes. ALONE is for the kernel that is an
// epilogue alone. In qkv_prefill_f32 it would raise the registers from 80 to 96.
template <bool ALONE> DEVICE void store_floats(float *to, float a, float b) {
    if constexpr (ALONE)
        store8(to, Words2{{as_bits(a), as_bits(b)}});
    else
        to[0] = a, to[1] = b;
}

// What put_pair needs for two columns of a row: the row, its slot in the cache, and RoPE's cosine
// and sine. `row` is -1 where there is no row.
struct Found {
    int32_t row;
    uint32_t slot;
    float cos, sin;
};
DEVICE Found find_pair(const QkvParams &p, int32_t row, uint32_t n) {
    n += p.first;
    const uint32_t q_dim = p.n_heads * p.head_dim, kv_dim = p.n_kv_heads * p.head_dim;
    Found read = {row, GPU_NO_SLOT, 1, 0};
    if (row >= 0 && n < q_dim + kv_dim && !p.raw) {
        const size_t angle = (size_t)p.positions[row] * (p.head_dim / 2) + n % p.head_dim / 2;
        read.cos = p.cos[angle], read.sin = p.sin[angle];
    }
    if (row >= 0 && n >= q_dim) read.slot = p.slots[row];
    return read;
}

// Finishes and stores columns n and n + 1 of a row, counted from p.first on. n and p.first are
// even, so both columns belong to one head, and RoPE rotates them together.
template <bool ALONE = false>
DEVICE void put_pair(const QkvParams &p, const Found &read, uint32_t n, float a, float b) {
    n += p.first;
    const uint32_t q_dim = p.n_heads * p.head_dim, kv_dim = p.n_kv_heads * p.head_dim,
                   row = (uint32_t)read.row;
    if (p.bias) {
        a += p.bias[n];
        b += p.bias[n + 1];
    }
    const uint32_t d = n % p.head_dim;
    if (n < q_dim + kv_dim && !p.raw) {
        const float turned = a * read.cos - b * read.sin;
        b = a * read.sin + b * read.cos;
        a = turned;
    }
    if (n < q_dim) {
        store_floats<ALONE>(p.q + (size_t)row * p.q_stride + n, a, b);
        return;
    }
    const uint32_t slot = read.slot;
    if (slot == GPU_NO_SLOT) return;
    const bool is_v = n >= q_dim + kv_dim;
    // append.cu takes these numbers, because a scale or a norm needs the whole vector.
    if (p.raw || p.kv_type == GPU_INT8 || p.kv_type == GPU_FP8) {
        store_floats<ALONE>((float *)(is_v ? p.v_pages : p.k_pages) + (size_t)row * 2 * kv_dim +
                                (n - q_dim) % kv_dim,
            a, b);
        return;
    }
    const uint32_t head = (n - q_dim) % kv_dim / p.head_dim;
    const size_t at =
        (((size_t)(slot / GPU_PAGE) * p.n_kv_heads + head) * GPU_PAGE + slot % GPU_PAGE) *
            p.head_stride +
        d;
    auto store = [&](auto type) {
        auto *to = (decltype(type) *)(is_v ? p.v_pages : p.k_pages) + at;
        store_pair(to, a, b);
        if (d + 2 == p.head_dim)
            for (uint32_t i = p.head_dim; i < p.head_stride; i++) from_float(to[i - d], 0);
    };
    with_type(p.kv_type, store);
}

DEVICE void qkv_float(const QkvParams &p) {
    const uint32_t n = (blockIdx.x * 8 + threadIdx.x / 32) * 2;
    if (n >= p.n) return;
    const float *w0 = (const float *)p.w + (size_t)n * p.w_stride, *w1 = w0 + p.w_stride;
    const uint32_t first = blockIdx.y * GEMV_ROWS;
    start_next();
    prefetch_row(w0, p.w_stride, threadIdx.x % 32);
    prefetch_row(w1, p.w_stride, threadIdx.x % 32);
    wait_for_last();
    with_rows(p.n_rows - first, [&](auto count) {
        constexpr int R = decltype(count)::value;
        RowSet<R> rows(p.rows, p.n_rows, first, p.x_stride);
        float sums[2][R];
        norm_dot2<R>(sums, w0, w1, (const float *)p.x, rows, p.norm, p.dim, p.eps);
        const Finish f = finish(sums, p.rows, p.n_rows, first);
        if (f.row >= 0) put_pair(p, find_pair(p, f.row, n), n, f.a, f.b);
    });
}

// Two neighbouring rows of w are a pair; n0 is the block's first row (see Pairs in few.h).
struct QkvPairs {
    const QkvParams &p;
    uint32_t n0, end;

    DEVICE_MEMBER QkvPairs(const QkvParams &p, uint32_t first) : p(p), n0(2 * first), end(p.n) {}
    DEVICE_MEMBER void rows(uint32_t (&rows)[2], uint32_t j) const {
        rows[0] = n0 + 2 * j < end ? n0 + 2 * j : n0;
        rows[1] = rows[0] + 1;
    }
    DEVICE_MEMBER Found find(uint32_t i, uint32_t j) const {
        return find_pair(p, i < p.n_rows && n0 + 2 * j < end ? p.rows[i] : -1, n0 + 2 * j);
    }
    DEVICE_MEMBER void put(const Found &found, uint32_t j, float a, float b) const {
        if (found.row >= 0) put_pair(p, found, n0 + 2 * j, a, b);
    }
};

// Multiplies up to eight rows; with BATCH, any number of rows that prepare has made.
template <class W, bool BATCH> DEVICE void qkv(const QkvParams &p) {
    SHARED(shared);
#ifdef PLANT_WRITTEN_EARLY
    if (threadIdx.x == 0) p.q[0] = 1;
#endif
    if constexpr (BATCH)
        batch_rows<W>(shared, p.w, p.w_stride, p.x, p.x_stride, p.n_rows, p.dim,
            {p.scratch, p.splits}, QkvPairs(p, blockIdx.y * GPU_BATCH_PAIRS));
    else
        few_rows<W>(shared, p.w, p.w_stride, p.x, p.x_stride, p.norm, p.rows, p.n_rows, p.dim,
            p.eps, p.n / 2, [&](uint32_t first) { return QkvPairs(p, first); });
}

// What put_pairs needs for row i of the launch: a is for columns n and n + 1, b for the two columns
// `half` further on.
struct FoundPairs {
    Found a, b;
};
DEVICE FoundPairs find_pairs(const QkvParams &p, uint32_t i, uint32_t n, uint32_t half) {
    const int32_t row = p.rows[i];
    return {find_pair(p, row, n), find_pair(p, row, n + half)};
}
DEVICE void put_pairs(
    const QkvParams &p, const FoundPairs &read, uint32_t n, uint32_t half, Pair a, Pair b) {
    if (read.a.row < 0) return;
    if (n < p.n) put_pair(p, read.a, n, a.x, a.y);
    if (n + half < p.n) put_pair(p, read.b, n + half, b.x, b.y);
}

template <class W> DEVICE void qkv_prefill(const QkvParams &p) {
    SHARED(shared);
    using G = Gemm<W>;
    const uint32_t n0 = blockIdx.x * G::N;
    G::run(
        shared, p.x, p.x_stride, p.w, p.w_stride, p.n_rows, p.dim,
        [&](uint32_t r) -> int64_t { return n0 + r < p.n ? (int64_t)(n0 + r) : -1; },
        [&](uint32_t i, uint32_t c, Pair a, Pair b) {
            put_pairs(p, find_pairs(p, i, n0 + c, G::HALF), n0 + c, G::HALF, a, b);
        });
}

template <class T, uint32_t COLUMNS> DEVICE void qkv_hopper(const QkvHopperParams &h) {
    SHARED(shared);
    using G = HopperGemm<T, COLUMNS>;
    const uint32_t n0 = blockIdx.y * G::N;
    G::run(
        shared, h.x, 0, h.w, h.groups, h.p.n_rows, h.p.dim, n0, n0 + G::HALF,
        [&](uint32_t i, uint32_t c) { return find_pairs(h.p, i, n0 + c, G::HALF); },
        [&](const FoundPairs &read, uint32_t c, Pair a, Pair b) {
            put_pairs(h.p, read, n0 + c, G::HALF, a, b);
        });
}

template <class Q, uint32_t ROWS> DEVICE void qkv_codes(const QkvHopperParams &h) {
    SHARED(shared);
    using G = HopperCodes<Q, ROWS>;
    G::run(shared, h.x, 0, h.p.w, h.p.w_stride, h.groups, h.p.dim,
        QkvPairs(h.p, blockIdx.y * (h.groups * 32)));
}

// The epilogue of a product that a library computed. A thread has four pairs of columns; it loads
// all of them before it stores the first.
DEVICE void put_sums(const QkvParams &p) {
    const int32_t row = p.rows[blockIdx.y];
    if (row < 0) return;
    const uint32_t n0 = blockIdx.x * 2048 + threadIdx.x * 2, end = p.n;
#ifdef PLANT_SUMS_BY_ROW
    const float *sums = (const float *)p.x + (size_t)row * p.x_stride;
#else
    const float *sums = (const float *)p.x + (size_t)blockIdx.y * p.x_stride;
#endif
    Words2 pairs[4];
    UNROLL
    for (uint32_t i = 0; i < 4; i++)
        if (n0 + i * 512 < end) pairs[i] = load_fresh8(sums + n0 + i * 512);
    UNROLL
    for (uint32_t i = 0; i < 4; i++)
        if (n0 + i * 512 < end)
            put_pair<true>(p, find_pair(p, row, n0 + i * 512), n0 + i * 512,
                as_float(pairs[i].w[0]), as_float(pairs[i].w[1]));
}

KERNEL(qkv_f32) { qkv_float(p); }
KERNEL(qkv_f16) { qkv<f16, false>(p); }
KERNEL(qkv_bf16) { qkv<bf16, false>(p); }
KERNEL(qkv_int8) { qkv<Int8, false>(p); }
KERNEL(qkv_int4) { qkv<Int4, false>(p); }
KERNEL(qkv_nf4) { qkv<Nf4, false>(p); }
KERNEL(qkv_fp8) { qkv<Fp8, false>(p); }
KERNEL(qkv_k4) { qkv<K4, false>(p); }
KERNEL(qkv_k5) { qkv<K5, false>(p); }
KERNEL(qkv_k6) { qkv<K6, false>(p); }
KERNEL(qkv_k8) { qkv<K8, false>(p); }
KERNEL(qkv_batch_f16) { qkv<f16, true>(p); }
KERNEL(qkv_batch_bf16) { qkv<bf16, true>(p); }
KERNEL(qkv_batch_int8) { qkv<Int8, true>(p); }
KERNEL_WIDE(qkv_batch_int4) { qkv<Int4, true>(p); }
KERNEL_WIDE(qkv_batch_nf4) { qkv<Nf4, true>(p); }
KERNEL(qkv_batch_fp8) { qkv<Fp8, true>(p); }
KERNEL_WIDE(qkv_batch_k4) { qkv<K4, true>(p); }
KERNEL_WIDE(qkv_batch_k5) { qkv<K5, true>(p); }
KERNEL_WIDE(qkv_batch_k6) { qkv<K6, true>(p); }
KERNEL_WIDE(qkv_batch_k8) { qkv<K8, true>(p); }
KERNEL(qkv_prefill_f32) { qkv_prefill<float>(p); }
KERNEL(qkv_prefill_f16) { qkv_prefill<f16>(p); }
KERNEL(qkv_prefill_bf16) { qkv_prefill<bf16>(p); }
KERNEL(qkv_prefill_int8) { qkv_prefill<Int8>(p); }
KERNEL(qkv_prefill_int4) { qkv_prefill<Int4>(p); }
KERNEL(qkv_prefill_nf4) { qkv_prefill<Nf4>(p); }
KERNEL(qkv_prefill_fp8) { qkv_prefill<Fp8>(p); }
KERNEL(qkv_prefill_k4) { qkv_prefill<K4>(p); }
KERNEL_WIDE(qkv_prefill_k5) { qkv_prefill<K5>(p); }
KERNEL_WIDE(qkv_prefill_k6) { qkv_prefill<K6>(p); }
KERNEL(qkv_prefill_k8) { qkv_prefill<K8>(p); }
KERNEL(qkv_epilogue) { put_sums(p); }
#ifdef HOPPER
KERNEL_WIDE(qkv_hopper_f16) { qkv_hopper<f16, 256>(p); }
KERNEL(qkv_hopper_half_f16) { qkv_hopper<f16, 128>(p); }
KERNEL_WIDE(qkv_hopper_bf16) { qkv_hopper<bf16, 256>(p); }
KERNEL(qkv_hopper_half_bf16) { qkv_hopper<bf16, 128>(p); }
KERNEL_WIDE(qkv_hopper_int8) { qkv_codes<Int8, 256>(p); }
KERNEL_WIDE(qkv_hopper_half_int8) { qkv_codes<Int8, 128>(p); }
KERNEL_WIDE(qkv_hopper_int4) { qkv_codes<Int4, 256>(p); }
KERNEL_WIDE(qkv_hopper_half_int4) { qkv_codes<Int4, 128>(p); }
KERNEL_WIDE(qkv_hopper_nf4) { qkv_codes<Nf4, 256>(p); }
KERNEL_WIDE(qkv_hopper_half_nf4) { qkv_codes<Nf4, 128>(p); }
KERNEL_WIDE(qkv_hopper_fp8) { qkv_codes<Fp8, 256>(p); }
KERNEL_WIDE(qkv_hopper_half_fp8) { qkv_codes<Fp8, 128>(p); }
#endif
