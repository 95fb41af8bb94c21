"""What a step costs on a GPU. From the shape of a model: the launches, bytes and operations of each
kernel. From these: milliseconds on a machine that is described by a few numbers.
`python3 benches/gpu_cost.py` prints the predictions of benches/record; tests/gpu/day.sh prints them
beside what it measures.

Launches and bytes of weights and cache are those of src/backend/gpu: tests/gpu/cost.py compares
them with what the driver is asked for. Launches with LLAMABI_CUDA_BLASLT are not modelled.

The rest is a model, fitted to what an H100 took (benches/record/2026-11-26-h100-first-day.txt, and
the second day's beside it). A kernel takes some seconds whatever its size, and the longest of these
times: its bytes through the memory, its multiplications in the matrix or vector units, its
activations through L1, and the lines of weights that a warp waits for one after another, with the
instructions of all warps; each as far as all multiprocessors have work.
"""

from collections import namedtuple
from math import ceil

Shape = namedtuple("Shape", "dim n_layers n_heads n_kv_heads head_dim ffn_dim vocab_size tied")
SHAPES = {
    # Llama 3.2 1B and Llama 3.1 8B.
    "1b": Shape(2048, 16, 32, 8, 64, 8192, 128256, True),
    "8b": Shape(4096, 32, 32, 8, 128, 14336, 128256, False),
}

# bandwidth: bytes/s that reading reaches.
# matrix: 16-bit FLOP/s of a library's large product on all of `units` multiprocessors.
# mma: the share of `matrix` that mma.sync reaches.
# wgmma: the same for the kernels for compute capability 9.0 before a block writes its outputs,
# where L2 gives tiles fast enough and their loops keep the tensor cores busy (LOOP); 0 where these
# kernels are not used.
# tiles: bytes/s of tiles that L2 gives to the copies of those kernels. wait: seconds from a copy's
# beginning to its arrival, of 16-bit weights and of codes.
# ended: the share of the schedulers' cycles in which an instruction is issued at the end of such a
# block.
# lanes: FMA lanes of all multiprocessors times their clock, instructions/s.
# cache: bytes/s of all L1 caches. l2: bytes/s of L2.
# line: seconds for which a warp of a decode kernel waits for each line of weights.
# issue: the share of the schedulers' cycles in which such a kernel issues an instruction otherwise.
# gap: seconds from one kernel to the next.
# step: seconds of the host and of copies that nothing hides, if the previous step must be read
# first.
# follows: the same if a decode step follows the previous one in the stream, with only three small
# copies between them.
# link: bytes/s of 16-bit weights from page cache to device. start: seconds of a start beside them.
# attend: the shares that attention of prompts reaches, for mma.sync and for wgmma, each for heads
# of up to 64 and for larger ones. (Small heads take as many powers for half the products.)
Machine = namedtuple("Machine", "name bandwidth matrix mma wgmma tiles wait ended units lanes cache l2 line issue gap step follows link start attend")
# Measured by torch on an H100 of 700 W: 2.99 to 3.01 TB/s, 746 to 781 TFLOP/s (a sum of 8 GB; a
# product of 8192^3). Fitted to traces of the 8b shape there: wgmma, wait, ended, line, issue, gap,
# step, link, attend of wgmma for heads of 128, and `least` below. Assumed: mma, tiles, cache, l2,
# follows, start, and the rest of attend.
# lanes, cache: at 1.755 GHz, which the fit takes for granted.
H100 = Machine("H100 SXM", 3.0e12, 781e12, 0.60, 1.10, 8.1e12, (1.5e-6, 0.7e-6), 0.22, 132, 132 * 128 * 1.755e9, 132 * 128 * 1.755e9, 5.5e12,
               0.5e-6, 0.68, 0.1e-6, 100e-6, 6e-6, 2.6e9, 0.6, ((0.36, 0.45), (0.38, 0.50)))
# 16-bit FLOP/s by the datasheet, of which prompts are to reach a share.
PEAK = 989e12
# `gap` when the host launches, as it does for prompts.
WITHOUT_GRAPHS = 1.5e-6

