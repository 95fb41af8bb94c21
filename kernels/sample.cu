// From logits to a token: penalty, temperature, top-k, top-p, min-p, draw; log probabilities and
// alternatives.
//
// One block works on one row, in several passes, without sorting. Candidates are ordered by rank
// (descending logit); equal logits are ordered by ascending id. Top-k and top-p ask the same
// question: at which rank does a running sum of weights exceed a bound? `select` answers it by
// radix selection on the 32 bits of the rank. A tie at the bound and the draw ask the question by
// ascending id instead of rank. `find` answers that one: it cuts the range of ids into sixteen
// parts, picks one of them, and repeats this until one id is left.
//
// Weights are integers, so any order of additions gives the same sum. Therefore
// src/engine/sampler/, which works in another way, picks the same token.
// compute/src/backend/choice.rs has the arithmetic of both; the functions here repeat it operation
// for operation.
//
// All threads add to sums in shared memory atomically. A 64-bit sum consists of two 32-bit words; a
// carry from the low word is added to the high one.
#include "gpu.h"

struct Sum {
    uint32_t low, high;
};

struct Scratch {
    Sum bins[2048]; // the histogram of `select`; or the alternatives as {id, rank}
    Sum groups[32]; // sums of groups of bins
    Sum parts[16];  // the sums of `find`, one for each warp
    float maxima[16];
    uint32_t count;
};
static_assert(sizeof(Scratch) <= GPU_SAMPLE_SHARED, "the launch gives this much");

// ---- the arithmetic of compute/src/backend/choice.rs

struct Scale {
    float halvings, high, low, inverse;
};

DEVICE float share(const Scale &s, float value, float max) {
    const float ROUND = 12582912.0f, distance = value - max, halvings = distance * s.halvings;
    const float back = distance - value, lost = (value - (distance - back)) - (max + back);
    const float rounded = halvings + ROUND, n = rounded - ROUND;
    const float r = (((distance - n * s.high) - n * s.low) + lost) * s.inverse;
    float p = 1.0f / 5040.0f;
    p = p * r + 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    const float scaled = as_float(as_bits(p) + (as_bits(rounded) << 23));
    return halvings > -40.0f ? scaled : 0.0f;
}
DEVICE uint64_t mass(const Scale &s, float value, float max) {
    const float ROUND = 8388608.0f, ROUND_SIGNED = 12582912.0f;
    const float scaled = share(s, value, max) * 1048576.0f, rounded = scaled + ROUND;
    const float rest = (scaled - (rounded - ROUND)) * 524288.0f + ROUND_SIGNED;
    const int32_t low = (int32_t)(as_bits(rest) - as_bits(ROUND_SIGNED));
    return ((uint64_t)(as_bits(rounded) - as_bits(ROUND)) << 19) + (uint64_t)(int64_t)low;
}
DEVICE uint32_t rank_of(float value) {
    const uint32_t bits = as_bits(value);
    return bits >> 31 ? bits : bits ^ 0x7fffffffu;
}
DEVICE float value_of(uint32_t rank) { return as_float(rank >> 31 ? rank : rank ^ 0x7fffffffu); }
// Replaces a number that is not finite by -inf, and negative zero by zero.
DEVICE float clean(float v) {
    return (as_bits(v) & 0x7f800000u) == 0x7f800000u ? -INFINITY_F : v + 0.0f;
}
DEVICE float penalised(float v, float penalty) {
    const float most = as_float(0x7f7fffffu);
    const float w = v > 0 ? v / penalty : v * penalty;
    return v == -INFINITY_F ? v : fminf(fmaxf(w, -most), most) + 0.0f;
}
// The bound of the nucleus (top-p): a token belongs to it if the mass before the token is at most
// this.
DEVICE uint64_t nucleus(uint32_t top_p, uint64_t total) {
    return (total >> 32) * top_p + ((total & 0xffffffffu) * top_p >> 32);
}
DEVICE uint64_t target_of(uint32_t draw, uint64_t total) {
    return (total >> 24) * draw + ((total & 0xffffffu) * draw >> 24);
}

// ---- sums in shared memory

