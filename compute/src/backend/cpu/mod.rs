//! The CPU backend.
//!
//! | file | what it knows |
//! |---|---|
//! | `ops`, `step` | the operations of [`super::Backend`]; the rows of a step |
//! | `exchange` | what several ranks of a model add up and put together |
//! | [`simd`] | one vector of sixteen f32, once per instruction set (U) |
//! | [`detect`] | which instruction set is used |
//! | [`pool`] | threads, and parts of arrays for them to write (U) |
//! | [`buf`], [`memory`] | memory whose lack is an error, not an abort (U); how much there is |
//! | `element`, `run`, `mat` | storage formats; packed weights with one format; whole matrices |
//! | `pack` | how stored tensors become packed weights |
//! | `blocks`, `encode` | quantised weights; quantising |
//! | `multiply` | which arithmetic rows have |
//! | `rows`, `product` | RMSNorm and packed activations; matrix products in float32 |
//! | `lora` | what adapters of requests add to products |
//! | `strips`, `results` | how products are cut into tasks; what becomes of their sums |
//! | [`amx`] | products of bfloat16 tiles (U) |
//! | `panels_amx`, `weights_amx` | prompt rows as tiles; weights as tiles |
//! | `product_amx`, `results_amx` | matrix products with them; what becomes of their sums |
//! | `words` | packed activations of integers and of bfloat16 |
//! | `integers` | matrix products with quantised weights as integers |
//! | `product_bf16` | matrix products of bfloat16 without tiles |
//! | `kv`, `attention` | the paged cache and RoPE; attention over it |
//! | `exp` | the exponential and SiLU |
//!
//! [`selftest`] compares all kernels with their slow twins, in float64.

#[cfg(target_arch = "x86_64")]
pub mod amx;
pub mod buf;
pub mod detect;
pub mod memory;
pub mod pool;
pub mod selftest;
pub mod simd;

mod attention;
mod blocks;
mod element;
mod encode;
mod exchange;
mod exp;
mod integers;
mod kv;
mod lora;
mod mat;
mod multiply;
mod ops;
mod pack;
#[cfg(target_arch = "x86_64")]
mod panels_amx;
mod product;
#[cfg(target_arch = "x86_64")]
mod product_amx;
mod product_bf16;
mod results;
#[cfg(target_arch = "x86_64")]
mod results_amx;
mod rows;
mod run;
mod step;
mod strips;
#[cfg(target_arch = "x86_64")]
mod weights_amx;
mod words;

pub use exchange::CpuExchange;
pub use kv::CpuKv;
pub use mat::CpuMat;
pub use memory::available_bytes;
pub use multiply::Precision;

use super::{RopeTable, Shape};
use crate::quant::Quant;
use crate::{Dtype, Error, Result};
use buf::Mem;
use detect::Tier;
use multiply::Rows;
#[cfg(target_arch = "x86_64")]
use panels_amx::TilePanels;
use pool::{Grid, Pool, Tasks};
use rows::Panels;
use std::sync::{Mutex, MutexGuard};
use step::Loaded;
use words::Words;

/// Positions in one page of the cache: the lanes of a vector.
const PAGE: usize = simd::LANES;

/// Activations.
#[derive(Debug)]
pub struct CpuBuf {
    data: Mem<f32>,
    width: usize,
    /// Whether prompt rows are not in `data` but, as tiles, in [`Cpu::hidden`].
    tiled: bool,
}

impl CpuBuf {
    fn new(what: &str, rows: usize, width: usize) -> Result<Self> {
        Ok(Self {
            data: Mem::zeroed(what, rows.saturating_mul(width))?,
            width,
            tiled: false,
        })
    }

    fn none() -> Self {
        Self {
            data: Mem::none(),
            width: 0,
            tiled: false,
        }
    }
}

/// Threads that the process may use at the same time: its affinity mask and its cgroup's quota.
pub fn usable_threads() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

/// How many threads `n_threads` asks for; 0: [`usable_threads`].
fn threads(n_threads: usize) -> usize {
    match n_threads {
        0 => usable_threads(),
        n => n,
    }
}

