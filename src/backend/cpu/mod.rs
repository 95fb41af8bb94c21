//! The CPU backend.
//!
//! | file | what it knows |
//! |---|---|
//! | [`simd`] | one vector of sixteen f32, once per instruction set (U) |
//! | [`detect`] | which instruction set is used |
//! | [`pool`] | threads, and parts of arrays for them to write (U) |
//! | [`buf`], [`memory`] | memory that is refused, not aborted (U); how much there is |
//! | `element`, `mat` | storage formats; packed weights |
//! | `blocks`, `encode` | quantised weights; quantising |
//! | `rows`, `product` | RMSNorm and packed activations; matrix products in float32 |
//! | `strips` | what the tasks of all products share |
//! | [`amx`], `product_amx` | bfloat16 tiles (U); matrix products of prompt rows with them |
//! | `product_i16` | matrix products of generated rows with quantised weights |
//! | `kv`, `attention` | the paged cache and RoPE; attention over it |
//! | `exp` | the exponential and SiLU |
//!
//! `scalar` is the slow twin of all of them, in float64, for the tests.

#[cfg(target_arch = "x86_64")]
pub mod amx;
pub mod buf;
pub mod detect;
pub mod memory;
pub mod pool;
pub mod simd;

mod attention;
mod blocks;
mod element;
mod encode;
mod exp;
mod kv;
mod mat;
mod product;
#[cfg(target_arch = "x86_64")]
mod product_amx;
mod product_i16;
mod rows;
#[cfg(test)]
mod scalar;
mod strips;
#[cfg(test)]
mod tests;

pub use kv::CpuKv;
pub use mat::CpuMat;
pub use memory::available_bytes;

use super::{
    Answer, Backend, Block, Layer, Limits, MatSpec, QuantBlock, RopeTable, RowKind, Shape, Step,
};
use crate::quant::Quant;
use crate::{Dtype, Error, Result};
use buf::Mem;
use detect::Tier;
use element::with_cache_element;
use pool::{Grid, Pool};
use product::{Finish, product};
#[cfg(target_arch = "x86_64")]
use product_amx::TilePanels;
use product_i16::IntRows;
use rows::{Norm, Panels};
use std::sync::{Mutex, MutexGuard};

/// Positions in one page of the cache: the lanes of a vector.
const PAGE: usize = simd::LANES;

/// Activations.
#[derive(Debug)]
pub struct CpuBuf {
    data: Mem<f32>,
    width: usize,
}

/// Threads that the process may use at the same time: its affinity mask and its cgroup's quota.
pub fn usable_threads() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

/// What [`Backend::load_step`] keeps; never grows after [`Cpu::new`].
#[derive(Debug)]
struct Loaded {
    tokens: Vec<crate::Token>,
    slots: Vec<u32>,
    positions: Vec<u32>,
    pages: Vec<u32>,
    /// Every row; then those of each kind.
    rows: [Picks; 3],
    /// Rows whose logits are wanted; then those of each kind.
    wanted: [Picks; 3],
}

/// Rows that a product takes: row `from[i]` of its input gives row `to[i]` of its output.
#[derive(Debug)]
struct Picks {
    from: Vec<u32>,
    to: Vec<u32>,
}

impl Picks {
    fn new(max: usize) -> Result<Self> {
        Ok(Self {
            from: reserve(max)?,
            to: reserve(max)?,
        })
    }

    fn clear(&mut self) {
        self.from.clear();
        self.to.clear();
    }

    fn push(&mut self, from: usize, to: usize) {
        self.from.push(from as u32);
        self.to.push(to as u32);
    }
}

/// Which of the [`Picks`].
const ALL: usize = 0;

fn kind_index(kind: RowKind) -> usize {
    match kind {
        RowKind::Prefill => 1,
        RowKind::Decode => 2,
    }
}

