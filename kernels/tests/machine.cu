// Small kernels for the test of the emulator: some are right, and some have an error that it must
// report. They are not part of the library.
#include "../gpu.h"
#include "machine.h"

MACHINE_KERNELS(KERNEL_FACTS)

// Tests shuffles, votes and sums within groups of lanes.
KERNEL(lanes) {
    const uint32_t t = threadIdx.x, lane = t % 32;
    float *out = p.out + t * 8;
    const float v = (float)(lane * lane);
    out[0] = shuffle_xor(v, 5);
    out[1] = (float)(warp_ballot(lane % 3 == 0) & 0xffff);
    out[2] = group_sum(v, 32);
    out[3] = group_sum(v, 4);
    out[4] = group_max(v, 8);
}

// One warp multiplies 16x16 by 16x8 with operands from ldmatrix. With ldmatrix_trans of the
// transposed matrix the result must be the same.
KERNEL(tensor) {
    SHARED(shared);
    const uint32_t lane = threadIdx.x;
    unsigned char *a_tile = shared, *b_tile = shared + 1024, *t_tile = shared + 2048;
    // Rows have 64 bytes, with the swizzle of gemm.h. b is [n][k]; for ldmatrix_trans it is [k][n].
    for (uint32_t i = lane; i < 256; i += 32) {
        uint16_t a = p.in[i], b = p.in[256 + i];
        uint32_t row = i / 16, col = i % 16;
        *(uint16_t *)(a_tile + swizzle64(row, col / 8) + col % 8 * 2) = a;
        *(uint16_t *)(b_tile + swizzle64(row, col / 8) + col % 8 * 2) = b;
        *(uint16_t *)(t_tile + swizzle64(col, row / 8) + row % 8 * 2) = b;
    }
    warp_sync();
    uint32_t a[4], b[4], v[4];
    ldmatrix(a, a_tile + swizzle64(lane % 16, lane / 16));
    ldmatrix(b, b_tile + swizzle64(lane / 16 * 8 + lane % 8, lane / 8 % 2));
    ldmatrix_trans(v, t_tile + swizzle64(lane % 16, lane / 16));
    float d[2][4] = {}, e[2][4] = {};
    for (int j = 0; j < 2; j++) {
        if (p.which) {
            mma(d[j], a, b[2 * j], b[2 * j + 1], f16());
            mma(e[j], a, v[2 * j], v[2 * j + 1], f16());
        } else {
            mma(d[j], a, b[2 * j], b[2 * j + 1], bf16());
            mma(e[j], a, v[2 * j], v[2 * j + 1], bf16());
        }
        for (int i = 0; i < 4; i++) {
            uint32_t at = (lane / 4 + i / 2 * 8) * 16 + j * 8 + lane % 4 * 2 + i % 2;
            p.out[at] = d[j][i];
            p.out[256 + at] = e[j][i];
        }
    }
}

// Warp 0 passes numbers to warp 1. The two meet at a named barrier, in which warp 2 takes no part.
KERNEL(named) {
    SHARED(shared);
    float *x = (float *)shared;
    const uint32_t t = threadIdx.x;
    if (t < 32) x[t] = (float)t + 1;
    if (t < 64) named_sync(1, 64);
    if (t >= 32 && t < 64) p.out[t - 32] = x[t - 32];
}

// Errors that the emulator must report, by number.
KERNEL(wrong) {
    SHARED(shared);
    float *x = (float *)shared;
    const uint32_t t = threadIdx.x;
    switch (p.which) {
    case 0: // a thread leaves while others wait
        if (t == 40) return;
        block_sync();
        break;
    case 1: // one half of the block waits at another barrier than the other half
        if (t < 32)
            block_sync();
        else
            block_sync();
        break;
    case 2: // only half a warp takes part in a warp operation
        if (t % 32 < 16) p.out[t] = group_sum(1, 32);
        break;
    case 3: // a named barrier to which too few threads come
        if (t < 32) named_sync(2, 64);
        break;
    case 4: // a write beyond shared memory
        x[p.n + t] = 1;
        break;
    case 5: // a write beyond a buffer
        p.out[p.n + t] = 1;
        break;
    case 6: // copies that nobody waits for
        cp_async(x, p.in, true);
        break;
    case 7: // a misaligned copy
        cp_async(x + 1, p.in, true);
        break;
    case 8: { // all rows of a matrix in the same banks
        uint32_t r[4];
        x[t] = 0;
        block_sync();
        ldmatrix(r, shared + t % 32 * 128);
        break;
    }
    case 9: { // lanes that disagree about the operation
        float y = t % 2 ? shuffle_xor(1.0f, 1) : group_sum(1, 32);
        p.out[t] = y;
        break;
    }
    case 10: // a missing warp_sync
        x[t] = (float)t;
        p.out[t] = x[t ^ 31];
        break;
    case 11: // what the launch itself writes is no constant
        if (t < 32) p.out[t] = 1;
        block_sync();
        if (t < 32) x[t] = load_const_float(p.out + (t ^ 1));
        break;
    case 12: // lanes that disagree about the partner
        p.out[t] = shuffle_xor(1.0f, t % 32 == 7 ? 2 : 1);
        break;
    }
}

