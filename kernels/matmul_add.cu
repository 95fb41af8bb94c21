// x += scale * (w y + bias), for the output projection and the feed-forward's second matrix.
#include "gpu.h"

// Four warps share the K of two weight rows, because K is the long side of these matrices. A block
// has two such groups of four warps.
DEVICE void matmul_add_float(const MatmulAddParams &p) {
    SHARED(shared);
    const uint32_t t = threadIdx.x, lane = t % 32, split = t / 32 % 4, group = t / 128;
    const uint32_t n = (blockIdx.x * 2 + group) * 2, first = blockIdx.y * GEMV_ROWS;
    // All threads must reach the barrier below. Therefore, if n is odd, the last row is computed
    // twice, and groups beyond the end compute it too and drop the result.
    const uint32_t n0 = n < p.n ? n : p.n - 1, n1 = n + 1 < p.n ? n + 1 : p.n - 1;
    const float *w0 = (const float *)p.w + (size_t)n0 * p.w_stride,
                *w1 = (const float *)p.w + (size_t)n1 * p.w_stride;
    start_next();
    prefetch_row(w0, p.w_stride, t % 128);
    prefetch_row(w1, p.w_stride, t % 128);
    wait_for_last();
    with_rows(p.n_rows - first, [&](auto count) {
        constexpr int R = decltype(count)::value;
        RowSet<R> rows(p.rows, p.n_rows, first, p.y_stride);
        float sums[2][R] = {}, squares[R];
        dot2<R, false>(
            sums, squares, w0, w1, (const float *)p.y, rows, nullptr, p.k, split * 32 + lane, 128);
        float *parts = (float *)shared; // [group][split][2][R]
        UNROLL
        for (int i = 0; i < 2; i++) UNROLL
        for (int r = 0; r < R; r++) {
            float sum = group_sum(sums[i][r], 32);
            if (lane == 0) parts[((group * 4 + split) * 2 + i) * R + r] = sum;
        }
        block_sync();
        // Lane r of a group's first warp finishes row r for both weight rows.
        if (split != 0 || lane >= R || first + lane >= p.n_rows || p.rows[first + lane] < 0) return;
        float *x = p.x + (size_t)p.rows[first + lane] * p.x_stride;
        for (uint32_t i = 0; i < 2 && n + i < p.n; i++) {
            float sum = p.bias ? p.bias[n + i] : 0;
            UNROLL
            for (int s = 0; s < 4; s++) sum += parts[((group * 4 + s) * 2 + i) * R + lane];
            x[n + i] += p.scale * sum;
        }
    });
}

// What columns n and n + 1 (n is even) are to every row: how many of them exist, and their biases.
struct Columns {
    uint32_t n, exist;
    float bias[2];
};
DEVICE Columns columns_of(const MatmulAddParams &p, uint32_t n) {
    Columns c = {n, n < p.n ? smaller(p.n - n, 2) : 0, {}};
    if (p.bias && c.exist > 0) c.bias[0] = load_const_float(p.bias + n);
    if (p.bias && c.exist > 1) c.bias[1] = load_const_float(p.bias + n + 1);
    return c;
}
// The index in x at which a row begins; NONE if there is no row. (A pointer would lose, on its way
// through shared memory, the knowledge that it points to global memory.)
typedef uint64_t Row;
const Row NONE = ~0ull;
DEVICE Row row_of(const MatmulAddParams &p, int32_t row) {
    return row < 0 ? NONE : (uint64_t)row * p.x_stride;
}
// The previous values of columns c of a row.
DEVICE Words2 find_pair(const MatmulAddParams &p, Row row, const Columns &c) {
    // After an odd last column comes padding.
    return row != NONE && c.exist > 0 ? load_fresh8(p.x + (row + c.n)) : Words2{};
}
DEVICE void add_pair(
    const MatmulAddParams &p, Row row, const Columns &c, const Words2 &before, Pair sums) {
    if (row == NONE || c.exist == 0) return;
    const float a = as_float(before.w[0]) + p.scale * (sums.x + c.bias[0]),
                b = as_float(before.w[1]) + p.scale * (sums.y + c.bias[1]);
    float *const x = p.x + (row + c.n);
    if (c.exist == 2)
        store8(x, Words2{{as_bits(a), as_bits(b)}});
    else
        *x = a;
}

// Two neighbouring rows of w are a pair; n0 is the block's first row (see Pairs in few.h).
struct AddPairs {
    const MatmulAddParams &p;
    uint32_t n0;

    DEVICE_MEMBER AddPairs(const MatmulAddParams &p, uint32_t first) : p(p), n0(2 * first) {}
    DEVICE_MEMBER void rows(uint32_t (&rows)[2], uint32_t j) const {
        rows[0] = n0 + 2 * j < p.n ? n0 + 2 * j : n0;
        rows[1] = rows[0] + 1 < p.n ? rows[0] + 1 : rows[0];
    }
    DEVICE_MEMBER Columns column(uint32_t j) const { return columns_of(p, n0 + 2 * j); }
    DEVICE_MEMBER Row row(uint32_t i) const { return row_of(p, i < p.n_rows ? p.rows[i] : -1); }
    DEVICE_MEMBER Words2 find(Row row, const Columns &c) const { return find_pair(p, row, c); }
    DEVICE_MEMBER void put(
        Row row, const Columns &c, const Words2 &before, float a, float b) const {
        add_pair(p, row, c, before, Pair{a, b});
    }
};

