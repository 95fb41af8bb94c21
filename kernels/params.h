// The contract between kernels/*.cu and the host: what each kernel is given and how it is launched.
// docs/glossary.md defines row, slot, group, tile and the other words that recur in this project.
//
// This file is plain C. The host has a copy of each struct, field for field, with pointers as
// 64-bit device addresses; a test compares sizes and offsets. The host takes the constants and the
// list of kernels from here. Every kernel takes one struct by value and nothing else.
//
// Words
//   row        A row of the step. `rows[i]` is the number of the row that a launch takes as its
//              row i; -1 is padding, for which nothing is read or written. All rows of a launch are
//              of one kind, Decode or Prefill, unless the kernel's entry below says "both kinds".
//   pad32(n)   n rounded up to a multiple of 32. STRIDES of matrices and activations are counted in
//              elements and are multiples of 32. Vectors (norm weights) are readable up to
//              pad32(length).
//   padding    Columns beyond the width of a matrix or vector. PADDING COLUMNS ARE ZERO in weights
//              and in the outputs of attention and of ffn_up; kernels never write to the padding of
//              those outputs, because their buffers start as zeros. In vectors and in the residual
//              stream, padding may hold anything, and kernels do not use it.
//   rounded    Activations that a product takes without converting them. They have the type of the
//              product's weights (f16 for quantised weights), and row i of the launch lies at
//              i * stride. prepare, attention and ffn_up produce them. In a step, the rows that
//              decode come first and the prefill rows follow.
//   permuted   The column order in which the *_hopper kernels for quantised weights take a prompt's
//              activations: a permutation within each 16 columns (permuted_of in quant.h).
//              ffn_up_hopper_* for quantised weights writes its output in this order too. Decode
//              rows keep the plain order. K must be a multiple of 16, because padding would
//              otherwise be mixed with columns; for other K the host uses other kernels.
//   base       Every pointer to weights, activations, vectors and pages is aligned to 16 bytes.
//              Allocators give 256; kernels rely on 16 only.
//   type       The type of weights and of the KV cache: GPU_F32, GPU_F16, GPU_BF16, or one of the
//              quantised types below. Everything else is float32.
//
// Quantised weights (types GPU_INT8, GPU_INT4, GPU_NF4, GPU_FP8, GPU_K4, GPU_K5, GPU_K6, GPU_K8,
// GPU_IQ4, GPU_UINT4): a row holds its codes and then its scales, as quant.h says, for K padded to
// GPU_BLOCK_K. w_stride is counted in units of 16 bytes and is a multiple of 4. The scales of
// padding are zero. A prefill product with quantised weights takes f16 activations, and its shared
// memory is 66048 bytes instead of 49152. The entries below do not name the types that only files
// have (k4, k5, k6, k8, iq4 and uint4). These types have the same kernels as int4 and int8, except
// that they have no kernels for compute capability 9.0 alone.
//
// Products of decode rows:
//   - f32 weights: a block takes up to 8 rows and computes in float32.
//   - All other weights: activations are rounded to the type of the weights (f16 for quantised
//     weights), and the products use tensor cores.
//   - OP_TYPE takes up to GPU_FEW_ROWS rows and applies norm and rounding itself (matmul_add takes
//     rounded rows).
//   - OP_batch_TYPE takes any number of rounded rows and gives the same bits as OP_TYPE. A block
//     multiplies GPU_BATCH_PAIRS pairs of weight rows by R activation rows. A pair is two
//     neighbouring rows of the matrix; in ffn_up, a row of gate and the same row of up. R is the
//     smallest of 16, 32 and 64 that holds n_rows. With more than 64 rows, R is 64 and grid.x
//     grows.
//   - `splits` blocks share one K (split-K). `splits` is 1; it may be 4 or 8 where the grid would
//     have fewer than GPU_SPLIT_BELOW blocks. Each of these blocks leaves its sums in `scratch`,
//     and the last one to finish adds them up. `scratch` has GPU_SPLIT_BELOW counters, and then
//     512 * R bytes for each block. The counters must be ZERO before the first launch; each launch
//     leaves them at zero.
//     Some types have a ring of slots in shared memory, through which lines of weights come: f16,
//     bf16, int8, int4, nf4 and fp8. A slot is GPU_SLOT bytes and 128 times the bytes of the scales
//     that a weight row has in a line: 0 for f16 and bf16, 8 for int8 and nf4, 16 for int4, 4 for
//     fp8.
//     OP_TYPE        grid.x any number up to ceil(pairs / 8), because blocks share the tiles of
//                    eight pairs; grid.y ceil(n_rows / 8). Shared memory is the sum of:
//                      - GPU_TABLE_BYTES
//                      - GPU_FEW_NORMS, where the kernel applies the norm
//                      - for each activation row of a block, 2 bytes for each column. The number of
//                        columns is rounded up to a multiple of 64 for f16 and bf16, of 128 for
//                        int8, k8 and fp8, and of 256 for all other types
//                      - 4096 for each tile of a block, for at most GPU_FEW_TILES tiles
//                      - for types with a ring, GPU_FEW_SLOTS slots. On compute capability 9.0,
//                        f16, bf16, int8 and fp8 have GPU_FEW_SLOTS_90
//     OP_batch_TYPE  grid (ceil(n_rows / R), ceil(pairs of the matrix / GPU_BATCH_PAIRS), splits).
//                    Shared memory is the sum of:
//                      - GPU_TABLE_BYTES
//                      - R / 8 * GPU_BATCH_LEVEL * levels, for the sums that wait. levels is 2, 1
//                        or 0 where splits is 1, 4 or 8
//                      - R / 8 * stages, for the activations. For types with a ring and R < 64,
//                        stages is 3 * 1024 (f16, bf16), 2 * 2048 (int8 and fp8 with R = 32) or
//                        3 * 2048 (otherwise). For quantised types without a ring and R < 64, it is
//                        GPU_BATCH_SHARED_CODES. For all types with R = 64, it is GPU_BATCH_SHARED
//                      - for types with a ring and R < 64, the slots of the ring: 2 for int4 and
//                        nf4, and for int8 and fp8 with R = 32; otherwise 3
//
// KV cache of one layer: K and V are separate, each [page][kv_head][16][head_stride]. head_stride
// is head_dim rounded up to 16; a vector's columns from head_dim on are written as zeros. Position
// p of a sequence lies in page `pages[row_pages[row] + p / 16]` at offset p % 16. A slot of the
// cache is page * 16 + offset.
//
// In an int8 or fp8 cache (types GPU_INT8, GPU_FP8) each vector has its own scale (append,
// quant.h): [page][kv_head] { [16][head_stride] codes, [16] scales }.
//
// Some launches may start before the previous launch has ended
// (CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION; see wait_for_last in gpu.h). These are
// the launches of prepare, qkv, append, attend, matmul_add, ffn_up, logits and their OP_batch
// kernels; change, sample_max and sample_draw; adapt_in, adapt_out and adapt_up, also for prompts;
// and OP_hopper and attend_hopper. No other kernel calls wait_for_last, so no other kernel may be
// launched in this way.
//
// More than 49152 bytes of shared memory must be asked for (cuFuncSetAttribute,
// MAX_DYNAMIC_SHARED_SIZE_BYTES). A kernel is not launched for no rows. Every number that a grid
// depends on may be rounded up: rows with padding, tiles with n = 0, the splits of attention with
// splits that do nothing.
//
// Batch invariance: in every kernel, the result for a row depends on that row alone. Sums over K
// run in an order that depends on (N, K) only, and attention goes by chunks of 256 keys at absolute
// positions.
#ifndef LLAMABI_GPU_PARAMS_H
#define LLAMABI_GPU_PARAMS_H

