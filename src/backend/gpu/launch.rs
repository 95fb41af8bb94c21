//! A function for each operation and kind of rows. It launches the right kernel with the geometry
//! that `kernels/params.h` states. Only this file launches kernels. (U)
//!
//! The parameters contain addresses. `ops` takes these from live [`super::memory::Memory`] of the
//! sizes that params.h asks for.
#![allow(unsafe_code)]

use super::device::{Device, Geometry, Product, TensorMap};
use super::geometry::{Batch, Grid, Hopper, few, prepares, tiles};
use super::kernels::{Family, Kernel};
use super::params::*;
use crate::backend::RowKind;
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
/// The kernels with whole tiles, 128 x 256, with half tiles, 128 x 128, and, where they exist, with
/// quarter tiles, 64 x 64. A whole tile has 256 columns; for quantised weights, 256 activation rows
/// instead.
const QKV_HOPPER: [Family; 3] = [
    Family::new("qkv_hopper_*"),
    Family::new("qkv_hopper_half_*"),
    Family::new("qkv_hopper_quarter_*"),
];
const MATMUL_ADD_HOPPER: [Family; 3] = [
    Family::new("matmul_add_hopper_*"),
    Family::new("matmul_add_hopper_half_*"),
    Family::new("matmul_add_hopper_quarter_*"),
];
const FFN_UP_HOPPER: [Family; 2] = [
    Family::new("ffn_up_hopper_*"),
    Family::new("ffn_up_hopper_half_*"),
];
const FFN_UP: Family = Family::new("ffn_up_*");
const FFN_UP_BATCH: Family = Family::new("ffn_up_batch_*");
const FFN_UP_PREFILL: Family = Family::new("ffn_up_prefill_*");
const LOGITS: Family = Family::new("logits_*");
const LOGITS_BATCH: Family = Family::new("logits_batch_*");
const CHANGE: Kernel = Kernel::named("change");
const SAMPLE_MAX: Kernel = Kernel::named("sample_max");
const SAMPLE_DRAW: Kernel = Kernel::named("sample_draw");
const SILU_ADD: Kernel = Kernel::named("silu_add");
const REDUCE: Kernel = Kernel::named("reduce");
const REDUCE_PEERS: Kernel = Kernel::named("reduce_peers");
const GATHER: Kernel = Kernel::named("gather");
const QKV_EPILOGUE: Kernel = Kernel::named("qkv_epilogue");
const FFN_UP_EPILOGUE: Family = Family::new("ffn_up_epilogue_*");

/// The kernels for rows of decode, and those for rows of prompts.
type OfKinds = [Family; 2];
const ADAPT_IN: OfKinds = [Family::new("adapt_in_*"), Family::new("adapt_in_prefill_*")];
const ADAPT_OUT: OfKinds = [
    Family::new("adapt_out_*"),
    Family::new("adapt_out_prefill_*"),
];
const ADAPT_UP: OfKinds = [Family::new("adapt_up_*"), Family::new("adapt_up_prefill_*")];

/// Whether there are kernels for weights of this dtype.
pub(super) const fn multiplies(dtype: Dtype) -> bool {
    MATMUL_ADD.has(dtype)
}

fn run<D: Device>(device: &D, kernel: Kernel, grid: Grid, params: &impl Params) -> Result<()> {
    run_as(device, kernel, grid, params, 1, false)
}

/// Launches a kernel that calls `wait_for_last` (kernels/gpu.h), so it may start early.
fn run_dependent<D: Device>(
    device: &D,
    kernel: Kernel,
    grid: Grid,
    params: &impl Params,
) -> Result<()> {
    run_as(device, kernel, grid, params, 1, true)
}

fn run_as<D: Device>(
    device: &D,
    kernel: Kernel,
    grid: Grid,
    params: &impl Params,
    cluster: u32,
    dependent: bool,
) -> Result<()> {
    if grid.blocks.contains(&0) {
        return Ok(());
    }
    let geometry = Geometry {
        grid: grid.blocks,
        block: [kernel.threads(), 1, 1],
        shared: grid.shared,
        cluster,
        dependent,
    };
    // SAFETY: every caller below pairs a kernel with its own struct. The addresses in it are
    // addresses of live memory that `ops` chose for this use.
    unsafe { device.launch(kernel, geometry, params.bytes()) }
}

/// Repeats recorded launches.
pub(super) fn replay<D: Device>(device: &D, graph: &D::Graph) -> Result<()> {
    // SAFETY: the launches were recorded from functions below. So their addresses point to the
    // backend's own memory and to the runner's weights, cache and buffers. All of this memory lives
    // as long as steps are run (`Backend::record`'s contract).
    unsafe { device.replay(graph) }
}

