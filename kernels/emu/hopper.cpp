// Barriers for copies, copies of boxes, and warpgroup products: see hopper.h.
#include "machine.h"

#include <cstring>
#include <deque>
#include <map>
#include <memory>

#ifdef EMU_TSAN
extern "C" {
void AnnotateIgnoreReadsBegin(const char *, int);
void AnnotateIgnoreReadsEnd(const char *, int);
void AnnotateIgnoreWritesBegin(const char *, int);
void AnnotateIgnoreWritesEnd(const char *, int);
}
#endif

namespace emu {
namespace {

// Stands for a CUtensorMap with two dimensions of 16-bit numbers, swizzled by 128 bytes, zeros
// outside.
struct Map {
    uint64_t magic, address, columns, rows, pitch;
    uint32_t box_columns, box_rows;
};
static_assert(sizeof(Map) <= sizeof(TensorMap), "takes its place");
constexpr uint64_t MAGIC = 0x70616d726f736e65;

const Map &map_of(const TensorMap &map, int line) {
    const Map &m = (const Map &)map;
    if (m.magic != MAGIC) fail(line, "what is taken for a tensor map is none");
    return m;
}
uint32_t bytes_of(const Map &m) { return m.box_columns * m.box_rows * 2; }

struct Phases {
    unsigned over = 0;
    Barrier sleeping; // threads that wait for the present phase to end
    uint32_t count = 0, pending = 0;
    uint64_t expected = 0, flying = 0; // bytes; `flying`: those in flight
    unsigned maker = 0;                // thread that made the barrier
    bool visible = false;              // whether copies see the barrier
    char token[2] = {};                // by parity of the phase
};

struct Copying {
    uint32_t to;
    Map map;
    int32_t column, row;
    Phases *barrier;
};

// The 64 x n sums of a warpgroup while products are added to them.
struct Sums {
    unsigned n;
    float *registers[128];
    std::vector<float> value;
};

// An operand in shared memory: 16 columns of `rows` rows, or, transposed, 16 rows of `rows`
// columns; in chunks of eight numbers.
struct Operand {
    uint64_t descriptor;
    unsigned rows;
    bool transposed;
    uint32_t low = ~0u, high = 0; // bounds of the addresses of its chunks
    unsigned chunks() const { return rows * 2; }
};

struct Product {
    Op op;
    Operand a, b;
    bool fresh;
    unsigned n, issued; // `issued`: by how many threads
    bool done;
    Sums *sums;
    // Operand A, if it is in registers: where they are, and what they held at the time of issue.
    std::vector<const uint32_t *> registers;
    std::vector<uint32_t> words;
};

struct Thread {
    size_t issued = 0, waited = 0; // counts of products
    std::deque<size_t> committed;  // groups, as the number of products up to the end of each
    bool fenced = false;
    unsigned registers = 0;
};

struct Warpgroup {
    Barrier sleeping; // threads that wait for others to issue a product
    std::vector<Product> products;
    std::deque<Sums> sums;
    Thread threads[128];
};

struct Block {
    unsigned char *shared = nullptr;
    std::vector<unsigned char> seen; // shared memory as copies and products see it
    // What threads have stored since their last async_fence: by thread, address and number of
    // bytes.
    std::map<unsigned, std::vector<std::pair<uint32_t, uint32_t>>> stored;
    std::map<uint32_t, Phases> barriers;
    std::vector<Copying> copying;
    std::map<unsigned, Warpgroup> warpgroups;
    std::vector<const void *> read;
    // Operands of the product that is being computed; too large for a thread's small stack.
    float rows[64][16], columns[16][256];
};

thread_local struct {
    bool used = false, quiet = false;
    size_t shared_bytes = 0;
    std::unique_ptr<Block> block;
} own;

// TSan watches functions of the C library wherever they are called from, but not while a Quiet
// lives. No fiber switch may happen during that time.
struct Quiet {
    Quiet() {
#ifdef EMU_TSAN
        AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
        AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
#endif
        own.quiet = true;
    }
    ~Quiet() { end(); }
    static void end() {
        if (!own.quiet) return;
#ifdef EMU_TSAN
        AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
        AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
#endif
        own.quiet = false;
    }
};
#define fail(...) (Quiet::end(), fail(__VA_ARGS__))

// Made when a kernel first uses something of this file.
Block &block() {
    if (!own.used) {
        if (!own.quiet) {
            Quiet here;
            return block();
        }
        own.used = true;
        own.block.reset(new Block);
        own.block->shared = view().shared;
        own.block->seen.assign(own.shared_bytes, 0xff);
    }
    return *own.block;
}

Warpgroup &warpgroup() { return block().warpgroups[view().thread.x / 128]; }
Thread &thread(Warpgroup &g) { return g.threads[view().thread.x % 128]; }

Phases &barrier_at(const void *p, int line) {
    auto found = block().barriers.find(shared_address(p));
    if (found == block().barriers.end()) fail(line, "a barrier that nobody has made");
    return found->second;
}

void released(Phases &b) {
#ifdef EMU_TSAN
    __tsan_release(&b.token[b.over & 1]);
#else
    (void)b;
#endif
}

// Sleeps until somebody opens the barrier. This neither releases nor acquires; TSan is told for
// each phase.
void sleep(Barrier &b, int line) {
    Machine &m = machine();
    Fiber *f = m.now;
    f->before = b.waiting;
    b.waiting = f;
    f->line = line;
    m.warps[f->id / 32].ready &= ~(1u << f->id % 32);
    to_scheduler(false);
}

void complete(Phases &b) {
    if (b.pending || b.expected) return;
    b.pending = b.count;
    b.over++;
    open(machine(), b.sleeping);
}

// The address of the 16 bytes that would lie at `address` without swizzling.
uint32_t swizzled(uint32_t address) { return address ^ (address >> 7 & 7) << 4; }

// The address of chunk i of an operand, from its descriptor (PTX manual, "Asynchronous warpgroup
// level matrix shared memory layout"). If the operand is K-major, the chunk belongs to row i / 2.
// If it is MN-major, it belongs to row i / (rows / 8), and after 64 columns the row continues
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

// Puts element k of row r of the operand at to[r * row_step + k * k_step].
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
    // (PTX manual, "Register fragment layout for matrix A")
    for (unsigned i = 0; i < p.words.size(); i++) {
        const unsigned t = i / 4, row = t / 32 * 16 + t % 32 / 4 + i % 2 * 8,
                       k = t % 4 * 2 + i % 4 / 2 * 8;
        a[row][k] = value_of((uint16_t)p.words[i], p.op),
        a[row][k + 1] = value_of((uint16_t)(p.words[i] >> 16), p.op);
    }
    load(b[0], 1, 256, p.op, p.b, line);
    if (p.fresh) p.sums->value.assign(64 * p.n, 0);
    for (unsigned i = 0; i < 64; i++) {
        float *sum = &p.sums->value[i * p.n];
        for (unsigned k = 0; k < 16; k++) {
            const float x = a[i][k], *y = b[k];
            for (unsigned j = 0; j < p.n; j += 4)
                for (unsigned e = 0; e < 4; e++) sum[j + e] += x * y[j + e];
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

bool reads(const Operand &o, uint32_t from, uint32_t bytes, int line) {
    if (o.high <= from || o.low >= from + bytes) return false;
    for (unsigned i = 0; i < o.chunks(); i++)
        if (address_of(o, i, line) - from < bytes) return true;
    return false;
}

} // namespace

void async_init(const void *at, uint32_t count, int line) {
    Quiet here;
    if (shared_address(at) % 8 || shared_address(at) + 8 > own.shared_bytes)
        fail(line, "a barrier that is not in shared memory, aligned to 8");
    if (count == 0 || count > 1024) fail(line, "a barrier of %u arrivals", count);
    Phases &b = block().barriers[shared_address(at)] = Phases();
    b.count = b.pending = count;
    b.maker = view().thread.x;
}

void async_arrive(const void *at, uint32_t bytes, int line) {
    Phases &b = barrier_at(at, line);
    if (b.pending == 0) fail(line, "more arrivals than the barrier was made for");
    released(b);
    b.expected += bytes;
    if (b.expected > (1 << 20) - 1) fail(line, "a barrier counts no more than 2^20 - 1 bytes");
    b.pending--;
    complete(b);
}

void async_wait(const void *at, uint32_t parity, int line) {
    Phases &b = barrier_at(at, line);
    while ((b.over & 1) == parity) sleep(b.sleeping, line);
#ifdef EMU_TSAN
    __tsan_acquire(&b.token[parity]);
#endif
}

void async_fence(int) {
    Quiet here;
    Block &b = block();
    auto &mine = b.stored[view().thread.x];
    for (auto [at, bytes] : mine) memcpy(&b.seen[at], b.shared + at, bytes);
    mine.clear();
    for (auto &[at, one] : b.barriers) one.visible |= one.maker == view().thread.x;
}

void operand_stored(const void *p, uint32_t bytes) {
    Quiet here;
    const uint32_t at = shared_address(p);
    if (at + bytes > own.shared_bytes) fail(0, "an operand is stored behind shared memory");
    block().stored[view().thread.x].push_back({at, bytes});
}

uint32_t box_begins(const void *to, const TensorMap &map, const void *at, int line) {
    Quiet here;
    Block &k = block();
    const Map &m = map_of(map, line);
    const uint32_t bytes = bytes_of(m), from = shared_address(to);
    if (from % 1024 || from + bytes > own.shared_bytes)
        fail(line, "a box of %u bytes goes to %u of %zu, not aligned to 1024", bytes, from,
            own.shared_bytes);
    Phases &b = barrier_at(at, line);
    if (!b.visible)
        fail(line, "the barrier was made by a store that no async_fence has made visible");
    if (b.expected < b.flying + bytes)
        fail(line, "%u bytes of a box are on their way to a barrier that does not expect them",
            bytes);
    b.flying += bytes;
    for (auto &[number, group] : k.warpgroups)
        for (const Product &p : group.products)
            if (!p.done && (reads(p.a, from, bytes, line) || reads(p.b, from, bytes, line)))
                fail(line, "a copy overwrites what a product of warpgroup %u still reads", number);
    for (const Copying &c : k.copying)
        if (c.to - from < bytes || from - c.to < bytes_of(c.map))
            fail(line, "two copies to the same place");
    memset(&k.seen[from], 0xff, bytes);
    return bytes;
}

void box_copies(void *to, const TensorMap &map, int32_t column, int32_t row, const void *at) {
    Quiet here;
    Phases &b = barrier_at(at, 0);
    released(b);
    block().copying.push_back({shared_address(to), (const Map &)map, column, row, &b});
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
            for (Sums &s : g.sums) { // sums that nobody uses any more
                bool free = true;
                for (float *held : s.registers) free &= !held;
                for (const Product &p : g.products) free &= p.done || p.sums != &s;
                if (free) sums = &s;
            }
            if (!sums) sums = &(g.sums.emplace_back(), g.sums.back());
            *sums = {n, {}, std::vector<float>(64 * n, NAN)};
        }
        const unsigned words = f.registers ? 128 : 0;
        g.products.push_back({op, operand_of(f.a, words ? 0 : 64, false, line),
            operand_of(f.b, n, f.transposed, line), f.fresh, n, 0, false, sums,
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
        // A product needs all threads of the warpgroup to have issued it, whichever thread waits
        // for it.
        while (g.products[i].issued < 128) sleep(g.sleeping, line);
        Quiet here;
        Product &p = g.products[i];
        if (!p.done) compute(p, line);
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
    // One thread of the warpgroup stands for all: the thread that announces that the stage is free.
    if (t == 0)
        for (size_t i = me.waited; i < end; i++) {
            const Product &p = g.products[i];
            for (const Operand *o : {&p.a, &p.b})
                for (unsigned chunk = 0; chunk < o->chunks(); chunk++)
                    block().read.push_back(block().shared + address_of(*o, chunk, line));
        }
#endif
    me.waited = end;
}

const void *wgmma_read() {
    std::vector<const void *> &read = block().read;
    if (view().thread.x % 128 || read.empty()) return nullptr;
    const void *p = read.back();
    read.pop_back();
    return p;
}

void set_registers(unsigned count, int line) {
    warp_barrier(line);
    if (count % 8 || count < 24 || count > 256) fail(line, "%u registers", count);
}

void hopper_begins(size_t shared_bytes) {
    Quiet here;
    own.used = false;
    own.block.reset();
    own.shared_bytes = shared_bytes;
}

bool hopper_busy() { return own.used && !own.block->copying.empty(); }

void hopper_lands(unsigned random) {
    Quiet here;
    Block &k = *own.block;
    const size_t which = random % k.copying.size();
    const Copying c = k.copying[which];
    k.copying.erase(k.copying.begin() + (ptrdiff_t)which);
    for (uint32_t i = 0; i < c.map.box_rows; i++)
        for (uint32_t j = 0; j < c.map.box_columns; j += 8) {
            uint16_t chunk[8] = {};
            const int64_t row = (int64_t)c.row + i, column = (int64_t)c.column + j;
            for (int64_t e = 0; e < 8; e++)
                if (row >= 0 && row < (int64_t)c.map.rows && column + e >= 0 &&
                    column + e < (int64_t)c.map.columns)
                    chunk[e] = ((
                        const uint16_t *)(c.map.address + (uint64_t)row * c.map.pitch))[column + e];
            const uint32_t at = swizzled(c.to + i * 128 + j * 2);
            memcpy(k.shared + at, chunk, 16);
            memcpy(&k.seen[at], chunk, 16);
        }
    c.barrier->flying -= bytes_of(c.map);
    c.barrier->expected -= bytes_of(c.map);
    complete(*c.barrier);
}

void hopper_exits() {
    if (!own.used) return;
    auto found = own.block->warpgroups.find(view().thread.x / 128);
    if (found == own.block->warpgroups.end()) return;
    const Thread &me = found->second.threads[view().thread.x % 128];
    if (me.waited < me.issued) fail(0, "exited with products under way");
}

} // namespace emu

extern "C" int emu_tensor_map(void *map, uint64_t address, uint64_t columns, uint64_t rows,
    uint64_t pitch, uint32_t box_columns, uint32_t box_rows, char *error, size_t error_len) {
    const char *wrong =
        (uint64_t)map % 64          ? "is not aligned to 64"
        : address % 16              ? "has an address that is not aligned to 16"
        : !columns || !rows         ? "is of nothing"
        : pitch % 16 || pitch >> 40 ? "has rows that are no multiple of 16 bytes apart"
        : !box_rows || box_rows > 256 || box_columns != 64        ? "has a box that is not emulated"
        : !emu::inside(address, (rows - 1) * pitch + 2 * columns) ? "is not inside one buffer"
                                                                  : nullptr;
    if (wrong) {
        if (error_len)
            snprintf(error, error_len, "the tensor map of %llu x %llu numbers %s",
                (unsigned long long)rows, (unsigned long long)columns, wrong);
        return 1;
    }
    memset(map, 0, sizeof(TensorMap));
    *(emu::Map *)map = {emu::MAGIC, address, columns, rows, pitch, box_columns, box_rows};
    return 0;
}
