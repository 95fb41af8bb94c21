//! The kinds of devices that ranks have: processors, NUMA nodes, and GPUs.

mod cpus;
mod gpus;

pub(super) use cpus::OnCpus;
pub(super) use gpus::{OnGpus, gpus, group, neighbours, own_gpu};

use super::Device;
use super::plan::Budget;
use super::setting::Setting;
use crate::backend::{Exchange, Limits, RopeTable, Shape, Steps, Wire};
use crate::model::Cuts;
use crate::ranks::nodes::Processors;
use crate::{Error, Result};
use std::ops::Range;

/// What a rank takes in bytes, as [`super::setting::memory`] counts it.
pub(super) type Items = [(&'static str, u64); 4];

/// A kind of device that ranks can have. Numbers of ranks count all ranks of the model; `ranks` has
/// what the ranks of this process take.
pub(super) trait Kind: Sync {
    type Backend: Steps + 'static;
    const DEVICE: Device;

    /// The bytes that the exchanges of a rank take on its device, with its rows of the vocabulary.
    fn exchange_bytes(&self, dim: usize, limits: &Limits, cuts: &Cuts, rank: usize) -> u64;

    /// The most numbers that a rank gives at a time.
    fn most(&self, dim: usize, limits: &Limits, vocabulary: &[Range<usize>]) -> usize;

    /// What a rank may take of its device's memory.
    fn budget(&self, rank: usize) -> Budget;

    /// Checks that the memory which the ranks of one process take is available. `board` is what
    /// they take together on the host.
    fn check(&self, _ranks: &[Items], _board: u64) -> Result<()> {
        Ok(())
    }

    /// The error of a rank. If a device refuses memory, it has what was planned.
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

    /// A rank's exchange with the other ranks. All ranks call this at the same time.
    fn exchange(
        &self,
        backend: &mut Self::Backend,
        wire: Box<dyn Wire>,
        dim: usize,
        limits: &Limits,
        vocabulary: &[Range<usize>],
    ) -> Result<Box<dyn Exchange<Self::Backend>>>;

    /// Whether requests may choose adapters.
    ///
    /// # Errors
    /// [`Error::Unsupported`] with the reason.
    fn takes_adapters(&self) -> Result<()> {
        Ok(())
    }

    /// The processors on which a rank's threads stay.
    fn processors(&self, _rank: usize) -> Option<Processors> {
        None
    }
}

/// What all ranks together take of each item.
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
