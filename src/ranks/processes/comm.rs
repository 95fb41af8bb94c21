//! What moves bytes between processes: the host's functions, whichever library is behind them.

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    /// All bytes have arrived, or left.
    Done,
    /// It was told not to go on.
    GivenUp,
    /// The host's number for what failed.
    Failed(i32),
}

/// Asked while a call waits, at least every millisecond: whether to go on waiting.
pub type GoOn<'a> = &'a mut dyn FnMut() -> bool;

/// The four functions through which the ranks of a model talk; one [`Comm`] for each rank. They are
/// called by one thread at a time. [`Comm::receive`] is also called from inside a `go_on`, to look
/// for a message without waiting.
///
/// After [`Comm::all_gather`] or [`Comm::all_to_all`] has not ended with [`Moved::Done`], neither
/// is called again, and their buffers are never freed: somebody may still write to them.
pub trait Comm: Send {
    /// The number of this rank.
    fn rank(&self) -> usize;

    /// The number of ranks.
    fn size(&self) -> usize;

    /// Sends a message. Messages between two ranks keep their order. `bytes` are the caller's again
    /// when it returns.
    fn send(&self, to: usize, bytes: &[u8], go_on: GoOn<'_>) -> Moved;

    /// Receives a whole message and sets `n` to its length, or nothing at all. A message that is
    /// longer than `bytes` is a failure, with its length in `n`.
    fn receive(&self, from: usize, bytes: &mut [u8], n: &mut usize, go_on: GoOn<'_>) -> Moved;

    /// Gives `mine` to every rank. `all` gets those of all ranks in their order; all have the same
    /// length, at most 2^30 bytes.
    fn all_gather(&self, mine: &[f32], all: &mut [f32], go_on: GoOn<'_>) -> Moved;

    /// Gives rank `r` the `r`th of as many equal slices of `to` as there are ranks. `from` gets
    /// what the ranks gave to this one, in their order.
    fn all_to_all(&self, to: &[f32], from: &mut [f32], go_on: GoOn<'_>) -> Moved;
}
