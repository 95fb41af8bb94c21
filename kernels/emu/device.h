// The implementation of gpu.h for other compilers than nvcc: kernels are C++ functions, and their
// threads are fibers (machine.h).
//
// It has two parts on purpose. The accesses of kernels to memory are inline functions here, so that
// sanitizers report them at the kernel's own lines. The work of the machine (switching threads,
// exchanging values between lanes) is in warp.cpp and fibers.cpp, which are never built with
// -fsanitize=thread.
#ifndef LLAMABI_EMU_DEVICE_H
#define LLAMABI_EMU_DEVICE_H

#include <cstdint>
#include <cstring>

// What kernels take of <cmath>. That header is more than half of what the compiler reads for one of
// them, and test.sh compiles 200 small pieces of kernels.
extern "C" {
float exp2f(float) noexcept;
float expf(float) noexcept;
float fabsf(float) noexcept;
float fmaf(float, float, float) noexcept;
float fmaxf(float, float) noexcept;
float fminf(float, float) noexcept;
float nextafterf(float, float) noexcept;
float sqrtf(float) noexcept;
}

namespace emu {

struct Index {
    unsigned x, y, z;
};

// The place of the running thread in its launch.
struct View {
    Index thread, block, block_dim, grid_dim;
    unsigned char *shared;
};

// Declared as constant because a kernel is one call on one fiber from its start to its end: the
// compiler need not ask again behind a barrier.
View &view() __attribute__((const));
// Ends the launch with an error that names the running thread.
[[noreturn]] void fail(int line, const char *format, ...) __attribute__((format(printf, 2, 3)));

struct Copy {
    void *to;
    const void *from;
    int words;
    bool valid;
};
void cp_push(const Copy &);
void cp_close();
// While more than `left` groups are in flight, takes the next copy of the oldest group. Returns
// false when there is none to take.
bool cp_next(int left, Copy &);

enum class Op {
    Sync,
    ShuffleXor,
    GroupSum,
    GroupMax,
    Ballot,
    Ldmatrix,
    LdmatrixTrans,
    MmaBf16,
    MmaF16
};
void block_barrier(int line);
void named_barrier(int id, unsigned threads, int line);
void warp_barrier(int line);
// Takes one value from each lane. `op` and `arg` say what each lane gets back.
float exchange(Op op, float v, int arg, int line);
uint32_t ballot(bool v, int line);
void ldmatrix(uint32_t (&r)[4], const void *row, bool trans, int line);
void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, Op op, int line);
void yield();
// The same, and now and then another thread of the host gets this one's processor.
void let_others_run();
bool in_shared(const void *);
uint32_t atomic_add_global(uint32_t *, uint32_t);
void device_fence();
void wait_for_last(int line);
// emu_strict: whether const_read is to be called for loads of memory that nobody may write.
extern bool strict;
void prefetched(const void *);
void const_read(const void *, unsigned bytes, int line);

} // namespace emu

#define threadIdx (emu::view().thread)
#define blockIdx  (emu::view().block)
#define blockDim  (emu::view().block_dim)
#define gridDim   (emu::view().grid_dim)

#define DEVICE static inline
// Always inlined, as nvcc does it. Otherwise the linker would merge the copies of different
// kernels, although one of them may have a planted bug.
#define DEVICE_MEMBER inline __attribute__((always_inline))
#define UNROLL
#define UNROLL_BY(n)
#define ALIGNED16           alignas(16)
#define CONSTANT            static const
#define KERNEL(name)        extern "C" void name(const name##_params &p)
#define KERNEL_WIDE(name)   KERNEL(name)
#define KERNEL_NARROW(name) KERNEL(name)
#define SHARED(name)        unsigned char *const name = emu::view().shared
#define EMU_LINE            int line = __builtin_LINE()

struct ALIGNED16 Words4 {
    uint32_t w[4];
};
struct alignas(8) Words2 {
    uint32_t w[2];
};

