// Warpgroup products: see hopper.h.
#include "hopper_state.h"

namespace emu {
namespace {

Warpgroup &warpgroup() { return block().warpgroups[view().thread.x / 128]; }
Thread &thread(Warpgroup &g) { return g.threads[view().thread.x % 128]; }

// The address of chunk i of an operand, from its descriptor (PTX manual, "Asynchronous warpgroup
// level matrix shared memory layout"). In a K-major operand, chunk i belongs to row i / 2. In an
// MN-major operand it belongs to row i / (rows / 8), and after each 64 columns a row continues
// `leading` bytes further on.
uint32_t address_of(const Operand &o, unsigned i, int line) {
    const uint64_t d = o.descriptor;
    const uint32_t start = (uint32_t)(d & 0x3fff) << 4, leading = (uint32_t)(d >> 16 & 0x3fff) << 4,
                   stride = (uint32_t)(d >> 32 & 0x3fff) << 4;
    const uint32_t swizzle = (uint32_t)(d >> 62);
    if ((d >> 49 & 7) || swizzle > 1 || (o.transposed && !swizzle))
        fail(line, "a matrix descriptor that is not emulated: %016llx", (unsigned long long)d);
    const unsigned row = o.transposed ? i / (o.rows / 8) : i / 2,
                   at = o.transposed ? i % (o.rows / 8) : i % 2;
    const uint32_t rows = start + row / 8 * stride;
    const uint32_t address = !swizzle ? rows + row % 8 * 16 + at * leading
                             : o.transposed
                                 ? swizzled(rows + row % 8 * 128 + at / 8 * leading + at % 8 * 16)
                                 : swizzled(rows + row % 8 * 128 + at * 16);
    if (address + 16 > own.shared_bytes) fail(line, "a product reads behind shared memory");
    return address;
}

Operand operand_of(uint64_t descriptor, unsigned rows, bool transposed, int line) {
    Operand o = {descriptor, rows, transposed};
    for (unsigned i = 0; i < o.chunks(); i++) {
        const uint32_t at = address_of(o, i, line);
        if (at < o.low) o.low = at;
        if (at + 16 > o.high) o.high = at + 16;
    }
    return o;
}

float value_of(uint16_t bits, Op op) {
    return op == Op::MmaBf16 ? to_float(bf16{bits}) : to_float(f16{bits});
}

// Writes element k of row r of the operand to to[r * row_step + k * k_step].
void load(float *to, unsigned row_step, unsigned k_step, Op op, const Operand &o, int line) {
    const Block &b = block();
    for (unsigned i = 0; i < o.chunks(); i++) {
        const uint32_t at = address_of(o, i, line);
        if (memcmp(b.shared + at, &b.seen[at], 16))
            fail(line,
                "a product reads what threads have stored and no async_fence has made visible");
        const unsigned first = o.transposed
                                   ? i % (o.rows / 8) * 8 * row_step + i / (o.rows / 8) * k_step
                                   : i / 2 * row_step + i % 2 * 8 * k_step;
        for (unsigned e = 0; e < 8; e++)
            to[first + e * (o.transposed ? row_step : k_step)] =
                value_of(((const uint16_t *)(b.shared + at))[e], op);
    }
}

// Sums over k in ascending order, as mma in warp.cpp does.
void compute(Product &p, int line) {
    auto &a = block().rows;
    auto &b = block().columns;
    if (p.words.empty()) load(a[0], 16, 1, p.op, p.a, line);
    // The layout of the fragments: PTX manual, "Register fragment layout for matrix A".
    for (unsigned i = 0; i < p.words.size(); i++) {
        const unsigned t = i / 4, row = t / 32 * 16 + t % 32 / 4 + i % 2 * 8,
                       k = t % 4 * 2 + i % 4 / 2 * 8;
        a[row][k] = value_of((uint16_t)p.words[i], p.op),
        a[row][k + 1] = value_of((uint16_t)(p.words[i] >> 16), p.op);
    }
    load(b[0], 1, 256, p.op, p.b, line);
    if (p.fresh) p.sums->value.assign(64 * p.n, 0);
    // Sums stay in vectors over all k. When each was stored and loaded again for every k, the
    // longest test with such products (tests/gpu/features.rs) took 64 s instead of 48. Four at a
    // time, because each addition waits for the one before it.
    typedef float Eight __attribute__((vector_size(32), aligned(4)));
    for (unsigned i = 0; i < 64; i++) {
        float *to = &p.sums->value[i * p.n];
        unsigned j = 0;
        for (; j + 32 <= p.n; j += 32) {
            Eight s0 = *(Eight *)&to[j], s1 = *(Eight *)&to[j + 8], s2 = *(Eight *)&to[j + 16],
                  s3 = *(Eight *)&to[j + 24];
            for (unsigned k = 0; k < 16; k++) {
                const Eight *from = (const Eight *)&b[k][j];
                s0 += a[i][k] * from[0], s1 += a[i][k] * from[1];
                s2 += a[i][k] * from[2], s3 += a[i][k] * from[3];
            }
            *(Eight *)&to[j] = s0, *(Eight *)&to[j + 8] = s1;
            *(Eight *)&to[j + 16] = s2, *(Eight *)&to[j + 24] = s3;
        }
        for (; j < p.n; j += 8) {
            Eight sums = *(Eight *)&to[j];
            for (unsigned k = 0; k < 16; k++) sums += a[i][k] * *(const Eight *)&b[k][j];
            *(Eight *)&to[j] = sums;
        }
    }
    p.done = true;
}

// Register r of thread t in the result of a product (PTX manual, "Register fragments for
// wgmma.mma_async.m64nNk16").
float &element(Sums &s, unsigned t, unsigned r) {
    const unsigned row = t / 32 * 16 + t % 32 / 4 + r / 2 % 2 * 8,
                   column = r / 4 * 8 + t % 4 * 2 + r % 2;
    return s.value[row * s.n + column];
}

} // namespace

bool reads(const Operand &o, uint32_t from, uint32_t bytes, int line) {
    if (o.high <= from || o.low >= from + bytes) return false;
    for (unsigned i = 0; i < o.chunks(); i++)
        if (address_of(o, i, line) - from < bytes) return true;
    return false;
}

void wgmma_begin(int line) {
    warp_barrier(line);
    Quiet here;
    thread(warpgroup()).fenced = true;
}

void wgmma(float *d, unsigned registers, const Factors &f, Op op, int line) {
    const unsigned t = view().thread.x % 128, n = registers * 2;
    warp_barrier(line);
    Quiet here;
    Warpgroup &g = warpgroup();
    Thread &me = thread(g);
    if (view().thread.x / 128 * 128 + 128 > view().block_dim.x)
        fail(line, "no warpgroup: a block of %u threads", view().block_dim.x);
    if (n % 8 || n > 256) fail(line, "a product of %u columns", n);
    if (!me.fenced) fail(line, "sums are given to a product without wgmma_begin");
    if (me.issued == g.products.size()) {
        Sums *sums = nullptr;
        for (Sums &s : g.sums)
            if (s.registers[t] == d) sums = &s;
        if (!sums) {
            for (Sums &s : g.sums) { // looks for sums that nobody uses any more
                bool free = true;
                for (float *held : s.registers) free &= !held;
                for (const Product &p : g.products) free &= p.done || p.sums != &s;
                if (free) sums = &s;
            }
            if (!sums) sums = &(g.sums.emplace_back(), g.sums.back());
            *sums = {n, {}, std::vector<float>(64 * n, __builtin_nanf(""))};
        }
        const unsigned words = f.registers ? 128 : 0;
        g.products.push_back({op, operand_of(f.a, words ? 0 : 64, false, line),
            operand_of(f.b, n, f.transposed, line), f.fresh, n, 0, false, 0, sums,
            std::vector<const uint32_t *>(words), std::vector<uint32_t>(4 * words)});
    }
    Product &p = g.products[me.issued++];
    if (p.op != op || p.a.descriptor != f.a || p.b.descriptor != f.b || p.n != n ||
        p.fresh != f.fresh || p.b.transposed != f.transposed || p.words.empty() == !!f.registers)
        fail(line, "threads of a warpgroup disagree about a product");
    if (f.registers) {
        p.registers[t] = f.registers;
        memcpy(&p.words[4 * t], f.registers, 16);
    }
    float *&held = p.sums->registers[t];
    if (held && held != d) fail(line, "threads of a warpgroup disagree about sums");
    if (!held) {
        held = d;
        for (unsigned r = 0; r < registers; r++) {
            element(*p.sums, t, r) = d[r];
            memset(&d[r], 0xff, 4);
        }
    }
    if (++p.issued == 128) open(machine(), g.sleeping);
}

void wgmma_commit(int line) {
    warp_barrier(line);
    Quiet here;
    Thread &me = thread(warpgroup());
    me.committed.push_back(me.issued);
}

void wgmma_wait(unsigned left, int line) {
    warp_barrier(line);
    const unsigned t = view().thread.x % 128;
    Warpgroup &g = warpgroup();
    Thread &me = thread(g);
    me.fenced = false;
    size_t end = me.waited;
    while (me.committed.size() > left) {
        Quiet here;
        end = me.committed.front();
        me.committed.pop_front();
    }
    for (size_t i = me.waited; i < end; i++) {
        // Whichever thread waits for a product, all threads of the warpgroup must have issued it.
        while (g.products[i].issued < 128) sleep(g.sleeping, line);
        Quiet here;
        Product &p = g.products[i];
        if (!p.done) compute(p, line);
        // The wait speaks for its warp alone: the other three may not have come so far.
        p.read_by |= 1u << t / 32;
        if (!p.words.empty() && memcmp(p.registers[t], &p.words[4 * t], 16))
            fail(line, "registers were written while a product read them");
    }
    Quiet here;
    for (Sums &s : g.sums) {
        float *d = s.registers[t];
        bool more = false;
        for (size_t i = end; i < me.issued; i++) more |= g.products[i].sums == &s;
        if (!d || more) continue;
        for (unsigned r = 0; r < s.n / 2; r++) {
            uint32_t bits;
            memcpy(&bits, &d[r], 4);
            if (bits != 0xffffffffu)
                fail(line, "sums were written while a product was added to them");
            d[r] = element(s, t, r);
        }
        s.registers[t] = nullptr;
    }
#ifdef EMU_TSAN
    // One thread of each warp reports what the warp has read: the thread that announces that the
    // warp needs the stage no more. A warp has a quarter of the rows of a.
    if (t % 32 == 0)
        for (size_t i = me.waited; i < end; i++) {
            const Product &p = g.products[i];
            for (const Operand *o : {&p.a, &p.b}) {
                const unsigned n = o->chunks(), part = o == &p.a ? n / 4 : n;
                for (unsigned chunk = n == part ? 0 : t / 32 * part, to = chunk + part; chunk < to;
                    chunk++)
                    block().read.push_back(block().shared + address_of(*o, chunk, line));
            }
        }
#endif
    me.waited = end;
}

const void *wgmma_read() {
    std::vector<const void *> &read = block().read;
    if (view().thread.x % 32 || read.empty()) return nullptr;
    const void *p = read.back();
    read.pop_back();
    return p;
}

// Whichever thread of the warp tells other blocks of the cluster, what the warp has read comes
// before.
void wgmma_waited([[maybe_unused]] int line) {
#ifdef EMU_TSAN
    if (machine().cluster->blocks > 1) warp_barrier(line);
#endif
}

void set_registers(unsigned count, int line) {
    warp_barrier(line);
    if (count % 8 || count < 24 || count > 256) fail(line, "%u registers", count);
}

void hopper_exits() {
    if (!own.used) return;
    auto found = own.block->warpgroups.find(view().thread.x / 128);
    if (found == own.block->warpgroups.end()) return;
    const Thread &me = found->second.threads[view().thread.x % 128];
    if (me.waited < me.issued) fail(0, "exited with products under way");
}

} // namespace emu