# flops: multiplications and additions.
# blocks: of the grid.
# cache: bytes of activations from L1.
# again: bytes that L2 gives and takes beside those from memory.
# instructions: lane instructions to unpack and sum. turns: lines that a warp waits for one after
# another.
# hopper: a Hopper, if a kernel for compute capability 9.0 does it.
# attend: for attention of a prompt with such a kernel: flops of all blocks, and of the longest.
# least: seconds that a kernel takes beside what its size says. A small kernel takes LEAST.
LEAST = 2.8e-6
# The part of it that is over when the launch before ends: of products of few rows, and of attention
# of generated rows, which start early. Fitted to steps of 8b (2026-11-27-h100-second-day.txt).
EARLY = 1.4e-6
Launch = namedtuple("Launch", "kernel bytes flops unit blocks cache instructions turns again hopper attend least", defaults=(0, 0, "", 1, 0, 0, 0, 0, None, None, LEAST))
# A product on compute capability 9.0.
# share: the part of the time in which a block's loop keeps the tensor cores busy (LOOP).
# x, w: bytes of activations and of weights that all blocks ask L2 for. paired: whether two blocks
# share one of them, which then counts half.
# steps: of 64 columns. stages: those of which copies are under way at a time.
# end: bytes that a block reads and writes at its end. asked: the part of them that L2 has been
# asked for before.
# alone: one block on a multiprocessor at a time, so that nothing multiplies there while the block
# ends.
# instructions: lane instructions to decode.
# ended: instructions that all warps of a block issue after its last product.
Hopper = namedtuple("Hopper", "blocks share flops x w steps stages end asked alone instructions ended")

SIZE = {"f32": 4, "f16": 2, "bf16": 2, "int8": 1, "fp8": 1}
SCALED = ("int8", "fp8")  # types of the cache with a scale for each vector
# Instructions that make an f16 from a code.
UNPACK = {"f16": 0, "bf16": 0, "int8": 1, "int4": 1.1, "nf4": 2.5, "fp8": 0.5}
GROUP = {"int8": 32, "int4": 32, "nf4": 64, "fp8": 128}
# Columns of a line of weights.
LINE = {"f16": 64, "bf16": 64, "int8": 128, "fp8": 128, "int4": 256, "nf4": 256}
# What all warps of a block of a prompt's product issue after its last product, for the largest
# tiles, for half of them and for quarters, as gpu_trace.py counts it.
ENDED = {
    ("qkv", "bf16"): [16520, 13852, 3810],
    ("qkv", "int8"): [36020, 19204],
    ("qkv", "fp8"): [36020, 19204],
    ("qkv", "int4"): [35964, 19196],
    ("qkv", "nf4"): [35932, 19156],
    ("matmul_add", "bf16"): [12616, 8504, 2332],
    ("matmul_add", "int8"): [21032, 11088],
    ("matmul_add", "fp8"): [21032, 11088],
    ("matmul_add", "int4"): [21016, 11080],
    ("matmul_add", "nf4"): [20992, 11056],
    ("ffn_up", "bf16"): [11304, 6192],
    ("ffn_up", "int8"): [18976, 9928],
    ("ffn_up", "fp8"): [18976, 9928],
    ("ffn_up", "int4"): [19000, 9952],
    ("ffn_up", "nf4"): [18984, 9936],
}
# The part of the time in which the loop of such a block keeps the tensor cores as busy as the best
# loop does: the largest tiles, half of them, those with one warpgroup, and quarters. Fitted to
# prompts of 2,048 and 128 tokens; gpu_loop.py, which simulates the loops by themselves, says 0.92
# and more for all but nf4 and quarters. bf16: the largest tiles alone are not bound by `wait`, and
# the quarter is gpu_loop.py's. fp8: assumed between int8 and int4, since a prompt of 128 was.
LOOP = {"bf16": (1, 1, 1, 0.56), "int8": (0.93, 0.54, 0.56), "fp8": (0.93, 0.65, 0.65), "int4": (0.97, 0.82, 0.75), "nf4": (0.81, 0.53, 0.53)}
# What all warps of a block issue together, counted in the machine code by gpu_trace.py. For few
# rows: for the block itself, for an activation row, for 1024 columns of one, for a tile of sixteen
# weight rows, and for a line of one. For many rows: for the block itself and for a line of its 128
# weight rows, with 16, 32 and 64 activation rows. Counted before weights came through a ring in
# shared memory.
COUNTED = {
    ("qkv", "bf16"): ([1637, 582, 724, 285, 78], [5888, 1016, 9864, 1216, 16968, 1888]),
    ("qkv", "int8"): ([1555, 631, 826, 292, 152], [6088, 1824, 9952, 2416, 17016, 3920]),
    ("qkv", "fp8"): ([1588, 630, 826, 324, 130], [6216, 1592, 10080, 2192, 17072, 3744]),
    ("qkv", "int4"): ([1556, 622, 826, 292, 270], [6240, 3316, 10128, 4524, 17064, 7312]),
    ("qkv", "nf4"): ([1676, 622, 826, 291, 694], [6304, 6696, 10224, 7916, 17144, 10704]),
    ("matmul_add", "bf16"): ([1513, 143, 140, 209, 78], [4448, 1016, 7072, 1216, 11128, 1872]),
    ("matmul_add", "int8"): ([1433, 167, 152, 210, 152], [4664, 1812, 7184, 2408, 11160, 3920]),
    ("matmul_add", "fp8"): ([1465, 135, 164, 242, 130], [4696, 1596, 7280, 2184, 11224, 3720]),
    ("matmul_add", "int4"): ([1433, 175, 150, 210, 268], [4848, 3344, 7336, 4884, 11216, 7592]),
    ("matmul_add", "nf4"): ([1577, 167, 152, 208, 693], [4880, 6756, 7456, 7956, 11304, 10936]),
    ("ffn_up", "bf16"): ([1185, 562, 724, 204, 78], [4744, 1016, 7792, 1216, 13568, 1872]),
    ("ffn_up", "int8"): ([1108, 614, 826, 232, 152], [5088, 1812, 8168, 2416, 14104, 3936]),
    ("ffn_up", "fp8"): ([1115, 615, 826, 249, 130], [5192, 1596, 8272, 2184, 14160, 3752]),
    ("ffn_up", "int4"): ([1092, 614, 824, 216, 270], [5288, 3340, 8448, 4816, 14168, 7568]),
    ("ffn_up", "nf4"): ([1212, 614, 826, 223, 694], [5280, 6768, 8416, 8068, 14224, 10992]),
    ("logits", "bf16"): ([1255, 540, 724, 213, 78], [4328, 1048, 6832, 1280, 11512, 1912]),
    ("logits", "int8"): ([1230, 588, 826, 238, 152], [4552, 1812, 6904, 2792, 11528, 4760]),
    ("logits", "int4"): ([1198, 588, 824, 221, 270], [4672, 3320, 7088, 5292, 11536, 8848]),
}
COUNTED |= {(kernel, "f16"): counted for (kernel, dtype), counted in COUNTED.items() if dtype == "bf16"}
# Products of many rows of which a multiprocessor has one block at a time: they take more than 128
# registers.
WIDE = {("qkv", "int4"), ("qkv", "nf4"), ("logits", "int4")}
# Bytes that a block of an H100 has for activation rows beside a ring of int4, sums and norms
# (few_shared of geometry.rs).
STAGED = 143_360
GEMV_ROWS, BATCH_ROWS, ATTEND_ROWS, SPLIT, PAGE, CHUNK = 8, 64, 32, 256, 16, 2048
BUCKETS = [1, 2, 4, 8, 16, 24, 32, 48, 64]