DEVICE float as_float(uint32_t x) {
    float y;
    memcpy(&y, &x, 4);
    return y;
}
DEVICE uint32_t as_bits(float x) {
    uint32_t y;
    memcpy(&y, &x, 4);
    return y;
}

DEVICE float to_float(float x) { return x; }
DEVICE float to_float(bf16 x) { return as_float((uint32_t)x.bits << 16); }
DEVICE float to_float(f16 x) {
    uint32_t sign = (uint32_t)(x.bits & 0x8000) << 16, rest = x.bits & 0x7fff;
    // One exact product corrects the exponent, also of subnormals.
    if (rest < 0x7c00) return as_float(sign | as_bits(as_float(rest << 13) * as_float(0x77800000)));
    return as_float(sign | 0x7f800000 | (rest & 0x3ff) << 13);
}
DEVICE void from_float(float &y, float x) { y = x; }
DEVICE void from_float(bf16 &y, float x) {
    uint32_t u = as_bits(x);
    y.bits = x != x ? 0x7fff : (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
DEVICE void from_float(f16 &y, float x) {
    uint32_t sign = as_bits(x) >> 16 & 0x8000, u = as_bits(x) & 0x7fffffff;
    if (u > 0x7f800000) {
        y.bits = 0x7fff;
        return;
    }
    uint32_t r;
    if (u >= 0x477ff000) r = 0x7c00; // 65520 and up round to infinity
    // A subnormal result counts units of 2^-24.
    else if (u < 0x38800000)
        r = as_bits(as_float(u) + 0.5f) - as_bits(0.5f);
    else
        r = (u - 0x38000000 + 0xfff + (u >> 13 & 1)) >> 13;
    y.bits = (uint16_t)(sign | r);
}

template <class T> uint32_t pair_of(float low, float high, T) {
    T a, b;
    from_float(a, low);
    from_float(b, high);
    return a.bits | (uint32_t)b.bits << 16;
}
// The product and the sum of f16 are exact in a double. The result is rounded to odd in float32
// first, so that rounding it from there to f16 is correct.
DEVICE uint32_t fma_pair(uint32_t a, uint32_t b, uint32_t c) {
    float v[2];
    for (int i = 0; i < 2; i++) {
        auto half = [&](uint32_t x) { return (double)to_float(f16{(uint16_t)(x >> 16 * i)}); };
        double exact = half(a) * half(b) + half(c);
        v[i] = (float)exact;
        if (v[i] != exact && exact == exact && !(as_bits(v[i]) & 1))
            v[i] = nextafterf(v[i], exact > v[i] ? __builtin_inff() : -__builtin_inff());
    }
    return pair_of(v[0], v[1], f16());
}

DEVICE Words4 load_16(const void *p, int line) {
    if ((uintptr_t)p % 16)
        emu::fail(line, "16-byte load from an address that is %d past a multiple of 16",
            (int)((uintptr_t)p % 16));
    return *(const Words4 *)p;
}
DEVICE Words2 load_8(const void *p, int line) {
    if ((uintptr_t)p % 8)
        emu::fail(line, "8-byte load from an address that is %d past a multiple of 8",
            (int)((uintptr_t)p % 8));
    return *(const Words2 *)p;
}
DEVICE void check_const(const void *p, unsigned bytes, int line) {
    if (emu::strict) emu::const_read(p, bytes, line);
}
DEVICE Words2 load_const8(const void *p, EMU_LINE) {
    check_const(p, 8, line);
    return load_8(p, line);
}
DEVICE Words2 load_stream8(const void *p, EMU_LINE) { return load_const8(p, line); }
DEVICE float load_const_float(const float *p, EMU_LINE) {
    check_const(p, 4, line);
    return *p;
}
DEVICE void store16(void *p, Words4 v, EMU_LINE) {
    if ((uintptr_t)p % 16)
        emu::fail(line, "16-byte store to an address that is %d past a multiple of 16",
            (int)((uintptr_t)p % 16));
    *(Words4 *)p = v;
}
DEVICE void store8(void *p, Words2 v, EMU_LINE) {
    if ((uintptr_t)p % 8)
        emu::fail(line, "8-byte store to an address that is %d past a multiple of 8",
            (int)((uintptr_t)p % 8));
    *(Words2 *)p = v;
}
DEVICE uint32_t mask_or(uint32_t x, uint32_t mask, uint32_t bits) { return (x & mask) | bits; }
DEVICE uint32_t halves_of(uint32_t x, uint32_t y) { return (x & 0xffff) | (y & 0xffff0000); }
DEVICE uint32_t bytes_as_pair(uint32_t x, int i) {
    return 0x64006400u | (x >> 8 * i & 255) | (x >> 8 * i & 0xff00) << 8;
}
DEVICE uint32_t lower_twice(uint32_t x) { return (x & 0xffff) | x << 16; }
DEVICE uint32_t upper_twice(uint32_t x) { return x >> 16 | (x & 0xffff0000); }
DEVICE uint32_t alternate_bytes(uint32_t x, int i) {
    return (x >> 8 * i & 255) | (x >> (8 * i + 8) & 0xff00);
}
DEVICE uint32_t alternate_as_pair(uint32_t x, int i) {
    return 0x64006400u | (x >> 8 * i & 0xff00ff);
}
DEVICE uint32_t byte_of(uint32_t x, int i) { return x >> 8 * i & 255; }
DEVICE float byte_as_float(uint32_t x, int i) { return as_float(0x4b000000u | (x >> 8 * i & 255)); }
DEVICE Words4 load_const(const void *p, EMU_LINE) {
    check_const(p, 16, line);
    return load_16(p, line);
}
DEVICE Words4 load_stream(const void *p, EMU_LINE) { return load_const(p, line); }
DEVICE Words4 load_fresh(const void *p, EMU_LINE) { return load_16(p, line); }
DEVICE Words2 load_fresh8(const void *p, EMU_LINE) { return load_8(p, line); }
DEVICE Words4 load_shared(const void *p, EMU_LINE) { return load_16(p, line); }
DEVICE Words2 load_shared8(const void *p, EMU_LINE) { return load_8(p, line); }
DEVICE uint32_t load_fenced(const void *p) { return *(const uint32_t *)p; }
DEVICE Words4 load_fenced16(const void *p, EMU_LINE) { return load_16(p, line); }
DEVICE Words2 load_fenced8(const void *p, EMU_LINE) { return load_8(p, line); }

// The destination becomes NaN when the copy is issued, and gets its value only in the wait that
// guarantees it. So both errors show: issuing a copy while the destination is still being read (a
// real copy may land at once), and waiting too little (a real copy may land late).
DEVICE void cp_async(void *to, const void *from, bool valid, EMU_LINE) {
    if (((uintptr_t)to | (uintptr_t)from) % 16)
        emu::fail(line, "cp.async with an address that is no multiple of 16");
    for (int i = 0; i < 4; i++) ((volatile uint32_t *)to)[i] = 0xffffffffu;
    emu::cp_push({to, from, 4, valid});
}
template <int N> DEVICE void cp_async_small(void *to, const void *from, EMU_LINE) {
    static_assert(N == 4 || N == 8);
    if (((uintptr_t)to | (uintptr_t)from) % N)
        emu::fail(line, "cp.async with an address that is no multiple of its bytes");
    for (int i = 0; i < N / 4; i++) ((volatile uint32_t *)to)[i] = 0xffffffffu;
    emu::cp_push({to, from, N / 4, true});
}
DEVICE void cp_async_if(uint32_t bits, void *to, const void *from, EMU_LINE) {
    cp_async(to, from, bits != 0, line);
}
DEVICE void cp_commit() { emu::cp_close(); }
template <int N> DEVICE void cp_wait() {
    emu::Copy c;
    while (emu::cp_next(N, c))
        for (int i = 0; i < c.words; i++)
            ((volatile uint32_t *)c.to)[i] = c.valid ? ((const uint32_t *)c.from)[i] : 0;
}

DEVICE void touch_row(const void *row) {
    volatile const uint32_t *p = (volatile const uint32_t *)row;
    for (int i = 0; i < 4; i++) (void)p[i];
}
DEVICE void ldmatrix(uint32_t (&r)[4], const void *row, EMU_LINE) {
    if ((uintptr_t)row % 16) emu::fail(line, "ldmatrix of an address that is no multiple of 16");
    touch_row(row);
    emu::ldmatrix(r, row, false, line);
}
DEVICE void ldmatrix_trans(uint32_t (&r)[4], const void *row, EMU_LINE) {
    if ((uintptr_t)row % 16) emu::fail(line, "ldmatrix of an address that is no multiple of 16");
    touch_row(row);
    emu::ldmatrix(r, row, true, line);
}
DEVICE void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, bf16, EMU_LINE) {
    emu::mma(d, a, b0, b1, emu::Op::MmaBf16, line);
}
DEVICE void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, f16, EMU_LINE) {
    emu::mma(d, a, b0, b1, emu::Op::MmaF16, line);
}

