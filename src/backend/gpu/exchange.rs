//! What the ranks of a model on GPUs exchange: partial sums, and their columns of the logits.
//!
//! Numbers go through the memory of the host, over the same [`Wire`] as those of ranks on the CPU.
//! Each exchange waits for the device and for the other ranks, so launches are not recorded, and no
//! step runs ahead of another. The devices add the partial sums (`kernels/reduce.cu`), in the order
//! of the ranks.
//!
//! Every rank has all logits afterwards and chooses all tokens. All of them choose the same ones,
//! because they do the same arithmetic on the same bits.

use super::device::{Device, Landing, Memory};
use super::params::{GatherParams, ReduceParams};
use super::{Gpu, GpuBuf, GpuMat, launch, ops, pad32};
use crate::backend::{Exchange, Limits, Wire};
use crate::{Error, Result};
use std::ops::Range;
use std::sync::Arc;

/// A GPU among the ranks of a model.
pub struct GpuExchange<D: Device> {
    wire: Box<dyn Wire>,
    /// The first token of this rank.
    first: usize,
    limits: Limits,
    /// What this rank adds to the sums, `[max_rows, dim]`. Products add to it, and `reduce` leaves
    /// zeros.
    part: GpuBuf<D>,
    /// This rank's columns of the logits, `[max_wanted, the most columns of a rank]`.
    share: GpuBuf<D>,
    /// What all ranks give, one after another.
    all: Memory<D>,
    /// What this rank gives, on its way through the host.
    landing: Landing<D>,
    /// The first column of each rank, and the end of the last one.
    firsts: Memory<D>,
}

fn widest(vocabulary: &[Range<usize>]) -> usize {
    pad32(vocabulary.iter().map(Range::len).max().unwrap_or(0))
}

impl<D: Device> GpuExchange<D> {
    /// For residual streams of width `dim`; `vocabulary` has the rows of each rank.
    ///
    /// # Errors
    /// [`Error::DeviceMemory`].
    pub fn new(
        device: &Arc<D>,
        wire: Box<dyn Wire>,
        dim: usize,
        limits: &Limits,
        vocabulary: &[Range<usize>],
    ) -> Result<Self> {
        let what = "what ranks exchange";
        let most = Self::most(dim, limits, vocabulary);
        let mut firsts: Vec<u32> = vocabulary.iter().map(|range| range.start as u32).collect();
        firsts.push(limits.vocab_size as u32);
        let columns = Memory::new(device, what, 4 * firsts.len())?;
        columns.write_numbers(0, &firsts)?;
        Ok(GpuExchange {
            first: vocabulary[wire.rank()].start,
            limits: limits.clone(),
            part: GpuBuf::new(device, what, limits.max_rows, dim)?,
            share: GpuBuf::new(device, what, limits.max_wanted, widest(vocabulary))?,
            all: Memory::new(device, what, most.saturating_mul(4 * wire.size()))?,
            landing: Landing::new(device, most)?,
            firsts: columns,
            wire,
        })
    }

    /// Bytes of device memory that [`GpuExchange::new`] allocates.
    pub fn bytes(dim: usize, limits: &Limits, vocabulary: &[Range<usize>]) -> u64 {
        let part = limits.max_rows.saturating_mul(pad32(dim));
        let share = limits.max_wanted.saturating_mul(widest(vocabulary));
        let all = Self::most(dim, limits, vocabulary).saturating_mul(vocabulary.len());
        let floats = [part, share, all, vocabulary.len() + 1];
        floats.iter().fold(0, |sum: u64, &n| {
            sum.saturating_add((n as u64).saturating_mul(4))
        })
    }

    /// The most numbers that a rank gives at a time ([`Wire::all_gather`]).
    pub fn most(dim: usize, limits: &Limits, vocabulary: &[Range<usize>]) -> usize {
        let rows = limits.max_rows.saturating_mul(pad32(dim));
        rows.max(limits.max_wanted.saturating_mul(widest(vocabulary)))
    }

