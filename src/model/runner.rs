//! Weights, KV pool and scratch buffers on one backend, as the engine's [`Run`].

use super::medusa::Heads;
use crate::backend::{
    Answer, Backend, Choices, Exchange, Limits, Run, Scratch, Shape, Step, Steps, Weights, forward,
};
use crate::{Dtype, Error, Result};

/// A model that can run steps.
pub struct Runner<B: Backend> {
    backend: B,
    weights: Weights<B>,
    kv: B::Kv,
    scratch: Scratch<B>,
    medusa: Option<Heads<B>>,
    limits: Limits,
    page_bytes: usize,
}

impl<B: Backend> Runner<B> {
    /// Bytes of the scratch buffers: those that [`Runner::new`] will allocate, and the backend's
    /// own for `n_threads` threads (0: as many as this process may use).
    pub fn scratch_bytes(shape: &Shape, limits: &Limits, kv_dtype: Dtype, n_threads: usize) -> u64 {
        let per_row = shape.dim + 2 * shape.q_dim() + shape.ffn_dim;
        let rows = (limits.max_rows as u64).saturating_mul(4 * per_row as u64);
        let logits = (limits.max_wanted as u64).saturating_mul(4 * limits.vocab_size as u64);
        rows.saturating_add(logits)
            .saturating_add(B::scratch_bytes(shape, limits, kv_dtype, n_threads))
    }

    /// Allocates pool and scratch buffers beside weights that are already loaded.
    pub fn new(
        backend: B,
        weights: Weights<B>,
        shape: &Shape,
        kv_dtype: Dtype,
        limits: Limits,
    ) -> Result<Self> {
        let rows = limits.max_rows;
        let scratch = Scratch {
            x: backend.new_buf(rows, shape.dim)?,
            q: backend.new_buf(rows, shape.q_dim())?,
            y: backend.new_buf(rows, shape.q_dim())?,
            h: backend.new_buf(rows, shape.ffn_dim)?,
            logits: backend.new_buf(limits.max_wanted, shape.vocab_size)?,
            exchange: None,
        };
        let kv = backend.new_kv(limits.n_pages, kv_dtype)?;
        Ok(Self {
            backend,
            weights,
            kv,
            scratch,
            medusa: None,
            limits,
            page_bytes: B::page_bytes(shape, kv_dtype) as usize,
        })
    }

    /// With Medusa heads.
    pub fn with_heads(mut self, heads: Heads<B>) -> Self {
        self.medusa = Some(heads);
        self
    }

    /// As one of several ranks. Weights, and the shape for which it was made, are the rank's.
    ///
    /// # Errors
    /// Those of `exchange`, which makes the rank's exchange.
    pub fn among(
        mut self,
        exchange: impl FnOnce(&mut B) -> Result<Box<dyn Exchange<B>>>,
    ) -> Result<Self> {
        self.scratch.exchange = Some(exchange(&mut self.backend)?);
        Ok(self)
    }
}

impl<B: Steps> Run for Runner<B> {
    fn submit(&mut self, step: &Step, choices: &Choices) -> Result<()> {
        debug_assert!(step.tokens.len() <= self.limits.max_rows);
        debug_assert!(step.wanted.len() <= self.limits.max_wanted);
        let Runner {
            backend,
            weights,
            kv,
            scratch,
            ..
        } = self;
        backend.load(step, choices);
        backend.record(&mut |backend| forward(backend, weights, kv, scratch));
        if !backend.awaits_masks() {
            backend.fetch(&scratch.logits);
        }
        Ok(())
    }

    fn awaits_masks(&self) -> bool {
        self.backend.awaits_masks()
    }

    fn give_masks(&mut self, masks: &[u32]) {
        self.backend.give_masks(masks);
        self.backend.fetch(&self.scratch.logits);
    }

    fn collect(&mut self) -> Result<Answer<'_>> {
        let exchange = self.scratch.exchange.as_ref();
        let failure = exchange.and_then(|exchange| exchange.failure());
        let answer = self.backend.answer(&self.scratch.logits)?;
        failure.map_or(Ok(answer), Err)
    }

    fn can_follow(&self) -> bool {
        self.backend.can_follow()
    }

    fn medusa_heads(&self) -> usize {
        self.medusa.as_ref().map_or(0, Heads::count)
    }

    fn guess(&mut self, head: usize, step: &Step, choices: &Choices) -> Result<Answer<'_>> {
        debug_assert!(step.tokens.len() <= self.limits.max_wanted);
        let Some(medusa) = &mut self.medusa else {
            return Err(Error::Internal("a guess without Medusa heads".into()));
        };
        let Scratch { x, logits, .. } = &mut self.scratch;
        let hidden = (&*x, &self.weights.norm);
        medusa.guess(&mut self.backend, head, (step, choices), hidden, logits)
    }

    fn copy_pages(&mut self, pairs: &[(u32, u32)]) -> Result<()> {
        self.backend.copy_pages(&mut self.kv, pairs)
    }

    fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    fn save_pages(&mut self, pages: &[u32], to: &mut [u8]) -> Result<()> {
        self.backend.save_pages(&self.kv, pages, to)
    }

    fn load_pages(&mut self, pages: &[u32], from: &[u8]) -> Result<()> {
        self.backend.load_pages(&mut self.kv, pages, from)
    }

    fn limits(&self) -> Limits {
        self.limits.clone()
    }

    fn n_threads(&self) -> usize {
        self.backend.n_threads()
    }

    fn least_prompt_rows(&self) -> usize {
        self.backend.least_prompt_rows()
    }
}
