// The instructions that kernels are written in. They have two implementations: nvcc compiles them
// to PTX, and any other C++17 compiler takes the emulation in emu/. A kernel includes this file
// only. PTX occurs here and in hopper.h, and nowhere else.
//
// | file | what it knows |
// |---|---|
// | params.h | what each kernel is given and how it is launched |
// | quant.h | quantised weights: their layout and how they are read |
// | few.h | products on tensor cores with up to 8 rows; each lane gets its own weights |
// | batch.h | the same with up to 64 rows in a block |
// | gemm.h | products on tensor cores with many rows, by tiles |
// | gemv.h | products with a few rows in float32 |
// | hopper.h | what compute capability 9.0 has in addition |
// | gemm_hopper.h, codes_hopper.h | its products of many rows: floats, quantised weights |
// | attend_hopper.h | its prefill attention |
// | keys.h | how attention reads the cache; rows that the tensor cores lose |
// | attend_chunk.h | attention to a chunk of keys in float32 |
// | attend_tensor.h | decode attention to a chunk of keys on tensor cores |
// | attend_split.h | decode attention: what a block has, and how splits are joined |
// | embed, prepare, qkv, append, attend, attend_prefill, | one op each, decode and prefill |
// | attend_prefill_fma, matmul_add, ffn_up, logits (.cu) | |
// | adapt.cu | what adapters of requests add to products |
// | reduce.cu, gather.cu | what the ranks of a model do together |
// | choice.h | how a token is chosen among the logits of a row |
// | change.cu | what changes logits before a token is drawn |
// | sample.cu | from logits to a token |
// | emu/ | the machine as C++; tests/ and test.sh prove the kernels on it |
// | ptxas.sh | compiles the kernels for every architecture and checks the machine code |
//
// Compile with the flags in nvcc.flags and without fast-math. A product and a sum are fused where
// the code says fmaf, and nowhere else (-fmad=false; -ffp-contract=off in the emulator). If the
// compiler decided this, the code for one row and the code for eight rows might round differently,
// and batch invariance would be luck.
//
// Kernels use only what is defined here: no asm, no static __shared__, no <<<>>>, no CUDA headers.
// Blocks are one-dimensional and consist of whole warps. Loads and copies of 16 bytes need
// addresses that are aligned to 16.
#ifndef LLAMABI_GPU_H
#define LLAMABI_GPU_H

#include "params.h"

#define INFINITY_F __builtin_inff()

// Declares, for each kernel of the list, the type of its parameters and its number of threads.
#define KERNEL_FACTS(name, Params, THREADS)                                                        \
    typedef Params name##_params;                                                                  \
    enum { name##_threads = THREADS };
GPU_KERNELS(KERNEL_FACTS)

struct bf16 {
    uint16_t bits;
};
struct f16 {
    uint16_t bits;
};

#ifdef __CUDACC__

#define DEVICE        static __device__ __forceinline__
#define DEVICE_MEMBER __device__ __forceinline__
#define UNROLL        _Pragma("unroll")
#define PRAGMA(x)     _Pragma(#x)
#define UNROLL_BY(n)  PRAGMA(unroll(n))
#define ALIGNED16     __align__(16)
#define CONSTANT      static __constant__ const

// A kernel of the list in params.h. The registers of two blocks must fit on an SM, so a thread has
// at most 128 (256 threads) or 255 (128 threads).
#define KERNEL(name) KERNEL_BY(name, 2)

// A kernel of which one block runs on an SM, so a thread has up to 255 registers. It suits kernels
// that hide latency by keeping many loads in flight rather than by switching warps (few.h, where
// weights come through a ring), and those that would spill registers otherwise (OP_batch_k4,
// OP_batch_k5, OP_batch_k6, OP_batch_k8 but for logits, logits_batch_int4, qkv_batch_nf4; for 9.0
// OP_prefill_k5 and OP_prefill_k6; for 8.6 and 8.9 qkv_batch_int4).
#define KERNEL_WIDE(name) KERNEL_BY(name, 1)

// A kernel of which three blocks run on an SM, so a thread has at most 80 registers (256 threads).
#define KERNEL_NARROW(name) KERNEL_BY(name, 3)

#define KERNEL_BY(name, BLOCKS)                                                                    \
    extern "C" __global__ void __launch_bounds__(name##_threads, BLOCKS)                           \
        name(const __grid_constant__ name##_params p)

// Declares the block's shared memory; the launch sets its size. It is aligned to 1024 because boxes
// and operands that are swizzled by 128 bytes begin at multiples of 1024.
#define SHARED(name) extern __shared__ __align__(1024) unsigned char name[]

struct Words4 {
    uint32_t w[4];
};
struct Words2 {
    uint32_t w[2];
};

DEVICE float to_float(float x) { return x; }
DEVICE float to_float(bf16 x) { return __uint_as_float((uint32_t)x.bits << 16); }
DEVICE float to_float(f16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}
DEVICE void from_float(float &y, float x) { y = x; }
DEVICE void from_float(bf16 &y, float x) { asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x)); }
DEVICE void from_float(f16 &y, float x) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x)); }

