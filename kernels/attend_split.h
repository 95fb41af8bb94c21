// What the blocks of `attend` have in common: which part of which row a block computes, where its
// results go, and how the last block to finish joins the splits of a row. Part of gpu.h.

// What a block attends to: a chunk of one row and KV head, for up to GPU_ATTEND_HEADS of the query
// heads that share the KV head.
struct Block {
    const AttendParams &p;
    const int32_t row;
    // The end of the keys that the row sees, and where its page table begins.
    const uint32_t end = (uint32_t)p.positions[row] + 1, pages = p.row_pages[row];
    const uint32_t begin = first_key(end, p.window); // the first key that it sees
    // The first query head, and the number of them.
    uint32_t kv_head = blockIdx.x, head = 0, count = p.group;
#ifdef PLANT_COUNTED_EARLY
    const uint32_t counted = *counter();
#endif
    DEVICE_MEMBER Block(const AttendParams &p, int32_t row) : p(p), row(row) {
        for (; kv_head >= p.n_kv_heads; kv_head -= p.n_kv_heads)
            head += GPU_ATTEND_HEADS, count -= GPU_ATTEND_HEADS;
        head += kv_head * p.group;
        count = smaller(count, GPU_ATTEND_HEADS);
    }
    DEVICE_MEMBER uint32_t first_split() const { return begin / GPU_CHUNK; }
    DEVICE_MEMBER uint32_t n_splits() const { return (end - 1) / GPU_CHUNK + 1 - first_split(); }
    // Whether the row has no keys for the block. No page table begins at ~0. The comparison makes
    // the compiler load `pages` together with the position, and not after a branch on it.
    DEVICE_MEMBER bool idle() const {
        return blockIdx.y - first_split() >= n_splits() || pages == ~0u;
    }
    // Which of the keys first .. first + 31 the row sees, a bit for each.
    DEVICE_MEMBER uint32_t seen(uint32_t first) const {
        if (first >= end || first + 32 <= begin) return 0;
        const uint32_t before = end - first >= 32 ? ~0u : (1u << (end - first)) - 1;
        return begin <= first ? before : before & ~0u << (begin - first);
    }
    DEVICE_MEMBER uint32_t *counter() const {
        return p.counters + (size_t)blockIdx.z * gridDim.x + blockIdx.x;
    }
    template <class C> DEVICE_MEMBER Keys<C> keys() const {
        return Keys<C>(p.k_pages, p.v_pages, p.pages + pages, kv_head, p.n_kv_heads, p.head_stride);
    }
    // Of the block's head h.
    DEVICE_MEMBER const float *query(uint32_t h) const {
        return p.q + (size_t)row * p.q_stride + (head + h) * p.head_dim;
    }
    // The results of a split for head h: head_stride sums of weighted values, then the largest
    // score, the sum of the weights, and two zeros.
    DEVICE_MEMBER float *partial(uint32_t h, uint32_t split) const {
        const size_t of = (size_t)blockIdx.z * p.n_heads + head + h;
        return p.partial + (of * p.max_splits + split) * (p.head_stride + 4);
    }
    // Writes columns d .. d + N - 1 of a head's output.
    template <uint32_t N>
    DEVICE_MEMBER void put(uint32_t h, uint32_t d, const float (&o)[N], float sum) const {
        // sum is at least 1, because the largest weight of a split is 1. If no score is a number,
        // sum may be 0 and its inverse infinite. The result is NaN then, as the result of a
        // division would be.
        const float inverse = 1 / sum;
        float v[N];
        UNROLL
        for (uint32_t e = 0; e < N; e++) v[e] = bounded(o[e] * inverse, p.y_type);
        with_type(p.y_type, [&](auto type) {
            auto *y =
                (decltype(type) *)p.y + (size_t)row * p.y_stride + (head + h) * p.head_dim + d;
            UNROLL
            for (uint32_t e = 0; e < N; e++)
                if (d + e < p.head_dim) from_float(y[e], v[e]);
        });
    }
    // Leaves columns d .. d + 7 of this split's results. A split that is alone is the output.
    DEVICE_MEMBER void leave(
        uint32_t h, uint32_t d, const float (&o)[8], float max, float sum) const {
        if (n_splits() == 1) return put(h, d, o, sum);
        float *const to = partial(h, blockIdx.y);
        store16(to + d, words_of({o[0], o[1], o[2], o[3]}));
        store16(to + d + 4, words_of({o[4], o[5], o[6], o[7]}));
        if (d == 0) store16(to + p.head_stride, words_of({max, sum, 0, 0}));
    }
};

// Joins the splits in the last block to finish, always in the same order. Follows a block_sync.
template <uint32_t THREADS> DEVICE void join(const Block &b, unsigned char *shared) {
    if (b.n_splits() == 1) return;
    const uint32_t t = threadIdx.x, n_splits = b.n_splits(), stride = b.p.head_stride;
    uint32_t *const flag = (uint32_t *)shared;
#ifdef PLANT_COUNTED_EARLY
    if (t == 0) *b.counter() = b.counted + 1 == n_splits ? 0 : b.counted + 1;
    if (t == 0) *flag = b.counted + 1 == n_splits;
    block_sync();
    if (*flag == 0) return;
#else
    if (!is_last_block(b.counter(), n_splits, flag)) return;
#endif
    constexpr uint32_t AT_ONCE = 8; // splits whose loads are in flight together
    UNROLL_BY(1)
    for (uint32_t i = t; i < b.count * (stride / 4); i += THREADS) {
        const uint32_t h = i / (stride / 4), d = i % (stride / 4) * 4;
        float max = -INFINITY_F, sum = 0, o[4] = {};
        const float *from = b.partial(h, b.first_split());
        UNROLL_BY(1)
        for (uint32_t left = n_splits; left > 0; left -= smaller(left, AT_ONCE)) {
            Words4 part[AT_ONCE];
            Words2 tail[AT_ONCE];
            UNROLL
            for (uint32_t s = 0; s < AT_ONCE; s++) {
                tail[s] = Words2{{as_bits(-INFINITY_F), 0}}, part[s] = Words4{};
                if (s >= left) continue;
                tail[s] = load_fenced8(from + s * (stride + 4) + stride);
                part[s] = load_fenced16(from + s * (stride + 4) + d);
            }
            from += AT_ONCE * (stride + 4);
            float most = max;
            UNROLL
            for (uint32_t s = 0; s < AT_ONCE; s++) most = fmaxf(most, as_float(tail[s].w[0]));
            const float base = most == -INFINITY_F ? 0 : most, fade = exp2_fast(max - base);
            max = most;
            sum *= fade;
            UNROLL
            for (uint32_t e = 0; e < 4; e++) o[e] *= fade;
            UNROLL
            for (uint32_t s = 0; s < AT_ONCE; s++) {
                const float weight = exp2_fast(as_float(tail[s].w[0]) - base);
                sum = fmaf(as_float(tail[s].w[1]), weight, sum);
                UNROLL
                for (uint32_t e = 0; e < 4; e++) o[e] = fmaf(as_float(part[s].w[e]), weight, o[e]);
            }
        }
        b.put(h, d, o, sum);
    }
}
