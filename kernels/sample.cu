// From logits to a token: penalty, temperature, top-k, top-p, min-p, draw; log probabilities and
// alternatives.
//
// A row is cut into slices of GPU_SLICE ids, with one block for each slice. `sample_max` finds the
// largest logit. Masses are relative to this logit, so they take a launch of their own: the blocks
// of `sample_draw` sort the masses into buckets by the distance to the largest logit, and leave the
// sum of each bucket. The last block of a row to finish goes on alone with these sums. It hardly
// needs the logits again.
//
// Candidates are ordered by rank (descending logit); equal logits are ordered by ascending id.
// Top-k and top-p ask the same question: at which rank does a running sum of weights exceed a
// bound? The sums name the bucket; `gather` collects the tokens of that bucket; and `select`
// answers by radix selection on the 32 bits of their ranks. A tie at the bound and the draw ask the
// question by ascending id instead of rank. There, sums name the slice, and `find_in` finds the id
// in it.
//
// Sums of integers do not depend on their order. So a result does not depend on buckets and slices.
// choice.h has the functions from which these kernels are built.
//
// sample_draw has 150 KB of machine code. Each place that passes over the logits has its own copy
// of the loop, in which a thread takes four logits at a time, with the code that handles a logit
// there. A block runs only the loops that its request needs, most of them once. The kernel has 107
// registers, so that one block runs on a multiprocessor. With 64 registers it would spill 40 bytes,
// and two blocks would gain little: the schedulers issue in 4,280 of a block's 8,200 cycles.
#include "gpu.h"

using namespace choice;

// The sums that a block of sample_draw makes of its slice. They stay within 32 bits, because a
// slice has less than 4096 ids.
struct Histogram {
    uint32_t high[GPU_BUCKETS], low[GPU_BUCKETS];
    uint32_t kept_high[GPU_BUCKETS], kept_low[GPU_BUCKETS];
    uint32_t count[GPU_BUCKETS];
};
static_assert(sizeof(Histogram) <= sizeof(Scratch::bins) && GPU_SLICE < 4096, "they fit");
static_assert(THREADS == 2 * GPU_BUCKETS, "two threads for each bucket");

// ---- what is wanted of a row

const uint32_t ANY = 0xffffffffu;

DEVICE bool is_last_of_row(const SampleParams &p, uint32_t *flag) {
#ifndef PLANT_NO_BARRIER_LEFT
    block_sync();
#endif
    return is_last_block(p.counters + blockIdx.y, gridDim.x, flag);
}

// Writes the row's token, which is known now. One thread calls this.
DEVICE void finish(const SampleParams &p, const SampleRow &c, int32_t token) {
    SampleOut *out = (SampleOut *)(p.out + (size_t)blockIdx.y * p.out_stride);
    out->token = token;
    if (is_changed(c)) {
        uint32_t *const possible = p.possible + blockIdx.y;
        if (token < 0 && *possible) out->token = GPU_NONE_LEFT;
#ifndef PLANT_POSSIBLE_LEFT
        *possible = 0;
#endif
    }
    p.next[blockIdx.y] = token;
    if (c.scored)
        out->logit = token < 0 ? -INFINITY_F
                               : clean(p.logits[(size_t)blockIdx.y * p.stride + (uint32_t)token]);
    // Sets the token's bit for a step that follows. Only the last block of the row gets here, and
    // all of its threads have read the history, because a barrier comes before.
    if (c.given == GPU_DRAW && c.history != GPU_NO_HISTORY && token >= 0)
        p.histories[(size_t)c.history * p.history_stride + (uint32_t)token / 32] |= 1u
                                                                                    << token % 32;
}

// The better one of two tokens, each as {rank, id}: the smaller number.
DEVICE uint64_t better(uint64_t a, uint64_t b) { return a < b ? a : b; }
DEVICE uint64_t warp_best(uint64_t v) {
    for (int m = 1; m < 32; m *= 2) v = better(v, shuffle_long(v, m));
    return v;
}
// The token of {rank, id}; -1 if no token is possible.
DEVICE int32_t token_of(uint64_t best) {
    return (uint32_t)(best >> 32) < rank_of(-INFINITY_F) ? (int32_t)(uint32_t)best : -1;
}

