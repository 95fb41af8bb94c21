// What every kernel is given, and how it is launched: the contract between kernels/*.cu and the host.
//
// Plain C: the host mirrors each struct field for field (pointers are 64-bit device addresses) and
// asserts the same sizes. Every kernel takes one struct by value and nothing else.
//
// Words
//   row        a row of the step; `rows[i]` picks the rows a launch works on, -1 is padding (nothing is
//              read or written for it). A launch takes rows of one kind: Decode or Prefill.
//   pad32(n)   n rounded up to 32. STRIDES of matrices and activations are given in elements and are
//              multiples of 32; vectors (norm weights) are readable to pad32 of their length. What lies
//              in the padding of vectors and of the residual stream is never used. PADDING COLUMNS OF WEIGHTS ARE ZERO,
//              and those of what attention and ffn_up give, which nobody writes.
//   rounded    activations that a product takes as they are: of the type of its weights (f16 for quantised ones),
//              row i of the launch at i * stride. prepare, attention and ffn_up make them; the rows of a step that
//              decode are its first ones, then come the others.
//   slots      the order in which the *_hopper kernels of quantised weights take columns of a prompt's activations (slot_of in
//              quant.h: a permutation of each sixteen), and ffn_up's of them gives them. Rows that decode have none of that, and
//              what follows a K that is no multiple of 16 would be columns: such matrices have no use for those kernels.
//   base       every pointer to weights, activations, vectors and pages is aligned to 16 bytes
//              (NEEDED: 256 is what the allocators give).
//   type       of weights and of the KV cache: GPU_F32, GPU_F16, GPU_BF16; quantised ones below. Everything else is
//              float32.
//
// Quantised weights (types GPU_INT8, GPU_INT4, GPU_NF4, GPU_FP8): a row is its codes and then its scales as quant.h says, of K
// padded to GPU_BLOCK_K; w_stride is in units of 16 bytes and a multiple of 4. Scales of padding are zero.
// A prefill product of them takes f16, and its shared memory is 66048 instead of 49152.
//
// Products of decode rows. f32: up to 8 rows in a block, in float32. The others round activations to the type of the
// weights (quantised: to f16) and use tensor cores. OP_TYPE takes up to GPU_FEW_ROWS rows, norm and rounding included
// (matmul_add: rounded ones); OP_batch_TYPE any number of rounded rows, and gives the same bits. A block of that has
// GPU_BATCH_PAIRS pairs of weight rows (of q | k | v, of a product, of gate and up) for R rows: 16, 32 or 64, the first that is not
// less than n_rows, or 64. `splits` blocks share a K: 1, or where there are less than GPU_SPLIT_BELOW blocks 4 or 8, as one likes. Of
// these the last one adds what all left in `scratch`: GPU_SPLIT_BELOW counters, ZERO before the first launch, left zero by each,
// then 512 * R bytes for each block:
//     OP_TYPE        grid.y ceil(n_rows / 8),  shared GPU_FEW_SHARED + 4096 * steps, steps: f16, bf16 2, int8, fp8 4, int4, nf4 8;
//                                              matmul_add: GPU_TABLE_BYTES + 4096
//     OP_batch_TYPE  grid (ceil(n_rows / R), ceil(pairs of the matrix / GPU_BATCH_PAIRS), splits),
//                    shared GPU_TABLE_BYTES + R / 8 * ((quantised and R < 64 ? GPU_BATCH_SHARED_CODES : GPU_BATCH_SHARED) +
//                    GPU_BATCH_LEVEL * (splits 1: 2, 4: 1, 8: 0))
//
// KV cache, one layer: K and V apart, each [page][kv_head][16][head_stride], head_stride = head_dim
// rounded up to 16 (columns head_dim.. are zero once written). position p of a sequence lies in page
// `pages[row_pages[row] + p / 16]`, at offset p % 16; a slot is page * 16 + offset.
//
// In int8 and fp8 (types GPU_INT8, GPU_FP8) a vector has a scale of its own (append, quant.h): [page][kv_head]
// { [16][head_stride] codes, [16] scales }.
//
// Launches that may start before the one before them has ended (CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION; gpu.h,
// wait_for_last): prepare, qkv, append, attend, matmul_add, ffn_up, logits, each of them as
// OP_batch too, and sample. No other kernel waits.
//
// Shared bytes over 49152 must be asked for (cuFuncSetAttribute, MAX_DYNAMIC_SHARED_SIZE_BYTES). A launch of no rows is
// left out. Everything a grid depends on may be rounded up: rows by padding, tiles by n = 0, splits freely.
//
// Batch invariance: in every kernel, what is computed for a row depends on that row alone; sums over K
// run in an order that depends on (N, K) only, attention goes by chunks of 256 keys at absolute positions.
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

    GPU_PAGE = 16,         // positions in a page
    GPU_CHUNK = 256,       // keys of one split in decode attention
    GPU_MAX_HEAD_DIM = 256,
    GPU_TILE_MMA = 64,     // rows of an AttendTile: attend_prefill_{f16,bf16,int8,fp8}_*
    GPU_TILE_FMA = 4,      // rows of an AttendTile: attend_prefill_fma_*
    GPU_TILE_HOPPER = 128, // rows of an AttendTile: attend_hopper_*

    GPU_DRAW = -1,
    GPU_NO_ROW = -2,
    GPU_MAX_TOP = 128,     // most alternatives that sample finds
    GPU_SAMPLE_SHARED = 16896,
    GPU_BLOCK_K = 256,     // columns of a block of quantised weights
    GPU_TABLE_BYTES = 512, // of shared memory, for tables of codes
    GPU_FEW_ROWS = 8,      // of a product that norms and rounds for itself
    GPU_FEW_SHARED = 5120,
    GPU_BATCH_ROWS = 64,   // of a block of OP_batch_TYPE
    GPU_BATCH_PAIRS = 64,
    GPU_BATCH_SHARED = 4096, // for eight rows, without sums that wait
    GPU_BATCH_SHARED_CODES = 8192,
    GPU_BATCH_LEVEL = 4096,  // of these
    GPU_SPLIT_BELOW = 96,
    GPU_BOX_ROWS = 64,     // of a TensorMap of activations or weights; of the cache: GPU_PAGE
    GPU_HOPPER_SHARED = 196672,
    GPU_HOPPER_HALF_SHARED = 98352,
    GPU_CODES_SHARED = 131648,
    GPU_CODES_HALF_SHARED = 66112,
};