#include <stdint.h>

enum {
    GPU_F32 = 0,
    GPU_F16 = 1,
    GPU_BF16 = 2,
    GPU_INT8 = 3,
    GPU_INT4 = 4,
    GPU_NF4 = 5,
    GPU_FP8 = 6,
    GPU_K4 = 7,
    GPU_K5 = 8,
    GPU_K6 = 9,
    GPU_K8 = 10,
    // The type of activations for quantised weights: f16 in which finite numbers stay finite.
    // Numbers beyond the range of f16 become +-65504. Infinities and NaN stay what they are, so
    // that what has failed in float32 is still seen to have failed.
    GPU_F16_FINITE = 11,
    GPU_IQ4 = 12,
    GPU_UINT4 = 13,

    GPU_PAGE = 16,            // positions of a page
    GPU_CHUNK = 256,          // keys of one split in decode attention
    GPU_ATTEND_HEADS = 8,     // most query heads in a block of attend_*
    GPU_ATTEND_SLOTS = 98304, // most shared memory for keys and values in a block of attend_TYPE
    GPU_ATTEND_OTHER = 2048,  // more shared memory of attend_TYPE: scales of 8-bit caches
    GPU_ATTEND_256 = 76800,   // all shared memory of attend_TYPE if head_stride is above 128
    GPU_MAX_HEAD_DIM = 256,
    GPU_TILE_MMA = 64,     // rows of an AttendTile: attend_prefill_{f16,bf16,int8,fp8}_*
    GPU_TILE_FMA = 4,      // rows of an AttendTile: attend_prefill_fma_*
    GPU_TILE_HOPPER = 128, // rows of an AttendTile: attend_hopper_*

    GPU_DRAW = -1, // of SampleRow.given, as is GPU_NO_ROW
    GPU_NO_ROW = -2,
    GPU_NONE_LEFT = -2,             // of SampleOut.token
    GPU_MAX_TOP = 128,              // most alternatives that sample finds
    GPU_SLICE = 4032,               // ids of a slice: a block of sample_max or sample_draw has one
    GPU_SAMPLE_SLICE = 5152,        // bytes of a SampleSlice
    GPU_MOST_SLICES = 2048,         // most slices of a row
    GPU_BUCKETS = 256,              // parts of the range of logits in which sample_draw sums masses
    GPU_SAMPLE_MAX_SHARED = 272,    // shared memory of sample_max
    GPU_SAMPLE_DRAW_SHARED = 45248, // shared memory of sample_draw
    GPU_BLOCK_K = 256,              // columns in a block of quantised weights
    GPU_TABLE_BYTES = 512,          // shared memory for the tables in which codes are looked up
    GPU_FEW_ROWS = 8,               // most rows of a product that applies norm and rounding itself
    GPU_FEW_TILES = 8,              // tiles of a block of OP_TYPE whose sums wait to be joined
    GPU_FEW_NORMS = 512,            // shared memory of OP_TYPE for norms
    GPU_FEW_SLOTS = 3,              // lines of weights in the ring of OP_TYPE
    GPU_FEW_SLOTS_90 = 4,           // the same on 9.0, except for int4 and nf4
    GPU_SLOT = 16384,               // a line of 128 weight rows in a ring, without scales
    GPU_BATCH_ROWS = 64,            // most activation rows in a block of OP_batch_TYPE
    GPU_BATCH_PAIRS = 64,           // pairs of weight rows in a block of OP_batch_TYPE
    GPU_BATCH_SHARED = 4096,        // stages of OP_batch_TYPE without a ring, for every 8 rows
    GPU_BATCH_SHARED_CODES = 8192,  // the same for quantised types if R < 64
    GPU_BATCH_LEVEL = 4096,         // one level of sums that wait, for every 8 activation rows
    GPU_SPLIT_BELOW = 96,           // a product with fewer blocks is split along K
    GPU_MAX_RANK = 256,             // the largest rank of an adapter
    GPU_THIN = 768,          // numbers that adapt_in leaves for a row: GPU_MAX_RANK of each part
    GPU_ADAPT_ROWS = 8,      // rows of a block of adapt_*_prefill
    GPU_ADAPT_SHARED = 1280, // shared memory of adapt_in
    GPU_BOX_ROWS = 64,       // rows of a TensorMap's box; GPU_PAGE for a map of the cache
    // Shared memory of OP_hopper_TYPE, OP_hopper_half_TYPE and OP_hopper_quarter_TYPE: HOPPER for
    // floats, CODES for quantised weights.
    GPU_HOPPER_SHARED = 196672,
    GPU_HOPPER_HALF_SHARED = 98352,
    GPU_HOPPER_SINGLE_SHARED = 196736, // half tiles with groups 1
    GPU_HOPPER_QUARTER_SHARED = 196800,
    GPU_CODES_SHARED = 131648,
    GPU_CODES_HALF_SHARED = 66112,
};

// A CUtensorMap (cuTensorMapEncodeTiled) of a matrix of 16-bit numbers, [rows, pad32(columns)]. A
// box has 64 columns and GPU_BOX_ROWS rows (GPU_PAGE rows for the cache). Boxes are swizzled by 128
// bytes; outside of the matrix they read zeros.
#ifdef __cplusplus
typedef struct alignas(128) {
    uint64_t words[16];
} TensorMap;
#else
typedef struct {
    _Alignas(128) uint64_t words[16];
} TensorMap;
#endif

#define GPU_NO_SLOT    0xffffffffu
#define GPU_NO_HISTORY 0xffffffffu

