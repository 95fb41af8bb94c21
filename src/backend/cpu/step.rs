//! A step in the form that the operations need: which rows there are, of which kind, and where
//! their K and V go.

use crate::backend::{RowKind, Step};
use crate::{Error, Result};

/// The loaded step; never grows after [`super::Cpu::new`].
#[derive(Debug)]
pub(super) struct Loaded {
    pub tokens: Vec<crate::Token>,
    pub slots: Vec<u32>,
    pub positions: Vec<u32>,
    pub pages: Vec<u32>,
    /// Every row; then the rows of each kind.
    pub rows: [Picks; 3],
    /// Rows whose logits are wanted; then those of each kind.
    pub wanted: [Picks; 3],
}

/// Rows that a product takes: row `from[i]` of its input gives row `to[i]` of its output.
#[derive(Debug)]
pub(super) struct Picks {
    pub from: Vec<u32>,
    pub to: Vec<u32>,
}

impl Picks {
    fn new(max: usize) -> Result<Self> {
        Ok(Self {
            from: reserve(max)?,
            to: reserve(max)?,
        })
    }

    fn clear(&mut self) {
        self.from.clear();
        self.to.clear();
    }

    fn push(&mut self, from: usize, to: usize) {
        self.from.push(from as u32);
        self.to.push(to as u32);
    }
}

/// Index of the [`Picks`] of all rows.
pub(super) const ALL: usize = 0;

pub(super) fn kind_index(kind: RowKind) -> usize {
    match kind {
        RowKind::Prefill => 1,
        RowKind::Decode => 2,
    }
}

impl Loaded {
    pub fn new(max_rows: usize, max_pages: usize) -> Result<Self> {
        let picks = || -> Result<[Picks; 3]> {
            Ok([
                Picks::new(max_rows)?,
                Picks::new(max_rows)?,
                Picks::new(max_rows)?,
            ])
        };
        Ok(Self {
            tokens: reserve(max_rows)?,
            slots: reserve(max_rows)?,
            positions: reserve(max_rows)?,
            pages: reserve(max_pages)?,
            rows: picks()?,
            wanted: picks()?,
        })
    }

    pub fn load(&mut self, step: &Step) {
        self.tokens.clear();
        self.tokens.extend_from_slice(&step.tokens);
        self.slots.clear();
        self.slots.extend_from_slice(&step.slots);
        self.pages.clear();
        self.pages.extend_from_slice(&step.pages);
        self.positions.clear();
        self.rows.iter_mut().for_each(Picks::clear);
        self.wanted.iter_mut().for_each(Picks::clear);
        let mut wanted = step
            .wanted
            .iter()
            .map(|&row| row as usize)
            .enumerate()
            .peekable();
        for span in &step.spans {
            debug_assert_eq!(span.rows.start, self.positions.len());
            self.positions
                .extend((0..span.rows.len()).map(|i| (span.position + i) as u32));
            let kind = kind_index(span.kind);
            for row in span.rows.clone() {
                self.rows[ALL].push(row, row);
                self.rows[kind].push(row, row);
                while let Some((i, _)) = wanted.next_if(|&(_, from)| from == row) {
                    self.wanted[ALL].push(row, i);
                    self.wanted[kind].push(row, i);
                }
            }
        }
    }
}

/// An empty vector with room for `n`.
fn reserve<T>(n: usize) -> Result<Vec<T>> {
    let mut v = Vec::new();
    let bytes = (n as u64).saturating_mul(size_of::<T>() as u64);
    let refused = |_| Error::refused("the rows of a step", bytes);
    v.try_reserve_exact(n).map_err(refused)?;
    Ok(v)
}
