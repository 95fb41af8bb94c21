//! Weight matrices: runs of parts with one format.
//!
//! A matrix for [`MatUse::Product`] is kept as *tile strips* of sixteen outputs; each strip is one
//! stream of memory. bfloat16 is `[n/16][k/2][16 n][2 k]` (a block of 32 k is an AMX tile), other
//! floats are `[n/16][k][16 n]`. Each part is padded with zeros to whole strips, and k to whole
//! tiles or to an even number. Quantised formats have strips of their own ([`super::blocks`]). A
//! matrix for [`MatUse::Lookup`] is kept row-major.
//!
//! `run` has one run and its layout, `pack` turns stored tensors into it.

use super::detect::Tier;
use super::pool::Pool;
pub(super) use super::run::Run;
use super::run::{part_len, unit};
use super::simd::LANES;
use crate::backend::{Block, MatSpec, PartSpec, QuantBlock};
use crate::{Dtype, Result};

/// Packed weights, as runs of neighbouring parts with one dtype.
#[derive(Debug)]
pub struct CpuMat {
    pub(super) runs: Vec<Run>,
    /// [`MatSpec::scale`].
    pub(super) scale: f32,
    /// [`MatSpec::adapter_index`].
    pub(super) adapter_index: Option<usize>,
}

/// Bytes that [`CpuMat::new`] takes.
pub(super) fn bytes(spec: &MatSpec) -> u64 {
    let part = |&part: &PartSpec| {
        let weights = part_len(part, spec).map_or(u64::MAX, |n| {
            (n as u64).saturating_mul(unit(part.dtype) as u64)
        });
        let bias = (part.rows.div_ceil(LANES) as u64).saturating_mul(4 * LANES as u64);
        weights.saturating_add(if spec.bias { bias } else { 0 })
    };
    spec.parts.iter().map(part).fold(0, u64::saturating_add)
}

impl CpuMat {
    /// A matrix of zeros.
    pub(super) fn new(spec: &MatSpec) -> Result<CpuMat> {
        let (mut runs, mut first) = (Vec::new(), 0);
        for parts in spec.parts.chunk_by(|a, b| a.dtype == b.dtype) {
            let run = Run::new(spec, parts, first)?;
            first += run.strips();
            runs.push(run);
        }
        let (scale, adapter_index) = (spec.scale, spec.adapter_index);
        Ok(CpuMat {
            runs,
            scale,
            adapter_index,
        })
    }

    /// The run of a part, and the part's number in it.
    fn run_of_part(&mut self, mut part: usize) -> (&mut Run, usize) {
        for run in &mut self.runs {
            match part.checked_sub(run.parts.len()) {
                Some(rest) => part = rest,
                None => return (run, part),
            }
        }
        panic!("a part outside its matrix")
    }

    /// Rows and first strip of every part.
    pub(super) fn parts(&self) -> impl Iterator<Item = (usize, usize)> {
        self.runs.iter().flat_map(|run| {
            let parts = run.parts.iter();
            parts.map(|part| (part.rows, run.first + part.first))
        })
    }

    /// Whether `f` says yes to the formats of all runs.
    pub(super) fn all(&self, f: impl Fn(Dtype) -> bool) -> bool {
        self.runs.iter().all(|run| f(run.dtype))
    }

    /// Sets the bias of a part.
    pub(super) fn set_bias(&mut self, part: usize, values: &[f32]) {
        let (run, part) = self.run_of_part(part);
        let at = run.parts[part].first * LANES;
        run.bias[at..at + values.len()].copy_from_slice(values);
    }

    /// Row `row` of the only part, as f32.
    pub(super) fn lookup(&self, tier: Tier, row: usize, to: &mut [f32]) {
        self.runs[0].lookup(tier, row, to);
    }

    /// Converts and places a rectangle of a stored tensor.
    pub(super) fn pack(&mut self, pool: &Pool, tier: Tier, block: &Block<'_>) {
        let (run, part) = self.run_of_part(block.part);
        run.pack(pool, tier, &Block { part, ..*block });
    }

    /// Places rows of codes or scales.
    pub(super) fn pack_quantised(&mut self, pool: &Pool, tier: Tier, block: &QuantBlock<'_>) {
        let (run, part) = self.run_of_part(block.part);
        run.pack_quantised(pool, tier, &QuantBlock { part, ..*block });
    }
}
