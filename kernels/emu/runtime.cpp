// The emulated machine: fibers for threads, a seeded scheduler, barriers, exchanges between lanes, device memory.
//
// Built without -fsanitize=thread even when the kernels are built with it (EMU_TSAN then tells it to
// announce its fibers and barriers): what it does stands for hardware, only what kernels do can race.
#include <cstdint>
struct bf16 { uint16_t bits; };
struct f16 { uint16_t bits; };
#include "device.h"
#include "emu.h"

#include <sys/mman.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <vector>

#include "table.h"

#if defined(__SANITIZE_ADDRESS__)
#define EMU_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define EMU_ASAN 1
#endif
#endif
#ifdef EMU_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef EMU_TSAN
extern "C" {
void *__tsan_get_current_fiber(void);
void *__tsan_create_fiber(unsigned);
void __tsan_destroy_fiber(void *);
void __tsan_switch_to_fiber(void *, unsigned);
void __tsan_acquire(void *);
void __tsan_release(void *);
}
#endif

namespace emu {
namespace {

#if defined(EMU_ASAN) || defined(EMU_TSAN)
constexpr size_t STACK = 256 << 10;
#else
constexpr size_t STACK = 64 << 10;
#endif
constexpr size_t GUARD = 256; // bytes of 0xff around memory, checked for writes

struct Barrier {
    unsigned arrived = 0, generation = 0;
    int line = 0;
    Op op = Op::Sync;
    // TSan: what threads release into and acquire from, by parity of the generation. With one for all, a
    // thread that wakes late would acquire the next generation too and hide races.
    char token[2] = {};
};

struct Fiber {
    View view;
    void *sp;
    char *stack;
    unsigned id;
    bool done;
    const Barrier *waiting;
    unsigned generation; // of `waiting`, when it arrived
    int line;
    std::vector<Copy> copies;     // committed and not, in order
    std::vector<size_t> groups;   // ends of committed groups in `copies`
    size_t copied;
#ifdef EMU_TSAN
    void *tsan;
    bool started;
#endif
};

struct Warp {
    Barrier barrier;
    unsigned exited;
    // By parity of the barrier's generation: a lane still reads the last exchange while another starts the next.
    alignas(16) unsigned char slot[2][32][24];
    float result[2][32];
    float a[2][16][16], b[2][16][8];
};

// One per OS thread that launches.
struct Machine {
    std::vector<Fiber> fibers;
    std::vector<Warp> warps;
    Barrier block, named[16], early; // of wait_for_last
    unsigned exited = 0;
    Fiber *now = nullptr;
    void *sp = nullptr;
    void (*entry)(const void *) = nullptr;
    const void *params = nullptr;
    const char *kernel = nullptr;
    bool failed = false;
    bool waited = false; // for the launch before
    bool wrote_early = false;
    char message[512];
#ifdef EMU_ASAN
    const void *stack = nullptr;
    size_t stack_size = 0;
#endif
#ifdef EMU_TSAN
    void *tsan = nullptr;
#endif
    ~Machine() {
        for (Fiber &f : fibers) {
#ifdef EMU_ASAN
            // Whoever gets these addresses next may write to all of them.
            __asan_unpoison_memory_region(f.stack, STACK);
#endif
            munmap(f.stack, STACK);
        }
    }
};

thread_local Machine own;
// `own` of a thread that launches: without the check whether it has been made.
#ifndef EMU_LOADED_MANY_TIMES
// And in a shared library without a call to find it: that takes an eighth of the time.
__attribute__((tls_model("initial-exec")))
#endif
__thread Machine *current;

} // namespace

// Saves the callee's registers and its stack in *save, continues at `to`. Not inlined on purpose.
extern "C" void llamabi_emu_switch(void **save, void *to);
#if defined(__x86_64__)
asm(R"(.text
.globl llamabi_emu_switch
.hidden llamabi_emu_switch
.type llamabi_emu_switch, @function
llamabi_emu_switch:
    pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
    ret
.size llamabi_emu_switch, .-llamabi_emu_switch
)");
#else
#error "the emulator's switch is written for x86-64"
#endif

namespace {

void to_scheduler(bool dying) {
    Machine &m = *current;
    Fiber *f = m.now;
#ifdef EMU_TSAN
    // 1: no synchronisation, else every switch would order everything.
    __tsan_switch_to_fiber(m.tsan, dying ? 0 : 1);
#endif
#ifdef EMU_ASAN
    void *fake = nullptr;
    __sanitizer_start_switch_fiber(dying ? nullptr : &fake, m.stack, m.stack_size);
#endif
    (void)dying;
    llamabi_emu_switch(&f->sp, m.sp);
#ifdef EMU_ASAN
    __sanitizer_finish_switch_fiber(fake, &m.stack, &m.stack_size);
#endif
#ifdef EMU_TSAN
    if (!dying && m.failed) to_scheduler(true);
#endif
}

void resume(Fiber &f) {
    Machine &m = *current;
    m.now = &f;
#ifdef EMU_TSAN
    __tsan_switch_to_fiber(f.tsan, f.started ? 1 : 0);
    f.started = true;
#endif
#ifdef EMU_ASAN
    void *fake = nullptr;
    __sanitizer_start_switch_fiber(&fake, f.stack, STACK);
#endif
    llamabi_emu_switch(&m.sp, f.sp);
#ifdef EMU_ASAN
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
}

void wait_at(Barrier &b, unsigned expected, int line) {
    Fiber *f = current->now;
#ifdef EMU_TSAN
    char *token = &b.token[b.generation & 1];
    __tsan_release(token);
#endif
    unsigned generation = b.generation;
    if (b.arrived == 0) b.line = line;
    if (++b.arrived == expected) {
        b.arrived = 0;
        b.generation++;
    } else {
        f->waiting = &b;
        f->generation = generation;
        f->line = line;
        to_scheduler(false);
        f->waiting = nullptr;
    }
#ifdef EMU_TSAN
    __tsan_acquire(token);
#endif
}

bool strict;         // emu_strict
bool hidden = false; // what launches before wrote is hidden from this one
bool restore();

// What was hidden, to all that wait for it.
void show(Machine &m) {
    m.wrote_early = !restore();
    m.early.arrived = 0;
    m.early.generation++;
}

Warp &warp() { return current->warps[current->now->id / 32]; }
unsigned lane() { return current->now->id % 32; }

// The part of a warp operation before its barrier; gives the parity to read from after it.
int meet(Op op, int line, const void *value, size_t size) {
    Warp &w = warp();
    Barrier &b = w.barrier;
    int parity = b.generation & 1;
    if (w.exited) fail(line, "warp operation after %u lanes of the warp have exited", w.exited);
    if (b.arrived > 0 && (b.line != line || b.op != op))
        fail(line, "lanes of a warp disagree: line %d here, line %d in another lane", line, b.line);
    b.op = op;
    // Words, not memcpy: TSan watches the C library's functions wherever they are called from.
    for (size_t i = 0; i < size / 4; i++) ((volatile uint32_t *)w.slot[parity][lane()])[i] = ((const uint32_t *)value)[i];
    return parity;
}

void first_entry() {
    Machine &m = *current;
#ifdef EMU_ASAN
    __sanitizer_finish_switch_fiber(nullptr, &m.stack, &m.stack_size);
#endif
    m.entry(m.params);
    Fiber *f = m.now;
    size_t committed = f->groups.empty() ? 0 : f->groups.back();
    if (f->copied < committed || f->copies.size() > committed) fail(0, "exited with cp.async copies under way");
    f->done = true;
    m.exited++;
    warp().exited++;
    if (m.early.arrived && m.early.arrived + m.exited == f->view.block_dim.x) show(m);
    if (m.block.arrived) fail(m.block.line, "a thread exited while %u wait at the block's barrier", m.block.arrived);
    if (warp().barrier.arrived) fail(warp().barrier.line, "a lane exited while others wait for it in a warp operation");
    to_scheduler(true);
    abort();
}

float value_of(const Warp &w, int parity, unsigned from) {
    float v;
    memcpy(&v, w.slot[parity][from], 4);
    return v;
}

// A butterfly over the lanes that differ in the bits of `mask`, as shuffles with xor do it: highest bit
// first. Addition commutes, so all lanes of a group get the same bits.
template <class F> void butterfly(float (&v)[32], unsigned mask, F f) {
    for (unsigned bit = 16; bit; bit /= 2) {
        if (!(mask & bit)) continue;
        float u[32];
        for (unsigned i = 0; i < 32; i++) u[i] = f(v[i], v[i ^ bit]);
        memcpy(v, u, sizeof v);
    }
}

} // namespace

View &view() { return current->now->view; }

void fail(int line, const char *format, ...) {
    Machine &m = *current;
    if (!m.failed) {
        m.failed = true;
        const View &v = m.now->view;
        int n = snprintf(m.message, sizeof m.message, "%s, block (%u, %u, %u), thread %u, line %d: ", m.kernel,
                         v.block.x, v.block.y, v.block.z, m.now->id, line);
        va_list args;
        va_start(args, format);
        vsnprintf(m.message + n, sizeof m.message - n, format, args);
        va_end(args);
    }
    // The scheduler never comes back to this fiber.
    m.now->done = true;
    to_scheduler(true);
    abort();
}

void cp_push(const Copy &c) { current->now->copies.push_back(c); }
void cp_close() { current->now->groups.push_back(current->now->copies.size()); }
bool cp_next(int left, Copy &c) {
    Fiber *f = current->now;
    if (f->groups.size() <= (size_t)left) return false;
    size_t end = f->groups[f->groups.size() - 1 - left];
    if (f->copied < end) {
        c = f->copies[f->copied++];
        return true;
    }
    // What is done is forgotten, or a long loop would keep all its copies.
    f->copies.erase(f->copies.begin(), f->copies.begin() + end);
    f->groups.erase(f->groups.begin(), f->groups.end() - left);
    for (size_t &g : f->groups) g -= end;
    f->copied = 0;
    return false;
}

void block_barrier(int line) {
    Machine &m = *current;
    if (m.exited) fail(line, "barrier of the block after %u threads have exited", m.exited);
    if (m.block.arrived && m.block.line != line)
        fail(line, "divergent barrier: this thread at line %d, another at line %d", line, m.block.line);
    wait_at(m.block, m.now->view.block_dim.x, line);
}

void named_barrier(int id, unsigned threads, int line) {
    Machine &m = *current;
    if (id < 1 || id > 15 || threads == 0 || threads % 32 || threads > m.now->view.block_dim.x)
        fail(line, "named barrier %d of %u threads", id, threads);
    wait_at(m.named[id], threads, line);
}

void warp_barrier(int line) {
    meet(Op::Sync, line, nullptr, 0);
    wait_at(warp().barrier, 32, line);
}

float exchange(Op op, float v, int arg, int line) {
    const int mine[] = {(int)as_bits(v), arg};
    int parity = meet(op, line, mine, sizeof mine);
    Warp &w = warp();
    if (w.barrier.arrived == 31) { // the last one does it for all
        float all[32];
        for (unsigned i = 0; i < 32; i++) {
            all[i] = value_of(w, parity, i);
            int other;
            memcpy(&other, w.slot[parity][i] + 4, 4);
            if (other != arg) fail(line, "lanes of a warp disagree about an argument: %d and %d", arg, other);
        }
        auto add = [](float a, float b) { return a + b; };
        auto max = [](float a, float b) { return fmaxf(a, b); };
        if (op == Op::GroupSum) butterfly(all, (unsigned)arg - 1, add);
        else if (op == Op::GroupMax) butterfly(all, (unsigned)arg - 1, max);
        else if (op == Op::AcrossSum) butterfly(all, 32 - (unsigned)arg, add);
        const unsigned mask = op == Op::ShuffleXor ? (unsigned)arg : 0;
        for (unsigned i = 0; i < 32; i++) w.result[parity][i] = all[i ^ mask];
    }
    wait_at(w.barrier, 32, line);
    return w.result[parity][lane()];
}

uint32_t ballot(bool v, int line) {
    float x = v;
    int parity = meet(Op::Ballot, line, &x, sizeof x);
    wait_at(warp().barrier, 32, line);
    uint32_t bits = 0;
    for (unsigned i = 0; i < 32; i++) bits |= (uint32_t)(value_of(warp(), parity, i) != 0) << i;
    return bits;
}

void ldmatrix(uint32_t (&r)[4], const void *row, bool trans, int line) {
    int parity = meet(trans ? Op::LdmatrixTrans : Op::Ldmatrix, line, &row, sizeof row);
    wait_at(warp().barrier, 32, line);
    const Warp &w = warp();
    auto address = [&](unsigned i) {
        const unsigned char *p;
        memcpy(&p, w.slot[parity][i], sizeof p);
        return p;
    };
    if (lane() == 0)
        for (unsigned i = 0; i < 32; i += 8) {
            const unsigned char *bank[8] = {};
            for (unsigned j = i; j < i + 8; j++) {
                const unsigned char *&at = bank[(uintptr_t)address(j) / 16 % 8];
                if (at && at != address(j)) fail(line, "bank conflict of ldmatrix: rows of lanes %u .. %u", i, i + 7);
                at = address(j);
            }
        }
    // Shared memory may change as soon as another warp writes; what kernels may rely on is checked by TSan.
    for (unsigned i = 0, l = lane(); i < 4; i++) {
        if (!trans) {
            memcpy(&r[i], address(8 * i + l / 4) + l % 4 * 4, 4);
        } else {
            uint16_t pair[2];
            for (unsigned j = 0; j < 2; j++) memcpy(&pair[j], address(8 * i + l % 4 * 2 + j) + l / 4 * 2, 2);
            memcpy(&r[i], pair, 4);
        }
    }
}

void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, Op op, int line) {
    uint32_t mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
    int parity = meet(op, line, mine, sizeof mine);
    Warp &w = warp();
    unsigned l = lane(), g = l / 4, t = l % 4;
    // Fragment maps of the PTX manual, m16n8k16: each lane unpacks what it holds.
    auto value = [&](uint32_t word, unsigned high) {
        uint16_t bits = (uint16_t)(high ? word >> 16 : word);
        return op == Op::MmaBf16 ? to_float(bf16{bits}) : to_float(f16{bits});
    };
    for (unsigned h = 0; h < 2; h++) {
        for (unsigned i = 0; i < 4; i++) w.a[parity][g + i % 2 * 8][2 * t + i / 2 * 8 + h] = value(a[i], h);
        w.b[parity][2 * t + h][g] = value(b0, h);
        w.b[parity][2 * t + 8 + h][g] = value(b1, h);
    }
    wait_at(w.barrier, 32, line);
    for (unsigned i = 0; i < 4; i++) {
        float sum = d[i];
        const float *row = w.a[parity][g + i / 2 * 8];
        for (unsigned k = 0; k < 16; k++) sum += row[k] * w.b[parity][k][2 * t + i % 2];
        d[i] = sum;
    }
}

