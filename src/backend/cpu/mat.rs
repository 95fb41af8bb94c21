//! Weight matrices, and how stored tensors become them.
//!
//! A matrix for [`MatUse::Product`] is kept as *tile strips* of sixteen outputs; each strip is one
//! stream of memory. bfloat16 is `[n/16][k/2][16 n][2 k]` (a block of 32 k is an AMX tile), other
//! floats are `[n/16][k][16 n]`. Each part is padded with zeros to whole strips, and k to whole
//! tiles or to an even number. Quantised formats have strips of their own ([`super::blocks`]). A
//! matrix for [`MatUse::Lookup`] is kept row-major.

use super::blocks;
use super::buf::Mem;
use super::detect::Tier;
use super::element::{Bf16, Data, Element, F16, F32, half_bits, half_bits_mut, with_element};
use super::pool::{Grid, Pool};
use super::simd::{Kernel, LANES, Simd};
use crate::backend::{Block, MatSpec, MatUse, PartSpec, QuantBlock};
use crate::{Dtype, Error, Result};
use std::marker::PhantomData;

/// Packed weights, as runs of neighbouring parts with one dtype.
#[derive(Debug)]
pub struct CpuMat {
    pub(super) runs: Vec<Run>,
    /// [`MatSpec::scale`].
    pub(super) scale: f32,
    /// [`MatSpec::place`].
    pub(super) place: Option<usize>,
}

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
fn unit(dtype: Dtype) -> usize {
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
fn part_len(part: PartSpec, spec: &MatSpec) -> Option<usize> {
    let usage = layout(part.dtype, spec.usage);
    units(part.rows, usage).checked_mul(match usage {
        MatUse::Lookup => spec.cols,
        MatUse::Product => strip_len(part.dtype, spec.cols)?,
    })
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
        let (scale, place) = (spec.scale, spec.place);
        Ok(CpuMat { runs, scale, place })
    }

    /// The run of a part, and the part's number in it.
    fn place(&mut self, mut part: usize) -> (&mut Run, usize) {
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
        let (run, part) = self.place(part);
        let at = run.parts[part].first * LANES;
        run.bias[at..at + values.len()].copy_from_slice(values);
    }

    /// Row `row` of the only part, as f32.
    pub(super) fn lookup(&self, tier: Tier, row: usize, to: &mut [f32]) {
        self.runs[0].lookup(tier, row, to);
    }

    /// Converts and places a rectangle of a stored tensor.
    pub(super) fn pack(&mut self, pool: &Pool, tier: Tier, block: &Block<'_>) {
        let (run, part) = self.place(block.part);
        run.pack(pool, tier, &Block { part, ..*block });
    }

    /// Places rows of codes or scales.
    pub(super) fn pack_quantised(&mut self, pool: &Pool, block: &QuantBlock<'_>) {
        let (run, part) = self.place(block.part);
        run.pack_quantised(pool, &QuantBlock { part, ..*block });
    }
}