/// Lets the library do a product. The error is as for [`Device::product`].
pub(super) fn product<D: Device>(
    d: &D,
    product: &Product,
) -> std::result::Result<(), Option<String>> {
    // SAFETY: as for `run_as`. `library.rs` makes products of the parameters that our own kernels
    // would get; their addresses point to live memory of the sizes in the parameters. It has
    // compared the size of its buffer with the size of the sums.
    unsafe { d.product(product) }
}

fn blocks(blocks: [u32; 3], shared: u32) -> Grid {
    Grid { blocks, shared }
}

/// A decode product.
struct Decode {
    few: &'static Family,
    /// Whether the kernels of `few` apply norm and rounding to the rows themselves.
    rounds: bool,
    batch: &'static Family,
    /// Number of pairs of weight rows, and of columns. One thread gets both sums of a pair.
    pairs: u32,
    k: u32,
    /// For float32 weights: the number of blocks, and the shared memory.
    float: (u32, u32),
}

impl Decode {
    /// Launches the product with `params(splits)`, where `splits` is the number of blocks that
    /// share a K.
    fn run<D: Device, P: Params>(
        &self,
        d: &D,
        dtype: Dtype,
        n_rows: u32,
        params: impl Fn(u32) -> P,
    ) -> Result<()> {
        let batch = Batch::new(self.pairs, n_rows);
        let params = &params(batch.splits());
        let room = d.room();
        if prepares(dtype, n_rows, self.k, &room) {
            return run_dependent(d, self.batch.of(dtype)?, batch.grid(dtype), params);
        }
        let grid = match dtype {
            Dtype::F32 => blocks(
                [self.float.0, n_rows.div_ceil(GPU_FEW_ROWS), 1],
                self.float.1,
            ),
            _ => few(
                dtype,
                [self.pairs, self.k, n_rows],
                self.rounds,
                d.multiprocessors(),
                &room,
            ),
        };
        run_dependent(d, self.few.of(dtype)?, grid, params)
    }
}

/// Launches a product of `n` columns with tiles of `cols` columns (see [`Hopper::new`]) and with
/// `params(groups, across)`, which are as in `QkvHopperParams`.
fn hopper<D: Device, P: Params>(
    device: &D,
    families: &[Family],
    dtype: Dtype,
    [n, cols, n_rows]: [u32; 3],
    params: impl Fn(u32, u32) -> P,
) -> Result<()> {
    let quarters = families.len() > Hopper::QUARTER && device.quarters();
    let how = Hopper::new(dtype, [n, cols, n_rows], quarters, device.multiprocessors());
    let kernel = families[how.tile].of(dtype)?;
    let params = &params(how.groups, u32::from(how.across));
    run_as(device, kernel, how.grid, params, how.cluster, true)
}

pub(super) fn embed<D: Device>(d: &D, dtype: Dtype, p: &EmbedParams) -> Result<()> {
    run(d, EMBED.of(dtype)?, blocks([p.n_rows, 1, 1], 0), p)
}

pub(super) fn prepare<D: Device>(d: &D, dtype: Dtype, p: &PrepareParams) -> Result<()> {
    run_dependent(d, PREPARE.of(dtype)?, blocks([p.n_rows, 1, 1], 32), p)
}

pub(super) fn silu_add<D: Device>(d: &D, p: &SiluAddParams) -> Result<()> {
    run(d, SILU_ADD, blocks([p.n_rows, 1, 1], 0), p)
}

/// Adds what all ranks have computed.
pub(super) fn reduce<D: Device>(d: &D, p: &ReduceParams) -> Result<()> {
    run(d, REDUCE, blocks([p.n.div_ceil(1024) as u32, 1, 1], 0), p)
}

/// Adds what all ranks have computed, from the memory of their devices.
pub(super) fn reduce_peers<D: Device>(d: &D, p: &ReducePeersParams) -> Result<()> {
    run(d, REDUCE_PEERS, blocks([GPU_PEER_BLOCKS, 1, 1], 0), p)
}

/// Puts the columns of all ranks side by side.
pub(super) fn gather<D: Device>(d: &D, p: &GatherParams) -> Result<()> {
    let grid = [p.share_stride.div_ceil(1024), p.n_rows, p.ranks];
    run(d, GATHER, blocks(grid, 0), p)
}

pub(super) fn qkv<D: Device>(d: &D, dtype: Dtype, p: &QkvParams) -> Result<()> {
    let product = Decode {
        few: &QKV,
        rounds: true,
        batch: &QKV_BATCH,
        pairs: p.n / 2,
        k: p.dim,
        float: (p.n.div_ceil(16), 0),
    };
    product.run(d, dtype, p.n_rows, |splits| QkvParams { splits, ..*p })
}

