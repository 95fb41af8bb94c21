// Compares sampling with a twin that sorts. Both must give the same bits.
#include "harness.h"

#include <algorithm>
#include <cfloat>
#include <climits>

namespace {

struct Scale {
    float halvings, high, low, inverse;
};

// The arithmetic of src/backend/choice.rs, implemented a third time.
Scale scale_of(float temperature) {
    double t = std::min(std::max((double)temperature, ldexp(1.0, -100)), ldexp(1.0, 100)),
           halving = 0.693147180559945309417 * t;
    float high = (float)halving;
    uint32_t bits;
    memcpy(&bits, &high, 4);
    bits &= ~0xffu;
    memcpy(&high, &bits, 4);
    return {
        (float)(1.44269504088896340736 / t), high, (float)(halving - (double)high), (float)(1 / t)};
}
uint64_t mass_of(const Scale &s, float value, float max) {
    float distance = value - max, halvings = distance * s.halvings;
    if (!(halvings > -40.0f)) return 0;
    float back = distance - value, lost = (value - (distance - back)) - (max + back);
    float n = nearbyintf(halvings); // rounds ties to even, as adding a large number does
    float nh = n * s.high, nl = n * s.low, r = (((distance - nh) - nl) + lost) * s.inverse;
    float p = 1.0f / 5040.0f;
    for (float c : {1.0f / 720.0f, 1.0f / 120.0f, 1.0f / 24.0f, 1.0f / 6.0f, 0.5f, 1.0f, 1.0f}) {
        float product = p * r;
        p = product + c;
    }
    return (uint64_t)llrint(ldexp((double)p, 39 + (int)n));
}

float finite(float v) { return std::isfinite(v) ? v + 0.0f : -INFINITY; }

struct Strategy {
    float temperature, penalty;
    uint32_t top_k, top_p, draw, n_tokens, n_top;
    uint64_t least;
    bool scored, penalised;
    int32_t given;
    std::vector<SampleEdit> edits;
    std::vector<uint32_t> mask; // empty: every token is possible
};
struct Result {
    int32_t token;
    float logit, max;
    uint64_t total;
    std::vector<std::pair<int32_t, float>> top;
};

Result twin(const std::vector<float> &logits, const std::vector<bool> &earlier, const Strategy &s) {
    struct Candidate {
        float value;
        uint32_t id;
        uint64_t mass;
    };
    auto better = [](const Candidate &a, const Candidate &b) {
        return a.value != b.value ? a.value > b.value : a.id < b.id;
    };
    std::vector<Candidate> all, kept;
    for (uint32_t i = 0; i < logits.size(); i++) all.push_back({finite(logits[i]), i, 0});
    std::vector<Candidate> sorted = all;
    std::sort(sorted.begin(), sorted.end(), better);
    Result r = {-1, -INFINITY, sorted[0].value, 0, {}};
    if (r.max != -INFINITY)
        for (const Candidate &c : all) r.total += mass_of(scale_of(1), c.value, r.max);
    for (uint32_t i = 0; i < s.n_top; i++)
        r.top.push_back({(int32_t)sorted[i].id, sorted[i].value});
    if (s.given >= 0) {
        if (r.max != -INFINITY || !s.scored) r.token = s.given;
    } else {
        all.resize(s.n_tokens);
        for (Candidate &c : all)
            if (s.penalised && earlier[c.id] && c.value != -INFINITY) {
                float v = c.value > 0 ? c.value / s.penalty : c.value * s.penalty;
                c.value = std::min(std::max(v, -3.402823466e38f), 3.402823466e38f) + 0.0f;
            }
        bool possible = false;
        for (const Candidate &c : all) possible |= c.value != -INFINITY;
        for (const SampleEdit &e : s.edits) {
            float &v = all[e.token].value;
            if (v != -INFINITY)
                v = e.add == -INFINITY ? e.add : std::clamp(v + e.add, -FLT_MAX, FLT_MAX) + 0.0f;
        }
        for (Candidate &c : all)
            if (!s.mask.empty() && !(s.mask[c.id / 32] >> c.id % 32 & 1)) c.value = -INFINITY;
        if (possible && (!s.edits.empty() || !s.mask.empty())) r.token = GPU_NONE_LEFT;
        std::sort(all.begin(), all.end(), better);
        float max = all[0].value;
        if (max != -INFINITY) {
            if (s.temperature == 0) {
                kept.push_back(all[0]);
                kept[0].mass = 1;
            } else {
                uint64_t total = 0, before = 0;
                float floor = s.top_k && s.top_k < s.n_tokens ? all[s.top_k - 1].value : -INFINITY;
                for (Candidate &c : all) {
                    c.mass = c.value >= floor ? mass_of(scale_of(s.temperature), c.value, max) : 0;
                    total += c.mass;
                }
                uint64_t limit = (uint64_t)((unsigned __int128)total * s.top_p >> 32);
                for (const Candidate &c : all) {
                    if (c.mass && (s.top_p == UINT_MAX || before <= limit) && c.mass >= s.least)
                        kept.push_back(c);
                    before += c.mass;
                }
            }
            std::sort(kept.begin(), kept.end(),
                [](const Candidate &a, const Candidate &b) { return a.id < b.id; });
            uint64_t total = 0, below = 0;
            for (const Candidate &c : kept) total += c.mass;
            uint64_t target = (uint64_t)((unsigned __int128)total * s.draw >> 24);
            for (const Candidate &c : kept) {
                below += c.mass;
                if (below > target) {
                    r.token = (int32_t)c.id;
                    break;
                }
            }
        }
    }
    if (r.token >= 0) r.logit = finite(logits[(size_t)r.token]);
    return r;
}

// Launches both kernels, behind `change` if there are edits. Checks that they leave the counters as
// they were.
void pick(SampleParams p, uint32_t n_rows, uint64_t seed, const SampleEdit *edits = nullptr,
    const uint32_t *masks = nullptr) {
    const uint32_t slices = tiles(p.vocab_size, GPU_SLICE);
    Buffer sums((size_t)n_rows * slices * sizeof(SampleSlice)),
        counters(std::vector<uint32_t>(n_rows, 0)), possible(std::vector<uint32_t>(n_rows, 0)),
        changed(std::vector<float>((size_t)n_rows * p.stride, 3));
    p.slices = sums.as<SampleSlice>(), p.counters = counters.as<uint32_t>();
    p.changed = changed.as<float>(), p.possible = possible.as<uint32_t>();
    const ChangeParams change = {changed.as<float>(), p.logits, p.rows, p.histories, edits, masks,
        p.possible, n_rows, p.vocab_size, p.stride, p.history_stride, p.history_stride, 0};
    if (edits) launch("change", change, slices, n_rows, 1, 512, 0, seed);
    launch("sample_max", p, slices, n_rows, 1, 512, GPU_SAMPLE_MAX_SHARED, seed);
    launch("sample_draw", p, slices, n_rows, 1, 512, GPU_SAMPLE_DRAW_SHARED, seed);
    for (uint32_t left : counters.get<uint32_t>()) CHECK(left == 0, "sample left a counter");
    for (uint32_t left : possible.get<uint32_t>()) CHECK(left == 0, "a row is still possible");
}

const char *const KINDS[] = {
    "normal", "equal", "ties", "impossible", "one", "none", "wide", "zeros", "peak"};

std::vector<float> logits_of(int kind, uint32_t n, Random &random) {
    std::vector<float> v(n);
    for (uint32_t i = 0; i < n; i++) {
        float x = random.normal() * 4;
        switch (kind) {
        case 1:
            x = 1.5f;
            break;
        case 2:
            x = (float)random.below(4);
            break;
        case 3:
            x = random.below(3) ? (random.below(2)      ? -INFINITY
                                      : random.below(2) ? NAN
                                                        : INFINITY)
                                : x;
            break;
        case 4:
            x = i == n / 2 ? -7.0f : -INFINITY;
            break;
        case 5:
            x = random.below(2) ? NAN : -INFINITY;
            break;
        case 6:
            x = x * (random.below(2) ? 1e37f : 1e-42f);
            break;
        case 7:
            x = random.below(2) ? 0.0f : -0.0f;
            break;
        case 8:
            x = i == n - 1 ? 60.0f : x;
            break;
        }
        v[i] = x;
    }
    return v;
}

// `changing`: half of the rows that draw have edits, a mask or both.
void sample_rows(bool changing) {
    Random random{changing ? 12u : 11u};
    const float temperatures[] = {0, 1e-30f, 0.1f, 0.6f, 1, 1, 5, 1e30f},
                penalties[] = {1.3f, 0.5f, 2, 1e-38f};
    const double top_ps[] = {0, 1e-6, 0.3, 0.5, 0.9, 0.9, 0.9999}, min_ps[] = {1e-20, 0.05, 0.3, 1};
    size_t drawn = 0, changed = 0, none_left = 0;
    // More ids than the list of a bucket has room for, and several slices.
    for (uint32_t n : {1u, 2u, 31u, 129u, 513u, 1000u, 3500u, 5003u, 12100u}) {
        for (int kind = 0; kind < 9; kind++) {
            if (n > 1000 && kind > 2 && kind != 8) continue;
            // All widths and kinds have been tried without changes.
            if (changing && (n == 129 || n == 1000 || n == 12100)) continue;
            const uint32_t n_rows = n > 1000 ? 8 : 4, stride = pad32(n),
                           history_stride = stride / 32, out_stride = 5 + 2 * GPU_MAX_TOP;
            std::vector<float> logits;
            std::vector<uint32_t> histories;
            std::vector<SampleRow> rows;
            std::vector<SampleEdit> edits;
            std::vector<uint32_t> masks;
            std::vector<Result> want;
            for (uint32_t i = 0; i < n_rows; i++) {
                std::vector<float> row = logits_of(kind, n, random);
                std::vector<bool> earlier(n);
                histories.resize((i + 1) * history_stride);
                for (uint32_t id = 0; id < n; id++)
                    if (random.below(5) == 0) {
                        earlier[id] = true;
                        histories[i * history_stride + id / 32] |= 1u << id % 32;
                    }
                Strategy s = {};
                s.temperature = temperatures[random.below(8)];
                s.penalised = random.below(3) == 0;
                s.penalty = penalties[random.below(4)];
                s.top_k = random.below(2)   ? 0
                          : random.below(2) ? 1 + random.below(n)
                                            : 1 + random.below(8);
                s.top_p =
                    random.below(3) ? (uint32_t)(top_ps[random.below(7)] * 4294967296.0) : UINT_MAX;
                s.least =
                    random.below(2) ? 1 : (uint64_t)ceil(min_ps[random.below(4)] * ldexp(1, 39));
                s.draw = random.below(4)   ? random.below(1 << 24)
                         : random.below(2) ? 0
                                           : (1 << 24) - 1;
                s.n_tokens = random.below(3) ? n : 1 + random.below(n);
                s.scored = random.below(2);
                s.n_top =
                    s.scored && random.below(2)
                        ? std::min(n, random.below(2) ? 1 + random.below(8) : (uint32_t)GPU_MAX_TOP)
                        : 0;
                s.given = random.below(5) ? GPU_DRAW : (int32_t)random.below(n);
                const uint32_t first_edit = (uint32_t)edits.size();
                uint32_t mask = 0;
                if (changing && s.given == GPU_DRAW && random.below(2)) {
                    // Half of the tokens, or a few, or none.
                    const uint32_t dense = random.below(3), often = dense == 2 ? 2 : 50;
                    if (random.below(2)) {
                        s.mask.resize(history_stride);
                        for (uint32_t id = 0; id < n; id++)
                            if (dense && random.below(often) == 0) s.mask[id / 32] |= 1u << id % 32;
                        masks.insert(masks.end(), s.mask.begin(), s.mask.end());
                        mask = (uint32_t)(masks.size() / history_stride);
                    }
                    for (uint32_t id = 0; id < s.n_tokens; id++)
                        if (random.below(n < 40 ? 3 : 20) == 0) {
                            const float adds[] = {
                                -INFINITY, FLT_MAX, -FLT_MAX, 0, random.normal() * 5, 1.5f};
                            s.edits.push_back({id, adds[random.below(6)]});
                        }
                    edits.insert(edits.end(), s.edits.begin(), s.edits.end());
                }
                changed += mask || !s.edits.empty();
                want.push_back(twin(row, earlier, s));
                Scale t = s.temperature > 0 ? scale_of(s.temperature) : Scale{0, 0, 0, 0};
                rows.push_back({s.given, s.n_tokens, s.penalised ? i : GPU_NO_HISTORY, s.penalty,
                    t.halvings, t.high, t.low, t.inverse, s.top_k, s.top_p, (uint32_t)s.least,
                    (uint32_t)(s.least >> 32), s.draw, s.scored, s.n_top, mask, first_edit,
                    (uint32_t)s.edits.size(), {0, 0}});
                row.resize(stride, NAN);
                logits.insert(logits.end(), row.begin(), row.end());
            }
            // Repeats the last row after padding: its neighbours must not matter.
            rows.push_back({});
            rows.back().given = GPU_NO_ROW;
            rows.push_back(rows[n_rows - 1]);
            // The repeated row has a history of its own.
            histories.resize((n_rows + 1) * history_stride);
            std::copy_n(&histories[(n_rows - 1) * history_stride], history_stride,
                &histories[n_rows * history_stride]);
            if (rows.back().history != GPU_NO_HISTORY) rows.back().history = n_rows;
            want.push_back(want[n_rows - 1]);
            for (int copy = 0; copy < 2; copy++)
                logits.insert(logits.end(), logits.end() - stride, logits.end());
            edits.resize(edits.size() + 1), masks.resize(masks.size() + 1); // never empty
            Buffer logits_d(logits), rows_d(rows), edits_d(edits), masks_d(masks);
            const uint32_t grid = (uint32_t)rows.size();
            const Scale one = scale_of(1);
            auto bytes = on_schedules("sample_draw", [&](uint64_t seed) {
                Buffer out((size_t)grid * out_stride * 4), next((size_t)grid * 4),
                    histories_d(histories);
                pick({out.as<uint32_t>(), logits_d.as<float>(), rows_d.as<SampleRow>(),
                         histories_d.as<uint32_t>(), next.as<int32_t>(), nullptr, nullptr, nullptr,
                         nullptr, grid, n, stride, history_stride, out_stride, one.halvings,
                         one.high, one.low, one.inverse, 0},
                    grid, seed, changing ? edits_d.as<SampleEdit>() : nullptr,
                    masks_d.as<uint32_t>());
                auto all = out.get<uint8_t>(), tokens = next.get<uint8_t>(),
                     marked = histories_d.get<uint8_t>();
                all.insert(all.end(), tokens.begin(), tokens.end());
                all.insert(all.end(), marked.begin(), marked.end());
                return all;
            });
            auto got = view_as<uint32_t>(bytes);
            const uint32_t *next = &got[(size_t)grid * out_stride];
            std::vector<uint32_t> marked = histories;
            for (uint32_t i = 0; i < grid; i++)
                if (rows[i].given == GPU_DRAW && rows[i].history != GPU_NO_HISTORY &&
                    (int32_t)next[i] >= 0)
                    marked[rows[i].history * history_stride + next[i] / 32] |= 1u << next[i] % 32;
            CHECK(std::equal(marked.begin(), marked.end(), next + grid),
                "%s, %u tokens: the histories are not those of before and the tokens drawn",
                KINDS[kind], n);
            for (uint32_t i = 0, w = 0; i < grid; i++) {
                const uint32_t *words = &got[(size_t)i * out_stride];
                if (rows[i].given == GPU_NO_ROW) {
                    CHECK(words[0] == 0xffffffffu && words[1] == 0xffffffffu &&
                              next[i] == 0xffffffffu,
                        "something was written for padding");
                    continue;
                }
                const Result &r = want[w++];
                SampleOut o;
                memcpy(&o, words, sizeof o);
                CHECK(o.token == r.token, "%s, %u tokens, row %u: token %d, twin says %d",
                    KINDS[kind], n, i, o.token, r.token);
                CHECK((int32_t)next[i] == std::max(o.token, -1),
                    "%s, %u tokens, row %u: token %d, the next step has %d", KINDS[kind], n, i,
                    o.token, (int32_t)next[i]);
                none_left += o.token == GPU_NONE_LEFT;
                drawn += rows[i].given == GPU_DRAW && r.token >= 0;
                if (!rows[i].scored) continue;
                CHECK(o.logit == r.logit && o.max == r.max,
                    "%s, %u tokens, row %u: logits %g %g, twin says %g %g", KINDS[kind], n, i,
                    o.logit, o.max, r.logit, r.max);
                uint64_t total = (uint64_t)o.high << 32 | o.low;
                CHECK(total == r.total, "%s, %u tokens, row %u: sum %llx, twin says %llx",
                    KINDS[kind], n, i, (unsigned long long)total, (unsigned long long)r.total);
                for (uint32_t j = 0; j < rows[i].n_top; j++) {
                    int32_t id = (int32_t)words[5 + 2 * j];
                    float logit;
                    memcpy(&logit, &words[6 + 2 * j], 4);
                    CHECK(id == r.top[j].first && logit == r.top[j].second,
                        "%s, %u tokens, row %u: alternative %u is %d (%g), twin says %d (%g)",
                        KINDS[kind], n, i, j, id, logit, r.top[j].first, r.top[j].second);
                }
            }
        }
    }
    CHECK(drawn > (changing ? 60 : 100), "only %zu tokens were drawn", drawn);
    CHECK(!changing || (changed > 40 && none_left > 5),
        "%zu rows were changed, and %zu had none left", changed, none_left);
}

// Cases at the thresholds, which random rows meet too seldom.
void edges() {
    struct Edge {
        std::vector<float> logits;
        uint32_t top_k, top_p, draw;
        int32_t token;
    };
    const uint32_t most = (1u << 24) - 1, half = 1u << 31;
    const Edge edges[] = {
        // The third token by rank is the first by id, and has almost no mass: 21 and 23 halvings
        // below the best.
        {{-16, -15, 0}, 2, UINT_MAX, 0, 1},
        {{-16, -15, 0}, 3, UINT_MAX, 0, 0},
        // The mass before the third of four tokens is exactly half, so the third is kept.
        {{1, 1, 1, 1}, 0, half, most, 2},
        {{1, 1, 1, 1}, 0, half - 1, most, 1},
        // The mass before the second of three tokens is a third. With this top_p it is kept, and
        // with 2^-32 less it is not. This shows that bounds are not cut to 32 bits.
        {{1, 1, 1}, 0, 0x55555556u, most, 1},
        {{1, 1, 1}, 0, 0x55555555u, most, 0},
        // All tokens that tie with the last one are kept.
        {{2, 1, 1, 1, 0}, 2, UINT_MAX, most, 3},
        {{0.0f, -0.0f, -1}, 1, UINT_MAX, most, 1},
        // The last token is farther from the best than twice the mean is, and in the last bucket.
        {{0, 0, 0, 0, 0, 0, 0, -1}, 8, UINT_MAX, most, 7},
        {{0, 0, 0, 0, 0, 0, 0, -1}, 7, UINT_MAX, most, 6},
    };
    const Scale one = scale_of(1);
    for (const Edge &e : edges) {
        uint32_t n = (uint32_t)e.logits.size();
        std::vector<float> logits = e.logits;
        logits.resize(32, NAN);
        Buffer out(20), next(4), logits_d(logits),
            rows(std::vector<SampleRow>{{GPU_DRAW, n, GPU_NO_HISTORY, 1, one.halvings, one.high,
                one.low, one.inverse, e.top_k, e.top_p, 1, 0, e.draw, 0, 0, 0, 0, 0, {}}});
        pick({out.as<uint32_t>(), logits_d.as<float>(), rows.as<SampleRow>(), nullptr,
                 next.as<int32_t>(), nullptr, nullptr, nullptr, nullptr, 1, n, 32, 1, 5,
                 one.halvings, one.high, one.low, one.inverse, 0},
            1, 3);
        int32_t token = out.get<int32_t>()[0];
        CHECK(token == e.token, "edge %d: token %d, not %d", (int)(&e - edges), token, e.token);
    }
}

// The three blocks of a row side by side, on many schedules: the last one must not look before the
// others have left everything.
void together() {
    Random random{3};
    const uint32_t n = 3 * GPU_SLICE, most = 1u << 24;
    const std::vector<float> logits = logits_of(0, n, random);
    const Scale one = scale_of(1);
    const Buffer logits_d(logits);
    for (uint64_t seed = 1; seed <= (schedules() > 1 ? 60 : 2); seed++) {
        const uint32_t draw = random.below(most);
        Strategy s = {};
        s.temperature = 1, s.top_p = UINT_MAX, s.least = 1, s.draw = draw, s.n_tokens = n;
        s.given = GPU_DRAW;
        Buffer out(20), next(4),
            rows(std::vector<SampleRow>{{GPU_DRAW, n, GPU_NO_HISTORY, 1, one.halvings, one.high,
                one.low, one.inverse, 0, UINT_MAX, 1, 0, draw, 0, 0, 0, 0, 0, {}}});
        pick({out.as<uint32_t>(), logits_d.as<float>(), rows.as<SampleRow>(), nullptr,
                 next.as<int32_t>(), nullptr, nullptr, nullptr, nullptr, 1, n, n, 1, 5,
                 one.halvings, one.high, one.low, one.inverse, 0},
            1, seed);
        const int32_t token = out.get<int32_t>()[0], want = twin(logits, {}, s).token;
        CHECK(token == want, "schedule %d: token %d, twin says %d", (int)seed, token, want);
    }
}

} // namespace

extern const Test SAMPLING[] = {{"sample", [] { sample_rows(false); }},
    {"sample_changed", [] { sample_rows(true); }}, {"sample_edges", edges},
    {"sample_together", together}, {nullptr, nullptr}};