void yield() { to_scheduler(false); }

void wait_for_last(int line) {
    Machine &m = *current;
    m.waited = true;
    if (!hidden) return;
    // Nothing is shown before the whole block has come here or ended.
    if (m.early.arrived + m.exited + 1 < m.now->view.block_dim.x) {
        wait_at(m.early, ~0u, line);
    } else {
        show(m);
    }
    if (m.wrote_early) fail(line, "written to global memory before wait_for_last");
}

namespace {

// xorshift64*, so that a seed means the same everywhere.
struct Random {
    uint64_t state;
    unsigned below(unsigned n) {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        return (unsigned)((state * 0x2545f4914f6cdd1dull >> 32) * n >> 32);
    }
};

bool runnable(const Fiber &f) {
    return !f.done && !(f.waiting && f.waiting->generation == f.generation);
}

void start(Fiber &f, unsigned id, const View &view) {
    f.view = view;
    f.view.thread = {id, 0, 0};
    f.id = id;
    f.done = false;
    f.waiting = nullptr;
    f.copies.clear();
    f.groups.clear();
    f.copied = 0;
#ifdef EMU_ASAN
    __asan_unpoison_memory_region(f.stack, STACK);
#endif
    void **sp = (void **)(f.stack + STACK - 64);
    *--sp = nullptr;
    *--sp = (void *)first_entry;
    for (int i = 0; i < 6; i++) *--sp = nullptr;
    f.sp = sp;
#ifdef EMU_TSAN
    f.tsan = __tsan_create_fiber(0);
    f.started = false;
#endif
}

// A random warp runs until it can no more (seeds of even parity) or until each lane has run once (odd): so
// one warp gets far ahead of the others, or all go in small steps. A deadlock ends it.
void run_block(unsigned threads, Random &random, bool ahead) {
    Machine &m = *current;
    unsigned warps = threads / 32;
    while (m.exited < threads && !m.failed) {
        unsigned chosen = random.below(warps);
        bool moved = false;
        for (unsigned i = 0; i < warps && !moved; i++) {
            Fiber *lanes = &m.fibers[(chosen + i) % warps * 32];
            bool again = true;
            while (again && !m.failed) {
                again = false;
                unsigned first = random.below(32);
                for (unsigned j = 0; j < 32 && !m.failed; j++) {
                    Fiber &f = lanes[(first + j) % 32];
                    if (!runnable(f)) continue;
                    resume(f);
                    again = moved = true;
                }
                if (!ahead) break;
            }
        }
        if (!moved && !m.failed) {
            m.failed = true;
            int n = snprintf(m.message, sizeof m.message, "%s: no thread can go on; waiting:", m.kernel);
            for (unsigned i = 0; i < threads && n < (int)sizeof m.message - 64; i += 32)
                if (!m.fibers[i].done)
                    n += snprintf(m.message + n, sizeof m.message - n, " thread %u at line %d;", i, m.fibers[i].line);
        }
    }
}

// ---- memory

struct Buffer {
    size_t size;
    unsigned char *raw; // with a guard before and behind, except under ASan, which has its own
};
std::mutex buffers_lock;
std::map<uint64_t, Buffer> buffers;

#ifdef EMU_ASAN
constexpr size_t GUARDED = 0;
#else
constexpr size_t GUARDED = GUARD;
#endif

unsigned char *allocate(size_t size) {
    void *p = nullptr;
    if (size > SIZE_MAX - 2 * GUARD || posix_memalign(&p, 256, size + 2 * GUARDED + (size == 0))) return nullptr;
    memset(p, 0xff, size + 2 * GUARDED);
    return (unsigned char *)p;
}

bool intact(const unsigned char *raw, size_t size) {
    for (size_t i = 0; i < GUARDED; i++)
        if (raw[i] != 0xff || raw[GUARDED + size + i] != 0xff) return false;
    return true;
}

// What the device is asked to do happens in the order of asking, whichever threads ask: TSan, which does not
// see how the host's threads keep that order, is told so.
struct InOrder {
#ifdef EMU_TSAN
    static inline char token;
    InOrder() { __tsan_acquire(&token); }
    ~InOrder() { __tsan_release(&token); }
#else
    InOrder() {}
#endif
};

int report(char *error, size_t error_len, const char *format, ...) __attribute__((format(printf, 3, 4)));
int report(char *error, size_t error_len, const char *format, ...) {
    va_list args;
    va_start(args, format);
    if (error_len) vsnprintf(error, error_len, format, args);
    va_end(args);
    return 1;
}

// Whether [address, address + size) lies in one buffer.
bool inside(uint64_t address, size_t size) {
    std::lock_guard<std::mutex> hold(buffers_lock);
    auto next = buffers.upper_bound(address);
    if (next == buffers.begin()) return false;
    auto &[start, buffer] = *--next;
    return address - start <= buffer.size && size <= buffer.size - (address - start);
}

// ---- what a launch sees of the one before (emu_strict)

struct Seen {
    std::vector<unsigned char> contents; // before the launch
    std::vector<bool> written;           // words, by launches since everything was complete
};
std::map<uint64_t, Seen> seen;

uint32_t *words(uint64_t address) { return (uint32_t *)address; }

// Before a launch: contents are kept, and what is not complete is hidden from a dependent one.
void before_launch(bool dependent) {
    for (auto &[address, buffer] : buffers) {
        Seen &s = seen[address];
        s.contents.assign((unsigned char *)address, (unsigned char *)address + buffer.size);
        s.written.resize(buffer.size / 4);
        for (size_t i = 0; i < s.written.size(); i++) {
            if (!dependent) s.written[i] = false;
            else if (s.written[i]) words(address)[i] = 0xffffffffu;
        }
    }
    hidden = dependent;
}

// All of it is there from now on. False where something has been written meanwhile.
bool restore() {
    if (!hidden) return true;
    hidden = false;
    bool untouched = true;
    for (auto &[address, s] : seen)
        for (size_t i = 0; i < s.written.size(); i++) {
            uint32_t was;
            memcpy(&was, &s.contents[4 * i], 4);
            untouched &= words(address)[i] == (s.written[i] ? 0xffffffffu : was);
            if (s.written[i]) words(address)[i] = was;
        }
    return untouched;
}

void after_launch() {
    for (auto &[address, s] : seen)
        for (size_t i = 0; i < s.written.size(); i++)
            if (memcmp(&words(address)[i], &s.contents[4 * i], 4)) s.written[i] = true;
}

} // namespace
} // namespace emu