// A CUtensorMap (cuTensorMapEncodeTiled): a matrix of 16-bit numbers, [rows, pad32(columns)], in boxes of 64 columns and
// GPU_BOX_ROWS rows (GPU_PAGE, of the cache), swizzled by 128 bytes, zeros outside of it.
#ifdef __cplusplus
typedef struct alignas(128) { uint64_t words[16]; } TensorMap;
#else
typedef struct { _Alignas(128) uint64_t words[16]; } TensorMap;
#endif

#define GPU_NO_SLOT 0xffffffffu
#define GPU_NO_MASK 0xffffffffu

// ---- embed_{f32,f16,bf16,int8}: x[i] = table[tokens[i]] for rows 0..n_rows; a negative token is padding.
// grid (n_rows), block 128, shared 0. Type: the table's.
typedef struct {
    float *x;              // [n_rows, x_stride] out
    const void *table;     // [vocab_size, w_stride]
    const int32_t *tokens; // [n_rows]
    uint32_t n_rows, dim, x_stride, w_stride;
} EmbedParams;

// ---- prepare_{f32,f16,bf16}: what a product of many rows reads. out[i] = round(rms_norm(x[rows[i]]) * norm);
// columns width..pad32(width) become zero, padding rows too.
// grid (n_rows), block 256, shared 32. Type: the weights' of the product.
typedef struct {
    void *out;             // [n_rows, out_stride], out_stride >= pad32(width)
    const float *x;        // [max_rows, x_stride]
    const float *norm;     // [pad32(width)]
    const int32_t *rows;   // [n_rows]
    uint32_t n_rows, width, x_stride, out_stride;
    float eps;
    uint32_t slots;        // whether columns lie in the order of slots
} PrepareParams;