DEVICE Row raw_row(const SampleParams &p) {
    return {p.logits + (size_t)blockIdx.y * p.stride, nullptr, 1, p.vocab_size};
}
// The logits that a token is drawn from.
DEVICE Row drawn_row(const SampleParams &p, const SampleRow &c) {
    const size_t at = (size_t)blockIdx.y * p.stride;
    if (is_changed(c)) return {p.changed + at, nullptr, 1, c.n_tokens};
    return {p.logits + at, history_of(c, p.histories, p.history_stride), c.penalty, c.n_tokens};
}
DEVICE bool is_drawn(const SampleRow &c) { return c.given == GPU_DRAW && c.halvings != 0; }

KERNEL(sample_max) {
    struct Shared {
        uint64_t best[N_WARPS];
        float max[N_WARPS], sum[N_WARPS];
        uint32_t is_last;
    };
    static_assert(sizeof(Shared) <= GPU_SAMPLE_MAX_SHARED, "the launch gives this much");
    SHARED(shared);
    Shared *s = (Shared *)shared;
    start_next();
    wait_for_last();
    const SampleRow &c = p.rows[blockIdx.y];
    const uint32_t t = threadIdx.x, lane = t % 32;
    if (c.given == GPU_NO_ROW) return;
    if (c.given != GPU_DRAW && !c.scored) {
        if (blockIdx.x == 0 && t == 0) finish(p, c, c.given);
        return;
    }
    const Row row = drawn_row(p, c);
    const bool changed = is_changed(c);
    const uint32_t first = blockIdx.x * GPU_SLICE, past = smaller(first + GPU_SLICE, p.vocab_size),
                   end = changed ? smaller(past, row.n) : past;
    float max = -INFINITY_F, top = max, sum = 0;
    uint32_t id_of_top = ~0u;
    each_raw<2>(row, first, end, t, THREADS, [&](uint32_t id, float v, bool seen) {
        max = fmaxf(max, v);
        if (id >= row.n) return;
        if (seen) v = penalised(v, row.penalty);
        if (v > top) top = v, id_of_top = id; // a thread's ids ascend
        if (v > -INFINITY_F) sum += v;
    });
    // The host is told the largest raw logit.
    if (changed) max = -INFINITY_F;
    if (changed && c.scored)
        each_raw<2>(raw_row(p), first, past, t, THREADS,
            [&](uint32_t, float v, bool) { max = fmaxf(max, v); });
    uint64_t best = warp_best((uint64_t)rank_of(top) << 32 | id_of_top);
    max = group_max(max, 32);
    sum = group_sum(sum, 32);
    if (lane == 0) s->best[t / 32] = best, s->max[t / 32] = max, s->sum[t / 32] = sum;
#ifndef PLANT_NO_BARRIER_MAX
    block_sync();
#endif
    SampleSlice *const slices = p.slices + (size_t)blockIdx.y * gridDim.x;
    if (t < 32) {
        best = warp_best(lane < N_WARPS ? s->best[lane] : ~0ull);
        max = group_max(lane < N_WARPS ? s->max[lane] : -INFINITY_F, 32);
        sum = group_sum(lane < N_WARPS ? s->sum[lane] : 0, 32);
        if (lane == 0)
            store16(&slices[blockIdx.x],
                Words4{{(uint32_t)(best >> 32), (uint32_t)best, as_bits(max), as_bits(sum)}});
    }
    if (c.scored || c.halvings != 0) return; // sample_draw goes on
    if (!is_last_of_row(p, &s->is_last) || t >= 32) return;
    best = ~0ull;
#ifdef PLANT_ONE_SLICE
    const uint32_t n_slices = 1;
#else
    const uint32_t n_slices = gridDim.x;
#endif
    for (uint32_t i = lane; i < n_slices; i += 32) {
        const Words2 of = load_fenced8(&slices[i]);
        best = better(best, (uint64_t)of.w[0] << 32 | of.w[1]);
    }
    best = warp_best(best);
    if (lane == 0) finish(p, c, token_of(best));
}

// What sample_max has found out about a row.
struct Facts {
    uint64_t best;
    float max; // the largest raw logit
    float sum;
};
// Each warp reads the slices for itself. All warps read in the same order.
DEVICE Facts facts_of(const SampleSlice *slices) {
    Facts f = {~0ull, -INFINITY_F, 0};
    for (uint32_t i = threadIdx.x % 32; i < gridDim.x; i += 32) {
        const Words4 w = load_fresh(&slices[i]);
        f.best = better(f.best, (uint64_t)w.w[0] << 32 | w.w[1]);
        f.max = fmaxf(f.max, as_float(w.w[2]));
        f.sum += as_float(w.w[3]);
    }
    return {warp_best(f.best), group_max(f.max, 32), group_sum(f.sum, 32)};
}

