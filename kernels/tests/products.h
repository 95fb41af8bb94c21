// What the tests of products share: inputs, launches in every way, and scalar twins.
#ifndef LLAMABI_TESTS_PRODUCTS_H
#define LLAMABI_TESTS_PRODUCTS_H

#include "harness.h"

const float EPS = 0.02f; // large enough that its absence is noticed

// The error of a float32 sum relative to the sum of magnitudes. At worst it is of order K * 2^-24;
// in practice it is far less.
const double SUM = 4e-6;
// The relative error of rounding. For all types but float32, activations are rounded to the type of
// the weights (f16 for quantised weights). That is an error of half a unit in the last place of 8
// or 11 bits, doubled for safety.
inline double rounding(int type) {
    return type == GPU_F32    ? 0
           : type == GPU_F16  ? ldexp(1.0, -11)
           : type == GPU_BF16 ? ldexp(1.0, -8)
                              : ldexp(1.0, -10);
}

// A list of n rows for a launch, out of `of` rows: shuffled, with padding among them.
inline std::vector<int32_t> row_list(uint32_t n, uint32_t of, Random &random) {
    std::vector<int32_t> rows;
    for (uint32_t i = 0; i < of; i++) rows.push_back((int32_t)i);
    for (uint32_t i = of - 1; i > 0; i--) std::swap(rows[i], rows[random.below(i + 1)]);
    rows.resize(n);
    if (n > 2) rows[n / 2] = -1;
    return rows;
}