// Two numbers rounded to 16 bits, `low` in the lower half.
DEVICE uint32_t pair_of(float low, float high, bf16) {
    uint32_t y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}
DEVICE uint32_t pair_of(float low, float high, f16) {
    uint32_t y;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}
// a * b + c for each of the two f16 of a word.
DEVICE uint32_t fma_pair(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t y;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(c));
    return y;
}

// Loads weights, which one thread reads once. Bypasses L1.
//
// The loads that have no intrinsic are volatile: nvcc takes any other asm for a computation that
// can do no harm, and moves it in front of the `if` around it. It read biases that were null that
// way.
DEVICE Words4 load_stream(const void *p) {
    Words4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
        : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3])
        : "l"(p));
    return v;
}
DEVICE Words2 load_stream8(const void *p) {
    Words2 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v2.u32 {%0,%1}, [%2];"
        : "=r"(v.w[0]), "=r"(v.w[1])
        : "l"(p));
    return v;
}
// Loads memory that nobody writes once the blocks of this launch have started. The output of the
// previous launch does not qualify where that launch may still be running (start_next, below).
DEVICE Words4 load_const(const void *p) {
    const uint4 v = __ldg((const uint4 *)p);
    return Words4{{v.x, v.y, v.z, v.w}};
}
DEVICE Words2 load_const8(const void *p) {
    const uint2 v = __ldg((const uint2 *)p);
    return Words2{{v.x, v.y}};
}
// Loads what other blocks of this launch wrote before a fence or an ordered atomic.
DEVICE uint32_t load_fenced(const void *p) {
    uint32_t v;
    asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
DEVICE Words2 load_fenced8(const void *p) {
    Words2 v;
    asm volatile("ld.global.cg.v2.u32 {%0,%1}, [%2];"
        : "=r"(v.w[0]), "=r"(v.w[1])
        : "l"(p)
        : "memory");
    return v;
}
DEVICE Words4 load_fenced16(const void *p) {
    Words4 v;
    asm volatile("ld.global.cg.v4.u32 {%0,%1,%2,%3}, [%4];"
        : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3])
        : "l"(p)
        : "memory");
    return v;
}
// Loads what the previous launch wrote; call it after wait_for_last. This is a plain load, so the
// compiler does not move it ahead of wait_for_last.
DEVICE Words4 load_fresh(const void *p) {
    uint4 v = *(const uint4 *)p;
    return Words4{{v.x, v.y, v.z, v.w}};
}
DEVICE Words2 load_fresh8(const void *p) {
    uint2 v = *(const uint2 *)p;
    return Words2{{v.x, v.y}};
}
DEVICE Words4 load_shared(const void *p) { return *(const Words4 ALIGNED16 *)p; }
DEVICE Words2 load_shared8(const void *p) {
    uint2 v = *(const uint2 *)p;
    return Words2{{v.x, v.y}};
}
DEVICE float load_const_float(const float *p) { return __ldg(p); }
DEVICE void store16(void *p, Words4 v) { *(uint4 *)p = make_uint4(v.w[0], v.w[1], v.w[2], v.w[3]); }
DEVICE void store8(void *p, Words2 v) { *(uint2 *)p = make_uint2(v.w[0], v.w[1]); }
// Reads threadIdx.x again, so that values computed from it hold no register until here.
DEVICE uint32_t thread_again() {
    uint32_t t;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(t));
    return t;
}
// The same where registers are shortest (matmul_add_int4 would spill one or two for 10.0 and 12.0).
DEVICE uint32_t thread_again_if_short() {
#if __CUDA_ARCH__ >= 1000
    return thread_again();
#else
    return threadIdx.x;
#endif
}
// Tells the compiler that an address is one of global memory, where it cannot see that.
DEVICE void is_global(const void *p) { __builtin_assume(__isGlobal(p)); }
DEVICE float as_float(uint32_t x) { return __uint_as_float(x); }
DEVICE uint32_t as_bits(float x) { return __float_as_uint(x); }
// (x & mask) | bits in one instruction. The compiler would make two of it, one for each constant.
DEVICE uint32_t mask_or(uint32_t x, uint32_t mask, uint32_t bits) {
    uint32_t y;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(y) : "r"(x), "r"(mask), "r"(bits));
    return y;
}
// A word of bytes 0 and 1 of x, followed by bytes 2 and 3 of y.
DEVICE uint32_t halves_of(uint32_t x, uint32_t y) { return __byte_perm(x, y, 0x7610u); }
// Two f16: 1024 + byte i of x, and 1024 + byte i + 1. i is 0 or 2.
DEVICE uint32_t bytes_as_pair(uint32_t x, int i) {
    return __byte_perm(x, 0x64646464u, i ? 0x4342u : 0x4140u);
}
DEVICE uint32_t lower_twice(uint32_t x) { return __byte_perm(x, 0, 0x1010u); }
DEVICE uint32_t upper_twice(uint32_t x) { return __byte_perm(x, 0, 0x3232u); }
// Bytes i and i + 2 of x, in the lower half and as 1024 + byte in two f16. i is 0 or 1.
DEVICE uint32_t alternate_bytes(uint32_t x, int i) {
    return __byte_perm(x, 0, i ? 0x4431u : 0x4420u);
}
DEVICE uint32_t alternate_as_pair(uint32_t x, int i) {
    return __byte_perm(x, 0x64646464u, i ? 0x4341u : 0x4240u);
}
DEVICE uint32_t byte_of(uint32_t x, int i) { return __byte_perm(x, 0, 0x4440u + (uint32_t)i); }
// 2^23 + byte `i` of x.
DEVICE float byte_as_float(uint32_t x, int i) {
    return __uint_as_float(__byte_perm(x, 0x4b000000u, 0x7650u + (uint32_t)i));
}