def up(n, to):
    return ceil(n / to) * to


def row_bytes(dtype, cols):
    """Bytes of a row of weights on the device: `stride` of mat.rs and quantised.rs."""
    if dtype in SIZE and dtype not in GROUP:
        return up(cols, 32) * SIZE[dtype]
    padded = up(cols, 256)
    return up(padded * (1 if dtype in SIZE else 0.5) + 2 * ceil(padded / GROUP[dtype]), 64)


def head_dtype(dtype):
    return dtype if dtype in ("f32", "f16", "bf16") else "int8"


def embedding_dtype(shape, dtype):
    if dtype in ("f32", "f16", "bf16"):
        return dtype
    return "int8" if shape.tied else "bf16"


def matrices(shape):
    """Rows and columns of the products of a layer."""
    q, kv = shape.n_heads * shape.head_dim, shape.n_kv_heads * shape.head_dim
    return {"qkv": (q + 2 * kv, shape.dim), "wo": (shape.dim, q), "ffn_up": (2 * shape.ffn_dim, shape.dim),
            "w2": (shape.dim, shape.ffn_dim)}


def weight_bytes(shape, dtype):
    """`weight_bytes` of llama_get_info, without biases."""
    layer = sum(rows * row_bytes(dtype, cols) for rows, cols in matrices(shape).values()) + 8 * shape.dim
    head = 0 if shape.tied else shape.vocab_size * row_bytes(head_dtype(dtype), shape.dim)
    embedding = shape.vocab_size * row_bytes(embedding_dtype(shape, dtype), shape.dim)
    return int(shape.n_layers * layer + head + embedding + 4 * shape.dim)


def read_bytes(shape, dtype):
    """Bytes of the weights that every token needs."""
    if shape.tied:
        return weight_bytes(shape, dtype)
    return weight_bytes(shape, dtype) - int(shape.vocab_size * row_bytes(embedding_dtype(shape, dtype), shape.dim))


def kv_bytes(shape, kv, positions):
    """Bytes of K and V for this many positions of one sequence, in whole pages."""
    head = PAGE * up(shape.head_dim, 16) * SIZE[kv] + (4 * PAGE if kv in SCALED else 0)
    return 2 * ceil(positions / PAGE) * head * shape.n_kv_heads * shape.n_layers


def products(shape):
    """Number of weights that a row is multiplied with, without the head."""
    return shape.n_layers * sum(rows * cols for rows, cols in matrices(shape).values())


