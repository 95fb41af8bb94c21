// Computes q | k | v of a layer: product, bias, RoPE. q stays float32; k and v are written to their
// page. Where heads have norms, append.cu does what follows the bias.
#include "gpu.h"

const uint32_t NONE = ~0u;

// What columns n and n + 1 are to every row. n is even, as all widths are, so both belong to one
// head, and RoPE rotates them together.
struct Columns {
    unsigned char *to; // where they lie in the first row, or in the first slot of the cache
    uint32_t stride;   // bytes from a row, or from a slot, to the next; NONE: they do not exist
    uint32_t angle;    // the number of the pair in its head
    // wide: they are stored as float32. last: of a head in the cache, so behind them is padding.
    bool is_q, turns, wide, last;
};
// What all columns of a row have in common. of_q: the number of the row. of_kv: the number of its
// slot, or of the row if K and V are not stored in the cache yet. angle: the number of its first
// angle. NONE: the row has none.
struct Row {
    uint32_t of_q, of_kv, angle;
};
struct Angle {
    float cos, sin;
};

// append.cu takes K and V in float32, because a scale or a norm needs the whole vector.
DEVICE bool appends(const QkvParams &p) {
    return p.raw || p.kv_type == GPU_INT8 || p.kv_type == GPU_FP8;
}

// Columns n and n + 1, counted from p.first on.
DEVICE Columns columns_of(const QkvParams &p, uint32_t n) {
    if (n >= p.n) return {nullptr, NONE, 0, false, false, false, false};
    n += p.first;
    const uint32_t q_dim = p.n_heads * p.head_dim, kv_dim = p.n_kv_heads * p.head_dim;
    const bool is_q = n < q_dim, is_v = n >= q_dim + kv_dim, paged = !is_q && !appends(p),
               wide = !paged || p.kv_type == GPU_F32;
    const uint32_t of_kind = is_q ? n : n - q_dim - (is_v ? kv_dim : 0);
    // A product instead of a division, which takes twenty instructions. It is exact while n *
    // head_dim is less than 2^32.
    const uint32_t inverse = 0xffffffffu / p.head_dim + 1,
                   head = (uint32_t)((uint64_t)of_kind * inverse >> 32),
                   d = of_kind - head * p.head_dim, bytes = wide ? 4 : 2;
    const uint32_t at = paged ? head * GPU_PAGE * p.head_stride + d : of_kind;
    Columns c;
    c.to = (unsigned char *)(is_q ? p.q : is_v ? p.v_pages : p.k_pages) + (size_t)at * bytes;
    c.stride = (is_q ? p.q_stride : paged ? p.head_stride : 2 * kv_dim) * bytes;
    c.angle = d / 2;
    c.is_q = is_q, c.turns = !is_v && !p.raw, c.wide = wide;
    c.last = paged && d + 2 == p.head_dim;
    return c;
}
DEVICE Pair bias_of(const QkvParams &p, uint32_t n) {
    if (!p.bias || n >= p.n) return {0, 0};
    return {p.bias[p.first + n], p.bias[p.first + n + 1]};
}
DEVICE Row row_of(const QkvParams &p, int32_t row) {
    if (row < 0) return {NONE, NONE, 0};
    const uint32_t slot = p.slots[row],
                   place = slot / GPU_PAGE * (p.n_kv_heads * GPU_PAGE) + slot % GPU_PAGE;
    return {(uint32_t)row,
        slot == GPU_NO_SLOT ? NONE
        : appends(p)        ? (uint32_t)row
                            : place,
        (uint32_t)p.positions[row] * (p.head_dim / 2)};
}
// Loads what put_pair needs for these columns of a row.
DEVICE Angle find_pair(const QkvParams &p, const Row &row, const Columns &c) {
    if (!c.turns) return {1, 0};
    return {p.cos[row.angle + c.angle], p.sin[row.angle + c.angle]};
}

