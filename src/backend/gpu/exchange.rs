//! What the ranks of a model on GPUs exchange: partial sums, and their columns of the logits.
//!
//! Where the devices can, they exchange by themselves, in their streams ([`Device::join`]): then an
//! exchange waits for nothing on the host, and is recorded with the other launches of a step. Sums
//! of few rows go from device to device without anybody's help, where they can ([`super::peers`]).
//! Otherwise numbers go through the memory of the host, over the same [`Wire`] as the numbers of
//! ranks on the CPU. Then each exchange waits for the device and for the other ranks, so launches
//! are not recorded, and no step runs ahead of another. Either way the devices add the partial sums
//! (`kernels/reduce.cu`), in the order of the ranks.
//!
//! Every rank has all logits afterwards. In one process every rank chooses all tokens; all of them
//! choose the same ones, because they do the same arithmetic on the same bits. Ranks of other
//! processes leave the choice to rank 0.

use super::device::{Device, GroupId};
use super::memory::{Landing, Memory};
use super::params::{GatherParams, ReduceParams};
use super::peers::{Neighbours, Peers};
use super::{Gpu, GpuBuf, GpuMat, launch, ops, pad32};
use crate::backend::{Exchange, Limits, Wire};
use crate::log::Level;
use crate::{Error, Result};
use std::ops::Range;

/// When devices add a sum in slices: each adds one slice of all parts and gives it to the others.
/// The additions are the same. Two exchanges move fewer bytes than one where there are more than
/// two ranks: each gets `2 (n - 1) / n` parts instead of `n - 1`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Slices {
    /// Where it is thought to be faster.
    #[default]
    Auto,
    /// Wherever it is possible.
    Always,
}

/// Bytes that an exchange between GPUs moves in the time that it takes to begin one: 10
/// microseconds at 400 GB/s. These are published figures of NVLink, not measured ones.
const WORTH: usize = 4_000_000;

/// How numbers get to the other ranks.
enum Way<D: Device> {
    /// Through the memory of the host, where `landing` is what this rank gives.
    Host {
        wire: Box<dyn Wire>,
        landing: Landing<D>,
    },
    Devices {
        slices: Slices,
        peers: Option<Peers<D>>,
    },
}

/// A group of devices that exchange by themselves.
pub struct Group<'a, D: Device> {
    /// Its name.
    pub id: &'a GroupId,
    /// When sums are added in slices.
    pub slices: Slices,
    /// If they reach each other's memory.
    pub neighbours: Option<&'a Neighbours<D>>,
}

/// A GPU among the ranks of a model.
pub struct GpuExchange<D: Device> {
    way: Way<D>,
    rank: usize,
    ranks: usize,
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
    /// The first column of each rank, and the end of the last one. [`Gather`] has its address.
    _firsts: Memory<D>,
}

/// Puts the columns of all ranks side by side, and chooses tokens. That is not recorded with a
/// step, because how rows lie depends on who chooses their tokens, and ranks of other processes
/// leave the choice to rank 0: they would record something else.
#[derive(Clone, Copy)]
pub(super) struct Gather {
    pub rank: usize,
    ranks: usize,
    /// Addresses of what all ranks gave, and of the first column of each.
    shares: u64,
    firsts: u64,
    share_stride: usize,
    max_wanted: usize,
}

impl Gather {
    /// The logits of the loaded step, and what is chosen from them.
    pub fn logits<D: Device>(&self, gpu: &Gpu<D>, out: &GpuBuf<D>) -> Result<()> {
        let rows = gpu.step.n_wanted_padded.min(self.max_wanted);
        if rows == 0 {
            return Ok(());
        }
        let params = GatherParams {
            out: out.at(),
            shares: self.shares,
            firsts: self.firsts,
            n_rows: rows as u32,
            ranks: self.ranks as u32,
            share_stride: self.share_stride as u32,
            out_stride: gpu.logits_stride(out) as u32,
        };
        launch::gather(&*gpu.device, &params)?;
        ops::choose(gpu, out)
    }
}

fn widest(vocabulary: &[Range<usize>]) -> usize {
    pad32(vocabulary.iter().map(Range::len).max().unwrap_or(0))
}

