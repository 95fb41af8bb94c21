// Compares decode and prefill attention over pages with a scalar twin in float64.
#include "harness.h"

namespace {

// The kernel that computes prefill (in float32, with mma.sync, for compute capability 9.0), or the
// one that computes decode.
enum Way { Fma, Mma, Hopper, Decode };

struct Span {
    uint32_t position, n;
    bool prefill;
};

// Some sequences whose pages are scattered over the pool. Positions after the end of a sequence
// stay NaN, and so do the pages of no sequence.
struct Attention {
    int type;
    uint32_t heads, kv_heads, head_dim;
    std::vector<Span> spans;
    int y_type = GPU_F32;
    uint32_t window = 0; // keys that a row sees; 0: all
    Random random{41};
    uint32_t stride = pad(head_dim, 16), q_dim = heads * head_dim, n_rows = 0, n_pages = 0;
    std::vector<std::vector<double>> k, v; // by span: [position][kv_head][head_dim], as stored
    std::vector<float> q;
    std::vector<int32_t> positions;
    std::vector<uint32_t> row_pages, pages, span_pages;
    std::vector<uint32_t> span_of;
    Buffer kd{size_t(0)}, vd{size_t(0)}, qd{size_t(0)}, pd{size_t(0)}, rpd{size_t(0)},
        pgd{size_t(0)};

    Attention(int type, uint32_t heads, uint32_t kv_heads, uint32_t head_dim,
        std::vector<Span> spans_, bool outliers = false, uint32_t window = 0)
        : type(type), heads(heads), kv_heads(kv_heads), head_dim(head_dim),
          spans(std::move(spans_)), window(window) {
        for (const Span &s : spans) n_rows += s.n, n_pages += tiles(s.position + s.n, 16) + 1;
        std::vector<uint32_t> order;
        for (uint32_t i = 0; i < n_pages; i++) order.push_back(i);
        for (uint32_t i = n_pages - 1; i > 0; i--) std::swap(order[i], order[random.below(i + 1)]);
        size_t bytes = n_pages * kv_heads * head_bytes(type, stride);
        std::vector<uint8_t> kb(bytes, 0xff), vb(bytes, 0xff);
        uint32_t next = 0;
        for (uint32_t s = 0; s < spans.size(); s++) {
            uint32_t length = spans[s].position + spans[s].n, first = (uint32_t)pages.size();
            span_pages.push_back(first);
            for (uint32_t i = 0; i < tiles(length, 16); i++) {
                // Pages before the window of the span's first row hold NaN.
                const bool seen = window == 0 || (i + 1) * 16 + window > spans[s].position + 1;
                pages.push_back(seen ? order[next++] : order[n_pages - 1]);
            }
            k.emplace_back();
            v.emplace_back();
            for (uint32_t p = 0; p < length; p++)
                for (uint32_t h = 0; h < kv_heads; h++)
                    for (bool is_v : {false, true}) {
                        if (window && p / 16 * 16 + 16 + window <= spans[s].position + 1) {
                            auto &unseen = (is_v ? v : k)[s];
                            unseen.resize(unseen.size() + head_dim, NAN);
                            continue;
                        }
                        uint8_t *head =
                            &(is_v ? vb : kb)[((size_t)pages[first + p / 16] * kv_heads + h) *
                                              head_bytes(type, stride)];
                        // For half of the queries, the last keys outweigh all earlier ones, so that
                        // the running maximum changes.
                        float size = !is_v && outliers && (p + 1 == length || p >= 256) ? 5 : 1,
                              unit = fabsf(random.normal()) * size / 40;
                        if (scaled(type)) memcpy(head + 16 * stride + p % 16 * 4, &unit, 4);
                        for (uint32_t d = 0; d < stride; d++) {
                            if (type == GPU_INT8)
                                head[p % 16 * stride + d] =
                                    d < head_dim ? (uint8_t)(1 + random.below(255)) : 128;
                            else if (type == GPU_FP8)
                                head[p % 16 * stride + d] =
                                    (uint8_t)(d < head_dim ? to_e4m3(random.normal() * 40) : 0);
                            else
                                store(type, head + (p % 16 * stride + d) * size_of(type),
                                    d < head_dim ? random.normal() * size : 0);
                            if (d < head_dim)
                                (is_v ? v : k)[s].push_back(cached(type, head, stride, p % 16, d));
                        }
                    }
            for (uint32_t i = 0; i < spans[s].n; i++) {
                positions.push_back((int32_t)(spans[s].position + i));
                row_pages.push_back(first);
                span_of.push_back(s);
            }
        }
        q = activations(n_rows, q_dim, random);
        kd = Buffer(kb), vd = Buffer(vb), qd = Buffer(q), pd = Buffer(positions),
        rpd = Buffer(row_pages), pgd = Buffer(pages);
    }