// Copies 16 bytes to shared memory asynchronously. Others see them after its cp_wait
// and a barrier of theirs and this thread. If `valid` is false, it writes zeros instead.
DEVICE void cp_async(void *to, const void *from, bool valid) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(
                     (uint32_t)__cvta_generic_to_shared(to)),
        "l"(from), "r"(valid ? 16 : 0)
        : "memory");
}
// Copies 4 or 8 bytes in the same way.
template <int N> DEVICE void cp_async_small(void *to, const void *from) {
    asm volatile(
        "cp.async.ca.shared.global [%0], [%1], %2;" ::"r"((uint32_t)__cvta_generic_to_shared(to)),
        "l"(from), "n"(N)
        : "memory");
}
// The same; `bits` are not zero where the copy is valid. To compare bits takes one instruction, to
// turn them into a number of bytes three.
DEVICE void cp_async_if(uint32_t bits, void *to, const void *from) {
    asm volatile("{.reg .pred none; setp.eq.u32 none, %2, 0; "
                 "cp.async.cg.shared.global.L2::128B [%0], [%1], 16, none;}" ::"r"(
                     (uint32_t)__cvta_generic_to_shared(to)),
        "l"(from), "r"(bits)
        : "memory");
}
DEVICE void cp_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most N of this thread's groups of copies are in flight.
template <int N> DEVICE void cp_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// Loads four 8x8 matrices of 16-bit numbers; lanes 8i .. 8i+7 give the rows of matrix i.
DEVICE void ldmatrix(uint32_t (&r)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
        : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
        : "r"((uint32_t)__cvta_generic_to_shared(row))
        : "memory");
}
DEVICE void ldmatrix_trans(uint32_t (&r)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
        : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
        : "r"((uint32_t)__cvta_generic_to_shared(row))
        : "memory");
}
// d[16x8] += a[16x16] b[16x8], with sums in float32.
DEVICE void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, bf16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
DEVICE void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, f16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

