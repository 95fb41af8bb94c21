// Compares what adapters add with a scalar twin in float64.
#include "products.h"

namespace {

const uint32_t PARTS = 3;

// An adapter of one matrix: the twin's numbers, and the list of its parts on the device.
struct Adapter {
    struct Thin {
        uint32_t rank, rows, cols;
        float scale;
        std::vector<double> a, b; // [rank, cols], [rows, rank]
        Buffer da{size_t(0)}, db{size_t(0)};
    };
    std::vector<Thin> parts;
    Buffer list{size_t(0)};

    // `ranks`: of each part; 0: the adapter adds nothing to it. `rows`: of each part.
    Adapter(int type, const std::vector<uint32_t> &ranks, const std::vector<uint32_t> &rows,
        uint32_t cols, Random &random) {
        std::vector<AdapterPart> all(PARTS + 1); // the matrix's first part is number 1
        for (size_t i = 0; i < ranks.size(); i++) {
            Thin thin;
            thin.rank = ranks[i], thin.rows = rows[i], thin.cols = cols;
            thin.scale = 0.25f + 0.5f * (float)i;
            const uint32_t rank = pad(thin.rank, 8);
            // A row of A, and the numbers of a row of B, end in zeros.
            auto make = [&](uint32_t n, uint32_t stride, uint32_t padded, uint32_t width,
                            float size, std::vector<double> &values) {
                std::vector<uint8_t> bytes((size_t)padded * stride * size_of(type));
                for (uint32_t r = 0; r < n; r++)
                    for (uint32_t c = 0; c < width; c++) {
                        uint8_t *to = &bytes[((size_t)r * stride + c) * size_of(type)];
                        store(type, to, random.normal() * size);
                        values.push_back(widened(type, to));
                    }
                return Buffer(bytes);
            };
            if (thin.rank) {
                thin.da = make(thin.rank, pad32(cols), rank, cols, 1 / sqrtf((float)cols), thin.a);
                thin.db = make(thin.rows, rank, thin.rows, thin.rank, 1, thin.b);
                all[1 + i] = {thin.da.as<void>(), thin.db.as<void>(), rank, thin.scale};
            }
            parts.push_back(std::move(thin));
        }
        list = Buffer(all);
    }

    // B (scale * A x) for row n of a part.
    Product of(uint32_t part, uint32_t n, const std::vector<double> &x) const {
        const Thin &thin = parts[part];
        Product sum = {0, 0};
        for (uint32_t j = 0; j < thin.rank; j++) {
            Product inner = {0, 0};
            for (uint32_t k = 0; k < thin.cols; k++) {
                const double term = thin.a[(size_t)j * thin.cols + k] * x[k];
                inner.sum += term, inner.magnitude += fabs(term);
            }
            const double b = thin.b[(size_t)n * thin.rank + j] * thin.scale;
            sum.sum += b * inner.sum, sum.magnitude += fabs(b) * inner.magnitude;
        }
        return sum;
    }
};

// A product of one to three parts whose rows have adapters, or have none.
struct Adapted {
    int type;   // of the adapters' numbers
    int x_type; // of the input; GPU_F32: it is normed
    bool prefill;
    bool permuted;                 // the input; of gate and up, the output
    std::vector<uint32_t> rows_of; // of each part
    uint32_t cols;
    std::vector<std::vector<uint32_t>> ranks; // of each adapter's parts
    bool up;                                  // gate and up, which adapt_up finishes
    int h_type;
    Random random{19};
    std::vector<Adapter> adapters;
    std::vector<float> x, norm = vector_of(cols, pad32(cols), random, 1, 0.3f);
    uint32_t n = 0, rank = 8;
    std::vector<uint32_t> begins;
    const float factor = 0.22f;
    // Of the outputs before anything is added, and of gate and up.
    std::vector<float> sums;
    static const uint32_t MOST = 40;

