//! The host's functions that move bytes between processes, whichever library is behind them.

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    /// All bytes have arrived, or have left.
    Done,
    /// The call was told not to go on.
    GivenUp,
    /// The call failed, with the host's number for the failure.
    Failed(i32),
}

/// A call that waits asks this at least every millisecond: whether to go on waiting.
pub type GoOn<'a> = &'a mut dyn FnMut() -> bool;

/// The four functions through which the ranks of a model communicate. Each rank has one [`Comm`],
/// and one thread at a time calls it. [`Comm::receive`] is also called from inside a `go_on`, to
/// look for a message without waiting.
///
/// If [`Comm::all_gather`] or [`Comm::all_to_all`] has not ended with [`Moved::Done`], neither is
/// called again, and their buffers are never freed: somebody may still write to them.
pub trait Comm: Send {
    /// The number of this rank.
    fn rank(&self) -> usize;

    /// The number of ranks.
    fn size(&self) -> usize;

    /// Sends a message. Messages between two ranks keep their order. When this returns, the caller
    /// may use `bytes` again.
    fn send(&self, to: usize, bytes: &[u8], go_on: GoOn<'_>) -> Moved;

    /// Receives a whole message and sets `n` to its length, or nothing at all. A message that is
    /// longer than `bytes` is a failure, with its length in `n`.
    fn receive(&self, from: usize, bytes: &mut [u8], n: &mut usize, go_on: GoOn<'_>) -> Moved;

    /// Gives `mine` to every rank. `all` gets the numbers of all ranks, in the order of the ranks.
    /// All ranks give the same number of bytes, at most 2^30.
    fn all_gather(&self, mine: &[f32], all: &mut [f32], go_on: GoOn<'_>) -> Moved;

    /// Divides `to` into as many equal slices as there are ranks, and gives rank `r` the `r`th
    /// slice. `from` gets what the ranks gave to this one, in their order.
    fn all_to_all(&self, to: &[f32], from: &mut [f32], go_on: GoOn<'_>) -> Moved;
}
