// Attention of generated rows: split-K over the paged cache, in chunks of 256 keys. A block has one
// chunk of one row and KV head, for up to eight query heads that share the KV head. Of the blocks
// that have the same heads of a row, the last one to finish joins the chunks (attend_split.h).
//
// 16-bit and 8-bit caches are multiplied on tensor cores (attend_tensor.h), a float32 cache in
// float32 (attend_chunk.h).
//
// attend_int8 has 65 KB of machine code, because it has the chunk for three widths of heads. A
// launch runs through the code of one.
#include "gpu.h"

// Calls ATTEND with what the block attends to and its shared memory, unless it has nothing to do.
// What it attends to is found while the previous launch ends: no launch of a step writes where rows
// and their pages are. ATTEND waits for the queries.
template <void (*ATTEND)(const Block &, unsigned char *)>
DEVICE void with_block(const AttendParams &p) {
    SHARED(shared);
    start_next();
    const int32_t row = p.rows[blockIdx.z];
    if (row >= 0) {
        const Block b(p, row);
        if (!b.idle()) return ATTEND(b, shared);
    }
    wait_for_last();
}

template <class C> DEVICE void attend(const Block &b, unsigned char *shared) {
    uint32_t warp_bytes, columns;
    auto run = [&](auto width) {
        using Of = Chunk<C, decltype(width)::value>;
        Of{b, shared}.run();
        warp_bytes = Of::WARP, columns = decltype(width)::value;
    };
    if (b.p.head_stride <= 64)
        run(Count<64>());
    else if (b.p.head_stride <= 128)
        run(Count<128>());
    else
        run(Count<256>());
#ifndef PLANT_NO_BARRIER_ATTEND
    block_sync();
#endif
    merge<C>(b, shared, warp_bytes, columns);
    block_sync();
    join<ATTEND_WARPS * 32>(b, shared);
}

// The same for a float32 cache: a block has 128 threads, and CHUNK_QUERIES heads at once.
template <uint32_t H>
DEVICE void attend_floats(const Block &b, unsigned char *shared, uint32_t head) {
    const AttendParams &p = b.p;
    const uint32_t t = threadIdx.x, first = blockIdx.y * GPU_CHUNK, stride = p.head_stride;
    const Layout l(shared, stride);
    // Query heads beyond the block's are computed as zeros and dropped.
    UNROLL_BY(1)
    for (uint32_t i = t; i < H * stride; i += 128) {
        const uint32_t h = head + i / stride, d = i % stride;
        l.q[i] = h < b.count && d < p.head_dim ? b.query(h)[d] : 0;
    }
    block_sync();
    uint32_t begin[H], end[H];
    UNROLL
    for (uint32_t h = 0; h < H; h++) begin[h] = b.begin, end[h] = b.end;
    with_width(stride, [&](auto width) {
        attend_chunk<float, H, false, decltype(width)::value>(
            l, b.keys<float>(), first, smaller(b.end - first, GPU_CHUNK), begin, end, p.scale);
    });
    UNROLL_BY(1)
    for (uint32_t i = t * 8; i < H * stride; i += 128 * 8) {
        const uint32_t h = i / stride;
        float o[8];
        fresh4(o, l.o + i), fresh4(o + 4, l.o + i + 4);
        if (head + h < b.count) b.leave(head + h, i % stride, o, l.max[h], l.sum[h]);
    }
    block_sync();
}
DEVICE void attend_floats(const Block &b, unsigned char *shared) {
    wait_for_last();
    if (b.count == 1) {
        attend_floats<1>(b, shared, 0);
    } else {
        UNROLL_BY(1)
        for (uint32_t head = 0; head < b.count; head += CHUNK_QUERIES)
            attend_floats<CHUNK_QUERIES>(b, shared, head);
    }
    join<128>(b, shared);
}
KERNEL(attend_f32) { with_block<attend_floats>(p); }
KERNEL(attend_f16) { with_block<attend<f16>>(p); }
KERNEL(attend_bf16) { with_block<attend<bf16>>(p); }
KERNEL(attend_int8) { with_block<attend<Cached8>>(p); }
KERNEL(attend_fp8) { with_block<attend<CachedF8>>(p); }