    std::vector<float> decode(
        const std::vector<int32_t> &rows, uint32_t max_splits, uint64_t seed) {
        uint32_t n = (uint32_t)rows.size();
        Buffer rd(rows), y((size_t)n_rows * pad32(q_dim) * size_of(y_type)),
            partial((size_t)n * heads * max_splits * (stride + 4) * 4);
        const uint32_t group = heads / kv_heads, sets = kv_heads * tiles(group, GPU_ATTEND_HEADS);
        std::vector<uint32_t> zeros(n * sets, 0);
        Buffer counters(zeros);
        AttendParams p = {y.as<void>(), qd.as<float>(), kd.as<void>(), vd.as<void>(),
            partial.as<float>(), counters.as<uint32_t>(), rd.as<int32_t>(), pd.as<int32_t>(),
            rpd.as<uint32_t>(), pgd.as<uint32_t>(), n, heads, kv_heads, head_dim, stride,
            pad32(q_dim), pad32(q_dim), max_splits, 1 / sqrtf((float)head_dim), (uint32_t)y_type,
            window, group};
        // Launches twice, because the second launch finds the counters as the first left them.
        for (int i = 0; i < 2; i++)
            launch(std::string("attend_") + name_of(type), p, sets, max_splits, n,
                attend_threads(type), attend_shared(type, stride), seed + (uint64_t)i * 100);
        CHECK(counters.get<uint32_t>() == zeros, "attend left a counter");
        return numbers(y);
    }
    std::vector<float> numbers(const Buffer &y) const {
        std::vector<uint8_t> bytes = y.get<uint8_t>();
        std::vector<float> all;
        for (size_t at = 0; at < bytes.size(); at += size_of(y_type))
            all.push_back((float)widened(y_type, &bytes[at]));
        return all;
    }
    // Checks that outputs in each type of 16 bits are the outputs in 32 bits, rounded.
    template <class Run> void rounds(const std::vector<float> &exact, const Run &run) {
        rounds_to(type == GPU_BF16 || type == GPU_FP8 ? GPU_BF16 : GPU_F16, exact, run);
        rounds_to(GPU_F16_FINITE, exact, run);
    }
    template <class Run> void rounds_to(int to, const std::vector<float> &exact, const Run &run) {
        y_type = to;
        const std::vector<float> got = run();
        for (size_t i = 0; i < exact.size(); i++) {
            uint8_t want[4];
            store(y_type, want, exact[i]);
            CHECK(std::isnan(exact[i]) ? std::isnan(got[i]) : got[i] == widened(y_type, want),
                "%s: %g is not %g rounded", name_of(y_type), got[i], exact[i]);
        }
        y_type = GPU_F32;
    }