impl<D: Device> GpuExchange<D> {
    /// For residual streams of width `dim`; `vocabulary` has the rows of each rank. With a group,
    /// the devices of all ranks join it and exchange by themselves.
    ///
    /// # Errors
    /// [`Error::DeviceMemory`]; if the devices cannot exchange, [`Error::Device`] or
    /// [`Error::Peer`].
    pub fn new(
        gpu: &mut Gpu<D>,
        wire: Box<dyn Wire>,
        group: Option<Group<'_, D>>,
        dim: usize,
        limits: &Limits,
        vocabulary: &[Range<usize>],
    ) -> Result<Self> {
        let what = "what ranks exchange";
        let device = gpu.device.clone();
        let most = Self::most(dim, limits, vocabulary);
        let mut columns: Vec<u32> = vocabulary.iter().map(|range| range.start as u32).collect();
        columns.push(limits.vocab_size as u32);
        let firsts = Memory::new(&device, what, 4 * columns.len())?;
        firsts.write_numbers(0, &columns)?;
        let (rank, ranks) = (wire.rank(), wire.size());
        let part = GpuBuf::new(&device, what, limits.max_rows, dim)?;
        let share = GpuBuf::new(&device, what, limits.max_wanted, widest(vocabulary))?;
        let all = Memory::new(&device, what, most.saturating_mul(4 * ranks))?;
        device.watch(wire.watch());
        gpu.among(Gather {
            rank,
            ranks,
            shares: all.at(),
            firsts: firsts.at(),
            share_stride: share.stride,
            max_wanted: limits.max_wanted,
        });
        let way = match group {
            None => {
                let landing = Landing::new(&device, most)?;
                Way::Host { wire, landing }
            }
            Some(group) => {
                let by = device.join(group.id, rank, ranks)?;
                gpu.record_with(wire)?;
                // Each process has an environment of its own.
                let slices = match gpu.graphs.agree(group.slices == Slices::Always)? {
                    true => Slices::Always,
                    false => Slices::Auto,
                };
                let peers = group.neighbours.map(|neighbours| {
                    let agree = || gpu.graphs.agree(true).map(drop);
                    Peers::new(&device, neighbours, rank, (dim, limits), agree)
                });
                let peers = peers.transpose()?;
                gpu.graphs.log.write(Level::Info, || {
                    let few = peers.as_ref().map(|peers| {
                        let rows = peers.rows;
                        format!(", sums of up to {rows} rows from GPU to GPU")
                    });
                    let few = few.unwrap_or_default();
                    format!("rank {rank} of {ranks} exchanges by {by}{few}")
                });
                Way::Devices { slices, peers }
            }
        };
        let mut exchange = GpuExchange {
            way,
            rank,
            ranks,
            first: vocabulary[rank].start,
            limits: limits.clone(),
            part,
            share,
            all,
            _firsts: firsts,
        };
        exchange.try_out(gpu)?;
        Ok(exchange)
    }

