// Compares embedding, preparation and all products with scalar twins in float64.
#include "products.h"

namespace {

void embed(int type, uint32_t dim) {
    Random random{7};
    Matrix table(type, 11, dim, random, 1);
    std::vector<int32_t> tokens = {3, 10, -1, 0, 3};
    Buffer x(5 * pad32(dim) * 4), ids(tokens);
    EmbedParams p = {x.as<float>(), table.device.as<void>(), ids.as<int32_t>(), 5, dim, pad32(dim),
        table.stride, 0, 11};
    auto got = view_as<float>(on_schedules("embed", [&](uint64_t seed) {
        launch("embed" + suffix(type), p, 5, 1, 1, 128, 0, seed);
        return x.get<uint8_t>();
    }));
    for (uint32_t i = 0; i < 5; i++)
        for (uint32_t j = 0; j < pad32(dim); j++) {
            float y = got[i * pad32(dim) + j];
            if (tokens[i] < 0 || j >= dim)
                CHECK(std::isnan(y), "embed wrote [%u, %u]", i, j);
            else
                CHECK(y == (float)table.row((uint32_t)tokens[i])[j], "embed %s [%u, %u]",
                    name_of(type), i, j);
        }
}
void test_embed() {
    for (int type : {GPU_F32, GPU_F16, GPU_BF16, GPU_INT8})
        for (uint32_t dim : {1u, 31u, 64u, 1030u}) embed(type, dim);
    for (int type : {GPU_INT4, GPU_K4, GPU_K5, GPU_K6, GPU_K8, GPU_IQ4, GPU_UINT4})
        for (uint32_t dim : {256u, 768u}) embed(type, dim);
}

// `weights`: the type of the weights. `size`: of the norm.
void prepare(int weights, uint32_t width, float size = 1) {
    const int type = prepared_type(weights);
    Random random{11};
    auto x = activations(4, width, random);
    auto g = vector_of(width, pad32(width), random, size, 0.3f * size);
    if (size > 1) g[3] = INFINITY, g[4] = NAN;
    std::vector<int32_t> rows = {2, -1, 0};
    Buffer xd(x), gd(g), rd(rows);
    auto got = on_schedules("prepare", [&](uint64_t seed) {
        return prepared(weights, xd, pad32(width), gd, rd, 3, width, seed).get<uint8_t>();
    });
    for (uint32_t i = 0; i < 3; i++) {
        const float *row = &x[(size_t)(rows[i] < 0 ? 0 : rows[i]) * pad32(width)];
        auto want = normed(row, g, width);
        for (uint32_t j = 0; j < pad32(width); j++) {
            double y = widened(type, &got[((size_t)i * pad32(width) + j) * size_of(type)]);
            if (rows[i] < 0 || j >= width)
                CHECK(y == 0, "prepare: padding [%u, %u] is %g", i, j, y);
            else if (std::isinf(want[j]))
                CHECK(y == want[j], "prepare: [%u, %u] is %g instead of %g", i, j, y, want[j]);
            else if (fabs(want[j]) > 65520 && quantised(weights))
                CHECK(y == copysign(65504, want[j]), "prepare: [%u, %u] is %g", i, j, y);
            else if (fabs(want[j]) > 65520 && type == GPU_F16)
                CHECK(y == copysign(INFINITY, want[j]), "prepare: [%u, %u] is %g", i, j, y);
            else
                close("prepare", i, j, y, want[j], fabs(want[j]) * (rounding(type) + 1e-6) + 1e-7);
        }
    }
}
void test_prepare() {
    for (int type : {GPU_F32, GPU_F16, GPU_BF16})
        for (uint32_t width : {1u, 33u, 320u}) prepare(type, width);
}

// matmul_add, ffn_up and logits: float32 rows in, float32 rows out.
enum Kind { Add, Up, Logits };
const char *const KINDS[] = {"matmul_add", "ffn_up", "logits"};

struct Dense {
    Kind kind;
    int type;
    Way way;
    uint32_t n, k, max_rows; // n: columns of the output
    bool has_bias;
    uint32_t splits = 1;
    int h_type = prepared_type(type); // the type of ffn_up's output
    Random random{31};
    Matrix w{type, kind == Up ? 2 * n : n, k, random, 1 / sqrtf((float)k)};
    std::vector<float> in = activations(max_rows, k, random),
                       out = activations(max_rows, n, random);
    std::vector<float> norm = vector_of(k, pad32(k), random, 1, 0.3f),
                       bias = vector_of(w.rows, w.rows, random, 0, 0.5f);
    float scale = has_bias ? 0.22f : 1; // matmul_add
    Buffer ind{in}, nd{norm}, bd{bias};
    uint32_t out_stride = kind == Logits ? n : pad32(n);