def bucket(n):
    return next((b for b in BUCKETS if b >= n), up(n, 32))


def batch_grid(rows, n):
    """The grid of a batch product with `rows` weight rows, as `Batch` of geometry.rs: activation
    rows of a block, groups of them, blocks of 128 weight rows, and how many blocks share a K."""
    of_block = 16 if n <= 16 else 32 if n <= 32 else BATCH_ROWS
    groups, blocks = ceil(n / of_block), ceil(rows / 128)
    return of_block, groups, blocks, 1 if groups * blocks >= 96 else 4 if groups * blocks >= 40 else 8


# Bytes that a product writes or changes for each weight row and activation row: gate and up make
# one number of two.
OUT = {"qkv": 4, "matmul_add": 8, "ffn_up": 1, "logits": 4}


def few(kernel, dtype, rows, cols, n):
    """A product of decode."""
    # The number of rows up to which blocks round the rows themselves: `prepares` of geometry.rs.
    few_rows = 2 if dtype == "nf4" else 4
    if dtype != "f32" and (n > few_rows or 2 * n * up(cols, LINE[dtype]) > STAGED):
        return batch(kernel, dtype, rows, cols, n)
    passes, at_once = (ceil(n / GEMV_ROWS), min(n, GEMV_ROWS)) if dtype == "f32" else (1, n)
    weights = passes * rows * cols
    read = passes * rows * row_bytes(dtype, cols) + n * (4 * cols + OUT[kernel] * rows)
    if dtype == "f32":
        at_once = next(r for r in (1, 2, 4, 8) if r >= at_once)
        # A warp has two weight rows: it reads an activation once for both, and multiplies it once
        # with each.
        return [Launch(kernel, read, 2 * weights * at_once, "vector", passes * ceil(rows / 16), weights * at_once * 4 / 2,
                       weights * at_once * (1 + 1 / 8))]
    # Each multiprocessor has one block, which takes tiles of sixteen weight rows; its eight warps
    # share the lines of a tile. Each block rounds the activation rows, and keeps them.
    tiles, lines = ceil(rows / 16), ceil(cols / LINE[dtype])
    blocks = min(tiles, 132)
    block, row, staged, tile, line = COUNTED[kernel, dtype][0]
    warps = blocks * (block + n * (row + staged * cols / 1024)) + tiles * (tile + line * lines)
    return [Launch(kernel, read, 2 * weights * 8, "matrix", tiles, 0, 32 * warps, ceil(tiles / 132) * ceil(lines / 8), least=LEAST - EARLY)]


def batch(kernel, dtype, rows, cols, n):
    """A product of decode with more rows than a block rounds itself."""
    of_block, groups, blocks, splits = batch_grid(rows, n)
    weights = groups * rows * cols
    read = rows * row_bytes(dtype, cols) + n * (4 * cols + OUT[kernel] * rows)
    own = of_block * cols * 2
    # L2 gives in addition: activations for every block, weights for further groups of rows, and
    # sums that are joined.
    again = groups * (blocks - 1) * own + (groups - 1) * rows * row_bytes(dtype, cols) + (8 * splits * rows * n if splits > 1 else 0)
    block, line = COUNTED[kernel, dtype][1][{16: 0, 32: 2, 64: 4}[of_block] :][:2]
    lines, all_blocks = ceil(cols / LINE[dtype]), groups * blocks * splits
    warps = groups * blocks * (splits * block + line * lines)
    # With 64 rows no ring is there, and lines of codes come one at a time: fitted to steps of int4
    # and int8.
    if of_block == 64 and dtype in GROUP:
        warps *= 1.45
    at_once = 1 if (kernel, dtype) in WIDE else 2
    rounds = ceil(all_blocks / (132 * at_once))
    # A block begins with its activations and ends with sums that it may join, for more rows as long
    # again.
    least = (4.5e-6 if of_block == 16 else 6.5e-6) * (rounds if at_once == 1 else 1)
    product = Launch(kernel, read, 2 * weights * of_block, "matrix", all_blocks, 0, 32 * warps, rounds * ceil(lines / splits), again, least=least)
    return [product] if kernel == "matmul_add" else [Launch("prepare", n * cols * 6), product]


