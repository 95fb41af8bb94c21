// Compares embedding, preparation and all products with scalar twins in float64.
#include "harness.h"

namespace {

const float EPS = 0.02f; // large enough that its absence is noticed

// The error of a float32 sum relative to the sum of magnitudes. At worst it is of order K * 2^-24;
// in practice it is far less.
const double SUM = 4e-6;
// The relative error of rounding. For all types but float32, activations are rounded to the type of
// the weights (f16 for quantised weights). That is an error of half a unit in the last place of 8
// or 11 bits, doubled for safety.
double rounding(int type) {
    return type == GPU_F32    ? 0
           : type == GPU_F16  ? ldexp(1.0, -11)
           : type == GPU_BF16 ? ldexp(1.0, -8)
                              : ldexp(1.0, -10);
}

// A list of n rows for a launch, out of `of` rows: shuffled, with padding among them.
std::vector<int32_t> row_list(uint32_t n, uint32_t of, Random &random) {
    std::vector<int32_t> rows;
    for (uint32_t i = 0; i < of; i++) rows.push_back((int32_t)i);
    for (uint32_t i = of - 1; i > 0; i--) std::swap(rows[i], rows[random.below(i + 1)]);
    rows.resize(n);
    if (n > 2) rows[n / 2] = -1;
    return rows;
}

std::vector<double> normed(const float *x, const std::vector<float> &norm, uint32_t k) {
    double square = 0;
    for (uint32_t i = 0; i < k; i++) square += (double)x[i] * x[i];
    double scale = 1 / sqrt(square / k + (double)EPS);
    std::vector<double> y(k);
    for (uint32_t i = 0; i < k; i++) y[i] = x[i] * scale * norm[i];
    return y;
}
struct Product {
    double sum, magnitude;
};
Product product(const Matrix &w, uint32_t row, const std::vector<double> &x) {
    Product p = {0, 0};
    for (uint32_t i = 0; i < w.cols; i++) {
        p.sum += w.row(row)[i] * x[i];
        p.magnitude += w.size(row, i) * fabs(x[i]);
    }
    return p;
}

const std::string suffix(int type) { return std::string("_") + name_of(type); }

// The input of a prefill product, made by the kernel prepare.
Buffer prepared(int weights, const Buffer &x, uint32_t x_stride, const Buffer &norm,
    const Buffer &rows, uint32_t n_rows, uint32_t width, uint64_t seed, bool permuted = false) {
    int type = prepared_type(weights);
    Buffer out((size_t)n_rows * pad32(width) * size_of(type));
    PrepareParams p = {out.as<void>(), x.as<float>(), norm.as<float>(), rows.as<int32_t>(), n_rows,
        width, x_stride, pad32(width), EPS, permuted};
    launch("prepare" + suffix(type), p, n_rows, 1, 1, 256, 32, seed);
    return out;
}
// The same for rows that need no norm. They lie after `first` other rows. Padding columns are zero;
// rows that do not exist are NaN.
Buffer rounded(int weights, const std::vector<float> &x, const std::vector<int32_t> &rows,
    uint32_t width, uint32_t first, bool permuted) {
    const int type = prepared_type(weights);
    std::vector<uint8_t> out((first + rows.size()) * pad32(width) * size_of(type), 0xff);
    for (size_t i = 0; i < rows.size(); i++)
        for (uint32_t j = 0; rows[i] >= 0 && j < pad32(width); j++)
            store(type,
                &out[((first + i) * pad32(width) + (permuted ? permuted_of(j) : j)) *
                     size_of(type)],
                j < width ? x[(size_t)rows[i] * pad32(width) + j] : 0);
    return Buffer(out);
}
void launch_gemm(const std::string &kernel, int type, const void *params, size_t size, uint32_t n,
    uint32_t n_rows, uint64_t seed) {
    unsigned m = type == GPU_F32 ? 64 : 128, grid[3] = {tiles(n, m), tiles(n_rows, m), 1},
             block[3] = {256, 1, 1};
    char error[600];
    size_t shared = type == GPU_F32 ? 20480 : quantised(type) ? 66048 : 49152;
    if (emu_launch(kernel.c_str(), params, size, grid, block, shared, seed, error, sizeof error))
        die(error);
}

// Launches a product of prefill rows for compute capability 9.0. With float weights, a tile has 128
// rows and `columns` columns; with half_tiles, half as many columns. With quantised weights, a tile
// has columns / 2 columns and 256 rows; with half_tiles, 128 rows. With `alone`, one warpgroup
// computes a half tile.
bool half_tiles = false, alone = false;
template <class P> void launch_hopper(const std::string &kernel, const P &p, const Buffer &x,
    uint32_t rows, const Matrix &w, uint32_t n, uint32_t columns, uint32_t n_rows, uint64_t seed,
    uint32_t first = 0) {
    struct {
        TensorMap x, w;
        P p;
        uint32_t groups;
    } all = {};
    static_assert(sizeof all % 128 == 0);
    all.p = p, all.groups = alone ? 1 : 2;
    char error[600];
    const bool codes = quantised(w.type);
    if (emu_tensor_map(&all.x, x.at, pad32(w.cols), rows, 2 * pad32(w.cols), 64, GPU_BOX_ROWS,
            error, sizeof error) ||
        (!codes && emu_tensor_map(&all.w, w.device.at + first * 2 * w.stride, w.stride,
                       w.rows - first, 2 * w.stride, 64, GPU_BOX_ROWS, error, sizeof error)))
        die(error);
    const std::string name =
        half_tiles ? std::string(kernel).insert(kernel.find("_hopper") + 7, "_half") : kernel;
    const size_t shared = codes        ? half_tiles ? GPU_CODES_HALF_SHARED : GPU_CODES_SHARED
                          : half_tiles ? GPU_HOPPER_HALF_SHARED
                                       : GPU_HOPPER_SHARED;
    const uint32_t rows_of = codes   ? half_tiles ? 128 : 256
                             : alone ? 64
                                     : 128,
                   columns_of = codes && alone        ? columns / 4
                                : codes || half_tiles ? columns / 2
                                                      : columns;
    launch(name, all, tiles(n_rows, rows_of), tiles(n, columns_of), 1, half_tiles ? 288 : 384,
        shared, seed);
}

// The kernels that compute a product. For decode rows the default is Few up to eight rows, and
// Batch for more.
enum Way { Few, Batch, Prefill, Hopper, Library };
Way way_of(int type, uint32_t n_rows) {
    return type == GPU_F32 || n_rows <= GPU_FEW_ROWS ? Few : Batch;
}

// The sums that a library would leave: the weights times n_rows rows that prepare has made, with
// NaN in the padding.
Buffer library_sums(const Matrix &w, const Buffer &prepared, uint32_t n_rows) {
    const auto rows = prepared.get<uint16_t>();
    std::vector<float> sums((size_t)n_rows * pad32(w.rows), NAN);
    for (uint32_t i = 0; i < n_rows; i++)
        for (uint32_t n = 0; n < w.rows; n++) {
            double sum = 0;
            for (uint32_t k = 0; k < w.cols; k++)
                sum += w.row(n)[k] * widened(w.type, &rows[(size_t)i * pad32(w.cols) + k]);
            sums[(size_t)i * pad32(w.rows) + n] = (float)sum;
        }
    return Buffer(sums);
}

// The rows of a block of a batch, and the memory in which blocks that share a K exchange sums.
uint32_t batch_rows(uint32_t n_rows) { return n_rows <= 16 ? 16 : n_rows <= 32 ? 32 : 64; }
Buffer scratch_of(uint32_t pairs, uint32_t n_rows, uint32_t splits) {
    const size_t blocks =
        (size_t)tiles(n_rows, batch_rows(n_rows)) * tiles(pairs, GPU_BATCH_PAIRS) * splits;
    std::vector<uint8_t> all(
        GPU_SPLIT_BELOW * 4 + (splits > 1 ? blocks * 512 * batch_rows(n_rows) : 0), 0xff);
    std::fill(all.begin(), all.begin() + GPU_SPLIT_BELOW * 4, 0);
    return Buffer(all);
}

// `pairs`: the number of pairs of weight rows. `splits`: how many blocks of a batch share a K; they
// use `scratch`. For float32, `across` is the number of blocks and `more` the shared memory.
void launch_decode(const std::string &op, int type, Way way, const void *params, size_t size,
    uint32_t pairs, uint32_t splits, const Buffer &scratch, uint32_t across, size_t more,
    uint32_t n_rows, uint64_t seed) {
    unsigned grid[3] = {type == GPU_F32 ? across : tiles(pairs, 8), tiles(n_rows, 8), 1};
    const uint32_t rows = batch_rows(n_rows);
    if (way == Batch)
        grid[0] = tiles(n_rows, rows), grid[1] = tiles(pairs, GPU_BATCH_PAIRS), grid[2] = splits;
    unsigned block[3] = {256, 1, 1}, steps = Matrix::bytes_of(type) ? 4 : quantised(type) ? 8 : 2;
    size_t shared =
        type == GPU_F32 ? more
        : way == Few
            ? op == "matmul_add" ? GPU_TABLE_BYTES + 4096 : GPU_FEW_SHARED + 4096 * steps
            : GPU_TABLE_BYTES +
                  rows / 8 *
                      ((quantised(type) && rows < 64 ? GPU_BATCH_SHARED_CODES : GPU_BATCH_SHARED) +
                          GPU_BATCH_LEVEL * (splits == 1      ? 2
                                                : splits == 4 ? 1
                                                              : 0));
    char error[600];
    std::string kernel = op + (way == Few ? "" : "_batch") + suffix(type);
    if (emu_launch(kernel.c_str(), params, size, grid, block, shared, seed, error, sizeof error))
        die(error);
    if (way != Batch || splits == 1) return;
    auto left = scratch.get<uint8_t>();
    for (uint32_t i = 0; i < GPU_SPLIT_BELOW * 4; i++)
        CHECK(left[i] == 0, "%s left a counter", kernel.c_str());
}

void embed(int type, uint32_t dim) {
    Random random{7};
    Matrix table(type, 11, dim, random, 1);
    std::vector<int32_t> tokens = {3, 10, -1, 0, 3};
    Buffer x(5 * pad32(dim) * 4), ids(tokens);
    EmbedParams p = {x.as<float>(), table.device.as<void>(), ids.as<int32_t>(), 5, dim, pad32(dim),
        table.stride};
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
    for (int type : {GPU_INT4, GPU_K4, GPU_K8})
        for (uint32_t dim : {256u, 768u}) embed(type, dim);
}

void prepare(int type, uint32_t width) {
    Random random{11};
    auto x = activations(4, width, random);
    auto g = vector_of(width, pad32(width), random, 1, 0.3f);
    std::vector<int32_t> rows = {2, -1, 0};
    Buffer xd(x), gd(g), rd(rows);
    auto got = on_schedules("prepare", [&](uint64_t seed) {
        return prepared(type, xd, pad32(width), gd, rd, 3, width, seed).get<uint8_t>();
    });
    for (uint32_t i = 0; i < 3; i++) {
        const float *row = &x[(size_t)(rows[i] < 0 ? 0 : rows[i]) * pad32(width)];
        auto want = normed(row, g, width);
        for (uint32_t j = 0; j < pad32(width); j++) {
            double y = widened(type, &got[((size_t)i * pad32(width) + j) * size_of(type)]);
            if (rows[i] < 0 || j >= width)
                CHECK(y == 0, "prepare: padding [%u, %u] is %g", i, j, y);
            else
                close("prepare", i, j, y, want[j], fabs(want[j]) * (rounding(type) + 1e-6) + 1e-7);
        }
    }
}
void test_prepare() {
    for (int type : {GPU_F32, GPU_F16, GPU_BF16})
        for (uint32_t width : {1u, 33u, 320u}) prepare(type, width);
}

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

struct Heads {
    uint32_t q, kv, dim;
};

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
    bool by_parts = false; // one launch for each of q, k and v
    bool norms = false;    // heads of q and k have norms, which append applies
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
            launch_decode("qkv", type, way, &p, sizeof p, count / 2, splits, scratch,
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
                a.q_stride = p.q_stride, a.eps = EPS;
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
        for (uint32_t i = 0; norms && i < q_dim + heads.kv * heads.dim; i += heads.dim) {
            double square = EPS * heads.dim, off = 0;
            for (uint32_t d = 0; d < heads.dim; d++) {
                square += sums[i + d] * sums[i + d];
                off += bounds[i + d] * (fabs(sums[i + d]) + bounds[i + d]);
            }
            for (uint32_t d = 0; d < heads.dim; d++) {
                const double g = fabs(head_norms[(i < q_dim ? 0 : heads.dim) + d]),
                             unit = sqrt(heads.dim / square);
                bounds[i + d] =
                    1.1 * g * unit * (bounds[i + d] + fabs(sums[i + d]) * (off / square + SUM));
                sums[i + d] *= unit * head_norms[(i < q_dim ? 0 : heads.dim) + d];
            }
        }
        for (uint32_t i = 0; i < q_dim + heads.kv * heads.dim; i += 2) {
            size_t angle = (size_t)positions[row] * heads.dim / 2 + i % heads.dim / 2;
            double c = cos[angle], s = sin[angle], u = sums[i], v = sums[i + 1];
            sums[i] = u * c - v * s, sums[i + 1] = u * s + v * c;
            bounds[i] = bounds[i + 1] = bounds[i] + bounds[i + 1];
        }
        std::vector<double> padding, got = row_of(all, row, &padding);
        // The error of the cache. For int8 it is half a step of the vector's scale. For fp8 it is
        // half a step at the number's own magnitude, or at that of the smallest numbers.
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

void qkv(int type, int kv_type, bool prefill, uint32_t dim, Heads heads, uint32_t n_rows,
    Way prefilled = Prefill, bool norms = false) {
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
    half_tiles = true;
    CHECK(test.way != Hopper || test.run(rows, 1) == all, "qkv %s: smaller tiles give other bits",
        name_of(type));
    alone = true;
    CHECK(test.way != Hopper || test.run(rows, 1) == all, "qkv %s: one warpgroup gives other bits",
        name_of(type));
    half_tiles = alone = false;
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
                launch_decode("matmul_add", type, way, &p, sizeof p, pairs, splits, scratch,
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
                launch_decode("ffn_up", type, way, &p, sizeof p, pairs, splits, scratch,
                    tiles(n, 8), 0, n_rows, seed);
        } else {
            LogitsParams p = {od.as<float>(), from, g, w.device.as<void>(), rd.as<int32_t>(),
                scratch.as<void>(), n_rows, n, k, pad32(k), w.stride, n, EPS, splits};
            launch_decode("logits", type, way, &p, sizeof p, pairs, splits, scratch, tiles(n, 16),
                0, n_rows, seed);
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
    half_tiles = true;
    CHECK(test.way != Hopper || same_bits(test.run(rows, 1).data(), all.data(), all.size()),
        "%s %s: smaller tiles give other bits", KINDS[kind], name_of(type));
    alone = true;
    CHECK(test.way != Hopper || same_bits(test.run(rows, 1).data(), all.data(), all.size()),
        "%s %s: one warpgroup gives other bits", KINDS[kind], name_of(type));
    half_tiles = alone = false;
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
    dense(Add, GPU_NF4, false, 3, 8460, 7);
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
    for (int type : {GPU_K4, GPU_K8}) {
        uint32_t n = type == GPU_K4;
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
    {"qkv", test_qkv},
    {"qkv_prefill", test_qkv_prefill},
    {"head_norms", test_head_norms},
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
    {"append", test_append},
    {"not_a_number", test_not_a_number},
    {nullptr, nullptr},
};