pub(super) fn qkv_prefill<D: Device>(d: &D, dtype: Dtype, p: &QkvParams) -> Result<()> {
    let grid = tiles(dtype, p.n, 128, p.n_rows);
    run(d, QKV_PREFILL.of(dtype)?, grid, p)
}

pub(super) fn qkv_hopper<D: Device>(
    d: &D,
    dtype: Dtype,
    (x, w): (TensorMap, TensorMap),
    p: &QkvParams,
) -> Result<()> {
    let sizes = [p.n, 256, p.n_rows];
    hopper(d, &QKV_HOPPER, dtype, sizes, |groups, across| {
        QkvHopperParams {
            x,
            w,
            p: *p,
            groups,
            across,
            ..Default::default()
        }
    })
}

/// The epilogue of qkv, after a library has computed the sums.
pub(super) fn qkv_epilogue<D: Device>(d: &D, p: &QkvParams) -> Result<()> {
    let grid = [p.n.div_ceil(2048), p.n_rows, 1];
    run(d, QKV_EPILOGUE, blocks(grid, 0), p)
}

/// Writes K and V to the cache, where qkv does not; applies the norms of heads if there are any.
/// Runs after qkv.
pub(super) fn append<D: Device>(d: &D, kv: Dtype, p: &AppendParams) -> Result<()> {
    let grid = [2 * p.n_kv_heads + p.n_heads, p.n_rows, 1];
    run_dependent(d, APPEND.of(kv)?, blocks(grid, 0), p)
}

pub(super) fn attend<D: Device>(d: &D, kv: Dtype, p: &AttendParams) -> Result<()> {
    let heads = p.n_kv_heads * p.group.div_ceil(GPU_ATTEND_HEADS);
    let grid = [heads, p.max_splits, p.n_rows];
    let tiles = |columns: u32| 512 * columns * kv.size() as u32;
    let shared = match p.head_stride {
        stride if kv == Dtype::F32 => 4128 + 96 * stride,
        ..=64 => tiles(64) + GPU_ATTEND_OTHER,
        65..=128 => tiles(128).min(GPU_ATTEND_SLOTS) + GPU_ATTEND_OTHER,
        _ => GPU_ATTEND_256,
    };
    run_dependent(d, ATTEND.of(kv)?, blocks(grid, shared), p)
}

/// Prefill attention on tensor cores. `kv` must not be f32, and `head_stride` must be at most 128.
pub(super) fn attend_prefill<D: Device>(d: &D, kv: Dtype, p: &AttendPrefillParams) -> Result<()> {
    let (family, width) = match p.head_stride {
        ..=32 => (&ATTEND_PREFILL_32, 32),
        33..=64 => (&ATTEND_PREFILL_64, 64),
        _ => (&ATTEND_PREFILL_128, 128),
    };
    let grid = blocks([p.n_heads, p.n_tiles, 1], 512 * width);
    run(d, family.of(kv)?, grid, p)
}

/// Prefill attention that reads the cache through its tensor maps, in tiles of 128 rows.
pub(super) fn attend_hopper<D: Device>(d: &D, kv: Dtype, p: &AttendHopperParams) -> Result<()> {
    let (family, width) = match p.p.head_stride {
        ..=64 => (&ATTEND_HOPPER_64, 64),
        _ => (&ATTEND_HOPPER_128, 128),
    };
    let grid = blocks([p.p.n_heads, p.p.n_tiles, 1], 1280 * width + 128);
    run_dependent(d, family.of(kv)?, grid, p)
}

pub(super) fn attend_prefill_fma<D: Device>(
    d: &D,
    kv: Dtype,
    p: &AttendPrefillParams,
) -> Result<()> {
    let grid = blocks([p.n_heads, p.n_tiles, 1], 4128 + 96 * p.head_stride);
    run(d, ATTEND_PREFILL_FMA.of(kv)?, grid, p)
}