def gemm(kernel, dtype, rows, cols, n):
    """A product of prefill, in tiles of 128 x 128 (float32: 64 x 64)."""
    tile = 64 if dtype == "f32" else 128
    blocks = ceil(rows / tile) * ceil(n / tile)
    activations = n * cols * (4 if dtype == "f32" else 2)
    hopper, out = None, OUT[kernel.removesuffix("_prefill")]
    if dtype != "f32":
        # Tiles of 128 x 256, 128 x 128 or 64 x 64, as `Hopper` of geometry.rs chooses. For floats,
        # 256 counts weight rows, and the last 64 rows of a tile are left out if they are empty; for
        # codes, it counts activation rows.
        codes = dtype in GROUP
        whole, half = ((ceil(rows / 128) * ceil(n / side) if codes else ceil(rows / side) * ceil(n / 128)) for side in (256, 128))
        smaller = 2 * ceil(half / 132) < 3 * ceil(whole / 132)
        side = 128 if smaller else 256
        # One warpgroup in a block, if each block then has a multiprocessor.
        smallest = ceil(rows / 64) * ceil(n / 128) if codes else ceil(rows / 128) * ceil(n / 64)
        one = smaller and smallest <= 132
        many = smallest if one else half if smaller else whole
        # A quarter of the tile, if even then each block has one.
        quarters = ceil(rows / 64) * ceil(n / 64)
        quarter = smaller and not codes and kernel != "ffn_up_prefill" and quarters <= 132
        if quarter:
            side, one, many = 64, True, quarters
        area = up(rows, 64 if one else 128) * up(n, side) if codes else up(rows, side) * up(n, 64)
        # Two blocks with the same weights share them; a block without rows makes an odd one a pair,
        # if that takes no further round.
        tiles = ceil(n / (64 if one else 128))
        padded = many // tiles * up(tiles, 2)
        paired = not codes and tiles > 1 and ceil(padded / 132) == ceil(many / 132)
        size = 3 if quarter else 2 if one else int(smaller)
        loop = LOOP["bf16" if dtype == "f16" else dtype][size]
        ended = ENDED[kernel.removesuffix("_prefill"), "bf16" if dtype == "f16" else dtype][2 if quarter else int(smaller)]
        shared = 2 if paired or codes else 1
        # Each code is converted to half of a pair and multiplied with its scale, once for each tile
        # of activations.
        decode = rows * cols * ceil(n / side) * (UNPACK[dtype] + 0.5) if codes else 0
        x_rows, w_rows = (side, 64 if one else 128) if codes else (64 if one else 128, side)
        x, w = many * x_rows * cols * 2, many * w_rows * row_bytes(dtype, cols)
        outputs = (64 if one else 128) * side
        hopper = Hopper(padded if paired else many, loop, 2 * area * cols, x / (shared if codes else 1), w / (1 if codes else shared),
                        ceil(cols / 64), 4 if codes or not smaller else 12 if quarter else 8 if one else 3, outputs * out,
                        0 if smaller or kernel != "matmul_add_prefill" else 4 * outputs, codes or not smaller, decode,
                        ended / (2 if size == 2 else 1))
    return Launch(kernel, rows * row_bytes(dtype, cols) + activations + out * n * rows, 2 * blocks * tile * tile * cols,
                  "vector" if dtype == "f32" else "matrix", blocks, hopper=hopper)


def attend(shape, kv, n, context):
    """Attention of decode, for caches of 16 and 8 bits; rows beyond 32 take further launches."""
    # Instructions of a warp, counted in the SASS for sm_90a
    # (benches/record/2026-11-25-gpu-attention-of-generated-rows.txt): 390 for each of a block's
    # eight, with its share of what adds them up; for 32 keys 75 and 2.65 for each column, 4.9 where
    # codes are unpacked; 1,840 for the block that joins splits, if there are several. `least`: four
    # loads that follow one another, 300 instructions before the first copy, the products of the
    # last page, the sum over the warps, the counter, the join.
    splits, launches = context // SPLIT + 1, []
    for first in range(0, n, ATTEND_ROWS):
        rows = min(n - first, ATTEND_ROWS)
        bytes_ = rows * kv_bytes(shape, kv, context + 1) / shape.n_layers
        sets = shape.n_kv_heads * ceil(shape.n_heads / shape.n_kv_heads / 8)
        blocks = sets * splits * rows
        warps = rows * sets * ceil((context + 1) / 32)
        joins = rows * sets if splits > 1 else 0
        instructions = 8 * 390 * blocks + (75 + (4.9 if kv in SCALED else 2.65) * shape.head_dim) * warps + 1840 * joins
        # 16 queries with 32 keys, and twice 8 heads of weights with 32 values.
        flops = 64 * shape.head_dim * 32 * warps
        launches.append(Launch("attend", bytes_, flops, "matrix", blocks, 0, 32 * instructions, least=6.2e-6 - EARLY))
    return launches


SLICE = 4032  # ids of a block of the sampler