DEVICE void block_sync(EMU_LINE) { emu::block_barrier(line); }
DEVICE void named_sync(int id, int threads, EMU_LINE) {
    emu::named_barrier(id, (unsigned)threads, line);
}
DEVICE void warp_sync(EMU_LINE) { emu::warp_barrier(line); }
DEVICE float shuffle_xor(float v, int mask, EMU_LINE) {
    return emu::exchange(emu::Op::ShuffleXor, v, mask, line);
}
DEVICE uint32_t shuffle_xor(uint32_t v, int mask, EMU_LINE) {
    return as_bits(emu::exchange(emu::Op::ShuffleXor, as_float(v), mask, line));
}
DEVICE uint32_t warp_ballot(bool v, EMU_LINE) { return emu::ballot(v, line); }
DEVICE float group_sum(float v, int width, EMU_LINE) {
    return emu::exchange(emu::Op::GroupSum, v, width, line);
}
DEVICE float group_max(float v, int width, EMU_LINE) {
    return emu::exchange(emu::Op::GroupMax, v, width, line);
}

// Nothing else runs meanwhile: all threads of a launch are fibers of one OS thread. In global
// memory, TSan is not to take the operation for an order between threads, as in C++: only fences
// order.
DEVICE uint32_t atomic_add(uint32_t *p, uint32_t x) {
    if (!emu::in_shared(p)) return emu::atomic_add_global(p, x);
    emu::yield();
    return __atomic_fetch_add(p, x, __ATOMIC_SEQ_CST);
}
DEVICE uint32_t atomic_add_ordered(uint32_t *p, uint32_t x) {
    emu::device_fence();
    const uint32_t before = emu::atomic_add_global(p, x);
    emu::device_fence();
    return before;
}

DEVICE void store_released(uint32_t *p, uint32_t x) { __atomic_store_n(p, x, __ATOMIC_RELEASE); }
DEVICE uint32_t load_acquired(const uint32_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
DEVICE void let_others_run() { emu::let_others_run(); }

DEVICE uint32_t thread_again() { return threadIdx.x; }
DEVICE uint32_t thread_again_if_short() { return threadIdx.x; }
DEVICE void is_global(const void *) {}

DEVICE void start_next() {}
DEVICE void wait_for_last(EMU_LINE) {
#ifdef PLANT_NO_WAIT
    (void)line;
#else
    emu::wait_for_last(line);
#endif
}
// A prefetch is no read that a store of another thread could race with.
DEVICE void prefetch(const void *p) { emu::prefetched(p); }

DEVICE float exp2_fast(float x) { return exp2f(x); }
DEVICE float reciprocal_fast(float x) { return 1 / x; }

#endif