    /// Adds the parts of all ranks to `x`, or puts their sum in its place.
    fn reduce(&mut self, gpu: &Gpu<D>, x: &GpuBuf<D>, adds: bool) -> Result<()> {
        // The rows that pad a bucket may be more than there is room for. They are not written.
        let rows = gpu.step.n_rows.min(self.limits.max_rows);
        let n = rows * self.part.stride;
        if x.stride != self.part.stride {
            let strides = (x.stride, self.part.stride);
            return Err(Error::Internal(format!("rows of {strides:?} numbers")));
        }
        self.all_gather(Of::Part, n)?;
        let params = ReduceParams {
            x: x.at(),
            parts: self.all.at(),
            own: self.part.at(),
            n: n as u64,
            ranks: self.wire.size() as u32,
            adds: u32::from(adds),
        };
        launch::reduce(&*gpu.device, &params)
    }

    /// Logits of this rank's tokens, then those of all, and what is chosen from them.
    fn gather_logits(
        &mut self,
        gpu: &Gpu<D>,
        out: &GpuBuf<D>,
        x: &GpuBuf<D>,
        norm: &GpuBuf<D>,
        head: &GpuMat<D>,
    ) -> Result<()> {
        let share_stride = self.share.stride;
        ops::head(gpu, (&self.share, share_stride), x, Some(norm), head)?;
        let rows = gpu.step.n_wanted_padded.min(self.limits.max_wanted);
        if rows == 0 {
            return Ok(());
        }
        self.all_gather(Of::Share, rows * share_stride)?;
        let params = GatherParams {
            out: out.at(),
            shares: self.all.at(),
            firsts: self.firsts.at(),
            n_rows: rows as u32,
            ranks: self.wire.size() as u32,
            share_stride: share_stride as u32,
            out_stride: gpu.logits_stride(out) as u32,
        };
        launch::gather(&*gpu.device, &params)?;
        ops::choose(gpu, out)
    }

    /// Copies the first `n` numbers of what every rank has to `all`, in the order of the ranks.
    fn all_gather(&mut self, of: Of, n: usize) -> Result<()> {
        let from = match of {
            Of::Part => &self.part.memory,
            Of::Share => &self.share.memory,
        };
        self.landing.fetch(from, n)?;
        let (mine, all) = (self.landing.wait()?, &self.all);
        let mut copied = Ok(());
        self.wire.all_gather(mine, &|_| n, &mut |parts| {
            let mut parts = parts.iter().enumerate();
            copied = parts.try_for_each(|(rank, part)| match part.len() == n {
                true => all.write_floats(4 * rank * n, part),
                false => Err(Error::Peer(format!(
                    "rank {rank} has given {} numbers, not {n}",
                    part.len()
                ))),
            });
        })?;
        copied
    }
}

/// What is exchanged.
#[derive(Clone, Copy)]
enum Of {
    Part,
    Share,
}

/// A failure of an exchange is kept with those of the device: the operations after it do nothing,
/// and [`crate::backend::Backend::read`] returns it.
impl<D: Device> Exchange<Gpu<D>> for GpuExchange<D> {
    /// A rank gives zeros for tokens that are not its own, so the sum is exact.
    fn embed(&mut self, gpu: &mut Gpu<D>, x: &mut GpuBuf<D>, table: &GpuMat<D>) {
        gpu.run(|gpu| {
            ops::embed(gpu, &mut self.part, table, self.first)?;
            self.reduce(gpu, x, false)
        });
    }

    fn matmul_add(&mut self, gpu: &mut Gpu<D>, x: &mut GpuBuf<D>, w: &GpuMat<D>, y: &GpuBuf<D>) {
        gpu.run(|gpu| {
            ops::matmul_add(gpu, &mut self.part, w, y)?;
            self.reduce(gpu, x, true)
        });
    }

    /// Every rank has all logits afterwards, and the choice of their tokens.
    fn logits(
        &mut self,
        gpu: &mut Gpu<D>,
        out: &mut GpuBuf<D>,
        x: &GpuBuf<D>,
        norm: &GpuBuf<D>,
        head: &GpuMat<D>,
    ) {
        gpu.run(|gpu| self.gather_logits(gpu, out, x, norm, head));
    }

    fn failure(&self) -> Option<Error> {
        None
    }
}