using namespace emu;

extern "C" void emu_strict(int on) {
    strict = on;
    seen.clear();
}

extern "C" uint64_t emu_alloc(size_t size) {
    InOrder in_order;
    unsigned char *raw = allocate(size);
    if (!raw) return 0;
    uint64_t address = (uint64_t)(raw + GUARDED);
    std::lock_guard<std::mutex> hold(buffers_lock);
    buffers[address] = {size, raw};
    return address;
}

extern "C" int emu_free(uint64_t address, char *error, size_t error_len) {
    InOrder in_order;
    std::lock_guard<std::mutex> hold(buffers_lock);
    auto at = buffers.find(address);
    if (at == buffers.end()) return report(error, error_len, "no buffer begins at %#llx", (unsigned long long)address);
    bool good = intact(at->second.raw, at->second.size);
    size_t size = at->second.size;
    free(at->second.raw);
    buffers.erase(at);
    if (strict) seen.erase(address);
    return good ? 0 : report(error, error_len, "something was written outside a buffer of %zu bytes", size);
}

extern "C" int emu_copy_to_device(uint64_t to, const void *from, size_t size, char *error, size_t error_len) {
    InOrder in_order;
    if (strict) seen.clear();
    if (!inside(to, size)) return report(error, error_len, "%zu bytes at %#llx are not in one buffer", size, (unsigned long long)to);
    memcpy((void *)to, from, size);
    return 0;
}