// ---- embed_{f32,f16,bf16,int8,int4}: x[i] = table[tokens[i] - first] for rows 0..n_rows; a
// negative token is padding. Where there are several ranks, each rank has `n` rows of the
// vocabulary, from `first` on; it writes zeros for all other tokens. grid (n_rows), block 128,
// shared 0. The kernel's type is the type of the table.
typedef struct {
    float *x;              // [n_rows, x_stride] out
    const void *table;     // [n, w_stride]
    const int32_t *tokens; // [n_rows]
    uint32_t n_rows, dim, x_stride, w_stride;
    uint32_t first, n;
} EmbedParams;

// ---- reduce, for several ranks: x = the sum of all parts in the order of the ranks; with `adds`,
// x += that sum. Then it sets this rank's own part to zero, because the products that compute the
// next part add to it. n is a multiple of 4. grid (ceil(n / 1024)), block 256, shared 0.
typedef struct {
    float *x;           // [n] in and out
    const float *parts; // [ranks, n]
    float *own;         // [n] out
    uint64_t n;
    uint32_t ranks, adds;
} ReduceParams;

// ---- reduce_peers: the same in one launch, where a kernel can read the memory of the other ranks'
// devices. Each rank's launch tells all ranks that its part is there, waits until all ranks have
// told it the same, and reads their parts. It sets `next` to zero: this rank's next products add to
// that part. No part may change while others read it. Therefore a part is used again at the
// earliest after a launch with another part. All ranks launch the same, each on a device of its
// own. grid (GPU_PEER_BLOCKS), whatever n is, because each block counts the launches. block 256,
// shared 0.
#define GPU_PEERS       8
#define GPU_PEER_BLOCKS 64
typedef struct {
    float *x;                      // [n] in and out
    const float *parts[GPU_PEERS]; // of each rank: [n]
    uint32_t *turns[GPU_PEERS]; // of each rank: [GPU_PEERS], how many launches each one told it of
    uint32_t *turn;             // [GPU_PEER_BLOCKS] of this rank: launches so far
    float *next;                // [n] out
    const uint32_t *given_up;   // in the host's memory; if not 0, nobody is waited for
    uint64_t n;                 // a multiple of 4
    uint32_t rank, ranks, adds, zero;
} ReducePeersParams;

// ---- gather, for several ranks: out[i, firsts[r] + j] = shares[r, i, j]. This puts the columns of
// all ranks side by side. grid (ceil(share_stride / 1024), n_rows, ranks), block 256, shared 0.
typedef struct {
    float *out;             // [n_rows, out_stride] out
    const float *shares;    // [ranks, n_rows, share_stride]
    const uint32_t *firsts; // [ranks + 1]: the first column of each rank, and the end of the last
    uint32_t n_rows, ranks, share_stride, out_stride;
} GatherParams;

// ---- prepare_{f32,f16,bf16}: prepares the activations for a product of many rows: out[i] =
// round(rms_norm(x[rows[i]]) * norm). Columns width..pad32(width) and padding rows become zero.
// grid (n_rows), block 256, shared 32. The kernel's type is the type of the product's weights.
typedef struct {
    void *out;           // [n_rows, out_stride], out_stride >= pad32(width)
    const float *x;      // [max_rows, x_stride]
    const float *norm;   // [pad32(width)]
    const int32_t *rows; // [n_rows]
    uint32_t n_rows, width, x_stride, out_stride;
    float eps;
    uint32_t permuted; // whether columns are written in permuted order
    uint32_t out_type; // the kernel's type, or GPU_F16_FINITE for prepare_f16
    uint32_t zero;
} PrepareParams;

// ---- qkv_{f32,f16,bf16,int8,int4,nf4,fp8} (Decode): RMSNorm, product with w, bias, RoPE. q goes
// to `q`, K and V go to the row's slot of the cache. A launch multiplies rows first .. first + n of
// the matrix q | k | v, and w begins at row `first`; `first` and n are multiples of head_dim. If
// the parts of a matrix have different types, each run of neighbouring parts with one type takes a
// launch. x is the residual stream, indexed by rows[i].
// grid.x at most ceil(n / 16), block 256; f32: grid (ceil(n / 16), ceil(n_rows / 8)), shared 0.
//
// ---- qkv_batch_{f16,bf16,int8,int4,nf4,fp8} (Decode): the same with prepared rows; x is as for
// qkv_prefill.
//
// ---- qkv_prefill_{f32,f16,bf16,int8,int4,nf4,fp8}: the same with prepared rows. x is the output
// of prepare: it has the type of the weights (f16 for quantised weights), row i of the launch lies
// at i * x_stride, and norm and eps are not read.
// f32: grid (ceil(n / 64), ceil(n_rows / 64)), block 256, shared 20480.
// Other types: grid (ceil(n / 128), ceil(n_rows / 128)), block 256, shared 49152 (quantised
// weights: 66048).
// The kernel's type is the type of the weights.
typedef struct {
    float *q;      // [max_rows, q_stride] out, by rows[i]
    void *k_pages; // this layer's pages; with an 8-bit cache, `fresh` of AppendParams
    void *v_pages; // this layer's pages; with an 8-bit cache, fresh + kv_dim
    const void *x;
    const float *norm; // [pad32(dim)]
    const void *w;     // [n, w_stride]
    const float *bias; // [(n_heads + 2 * n_kv_heads) * head_dim] or null
    const float *cos;  // [max_seq_len, head_dim / 2]
    const float *sin;
    const int32_t *rows;      // [n_rows]
    const int32_t *positions; // [max_rows], by rows[i]
    const uint32_t *slots;    // [max_rows], by rows[i]; GPU_NO_SLOT: K and V are not written
    void *scratch;            // for qkv_batch with splits > 1
    uint32_t n_rows, dim, x_stride, w_stride, q_stride;
    uint32_t n_heads, n_kv_heads, head_dim, head_stride;
    uint32_t kv_type;
    float eps;
    uint32_t splits; // qkv_batch
    uint32_t first, n;
    // Whether append finishes the rows, because heads of q and k have norms, or because adapters
    // add to q, k and v before RoPE. q, k and v are then stored as they are before norms and RoPE,
    // and k_pages and v_pages are `fresh` of AppendParams and fresh + kv_dim, whatever the type of
    // the cache.
    uint32_t raw;
    uint32_t zero;
} QkvParams;