// Finishes and stores the columns of a row.
DEVICE void put_pair(const QkvParams &p, const Row &row, const Columns &c, Pair bias,
    const Angle &angle, float a, float b) {
    const uint32_t of = c.is_q ? row.of_q : row.of_kv;
    if (of == NONE || c.stride == NONE) return;
    if (p.bias) a += bias.x, b += bias.y;
    if (c.turns) {
        const float turned = a * angle.cos - b * angle.sin;
        b = a * angle.sin + b * angle.cos;
        a = turned;
    }
    unsigned char *const to = c.to + (size_t)of * c.stride;
    is_global(to); // one of three pointers
    if (c.wide)
        store8(to, Words2{{as_bits(a), as_bits(b)}});
    else
        *(uint32_t *)to = p.kv_type == GPU_BF16 ? pair_of(a, b, bf16()) : pair_of(a, b, f16());
    UNROLL_BY(1)
    for (uint32_t i = 0; c.last && i < p.head_stride - p.head_dim; i += 2)
        if (c.wide)
            store8((float *)to + 2 + i, Words2{});
        else
            ((uint32_t *)to)[1 + i / 2] = 0;
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
        const Columns columns = columns_of(p, n);
        const Row row = row_of(p, f.row);
        put_pair(p, row, columns, bias_of(p, n), find_pair(p, row, columns), f.a, f.b);
    });
}

struct Column {
    Columns columns;
    Pair bias;
};

// Two neighbouring rows of w are a pair; n0 is the block's first row (see Pairs in few.h).
struct QkvPairs {
    const QkvParams &p;
    uint32_t n0, end;

