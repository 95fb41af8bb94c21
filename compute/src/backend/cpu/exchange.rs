//! What the ranks of a model on CPUs exchange: partial sums, and their columns of the logits.

use super::buf::Mem;
use super::pool::{Grid, Rect};
use super::step::ALL;
use super::{Cpu, CpuBuf, CpuMat};
use crate::backend::{Backend, Exchange, Limits, Wire};
use crate::{Error, Result};
use std::ops::Range;

/// Numbers that a task adds at a time: four buffers of them fit into the first cache.
const BLOCK: usize = 1024;

/// Numbers below which one thread adds them: waking the others takes longer.
const ALONE: usize = 32 * BLOCK;

/// A CPU among the ranks of a model.
pub struct CpuExchange {
    wire: Box<dyn Wire>,
    /// The rows of the embedding and of the head that each rank holds.
    vocabulary: Vec<Range<usize>>,
    /// What this rank adds to the sums, `[max_rows, dim]`.
    part: CpuBuf,
    /// This rank's columns of the logits, `[max_wanted, own rows of the vocabulary]`.
    share: CpuBuf,
    /// This rank's slice of the sums, where ranks add slices.
    sums: Mem<f32>,
    failed: Option<Error>,
}

impl CpuExchange {
    /// For residual streams of width `dim`; `vocabulary` has the rows of each rank.
    pub fn new(
        wire: Box<dyn Wire>,
        dim: usize,
        limits: &Limits,
        vocabulary: Vec<Range<usize>>,
    ) -> Result<CpuExchange> {
        let own = vocabulary[wire.rank()].len();
        let most = limits.max_rows * dim;
        let slice = match wire.prefers_slices(most) {
            true => most.div_ceil(wire.size()),
            false => 0,
        };
        Ok(CpuExchange {
            wire,
            vocabulary,
            part: CpuBuf::new("partial sums", limits.max_rows, dim)?,
            share: CpuBuf::new("columns of the logits", limits.max_wanted, own)?,
            sums: Mem::zeroed("a slice of the sums", slice)?,
            failed: None,
        })
    }

    /// Bytes that [`CpuExchange::new`] allocates at most for a rank with `own` rows of the
    /// vocabulary.
    pub fn bytes(dim: usize, limits: &Limits, own: usize) -> u64 {
        let buf = |rows: usize, width: usize| 4 * (rows as u64).saturating_mul(width as u64);
        let parts = buf(limits.max_rows, dim);
        // A slice is at most a third of the parts.
        (parts + parts / 3).saturating_add(buf(limits.max_wanted, own))
    }

    /// The most numbers that a rank gives at a time ([`Wire::all_gather`]).
    pub fn most(dim: usize, limits: &Limits, vocabulary: &[Range<usize>]) -> usize {
        let widest = vocabulary.iter().map(Range::len).max().unwrap_or(0);
        let rows = limits.max_rows.saturating_mul(dim);
        rows.max(limits.max_wanted.saturating_mul(widest))
    }

    /// Adds the parts of all ranks in their order, `rows` rows each. The sum replaces `x`, or is
    /// added to it.
    fn reduce(&mut self, cpu: &Cpu, x: &mut CpuBuf, rows: usize, adds: bool) {
        if self.failed.is_some() {
            return;
        }
        let n = rows * self.part.width;
        let x = &mut x.data[..n];
        let reduced = match self.wire.prefers_slices(n) {
            false => self.reduce_whole(cpu, x, adds),
            true => self.reduce_slices(cpu, x, adds),
        };
        self.failed = reduced.err();
    }

    /// Every rank adds all numbers.
    fn reduce_whole(&mut self, cpu: &Cpu, x: &mut [f32], adds: bool) -> Result<()> {
        let mine = &self.part.data[..x.len()];
        self.wire.all_gather(mine, &|_| mine.len(), &mut |parts| {
            on_threads(cpu, x, &|at, x| sum(parts, at, x, adds));
        })
    }