// ---- qkv_hopper_{f16,bf16}, for compute capability 9.0 only: as qkv_prefill, but x and w are read
// through their tensor maps. grid (ceil(n_rows / 128), ceil(n / 256)), block 384, shared
// GPU_HOPPER_SHARED.
// qkv_hopper_half_{f16,bf16} give the same bits: grid (ceil(n_rows / (groups * 64)), ceil(n /
// 128)), block 288, shared GPU_HOPPER_HALF_SHARED, with groups 1 GPU_HOPPER_SINGLE_SHARED.
// qkv_hopper_quarter_{f16,bf16} give the same bits: grid (ceil(n_rows / 64), ceil(n / 64)), block
// 160, shared GPU_HOPPER_QUARTER_SHARED, groups 1.
// matmul_add_hopper and ffn_up_hopper are launched in the same way; ffn_up has no quarter kernels.
//
// ---- qkv_hopper_{int8,int4,nf4,fp8}: the same for quantised weights. x is read through its map
// and lies in permuted order; w is read from its address. grid (ceil(n_rows / 256), ceil(n /
// 128)), block 384, shared GPU_CODES_SHARED.
// qkv_hopper_half_{int8,int4,nf4,fp8} give the same bits: grid (ceil(n_rows / 128), ceil(n / 128)),
// block 384, shared GPU_CODES_HALF_SHARED.
// matmul_add_hopper and ffn_up_hopper are launched in the same way; a block of ffn_up_hopper has 64
// pairs of gate and up.
//
// The half kernels may be launched with groups = 1. A block then has half as many rows of x (for
// quantised weights: half as many rows of w), and the grid has twice as many blocks.
//
// Blocks that are neighbours in grid.x may be clusters of two. For quantised weights this needs
// across = 1: grid.x is then twice and grid.y half of what it would be, which must be even.
typedef struct {
    TensorMap x;     // of the whole buffer, all rows that it has room for
    TensorMap w;     // for f16 and bf16 weights only
    QkvParams p;     // p.x is not read; p.w is read only if w has no map
    uint32_t groups; // warpgroups that multiply: 2 or 1
    uint32_t across; // quantised weights: whether neighbouring blocks have the same rows of x
    uint32_t zeros[20];
} QkvHopperParams;

// ---- qkv_epilogue: the epilogue of qkv_prefill alone, after a library (cuBLASLt) has computed the
// sums. Takes QkvParams. x points to the sums: float32, [n_rows, x_stride]. norm and w are not
// read. grid (ceil(n / 2048), n_rows), block 256, shared 0.

// ---- append_{f32,f16,bf16,int8,fp8} (rows of both kinds, after qkv): writes K and V of rows 0 ..
// n_rows to their slots; in 8-bit caches, as codes with scales. grid (2 * n_kv_heads, n_rows),
// block 32, shared 0. With `cos`, which it has after qkv with `raw`, it first applies the norms of
// heads, if there are any, and RoPE, in either order. It does so to K on the way to the cache, and
// to q in place. The grid is then (2 * n_kv_heads + n_heads, n_rows). The kernel's type is the type
// of the KV cache.
typedef struct {
    void *k_pages; // this layer's pages
    void *v_pages;
    const float *fresh;    // [n_rows][k | v][n_kv_heads * head_dim]
    const uint32_t *slots; // [n_rows]; GPU_NO_SLOT: nothing is read or written
    uint32_t n_rows, n_kv_heads, head_dim, head_stride;
    // From here on zeros, unless qkv was told to leave the rows `raw`.
    float *q;                     // [n_rows, q_stride] in and out
    const float *q_norm, *k_norm; // [head_dim] or null
    const float *cos, *sin;       // as in QkvParams
    const int32_t *tokens;        // [n_rows]; negative: q is neither read nor written
    const int32_t *positions;     // [n_rows]
    uint32_t n_heads, q_stride;
    float eps;
    uint32_t rope_first; // whether RoPE comes before the norms
} AppendParams;

// ---- attend_{f32,f16,bf16,int8,fp8} (Decode): split-K paged attention. Several blocks compute one
// row, KV head and set of GPU_ATTEND_HEADS query heads. The last of these blocks to finish combines
// the splits. grid (n_kv_heads * ceil(group / GPU_ATTEND_HEADS), max_splits, n_rows).
//   attend_f32   block 128, shared 4128 + 96 * head_stride
//   attend_TYPE  block 256, on tensor cores (attend_tensor.h). Shared memory, if head_stride is at
//                most 128: min(512 * B * bytes of a number, GPU_ATTEND_SLOTS) + GPU_ATTEND_OTHER,
//                where B is head_stride rounded up to 64 or 128. Otherwise GPU_ATTEND_256
// max_splits is at least ceil((largest position + 1) / 256); splits beyond the end of a row's
// sequence and before its window do nothing. No key before the window is read; this holds for all
// attention. The kernel's type is the type of the KV cache.
typedef struct {
    void *y;        // [max_rows, y_stride] of y_type out, by rows[i]
    const float *q; // [max_rows, q_stride], by rows[i]
    const void *k_pages;
    const void *v_pages;
    float *partial; // [n_rows, n_heads, max_splits, head_stride + 4] scratch
    // [n_rows, grid.x] scratch: must be ZERO before the first launch; each launch leaves zeros
    uint32_t *counters;
    const int32_t *rows;       // [n_rows]
    const int32_t *positions;  // [max_rows], by rows[i]
    const uint32_t *row_pages; // by rows[i]: where in `pages` the row's page table begins
    const uint32_t *pages;
    uint32_t n_rows, n_heads, n_kv_heads, head_dim, head_stride;
    uint32_t q_stride, y_stride, max_splits;
    float scale;     // 1 / sqrt(head_dim)
    uint32_t y_type; // GPU_F32, GPU_F16, GPU_BF16 or GPU_F16_FINITE: what the next product takes
    uint32_t window; // how many keys a row sees: its own and those before it; 0: all
    uint32_t group;  // n_heads / n_kv_heads
} AttendParams;

// Consecutive rows of one sequence: entries first .. first + n of `rows`, at consecutive positions
// from `position` on.
typedef struct {
    uint32_t first;
    uint32_t n; // 1 ..= GPU_TILE_MMA, GPU_TILE_FMA or GPU_TILE_HOPPER; 0 is padding
    uint32_t position;
    uint32_t pages; // where in `pages` the sequence's page table begins
} AttendTile;

// ---- attend_prefill_{f16,bf16,int8,fp8}_{32,64,128}: causal FlashAttention over pages, on tensor
// cores. q and the probabilities are rounded to the type of the cache (f16 for int8 and fp8). The
// suffix is B, the smallest that is >= head_stride. grid (n_heads, n_tiles), block 128, shared 512
// * B.
//
// ---- attend_prefill_fma_{f32,f16,bf16,int8,fp8}: the same in float32 throughout, for any head_dim
// up to 256. It is used for float32 weights, for float32 caches, and where head_dim is above 128.
// grid (n_heads, n_tiles), block 128, shared 4128 + 96 * head_stride. The types of both kernels are
// the type of the KV cache.
typedef struct {
    void *y;        // [max_rows, y_stride] of y_type out, by rows[first + j]
    const float *q; // [max_rows, q_stride]
    const void *k_pages;
    const void *v_pages;
    const AttendTile *tiles; // [n_tiles]
    const int32_t *rows;     // [n_rows] of the launch
    const uint32_t *pages;
    uint32_t n_tiles, n_heads, n_kv_heads, head_dim, head_stride;
    uint32_t q_stride, y_stride;
    float scale;       // 1 / sqrt(head_dim)
    uint32_t y_type;   // as in AttendParams
    uint32_t permuted; // whether the columns of y are written in permuted order
    uint32_t window;   // as in AttendParams
    uint32_t zero;
} AttendPrefillParams;

