// The head: logits of the wanted rows, of both kinds, from the float32 residual stream.
#include "gpu.h"

template <class W> DEVICE void logits(const LogitsParams &p) {
    const uint32_t lane = threadIdx.x % 32, n = (blockIdx.x * 8 + threadIdx.x / 32) * 2;
    if (n >= p.vocab_size) return;
    const bool both = n + 1 < p.vocab_size;
    const unsigned char *w0 = row_of<W>(p.w, p.w_stride, n), *w1 = row_of<W>(p.w, p.w_stride, both ? n + 1 : n);
    const uint32_t first = blockIdx.y * GEMV_ROWS;
    start_next();
    prefetch_row<W>(w0, p.w_stride, lane);
    prefetch_row<W>(w1, p.w_stride, lane);
    wait_for_last();
    with_rows(p.n_rows - first, [&](auto count) {
        constexpr int R = decltype(count)::value;
        RowSet<R> rows(p.rows, p.n_rows, first, p.x_stride);
        float sums[2][R];
        norm_dot2<W, R>(sums, w0, w1, p.x, rows, p.norm, p.dim, p.eps);
        const Finish f = finish(sums, p.rows, p.n_rows, first);
        if (f.row < 0) return;
        float *out = p.out + (size_t)(first + lane) * p.out_stride + n;
        out[0] = f.a;
        if (both) out[1] = f.b;
    });
}

KERNEL(logits_f32, LogitsParams, 256) { logits<float>(p); }
KERNEL(logits_f16, LogitsParams, 256) { logits<f16>(p); }
KERNEL(logits_bf16, LogitsParams, 256) { logits<bf16>(p); }
KERNEL(logits_int8, LogitsParams, 256) { logits<Int8>(p); }
