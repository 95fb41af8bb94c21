// What hopper_copies.cpp and hopper_products.cpp share of a block: its barriers, copies and
// products under way, and shared memory as both see it.
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

// Stands for a CUtensorMap with two dimensions of 16-bit numbers, swizzled by 128 bytes, zeros
// outside.
struct Map {
    uint64_t magic, address, columns, rows, pitch;
    uint32_t box_columns, box_rows;
};
static_assert(sizeof(Map) <= sizeof(TensorMap), "takes its place");
constexpr uint64_t MAGIC = 0x70616d726f736e65;

struct Phases {
    unsigned over = 0;
    Barrier sleeping; // threads that wait for the present phase to end
    uint32_t count = 0, pending = 0;
    uint64_t expected = 0, flying = 0; // bytes; `flying`: those in flight
    unsigned maker = 0;                // thread that made the barrier
    bool visible = false;              // whether copies see the barrier
    char token[2] = {};                // by parity of the phase
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

// An operand in shared memory: 16 columns of `rows` rows, or, transposed, 16 rows of `rows`
// columns; in chunks of eight numbers.
struct Operand {
    uint64_t descriptor;
    unsigned rows;
    bool transposed;
    uint32_t low = ~0u, high = 0; // bounds of the addresses of its chunks
    unsigned chunks() const { return rows * 2; }
};

struct Product {
    Op op;
    Operand a, b;
    bool fresh;
    unsigned n, issued; // `issued`: by how many threads
    bool done;
    Sums *sums;
    // Operand A, if it is in registers: where they are, and what they held at the time of issue.
    std::vector<const uint32_t *> registers;
    std::vector<uint32_t> words;
};

struct Thread {
    size_t issued = 0, waited = 0; // counts of products
    std::deque<size_t> committed;  // groups, as the number of products up to the end of each
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
    unsigned char *shared = nullptr;
    std::vector<unsigned char> seen; // shared memory as copies and products see it
    // What threads have stored since their last async_fence: by thread, address and number of
    // bytes.
    std::map<unsigned, std::vector<std::pair<uint32_t, uint32_t>>> stored;
    std::map<uint32_t, Phases> barriers;
    std::vector<Copying> copying;
    std::map<unsigned, Warpgroup> warpgroups;
    std::vector<const void *> read;
    // Operands of the product that is being computed; too large for a thread's small stack.
    float rows[64][16], columns[16][256];
};

struct Own {
    bool used = false, quiet = false;
    size_t shared_bytes = 0;
    std::unique_ptr<Block> block;
};
extern thread_local Own own;

// TSan watches functions of the C library wherever they are called from, but not while a Quiet
// lives. No fiber switch may happen during that time.
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

// Made when a kernel first uses something of hopper.h.
Block &block();

// Sleeps until somebody opens the barrier. This neither releases nor acquires; TSan is told for
// each phase.
void sleep(Barrier &b, int line);

// The address of the 16 bytes that would lie at `address` without swizzling.
inline uint32_t swizzled(uint32_t address) { return address ^ (address >> 7 & 7) << 4; }

// Whether an operand has bytes of this range of shared memory.
bool reads(const Operand &o, uint32_t from, uint32_t bytes, int line);

} // namespace emu

#endif