    Adapted(int type, int x_type, bool prefill, bool permuted, std::vector<uint32_t> rows,
        uint32_t cols, std::vector<std::vector<uint32_t>> of_adapters, bool up = false,
        int h_type = GPU_F32)
        : type(type), x_type(x_type), prefill(prefill), permuted(permuted), rows_of(rows),
          cols(cols), ranks(of_adapters), up(up), h_type(h_type) {
        for (uint32_t rows : rows_of) begins.push_back(n), n += rows;
        for (const auto &of_parts : ranks) {
            adapters.emplace_back(type, of_parts, rows_of, cols, random);
            for (uint32_t r : of_parts)
                while (rank < r) rank *= 2;
        }
        x = activations(MOST, cols, random);
        sums = activations(MOST, n, random);
    }
    uint32_t part_of(uint32_t column) const {
        uint32_t part = 0;
        while (part + 1 < begins.size() && column >= begins[part + 1]) part++;
        return part;
    }

    // The rows of a launch: which row of x each is, and which adapter it has, from 1 on; 0: none.
    // -1: a row that does not exist.
    struct Row {
        int32_t x;
        int adapter;
    };

    // The outputs [rows, n] (of gate and up: [rows, ffn_dim]).
    std::vector<uint8_t> run(const std::vector<Row> &rows, uint64_t seed) {
        const uint32_t n_rows = (uint32_t)rows.size();
        const std::string kind = prefill ? "_prefill" : "";
        const uint32_t groups = prefill ? tiles(n_rows, GPU_ADAPT_ROWS) : n_rows;
        std::vector<uint8_t> input((size_t)n_rows * pad32(cols) * size_of(x_type), 0xff);
        std::vector<float> before((size_t)n_rows * pad32(n), NAN);
        std::vector<uint64_t> lists;
        std::vector<int32_t> numbers;
        for (uint32_t i = 0; i < n_rows; i++) {
            const auto [row, adapter] = rows[i];
            lists.push_back(adapter ? adapters[(size_t)adapter - 1].list.at : 0);
            numbers.push_back(row < 0 ? -1 : (int32_t)i);
            // The padding of rows in float32 may hold anything.
            const bool single = x_type == GPU_F32;
            for (uint32_t k = 0; row >= 0 && k < (single ? cols : pad32(cols)); k++) {
                const uint32_t place = permuted && !single ? permuted_of(k) : k;
                store(x_type, &input[((size_t)i * pad32(cols) + place) * size_of(x_type)],
                    k < cols ? x[(size_t)row * pad32(cols) + k] : 0);
            }
            for (uint32_t c = 0; row >= 0 && c < n; c++)
                before[(size_t)i * pad32(n) + c] = sums[(size_t)row * pad32(n) + c];
        }
        Buffer xd(input), nd(norm), ld(lists), yd(before), rd(numbers),
            thin((size_t)n_rows * GPU_THIN * 4);
        const auto *list = ld.as<const AdapterPart *>();
        AdaptInParams in = {thin.as<float>(), xd.as<void>(),
            x_type == GPU_F32 ? nd.as<float>() : nullptr, list, n_rows, cols, pad32(cols),
            (uint32_t)x_type, permuted && x_type != GPU_F32, 1, (uint32_t)rows_of.size(), rank, EPS,
            0};
        launch("adapt_in" + kind + suffix(type), in, in.n_parts * rank / 4, groups, 1, 256,
            GPU_ADAPT_SHARED, seed);
        if (up) {
            const uint32_t ffn_dim = rows_of[0];
            Buffer h((size_t)n_rows * pad32(ffn_dim) * size_of(h_type));
            AdaptUpParams p = {h.as<void>(), yd.as<float>(), thin.as<float>(), list,
                rd.as<int32_t>(), n_rows, ffn_dim, pad32(n), pad32(ffn_dim), (uint32_t)h_type,
                permuted, 1, type != GPU_F32};
            launch("adapt_up" + kind + suffix(type), p, tiles(ffn_dim, 256), groups, 1, 256, 0,
                seed + 50);
            return h.get<uint8_t>();
        }
        // The columns of all parts but the first lie elsewhere.
        const uint32_t first = rows_of[0], rest = n - first;
        std::vector<float> others((size_t)n_rows * rest);
        for (uint32_t i = 0; i < n_rows; i++)
            for (uint32_t c = 0; c < rest; c++)
                others[(size_t)i * rest + c] = before[(size_t)i * pad32(n) + first + c];
        Buffer od(others);
        AdaptOutParams p = {yd.as<float>(), rest ? od.as<float>() : nullptr, thin.as<float>(), list,
            n_rows, n, pad32(n), rest, first, rows_of.size() > 1 ? first + rows_of[1] : n, 1,
            factor};
        launch("adapt_out" + kind + suffix(type), p, tiles(n, 256), groups, 1, 256, 0, seed + 50);
        auto y = yd.get<float>();
        const auto more = od.get<float>();
        for (uint32_t i = 0; i < n_rows; i++)
            for (uint32_t c = 0; c < rest; c++) {
                CHECK(same_bits(&y[(size_t)i * pad32(n) + first + c],
                          &before[(size_t)i * pad32(n) + first + c], 1),
                    "adapt_out wrote columns of other parts to the first's");
                y[(size_t)i * pad32(n) + first + c] = more[(size_t)i * rest + c];
            }
        std::vector<uint8_t> bytes(y.size() * 4);
        memcpy(bytes.data(), y.data(), bytes.size());
        return bytes;
    }

