//! The CPU backend.
//!
//! | file | what it knows |
//! |---|---|
//! | [`simd`] | one vector of sixteen f32, once per instruction set (U) |
//! | [`detect`] | which instruction set is used |
//! | [`pool`] | threads, and parts of arrays for them to write (U) |
//! | [`buf`], [`memory`] | memory that is refused, not aborted (U); how much there is |
//! | `element`, `mat` | storage formats; packed weights |
//! | `rows`, `product` | RMSNorm and packed activations; matrix products, decode and prefill |
//! | `kv`, `attention` | the paged cache and RoPE; attention over it |
//! | `exp` | the exponential and SiLU |
//!
//! `scalar` is the slow twin of all of them, in float64, for the tests.

pub mod buf;
pub mod detect;
pub mod memory;
pub mod pool;
pub mod simd;

mod attention;
mod element;
mod exp;
mod kv;
mod mat;
mod product;
mod rows;
#[cfg(test)]
mod scalar;
#[cfg(test)]
mod tests;

pub use kv::CpuKv;
pub use mat::CpuMat;
pub use memory::available_bytes;

use super::{Backend, Block, Layer, Limits, MatSpec, RopeTable, Shape, Step};
use crate::{Dtype, Error, Result};
use buf::Mem;
use detect::Tier;
use element::with_element;
use pool::{Grid, Pool};
use product::{Finish, product};
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
    wanted: Vec<u32>,
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
        let per_thread = product::scratch_len(max_rows).max(attention::scratch_len(shape));
        let scratch = (0..n_threads)
            .map(|_| Mem::zeroed("scratch of a thread", per_thread).map(Mutex::new))
            .collect::<Result<_>>()?;
        let pages = max_rows.saturating_mul(max_positions.div_ceil(PAGE));
        Ok(Cpu {
            tier,
            pool: Pool::new(n_threads)?,
            step: Loaded {
                tokens: reserve(max_rows)?,
                slots: reserve(max_rows)?,
                positions: reserve(max_rows)?,
                pages: reserve(pages)?,
                wanted: reserve(max_rows)?,
            },
            plan: attention::Plan::new(shape, max_rows, max_positions, n_threads)?,
            panels: Panels::new(max_rows, widest(shape))?,
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

    /// Fill the panels with rows of `x` and multiply.
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
            scratch,
            step,
            ..
        } = self;
        let (n, pick) = if x.wanted {
            (step.wanted.len(), &step.wanted[..])
        } else {
            (step.tokens.len(), &[][..])
        };
        if n == 0 {
            return;
        }
        let row = |i: usize| {
            let i = pick.get(i).map_or(i, |&i| i as usize);
            &x.buf.data[i * x.buf.width..][..x.buf.width]
        };
        panels.fill(pool, *tier, product::side(*tier, n), n, row, norm);
        let workers = Workers {
            pool,
            tier: *tier,
            scratch,
        };
        product(workers, w, panels, finish, out, stride);
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
        let per_thread = product::scratch_len(rows).max(attention::scratch_len(shape));
        // No sequence is longer than the pool.
        let max_seq_len = limits.n_pages.saturating_mul(PAGE);
        let numbers = [
            per_thread.saturating_mul(usable_threads()),
            rows::panels_len(rows, widest(shape)),
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
        let Loaded {
            tokens,
            slots,
            positions,
            pages,
            wanted,
        } = &mut self.step;
        tokens.clear();
        tokens.extend_from_slice(&step.tokens);
        slots.clear();
        slots.extend_from_slice(&step.slots);
        pages.clear();
        pages.extend_from_slice(&step.pages);
        wanted.clear();
        wanted.extend_from_slice(&step.wanted);
        positions.clear();
        for span in &step.spans {
            debug_assert_eq!(span.rows.start, positions.len());
            positions.extend((0..span.rows.len()).map(|i| (span.position + i) as u32));
        }
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
        with_element!(kv.dtype, E => {
            placement.place::<E>(&self.pool, &mut q.data, q.width, kv, layer.index)
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
        plan.attend(workers, &step.pages, kv, layer.index, &q.data, &mut y.data);
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

    fn read<'a>(&'a mut self, out: &'a CpuBuf) -> Result<&'a [f32]> {
        Ok(&out.data[..self.step.wanted.len() * out.width])
    }

    fn copy_pages(&mut self, kv: &mut CpuKv, pairs: &[(u32, u32)]) -> Result<()> {
        kv.copy_pages(pairs);
        Ok(())
    }
}
