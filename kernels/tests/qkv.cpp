// Compares qkv and append, which write the cache, with scalar twins in float64.
#include "products.h"

namespace {

// The parameters of append, without norms of heads.
AppendParams append_of(const Buffer &k, const Buffer &v, const Buffer &fresh, const Buffer &slots,
    uint32_t n_rows, uint32_t n_kv_heads, uint32_t head_dim, uint32_t head_stride) {
    AppendParams p = {};
    p.k_pages = k.as<void>(), p.v_pages = v.as<void>(), p.fresh = fresh.as<float>();
    p.slots = slots.as<uint32_t>();
    p.n_rows = n_rows, p.n_kv_heads = n_kv_heads;
    p.head_dim = head_dim, p.head_stride = head_stride;
    return p;
}

// Runs qkv. The results of a launch are everything that it writes: q | k pages | v pages.
struct Qkv {
    int type, kv_type;
    Way way;
    uint32_t splits = 1, dim;
    Heads heads;
    uint32_t max_rows;
    Random random{23};
    uint32_t n = (heads.q + 2 * heads.kv) * heads.dim, stride = pad(heads.dim, 16),
             q_dim = heads.q * heads.dim;
    uint32_t n_pages = 3 + max_rows / 16;
    Matrix w{type, n, dim, random, 1 / sqrtf((float)dim)};
    std::vector<float> x = activations(max_rows, dim, random),
                       norm = vector_of(dim, pad32(dim), random, 1, 0.3f);
    std::vector<float> bias = vector_of(n, n, random, 0, 0.5f), cos, sin;
    std::vector<int32_t> positions;
    std::vector<uint32_t> slots;
    Buffer xd{x}, nd{norm}, bd{bias}, pd{size_t(0)}, sd{size_t(0)}, cd{size_t(0)}, snd{size_t(0)};
    bool by_parts = false;   // one launch for each of q, k and v
    bool norms = false;      // heads of q and k have norms, which append applies
    bool rope_first = false; // append applies them after RoPE
    std::vector<float> head_norms = vector_of(2 * heads.dim, 2 * heads.dim, random, 1, 0.3f);
    Buffer hd{head_norms};

    Qkv(int type, int kv_type, Way way, uint32_t dim, Heads heads, uint32_t max_rows)
        : type(type), kv_type(kv_type), way(way), dim(dim), heads(heads), max_rows(max_rows) {
        const uint32_t length = 40;
        for (uint32_t i = 0; i < length * heads.dim / 2; i++) {
            float angle = random.normal();
            cos.push_back(cosf(angle));
            sin.push_back(sinf(angle));
        }
        for (uint32_t i = 0; i < max_rows; i++) {
            positions.push_back((int32_t)random.below(length));
            slots.push_back(i % 7 == 3 ? GPU_NO_SLOT : i + 5); // every row has its own slot
        }
        pd = Buffer(positions), sd = Buffer(slots), cd = Buffer(cos), snd = Buffer(sin);
    }

    // Launches the product with these rows of w.
    void launch_rows(QkvParams p, const Buffer &a, uint32_t first, uint32_t count,
        const Buffer &scratch, uint64_t seed) {
        const size_t row = (size_t)w.stride * (quantised(type) ? 16 : size_of(type));
        p.w = w.device.as<uint8_t>() + first * row, p.first = first, p.n = count;
        if (way == Prefill)
            launch_gemm("qkv_prefill" + suffix(type), type, &p, sizeof p, count, p.n_rows, seed);
        else if (way == Hopper)
            launch_hopper(
                "qkv_hopper" + suffix(type), p, a, p.n_rows, w, count, 256, p.n_rows, seed, first);
        else
            launch_decode("qkv", type, way, &p, sizeof p, count / 2, dim, splits, scratch,
                tiles(count, 16), 0, p.n_rows, seed);
    }

