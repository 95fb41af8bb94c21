// The internal interface of the emulator, for the files beside this one: threads, warps, blocks.
//
// fibers.cpp switches between threads. warp.cpp has the operations that several threads do
// together; hopper_clusters.cpp, hopper_copies.cpp and hopper_products.cpp have the operations of
// compute capability 9.0. memory.cpp has device memory, and hides from a dependent launch what it
// may not see yet. launch.cpp runs a kernel.
//
// All of this is built without -fsanitize=thread even when the kernels are built with it. EMU_TSAN
// then makes it announce its fibers and barriers to TSan. The emulator stands for hardware, so TSan
// should find races of kernels only.
#ifndef LLAMABI_EMU_MACHINE_H
#define LLAMABI_EMU_MACHINE_H

#include <cstddef>
#include <cstdint>
// gpu.h defines these types before it includes device.h.
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
// Bytes of 0xff before and after memory. A write into them is detected.
constexpr size_t GUARD = 256;

// The most warps of a block.
constexpr unsigned WARPS = 32;

struct Barrier {
    unsigned arrived = 0, generation = 0;
    int line = 0, arg = 0;
    Op op = Op::Sync;
    uint32_t waiting[WARPS] = {}; // the lanes of each warp that wait, a bit for each
    // For TSan, what threads release to and acquire from, by parity of the generation. If there
    // were one token, a thread that wakes late would acquire the next generation too, and that
    // would hide races.
    char token[2] = {};
};

// What a switch needs comes first and fills one line of the CPU's cache: a block has hundreds of
// threads, and its switches take most of the emulator's time.
struct alignas(64) Fiber {
    View view;
    void *sp;
    char *stack;
    bool done;
    std::vector<Copy> copies;   // in order of issue, whether committed or not
    std::vector<size_t> groups; // the end of each committed group in `copies`
    size_t copied;
#ifdef EMU_TSAN
    void *tsan;
    bool started;
#endif
    unsigned id() const { return view.thread.x; }
};
static_assert(offsetof(Fiber, stack) == 64, "a switch touches one line");

// Each exchange between lanes reads and writes here 32 times, so there are few words for each lane:
// they stay in the CPU's first cache.
struct Warp {
    Barrier barrier;
    unsigned exited;
    int line; // where lane 0 waits
    // Twice, by parity of the barrier's generation, because one lane may still read the last
    // exchange while another lane starts the next one.
    uint32_t slot[2][2][32]; // [parity][word][lane]
    float a[2][16][16], b[2][16][8], d[2][16][8];
};

#ifdef EMU_TSAN
// Its address stands for what the threads of a block have written before a fence. `before` is the
// block that has counted at the same counter before this one.
struct Published {
    Published *before;
};
#endif

// fibers.cpp. The stacks of a warp, lane 0's first. They are kept for the next OS thread that
// launches kernels: every handle of a test has such a thread, and hundreds of fibers. take_stacks
// returns null if there is no memory.
//
// Only lane 0's stack has a page below it that must not be touched. The lanes of a warp call the
// same functions, so a call that is too deep is too deep on lane 0 as well. (What another lane
// calls alone could write into its neighbour's stack.) With a page for each lane, tests of ranks
// came to the 65,530 mappings that Linux allows a process.
char *take_stacks();
void give_stacks(char *);

// How many blocks of a launch run at the same time, taking turns: with clusters, two clusters.
constexpr unsigned RESIDENT = 3, RESIDENT_CLUSTERS = 2;
// The most blocks of a cluster that are emulated.
constexpr unsigned CLUSTER = 2;
constexpr unsigned PLACES = RESIDENT_CLUSTERS * CLUSTER;

// Blocks that run at the same time, and that reach each other's barriers and shared memory. Without
// clusters, each block is one of its own.
struct Cluster {
    unsigned blocks = 1;
    struct Machine *of[CLUSTER] = {}; // by rank
    // The cluster's barrier: threads that have arrived. `token` is for TSan, as in Barrier.
    unsigned arrived = 0, generation = 0;
    char token[2] = {};
};