// ---- attend_hopper_{f16,bf16}_{64,128}, for compute capability 9.0 only: as attend_prefill of the
// same types, but with tiles of GPU_TILE_HOPPER rows. The suffix is B, the smallest that is >=
// head_stride. grid (n_heads, n_tiles), block 384, shared 1280 * B + 128.
typedef struct {
    // The maps of the whole cache with all its layers. A row of a map is the vector of one head:
    // head_stride numbers.
    TensorMap k;
    TensorMap v;
    AttendPrefillParams p; // k_pages and v_pages are read for rows with infinite values only
    uint32_t first;        // this layer's first row of the maps
    uint32_t end;          // number of rows of a map
    uint32_t zeros[4];
} AttendHopperParams;

// ---- matmul_add_{f32,f16,bf16,int8,int4,nf4,fp8} (Decode): x[rows[i]] += scale * (w y +
// bias); y is rounded. grid.x at most ceil(n / 16), block 256.
// f32 reads y[rows[i]] instead: grid (ceil(n / 4), ceil(n_rows / 8)), block 256, shared 512.
//
// ---- matmul_add_batch_{f16,bf16,int8,int4,nf4,fp8} (Decode): the same.
//
// ---- matmul_add_prefill_{f32,f16,bf16,int8,int4,nf4,fp8}: the same; y is rounded. It is launched
// like qkv_prefill, with this n. The kernel's type is the type of the weights.
//
// ---- matmul_add_hopper_{f16,bf16,int8,int4,nf4,fp8}: the same; takes MatmulAddHopperParams. It is
// launched like qkv_hopper, with this n.
typedef struct {
    float *x; // [max_rows, x_stride] in and out
    const void *y;
    const void *w;       // [n, w_stride]
    const float *bias;   // [n] or null
    const int32_t *rows; // [n_rows]
    void *scratch;       // matmul_add_batch
    uint32_t n_rows, n, k, x_stride, y_stride, w_stride;
    uint32_t splits; // matmul_add_batch
    uint32_t first;  // matmul_add_hopper: the row of y's map that is row 0 of the launch
    float scale;     // the model's factor of what its layers add to x; mostly 1
    uint32_t zero;
} MatmulAddParams;
typedef struct {
    TensorMap y;             // of the whole buffer, all rows that it has room for
    TensorMap w;             // for f16 and bf16 weights only
    MatmulAddParams p;       // p.y is not read; p.w is read only if w has no map
    uint32_t groups, across; // as in QkvHopperParams
    uint32_t zeros[8];
} MatmulAddHopperParams;

// ---- ffn_up_{f32,f16,bf16,int8,int4,nf4,fp8} (Decode): h = silu(gate) * up, where gate and up are
// the products of rms_norm(x) with the matrices gate and up, with their biases. The rows of w are
// gate | up.
// grid.x at most ceil(ffn_dim / 8), block 256; f32: grid (ceil(ffn_dim / 8), ceil(n_rows / 8)),
// shared 0.
//
// ---- ffn_up_batch_{f16,bf16,int8,int4,nf4,fp8} (Decode): the same; x is as for ffn_up_prefill.
//
// ---- ffn_up_prefill_{f32,f16,bf16,int8,int4,nf4,fp8}: the same; x is the output of prepare (row i
// of the launch lies at i * x_stride); norm and eps are not read.
// f32: grid (ceil(ffn_dim / 32), ceil(n_rows / 64)), block 256, shared 20480.
// Other types: grid (ceil(ffn_dim / 64), ceil(n_rows / 128)), block 256, shared 49152 (quantised
// weights: 66048).
// The kernel's type is the type of the weights.
//
// ---- ffn_up_hopper_{f16,bf16}: takes FfnUpHopperParams. grid (ceil(n_rows / 128), ceil(ffn_dim /
// 128)); otherwise it is launched like qkv_hopper.
// ffn_up_hopper_{int8,int4,nf4,fp8}: grid.y is ceil(ffn_dim / 64); h is f16, in permuted order.
typedef struct {
    void *h; // [max_rows, h_stride] of h_type out, by rows[i]
    const void *x;
    const float *norm;   // [pad32(dim)]
    const void *w;       // [2 * ffn_dim, w_stride]
    const int32_t *rows; // [n_rows]
    void *scratch;       // ffn_up_batch
    uint32_t n_rows, ffn_dim, dim, x_stride, w_stride, h_stride;
    float eps;
    uint32_t splits; // ffn_up_batch
    uint32_t h_type; // GPU_F32, GPU_F16, GPU_BF16 or GPU_F16_FINITE: what the next product takes
    uint32_t zero;
    const float *bias; // [2 * ffn_dim] or null
} FfnUpParams;
typedef struct {
    TensorMap x;
    TensorMap w;             // for f16 and bf16 weights only
    FfnUpParams p;           // p.x is not read; p.w is read only if w has no map
    uint32_t groups, across; // as in QkvHopperParams
    uint32_t zeros[6];
} FfnUpHopperParams;

// ---- ffn_up_epilogue_{f16,bf16}: the epilogue of ffn_up_prefill alone, after a library (cuBLASLt)
// has computed the sums. Takes FfnUpParams. x points to the sums: float32, [n_rows, x_stride],
// columns gate | up. norm and w are not read. The kernel's type is the type of h. grid
// (ceil(ffn_dim / 1024), n_rows), block 256, shared 0.

// What an adapter adds to one part of a matrix: B (scale * A x). The numbers have the kernel's
// type: f32 if the weights are float32, otherwise bf16. The memory at a and b is not written while
// an adapter is in use.
typedef struct {
    const void *a; // [rank, pad32(columns of the matrix)], with zeros in the padding
    const void *b; // [rows of the part, rank]
    // A multiple of 8, at most GPU_MAX_RANK. Beyond the adapter's own rank, a and b hold zeros. 0:
    // nothing is added to the part
    uint32_t rank;
    float scale;
} AdapterPart;

