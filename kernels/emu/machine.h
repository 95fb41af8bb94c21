// The insides of the emulated machine, for the files beside this one: threads, warps, blocks.
//
// fibers.cpp switches between threads. warp.cpp has what threads do together, hopper_copies.cpp and
// hopper_products.cpp the same for compute capability 9.0. memory.cpp has device memory and what a
// launch sees of the launch before it. launch.cpp runs a kernel. All of this is built without
// -fsanitize=thread even when the kernels are built with it; EMU_TSAN then makes it announce its
// fibers and barriers to TSan. The machine stands for hardware, so only what kernels do can race.
#ifndef LLAMABI_EMU_MACHINE_H
#define LLAMABI_EMU_MACHINE_H

#include <cstddef>
#include <cstdint>
// device.h is included by gpu.h, which defines these.
struct bf16 {
    uint16_t bits;
};
struct f16 {
    uint16_t bits;
};
struct AsyncBarrier {
    uint64_t word;
};
#include "hopper.h"
#include "emu.h"

#include <sys/mman.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <vector>

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

#if defined(EMU_ASAN) || defined(EMU_TSAN)
constexpr size_t STACK = 256 << 10;
#else
constexpr size_t STACK = 64 << 10;
#endif
constexpr size_t GUARD = 256; // bytes of 0xff around memory; checked for writes

struct Barrier {
    unsigned arrived = 0, generation = 0;
    int line = 0;
    Op op = Op::Sync;
    // the last fiber that arrived; the others follow through Fiber::before
    struct Fiber *waiting = nullptr;
    // For TSan: what threads release to and acquire from, by parity of the generation. With a
    // single token, a thread that wakes late would acquire the next generation too, which would
    // hide races.
    char token[2] = {};
};

struct Fiber {
    View view;
    void *sp;
    char *stack;
    unsigned id;
    bool done;
    Fiber *before;              // the fiber that arrived at the same barrier before this one
    int line;                   // line of the barrier
    std::vector<Copy> copies;   // committed and not, in order of issue
    std::vector<size_t> groups; // ends of committed groups in `copies`
    size_t copied;
#ifdef EMU_TSAN
    void *tsan;
    bool started;
#endif
};

struct Warp {
    Barrier barrier;
    unsigned exited;
    uint32_t ready; // lanes that can run, one bit each
    // By parity of the barrier's generation: one lane may still read the last exchange while
    // another starts the next.
    uint32_t slot[2][6][32]; // [parity][word][lane]
    float result[2][32];
    float a[2][16][16], b[2][16][8];
};

// One for each OS thread that launches.
struct Machine {
    std::vector<Fiber> fibers;
    std::vector<Warp> warps;
    Barrier block, named[16], early; // `early`: of wait_for_last
    unsigned exited = 0;
    Fiber *now = nullptr;
    void *sp = nullptr; // run_block's stack pointer
    // The warp that run_block is at, the lane it began with, and how many lanes it has passed.
    unsigned warp = 0, first = 0, passed = 32;
    void (*entry)(const void *) = nullptr;
    const void *params = nullptr;
    const char *kernel = nullptr;
    bool failed = false;
    bool waited = false; // whether a thread has waited for the previous launch
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

// xorshift64*: a seed means the same on every platform.
struct Random {
    uint64_t state;
    unsigned below(unsigned n) {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        return (unsigned)((state * 0x2545f4914f6cdd1dull >> 32) * n >> 32);
    }
};

// fibers.cpp. The state of the OS thread, which calls make_machine before anything else:
Machine &make_machine();
Machine &machine();
// Switches from the running thread to the next one or back to run_block; forever if it is `dying`.
void to_scheduler(bool dying);
void start(Fiber &, unsigned id, const View &);
// Runs until every thread has ended or one has failed.
void run_block(unsigned threads, Random &, bool ahead);
#ifdef EMU_TSAN
void end_block(unsigned threads);
#endif

// warp.cpp
void wait_at(Machine &, Barrier &, unsigned expected, int line);
// Lets all threads that wait at the barrier go on.
void open(Machine &, Barrier &);

// hopper_copies.cpp: a block begins; whether copies are in flight; one copy lands.
void hopper_begins(size_t shared_bytes);
bool hopper_busy();
void hopper_lands(unsigned random);
// hopper_products.cpp: a thread ends.
void hopper_exits();

// memory.cpp. A guard of GUARDED bytes lies before and after the memory that is returned.
#ifdef EMU_ASAN
constexpr size_t GUARDED = 0; // ASan has its own guards
#else
constexpr size_t GUARDED = GUARD;
#endif
unsigned char *allocate(size_t size);
// Whether [address, address + size) lies in one buffer.
bool inside(uint64_t address, size_t size);
bool intact(const unsigned char *raw, size_t size);
// Returns false and the size of a damaged buffer if something was written outside of a buffer.
bool all_intact(size_t &damaged);
extern bool strict; // emu_strict
extern bool hidden; // whether what earlier launches wrote is hidden from this one
void before_launch(bool dependent);
void after_launch();
// Shows what was hidden to all threads that wait for it.
void show(Machine &);
bool restore();
int report(char *error, size_t error_len, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

// The device does things in the order of the calls, whichever host threads make them. TSan does not
// see how the host's threads keep that order, so it is told here.
struct InOrder {
#ifdef EMU_TSAN
    static inline char token;
    InOrder() { __tsan_acquire(&token); }
    ~InOrder() { __tsan_release(&token); }
#else
    InOrder() {}
#endif
};

} // namespace emu

#endif