inline std::vector<double> normed(const float *x, const std::vector<float> &norm, uint32_t k) {
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
inline Product product(const Matrix &w, uint32_t row, const std::vector<double> &x) {
    Product p = {0, 0};
    for (uint32_t i = 0; i < w.cols; i++) {
        p.sum += w.row(row)[i] * x[i];
        p.magnitude += w.size(row, i) * fabs(x[i]);
    }
    return p;
}

inline std::string suffix(int type) { return std::string("_") + name_of(type); }

// The input of a prefill product, made by the kernel prepare.
inline Buffer prepared(int weights, const Buffer &x, uint32_t x_stride, const Buffer &norm,
    const Buffer &rows, uint32_t n_rows, uint32_t width, uint64_t seed, bool permuted = false) {
    int type = prepared_type(weights);
    Buffer out((size_t)n_rows * pad32(width) * size_of(type));
    PrepareParams p = {out.as<void>(), x.as<float>(), norm.as<float>(), rows.as<int32_t>(), n_rows,
        width, x_stride, pad32(width), EPS, permuted,
        quantised(weights) ? (uint32_t)GPU_F16_FINITE : (uint32_t)type, 0};
    launch("prepare" + suffix(type), p, n_rows, 1, 1, 256, 32, seed);
    return out;
}
// The same for rows that need no norm. They lie after `first` other rows. Padding columns are zero;
// rows that do not exist are NaN.
inline Buffer rounded(int weights, const std::vector<float> &x, const std::vector<int32_t> &rows,
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
inline void launch_gemm(const std::string &kernel, int type, const void *params, size_t size,
    uint32_t n, uint32_t n_rows, uint64_t seed) {
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
// computes a half tile. With `paired`, blocks are clusters of two: float weights then have an even
// number of blocks of rows, and quantised weights no clusters where they have an odd number of
// blocks of weights. With `across`, the blocks of quantised weights lie as in clusters, but are
// none. With `early`, the launch is a dependent one.
inline bool half_tiles = false, alone = false, paired = false, across = false, early = false;
// Tiles of 64 rows and columns; `alone` must be set, too.
inline bool quarter_tiles = false;
template <class P> void launch_hopper(const std::string &kernel, const P &p, const Buffer &x,
    uint32_t rows, const Matrix &w, uint32_t n, uint32_t columns, uint32_t n_rows, uint64_t seed,
    uint32_t first = 0) {
    struct {
        TensorMap x, w;
        P p;
        uint32_t groups, across;
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
        quarter_tiles ? std::string(kernel).insert(kernel.find("_hopper") + 7, "_quarter")
        : half_tiles  ? std::string(kernel).insert(kernel.find("_hopper") + 7, "_half")
                      : kernel;
    const size_t shared = quarter_tiles ? GPU_HOPPER_QUARTER_SHARED
                          : codes       ? half_tiles ? GPU_CODES_HALF_SHARED : GPU_CODES_SHARED
                          : !half_tiles ? GPU_HOPPER_SHARED
                          : alone       ? GPU_HOPPER_SINGLE_SHARED
                                        : GPU_HOPPER_HALF_SHARED;
    const uint32_t rows_of = codes   ? half_tiles ? 128 : 256
                             : alone ? 64
                                     : 128,
                   columns_of = quarter_tiles         ? 64
                                : codes && alone      ? columns / 4
                                : codes || half_tiles ? columns / 2
                                                      : columns;
    unsigned grid[3] = {tiles(n_rows, rows_of), tiles(n, columns_of), 1},
             block[3] = {quarter_tiles          ? 160u
                         : half_tiles && !codes ? 288u
                                                : 384u,
                 1, 1},
             cluster = paired ? 2 : 1;
    if (codes && grid[1] % 2)
        cluster = 1;
    else if (codes)
        all.across = paired || across, grid[0] *= 1 + all.across, grid[1] /= 1 + all.across;
    else
        grid[0] = tiles(grid[0], cluster) * cluster;
    if ((early ? emu_launch_dependent : emu_launch_clusters)(name.c_str(), &all, sizeof all, grid,
            block, shared, cluster, seed, error, sizeof error))
        die(error);
}

// Calls `check` once for each other way to launch such a product, and for each schedule of blocks
// that share tiles.
inline void other_tiles(bool quarters, const std::function<void(const char *, uint64_t)> &check) {
    half_tiles = true;
    check("smaller tiles", 1);
    across = true;
    check("smaller tiles side by side", 1);
    alone = true;
    check("one warpgroup", 1);
    across = false, paired = true;
    check("a pair of one warpgroup each", 1);
    alone = false;
    check("a pair of smaller tiles", 1);
    half_tiles = false;
    for (int seed = 1; seed <= schedules(); seed++) check("a pair", (uint64_t)seed);
    if (quarters) {
        quarter_tiles = alone = true;
        check("a pair of quarters", 1);
        paired = false;
        check("quarters", 1);
        quarter_tiles = alone = false;
    }
    paired = false;
}

// The kernels that compute a product. For decode rows the default is Few up to eight rows, and
// Batch for more.
enum Way { Few, Batch, Prefill, Hopper, Library };
inline Way way_of(int type, uint32_t n_rows) {
    return type == GPU_F32 || n_rows <= GPU_FEW_ROWS ? Few : Batch;
}

// The sums that a library would leave: the weights times n_rows rows that prepare has made, with
// NaN in the padding.
inline Buffer library_sums(const Matrix &w, const Buffer &prepared, uint32_t n_rows) {
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
inline uint32_t batch_rows(uint32_t n_rows) { return n_rows <= 16 ? 16 : n_rows <= 32 ? 32 : 64; }
inline Buffer scratch_of(uint32_t pairs, uint32_t n_rows, uint32_t splits) {
    const size_t blocks =
        (size_t)tiles(n_rows, batch_rows(n_rows)) * tiles(pairs, GPU_BATCH_PAIRS) * splits;
    std::vector<uint8_t> all(
        GPU_SPLIT_BELOW * 4 + (splits > 1 ? blocks * 512 * batch_rows(n_rows) : 0), 0xff);
    std::fill(all.begin(), all.begin() + GPU_SPLIT_BELOW * 4, 0);
    return Buffer(all);
}

// The shared memory of a product of few rows, as params.h states it. `of_block`: tiles of a block.
inline uint32_t slot_bytes(int type) {
    switch (type) {
    case GPU_F16:
    case GPU_BF16:
        return GPU_SLOT;
    case GPU_INT8:
    case GPU_NF4:
        return GPU_SLOT + 128 * 8;
    case GPU_INT4:
        return GPU_SLOT + 128 * 16;
    case GPU_FP8:
        return GPU_SLOT + 128 * 4;
    default:
        return 0;
    }
}
inline size_t few_shared(int type, uint32_t k, uint32_t n_rows, uint32_t of_block, bool rounds) {
    const uint32_t line = !quantised(type) ? 64 : Matrix::bytes_of(type) ? 128 : 256;
    return GPU_TABLE_BYTES + (rounds ? GPU_FEW_NORMS : 0) +
           std::min<uint32_t>(n_rows, GPU_FEW_ROWS) * pad(k, line) * 2 +
           4096 * std::min<uint32_t>(of_block, GPU_FEW_TILES) + GPU_FEW_SLOTS * slot_bytes(type);
}
// The number of blocks that share the tiles of a product of few rows; 0: as many as the seed says.
inline uint32_t few_blocks = 0;

// The shared memory of a block of OP_batch_TYPE with `rows` activation rows.
inline size_t batch_shared(int type, uint32_t rows, uint32_t splits) {
    const bool ring = slot_bytes(type) > 0 && rows < 64, bytes = quantised(type),
               four = type == GPU_INT4 || type == GPU_NF4;
    const size_t levels = GPU_BATCH_LEVEL * (splits == 1      ? 2
                                                : splits == 4 ? 1
                                                              : 0),
                 stages = bytes && !four && rows == 32 ? 2 : 3, slots = four ? 2 : stages;
    if (ring)
        return GPU_TABLE_BYTES + rows / 8 * (stages * (bytes ? 2048 : 1024) + levels) +
               slots * slot_bytes(type);
    return GPU_TABLE_BYTES + rows / 8 *
                                 (levels + (quantised(type) && rows < 64 ? GPU_BATCH_SHARED_CODES
                                                                         : GPU_BATCH_SHARED));
}

// `pairs`: the number of pairs of weight rows. `splits`: how many blocks of a batch share a K; they
// use `scratch`. For float32, `across` is the number of blocks and `more` the shared memory.
inline void launch_decode(const std::string &op, int type, Way way, const void *params, size_t size,
    uint32_t pairs, uint32_t k, uint32_t splits, const Buffer &scratch, uint32_t across,
    size_t more, uint32_t n_rows, uint64_t seed) {
    const uint32_t all = tiles(pairs, 8),
                   blocks = few_blocks ? few_blocks : tiles(all, 1 + seed % 3);
    unsigned grid[3] = {type == GPU_F32 ? across : blocks, tiles(n_rows, 8), 1};
    const uint32_t rows = batch_rows(n_rows);
    if (way == Batch)
        grid[0] = tiles(n_rows, rows), grid[1] = tiles(pairs, GPU_BATCH_PAIRS), grid[2] = splits;
    unsigned block[3] = {256, 1, 1};
    size_t shared = type == GPU_F32 ? more
                    : way == Few
                        ? few_shared(type, k, n_rows, tiles(all, blocks), op != "matmul_add")
                        : batch_shared(type, rows, splits);
    char error[600];
    std::string kernel = op + (way == Few ? "" : "_batch") + suffix(type);
    if (emu_launch(kernel.c_str(), params, size, grid, block, shared, seed, error, sizeof error))
        die(error);
    if (way != Batch || splits == 1) return;
    auto left = scratch.get<uint8_t>();
    for (uint32_t i = 0; i < GPU_SPLIT_BELOW * 4; i++)
        CHECK(left[i] == 0, "%s left a counter", kernel.c_str());
}

struct Heads {
    uint32_t q, kv, dim;
};

// Compares qkv with its scalar twin, on all schedules; a row alone with a row among others; and
// every way to cut the launch.
void qkv(int type, int kv_type, bool prefill, uint32_t dim, Heads heads, uint32_t n_rows,
    Way prefilled = Prefill, bool norms = false);

#endif