// ---- adapt_in_{f32,bf16} (Decode): scale * A x, for each row that has an adapter and for each
// part of a matrix. With `norm`, x is the residual stream, and A is multiplied by its normed rows;
// no row is rounded. The adapter kernels count rows and all lists from the launch's first row on.
// Rows that do not exist have no adapter. grid (n_parts * rank / 4, n_rows), block 256, shared
// GPU_ADAPT_SHARED.
//
// ---- adapt_in_prefill_{f32,bf16}: the same. grid.y ceil(n_rows / GPU_ADAPT_ROWS).
typedef struct {
    float *thin;                        // [n_rows, GPU_THIN] out; part i begins at i * GPU_MAX_RANK
    const void *x;                      // [n_rows, x_stride] of x_type
    const float *norm;                  // [pad32(cols)] or null
    const AdapterPart *const *adapters; // [n_rows]: the parts of the row's adapter, or null
    uint32_t n_rows, cols, x_stride;
    uint32_t x_type;     // GPU_F32, GPU_F16, GPU_BF16 or GPU_F16_FINITE; GPU_F32 with `norm`
    uint32_t permuted;   // whether the columns of x are in permuted order; never with GPU_F32
    uint32_t first_part; // the matrix's first part in the list of an adapter's parts
    uint32_t n_parts;
    uint32_t rank; // a multiple of 4, at least the rank of every part
    float eps;
    uint32_t zero;
} AdaptInParams;

// ---- adapt_out_{f32,bf16} (Decode): y += factor * B thin for each row with an adapter, where thin
// is what adapt_in has left. grid (ceil(n / 256), n_rows), block 256, shared 0.
//
// ---- adapt_out_prefill_{f32,bf16}: the same. grid.y ceil(n_rows / GPU_ADAPT_ROWS).
typedef struct {
    float *y;     // [n_rows, y_stride] in and out: the columns of the first part
    float *other; // [n_rows, other_stride] in and out: the columns of all other parts
    const float *thin;
    const AdapterPart *const *adapters; // [n_rows]
    uint32_t n_rows, n, y_stride, other_stride;
    uint32_t second, third; // where the second and the third part begin; n if there is none
    uint32_t first_part;    // as in AdaptInParams
    float factor;           // MatmulAddParams.scale, or 1
} AdaptOutParams;

// ---- adapt_up_{f32,bf16} (Decode): runs after the products of gate and up in a step with
// adapters, also for rows without an adapter. h = silu(gate) * up. gate and up are each the sum of
// the product, which already includes the bias, and of what the row's adapter adds. grid
// (ceil(ffn_dim / 256), n_rows), block 256, shared 0.
//
// ---- adapt_up_prefill_{f32,bf16}: the same. grid.y ceil(n_rows / GPU_ADAPT_ROWS).
typedef struct {
    void *h;           // [max_rows, h_stride] of h_type out, by rows[i]
    const float *sums; // [n_rows, sums_stride]: gate | up
    const float *thin;
    const AdapterPart *const *adapters; // [n_rows]
    const int32_t *rows;                // [n_rows]
    uint32_t n_rows, ffn_dim, sums_stride, h_stride;
    uint32_t h_type;   // as in FfnUpParams
    uint32_t permuted; // whether the columns of h are written in permuted order
    uint32_t first_part;
    uint32_t fast; // prompts: whether silu is the fast one, as it is if weights are not float32
} AdaptUpParams;

// ---- silu_add: out[i] = h[i] + silu(t[i]), and then t[i] = 0, for rows 0 .. n_rows. Columns
// beyond `width` are neither read nor written. grid (n_rows), block 256, shared 0.
typedef struct {
    float *out;     // [n_rows, stride]
    const float *h; // [n_rows, stride]
    float *t;       // [n_rows, stride] in; zero out
    uint32_t n_rows, width, stride, zero;
} SiluAddParams;

// ---- logits_{f32,f16,bf16,int8,int4} (rows of both kinds): out[i] = w rms_norm(x[rows[i]]).
// grid.x at most ceil(vocab_size / 16), block 256; f32: grid (ceil(vocab_size / 16), ceil(n_rows /
// 8)), shared 0. The kernel's type is the type of the weights.
//
// ---- logits_batch_{f16,bf16,int8,int4}: the same; x is the output of prepare (row i of the launch
// lies at i * x_stride). A negative rows[i] is padding; otherwise its value does not matter.
typedef struct {
    float *out;          // [n_rows, out_stride], out_stride >= vocab_size; need not be padded
    const void *x;       // [max_rows, x_stride]
    const float *norm;   // [pad32(dim)]
    const void *w;       // [vocab_size, w_stride]
    const int32_t *rows; // [n_rows]
    void *scratch;       // logits_batch
    uint32_t n_rows, vocab_size, dim, x_stride, w_stride, out_stride;
    float eps;
    uint32_t splits; // logits_batch
} LogitsParams;

// What the host asks for a row of logits. src/backend/choice.rs has the same numbers and
// explains them.
typedef struct {
    int32_t given;     // a token to score without a draw; GPU_DRAW: draw one; GPU_NO_ROW: none
    uint32_t n_tokens; // ids from n_tokens on are not drawn
    // the row of `histories` that holds the sequence's earlier tokens; GPU_NO_HISTORY: no penalty
    uint32_t history;
    float penalty;
    // numbers that express the temperature; if halvings is 0, the largest logit is taken
    float halvings, high, low, inverse;
    uint32_t top_k;             // 0 is off
    uint32_t top_p;             // in units of 2^-32; 0xffffffff is off
    uint32_t min_low, min_high; // the smallest mass that min-p keeps, as two words
    uint32_t draw;              // in units of 2^-24
    uint32_t scored;            // whether the host wants logit, max, total and alternatives
    uint32_t n_top;             // number of alternatives; at most GPU_MAX_TOP and vocab_size
    // what changes the row's logits behind the penalty, before a token is drawn; for rows that draw
    uint32_t mask;                // 1 + the row of `masks`; 0: every token is possible
    uint32_t first_edit, n_edits; // a range of `edits`, in which no token occurs twice
    uint32_t zeros[2];
} SampleRow;

// A number to add to a token's logit; -inf makes the token impossible.
typedef struct {
    uint32_t token; // less than n_tokens of its row
    float add;
} SampleEdit;

// ---- change: changed[i] = the logits of row i after penalty, edits and mask, for the rows that
// have edits or a mask. Other rows are not written, nor are ids from n_tokens on. grid
// (ceil(vocab_size / GPU_SLICE), n_rows), block 512, shared 0.
typedef struct {
    float *changed;            // [n_rows, stride]
    const float *logits;       // [n_rows, stride]; readable to pad32(vocab_size)
    const SampleRow *rows;     // [n_rows]
    const uint32_t *histories; // [.., history_stride]
    const SampleEdit *edits;
    const uint32_t *masks; // [.., mask_stride]: bit id % 32 of word id / 32 for a possible token
    // [n_rows]: becomes more than 0 for each written row that has a finite raw logit among the ids
    // below n_tokens. It is zero before the launch, and zero again after sample_max and sample_draw
    uint32_t *possible;
    uint32_t n_rows, vocab_size, stride, history_stride, mask_stride, zero;
} ChangeParams;

