//! Ranks on GPUs.

use super::{Items, Kind, total};
use crate::backend::gpu::cuda::Cuda;
use crate::backend::gpu::device::GroupId;
use crate::backend::gpu::driver::LIBRARIES;
use crate::backend::gpu::images::Images;
use crate::backend::gpu::{self, Gpu, GpuExchange, Group, Neighbours, Peers, Slices};
use crate::backend::{Exchange, Limits, RopeTable, Shape, Wire};
use crate::llama::build::Build;
use crate::llama::plan::{Budget, MemoryPlan};
use crate::llama::setting::Setting;
use crate::llama::{BuildOptions, Device};
use crate::model::Cuts;
use crate::ranks::of_rank;
use crate::{Error, Result};
use std::ops::Range;
use std::sync::Arc;

/// The environment variable that changes how GPUs exchange numbers. Values:
///
/// - `staged`: they exchange through the memory of the host. Only then may `devices` name a GPU
///   more than once.
/// - `nccl`: all their numbers go by NCCL.
/// - `slices`: all their numbers go by NCCL, and they add every sum in slices ([`Slices`]).
const VARIABLE: &str = "LLAMABI_RANKS";

/// Ranks on GPUs: all ranks of a model, or the single rank of a process.
pub(in crate::llama) struct OnGpus<'a, D: gpu::device::Device> {
    pub build: &'a Build<'a>,
    /// The number of the first rank here.
    pub first: usize,
    pub devices: Vec<Arc<D>>,
    /// The number of each GPU.
    pub indices: Vec<usize>,
    /// The group in which the GPUs exchange by themselves. `None`: through the memory of the host.
    pub group: Option<GroupId>,
    /// Given if the GPUs of one process reach each other's memory.
    pub neighbours: Option<Neighbours<D>>,
    /// The bytes that each rank's GPU has for this model.
    pub available: Vec<u64>,
}

impl<'a, D: gpu::device::Device> OnGpus<'a, D> {
    /// The rank of this process.
    pub fn here(
        build: &'a Build<'a>,
        device: Arc<D>,
        rank: usize,
        group: Option<GroupId>,
    ) -> Result<Self> {
        Ok(OnGpus {
            build,
            first: rank,
            indices: vec![build.options.device_index],
            group,
            neighbours: None,
            available: vec![build.available(&*device)?],
            devices: vec![device],
        })
    }

    /// The bytes that ranks 0 to `last` take on the GPU of rank `at`. Ranks count within this
    /// process.
    fn needed(&self, at: usize, last: usize, ranks: &[Items]) -> u64 {
        let of = |other: &usize| self.indices[*other] == self.indices[at];
        let bytes = |other: usize| ranks[other].iter().map(|item| item.1);
        (0..=last)
            .filter(of)
            .flat_map(bytes)
            .fold(0, u64::saturating_add)
    }
}

