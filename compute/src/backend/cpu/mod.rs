//! The CPU backend.
//!
//! | file | what it knows |
//! |---|---|
//! | `ops`, `step` | the operations of [`super::Backend`]; the rows of a step |
//! | [`simd`] | one vector of sixteen f32, once per instruction set (U) |
//! | [`detect`] | which instruction set is used |
//! | [`pool`] | threads, and parts of arrays for them to write (U) |
//! | [`buf`], [`memory`] | memory whose lack is an error, not an abort (U); how much there is |
//! | `element`, `run`, `mat` | storage formats; packed weights with one format; whole matrices |
//! | `pack` | how stored tensors become packed weights |
//! | `blocks`, `encode` | quantised weights; quantising |
//! | `rows`, `product` | RMSNorm and packed activations; matrix products in float32 |
//! | `lora` | what adapters of requests add to products |
//! | `strips` | how products are cut into tasks, and what happens to their sums |
//! | [`amx`] | products of bfloat16 tiles (U) |
//! | `panels_amx`, `product_amx` | prompt rows as tiles; matrix products with them |
//! | `product_i16`, `many_i16` | matrix products with quantised weights as integers; of many rows |
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
mod exp;
mod kv;
mod lora;
mod many_i16;
mod mat;
mod ops;
mod pack;
#[cfg(target_arch = "x86_64")]
mod panels_amx;
mod product;
#[cfg(target_arch = "x86_64")]
mod product_amx;
mod product_i16;
mod rows;
mod run;
mod step;
mod strips;

pub use kv::CpuKv;
pub use mat::CpuMat;
pub use memory::available_bytes;

use super::{RopeTable, RowKind, Shape};
use crate::quant::Quant;
use crate::{Error, Result};
use buf::Mem;
use detect::Tier;
use mat::Run;
#[cfg(target_arch = "x86_64")]
use panels_amx::TilePanels;
use pool::{Grid, Pool};
use product::{Ending, Finish, Target, product};
use product_i16::IntRows;
use rows::{Norm, Panels};
use std::sync::{Mutex, MutexGuard};
use step::{ALL, Loaded, Picks, kind_index};

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
    step: Loaded,
    plan: attention::Plan,
    panels: Panels,
    #[cfg(target_arch = "x86_64")]
    tiles: TilePanels,
    /// Output of w1|w3 for prompt rows: the input of w2.
    #[cfg(target_arch = "x86_64")]
    hidden: TilePanels,
    integers: IntRows,
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
        .max(product_i16::scratch_len(max_rows))
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

/// [`Quant::encode`] on all threads, for a backend whose device does not quantise.
pub struct Quantiser {
    tier: Tier,
    pool: Pool,
}