impl Loaded {
    fn new(max_rows: usize, max_pages: usize) -> Result<Self> {
        let picks = || -> Result<[Picks; 3]> {
            Ok([
                Picks::new(max_rows)?,
                Picks::new(max_rows)?,
                Picks::new(max_rows)?,
            ])
        };
        Ok(Self {
            tokens: reserve(max_rows)?,
            slots: reserve(max_rows)?,
            positions: reserve(max_rows)?,
            pages: reserve(max_pages)?,
            rows: picks()?,
            wanted: picks()?,
        })
    }

    fn load(&mut self, step: &Step) {
        self.tokens.clear();
        self.tokens.extend_from_slice(&step.tokens);
        self.slots.clear();
        self.slots.extend_from_slice(&step.slots);
        self.pages.clear();
        self.pages.extend_from_slice(&step.pages);
        self.positions.clear();
        self.rows.iter_mut().for_each(Picks::clear);
        self.wanted.iter_mut().for_each(Picks::clear);
        let mut wanted = step
            .wanted
            .iter()
            .map(|&row| row as usize)
            .enumerate()
            .peekable();
        for span in &step.spans {
            debug_assert_eq!(span.rows.start, self.positions.len());
            self.positions
                .extend((0..span.rows.len()).map(|i| (span.position + i) as u32));
            let kind = kind_index(span.kind);
            for row in span.rows.clone() {
                self.rows[ALL].push(row, row);
                self.rows[kind].push(row, row);
                while let Some((i, _)) = wanted.next_if(|&(_, from)| from == row) {
                    self.wanted[ALL].push(row, i);
                    self.wanted[kind].push(row, i);
                }
            }
        }
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
    integers: IntRows,
    /// Output of the q|k|v product, `[max_rows, parts padded to strips]`.
    qkv: Mem<f32>,
    /// One for each thread.
    scratch: Vec<Mutex<Mem<f32>>>,
}

/// Threads, their instructions, and memory for each.
#[derive(Clone, Copy)]
struct Workers<'a> {
    pool: &'a Pool,
    tier: Tier,
    scratch: &'a [Mutex<Mem<f32>>],
}

/// The scratch of `thread`, which is free: a thread has one task at a time. What an earlier panic left
/// in it does not matter, every task writes before it reads.
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
        .max(product_i16::scratch_len())
        .max(attention::scratch_len(shape));
    #[cfg(target_arch = "x86_64")]
    let len = len.max(product_amx::scratch_len(max_rows));
    len
}

/// 16-bit numbers of tiles for `rows` rows.
fn tiles_len(rows: usize, cols: usize) -> usize {
    #[cfg(target_arch = "x86_64")]
    return product_amx::panels_len(rows, cols);
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

    /// As [`Backend::quantise`].
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
        let n_threads = if n_threads == 0 {
            usable_threads()
        } else {
            n_threads
        };
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
            integers: IntRows::new(max_rows, widest(shape))?,
            qkv: Mem::zeroed("q, k and v", max_rows.saturating_mul(qkv_width(shape)))?,
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

    /// Multiply rows of `x`: prompt rows with tiles where there are tiles and the weights allow it,
    /// generated rows as integers where the weights are quantised, all others in float32.
    fn multiply(
        &mut self,
        out: &mut [f32],
        stride: usize,
        w: &CpuMat,
        x: Rows<'_>,
        norm: Option<Norm<'_>>,
        finish: Finish,
    ) {
        let Self {
            tier,
            pool,
            panels,
            integers,
            scratch,
            step,
            ..
        } = self;
        let picks = if x.wanted { &step.wanted } else { &step.rows };
        let out = &mut out[..picks[ALL].to.len() * stride];
        let workers = Workers {
            pool,
            tier: *tier,
            scratch,
        };
        let row = |from: u32| &x.buf.data[from as usize * x.buf.width..][..x.buf.width];
        let [prompt, generated] = [RowKind::Prefill, RowKind::Decode].map(kind_index);
        // Which rows are left for float32.
        let mut left = [true; 2];
        #[cfg(target_arch = "x86_64")]
        if let Some(amx) = tier.amx().filter(|_| product_amx::takes(w.dtype)) {
            left[0] = false;
            let Picks { from, to } = &picks[prompt];
            if !to.is_empty() {
                let tiles = &mut self.tiles;
                tiles.fill(pool, *tier, to.len(), |i| row(from[i]), norm);
                product_amx::product(workers, amx, w, tiles, to, finish, out, stride);
            }
        }
        if let Some(quant) = w.dtype.quant() {
            left[1] = false;
            let Picks { from, to } = &picks[generated];
            if !to.is_empty() {
                integers.fill(pool, *tier, quant, to.len(), |i| row(from[i]), norm);
                product_i16::product(workers, w, quant, integers, to, finish, out, stride);
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
            product(workers, w, panels, to, finish, out, stride);
        }
    }
}

/// Rows of a buffer: all of the step, or those whose logits are wanted.
struct Rows<'a> {
    buf: &'a CpuBuf,
    wanted: bool,
}

