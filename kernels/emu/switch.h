// How a thread waits and how others take its place. All of it is inline, because every exchange
// between lanes comes here 32 times, and what the calls in between keep on each thread's own stack
// would not stay in the CPU's first cache. machine.h includes this file at its end.
#ifndef LLAMABI_EMU_SWITCH_H
#define LLAMABI_EMU_SWITCH_H

namespace emu {

// The machine whose block runs.
#ifndef EMU_LOADED_MANY_TIMES
// In a shared library, this attribute avoids a function call to find the pointer. The loader
// reserves little thread-local memory for it, which would not suffice for many copies of a library.
__attribute__((tls_model("initial-exec")))
#endif
extern __thread Machine *current;

inline Machine &machine() { return *current; }

// Returns the next lane of this round of the current warp that can run; null at the end of the
// round.
inline Fiber *next_lane(Machine &m) {
    for (uint32_t ready = m.ready[m.warp]; m.passed < 32;) {
        unsigned lane = (m.first + m.passed++) % 32;
        if (ready >> lane & 1) return &m.fibers[m.warp * 32 + lane];
    }
    return nullptr;
}

// Saves the callee-saved registers, stores the stack pointer in *save, and continues on the stack
// `to`.
extern "C" void llamabi_emu_switch(void **save, void *to);

#if !defined(EMU_ASAN) && !defined(EMU_TSAN)
inline void to_scheduler(Machine &m, bool) {
    Fiber *f = m.now;
    void *to = m.sp;
    // Switches directly to the next lane; the way through the scheduler would cost two switches.
    if (!m.failed)
        if (Fiber *next = next_lane(m)) {
            m.now = next;
            to = next->sp;
        }
    llamabi_emu_switch(&f->sp, to);
}
#endif

inline void park(Machine &m, Barrier &b, int line) {
    const unsigned id = m.now->id(), warp = id / 32;
    b.waiting[warp] |= 1u << id % 32;
    m.ready[warp] &= ~(1u << id % 32);
    if (id % 32 == 0) m.warps[warp].line = line;
    to_scheduler(m, false);
}

inline void open(Machine &m, Barrier &b) {
    for (unsigned i = 0; i < WARPS; i++) {
        m.ready[i] |= b.waiting[i];
        b.waiting[i] = 0;
    }
    b.arrived = 0;
    b.generation++;
}

inline void wait_at(Machine &m, Barrier &b, unsigned expected, int line) {
#ifdef EMU_TSAN
    char *token = &b.token[b.generation & 1];
    __tsan_release(token);
#endif
    if (b.arrived == 0) b.line = line;
    if (++b.arrived == expected)
        open(m, b);
    else
        park(m, b, line);
#ifdef EMU_TSAN
    __tsan_acquire(token);
#endif
}

} // namespace emu

#endif
