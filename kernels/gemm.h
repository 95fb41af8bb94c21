// Prefill: multiplies many rows: x [m, k] times the transpose of w [n, k], both with K contiguous.
// Part of gpu.h.
//
// In both operands, K is padded to a multiple of 32 with zeros. Each output is one sum over k in
// ascending order, whatever the other rows are. This gives batch invariance.
//
// The weight rows of a tile are also the columns of its outputs. They come in blocks of 2 * HALF:
// HALF rows from one range of the matrix, then HALF rows from another. So the thread that has
// output column c, from the first range, also has column c + HALF, from the second range. In a
// plain product the second range follows the first. In ffn_up, one range is rows of gate and the
// other range is the same rows of up, so one thread has both factors of an output.
//
// The epilogue is the function out(i, c, a, b). i is the row of the launch; a has the sums of tile
// columns c and c + 1, and b has the sums of tile columns c + HALF and c + HALF + 1.

struct Pair {
    float x, y;
};

// The offset of 16-byte chunk `chunk` of row `row`, where rows have 64 bytes. It is swizzled: for
// any eight neighbouring rows, the chunks with the same number lie in different banks.
DEVICE uint32_t swizzle64(uint32_t row, uint32_t chunk) {
    return row * 64 + ((chunk ^ (row >> 1 & 3)) << 4);
}

// A thread's part in bringing weights to shared memory, in the type that the tensor cores take.
// `fetch` starts loading the weights of a step, two steps ahead, together with the step's x. After
// `fill` and the step's barrier, the tile of weights is complete.
template <class W> struct FloatTiles {
    using Type = W;
    static constexpr uint32_t BYTES = 0; // bytes of shared memory after the stages
    const W *from[2];
    bool has[2];

    // weight_row(r) returns the row of w that is row r of the tile; negative if there is none.
    template <class WeightRow> DEVICE_MEMBER FloatTiles(
        unsigned char *, const void *w, uint32_t stride, uint32_t, const WeightRow &weight_row) {
        UNROLL
        for (int i = 0; i < 2; i++) {
            int64_t n = weight_row(threadIdx.x / 4 + i * 64);
            has[i] = n >= 0;
            from[i] = (const W *)w + (size_t)(has[i] ? n : 0) * stride + threadIdx.x % 4 * 8;
        }
    }
    DEVICE_MEMBER void fetch(unsigned char *tile, uint32_t step) {
        UNROLL
        for (uint32_t i = 0; i < 2; i++)
            cp_async(tile + swizzle64(threadIdx.x / 4 + i * 64, threadIdx.x % 4),
                from[i] + step * 32, has[i]);
    }
    DEVICE_MEMBER void fill(unsigned char *, uint32_t) {}
};

// Tiles of quantised weights. A tile has code times scale (k4, k5 and uint4: less the minimum),
// rounded to f16. Thread t decodes piece t % 8 of the lines of four weight rows. The pieces of the
// next line wait in shared memory that only this thread accesses. The pieces of the current line
// are in registers; the codes of the next step are always in word 0.
template <class Q> struct QuantisedTiles {
    using Type = f16;
    static constexpr uint32_t BYTES = 4 * 256 * 16 + GPU_TABLE_BYTES;
    unsigned char *waiting;
    const float *table;
    const unsigned char *w;
    uint32_t from[4]; // in units of 16 bytes; ~0 where the row does not exist
    Words4 pieces[4];
    typename Q::Scale scale[4]; // of the next step that `fill` decodes
    uint32_t k;

    template <class WeightRow> DEVICE_MEMBER QuantisedTiles(unsigned char *shared, const void *w,
        uint32_t stride, uint32_t k, const WeightRow &weight_row)
        : waiting(shared + GPU_TABLE_BYTES + threadIdx.x * 16), table(Q::table(shared)),
          w((const unsigned char *)w), k(k) {
        UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            int64_t n = weight_row(threadIdx.x / 8 + i * 32);
            from[i] = n < 0 ? ~0u : (uint32_t)n * stride;
        }
        fetch_scales(0);
    }
    DEVICE_MEMBER const unsigned char *row(uint32_t i) const {
        return w + (size_t)(from[i] == ~0u ? 0 : from[i]) * 16;
    }
    DEVICE_MEMBER void fetch_scales(uint32_t step) {
        UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            scale[i] = {};
            if (from[i] != ~0u && step * 32 < k)
                Q::load_scale(scale[i], row(i) + code_bytes<Q>(k), step * 32 + threadIdx.x % 8 * 4,
                    blocks_of(k));
        }
    }
    DEVICE_MEMBER void fetch_line(uint32_t line) {
        UNROLL
        for (uint32_t i = 0; i < 4; i++)
            cp_async(
                waiting + i * 4096, row(i) + line * 128 + threadIdx.x % 8 * 16, from[i] != ~0u);
    }
    // Loads a line when its first step is two steps ahead. By then, `fill` has taken the previous
    // line's pieces out of `waiting`.
    DEVICE_MEMBER void fetch(unsigned char *, uint32_t step) {
        const uint32_t line = step == 0 ? 0 : (step - 2) / Q::STEPS + 1;
        if (step == 0 || (step >= 2 && (step - 2) % Q::STEPS == 0 && line * Q::STEPS * 32 < k))
            fetch_line(line);
    }
    DEVICE_MEMBER void fill(unsigned char *tile, uint32_t step) {
        const uint32_t piece = threadIdx.x % 8;
        if (step % Q::STEPS == 0) {
            cp_wait<1>();
            UNROLL
            for (uint32_t i = 0; i < 4; i++) pieces[i] = load_shared(waiting + i * 4096);
        }
        UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            float v[4];
            f16 h[4];
            Q::decode(v, pieces[i].w, 0, table);
            Q::apply(v, scale[i]);
            UNROLL
            for (int e = 0; e < 4; e++) from_float(h[e], v[e]);
            store8(tile + swizzle64(threadIdx.x / 8 + i * 32, piece / 2) + piece % 2 * 8,
                Words2{{h[0].bits | (uint32_t)h[1].bits << 16,
                    h[2].bits | (uint32_t)h[3].bits << 16}});
            // Moves the next step's codes to word 0. They are the next word, or the other nibbles
            // of this one.
            if (Q::WORDS == 1 && step % 2 == 0)
                pieces[i].w[0] >>= 8;
            else
                pieces[i].w[0] = pieces[i].w[1], pieces[i].w[1] = pieces[i].w[2],
                pieces[i].w[2] = pieces[i].w[3];
        }
        fetch_scales(step + 1);
    }
};
template <class W, bool> struct TilesOf {
    using type = FloatTiles<W>;
};
template <class W> struct TilesOf<W, true> {
    using type = QuantisedTiles<W>;
};
template <class W> using WeightTiles = typename TilesOf<W, QUANTISED<W>>::type;