DEVICE void block_sync() { __syncthreads(); }
// Barrier `id` (1 .. 15) among `threads` threads of the block, in whole warps.
DEVICE void named_sync(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
DEVICE void warp_sync() { __syncwarp(); }
DEVICE float shuffle_xor(float v, int mask) { return __shfl_xor_sync(0xffffffffu, v, mask); }
DEVICE uint32_t shuffle_xor(uint32_t v, int mask) { return __shfl_xor_sync(0xffffffffu, v, mask); }
DEVICE uint32_t warp_ballot(bool v) { return __ballot_sync(0xffffffffu, v); }
// Reduces over each aligned group of `width` lanes (a power of two). Every lane of a group gets the
// same bits.
DEVICE float group_sum(float v, int width) {
    for (int m = width / 2; m > 0; m /= 2) v += shuffle_xor(v, m);
    return v;
}
DEVICE float group_max(float v, int width) {
    for (int m = width / 2; m > 0; m /= 2) v = fmaxf(v, shuffle_xor(v, m));
    return v;
}

DEVICE uint32_t atomic_add(uint32_t *p, uint32_t x) { return atomicAdd(p, x); }
// An addition that orders. A thread that adds sees what those who have added before had written,
// or had seen, by then. With barriers before and after it, this holds for whole blocks. It is
// cheaper than a fence on both sides, which is sequentially consistent.
DEVICE uint32_t atomic_add_ordered(uint32_t *p, uint32_t x) {
    uint32_t before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
        : "=r"(before)
        : "l"(p), "r"(x)
        : "memory");
    return before;
}

// Between devices that reach each other's memory, and the host. A thread that loads what another
// thread has stored by store_released sees all that thread had written or seen before, and so does
// its block after a barrier.
DEVICE void store_released(uint32_t *p, uint32_t x) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(x) : "memory");
}
DEVICE uint32_t load_acquired(const uint32_t *p) {
    uint32_t v;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
// Lets others go on while this thread waits for another device.
DEVICE void let_others_run() {}

// Programmatic dependent launch. It takes effect where the machine code is for compute capability
// 9.0 and the launch asks for it (params.h says which launches do). The blocks of such a launch may
// start when every block of the previous launch has called start_next or has ended. Until a thread
// calls wait_for_last, it reads only weights, norms, tables and what was copied for the step before
// its first launch (numbers of rows, positions, page tables), and writes nothing to global memory.
// That copy is complete, because a step's first launch either does not start early (embed) or
// follows the copy itself; and of what it brings, launches write the tokens alone, which therefore
// are not read early. When wait_for_last returns, all earlier launches are complete. At least one
// thread of each launch must call wait_for_last. Otherwise this launch could end before the
// previous one, and the next launch, which waits only for this one, would start too early.
DEVICE void start_next() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}
DEVICE void wait_for_last() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// Prefetches 128 bytes into L2. Below compute capability 9.0 it does nothing: launches do not
// overlap there, so the prefetch would bring the data no earlier and only cost an instruction.
DEVICE void prefetch(const void *p) {
#if __CUDA_ARCH__ >= 900
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
#else
    (void)p;
#endif
}

DEVICE float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
DEVICE float reciprocal_fast(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#else
#include "emu/device.h"
#endif

// Converts two e4m3 numbers (bytes 0 and 1 of x) to two f16, exactly. e4m3 has 4 bits of exponent,
// 3 of mantissa and no infinities. Compute capability 8.9 and newer have an instruction for it.
// Code that is compiled for an older one computes with bits, also where a newer device runs its
// PTX. Codes of NaN do not occur, because nothing writes them.
DEVICE uint32_t e4m3_pair(uint32_t x) {
#if __CUDA_ARCH__ >= 890
    uint32_t y;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(y) : "h"((uint16_t)x));
    return y;
#else
    const uint32_t apart = (x & 0xff) << 8 | (x & 0xff00) << 16;
#ifdef PLANT_E4M3_BIAS
    const uint32_t more = 0x58005800;
#else
    // The factor is 2^8 because the exponent bias of f16 is larger by 8. It also holds for
    // subnormals.
    const uint32_t more = 0x5c005c00;
#endif
    // Adding -0 keeps the sign of 0.
    return fma_pair((apart & 0x7f007f00) >> 1 | (apart & 0x80008000), more, 0x80008000);
#endif
}
// Rounds to the nearest e4m3, ties to even. Magnitudes above 448 become 448.
DEVICE uint32_t e4m3_of(float x) {
    const float m = fminf(fabsf(x), 448.0f);
    // Below 2^-6 the code counts units of 2^-9, which is the last bit of 2^14.
    uint32_t code = as_bits(m + 16384.0f) - as_bits(16384.0f);
#ifdef PLANT_E4M3_TRUNCATED
    if (m >= 0.015625f) code = (as_bits(m) >> 20) - (120u << 3);
#else
    if (m >= 0.015625f)
        code = ((as_bits(m) + 0x7ffff + (as_bits(m) >> 20 & 1)) >> 20) - (120u << 3);
#endif
    return code | (as_bits(x) >> 24 & 0x80);
}

