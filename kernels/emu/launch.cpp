// Runs a kernel: its blocks one after another, in a random order.
#include "machine.h"

#include "table.h"

using namespace emu;

static int launch(const char *name, const void *params, size_t params_size, const unsigned grid[3],
    const unsigned block[3], size_t shared_bytes, uint64_t seed, char *error, size_t error_len,
    bool dependent) {
    InOrder in_order;
    const Entry *kernel = find(name);
    if (!kernel) return report(error, error_len, "no kernel is called %s", name);
    if (kernel->params_size != params_size)
        return report(error, error_len, "%s takes %zu bytes of parameters, not %zu", name,
            kernel->params_size, params_size);
    if (block[0] != kernel->threads || block[1] != 1 || block[2] != 1)
        return report(error, error_len, "%s has blocks of %u threads, not (%u, %u, %u)", name,
            kernel->threads, block[0], block[1], block[2]);
    if (!grid[0] || !grid[1] || !grid[2] || grid[0] > 0x7fffffff || grid[1] > 65535 ||
        grid[2] > 65535)
        return report(error, error_len, "%s: no GPU takes a grid of (%u, %u, %u)", name, grid[0],
            grid[1], grid[2]);
    const bool hopper = strstr(name, "_hopper_") != nullptr;
    if (shared_bytes > (hopper ? 227 << 10 : 99 << 10)) // 99 KiB: the limit of sm_86 and sm_89
        return report(error, error_len,
            "%s: %zu bytes of shared memory are more than every GPU has", name, shared_bytes);

    Machine &m = make_machine();
    unsigned threads = block[0];
    // Parameters are copied because the tensor maps in them must be aligned.
    alignas(128) unsigned char aligned[1024];
    if (params_size > sizeof aligned)
        return report(error, error_len, "%s: %zu bytes of parameters", name, params_size);
    memcpy(aligned, params, params_size);
    m.entry = kernel->entry;
    m.params = aligned;
    m.kernel = name;
    m.failed = m.waited = m.wrote_early = false;
    while (m.fibers.size() < threads) {
        void *stack =
            mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (stack == MAP_FAILED)
            return report(error, error_len, "no memory for the emulator's stacks");
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
        view.block = {(unsigned)(b % grid[0]), (unsigned)(b / grid[0] % grid[1]),
            (unsigned)(b / grid[0] / grid[1])};
        view.block_dim = {block[0], 1, 1};
        view.grid_dim = {grid[0], grid[1], grid[2]};
        view.shared = raw + GUARDED;
        m.block = m.early = Barrier();
        for (Barrier &n : m.named) n = Barrier();
        m.exited = 0;
        hopper_begins(shared_bytes);
        m.warps.resize(threads / 32);
        for (Warp &w : m.warps) {
            w.barrier = Barrier();
            w.exited = 0;
            w.ready = 0xffffffffu;
        }
        for (unsigned i = 0; i < threads; i++) start(m.fibers[i], i, view);
        run_block(threads, random, seed % 2 == 0);
        if (!m.failed && hopper_busy()) {
            m.failed = true;
            snprintf(
                m.message, sizeof m.message, "%s: a block has ended with copies under way", name);
        }
#ifdef EMU_TSAN
        end_block(threads);
#endif
        if (!m.failed && !intact(raw, shared_bytes)) {
            m.failed = true;
            snprintf(m.message, sizeof m.message,
                "%s, block (%u, %u, %u): wrote outside its %zu bytes of shared memory", name,
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
    size_t damaged;
    if (!m.failed && !all_intact(damaged)) {
        m.failed = true;
        snprintf(m.message, sizeof m.message,
            "%s: something was written outside a buffer of %zu bytes", name, damaged);
    }
    return m.failed ? report(error, error_len, "%s", m.message) : 0;
}

extern "C" int emu_launch(const char *name, const void *params, size_t params_size,
    const unsigned grid[3], const unsigned block[3], size_t shared_bytes, uint64_t seed,
    char *error, size_t error_len) {
    return launch(
        name, params, params_size, grid, block, shared_bytes, seed, error, error_len, false);
}

extern "C" int emu_launch_dependent(const char *name, const void *params, size_t params_size,
    const unsigned grid[3], const unsigned block[3], size_t shared_bytes, uint64_t seed,
    char *error, size_t error_len) {
    return launch(
        name, params, params_size, grid, block, shared_bytes, seed, error, error_len, true);
}