// The product on tensor cores. A block has 256 threads and a tile of 128 x 128 x 32. Each of eight
// warps computes 64 x 32 outputs. Copies by cp.async have three stages.
template <class W> struct Gemm {
    using T = typename WeightTiles<W>::Type;
    static constexpr uint32_t M = 128, N = 128, K = 32, HALF = 16, STAGES = 3,
                              STAGE_BYTES = (M + N) * K * 2;

    template <class WeightRow, class Out> DEVICE_MEMBER static void run(unsigned char *shared,
        const void *x, uint32_t x_stride, const void *w, uint32_t w_stride, uint32_t m, uint32_t k,
        const WeightRow &weight_row, const Out &out) {
        const uint32_t t = threadIdx.x, lane = t % 32, warp = t / 32;
        const uint32_t m0 = blockIdx.y * M, warp_m = warp / 4 * 64, warp_n = warp % 4 * 32;
        const uint32_t steps = (k + K - 1) / K;

        WeightTiles<W> weights(shared + STAGES * STAGE_BYTES, w, w_stride, k, weight_row);
        // The two chunks of x that this thread copies in each step.
        const T *from_x[2];
        bool has_x[2];
        UNROLL
        for (int i = 0; i < 2; i++) {
            uint32_t row = t / 4 + i * 64;
            has_x[i] = m0 + row < m;
            from_x[i] = (const T *)x + (size_t)(has_x[i] ? m0 + row : 0) * x_stride + t % 4 * 8;
        }
        auto load = [&](uint32_t step) {
            unsigned char *stage = shared + step % STAGES * STAGE_BYTES;
            UNROLL
            for (uint32_t i = 0; i < 2; i++)
                cp_async(stage + swizzle64(t / 4 + i * 64, t % 4), from_x[i] + step * K, has_x[i]);
            weights.fetch(stage + M * 64, step);
        };

        float sums[4][4][4] = {};
        // This warp's number of 16-row blocks. A tile that is not full costs only the blocks that
        // it has.
        uint32_t rest = m > m0 + warp_m ? m - m0 - warp_m : 0,
                 rows = (rest + 15) / 16 < 4 ? (rest + 15) / 16 : 4;
        UNROLL
        for (uint32_t s = 0; s < STAGES - 1; s++) {
            if (s < steps) load(s);
            cp_commit();
        }
        for (uint32_t step = 0; step < steps; step++) {
            weights.fill(shared + step % STAGES * STAGE_BYTES + M * 64, step);
#ifdef PLANT_WEAK_WAIT
            cp_wait<STAGES - 1>();
#else
            cp_wait<STAGES - 2>();
#endif
#ifdef PLANT_WRITE_AFTER_READ
            // Loads into a stage that other warps may still be reading: they have finished only at
            // the barrier below.
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
            const unsigned char *a_tile = shared + step % STAGES * STAGE_BYTES,
                                *b_tile = a_tile + M * 64;
            UNROLL
            for (uint32_t half = 0; half < 2; half++) {
                uint32_t b[2][4];
                UNROLL
                for (uint32_t j = 0; j < 2; j++)
                    ldmatrix(b[j], b_tile + swizzle64(warp_n + j * 16 + lane / 16 * 8 + lane % 8,
                                                half * 2 + lane / 8 % 2));
                UNROLL
                for (uint32_t i = 0; i < 4; i++) {
                    if (i >= rows) break;
                    uint32_t a[4];
                    ldmatrix(
                        a, a_tile + swizzle64(warp_m + i * 16 + lane % 16, half * 2 + lane / 16));
                    UNROLL
                    for (uint32_t j = 0; j < 4; j++)
                        mma(sums[i][j], a, b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1], T());
                }
            }
        }
        cp_wait<0>();
        // When no warp reads the stages any more, each warp takes its sums through shared memory,
        // half of its rows at a time. There a lane finds the same columns of every fourth row, so
        // that the epilogue can be a loop; with sums in registers it would be sixteen copies of its
        // code.
#ifndef PLANT_NO_BARRIER_GEMM_ENDS
        block_sync();
#endif
        store(shared, sums, m, m0, out);
    }

    // (A function of its own, so that nothing that it computes from the thread's number takes a
    // register in the loop above.)
    template <class Out> DEVICE_MEMBER static void store(unsigned char *shared,
        const float (&sums)[4][4][4], uint32_t m, uint32_t m0, const Out &out) {
        const uint32_t t = thread_again(), lane = t % 32, warp_m = t / 128 * 64,
                       warp_n = t / 32 % 4 * 32;
        constexpr uint32_t PITCH = 32 * 4 + 32; // eight rows that store pairs use all banks
        static_assert(8 * 32 * PITCH <= STAGES * STAGE_BYTES, "sums take the place of stages");
        unsigned char *const own = shared + t / 32 * (32 * PITCH);
        UNROLL
        for (uint32_t half = 0; half < 2; half++) {
#ifndef PLANT_NO_BARRIER_GEMM_HALF
            warp_sync();
#endif
            UNROLL
            for (uint32_t i = 0; i < 4; i++) UNROLL
            for (uint32_t j = 0; j < 4; j++) {
                const float *const from = sums[half * 2 + i / 2][j] + i % 2 * 2;
                store8(own + (i * 8 + lane / 4) * PITCH + (j * 8 + lane % 4 * 2) * 4,
                    Words2{{as_bits(from[0]), as_bits(from[1])}});
            }
#ifndef PLANT_NO_BARRIER_GEMM_ROWS
            warp_sync();
#endif
            UNROLL_BY(1)
            for (uint32_t i = lane / 8; i < 32; i += 4) {
                const uint32_t row = m0 + warp_m + half * 32 + i;
                if (row >= m) break;
                const unsigned char *const at = own + i * PITCH + lane % 8 * 8;
                const Words2 a = load_shared8(at), b = load_shared8(at + 64);
                out(row, warp_n + lane % 8 * 2, Pair{as_float(a.w[0]), as_float(a.w[1])},
                    Pair{as_float(b.w[0]), as_float(b.w[1])});
            }
        }
    }
};