// The distance of a logit from the largest one, in GPU_BUCKETS steps.
struct Buckets {
    float max, halvings, steps;

    // Most logits lie within a certain distance of the largest one, namely twice the distance of
    // the mean, or so far away that they have no share. A coarser or finer cut would give the same
    // tokens.
    DEVICE_MEMBER Buckets(const SampleRow &c, const Facts &f)
        : max(value_of((uint32_t)(f.best >> 32))), halvings(c.halvings) {
        // In a changed row, few tokens may be left, too few for their mean to say much.
        const float range =
            is_changed(c) ? 40.0f : 2 * (max - f.sum / (float)c.n_tokens) * halvings;
        steps = GPU_BUCKETS / fmaxf(fminf(range, 40.0f), 1e-6f);
    }
    // A value that has no share is in bucket GPU_BUCKETS. Each operation keeps the order, so a
    // bucket has consecutive ranks.
    DEVICE_MEMBER uint32_t of(float v) const {
        const float away = (v - max) * halvings;
        return away > -40.0f ? (uint32_t)fminf(-away * steps, GPU_BUCKETS - 1)
                             : (uint32_t)GPU_BUCKETS;
    }
};

// Sums the masses of the block's slice by buckets.
DEVICE void sum_slice(
    Scratch *s, const SampleRow &c, const Row &row, const Buckets &buckets, SampleSlice *slice) {
    Histogram *h = (Histogram *)s->bins;
    const Scale scale = {c.halvings, c.high, c.low, c.inverse};
    const uint64_t least = (uint64_t)c.min_high << 32 | c.min_low;
    const uint32_t t = threadIdx.x;
    clear(s->bins, (sizeof(Histogram) + 7) / 8);
#ifndef PLANT_NO_BARRIER_SLICE
    block_sync();
#endif
    each_of<2>(row, blockIdx.x, t, THREADS, [&](uint32_t, float v) {
        const uint32_t at = buckets.of(v);
        if (at == GPU_BUCKETS) return;
        const Parts p = mass_parts(scale, v, buckets.max);
#ifdef PLANT_NOT_ATOMIC_SLICE
        h->high[at] += p.high;
#else
        atomic_add(&h->high[at], p.high);
#endif
        atomic_add(&h->low[at], p.low);
        if (c.top_k) atomic_add(&h->count[at], 1);
        if (least > 1 && whole(p.high, p.low) >= least)
            atomic_add(&h->kept_high[at], p.high), atomic_add(&h->kept_low[at], p.low);
    });
#ifndef PLANT_NO_BARRIER_SUMMED
    block_sync();
#endif
    if (t < GPU_BUCKETS) {
        store8(&slice->masses[2 * t], Words2{{h->low[t], h->high[t]}});
        slice->counts[t] = h->count[t];
    } else {
        const uint32_t b = t - GPU_BUCKETS;
        store8(&slice->kept[2 * b], Words2{{h->kept_low[b], h->kept_high[b]}});
    }
}

