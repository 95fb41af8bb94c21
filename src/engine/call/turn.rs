//! The prompts of a call that wait for their turn, and the slots that they need.

use super::{Beginning, Call, Phase, Standing, State, Waiting};
use crate::Result;
use crate::backend::Adapter;
use crate::engine::event::FinishReason;
use crate::engine::lock::lock;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

impl Call {
    /// Lets these prompts wait: from now on they need slots. `counts` says whether the call counts
    /// as waiting. The caller holds the inbox's lock.
    pub fn enqueue(&self, prompts: VecDeque<Waiting>, seed: u64, counts: bool) {
        let mut state = lock(&self.state);
        if state.failed.is_some() {
            return;
        }
        let needed = prompts.len() * self.width();
        self.shared.occupied.fetch_add(needed, Relaxed);
        self.shared
            .waiting_calls
            .fetch_add(usize::from(counts), Relaxed);
        let flagged = !state.ended() && self.options.cancel.is_some();
        self.shared.flagged.fetch_add(usize::from(flagged), Relaxed);
        if self.options.echo {
            for Waiting { index, tokens } in &prompts {
                for index in (*index..).take(self.samples()) {
                    state.told.echoes(index, tokens.len());
                }
            }
        }
        (state.prompts, state.seed) = (prompts, seed);
        (state.counts, state.flagged) = (counts, flagged);
    }

    /// Says whether another prompt may begin.
    pub fn standing(&self) -> Standing {
        let state = lock(&self.state);
        match (state.prompts.is_empty(), state.behind.is_some()) {
            (true, _) => Standing::Gone,
            (_, true) => Standing::Behind,
            _ => Standing::Ready,
        }
    }

    /// Like [`Call::standing`], but first ends the prompts that wait if the call has had all its
    /// time.
    pub fn standing_now(&self) -> Standing {
        if self.is_out_of_time() {
            self.withdraw(FinishReason::Time);
        }
        self.standing()
    }

    /// Begins the first prompt that waits if `reserve` gives what the prompt needs. `reserve` is
    /// given the prompt, and the call's seed and adapter.
    pub fn begin<R>(
        &self,
        reserve: impl FnOnce(&Waiting, u64, Option<Arc<Adapter>>) -> Result<Option<R>>,
    ) -> Result<Beginning<R>> {
        let mut state = lock(&self.state);
        let Some(first) = state.prompts.front() else {
            return Ok(Beginning::NothingLeft);
        };
        let Some(reserved) = reserve(first, state.seed, state.adapter.clone())? else {
            return Ok(Beginning::NoRoom);
        };
        let index = first.index as usize;
        state.prompts.pop_front();
        for at in index..index + self.samples() {
            let phase = &mut state.phases[at];
            match phase {
                // The reader stopped this sequence while the others waited.
                Phase::Ended => _ = self.shared.occupied.fetch_sub(self.slots_of(at), Relaxed),
                _ => *phase = Phase::Running,
            }
        }
        self.waits_no_longer(&mut state);
        Ok(Beginning::Begun(reserved))
    }

    /// Until [`Call::line_up`], the prompts that wait need no slots.
    pub fn stand_aside(&self) {
        let mut state = lock(&self.state);
        self.free_the_waiting(&mut state);
        state.aside = true;
    }

    /// From now on the prompts that wait need slots again.
    pub fn line_up(&self) {
        self.shared.claiming(|| {
            let mut state = lock(&self.state);
            if std::mem::take(&mut state.aside) {
                let needed = state.prompts.len() * self.width();
                self.shared.occupied.fetch_add(needed, Relaxed);
            }
        });
    }

    /// A sequence that has begun gives up its slot. A beam search gives up all of its slots.
    pub fn park(&self, index: u32) {
        let mut state = lock(&self.state);
        for index in self.together(index) {
            let phase = &mut state.phases[index];
            if *phase == Phase::Running {
                *phase = Phase::Parked;
                let slots = self.slots_of(index);
                self.shared.occupied.fetch_sub(slots, Relaxed);
            }
        }
    }

    /// A parked sequence needs its slot again.
    pub fn line_up_again(&self, index: u32) {
        self.shared.claiming(|| {
            let mut state = lock(&self.state);
            for index in self.together(index) {
                let phase = &mut state.phases[index];
                if *phase == Phase::Parked {
                    *phase = Phase::Running;
                    let slots = self.slots_of(index);
                    self.shared.occupied.fetch_add(slots, Relaxed);
                }
            }
        });
    }

    /// The slots that the waiting prompts need no longer count as occupied.
    pub(super) fn free_the_waiting(&self, state: &mut State) {
        if !state.aside {
            let needed = state.prompts.len() * self.width();
            self.shared.occupied.fetch_sub(needed, Relaxed);
        }
    }

    pub(super) fn waits_no_longer(&self, state: &mut State) {
        if std::mem::take(&mut state.counts) {
            self.shared.waiting_calls.fetch_sub(1, Relaxed);
        }
    }
}
