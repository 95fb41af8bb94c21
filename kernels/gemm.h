// Prefill: products of many rows, x [m, k] times the transpose of w [n, k], both with K contiguous. Part of gpu.h.
//
// K is padded to 32 on both sides with zeros. Each output is one sum through k upwards, whatever the
// other rows are: batch invariance.
//
// A tile's weight rows come in blocks of 2 * HALF: HALF rows of one column range, then HALF of another, so
// that a thread that has a column of the first has the column HALF further too. For a plain product the
// second range follows the first; for gate and up they are the two matrices.
// out(i, c, a, b): row i of the launch; a is tile columns c, c + 1, b is c + HALF, c + HALF + 1.

struct Pair { float x, y; };

// 16-byte chunk `chunk` of row `row`, in rows of 64 bytes, placed so that any eight neighbouring rows'
// chunks of one number lie in different banks.
DEVICE uint32_t swizzle64(uint32_t row, uint32_t chunk) { return row * 64 + ((chunk ^ (row >> 1 & 3)) << 4); }

// Tensor cores. Block: 256 threads, tile 128 x 128 x 32, eight warps of 64 x 32, three stages of cp.async.
template <class W> struct Gemm {
    static constexpr uint32_t M = 128, N = 128, K = 32, HALF = 16, STAGES = 3, STAGE_BYTES = (M + N) * K * 2;

    // weight_row(r): which row of w is the tile's row r, negative for none.
    template <class WeightRow, class Out>
    DEVICE_MEMBER static void run(unsigned char *shared, const W *x, uint32_t x_stride, const W *w, uint32_t w_stride,
                                  uint32_t m, uint32_t k, const WeightRow &weight_row, const Out &out) {
        const uint32_t t = threadIdx.x, lane = t % 32, warp = t / 32;
        const uint32_t m0 = blockIdx.y * M, warp_m = warp / 4 * 64, warp_n = warp % 4 * 32;
        const uint32_t steps = (k + K - 1) / K;

        // This thread's two chunks of each operand.
        const W *from_x[2], *from_w[2];
        bool has_x[2], has_w[2];
        uint32_t to[2];
        UNROLL
        for (int i = 0; i < 2; i++) {
            uint32_t row = t / 4 + i * 64, chunk = t % 4;
            int64_t n = weight_row(row);
            has_x[i] = m0 + row < m;
            has_w[i] = n >= 0;
            from_x[i] = x + (size_t)(has_x[i] ? m0 + row : 0) * x_stride + chunk * 8;
            from_w[i] = w + (size_t)(has_w[i] ? n : 0) * w_stride + chunk * 8;
            to[i] = swizzle64(row, chunk);
        }
        auto load = [&](uint32_t step) {
            unsigned char *stage = shared + step % STAGES * STAGE_BYTES;
            UNROLL
            for (int i = 0; i < 2; i++) {
                cp_async(stage + to[i], from_x[i] + step * K, has_x[i]);
                cp_async(stage + M * 64 + to[i], from_w[i] + step * K, has_w[i]);
            }
        };

        float sums[4][4][4] = {};
        // Sixteens of rows that this warp has: a short tile costs what it holds.
        uint32_t rest = m > m0 + warp_m ? m - m0 - warp_m : 0, rows = (rest + 15) / 16 < 4 ? (rest + 15) / 16 : 4;
        UNROLL
        for (uint32_t s = 0; s < STAGES - 1; s++) {
            if (s < steps) load(s);
            cp_commit();
        }
        for (uint32_t step = 0; step < steps; step++) {
#ifdef PLANT_WEAK_WAIT
            cp_wait<STAGES - 1>();
#else
            cp_wait<STAGES - 2>();
#endif
#ifdef PLANT_WRITE_AFTER_READ
            // Into the stage that others may still read: the barrier below is what they pass when done.
            if (step + STAGES - 1 < steps) load(step + STAGES - 1);
            cp_commit();
#endif
#ifndef PLANT_NO_BARRIER_GEMM
            block_sync();
#endif
#ifndef PLANT_WRITE_AFTER_READ
            if (step + STAGES - 1 < steps) load(step + STAGES - 1);
            cp_commit();
#endif
            const unsigned char *a_tile = shared + step % STAGES * STAGE_BYTES, *b_tile = a_tile + M * 64;
            UNROLL
            for (uint32_t half = 0; half < 2; half++) {
                uint32_t b[2][4];
                UNROLL
                for (uint32_t j = 0; j < 2; j++)
                    ldmatrix(b[j], b_tile + swizzle64(warp_n + j * 16 + lane / 16 * 8 + lane % 8, half * 2 + lane / 8 % 2));
                UNROLL
                for (uint32_t i = 0; i < 4; i++) {
                    if (i >= rows) break;
                    uint32_t a[4];
                    ldmatrix(a, a_tile + swizzle64(warp_m + i * 16 + lane % 16, half * 2 + lane / 16));
                    UNROLL
                    for (uint32_t j = 0; j < 4; j++) mma(sums[i][j], a, b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1], W());
                }
            }
        }
        cp_wait<0>();
        UNROLL
        for (uint32_t i = 0; i < 4; i++)
            UNROLL
            for (uint32_t h = 0; h < 2; h++) {
                uint32_t row = m0 + warp_m + i * 16 + h * 8 + lane / 4;
                if (row >= m) continue;
                UNROLL
                for (uint32_t j = 0; j < 2; j++)
                    out(row, warp_n + j * 8 + lane % 4 * 2, Pair{sums[i][j][2 * h], sums[i][j][2 * h + 1]},
                        Pair{sums[i][j + 2][2 * h], sums[i][j + 2][2 * h + 1]});
            }
    }
};