extern "C" int emu_copy_to_host(void *to, uint64_t from, size_t size, char *error, size_t error_len) {
    InOrder in_order;
    if (strict) seen.clear();
    if (!inside(from, size)) return report(error, error_len, "%zu bytes at %#llx are not in one buffer", size, (unsigned long long)from);
    memcpy(to, (const void *)from, size);
    return 0;
}

extern "C" int emu_copy_on_device(uint64_t to, uint64_t from, size_t size, char *error, size_t error_len) {
    InOrder in_order;
    if (strict) seen.clear();
    if (!inside(from, size) || !inside(to, size))
        return report(error, error_len, "%zu bytes at %#llx or %#llx are not in one buffer", size, (unsigned long long)from, (unsigned long long)to);
    memmove((void *)to, (const void *)from, size);
    return 0;
}

extern "C" int emu_fill(uint64_t to, uint8_t byte, size_t size, char *error, size_t error_len) {
    InOrder in_order;
    if (strict) seen.clear();
    if (!inside(to, size)) return report(error, error_len, "%zu bytes at %#llx are not in one buffer", size, (unsigned long long)to);
    memset((void *)to, byte, size);
    return 0;
}

static int launch(const char *name, const void *params, size_t params_size, const unsigned grid[3], const unsigned block[3],
                  size_t shared_bytes, uint64_t seed, char *error, size_t error_len, bool dependent) {
    InOrder in_order;
    const Entry *kernel = find(name);
    if (!kernel) return report(error, error_len, "no kernel is called %s", name);
    if (kernel->params_size != params_size)
        return report(error, error_len, "%s takes %zu bytes of parameters, not %zu", name, kernel->params_size, params_size);
    if (block[0] != kernel->threads || block[1] != 1 || block[2] != 1)
        return report(error, error_len, "%s has blocks of %u threads, not (%u, %u, %u)", name, kernel->threads, block[0], block[1], block[2]);
    if (!grid[0] || !grid[1] || !grid[2] || grid[0] > 0x7fffffff || grid[1] > 65535 || grid[2] > 65535)
        return report(error, error_len, "%s: no GPU takes a grid of (%u, %u, %u)", name, grid[0], grid[1], grid[2]);
    if (shared_bytes > 99 << 10) // sm_86 and sm_89
        return report(error, error_len, "%s: %zu bytes of shared memory are more than every GPU has", name, shared_bytes);

    current = &own;
    Machine &m = own;
    unsigned threads = block[0];
    m.entry = kernel->entry;
    m.params = params;
    m.kernel = name;
    m.failed = m.waited = m.wrote_early = false;
    while (m.fibers.size() < threads) {
        void *stack = mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (stack == MAP_FAILED) return report(error, error_len, "no memory for the emulator's stacks");
        mprotect(stack, 4096, PROT_NONE);
        m.fibers.emplace_back();
        m.fibers.back().stack = (char *)stack;
    }
#ifdef EMU_TSAN
    m.tsan = __tsan_get_current_fiber();
#endif
    Random random{seed * 0x9e3779b97f4a7c15ull | 1};
    for (int i = 0; i < 4; i++) random.below(2);
    std::vector<uint64_t> order((uint64_t)grid[0] * grid[1] * grid[2]);
    for (size_t i = 0; i < order.size(); i++) {
        size_t j = random.below((unsigned)i + 1);
        order[i] = order[j];
        order[j] = i;
    }
    unsigned char *raw = allocate(shared_bytes);
    if (!raw) return report(error, error_len, "no memory for the emulator's shared memory");
    if (strict) before_launch(dependent);
    for (uint64_t b : order) {
        memset(raw + GUARDED, 0xff, shared_bytes);
        View view = {};
        view.block = {(unsigned)(b % grid[0]), (unsigned)(b / grid[0] % grid[1]), (unsigned)(b / grid[0] / grid[1])};
        view.block_dim = {block[0], 1, 1};
        view.grid_dim = {grid[0], grid[1], grid[2]};
        view.shared = raw + GUARDED;
        m.block = m.early = Barrier();
        for (Barrier &n : m.named) n = Barrier();
        m.exited = 0;
        m.warps.resize(threads / 32);
        for (Warp &w : m.warps) {
            w.barrier = Barrier();
            w.exited = 0;
        }
        for (unsigned i = 0; i < threads; i++) start(m.fibers[i], i, view);
        run_block(threads, random, seed % 2 == 0);
#ifdef EMU_TSAN
        // After a failure the others are resumed once, to end: what they did is then ordered before what follows.
        for (unsigned i = 0; i < threads; i++)
            if (!m.fibers[i].done && m.fibers[i].started) resume(m.fibers[i]);
        for (unsigned i = 0; i < threads; i++) __tsan_destroy_fiber(m.fibers[i].tsan);
#endif
        if (!m.failed && !intact(raw, shared_bytes)) {
            m.failed = true;
            snprintf(m.message, sizeof m.message, "%s, block (%u, %u, %u): wrote outside its %zu bytes of shared memory", name,
                     view.block.x, view.block.y, view.block.z, shared_bytes);
        }
        if (m.failed) break;
    }
    free(raw);
    if (strict && dependent && !m.failed && !m.waited) {
        m.failed = true;
        snprintf(m.message, sizeof m.message, "%s: no thread waits for the launch before", name);
    }
    if (strict) {
        restore();
        after_launch();
    }
    if (!m.failed) {
        std::lock_guard<std::mutex> hold(buffers_lock);
        for (auto &[address, buffer] : buffers)
            if (!intact(buffer.raw, buffer.size)) {
                m.failed = true;
                snprintf(m.message, sizeof m.message, "%s: something was written outside a buffer of %zu bytes", name, buffer.size);
            }
    }
    return m.failed ? report(error, error_len, "%s", m.message) : 0;
}

extern "C" int emu_launch(const char *name, const void *params, size_t params_size, const unsigned grid[3], const unsigned block[3],
                          size_t shared_bytes, uint64_t seed, char *error, size_t error_len) {
    return launch(name, params, params_size, grid, block, shared_bytes, seed, error, error_len, false);
}

extern "C" int emu_launch_dependent(const char *name, const void *params, size_t params_size, const unsigned grid[3],
                                    const unsigned block[3], size_t shared_bytes, uint64_t seed, char *error, size_t error_len) {
    return launch(name, params, params_size, grid, block, shared_bytes, seed, error, error_len, true);
}