DEVICE void add(Sum *s, uint64_t v) {
    const uint32_t low = (uint32_t)v;
#ifdef PLANT_NOT_ATOMIC
    const uint32_t before = s->low;
    s->low = before + low;
#else
    const uint32_t before = atomic_add(&s->low, low);
#endif
    const uint32_t high = (uint32_t)(v >> 32) + ((uint32_t)(before + low) < low ? 1 : 0);
    if (high) atomic_add(&s->high, high);
}
DEVICE uint64_t read(const Sum &s) { return (uint64_t)s.high << 32 | s.low; }
DEVICE uint64_t total_of(const Sum *s, uint32_t n) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += read(s[i]);
    return sum;
}
// Returns the index of the sum, of n, at which the running sum exceeds `target`. Subtracts the sums
// before it from `target`.
DEVICE uint32_t walk(const Sum *s, uint32_t n, uint64_t &target) {
    uint32_t i = 0;
    for (; i + 1 < n; i++) {
        const uint64_t v = read(s[i]);
        if (target < v) break;
        target -= v;
    }
    return i;
}
DEVICE void clear(Sum *s, uint32_t n) {
    for (uint32_t i = threadIdx.x; i < n; i += 512) s[i] = Sum{0, 0};
}

// ---- passes over a row

struct Row {
    const float *logits;
    const uint32_t *history; // or null
    float penalty;
    uint32_t n;
};

// Calls f(id, value) for ids first .. end. `count` threads share the ids; this thread is number
// `at`.
template <class F>
DEVICE void each(const Row &row, uint32_t first, uint32_t end, uint32_t at, uint32_t count, F f) {
    constexpr int AHEAD = 3; // loads in flight; with four, registers spill
    for (uint32_t i = first / 4 * 4 + 4 * at; i < end; i += AHEAD * 4 * count) {
        Words4 w[AHEAD];
        uint32_t seen[AHEAD];
        UNROLL for (int u = 0; u < AHEAD; u++) {
            const uint32_t from = i + u * 4 * count < end ? i + u * 4 * count : i;
            w[u] = load_fresh(row.logits + from);
            seen[u] = row.history ? row.history[from / 32] >> from % 32 : 0;
        }
        UNROLL for (int u = 0; u < AHEAD; u++) {
            UNROLL for (int j = 0; j < 4; j++) {
                const uint32_t id = i + u * 4 * count + j;
                if (id < first || id >= end) continue;
                const float v = clean(as_float(w[u].w[j]));
                f(id, seen[u] >> j & 1 ? penalised(v, row.penalty) : v);
            }
        }
    }
}
template <class F> DEVICE void each(const Row &row, F f) {
    each(row, 0, row.n, threadIdx.x, 512, f);
}

DEVICE float maximum(Scratch *s, const Row &row) {
    float max = -INFINITY_F;
    each(row, [&](uint32_t, float v) { max = fmaxf(max, v); });
    max = group_max(max, 32);
    if (threadIdx.x % 32 == 0) s->maxima[threadIdx.x / 32] = max;
    block_sync();
    for (int i = 0; i < 16; i++) max = fmaxf(max, s->maxima[i]);
    block_sync();
    return max;
}

struct Selected {
    bool found;    // the sum of all weights is more than the target
    uint32_t rank; // the first rank at which the running sum exceeds the target
    uint64_t rest; // the target minus the weights of better ranks
    uint64_t at;   // the total weight of that rank
};