/// The CPU this process runs on.
pub struct Cpu {
    tier: Tier,
    pool: Pool,
    shape: Shape,
    rope: RopeTable,
    /// For heads that RoPE does not rotate, or has rotated already.
    still: RopeTable,
    step: Loaded,
    plan: attention::Plan,
    panels: Panels,
    #[cfg(target_arch = "x86_64")]
    tiles: TilePanels,
    /// Output of w1|w3 for prompt rows: the input of w2.
    #[cfg(target_arch = "x86_64")]
    hidden: TilePanels,
    words: Words,
    precision: Precision,
    /// What adapters make of the rows' inputs, `[max_rows, lora::WIDTH]`.
    thin: Mem<f32>,
    /// Output of the q|k|v product, `[max_rows, parts padded to strips]`.
    qkv: CpuBuf,
    /// One buffer for each thread.
    scratch: Vec<Mutex<Mem<f32>>>,
}

/// The threads, their instruction set, and scratch memory for each.
#[derive(Clone, Copy)]
struct Workers<'a> {
    pool: &'a Pool,
    tier: Tier,
    scratch: &'a [Mutex<Mem<f32>>],
}

/// The scratch memory of `thread`. It is free, because a thread has one task at a time. What an
/// earlier panic left in it does not matter: every task writes before it reads.
fn lock(scratch: &[Mutex<Mem<f32>>], thread: usize) -> MutexGuard<'_, Mem<f32>> {
    scratch[thread].lock().unwrap_or_else(|e| e.into_inner())
}

/// Columns of the q|k|v product with its parts padded.
fn qkv_width(shape: &Shape) -> usize {
    let pad = |n: usize| n.next_multiple_of(simd::LANES);
    pad(shape.q_dim()) + 2 * pad(shape.kv_dim())
}

/// The widest input of a product.
fn widest(shape: &Shape) -> usize {
    shape.dim.max(shape.q_dim()).max(shape.ffn_dim)
}

/// Numbers of scratch that a thread needs.
fn scratch_len(shape: &Shape, max_rows: usize) -> usize {
    let len = product::scratch_len(max_rows)
        .max(integers::scratch_len(max_rows))
        .max(product_bf16::scratch_len(max_rows))
        .max(attention::scratch_len(shape));
    #[cfg(target_arch = "x86_64")]
    let len = len.max(product_amx::scratch_len(max_rows));
    len
}

/// Number of 16-bit numbers in the tiles of `rows` rows.
fn tiles_len(rows: usize, cols: usize) -> usize {
    #[cfg(target_arch = "x86_64")]
    return panels_amx::panels_len(rows, cols);
    #[cfg(not(target_arch = "x86_64"))]
    0
}

/// [`Quant::encode`] on all threads of a pool.
fn quantise(
    tier: Tier,
    pool: &Pool,
    quant: Quant,
    cols: usize,
    values: &[f32],
    codes: &mut [u8],
    scales: &mut [f32],
) {
    let rows = values.len() / cols;
    let each = rows.div_ceil(4 * pool.n_threads()).max(1);
    let parts = (
        Grid::pieces(codes, each * quant.code_bytes(cols)),
        Grid::pieces(scales, each * quant.scales(cols)),
    );
    pool.run(parts, |task, _, (mut codes, mut scales)| {
        let rows = task * each..rows.min((task + 1) * each);
        tier.run(encode::Encode {
            quant,
            cols,
            values: &values[rows.start * cols..rows.end * cols],
            codes: codes.row(0),
            scales: scales.row(0),
        });
    });
}

/// Threads of the host that read, convert and quantise a checkpoint for a backend whose device does
/// not.
pub struct HostThreads {
    tier: Tier,
    pool: Pool,
}

impl HostThreads {
    /// With a thread for each processor.
    pub fn new() -> Result<HostThreads> {
        Ok(HostThreads {
            tier: Tier::vectors(),
            pool: Pool::new(usable_threads())?,
        })
    }

    /// As [`super::Backend::each`].
    pub fn each(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        self.pool.run(Tasks(tasks), |i, _, ()| task(i));
    }

