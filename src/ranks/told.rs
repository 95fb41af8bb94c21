//! What the other ranks are told of a step. Its memory is allocated before the step and used again,
//! so that no call of a step can fail for lack of memory.

use crate::backend::{Choices, Limits, Step};
use crate::{Result, reserve};
use std::sync::{Arc, Mutex, MutexGuard};

const WHAT: &str = "what the other ranks are told";

/// How many [`Told`] a rank has. When rank 0 begins a step, only the previous step is under way,
/// and the exchanges of that step have ended the step before it. So a rank has at most: the last
/// step that has ended, which it is about to give back; the step under way; a copy of pages; and
/// the new step.
const SPARES: usize = 4;

/// What one rank is told: a step, or pages to copy.
#[derive(Default)]
pub(super) struct Told {
    /// Its adapters are the rank's own parts.
    pub step: Step,
    /// As (from, to).
    pub pairs: Vec<(u32, u32)>,
}

impl Told {
    /// Makes room for the largest step.
    fn new(limits: &Limits) -> Result<Self> {
        let mut told = Told::default();
        let step = &mut told.step;
        // Each sequence of a step has a wanted row, unless it is in the middle of a prompt. There
        // are at most as many sequences as rows that can be wanted.
        let (rows, sequences) = (limits.max_rows, limits.max_wanted);
        let pages_each = limits.max_positions.div_ceil(limits.page_size);
        reserve::vec(WHAT, &mut step.tokens, rows)?;
        reserve::vec(WHAT, &mut step.slots, rows)?;
        reserve::vec(WHAT, &mut step.spans, sequences)?;
        reserve::vec(WHAT, &mut step.adapters, sequences)?;
        reserve::vec(WHAT, &mut step.pages, sequences.saturating_mul(pages_each))?;
        reserve::vec(WHAT, &mut step.wanted, limits.max_wanted)?;
        reserve::vec(WHAT, &mut told.pairs, sequences)?;
        Ok(told)
    }

    /// Copies all of a step except its adapters.
    pub fn set_step(&mut self, from: &Step) -> Result<()> {
        let Step {
            tokens,
            follows,
            slots,
            spans,
            adapters: _,
            pages,
            wanted,
        } = from;
        let to = &mut self.step;
        to.clear();
        to.follows = *follows;
        append(&mut to.tokens, tokens)?;
        append(&mut to.slots, slots)?;
        append(&mut to.spans, spans)?;
        append(&mut to.pages, pages)?;
        append(&mut to.wanted, wanted)
    }

    pub fn set_pairs(&mut self, pairs: &[(u32, u32)]) -> Result<()> {
        self.pairs.clear();
        append(&mut self.pairs, pairs)
    }
}

/// The memory for what a rank will be told next. Rank 0 takes from it, and the rank gives back.
#[derive(Clone)]
pub(super) struct Spares(Arc<Mutex<Vec<Told>>>);

impl Spares {
    pub fn new(limits: &Limits) -> Result<Self> {
        let mut all = reserve::room(WHAT, SPARES)?;
        for _ in 0..SPARES {
            all.push(Told::new(limits)?);
        }
        Ok(Spares(Arc::new(Mutex::new(all))))
    }

    pub fn take(&self) -> Told {
        self.all().pop().unwrap_or_default()
    }

    /// To be called by the rank itself: its parts of adapters are dropped here.
    pub fn give_back(&self, mut told: Told) {
        told.step.clear();
        let mut all = self.all();
        if all.len() < all.capacity() {
            all.push(told);
        }
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.all().len()
    }

    /// A panic while the lock is held leaves nothing half done.
    fn all(&self) -> MutexGuard<'_, Vec<Told>> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// How tokens are chosen from steps, as all other ranks are told. A [`Choices`] is used again when
/// none of them reads it any more.
pub(super) struct Chosen(Vec<Arc<Choices>>);

impl Chosen {
    pub fn new(limits: &Limits) -> Result<Self> {
        let mut all = reserve::room(WHAT, SPARES)?;
        for _ in 0..SPARES {
            let mut choices = Choices::default();
            reserve::vec(WHAT, &mut choices.rows, limits.max_wanted)?;
            all.push(Arc::new(choices));
        }
        Ok(Chosen(all))
    }

