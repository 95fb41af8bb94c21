//! Ranks on the CPU: those of one process on NUMA nodes, or the single rank of a process on that
//! process's processors.

use super::{Items, Kind, by_item};
use crate::Result;
use crate::backend::cpu::{Cpu, CpuExchange, usable_threads};
use crate::backend::{Exchange, Limits, RopeTable, Shape, Wire};
use crate::llama::plan::{Budget, MemoryPlan};
use crate::llama::setting::Setting;
use crate::llama::{BuildOptions, Device};
use crate::log::Level;
use crate::model::Cuts;
use crate::ranks::nodes::{self, Processors};
use std::collections::BTreeSet;
use std::ops::Range;

/// Ranks on NUMA nodes, or the single rank of a process on the processors that the process may use.
pub(in crate::llama) struct OnCpus<'a> {
    options: &'a BuildOptions,
    /// The node of each rank. Empty: the only rank stays where the process is.
    nodes: Vec<Processors>,
    /// For each rank here: how many ranks run on its processors.
    sharers: Vec<usize>,
}

impl<'a> OnCpus<'a> {
    /// All ranks of a model, on these nodes.
    pub fn on_nodes(options: &'a BuildOptions, nodes: Vec<Processors>) -> Self {
        let same = |place| nodes.iter().filter(|other| *other == place).count();
        OnCpus {
            options,
            sharers: nodes.iter().map(same).collect(),
            nodes,
        }
    }

    /// The rank of this process. `sharers` ranks share its processors.
    pub fn here(options: &'a BuildOptions, sharers: usize) -> Self {
        OnCpus {
            options,
            sharers: vec![sharers],
            nodes: Vec::new(),
        }
    }
}

impl Kind for OnCpus<'_> {
    type Backend = Cpu;
    const DEVICE: Device = Device::Cpu;

    fn exchange_bytes(&self, dim: usize, limits: &Limits, cuts: &Cuts, rank: usize) -> u64 {
        CpuExchange::bytes(dim, limits, cuts.vocabulary()[rank].len())
    }

    fn most(&self, dim: usize, limits: &Limits, vocabulary: &[Range<usize>]) -> usize {
        CpuExchange::most(dim, limits, vocabulary)
    }

    fn budget(&self, _: usize) -> Budget {
        Budget::cpu()
    }

    fn check(&self, ranks: &[Items], board: u64) -> Result<()> {
        let mut items = by_item(ranks);
        items[3].1 = items[3].1.saturating_add(board);
        let plan = MemoryPlan {
            items: items.to_vec(),
            budget: Budget::cpu(),
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
        let options = self.options;
        if let Some(node) = self.nodes.get(rank)
            && !nodes::stay_on(node)
        {
            let node = options.devices[rank];
            options.log.write(Level::Warn, || {
                format!("rank {rank} cannot be kept on the processors of NUMA node {node}")
            });
        }
        let at = if self.nodes.is_empty() { 0 } else { rank };
        let n_threads = match options.n_threads {
            0 => (usable_threads() / self.sharers[at]).max(1),
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
        _: &mut Cpu,
        wire: Box<dyn Wire>,
        dim: usize,
        limits: &Limits,
        vocabulary: &[Range<usize>],
    ) -> Result<Box<dyn Exchange<Cpu>>> {
        let exchange = CpuExchange::new(wire, dim, limits, vocabulary.to_vec())?;
        Ok(Box::new(exchange))
    }

    fn processors(&self, rank: usize) -> Option<Processors> {
        self.nodes.get(rank).cloned()
    }
}

/// Warns if the memory of a node is too small for the weights and caches of its ranks.
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