    /// As [`super::Backend::quantise`].
    pub fn quantise(
        &self,
        quant: Quant,
        cols: usize,
        values: &[f32],
        codes: &mut [u8],
        scales: &mut [f32],
    ) {
        quantise(self.tier, &self.pool, quant, cols, values, codes, scales);
    }
}

impl Cpu {
    /// `n_threads` 0: [`usable_threads`]. `max_rows` bounds the rows of a step.
    pub fn new(shape: &Shape, rope: RopeTable, n_threads: usize, max_rows: usize) -> Result<Cpu> {
        Self::with_tier(shape, rope, n_threads, max_rows, Tier::choose()?)
    }

    /// As [`Cpu::new`], with these instructions.
    pub fn with_tier(
        shape: &Shape,
        rope: RopeTable,
        n_threads: usize,
        max_rows: usize,
        tier: Tier,
    ) -> Result<Cpu> {
        let n_threads = threads(n_threads);
        let half = shape.head_dim / 2;
        if half == 0 || shape.head_dim % 2 == 1 || rope.cos.len() != rope.sin.len() {
            let got = format!("{} with {} cosines", shape.head_dim, rope.cos.len());
            return Err(Error::invalid(
                "head_dim",
                "even, with a table of angles for it",
                got,
            ));
        }
        if shape.n_kv_heads == 0 || !shape.n_heads.is_multiple_of(shape.n_kv_heads) {
            let got = format!("{} for {} query heads", shape.n_kv_heads, shape.n_heads);
            return Err(Error::invalid(
                "n_kv_heads",
                "a divisor of the query heads",
                got,
            ));
        }
        let max_positions = rope.cos.len() / half;
        let per_thread = scratch_len(shape, max_rows);
        let scratch = (0..n_threads)
            .map(|_| Mem::zeroed("scratch of a thread", per_thread).map(Mutex::new))
            .collect::<Result<_>>()?;
        let pages = max_rows.saturating_mul(max_positions.div_ceil(PAGE));
        Ok(Cpu {
            tier,
            pool: Pool::new(n_threads)?,
            step: Loaded::new(max_rows, pages)?,
            plan: attention::Plan::new(
                shape,
                max_rows,
                max_positions,
                n_threads,
                tier.has_tiles() || tier.has_bf16(),
            )?,
            panels: Panels::new(max_rows, widest(shape))?,
            #[cfg(target_arch = "x86_64")]
            tiles: TilePanels::new(tier.amx().map_or(0, |_| max_rows), widest(shape))?,
            #[cfg(target_arch = "x86_64")]
            hidden: TilePanels::new(tier.amx().map_or(0, |_| max_rows), shape.ffn_dim)?,
            words: Words::new(max_rows, widest(shape))?,
            precision: Precision::Full,
            thin: Mem::zeroed("rows of adapters", max_rows.saturating_mul(lora::WIDTH))?,
            qkv: CpuBuf::new("q, k and v", max_rows, qkv_width(shape))?,
            scratch,
            shape: shape.clone(),
            rope,
            still: kv::still(shape.head_dim)?,
        })
    }

    /// With this precision; [`Precision::Full`] at first.
    pub fn precision(mut self, precision: Precision) -> Cpu {
        self.precision = precision;
        self
    }

    /// Whether prompt rows are multiplied as tiles, unless weights are float32.
    pub fn has_tiles(&self) -> bool {
        self.tier.has_tiles()
    }

    /// What was found and chosen: "AVX-512, 2 threads".
    pub fn description(&self) -> String {
        let n = self.pool.n_threads();
        format!(
            "{}, {n} thread{}{}",
            self.tier.name(),
            if n == 1 { "" } else { "s" },
            match self.precision {
                Precision::Fast(_) => ", fast precision",
                _ if self.precision.is_full(self.tier, Dtype::Bf16) => "",
                _ if self.precision.is_full(self.tier, Dtype::Int8) =>
                    ", generated rows in full precision with most quantised weights",
                _ => ", generated rows for many sequences",
            }
        )
    }
}
