// Barriers at which copies arrive, and copies of boxes: see hopper.h.
#include "hopper_state.h"

namespace emu {

namespace {
thread_local Own owns[PLACES];
}

Own *hopper_own(unsigned i) { return &owns[i]; }

Block &block() {
    if (!own.used) {
        if (!own.quiet) {
            Quiet here;
            return block();
        }
        own.used = true;
        own.block.reset(new Block);
        own.block->machine = &machine();
        own.block->shared = view().shared;
        own.block->seen.assign(own.shared_bytes, 0xff);
    }
    return *own.block;
}

Block &block_of(unsigned rank, int line) {
    Machine &m = machine();
    if (rank == m.rank) return block();
    if (rank >= m.cluster->blocks)
        fail(line, "a cluster of %u blocks has no %u", m.cluster->blocks, rank);
    Own &other = owns[m.cluster->of[rank]->place_of];
    if (other.ended) fail(line, "reaches a block of its cluster that has ended");
    if (!other.used) fail(line, "a barrier that nobody has made");
    return *other.block;
}

void sleep(Barrier &b, int line) { park(machine(), b, line); }

namespace {

const Map &map_of(const TensorMap &map, int line) {
    const Map &m = (const Map &)map;
    if (m.magic != MAGIC) fail(line, "what is taken for a tensor map is none");
    return m;
}
uint32_t bytes_of(const Map &m) { return m.box_columns * m.box_rows * 2; }

// The barrier of block k of the cluster that lies at the same place in its shared memory as `p`
// does in the shared memory of the running block.
Phases &barrier_at(Block &k, const void *p, int line) {
    auto found = k.barriers.find(shared_address(p));
    if (found == k.barriers.end()) fail(line, "a barrier that nobody has made");
    if (k.machine != &machine() && !found->second.far)
        fail(line, "the barrier was made by a store that no cluster_fence has made visible");
    return found->second;
}
Phases &barrier_at(const void *p, int line) { return barrier_at(block(), p, line); }

void released(Phases &b) {
#ifdef EMU_TSAN
    __tsan_release(&b.token[b.over & 1]);
#else
    (void)b;
#endif
}

void complete(Phases &b, Machine &m) {
    if (b.pending || b.expected) return;
    b.pending = b.count;
    b.over++;
    open(m, b.sleeping);
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

void async_arrive(const void *at, uint32_t bytes, unsigned rank, int line) {
    Block &k = block_of(rank, line);
    Phases &b = barrier_at(k, at, line);
    if (b.pending == 0) fail(line, "more arrivals than the barrier was made for");
    released(b);
    b.expected += bytes;
    if (b.expected > (1 << 20) - 1) fail(line, "a barrier counts no more than 2^20 - 1 bytes");
    b.pending--;
    complete(b, *k.machine);
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

void cluster_fence(int) {
    Quiet here;
    for (auto &[at, one] : block().barriers) one.far |= one.maker == view().thread.x;
}

uint32_t box_begins(const void *to, const TensorMap &map, const void *at, unsigned rank, int line) {
    Quiet here;
    Block &k = block_of(rank, line);
    const Map &m = map_of(map, line);
    const uint32_t bytes = bytes_of(m), from = shared_address(to);
    if (from % 1024 || from + bytes > own.shared_bytes)
        fail(line, "a box of %u bytes goes to %u of %zu, not aligned to 1024", bytes, from,
            own.shared_bytes);
    Phases &b = barrier_at(k, at, line);
    if (!b.visible)
        fail(line, "the barrier was made by a store that no async_fence has made visible");
    // What another block sends may be on its way before a thread of the block says that it expects
    // it.
    if (rank == machine().rank && b.expected < b.flying + (int64_t)bytes)
        fail(line, "%u bytes of a box are on their way to a barrier that does not expect them",
            bytes);
    b.flying += bytes;
    for (auto &[number, group] : k.warpgroups)
        for (const Product &p : group.products)
            if (p.read_by != 15 && (reads(p.a, from, bytes, line) || reads(p.b, from, bytes, line)))
                fail(line, "a copy overwrites what a product of warpgroup %u still reads", number);
    for (const Copying &c : k.copying)
        if (c.to - from < bytes || from - c.to < bytes_of(c.map))
            fail(line, "two copies to the same place");
    memset(&k.seen[from], 0xff, bytes);
    return bytes;
}

void box_copies(const void *to, const TensorMap &map, int32_t column, int32_t row, const void *at,
    unsigned rank) {
    Quiet here;
    Block &k = block_of(rank, 0);
    Phases &b = barrier_at(k, at, 0);
    const Map &m = (const Map &)map;
    for (int64_t r = row < 0 ? 0 : row; r < row + (int64_t)m.box_rows && r < (int64_t)m.rows; r++)
        if (column < (int64_t)m.columns &&
            may_change(m.address + (uint64_t)r * m.pitch + 2 * column, 2 * m.box_columns))
            fail(0, "a copy before wait_for_last, of what an earlier launch of the chain writes");
    released(b);
    k.copying.push_back({shared_address(to), (const Map &)map, column, row, &b});
}

void hopper_begins(size_t shared_bytes) {
    Quiet here;
    own.used = own.ended = false;
    own.block.reset();
    own.shared_bytes = shared_bytes;
}
void hopper_ends() { own.ended = true; }

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
    complete(*c.barrier, machine());
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
