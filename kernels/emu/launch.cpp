// Runs a kernel: its blocks in a random order, a few at the same time, which take turns.
#include "machine.h"

#include "table.h"

#include <algorithm>

#ifdef EMU_TSAN
extern "C" {
void AnnotateIgnoreWritesBegin(const char *, int);
void AnnotateIgnoreWritesEnd(const char *, int);
}
#endif

using namespace emu;

static int launch(const char *name, const void *params, size_t params_size, const unsigned grid[3],
    const unsigned block[3], size_t shared_bytes, unsigned cluster, uint64_t seed, char *error,
    size_t error_len, bool dependent) {
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
    // Products of few rows, whose names are a matrix and a type, are launched only where they fit
    // (geometry.rs).
    const bool few = kernel->threads == 256 && !strstr(name, "_batch_") &&
                     !strstr(name, "_prefill_") && !strstr(name, "_epilogue") &&
                     (!strncmp(name, "qkv_", 4) || !strncmp(name, "matmul_add_", 11) ||
                         !strncmp(name, "ffn_up_", 7) || !strncmp(name, "logits_", 7));
    // 99 KiB is the limit of sm_86 and sm_89.
    if (shared_bytes > (hopper || few ? 227 << 10 : 99 << 10))
        return report(error, error_len,
            "%s: %zu bytes of shared memory are more than every GPU has", name, shared_bytes);

    if (cluster > 1 && !hopper)
        return report(error, error_len, "%s: clusters are for compute capability 9.0", name);
    if (!cluster || cluster > CLUSTER || grid[0] % cluster)
        return report(error, error_len, "%s: clusters of %u blocks in a grid of (%u, %u, %u)", name,
            cluster, grid[0], grid[1], grid[2]);

    const uint64_t blocks = (uint64_t)grid[0] * grid[1] * grid[2], clusters = blocks / cluster;
    unsigned threads = block[0];
    // What a dependent launch sees changes when its first block has waited, so that in strict mode
    // blocks, or clusters of them, run one after another.
    const unsigned most = strict        ? 1
                          : cluster > 1 ? RESIDENT_CLUSTERS
                                        : RESIDENT,
                   residents = cluster * (clusters < most ? (unsigned)clusters : most);
    // Parameters are copied because the tensor maps in them must be aligned.
    alignas(128) unsigned char aligned[1024];
    if (params_size > sizeof aligned)
        return report(error, error_len, "%s: %zu bytes of parameters", name, params_size);
    memcpy(aligned, params, params_size);
    unsigned char *raw[PLACES] = {};
    Cluster together[PLACES]; // by its first place
    for (unsigned i = 0; i < residents; i++) {
        Machine &m = make_machine(i);
        m.entry = kernel->entry;
        m.params = aligned;
        m.kernel = name;
        m.failed = m.waited = m.wrote_early = false;
        m.looks = 0;
        m.rank = i % cluster;
        m.cluster = &together[i - m.rank];
        m.cluster->blocks = cluster;
        m.cluster->of[m.rank] = &m;
        while (m.fibers.size() < threads) {
            char *warp = take_stacks();
            if (!warp) break;
            for (unsigned lane = 0; lane < 32; lane++) {
                m.fibers.emplace_back();
                m.fibers.back().stack = warp + lane * STACK;
            }
        }
        // Before TSan's fibers begin, because it watches the memset of new ones.
        m.warps.resize(threads / 32);
        raw[i] = allocate(shared_bytes);
        if (m.fibers.size() < threads || !raw[i]) {
            for (unsigned char *p : raw) free(p);
            return report(
                error, error_len, "no memory for the emulator's stacks and shared memory");
        }
#ifdef EMU_TSAN
        // The threads of the blocks that follow one another are the same to TSan. It would forget
        // what a thread that no longer exists has accessed. Threads that outlived their launch
        // would save a fifth of the time, but races were then missed (NO_BARRIER_KEPT): TSan says
        // nothing of a race if the earlier access is no longer in its thread's history.
        m.tsan = __tsan_get_current_fiber();
        for (unsigned t = 0; t < threads; t++) m.fibers[t].tsan = __tsan_create_fiber(0);
        __tsan_release(&m.place);
#endif
    }
    Random random{seed * 0x9e3779b97f4a7c15ull | 1};
    for (int i = 0; i < 4; i++) random.below(2);
    std::vector<uint64_t> order(clusters);
    for (size_t i = 0; i < order.size(); i++) {
        size_t j = random.below((unsigned)i + 1);
        order[i] = order[j];
        order[j] = i;
    }
#ifdef EMU_TSAN
    std::vector<Published> published(blocks);
    fences_begin();
#endif
    auto begin = [&](Machine &m, unsigned char *shared, uint64_t b) {
#ifdef EMU_TSAN
        // TSan watches memset. This one follows the block that was here before.
        AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
        memset(shared, 0xff, shared_bytes);
        AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
#else
        memset(shared, 0xff, shared_bytes);
#endif
        View view = {};
        view.block = {(unsigned)(b % grid[0]), (unsigned)(b / grid[0] % grid[1]),
            (unsigned)(b / grid[0] / grid[1])};
        view.block_dim = {block[0], 1, 1};
        view.grid_dim = {grid[0], grid[1], grid[2]};
        view.shared = shared;
#ifdef EMU_TSAN
        m.published = &published[b];
        m.counter = nullptr;
#endif
        m.block = m.early = m.together = Barrier();
        m.stuck = false;
        for (Barrier &n : m.named) n = Barrier();
        m.exited = 0;
        m.shared_bytes = shared_bytes;
        hopper_begins(shared_bytes);
        for (Warp &w : m.warps) {
            w.barrier = Barrier();
            w.exited = 0;
        }
        std::fill_n(m.ready, threads / 32, 0xffffffffu);
        for (unsigned i = 0; i < threads; i++) start(m.fibers[i], i, view);
    };
    auto end = [&](Machine &m, const unsigned char *guarded) {
        if (!m.failed && hopper_busy()) {
            m.failed = true;
            snprintf(
                m.message, sizeof m.message, "%s: a block has ended with copies under way", name);
        }
#ifdef EMU_TSAN
        end_block(threads);
#endif
        if (!m.failed && !intact(guarded, shared_bytes)) {
            m.failed = true;
            const Index at = m.fibers[0].view.block;
            snprintf(m.message, sizeof m.message,
                "%s, block (%u, %u, %u): wrote outside its %zu bytes of shared memory", name, at.x,
                at.y, at.z, shared_bytes);
        }
    };
    if (strict) before_launch(dependent);
    // Blocks take turns of random length. When one has ended, the next takes its place.
    bool running[PLACES] = {}, failed = false, waited = false;
    char message[sizeof Machine::message];
    for (uint64_t begun = 0, ended = 0; ended < blocks && !failed;) {
        const unsigned i = random.below(residents), first = i / cluster * cluster;
        bool any = false; // whether a block of this cluster runs
        for (unsigned r = 0; r < cluster; r++) any |= running[first + r];
        if (any ? !running[i] : begun == clusters) continue;
        if (!any) {
            together[first].arrived = together[first].generation = 0;
            for (unsigned r = 0; r < cluster; r++) {
                begin(
                    make_machine(first + r), raw[first + r] + GUARDED, order[begun] * cluster + r);
                running[first + r] = true;
            }
            begun++;
        }
        Machine &m = make_machine(i);
        run_block(threads, random, seed % 2 == 0, residents == 1 ? ~0u : 1 + random.below(64));
        if (m.exited < threads && !m.failed) continue;
        end(m, raw[i]);
        hopper_ends();
        running[i] = false;
        ended++;
        waited |= m.waited;
        if (!m.failed) continue;
        failed = true;
        memcpy(message, m.message, sizeof message);
    }
#ifdef EMU_TSAN
    for (unsigned i = 0; i < residents; i++) {
        Machine &m = make_machine(i);
        m.failed = true;
        if (running[i]) end_block(threads);
        __tsan_acquire(&m.place);
        for (unsigned t = 0; t < threads; t++) __tsan_destroy_fiber(m.fibers[t].tsan);
    }
#endif
    for (unsigned char *p : raw) free(p);
    auto refuse = [&](const char *format, auto... values) {
        failed = true;
        snprintf(message, sizeof message, format, name, values...);
    };
    if (strict && dependent && !failed && !waited)
        refuse("%s: no thread waits for the launch before");
    if (strict) {
        restore();
        after_launch();
    }
    size_t damaged;
    if (!failed && !all_intact(damaged))
        refuse("%s: something was written outside a buffer of %zu bytes", damaged);
    return failed ? report(error, error_len, "%s", message) : 0;
}

extern "C" int emu_launch(const char *name, const void *params, size_t params_size,
    const unsigned grid[3], const unsigned block[3], size_t shared_bytes, uint64_t seed,
    char *error, size_t error_len) {
    return launch(
        name, params, params_size, grid, block, shared_bytes, 1, seed, error, error_len, false);
}

extern "C" int emu_launch_clusters(const char *name, const void *params, size_t params_size,
    const unsigned grid[3], const unsigned block[3], size_t shared_bytes, unsigned cluster,
    uint64_t seed, char *error, size_t error_len) {
    return launch(name, params, params_size, grid, block, shared_bytes, cluster, seed, error,
        error_len, false);
}

extern "C" int emu_launch_dependent(const char *name, const void *params, size_t params_size,
    const unsigned grid[3], const unsigned block[3], size_t shared_bytes, unsigned cluster,
    uint64_t seed, char *error, size_t error_len) {
    return launch(name, params, params_size, grid, block, shared_bytes, cluster, seed, error,
        error_len, true);
}
