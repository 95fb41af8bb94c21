//! A [`Step`] in the form that kernels read: arrays of 32-bit numbers in one device buffer. One
//! copy fills it. Only what the step has is copied, and lies without gaps; where it lies depends on
//! the padded numbers of rows alone, so that a recorded step finds it again.

use super::device::{Device, Memory};
use super::most_decoded;
use super::params::{GPU_TILE_FMA, GPU_TILE_HOPPER, GPU_TILE_MMA, SampleRow};
use crate::backend::{Limits, RowKind, Step};
use crate::{Error, Result, reserve};
use std::sync::Arc;

/// Rows of a tile of prefill attention on tensor cores.
pub(super) const TILE_MMA: usize = GPU_TILE_MMA as usize;
/// The same for the kernels for compute capability 9.0.
pub(super) const TILE_HOPPER: usize = GPU_TILE_HOPPER as usize;
/// The same for attention in float32.
pub(super) const TILE_FMA: usize = GPU_TILE_FMA as usize;

/// The numbers of decode rows for which kernels are launched. A step is padded up to the next of
/// these numbers, so that launches have few shapes.
const BUCKETS: [usize; 9] = [1, 2, 4, 8, 16, 24, 32, 48, 64];

pub(super) fn bucket(n: usize) -> usize {
    match BUCKETS.iter().find(|&&bucket| bucket >= n) {
        _ if n == 0 => 0,
        Some(&bucket) => bucket,
        None => n.next_multiple_of(32),
    }
}

/// The number of a row that does not exist.
const PADDING: u32 = u32::MAX;

/// Checks that a step fits into the buffers. The engine keeps to the limits, so an error is
/// internal.
fn within(what: &str, n: usize, most: usize) -> Result<()> {
    match n <= most {
        true => Ok(()),
        false => Err(Error::Internal(format!(
            "a step of {n} {what}, at most {most}"
        ))),
    }
}

/// Words of a [`SampleRow`].
pub(super) const CHOICE: usize = size_of::<SampleRow>() / 4;

/// The lengths of the arrays.
#[derive(Clone, Copy, Debug)]
struct Lengths {
    /// Rows, including padding.
    rows: usize,
    decode: usize,
    wanted: usize,
    prefill: usize,
    tiles: usize,
    pages: usize,
}

/// Where each array begins, counted in 32-bit numbers.
#[derive(Clone, Copy, Debug)]
struct Layout {
    tokens: usize,
    positions: usize,
    slots: usize,
    row_pages: usize,
    decode: usize,
    wanted: usize,
    /// A [`SampleRow`] for each wanted row.
    choices: usize,
    prefill: usize,
    tiles: usize,
    pages: usize,
    /// The end of the last array.
    len: usize,
}

impl Layout {
    fn new(of: Lengths) -> Layout {
        // Arrays begin at multiples of 16 bytes.
        let mut end = 0usize;
        let mut take = |n: usize| {
            let at = end;
            end = end.saturating_add(n.saturating_add(3) / 4 * 4);
            at
        };
        // The tokens come first: if a step follows another, the tokens on the device are kept, and
        // the copy begins after them. The pages come last, because a recorded step may have any
        // number of them.
        Layout {
            tokens: take(of.rows),
            positions: take(of.rows),
            slots: take(of.rows),
            row_pages: take(of.rows),
            decode: take(of.decode),
            wanted: take(of.wanted),
            choices: take(of.wanted.saturating_mul(CHOICE)),
            prefill: take(of.prefill),
            tiles: take(of.tiles.saturating_mul(4)),
            pages: take(of.pages),
            len: end,
        }
    }

    /// The layout of a step that has as much of everything as one may have.
    fn largest(limits: &Limits) -> Layout {
        let rows = limits.max_rows;
        Layout::new(Lengths {
            rows: bucket(rows),
            decode: bucket(most_decoded(limits)),
            wanted: bucket(limits.max_wanted),
            prefill: rows,
            // Every tile has at least one row.
            tiles: rows,
            pages: limits.n_pages,
        })
    }
}