pub(super) fn matmul_add<D: Device>(d: &D, dtype: Dtype, p: &MatmulAddParams) -> Result<()> {
    let product = Decode {
        few: &MATMUL_ADD,
        rounds: false,
        batch: &MATMUL_ADD_BATCH,
        pairs: p.n.div_ceil(2),
        k: p.k,
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
    let grid = tiles(dtype, p.n, 128, p.n_rows);
    run(d, MATMUL_ADD_PREFILL.of(dtype)?, grid, p)
}

pub(super) fn matmul_add_hopper<D: Device>(
    d: &D,
    dtype: Dtype,
    (y, w): (TensorMap, TensorMap),
    p: &MatmulAddParams,
) -> Result<()> {
    let sizes = [p.n, 256, p.n_rows];
    hopper(d, &MATMUL_ADD_HOPPER, dtype, sizes, |groups, across| {
        MatmulAddHopperParams {
            y,
            w,
            p: *p,
            groups,
            across,
            ..Default::default()
        }
    })
}

pub(super) fn ffn_up<D: Device>(d: &D, dtype: Dtype, p: &FfnUpParams) -> Result<()> {
    let product = Decode {
        few: &FFN_UP,
        rounds: true,
        batch: &FFN_UP_BATCH,
        pairs: p.ffn_dim,
        k: p.dim,
        float: (p.ffn_dim.div_ceil(8), 0),
    };
    product.run(d, dtype, p.n_rows, |splits| FfnUpParams { splits, ..*p })
}

pub(super) fn ffn_up_prefill<D: Device>(d: &D, dtype: Dtype, p: &FfnUpParams) -> Result<()> {
    let grid = tiles(dtype, p.ffn_dim, 64, p.n_rows);
    run(d, FFN_UP_PREFILL.of(dtype)?, grid, p)
}

pub(super) fn ffn_up_hopper<D: Device>(
    d: &D,
    dtype: Dtype,
    (x, w): (TensorMap, TensorMap),
    p: &FfnUpParams,
) -> Result<()> {
    let sizes = [p.ffn_dim, 128, p.n_rows];
    hopper(d, &FFN_UP_HOPPER, dtype, sizes, |groups, across| {
        FfnUpHopperParams {
            x,
            w,
            p: *p,
            groups,
            across,
            ..Default::default()
        }
    })
}

/// The epilogue of ffn_up, after a library has computed the sums.
pub(super) fn ffn_up_epilogue<D: Device>(d: &D, dtype: Dtype, p: &FfnUpParams) -> Result<()> {
    let grid = [p.ffn_dim.div_ceil(1024), p.n_rows, 1];
    run(d, FFN_UP_EPILOGUE.of(dtype)?, blocks(grid, 0), p)
}

pub(super) fn logits<D: Device>(d: &D, dtype: Dtype, p: &LogitsParams) -> Result<()> {
    let product = Decode {
        few: &LOGITS,
        rounds: true,
        batch: &LOGITS_BATCH,
        pairs: p.vocab_size.div_ceil(2),
        k: p.dim,
        float: (p.vocab_size.div_ceil(16), 0),
    };
    product.run(d, dtype, p.n_rows, |splits| LogitsParams { splits, ..*p })
}

/// Launches a kernel of [`OfKinds`] for adapters whose numbers have this type.
fn adapt<D: Device>(
    device: &D,
    families: &OfKinds,
    (dtype, kind): (Dtype, RowKind),
    [across, n_rows, shared]: [u32; 3],
    params: &impl Params,
) -> Result<()> {
    let (family, groups) = match kind {
        RowKind::Decode => (&families[0], n_rows),
        RowKind::Prefill => (&families[1], n_rows.div_ceil(GPU_ADAPT_ROWS)),
    };
    let grid = blocks([across, groups, 1], shared);
    run_dependent(device, family.of(dtype)?, grid, params)
}

/// What adapters make of the input of a product.
pub(super) fn adapt_in<D: Device>(d: &D, of: (Dtype, RowKind), p: &AdaptInParams) -> Result<()> {
    let across = p.n_parts * p.rank / 4;
    adapt(d, &ADAPT_IN, of, [across, p.n_rows, GPU_ADAPT_SHARED], p)
}

/// What they add to its sums.
pub(super) fn adapt_out<D: Device>(d: &D, of: (Dtype, RowKind), p: &AdaptOutParams) -> Result<()> {
    adapt(d, &ADAPT_OUT, of, [p.n.div_ceil(256), p.n_rows, 0], p)
}

/// The same for gate and up, with what follows.
pub(super) fn adapt_up<D: Device>(d: &D, of: (Dtype, RowKind), p: &AdaptUpParams) -> Result<()> {
    let across = p.ffn_dim.div_ceil(256);
    adapt(d, &ADAPT_UP, of, [across, p.n_rows, 0], p)
}

/// The logits that tokens are drawn from in rows that have edits or a mask.
pub(super) fn change<D: Device>(d: &D, p: &ChangeParams) -> Result<()> {
    let grid = [p.vocab_size.div_ceil(GPU_SLICE), p.n_rows, 1];
    run_dependent(d, CHANGE, blocks(grid, 0), p)
}

/// `draws`: whether there are rows for `sample_draw`.
pub(super) fn sample<D: Device>(d: &D, p: &SampleParams, draws: bool) -> Result<()> {
    let grid = [p.vocab_size.div_ceil(GPU_SLICE), p.n_rows, 1];
    run_dependent(d, SAMPLE_MAX, blocks(grid, GPU_SAMPLE_MAX_SHARED), p)?;
    match draws {
        true => run_dependent(d, SAMPLE_DRAW, blocks(grid, GPU_SAMPLE_DRAW_SHARED), p),
        false => Ok(()),
    }
}