impl Quantiser {
    /// With a thread for each processor.
    pub fn new() -> Result<Quantiser> {
        Ok(Quantiser {
            tier: Tier::choose()?,
            pool: Pool::new(usable_threads())?,
        })
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
                tier.has_tiles(),
            )?,
            panels: Panels::new(max_rows, widest(shape))?,
            #[cfg(target_arch = "x86_64")]
            tiles: TilePanels::new(tier.amx().map_or(0, |_| max_rows), widest(shape))?,
            #[cfg(target_arch = "x86_64")]
            hidden: TilePanels::new(tier.amx().map_or(0, |_| max_rows), shape.ffn_dim)?,
            integers: IntRows::new(max_rows, widest(shape))?,
            thin: Mem::zeroed("rows of adapters", max_rows.saturating_mul(lora::WIDTH))?,
            qkv: CpuBuf::new("q, k and v", max_rows, qkv_width(shape))?,
            scratch,
            shape: shape.clone(),
            rope,
        })
    }

    /// What was found and chosen: "AVX-512, 2 threads".
    pub fn description(&self) -> String {
        let n = self.pool.n_threads();
        format!(
            "{}, {n} thread{}",
            self.tier.name(),
            if n == 1 { "" } else { "s" }
        )
    }

    /// Multiplies rows of `x`, one run of weights after another.
    fn multiply(
        &mut self,
        out: &mut CpuBuf,
        w: &CpuMat,
        x: Rows<'_>,
        norm: Option<Norm<'_>>,
        finish: Finish,
    ) {
        let place = lora::Place::of(w).filter(|_| self.step.has_adapters());
        if let Some(place) = place {
            let workers = Workers {
                pool: &self.pool,
                tier: self.tier,
                scratch: &self.scratch,
            };
            let row = |from: usize| &x.buf.data[from * x.buf.width..][..x.buf.width];
            lora::shrink(workers, &self.step, place, row, norm, &mut self.thin);
        }
        match (finish, &w.runs[..]) {
            (Finish::SwiGlu, [gate, up]) => {
                self.multiply_run(out, gate, x, norm, Finish::Store, place);
                self.multiply_run(out, up, x, norm, Finish::Gated, place);
            }
            (_, runs) => {
                for run in runs {
                    self.multiply_run(out, run, x, norm, finish, place);
                }
            }
        }
    }

    /// Prompt rows with tiles where there are tiles and the weights allow it. Where the weights are
    /// quantised, generated rows as integers, and prompt rows too if the tier has pairs. All others
    /// in float32.
    fn multiply_run(
        &mut self,
        out: &mut CpuBuf,
        w: &Run,
        x: Rows<'_>,
        norm: Option<Norm<'_>>,
        finish: Finish,
        place: Option<lora::Place>,
    ) {
        let Self {
            tier,
            pool,
            panels,
            integers,
            scratch,
            step,
            thin,
            ..
        } = self;
        let picks = if x.wanted { &step.wanted } else { &step.rows };
        let stride = out.width;
        #[cfg(target_arch = "x86_64")]
        let tiled = out.tiled;
        let out = &mut out.data[..picks[ALL].to.len() * stride];
        let first = match finish {
            Finish::Gated => 0,
            _ => w.first * simd::LANES,
        };
        let columns = first..stride.min(first + w.strips() * simd::LANES);
        let workers = Workers {
            pool,
            tier: *tier,
            scratch,
        };
        let row = |from: u32| &x.buf.data[from as usize * x.buf.width..][..x.buf.width];
        let low = place.map(|place| lora::Low::new(step, place, w, thin));
        let ending = Ending { finish, low };
        let [prompt, generated] = [RowKind::Prefill, RowKind::Decode].map(kind_index);
        // Which rows are left for float32.
        let mut left = [true; 2];
        #[cfg(target_arch = "x86_64")]
        if let Some(amx) = tier.amx().filter(|_| product_amx::takes(w.dtype)) {
            left[0] = false;
            let Picks { from, to } = &picks[prompt];
            if !to.is_empty() {
                let (tiles, hidden) = (&mut self.tiles, &mut self.hidden);
                if !x.buf.tiled {
                    tiles.fill(pool, *tier, to.len(), |i| row(from[i]), norm);
                }
                let (tiles, into) = match tiled {
                    true => (
                        &*tiles,
                        product_amx::Destination::Panels {
                            out: hidden,
                            cols: stride,
                        },
                    ),
                    false => (
                        if x.buf.tiled { &*hidden } else { &*tiles },
                        product_amx::Destination::Rows(Target {
                            to,
                            out,
                            stride,
                            columns: columns.clone(),
                        }),
                    ),
                };
                product_amx::product(workers, amx, w, tiles, ending, into);
            }
        }
        if let Some(quant) = w.dtype.quant() {
            let prompts_too = left[0] && tier.has_pairs();
            let rows = if prompts_too { ALL } else { generated };
            left = [left[0] && !prompts_too, false];
            let Picks { from, to } = &picks[rows];
            if !to.is_empty() {
                integers.fill(pool, *tier, quant, to.len(), |i| row(from[i]), norm);
                let columns = columns.clone();
                let target = Target {
                    to,
                    out,
                    stride,
                    columns,
                };
                product_i16::product(workers, w, quant, integers, target, ending);
            }
        }
        let Picks { from, to } = match left {
            [true, true] => &picks[ALL],
            [true, false] => &picks[prompt],
            [false, true] => &picks[generated],
            [false, false] => return,
        };
        if !to.is_empty() {
            let side = product::side(*tier, w, to.len());
            panels.fill(pool, *tier, side, to.len(), |i| row(from[i]), norm);
            let target = Target {
                to,
                out,
                stride,
                columns,
            };
            product(workers, w, panels, target, ending);
        }
    }
}

/// Rows of a buffer: all of the step, or those whose logits are wanted.
#[derive(Clone, Copy)]
struct Rows<'a> {
    buf: &'a CpuBuf,
    wanted: bool,
}
