//! A model as the engine sees it, and what that needs of a backend beyond the model's operations.

use super::cpu::{Cpu, CpuBuf};
use super::{Answer, Backend, Choices, Limits, Step, Threads};
use crate::Result;
use std::time::Duration;

/// [`Run::least_prompt_rows`] where twice as many rows take nearly twice as long. On tiles they
/// take little longer, because most of the time goes into fetching and decoding weights; so there
/// it is twice as many (benches/record/2026-12-01-prompts-beside-streams.txt).
const LEAST_PROMPT_ROWS: usize = 16;

/// A model on a backend, as the engine sees it. Tests drive the engine with a scripted one.
///
/// Steps take effect in the order in which they are submitted, each as if the previous one had
/// ended.
pub trait Run: Send {
    /// Begins a step. The previous step has been collected, unless this one [`Step::follows`] it.
    fn submit(&mut self, step: &Step, choices: &Choices) -> Result<()>;

    /// Whether the step that was submitted last chooses tokens as soon as it is given its masks.
    /// Then [`Run::give_masks`] comes before anything else. Otherwise [`Choices::masks`] is not
    /// read here, and the host chooses where there is a mask.
    fn awaits_masks(&self) -> bool {
        false
    }

    /// Gives the masks of the step that was submitted last, which are not known then
    /// ([`Choices::masks`]).
    fn give_masks(&mut self, _masks: &[u32]) {}

    /// Waits for the oldest step that has not been collected. Returns the logits of its wanted
    /// rows, or the tokens that its [`Choices`] ask for.
    fn collect(&mut self) -> Result<Answer<'_>>;

    /// Whether a step that follows the last one may be submitted.
    fn can_follow(&self) -> bool {
        false
    }

    /// Makes room for so many tokens in the [`Choices::history`] of the next step. A call can still
    /// fail for the lack of it; in the middle of a step it could not.
    fn reserve_history(&mut self, _n: usize) -> Result<()> {
        Ok(())
    }

    /// Computes one step, whose masks are known.
    fn run(&mut self, step: &Step, choices: &Choices) -> Result<Answer<'_>> {
        self.submit(step, choices)?;
        if self.awaits_masks() {
            self.give_masks(&choices.masks);
        }
        self.collect()
    }

    /// The number of Medusa heads, each of which guesses one token further ahead than the one
    /// before it.
    fn medusa_heads(&self) -> usize {
        0
    }

    /// Guesses tokens from rows of the last step, which has been collected: head `head` guesses the
    /// token `head + 2` positions behind a row's own. `step` has a row of decode for each guess.
    /// Its [`Step::tokens`] are the numbers of the rows in the last step, all of its rows are
    /// wanted, and its slots and pages are not used. The answer is like the answer of
    /// [`Run::collect`].
    ///
    /// # Errors
    /// [`crate::Error::Internal`] if there is no such head.
    fn guess(&mut self, head: usize, _step: &Step, _choices: &Choices) -> Result<Answer<'_>> {
        Err(crate::Error::Internal(format!(
            "Medusa head {head} of a model that has none"
        )))
    }

    /// Copies whole pages, `(from, to)`, on every layer.
    fn copy_pages(&mut self, pairs: &[(u32, u32)]) -> Result<()>;

    /// Bytes of a page on all layers.
    fn page_bytes(&self) -> usize;

    /// Copies whole pages out, as the steps submitted so far leave them: [`Run::page_bytes`] each,
    /// end to end. Only the backend knows what the bytes mean.
    fn save_pages(&mut self, pages: &[u32], to: &mut [u8]) -> Result<()>;

    /// Copies the bytes that [`Run::save_pages`] gave into pages, which may be others, for the
    /// steps submitted from now on.
    fn load_pages(&mut self, pages: &[u32], from: &[u8]) -> Result<()>;

    /// The limits of steps and of the pool.
    fn limits(&self) -> Limits;

    /// How many threads [`Answer::Beside`] has; 1 if there is no such answer.
    fn n_threads(&self) -> usize {
        1
    }

    /// The fewest prompt rows that a step should have beside running streams, while so many are
    /// left: with fewer, prompts would take longer, and the step hardly less.
    fn least_prompt_rows(&self) -> usize {
        LEAST_PROMPT_ROWS
    }

    /// How often [`Run::beat`] is to be called, at least, between steps and while there are none.
    fn beats(&self) -> Option<Duration> {
        None
    }

    /// Looks whether the model could still run a step. Called at [`Run::beats`], or more often.
    fn beat(&mut self) -> Result<()> {
        Ok(())
    }
}

/// How a backend begins and ends a step. It may choose tokens where the logits are, or leave that
/// to the host's sampler.
pub trait Steps: Backend {
    /// Loads a step into fixed buffers, and how tokens are chosen from it if this backend chooses.
    /// This is the only copy from the host, but for masks.
    fn load(&mut self, step: &Step, choices: &Choices);

    /// [`Run::awaits_masks`], of the loaded step. [`Steps::give_masks`] then comes before
    /// [`Steps::fetch`].
    fn awaits_masks(&self) -> bool {
        false
    }

    /// [`Run::give_masks`].
    fn give_masks(&mut self, _masks: &[u32]) {}

    /// Makes the step's answer from its logits, `out`, as far as that is not done yet, and begins
    /// to copy it to the host. Does not wait.
    fn fetch(&mut self, _out: &Self::Buf) {}

    /// Whether a step that [`Step::follows`] the loaded one may be loaded before the loaded one's
    /// answer is read. If a backend always says no, it runs one step at a time, and no step follows
    /// another.
    fn can_follow(&self) -> bool {
        false
    }

    /// [`Run::n_threads`].
    fn n_threads(&self) -> usize {
        1
    }

    /// [`Run::least_prompt_rows`].
    fn least_prompt_rows(&self) -> usize {
        LEAST_PROMPT_ROWS
    }

    /// Waits for the oldest answer that was fetched but not read: the first `wanted * vocab_size`
    /// numbers of `out`; or, if the backend chooses tokens itself, what the step's choices ask for.
    fn answer<'a>(&'a mut self, out: &'a Self::Buf) -> Result<Answer<'a>>;
}

/// It leaves choosing to the host.
impl Steps for Cpu {
    fn load(&mut self, step: &Step, _: &Choices) {
        self.load_step(step);
    }

    fn n_threads(&self) -> usize {
        self.count()
    }

    fn least_prompt_rows(&self) -> usize {
        match self.has_tiles() {
            true => 2 * LEAST_PROMPT_ROWS,
            false => LEAST_PROMPT_ROWS,
        }
    }

    fn answer<'a>(&'a mut self, logits: &'a CpuBuf) -> Result<Answer<'a>> {
        let logits = self.read(logits);
        Ok(Answer::Beside {
            logits,
            threads: self,
        })
    }
}
