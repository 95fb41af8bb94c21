//! One function for each kernel, which gives it its geometry as `kernels/params.h` states it.
//! Nothing is launched anywhere else.
//!
//! The parameters hold addresses. `mod.rs` takes them from live [`super::device::Memory`] of the
//! sizes that params.h asks for.
#![allow(unsafe_code)]

use super::device::{Device, Geometry, Product};
use super::kernels::{Family, Kernel};
use super::params::*;
use crate::backend::Shape;
use crate::{Dtype, Result};

const EMBED: Family = Family::new("embed_*");
const PREPARE: Family = Family::new("prepare_*");
const QKV: Family = Family::new("qkv_*");
const QKV_BATCH: Family = Family::new("qkv_batch_*");
const QKV_PREFILL: Family = Family::new("qkv_prefill_*");
const APPEND: Family = Family::new("append_*");
const ATTEND: Family = Family::new("attend_*");
const ATTEND_PREFILL_32: Family = Family::new("attend_prefill_*_32");
const ATTEND_PREFILL_64: Family = Family::new("attend_prefill_*_64");
const ATTEND_PREFILL_128: Family = Family::new("attend_prefill_*_128");
const ATTEND_HOPPER_64: Family = Family::new("attend_hopper_*_64");
const ATTEND_HOPPER_128: Family = Family::new("attend_hopper_*_128");
const ATTEND_PREFILL_FMA: Family = Family::new("attend_prefill_fma_*");
const MATMUL_ADD: Family = Family::new("matmul_add_*");
const MATMUL_ADD_BATCH: Family = Family::new("matmul_add_batch_*");
const MATMUL_ADD_PREFILL: Family = Family::new("matmul_add_prefill_*");
/// The kernels with tiles of 128 x 256 and of 128 x 128. For quantised weights the 256 counts
/// activation rows.
type Hopper = [Family; 2];
const QKV_HOPPER: Hopper = [
    Family::new("qkv_hopper_*"),
    Family::new("qkv_hopper_half_*"),
];
const MATMUL_ADD_HOPPER: Hopper = [
    Family::new("matmul_add_hopper_*"),
    Family::new("matmul_add_hopper_half_*"),
];
const FFN_UP_HOPPER: Hopper = [
    Family::new("ffn_up_hopper_*"),
    Family::new("ffn_up_hopper_half_*"),
];
const FFN_UP: Family = Family::new("ffn_up_*");
const FFN_UP_BATCH: Family = Family::new("ffn_up_batch_*");
const FFN_UP_PREFILL: Family = Family::new("ffn_up_prefill_*");
const LOGITS: Family = Family::new("logits_*");
const LOGITS_BATCH: Family = Family::new("logits_batch_*");
const SAMPLE: Kernel = Kernel::named("sample");
const QKV_PLACE: Kernel = Kernel::named("qkv_place");
const FFN_JOIN: Family = Family::new("ffn_join_*");

fn run<D: Device>(
    device: &D,
    kernel: Kernel,
    grid: [u32; 3],
    shared: u32,
    params: &impl Params,
) -> Result<()> {
    run_as(device, kernel, grid, shared, params, false)
}

/// Runs a kernel that calls `wait_for_last` (kernels/gpu.h).
fn run_dependent<D: Device>(
    device: &D,
    kernel: Kernel,
    grid: [u32; 3],
    shared: u32,
    params: &impl Params,
) -> Result<()> {
    run_as(device, kernel, grid, shared, params, true)
}

fn run_as<D: Device>(
    device: &D,
    kernel: Kernel,
    grid: [u32; 3],
    shared: u32,
    params: &impl Params,
    dependent: bool,
) -> Result<()> {
    if grid.contains(&0) {
        return Ok(());
    }
    let geometry = Geometry {
        grid,
        block: [kernel.threads(), 1, 1],
        shared,
        dependent,
    };
    // SAFETY: every caller below pairs a kernel with its own struct. The addresses in it are
    // addresses of live memory that `mod.rs` allocated for this use.
    unsafe { device.launch(kernel, geometry, params.bytes()) }
}

/// Runs recorded launches.
pub(super) fn replay<D: Device>(device: &D, graph: &D::Graph) -> Result<()> {
    // SAFETY: the launches were recorded from functions below, so their addresses are those of the
    // backend's own memory and of the runner's weights, cache and buffers. All of these live as
    // long as steps are run (`Backend::record`'s contract).
    unsafe { device.replay(graph) }
}