    // `skip`: the row of the span at which tiles begin, as if the prompt had been cut differently.
    std::vector<float> prefill(Way way, uint32_t skip, uint64_t seed) {
        const bool fma = way == Fma;
        uint32_t height = fma             ? GPU_TILE_FMA
                          : way == Hopper ? GPU_TILE_HOPPER
                                          : GPU_TILE_MMA,
                 row = 0;
        std::vector<int32_t> rows;
        std::vector<AttendTile> list;
        for (uint32_t s = 0; s < spans.size(); s++) {
            for (uint32_t i = 0; i < spans[s].n;) {
                uint32_t n = i == 0 && skip ? skip : height;
                n = n < spans[s].n - i ? n : spans[s].n - i;
                list.push_back({(uint32_t)rows.size(), n, spans[s].position + i, span_pages[s]});
                for (uint32_t j = 0; j < n; j++) rows.push_back((int32_t)(row + i + j));
                i += n;
            }
            row += spans[s].n;
        }
        list.push_back({0, 0, 0, 0});
        Buffer rd(rows), td(list), y((size_t)n_rows * pad32(q_dim) * size_of(y_type));
        const uint32_t permuted = half(y_type); // the other two types use the plain order
        AttendPrefillParams p = {y.as<void>(), qd.as<float>(), kd.as<void>(), vd.as<void>(),
            td.as<AttendTile>(), rd.as<int32_t>(), pgd.as<uint32_t>(), (uint32_t)list.size(), heads,
            kv_heads, head_dim, stride, pad32(q_dim), pad32(q_dim), 1 / sqrtf((float)head_dim),
            (uint32_t)y_type, permuted, window, 0};
        if (way == Hopper) {
            // The maps have two layers; the test uses the second.
            auto maps = [&](TensorMap &map, const Buffer &pages) {
                std::vector<uint8_t> both(pages.size, 0xff), layer = pages.get<uint8_t>();
                both.insert(both.end(), layer.begin(), layer.end());
                Buffer all(both);
                char error[300];
                if (emu_tensor_map(&map, all.at, stride, all.size / stride / 2, 2 * stride, 64,
                        GPU_PAGE, error, sizeof error))
                    die(error);
                return all;
            };
            AttendHopperParams h = {};
            const Buffer keys = maps(h.k, kd), values = maps(h.v, vd);
            h.p = p, h.first = (uint32_t)(kd.size / stride / 2), h.end = 2 * h.first;
            const uint32_t b = stride <= 64 ? 64 : 128;
            launch(std::string("attend_hopper_") + name_of(type) + "_" + std::to_string(b), h,
                heads, (unsigned)list.size(), 1, 384, 1280 * b + 128, seed);
            return permuted ? unpermuted(numbers(y), pad32(q_dim)) : numbers(y);
        }
        uint32_t b = stride <= 32 ? 32 : stride <= 64 ? 64 : 128;
        std::string name = std::string("attend_prefill_") + (fma ? "fma_" : "") + name_of(type) +
                           (fma ? "" : "_" + std::to_string(b));
        launch(name, p, heads, (unsigned)list.size(), 1, 128, fma ? 4128 + 96 * stride : 512 * b,
            seed);
        return permuted ? unpermuted(numbers(y), pad32(q_dim)) : numbers(y);
    }