/// An empty vector with room for `n`.
fn reserve<T>(n: usize) -> Result<Vec<T>> {
    let mut v = Vec::new();
    v.try_reserve_exact(n).map_err(|_| Error::NoMemory {
        what: "the rows of a step".into(),
        needed: (n as u64).saturating_mul(size_of::<T>() as u64),
        available: available_bytes(),
    })?;
    Ok(v)
}

impl Backend for Cpu {
    type Buf = CpuBuf;
    type Mat = CpuMat;
    type Kv = CpuKv;
    const PAGE_SIZE: usize = PAGE;

    fn mat_bytes(spec: &MatSpec) -> u64 {
        mat::bytes(spec)
    }

    fn page_bytes(shape: &Shape, dtype: Dtype) -> u64 {
        kv::page_bytes(shape, dtype)
    }

    fn scratch_bytes(shape: &Shape, limits: &Limits) -> u64 {
        let rows = limits.max_rows;
        let per_thread = scratch_len(shape, rows);
        // No sequence is longer than the pool.
        let max_seq_len = limits.n_pages.saturating_mul(PAGE);
        let integers = product_i16::rows_len(rows, widest(shape));
        let numbers = [
            per_thread.saturating_mul(usable_threads()),
            rows::panels_len(rows, widest(shape)),
            // Numbers of half the size.
            tiles_len(rows, widest(shape)) / 2,
            integers.0,
            integers.1,
            rows.saturating_mul(qkv_width(shape)),
            attention::partials_len(shape, max_seq_len),
        ];
        numbers.iter().fold(0u64, |sum, &n| {
            sum.saturating_add((n as u64).saturating_mul(4))
        })
    }

    fn new_mat(&self, spec: &MatSpec) -> Result<CpuMat> {
        CpuMat::new(spec)
    }

    fn pack(&self, mat: &mut CpuMat, block: &Block<'_>) {
        mat.pack(&self.pool, self.tier, block);
    }

    fn quantise(
        &self,
        quant: Quant,
        cols: usize,
        values: &[f32],
        codes: &mut [u8],
        scales: &mut [f32],
    ) {
        quantise(self.tier, &self.pool, quant, cols, values, codes, scales);
    }

    fn pack_quantised(&self, mat: &mut CpuMat, block: &QuantBlock<'_>) {
        mat.pack_quantised(&self.pool, block);
    }

    fn set_bias(&self, mat: &mut CpuMat, part: usize, values: &[f32]) {
        mat.set_bias(part, values);
    }

    fn new_vector(&self, values: &[f32]) -> Result<CpuBuf> {
        let mut data = Mem::zeroed("a vector", values.len())?;
        data.copy_from_slice(values);
        Ok(CpuBuf {
            data,
            width: values.len(),
        })
    }

    fn new_buf(&self, rows: usize, width: usize) -> Result<CpuBuf> {
        let data = Mem::zeroed("activations", rows.saturating_mul(width))?;
        Ok(CpuBuf { data, width })
    }

    fn new_kv(&self, n_pages: usize, dtype: Dtype) -> Result<CpuKv> {
        CpuKv::new(&self.shape, n_pages, dtype)
    }

    fn load_step(&mut self, step: &Step) {
        self.step.load(step);
        self.plan.load(step);
    }