/// Whether a decode product with so many rows reads rows that `prepare` has rounded. If it rounded
/// more rows itself, every block would read more bytes of activations than of weights. The results
/// are the same.
pub(super) fn prepares(dtype: Dtype, n_rows: u32) -> bool {
    match dtype {
        Dtype::F32 => false,
        Dtype::Int4 | Dtype::Nf4 => n_rows > 2,
        _ => n_rows > 4,
    }
}

/// The grid of a batch product: blocks by rows, by pairs of weight rows, and by shares of K.
#[derive(Clone, Copy)]
struct Batch {
    /// Rows of a block.
    rows: u32,
    grid: [u32; 3],
}

impl Batch {
    /// Every block reads all rows, so it has many weight rows. Where that leaves too few blocks for
    /// the multiprocessors of a large GPU, blocks share a K (split-K). The results are the same.
    fn new(pairs: u32, n_rows: u32) -> Self {
        let rows = match n_rows {
            ..=16 => 16,
            17..=32 => 32,
            _ => GPU_BATCH_ROWS,
        };
        let [x, y] = [n_rows.div_ceil(rows), pairs.div_ceil(GPU_BATCH_PAIRS)];
        let splits = match x.saturating_mul(y) {
            GPU_SPLIT_BELOW.. => 1,
            24.. => 4,
            _ => 8,
        };
        let grid = [x, y, splits];
        Batch { rows, grid }
    }

    fn shared(&self, dtype: Dtype) -> u32 {
        let of_eight = match dtype.is_float() || self.rows == GPU_BATCH_ROWS {
            true => GPU_BATCH_SHARED,
            false => GPU_BATCH_SHARED_CODES,
        };
        let levels = match self.grid[2] {
            1 => 2,
            4 => 1,
            _ => 0,
        };
        GPU_TABLE_BYTES + self.rows / 8 * (of_eight + levels * GPU_BATCH_LEVEL)
    }

    fn scratch(&self) -> u64 {
        let [x, y, splits] = self.grid.map(u64::from);
        match splits {
            1 => 0,
            _ => x * y * splits * 512 * u64::from(self.rows),
        }
    }
}

/// Bytes of the counters and sums of blocks that share a K, in steps with up to `most_rows` rows,
/// including padding.
pub(super) fn scratch_bytes(shape: &Shape, most_rows: usize) -> u64 {
    let pairs = |rows: usize| u32::try_from(rows.div_ceil(2)).unwrap_or(u32::MAX);
    let products = [
        pairs(shape.q_dim() + 2 * shape.kv_dim()),
        pairs(shape.dim),
        pairs(2 * shape.ffn_dim),
        pairs(shape.vocab_size),
    ];
    let most_rows = u32::try_from(most_rows).unwrap_or(u32::MAX);
    // Every number of rows that makes a difference; with more rows nothing is split.
    let groups = (1..GPU_SPLIT_BELOW).map(|n| n * GPU_BATCH_ROWS);
    let rows = [16, 32].into_iter().chain(groups).map(|n| n.min(most_rows));
    let sums = rows.flat_map(|n| products.map(|pairs| Batch::new(pairs, n).scratch()));
    sums.max().unwrap_or(0) + 4 * u64::from(GPU_SPLIT_BELOW)
}

/// A decode product.
struct Decode {
    few: &'static Family,
    /// Whether `few` applies norm and rounding to the rows itself.
    rounds: bool,
    batch: &'static Family,
    /// Pairs of weight rows; one thread gets both sums of a pair.
    pairs: u32,
    /// For float32: number of blocks, and shared memory.
    float: (u32, u32),
}