def sample(shape, rows, draws=False):
    """The choice of tokens: of the largest logits; with `draws`, by temperature and top-p."""
    # Instructions of a warp, counted in the SASS for sm_90a (benches/record/2026-11-25-gpu-
    # sampler.txt): 440 in sample_max; in sample_draw 1,070, and 2,340 in the last block of a row.
    # `least` of sample_draw, of which one block runs on a multiprocessor at a time, is fitted to
    # the 26 to 37 us that drawing adds to a step of one row.
    slices = ceil(shape.vocab_size / SLICE)
    blocks, bytes_ = rows * slices, rows * shape.vocab_size * 4
    largest = Launch("sample_max", bytes_, blocks=blocks, instructions=32 * 16 * 440 * blocks, least=3.8e-6)
    if not draws:
        return [largest]
    # Sums by bucket are written once and read twice.
    instructions = 32 * 16 * (1070 * blocks + 2340 * rows)
    return [largest, Launch("sample_draw", bytes_, blocks=blocks, instructions=instructions, again=3 * 2048 * blocks,
                            least=8e-6 * ceil(blocks / 132) + 15e-6)]


def adapted(product, rows, cols, parts, batch, rank, up=False):
    """A product of decode with what the adapters of its rows add: each row has one of its own, of
    this rank in all parts. Numbers of 16 bits; A is read before the product, B behind it."""
    a, b = batch * parts * rank * cols * 2, batch * rows * rank * 2
    sums = 4 * batch * rows
    return [Launch("adapt_in", a, blocks=batch * parts * ceil(rank / 4)), *product,
            Launch("adapt_up" if up else "adapt_out", b + sums, blocks=batch * ceil(rows / (2 if up else 1) / 256), again=sums)]


def embed(shape, n):
    """2,048 rows take 87 us, of which their bytes need 22: as if a multiprocessor had one block at
    a time, and each took 4 us."""
    return Launch("embed", n * shape.dim * 8, blocks=n, least=1.3e-6 + 4e-6 * ceil(n / 132))


def decode(shape, dtype, kv, batch, context, rank=0, draws=False):
    """Launches of a step in which `batch` sequences of `context` tokens get one more token each.
    With `rank`, each of them has an adapter of its own that changes all matrices. `draws` is as for
    `sample`."""
    n, m = bucket(batch), matrices(shape)

    def product(kernel, matrix, parts):
        launches = few(kernel, dtype, *m[matrix], n)
        return adapted(launches, *m[matrix], parts, batch, rank, kernel == "ffn_up") if rank else launches

    layer = product("qkv", "qkv", 3)
    if kv in SCALED or rank:
        layer.append(Launch("append"))
    layer += attend(shape, kv, n, context)
    layer += product("matmul_add", "wo", 1) + product("ffn_up", "ffn_up", 2) + product("matmul_add", "w2", 1)
    head = few("logits", head_dtype(dtype), shape.vocab_size, shape.dim, n)
    return [embed(shape, batch), *layer * shape.n_layers, *head, *sample(shape, batch, draws)]


def prefill(shape, dtype, kv, past, n, last=True, wanted=1):
    """Launches of a step with `n` tokens of a prompt of which `past` are in the cache; of `wanted`
    prompts like it."""
    m = matrices(shape)
    tensor_cores = dtype != "f32" and kv != "f32" and up(shape.head_dim, 16) <= 128
    tile = 64 if tensor_cores else 4
    # Whole tiles of 64 keys.
    keys = sum(up(past + min(first + tile, n), 64) * tile for first in range(0, n, tile))
    flops = 4 * keys * shape.n_heads * shape.head_dim
    blocks = shape.n_heads * ceil(n / tile)
    read = kv_bytes(shape, kv, past + n) / shape.n_layers
    unit, wide = "vector" if not tensor_cores else "attend" if shape.head_dim > 64 else "attend 64", None
    if tensor_cores and kv in ("f16", "bf16"):
        # On compute capability 9.0: tiles of 128 rows, without the last 64 if they are empty, and
        # of 128 keys; the longest tile first.
        tiles = [4 * up(past + min(first + 128, n), 128) * min(up(n - first, 64), 128) * shape.head_dim for first in range(0, n, 128)]
        wide = shape.n_heads * sum(tiles), max(tiles)
    attention = Launch("attend_prefill", read, flops, unit, blocks, attend=wide, least=9e-6)

    def normed(kernel, rows, cols):
        return [Launch("prepare", n * cols * (8 if dtype == "f32" else 6)), gemm(kernel, dtype, rows, cols, n)]

    layer = normed("qkv_prefill", *m["qkv"])
    if kv in SCALED:
        layer.append(Launch("append"))
    layer += [attention, gemm("matmul_add_prefill", dtype, *m["wo"], n), *normed("ffn_up_prefill", *m["ffn_up"]),
              gemm("matmul_add_prefill", dtype, *m["w2"], n)]
    launches = [embed(shape, n), *layer * shape.n_layers]
    if last:
        launches += [*few("logits", head_dtype(dtype), shape.vocab_size, shape.dim, wanted), *sample(shape, wanted)]
    return launches


