// Prefill attention on compute capability 9.0, for f16 and bf16 caches. attend_prefill.cu does the
// same for all other caches and devices. Part of gpu.h.
//
// The algorithm is FlashAttention-3 (Shah et al. 2024, algorithm 2), without the ping-pong of its
// warpgroups. Two warps, one for K and one for V, keep two stages of copies going. Each of two
// warpgroups has 64 rows; all rows of a block are of one head. While a warpgroup turns the scores
// of one tile of keys into weights, its tensor cores add up the values of the tile before.
//
// Keys come in tiles of 128 at absolute positions. A page comes in boxes of 64 columns; columns
// from head_dim on are zero. As in attend_prefill.cu, a row's result depends on its own keys alone.
// But the two kernels give different bits, because the tiles there have 64 keys. Therefore only
// head_dim and the type of the cache decide which of the two kernels a device uses. Queries are
// float32 and their rows lie anywhere in the buffer, so threads load them instead of TMA.
//
// A kernel has 118 KB of machine code for heads of 128 numbers, and 84 KB for heads of 64. The
// products and the code between them are 44 KB and 34 KB. The rest stores the sums: there is code
// for each pair of a thread's registers in each type that outputs may have. A block runs the code
// of one type, once.
//
// A warpgroup could have rows of several heads that share keys. This would help only where many
// short prompts meet, and there most of the time goes to the matrix products.
template <class T, uint32_t B> struct HopperAttention {
    static constexpr uint32_t KEYS = 128, STAGES = 2, HALVES = B / 64, PAGES = KEYS / GPU_PAGE;
    // Sizes in bytes. BOX: 64 columns of a page. HALF: 64 columns of a tile of keys. TILE: all
    // columns of a tile of keys. QUERIES: the queries of one warpgroup.
    static constexpr uint32_t BOX = GPU_PAGE * 128, HALF = KEYS * 128, TILE = HALVES * HALF,
                              QUERIES = HALVES * 64 * 128;
    static constexpr uint32_t COPIER_REGISTERS = 40, REGISTERS = 232;
    static_assert((COPIER_REGISTERS + 2 * REGISTERS) * 128 <= 65536, "of a multiprocessor");

    struct Barriers {
        AsyncBarrier keys[STAGES], values[STAGES], keys_read[STAGES], values_read[STAGES], cut;
    };
    static_assert(
        2 * QUERIES + 2 * STAGES * TILE == 1280 * B && sizeof(Barriers) <= 128, "params.h");

    unsigned char *shared; // queries of two warpgroups | keys of two stages | values | barriers
    const AttendHopperParams &h;
    AttendTile tile;
    DEVICE_MEMBER unsigned char *keys_of(uint32_t j) const {
        return shared + 2 * QUERIES + j % STAGES * TILE;
    }
    DEVICE_MEMBER unsigned char *values_of(uint32_t j) const {
        return shared + 2 * QUERIES + (STAGES + j % STAGES) * TILE;
    }
    DEVICE_MEMBER Barriers &barriers() const { return *(Barriers *)(shared + 1280 * B); }
    // The parity of the barrier phase for tile j: how often its stage has been used before, modulo
    // 2.
    DEVICE_MEMBER static uint32_t round_of(uint32_t j) { return j / STAGES & 1; }
    // The first key that any of the rows sees, and the number of the tile that has it. Tiles of
    // keys are counted from that one on.
    DEVICE_MEMBER uint32_t begin() const { return first_key(tile.position + 1, h.p.window); }
    DEVICE_MEMBER uint32_t first_tile() const { return begin() / KEYS; }

    DEVICE_MEMBER void run() const {
        const uint32_t t = threadIdx.x, workers = tile.n > 64 ? 2 : 1;
        if (t == 0) {
            Barriers &b = barriers();
            for (uint32_t s = 0; s < STAGES; s++) {
                barrier_init(b.keys + s, PAGES * HALVES);
                barrier_init(b.values + s, PAGES * HALVES);
                barrier_init(b.keys_read + s, WARPS * workers);
                barrier_init(b.values_read + s, WARPS * workers);
            }
            barrier_init(&b.cut, HALVES);
            async_fence();
        }
        block_sync();
        if (t < 128) {
            give_registers<COPIER_REGISTERS>();
            if (t < 64) copy(t >= 32);
            return;
        }
        take_registers<REGISTERS>();
        if (t / 128 <= workers) attend(t / 128 - 1);
    }

    // Copies K or V: each lane copies one box of a tile.
    DEVICE_MEMBER void copy(bool values) const {
        Barriers &b = barriers();
        AsyncBarrier *there = values ? b.values : b.keys,
                     *read = values ? b.values_read : b.keys_read;
        const TensorMap &map = values ? h.v : h.k;
        const uint32_t lane = threadIdx.x % 32, half = lane / PAGES,
                       at = half * HALF + lane % PAGES * BOX;
        const uint32_t n_keys = tile.position + tile.n, before = first_tile(),
                       n_tiles = (n_keys + KEYS - 1) / KEYS - before;
        const uint32_t kv_head = blockIdx.x / (h.p.n_heads / h.p.n_kv_heads);
        for (uint32_t j = 0; j < n_tiles; j++) {
            const uint32_t key = (before + j) * KEYS + lane % PAGES * GPU_PAGE, stage = j % STAGES;
            unsigned char *to = values ? values_of(j) : keys_of(j);
            // For boxes beyond the last page and before the window, the row is beyond the end of
            // the map, which reads as zeros.
            const uint32_t row =
                key < n_keys && key + GPU_PAGE > begin()
                    ? h.first +
                          (h.p.pages[tile.pages + key / GPU_PAGE] * h.p.n_kv_heads + kv_head) *
                              GPU_PAGE
                    : h.end;
            const bool cut = values && key < n_keys && n_keys - key < GPU_PAGE;
            if (half < HALVES) {
                AsyncBarrier *arrived = cut ? &b.cut : there + stage;
                barrier_wait(read + stage, round_of(j) ^ 1);
                barrier_expect(arrived, BOX);
                copy_box(to + at, map, half * 64, row, arrived);
            }
            if (!values || j + 1 < n_tiles || n_keys % GPU_PAGE == 0) continue;
            // The last page also has positions that were never written. Their values are set to
            // zero here, because 0 * NaN would be NaN. Their keys may hold anything: such scores
            // are dropped.
            barrier_wait(&b.cut, 0);
#ifndef PLANT_NO_ZEROS
            to += n_keys % KEYS / GPU_PAGE * BOX;
            for (uint32_t i = n_keys % GPU_PAGE * 8 + lane; i < GPU_PAGE * 8; i += 32)
                for (uint32_t k = 0; k < HALVES; k++)
                    store_operand(to + k * HALF + i * 16, Words4{});
#endif
            async_fence();
            warp_sync();
            if (half < HALVES && cut) barrier_arrive(there + stage);
        }
    }

    // Computes the rows of the tile from 64 * worker on.
    DEVICE_MEMBER void attend(uint32_t worker) const {
        Barriers &b = barriers();
        const AttendPrefillParams &p = h.p;
        const uint32_t t = threadIdx.x % 128, lane = t % 32, column = lane % 4 * 2,
                       own = t / 32 * 16 + lane / 4;
        const uint32_t first = worker * 64, n = tile.n - first < 64 ? tile.n - first : 64,
                       position = tile.position + first;
        const uint32_t before = first_tile(), n_tiles = (position + n - 1) / KEYS + 1 - before;
        unsigned char *queries = shared + worker * QUERIES;
        int32_t row[2];
        UNROLL
        for (uint32_t i = 0; i < 2; i++)
            row[i] = own + i * 8 < n ? p.rows[tile.first + first + own + i * 8] : -1;
        load_queries(queries, tile.first + first, n);
#ifndef PLANT_NO_FENCE_QUERIES
        async_fence();
#endif
#ifndef PLANT_NO_BARRIER_QUERIES
        named_sync(1 + (int)worker, 128);
#endif

        float s[KEYS / 2], o[B / 2] = {}, max[2] = {-INFINITY_F, -INFINITY_F}, sum[2] = {0, 0},
                                 fade[2];
        uint32_t w[KEYS / 16][4];
        const float scale = p.scale * 1.44269504f; // 1 / ln 2: exp2 computes the weights
        barrier_wait(b.keys, 0);
        score(s, queries, keys_of(0));
        wgmma_wait<0>(s);
        stage_read(b.keys_read);
        weigh(s, max, sum, fade, before * KEYS, position, own, column, scale, p.window);
        if (n_tiles > 1) barrier_wait(b.keys + 1, 0);
        round(w, s);
        for (uint32_t j = 1; j < n_tiles; j++) {
            score(s, queries, keys_of(j));
#ifdef PLANT_KEYS_FREED_EARLY
            stage_read(b.keys_read + j % STAGES);
#endif
#ifndef PLANT_NO_WAIT_VALUES
            barrier_wait(b.values + (j - 1) % STAGES, round_of(j - 1));
#endif
            add(o, w, values_of(j - 1));
            wgmma_wait<1>(s);
#ifndef PLANT_KEYS_FREED_EARLY
            stage_read(b.keys_read + j % STAGES);
#endif
            weigh(s, max, sum, fade, (before + j) * KEYS, position, own, column, scale, p.window);
#ifdef PLANT_ROUNDED_EARLY
            round(w, s);
#endif
            // This wait must not move to the top of the loop. ptxas moves wgmma_wait below up to
            // the nearest branch; this wait is a branch, so the computation of the weights stays
            // before it.
            if (j + 1 < n_tiles) barrier_wait(b.keys + (j + 1) % STAGES, round_of(j + 1));
            wgmma_wait<0>(o);
            stage_read(b.values_read + (j - 1) % STAGES);
            UNROLL
            for (uint32_t i = 0; i < B / 2; i++) o[i] *= fade[i / 2 % 2];
#ifndef PLANT_ROUNDED_EARLY
            round(w, s);
#endif
        }
        // No copy waits for the last tile's values to be read, so no barrier_arrive follows. There
        // may be one more tile, which only the other warpgroup's rows see.
        barrier_wait(b.values + (n_tiles - 1) % STAGES, round_of(n_tiles - 1));
        add(o, w, values_of(n_tiles - 1));
        wgmma_finish(o);
        bool lost[2] = {};
        UNROLL
        for (uint32_t i = 0; i < 2; i++) {
            const float unit = 1 / group_sum(sum[i], 4);
            if (row[i] < 0) continue;
            UNROLL
            for (uint32_t k = 0; k < B / 8; k++) UNROLL
            for (uint32_t e = 4 * k + 2 * i; e < 4 * k + 2 * i + 2; e++) lost[i] |= o[e] != o[e];
            lost[i] &= unit == unit;
            with_type(p.y_type, [&](auto type) {
                auto *y = (decltype(type) *)p.y + (size_t)row[i] * p.y_stride;
                UNROLL
                for (uint32_t k = 0; k < B / 8; k++)
                    if (k * 8 + column < p.head_dim)
                        store_pair(
                            y + permuted_of(blockIdx.x * p.head_dim + k * 8 + column, p.permuted),
                            bounded(o[4 * k + 2 * i] * unit, p.y_type),
                            bounded(o[4 * k + 2 * i + 1] * unit, p.y_type));
            });
        }
#ifndef PLANT_LOST
        attend_lost<T>(p, tile, first + t / 32 * 16, lost);
#endif
    }

    // Loads and rounds the queries of 64 rows, from entry `first` of `rows` on. Rows from n on
    // become zeros.
    DEVICE_MEMBER void load_queries(unsigned char *to, uint32_t first, uint32_t n) const {
        const AttendPrefillParams &p = h.p;
        UNROLL
        for (uint32_t i = 0; i < B / 4; i++) {
            const uint32_t at = i * 128 + threadIdx.x % 128, r = at / (B / 2), d = at % (B / 2) * 2;
            const int32_t row = r < n ? p.rows[first + r] : -1;
            Words2 x = {};
            if (row >= 0 && d < p.head_dim)
                x = load_fresh8(p.q + (size_t)row * p.q_stride + blockIdx.x * p.head_dim + d);
            store_operand(
                to + d / 64 * (64 * 128) + r * 128 + ((d % 64 / 8 ^ (r & 7)) << 4) + d % 8 * 2,
                pair_of(as_float(x.w[0]), as_float(x.w[1]), T()));
        }
    }

    DEVICE_MEMBER static void score(
        float (&s)[KEYS / 2], const unsigned char *queries, const unsigned char *keys) {
        wgmma_begin();
        UNROLL
        for (uint32_t i = 0; i < B / 16; i++) {
            const uint64_t q = operand(queries + i / 4 * (64 * 128) + i % 4 * 32),
                           k = operand(keys + i / 4 * HALF + i % 4 * 32);
            if (i == 0)
                wgmma_new(s, q, k, T());
            else
                wgmma(s, q, k, T());
        }
        wgmma_commit();
    }

    DEVICE_MEMBER static void add(
        float (&o)[B / 2], const uint32_t (&w)[KEYS / 16][4], const unsigned char *values) {
        wgmma_begin();
        UNROLL
        for (uint32_t i = 0; i < KEYS / 16; i++) {
#ifdef PLANT_NOT_TRANSPOSED
            wgmma(o, w[i], operand(values + i * BOX), T());
#else
            wgmma(o, w[i], operand_transposed(values + i * BOX, HALF), T());
#endif
        }
        wgmma_commit();
    }

    // Turns the scores of 128 keys, from `key` on, into weights. Sets `fade`, the factors by which
    // the sums so far are to be multiplied.
    DEVICE_MEMBER static void weigh(float (&s)[KEYS / 2], float (&max)[2], float (&sum)[2],
        float (&fade)[2], uint32_t key, uint32_t position, uint32_t own, uint32_t column,
        float scale, uint32_t window) {
        // The causal mask is only needed where the first row of the warp does not see all 128 keys.
        if (key + KEYS - 1 > position + own / 16 * 16) {
            const int32_t sees = (int32_t)(position + own) - (int32_t)(key + column);
#ifdef PLANT_MASK
            const int32_t beyond = 0;
#else
            const int32_t beyond = 1;
#endif
            UNROLL
            for (int32_t i = 0; i < (int32_t)KEYS / 2; i++)
                if (i / 4 * 8 + i % 2 >= sees + beyond + i / 2 % 2 * 8) s[i] = -INFINITY_F;
        }
        // The mask of the window is needed only if the last row of the warp does not see all of
        // these keys.
        if (first_key(position + own / 16 * 16 + 16, window) > key) {
            UNROLL
            for (uint32_t i = 0; i < KEYS / 2; i++)
                if (key + column + i / 4 * 8 + i % 2 <
                    first_key(position + own + i / 2 % 2 * 8 + 1, window))
                    s[i] = -INFINITY_F;
        }
        float larger[2] = {max[0], max[1]}, base[2];
        UNROLL
        for (uint32_t i = 0; i < KEYS / 2; i++) larger[i / 2 % 2] = fmaxf(larger[i / 2 % 2], s[i]);
        UNROLL
        for (uint32_t i = 0; i < 2; i++) {
            larger[i] = group_max(larger[i], 4);
            base[i] = larger[i] == -INFINITY_F ? 0 : larger[i] * scale;
            // The product and the difference are not fused: where the row sees no key of this tile,
            // the factor must be exactly 1.
            fade[i] = exp2_fast(max[i] * scale - base[i]);
            max[i] = larger[i];
            sum[i] *= fade[i];
        }
        UNROLL
        for (uint32_t i = 0; i < KEYS / 2; i += 2) {
            s[i] = exp2_fast(fmaf(s[i], scale, -base[i / 2 % 2]));
            s[i + 1] = exp2_fast(fmaf(s[i + 1], scale, -base[i / 2 % 2]));
            sum[i / 2 % 2] += s[i] + s[i + 1];
        }
    }

    // Rounds the weights to the fragments that wgmma takes. Each fragment has sixteen keys.
    DEVICE_MEMBER static void round(uint32_t (&w)[KEYS / 16][4], const float (&s)[KEYS / 2]) {
        UNROLL
        for (uint32_t i = 0; i < KEYS / 4; i++)
            w[i / 4][i % 4] = pair_of(s[2 * i], s[2 * i + 1], T());
    }
};