// The answer for a row. After it come n_top pairs (id, bits of the raw logit), best first.
typedef struct {
    // the drawn or given token; -1: no logit is finite; GPU_NONE_LEFT: logits are finite, but what
    // changes the row has left no token
    int32_t token;
    float logit; // the token's raw logit; this and the fields below are written only if scored
    float max;   // largest raw logit
    uint32_t low, high; // the sum of the masses of all raw logits at temperature 1
} SampleOut;

// Scratch: what the blocks of one slice leave for the row's other blocks. sample_max writes the
// first four numbers, sample_draw the others.
typedef struct {
    // The best token that may be drawn, after everything that changes logits; ~0 if no token may be
    // drawn. Ranks are in descending order of logits, as in choice.rs.
    uint32_t rank, id;
    float max;          // the largest raw logit
    float sum;          // roughly the sum of the finite logits of the tokens that may be drawn
    uint32_t low, high; // the sum of the masses of raw logits at temperature 1
    uint32_t zeros[2];
    // For each bucket: the sum of all masses, the sum of the masses that min-p keeps, and the
    // number of tokens that have a share. A sum of masses is two words: the sums of the low and of
    // the high parts that mass_parts of choice.rs makes of each mass.
    uint32_t masses[2 * GPU_BUCKETS], kept[2 * GPU_BUCKETS], counts[GPU_BUCKETS];
} SampleSlice;

// ---- sample_max, then sample_draw: pick tokens from the logits of wanted rows. The host's sampler
// picks the same ones. sample_max finds the largest logits; a row without a temperature needs
// nothing else, unless it is scored. sample_draw handles the other rows and need not be launched if
// there are none. The last block of a row to finish joins what the blocks of the row's slices have
// left. vocab_size is at most GPU_MOST_SLICES * GPU_SLICE. grid (ceil(vocab_size / GPU_SLICE),
// n_rows), block 512, shared GPU_SAMPLE_MAX_SHARED, GPU_SAMPLE_DRAW_SHARED.
typedef struct {
    uint32_t *out;         // [n_rows, out_stride]: SampleOut, then its pairs
    const float *logits;   // [n_rows, stride]; readable to pad32(vocab_size)
    const SampleRow *rows; // [n_rows]
    // [.., history_stride]: bit id % 32 of word id / 32 of a row is set for each earlier token; the
    // kernel sets the bit of a drawn token
    uint32_t *histories;
    // [n_rows]: the tokens again, for a step that follows this one; embedding skips rows with -1
    int32_t *next;
    SampleSlice *slices; // [rows that are no padding, grid.x] scratch
    // [rows that are no padding] scratch: must be ZERO before the first launch; each launch leaves
    // zeros
    uint32_t *counters;
    const float *changed; // with `possible`, what `change` has made of rows with edits or a mask
    uint32_t *possible;
    uint32_t n_rows, vocab_size, stride, history_stride, out_stride;
    float halvings, high, low, inverse; // for temperature 1
    uint32_t zero;
} SampleParams;

