//! The kinds of devices that ranks of this process have: NUMA nodes, and GPUs.

use super::build::Build;
use super::plan::{MemoryPlan, Place};
use super::setting::Setting;
use super::{BuildOptions, Device};
use crate::backend::cpu::{Cpu, CpuExchange, usable_threads};
use crate::backend::gpu::cuda::Cuda;
use crate::backend::gpu::driver::LIBRARIES;
use crate::backend::gpu::images::Images;
use crate::backend::gpu::{self, Gpu, GpuExchange};
use crate::backend::{Backend, Exchange, Limits, RopeTable, Shape, Wire};
use crate::log::Level;
use crate::model::Cuts;
use crate::ranks::nodes::{self, Processors};
use crate::ranks::of_rank;
use crate::{Error, Result};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

/// What makes GPUs exchange numbers through the memory of the host, with the value `staged`. Only
/// then may `devices` name a GPU more than once.
const VARIABLE: &str = "LLAMABI_RANKS";

/// What a rank takes in bytes, as [`super::setting::memory`] counts it.
pub(super) type Items = [(&'static str, u64); 4];

/// A kind of device that ranks can have.
pub(super) trait Kind: Sync {
    type Backend: Backend + 'static;
    const DEVICE: Device;

    /// Bytes on the device of a rank with these rows of the vocabulary, for its exchanges.
    fn exchange_bytes(&self, dim: usize, limits: &Limits, cuts: &Cuts, rank: usize) -> u64;

    /// The most numbers that a rank gives at a time.
    fn most(&self, dim: usize, limits: &Limits, vocabulary: &[Range<usize>]) -> usize;

    /// Checks that what the ranks take is there; `board` is what they take together on the host.
    fn check(&self, ranks: &[Items], board: u64) -> Result<()>;

    /// The error of a rank, with what was planned where a device refuses memory.
    fn explain(&self, error: Error, _rank: usize, _ranks: &[Items]) -> Error {
        error
    }

    /// A rank's backend, and its description. `ranks` is what the ranks take.
    fn open(
        &self,
        rank: usize,
        shape: &Shape,
        rope: &RopeTable,
        setting: &Setting<'_>,
        ranks: &[Items],
    ) -> Result<(Self::Backend, String)>;

    fn exchange(
        &self,
        wire: Box<dyn Wire>,
        dim: usize,
        limits: &Limits,
        vocabulary: &[Range<usize>],
    ) -> Result<Box<dyn Exchange<Self::Backend>>>;

    /// Where a rank's threads stay.
    fn processors(&self, _rank: usize) -> Option<Processors> {
        None
    }
}

/// Ranks on NUMA nodes.
pub(super) struct OnNodes<'a> {
    pub options: &'a BuildOptions,
    pub places: Vec<Processors>,
}

impl Kind for OnNodes<'_> {
    type Backend = Cpu;
    const DEVICE: Device = Device::Cpu;

    fn exchange_bytes(&self, dim: usize, limits: &Limits, cuts: &Cuts, rank: usize) -> u64 {
        CpuExchange::bytes(dim, limits, cuts.vocabulary()[rank].len())
    }

    fn most(&self, dim: usize, limits: &Limits, vocabulary: &[Range<usize>]) -> usize {
        CpuExchange::most(dim, limits, vocabulary)
    }

    fn check(&self, ranks: &[Items], board: u64) -> Result<()> {
        let mut items = by_item(ranks);
        items[3].1 = items[3].1.saturating_add(board);
        let plan = MemoryPlan {
            items: items.to_vec(),
            place: Place::cpu(),
        };
        plan.check()?;
        let bytes: Vec<[u64; 2]> = ranks.iter().map(|own| [own[0].1, own[1].1]).collect();
        warn_of_full_nodes(self.options, &bytes);
        Ok(())
    }

    fn open(
        &self,
        rank: usize,
        shape: &Shape,
        rope: &RopeTable,
        setting: &Setting<'_>,
        _: &[Items],
    ) -> Result<(Cpu, String)> {
        let (options, place) = (self.options, &self.places[rank]);
        if !nodes::stay_on(place) {
            let node = options.devices[rank];
            options.log.write(Level::Warn, || {
                format!("rank {rank} cannot be kept on the processors of NUMA node {node}")
            });
        }
        let n_threads = match options.n_threads {
            0 => {
                let same = self.places.iter().filter(|other| *other == place);
                (usable_threads() / same.count()).max(1)
            }
            n => n,
        };
        let precision = options.precision.of_cpu(options.max_batch_size);
        let cpu = Cpu::new(shape, rope.clone(), n_threads, setting.limits.max_rows)?;
        let cpu = cpu.precision(precision);
        let description = cpu.description();
        Ok((cpu, description))
    }

    fn exchange(
        &self,
        wire: Box<dyn Wire>,
        dim: usize,
        limits: &Limits,
        vocabulary: &[Range<usize>],
    ) -> Result<Box<dyn Exchange<Cpu>>> {
        let exchange = CpuExchange::new(wire, dim, limits, vocabulary.to_vec())?;
        Ok(Box::new(exchange))
    }

    fn processors(&self, rank: usize) -> Option<Processors> {
        Some(self.places[rank].clone())
    }
}

/// Ranks on GPUs, which exchange numbers through the memory of the host.
pub(super) struct OnGpus<'a, D: gpu::device::Device> {
    pub build: &'a Build<'a>,
    pub devices: Vec<Arc<D>>,
    /// Bytes that each rank's GPU has for this model.
    pub available: Vec<u64>,
}