    /// Has the devices exchange numbers that are known, so that those which cannot do it are
    /// noticed before a prompt comes.
    fn try_out(&mut self, gpu: &Gpu<D>) -> Result<()> {
        let Way::Devices { peers, .. } = &mut self.way else {
            return Ok(());
        };
        let (device, rank, ranks) = (&gpu.device, self.rank, self.ranks);
        let number = |rank: usize| 1.0 + rank as f32;
        let what = "what ranks exchange";
        let own = Memory::new(device, what, 16)?;
        let all = Memory::new(device, what, 16 * ranks)?;
        own.write_floats(0, &[number(rank); 4])?;
        all.all_gather(&own, 4, ranks)?;
        let mut landing = Landing::new(device, 4 * ranks)?;
        landing.fetch(&all, 4 * ranks)?;
        let want: Vec<f32> = (0..ranks).flat_map(|rank| [number(rank); 4]).collect();
        same(landing.wait()?, &want, "NCCL_P2P_DISABLE=1")?;
        if let Some(peers) = peers
            && peers.rows > 0
        {
            let sum = GpuBuf::new(device, what, 1, self.part.stride)?;
            let part = peers.part(true);
            part.memory.write_floats(0, &[number(rank); 4])?;
            peers.reduce(gpu, &sum, 1, false)?;
            let mut landing = Landing::new(device, 4)?;
            landing.fetch(&sum.memory, 4)?;
            let want = [(0..ranks).map(number).sum(); 4];
            same(landing.wait()?, &want, "LLAMABI_RANKS=nccl")?;
        }
        Ok(())
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

    /// Adds what all ranks `compute` to `x`, or puts their sum in its place, as a step does first.
    fn sum(
        &mut self,
        gpu: &Gpu<D>,
        x: &GpuBuf<D>,
        adds: bool,
        compute: impl FnOnce(&GpuBuf<D>) -> Result<()>,
    ) -> Result<()> {
        // The rows that pad a bucket may be more than there is room for. They are not written.
        let rows = gpu.step.n_rows.min(self.limits.max_rows);
        if x.stride != self.part.stride {
            let strides = (x.stride, self.part.stride);
            return Err(Error::Internal(format!("rows of {strides:?} numbers")));
        }
        if let Way::Devices {
            peers: Some(peers), ..
        } = &mut self.way
            && rows <= peers.rows
        {
            compute(peers.part(!adds))?;
            return peers.reduce(gpu, x, rows, adds);
        }
        compute(&self.part)?;
        self.reduce(gpu, x, rows, adds)
    }

    /// Adds the parts of all ranks.
    fn reduce(&mut self, gpu: &Gpu<D>, x: &GpuBuf<D>, rows: usize, adds: bool) -> Result<()> {
        let n = rows * self.part.stride;
        let params = ReduceParams {
            x: x.at(),
            parts: self.all.at(),
            own: self.part.at(),
            n: n as u64,
            ranks: self.ranks as u32,
            adds: u32::from(adds),
        };
        match self.slice(n) {
            Some(slice) => self.reduce_slices(gpu, x, slice, params),
            None => {
                self.all_gather(Of::Part, n)?;
                launch::reduce(&*gpu.device, &params)
            }
        }
    }

    /// The numbers of a slice, if a sum of `n` is added in slices.
    fn slice(&self, n: usize) -> Option<usize> {
        let Way::Devices { slices, .. } = &self.way else {
            return None;
        };
        let ranks = self.ranks;
        let fewer = (4 * n).saturating_mul((ranks - 1) * (ranks - 2)) / ranks;
        let worth = *slices == Slices::Always || fewer >= WORTH;
        (worth && n > 0 && n.is_multiple_of(4 * ranks)).then(|| n / ranks)
    }

    /// Every rank adds one slice, and then gets the others.
    fn reduce_slices(
        &self,
        gpu: &Gpu<D>,
        x: &GpuBuf<D>,
        slice: usize,
        whole: ReduceParams,
    ) -> Result<()> {
        let own = (4 * self.rank * slice) as u64;
        self.all.all_to_all(&self.part.memory, slice, self.ranks)?;
        let params = ReduceParams {
            x: whole.x + own,
            own: whole.own + own,
            n: slice as u64,
            ..whole
        };
        launch::reduce(&*gpu.device, &params)?;
        self.part.memory.clear(0, 4 * slice * self.ranks)?;
        x.memory.gather_slices(slice, self.rank, self.ranks)
    }

    /// Computes the logits of this rank's tokens, and then gathers the logits of all ranks, rank by
    /// rank.
    fn gather_logits(
        &mut self,
        gpu: &Gpu<D>,
        x: &GpuBuf<D>,
        norm: &GpuBuf<D>,
        head: &GpuMat<D>,
    ) -> Result<()> {
        let share_stride = self.share.stride;
        ops::head(gpu, (&self.share, share_stride), x, Some(norm), head)?;
        match gpu.step.n_wanted_padded.min(self.limits.max_wanted) {
            0 => Ok(()),
            rows => self.all_gather(Of::Share, rows * share_stride),
        }
    }

    /// Copies the first `n` numbers of what every rank has to `all`, in the order of the ranks.
    fn all_gather(&mut self, of: Of, n: usize) -> Result<()> {
        let from = match of {
            Of::Part => &self.part.memory,
            Of::Share => &self.share.memory,
        };
        let all = &self.all;
        let (wire, landing) = match &mut self.way {
            Way::Host { wire, landing } => (wire, landing),
            Way::Devices { .. } => return all.all_gather(from, n, self.ranks),
        };
        landing.fetch(from, n)?;
        let mine = landing.wait()?;
        let mut copied = Ok(());
        wire.all_gather(mine, &|_| n, &mut |parts| {
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

/// Compares what devices have exchanged with what they should have.
fn same(got: &[f32], want: &[f32], remedy: &str) -> Result<()> {
    match got == want {
        true => Ok(()),
        false => Err(Error::Device(format!(
            "the ranks' GPUs exchanged other numbers than they had ({:?}); with {remedy} they go \
             another way",
            &got[..got.len().min(64)]
        ))),
    }
}

/// What is exchanged.
#[derive(Clone, Copy)]
enum Of {
    Part,
    Share,
}

/// A failure of an exchange is kept like a failure of the device: the operations after it do
/// nothing, and [`crate::backend::Steps::answer`] returns it.
impl<D: Device> Exchange<Gpu<D>> for GpuExchange<D> {
    /// A rank gives zeros for tokens that are not its own, so the sum is exact.
    fn embed(&mut self, gpu: &mut Gpu<D>, x: &mut GpuBuf<D>, table: &GpuMat<D>) {
        let first = self.first;
        gpu.run(|gpu| self.sum(gpu, x, false, |part| ops::embed(gpu, part, table, first)));
    }

    fn matmul_add(&mut self, gpu: &mut Gpu<D>, x: &mut GpuBuf<D>, w: &GpuMat<D>, y: &GpuBuf<D>) {
        gpu.run(|gpu| self.sum(gpu, x, true, |part| ops::matmul_add(gpu, part, w, y)));
    }

    /// Every rank has all logits afterwards, of which `Gather` makes rows.
    fn logits(
        &mut self,
        gpu: &mut Gpu<D>,
        _: &mut GpuBuf<D>,
        x: &GpuBuf<D>,
        norm: &GpuBuf<D>,
        head: &GpuMat<D>,
    ) {
        gpu.run(|gpu| self.gather_logits(gpu, x, norm, head));
    }

    fn failure(&self) -> Option<Error> {
        None
    }
}
