// What the attention kernels share: how they read the keys and values of a paged cache, and the
// rows that the tensor cores lose. Part of gpu.h.

// The keys and values of one sequence and one KV head.
template <class T> struct Keys {
    const T *k, *v;        // this KV head in page 0
    const uint32_t *pages; // the sequence's page table
    size_t page_stride;
    uint32_t head_stride;
    DEVICE_MEMBER Keys(const void *k_pages, const void *v_pages, const uint32_t *pages,
        uint32_t kv_head, uint32_t n_kv_heads, uint32_t head_stride)
        : k((const T *)k_pages + kv_head * head_of_page<T>(head_stride)),
          v((const T *)v_pages + kv_head * head_of_page<T>(head_stride)), pages(pages),
          page_stride(n_kv_heads * head_of_page<T>(head_stride)), head_stride(head_stride) {}
    DEVICE_MEMBER size_t at(uint32_t key) const {
        return pages[key / GPU_PAGE] * page_stride + (size_t)(key % GPU_PAGE) * head_stride;
    }
    // The scale of a key's vector in k or v; 1 for caches without scales.
    DEVICE_MEMBER float unit(const T *from, uint32_t key, bool valid) const {
        if constexpr (SCALED<T>)
            return valid ? unit_of(from + pages[key / GPU_PAGE] * page_stride, head_stride,
                               key % GPU_PAGE)
                         : 0;
        else
            return 1;
    }
};

// Eight numbers whose load may be in flight.
template <class T, bool = SCALED<T>> struct Eight {
    Words4 raw[sizeof(T) / 2];
    DEVICE_MEMBER void load(const T *p) {
        UNROLL
        for (int i = 0; i < (int)sizeof(T) / 2; i++) raw[i] = load_fresh((const char *)p + 16 * i);
    }
    DEVICE_MEMBER void unpack(float (&v)[8]) const { unpack8(v, raw, T()); }
};
template <class T> struct Eight<T, true> {
    Words2 raw;
    DEVICE_MEMBER void load(const T *p) { raw = load_fresh8(p); }
    DEVICE_MEMBER void unpack(float (&v)[8]) const { unpack8(v, raw, T()); }
};

// Attends with the query q to keys begin .. end - 1 in float32. A whole warp calls it. Each
// `threads` neighbouring lanes do the same; lane `at` of them has columns 8 * at and on. `max`
// becomes the largest score (times 1 / ln 2), `sum` the sum of the weights.
template <class C> DEVICE void attend_exactly(const Keys<C> &keys, const float *q,
    uint32_t head_dim, uint32_t at, uint32_t threads, uint32_t begin, uint32_t end, float scale,
    float (&o)[8], float &max, float &sum) {
    const uint32_t d0 = at * 8;
    const bool has = d0 < keys.head_stride;
    float own[8];
    UNROLL
    for (uint32_t e = 0; e < 8; e++) own[e] = d0 + e < head_dim ? q[d0 + e] : 0, o[e] = 0;
    max = -INFINITY_F, sum = 0;
    UNROLL_BY(1)
    for (uint32_t key = begin; key < end; key++) {
        Eight<C> raw[2] = {};
        if (has) {
            raw[0].load(keys.k + keys.at(key) + d0);
            raw[1].load(keys.v + keys.at(key) + d0);
        }
        float k[8], v[8], s = 0;
        raw[0].unpack(k);
        raw[1].unpack(v);
        UNROLL
        for (int e = 0; e < 8; e++) s = fmaf(own[e], k[e], s);
        s = group_sum(s, (int)threads) * keys.unit(keys.k, key, true) * scale * 1.44269504f;
        const float larger = fmaxf(max, s), base = larger == -INFINITY_F ? 0 : larger,
                    fade = exp2_fast(max - base), weight = exp2_fast(s - base),
                    unit = weight * keys.unit(keys.v, key, true);
        max = larger;
        sum = fmaf(sum, fade, weight);
        UNROLL
        for (int e = 0; e < 8; e++) o[e] = fmaf(unit, v[e], o[e] * fade);
    }
}

// Tensor cores multiply every weight of a tile by every value, also by values of keys that a row
// does not see. The weight of such a key is zero, but 0 * infinity is NaN. So where the weights of
// a row are numbers and its result is NaN, some value is not finite, and only the row's own keys
// can say what the result is. The two functions below compute such a row once more, by
// attend_exactly. Where every value is finite, this costs a comparison for each output. A row that
// is computed once more rounds like a row of the float32 mode. So its last bits may depend on an
// infinity that it does not see.

// Computes row j of a tile for query head blockIdx.x; a whole warp calls it. Each lane has eight
// columns.
template <class C>
DEVICE void attend_again(const AttendPrefillParams &p, const AttendTile &tile, uint32_t j) {
    const uint32_t head = blockIdx.x, d0 = threadIdx.x % 32 * 8, n_keys = tile.position + j + 1;
    const int32_t row = p.rows[tile.first + j];
    const Keys<C> keys(p.k_pages, p.v_pages, p.pages + tile.pages,
        head / (p.n_heads / p.n_kv_heads), p.n_kv_heads, p.head_stride);
    float o[8], max, sum;
    attend_exactly(keys, p.q + (size_t)row * p.q_stride + head * p.head_dim, p.head_dim,
        threadIdx.x % 32, 32, first_key(n_keys, p.window), n_keys, p.scale, o, max, sum);
    with_type(p.y_type, [&](auto type) {
        auto *y = (decltype(type) *)p.y + (size_t)row * p.y_stride;
        UNROLL
        for (uint32_t e = 0; e < 8; e++)
            if (d0 + e < p.head_dim)
                from_float(y[permuted_of(head * p.head_dim + d0 + e, p.permuted)],
                    bounded(o[e] / sum, p.y_type));
    });
}

// Four neighbouring lanes share row lane / 4 of the warp's sixteen (lost[0]) and row lane / 4 + 8
// (lost[1]), and have stored what they hold of it. Computes the rows again of which a lane says
// that they are lost. `first` is the warp's row 0 in the tile.
template <class C> DEVICE void attend_lost(
    const AttendPrefillParams &p, const AttendTile &tile, uint32_t first, const bool (&lost)[2]) {
    UNROLL_BY(1)
    for (uint32_t h = 0; h < 2; h++) {
        const uint32_t lanes = warp_ballot(h ? lost[1] : lost[0]);
        if (lanes == 0) continue;
        warp_sync(); // what other lanes have stored is overwritten
        UNROLL_BY(1)
        for (uint32_t g = 0; g < 8; g++)
            if (lanes >> 4 * g & 15) attend_again<C>(p, tile, first + g + 8 * h);
    }
}
