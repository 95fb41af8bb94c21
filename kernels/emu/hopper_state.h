// The state of a block that the files hopper_*.cpp share: its barriers, the
// copies and products in flight, and shared memory as both see it.
#ifndef LLAMABI_EMU_HOPPER_STATE_H
#define LLAMABI_EMU_HOPPER_STATE_H

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

// The emulator's version of a CUtensorMap: a matrix of 16-bit numbers whose boxes are swizzled by
// 128 bytes and read zeros outside of it.
struct Map {
    uint64_t magic, address, columns, rows, pitch;
    uint32_t box_columns, box_rows;
};
static_assert(sizeof(Map) <= sizeof(TensorMap), "takes its place");
constexpr uint64_t MAGIC = 0x70616d726f736e65;

struct Phases {
    unsigned over = 0;
    Barrier sleeping; // threads that wait for the current phase to end
    uint32_t count = 0, pending = 0;
    // Expected bytes, less than 0 where those from another block land before a thread says that it
    // expects them; bytes of copies in flight.
    int64_t expected = 0, flying = 0;
    unsigned maker = 0;   // the thread that made the barrier
    bool visible = false; // whether copies see the barrier
    bool far = false;     // whether other blocks of the cluster see it
    char token[2] = {};   // for TSan, by parity of the phase
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

// An operand in shared memory, in chunks of eight numbers. It has `rows` rows of 16 columns; if
// transposed, 16 rows of `rows` columns.
struct Operand {
    uint64_t descriptor;
    unsigned rows;
    bool transposed;
    uint32_t low = ~0u, high = 0; // the bounds of its chunks' addresses
    unsigned chunks() const { return rows * 2; }
};

struct Product {
    Op op;
    Operand a, b;
    bool fresh;
    unsigned n, issued; // `issued`: the number of threads that have issued it
    bool done;
    unsigned read_by; // a bit for each warp that has waited for it
    Sums *sums;
    // Operand A, if it is in registers: their addresses, and their contents when the product was
    // issued.
    std::vector<const uint32_t *> registers;
    std::vector<uint32_t> words;
};

struct Thread {
    size_t issued = 0, waited = 0; // numbers of products
    std::deque<size_t> committed;  // for each group, the number of products up to its end
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
    Machine *machine = nullptr;
    unsigned char *shared = nullptr;
    std::vector<unsigned char> seen; // shared memory as copies and products see it
    // For each thread, the addresses and sizes of what it has stored since its last async_fence.
    std::map<unsigned, std::vector<std::pair<uint32_t, uint32_t>>> stored;
    std::map<uint32_t, Phases> barriers;
    std::vector<Copying> copying;
    std::map<unsigned, Warpgroup> warpgroups;
    std::vector<const void *> read;
    // The operands of the product that is being computed. They are too large for a fiber's small
    // stack.
    float rows[64][16], columns[16][256];
};

struct Own {
    bool used = false, quiet = false, ended = false;
    size_t shared_bytes = 0;
    std::unique_ptr<Block> block;
};
// The Own of the running block.
#define own (*machine().hopper)

// TSan watches functions of the C library wherever they are called from. While a Quiet is alive, it
// does not; no fiber switch may happen during that time.
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

// The state of the running block. It is made when a kernel first uses a function of hopper.h.
Block &block();
// The state of another block of its cluster.
Block &block_of(unsigned rank, int line);

// Sleeps until somebody opens the barrier. It tells TSan nothing: the phases of barriers release
// and acquire.
void sleep(Barrier &b, int line);

// The address of the 16 bytes that would lie at `address` without swizzling.
inline uint32_t swizzled(uint32_t address) { return address ^ (address >> 7 & 7) << 4; }

// Whether an operand includes bytes of this range of shared memory.
bool reads(const Operand &o, uint32_t from, uint32_t bytes, int line);

} // namespace emu

#endif