    std::vector<uint8_t> run(const std::vector<int32_t> &rows, uint64_t seed) {
        Buffer q((size_t)max_rows * pad32(q_dim) * 4), rd(rows);
        size_t pages = (size_t)n_pages * heads.kv * head_bytes(kv_type, stride),
               kv_dim = (size_t)heads.kv * heads.dim;
        Buffer k(pages), v(pages), fresh(max_rows * kv_dim * 8);
        uint32_t n_rows = (uint32_t)rows.size();
        Buffer scratch = scratch_of(n / 2, n_rows, splits);
        QkvParams p = {q.as<float>(), k.as<void>(), v.as<void>(), xd.as<void>(), nd.as<float>(),
            w.device.as<void>(), bd.as<float>(), cd.as<float>(), snd.as<float>(), rd.as<int32_t>(),
            pd.as<int32_t>(), sd.as<uint32_t>(), scratch.as<void>(), n_rows, dim, pad32(dim),
            w.stride, pad32(q_dim), heads.q, heads.kv, heads.dim, stride, (uint32_t)kv_type, EPS,
            splits, 0, n, norms, 0};
        if (scaled(kv_type) || norms)
            p.k_pages = fresh.as<float>(), p.v_pages = fresh.as<float>() + kv_dim;
        Buffer a(0);
        if (way != Few) {
            a = prepared(
                type, xd, pad32(dim), nd, rd, n_rows, dim, seed, way == Hopper && quantised(type));
            p.x = a.as<void>();
            p.norm = nullptr;
        }
        if (way == Library) {
            a = library_sums(w, a, n_rows);
            p.x = a.as<void>(), p.x_stride = pad32(n), p.w = nullptr;
            launch("qkv_epilogue", p, tiles(n, 2048), n_rows, 1, 256, 0, seed);
        } else if (by_parts) {
            const uint32_t kv = heads.kv * heads.dim;
            launch_rows(p, a, 0, q_dim, scratch, seed);
            launch_rows(p, a, q_dim, kv, scratch, seed);
            launch_rows(p, a, q_dim + kv, kv, scratch, seed);
        } else
            launch_rows(p, a, 0, n, scratch, seed);
        if (scaled(kv_type) || norms) {
            AppendParams a = append_of(k, v, fresh, sd, max_rows, heads.kv, heads.dim, stride);
            const float *g = hd.as<float>();
            if (norms)
                a.q = p.q, a.q_norm = g, a.k_norm = g + heads.dim, a.cos = p.cos, a.sin = p.sin,
                a.tokens = p.positions, a.positions = p.positions, a.n_heads = heads.q,
                a.q_stride = p.q_stride, a.eps = EPS, a.rope_first = rope_first;
            launch("append" + suffix(kv_type), a, 2 * heads.kv + (norms ? heads.q : 0), max_rows, 1,
                32, 0, seed);
        }
        auto all = q.get<uint8_t>();
        for (const Buffer *b : {&k, &v}) {
            auto more = b->get<uint8_t>();
            all.insert(all.end(), more.begin(), more.end());
        }
        return all;
    }

    // The outputs of one row, in the order of w's rows; NaN where nothing was written.
    std::vector<double> row_of(const std::vector<uint8_t> &all, uint32_t row,
        std::vector<double> *padding = nullptr) const {
        std::vector<double> y;
        for (uint32_t i = 0; i < q_dim; i++)
            y.push_back(widened(GPU_F32, &all[((size_t)row * pad32(q_dim) + i) * 4]));
        size_t pages = (size_t)n_pages * heads.kv * head_bytes(kv_type, stride),
               at = (size_t)max_rows * pad32(q_dim) * 4;
        for (int part = 0; part < 2; part++, at += pages)
            for (uint32_t h = 0; h < heads.kv; h++)
                for (uint32_t d = 0; d < stride; d++) {
                    uint32_t slot = slots[row] == GPU_NO_SLOT ? 0 : slots[row]; // no row has slot 0
                    const uint8_t *head =
                        &all[at + (size_t)(slot / 16 * heads.kv + h) * head_bytes(kv_type, stride)];
                    double v = cached(kv_type, head, stride, slot % 16, d);
                    if (d < heads.dim)
                        y.push_back(v);
                    else if (padding)
                        padding->push_back(v);
                }
        return y;
    }

