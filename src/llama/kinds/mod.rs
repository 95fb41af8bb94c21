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

/// A kind of device that ranks can have. Numbers of ranks are those of the model; `ranks` is what
/// the ranks of this process take.
pub(super) trait Kind: Sync {
    type Backend: Steps + 'static;
    const DEVICE: Device;

    /// Bytes on the device of a rank with these rows of the vocabulary, for its exchanges.
    fn exchange_bytes(&self, dim: usize, limits: &Limits, cuts: &Cuts, rank: usize) -> u64;

    /// The most numbers that a rank gives at a time.
    fn most(&self, dim: usize, limits: &Limits, vocabulary: &[Range<usize>]) -> usize;

    /// What a rank may take of its device's memory.
    fn budget(&self, rank: usize) -> Budget;

    /// Checks that what the ranks of one process take is there; `board` is what they take together
    /// on the host.
    fn check(&self, _ranks: &[Items], _board: u64) -> Result<()> {
        Ok(())
    }

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

    /// What a rank exchanges with the others, which call this at the same time.
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

    /// Where a rank's threads stay.
    fn processors(&self, _rank: usize) -> Option<Processors> {
        None
    }
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
