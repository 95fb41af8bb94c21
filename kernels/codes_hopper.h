// Prefill on compute capability 9.0: products with quantised weights by TMA and wgmma.
// gemm_hopper.h does the same for floats. Part of gpu.h.
//
// The idea is from Machete (vLLM). The product is transposed, so that the weights are operand A,
// which wgmma can take from registers. A warp therefore loads and decodes weights in registers, and
// no weight passes through shared memory. A warp has eight pairs of weight rows. A lane loads the
// same pieces of a line as in few.h, up to two lines ahead. Each of two warpgroups has 32 pairs of
// weight rows. Both warpgroups multiply their weights by the same ROWS activation rows, which a
// third warpgroup copies.
//
// Decoding the 64 x 16 weights of one product takes about 14 instructions of each thread. This time
// can be hidden while the tensor cores multiply:
//
//   256 activation rows  The tensor cores need 128 cycles for the previous product of this
//                        warpgroup, and 128 more for a product of the other warpgroup. One product
//                        is decoded during that time.
//   128 activation rows  One product ends too soon for that. Therefore the weights of four products
//                        are decoded while the previous four products are multiplied. According
//                        to benches/gpu_loop.py, a model of the machine code (int8), one warpgroup
//                        alone then keeps the tensor cores busy for 92 % of the time. With one
//                        product at a time, it does so for 52 %.
//
// Two blocks that are neighbours in blockIdx.x may have the same activations and neighbouring runs
// of weights (`across`). If these two blocks are a cluster, each copies half of the activations
// into the shared memory of both. So a stage is free only when the warps of both blocks have read
// it.
//
// A lane loads four adjacent columns of each sixteen, but a fragment of wgmma has two adjacent
// columns and two others. Therefore the activations lie in permuted order (quant.h). Each output is
// one sum over the columns in permuted order. The weights in it are code times scale, rounded to
// f16. gemm.h adds in another order. Therefore a device uses these kernels either for all rows of a
// prompt or for none, and the weights alone decide this.
template <class Q, uint32_t ROWS> struct HopperCodes {
    static constexpr uint32_t K = 64, STAGES = 4, STAGE_BYTES = ROWS * K * 2;
    static constexpr uint32_t SLABS = Q::STEPS * 2; // slabs of sixteen columns in a line
    // The number of slabs that are decoded before the first of them is multiplied. With 256 rows,
    // registers suffice for one slab only.
    static constexpr uint32_t AT_ONCE = ROWS == 256 ? 1 : 4;
    // Lines that are loaded together: with 128 rows, 256 columns of each weight row.
    static constexpr uint32_t GROUP = ROWS == 256 ? 1 : Q::LINES;
    static constexpr uint32_t COPIER_REGISTERS = 40, REGISTERS = 232;
    static_assert((COPIER_REGISTERS + 2 * REGISTERS) * 128 <= 65536, "of a multiprocessor");
    static_assert(STAGES * (STAGE_BYTES + 2 * sizeof(AsyncBarrier)) + GPU_TABLE_BYTES ==
                      (ROWS == 256 ? GPU_CODES_SHARED : GPU_CODES_HALF_SHARED),
        "params.h");
    static_assert(ROWS * 64 * 8 <= STAGES * STAGE_BYTES, "sums take the place of stages");

    // The number of this block among those with the same activations.
    DEVICE_MEMBER static uint32_t place(uint32_t across) {
        return across ? blockIdx.y * 2 + blockIdx.x % 2 : blockIdx.y;
    }

    // Multiplies ROWS rows of x by the block's pairs of rows of w. The rows of x begin at x_row +
    // ROWS * blockIdx.x (at x_row + ROWS * (blockIdx.x / 2) with `across`). The block has 32 pairs
    // of weight rows for each of `groups` warpgroups (`groups` is as in gemm_hopper.h). `pairs` is
    // as in few.h, but only its rows(n, j) is called. `out` is as in gemm_hopper.h, with two
    // differences: a has both sums of one pair of weight rows and b has both sums of the next pair,
    // and column(c) is called with twice the pair's number.
    template <class Pairs, class Out> DEVICE_MEMBER static void run(unsigned char *shared,
        const TensorMap &x, uint32_t x_row, const void *w, uint32_t w_stride, uint32_t groups,
        uint32_t across, uint32_t k, const Pairs &pairs, const Out &out) {
        const uint32_t t = threadIdx.x, m0 = (across ? blockIdx.x / 2 : blockIdx.x) * ROWS,
                       lines = (k + Q::STEPS * 32 - 1) / (Q::STEPS * 32);
        const bool paired = cluster_blocks() > 1;
        AsyncBarrier *full = (AsyncBarrier *)(shared + STAGES * STAGE_BYTES),
                     *empty = full + STAGES;
        start_next();
        if (t == 256) prefetch_map(x);
        if (t == 0) {
            for (uint32_t s = 0; s < STAGES; s++) {
                barrier_init(full + s, 1);
                barrier_init(empty + s, WARPS * groups * (paired ? 2 : 1));
            }
            async_fence();
#ifndef PLANT_NO_FENCE_CLUSTER
            if (paired) cluster_fence();
#endif
        }
        block_sync();
#ifndef PLANT_NO_BARRIER_CLUSTER
        if (paired) cluster_sync();
#endif
        if (t >= 256) {
            give_registers<COPIER_REGISTERS>();
            if (ROWS == 256 && t / 32 == 9) out.expect(m0, ROWS, groups * 64);
            if (t != 256) return;
#ifndef PLANT_COPIED_EARLY
            wait_for_last();
#endif
            const uint32_t steps = lines * (SLABS / 4);
            if (paired)
                copy<true>(shared, x, x_row + m0, steps, full, empty);
            else
                copy<false>(shared, x, x_row + m0, steps, full, empty);
            return;
        }
        if (t >= groups * 128) return;
        take_registers<REGISTERS>();
        const uint32_t *table = pair_table<Q>((unsigned char *)(empty + STAGES));
        const uint32_t j = t / 32 * 8 + t % 32 / 4, codes = code_bytes<Q>(k);
        uint32_t rows[2];
        pairs.rows(rows, j);
        const unsigned char *const from[2] = {
            row_of<Q>(w, w_stride, rows[0]), row_of<Q>(w, w_stride, rows[1])};
        // Lines are loaded in groups, alternately to the two places of `ahead`. (Copying one place
        // to the other instead would wait for the load.) A warp that waits for one of its loads
        // waits for all of them. So the next group is asked for only when the first weights of this
        // group have arrived.
        QuantisedLine<Q> ahead[2][GROUP];
        const auto load = [&](QuantisedLine<Q>(&to)[GROUP], uint32_t group) {
            UNROLL
            for (uint32_t l = 0; l < GROUP; l++) to[l].load(from, group * GROUP + l, 0, codes);
        };
        load(ahead[0], 0);
        wait_for_last();
        const uint32_t loads = (lines + GROUP - 1) / GROUP;
        float sums[ROWS / 2] = {};
        uint32_t a[2][AT_ONCE][4];
        for (uint32_t first = 0; first < loads; first += 2) {
            UNROLL
            for (uint32_t d = 0; d < 2; d++) {
                if (first + d >= loads) break;
                UNROLL
                for (uint32_t l = 0; l < GROUP; l++) {
                    const uint32_t line = (first + d) * GROUP + l;
                    if (l > 0 && line >= lines) break;
                    UNROLL
                    for (uint32_t i = 0; i < SLABS; i += AT_ONCE) {
                        const uint32_t step = line * (SLABS / 4) + i / 4;
                        const unsigned char *const stage = shared + step % STAGES * STAGE_BYTES;
#ifdef PLANT_DECODED_EARLY
                        uint32_t (&slabs)[AT_ONCE][4] = a[0];
#else
                        uint32_t (&slabs)[AT_ONCE][4] = a[i / AT_ONCE % 2];
#endif
                        UNROLL
                        for (uint32_t u = 0; u < AT_ONCE; u++)
                            decode(slabs[u], ahead[d][l], i + u, table);
                        if (l == 0 && i == 0 && first + d + 1 < loads)
                            load(ahead[1 - d], first + d + 1);
                        if (i % 4 == 0) barrier_wait(full + step % STAGES, step / STAGES & 1);
                        wgmma_begin();
                        UNROLL
                        for (uint32_t u = 0; u < AT_ONCE; u++)
                            wgmma_registers(
                                sums, slabs[u], operand(stage + (i + u) % 4 * 32), f16());
                        wgmma_commit();
                        // These products stay in flight. Meanwhile the next slabs are decoded into
                        // the registers that the products before have finished reading.
                        wgmma_wait<1>();
#ifdef PLANT_CODES_FREED_EARLY
                        if (i % 4 == 0) stage_read_by_cluster(empty + step % STAGES, true);
#else
                        // A block outside of a cluster calls this function too: a branch would make
                        // ptxas wait for each product.
                        if (i % 4 == 0)
                            stage_read_by_cluster(empty + (step - 1) % STAGES, step > 0);
#endif
                    }
                }
            }
        }
        wgmma_finish(sums);
        if (paired) stage_read_by_cluster(empty + (lines * (SLABS / 4) - 1) % STAGES, true);
        // When no warp reads the last stages any more, all sums go to shared memory, where a warp
        // finds all columns of some rows (gemm_hopper.h says why). A row has the sums of 64 pairs
        // (of 32 pairs if `groups` is 1), and a lane takes two neighbouring pairs. Groups of four
        // pairs are swizzled, so that four rows that store at the same time use all banks.
#ifndef PLANT_NO_BARRIER_CODES
        named_sync(1, (int)groups * 128);
#endif
        const auto place_of = [&](uint32_t row, uint32_t pair) {
            return shared + (row * 64 + (pair ^ (row / 2 % 4 * 4))) * 8;
        };
        UNROLL
        for (uint32_t r = 0; r < ROWS / 8; r++) UNROLL
        for (uint32_t e = 0; e < 2; e++) // this thread has rows 2t and 2t + 1 of each eight
            store8(place_of(r * 8 + t % 4 * 2 + e, j),
                Words2{{as_bits(sums[4 * r + e]), as_bits(sums[4 * r + 2 + e])}});
#ifndef PLANT_NO_BARRIER_CODES_ROWS
        named_sync(1, (int)groups * 128);
#endif
        const uint32_t lane = t % 32, pair = lane * 2 % (groups * 32);
        const auto column = out.column(pair * 2);
        // The warps of the block take eight rows at a time. (Where a row has 32 pairs, there are
        // four warps, and each takes two rows.) Rows r and r + 8 are swizzled alike.
        constexpr uint32_t TOGETHER = 4;
        const uint32_t row = t / (groups * 16);
        const unsigned char *own = place_of(row, pair);
        UNROLL_BY(1)
        for (uint32_t i = m0 + row; i < m0 + ROWS; i += TOGETHER * 8, own += TOGETHER * 4096) {
            decltype(out.row(0u)) rows[TOGETHER];
            decltype(out.find(rows[0], column)) found[TOGETHER];
            UNROLL
            for (uint32_t e = 0; e < TOGETHER; e++) rows[e] = out.row(i + e * 8);
            UNROLL
            for (uint32_t e = 0; e < TOGETHER; e++) found[e] = out.find(rows[e], column);
            UNROLL
            for (uint32_t e = 0; e < TOGETHER; e++) {
                const Words4 both = load_shared(own + e * 4096);
                out.put(rows[e], column, found[e], Pair{as_float(both.w[0]), as_float(both.w[1])},
                    Pair{as_float(both.w[2]), as_float(both.w[3])});
            }
        }
    }

    // Decodes slab i of a line into the fragments that wgmma takes.
    DEVICE_MEMBER static void decode(
        uint32_t (&a)[4], const QuantisedLine<Q> &line, uint32_t i, const uint32_t *table) {
        UNROLL
        for (uint32_t row = 0; row < 2; row++) {
            uint32_t pairs[2];
            Q::decode_pairs(pairs, line.pieces[row][i % 2].w, i / 2, table);
            const uint32_t group = i * 16 / Q::GROUP, scales = line.scales[row].w[group / 2],
                           scale = group % 2 ? upper_twice(scales) : lower_twice(scales);
            UNROLL
            for (uint32_t e = 0; e < 2; e++)
                a[2 * e + row] =
                    fma_pair(pairs[e], scale, 0x80008000); // Adding -0 keeps the sign of 0.
        }
    }

    template <bool PAIRED> DEVICE_MEMBER static void copy(unsigned char *shared, const TensorMap &x,
        uint32_t x_row, uint32_t steps, AsyncBarrier *full, AsyncBarrier *empty) {
        for (uint32_t step = 0; step < steps; step++) {
            unsigned char *stage = shared + step % STAGES * STAGE_BYTES;
            AsyncBarrier *there = full + step % STAGES;
            // In the first round all stages are empty.
            barrier_wait(empty + step % STAGES, (step / STAGES & 1) ^ 1);
            barrier_expect(there, STAGE_BYTES);
            const uint32_t own = PAIRED ? ROWS / 2 : ROWS,
                           begin = PAIRED ? cluster_rank() * own : 0;
            UNROLL
            for (uint32_t i = 0; i < own; i += GPU_BOX_ROWS) {
                const uint32_t row = begin + i;
                if (PAIRED)
                    copy_box_to_both(stage + row * K * 2, x, step * K, x_row + row, there);
                else
                    copy_box(stage + row * K * 2, x, step * K, x_row + row, there);
            }
        }
#ifndef PLANT_NO_WAIT_CLUSTER
        // A block must live until its partner has read all copies that this block made, and has
        // said so.
        for (uint32_t step = steps; PAIRED && step < steps + STAGES; step++)
            barrier_wait(empty + step % STAGES, (step / STAGES & 1) ^ 1);
#endif
    }
};