    void compare(const std::vector<uint8_t> &all, uint32_t row) const {
        auto a = normed(&x[(size_t)row * pad32(dim)], norm, dim);
        std::vector<double> sums, bounds;
        for (uint32_t i = 0; i < n; i++) {
            Product p = product(w, i, a);
            sums.push_back(p.sum + bias[i]);
            bounds.push_back((p.magnitude + fabs(bias[i])) * (SUM + rounding(type)) + 1e-7);
        }
        const uint32_t turned = q_dim + heads.kv * heads.dim;
        auto normalise = [&] {
            for (uint32_t i = 0; norms && i < turned; i += heads.dim) {
                double square = EPS * heads.dim, off = 0;
                for (uint32_t d = 0; d < heads.dim; d++) {
                    square += sums[i + d] * sums[i + d];
                    off += bounds[i + d] * (fabs(sums[i + d]) + bounds[i + d]);
                }
                for (uint32_t d = 0; d < heads.dim; d++) {
                    const double weight = head_norms[(i < q_dim ? 0 : heads.dim) + d],
                                 unit = sqrt(heads.dim / square);
                    bounds[i + d] = 1.1 * fabs(weight) * unit *
                                    (bounds[i + d] + fabs(sums[i + d]) * (off / square + SUM));
                    sums[i + d] *= unit * weight;
                }
            }
        };
        if (!rope_first) normalise();
        for (uint32_t i = 0; i < turned; i += 2) {
            size_t angle = (size_t)positions[row] * heads.dim / 2 + i % heads.dim / 2;
            double c = cos[angle], s = sin[angle], u = sums[i], v = sums[i + 1];
            sums[i] = u * c - v * s, sums[i + 1] = u * s + v * c;
            bounds[i] = bounds[i + 1] = bounds[i] + bounds[i + 1];
        }
        if (rope_first) normalise();
        std::vector<double> padding, got = row_of(all, row, &padding);
        // The error of the cache. For int8 it is half a step of the vector's scale. For fp8 it is
        // half a step at the number's own magnitude, or half a step of the smallest numbers.
        std::vector<double> steps(n, 0);
        for (uint32_t i = q_dim; scaled(kv_type) && i < n; i++) {
            for (uint32_t d = 0; d < heads.dim; d++)
                steps[i] = fmax(steps[i], fabs(sums[i / heads.dim * heads.dim + d]) / 254);
            if (kv_type == GPU_FP8)
                steps[i] = fabs(sums[i]) / 16 + steps[i] * 254 / 448 / 1024 + bounds[i] / 8;
            steps[i] += bounds[i] / 2;
        }
        for (uint32_t i = 0; i < n; i++) {
            bool cache = i >= q_dim;
            if (cache && slots[row] == GPU_NO_SLOT)
                CHECK(std::isnan(got[i]), "qkv wrote a row without a slot");
            else
                close("qkv", row, i, got[i], sums[i],
                    bounds[i] + (!cache               ? 0
                                    : scaled(kv_type) ? steps[i] * 1.001
                                                      : fabs(sums[i]) * rounding(kv_type)));
        }
        for (double z : padding)
            CHECK(slots[row] == GPU_NO_SLOT ? std::isnan(z) : z == 0,
                "qkv: padding of a head is %g", z);
    }
};

} // namespace