// Finds the rank at which the running sum of weights, best rank first, exceeds aim(sum of all
// weights).
template <class W, class Aim>
DEVICE Selected select(Scratch *s, const Row &row, W weight, Aim aim) {
    Selected found = {true, 0, 0, 0};
    for (int shift = 21; shift >= 0;) {
        const int bits = shift == 0 ? 10 : 11;
        const uint32_t n = 1u << bits;
        clear(s->bins, n);
        block_sync();
        each(row, [&](uint32_t, float v) {
            const uint32_t rank = rank_of(v), prefix = shift == 21 ? 0 : rank >> (shift + bits);
            if (prefix != found.rank) return;
            const uint64_t w = weight(v);
            if (w) add(&s->bins[rank >> shift & (n - 1)], w);
        });
#ifndef PLANT_NO_BARRIER_SELECT
        block_sync();
#endif
        const uint32_t t = threadIdx.x, group = n / 32;
        if (t < 32) {
            uint64_t sum = 0;
            // Each thread begins at another place of its group, so that the 32 threads read from
            // different banks.
            for (uint32_t i = 0; i < group; i++) sum += read(s->bins[t * group + (i + t) % group]);
            s->groups[t] = Sum{(uint32_t)sum, (uint32_t)(sum >> 32)};
        }
        block_sync();
        if (shift == 21) {
            const uint64_t total = total_of(s->groups, 32);
            found.rest = aim(total);
            if (found.rest >= total) {
                found.found = false;
                block_sync();
                return found;
            }
        }
        const uint32_t which = walk(s->groups, 32, found.rest);
        const uint32_t bin = which * group + walk(&s->bins[which * group], group, found.rest);
        found.rank = found.rank << bits | bin;
        found.at = read(s->bins[bin]);
#ifndef PLANT_CLEARED_EARLY
        block_sync();
#endif
        shift = shift == 21 ? 10 : shift - 10;
    }
    return found;
}

// Finds the id at which the running sum of weights, by ascending id, exceeds aim(sum of all
// weights). The aim must be less than that sum. Returns -1 where all weights are 0.
template <class W, class Aim> DEVICE int32_t find(Scratch *s, const Row &row, W weight, Aim aim) {
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t first = 0, n = row.n;
    uint64_t target = 0;
    for (bool begun = false;; begun = true) {
        // Long parts have a multiple of 128 ids, which a warp loads at once.
        uint32_t part = (n + 15) / 16;
        if (part > 128) part = (part + 127) / 128 * 128;
        clear(s->parts, 16);
        block_sync();
        const uint32_t from = first + warp * part,
                       end = first + n < from + part ? first + n : from + part;
        uint64_t sum = 0;
        if (from < end)
            each(row, from, end, lane, 32, [&](uint32_t id, float v) { sum += weight(id, v); });
        if (sum) add(&s->parts[warp], sum);
        block_sync();
        if (!begun) {
            const uint64_t total = total_of(s->parts, 16);
            if (total == 0) return -1;
            target = aim(total);
        }
        const uint32_t which = walk(s->parts, 16, target);
        first += which * part;
        n = n - which * part < part ? n - which * part : part;
        block_sync();
        if (n == 1) return (int32_t)first;
    }
}

// Returns the n-th id that has this rank, by ascending id.
DEVICE uint32_t last_of(Scratch *s, const Row &row, uint32_t rank, uint64_t n) {
    return (uint32_t)find(
        s, row, [&](uint32_t, float v) { return (uint64_t)(rank_of(v) == rank); },
        [&](uint64_t) { return n - 1; });
}

// ---- what is wanted of a row

const uint32_t ANY = 0xffffffffu;

DEVICE int32_t draw(Scratch *s, const SampleRow &c, const Row &row) {
    const float max = maximum(s, row);
    if (max == -INFINITY_F) return -1;
    if (c.halvings == 0) {
        return find(
            s, row, [&](uint32_t, float v) { return (uint64_t)(v == max); },
            [](uint64_t) { return 0; });
    }
    const Scale scale = {c.halvings, c.high, c.low, c.inverse};
    // The last candidate: its rank, and among the ids of that rank the last that is kept.
    uint32_t worst = ANY, last = ANY;
    if (c.top_k) {
        // Values that are too far below the largest one have no mass, so they need not be counted.
        const auto counted = [&](float v) {
            return (uint64_t)((v - max) * scale.halvings > -40.0f);
        };
        const Selected k = select(s, row, counted, [&](uint64_t) { return (uint64_t)c.top_k - 1; });
        if (k.found) worst = k.rank;
    }
    if (c.top_p != ANY) {
        const auto weight = [&](float v) { return rank_of(v) <= worst ? mass(scale, v, max) : 0; };
        const Selected p =
            select(s, row, weight, [&](uint64_t total) { return nucleus(c.top_p, total); });
        if (p.found) {
            // A token of this rank is kept as long as the mass before it is at most the bound.
            const uint64_t each_has = mass(scale, value_of(p.rank), max), n = p.rest / each_has + 1;
            worst = p.rank;
            if (n * each_has < p.at) last = last_of(s, row, p.rank, n);
        }
    }
    const uint64_t least = (uint64_t)c.min_high << 32 | c.min_low;
    const auto kept = [&](uint32_t id, float v) {
        const uint32_t rank = rank_of(v);
        if (rank > worst || (rank == worst && id > last)) return (uint64_t)0;
        const uint64_t m = mass(scale, v, max);
        return m >= least ? m : 0;
    };
    return find(s, row, kept, [&](uint64_t total) { return target_of(c.draw, total); });
}