    /// Every rank adds one slice of all numbers, and then takes the sums of the other slices from
    /// the other ranks. The sums are equal to the bit to the sums of [`CpuExchange::reduce_whole`].
    fn reduce_slices(&mut self, cpu: &Cpu, x: &mut [f32], adds: bool) -> Result<()> {
        let (n, wire) = (x.len(), &mut self.wire);
        let slice = n.div_ceil(wire.size());
        let range = |rank: usize| (rank * slice).min(n)..((rank + 1) * slice).min(n);
        let own = range(wire.rank());
        // The sums have a place of their own only in `x`, which still has what they are added to.
        let sums = &mut self.sums[..own.len()];
        wire.all_to_all(&self.part.data[..n], slice, &mut |parts| {
            on_threads(cpu, sums, &|at, sums| sum(parts, at, sums, false));
        })?;
        wire.all_gather(sums, &|rank| range(rank).len(), &mut |sums| {
            for (rank, sums) in sums.iter().enumerate() {
                let x = &mut x[range(rank)];
                on_threads(cpu, x, &|at, x| sum(&[sums], at, x, adds));
            }
        })
    }
}

/// Calls `add` with blocks of `x`, and with where they begin.
fn on_threads(cpu: &Cpu, x: &mut [f32], add: &(dyn Fn(usize, &mut [f32]) + Sync)) {
    let n = x.len();
    let out = Grid::pieces(x, BLOCK);
    let task = |task: usize, _: usize, mut x: Rect<'_, f32>| add(task * BLOCK, x.row(0));
    match n < ALONE {
        true => cpu.pool.here(out, task),
        false => cpu.pool.run(out, task),
    }
}

/// Adds numbers of all parts, from `at` on.
fn sum(parts: &[&[f32]], at: usize, x: &mut [f32], adds: bool) {
    let mut total = [0.0f32; BLOCK];
    let total = &mut total[..x.len()];
    for (rank, part) in parts.iter().enumerate() {
        let part = &part[at..at + x.len()];
        match rank {
            0 => total.copy_from_slice(part),
            _ => total.iter_mut().zip(part).for_each(|(t, p)| *t += p),
        }
    }
    match adds {
        true => x.iter_mut().zip(&*total).for_each(|(x, t)| *x += t),
        false => x.copy_from_slice(total),
    }
}

impl Exchange<Cpu> for CpuExchange {
    /// A rank gives zeros for tokens that are not its own, so the sum is exact.
    fn embed(&mut self, cpu: &mut Cpu, x: &mut CpuBuf, table: &CpuMat) {
        let own = &self.vocabulary[self.wire.rank()];
        let tokens = &cpu.step.tokens;
        let width = self.part.width;
        let out = &mut self.part.data[..tokens.len() * width];
        for (&token, to) in tokens.iter().zip(out.chunks_exact_mut(width)) {
            match own.contains(&(token as usize)) {
                true => table.lookup(cpu.tier, token as usize - own.start, to),
                false => to.fill(0.0),
            }
        }
        let rows = tokens.len();
        self.reduce(cpu, x, rows, false);
    }

    fn matmul_add(&mut self, cpu: &mut Cpu, x: &mut CpuBuf, w: &CpuMat, y: &CpuBuf) {
        let rows = cpu.step.tokens.len();
        let n = rows * self.part.width;
        self.part.data[..n].fill(0.0);
        cpu.matmul_add(&mut self.part, w, y);
        self.reduce(cpu, x, rows, true);
    }

    fn logits(
        &mut self,
        cpu: &mut Cpu,
        out: &mut CpuBuf,
        x: &CpuBuf,
        norm: &CpuBuf,
        head: &CpuMat,
    ) {
        cpu.logits(&mut self.share, x, Some(norm), head);
        if self.failed.is_some() {
            return;
        }
        let wanted = cpu.step.wanted[ALL].to.len();
        let (vocabulary, takes) = (&self.vocabulary, self.wire.rank() == 0);
        let mine: &Mem<f32> = &self.share.data;
        let mine = &mine[..wanted * self.share.width];
        let len = |rank: usize| wanted * vocabulary[rank].len();
        let gathered = self.wire.all_gather(mine, &len, &mut |shares| {
            if takes {
                side_by_side(out, shares, vocabulary);
            }
        });
        self.failed = gathered.err();
    }

    fn failure(&self) -> Option<Error> {
        self.failed.clone()
    }
}

/// Puts the ranks' columns of each row side by side.
fn side_by_side(out: &mut CpuBuf, shares: &[&[f32]], vocabulary: &[Range<usize>]) {
    for (share, columns) in shares.iter().zip(vocabulary) {
        let rows = out.data.chunks_exact_mut(out.width);
        for (from, to) in share.chunks_exact(columns.len()).zip(rows) {
            to[columns.clone()].copy_from_slice(from);
        }
    }
}
