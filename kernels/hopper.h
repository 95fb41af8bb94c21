// Instructions that only compute capability 9.0 has: copies of boxes into shared memory (TMA), the
// barriers at which these copies arrive, and warpgroup products (wgmma). As in gpu.h, each has two
// implementations. Part of gpu.h.
//
// A warpgroup is 128 threads that begin at a multiple of 128; all of them call the functions of a
// warpgroup together. Copies and products access shared memory through a path of their own (the
// async proxy). Where threads store to shared memory and copies or products then access the same
// memory, async_fence must stand in between. A kernel that uses any instruction of this file stands
// inside #ifdef HOPPER, because it exists for sm_90a only.

struct AsyncBarrier {
    uint64_t word;
};

#ifdef __CUDACC__

// nvcc's pass for the host knows no architecture, so HOPPER is defined there as well.
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HOPPER
#endif

DEVICE uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

// ---- barriers: a phase ends when `count` threads have arrived and all bytes that they announced
// have been copied.

// Afterwards, call async_fence and block_sync before any thread uses the barrier.
DEVICE void barrier_init(AsyncBarrier *b, uint32_t count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(count)
        : "memory");
}
DEVICE void barrier_arrive(AsyncBarrier *b) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
}
// Arrives, and makes the phase wait for this many bytes of copies as well.
DEVICE void barrier_expect(AsyncBarrier *b, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)),
        "r"(bytes)
        : "memory");
}
// Arrives at the barrier of block `rank` of the cluster at the same place in its shared memory. It
// says that this thread's reads of operands are over, and publishes nothing that the thread has
// written: with `.release.cluster`, every step would wait for all writes to reach L2.
DEVICE void barrier_arrive_at(AsyncBarrier *b, uint32_t rank) {
    asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(shared_address(b)),
        "r"(rank)
        : "memory");
}
// Waits until the phase of this parity is over. The first phase has parity 0. On a new barrier,
// waiting for parity 1 returns at once.
DEVICE void barrier_wait(AsyncBarrier *b, uint32_t parity) {
    uint32_t over;
    do {
        asm volatile(
            "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
            : "=r"(over)
            : "r"(shared_address(b)), "r"(parity)
            : "memory");
    } while (!over);
}
// The number of the thread in its warp: threadIdx.x % 32, read from a register of its own. Where
// the loop of gemm_hopper.h has threadIdx.x % 32 instead, ptxas waits for each of its products.
DEVICE uint32_t lane_of_warp() {
    uint32_t lane;
    asm("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
}
DEVICE void async_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- clusters: blocks that run at the same time, and that reach each other's barriers and shared
// memory while all of them live. Without clusters, a block is one of its own, with rank 0.

DEVICE uint32_t cluster_blocks() {
    uint32_t n;
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(n));
    return n;
}
DEVICE uint32_t cluster_rank() {
    uint32_t rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
// After barrier_init, makes the barriers known to the other blocks, once these have synchronised.
DEVICE void cluster_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
// All threads of all blocks of the cluster.
DEVICE void cluster_sync() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
            : "memory");
}

// ---- operands

// Stores a part of an operand. Each thread that does so calls async_fence afterwards, before the
// threads synchronise and begin the product.
template <class W> DEVICE void store_operand(void *p, W v) { *(W *)p = v; }
DEVICE void store_operand(void *p, Words4 v) { store16(p, v); }

// ---- copies

// Asks for a map, so that the first copy does not wait for it.
DEVICE void prefetch_map(const TensorMap &map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}
// Copies the box of `map` that begins at `column` and `row` to an address that is aligned to 1024.
// Beyond the end of the matrix it copies zeros. The box's 16-byte chunks are swizzled by 128 bytes.
// One thread calls it.
DEVICE void copy_box(
    void *to, const TensorMap &map, uint32_t column, uint32_t row, AsyncBarrier *b) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::
            "r"(shared_address(to)),
        "l"(&map), "r"(column), "r"(row), "r"(shared_address(b))
        : "memory");
}