    DEVICE_MEMBER QkvPairs(const QkvParams &p, uint32_t first) : p(p), n0(2 * first), end(p.n) {}
    DEVICE_MEMBER void rows(uint32_t (&rows)[2], uint32_t j) const {
        rows[0] = n0 + 2 * j < end ? n0 + 2 * j : n0;
        rows[1] = rows[0] + 1;
    }
    DEVICE_MEMBER Column column(uint32_t j) const {
        return {columns_of(p, n0 + 2 * j), bias_of(p, n0 + 2 * j)};
    }
    DEVICE_MEMBER Row row(uint32_t i) const { return row_of(p, i < p.n_rows ? p.rows[i] : -1); }
    DEVICE_MEMBER Angle find(const Row &row, const Column &c) const {
        return find_pair(p, row, c.columns);
    }
    DEVICE_MEMBER void put(
        const Row &row, const Column &c, const Angle &angle, float a, float b) const {
        put_pair(p, row, c.columns, c.bias, angle, a, b);
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

template <class W> DEVICE void qkv_prefill(const QkvParams &p) {
    SHARED(shared);
    using G = Gemm<W>;
    const uint32_t n0 = blockIdx.x * G::N;
    G::run(
        shared, p.x, p.x_stride, p.w, p.w_stride, p.n_rows, p.dim,
        [&](uint32_t r) -> int64_t { return n0 + r < p.n ? (int64_t)(n0 + r) : -1; },
        [&](uint32_t i, uint32_t c, Pair a, Pair b) {
            const Row row = row_of(p, p.rows[i]);
            UNROLL_BY(1)
            for (uint32_t second = 0; second < 2; second++) {
                const uint32_t n = n0 + c + second * G::HALF;
                const Columns columns = columns_of(p, n);
                put_pair(p, row, columns, bias_of(p, n), find_pair(p, row, columns),
                    second ? b.x : a.x, second ? b.y : a.y);
            }
        });
}

// The columns that a thread of HopperGemm or HopperCodes has of each of its rows; `half`: from the
// first two to the second two.
struct QkvTile {
    const QkvParams &p;
    uint32_t n0, half;

    struct Both {
        Column a, b;
    };
    struct Angles {
        Angle a, b;
    };
    DEVICE_MEMBER Both column(uint32_t c) const {
        const uint32_t first = n0 + c, second = first + half;
        return {
            {columns_of(p, first), bias_of(p, first)}, {columns_of(p, second), bias_of(p, second)}};
    }
    DEVICE_MEMBER Row row(uint32_t i) const { return row_of(p, i < p.n_rows ? p.rows[i] : -1); }
    DEVICE_MEMBER void expect(uint32_t, uint32_t, uint32_t) const {}
    DEVICE_MEMBER Angles find(const Row &row, const Both &c) const {
        return {find_pair(p, row, c.a.columns), find_pair(p, row, c.b.columns)};
    }
    DEVICE_MEMBER void put(
        const Row &row, const Both &c, const Angles &found, Pair a, Pair b) const {
        put_pair(p, row, c.a.columns, c.a.bias, found.a, a.x, a.y);
        put_pair(p, row, c.b.columns, c.b.bias, found.b, b.x, b.y);
    }
};

template <class T, uint32_t COLUMNS> DEVICE void qkv_hopper(const QkvHopperParams &h) {
    SHARED(shared);
    using G = HopperGemm<T, COLUMNS>;
    const uint32_t n0 = blockIdx.y * G::N;
    G::run(shared, h.x, 0, h.w, h.groups, h.p.n_rows, h.p.dim, n0, n0 + G::HALF,
        QkvTile{h.p, n0, G::HALF});
}

template <class Q, uint32_t ROWS> DEVICE void qkv_codes(const QkvHopperParams &h) {
    SHARED(shared);
    using G = HopperCodes<Q, ROWS>;
    const uint32_t first = G::place(h.across) * (h.groups * 32);
    G::run(shared, h.x, 0, h.p.w, h.p.w_stride, h.groups, h.across, h.p.dim, QkvPairs(h.p, first),
        QkvTile{h.p, 2 * first, 2});
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
    const Row found = row_of(p, row);
    Words2 pairs[4];
    Columns columns[4];
    Angle angles[4];
    UNROLL
    for (uint32_t i = 0; i < 4; i++) {
        if (n0 + i * 512 >= end) continue;
        pairs[i] = load_fresh8(sums + n0 + i * 512);
        columns[i] = columns_of(p, n0 + i * 512);
        angles[i] = find_pair(p, found, columns[i]);
    }
    UNROLL
    for (uint32_t i = 0; i < 4; i++)
        if (n0 + i * 512 < end)
            put_pair(p, found, columns[i], bias_of(p, n0 + i * 512), angles[i],
                as_float(pairs[i].w[0]), as_float(pairs[i].w[1]));
}

KERNEL(qkv_f32) { qkv_float(p); }
KERNEL_WIDE(qkv_f16) { qkv<f16, false>(p); }
KERNEL_WIDE(qkv_bf16) { qkv<bf16, false>(p); }
KERNEL_WIDE(qkv_int8) { qkv<Int8, false>(p); }
KERNEL_WIDE(qkv_int4) { qkv<Int4, false>(p); }
KERNEL_WIDE(qkv_nf4) { qkv<Nf4, false>(p); }
KERNEL_WIDE(qkv_fp8) { qkv<Fp8, false>(p); }
KERNEL(qkv_k4) { qkv<K4, false>(p); }
KERNEL(qkv_k5) { qkv<K5, false>(p); }
KERNEL(qkv_k6) { qkv<K6, false>(p); }
KERNEL(qkv_k8) { qkv<K8, false>(p); }
KERNEL(qkv_iq4) { qkv<Iq4, false>(p); }
KERNEL(qkv_uint4) { qkv<Uint4, false>(p); }
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
KERNEL_WIDE(qkv_batch_iq4) { qkv<Iq4, true>(p); }
KERNEL_WIDE(qkv_batch_uint4) { qkv<Uint4, true>(p); }
KERNEL_NARROW(qkv_prefill_f32) { qkv_prefill<float>(p); }
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
KERNEL(qkv_prefill_iq4) { qkv_prefill<Iq4>(p); }
KERNEL(qkv_prefill_uint4) { qkv_prefill<Uint4>(p); }
KERNEL(qkv_epilogue) { put_sums(p); }
#ifdef HOPPER
KERNEL_WIDE(qkv_hopper_f16) { qkv_hopper<f16, 256>(p); }
KERNEL(qkv_hopper_half_f16) { qkv_hopper<f16, 128>(p); }
KERNEL(qkv_hopper_quarter_f16) { qkv_hopper<f16, 64>(p); }
KERNEL_WIDE(qkv_hopper_bf16) { qkv_hopper<bf16, 256>(p); }
KERNEL(qkv_hopper_half_bf16) { qkv_hopper<bf16, 128>(p); }
KERNEL(qkv_hopper_quarter_bf16) { qkv_hopper<bf16, 64>(p); }
KERNEL_WIDE(qkv_hopper_int8) { qkv_codes<Int8, 256>(p); }
KERNEL_WIDE(qkv_hopper_half_int8) { qkv_codes<Int8, 128>(p); }
KERNEL_WIDE(qkv_hopper_int4) { qkv_codes<Int4, 256>(p); }
KERNEL_WIDE(qkv_hopper_half_int4) { qkv_codes<Int4, 128>(p); }
KERNEL_WIDE(qkv_hopper_nf4) { qkv_codes<Nf4, 256>(p); }
KERNEL_WIDE(qkv_hopper_half_nf4) { qkv_codes<Nf4, 128>(p); }
KERNEL_WIDE(qkv_hopper_fp8) { qkv_codes<Fp8, 256>(p); }
KERNEL_WIDE(qkv_hopper_half_fp8) { qkv_codes<Fp8, 128>(p); }
#endif