impl Run {
    /// Zeros; `first` strips of the matrix lie before them.
    fn new(spec: &MatSpec, run: &[PartSpec], first: usize) -> Result<Run> {
        let dtype = run[0].dtype;
        if dtype == Dtype::Fp8 {
            return Err(Error::Unsupported("the CPU has no weights in fp8".into()));
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
        let bias = if spec.bias {
            vec![0.0; total * LANES]
        } else {
            Vec::new()
        };
        Ok(Run {
            first,
            parts,
            cols: spec.cols,
            dtype,
            usage,
            data,
            bias,
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

    /// As [`CpuMat::words`].
    pub(super) fn words_mut(&mut self) -> &mut [u16] {
        half_bits_mut(&mut self.data)
    }

    /// Numbers (words of a quantised format) in a strip.
    pub(super) fn strip_len(&self) -> usize {
        strip_len(self.dtype, self.cols).expect("a strip that there is")
    }

    fn lookup(&self, tier: Tier, row: usize, to: &mut [f32]) {
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

    fn pack(&mut self, pool: &Pool, tier: Tier, block: &Block<'_>) {
        with_element!(self.dtype, E => match block.dtype {
            Dtype::F32 => self.pack_as::<E, F32>(pool, tier, block),
            Dtype::F16 => self.pack_as::<E, F16>(pool, tier, block),
            Dtype::Bf16 => self.pack_as::<E, Bf16>(pool, tier, block),
            other => unreachable!("a block of {other} for a matrix of floats"),
        });
    }

    fn pack_as<E: Element, Src: Source>(&mut self, pool: &Pool, tier: Tier, block: &Block<'_>) {
        let &Block {
            row,
            col,
            cols,
            order,
            bytes,
            ..
        } = block;
        let row_bytes = cols * Src::SIZE;
        let rows = bytes.len().checked_div(row_bytes).unwrap_or(0);
        let part = &self.parts[block.part];
        assert!(
            row + rows <= part.rows && col + cols <= self.cols,
            "a block outside its matrix"
        );
        if rows == 0 {
            return;
        }
        // Destination rows that the block can touch.
        let (low, high) = order.touched(row, rows, part.rows);
        let from = |destination: usize| {
            let at = order
                .source(destination)
                .checked_sub(row)
                .filter(|&i| i < rows)?;
            Some(&bytes[at * row_bytes..][..row_bytes])
        };
        let len = self.strip_len();
        let data = E::bits_mut(&mut self.data);
        match self.usage {
            MatUse::Lookup => {
                let all =
                    &mut data[(part.first + low) * self.cols..(part.first + high) * self.cols];
                pool.run(Grid::pieces(all, self.cols), |task, _, mut out| {
                    if let Some(from) = from(low + task) {
                        let to = &mut out.row(0)[col..col + cols];
                        tier.run(Convert::<E, Src> {
                            from,
                            to,
                            types: PhantomData,
                        });
                    }
                });
            }
            MatUse::Product => {
                let (first, last) = (low / LANES, high.div_ceil(LANES));
                let all = &mut data[(part.first + first) * len..(part.first + last) * len];
                pool.run(Grid::pieces(all, len), |task, _, mut strip| {
                    let mut lanes = [Lane::Outside; LANES];
                    for (i, lane) in lanes.iter_mut().enumerate() {
                        let destination = (first + task) * LANES + i;
                        *lane = if destination >= part.rows {
                            Lane::Padding
                        } else {
                            from(destination).map_or(Lane::Outside, Lane::Bytes)
                        };
                    }
                    tier.run(PackStrip::<E, Src> {
                        strip: strip.row(0),
                        lanes,
                        col,
                        cols,
                        types: PhantomData,
                    });
                });
            }
        }
    }
}

/// A format that stored tensors come in: little-endian bytes of any alignment.
trait Source: Element {
    const SIZE: usize;
    fn read(bytes: &[u8]) -> Self::Bits;

    /// Sixteen numbers; `bytes` has `16 * SIZE`.
    #[inline(always)]
    fn load<S: Simd>(s: S, bytes: &[u8]) -> S::F {
        let mut bits = [Self::Bits::default(); LANES];
        for (x, b) in bits.iter_mut().zip(bytes.chunks_exact(Self::SIZE)) {
            *x = Self::read(b);
        }
        Self::widen(s, &bits)
    }

    /// Number `i` of a row.
    #[inline(always)]
    fn get(bytes: &[u8], i: usize) -> f32 {
        Self::to_f32(Self::read(&bytes[i * Self::SIZE..][..Self::SIZE]))
    }
}

impl Source for F32 {
    const SIZE: usize = 4;
    #[inline(always)]
    fn read(bytes: &[u8]) -> f32 {
        f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }
}

impl Source for F16 {
    const SIZE: usize = 2;
    #[inline(always)]
    fn read(bytes: &[u8]) -> u16 {
        u16::from_le_bytes([bytes[0], bytes[1]])
    }
}

impl Source for Bf16 {
    const SIZE: usize = 2;
    #[inline(always)]
    fn read(bytes: &[u8]) -> u16 {
        u16::from_le_bytes([bytes[0], bytes[1]])
    }
}

/// What a lane of a strip gets from a block.
#[derive(Clone, Copy)]
enum Lane<'a> {
    /// This row of the block.
    Bytes(&'a [u8]),
    /// Nothing; it stays zero. The lane is behind the last row of the part.
    Padding,
    /// Nothing; it keeps its content. The lane is a row of another block.
    Outside,
}

/// Columns `col .. col + cols` of one strip.
struct PackStrip<'a, E: Element, Src> {
    strip: &'a mut [E::Bits],
    lanes: [Lane<'a>; LANES],
    col: usize,
    cols: usize,
    types: PhantomData<Src>,
}

impl<E: Element, Src: Source> Kernel for PackStrip<'_, E, Src> {
    type Output = ();

    /// Where whole lanes are written, squares of 16 x 16 are transposed in registers; the rest is
    /// written number by number.
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self {
            strip,
            lanes,
            col,
            cols,
            ..
        } = self;
        let whole = col % 2 == 0 && !lanes.iter().any(|l| matches!(l, Lane::Outside));
        let squares = if whole { cols / LANES } else { 0 };
        let rows = strip[col / 2 * (2 * LANES)..]
            .as_chunks_mut::<{ 2 * LANES }>()
            .0;
        for i in 0..squares {
            let mut square = [s.splat(0.0); LANES];
            for (lane, x) in lanes.iter().zip(&mut square) {
                if let Lane::Bytes(bytes) = lane {
                    *x = Src::load(s, &bytes[i * LANES * Src::SIZE..][..LANES * Src::SIZE]);
                }
            }
            let square = s.transpose(square);
            let to = &mut rows[i * LANES / 2..][..LANES / 2];
            for j in 0..LANES / 2 {
                E::narrow_pair(s, [square[2 * j], square[2 * j + 1]], &mut to[j]);
            }
        }
        for (i, lane) in lanes.iter().enumerate() {
            if let Lane::Bytes(bytes) = lane {
                for j in squares * LANES..cols {
                    strip[E::index(col + j, i)] = E::from_f32(Src::get(bytes, j));
                }
            }
        }
    }
}

/// Converts a run of numbers from one format to another.
struct Convert<'a, E: Element, Src> {
    from: &'a [u8],
    to: &'a mut [E::Bits],
    types: PhantomData<Src>,
}

impl<E: Element, Src: Source> Kernel for Convert<'_, E, Src> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (to, rest) = self.to.as_chunks_mut::<LANES>();
        let (from, tail) = self.from.split_at(to.len() * LANES * Src::SIZE);
        for (x, b) in to.iter_mut().zip(from.chunks_exact(LANES * Src::SIZE)) {
            E::narrow(s, Src::load(s, b), x);
        }
        for (i, x) in rest.iter_mut().enumerate() {
            *x = E::from_f32(Src::get(tail, i));
        }
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