    uint32_t width() const { return up ? rows_of[0] : n; }
    int out_type() const { return up ? h_type : GPU_F32; }
    const uint8_t *row_of(const std::vector<uint8_t> &all, uint32_t i) const {
        return &all[(size_t)i * pad32(width()) * size_of(out_type())];
    }

    void compare(const std::vector<uint8_t> &all, uint32_t i, Row row) const {
        std::vector<double> in;
        const float *from = &x[(size_t)row.x * pad32(cols)];
        if (x_type == GPU_F32)
            in = normed(from, norm, cols);
        else
            for (uint32_t k = 0; k < cols; k++) {
                // Of 32 bits, as many as GCC thinks that `widened` may read.
                const uint32_t bits = narrowed(x_type, from[k]);
                in.push_back(widened(x_type, &bits));
            }
        // A sum, and the bound of its error.
        auto sum_of = [&](uint32_t column, double scale) {
            const double before = sums[(size_t)row.x * pad32(n) + column];
            Product more = {0, 0};
            if (row.adapter) {
                const uint32_t part = part_of(column);
                more = adapters[(size_t)row.adapter - 1].of(part, column - begins[part], in);
            }
            return std::pair<double, double>(before + scale * more.sum,
                (fabs(before) + 2 * scale * more.magnitude) * SUM + 1e-7);
        };
        for (uint32_t c = 0; c < width(); c++) {
            const uint32_t place = up && permuted ? permuted_of(c) : c;
            const double got =
                widened(out_type(), row_of(all, i) + (size_t)place * size_of(out_type()));
            auto [want, bound] = sum_of(c, up ? 1 : factor);
            if (up) {
                const auto [other, more] = sum_of(rows_of[0] + c, 1);
                const double sigmoid = 1 / (1 + exp(-want));
                bound = (bound * fabs(other) + more * fabs(want)) * 1.1 + bound * more;
                want = want * sigmoid * other;
                if (h_type == GPU_F16_FINITE) want = fmin(fmax(want, -65504), 65504);
                bound += fabs(want) * (rounding(half(h_type) ? GPU_F16 : h_type) + 2e-6) + 1e-6;
            }
            close(up ? "adapt_up" : "adapt_out", i, c, got, want, bound);
        }
    }