// Writes the n best ids and their logits, in order.
DEVICE void alternatives(Scratch *s, uint32_t *out, uint32_t n, const Row &row) {
    const Selected k = select(
        s, row, [](float) { return (uint64_t)1; }, [&](uint64_t) { return (uint64_t)n - 1; });
    const uint32_t last = k.rest + 1 < k.at ? last_of(s, row, k.rank, k.rest + 1) : ANY;
    if (threadIdx.x == 0) s->count = 0;
    block_sync();
    each(row, [&](uint32_t id, float v) {
        const uint32_t rank = rank_of(v);
        if (rank < k.rank || (rank == k.rank && id <= last))
            s->bins[atomic_add(&s->count, 1)] = Sum{id, rank};
    });
    block_sync();
    // The threads found them in any order. Compared as 64-bit numbers (rank, then id), they sort
    // correctly.
    for (uint32_t i = threadIdx.x; i < n; i += 512) {
        const Sum mine = s->bins[i];
        uint32_t place = 0;
        for (uint32_t j = 0; j < n; j++) place += read(s->bins[j]) < read(mine) ? 1 : 0;
        out[2 * place] = mine.low;
        out[2 * place + 1] = as_bits(value_of(mine.high));
    }
    block_sync();
}

KERNEL(sample) {
    SHARED(shared);
    Scratch *s = (Scratch *)shared;
    start_next();
    wait_for_last();
    const SampleRow &c = p.rows[blockIdx.x];
    if (c.given == GPU_NO_ROW) return;
    uint32_t *words = p.out + (size_t)blockIdx.x * p.out_stride;
    SampleOut *out = (SampleOut *)words;
    const Row raw = {p.logits + (size_t)blockIdx.x * p.stride, nullptr, 1, p.vocab_size};
    bool possible = true;
    if (c.scored) {
        const Scale one = {p.halvings, p.high, p.low, p.inverse};
        const float max = maximum(s, raw);
        possible = max != -INFINITY_F;
        uint64_t sum = 0;
        clear(s->parts, 1);
        block_sync();
        if (possible) {
            each(raw, [&](uint32_t, float v) { sum += mass(one, v, max); });
            add(s->parts, sum);
        }
        block_sync();
        if (threadIdx.x == 0) {
            out->max = max;
            out->low = s->parts->low;
            out->high = s->parts->high;
        }
        block_sync();
        if (c.n_top) alternatives(s, words + sizeof(SampleOut) / 4, c.n_top, raw);
    }
    int32_t token = c.given;
    if (token == GPU_DRAW) {
        const Row row = {raw.logits,
            c.history == GPU_NO_HISTORY ? nullptr
                                        : p.histories + (size_t)c.history * p.history_stride,
            c.penalty, c.n_tokens};
        token = draw(s, c, row);
    } else if (!possible) {
        token = -1;
    }
    if (threadIdx.x == 0) {
        out->token = token;
        p.next[blockIdx.x] = token;
        if (c.scored) out->logit = token < 0 ? -INFINITY_F : clean(raw.logits[token]);
        // Sets the token's bit for a step that follows. All threads have read the history:
        // `draw` ends with a barrier.
        if (c.given == GPU_DRAW && c.history != GPU_NO_HISTORY && token >= 0)
            p.histories[(size_t)c.history * p.history_stride + (uint32_t)token / 32] |=
                1u << token % 32;
    }
}