    void compare(const char *what, const std::vector<float> &got, uint32_t row, bool rounds) const {
        uint32_t s = span_of[row], n = (uint32_t)positions[row] + 1,
                 begin = window == 0 || n < window ? 0 : n - window;
        double unit = !rounds            ? 0
                      : type == GPU_F16  ? ldexp(1.0, -11)
                      : type == GPU_BF16 ? ldexp(1.0, -8)
                                         : ldexp(1.0, -10);
        for (uint32_t h = 0; h < heads; h++) {
            uint32_t kv = h / (heads / kv_heads);
            std::vector<double> score(n);
            double max = -INFINITY, sum = 0, spread = 0;
            for (uint32_t i = begin; i < n; i++) {
                double dot = 0, size = 0;
                for (uint32_t d = 0; d < head_dim; d++) {
                    double x = q[(size_t)row * pad32(q_dim) + h * head_dim + d] *
                               k[s][((size_t)i * kv_heads + kv) * head_dim + d];
                    dot += x, size += fabs(x);
                }
                score[i] = dot / sqrt((double)head_dim);
                max = fmax(max, score[i]);
                spread = fmax(spread, size / sqrt((double)head_dim));
            }
            for (uint32_t i = begin; i < n; i++) sum += score[i] = exp(score[i] - max);
            // An error of e in every score changes weights by a factor of exp(+-e), in the
            // numerator and in the denominator.
            double e = 2 * spread * (unit + 2e-6) + unit + 4e-6;
            for (uint32_t d = 0; d < head_dim; d++) {
                double y = 0, size = 0;
                for (uint32_t i = begin; i < n; i++) {
                    double x = score[i] / sum * v[s][((size_t)i * kv_heads + kv) * head_dim + d];
                    y += x, size += fabs(x);
                }
                close(what, row, h * head_dim + d,
                    got[(size_t)row * pad32(q_dim) + h * head_dim + d], y,
                    size * (exp(e) - 1) + 1e-6);
            }
        }
    }
    bool same(const std::vector<float> &a, const std::vector<float> &b, uint32_t row) const {
        size_t at = (size_t)row * pad32(q_dim);
        return same_bits(&a[at], &b[at], q_dim);
    }
    void untouched(const std::vector<float> &got) const {
        for (uint32_t row = 0; row < n_rows; row++)
            for (uint32_t i = q_dim; i < pad32(q_dim); i++)
                CHECK(std::isnan(got[(size_t)row * pad32(q_dim) + i]), "padding written");
    }
};

std::vector<uint8_t> bytes_of(const std::vector<float> &v) {
    return std::vector<uint8_t>((const uint8_t *)v.data(), (const uint8_t *)(v.data() + v.size()));
}

void decode(int type, uint32_t heads, uint32_t kv_heads, uint32_t head_dim,
    std::vector<uint32_t> lengths, uint32_t max_splits, uint32_t window = 0) {
    std::vector<Span> spans;
    for (uint32_t n : lengths) spans.push_back({n - 1, 1, false});
    Attention test(type, heads, kv_heads, head_dim, spans, true, window);
    std::vector<int32_t> rows;
    for (uint32_t i = 0; i < test.n_rows; i++) rows.push_back((int32_t)(test.n_rows - 1 - i));
    rows.push_back(-1);
    auto got = view_as<float>(on_schedules(
        "attend", [&](uint64_t seed) { return bytes_of(test.decode(rows, max_splits, seed)); }));
    test.untouched(got);
    for (uint32_t row = 0; row < test.n_rows; row++) test.compare("attend", got, row, false);
    test.rounds(got, [&] { return test.decode(rows, max_splits, 1); });
    // A row alone, launched with just the splits that it needs, gives the same bits.
    for (uint32_t row = 0; row < test.n_rows; row += 1 + test.n_rows / 2) {
        auto alone = test.decode({(int32_t)row}, (lengths[row] - 1) / 256 + 1, 1);
        CHECK(test.same(alone, got, row), "attend: row %u differs alone and in company", row);
    }
}

void test_attend() {
    decode(GPU_F32, 2, 2, 32, {1}, 1);
    decode(GPU_BF16, 4, 1, 64, {1, 16, 17, 256, 257}, 3); // empty splits
    decode(GPU_F16, 8, 1, 128, {33, 530}, 4);
    decode(GPU_BF16, 6, 2, 16, {255, 40}, 1);
    decode(GPU_F32, 4, 1, 128, {300}, 2);
    decode(GPU_BF16, 1, 1, 20, {70}, 1);
    decode(GPU_F16, 1, 1, 256, {20}, 2);
    decode(GPU_BF16, 2, 2, 96, {64}, 1);
    decode(GPU_BF16, 5, 1, 40, {90}, 1);
    decode(GPU_F16, 3, 1, 80, {33, 288}, 2);
    decode(GPU_F32, 9, 1, 80, {270}, 2);
    decode(GPU_BF16, 2, 1, 16, {2500}, 10); // more splits than are joined at once
    // More heads than a block has.
    decode(GPU_BF16, 32, 2, 64, {300, 20}, 2);
    decode(GPU_F16, 9, 1, 256, {290}, 2);
}

void prefill(int type, Way way, uint32_t heads, uint32_t kv_heads, uint32_t head_dim,
    std::vector<Span> spans, uint32_t window = 0) {
    static const char *const names[] = {"attend_prefill_fma", "attend_prefill", "attend_hopper"};
    const char *name = names[way];
    Attention test(type, heads, kv_heads, head_dim, std::move(spans), way == Fma, window);
    auto got = view_as<float>(
        on_schedules(name, [&](uint64_t seed) { return bytes_of(test.prefill(way, 0, seed)); }));
    test.untouched(got);
    for (uint32_t row = 0; row < test.n_rows; row++) test.compare(name, got, row, way != Fma);
    test.rounds(got, [&] { return test.prefill(way, 0, 1); });
    // Tiles that begin elsewhere give the same bits.
    auto cut = test.prefill(way, way == Fma ? 1 : 7, 1);
    for (uint32_t row = 0; row < test.n_rows; row++)
        CHECK(test.same(cut, got, row), "%s: row %u depends on the cut", name, row);
}

void test_attend_prefill() {
    prefill(GPU_BF16, Mma, 2, 1, 32, {{0, 65, true}});
    prefill(GPU_F16, Mma, 4, 1, 64, {{0, 1, true}, {61, 20, true}});
    prefill(GPU_BF16, Mma, 1, 1, 128, {{130, 33, true}, {0, 9, true}});
    prefill(GPU_F16, Mma, 2, 2, 16, {{3, 17, true}});
    prefill(GPU_BF16, Mma, 1, 1, 20, {{63, 2, true}});
    prefill(GPU_F16, Mma, 1, 1, 96, {{0, 17, true}});
}
void test_attend_prefill_fma() {
    prefill(GPU_F32, Fma, 4, 1, 32, {{0, 9, true}, {254, 5, true}});
    prefill(GPU_BF16, Fma, 1, 1, 16, {{5, 3, true}});
    prefill(GPU_F16, Fma, 1, 1, 256, {{0, 5, true}});
}

// Covers fewer and more rows and keys than a box has, so many tiles of keys that every stage is
// filled again, a second warpgroup that sees one more tile of keys than the first, and heads that
// do not fill a box.
void test_attend_hopper() {
    prefill(GPU_BF16, Hopper, 2, 1, 64, {{0, 130, true}});
    prefill(GPU_F16, Hopper, 2, 1, 128, {{0, 1, true}, {61, 20, true}, {112, 16, true}});
    prefill(GPU_BF16, Hopper, 1, 1, 128, {{20, 128, true}, {600, 9, true}});
    prefill(GPU_F16, Hopper, 1, 1, 64, {{380, 70, true}});
    prefill(GPU_F16, Hopper, 2, 2, 16, {{3, 17, true}});
    prefill(GPU_BF16, Hopper, 1, 1, 20, {{127, 2, true}});
    prefill(GPU_BF16, Hopper, 1, 1, 96, {{64, 65, true}});
}

void test_attend_int8() {
    decode(GPU_INT8, 4, 1, 64, {1, 16, 17, 256, 257}, 3);
    decode(GPU_INT8, 8, 1, 128, {33, 530}, 4);
    decode(GPU_INT8, 2, 2, 20, {70}, 1);
    decode(GPU_INT8, 1, 1, 256, {20}, 2);
    decode(GPU_INT8, 11, 1, 256, {260, 40}, 2);
    prefill(GPU_INT8, Mma, 2, 1, 32, {{0, 65, true}});
    prefill(GPU_INT8, Mma, 1, 1, 128, {{130, 33, true}, {0, 9, true}});
    prefill(GPU_INT8, Mma, 4, 2, 50, {{3, 17, true}});
    prefill(GPU_INT8, Fma, 4, 1, 32, {{0, 9, true}, {254, 5, true}});
}

void test_attend_fp8() {
    decode(GPU_FP8, 4, 1, 64, {1, 17, 257}, 2);
    decode(GPU_FP8, 2, 2, 20, {70}, 1);
    decode(GPU_FP8, 8, 1, 96, {300}, 2);
    prefill(GPU_FP8, Mma, 2, 1, 32, {{0, 65, true}});
    prefill(GPU_FP8, Mma, 1, 1, 128, {{130, 17, true}});
    prefill(GPU_FP8, Fma, 1, 1, 32, {{254, 5, true}});
}

// Covers windows of one key, of less and more than a page, a tile and a chunk; windows that begin
// in the last chunk, in an earlier one and before the sequence; rows of a tile whose windows begin
// in different tiles of keys.
void test_attend_window() {
    decode(GPU_BF16, 4, 1, 64, {1, 16, 17, 256, 257, 600}, 3, 5);
    decode(GPU_F32, 2, 2, 32, {1, 300, 530}, 3, 300);
    decode(GPU_F16, 8, 1, 128, {33, 530}, 4, 1);
    decode(GPU_INT8, 4, 2, 20, {70, 513}, 3, 257);
    decode(GPU_FP8, 1, 1, 256, {40}, 2, 16);
    prefill(GPU_F32, Fma, 4, 1, 32, {{0, 9, true}, {254, 7, true}, {600, 5, true}}, 3);
    prefill(GPU_BF16, Fma, 1, 1, 256, {{563, 9, true}, {100, 9, true}}, 54);
    prefill(GPU_INT8, Fma, 2, 1, 32, {{254, 5, true}}, 40);
    prefill(GPU_BF16, Mma, 2, 1, 32, {{0, 130, true}}, 1);
    prefill(GPU_F16, Mma, 2, 1, 64, {{61, 100, true}, {300, 20, true}}, 40);
    prefill(GPU_BF16, Mma, 1, 1, 128, {{500, 70, true}}, 200);
    prefill(GPU_INT8, Mma, 4, 2, 50, {{100, 17, true}}, 30);
    prefill(GPU_BF16, Hopper, 2, 1, 64, {{0, 130, true}}, 1);
    prefill(GPU_F16, Hopper, 2, 1, 128, {{61, 20, true}, {380, 300, true}}, 100);
    prefill(GPU_BF16, Hopper, 1, 1, 128, {{600, 140, true}}, 300);
    prefill(GPU_F16, Hopper, 1, 1, 20, {{255, 130, true}}, 129);
}

// A NaN in another sequence does not spread; a NaN in the sequence itself reaches the output.
void test_attend_nan() {
    for (int way : {-1, (int)Mma, (int)Hopper}) {
        const bool prompt = way >= 0;
        Attention test(GPU_BF16, 2, 1, 32, {{19, 1, prompt}, {30, 1, prompt}, {7, 1, prompt}});
        auto run = [&] {
            return prompt ? test.prefill((Way)way, 0, 1) : test.decode({0, 1, 2}, 1, 1);
        };
        auto clean = run();
        test.q[1 * pad32(test.q_dim) + 3] = NAN;
        test.q[2 * pad32(test.q_dim) + 40] = INFINITY;
        test.qd.put(test.q);
        auto got = run();
        CHECK(test.same(got, clean, 0), "a row beside NaN changed");
        CHECK(std::isnan(got[1 * pad32(test.q_dim) + 5]) &&
                  !std::isfinite(got[2 * pad32(test.q_dim) + 35]),
            "NaN was lost");
        CHECK(same_bits(&got[2 * pad32(test.q_dim)], &clean[2 * pad32(test.q_dim)], 32),
            "a head beside infinity changed");
    }
}

// In f16 for quantised weights, values beyond f16's range are its greatest number.
void test_attend_large() {
    for (int way : {-1, (int)Fma, (int)Mma, (int)Hopper}) {
        Attention test(GPU_BF16, 2, 1, 32, {{19, 1, way >= 0}, {30, 5, way >= 0}});
        std::vector<uint8_t> bytes = test.vd.get<uint8_t>();
        for (size_t at = 0; at < bytes.size(); at += 2)
            store(GPU_BF16, &bytes[at], (float)widened(GPU_BF16, &bytes[at]) * 3e5f);
        test.vd.put(bytes);
        auto run = [&] {
            return way >= 0 ? test.prefill((Way)way, 0, 1) : test.decode({0, 1, 2, 3, 4, 5}, 1, 1);
        };
        const auto got = run();
        uint32_t beyond = 0;
        for (float x : got) beyond += fabsf(x) > 65520;
        CHECK(beyond > 20, "too few large values");
        test.rounds(got, run);
        test.rounds_to(GPU_F16, got, run);
    }
}

// Keys with small weights and large values: f16 has few exponents, yet the weights keep their bits.
void test_attend_small() {
    for (int type : {GPU_F16, GPU_INT8}) {
        const uint32_t n = 201, dim = 32;
        Attention test(type, 1, 1, dim, {{n - 1, 1, false}});
        for (float &x : test.q) x *= 4;
        test.qd.put(test.q);
        std::vector<double> weight(n);
        double sum = 0;
        for (uint32_t i = 0; i < n; i++) {
            double dot = 0;
            for (uint32_t d = 0; d < dim; d++) dot += test.q[d] * test.k[0][i * dim + d];
            sum += weight[i] = exp(dot / sqrt((double)dim));
        }
        std::vector<uint8_t> bytes = test.vd.get<uint8_t>();
        uint32_t small = 0;
        for (uint32_t i = 0; i < n; i++) {
            if (weight[i] / sum < 1e-7 || weight[i] / sum > 2e-6) continue;
            small++;
            uint8_t *head = &bytes[test.pages[i / 16] * head_bytes(type, test.stride)];
            const float unit = 400;
            if (scaled(type)) memcpy(head + 16 * test.stride + i % 16 * 4, &unit, 4);
            for (uint32_t d = 0; d < dim; d++) {
                if (!scaled(type))
                    store(
                        type, head + (i % 16 * test.stride + d) * 2, d % 2 ? 50000.0f : -40000.0f);
                test.v[0][i * dim + d] = cached(type, head, test.stride, i % 16, d);
            }
        }
        CHECK(small > 5, "too few keys have small weights");
        test.vd.put(bytes);
        test.compare("attend", test.decode({0}, 1, 1), 0, false);
    }
}

// A query that f16 does not hold gets what float32 gives, and the heads beside it keep their bits.
void test_attend_beyond() {
    for (int type : {GPU_F16, GPU_INT8, GPU_FP8}) {
        const uint32_t dim = 32, n = 301, large = 2;
        Attention test(type, 6, 1, dim, {{n - 1, 1, false}});
        std::vector<uint8_t> bytes = test.kd.get<uint8_t>();
        for (uint32_t i = 0; i < n; i++) {
            uint8_t *head = &bytes[test.pages[i / 16] * head_bytes(type, test.stride)];
            if (scaled(type)) {
                float unit;
                memcpy(&unit, head + 16 * test.stride + i % 16 * 4, 4);
                unit *= 1e-5f;
                memcpy(head + 16 * test.stride + i % 16 * 4, &unit, 4);
            }
            for (uint32_t d = 0; d < dim; d++) {
                uint8_t *at = head + (i % 16 * test.stride + d) * size_of(type);
                if (!scaled(type)) store(type, at, (float)widened(type, at) * 1e-5f);
                test.k[0][i * dim + d] = cached(type, head, test.stride, i % 16, d);
            }
        }
        test.kd.put(bytes);
        const auto clean = test.decode({0}, 2, 1);
        float most = 0;
        for (uint32_t d = 0; d < dim; d++)
            most = fmaxf(most, fabsf(test.q[large * dim + d] *= 1e5f));
        CHECK(most > 65520, "no query is beyond f16");
        test.qd.put(test.q);
        const auto got = test.decode({0}, 2, 1);
        test.compare("attend", got, 0, false);
        for (uint32_t h = 0; h < test.heads; h++)
            CHECK(h == large || same_bits(&got[h * dim], &clean[h * dim], dim),
                "a head beside a large one changed");
    }
}

// The values of a later key do not reach a row, whatever they are, although both share a tile of
// keys; nor do those before a row's window. A row that sees them gets what float32 gives.
void test_attend_infinity() {
    struct Case {
        int type;
        Way way;
        uint32_t head_dim, position, n, key, window;
    };
    const float values[] = {INFINITY, -INFINITY, NAN};
    for (const Case &c :
        {Case{GPU_BF16, Decode, 32, 0, 20, 9, 0}, Case{GPU_F16, Decode, 96, 30, 40, 45, 20},
            Case{GPU_INT8, Decode, 64, 5, 20, 21, 0}, Case{GPU_FP8, Decode, 256, 255, 9, 258, 0},
            Case{GPU_F32, Decode, 16, 290, 3, 260, 0}, Case{GPU_BF16, Fma, 32, 0, 20, 9, 0},
            Case{GPU_BF16, Mma, 32, 0, 70, 9, 0}, Case{GPU_F16, Mma, 96, 3, 40, 30, 0},
            Case{GPU_INT8, Mma, 64, 5, 20, 21, 0}, Case{GPU_F16, Mma, 64, 61, 50, 70, 20},
            Case{GPU_BF16, Hopper, 64, 0, 130, 70, 0}, Case{GPU_F16, Hopper, 128, 20, 70, 85, 0},
            Case{GPU_BF16, Hopper, 32, 100, 60, 120, 30}}) {
        Attention test(c.type, 2, 1, c.head_dim, {{c.position, c.n, true}}, false, c.window);
        std::vector<int32_t> rows;
        for (uint32_t i = 0; i < test.n_rows; i++) rows.push_back((int32_t)i);
        auto run = [&](uint64_t seed) {
            return c.way == Decode ? test.decode(rows, 2, seed) : test.prefill(c.way, 0, seed);
        };
        const auto clean = run(1);
        std::vector<uint8_t> bytes = test.vd.get<uint8_t>();
        uint8_t *head = &bytes[test.pages[c.key / 16] * head_bytes(c.type, test.stride)];
        if (scaled(c.type)) {
            const float unit = INFINITY; // an infinite scale; a code of zero gives NaN
            memcpy(head + 16 * test.stride + c.key % 16 * 4, &unit, 4);
        } else
            for (uint32_t d = 0; d < 3; d++)
                store(
                    c.type, head + (c.key % 16 * test.stride + d * 7) * size_of(c.type), values[d]);
        for (uint32_t d = 0; d < c.head_dim; d++)
            test.v[0][c.key * c.head_dim + d] = cached(c.type, head, test.stride, c.key % 16, d);
        test.vd.put(bytes);
        static const char *const names[] = {"float32", "mma", "hopper", "decode"};
        const char *name = names[c.way];
        const auto got =
            view_as<float>(on_schedules(name, [&](uint64_t seed) { return bytes_of(run(seed)); }));
        test.untouched(got);
        for (uint32_t row = 0; row < test.n_rows; row++) {
            const uint32_t position = c.position + row;
            const bool sees = c.key <= position && (!c.window || c.key + c.window > position);
            for (uint32_t i = 0; i < test.q_dim; i++) {
                const float is = got[(size_t)row * pad32(test.q_dim) + i],
                            was = clean[(size_t)row * pad32(test.q_dim) + i];
                const float value =
                    sees ? (float)test.v[0][c.key * c.head_dim + i % c.head_dim] : 0;
                CHECK(std::isfinite(value) ? fabsf(is - was) <= 0.05f
                      : std::isnan(value)  ? std::isnan(is)
                                           : is == value,
                    "%s, key %u: row %u, column %u: %g, with a finite key %g", name, c.key, row, i,
                    is, was);
            }
        }
        test.rounds(got, [&] { return run(1); });
    }
}

// Values that float32 has and f16 does not, in a cache with scales: rows that see them are finite,
// with and without rows behind them in their tile of keys. Rows of tiles of keys without such a
// value keep their bits.
void test_attend_wide() {
    for (int type : {GPU_INT8, GPU_FP8})
        for (uint32_t dim : {32u, 50u, 128u}) {
            const uint32_t n = 70, keys[] = {40, 69};
            Attention test(type, 2, 1, dim, {{0, n, true}});
            const auto clean = test.prefill(Mma, 0, 1);
            std::vector<uint8_t> bytes = test.vd.get<uint8_t>();
            double most = 0;
            for (uint32_t key : keys) {
                uint8_t *head = &bytes[test.pages[key / 16] * head_bytes(type, test.stride)];
                const float unit = 1e5f;
                memcpy(head + 16 * test.stride + key % 16 * 4, &unit, 4);
                for (uint32_t d = 0; d < dim; d++) {
                    const double value = cached(type, head, test.stride, key % 16, d);
                    test.v[0][key * dim + d] = value, most = fmax(most, fabs(value));
                }
            }
            CHECK(most > 1e6, "no value is beyond f16");
            test.vd.put(bytes);
            const auto got = view_as<float>(on_schedules("attend_prefill",
                [&](uint64_t seed) { return bytes_of(test.prefill(Mma, 0, seed)); }));
            for (uint32_t row = 0; row < n; row++) test.compare("attend_prefill", got, row, true);
            test.rounds(got, [&] { return test.prefill(Mma, 0, 1); });
            // The second of them lies in a tile of keys that only the last rows see.
            bytes = test.vd.get<uint8_t>();
            const float unit = 0.5f;
            memcpy(&bytes[test.pages[keys[0] / 16] * head_bytes(type, test.stride)] +
                       16 * test.stride + keys[0] % 16 * 4,
                &unit, 4);
            test.vd.put(bytes);
            const auto later = test.prefill(Mma, 0, 1);
            for (uint32_t row = 0; row < keys[0]; row++)
                CHECK(test.same(later, clean, row), "row %u changed", row);
        }
}

} // namespace

extern const Test ATTENTION[] = {
    {"attend", test_attend},
    {"attend_prefill", test_attend_prefill},
    {"attend_prefill_fma", test_attend_prefill_fma},
    {"attend_hopper", test_attend_hopper},
    {"attend_int8", test_attend_int8},
    {"attend_fp8", test_attend_fp8},
    {"attend_window", test_attend_window},
    {"attend_nan", test_attend_nan},
    {"attend_large", test_attend_large},
    {"attend_small", test_attend_small},
    {"attend_beyond", test_attend_beyond},
    {"attend_infinity", test_attend_infinity},
    {"attend_wide", test_attend_wide},
    {nullptr, nullptr},
};