// ---- qkv_{f32,f16,bf16,int8,int4,nf4,fp8} (Decode): RMSNorm, W, bias, RoPE; q to q, K and V to the row's slot.
// n = (n_heads + 2 * n_kv_heads) * head_dim, rows of w: q | k | v.
// grid.x ceil(n / 16), block 256, f32: grid.y ceil(n_rows / 8), shared 0. x is the residual stream, indexed by rows[i].
//
// ---- qkv_batch_{f16,bf16,int8,int4,nf4,fp8} (Decode): the same from prepared rows, as qkv_prefill has them.
//
// ---- qkv_prefill_{f32,f16,bf16,int8,int4,nf4,fp8}: the same from prepared rows: x is prepare's output (type of the
// weights, compact: row i of the launch), x_stride its stride; norm and eps are not read.
// f16, bf16: grid (ceil(n / 128), ceil(n_rows / 128)), block 256, shared 49152.
// f32:       grid (ceil(n / 64), ceil(n_rows / 64)),   block 256, shared 20480.
// Type: the weights'.
typedef struct {
    float *q;              // [max_rows, q_stride] out, by rows[i]
    void *k_pages;         // this layer's; for a cache with scales what append reads: fresh and fresh + kv_dim
    void *v_pages;
    const void *x;
    const float *norm;     // [pad32(dim)]
    const void *w;         // [n, w_stride]
    const float *bias;     // [n] or null
    const float *cos;      // [max_seq_len, head_dim / 2]
    const float *sin;
    const int32_t *rows;      // [n_rows]
    const int32_t *positions; // [max_rows], by rows[i]
    const uint32_t *slots;    // [max_rows], by rows[i]; GPU_NO_SLOT: K and V are not written
    void *scratch;         // qkv_batch, where splits > 1
    uint32_t n_rows, dim, x_stride, w_stride, q_stride;
    uint32_t n_heads, n_kv_heads, head_dim, head_stride;
    uint32_t kv_type;
    float eps;
    uint32_t splits;       // qkv_batch
} QkvParams;

// ---- qkv_hopper_{f16,bf16}, for compute capability 9.0 alone: as qkv_prefill, x and w by their maps.
// grid (ceil(n_rows / 128), ceil(n / 256)), block 384, shared GPU_HOPPER_SHARED; the same bits from
// qkv_hopper_half_{f16,bf16}: grid (ceil(n_rows / 128), ceil(n / 128)), block 288, shared
// GPU_HOPPER_HALF_SHARED. So for the other two.
//
// ---- qkv_hopper_{int8,int4,nf4,fp8}: the same, x by its map and in the order of slots, w by its address. grid (ceil(n_rows / 256),
// ceil(n / 128)), block 384, shared GPU_CODES_SHARED; the same bits from qkv_hopper_half_*: grid (ceil(n_rows / 128), ceil(n / 128)),
// block 288, shared GPU_CODES_HALF_SHARED. So for the other two, with 64 pairs of gate and up in a block.
//
// Half forms may have groups 1: then a block has half as many rows, of x or for quantised weights of w, and there are as many more blocks.
typedef struct {
    TensorMap x;           // of all rows that there is room for
    TensorMap w;           // of floats
    QkvParams p;           // x is not read, nor a w that has a map
    uint32_t groups;       // warpgroups that multiply: 2, or 1
    uint32_t zeros[25];
} QkvHopperParams;

// ---- qkv_place: what qkv_prefill does behind its product, of sums that a library left in float32. QkvParams, where x is
// those, [n_rows, x_stride]; norm and w are not read. grid (ceil(n / 2048), n_rows), block 256, shared 0.

// ---- append_{int8,fp8} (rows of both kinds, behind qkv): K and V of rows 0 .. n_rows to their slots, with scales.
// grid (2 * n_kv_heads, n_rows), block 32, shared 0.
typedef struct {
    void *k_pages;         // this layer's
    void *v_pages;
    const float *fresh;    // [n_rows][k | v][n_kv_heads * head_dim]
    const uint32_t *slots; // [n_rows]; GPU_NO_SLOT: nothing is read or written
    uint32_t n_rows, n_kv_heads, head_dim, head_stride;
} AppendParams;