    std::vector<float> run(const std::vector<int32_t> &rows, uint64_t seed) {
        uint32_t n_rows = (uint32_t)rows.size();
        const int out_type = kind == Up ? h_type : GPU_F32;
        const bool permuted = way == Hopper && quantised(type);
        Buffer rd(rows), od(kind == Logits ? (size_t)n_rows * n * 4
                                           : (size_t)max_rows * pad32(n) * size_of(out_type));
        if (kind == Add) od.put(out);
        const void *from = ind.as<void>();
        Buffer a(0);
        std::string name =
            KINDS[kind] + std::string(way == Hopper ? "_hopper" : "_prefill") + suffix(type);
        const uint32_t first = kind == Add && way == Hopper ? 3 : 0;
        if (kind == Add ? type != GPU_F32 || way == Prefill : way != Few) {
            a = kind == Add ? rounded(type, in, rows, k, first, permuted)
                            : prepared(type, ind, pad32(k), nd, rd, n_rows, k, seed, permuted);
            from = a.as<void>();
        }
        const float *g = way == Few ? nd.as<float>() : nullptr;
        const uint32_t pairs = kind == Up ? n : tiles(n, 2);
        Buffer scratch = scratch_of(pairs, n_rows, splits);
        if (kind == Add) {
            MatmulAddParams p = {od.as<float>(), from, w.device.as<void>(),
                has_bias ? bd.as<float>() : nullptr, rd.as<int32_t>(), scratch.as<void>(), n_rows,
                n, k, pad32(n), pad32(k), w.stride, splits, first, scale, 0};
            if (way == Prefill)
                launch_gemm(name, type, &p, sizeof p, n, n_rows, seed);
            else if (way == Hopper)
                launch_hopper(name, p, a, first + n_rows, w, n, 256, n_rows, seed);
            else
                launch_decode("matmul_add", type, way, &p, sizeof p, pairs, k, splits, scratch,
                    tiles(n, 4), 512, n_rows, seed);
        } else if (kind == Up) {
            FfnUpParams p = {od.as<void>(), from, g, w.device.as<void>(), rd.as<int32_t>(),
                scratch.as<void>(), n_rows, n, k, pad32(k), w.stride, pad32(n), EPS, splits,
                (uint32_t)h_type, 0, has_bias ? bd.as<float>() : nullptr};
            if (way == Prefill)
                launch_gemm(name, type, &p, sizeof p, 2 * n, n_rows, seed);
            else if (way == Hopper)
                launch_hopper(name, p, a, n_rows, w, n, 128, n_rows, seed);
            else if (way == Library) {
                a = library_sums(w, a, n_rows);
                p.x = a.as<void>(), p.x_stride = pad32(2 * n), p.w = nullptr;
                launch(
                    "ffn_up_epilogue" + suffix(h_type), p, tiles(n, 1024), n_rows, 1, 256, 0, seed);
            } else
                launch_decode("ffn_up", type, way, &p, sizeof p, pairs, k, splits, scratch,
                    tiles(n, 8), 0, n_rows, seed);
        } else {
            LogitsParams p = {od.as<float>(), from, g, w.device.as<void>(), rd.as<int32_t>(),
                scratch.as<void>(), n_rows, n, k, pad32(k), w.stride, n, EPS, splits};
            launch_decode("logits", type, way, &p, sizeof p, pairs, k, splits, scratch,
                tiles(n, 16), 0, n_rows, seed);
        }
        if (out_type == GPU_F32) return od.get<float>();
        std::vector<float> all;
        for (uint16_t x : od.get<uint16_t>()) all.push_back((float)widened(out_type, &x));
        return permuted ? unpermuted(all, out_stride) : all;
    }
    // The place in the output of the launch's row i, which is row `row` of the step.
    size_t place(uint32_t i, uint32_t row) const {
        return (size_t)(kind == Logits ? i : row) * out_stride;
    }