DEVICE int32_t draw(Scratch *s, const SampleRow &c, const Row &row, const Buckets &buckets,
    const SampleSlice *slices) {
    const uint32_t t = threadIdx.x, lane = t % 32, n_slices = slices_of(row.n);
    const Scale scale = {c.halvings, c.high, c.low, c.inverse};
    const float max = buckets.max;
    uint64_t sum = 0;
    UNROLL_BY(8)
    for (uint32_t i = 0; i < n_slices; i++)
        if (t < GPU_BUCKETS) {
            const Words2 w = load_fenced8(&slices[i].masses[2 * t]);
            sum += whole(w.w[1], w.w[0]);
        } else if (c.top_k) {
            sum += load_fenced(&slices[i].counts[t - GPU_BUCKETS]);
        }
    (t < GPU_BUCKETS ? &s->masses[t] : &s->counts[t - GPU_BUCKETS])[0] = sum_of(sum);
    // bucket: the bucket of the last candidate. worst: its rank. last: the last id that is kept
    // among the ids of that rank. All tokens of better buckets are kept.
    uint32_t bucket = GPU_BUCKETS, worst = ANY, last = ANY;
    const auto in = [&](uint32_t, float v) { return buckets.of(v) == bucket; };
    const auto has = [&](uint32_t i) {
        const Words2 w = load_fenced8(&slices[i].masses[2 * bucket]);
        return w.w[0] | w.w[1] | load_fenced(&slices[i].counts[bucket]);
    };
    const Members<decltype(in)> members = {s, row, in};
    // First top-k, then top-p among the tokens that top-k keeps.
    UNROLL_BY(1)
    for (int by_mass = 0; by_mass < 2; by_mass++) {
        if (by_mass ? c.top_p == ANY : c.top_k == 0) continue;
        const auto weight = [&](float v) {
            return !by_mass ? 1 : rank_of(v) <= worst ? mass(scale, v, max) : (uint64_t)0;
        };
        Sum *const sums = by_mass ? s->masses : s->counts;
        if (bucket < GPU_BUCKETS) {
            // Sums the masses of only those tokens of the bucket that top-k keeps.
            if (t == 0) sums[bucket] = Sum{0, 0};
#ifndef PLANT_NO_BARRIER_KEPT
            block_sync();
#endif
            uint64_t of = 0;
            members([&](uint32_t, float v) { of += weight(v); });
            if (of) add(&sums[bucket], of);
        }
        const auto aim = [&](uint64_t total) {
            return by_mass ? nucleus(c.top_p, total) : (uint64_t)c.top_k - 1;
        };
        if (!pick(s, sums, smaller(bucket + 1, GPU_BUCKETS), aim)) continue;
        const Picked found = s->picked;
        if (found.at != bucket) {
            bucket = found.at;
            // The range of the bucket's values, made wider by far more than rounding moves them.
            // The last bucket has no lower end.
            const float step = 1 / (buckets.steps * buckets.halvings),
                        slack = fabsf(max) * 1e-6f + 1e-30f;
            const float least = max - (float)(bucket + 1) * step * 1.00001f - slack,
                        most = max - (float)bucket * step * 0.99999f + slack;
            gather(s, row, has, in, bucket == GPU_BUCKETS - 1 ? -INFINITY_F : least, most);
        }
        const Selected k = select_listed(s, members, weight, found.rest);
        worst = k.rank;
        // A token of this rank is kept as long as the mass before it is at most the bound.
        const uint64_t each_has = by_mass ? mass(scale, value_of(k.rank), max) : k.at,
                       n = each_has ? k.rest / each_has + 1 : 1;
        if (n * each_has < k.at) last = last_of(s, row, k.rank, n);
    }
    const uint64_t least = (uint64_t)c.min_high << 32 | c.min_low;
    const auto kept = [&](uint32_t id, float v) {
        const uint32_t rank = rank_of(v);
        if (rank > worst || (rank == worst && id > last)) return (uint64_t)0;
        const uint64_t m = mass(scale, v, max);
        return m >= least ? m : 0;
    };
    // The mass of the kept tokens of each slice.
    for (uint32_t i = t / 32; i < n_slices; i += N_WARPS) {
        const uint32_t *from = least > 1 ? slices[i].kept : slices[i].masses;
        sum = 0;
        UNROLL
        for (uint32_t u = 0; u < GPU_BUCKETS; u += 64) {
            const uint32_t b = u + 2 * lane;
            if (b >= bucket) continue;
            const Words4 w = load_fenced16(from + 2 * b);
            sum += whole(w.w[1], w.w[0]) + (b + 1 < bucket ? whole(w.w[3], w.w[2]) : 0);
        }
        sum = warp_total(sum);
        if (lane == 0) s->bins[i] = sum_of(sum);
    }
    if (bucket < GPU_BUCKETS) {
#ifndef PLANT_NO_BARRIER_SLICES
        block_sync();
#endif
        members([&](uint32_t id, float v) {
            const uint64_t m = kept(id, v);
            if (m) add(&s->bins[id / GPU_SLICE], m);
        });
    }
    if (!pick(s, s->bins, n_slices, [&](uint64_t total) { return target_of(c.draw, total); }))
        return -1;
    const Picked found = s->picked;
    return find_in(s, row, found.at, kept, [&](uint64_t) { return found.rest; });
}