def prompt(shape, dtype, kv, n, batch=1, chunk=CHUNK):
    """Steps of a prompt by itself; a step has room for `chunk` of its rows and for one row of each
    sequence of a full batch."""
    rows = chunk + batch
    return [prefill(shape, dtype, kv, past, min(rows, n - past), past + rows >= n) for past in range(0, n, rows)]


def kernel_seconds(machine, launch):
    """Seconds of one kernel, without the gap after it."""
    return launch.least + max(limits(machine, launch).values())


def limits(machine, launch):
    """The times of which a kernel takes the longest, beside its `least`."""
    if launch.hopper and machine.wgmma:
        h = launch.hopper
        rounds = ceil(h.blocks / machine.units)
        busy = h.blocks / (rounds * machine.units)
        product = h.flops / (machine.matrix * machine.wgmma * busy)
        # Between two copies to a stage, it is multiplied, and the next copy has to come.
        turn = (product / (rounds * h.steps) + machine.wait[h.instructions > 0]) / h.stages
        multiplied = max(product / h.share, launch.bytes / machine.bandwidth, (h.x + h.w) / (machine.tiles * busy),
                         h.instructions / (machine.lanes * busy), rounds * h.steps * turn / (1 if h.alone else min(2, rounds)))
        ended = 32 * h.ended * machine.units / (machine.lanes * machine.ended)
        at_once = min(h.blocks, machine.units)
        written = max((h.end - h.asked) * at_once / machine.bandwidth, h.end * at_once / machine.l2, ended)
        return {"prompt": multiplied + (rounds if h.alone else 1) * written}
    if launch.attend and machine.wgmma:
        flops, longest = launch.attend
        rate = machine.matrix * machine.attend[1][launch.unit == "attend"]
        return {"prompt": max(launch.bytes / machine.bandwidth, flops / rate, longest * machine.units / rate)}
    # A product in tiles takes as long as the multiprocessor that has the most tiles.
    busy = launch.blocks / (ceil(launch.blocks / machine.units) * machine.units)
    small, large = machine.attend[0]
    share = {"matrix": machine.mma, "attend": large, "attend 64": small}.get(launch.unit)
    rate = machine.matrix * share if share else 2 * machine.lanes
    return {
        "memory": launch.bytes / machine.bandwidth + launch.again / machine.l2,
        "matrix" if share else "vector": launch.flops / (rate * busy),
        "L1": launch.cache / machine.cache,
        "lines": launch.turns * machine.line + launch.instructions / (machine.lanes * machine.issue * busy),
    }


def seconds(machine, launches, follows=False):
    return (machine.follows if follows else machine.step) + sum(machine.gap + kernel_seconds(machine, launch) for launch in launches)


def slowest(machine, launches):
    """The kernels, sorted by the time of all their launches."""
    times = {}
    for launch in launches:
        times[launch.kernel] = times.get(launch.kernel, 0) + machine.gap + kernel_seconds(machine, launch)
    return sorted(times.items(), key=lambda item: -item[1])


