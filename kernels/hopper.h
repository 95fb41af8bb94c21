// What only compute capability 9.0 has, with two meanings as in gpu.h: copies of boxes into shared
// memory (TMA), the barriers at which these copies arrive, and warpgroup products (wgmma). Part of
// gpu.h.
//
// A warpgroup is 128 threads that begin at a multiple of 128; all its threads call its functions
// together. Copies and products access shared memory through a path of their own (the async proxy).
// async_fence must stand between the stores of threads and the copies or products that access the
// same memory. A kernel that uses any of this stands inside #ifdef HOPPER: it exists for sm_90a
// only.

struct AsyncBarrier {
    uint64_t word;
};

#ifdef __CUDACC__

// HOPPER is also defined in nvcc's pass for the host, which knows no architecture.
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HOPPER
#endif

DEVICE uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

// ---- barriers: a phase ends when the given number of threads have arrived and all bytes that they
// announced have been copied.

// After it, call async_fence and block_sync before any thread uses the barrier.
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
// Waits until the phase of this parity is over. The first phase has parity 0; a fresh barrier
// counts as if a phase of parity 1 were over.
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
DEVICE void async_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// Stores what products will read. Each thread that stores calls async_fence afterwards, before the
// threads synchronise and begin the product.
template <class W> DEVICE void store_operand(void *p, W v) { *(W *)p = v; }
DEVICE void store_operand(void *p, Words4 v) { store16(p, v); }

// ---- copies

// Copies the box of `map` that begins at this column and row to an address aligned to 1024, with
// zeros beyond the end of the matrix. The box's 16-byte chunks are swizzled by 128 bytes. One
// thread calls it.
DEVICE void copy_box(
    void *to, const TensorMap &map, uint32_t column, uint32_t row, AsyncBarrier *b) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::
            "r"(shared_address(to)),
        "l"(&map), "r"(column), "r"(row), "r"(shared_address(b))
        : "memory");
}

// ---- products

// Stands between accesses of threads to sums and the first product that adds to these sums.
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

// The same; afterwards the sums `d` may be read if they belong to groups that are no longer in
// flight.
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

// d[64 x 2N] += a[64 x 16] b[2N x 16]^T with a and b by descriptor and sums in float32. Thread t
// has rows r = t / 32 * 16 + t % 32 / 4 and r + 8 of d, and of these the columns c = 8j + t % 4 * 2
// and c + 1: d[4j], d[4j + 1] in the first row, d[4j + 2], d[4j + 3] in the second.
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

// The same, but the sums start from zero.
#define WGMMA_NEW(type, types)                                                                     \
    DEVICE void wgmma_new(float (&d)[64], uint64_t a, uint64_t b, type) {                          \
        asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." types " {" NAMES64             \
                     "}, %64, %65, 0, 1, 1, 0, 0;"                                                 \
            : HOLD64(0)                                                                            \
            : "l"(a), "l"(b));                                                                     \
    }
WGMMA_NEW(bf16, "bf16.bf16")
WGMMA_NEW(f16, "f16.f16")

// d[64 x 2N] += a[64 x 16] b[16 x 2N]. b comes from operand_transposed. a is in registers: each
// warp has 16 rows of it, laid out as for mma. No thread may change these registers until the
// product has been waited for. wgmma_registers: d += a[64 x 16] b[2N x 16]^T, with b from operand.
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

// ---- registers of a thread: a warpgroup gives up or takes some of those that the launch allotted
// evenly

template <int COUNT> DEVICE void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT> DEVICE void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

#else
#include "emu/hopper.h"
#endif

// Descriptor of an operand of wgmma: sixteen columns of a matrix whose rows have 64 numbers, in
// boxes that copy_box has brought. `p`: where the first row has these columns.
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
// Descriptor of sixteen rows with any number of columns: the first 64 columns lie at `p`, each next
// 64 columns lie `next` bytes further on (a multiple of 1024).
DEVICE uint64_t operand_transposed(const void *p, uint32_t next) {
    const uint64_t eight_rows = 1024 >> 4;
    return (shared_address(p) & 0x3ffff) >> 4 | (uint64_t)(next >> 4) << 16 | eight_rows << 32 |
           (uint64_t)1 << 62;
}