impl<D: gpu::device::Device> Kind for OnGpus<'_, D> {
    type Backend = Gpu<D>;
    const DEVICE: Device = Device::Cuda;

    fn exchange_bytes(&self, dim: usize, limits: &Limits, cuts: &Cuts, _: usize) -> u64 {
        let peers = match self.neighbours {
            Some(_) => Peers::<D>::bytes(dim, limits),
            None => 0,
        };
        GpuExchange::<D>::bytes(dim, limits, cuts.vocabulary()).saturating_add(peers)
    }

    fn most(&self, dim: usize, limits: &Limits, vocabulary: &[Range<usize>]) -> usize {
        match self.group {
            Some(_) => 1,
            None => GpuExchange::<D>::most(dim, limits, vocabulary),
        }
    }

    /// The error names the first rank that finds its GPU full.
    fn check(&self, ranks: &[Items], board: u64) -> Result<()> {
        // Beside the board, each rank has a page-locked buffer for what it gives at a time.
        let host = MemoryPlan {
            items: vec![("what ranks exchange", board.saturating_add(board / 2))],
            budget: Budget::cpu(),
        };
        host.check()?;
        for rank in 0..ranks.len() {
            let before = self.needed(rank, rank, ranks) - total(&ranks[rank]);
            let plan = MemoryPlan {
                items: ranks[rank].to_vec(),
                budget: Budget::gpu(self.available[rank].saturating_sub(before)),
            };
            plan.check().map_err(|error| of_rank(error, rank))?;
        }
        Ok(())
    }

    fn budget(&self, rank: usize) -> Budget {
        Budget::gpu(self.available[rank - self.first])
    }

    fn explain(&self, error: Error, rank: usize, ranks: &[Items]) -> Error {
        let plan = MemoryPlan {
            items: ranks[rank - self.first].to_vec(),
            budget: self.budget(rank),
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
        let at = rank - self.first;
        let device = &self.devices[at];
        let needed = self.needed(at, ranks.len() - 1, ranks);
        let room = self.available[at].saturating_sub(needed);
        let gpu = self.build.gpu(device, shape, rope, setting, room)?;
        let gpu = match self.build.options.gpu_memory_bytes {
            0 => gpu,
            limit => {
                // Ranks on the same GPU have equal shares of what is left.
                let same = |index: &&usize| **index == self.indices[at];
                let sharers = self.indices.iter().filter(same).count() as u64;
                gpu.adapters_within(limit.saturating_sub(needed) / sharers)
            }
        };
        Ok((gpu, device.name()))
    }

    /// Several GPUs of one process that exchange by themselves take no adapters. There, a GPU's
    /// exchange waits for launches on the other GPUs. `cuMemFree`, and sometimes `cuMemAlloc`, wait
    /// for what runs on their GPU and on GPUs that reach its memory. Meanwhile they keep other
    /// threads of the process from launching (NVIDIA/nccl 48 and 623, pytorch/pytorch 50925 on
    /// GitHub). So an adapter that comes or goes between the launches of two ranks would wait
    /// forever. The stand-in driver keeps nobody from launching, so no test can show this.
    ///
    /// A process with one GPU waits for its own work only. That work waits for launches of other
    /// processes, which do not wait for this process: work that all ranks have launched in one
    /// order ends.
    fn takes_adapters(&self) -> Result<()> {
        match &self.group {
            Some(_) if self.devices.len() > 1 => Err(Error::Unsupported(format!(
                "adapters that requests choose, on several GPUs of one process that exchange by \
                 NCCL: merge them while loading, take a process for each GPU, or set {VARIABLE} to \
                 \"staged\""
            ))),
            _ => Ok(()),
        }
    }

    fn exchange(
        &self,
        gpu: &mut Gpu<D>,
        wire: Box<dyn Wire>,
        dim: usize,
        limits: &Limits,
        vocabulary: &[Range<usize>],
    ) -> Result<Box<dyn Exchange<Gpu<D>>>> {
        let slices = match asked("slices") {
            true => Slices::Always,
            false => Slices::Auto,
        };
        let group = self.group.as_ref().map(|id| Group {
            id,
            slices,
            neighbours: self.neighbours.as_ref(),
        });
        let exchange = GpuExchange::new(gpu, wire, group, dim, limits, vocabulary)?;
        Ok(Box::new(exchange))
    }
}

fn asked(what: &str) -> bool {
    std::env::var_os(VARIABLE).is_some_and(|value| value == what)
}

/// A group for the GPUs of ranks, one of which is `first`, or the reason why they get none.
pub(in crate::llama) fn group<D: gpu::device::Device>(
    first: &D,
    options: &BuildOptions,
) -> std::result::Result<GroupId, String> {
    let indices = &options.devices;
    let twice = (1..indices.len()).any(|i| indices[..i].contains(&indices[i]));
    match asked("staged") {
        true => Err(format!("{VARIABLE} is \"staged\"")),
        false if twice => Err("two of them are on the same GPU".into()),
        false => match options.group {
            Some(group) => first.can_join().map(|()| group),
            None => first.new_group(),
        },
    }
}

/// Lets the GPUs of a group reach each other's memory; `Err` is the reason why they do not.
pub(in crate::llama) fn neighbours<D: gpu::device::Device>(
    devices: &[Arc<D>],
) -> std::result::Result<Neighbours<D>, String> {
    match ["nccl", "slices"].into_iter().find(|way| asked(way)) {
        Some(way) => Err(format!("{VARIABLE} is \"{way}\"")),
        None => Neighbours::of(devices),
    }
}

/// The GPUs that `devices` names.
pub(in crate::llama) fn gpus(options: &BuildOptions) -> Result<Vec<Arc<Cuda>>> {
    let staged = asked("staged");
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

/// The GPU of the rank of this process.
pub(in crate::llama) fn own_gpu(options: &BuildOptions) -> Result<Arc<Cuda>> {
    let images = Images::choose()?;
    Cuda::open(&LIBRARIES, &images, options.device_index).map(Arc::new)
}
