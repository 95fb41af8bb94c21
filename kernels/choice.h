// How a token is chosen among the logits of a row: the arithmetic of probabilities, sums in shared
// memory, passes over a row, and the search for a rank or an id by running sums. Part of gpu.h;
// sample.cu says how its kernels use it.
//
// Weights are integers, so any order of additions gives the same sum. Therefore
// src/engine/sampler/, which works in another way, picks the same token.
// src/backend/choice.rs has the arithmetic of both; the functions here repeat it operation
// for operation.
//
// All threads add to sums in shared memory atomically. A 64-bit sum consists of two 32-bit words; a
// carry from the low word is added to the high one.

namespace choice {

struct Sum {
    uint32_t low, high;
};

const uint32_t THREADS = 512, N_WARPS = THREADS / 32;
const uint32_t LIST = 3072; // tokens of a bucket that fit into shared memory

struct Picked {
    uint64_t rest, has;
    uint32_t at;
};

struct Scratch {
    Sum bins[2048]; // the histogram of `select`; the sums of slices, or of the ids of one
    Sum list[LIST]; // tokens that `gather` has collected, as {id, rank}
    Sum masses[GPU_BUCKETS], counts[GPU_BUCKETS];
    Sum warps[N_WARPS];
    Picked picked;
    uint32_t count, chosen, is_last;
};
static_assert(sizeof(Scratch) <= GPU_SAMPLE_DRAW_SHARED, "the launch gives this much");
static_assert(sizeof(SampleSlice) == GPU_SAMPLE_SLICE, "the host gives this much");
static_assert(GPU_MOST_SLICES <= 2048 && GPU_MAX_TOP <= LIST, "there is room");

// ---- the arithmetic of src/backend/choice.rs

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
struct Parts {
    uint32_t high, low; // low is a number with a sign
};
DEVICE uint64_t whole(uint32_t high, uint32_t low) {
    return ((uint64_t)high << 19) + (uint64_t)(int64_t)(int32_t)low;
}
DEVICE Parts mass_parts(const Scale &s, float value, float max) {
    const float ROUND = 8388608.0f, ROUND_SIGNED = 12582912.0f;
    const float scaled = share(s, value, max) * 1048576.0f, rounded = scaled + ROUND;
    const float rest = (scaled - (rounded - ROUND)) * 524288.0f + ROUND_SIGNED;
    return {as_bits(rounded) - as_bits(ROUND), as_bits(rest) - as_bits(ROUND_SIGNED)};
}
DEVICE uint64_t mass(const Scale &s, float value, float max) {
    const Parts p = mass_parts(s, value, max);
    return whole(p.high, p.low);
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
// How many of n tokens, as {id, rank}, come before this one.
DEVICE uint32_t place_of(const Sum *all, uint32_t n, const Sum &one) {
    uint32_t place = 0;
    UNROLL_BY(4)
    for (uint32_t i = 0; i < n; i++) place += read(all[i]) < read(one) ? 1 : 0;
    return place;
}
DEVICE Sum sum_of(uint64_t v) { return Sum{(uint32_t)v, (uint32_t)(v >> 32)}; }
DEVICE void clear(Sum *s, uint32_t n) {
    for (uint32_t i = threadIdx.x; i < n; i += THREADS) s[i] = Sum{0, 0};
}
DEVICE uint64_t shuffle_long(uint64_t v, int mask) {
    return (uint64_t)shuffle_xor((uint32_t)(v >> 32), mask) << 32 | shuffle_xor((uint32_t)v, mask);
}
DEVICE uint64_t warp_total(uint64_t v) {
    for (int m = 1; m < 32; m *= 2) v += shuffle_long(v, m);
    return v;
}

// Finds the sum, of n, at which the running sum exceeds aim(sum of all), and what is left of the
// aim before it. Returns false if that is nowhere. Begins and ends with a barrier of the block.
template <class Aim> DEVICE bool pick(Scratch *s, const Sum *items, uint32_t n, Aim aim) {
#ifndef PLANT_NO_BARRIER_PICK
    block_sync();
#endif
    const uint32_t t = threadIdx.x, each = (n + THREADS - 1) / THREADS, from = smaller(t * each, n),
                   end = smaller(from + each, n);
    uint64_t mine = 0, before = 0, total = 0;
    UNROLL_BY(1)
    for (uint32_t i = from; i < end; i++) mine += read(items[i]);
    uint64_t sum = mine;
    for (int m = 1; m < 32; m *= 2) {
        const uint64_t other = shuffle_long(sum, m);
        if (t & m) before += other;
        sum += other;
    }
    if (t % 32 == 0) s->warps[t / 32] = sum_of(sum);
#ifndef PLANT_NO_BARRIER_WARPS
    block_sync();
#endif
    for (uint32_t i = 0; i < N_WARPS; i++) {
        const uint64_t v = read(s->warps[i]);
        if (i < t / 32) before += v;
        total += v;
    }
    const uint64_t target = aim(total);
    // Also false where target < before: the difference is then more than any sum.
    if (target - before < mine && target < total) {
        uint64_t rest = target - before, v = read(items[from]);
        uint32_t i = from;
        UNROLL_BY(1)
        for (; rest >= v; v = read(items[++i])) rest -= v;
        s->picked = {rest, v, i};
    }
#ifndef PLANT_NO_BARRIER_PICKED
    block_sync();
#endif
    return target < total;
}

// ---- passes over a row

struct Row {
    const float *logits;
    const uint32_t *history; // or null
    float penalty;
    uint32_t n;
};
// Whether `change` writes the row from which the token is drawn.
DEVICE bool is_changed(const SampleRow &c) { return c.mask || c.n_edits; }
DEVICE const uint32_t *history_of(
    const SampleRow &c, const uint32_t *histories, uint32_t history_stride) {
    return c.history == GPU_NO_HISTORY ? nullptr : histories + (size_t)c.history * history_stride;
}
DEVICE uint32_t slices_of(uint32_t n) { return (n + GPU_SLICE - 1) / GPU_SLICE; }

// Calls f(id, raw logit, whether the token has occurred) for ids first .. end; `first` is a
// multiple of 4. `count` threads share the ids; this thread is number `at`. AHEAD: loads in flight.
template <int AHEAD, class F> DEVICE void each_raw(
    const Row &row, uint32_t first, uint32_t end, uint32_t at, uint32_t count, F f) {
    UNROLL_BY(1)
    for (uint32_t i = first + 4 * at; i < end;) {
        Words4 w[AHEAD];
        uint32_t seen[AHEAD];
        UNROLL
        for (int u = 0; u < AHEAD; u++) {
            const uint32_t from = i + u * 4 * count < end ? i + u * 4 * count : i;
            w[u] = load_fresh(row.logits + from);
            seen[u] = row.history ? row.history[from / 32] >> from % 32 : 0;
        }
        // One after another: f is long, and the code of each launch is cold.
        UNROLL_BY(1)
        for (int u = 0; u < AHEAD && i < end; u++, i += 4 * count) {
            UNROLL
            for (uint32_t j = 0; j < 4; j++)
                if (i + j < end) f(i + j, clean(as_float(w[0].w[j])), (seen[0] >> j & 1) != 0);
            UNROLL
            for (int next = 1; next < AHEAD; next++)
                w[next - 1] = w[next], seen[next - 1] = seen[next];
        }
    }
}
// Calls f(id, value), with the penalty.
template <int AHEAD, class F>
DEVICE void each(const Row &row, uint32_t first, uint32_t end, uint32_t at, uint32_t count, F f) {
    each_raw<AHEAD>(row, first, end, at, count,
        [&](uint32_t id, float v, bool seen) { f(id, seen ? penalised(v, row.penalty) : v); });
}
// The same for one slice, by `count` threads.
template <int AHEAD, class F>
DEVICE void each_of(const Row &row, uint32_t slice, uint32_t at, uint32_t count, F f) {
    const uint32_t from = slice * GPU_SLICE;
    each<AHEAD>(row, from, smaller(from + GPU_SLICE, row.n), at, count, f);
}

// Tokens for which in(id, value) is true, and the passes over them: from the list, or, if they do
// not fit there, from the row.
template <class In> struct Members {
    Scratch *s;
    const Row &row;
    In in;
    template <class F> DEVICE_MEMBER void operator()(F f) const {
        const uint32_t n = s->count;
        if (n > LIST)
            each<1>(row, 0, row.n, threadIdx.x, THREADS, [&](uint32_t id, float v) {
                if (in(id, v)) f(id, v);
            });
        else
            for (uint32_t i = threadIdx.x; i < n; i += THREADS)
                f(s->list[i].low, value_of(s->list[i].high));
    }
};

// Collects the tokens for which in(id, value) is true in the list, in any order. None are in slices
// for which has(slice) is 0, and none has a value that is less than `least` or more than `most`.
template <class Has, class In>
DEVICE void gather(Scratch *s, const Row &row, Has has, const In &in, float least, float most) {
    const uint32_t t = threadIdx.x, n = slices_of(row.n);
    // A warp takes a part of a slice, because few slices have such tokens where logits differ much.
    constexpr uint32_t PARTS = 8, PART = GPU_SLICE / PARTS, AHEAD = 4;
    static_assert(PART % 4 == 0 && PART <= AHEAD * 128, "a warp loads a part at once");
    for (uint32_t i = t; i < n; i += THREADS) s->bins[i].low = has(i);
    if (t == 0) s->count = 0;
#ifndef PLANT_NO_BARRIER_FLAGS
    block_sync();
#endif
    UNROLL_BY(1)
    for (uint32_t i = t / 32; i < n * PARTS; i += N_WARPS) {
        if (!s->bins[i / PARTS].low) continue;
        const uint32_t first = i * PART, end = smaller(first + PART, row.n);
        Words4 w[AHEAD];
        uint32_t seen[AHEAD];
        UNROLL
        for (uint32_t u = 0; u < AHEAD; u++) {
            const uint32_t from = first + 4 * (t % 32) + 128 * u;
            w[u] = Words4{};
            seen[u] = 0;
            if (from >= end) continue;
            w[u] = load_fresh(row.logits + from);
            if (row.history) seen[u] = row.history[from / 32] >> from % 32 & 15;
        }
        UNROLL_BY(1)
        for (uint32_t from = first + 4 * (t % 32); from < end; from += 128) {
            // Two comparisons decide for almost all tokens. They are false for NaN, so a bound of
            // NaN excludes no token.
            bool maybe = seen[0] != 0;
            UNROLL
            for (int j = 0; j < 4; j++)
                maybe |= !(as_float(w[0].w[j]) < least || as_float(w[0].w[j]) > most);
            UNROLL_BY(1)
            for (uint32_t id = from; maybe && id < smaller(from + 4, end); id++, seen[0] >>= 1) {
                const float raw = clean(as_float(w[0].w[0]));
                const float v = seen[0] & 1 ? penalised(raw, row.penalty) : raw;
                UNROLL
                for (int j = 1; j < 4; j++) w[0].w[j - 1] = w[0].w[j];
                if (!in(id, v)) continue;
                const uint32_t at = atomic_add(&s->count, 1);
                if (at < LIST) s->list[at] = Sum{id, rank_of(v)};
            }
            UNROLL
            for (uint32_t next = 1; next < AHEAD; next++)
                w[next - 1] = w[next], seen[next - 1] = seen[next];
        }
    }
#ifndef PLANT_NO_BARRIER_LIST
    block_sync();
#endif
}

struct Selected {
    bool found;    // the sum of all weights is more than the target
    uint32_t rank; // the first rank at which the running sum exceeds the target
    uint64_t rest; // the target minus the weights of better ranks
    uint64_t at;   // the total weight of that rank
};

// Finds the rank at which the running sum of weights, best rank first, exceeds aim(sum of all
// weights).
template <class Each, class W, class Aim>
DEVICE Selected select(Scratch *s, const Each &all, W weight, Aim aim) {
    Selected found = {true, 0, 0, 0};
    UNROLL_BY(1)
    for (int shift = 21; shift >= 0;) {
        const int bits = shift == 0 ? 10 : 11;
        const uint32_t n = 1u << bits;
        clear(s->bins, n);
#ifndef PLANT_NO_BARRIER_SELECT
        block_sync();
#endif
        all([&](uint32_t, float v) {
            const uint32_t rank = rank_of(v), prefix = shift == 21 ? 0 : rank >> (shift + bits);
            if (prefix != found.rank) return;
            const uint64_t w = weight(v);
            if (w) add(&s->bins[rank >> shift & (n - 1)], w);
        });
        const auto target = [&](uint64_t total) { return shift == 21 ? aim(total) : found.rest; };
        found.found = pick(s, s->bins, n, target);
        if (!found.found) break;
        found = {true, found.rank << bits | s->picked.at, s->picked.rest, s->picked.has};
        shift = shift == 21 ? 10 : shift - 10;
    }
    return found;
}

// The same, for an aim that is less than the sum of all, of the tokens in the list.
template <class Each, class W>
DEVICE Selected select_listed(Scratch *s, const Each &all, W weight, uint64_t rest) {
    constexpr uint32_t FEW = 128;
    const uint32_t t = threadIdx.x, n = s->count;
    if (n > FEW) return select(s, all, weight, [&](uint64_t) { return rest; });
    // Each thread has one token, and adds the weights of those that are better.
    const uint32_t rank = t < n ? s->list[t].high : 0;
    if (t < n) s->bins[t] = sum_of(weight(value_of(rank)));
#ifndef PLANT_NO_BARRIER_FEW_LISTED
    block_sync();
#endif
    uint64_t before = 0, same = 0;
    bool first = t < n; // of its rank
    UNROLL_BY(2)
    for (uint32_t i = 0; i < n && t < n; i++) {
        const uint64_t w = read(s->bins[i]);
        before += s->list[i].high < rank ? w : 0;
        same += s->list[i].high == rank ? w : 0;
        first &= i >= t || s->list[i].high != rank;
    }
    if (first && rest - before < same) s->picked = {rest - before, same, rank};
#ifndef PLANT_NO_BARRIER_FEW_PICKED
    block_sync();
#endif
    return {true, s->picked.at, s->picked.rest, s->picked.has};
}

// Finds the id at which the running sum of a slice's weights, by ascending id, exceeds aim(their
// sum). Returns -1 if that is nowhere.
template <class W, class Aim>
DEVICE int32_t find_in(Scratch *s, const Row &row, uint32_t slice, W weight, Aim aim) {
    const uint32_t t = threadIdx.x, first = slice * GPU_SLICE,
                   end = smaller(first + GPU_SLICE, row.n);
    const uint32_t run = ((end - first + THREADS - 1) / THREADS + 3) / 4 * 4;
    const uint32_t from = smaller(first + t * run, end), to = smaller(from + run, end);
    uint64_t sum = 0;
    each<2>(row, from, to, 0, 1, [&](uint32_t id, float v) { sum += weight(id, v); });
    s->bins[t] = sum_of(sum);
    if (!pick(s, s->bins, THREADS, aim)) return -1;
    if (t == s->picked.at) {
        uint64_t rest = s->picked.rest;
        bool open = true;
        each<1>(row, from, to, 0, 1, [&](uint32_t id, float v) {
            const uint64_t w = weight(id, v);
            if (open && rest < w) s->chosen = id, open = false;
            rest -= w;
        });
    }
#ifndef PLANT_NO_BARRIER_CHOSEN
    block_sync();
#endif
    return (int32_t)s->chosen;
}

// The same for the whole row.
template <class W, class Aim> DEVICE int32_t find(Scratch *s, const Row &row, W weight, Aim aim) {
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, n = slices_of(row.n);
    for (uint32_t i = warp; i < n; i += N_WARPS) {
        uint64_t sum = 0;
        each_of<1>(row, i, lane, 32, [&](uint32_t id, float v) { sum += weight(id, v); });
        sum = warp_total(sum);
        if (lane == 0) s->bins[i] = sum_of(sum);
    }
    if (!pick(s, s->bins, n, aim)) return -1;
    const Picked p = s->picked;
    return find_in(s, row, p.at, weight, [&](uint64_t) { return p.rest; });
}

// Returns the n-th id that has this rank, by ascending id.
DEVICE uint32_t last_of(Scratch *s, const Row &row, uint32_t rank, uint64_t n) {
    return (uint32_t)find(
        s, row, [&](uint32_t, float v) { return (uint64_t)(rank_of(v) == rank); },
        [&](uint64_t) { return n - 1; });
}

} // namespace choice