    void compare(const std::vector<float> &got, uint32_t i, uint32_t row) const {
        const float *x = &in[(size_t)row * pad32(k)];
        auto a = kind == Add ? std::vector<double>(x, x + k) : normed(x, norm, k);
        for (double &v : a)
            if (quantised(type)) v = fmax(fmin(v, 65504), -65504);
        double error = SUM + rounding(type);
        for (uint32_t j = 0; j < n; j++) {
            Product p = product(w, j, a);
            double want = p.sum, bound = p.magnitude * error + 1e-7;
            if (kind == Add) {
                double b = has_bias ? bias[j] : 0, before = out[(size_t)row * pad32(n) + j];
                want = (want + b) * scale + before;
                bound = bound * scale + (fabs(b) + fabs(before)) * SUM;
            } else if (kind == Up) {
                Product up = product(w, n + j, a);
                double gate = want + (has_bias ? bias[j] : 0), s = gate / (1 + exp(-gate)),
                       e = up.magnitude * error + 1e-7;
                if (has_bias) {
                    up.sum += bias[n + j];
                    bound += fabs(bias[j]) * SUM, e += fabs(bias[n + j]) * SUM;
                }
                want = s * up.sum;
                // |silu'| <= 1.1
                bound = 1.1 * bound * (fabs(up.sum) + e) + fabs(s) * e +
                        fabs(want) * (SUM + rounding(type)) + 1e-7;
            }
            close(KINDS[kind], row, j, got[place(i, row) + j], want, bound);
        }
    }
};

// Norms so large that activations in f16 overflow. For quantised weights they are then the greatest
// number of f16 (compare), and so are the outputs of ffn_up for a quantised product.
void large(Kind kind, int type, Way way) {
    Dense test{kind, type, way, 40, 300, 4, false};
    for (uint32_t i = 0; i < 300; i++) test.norm[i] *= i % 3 ? 3e4f : 2e5f;
    test.nd.put(test.norm);
    const std::vector<int32_t> rows = {3, -1, 0};
    const auto exact = [&] {
        if (kind == Up) test.h_type = GPU_F32;
        return test.run(rows, 1);
    }();
    if (kind == Logits)
        for (uint32_t i : {0u, 2u}) test.compare(exact, i, (uint32_t)rows[i]);
    if (kind != Up) return;
    uint32_t beyond = 0;
    for (int h_type : {GPU_F16, GPU_F16_FINITE}) {
        test.h_type = h_type;
        const auto h = test.run(rows, 1);
        for (uint32_t row : {0u, 3u})
            for (uint32_t j = 0; j < test.n; j++) {
                const size_t at = row * pad32(test.n) + j;
                uint8_t want[4];
                store(h_type, want, exact[at]);
                beyond += fabsf(exact[at]) > 65520;
                CHECK(h[at] == widened(h_type, want), "ffn_up: %g in %s is %g", exact[at],
                    name_of(h_type), h[at]);
            }
    }
    CHECK(beyond > 9, "too few large outputs");
}
void test_large() {
    for (int type : {GPU_INT8, GPU_F16}) prepare(type, 320, 1e5f);
    for (int type : {GPU_INT8, GPU_INT4}) large(Logits, type, Few);
    large(Up, GPU_INT8, Few);
    large(Up, GPU_BF16, Few);
    large(Up, GPU_INT4, Prefill);
    large(Up, GPU_BF16, Hopper);
}

void dense(Kind kind, int type, bool prefill, uint32_t n, uint32_t k, uint32_t n_rows,
    bool has_bias = false, Way prefilled = Prefill) {
    Dense test{kind, type, prefill ? prefilled : way_of(type, n_rows), n, k, n_rows + 1, has_bias};
    auto rows = row_list(n_rows, n_rows + 1, test.random);
    auto all = view_as<float>(on_schedules(KINDS[kind], [&](uint64_t seed) {
        auto v = test.run(rows, seed);
        return std::vector<uint8_t>(
            (const uint8_t *)v.data(), (const uint8_t *)(v.data() + v.size()));
    }));
    std::vector<bool> used(n_rows + 1, false);
    for (uint32_t i = 0; i < n_rows; i++) {
        if (rows[i] >= 0) {
            used[(size_t)rows[i]] = true;
            test.compare(all, i, (uint32_t)rows[i]);
        } else if (kind == Logits) {
            for (uint32_t j = 0; j < n; j++)
                CHECK(std::isnan(all[(size_t)i * n + j]), "logits wrote padding");
        }
    }
    for (uint32_t row = 0; kind != Logits && row <= n_rows; row++)
        for (uint32_t j = used[row] ? n : 0; j < pad32(n); j++) {
            float y = all[(size_t)row * pad32(n) + j],
                  before = kind == Add ? test.out[(size_t)row * pad32(n) + j] : NAN;
            CHECK((std::isnan(y) && std::isnan(before)) || y == before, "%s wrote [%u, %u]",
                KINDS[kind], row, j);
        }
    if (test.way == Batch) {
        test.splits = type == GPU_BF16 || type == GPU_INT4 ? 4 : 8;
        auto shared = view_as<float>(on_schedules(KINDS[kind], [&](uint64_t seed) {
            auto v = test.run(rows, seed);
            return std::vector<uint8_t>(
                (const uint8_t *)v.data(), (const uint8_t *)(v.data() + v.size()));
        }));
        CHECK(same_bits(shared.data(), all.data(), all.size()),
            "%s %s: blocks that share a K give other bits", KINDS[kind], name_of(type));
        test.splits = 1;
    }
    // The type of h follows the next product's weights; it changes how h is rounded, and nothing
    // else.
    const bool any_type = kind == Up && !(test.way == Hopper && quantised(type));
    if (any_type) {
        std::vector<float> exact;
        for (int h_type : {GPU_F32, GPU_F16, GPU_BF16}) {
            if (test.way == Library && h_type == GPU_F32) continue;
            test.h_type = h_type;
            auto h = test.run(rows, 1);
            if (h_type == GPU_F32) exact = h;
            for (uint32_t row = 0; !exact.empty() && row <= n_rows; row++)
                for (uint32_t j = 0; used[row] && j < n; j++) {
                    const size_t at = (size_t)row * pad32(n) + j;
                    float want;
                    unsigned char bytes[4];
                    store(h_type, bytes, exact[at]);
                    want = (float)widened(h_type, bytes);
                    CHECK(h[at] == want || (std::isnan(h[at]) && std::isnan(want)),
                        "ffn_up %s: h[%u, %u] in %s is %g, not %g", name_of(type), row, j,
                        name_of(h_type), h[at], want);
                }
            if (h_type == prepared_type(type))
                CHECK(same_bits(h.data(), all.data(), all.size()), "ffn_up: not the same again");
        }
        test.h_type = prepared_type(type);
    }
    if (test.way == Hopper)
        other_tiles(kind == Add && !quantised(type), [&](const char *what, uint64_t seed) {
            CHECK(same_bits(test.run(rows, seed).data(), all.data(), all.size()),
                "%s %s: %s: other bits", KINDS[kind], name_of(type), what);
        });
    for (uint32_t i = 0; i < n_rows; i += 1 + n_rows / 3) {
        if (rows[i] < 0) continue;
        if (!prefill) test.way = Few;
        auto alone = test.run({rows[i]}, 1);
        CHECK(same_bits(&alone[test.place(0, (uint32_t)rows[i])],
                  &all[test.place(i, (uint32_t)rows[i])], n),
            "%s %s: row %d differs alone and among %u rows", KINDS[kind], name_of(type), rows[i],
            n_rows);
    }
}

void test_matmul_add() {
    dense(Add, GPU_F32, false, 64, 64, 1);
    dense(Add, GPU_BF16, false, 5, 1030, 2, true);
    dense(Add, GPU_F16, false, 33, 4100, 3);
    dense(Add, GPU_BF16, false, 7, 2050, 9);
    dense(Add, GPU_F32, false, 1, 1, 8, true);
}
void test_ffn_up() {
    dense(Up, GPU_F32, false, 30, 64, 1, true);
    dense(Up, GPU_BF16, false, 17, 100, 4, true);
    dense(Up, GPU_F16, false, 9, 1029, 9);
}
void test_logits() {
    dense(Logits, GPU_F32, false, 101, 64, 1);
    dense(Logits, GPU_BF16, false, 67, 96, 11);
    dense(Logits, GPU_F16, false, 1, 31, 2);
}
void test_gemm() {
    for (int type : {GPU_BF16, GPU_F16, GPU_F32}) {
        // enough steps that every stage is written again
        dense(Add, type, true, 130, 140, 65, true);
        dense(Add, type, true, 3, 290, 2);
        dense(Up, type, true, 67, 33, 17, type != GPU_F16);
    }
    dense(Add, GPU_BF16, true, 32, 64, 129);
}

// Covers fewer and more rows, weight rows and columns than a box has, and so many steps that every
// stage is written again.
void test_hopper() {
    dense(Add, GPU_BF16, true, 259, 650, 65, true, Hopper);
    dense(Add, GPU_BF16, true, 70, 1620, 65, true, Hopper);
    dense(Add, GPU_F16, true, 3, 1, 1, false, Hopper);
    dense(Add, GPU_F16, true, 130, 320, 128, true, Hopper);
    dense(Add, GPU_BF16, true, 256, 64, 257, false, Hopper);
    dense(Up, GPU_BF16, true, 67, 65, 17, true, Hopper);
    dense(Up, GPU_F16, true, 131, 96, 64, false, Hopper);
    dense(Up, GPU_BF16, true, 128, 31, 129, false, Hopper);
    qkv(GPU_BF16, GPU_BF16, true, 96, {4, 1, 32}, 65, Hopper);
    qkv(GPU_F16, GPU_F32, true, 330, {5, 1, 40}, 2, Hopper);
}

// Covers each type of cache, columns that do not fill a block and that fill more than one, and
// distances from gate to up that are multiples of four and that are not.
void test_library() {
    qkv(GPU_BF16, GPU_F16, true, 40, {4, 2, 20}, 5, Library);
    qkv(GPU_F16, GPU_F32, true, 33, {2, 1, 6}, 2, Library);
    qkv(GPU_BF16, GPU_INT8, true, 8, {9, 1, 192}, 3, Library);
    dense(Up, GPU_BF16, true, 68, 33, 5, true, Library);
    dense(Up, GPU_F16, true, 35, 65, 2, true, Library);
    dense(Up, GPU_BF16, true, 1028, 3, 2, false, Library);
}

// Covers weight rows and activation rows that do not fill a block and that fill more than one, so
// many lines that every stage is written again, a K that ends inside a group and inside sixteen
// columns, and every format in each operation, with a K that ends early and late in a line.
void test_codes() {
    dense(Add, GPU_INT8, true, 131, 580, 17, true, Hopper);
    dense(Add, GPU_INT4, true, 3, 770, 257, false, Hopper);
    dense(Add, GPU_FP8, true, 30, 1, 1, true, Hopper);
    dense(Up, GPU_NF4, true, 67, 257, 65, true, Hopper);
    dense(Up, GPU_FP8, true, 20, 129, 129, false, Hopper);
    qkv(GPU_INT8, GPU_BF16, true, 96, {4, 1, 32}, 65, Hopper);
    qkv(GPU_INT4, GPU_FP8, true, 320, {2, 1, 20}, 9, Hopper);
}

// Covers few and many rows, a K from less than a step to more than all lines in flight, and weight
// rows that do not fill a tile.
void test_few() {
    for (int type : {GPU_BF16, GPU_F16}) {
        uint32_t n = type == GPU_F16;
        dense(Add, type, false, 17 - n, 1 + n * 31, 1 + n, true);
        dense(Add, type, false, 33, 2090 + n, 8 - n, true);
        dense(Up, type, false, 8 + n, 65, 3);
        dense(Logits, type, false, 31 + n, 200 + n, 8);
    }
    dense(Add, GPU_BF16, false, 2, 4200, 2);
    dense(Add, GPU_INT8, false, 3, 4230, 8);
    dense(Add, GPU_INT4, false, 3, 8460, 3);
    dense(Add, GPU_NF4, false, 3, 8460, 5);
    // One block for all tiles: more than those whose sums may wait, and a last one that is not
    // full.
    few_blocks = 1;
    dense(Add, GPU_BF16, false, 277, 130, 2, true);
    dense(Up, GPU_INT4, false, 75, 2310, 1, true);
    dense(Logits, GPU_INT8, false, 259, 1030, 3);
    few_blocks = 0;
}
void test_batch() {
    dense(Add, GPU_BF16, false, 33, 1100, 9, true);
    dense(Add, GPU_F16, false, 31, 97, 16);
    dense(Up, GPU_BF16, false, 17, 65, 17, true);
    dense(Up, GPU_F16, false, 16, 64, 32);
    dense(Logits, GPU_BF16, false, 65, 40, 33);
    dense(Add, GPU_BF16, false, 5, 31, 64);
    dense(Add, GPU_BF16, false, 32, 33, 65, true);
    dense(Add, GPU_BF16, false, 259, 70, 17); // more pairs of weight rows than a block has
    qkv(GPU_BF16, GPU_INT8, false, 96, {4, 2, 20}, 40);
    for (int type : {GPU_INT8, GPU_INT4, GPU_NF4}) {
        uint32_t n = type == GPU_INT8 ? 0 : type == GPU_INT4 ? 1 : 2;
        dense(Add, type, false, 33 - n, 4640 + n, 9 + n, true);
        dense(Up, type, false, 15 + n, 257 + n, 20);
        qkv(type, GPU_BF16, false, 40 + n, {2, 1, 16}, 33);
        dense(Add, type, false, 5, 2310 - n, 34 + n);
    }
    dense(Logits, GPU_INT8, false, 35, 300, 66);
}

// Covers incomplete groups, incomplete blocks, several blocks in flight, and odd sizes everywhere.
void test_quantised() {
    for (int type : {GPU_INT8, GPU_INT4, GPU_NF4}) {
        // The sizes differ a little between the formats.
        uint32_t n = type == GPU_INT8 ? 0 : type == GPU_INT4 ? 1 : 2;
        qkv(type, GPU_BF16, false, 64, {4, 2, 16}, 1 + n);
        qkv(type, GPU_F32, false, 1030 + n, {1, 1, 2}, 8);
        dense(Add, type, false, 5 + n, 1 + n, 2, true);
        dense(Add, type, false, 7, 4640 + n, 1);
        dense(Up, type, false, 17, 2316 - n, 4 - n, true);
        dense(Up, type, false, 9, 256, 17);
    }
    qkv(GPU_INT4, GPU_INT8, false, 96, {4, 2, 20}, 9);
    qkv(GPU_BF16, GPU_INT8, true, 40, {2, 1, 256}, 17);
    dense(Logits, GPU_INT8, false, 67, 320, 11);
    dense(Logits, GPU_INT8, false, 1, 2100, 1);
}
void test_quantised_gemm() {
    for (int type : {GPU_INT8, GPU_INT4, GPU_NF4}) {
        uint32_t n = type == GPU_INT8 ? 0 : type == GPU_INT4 ? 1 : 2;
        // so many lines that stages are written again; a second tile with few rows
        dense(Add, type, true, 130, 580 + n, 65, true);
        dense(Add, type, true, 3, 1 + 31 * n, 2);
        dense(Up, type, true, 67, 257 - n, 17);
        qkv(type, GPU_F16, true, 96 + n, {4, 1, 32}, 9);
    }
    dense(Add, GPU_INT4, true, 32, 64, 129);
}

// Covers fewer columns than a line has and more than all lines in flight have, few rows, many rows
// and a prompt's rows, and more different numbers than there are codes.
void test_fp8() {
    qkv(GPU_FP8, GPU_BF16, false, 64, {4, 2, 16}, 1);
    qkv(GPU_FP8, GPU_FP8, false, 130, {4, 2, 20}, 9);
    qkv(GPU_BF16, GPU_FP8, true, 40, {2, 1, 256}, 17);
    dense(Add, GPU_FP8, false, 6, 1, 2, true);
    dense(Add, GPU_FP8, false, 3, 4230, 3);
    dense(Up, GPU_FP8, false, 17, 1156, 4);
    dense(Add, GPU_FP8, false, 33, 2320, 9, true);
    dense(Up, GPU_FP8, false, 15, 257, 65);
    dense(Add, GPU_FP8, true, 130, 580, 65, true);
    dense(Up, GPU_FP8, true, 67, 129, 17);
}

// Covers few and many rows and a prompt's, one line and more than all lines in flight, weight rows
// that do not fill a tile, and every operation.
void test_k_types() {
    for (int type : {GPU_K4, GPU_K5, GPU_K6, GPU_K8}) {
        uint32_t n = has_minima(type);
        qkv(type, GPU_BF16, false, 512, {4, 2, 16}, 1 + n);
        qkv(type, GPU_INT8, false, 256, {2, 1, 20}, 33, Prefill, n == 1);
        qkv(type, GPU_F16, true, 512, {4, 1, 32}, 9);
        dense(Add, type, false, 5 + n, 256, 2, true);
        dense(Add, type, false, 7, 8448, 3);
        dense(Add, type, false, 33 - n, 4864, 9 + n, true);
        dense(Add, type, false, 5, 2304, 34 + n);
        dense(Add, type, true, 130, 768, 65, true);
        dense(Up, type, false, 17, 2304, 4 - n);
        dense(Up, type, false, 15 + n, 256, 20);
        dense(Up, type, true, 67, 512, 17);
        dense(Logits, type, false, 67, 512, 11);
        dense(Logits, type, false, 1, 2304, 1 + n);
    }
    dense(Logits, GPU_INT4, false, 35, 300, 66);
    dense(Logits, GPU_INT4, false, 1, 2100, 1);
}

// The same of the formats of files with four bits and a scale for each 32 columns, whose rows need
// not have whole groups.
void test_fours_of_files() {
    for (int type : {GPU_IQ4, GPU_UINT4}) {
        uint32_t n = type == GPU_UINT4;
        qkv(type, GPU_BF16, false, 64 + n, {4, 2, 16}, 1 + n);
        qkv(type, GPU_INT8, false, 288, {2, 1, 20}, 33);
        qkv(type, GPU_F16, true, 96 + n, {4, 1, 32}, 9);
        dense(Add, type, false, 5 + n, 1 + n, 2, true);
        dense(Add, type, false, 7, 8460, 3);
        dense(Add, type, false, 33 - n, 4640 + n, 9 + n, true);
        dense(Add, type, false, 5, 2310 - n, 34 + n);
        dense(Add, type, true, 130, 580 + n, 65, true);
        dense(Up, type, false, 17, 2316 - n, 4 - n);
        dense(Up, type, false, 15 + n, 257 + n, 20);
        dense(Up, type, true, 67, 257 - n, 17);
        dense(Logits, type, false, 67, 320, 11);
        dense(Logits, type, false, 1, 2100, 1 + n);
    }
}

// A row with NaN or infinity becomes NaN, and its neighbours stay as they are.
void test_not_a_number() {
    for (int type : {GPU_BF16, GPU_F32, GPU_INT8})
        for (Kind kind : {Add, Up, Logits})
            for (Way way : {Few, Batch, Prefill, Hopper}) {
                if ((kind == Logits && way >= Prefill) || (type == GPU_F32 && way == Hopper) ||
                    (type == GPU_F32 && way == Batch))
                    continue;
                Dense test{kind, type, way, 20, 40, 4, false};
                auto clean = test.run({0, 1, 2, 3}, 1);
                test.in[1 * pad32(40) + 5] = NAN;
                test.in[2 * pad32(40) + 39] = INFINITY;
                test.ind.put(test.in);
                auto got = test.run({0, 1, 2, 3}, 2);
                for (uint32_t row = 0; row < 4; row++)
                    for (uint32_t j = 0; j < 20; j++) {
                        float y = got[test.place(row, row) + j],
                              before = clean[test.place(row, row) + j];
                        bool broken = row == 1 || row == 2;
                        CHECK(broken ? !std::isfinite(y) : y == before,
                            "%s: row %u beside NaN is %g", KINDS[kind], row, y);
                    }
            }
}

} // namespace

extern const Test PRODUCTS[] = {
    {"hopper", test_hopper},
    {"codes", test_codes},
    {"embed", test_embed},
    {"prepare", test_prepare},
    {"large", test_large},
    {"matmul_add", test_matmul_add},
    {"ffn_up", test_ffn_up},
    {"logits", test_logits},
    {"gemm", test_gemm},
    {"few", test_few},
    {"batch", test_batch},
    {"library", test_library},
    {"quantised", test_quantised},
    {"quantised_gemm", test_quantised_gemm},
    {"fp8", test_fp8},
    {"k_types", test_k_types},
    {"fours_of_files", test_fours_of_files},
    {"not_a_number", test_not_a_number},
    {nullptr, nullptr},
};
