//! Medusa heads (Cai et al. 2024, <https://arxiv.org/abs/2401.10774>): each guesses a token further
//! ahead from the hidden state of a row. They run on rows of a step that has been computed.

use crate::backend::{Answer, Backend, Choices, Shape, Step, Steps};
use crate::{Error, Result};

/// A backend may pad the rows of a step to a multiple of this.
const PADDED_ROWS: usize = 32;

/// One head: residual blocks, then a vocabulary matrix.
pub struct Head<B: Backend> {
    /// `h + silu(w h + bias)` each; `[dim, dim]`.
    pub blocks: Vec<B::Mat>,
    /// `[vocab_size, dim]`.
    pub vocabulary: B::Mat,
}

/// The heads of a model, with their buffers.
pub struct Heads<B: Backend> {
    heads: Vec<Head<B>>,
    /// The hidden state before and after a block, `[max_wanted, dim]` each.
    hidden: [B::Buf; 2],
}

impl<B: Backend> Heads<B> {
    /// Bytes of the buffers for guesses from `rows` rows, with two that the backend may need.
    pub fn scratch_bytes(shape: &Shape, rows: usize) -> u64 {
        let rows = rows.next_multiple_of(PADDED_ROWS) as u64 + 1;
        rows.saturating_mul(4 * 4 * shape.dim.next_multiple_of(32) as u64)
    }

    /// Allocates their buffers.
    pub fn new(backend: &B, heads: Vec<Head<B>>, shape: &Shape, rows: usize) -> Result<Self> {
        let rows = rows.next_multiple_of(PADDED_ROWS);
        let buf = || backend.new_buf(rows, shape.dim);
        Ok(Self {
            heads,
            hidden: [buf()?, buf()?],
        })
    }

    /// How many they are.
    pub fn count(&self) -> usize {
        self.heads.len()
    }

    /// [`Run::guess`](crate::backend::Run::guess): `x` holds the residual stream of the last step,
    /// and `norm` is the weight of the last norm. `logits` is where the answer is made.
    pub fn guess<'a>(
        &mut self,
        backend: &'a mut B,
        head: usize,
        (step, choices): (&Step, &Choices),
        (x, norm): (&B::Buf, &B::Buf),
        logits: &'a mut B::Buf,
    ) -> Result<Answer<'a>>
    where
        B: Steps,
    {
        let n = self.heads.len();
        let Some(head) = self.heads.get(head) else {
            return Err(Error::Internal(format!("Medusa head {head} of {n}")));
        };
        let [h, after] = &mut self.hidden;
        backend.load(step, choices);
        backend.unrecorded(&mut |backend| {
            backend.hidden(h, x, norm);
            for block in &head.blocks {
                backend.residual_block(after, block, h);
                std::mem::swap(h, after);
            }
            backend.logits(logits, h, None, &head.vocabulary);
        });
        backend.fetch(logits);
        backend.answer(logits)
    }
}