// The same into both blocks of a cluster of two, to the same place of each; `b` is that barrier of
// each. Both must be about to expect it.
DEVICE void copy_box_to_both(
    void *to, const TensorMap &map, uint32_t column, uint32_t row, AsyncBarrier *b) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::
            "r"(shared_address(to)),
        "l"(&map), "r"(column), "r"(row), "r"(shared_address(b)), "h"((uint16_t)3)
        : "memory");
}

// ---- products

// Must stand between a thread's own accesses to the sums and the first product that adds to them.
DEVICE void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most LEFT committed groups of products are in flight.
template <int LEFT> DEVICE void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

#define HOLD8(i)                                                                                   \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]),    \
        "+f"(d[i + 6]), "+f"(d[i + 7])
#define HOLD32(i)  HOLD8(i), HOLD8(i + 8), HOLD8(i + 16), HOLD8(i + 24)
#define HOLD64(i)  HOLD32(i), HOLD32(i + 32)
#define HOLD128(i) HOLD64(i), HOLD64(i + 64)
#define NAMES32                                                                                    \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                       \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES64                                                                                    \
    NAMES32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "   \
            "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define NAMES128                                                                                   \
    NAMES64                                                                                        \
    ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "           \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "             \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

// The same. Afterwards the sums `d` may be read, provided that the products that write them are no
// longer in flight.
template <int LEFT> DEVICE void wgmma_wait(float (&d)[32]) {
    asm volatile("wgmma.wait_group.sync.aligned %32;" : HOLD32(0) : "n"(LEFT) : "memory");
}
template <int LEFT> DEVICE void wgmma_wait(float (&d)[64]) {
    asm volatile("wgmma.wait_group.sync.aligned %64;" : HOLD64(0) : "n"(LEFT) : "memory");
}
template <int LEFT> DEVICE void wgmma_wait(float (&d)[128]) {
    asm volatile("wgmma.wait_group.sync.aligned %128;" : HOLD128(0) : "n"(LEFT) : "memory");
}
template <int N> DEVICE void wgmma_finish(float (&d)[N]) { wgmma_wait<0>(d); }