    void test() {
        const int count = (int)adapters.size();
        // Runs of rows of one adapter, of which some end beside rows that have none, and rows that
        // do not exist, which have none either.
        std::vector<Row> rows;
        for (int32_t i = 0; i < (prefill ? 29 : 11); i++) {
            const int32_t at = i % 7 == 5 ? -1 : i;
            const int which = (prefill ? i / 3 : i) % (count + 1);
            rows.push_back({at, at < 0 ? 0 : which});
        }
        const auto all = on_schedules("adapters", [&](uint64_t seed) { return run(rows, seed); });
        const size_t bytes = (size_t)width() * size_of(out_type());
        for (uint32_t i = 0; i < rows.size(); i++) {
            if (rows[i].x >= 0) {
                compare(all, i, rows[i]);
                continue;
            }
            for (uint32_t c = 0; c < width(); c++)
                CHECK(std::isnan(
                          widened(out_type(), row_of(all, i) + (size_t)c * size_of(out_type()))),
                    "adapters: a row that does not exist was written");
        }
        // A row alone, and rows in another order, give the same bits.
        std::vector<Row> others(rows.rbegin(), rows.rend());
        const auto turned = run(others, 3);
        for (uint32_t i = 0; i < rows.size(); i++) {
            CHECK(rows[i].x < 0 || memcmp(row_of(all, i),
                                       row_of(turned, (uint32_t)rows.size() - 1 - i), bytes) == 0,
                "adapters: row %u gives other bits in other company", i);
            if (i % 4 == 1 && rows[i].x >= 0) {
                const auto alone = run({rows[i]}, 2);
                CHECK(memcmp(row_of(all, i), row_of(alone, 0), bytes) == 0,
                    "adapters: row %u gives other bits alone", i);
            }
        }
    }
};

// q | k | v: adapters that change all parts, with ranks 1 to 256 that differ among the parts, and
// some of the parts.
void test_adapt_qkv() {
    const std::vector<std::vector<uint32_t>> some = {{1, 8, 16}, {0, 5, 0}, {16, 0, 3}};
    Adapted{GPU_BF16, GPU_F32, false, false, {48, 16, 16}, 72, some}.test();
    Adapted{GPU_F32, GPU_F32, false, false, {32, 8, 8}, 41, some}.test();
    Adapted{GPU_BF16, GPU_F32, true, false, {300, 20, 20}, 64, some}.test();
    Adapted{GPU_F32, GPU_F32, true, false, {6, 2, 2}, 9, {{8, 8, 8}}}.test();
    Adapted{GPU_BF16, GPU_F32, false, false, {20, 4, 4}, 5000, {{256, 64, 13}, {64, 1, 8}}}.test();
}
// The output projection and the feed-forward's second matrix, whose input is rounded.
void test_adapt_add() {
    const std::vector<std::vector<uint32_t>> some = {{16}, {1}, {64}, {7}};
    Adapted{GPU_BF16, GPU_BF16, false, false, {33}, 40, some}.test();
    Adapted{GPU_BF16, GPU_F16, true, false, {300}, 1025, some}.test();
    Adapted{GPU_BF16, GPU_F16_FINITE, true, true, {40}, 96, some}.test();
    Adapted{GPU_BF16, GPU_BF16, true, false, {17}, 2056, {{256}, {255}}}.test();
    Adapted{GPU_BF16, GPU_F16, false, false, {1}, 1, {{1}}}.test();
    // More columns than all threads take at once, and an odd tail.
    Adapted{GPU_BF16, GPU_BF16, false, false, {257}, 4099, {{16}, {9}}}.test();
}
void test_adapt_up() {
    auto up = [](int type, bool prefill, bool permuted, uint32_t ffn_dim, uint32_t cols,
                  int h_type) {
        Adapted(type, GPU_F32, prefill, permuted, {ffn_dim, ffn_dim}, cols,
            {{8, 16}, {0, 3}, {64, 0}}, true, h_type)
            .test();
    };
    up(GPU_BF16, false, false, 72, 48, GPU_BF16);
    up(GPU_F32, false, false, 33, 41, GPU_F32);
    up(GPU_BF16, true, false, 300, 64, GPU_F16);
    up(GPU_BF16, true, true, 48, 64, GPU_F16_FINITE);
    up(GPU_F32, true, false, 9, 40, GPU_F32);
}

} // namespace

extern const Test ADAPTERS[];
const Test ADAPTERS[] = {
    {"adapt_qkv", test_adapt_qkv},
    {"adapt_add", test_adapt_add},
    {"adapt_up", test_adapt_up},
    {nullptr, nullptr},
};