DEVICE void fresh4(float *v, const float *p) {
    const Words4 w = load_fresh(p);
    UNROLL
    for (int e = 0; e < 4; e++) v[e] = as_float(w.w[e]);
}

// Stores two neighbouring numbers. The first is at an even position of its row.
DEVICE void store_pair(float *to, float a, float b) { to[0] = a, to[1] = b; }
template <class T> DEVICE void store_pair(T *to, float a, float b) {
    *(uint32_t *)to = pair_of(a, b, T());
}

// The first key that a row sees; n is the number of keys up to its own. `window` is as in params.h.
DEVICE uint32_t first_key(uint32_t n, uint32_t window) {
    return window == 0 || n <= window ? 0 : n - window;
}

// An activation that is to be rounded to `type`. Each writer of activations calls it; the KV cache,
// weights and f16 activations of f16 weights overflow to infinity as f16 does elsewhere. cvt has a
// modifier that saturates, but it also makes infinities finite (params.h says why they stay).
DEVICE float bounded(float x, uint32_t type) {
#ifdef PLANT_UNBOUNDED
    return x;
#else
    const float most = 65504.0f;
    return type == GPU_F16_FINITE && fabsf(x) < INFINITY_F ? fminf(fmaxf(x, -most), most) : x;
#endif
}

// Calls `body` with a number that is stored like the given type: GPU_F32, GPU_F16, GPU_BF16 or
// GPU_F16_FINITE.
template <class Body> DEVICE void with_type(uint32_t type, const Body &body) {
    if (type == GPU_F32)
        body(float());
    else if (type == GPU_BF16)
        body(bf16());
    else
        body(f16());
}

DEVICE uint32_t smaller(uint32_t a, uint32_t b) { return a < b ? a : b; }
DEVICE uint32_t larger(uint32_t a, uint32_t b) { return a > b ? a : b; }

// Returns in all threads of a block whether it is the last of `n` blocks to call this; then it sees
// what the others had written before, and the counter is zero again. Follows a block_sync. `flag`
// is in shared memory.
DEVICE bool is_last_block(uint32_t *counter, uint32_t n, uint32_t *flag) {
    if (threadIdx.x == 0) {
        // The barrier before and the one below extend the order of this thread to the block.
#ifdef PLANT_NO_DEVICE_FENCE
        const bool is_last = atomic_add(counter, 1) == n - 1;
#else
        const bool is_last = atomic_add_ordered(counter, 1) == n - 1;
#endif
#ifndef PLANT_COUNTER_LEFT
        if (is_last) *counter = 0;
#endif
        *flag = is_last;
    }
#ifndef PLANT_NO_BARRIER_LAST
    block_sync();
#endif
    return *flag != 0;
}

#include "hopper.h"
#include "quant.h"

// Prefetches the beginning of a row of weights while the previous launch ends. Several threads
// share the work; this thread is number `at` of them.
DEVICE void prefetch_row(const float *row, uint32_t stride, uint32_t at) {
    if (at * 32 < stride) prefetch(row + at * 32);
}

#include "gemv.h"
#include "few.h"
#include "batch.h"
#include "gemm.h"
#include "gemm_hopper.h"
#include "codes_hopper.h"
#include "keys.h"
#include "attend_chunk.h"
#include "attend_split.h"
#include "attend_tensor.h"
#include "attend_hopper.h"
#include "choice.h"

#endif