// ---- attend_{f32,f16,bf16,int8,fp8} (Decode): split-K paged attention; the last block of a (row, kv head) combines.
// grid (n_kv_heads, max_splits, n_rows), block 128, shared 4160 + 96 * head_stride.
// max_splits >= ceil((longest position + 1) / 256); splits beyond a row's end do nothing. Type: the KV cache's.
typedef struct {
    void *y;               // [max_rows, y_stride] of y_type out, by rows[i]
    const float *q;        // [max_rows, q_stride], by rows[i]
    const void *k_pages;
    const void *v_pages;
    float *partial;        // [n_rows, n_heads, max_splits, head_stride + 4] scratch
    uint32_t *counters;    // [n_rows, n_kv_heads] scratch: ZERO before the first launch, left zero by each
    const int32_t *rows;      // [n_rows]
    const int32_t *positions; // [max_rows], by rows[i]
    const uint32_t *row_pages; // [max_rows], by rows[i]: where the row's page table begins in pages
    const uint32_t *pages;
    uint32_t n_rows, n_heads, n_kv_heads, head_dim, head_stride;
    uint32_t q_stride, y_stride, max_splits;
    float scale;           // 1 / sqrt(head_dim)
    uint32_t y_type;       // GPU_F32, GPU_F16, GPU_BF16: what the product behind it takes
} AttendParams;

// Consecutive rows of one sequence: entries first .. first + n of `rows`, at positions position ..
typedef struct {
    uint32_t first;
    uint32_t n;            // 1 ..= GPU_TILE_MMA, GPU_TILE_FMA or GPU_TILE_HOPPER; 0 is padding
    uint32_t position;
    uint32_t pages;        // where the sequence's page table begins in pages
} AttendTile;

// ---- attend_prefill_{f16,bf16,int8,fp8}_{32,64,128}: FlashAttention with tensor cores, causal, over pages; q and
// the probabilities are rounded to the type of the cache (int8, fp8: to f16). The suffix is the smallest B >= head_stride.
// grid (n_heads, n_tiles), block 128, shared 512 * B.
//
// ---- attend_prefill_fma_{f32,f16,bf16,int8,fp8}: the same in float32 throughout, any head_dim to 256: for float32
// weights, float32 caches and head_dim over 128.
// grid (n_heads, n_tiles), block 128, shared 4160 + 96 * head_stride. Type: the KV cache's.
typedef struct {
    void *y;               // [max_rows, y_stride] of y_type out, by rows[first + j]
    const float *q;        // [max_rows, q_stride]
    const void *k_pages;
    const void *v_pages;
    const AttendTile *tiles; // [n_tiles]
    const int32_t *rows;     // [n_rows] of the launch
    const uint32_t *pages;
    uint32_t n_tiles, n_heads, n_kv_heads, head_dim, head_stride;
    uint32_t q_stride, y_stride;
    float scale;           // 1 / sqrt(head_dim)
    uint32_t y_type;       // as of AttendParams
    uint32_t slots;        // whether columns of y lie in the order of slots
} AttendPrefillParams;

// ---- attend_hopper_{f16,bf16}_{64,128}, for compute capability 9.0 alone: as attend_prefill of the same types, from tiles of
// GPU_TILE_HOPPER rows. The suffix is the smaller B >= head_stride. grid (n_heads, n_tiles), block 384, shared 1280 * B + 128.
typedef struct {
    TensorMap k;             // of the whole cache, all layers: a row is one head's vector of head_stride numbers
    TensorMap v;
    AttendPrefillParams p;   // k_pages and v_pages are not read
    uint32_t first;          // this layer's first row
    uint32_t end;            // rows of a map
    uint32_t zeros[6];
} AttendHopperParams;

// ---- matmul_add_{f32,f16,bf16,int8,int4,nf4,fp8} (Decode): x[rows[i]] += w y + bias, y rounded.
// grid.x ceil(n / 16), block 256; f32: y[rows[i]], grid (ceil(n / 4), ceil(n_rows / 8)), shared 512.
//
// ---- matmul_add_batch_{f16,bf16,int8,int4,nf4,fp8} (Decode): the same.
//
// ---- matmul_add_prefill_{f32,f16,bf16,int8,int4,nf4,fp8}: y rounded. Grid of qkv_prefill with this n. Type: the weights'.
//
// ---- matmul_add_hopper_{f16,bf16,int8,int4,nf4,fp8}: MatmulAddHopperParams, grid and shared of qkv_hopper with this n.
typedef struct {
    float *x;              // [max_rows, x_stride] in and out
    const void *y;
    const void *w;         // [n, w_stride]
    const float *bias;     // [n] or null
    const int32_t *rows;   // [n_rows]
    void *scratch;         // matmul_add_batch
    uint32_t n_rows, n, k, x_stride, y_stride, w_stride;
    uint32_t splits;       // matmul_add_batch
    uint32_t first;        // matmul_add_hopper: the row of y's map that is row 0 of the launch
} MatmulAddParams;
typedef struct {
    TensorMap y;           // of all rows that there is room for
    TensorMap w;           // of floats
    MatmulAddParams p;     // y is not read, nor a w that has a map
    uint32_t groups;
    uint32_t zeros[11];
} MatmulAddHopperParams;