impl<D: gpu::device::Device> OnGpus<'_, D> {
    /// Bytes that ranks up to this one take on its GPU.
    fn needed(&self, rank: usize, last: usize, ranks: &[Items]) -> u64 {
        let gpus = &self.build.options.devices;
        let of = |other: &usize| gpus[*other] == gpus[rank];
        let bytes = |other: usize| ranks[other].iter().map(|item| item.1);
        (0..=last)
            .filter(of)
            .flat_map(bytes)
            .fold(0, u64::saturating_add)
    }

    fn place(&self, rank: usize) -> Place {
        Place::gpu(self.available[rank])
    }
}

impl<D: gpu::device::Device> Kind for OnGpus<'_, D> {
    type Backend = Gpu<D>;
    const DEVICE: Device = Device::Cuda;

    fn exchange_bytes(&self, dim: usize, limits: &Limits, cuts: &Cuts, _: usize) -> u64 {
        GpuExchange::<D>::bytes(dim, limits, cuts.vocabulary())
    }

    fn most(&self, dim: usize, limits: &Limits, vocabulary: &[Range<usize>]) -> usize {
        GpuExchange::<D>::most(dim, limits, vocabulary)
    }

    /// The first rank that finds its GPU full is the one that is named.
    fn check(&self, ranks: &[Items], board: u64) -> Result<()> {
        // Beside the board, each rank has page-locked room for what it gives once.
        let host = MemoryPlan {
            items: vec![("what ranks exchange", board.saturating_add(board / 2))],
            place: Place::cpu(),
        };
        host.check()?;
        for rank in 0..ranks.len() {
            let before = self.needed(rank, rank, ranks) - total(&ranks[rank]);
            let plan = MemoryPlan {
                items: ranks[rank].to_vec(),
                place: Place::gpu(self.available[rank].saturating_sub(before)),
            };
            plan.check().map_err(|error| of_rank(error, rank))?;
        }
        Ok(())
    }

    fn explain(&self, error: Error, rank: usize, ranks: &[Items]) -> Error {
        let plan = MemoryPlan {
            items: ranks[rank].to_vec(),
            place: self.place(rank),
        };
        plan.explain(error)
    }

    fn open(
        &self,
        rank: usize,
        shape: &Shape,
        rope: &RopeTable,
        setting: &Setting<'_>,
        ranks: &[Items],
    ) -> Result<(Gpu<D>, String)> {
        let device = &self.devices[rank];
        let needed = self.needed(rank, ranks.len() - 1, ranks);
        let room = self.available[rank].saturating_sub(needed);
        let gpu = self.build.gpu(device, shape, rope, setting, room)?;
        let gpu = match ranks.len() {
            1 => gpu,
            _ => gpu.among(),
        };
        Ok((gpu, device.name()))
    }

    fn exchange(
        &self,
        wire: Box<dyn Wire>,
        dim: usize,
        limits: &Limits,
        vocabulary: &[Range<usize>],
    ) -> Result<Box<dyn Exchange<Gpu<D>>>> {
        let device = &self.devices[wire.rank()];
        let exchange = GpuExchange::new(device, wire, dim, limits, vocabulary)?;
        Ok(Box::new(exchange))
    }
}

/// The GPUs that `devices` names.
pub(super) fn gpus(options: &BuildOptions) -> Result<Vec<Arc<Cuda>>> {
    let staged = std::env::var_os(VARIABLE).is_some_and(|value| value == "staged");
    let images = Images::choose()?;
    let devices = options.devices.iter().enumerate();
    let open = |(rank, &index): (usize, &usize)| {
        let name = format!("devices[{rank}]");
        if !staged && options.devices[..rank].contains(&index) {
            return Err(Error::invalid(name, "a GPU that has no rank yet", index));
        }
        match Cuda::open(&LIBRARIES, &images, index) {
            Ok(cuda) => Ok(Arc::new(cuda)),
            Err(Error::InvalidArgument { expected, got, .. }) => Err(Error::InvalidArgument {
                name,
                expected,
                got,
            }),
            Err(error) => Err(error),
        }
    };
    devices.map(open).collect()
}

/// What all ranks take together, of each item.
pub(super) fn by_item(ranks: &[Items]) -> Items {
    let mut all = ranks[0];
    for own in &ranks[1..] {
        for (all, own) in all.iter_mut().zip(own) {
            all.1 = all.1.saturating_add(own.1);
        }
    }
    all
}

/// What a rank takes.
fn total(items: &Items) -> u64 {
    items.iter().fold(0, |sum, item| sum.saturating_add(item.1))
}

/// Says where the memory of a node is too small for the weights and caches of its ranks.
fn warn_of_full_nodes(options: &BuildOptions, bytes: &[[u64; 2]]) {
    let nodes: BTreeSet<usize> = options.devices.iter().copied().collect();
    for node in nodes {
        let of_rank = options.devices.iter().zip(bytes);
        let of_node = of_rank.filter(|(device, _)| **device == node);
        let needed: u64 = of_node.map(|(_, bytes)| bytes.iter().sum::<u64>()).sum();
        if let Some(room) = nodes::room(node).filter(|&room| room < needed) {
            options.log.write(Level::Warn, || {
                format!(
                    "the ranks on NUMA node {node} need {needed} bytes, and it has {room} left: the \
                     rest will lie on other nodes, which takes longer to read"
                )
            });
        }
    }
}
