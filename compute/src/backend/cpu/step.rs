//! A step in the form that the operations need: its rows, their kinds, and the places for their K
//! and V.

use crate::backend::{Adapter, RowKind, Step};
use crate::{Error, Result};
use std::sync::Arc;

/// The loaded step; never grows after [`super::Cpu::new`].
#[derive(Debug)]
pub(super) struct Loaded {
    pub tokens: Vec<crate::Token>,
    pub slots: Vec<u32>,
    pub positions: Vec<u32>,
    pub pages: Vec<u32>,
    /// Every row; then the rows of each kind.
    pub rows: [Picks; 3],
    /// Rows whose logits are wanted; then the wanted rows of each kind.
    pub wanted: [Picks; 3],
    /// The adapters of the step's spans, until its answer is read.
    adapters: Vec<Arc<Adapter>>,
    /// For each row, 1 + the index of its adapter, or 0 if it has none. It is not filled if the
    /// step has no adapters.
    adapter_of: Vec<u32>,
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
            adapters: reserve(max_rows)?,
            adapter_of: reserve(max_rows)?,
        })
    }

    /// Whether a row has an adapter.
    pub fn has_adapters(&self) -> bool {
        !self.adapters.is_empty()
    }

    /// The adapter of a row.
    #[inline(always)]
    pub fn adapter(&self, row: usize) -> Option<&Adapter> {
        let at = (self.adapter_of[row] as usize).checked_sub(1)?;
        Some(&self.adapters[at])
    }

    /// Releases the adapters at the end of the step, so that their memory is freed when they are
    /// dropped elsewhere.
    pub fn release_adapters(&mut self) {
        self.adapters.clear();
    }

    fn load_adapters(&mut self, step: &Step) {
        self.adapters.clear();
        self.adapter_of.clear();
        if step.adapters.is_empty() {
            return;
        }
        for (span, adapter) in step.spans.iter().zip(&step.adapters) {
            self.adapters.extend(adapter.clone());
            let at = match adapter {
                Some(_) => self.adapters.len() as u32,
                None => 0,
            };
            self.adapter_of.resize(span.rows.end, at);
        }
        self.adapter_of.resize(step.tokens.len(), 0);
    }

    pub fn load(&mut self, step: &Step) {
        self.tokens.clear();
        self.tokens.extend_from_slice(&step.tokens);
        self.slots.clear();
        self.slots.extend_from_slice(&step.slots);
        self.pages.clear();
        self.pages.extend_from_slice(&step.pages);
        self.positions.clear();
        self.load_adapters(step);
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