    /// [`crate::backend::Run::reserve_history`].
    pub fn reserve_history(&mut self, n: usize) -> Result<()> {
        let choices = self.unread()?;
        choices.clear();
        reserve::vec(WHAT, &mut choices.history, n)
    }

    /// Copies choices, except edits and masks: for a row that has any, rank 0 gives the logits to
    /// the host, and the other ranks do nothing ([`crate::backend::gpu`]).
    pub fn set(&mut self, from: &Choices) -> Result<&Arc<Choices>> {
        let at = self.find_unread()?;
        let to = Arc::make_mut(&mut self.0[at]);
        to.clear();
        append(&mut to.rows, &from.rows)?;
        append(&mut to.history, &from.history)?;
        Ok(&self.0[at])
    }

    fn unread(&mut self) -> Result<&mut Choices> {
        let at = self.find_unread()?;
        Ok(Arc::make_mut(&mut self.0[at]))
    }

    /// The index of a [`Choices`] that nobody reads. Among several, it takes the one with the most
    /// room for history, so that room that was reserved is found again.
    fn find_unread(&mut self) -> Result<usize> {
        let all = &mut self.0;
        let room = |choices: &mut Arc<Choices>| Some(Arc::get_mut(choices)?.history.capacity());
        let unread = (0..all.len()).filter_map(|at| Some((room(&mut all[at])?, at)));
        if let Some((_, at)) = unread.max() {
            return Ok(at);
        }
        reserve::vec(WHAT, all, 1)?;
        reserve::headroom(WHAT, size_of::<Choices>() + 2 * size_of::<usize>())?;
        all.push(Arc::default());
        Ok(all.len() - 1)
    }
}

fn append<T: Clone>(to: &mut Vec<T>, from: &[T]) -> Result<()> {
    reserve::vec(WHAT, to, from.len())?;
    to.extend_from_slice(from);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        page_size: 16,
        n_pages: 10,
        max_positions: 64,
        max_rows: 8,
        max_wanted: 4,
        vocab_size: 100,
    };

    #[test]
    fn room_for_history_is_found_again() {
        let mut chosen = Chosen::new(&LIMITS).unwrap();
        let mut read = Vec::new();
        for n in 0..2 * SPARES {
            // From the fourth on, all of them are being read.
            chosen.reserve_history(1000).unwrap();
            let choices = Choices {
                history: vec![n as i32; 1000],
                edits: vec![crate::backend::choice::Edit { token: 1, add: 1.0 }],
                masks: vec![1],
                ..Choices::default()
            };
            let told = chosen.set(&choices).unwrap();
            assert!(told.history == choices.history && told.history.capacity() >= 1000);
            assert!(told.edits.is_empty() && told.masks.is_empty());
            read.push(told.clone());
        }
        // Each one still has its own history.
        for (n, choices) in read.iter().enumerate() {
            assert_eq!(choices.history, [n as i32; 1000]);
        }
        // One that nobody reads any more is used again.
        let address = Arc::as_ptr(&read.remove(3));
        assert_eq!(Arc::as_ptr(chosen.set(Choices::NONE).unwrap()), address);
    }

    #[test]
    fn what_a_rank_is_told_is_used_again() {
        let spares = Spares::new(&LIMITS).unwrap();
        let step = Step {
            tokens: vec![1, 2],
            slots: vec![3, 4],
            follows: true,
            pages: vec![5],
            wanted: vec![1],
            adapters: vec![None],
            ..Step::default()
        };
        let mut told: Vec<_> = (0..SPARES + 1).map(|_| spares.take()).collect();
        for told in &mut told {
            told.set_step(&step).unwrap();
            told.set_pairs(&[(1, 2)]).unwrap();
            assert!(told.step.adapters.is_empty() && told.pairs == [(1, 2)]);
            let adapters = vec![None];
            let found = Step {
                adapters,
                ..told.step.clone()
            };
            assert_eq!(found, step);
        }
        told.into_iter().for_each(|told| spares.give_back(told));
        assert_eq!(spares.len(), SPARES);
        assert_eq!(spares.take().step, Step::default());
    }
}