// The product in float32, the reference mode, without tensor cores. Tile 64 x 64 x 16, 4 x 4
// outputs a thread, two stages.
template <> struct Gemm<float> {
    static constexpr uint32_t M = 64, N = 64, K = 16, HALF = 32, PITCH = 20,
                              STAGE = (M + N) * PITCH;

    template <class WeightRow, class Out> DEVICE_MEMBER static void run(unsigned char *shared,
        const void *x, uint32_t x_stride, const void *w, uint32_t w_stride, uint32_t m, uint32_t k,
        const WeightRow &weight_row, const Out &out) {
        const uint32_t t = threadIdx.x, tx = t % 16, ty = t / 16, m0 = blockIdx.y * M;
        const uint32_t steps = (k + 31) / 32 * 2;
        const uint32_t row = t / 4, chunk = t % 4;
        float *tile = (float *)shared;
        int64_t n = weight_row(row);
        const bool has_x = m0 + row < m, has_w = n >= 0;
        const float *from_x =
            (const float *)x + (size_t)(has_x ? m0 + row : 0) * x_stride + chunk * 4;
        const float *from_w = (const float *)w + (size_t)(has_w ? n : 0) * w_stride + chunk * 4;
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
                for (uint32_t q = 0; q < 4; q++) UNROLL
                for (uint32_t i = 0; i < 4; i++) UNROLL
                for (uint32_t j = 0; j < 4; j++)
                    sums[i][j] = fmaf(as_float(a[i].w[q]), as_float(b[j].w[q]), sums[i][j]);
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
