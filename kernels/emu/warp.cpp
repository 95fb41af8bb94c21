// The operations of several threads together: barriers, exchanges between the lanes of a warp,
// matrix fragments; and waiting for copies.
#include "machine.h"

#include <utility>

namespace emu {

namespace {

// The running thread. It is looked up once for each operation, because calling machine() for every
// use takes longer than most operations.
struct Lane {
    Machine &m = machine();
    unsigned id = m.now->id() % 32;
    Warp &w = m.warps[m.now->id() / 32];

    // The part of a warp operation before its barrier; all lanes have the same `arg`. Returns the
    // parity from which to read after the barrier.
    int meet(Op op, int line, const uint32_t *value, int words, int arg = 0) {
        Barrier &b = w.barrier;
        int parity = b.generation & 1;
        if (w.exited) fail(line, "warp operation after %u lanes of the warp have exited", w.exited);
        if (b.arrived > 0 && (b.line != line || b.op != op))
            fail(line, "lanes of a warp disagree: line %d here, line %d in another lane", line,
                b.line);
        if (b.arrived > 0 && b.arg != arg)
            fail(line, "lanes of a warp disagree about an argument: %d and %d", arg, b.arg);
        b.op = op;
        b.arg = arg;
        for (int i = 0; i < words; i++) w.slot[parity][i][id] = value[i];
        return parity;
    }
    void wait(int line) { wait_at(m, w.barrier, 32, line); }
};

// The values of 16 lanes. The compiler makes vector instructions of operations on them, which it
// does not of loops over lanes whose numbers differ in one bit. (-Wno-psabi in test.sh: functions
// that take such vectors have another ABI where a machine has no AVX-512.)
typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));

// As fmaxf of two numbers, where 0 is greater than -0 and NaN is less than any number.
Floats maximum(Floats a, Floats b) {
    const Floats greater = ((a > b) | (b != b)) ? a : b;
    return a == b ? (Floats)((Ints)a & (Ints)b) : greater;
}

template <int BIT, int... LANE> Floats swap(Floats v, std::integer_sequence<int, LANE...>) {
    return __builtin_shufflevector(v, v, (LANE ^ BIT)...);
}
template <int BIT> Floats partners(Floats v) {
    return swap<BIT>(v, std::make_integer_sequence<int, 16>());
}

// A butterfly over the bits of `mask`, from the highest: for each bit, every lane combines its
// value with the value of the lane whose number differs in this bit. `f` commutes, so all lanes of
// a group get the same bits.
template <class F> void butterfly(float (&lanes)[32], unsigned mask, F f) {
    Floats low, high;
    memcpy(&low, lanes, sizeof low);
    memcpy(&high, lanes + 16, sizeof high);
    if (mask & 16) low = high = f(low, high);
    auto both = [&](unsigned bit, Floats (*other)(Floats)) {
        if (!(mask & bit)) return;
        low = f(low, other(low));
        high = f(high, other(high));
    };
    both(8, partners<8>);
    both(4, partners<4>);
    both(2, partners<2>);
    both(1, partners<1>);
    memcpy(lanes, &low, sizeof low);
    memcpy(lanes + 16, &high, sizeof high);
}

// What the last lane to arrive computes for all, in the place of their values. It is a function of
// its own so that the vectors take no room on the stacks of the other lanes.
__attribute__((noinline)) void exchange_all(Warp &w, int parity, Op op, int arg) {
    float all[32];
    memcpy(all, w.slot[parity][0], sizeof all);
    auto add = [](Floats a, Floats b) { return a + b; };
    if (op == Op::GroupSum)
        butterfly(all, (unsigned)arg - 1, add);
    else if (op == Op::GroupMax)
        butterfly(all, (unsigned)arg - 1, maximum);
    const unsigned mask = op == Op::ShuffleXor ? (unsigned)arg : 0;
    for (unsigned i = 0; i < 32; i++) w.slot[parity][0][i] = as_bits(all[i ^ mask]);
}

// The same for a product of two fragments: a row of the second operand is a vector.
__attribute__((noinline)) void mma_all(Warp &w, int parity) {
    typedef float Row __attribute__((vector_size(32)));
    Row b[16];
    memcpy(b, w.b[parity], sizeof b);
    for (unsigned i = 0; i < 16; i++) {
        Row sum;
        memcpy(&sum, w.d[parity][i], sizeof sum);
        for (unsigned k = 0; k < 16; k++) sum += w.a[parity][i][k] * b[k];
        memcpy(w.d[parity][i], &sum, sizeof sum);
    }
}

} // namespace