// Writes the n best ids and their logits, in order.
DEVICE void alternatives(
    Scratch *s, uint32_t *out, uint32_t n, const Row &row, const SampleSlice *slices) {
    const uint32_t t = threadIdx.x, n_slices = slices_of(row.n);
    const auto best_of = [&](uint32_t i) {
        return rank_of(as_float(load_fenced16(&slices[i]).w[2]));
    };
    // If there are at least n slices, take the best token of each slice: the n-th best of these
    // tokens bounds the n best tokens of the row from below. With fewer slices there is no such
    // bound, and a list of all tokens would overflow unless the row is short.
    if (t == 0) s->chosen = ANY;
    for (uint32_t i = t; i < n_slices; i += THREADS) s->bins[i] = Sum{i, best_of(i)};
#ifndef PLANT_NO_BARRIER_BOUND
    block_sync();
#endif
    for (uint32_t i = t; i < n_slices; i += THREADS)
        if (place_of(s->bins, n_slices, s->bins[i]) == n - 1) s->chosen = s->bins[i].high;
#ifndef PLANT_NO_BARRIER_BOUNDED
    block_sync();
#endif
    uint32_t worst = s->chosen, last = ANY;
    UNROLL_BY(1)
    for (bool exact = n > n_slices && row.n > LIST;; exact = true) {
        if (exact) {
            const Selected k = select(
                s, [&](auto f) { each<1>(row, 0, row.n, t, THREADS, f); },
                [](float) { return (uint64_t)1; }, [&](uint64_t) { return (uint64_t)n - 1; });
            worst = k.rank;
            last = last_of(s, row, k.rank, k.rest + 1);
        }
        gather(
            s, row, [&](uint32_t i) { return (uint32_t)(best_of(i) <= worst); },
            [&](uint32_t id, float v) {
                const uint32_t rank = rank_of(v);
                return rank < worst || (rank == worst && id <= last);
            },
            value_of(worst), INFINITY_F);
        if (s->count <= LIST || exact) break;
    }
    const uint32_t found = s->count;
    for (uint32_t i = t; i < found; i += THREADS) {
        const Sum mine = s->list[i];
        const uint32_t place = place_of(s->list, found, mine);
        if (place >= n) continue;
        out[2 * place] = mine.low;
        out[2 * place + 1] = as_bits(value_of(mine.high));
    }
    block_sync();
}

// One block to a multiprocessor: with 64 registers, the sums of `draw` would spill.
KERNEL_WIDE(sample_draw) {
    SHARED(shared);
    Scratch *s = (Scratch *)shared;
    start_next();
#ifndef PLANT_SLICES_EARLY
    wait_for_last();
#endif
    const SampleRow &c = p.rows[blockIdx.y];
    if (c.given == GPU_NO_ROW || !(c.scored || is_drawn(c))) return;
    const uint32_t t = threadIdx.x;
    SampleSlice *const slices = p.slices + (size_t)blockIdx.y * gridDim.x, *const slice =
                                                                               slices + blockIdx.x;
    const Facts facts = facts_of(slices);
#ifdef PLANT_SLICES_EARLY
    wait_for_last();
#endif
    const Row raw = raw_row(p), row = drawn_row(p, c);
    const bool possible = facts.max != -INFINITY_F;
    int32_t token = c.given == GPU_DRAW ? token_of(facts.best) : possible ? c.given : -1;
    // Whether the token is to be drawn among several.
    const bool open = is_drawn(c) && token >= 0;
    const Buckets buckets(c, facts);
    if (c.scored) {
        const Scale one = {p.halvings, p.high, p.low, p.inverse};
        uint64_t sum = 0;
        if (possible)
            each_of<2>(raw, blockIdx.x, t, THREADS,
                [&](uint32_t, float v) { sum += mass(one, v, facts.max); });
        sum = warp_total(sum);
        if (t % 32 == 0) s->warps[t / 32] = sum_of(sum);
#ifndef PLANT_NO_BARRIER_TOTAL
        block_sync();
#endif
        if (t < 32) {
            sum = warp_total(t < N_WARPS ? read(s->warps[t]) : 0);
            if (t == 0) store8(&slice->low, Words2{{(uint32_t)sum, (uint32_t)(sum >> 32)}});
        }
    }
    if (open) sum_slice(s, c, row, buckets, slice);
    if (!is_last_of_row(p, &s->is_last)) return;
    if (c.scored) {
        uint32_t *const words = p.out + (size_t)blockIdx.y * p.out_stride;
        SampleOut *const out = (SampleOut *)words;
        if (t < 32) {
            uint64_t sum = 0;
            for (uint32_t i = t; i < gridDim.x; i += 32) {
                const Words2 w = load_fenced8(&slices[i].low);
                sum += (uint64_t)w.w[1] << 32 | w.w[0];
            }
            sum = warp_total(sum);
            if (t == 0) {
                out->max = facts.max;
                out->low = (uint32_t)sum, out->high = (uint32_t)(sum >> 32);
            }
        }
        if (c.n_top) alternatives(s, words + sizeof(SampleOut) / 4, c.n_top, raw, slices);
    }
    if (open) token = draw(s, c, row, buckets, slices);
    if (t == 0) finish(p, c, token);
}