void qkv(int type, int kv_type, bool prefill, uint32_t dim, Heads heads, uint32_t n_rows,
    Way prefilled, bool norms) {
    Qkv test(type, kv_type, prefill ? prefilled : way_of(type, n_rows), dim, heads, n_rows + 1);
    test.norms = norms;
    auto rows = row_list(n_rows, n_rows + 1, test.random);
    auto all = on_schedules("qkv", [&](uint64_t seed) { return test.run(rows, seed); });
    std::vector<bool> used(n_rows + 1, false);
    for (int32_t row : rows)
        if (row >= 0) used[(size_t)row] = true;
    for (uint32_t row = 0; row <= n_rows; row++) {
        if (used[row]) {
            test.compare(all, row);
        } else {
            for (uint32_t i = 0; i < test.q_dim; i++)
                CHECK(std::isnan(test.row_of(all, row)[i]), "qkv wrote row %u", row);
        }
    }
    if (test.way == Batch) {
        test.splits = type == GPU_BF16 ? 4 : 8;
        CHECK(test.run(rows, 1) == all, "qkv %s: blocks that share a K give other bits",
            name_of(type));
        test.splits = 1;
    }
    test.by_parts = true;
    CHECK(test.way == Library || test.run(rows, 1) == all,
        "qkv %s: a launch for each part gives other bits", name_of(type));
    test.by_parts = false;
    if (test.way == Hopper)
        other_tiles(!quantised(type), [&](const char *what, uint64_t seed) {
            CHECK(test.run(rows, seed) == all, "qkv %s: %s: other bits", name_of(type), what);
        });
    if (norms) {
        test.rope_first = true;
        auto turned = test.run(rows, 1);
        for (uint32_t row = 0; row <= n_rows; row++)
            if (used[row]) test.compare(turned, row);
        test.rope_first = false;
    }
    // A row alone gives the same bits as a row among others.
    for (uint32_t i = 0; i < n_rows; i += 1 + n_rows / 3) {
        if (rows[i] < 0) continue;
        if (!prefill) test.way = Few;
        auto alone = test.run({rows[i]}, 1);
        auto a = test.row_of(alone, (uint32_t)rows[i]), b = test.row_of(all, (uint32_t)rows[i]);
        CHECK(memcmp(a.data(), b.data(), a.size() * 8) == 0,
            "qkv: row %d differs alone and among %u rows", rows[i], n_rows);
    }
}