impl Decode {
    /// Runs the product with `params(splits)`, where `splits` is how many blocks of a batch share a
    /// K.
    fn run<D: Device, P: Params>(
        &self,
        d: &D,
        dtype: Dtype,
        n_rows: u32,
        params: impl Fn(u32) -> P,
    ) -> Result<()> {
        let batch = Batch::new(self.pairs, n_rows);
        let params = &params(batch.grid[2]);
        if prepares(dtype, n_rows) {
            let kernel = self.batch.of(dtype)?;
            return run_dependent(d, kernel, batch.grid, batch.shared(dtype), params);
        }
        let (across, shared) = match dtype {
            Dtype::F32 => self.float,
            _ if !self.rounds => (self.pairs.div_ceil(8), GPU_TABLE_BYTES + 4096),
            Dtype::F16 | Dtype::Bf16 => (self.pairs.div_ceil(8), GPU_FEW_SHARED + 4096 * 2),
            Dtype::Int8 | Dtype::Fp8 => (self.pairs.div_ceil(8), GPU_FEW_SHARED + 4096 * 4),
            _ => (self.pairs.div_ceil(8), GPU_FEW_SHARED + 4096 * 8),
        };
        let grid = [across, n_rows.div_ceil(GPU_FEW_ROWS), 1];
        run_dependent(d, self.few.of(dtype)?, grid, shared, params)
    }
}

/// The grid and the shared memory of a tiled product with `n` columns. A block has `cols` columns
/// for 16-bit weights, half as many for float32.
fn gemm(dtype: Dtype, n: u32, cols: u32, n_rows: u32) -> ([u32; 3], u32) {
    match dtype {
        Dtype::F32 => ([n.div_ceil(cols / 2), n_rows.div_ceil(64), 1], 20_480),
        _ => {
            let shared = if dtype.is_float() { 49_152 } else { 66_048 };
            ([n.div_ceil(cols), n_rows.div_ceil(128), 1], shared)
        }
    }
}

/// Runs a product of `n` columns with tiles of `cols` columns. (With quantised weights a tile has
/// half as many columns, and 256 rows instead of 128.) Blocks with the same weights are neighbours.
///
/// Half tiles are used if they take under 3/4 of the time, because they cost 4/3 of the L2 traffic.
/// Half tiles with one warpgroup in each block are used if all these blocks then fit on the GPU at
/// once. The choice depends on the number of rows, so all variants must give the same bits. They do
/// in the emulator, and tests/gpu/day.sh checks it on hardware.
fn hopper<D: Device, P: Params>(
    device: &D,
    [whole, half]: &Hopper,
    dtype: Dtype,
    [n, cols, n_rows]: [u32; 3],
    params: impl Fn(u32) -> P,
) -> Result<()> {
    let grid = |rows, cols| [n_rows.div_ceil(rows), n.div_ceil(cols), 1];
    let rounds = |[x, y, _]: [u32; 3]| x.saturating_mul(y).div_ceil(device.multiprocessors());
    let smaller = grid(128, cols / 2);
    let (larger, smallest, shared) = match dtype.is_float() {
        true => (
            grid(128, cols),
            grid(64, cols / 2),
            [GPU_HOPPER_SHARED, GPU_HOPPER_HALF_SHARED],
        ),
        false => (
            grid(256, cols / 2),
            grid(128, cols / 4),
            [GPU_CODES_SHARED, GPU_CODES_HALF_SHARED],
        ),
    };
    if 2 * rounds(smaller) >= 3 * rounds(larger) {
        return run(device, whole.of(dtype)?, larger, shared[0], &params(2));
    }
    let (grid, groups) = match smallest == smaller || rounds(smallest) == 1 {
        true => (smallest, 1),
        false => (smaller, 2),
    };
    let kernel = half.of(dtype)?;
    run(device, kernel, grid, shared[1], &params(groups))
}

pub(super) fn embed<D: Device>(d: &D, dtype: Dtype, p: &EmbedParams) -> Result<()> {
    run(d, EMBED.of(dtype)?, [p.n_rows, 1, 1], 0, p)
}

pub(super) fn prepare<D: Device>(d: &D, dtype: Dtype, p: &PrepareParams) -> Result<()> {
    run_dependent(d, PREPARE.of(dtype)?, [p.n_rows, 1, 1], 32, p)
}

fn qkv_rows(p: &QkvParams) -> u32 {
    (p.n_heads + 2 * p.n_kv_heads) * p.head_dim
}

pub(super) fn qkv<D: Device>(d: &D, dtype: Dtype, p: &QkvParams) -> Result<()> {
    let n = qkv_rows(p);
    let product = Decode {
        few: &QKV,
        rounds: true,
        batch: &QKV_BATCH,
        pairs: n / 2,
        float: (n.div_ceil(16), 0),
    };
    product.run(d, dtype, p.n_rows, |splits| QkvParams { splits, ..*p })
}