// Multiplies up to eight rows; with BATCH, any number of rows.
template <class W, bool BATCH> DEVICE void matmul_add(const MatmulAddParams &p) {
    SHARED(shared);
    if constexpr (BATCH)
        batch_rows<W>(shared, p.w, p.w_stride, p.y, p.y_stride, p.n_rows, p.k,
            {p.scratch, p.splits}, AddPairs(p, blockIdx.y * GPU_BATCH_PAIRS));
    else
        few_rounded<W>(shared, p.w, p.w_stride, p.y, p.y_stride, p.n_rows, p.k, (p.n + 1) / 2,
            [&](uint32_t first) { return AddPairs(p, first); });
}

template <class W> DEVICE void matmul_add_prefill(const MatmulAddParams &p) {
    SHARED(shared);
    using G = Gemm<W>;
    const uint32_t n0 = blockIdx.x * G::N;
    G::run(
        shared, p.y, p.y_stride, p.w, p.w_stride, p.n_rows, p.k,
        [&](uint32_t r) -> int64_t { return n0 + r < p.n ? (int64_t)(n0 + r) : -1; },
        [&](uint32_t i, uint32_t c, Pair a, Pair b) {
            const Columns first = columns_of(p, n0 + c), second = columns_of(p, n0 + c + G::HALF);
            const Row row = row_of(p, p.rows[i]);
            const Words2 found[2] = {find_pair(p, row, first), find_pair(p, row, second)};
            add_pair(p, row, first, found[0], a);
            add_pair(p, row, second, found[1], b);
        });
}

// The columns that a thread of HopperGemm or HopperCodes has of each of its rows; `half`: from the
// first two to the second two.
struct AddTile {
    const MatmulAddParams &p;
    uint32_t n0, half;

    struct Column {
        Columns a, b;
    };
    struct Found {
        Words2 a, b;
    };
    DEVICE_MEMBER Column column(uint32_t c) const {
        return {columns_of(p, n0 + c), columns_of(p, n0 + c + half)};
    }
    DEVICE_MEMBER Row row(uint32_t i) const { return row_of(p, i < p.n_rows ? p.rows[i] : -1); }
    // Asks L2 for the block's part of x. At the end of a block, all blocks load theirs at the same
    // time; while they multiply, memory has little to do. Each lane has some lines of 128 bytes.
    DEVICE_MEMBER void expect(uint32_t first, uint32_t rows, uint32_t columns) const {
        const uint32_t lines = columns / 32, lane = threadIdx.x % 32, line = lane % lines;
        UNROLL_BY(1)
        for (uint32_t i = lane / lines; i < rows; i += 32 / lines) {
            const Row row = this->row(first + i);
            const uint32_t n = n0 + line * 32;
            if (row != NONE && n < p.n) prefetch(p.x + (row + n));
        }
    }
    DEVICE_MEMBER Found find(Row row, const Column &c) const {
        return {find_pair(p, row, c.a), find_pair(p, row, c.b)};
    }
    DEVICE_MEMBER void put(Row row, const Column &c, const Found &found, Pair a, Pair b) const {
        add_pair(p, row, c.a, found.a, a);
        add_pair(p, row, c.b, found.b, b);
    }
};

template <class T, uint32_t COLUMNS> DEVICE void matmul_add_hopper(const MatmulAddHopperParams &h) {
    SHARED(shared);
    using G = HopperGemm<T, COLUMNS>;
    const uint32_t n0 = blockIdx.y * G::N;
    G::run(shared, h.y, h.p.first, h.w, h.groups, h.p.n_rows, h.p.k, n0, n0 + G::HALF,
        AddTile{h.p, n0, G::HALF});
}

template <class Q, uint32_t ROWS> DEVICE void matmul_add_codes(const MatmulAddHopperParams &h) {
    SHARED(shared);
    using G = HopperCodes<Q, ROWS>;
    const uint32_t first = G::place(h.across) * (h.groups * 32);
    G::run(shared, h.y, h.p.first, h.p.w, h.p.w_stride, h.groups, h.across, h.p.k,
        AddPairs(h.p, first), AddTile{h.p, 2 * first, 2});
}