void cp_push(const Copy &c) { machine().now->copies.push_back(c); }
void cp_close() { machine().now->groups.push_back(machine().now->copies.size()); }
bool cp_next(int left, Copy &c) {
    Fiber *f = machine().now;
    if (f->groups.size() <= (size_t)left) return false;
    size_t end = f->groups[f->groups.size() - 1 - left];
    if (f->copied < end) {
        c = f->copies[f->copied++];
        return true;
    }
    // Finished copies are dropped; otherwise a long loop would keep all its copies.
    f->copies.erase(f->copies.begin(), f->copies.begin() + end);
    f->groups.erase(f->groups.begin(), f->groups.end() - left);
    for (size_t &g : f->groups) g -= end;
    f->copied = 0;
    return false;
}

void block_barrier(int line) {
    Machine &m = machine();
    if (m.exited) fail(line, "barrier of the block after %u threads have exited", m.exited);
    if (m.block.arrived && m.block.line != line)
        fail(line, "divergent barrier: this thread at line %d, another at line %d", line,
            m.block.line);
    wait_at(m, m.block, m.now->view.block_dim.x, line);
}

void named_barrier(int id, unsigned threads, int line) {
    Machine &m = machine();
    if (id < 1 || id > 15 || threads == 0 || threads % 32 || threads > m.now->view.block_dim.x)
        fail(line, "named barrier %d of %u threads", id, threads);
    wait_at(m, m.named[id], threads, line);
}

void warp_barrier(int line) {
    Lane lane;
    lane.meet(Op::Sync, line, nullptr, 0);
    lane.wait(line);
}

float exchange(Op op, float v, int arg, int line) {
    Lane lane;
    Warp &w = lane.w;
    const uint32_t mine = as_bits(v);
    int parity = lane.meet(op, line, &mine, 1, arg);
    if (w.barrier.arrived == 31) exchange_all(w, parity, op, arg);
    lane.wait(line);
    return as_float(w.slot[parity][0][lane.id]);
}

uint32_t ballot(bool v, int line) {
    Lane lane;
    const uint32_t mine = v;
    int parity = lane.meet(Op::Ballot, line, &mine, 1);
    lane.wait(line);
    uint32_t bits = 0;
    for (unsigned i = 0; i < 32; i++) bits |= lane.w.slot[parity][0][i] << i;
    return bits;
}

void ldmatrix(uint32_t (&r)[4], const void *row, bool trans, int line) {
    Lane lane;
    uint32_t mine[2];
    memcpy(mine, &row, sizeof mine);
    int parity = lane.meet(trans ? Op::LdmatrixTrans : Op::Ldmatrix, line, mine, 2);
    lane.wait(line);
    const auto &slot = lane.w.slot[parity];
    auto address = [&](unsigned i) {
        return (const unsigned char *)(slot[0][i] | (uint64_t)slot[1][i] << 32);
    };
    if (lane.id == 0)
        for (unsigned i = 0; i < 32; i += 8) {
            const unsigned char *bank[8] = {};
            for (unsigned j = i; j < i + 8; j++) {
                const unsigned char *&at = bank[(uintptr_t)address(j) / 16 % 8];
                if (at && at != address(j))
                    fail(line, "bank conflict of ldmatrix: rows of lanes %u .. %u", i, i + 7);
                at = address(j);
            }
        }
    // The rows are read now: shared memory may change as soon as another warp runs. TSan finds out
    // whether the kernel excludes that.
    for (unsigned i = 0, l = lane.id; i < 4; i++) {
        if (!trans) {
            memcpy(&r[i], address(8 * i + l / 4) + l % 4 * 4, 4);
        } else {
            uint16_t pair[2];
            for (unsigned j = 0; j < 2; j++)
                memcpy(&pair[j], address(8 * i + l % 4 * 2 + j) + l / 4 * 2, 2);
            memcpy(&r[i], pair, 4);
        }
    }
}

void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, Op op, int line) {
    Lane lane;
    int parity = lane.meet(op, line, nullptr, 0);
    Warp &w = lane.w;
    unsigned g = lane.id / 4, t = lane.id % 4;
    // Each lane unpacks its own words. The PTX manual has the layouts of the fragments of m16n8k16.
    auto value = [&](uint32_t word, unsigned high) {
        uint16_t bits = (uint16_t)(high ? word >> 16 : word);
        return op == Op::MmaBf16 ? to_float(bf16{bits}) : to_float(f16{bits});
    };
    for (unsigned h = 0; h < 2; h++) {
        for (unsigned i = 0; i < 4; i++)
            w.a[parity][g + i % 2 * 8][2 * t + i / 2 * 8 + h] = value(a[i], h);
        w.b[parity][2 * t + h][g] = value(b0, h);
        w.b[parity][2 * t + 8 + h][g] = value(b1, h);
    }
    auto at = [&](unsigned i) -> float & { return w.d[parity][g + i / 2 * 8][2 * t + i % 2]; };
    for (unsigned i = 0; i < 4; i++) at(i) = d[i];
    if (w.barrier.arrived == 31) mma_all(w, parity);
    lane.wait(line);
    for (unsigned i = 0; i < 4; i++) d[i] = at(i);
}

} // namespace emu