// The list of all kernels, the only one: X(name, parameters, threads of a block). gpu.h takes
// parameters and threads from here; the emulator and build.rs take the names. build.rs expands
// these macros itself and knows only this form: calls, and ## before the end of a name.
//
// Products with weights of type W: GPU_PRODUCTS for all types, GPU_BATCH_PRODUCTS for those that
// tensor cores take, GPU_HOPPER_PRODUCTS and GPU_HOPPER_CODES for those that have kernels for
// compute capability 9.0.
#define GPU_PRODUCTS(X, W)                                                                         \
    X(qkv_##W, QkvParams, 256)                                                                     \
    X(qkv_prefill_##W, QkvParams, 256)                                                             \
    X(matmul_add_##W, MatmulAddParams, 256)                                                        \
    X(matmul_add_prefill_##W, MatmulAddParams, 256)                                                \
    X(ffn_up_##W, FfnUpParams, 256)                                                                \
    X(ffn_up_prefill_##W, FfnUpParams, 256)
#define GPU_BATCH_PRODUCTS(X, W)                                                                   \
    X(qkv_batch_##W, QkvParams, 256)                                                               \
    X(matmul_add_batch_##W, MatmulAddParams, 256)                                                  \
    X(ffn_up_batch_##W, FfnUpParams, 256)
#define GPU_HOPPER_PRODUCTS(X, W)                                                                  \
    X(qkv_hopper_##W, QkvHopperParams, 384)                                                        \
    X(qkv_hopper_half_##W, QkvHopperParams, 288)                                                   \
    X(matmul_add_hopper_##W, MatmulAddHopperParams, 384)                                           \
    X(matmul_add_hopper_half_##W, MatmulAddHopperParams, 288)                                      \
    X(ffn_up_hopper_##W, FfnUpHopperParams, 384)                                                   \
    X(ffn_up_hopper_half_##W, FfnUpHopperParams, 288)                                              \
    X(qkv_hopper_quarter_##W, QkvHopperParams, 160)                                                \
    X(matmul_add_hopper_quarter_##W, MatmulAddHopperParams, 160)
#define GPU_HOPPER_CODES(X, W)                                                                     \
    X(qkv_hopper_##W, QkvHopperParams, 384)                                                        \
    X(qkv_hopper_half_##W, QkvHopperParams, 384)                                                   \
    X(matmul_add_hopper_##W, MatmulAddHopperParams, 384)                                           \
    X(matmul_add_hopper_half_##W, MatmulAddHopperParams, 384)                                      \
    X(ffn_up_hopper_##W, FfnUpHopperParams, 384)                                                   \
    X(ffn_up_hopper_half_##W, FfnUpHopperParams, 384)

// Embedding and head of type W.
#define GPU_VOCABULARY(X, W)                                                                       \
    X(embed_##W, EmbedParams, 128)                                                                 \
    X(logits_##W, LogitsParams, 256)

// Attention over a cache of type C: for all types; on tensor cores; with tensor maps.
#define GPU_ATTENTION(X, C) X(attend_prefill_fma_##C, AttendPrefillParams, 128)
#define GPU_TENSOR_ATTENTION(X, C)                                                                 \
    X(attend_##C, AttendParams, 256)                                                               \
    X(attend_prefill_##C##_32, AttendPrefillParams, 128)                                           \
    X(attend_prefill_##C##_64, AttendPrefillParams, 128)                                           \
    X(attend_prefill_##C##_128, AttendPrefillParams, 128)
#define GPU_HOPPER_ATTENTION(X, C)                                                                 \
    X(attend_hopper_##C##_64, AttendHopperParams, 384)                                             \
    X(attend_hopper_##C##_128, AttendHopperParams, 384)

// Adapters whose numbers have type A.
#define GPU_ADAPTERS(X, A)                                                                         \
    X(adapt_in_##A, AdaptInParams, 256)                                                            \
    X(adapt_in_prefill_##A, AdaptInParams, 256)                                                    \
    X(adapt_out_##A, AdaptOutParams, 256)                                                          \
    X(adapt_out_prefill_##A, AdaptOutParams, 256)                                                  \
    X(adapt_up_##A, AdaptUpParams, 256)                                                            \
    X(adapt_up_prefill_##A, AdaptUpParams, 256)

#define GPU_KERNELS(X)                                                                             \
    GPU_PRODUCTS(X, f32)                                                                           \
    GPU_PRODUCTS(X, f16)                                                                           \
    GPU_PRODUCTS(X, bf16)                                                                          \
    GPU_PRODUCTS(X, int8)                                                                          \
    GPU_PRODUCTS(X, int4)                                                                          \
    GPU_PRODUCTS(X, nf4)                                                                           \
    GPU_PRODUCTS(X, fp8)                                                                           \
    GPU_PRODUCTS(X, k4)                                                                            \
    GPU_PRODUCTS(X, k5)                                                                            \
    GPU_PRODUCTS(X, k6)                                                                            \
    GPU_PRODUCTS(X, k8)                                                                            \
    GPU_PRODUCTS(X, iq4)                                                                           \
    GPU_PRODUCTS(X, uint4)                                                                         \
    GPU_BATCH_PRODUCTS(X, f16)                                                                     \
    GPU_BATCH_PRODUCTS(X, bf16)                                                                    \
    GPU_BATCH_PRODUCTS(X, int8)                                                                    \
    GPU_BATCH_PRODUCTS(X, int4)                                                                    \
    GPU_BATCH_PRODUCTS(X, nf4)                                                                     \
    GPU_BATCH_PRODUCTS(X, fp8)                                                                     \
    GPU_BATCH_PRODUCTS(X, k4)                                                                      \
    GPU_BATCH_PRODUCTS(X, k5)                                                                      \
    GPU_BATCH_PRODUCTS(X, k6)                                                                      \
    GPU_BATCH_PRODUCTS(X, k8)                                                                      \
    GPU_BATCH_PRODUCTS(X, iq4)                                                                     \
    GPU_BATCH_PRODUCTS(X, uint4)                                                                   \
    GPU_HOPPER_PRODUCTS(X, f16)                                                                    \
    GPU_HOPPER_PRODUCTS(X, bf16)                                                                   \
    GPU_HOPPER_CODES(X, int8)                                                                      \
    GPU_HOPPER_CODES(X, int4)                                                                      \
    GPU_HOPPER_CODES(X, nf4)                                                                       \
    GPU_HOPPER_CODES(X, fp8)                                                                       \
    GPU_VOCABULARY(X, f32)                                                                         \
    GPU_VOCABULARY(X, f16)                                                                         \
    GPU_VOCABULARY(X, bf16)                                                                        \
    GPU_VOCABULARY(X, int8)                                                                        \
    GPU_VOCABULARY(X, int4)                                                                        \
    GPU_VOCABULARY(X, k4)                                                                          \
    GPU_VOCABULARY(X, k5)                                                                          \
    GPU_VOCABULARY(X, k6)                                                                          \
    GPU_VOCABULARY(X, k8)                                                                          \
    GPU_VOCABULARY(X, iq4)                                                                         \
    GPU_VOCABULARY(X, uint4)                                                                       \
    X(logits_batch_f16, LogitsParams, 256)                                                         \
    X(logits_batch_bf16, LogitsParams, 256)                                                        \
    X(logits_batch_int8, LogitsParams, 256)                                                        \
    X(logits_batch_int4, LogitsParams, 256)                                                        \
    X(logits_batch_k4, LogitsParams, 256)                                                          \
    X(logits_batch_k5, LogitsParams, 256)                                                          \
    X(logits_batch_k6, LogitsParams, 256)                                                          \
    X(logits_batch_k8, LogitsParams, 256)                                                          \
    X(logits_batch_iq4, LogitsParams, 256)                                                         \
    X(logits_batch_uint4, LogitsParams, 256)                                                       \
    X(prepare_f32, PrepareParams, 256)                                                             \
    X(prepare_f16, PrepareParams, 256)                                                             \
    X(prepare_bf16, PrepareParams, 256)                                                            \
    X(silu_add, SiluAddParams, 256)                                                                \
    X(reduce, ReduceParams, 256)                                                                   \
    X(reduce_peers, ReducePeersParams, 256)                                                        \
    X(gather, GatherParams, 256)                                                                   \
    X(qkv_epilogue, QkvParams, 256)                                                                \
    X(ffn_up_epilogue_f16, FfnUpParams, 256)                                                       \
    X(ffn_up_epilogue_bf16, FfnUpParams, 256)                                                      \
    GPU_ADAPTERS(X, f32)                                                                           \
    GPU_ADAPTERS(X, bf16)                                                                          \
    X(append_f32, AppendParams, 32)                                                                \
    X(append_f16, AppendParams, 32)                                                                \
    X(append_bf16, AppendParams, 32)                                                               \
    X(append_int8, AppendParams, 32)                                                               \
    X(append_fp8, AppendParams, 32)                                                                \
    X(attend_f32, AttendParams, 128)                                                               \
    GPU_ATTENTION(X, f32)                                                                          \
    GPU_ATTENTION(X, f16)                                                                          \
    GPU_ATTENTION(X, bf16)                                                                         \
    GPU_ATTENTION(X, int8)                                                                         \
    GPU_ATTENTION(X, fp8)                                                                          \
    GPU_TENSOR_ATTENTION(X, f16)                                                                   \
    GPU_TENSOR_ATTENTION(X, bf16)                                                                  \
    GPU_TENSOR_ATTENTION(X, int8)                                                                  \
    GPU_TENSOR_ATTENTION(X, fp8)                                                                   \
    GPU_HOPPER_ATTENTION(X, f16)                                                                   \
    GPU_HOPPER_ATTENTION(X, bf16)                                                                  \
    X(change, ChangeParams, 512)                                                                   \
    X(sample_max, SampleParams, 512)                                                               \
    X(sample_draw, SampleParams, 512)

#endif
