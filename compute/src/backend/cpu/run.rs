//! A run of a matrix: how its numbers lie, and how one is read.

use super::blocks;
use super::buf::Mem;
use super::detect::Tier;
use super::element::{Data, Element, half_bits, half_bits_mut, with_element};
use super::simd::{Kernel, LANES, Simd};
use crate::backend::{MatSpec, MatUse, PartSpec};
use crate::quant::Quant;
use crate::{Dtype, Error, Result, reserve};

/// Neighbouring parts with one dtype: what one kernel multiplies.
#[derive(Debug)]
pub(super) struct Run {
    /// Strips of the matrix before this run.
    pub first: usize,
    pub parts: Vec<Part>,
    pub cols: usize,
    pub dtype: Dtype,
    pub usage: MatUse,
    pub data: Data,
    /// Padded like the rows; empty where there is none.
    pub bias: Vec<f32>,
}

/// Rows that were given as one part.
#[derive(Debug)]
pub(super) struct Part {
    pub rows: usize,
    /// Strips of the run before this part; rows before it in a [`MatUse::Lookup`].
    pub first: usize,
}

/// k is padded to a multiple of this.
fn k_step(dtype: Dtype) -> usize {
    match dtype {
        Dtype::Bf16 => 32,
        _ => 2,
    }
}

/// Numbers (words of a quantised format) in a strip; `None` if no machine could hold them.
fn strip_len(dtype: Dtype, cols: usize) -> Option<usize> {
    match dtype.quant() {
        Some(quant) => blocks::strip_len(quant, cols),
        None => cols
            .checked_next_multiple_of(k_step(dtype))?
            .checked_mul(LANES),
    }
}

/// Bytes of a number, or of a word of a quantised format.
pub(super) fn unit(dtype: Dtype) -> usize {
    match dtype.quant() {
        Some(_) => size_of::<u16>(),
        None => dtype.size(),
    }
}

/// Rows, or strips, that a part takes.
fn units(rows: usize, usage: MatUse) -> usize {
    match usage {
        MatUse::Lookup => rows,
        MatUse::Product => rows.div_ceil(LANES),
    }
}

/// How a part is laid out: quantised weights have no other layout than strips.
fn layout(dtype: Dtype, usage: MatUse) -> MatUse {
    match dtype.quant() {
        Some(_) => MatUse::Product,
        None => usage,
    }
}

/// Numbers (words of a quantised format) that a part takes; `None` if no machine could hold them.
pub(super) fn part_len(part: PartSpec, spec: &MatSpec) -> Option<usize> {
    let usage = layout(part.dtype, spec.usage);
    units(part.rows, usage).checked_mul(match usage {
        MatUse::Lookup => spec.cols,
        MatUse::Product => strip_len(part.dtype, spec.cols)?,
    })
}

impl Run {
    /// Zeros; `first` strips of the matrix lie before them.
    pub(super) fn new(spec: &MatSpec, run: &[PartSpec], first: usize) -> Result<Run> {
        let dtype = run[0].dtype;
        if dtype.quant().is_some_and(|quant| !blocks::has_type(quant)) {
            let sentence = format!("the CPU has no weights in {dtype}");
            return Err(Error::Unsupported(sentence));
        }
        let usage = layout(dtype, spec.usage);
        let mut lens = run.iter().map(|&part| part_len(part, spec));
        let len = lens.try_fold(0usize, |sum, n| sum.checked_add(n?));
        let (what, len) = ("a weight matrix", len.unwrap_or(usize::MAX));
        let data = match dtype.quant() {
            Some(_) => Data::Half(Mem::zeroed(what, len)?),
            None => Data::zeroed(what, dtype, len)?,
        };
        let (mut parts, mut total) = (Vec::with_capacity(run.len()), 0);
        for &PartSpec { rows, .. } in run {
            parts.push(Part { rows, first: total });
            total += units(rows, usage);
        }
        let biases = if spec.bias { total * LANES } else { 0 };
        Ok(Run {
            first,
            parts,
            cols: spec.cols,
            dtype,
            usage,
            data,
            bias: reserve::filled("the biases of a weight matrix", biases, 0.0)?,
        })
    }

    /// Strips of all parts; rows in a [`MatUse::Lookup`].
    pub(super) fn strips(&self) -> usize {
        let last = self.parts.last();
        last.map_or(0, |part| part.first + units(part.rows, self.usage))
    }

    /// The words of a quantised format.
    pub(super) fn words(&self) -> &[u16] {
        half_bits(&self.data)
    }

    /// As [`Run::words`].
    pub(super) fn words_mut(&mut self) -> &mut [u16] {
        half_bits_mut(&mut self.data)
    }

    /// Numbers (words of a quantised format) in a strip.
    pub(super) fn strip_len(&self) -> usize {
        strip_len(self.dtype, self.cols).expect("a strip that there is")
    }

    /// Bytes of a strip.
    pub(super) fn strip_bytes(&self) -> usize {
        self.strip_len() * unit(self.dtype)
    }

    pub(super) fn lookup(&self, tier: Tier, row: usize, to: &mut [f32]) {
        assert!(
            row < self.parts[0].rows,
            "row {row} of {}",
            self.parts[0].rows
        );
        if let Some(quant) = self.dtype.quant() {
            for (k, x) in to.iter_mut().enumerate() {
                *x = self.quantised_weight(quant, row, k);
            }
            return;
        }
        with_element!(self.dtype, E => {
            let bits = E::bits(&self.data);
            match self.usage {
                MatUse::Lookup => {
                    let from = &bits[row * self.cols..][..self.cols];
                    tier.run(Widen::<E> { from, to });
                }
                MatUse::Product => {
                    let strip = &bits[row / LANES * self.strip_len()..][..self.strip_len()];
                    for (k, x) in to.iter_mut().enumerate() {
                        *x = E::to_f32(strip[E::index(k, row % LANES)]);
                    }
                }
            }
        });
    }

    /// Weight `k` of row `row`, a row of the first part.
    pub(super) fn quantised_weight(&self, quant: Quant, row: usize, k: usize) -> f32 {
        let strip = &self.words()[row / LANES * self.strip_len()..][..self.strip_len()];
        blocks::weight(quant, strip, row % LANES, k)
    }
}

/// Converts a run of numbers to f32.
struct Widen<'a, E: Element> {
    from: &'a [E::Bits],
    to: &'a mut [f32],
}

impl<E: Element> Kernel for Widen<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (from, tail) = self.from.as_chunks::<LANES>();
        let (to, rest) = self.to.as_chunks_mut::<LANES>();
        for (x, y) in from.iter().zip(to) {
            s.store(E::widen(s, x), y);
        }
        for (x, y) in tail.iter().zip(rest) {
            *y = E::to_f32(*x);
        }
    }
}