// d[64 x 2N] += a[64 x 16] b[2N x 16]^T. Descriptors name a and b; sums are in float32. Thread t
// has two rows of d, r = t / 32 * 16 + t % 32 / 4 and r + 8. In each of them it has columns c = 8j
// + t % 4 * 2 and c + 1 for all j: d[4j] and d[4j + 1] are in row r, d[4j + 2] and d[4j + 3] in row
// r + 8.
#define WGMMA(N, COLUMNS, a_at, b_at, type, types)                                                 \
    DEVICE void wgmma(float (&d)[N], uint64_t a, uint64_t b, type) {                               \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" COLUMNS "k16.f32." types " {" NAMES##N    \
            "}, " a_at ", " b_at ", 1, 1, 1, 0, 0;"                                                \
            : HOLD##N(0)                                                                           \
            : "l"(a), "l"(b));                                                                     \
    }
WGMMA(128, "256", "%128", "%129", bf16, "bf16.bf16")
WGMMA(128, "256", "%128", "%129", f16, "f16.f16")
WGMMA(64, "128", "%64", "%65", bf16, "bf16.bf16")
WGMMA(64, "128", "%64", "%65", f16, "f16.f16")
WGMMA(32, "64", "%32", "%33", bf16, "bf16.bf16")
WGMMA(32, "64", "%32", "%33", f16, "f16.f16")

// The same product, but the sums start from zero.
#define WGMMA_NEW(type, types)                                                                     \
    DEVICE void wgmma_new(float (&d)[64], uint64_t a, uint64_t b, type) {                          \
        asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." types " {" NAMES64             \
                     "}, %64, %65, 0, 1, 1, 0, 0;"                                                 \
            : HOLD64(0)                                                                            \
            : "l"(a), "l"(b));                                                                     \
    }
WGMMA_NEW(bf16, "bf16.bf16")
WGMMA_NEW(f16, "f16.f16")

// Products with a in registers: each warp has 16 rows of a, laid out as for mma. A thread must not
// change these registers before it has waited for the product.
// - wgmma: d[64 x 2N] += a[64 x 16] b[16 x 2N]; operand_transposed makes the descriptor b.
// - wgmma_registers: d[64 x 2N] += a[64 x 16] b[2N x 16]^T; operand makes the descriptor b.
#define WGMMA_REGISTERS(name, transposed, N, COLUMNS, a_at, b_at, type, types)                     \
    DEVICE void name(float (&d)[N], const uint32_t (&a)[4], uint64_t b, type) {                    \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" COLUMNS "k16.f32." types " {" NAMES##N    \
            "}, {" a_at "}, " b_at ", 1, 1, 1, " transposed ";"                                    \
            : HOLD##N(0)                                                                           \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                 \
    }
WGMMA_REGISTERS(wgmma, "1", 64, "128", "%64, %65, %66, %67", "%68", bf16, "bf16.bf16")
WGMMA_REGISTERS(wgmma, "1", 64, "128", "%64, %65, %66, %67", "%68", f16, "f16.f16")
WGMMA_REGISTERS(wgmma, "1", 32, "64", "%32, %33, %34, %35", "%36", bf16, "bf16.bf16")
WGMMA_REGISTERS(wgmma, "1", 32, "64", "%32, %33, %34, %35", "%36", f16, "f16.f16")
WGMMA_REGISTERS(wgmma_registers, "0", 128, "256", "%128, %129, %130, %131", "%132", f16, "f16.f16")
WGMMA_REGISTERS(wgmma_registers, "0", 64, "128", "%64, %65, %66, %67", "%68", f16, "f16.f16")

// ---- registers: the launch gives every thread the same number; a warpgroup can give some up, and
// another can take them

template <int COUNT> DEVICE void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT> DEVICE void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

#else
#include "emu/hopper.h"
#endif

// Says that this warp has read a stage, whose barrier counts WARPS arrivals of each warpgroup.
// wgmma_wait speaks for the warp that calls it, and another warp of the warpgroup may not have come
// so far; so no thread may say this for the warpgroup. `any` is false where there is no stage yet.
#define WARPS 4
DEVICE void stage_read(AsyncBarrier *b, bool any = true) {
#ifdef PLANT_FREED_BY_ONE
    for (uint32_t i = 0; i < WARPS; i++)
        if (any && threadIdx.x % 128 == 0) barrier_arrive(b);
#else
    if (lane_of_warp() == 0 && any) barrier_arrive(b);
#endif
}
// The same to all blocks of the cluster, whose copies reach this stage, too.
DEVICE void stage_read_by_cluster(AsyncBarrier *b, bool any) {
#ifdef PLANT_READ_BY_ONE
    if (lane_of_warp() < cluster_blocks() && any) barrier_arrive_at(b, cluster_rank());
#else
    if (lane_of_warp() < cluster_blocks() && any) barrier_arrive_at(b, lane_of_warp());
#endif
}

// The descriptor of a wgmma operand: sixteen columns of a matrix that copy_box has brought in boxes
// of 64 columns. `p` points to these columns in the first row.
DEVICE uint64_t operand(const void *p) {
#ifdef PLANT_WRONG_SWIZZLE
    const uint64_t swizzle = 0;
#else
    const uint64_t swizzle = 1;
#endif
    const uint64_t eight_rows = 1024 >> 4;
    return (shared_address(p) & 0x3ffff) >> 4 | (uint64_t)1 << 16 | eight_rows << 32 |
           swizzle << 62;
}
// The descriptor of an operand that has sixteen rows and any number of columns. The first 64
// columns lie at `p`, and each next 64 columns lie `next` bytes further on (a multiple of 1024).
DEVICE uint64_t operand_transposed(const void *p, uint32_t next) {
    const uint64_t eight_rows = 1024 >> 4;
    return (shared_address(p) & 0x3ffff) >> 4 | (uint64_t)(next >> 4) << 16 | eight_rows << 32 |
           (uint64_t)1 << 62;
}