// A warpgroup product with operands that threads store. `which` from 1 on picks an error that the
// emulator must report.
KERNEL(warpgroup) {
    SHARED(shared);
    const uint32_t t = threadIdx.x, lane = t % 32;
    unsigned char *a_tile = shared, *b_tile = shared + 64 * 128;
    AsyncBarrier *barrier = (AsyncBarrier *)(shared + 320 * 128);
    for (uint32_t i = t; i < 320 * 16; i += 128) {
        const uint32_t row = i / 16, at = row * 128 + i % 16 * 2;
        store_operand(shared + (at ^ (at >> 7 & 7) << 4), p.in[i]);
    }
    // which 11: one of the threads that have stored does not call async_fence
    if (p.which != 1 && (p.which != 11 || t)) async_fence();
    block_sync();
    float d[128];
    for (uint32_t i = 0; i < 128; i++) d[i] = (float)i;
    if (p.which != 2) wgmma_begin();
    const unsigned char *a = p.which == 3 && t >= 96 ? a_tile + 32 : a_tile;
    if (p.n)
        wgmma(d, operand(a), operand(b_tile), f16());
    else
        wgmma(d, operand(a), operand(b_tile), bf16());
    if (p.which == 4) d[5] = 1;
    wgmma_commit();
    if (p.which == 5) return;
    if (p.which == 6)
        wgmma_wait<1>(); // waits too little: the sums that are stored below are not complete
    else
        wgmma_finish(d);
    for (uint32_t r = 0; r < 128; r++)
        p.out[(t / 32 * 16 + lane / 4 + r / 2 % 2 * 8) * 256 + r / 4 * 8 + lane % 4 * 2 + r % 2] =
            d[r];
    if (p.which == 6) wgmma_wait<0>();
    if (p.which < 7 || t) return;
    if (p.which == 7) barrier_arrive(barrier);
    barrier_init(barrier, 2);
    barrier_arrive(barrier);
    if (p.which == 8) barrier_wait(barrier, 0);
    barrier_expect(barrier, 16);
    if (p.which == 9) barrier_wait(barrier, 0);
    barrier_wait(barrier, 1);
    barrier_arrive(barrier);
    if (p.which == 10) barrier_arrive(barrier);
}

// Two products: a [64 x 16] in registers times b [16 x 128], by a transposed operand; then x [64 x
// 64] in shared memory times the transpose of y [128 x 64], with sums that start from zero. `which`
// picks an error that the emulator must report.
KERNEL(fragments) {
    SHARED(shared);
    const uint32_t t = threadIdx.x, lane = t % 32, g = t / 32 * 16 + lane / 4, c = lane % 4 * 2;
    const uint16_t *a = p.in, *b = a + 64 * 16, *x = b + 16 * 128, *y = x + 64 * 64;
    unsigned char *b_tile = shared, *x_tile = shared + 4096, *y_tile = x_tile + 64 * 128;
    auto place = [](uint32_t row, uint32_t column) {
        return row * 128 + ((column / 8 ^ (row & 7)) << 4) + column % 8 * 2;
    };
    for (uint32_t i = t; i < 16 * 128; i += 128)
        store_operand(b_tile + i % 128 / 64 * 2048 + place(i / 128, i % 64), b[i]);
    for (uint32_t i = t; i < 64 * 64; i += 128) store_operand(x_tile + place(i / 64, i % 64), x[i]);
    for (uint32_t i = t; i < 128 * 64; i += 128)
        store_operand(y_tile + place(i / 64, i % 64), y[i]);
    async_fence();
    block_sync();
    uint32_t r[4];
    for (uint32_t i = 0; i < 4; i++) {
        const uint16_t *from = a + (g + i % 2 * 8) * 16 + c + i / 2 * 8;
        r[i] = from[0] | (uint32_t)from[1] << 16;
    }
    float d[64], s[64];
    for (uint32_t i = 0; i < 64; i++) d[i] = (float)i, s[i] = 1e30f;
    wgmma_begin();
    const uint64_t transposed = p.which == 1 ? operand(b_tile) : operand_transposed(b_tile, 2048);
    if (p.n)
        wgmma(d, r, transposed, f16());
    else
        wgmma(d, r, transposed, bf16());
    wgmma_commit();
    for (uint32_t i = 0; i < 4; i++) {
        const uint64_t left = operand(x_tile + i * 32), right = operand(y_tile + i * 32);
        if (i)
            p.n ? wgmma(s, left, right, f16()) : wgmma(s, left, right, bf16());
        else
            p.n ? wgmma_new(s, left, right, f16()) : wgmma_new(s, left, right, bf16());
    }
    wgmma_commit();
    if (p.which == 2) r[2]++;
    if (p.which != 3) wgmma_wait<1>(d);
    if (p.which == 4) s[7] = 1;
    for (uint32_t i = 0; i < 64; i++)
        p.out[(g + i / 2 % 2 * 8) * 128 + i / 4 * 8 + c + i % 2] = d[i];
    wgmma_finish(s);
    for (uint32_t i = 0; i < 64; i++)
        p.out[64 * 128 + (g + i / 2 % 2 * 8) * 128 + i / 4 * 8 + c + i % 2] = s[i];
}