def main():
    both = {"graphs": H100, "no graphs": H100._replace(gap=WITHOUT_GRAPHS)}
    m = H100
    print(f"PREDICTION, by a model that is fitted to two days on an H100 (2026-11-26-h100-first-day.txt, 2026-11-27-h100-second-day.txt). {m.name}: {m.bandwidth / 1e12} TB/s,")
    print(f"{m.matrix / 1e12:.0f} TFLOP/s, mma.sync reaches {100 * m.mma:.0f} % of them (assumed), wgmma {100 * m.wgmma:.0f} %, attention of prompts {' and '.join(f'{100 * small:.0f} or {100 * large:.0f}' for small, large in m.attend)} % (heads")
    print(f"to 64, larger ones); {1e6 * m.gap:.1f} us from kernel to kernel in CUDA graphs, {1e6 * WITHOUT_GRAPHS:.1f} us without; bf16 cache\n")
    print("decode, context 512      launches  GB/step    ms: graphs  no graphs   tokens/s  share of bandwidth (graphs)   slowest")
    for name in SHAPES:
        shape = SHAPES[name]
        for dtype in ("bf16", "int8", "fp8", "int4"):
            for batch in (1, 2, 4, 8, 16, 32, 64):
                launches = decode(shape, dtype, "bf16", batch, 512)
                must = read_bytes(shape, dtype) + batch * kv_bytes(shape, "bf16", 512)
                fast, slow = (seconds(m, launches, follows=True) for m in both.values())
                kernel, took = slowest(H100, launches)[0]
                print(f"{name} {dtype:<5} batch {batch:<8}{len(launches):>8}{must / 1e9:>9.2f}{1e3 * fast:>14.3f}{1e3 * slow:>11.3f}"
                      f"{batch / fast:>11.0f}{100 * must / H100.bandwidth / fast:>12.0f} %{'':<19}{kernel} {100 * took / fast:.0f} %")
    print("\ndecode, context 512 (graphs), ms: greedy, and temperature 0.6 with top-p 0.9")
    for name in SHAPES:
        for dtype in ("bf16", "int8", "fp8", "int4"):
            for batch in (1, 8, 32, 64):
                greedy, drawn = (seconds(m, decode(SHAPES[name], dtype, "bf16", batch, 512, draws=draws), follows=True) for draws in (False, True))
                print(f"{name} {dtype:<5} batch {batch:<8}{1e3 * greedy:>8.3f}{1e3 * drawn:>8.3f}{100 * (drawn / greedy - 1):>8.1f} % slower")
    print("\ndecode of 8b, context 512: a layer's kernels and the head, warp instructions, microseconds by what could bind them, and what comes on top")
    for dtype in ("bf16", "int8", "int4"):
        for batch in (1, 8, 32):
            launches = decode(SHAPES["8b"], dtype, "bf16", batch, 512)
            layers = SHAPES["8b"].n_layers
            layer = (len(launches) - 3) // layers
            for launch in [*launches[1 : 1 + layer], *launches[1 + layer * layers :]]:
                times = limits(m, launch)
                if launch.instructions:
                    print(f"{dtype:<5} batch {batch:<4}{launch.kernel:<12}{launch.instructions / 32e6:>8.2f} M" + "".join(
                        f"{name:>10}{1e6 * times.get(name, 0):>7.1f}" for name in ("memory", "matrix", "lines")) + f"   {max(times, key=times.get)}, and {1e6 * launch.least:.1f}")
    print("\ndecode, one stream, by context (graphs): tokens/s")
    contexts = (0, 512, 2048, 4096, 8192)
    print(" " * 10 + "".join(f"{context:>8}" for context in contexts))
    for name in SHAPES:
        for dtype in ("bf16", "int8", "fp8", "int4"):
            speeds = (1 / seconds(m, decode(SHAPES[name], dtype, "bf16", 1, context), follows=True) for context in contexts)
            print(f"{name} {dtype:<7}" + "".join(f"{speed:>8.0f}" for speed in speeds))
    print("\nstep of batch 32 over that of batch 1, by context (graphs)")
    contexts = (0, 128, 512, 2048)
    print(" " * 20 + "".join(f"{context:>8}" for context in contexts))
    for name in SHAPES:
        for dtype, kv in (("bf16", "bf16"), ("int8", "bf16"), ("int8", "int8"), ("fp8", "fp8"), ("int4", "bf16"), ("int4", "int8")):
            steps = [[seconds(m, decode(SHAPES[name], dtype, kv, batch, context), follows=True) for batch in (32, 1)] for context in contexts]
            print(f"{name} {dtype:<5} cache {kv:<6}" + "".join(f"{many / one:>8.2f}" for many, one in steps))
    print(f"\nprefill of a prompt: rows of a step ({CHUNK} is what the engine takes), ms, tokens/s, share of {PEAK / 1e12:.0f} TFLOP/s")
    for name in SHAPES:
        shape = SHAPES[name]
        for dtype, wgmma in ((dtype, wgmma) for dtype in ("bf16", "int8", "fp8", "int4") for wgmma in (m.wgmma, None)):
            for n, chunk in [(128, CHUNK), (512, CHUNK), (2048, CHUNK), (8192, CHUNK), (2048, 256)]:
                machine = both["no graphs"]._replace(wgmma=wgmma)
                took = sum(seconds(machine, step) for step in prompt(shape, dtype, "bf16", n, chunk=chunk))
                share = must_flops(shape, n) / PEAK / took
                print(f"{name} {dtype:<5} {n:>5} tokens{'':<6}{chunk:>5}{1e3 * took:>11.1f}{n / took:>11.0f}{100 * share:>9.0f} %"
                      f"   {'wgmma' if wgmma else 'mma.sync'}")
    print("\nllama_build to the first of 16 tokens, from page cache, without a change of format")
    for name in SHAPES:
        print(f"{name} bf16 {start_seconds(H100, SHAPES[name]):>8.1f} s")


def must_flops(shape, n):
    """Operations of a prompt of n tokens; causal attention counts half."""
    return 2 * n * products(shape) + 2 * shape.n_layers * shape.n_heads * shape.head_dim * n * n


def start_seconds(machine, shape):
    """Seconds to read the 16-bit checkpoint and to create the context. Formats that are packed on
    the way take longer: the 8b shape took 6.8 s, as int8 14.7 and as int4 18.5, on 16
    processors."""
    return machine.start + weight_bytes(shape, "bf16") / machine.link


if __name__ == "__main__":
    main()