namespace {

void test_qkv() {
    qkv(GPU_F32, GPU_F32, false, 64, {4, 4, 16}, 1);
    qkv(GPU_F16, GPU_BF16, false, 40, {8, 1, 20}, 2);
    qkv(GPU_BF16, GPU_F16, false, 264, {2, 2, 32}, 5);
    qkv(GPU_BF16, GPU_BF16, false, 96, {4, 1, 64}, 9);
    qkv(GPU_F32, GPU_BF16, false, 9, {1, 1, 128}, 3);
    qkv(GPU_BF16, GPU_BF16, false, 1050, {1, 1, 2}, 3); // several loads in flight, an odd tail
    qkv(GPU_F32, GPU_F16, false, 1050, {1, 1, 2}, 8);
}
void test_qkv_prefill() {
    qkv(GPU_BF16, GPU_BF16, true, 96, {4, 1, 32}, 65);
    qkv(GPU_F16, GPU_F16, true, 40, {2, 2, 20}, 17);
    qkv(GPU_BF16, GPU_F32, true, 136, {1, 1, 64}, 1);
    qkv(GPU_F32, GPU_F32, true, 72, {4, 2, 16}, 65);
    qkv(GPU_F32, GPU_BF16, true, 9, {1, 1, 2}, 3);
}

// Covers each type of cache, each way to compute a product, heads that fill a warp and that do not.
void test_head_norms() {
    qkv(GPU_F32, GPU_F32, false, 64, {4, 2, 16}, 1, Prefill, true);
    qkv(GPU_BF16, GPU_BF16, false, 64, {4, 2, 128}, 3, Prefill, true);
    qkv(GPU_BF16, GPU_F16, false, 40, {2, 1, 20}, 17, Prefill, true);
    qkv(GPU_INT8, GPU_INT8, false, 96, {4, 1, 32}, 5, Prefill, true);
    qkv(GPU_INT4, GPU_FP8, true, 96, {3, 1, 6}, 9, Prefill, true);
    qkv(GPU_F32, GPU_BF16, true, 9, {1, 1, 256}, 3, Prefill, true);
    qkv(GPU_BF16, GPU_BF16, true, 96, {4, 2, 64}, 65, Hopper, true);
    qkv(GPU_INT8, GPU_F32, true, 96, {4, 1, 32}, 9, Hopper, true);
    qkv(GPU_BF16, GPU_INT8, true, 40, {4, 2, 20}, 5, Library, true);
}

// Compares what append writes to an 8-bit cache bit for bit (int8 is the same on the CPU). Covers
// zeros, a single number, the smallest numbers, values halfway between codes, and values that are
// not finite.
void append(int type) {
    const uint32_t dim = 20, stride = 32, rows = 7;
    std::vector<float> fresh(rows * 2 * dim, 0);
    Random random{3};
    for (uint32_t i = 0; i < rows * 2; i++) {
        float *v = &fresh[i * dim];
        for (uint32_t d = 0; d < dim; d++)
            v[d] = i / 2 == 1   ? 0
                   : i / 2 == 2 ? 1e-37f * (float)d
                   : i / 2 == 3 ? (float)d - 9.5f
                                : random.normal();
        if (i / 2 == 3)
            v[7] = type == GPU_INT8 ? 127 : 448, v[8] = 0.0107421875f, v[9] = -0.0029296875f;
        if (i == 8) v[3] = NAN;
        if (i == 11) v[19] = -INFINITY;
    }
    std::vector<uint32_t> slots = {5, 16, 17, 31, 0, 2, GPU_NO_SLOT};
    size_t bytes = 2 * head_bytes(type, stride);
    Buffer k(bytes), v(bytes), fd(fresh), sd(slots);
    const AppendParams p = append_of(k, v, fd, sd, rows, 1, dim, stride);
    launch("append" + suffix(type), p, 2, rows, 1, 32, 0, 1);
    for (uint32_t row = 0; row + 1 < rows; row++)
        for (uint32_t part = 0; part < 2; part++) {
            auto all = (part ? v : k).get<uint8_t>();
            const uint8_t *head = &all[slots[row] / 16 * head_bytes(type, stride)];
            const float *from = &fresh[(row * 2 + part) * dim];
            float max = 0, odd = 0, unit;
            for (uint32_t d = 0; d < dim; d++)
                max = fmaxf(max, fabsf(from[d])), odd += from[d] * 0.0f;
            memcpy(&unit, head + 16 * stride + slots[row] % 16 * 4, 4);
            float want = max / (type == GPU_INT8 ? 127.0f : 448.0f) + odd,
                  inverse = want > 1e-30f ? 1 / want : 0;
            CHECK(want == unit || (std::isnan(want) && std::isnan(unit)),
                "append: scale %g, not %g", unit, want);
            for (uint32_t d = 0; d < stride && !std::isnan(want); d++) {
                const float x = d < dim ? from[d] * inverse : 0;
                int code = (int)head[slots[row] % 16 * stride + d],
                    right = type == GPU_INT8 ? (int)nearbyintf(x) + 128 : (int)to_e4m3(x);
                CHECK(code == right, "append [%u, %u, %u]: %d, not %d", row, part, d, code, right);
            }
        }
}

void test_append() {
    append(GPU_INT8);
    append(GPU_FP8);
}

} // namespace

extern const Test QKV[] = {
    {"qkv", test_qkv},
    {"qkv_prefill", test_qkv_prefill},
    {"head_norms", test_head_norms},
    {"append", test_append},
    {nullptr, nullptr},
};