/// Bytes of the buffer.
pub(super) fn bytes(limits: &Limits) -> usize {
    Layout::largest(limits).len.saturating_mul(4)
}

/// The step that is loaded.
pub(super) struct Loaded<D: Device> {
    memory: Memory<D>,
    host: Vec<u32>,
    layout: Layout,
    pub limits: Limits,
    tile: usize,
    /// Rows, including padding.
    pub n_rows: usize,
    /// Decode rows, including padding.
    pub n_decode: usize,
    /// Prefill rows.
    pub n_prefill: usize,
    /// The number of the first prefill row. The prefill rows follow the decode rows.
    pub first_prefill: usize,
    /// Wanted rows.
    pub n_wanted: usize,
    /// Wanted rows, including padding.
    pub n_wanted_padded: usize,
    /// Tiles of prefill attention.
    pub n_tiles: usize,
    /// The last position of the longest sequence that decodes.
    pub longest: usize,
}

impl<D: Device> Loaded<D> {
    /// `tile`: rows of a tile of prefill attention.
    pub fn new(device: &Arc<D>, limits: &Limits, tile: usize) -> Result<Self> {
        let layout = Layout::largest(limits);
        let mut host = Vec::new();
        reserve::vec("the rows of a step", &mut host, layout.len)?;
        host.resize(layout.len, 0);
        Ok(Loaded {
            memory: Memory::new(device, "the rows of a step", bytes(limits))?,
            host,
            layout,
            limits: limits.clone(),
            tile,
            n_rows: 0,
            n_decode: 0,
            n_prefill: 0,
            first_prefill: 0,
            n_wanted: 0,
            n_wanted_padded: 0,
            n_tiles: 0,
            longest: 0,
        })
    }

    /// Loads `step`; [`Loaded::copy`] brings it to the device.
    pub fn load(&mut self, step: &Step) -> Result<()> {
        let (n_rows, n_pages) = (step.tokens.len(), step.pages.len());
        let limits = &self.limits;
        within("rows", n_rows, limits.max_rows)?;
        within("pages", n_pages, limits.n_pages)?;
        within("wanted rows", step.wanted.len(), limits.max_wanted)?;
        let (mut n_decode, mut n_prefill, mut n_tiles) = (0, 0, 0);
        for span in &step.spans {
            match span.kind {
                RowKind::Decode if n_prefill > 0 => {
                    return Err(Error::Internal(
                        "a step with a row of decode behind one of a prompt".into(),
                    ));
                }
                RowKind::Decode => n_decode += span.rows.len(),
                RowKind::Prefill => {
                    n_prefill += span.rows.len();
                    n_tiles += span.rows.len().div_ceil(self.tile);
                }
            }
        }
        within("rows that decode", n_decode, most_decoded(limits))?;
        self.first_prefill = n_decode;
        self.n_decode = bucket(n_decode);
        (self.n_prefill, self.n_tiles, self.longest) = (n_prefill, n_tiles, 0);
        self.n_wanted = step.wanted.len();
        // Without prefill rows, every kernel is launched for the whole bucket.
        (self.n_rows, self.n_wanted_padded) = match n_prefill {
            0 => (self.n_decode, bucket(self.n_wanted)),
            _ => (n_rows, self.n_wanted),
        };
        let at = Layout::new(Lengths {
            rows: self.n_rows,
            decode: self.n_decode,
            wanted: self.n_wanted_padded,
            prefill: n_prefill,
            tiles: n_tiles,
            pages: n_pages,
        });
        self.layout = at;
        let host = &mut self.host[..];
        for (to, &token) in host[at.tokens..].iter_mut().zip(&step.tokens) {
            *to = token as u32;
        }
        host[at.tokens..][n_rows..self.n_rows].fill(PADDING);
        host[at.slots..][..n_rows].copy_from_slice(&step.slots);
        host[at.slots..][n_rows..self.n_rows].fill(Step::NO_SLOT);
        host[at.decode..][n_decode..self.n_decode].fill(PADDING);
        host[at.wanted..][..self.n_wanted].copy_from_slice(&step.wanted);
        host[at.wanted..][self.n_wanted..self.n_wanted_padded].fill(PADDING);
        host[at.pages..][..n_pages].copy_from_slice(&step.pages);
        let (mut n_decode, mut n_prefill, mut n_tiles) = (0, 0, 0);
        for span in &step.spans {
            let pages = span.pages.start as u32;
            for (i, row) in span.rows.clone().enumerate() {
                host[at.positions + row] = (span.position + i) as u32;
                host[at.row_pages + row] = pages;
                let (list, n) = match span.kind {
                    RowKind::Decode => (at.decode, &mut n_decode),
                    RowKind::Prefill => (at.prefill, &mut n_prefill),
                };
                host[list + *n] = row as u32;
                *n += 1;
            }
            match span.kind {
                RowKind::Decode => {
                    let last = (span.position + span.rows.len()).saturating_sub(1);
                    self.longest = self.longest.max(last);
                }
                RowKind::Prefill => {
                    let first = n_prefill - span.rows.len();
                    for cut in (0..span.rows.len()).step_by(self.tile) {
                        let n = self.tile.min(span.rows.len() - cut);
                        let numbers = [first + cut, n, span.position + cut].map(|n| n as u32);
                        let tile = &mut host[at.tiles + 4 * n_tiles..][..4];
                        tile[..3].copy_from_slice(&numbers);
                        tile[3] = pages;
                        n_tiles += 1;
                    }
                }
            }
        }
        within("positions", self.longest + 1, self.limits.max_positions)
    }

