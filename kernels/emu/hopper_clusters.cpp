// Clusters: blocks that run at the same time and reach each other's shared memory. See hopper.h.
#include "hopper_state.h"

namespace emu {

unsigned cluster_blocks() { return machine().cluster->blocks; }
unsigned cluster_rank() { return machine().rank; }

void *at_rank(const void *p, unsigned rank, int line) {
    if (rank == machine().rank) return (void *)p;
    return block_of(rank, line).shared + shared_address(p);
}

void cluster_sync(int line) {
    Machine &m = machine();
    Cluster &c = *m.cluster;
    const unsigned generation = c.generation;
#ifdef EMU_TSAN
    __tsan_release(&c.token[generation & 1]);
#endif
    c.arrived++;
    cluster_opens(c);
    while (c.generation == generation) sleep(m.together, line);
#ifdef EMU_TSAN
    __tsan_acquire(&c.token[generation & 1]);
#endif
}

// Threads that have exited count as arrived (PTX manual, "barrier.cluster").
void cluster_opens(Cluster &c) {
    size_t threads = 0, here = c.arrived;
    for (unsigned r = 0; r < c.blocks; r++) {
        threads += c.of[r]->warps.size() * 32;
        here += c.of[r]->exited;
    }
    if (!c.arrived || here < threads) return;
    c.arrived = 0;
    c.generation++;
    for (unsigned r = 0; r < c.blocks; r++) open(*c.of[r], c.of[r]->together);
}

} // namespace emu