    fn embed(&mut self, x: &mut CpuBuf, table: &CpuMat) {
        let Self {
            tier, pool, step, ..
        } = self;
        let width = x.width;
        let out = &mut x.data[..step.tokens.len() * width];
        let work = |row: usize, _: usize, mut x: pool::Rect<'_, f32>| {
            table.lookup(*tier, step.tokens[row] as usize, x.row(0));
        };
        let rows = Grid::pieces(out, width);
        if step.tokens.len() < 8 {
            pool.here(rows, work)
        } else {
            pool.run(rows, work)
        }
    }

    fn qkv(&mut self, q: &mut CpuBuf, kv: &mut CpuKv, x: &CpuBuf, layer: &Layer<Self>) {
        // Taken out for the time of the product, which borrows the rest of `self`.
        let mut qkv = std::mem::replace(&mut self.qkv, Mem::none());
        let stride = qkv_width(&self.shape);
        let norm = Norm {
            weight: &layer.attention_norm.data,
            eps: self.shape.norm_eps,
        };
        let x = Rows {
            buf: x,
            wanted: false,
        };
        self.multiply(&mut qkv, stride, &layer.wqkv, x, Some(norm), Finish::Store);
        let placement = kv::Placement {
            qkv: &qkv,
            stride,
            at: [0, 1, 2].map(|part| layer.wqkv.parts[part].first * simd::LANES),
            positions: &self.step.positions,
            slots: &self.step.slots,
            rope: &self.rope,
        };
        with_cache_element!(kv.dtype, E => {
            placement.place::<E>(&self.pool, self.tier, &mut q.data, q.width, kv, layer.index)
        });
        self.qkv = qkv;
    }

    fn attend(&mut self, y: &mut CpuBuf, q: &CpuBuf, kv: &CpuKv, layer: &Layer<Self>) {
        let Self {
            tier,
            pool,
            step,
            plan,
            scratch,
            ..
        } = self;
        let workers = Workers {
            pool,
            tier: *tier,
            scratch,
        };
        // Float32 weights mean float32 throughout, and a float32 cache would be rounded once more.
        let tiles = layer.wqkv.dtype != Dtype::F32 && kv.dtype != Dtype::F32;
        let (q, y) = (&q.data, &mut y.data);
        plan.attend(workers, tiles, &step.pages, kv, layer.index, q, y);
    }

    fn matmul_add(&mut self, x: &mut CpuBuf, w: &CpuMat, y: &CpuBuf) {
        let y = Rows {
            buf: y,
            wanted: false,
        };
        let width = x.width;
        self.multiply(&mut x.data, width, w, y, None, Finish::Add);
    }

    fn ffn_up(&mut self, h: &mut CpuBuf, x: &CpuBuf, layer: &Layer<Self>) {
        let norm = Norm {
            weight: &layer.ffn_norm.data,
            eps: self.shape.norm_eps,
        };
        let x = Rows {
            buf: x,
            wanted: false,
        };
        let width = h.width;
        self.multiply(
            &mut h.data,
            width,
            &layer.w13,
            x,
            Some(norm),
            Finish::SwiGlu,
        );
    }

    fn logits(&mut self, out: &mut CpuBuf, x: &CpuBuf, norm: &CpuBuf, head: &CpuMat) {
        let norm = Norm {
            weight: &norm.data,
            eps: self.shape.norm_eps,
        };
        let x = Rows {
            buf: x,
            wanted: true,
        };
        let width = out.width;
        self.multiply(&mut out.data, width, head, x, Some(norm), Finish::Store);
    }

    fn read<'a>(&'a mut self, out: &'a CpuBuf) -> Result<Answer<'a>> {
        let wanted = self.step.wanted[ALL].to.len();
        Ok(Answer::Logits(&out.data[..wanted * out.width]))
    }

    fn copy_pages(&mut self, kv: &mut CpuKv, pairs: &[(u32, u32)]) -> Result<()> {
        kv.copy_pages(pairs);
        Ok(())
    }
}