// ---- ffn_up_{f32,f16,bf16,int8,int4,nf4,fp8} (Decode): h = silu(gate) * up of the RMSNorm of x. Rows of w: gate | up.
// grid.x ceil(ffn_dim / 8), block 256; f32: grid.y ceil(n_rows / 8), shared 0.
//
// ---- ffn_up_batch_{f16,bf16,int8,int4,nf4,fp8} (Decode): x is prepare's output, compact.
//
// ---- ffn_up_prefill_{f32,f16,bf16,int8,int4,nf4,fp8}: x is prepare's output, compact; norm and eps are not read.
// f16, bf16: grid (ceil(ffn_dim / 64), ceil(n_rows / 128)), block 256, shared 49152.
// f32:       grid (ceil(ffn_dim / 32), ceil(n_rows / 64)),  block 256, shared 20480. Type: the weights'.
//
// ---- ffn_up_hopper_{f16,bf16}: FfnUpHopperParams, grid (ceil(n_rows / 128), ceil(ffn_dim / 128)), the rest as qkv_hopper.
// ffn_up_hopper_{int8,int4,nf4,fp8}: grid.y ceil(ffn_dim / 64); h in the order of slots.
typedef struct {
    void *h;               // [max_rows, h_stride] out, by rows[i]: rounded
    const void *x;
    const float *norm;     // [pad32(dim)]
    const void *w;         // [2 * ffn_dim, w_stride]
    const int32_t *rows;   // [n_rows]
    void *scratch;         // ffn_up_batch
    uint32_t n_rows, ffn_dim, dim, x_stride, w_stride, h_stride;
    float eps;
    uint32_t splits;       // ffn_up_batch
} FfnUpParams;
typedef struct {
    TensorMap x;
    TensorMap w;           // of floats
    FfnUpParams p;         // x is not read, nor a w that has a map
    uint32_t groups;
    uint32_t zeros[11];
} FfnUpHopperParams;

// ---- ffn_join_{f16,bf16}: what ffn_up_prefill does behind its product, of sums that a library left in float32. FfnUpParams,
// where x is those, [n_rows, x_stride], columns gate | up; norm and w are not read. Type: h's.
// grid (ceil(ffn_dim / 1024), n_rows), block 256, shared 0.

// ---- logits_{f32,f16,bf16,int8} (rows of both kinds): out[i] = w rms_norm(x[rows[i]]).
// grid.x ceil(vocab_size / 16), block 256; f32: grid.y ceil(n_rows / 8), shared 0. Type: the weights'.
//
// ---- logits_batch_{f16,bf16,int8}: x is prepare's output, compact; rows[i] only says whether there is a row i.
typedef struct {
    float *out;            // [n_rows, out_stride]; any out_stride >= vocab_size, dense is fine
    const void *x;         // [max_rows, x_stride]
    const float *norm;     // [pad32(dim)]
    const void *w;         // [vocab_size, w_stride]
    const int32_t *rows;   // [n_rows]
    void *scratch;         // logits_batch
    uint32_t n_rows, vocab_size, dim, x_stride, w_stride, out_stride;
    float eps;
    uint32_t splits;       // logits_batch
} LogitsParams;

// What is wanted of a row of logits. Numbers as in src/backend/choice.rs, which says what they mean.
typedef struct {
    int32_t given;         // a token that is only scored; GPU_DRAW: draw one; GPU_NO_ROW: padding
    uint32_t n_tokens;     // ids from here on are not drawn
    uint32_t mask;         // which row of masks, its own, has the earlier tokens; GPU_NO_MASK: no penalty
    float penalty;
    float halvings, high, low, inverse; // the temperature; halvings 0: the largest logit
    uint32_t top_k;        // 0 is off
    uint32_t top_p;        // over 2^32; 0xffffffff is off
    uint32_t min_low, min_high; // least mass
    uint32_t draw;         // over 2^24
    uint32_t scored;       // whether logit, max, total and alternatives are wanted
    uint32_t n_top;        // alternatives, at most GPU_MAX_TOP and vocab_size
    uint32_t zero;         // 0
} SampleRow;