pub(super) fn qkv_prefill<D: Device>(d: &D, dtype: Dtype, p: &QkvParams) -> Result<()> {
    let (grid, shared) = gemm(dtype, qkv_rows(p), 128, p.n_rows);
    run(d, QKV_PREFILL.of(dtype)?, grid, shared, p)
}

pub(super) fn qkv_hopper<D: Device>(d: &D, dtype: Dtype, p: &QkvHopperParams) -> Result<()> {
    let sizes = [qkv_rows(&p.p), 256, p.p.n_rows];
    hopper(d, &QKV_HOPPER, dtype, sizes, |groups| QkvHopperParams {
        groups,
        ..*p
    })
}

/// Runs after qkv if the cache has scales.
pub(super) fn append<D: Device>(d: &D, kv: Dtype, p: &AppendParams) -> Result<()> {
    let grid = [2 * p.n_kv_heads, p.n_rows, 1];
    run_dependent(d, APPEND.of(kv)?, grid, 0, p)
}

pub(super) fn attend<D: Device>(d: &D, kv: Dtype, p: &AttendParams) -> Result<()> {
    let grid = [p.n_kv_heads, p.max_splits, p.n_rows];
    let shared = 4160 + 96 * p.head_stride;
    run_dependent(d, ATTEND.of(kv)?, grid, shared, p)
}

/// Uses tensor cores. `kv` is not f32, and `head_stride` is at most 128.
pub(super) fn attend_prefill<D: Device>(d: &D, kv: Dtype, p: &AttendPrefillParams) -> Result<()> {
    let (family, width) = match p.head_stride {
        ..=32 => (&ATTEND_PREFILL_32, 32),
        33..=64 => (&ATTEND_PREFILL_64, 64),
        _ => (&ATTEND_PREFILL_128, 128),
    };
    let grid = [p.n_heads, p.n_tiles, 1];
    run(d, family.of(kv)?, grid, 512 * width, p)
}

/// Reads the cache through its tensor maps, in tiles of 128 rows.
pub(super) fn attend_hopper<D: Device>(d: &D, kv: Dtype, p: &AttendHopperParams) -> Result<()> {
    let (family, width) = match p.p.head_stride {
        ..=64 => (&ATTEND_HOPPER_64, 64),
        _ => (&ATTEND_HOPPER_128, 128),
    };
    let grid = [p.p.n_heads, p.p.n_tiles, 1];
    run(d, family.of(kv)?, grid, 1280 * width + 128, p)
}

pub(super) fn attend_prefill_fma<D: Device>(
    d: &D,
    kv: Dtype,
    p: &AttendPrefillParams,
) -> Result<()> {
    let shared = 4160 + 96 * p.head_stride;
    let grid = [p.n_heads, p.n_tiles, 1];
    run(d, ATTEND_PREFILL_FMA.of(kv)?, grid, shared, p)
}

pub(super) fn matmul_add<D: Device>(d: &D, dtype: Dtype, p: &MatmulAddParams) -> Result<()> {
    let product = Decode {
        few: &MATMUL_ADD,
        rounds: false,
        batch: &MATMUL_ADD_BATCH,
        pairs: p.n.div_ceil(2),
        float: (p.n.div_ceil(4), 512),
    };
    product.run(d, dtype, p.n_rows, |splits| MatmulAddParams {
        splits,
        ..*p
    })
}

pub(super) fn matmul_add_prefill<D: Device>(
    d: &D,
    dtype: Dtype,
    p: &MatmulAddParams,
) -> Result<()> {
    let (grid, shared) = gemm(dtype, p.n, 128, p.n_rows);
    run(d, MATMUL_ADD_PREFILL.of(dtype)?, grid, shared, p)
}

pub(super) fn matmul_add_hopper<D: Device>(
    d: &D,
    dtype: Dtype,
    p: &MatmulAddHopperParams,
) -> Result<()> {
    let sizes = [p.p.n, 256, p.p.n_rows];
    hopper(d, &MATMUL_ADD_HOPPER, dtype, sizes, |groups| {
        MatmulAddHopperParams { groups, ..*p }
    })
}