    /// Room for the words of a [`SampleRow`] for each wanted row of the loaded step, padding
    /// included.
    pub fn choices_mut(&mut self) -> &mut [u32] {
        &mut self.host[self.layout.choices..][..CHOICE * self.n_wanted_padded]
    }

    /// Copies the loaded step to the device. If it follows another step, the tokens on the device
    /// are kept, because the sampler has left them there.
    pub fn copy(&self, follows: bool) -> Result<()> {
        let first = if follows { self.layout.positions } else { 0 };
        self.memory
            .write_numbers(4 * first, &self.host[first..self.layout.len])
    }

    fn at(&self, offset: usize) -> u64 {
        self.memory.at() + 4 * offset as u64
    }
    pub fn tokens(&self) -> u64 {
        self.at(self.layout.tokens)
    }
    pub fn positions(&self) -> u64 {
        self.at(self.layout.positions)
    }
    pub fn slots(&self) -> u64 {
        self.at(self.layout.slots)
    }
    pub fn row_pages(&self) -> u64 {
        self.at(self.layout.row_pages)
    }
    /// The list of decode rows from entry `skip` on.
    pub fn decode(&self, skip: usize) -> u64 {
        self.at(self.layout.decode + skip)
    }
    pub fn prefill(&self) -> u64 {
        self.at(self.layout.prefill)
    }
    pub fn wanted(&self) -> u64 {
        self.at(self.layout.wanted)
    }
    /// See [`Loaded::choices_mut`].
    pub fn choices(&self) -> u64 {
        self.at(self.layout.choices)
    }
    pub fn tiles(&self) -> u64 {
        self.at(self.layout.tiles)
    }
    pub fn pages(&self) -> u64 {
        self.at(self.layout.pages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_hold_what_they_are_for() {
        assert_eq!(bucket(0), 0);
        for n in 1..300 {
            let b = bucket(n);
            assert!(b >= n && bucket(b) == b, "{n}: {b}");
            assert!(b <= 2 * n, "{n}: {b}");
        }
    }
}