// What comes back of it; n_top pairs (id, bits of the raw logit) follow, best first.
typedef struct {
    int32_t token;         // drawn or given; -1: no logit is finite
    float logit;           // raw, of the token; from here on: only where scored
    float max;             // largest raw logit
    uint32_t low, high;    // sum of the masses of all raw logits at temperature 1
} SampleOut;

// ---- sample: tokens from the logits of wanted rows, the same ones as the host's sampler.
// grid (n_rows), block 512, shared GPU_SAMPLE_SHARED.
typedef struct {
    uint32_t *out;         // [n_rows, out_stride]: SampleOut and pairs
    const float *logits;   // [n_rows, stride]; readable to pad32(vocab_size)
    const SampleRow *rows; // [n_rows]
    uint32_t *masks;       // [.., mask_stride]: bit id % 32 of word id / 32 is set for an earlier token, then for a drawn one
    int32_t *next;         // [n_rows]: the tokens once more, for a step that follows; -1: embedding skips the row
    uint32_t n_rows, vocab_size, stride, mask_stride, out_stride;
    float halvings, high, low, inverse; // temperature 1
    uint32_t zero;         // 0
} SampleParams;

// Every kernel: X(name, parameters, threads of a block).
#define GPU_KERNELS_OF(X, T)                        \
    X(embed_##T, EmbedParams, 128)                  \
    X(prepare_##T, PrepareParams, 256)              \
    X(qkv_##T, QkvParams, 256)                      \
    X(qkv_prefill_##T, QkvParams, 256)              \
    X(attend_##T, AttendParams, 128)                \
    X(attend_prefill_fma_##T, AttendPrefillParams, 128) \
    X(matmul_add_##T, MatmulAddParams, 256)         \
    X(matmul_add_prefill_##T, MatmulAddParams, 256) \
    X(ffn_up_##T, FfnUpParams, 256)                 \
    X(ffn_up_prefill_##T, FfnUpParams, 256)         \
    X(logits_##T, LogitsParams, 256)

// Of 16-bit floats.
#define GPU_KERNELS_BATCH(X, H)                     \
    X(qkv_batch_##H, QkvParams, 256)                \
    X(matmul_add_batch_##H, MatmulAddParams, 256)   \
    X(ffn_up_batch_##H, FfnUpParams, 256)           \
    X(logits_batch_##H, LogitsParams, 256)

#define GPU_KERNELS_QUANTISED(X, Q)                 \
    X(qkv_##Q, QkvParams, 256)                      \
    X(qkv_prefill_##Q, QkvParams, 256)              \
    X(qkv_batch_##Q, QkvParams, 256)                \
    X(matmul_add_##Q, MatmulAddParams, 256)         \
    X(matmul_add_prefill_##Q, MatmulAddParams, 256) \
    X(matmul_add_batch_##Q, MatmulAddParams, 256)   \
    X(ffn_up_##Q, FfnUpParams, 256)                 \
    X(ffn_up_prefill_##Q, FfnUpParams, 256)         \
    X(ffn_up_batch_##Q, FfnUpParams, 256)           \
    X(qkv_hopper_##Q, QkvHopperParams, 384)         \
    X(qkv_hopper_half_##Q, QkvHopperParams, 288)    \
    X(matmul_add_hopper_##Q, MatmulAddHopperParams, 384)      \
    X(matmul_add_hopper_half_##Q, MatmulAddHopperParams, 288) \
    X(ffn_up_hopper_##Q, FfnUpHopperParams, 384)    \
    X(ffn_up_hopper_half_##Q, FfnUpHopperParams, 288)

#define GPU_KERNELS(X)                              \
    GPU_KERNELS_OF(X, f32)                          \
    GPU_KERNELS_OF(X, f16)                          \
    GPU_KERNELS_OF(X, bf16)                         \
    GPU_KERNELS_BATCH(X, f16)                       \
    GPU_KERNELS_BATCH(X, bf16)                      \
    X(sample, SampleParams, 512)                    \
    X(qkv_place, QkvParams, 256)                    \
    X(ffn_join_f16, FfnUpParams, 256)               \
    X(ffn_join_bf16, FfnUpParams, 256)              \
    GPU_KERNELS_QUANTISED(X, int8)                  \
    GPU_KERNELS_QUANTISED(X, int4)                  \
    GPU_KERNELS_QUANTISED(X, nf4)                   \
    GPU_KERNELS_QUANTISED(X, fp8)                   \
    X(qkv_hopper_f16, QkvHopperParams, 384)         \
    X(qkv_hopper_bf16, QkvHopperParams, 384)        \
    X(qkv_hopper_half_f16, QkvHopperParams, 288)    \
    X(qkv_hopper_half_bf16, QkvHopperParams, 288)   \
    X(matmul_add_hopper_f16, MatmulAddHopperParams, 384)  \
    X(matmul_add_hopper_bf16, MatmulAddHopperParams, 384) \
    X(matmul_add_hopper_half_f16, MatmulAddHopperParams, 288)  \
    X(matmul_add_hopper_half_bf16, MatmulAddHopperParams, 288) \
    X(ffn_up_hopper_f16, FfnUpHopperParams, 384)    \
    X(ffn_up_hopper_bf16, FfnUpHopperParams, 384)   \
    X(ffn_up_hopper_half_f16, FfnUpHopperParams, 288)  \
    X(ffn_up_hopper_half_bf16, FfnUpHopperParams, 288) \
    X(attend_hopper_f16_64, AttendHopperParams, 384)   \
    X(attend_hopper_f16_128, AttendHopperParams, 384)  \
    X(attend_hopper_bf16_64, AttendHopperParams, 384)  \
    X(attend_hopper_bf16_128, AttendHopperParams, 384) \
    X(embed_int8, EmbedParams, 128)                 \
    X(logits_int8, LogitsParams, 256)               \
    X(logits_batch_int8, LogitsParams, 256)         \
    X(append_int8, AppendParams, 32)                \
    X(append_fp8, AppendParams, 32)                 \
    X(attend_int8, AttendParams, 128)               \
    X(attend_fp8, AttendParams, 128)                \
    X(attend_prefill_fma_int8, AttendPrefillParams, 128) \
    X(attend_prefill_fma_fp8, AttendPrefillParams, 128) \
    X(attend_prefill_int8_32, AttendPrefillParams, 128)  \
    X(attend_prefill_int8_64, AttendPrefillParams, 128)  \
    X(attend_prefill_int8_128, AttendPrefillParams, 128) \
    X(attend_prefill_fp8_32, AttendPrefillParams, 128)   \
    X(attend_prefill_fp8_64, AttendPrefillParams, 128)   \
    X(attend_prefill_fp8_128, AttendPrefillParams, 128)  \
    X(attend_prefill_f16_32, AttendPrefillParams, 128)  \
    X(attend_prefill_f16_64, AttendPrefillParams, 128)  \
    X(attend_prefill_f16_128, AttendPrefillParams, 128) \
    X(attend_prefill_bf16_32, AttendPrefillParams, 128) \
    X(attend_prefill_bf16_64, AttendPrefillParams, 128) \
    X(attend_prefill_bf16_128, AttendPrefillParams, 128)

#ifdef __cplusplus
static_assert(sizeof(EmbedParams) == 40, "mirrored by the host");
static_assert(sizeof(PrepareParams) == 56, "mirrored by the host");
static_assert(sizeof(QkvParams) == 152, "mirrored by the host");
static_assert(sizeof(AppendParams) == 48, "mirrored by the host");
static_assert(sizeof(AttendParams) == 120, "mirrored by the host");
static_assert(sizeof(AttendTile) == 16, "mirrored by the host");
static_assert(sizeof(AttendPrefillParams) == 96, "mirrored by the host");
static_assert(sizeof(MatmulAddParams) == 80, "mirrored by the host");
static_assert(sizeof(FfnUpParams) == 80, "mirrored by the host");
static_assert(sizeof(LogitsParams) == 80, "mirrored by the host");
static_assert(sizeof(AttendHopperParams) == 384, "mirrored by the host");
static_assert(sizeof(QkvHopperParams) == 512, "mirrored by the host");
static_assert(sizeof(MatmulAddHopperParams) == 384, "mirrored by the host");
static_assert(sizeof(FfnUpHopperParams) == 384, "mirrored by the host");
static_assert(sizeof(SampleRow) == 64, "mirrored by the host");
static_assert(sizeof(SampleOut) == 20, "mirrored by the host");
static_assert(sizeof(SampleParams) == 80, "mirrored by the host");
#endif

#endif