/// Does a product with a library; `Err` as for [`Device::product`].
pub(super) fn product<D: Device>(
    d: &D,
    product: &Product,
) -> std::result::Result<(), Option<String>> {
    // SAFETY: as for `run_as`. `library.rs` makes products of the parameters that our own kernels
    // would get; their addresses are those of live memory of these sizes. It has compared the size
    // of its buffer with that of the sums.
    unsafe { d.product(product) }
}

/// The epilogue of qkv after a library's product.
pub(super) fn qkv_place<D: Device>(d: &D, p: &QkvParams) -> Result<()> {
    let grid = [qkv_rows(p).div_ceil(2048), p.n_rows, 1];
    run(d, QKV_PLACE, grid, 0, p)
}

/// The epilogue of ffn_up after a library's product.
pub(super) fn ffn_join<D: Device>(d: &D, dtype: Dtype, p: &FfnUpParams) -> Result<()> {
    let grid = [p.ffn_dim.div_ceil(1024), p.n_rows, 1];
    run(d, FFN_JOIN.of(dtype)?, grid, 0, p)
}

pub(super) fn ffn_up<D: Device>(d: &D, dtype: Dtype, p: &FfnUpParams) -> Result<()> {
    let product = Decode {
        few: &FFN_UP,
        rounds: true,
        batch: &FFN_UP_BATCH,
        pairs: p.ffn_dim,
        float: (p.ffn_dim.div_ceil(8), 0),
    };
    product.run(d, dtype, p.n_rows, |splits| FfnUpParams { splits, ..*p })
}

pub(super) fn ffn_up_prefill<D: Device>(d: &D, dtype: Dtype, p: &FfnUpParams) -> Result<()> {
    let (grid, shared) = gemm(dtype, p.ffn_dim, 64, p.n_rows);
    run(d, FFN_UP_PREFILL.of(dtype)?, grid, shared, p)
}

pub(super) fn ffn_up_hopper<D: Device>(d: &D, dtype: Dtype, p: &FfnUpHopperParams) -> Result<()> {
    let sizes = [p.p.ffn_dim, 128, p.p.n_rows];
    hopper(d, &FFN_UP_HOPPER, dtype, sizes, |groups| {
        FfnUpHopperParams { groups, ..*p }
    })
}

pub(super) fn logits<D: Device>(d: &D, dtype: Dtype, p: &LogitsParams) -> Result<()> {
    let product = Decode {
        few: &LOGITS,
        rounds: true,
        batch: &LOGITS_BATCH,
        pairs: p.vocab_size.div_ceil(2),
        float: (p.vocab_size.div_ceil(16), 0),
    };
    product.run(d, dtype, p.n_rows, |splits| LogitsParams { splits, ..*p })
}

pub(super) fn sample<D: Device>(d: &D, p: &SampleParams) -> Result<()> {
    run_dependent(d, SAMPLE, [p.n_rows, 1, 1], GPU_SAMPLE_SHARED, p)
}

#[cfg(test)]
mod tests {
    use super::super::step::bucket;
    use super::*;

    #[test]
    fn blocks_that_share_a_k_have_room_for_their_sums() {
        for (dim, ffn_dim, vocab_size) in [(8, 24, 40), (2048, 8192, 128_256), (4096, 14_336, 512)]
        {
            let shape = Shape {
                dim,
                n_layers: 1,
                n_heads: dim / 8,
                n_kv_heads: 1,
                head_dim: 8,
                ffn_dim,
                vocab_size,
                norm_eps: 1e-5,
            };
            let products = [dim + 16, dim, 2 * ffn_dim, vocab_size].map(|n| n as u32 / 2);
            let mut most = 0;
            for max_rows in [1, 5, 16, 17, 33, 64, 65, 200, 5000] {
                let room = scratch_bytes(&shape, bucket(max_rows));
                for n_rows in (1..=max_rows).map(|n| bucket(n) as u32) {
                    for pairs in products {
                        let batch = Batch::new(pairs, n_rows);
                        let [x, y, splits] = batch.grid;
                        assert!(
                            splits == 1 || x * y < GPU_SPLIT_BELOW,
                            "a counter for each tile"
                        );
                        let needed = batch.scratch() + 4 * u64::from(GPU_SPLIT_BELOW);
                        assert!(needed <= room, "{pairs} pairs, {n_rows} of {max_rows} rows");
                        most = most.max(needed);
                    }
                }
                assert_eq!(room, most, "and no more than that");
            }
        }
    }
}