KERNEL(matmul_add_f32) { matmul_add_float(p); }
KERNEL_WIDE(matmul_add_f16) { matmul_add<f16, false>(p); }
KERNEL_WIDE(matmul_add_bf16) { matmul_add<bf16, false>(p); }
KERNEL_WIDE(matmul_add_int8) { matmul_add<Int8, false>(p); }
KERNEL_WIDE(matmul_add_int4) { matmul_add<Int4, false>(p); }
KERNEL_WIDE(matmul_add_nf4) { matmul_add<Nf4, false>(p); }
KERNEL_WIDE(matmul_add_fp8) { matmul_add<Fp8, false>(p); }
KERNEL(matmul_add_k4) { matmul_add<K4, false>(p); }
KERNEL(matmul_add_k5) { matmul_add<K5, false>(p); }
KERNEL(matmul_add_k6) { matmul_add<K6, false>(p); }
KERNEL(matmul_add_k8) { matmul_add<K8, false>(p); }
KERNEL(matmul_add_iq4) { matmul_add<Iq4, false>(p); }
KERNEL(matmul_add_uint4) { matmul_add<Uint4, false>(p); }
KERNEL(matmul_add_batch_f16) { matmul_add<f16, true>(p); }
KERNEL(matmul_add_batch_bf16) { matmul_add<bf16, true>(p); }
KERNEL(matmul_add_batch_int8) { matmul_add<Int8, true>(p); }
KERNEL(matmul_add_batch_int4) { matmul_add<Int4, true>(p); }
KERNEL(matmul_add_batch_nf4) { matmul_add<Nf4, true>(p); }
KERNEL(matmul_add_batch_fp8) { matmul_add<Fp8, true>(p); }
KERNEL_WIDE(matmul_add_batch_k4) { matmul_add<K4, true>(p); }
KERNEL_WIDE(matmul_add_batch_k5) { matmul_add<K5, true>(p); }
KERNEL_WIDE(matmul_add_batch_k6) { matmul_add<K6, true>(p); }
KERNEL_WIDE(matmul_add_batch_k8) { matmul_add<K8, true>(p); }
KERNEL_WIDE(matmul_add_batch_iq4) { matmul_add<Iq4, true>(p); }
KERNEL_WIDE(matmul_add_batch_uint4) { matmul_add<Uint4, true>(p); }
KERNEL(matmul_add_prefill_f32) { matmul_add_prefill<float>(p); }
KERNEL(matmul_add_prefill_f16) { matmul_add_prefill<f16>(p); }
KERNEL(matmul_add_prefill_bf16) { matmul_add_prefill<bf16>(p); }
KERNEL(matmul_add_prefill_int8) { matmul_add_prefill<Int8>(p); }
KERNEL(matmul_add_prefill_int4) { matmul_add_prefill<Int4>(p); }
KERNEL(matmul_add_prefill_nf4) { matmul_add_prefill<Nf4>(p); }
KERNEL(matmul_add_prefill_fp8) { matmul_add_prefill<Fp8>(p); }
KERNEL(matmul_add_prefill_k4) { matmul_add_prefill<K4>(p); }
KERNEL_WIDE(matmul_add_prefill_k5) { matmul_add_prefill<K5>(p); }
KERNEL_WIDE(matmul_add_prefill_k6) { matmul_add_prefill<K6>(p); }
KERNEL(matmul_add_prefill_k8) { matmul_add_prefill<K8>(p); }
KERNEL(matmul_add_prefill_iq4) { matmul_add_prefill<Iq4>(p); }
KERNEL(matmul_add_prefill_uint4) { matmul_add_prefill<Uint4>(p); }
#ifdef HOPPER
// clang-format off: one kernel a line, because kernels/test.sh removes lines that begin with
// KERNEL.
KERNEL_WIDE(matmul_add_hopper_f16) { matmul_add_hopper<f16, 256>(p); }
KERNEL(matmul_add_hopper_half_f16) { matmul_add_hopper<f16, 128>(p); }
KERNEL(matmul_add_hopper_quarter_f16) { matmul_add_hopper<f16, 64>(p); }
KERNEL_WIDE(matmul_add_hopper_bf16) { matmul_add_hopper<bf16, 256>(p); }
KERNEL(matmul_add_hopper_half_bf16) { matmul_add_hopper<bf16, 128>(p); }
KERNEL(matmul_add_hopper_quarter_bf16) { matmul_add_hopper<bf16, 64>(p); }
KERNEL_WIDE(matmul_add_hopper_int8) { matmul_add_codes<Int8, 256>(p); }
KERNEL_WIDE(matmul_add_hopper_half_int8) { matmul_add_codes<Int8, 128>(p); }
KERNEL_WIDE(matmul_add_hopper_int4) { matmul_add_codes<Int4, 256>(p); }
KERNEL_WIDE(matmul_add_hopper_half_int4) { matmul_add_codes<Int4, 128>(p); }
KERNEL_WIDE(matmul_add_hopper_nf4) { matmul_add_codes<Nf4, 256>(p); }
KERNEL_WIDE(matmul_add_hopper_half_nf4) { matmul_add_codes<Nf4, 128>(p); }
KERNEL_WIDE(matmul_add_hopper_fp8) { matmul_add_codes<Fp8, 256>(p); }
KERNEL_WIDE(matmul_add_hopper_half_fp8) { matmul_add_codes<Fp8, 128>(p); }
// clang-format on
#endif
