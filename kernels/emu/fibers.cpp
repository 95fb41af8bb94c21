// The threads of a kernel as fibers: switching between them, a seeded scheduler, how a thread
// begins and ends.
#include "machine.h"

#include <chrono>
#include <memory>
#include <mutex>
#include <thread>

namespace emu {
namespace {

// (Memory of a thread has to be small in a shared library, so it is a pointer.)
thread_local std::unique_ptr<Machine[]> machines;

struct Stacks {
    std::mutex lock;
    std::vector<char *> unused; // each the stacks of a warp
};
// Never freed: threads may end after the destructors of the process have run.
Stacks &stacks = *new Stacks;

} // namespace

char *take_stacks() {
    std::lock_guard<std::mutex> hold(stacks.lock);
    if (!stacks.unused.empty()) {
        char *warp = stacks.unused.back();
        stacks.unused.pop_back();
        return warp;
    }
    void *warp =
        mmap(nullptr, 32 * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (warp == MAP_FAILED) return nullptr;
    mprotect(warp, 4096, PROT_NONE);
    return (char *)warp;
}

void give_stacks(char *warp) {
#ifdef EMU_LOADED_MANY_TIMES
    munmap(warp, 32 * STACK); // a copy of the library that is unloaded must not leave them behind
#else
    std::lock_guard<std::mutex> hold(stacks.lock);
    stacks.unused.push_back(warp);
#endif
}

// (Every use of `machines` itself would check whether it has been constructed.)
__thread Machine *current;

Machine &make_machine(unsigned i) {
    if (!machines) machines.reset(new Machine[PLACES]);
    current = &machines[i];
    current->place_of = i;
    current->hopper = hopper_own(i);
    return *current;
}

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

#if defined(EMU_ASAN) || defined(EMU_TSAN)
void to_scheduler(Machine &m, bool dying) {
    Fiber *f = m.now;
#ifdef EMU_TSAN
    // Flag 1 means no synchronisation. Otherwise TSan would take every switch for an order between
    // the threads, and find no races. The end of a thread comes before the next block in the same
    // place, and before the end of the launch; to the blocks in other places it says nothing.
    if (dying) __tsan_release(&m.place);
    __tsan_switch_to_fiber(m.tsan, 1);
#endif
#ifdef EMU_ASAN
    void *fake = nullptr;
    __sanitizer_start_switch_fiber(dying ? nullptr : &fake, m.stack, m.stack_size);
#endif
    llamabi_emu_switch(&f->sp, m.sp);
#ifdef EMU_ASAN
    __sanitizer_finish_switch_fiber(fake, &m.stack, &m.stack_size);
#endif
#ifdef EMU_TSAN
    if (!dying && m.failed) to_scheduler(m, true);
#endif
}
#endif

namespace {

void resume(Fiber &f) {
    Machine &m = machine();
    m.now = &f;
#ifdef EMU_TSAN
    __tsan_switch_to_fiber(f.tsan, 1);
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

void end(Machine &m) {
    m.now->done = true;
    m.ready[m.now->id() / 32] &= ~(1u << m.now->id() % 32);
}

void first_entry() {
    Machine &m = machine();
#ifdef EMU_ASAN
    __sanitizer_finish_switch_fiber(nullptr, &m.stack, &m.stack_size);
#endif
#ifdef EMU_TSAN
    // Where blocks reach each other's memory, all that ran before in the places of their cluster
    // come first.
    for (unsigned r = 0; r < m.cluster->blocks; r++) __tsan_acquire(&m.cluster->of[r]->place);
#endif
    m.entry(m.params);
    Fiber *f = m.now;
    size_t committed = f->groups.empty() ? 0 : f->groups.back();
    if (f->copied < committed || f->copies.size() > committed)
        fail(0, "exited with cp.async copies under way");
    hopper_exits();
    end(m);
    m.exited++;
    cluster_opens(*m.cluster);
    Warp &w = m.warps[f->id() / 32];
    w.exited++;
    if (hidden && all_are_early(m, 0)) show(m);
    if (m.block.arrived)
        fail(m.block.line, "a thread exited while %u wait at the block's barrier", m.block.arrived);
    if (w.barrier.arrived)
        fail(w.barrier.line, "a lane exited while others wait for it in a warp operation");
    to_scheduler(m, true);
    abort();
}

} // namespace

View &view() { return machine().now->view; }

void fail(int line, const char *format, ...) {
    Machine &m = machine();
    if (!m.failed) {
        m.failed = true;
        const View &v = m.now->view;
        int n = snprintf(m.message, sizeof m.message,
            "%s, block (%u, %u, %u), thread %u, line %d: ", m.kernel, v.block.x, v.block.y,
            v.block.z, m.now->id(), line);
        va_list args;
        va_start(args, format);
        vsnprintf(m.message + n, sizeof m.message - n, format, args);
        va_end(args);
    }
    // The scheduler never returns to this fiber.
    end(m);
    to_scheduler(m, true);
    abort();
}

void yield() {
    Machine &m = machine();
    m.turns = 0;
    to_scheduler(m, false);
}

// Half a minute.
constexpr uint64_t LOOKS = 20'000'000;

void let_others_run() {
    Machine &m = machine();
    m.gives_way = true;
    if (++m.looks % 64 == 0) std::this_thread::sleep_for(std::chrono::microseconds(20));
    if (m.looks > LOOKS) fail(0, "waits for another device without end");
    yield();
}

bool in_shared(const void *p) {
    Machine &m = machine();
    return (uintptr_t)p - (uintptr_t)m.now->view.shared < m.shared_bytes;
}

#ifdef EMU_TSAN
// What TSan is told of fences. A thread's fence publishes what the thread has written, for blocks
// whose fence comes after they have counted at a counter at which this block has counted too. The
// atomic operation itself publishes nothing: a counter that is not fenced on both sides is a race.
namespace {
// By counter, the block that counted last. TSan watches memory that is allocated in between, so the
// table has a fixed size; counters that share an entry are taken for one.
thread_local std::unique_ptr<Published *[]> counted;
Published *&counted_at(const void *counter) { return counted[(uintptr_t)counter / 4 % 4096]; }
} // namespace
void fences_begin() { counted.reset(new Published *[4096]()); }
#endif

uint32_t atomic_add_global(uint32_t *p, uint32_t x) {
    yield();
#ifdef EMU_TSAN
    Machine &m = machine();
    m.counter = p;
    m.published->before = counted_at(p);
    counted_at(p) = m.published;
#endif
    const uint32_t before = *p;
    *p = before + x;
    return before;
}

void device_fence() {
#ifdef EMU_TSAN
    Machine &m = machine();
    __tsan_release(m.published);
    if (m.counter)
        for (Published *p = counted_at(m.counter); p; p = p->before) __tsan_acquire(p);
#endif
    yield();
}

void start(Fiber &f, unsigned id, const View &view) {
    f.view = view;
    f.view.thread = {id, 0, 0};
    f.done = false;
    f.copies.clear();
    f.groups.clear();
    f.copied = 0;
#ifdef EMU_ASAN
    __asan_unpoison_memory_region(f.stack, STACK);
#endif
    // Stacks begin at different offsets in a page, because a CPU cache has only a few lines for
    // each offset.
    void **sp = (void **)(f.stack + STACK - 64 - id % 61 * 64);
    *--sp = nullptr;
    *--sp = (void *)first_entry;
    for (int i = 0; i < 6; i++) *--sp = nullptr;
    f.sp = sp;
#ifdef EMU_TSAN
    f.started = false;
#endif
}

// Picks a random warp again and again. If `ahead`, the warp runs until it can run no further;
// otherwise each of its lanes runs once. So either one warp gets far ahead of the others, or all
// advance in small steps. A deadlock ends the run.
void run_block(unsigned threads, Random &random, bool ahead, unsigned turns) {
    Machine &m = machine();
    unsigned warps = threads / 32;
    for (m.turns = turns; m.turns && m.exited < threads && !m.failed; m.turns -= m.turns > 0) {
        if (hopper_busy() && random.below(3) == 0) hopper_lands(random.below(1 << 16));
        unsigned chosen = random.below(warps);
        bool moved = m.gives_way = false;
        for (unsigned i = 0; i < warps && !moved; i++) {
            m.warp = (chosen + i) % warps;
            while (m.ready[m.warp] && !m.failed) {
                m.first = random.below(32);
                m.passed = 0;
                while (Fiber *f = m.failed ? nullptr : next_lane(m)) resume(*f);
                moved = true;
                if (!ahead || m.gives_way) break;
            }
        }
        bool others = false; // whether another block of the cluster can go on
        for (unsigned r = 0; r < m.cluster->blocks; r++) {
            Machine &other = *m.cluster->of[r];
            // What this block has done may be what another waits for.
            if (moved) other.stuck = false;
            others |= &other != &m && !other.stuck && other.exited < threads;
        }
        if (moved || m.failed) continue;
        if (hopper_busy()) {
            hopper_lands(random.below(1 << 16));
        } else if (others) {
            m.stuck = true;
            return;
        } else {
            m.failed = true;
            int n = snprintf(
                m.message, sizeof m.message, "%s: no thread can go on; waiting:", m.kernel);
            for (unsigned i = 0; i < threads && n < (int)sizeof m.message - 64; i += 32)
                if (!m.fibers[i].done)
                    n += snprintf(m.message + n, sizeof m.message - n, " thread %u at line %d;", i,
                        m.warps[i / 32].line);
        }
    }
}

#ifdef EMU_TSAN
// After a failure, resumes the other fibers once so that they end. Then TSan knows that whatever
// they did comes before whatever follows, the message of the failed one included.
void end_block(unsigned threads) {
    Machine &m = machine();
    for (unsigned i = 0; i < threads; i++)
        if (!m.fibers[i].done && m.fibers[i].started) resume(m.fibers[i]);
    __tsan_acquire(&m.place);
}
#endif

} // namespace emu