// The emulator's state of a block that runs, and of what it needs of its launch. An OS thread that
// launches kernels has PLACES of them.
struct Machine {
    std::vector<Fiber> fibers;
    std::vector<Warp> warps;
    uint32_t ready[WARPS] = {}; // the lanes of each warp that can run, a bit for each
    // `early`: the barrier of wait_for_last; `together`: threads that wait for the cluster.
    Barrier block, named[16], early, together;
    unsigned place_of = 0;        // its number
    struct Own *hopper = nullptr; // hopper_state.h
    Cluster *cluster = nullptr;
    unsigned rank = 0; // in the cluster
    bool stuck =
        false; // whether no thread can go on before another block of the cluster does something
    unsigned exited = 0;
    size_t shared_bytes = 0;
    unsigned turns = 0; // how many more warps have a turn before another block does
    Fiber *now = nullptr;
    void *sp = nullptr; // run_block's stack pointer
    // run_block's current warp, the lane with which its round began, and how many lanes it has
    // passed.
    unsigned warp = 0, first = 0, passed = 32;
    void (*entry)(const void *) = nullptr;
    const void *params = nullptr;
    const char *kernel = nullptr;
    bool failed = false;
    // How often threads have looked whether another device has come, and whether one has just done
    // so: then another block has its turn, which that device may wait for.
    uint64_t looks = 0;
    bool gives_way = false;
    bool waited = false; // whether a thread has called wait_for_last
    bool wrote_early = false;
    char message[512];
#ifdef EMU_ASAN
    const void *stack = nullptr;
    size_t stack_size = 0;
#endif
#ifdef EMU_TSAN
    void *tsan = nullptr;
    char place = 0; // for TSan, the blocks that have run here
    Published *published = nullptr;
    const void *counter = nullptr; // the one in global memory at which the block has counted last
#endif
    ~Machine() {
        for (size_t t = 0; t < fibers.size(); t += 32) {
#ifdef EMU_ASAN
            // Whoever gets this memory next may write to all of it.
            __asan_unpoison_memory_region(fibers[t].stack, 32 * STACK);
#endif
            give_stacks(fibers[t].stack);
        }
    }
};

// xorshift64*, so that a seed gives the same numbers on every platform.
struct Random {
    uint64_t state;
    unsigned below(unsigned n) {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        return (unsigned)((state * 0x2545f4914f6cdd1dull >> 32) * n >> 32);
    }
};

// fibers.cpp. The state of the block that runs. make_machine chooses it, before anything else.
Machine &make_machine(unsigned);
// Switches from the running fiber to the next one, or back to run_block. A `dying` fiber never runs
// again.
void to_scheduler(Machine &, bool dying);
void start(Fiber &, unsigned id, const View &);
// Runs the fibers until all of them have ended, one has failed, or some warps have had their turns.
void run_block(unsigned threads, Random &, bool ahead, unsigned turns);
#ifdef EMU_TSAN
void end_block(unsigned threads);
void fences_begin();
#endif

// switch.h
Machine &machine();
// Waits until as many threads as are expected have come to the barrier.
void wait_at(Machine &, Barrier &, unsigned expected, int line);
// The running thread waits until the barrier is opened.
void park(Machine &, Barrier &, int line);
// Lets all threads that wait at the barrier go on.
void open(Machine &, Barrier &);

// hopper_clusters.cpp. Lets the threads that wait for a cluster go on if all others have arrived or
// exited.
void cluster_opens(Cluster &);
// hopper_copies.cpp. hopper_own: the state of what runs in a place. hopper_begins, hopper_ends: a
// block begins or has ended. hopper_busy: whether copies are in flight. hopper_lands: one of them
// lands.
struct Own *hopper_own(unsigned place);
void hopper_begins(size_t shared_bytes);
void hopper_ends();
bool hopper_busy();
void hopper_lands(unsigned random);
// hopper_products.cpp. hopper_exits: the running thread ends.
void hopper_exits();

// memory.cpp. `allocate` returns memory with GUARDED more bytes before and after `size`.
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
extern bool hidden; // whether the output of earlier launches is hidden from the running one
void before_launch(bool dependent);
void after_launch();
// Shows what was hidden, and lets the threads that wait in wait_for_last go on.
void show(Machine &);
// Whether all threads of the cluster wait in wait_for_last or have ended; `more`: those that are
// about to wait.
bool all_are_early(Machine &, unsigned more);
bool may_change(uint64_t address, uint64_t bytes);
bool restore();
int report(char *error, size_t error_len, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

// The device works in the order of the calls, whichever host threads make them. TSan does not see
// how the host's threads keep that order, so this type tells it.
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

#include "switch.h"

#endif
