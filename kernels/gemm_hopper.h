// Prefill on compute capability 9.0: the products of gemm.h, for f16 and bf16 weights. Part of
// gpu.h.
//
// The design follows pranjalssh/fast.cu: one thread, in a warp or warpgroup of its own, keeps
// copies of the next stages in flight, and the other warpgroups multiply 64 activation rows each.
// There are these tiles (activation rows x weight rows):
//
//   large    128 x 256, two warpgroups, four stages.
//   half     128 x 128, two warpgroups, three stages. Two blocks fit on a multiprocessor. The host
//            takes this tile where the large one would leave multiprocessors idle. It reads a third
//            more from L2 than the large tile.
//   single   64 x 128: the half tile for one warpgroup (`groups` is 1), eight stages; for few rows.
//   quarter  64 x 64, one warpgroup, twelve stages; for few rows. ffn_up has no quarter tile,
//            because each of its two runs of weight rows (see below) would be half of a box.
//
// A block of a single or quarter tile has a multiprocessor for itself. It has so many stages
// because its product waits for weights: with 3 (single) and 6 (quarter) stages, a prompt of 128
// tokens in bf16 took 1.16 times as long on an H100. Prefetching weights into L2 did not help. With
// 3 and 6 stages, such a prompt took 1.13 to 1.3 times as long when blocks prefetched 4 to 16
// stages ahead. Generated rows became slower, too, when each block prefetched 0.1 to 0.4 MB of
// weights before the previous launch had ended.
//
// Two blocks that are neighbours in blockIdx.x have the same weights. If they are a cluster, each
// of the two copies one run of the weight rows into the shared memory of both. This removes a third
// of the traffic from L2 for large and single tiles, and a quarter for half and quarter tiles. It
// also means that a stage is free only when the warps of both blocks have read it. In a quarter
// tile, both runs together are one box, which the two blocks copy in turn.
//
// Each output is one sum over k in ascending order, as in gemm.h. Whether wgmma rounds like
// mma.sync is undocumented. Therefore the type of the weights alone decides which of the two
// instructions a device uses, and the number of rows never does. Whether all widths of wgmma round
// alike is undocumented too, but there the number of rows does decide, because it selects the tile.
// We assume that all widths round alike; `tests/gpu/parity.py tiles` checks it on hardware.
//
// A block takes two runs of HALF weight rows. Each run may begin at any row; in ffn_up, one run is
// rows of gate and the other is rows of up. A run may end inside a box. The rows of the box behind
// that end belong to something else or do not exist. Their outputs are computed and dropped.
template <class T, uint32_t COLUMNS, uint32_t GROUPS> struct HopperTile {
    static constexpr uint32_t M = GROUPS * 64, N = COLUMNS, K = 64, HALF = N / 2,
                              STAGES = N == 256  ? 4
                                       : N == 64 ? 12
                                       : M == 64 ? 8
                                                 : 3;
    static constexpr uint32_t ROWS_BYTES = 64 * K * 2, X_BYTES = M * K * 2, W_BYTES = N * K * 2,
                              STAGE_BYTES = X_BYTES + W_BYTES;
    // The thread that copies.
    static constexpr uint32_t COPIER = M * 2;
    // For the large tile, the warpgroup that copies gives most of its registers to the other two.
    // The half tile does not need this, so one warp copies there instead of a warpgroup.
    static constexpr uint32_t COPIER_REGISTERS = 40, REGISTERS = 232;
    // Bytes from one row of sums to the next: the sums and 32 bytes more. Because of these 32
    // bytes, eight rows that store pairs at the same time use all banks. They also hold what the
    // epilogue knows about the row (its Row).
    static constexpr uint32_t PITCH = N * 4 + 32;
    // TOGETHER: rows whose inputs are loaded (find) before the first result is stored (put). EACH:
    // pairs of columns of a row that a thread has in each run.
    static constexpr uint32_t TOGETHER = 4, EACH = HALF < 64 ? 1 : HALF / 64;
    // LANES: lanes that share a row. SIDE: rows that a warp handles side by side.
    static constexpr uint32_t LANES = HALF < 64 ? HALF / 2 : 32, SIDE = 32 / LANES;
    static_assert(M * PITCH <= STAGES * STAGE_BYTES, "sums take the place of stages");
    static_assert((COPIER_REGISTERS + 2 * REGISTERS) * 128 <= 65536, "of a multiprocessor");
    static_assert(STAGES * (STAGE_BYTES + 2 * sizeof(AsyncBarrier)) ==
                      (N == 256     ? GPU_HOPPER_SHARED
                          : N == 64 ? GPU_HOPPER_QUARTER_SHARED
                          : M == 64 ? GPU_HOPPER_SINGLE_SHARED
                                    : GPU_HOPPER_HALF_SHARED),
        "params.h");

    // Multiplies m rows of x, from row `x_row` on; a block multiplies M of them. The epilogue
    // `out`, which is a function in gemm.h, is an object here. It has four methods:
    //   column(c)     computes what columns c and c + 1 of either run need for every row
    //   row(i)        computes what row i of the launch, which may not exist, needs for every
    //                 column
    //   find(row, column)             loads what depends on both row and column
    //   put(row, column, found, a, b) stores the results of two pairs of sums: a is of the first
    //                                 run, b is of the second
    // With the large tile, one warp calls a fifth method, with the block's rows and columns, while
    // the other warps multiply:
    //   expect(first, rows, columns)  asks for what find will load
    // Loads are separate from stores for the reason that few.h gives.
    template <class Out> DEVICE_MEMBER static void run(unsigned char *shared, const TensorMap &x,
        uint32_t x_row, const TensorMap &w, uint32_t m, uint32_t k, uint32_t first, uint32_t second,
        const Out &out) {
        const uint32_t t = threadIdx.x, m0 = blockIdx.x * M, steps = (k + K - 1) / K;
        // A warpgroup without rows does not take part. A block without rows exists only to make the
        // number of blocks even. Its first warpgroup multiplies as if it had rows, because the
        // partner block needs this block's copies.
        const auto workers_of = [=](uint32_t from) { return from + 64 < m ? GROUPS : 1; };
        const uint32_t workers = workers_of(m0);
        const bool paired = cluster_blocks() > 1;
        const uint32_t readers = workers + (paired ? workers_of((blockIdx.x ^ 1) * M) : 0);
        AsyncBarrier *full = (AsyncBarrier *)(shared + STAGES * STAGE_BYTES),
                     *empty = full + STAGES;
        start_next();
        if (t == COPIER) prefetch_map(x), prefetch_map(w);
        if (t == 0) {
            for (uint32_t s = 0; s < STAGES; s++) {
                barrier_init(full + s, 1);
                barrier_init(empty + s, WARPS * readers);
            }
#ifndef PLANT_NO_FENCE
            async_fence();
#endif
#ifndef PLANT_NO_FENCE_CLUSTER
            if (paired) cluster_fence();
#endif
        }
#ifndef PLANT_NO_BARRIER_HOPPER
        block_sync();
#endif
#ifndef PLANT_NO_BARRIER_CLUSTER
        if (paired) cluster_sync();
#endif
        if (t >= COPIER) {
            if (N == 256) give_registers<COPIER_REGISTERS>();
            if (N == 256 && t / 32 == 9) out.expect(m0, M, N);
            if (t != COPIER) return;
            if (paired)
                copy<true>(shared, x, w, x_row + m0, steps, first, second, full, empty);
            else
                copy<false>(shared, x, w, x_row + m0, steps, first, second, full, empty);
            return;
        }
        if (N == 256) take_registers<REGISTERS>();
        const uint32_t worker = t / 128;
        if (worker >= workers) return;
        wait_for_last();
        float sums[N / 2] = {};
        for (uint32_t step = 0; step < steps; step++) {
            const unsigned char *stage = shared + step % STAGES * STAGE_BYTES;
#ifdef PLANT_WRONG_PARITY
            barrier_wait(full + step % STAGES, (step / STAGES & 1) ^ 1);
#else
            barrier_wait(full + step % STAGES, step / STAGES & 1);
#endif
            wgmma_begin();
            UNROLL
            for (uint32_t i = 0; i < K / 16; i++)
                wgmma(sums, operand(stage + worker * ROWS_BYTES + i * 32),
                    operand(stage + X_BYTES + i * 32), T());
            wgmma_commit();
            // This step's products stay in flight. The products of the previous step have finished
            // reading their stage, so that stage is free.
            wgmma_wait<1>();
#ifdef PLANT_FREED_EARLY
            stage_read(empty + step % STAGES);
#else
            if (paired)
                stage_read_by_cluster(empty + (step - 1) % STAGES, step > 0);
            else
                stage_read(empty + (step - 1) % STAGES, step > 0);
#endif
        }
        wgmma_finish(sums);
        if (paired) stage_read_by_cluster(empty + (steps - 1) % STAGES, true);
        // When no warp reads the last stages any more, each warp stores its sixteen rows of sums in
        // shared memory. Each lane then takes a few columns of all sixteen rows. So what depends on
        // the column is computed once, what depends on the row is the same for the whole warp, and
        // the lanes load and store neighbouring addresses. With the sums left in registers, the
        // epilogue would be N copies of its code.
#ifndef PLANT_NO_BARRIER_ENDS
        named_sync(1, (int)workers * 128);
#endif
        const uint32_t lane = t % 32, row = t / 32 * 16;
        unsigned char *const own = shared + row * PITCH;
        using Row = decltype(out.row(0u));
        static_assert(sizeof(Row) <= 32, "it fits behind the sums");
        if (lane < 16) *(Row *)(own + lane * PITCH + N * 4) = out.row(m0 + row + lane);
#ifdef PLANT_NO_BARRIER_ROWS
        warp_sync();
#endif
        UNROLL
        for (uint32_t j = 0; j < N / 4; j++)
            store8(own + (j % 2 * 8 + lane / 4) * PITCH + (j / 2 * 8 + lane % 4 * 2) * 4,
                Words2{{as_bits(sums[2 * j]), as_bits(sums[2 * j + 1])}});
#ifndef PLANT_NO_BARRIER_ROWS
        warp_sync();
#endif
        decltype(out.column(0u)) columns[EACH];
        UNROLL
        for (uint32_t u = 0; u < EACH; u++) columns[u] = out.column(lane % LANES * 2 + u * 64);
#ifdef PLANT_QUARTER_ROWS
        const unsigned char *const of_lane = own;
#else
        const unsigned char *const of_lane = own + lane / LANES * PITCH;
#endif
        UNROLL_BY(1)
        for (uint32_t i = 0; i < 16 && m0 + row + i < m; i += TOGETHER * SIDE) {
            Row rows[TOGETHER];
            decltype(out.find(rows[0], columns[0])) found[TOGETHER][EACH];
            UNROLL
            for (uint32_t e = 0; e < TOGETHER; e++)
                rows[e] = *(const Row *)(of_lane + (i + e * SIDE) * PITCH + N * 4);
            UNROLL
            for (uint32_t e = 0; e < TOGETHER; e++) UNROLL
            for (uint32_t u = 0; u < EACH; u++) found[e][u] = out.find(rows[e], columns[u]);
            UNROLL
            for (uint32_t e = 0; e < TOGETHER; e++) UNROLL
            for (uint32_t u = 0; u < EACH; u++) {
                const unsigned char *const at =
                    of_lane + (i + e * SIDE) * PITCH + (lane % LANES * 2 + u * 64) * 4;
                const Words2 a = load_shared8(at), b = load_shared8(at + HALF * 4);
                out.put(rows[e], columns[u], found[e][u], Pair{as_float(a.w[0]), as_float(a.w[1])},
                    Pair{as_float(b.w[0]), as_float(b.w[1])});
            }
        }
    }

    template <bool PAIRED> DEVICE_MEMBER static void copy(unsigned char *shared, const TensorMap &x,
        const TensorMap &w, uint32_t x_row, uint32_t steps, uint32_t first, uint32_t second,
        AsyncBarrier *full, AsyncBarrier *empty) {
        const uint32_t rank = cluster_rank();
        const auto copy_w = [&](uint32_t step) {
            unsigned char *const stage = shared + step % STAGES * STAGE_BYTES + X_BYTES;
            AsyncBarrier *there = full + step % STAGES;
#ifdef PLANT_NO_EXPECT
            barrier_arrive(there);
#else
            barrier_expect(there, STAGE_BYTES);
#endif
            UNROLL
            for (uint32_t row = 0; row < W_BYTES / (K * 2); row += GPU_BOX_ROWS) {
                unsigned char *const to = stage + row * K * 2;
                const uint32_t half = N == 64 ? 0 : row / HALF, in_half = row - half * HALF,
                               from = (half ? second : first) + in_half;
                if (!PAIRED)
                    copy_box(to, w, step * K, from, there);
#ifdef PLANT_QUARTER_TURN
                else
#else
                else if ((N == 64 ? step % 2 : half) == rank)
#endif
                    copy_box_to_both(to, w, step * K, from, there);
            }
        };
        const auto copy_x = [&](uint32_t step) {
            unsigned char *const stage = shared + step % STAGES * STAGE_BYTES;
            for (uint32_t row = 0; row < M; row += GPU_BOX_ROWS)
                copy_box(stage + row * K * 2, x, step * K, x_row + row, full + step % STAGES);
        };
        // In the first round all stages are empty. Their weights are copied while the previous
        // launch, which computes the activations, still runs.
        const uint32_t round = smaller(steps, STAGES);
#ifdef PLANT_COPIED_EARLY
        for (uint32_t step = 0; step < round; step++) copy_w(step), copy_x(step);
        wait_for_last();
#else
        for (uint32_t step = 0; step < round; step++) copy_w(step);
        wait_for_last();
        for (uint32_t step = 0; step < round; step++) copy_x(step);
#endif
        for (uint32_t step = round; step < steps; step++) {
#ifdef PLANT_NOT_EMPTY
            (void)empty;
#else
            barrier_wait(empty + step % STAGES, (step / STAGES & 1) ^ 1);
#endif
            copy_w(step), copy_x(step);
        }
#ifndef PLANT_NO_WAIT_CLUSTER
        // A block must live until its partner has read all copies that this block made, and has
        // said so.
        for (uint32_t step = steps; PAIRED && step < steps + STAGES; step++)
            barrier_wait(empty + step % STAGES, (step / STAGES & 1) ^ 1);
#endif
    }
};

// A product by tiles of `COLUMNS` columns. A block of `groups` warpgroups has one tile. `groups` is
// 2, with two exceptions: with the half tile it may be 1, where 2 would give too few blocks, and
// with the quarter tile it is always 1.
template <class T, uint32_t COLUMNS> struct HopperGemm {
    static constexpr uint32_t N = COLUMNS, HALF = N / 2;

    template <class Out> DEVICE_MEMBER static void run(unsigned char *shared, const TensorMap &x,
        uint32_t x_row, const TensorMap &w, uint32_t groups, uint32_t m, uint32_t k, uint32_t first,
        uint32_t second, const Out &out) {
        if constexpr (N == 128)
            if (groups == 1)
                return HopperTile<T, N, 1>::run(shared, x, x_row, w, m, k, first, second, out);
        HopperTile<T, N, N == 64 ? 1 : 2>::run(shared, x, x_row, w, m, k, first, second, out);
    }
};
