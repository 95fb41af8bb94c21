//! A [`Step`] in the form that kernels read: arrays of 32-bit numbers in one device buffer. One
//! copy fills it. Only what the step has is copied, and lies without gaps; where it lies depends on
//! the padded numbers of rows alone, so that a recorded step finds it again.

use super::device::Device;
use super::memory::Memory;
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

/// The lengths of the arrays. Rows, decode rows and wanted rows include padding.
#[derive(Clone, Copy, Debug)]
struct Lengths {
    rows: usize,
    decode: usize,
    wanted: usize,
    prefill: usize,
    tiles: usize,
    pages: usize,
}

impl Lengths {
    /// The lengths of `step`, with tiles of `tile` prefill rows.
    fn of(step: &Step, limits: &Limits, tile: usize) -> Result<Lengths> {
        let (n_rows, n_wanted) = (step.tokens.len(), step.wanted.len());
        within("rows", n_rows, limits.max_rows)?;
        within("pages", step.pages.len(), limits.n_pages)?;
        // The sampler writes the tokens of wanted rows over the tokens of the step's rows.
        within("wanted rows", n_wanted, limits.max_wanted.min(n_rows))?;
        let (mut n_decode, mut prefill, mut tiles) = (0, 0, 0);
        for span in &step.spans {
            match span.kind {
                RowKind::Decode if prefill > 0 => {
                    return Err(Error::Internal(
                        "a step with a row of decode behind one of a prompt".into(),
                    ));
                }
                RowKind::Decode => n_decode += span.rows.len(),
                RowKind::Prefill => {
                    prefill += span.rows.len();
                    tiles += span.rows.len().div_ceil(tile);
                }
            }
        }
        within("rows that decode", n_decode, most_decoded(limits))?;
        let decode = bucket(n_decode);
        // Without prefill rows, every kernel is launched for the whole bucket.
        let (rows, wanted) = match prefill {
            0 => (decode, bucket(n_wanted)),
            _ => (n_rows, n_wanted),
        };
        Ok(Lengths {
            rows,
            decode,
            wanted,
            prefill,
            tiles,
            pages: step.pages.len(),
        })
    }
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

/// Writes the arrays of `step` to `host`, in tiles of `tile` prefill rows. All numbers up to the
/// end of the layout are then set for this step, whatever `host` had before: rows of padding are at
/// position 0. Returns the last position of the longest sequence that decodes.
fn fill(host: &mut [u32], step: &Step, of: Lengths, at: &Layout, tile: usize) -> usize {
    let (n_rows, n_wanted) = (step.tokens.len(), step.wanted.len());
    host[..at.len].fill(0);
    for (to, &token) in host[at.tokens..].iter_mut().zip(&step.tokens) {
        *to = token as u32;
    }
    host[at.tokens..][n_rows..of.rows].fill(PADDING);
    host[at.slots..][..n_rows].copy_from_slice(&step.slots);
    host[at.slots..][n_rows..of.rows].fill(Step::NO_SLOT);
    host[at.decode..][..of.decode].fill(PADDING);
    host[at.wanted..][..n_wanted].copy_from_slice(&step.wanted);
    host[at.wanted..][n_wanted..of.wanted].fill(PADDING);
    host[at.pages..][..of.pages].copy_from_slice(&step.pages);
    let (mut n_decode, mut n_prefill, mut n_tiles, mut longest) = (0, 0, 0, 0);
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
                longest = longest.max(last);
            }
            RowKind::Prefill => {
                let first = n_prefill - span.rows.len();
                for cut in (0..span.rows.len()).step_by(tile) {
                    let n = tile.min(span.rows.len() - cut);
                    let numbers = [first + cut, n, span.position + cut].map(|n| n as u32);
                    let to = &mut host[at.tiles + 4 * n_tiles..][..4];
                    to[..3].copy_from_slice(&numbers);
                    to[3] = pages;
                    n_tiles += 1;
                }
            }
        }
    }
    longest
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
        let lengths = Lengths::of(step, &self.limits, self.tile)?;
        (self.n_rows, self.n_decode) = (lengths.rows, lengths.decode);
        (self.n_prefill, self.n_tiles) = (lengths.prefill, lengths.tiles);
        self.first_prefill = step.tokens.len() - lengths.prefill;
        self.n_wanted = step.wanted.len();
        self.n_wanted_padded = lengths.wanted;
        self.layout = Layout::new(lengths);
        self.longest = fill(&mut self.host, step, lengths, &self.layout, self.tile);
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
    use crate::backend::Span;

    /// Rows of decode at these positions, and one prompt of `prefill` rows, if there are any. All
    /// rows are wanted.
    fn step(decode: &[usize], prefill: usize) -> Step {
        let n = decode.len() + prefill;
        let span = |rows: std::ops::Range<usize>, kind, position| Span {
            pages: rows.start..rows.start + 1,
            rows,
            kind,
            position,
        };
        let each = |(row, &position)| span(row..row + 1, RowKind::Decode, position);
        let mut spans: Vec<Span> = decode.iter().enumerate().map(each).collect();
        if prefill > 0 {
            spans.push(span(decode.len()..n, RowKind::Prefill, 0));
        }
        Step {
            tokens: (0..n as i32).collect(),
            slots: (100..).take(n).collect(),
            pages: (50..).take(n).collect(),
            wanted: (0..n as u32).collect(),
            spans,
            ..Step::default()
        }
    }

    fn limits() -> Limits {
        Limits {
            max_rows: 32,
            max_wanted: 16,
            max_positions: 100,
            n_pages: 40,
            vocab_size: 10,
            page_size: 16,
        }
    }

    /// What is sent depends on nothing but the step, and padding has numbers that harm nobody.
    #[test]
    fn numbers_of_an_earlier_step_are_not_sent() {
        for (decode, prefill) in [
            (&[7, 9, 30][..], 0),
            (&[7, 9, 30], 5),
            (&[], 1),
            (&[4; 9], 0),
        ] {
            let step = step(decode, prefill);
            let lengths = Lengths::of(&step, &limits(), 4).unwrap();
            let at = Layout::new(lengths);
            let sent = [0, 0x5a5a_5a5a].map(|before| {
                let mut host = vec![before; Layout::largest(&limits()).len];
                let longest = fill(&mut host, &step, lengths, &at, 4);
                assert_eq!(longest, decode.iter().copied().max().unwrap_or(0));
                host.truncate(at.len);
                host
            });
            assert_eq!(sent[0], sent[1]);
            let padding = step.tokens.len()..lengths.rows;
            assert_eq!(
                padding.len(),
                if prefill > 0 {
                    0
                } else {
                    lengths.rows - decode.len()
                }
            );
            for row in padding {
                let numbers = [at.tokens, at.positions, at.slots, at.row_pages];
                let want = [PADDING, 0, Step::NO_SLOT, 0];
                assert_eq!(numbers.map(|at| sent[0][at + row]), want, "{row}");
            }
        }
    }

    #[test]
    fn steps_that_do_not_fit() {
        type Change = fn(&mut Step);
        let cases: [(&str, Change); 5] = [
            ("33 rows, at most 32", |s| s.tokens.resize(33, 0)),
            ("41 pages, at most 40", |s| s.pages.resize(41, 0)),
            ("17 wanted rows, at most 3", |s| s.wanted.resize(17, 0)),
            ("4 wanted rows, at most 3", |s| s.wanted.push(0)),
            ("behind one of a prompt", |s| {
                s.spans[0].kind = RowKind::Prefill
            }),
        ];
        for (words, change) in cases {
            let mut step = step(&[1, 2, 3], 0);
            assert!(Lengths::of(&step, &limits(), 4).is_ok());
            change(&mut step);
            let error = Lengths::of(&step, &limits(), 4).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

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
