//! Several ranks compute one model: what they have to exchange.
//!
//! Each rank holds a share of every matrix and of the KV cache and runs [`super::forward()`] by
//! itself (tensor parallelism: Shoeybi et al. 2019, Megatron-LM; fairscale in Meta's code). It has
//! whole heads, and some columns of `wo` and `w2`, so its products with `wo` and `w2` are partial
//! sums. And it has some rows of the embedding and of the head. What a rank lacks comes through
//! [`Exchange`]. With one rank there is none.
//!
//! Partial sums are float32 and are added here, in the order of the ranks, never by a library that
//! moves them. So the bits of a result depend on the number of ranks, but not on the transport, on
//! the length of a message, or on what else is in the step.

use super::Backend;
use crate::{Error, Result};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The longest time between two looks that counts as waiting. If the process was stopped, no rank
/// was silent.
pub const LONGEST_LOOK: Duration = Duration::from_millis(100);

/// How long somebody has waited, who looks up now and then.
#[derive(Default)]
pub struct Waited {
    time: Duration,
    last: Option<Instant>,
}

impl Waited {
    /// The time until this look, the first of which begins it.
    pub fn look(&mut self) -> Duration {
        let now = Instant::now();
        self.time += (now - self.last.unwrap_or(now)).min(LONGEST_LOOK);
        self.last = Some(now);
        self.time
    }
}

/// Watches over a rank that waits for its own device, whose work may wait for other ranks.
pub trait Watch: Send + Sync {
    /// Looks for news of the other ranks. `waited`: how long this one has waited. It is called
    /// about every 100 microseconds.
    ///
    /// # Errors
    /// [`Error::Peer`] if another rank failed or this takes too long, or another rank's failure.
    /// Then no exchange succeeds any more.
    fn look(&self, waited: Duration) -> Result<()>;

    /// How long is too long.
    fn timeout(&self) -> Duration;
}

/// Moves float32 numbers between the ranks' host memories. Every rank calls the same functions in
/// the same order.
pub trait Wire: Send {
    /// The number of this rank.
    fn rank(&self) -> usize;

    /// The number of ranks.
    fn size(&self) -> usize;

    /// Gives `mine` to all ranks, and calls `take` with the numbers of all ranks, in their order.
    /// Rank `r` gives `len(r)` of them, which may be none. Does not allocate if no rank gives more
    /// than the numbers for which the wire was made.
    ///
    /// # Errors
    /// [`Error::Peer`] if another rank failed, or was silent for too long. No later call succeeds.
    fn all_gather(
        &mut self,
        mine: &[f32],
        len: &dyn Fn(usize) -> usize,
        take: &mut dyn FnMut(&[&[f32]]),
    ) -> Result<()>;

    /// What watches over waits of this rank.
    fn watch(&self) -> Arc<dyn Watch>;

    /// Whether [`Wire::all_to_all`] is worth its second exchange when every rank gives so many
    /// numbers to a sum. Every rank answers the same; never with two ranks, which would send no
    /// less; and if it is worth it for some number, then for every larger one.
    fn prefers_slices(&self, _numbers: usize) -> bool {
        false
    }

    /// Gives the `r`th slice of `numbers`, which has `slice` of them except at the end, to rank
    /// `r`, and calls `take` with what the ranks gave to this one, in their order.
    ///
    /// # Errors
    /// As [`Wire::all_gather`].
    fn all_to_all(
        &mut self,
        _numbers: &[f32],
        _slice: usize,
        _take: &mut dyn FnMut(&[&[f32]]),
    ) -> Result<()> {
        unreachable!("only where slices are preferred")
    }
}

/// The operations of [`Backend`] that several ranks do together, each with its own share of the
/// weights. They keep the laws of [`Backend`], except that they may wait for the other ranks,
/// where numbers go through the host.
pub trait Exchange<B: Backend>: Send {
    /// As [`Backend::embed`].
    fn embed(&mut self, backend: &mut B, x: &mut B::Buf, table: &B::Mat);

    /// As [`Backend::matmul_add`].
    fn matmul_add(&mut self, backend: &mut B, x: &mut B::Buf, w: &B::Mat, y: &B::Buf);

    /// As [`Backend::logits`]. Rank 0 has them afterwards, and so do the others where tokens are
    /// chosen on devices.
    fn logits(
        &mut self,
        backend: &mut B,
        out: &mut B::Buf,
        x: &B::Buf,
        norm: &B::Buf,
        head: &B::Mat,
    );

    /// The failure because of which the step's results mean nothing, if there was one. Operations
    /// after it return at once.
    fn failure(&self) -> Option<Error>;
}
