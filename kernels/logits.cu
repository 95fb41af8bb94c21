// The head: computes the logits of the wanted rows, of both kinds, from the float32 residual
// stream.
#include "gpu.h"

DEVICE void logits_float(const LogitsParams &p) {
    const uint32_t lane = threadIdx.x % 32, n = (blockIdx.x * 8 + threadIdx.x / 32) * 2;
    if (n >= p.vocab_size) return;
    const bool both = n + 1 < p.vocab_size;
    const float *w0 = (const float *)p.w + (size_t)n * p.w_stride,
                *w1 = both ? w0 + p.w_stride : w0;
    const uint32_t first = blockIdx.y * GEMV_ROWS;
    start_next();
    prefetch_row(w0, p.w_stride, lane);
    prefetch_row(w1, p.w_stride, lane);
    wait_for_last();
    with_rows(p.n_rows - first, [&](auto count) {
        constexpr int R = decltype(count)::value;
        RowSet<R> rows(p.rows, p.n_rows, first, p.x_stride);
        float sums[2][R];
        norm_dot2<R>(sums, w0, w1, (const float *)p.x, rows, p.norm, p.dim, p.eps);
        const Finish f = finish(sums, p.rows, p.n_rows, first);
        if (f.row < 0) return;
        float *out = p.out + (size_t)(first + lane) * p.out_stride + n;
        out[0] = f.a;
        if (both) out[1] = f.b;
    });
}

// Two neighbouring rows of w are a pair; n0 is the block's first row (see Pairs in few.h).
struct LogitPairs {
    const LogitsParams &p;
    uint32_t n0;

    DEVICE_MEMBER LogitPairs(const LogitsParams &p, uint32_t first) : p(p), n0(2 * first) {}
    DEVICE_MEMBER void rows(uint32_t (&rows)[2], uint32_t j) const {
        rows[0] = n0 + 2 * j < p.vocab_size ? n0 + 2 * j : n0;
        rows[1] = rows[0] + 1 < p.vocab_size ? rows[0] + 1 : rows[0];
    }
    DEVICE_MEMBER uint32_t column(uint32_t j) const { return n0 + 2 * j; }
    struct None {};
    DEVICE_MEMBER float *row(uint32_t i) const {
        return i < p.n_rows && p.rows[i] >= 0 ? p.out + (size_t)i * p.out_stride : nullptr;
    }
    DEVICE_MEMBER None find(float *, uint32_t) const { return {}; }
    DEVICE_MEMBER void put(float *out, uint32_t n, None, float a, float b) const {
        if (out && n < p.vocab_size) out[n] = a;
        if (out && n + 1 < p.vocab_size) out[n + 1] = b;
    }
};

// Multiplies up to eight rows; with BATCH, any number of rows that prepare has made.
template <class W, bool BATCH> DEVICE void logits(const LogitsParams &p) {
    SHARED(shared);
    if constexpr (BATCH)
        batch_rows<W>(shared, p.w, p.w_stride, p.x, p.x_stride, p.n_rows, p.dim,
            {p.scratch, p.splits}, LogitPairs(p, blockIdx.y * GPU_BATCH_PAIRS));
    else
        few_rows<W>(shared, p.w, p.w_stride, p.x, p.x_stride, p.norm, p.rows, p.n_rows, p.dim,
            p.eps, (p.vocab_size + 1) / 2, [&](uint32_t first) { return LogitPairs(p, first); });
}

KERNEL(logits_f32) { logits_float(p); }
KERNEL_WIDE(logits_f16) { logits<f16, false>(p); }
KERNEL_WIDE(logits_bf16) { logits<bf16, false>(p); }
KERNEL_WIDE(logits_int8) { logits<Int8, false>(p); }
KERNEL_WIDE(logits_int4) { logits<Int4, false>(p); }
KERNEL(logits_k4) { logits<K4, false>(p); }
KERNEL(logits_k5) { logits<K5, false>(p); }
KERNEL(logits_k6) { logits<K6, false>(p); }
KERNEL(logits_k8) { logits<K8, false>(p); }
KERNEL(logits_iq4) { logits<Iq4, false>(p); }
KERNEL(logits_uint4) { logits<Uint4, false>(p); }
KERNEL(logits_batch_f16) { logits<f16, true>(p); }
KERNEL(logits_batch_bf16) { logits<bf16, true>(p); }
KERNEL(logits_batch_int8) { logits<Int8, true>(p); }
KERNEL_WIDE(logits_batch_int4) { logits<Int4, true>(p); }
KERNEL_WIDE(logits_batch_k4) { logits<K4, true>(p); }
KERNEL_WIDE(logits_batch_k5) { logits<K5, true>(p); }
KERNEL_WIDE(logits_batch_k6) { logits<K6, true>(p); }
KERNEL_WIDE(logits_batch_k8) { logits<K8, true>(p); }
KERNEL_WIDE(logits_batch_iq4) { logits<Iq4, true>(p); }
KERNEL_WIDE(logits_batch_uint4) { logits<Uint4, true>(p); }