// Float32: plain products, tile 64 x 64 x 16, 4 x 4 outputs a thread, two stages. The reference mode.
template <> struct Gemm<float> {
    static constexpr uint32_t M = 64, N = 64, K = 16, HALF = 32, PITCH = 20, STAGE = (M + N) * PITCH;

    template <class WeightRow, class Out>
    DEVICE_MEMBER static void run(unsigned char *shared, const float *x, uint32_t x_stride, const float *w, uint32_t w_stride,
                                  uint32_t m, uint32_t k, const WeightRow &weight_row, const Out &out) {
        const uint32_t t = threadIdx.x, tx = t % 16, ty = t / 16, m0 = blockIdx.y * M;
        const uint32_t steps = (k + 31) / 32 * 2;
        const uint32_t row = t / 4, chunk = t % 4;
        float *tile = (float *)shared;
        int64_t n = weight_row(row);
        const bool has_x = m0 + row < m, has_w = n >= 0;
        const float *from_x = x + (size_t)(has_x ? m0 + row : 0) * x_stride + chunk * 4;
        const float *from_w = w + (size_t)(has_w ? n : 0) * w_stride + chunk * 4;
        auto load = [&](uint32_t step) {
            float *to = tile + step % 2 * STAGE + row * PITCH + chunk * 4;
            cp_async(to, from_x + step * K, has_x);
            cp_async(to + M * PITCH, from_w + step * K, has_w);
            cp_commit();
        };
        float sums[4][4] = {};
        load(0);
        for (uint32_t step = 0; step < steps; step++) {
            if (step + 1 < steps) {
                load(step + 1);
                cp_wait<1>();
            } else {
                cp_wait<0>();
            }
            block_sync();
            const float *a_tile = tile + step % 2 * STAGE, *b_tile = a_tile + M * PITCH;
            UNROLL
            for (uint32_t e = 0; e < K; e += 4) {
                Words4 a[4], b[4];
                UNROLL
                for (uint32_t i = 0; i < 4; i++) {
                    a[i] = load_shared(a_tile + (ty * 4 + i) * PITCH + e);
                    b[i] = load_shared(b_tile + (i / 2 * HALF + tx * 2 + i % 2) * PITCH + e);
                }
                UNROLL
                for (uint32_t q = 0; q < 4; q++)
                    UNROLL
                    for (uint32_t i = 0; i < 4; i++)
                        UNROLL
                        for (uint32_t j = 0; j < 4; j++) sums[i][j] = fmaf(as_float(a[i].w[q]), as_float(b[j].w[q]), sums[i][j]);
            }
            block_sync();
        }
        UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t r = m0 + ty * 4 + i;
            if (r < m) out(r, tx * 2, Pair{sums[i][0], sums[i][1]}, Pair{sums[i][2], sums[i][3]});
        }
    }
};
