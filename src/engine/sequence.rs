//! One prompt on its way through the model.

use super::call::{Begun, Call};
use super::request::GenerateOptions;
use super::sampler::{Params, Score, uniform};
use super::stream::{Event, Finish, FinishReason, RequestStats, TokenEvent};
use super::text::TextStream;
use crate::backend::Choice;
use crate::kv::{Hit, NodeId, Pool};
use crate::tokenizer::Tokenizer;
use crate::{Result, Token};
use std::sync::Arc;

/// How far a prompt goes.
#[derive(Clone, Copy)]
pub(super) struct Extent {
    prompt_len: usize,
    /// Most tokens to generate.
    max_new: usize,
    scores_prompt: bool,
}

impl Extent {
    pub fn new(options: &GenerateOptions, prompt_len: usize, max_seq_len: usize) -> Self {
        let room = max_seq_len.saturating_sub(prompt_len);
        Self {
            prompt_len,
            max_new: options.max_gen_len.map_or(room, |most| most.min(room)),
            scores_prompt: options.echo && (options.logprobs || options.top_logprobs > 0),
        }
    }

    /// Whether the prompt's own tokens are scored. Cached rows have no logits, so such a sequence
    /// does not use the prefix cache.
    pub fn scores_prompt(&self) -> bool {
        self.scores_prompt
    }

    /// Prompt rows to compute: all of them, but the last one predicts the first generated token
    /// only.
    pub fn prefill_len(&self) -> usize {
        match (self.max_new > 0, self.scores_prompt) {
            (true, _) => self.prompt_len,
            (false, true) => self.prompt_len - 1,
            (false, false) => 0,
        }
    }

    /// Positions that will be computed at most. The last generated token is never fed back.
    pub fn most_positions(&self) -> usize {
        match self.max_new {
            0 => self.prefill_len(),
            n => self.prompt_len + n - 1,
        }
    }
}

/// A sequence that has begun: in prefill (no token generated yet), or decoding.
pub(super) struct Sequence {
    pub call: Arc<Call>,
    /// Its number in the call.
    pub index: u32,
    /// Its number among all that were admitted.
    pub id: u64,
    pub seed: u64,
    /// Prompt and output.
    pub tokens: Vec<Token>,
    pub prompt_len: usize,
    pub extent: Extent,
    /// Pages of all positions it can ever have; reserved when it is admitted.
    pub pages: Vec<u32>,
    /// Positions whose keys and values are in the pages.
    pub computed: usize,
    /// Prompt tokens that were not computed because their pages were found.
    pub cached: usize,
    /// Pages whose text is known to the prefix cache, and that text.
    pub known_pages: usize,
    pub known_text: NodeId,
    /// Its reader is too far behind: it keeps its slot and takes no part in the step.
    pub sits_out: bool,
    /// Set when it has ended, until the scheduler takes it out.
    pub end: Option<Result<FinishReason>>,
    echoed: usize,
    text: TextStream,
    queue_ms: f64,
    first_token_ms: f64,
}

impl Sequence {
    pub fn new(
        call: Arc<Call>,
        begun: Begun,
        extent: Extent,
        tokenizer: Arc<dyn Tokenizer>,
        id: u64,
        pages: Vec<u32>,
    ) -> Self {
        let Begun {
            index,
            tokens,
            seed,
        } = begun;
        Self {
            index,
            id,
            seed,
            prompt_len: tokens.len(),
            extent,
            tokens,
            pages,
            computed: 0,
            cached: 0,
            known_pages: 0,
            known_text: root(&call),
            sits_out: false,
            end: None,
            echoed: 0,
            text: TextStream::new(tokenizer, &call.stops),
            queue_ms: call.age_ms(),
            first_token_ms: 0.0,
            call,
        }
    }

    pub fn in_prefill(&self) -> bool {
        self.tokens.len() == self.prompt_len
    }

    /// Whether it goes on after the row of decode that is under way, unless the token or a reader ends it: then all
    /// but that token is known of its next row.
    pub fn goes_on(&self) -> bool {
        !self.in_prefill() && self.generated() + 1 < self.extent.max_new
    }

    /// The next page's keys and values are in the cache already.
    pub fn adopt(&mut self, node: NodeId, page_size: usize) {
        self.known_pages += 1;
        self.known_text = node;
        self.computed += page_size;
        // The last token of a prompt is computed in any case.
        self.cached = self.computed.min(self.prompt_len - 1);
    }

    /// It has a slot again, and these pages hold what it has computed; those of `hits` are shared.
    /// Its other prompt pages can be found from now on.
    pub fn resume(&mut self, id: u64, pages: Vec<u32>, hits: &[Hit], pool: &mut Pool) {
        (self.id, self.pages, self.sits_out) = (id, pages, false);
        let size = pool.page_size();
        self.known_text = hits.last().map_or(root(&self.call), |hit| hit.node);
        for at in hits.len()..self.known_pages {
            let text = &self.tokens[at * size..][..size];
            self.known_text = pool.publish(self.known_text, text, self.pages[at]);
        }
    }

    /// After a step of prefill: make the pages that it has filled findable. Those that decode fills
    /// have another arithmetic and must never be.
    pub fn publish(&mut self, pool: &mut Pool) {
        let size = pool.page_size();
        while (self.known_pages + 1) * size <= self.computed {
            let text = &self.tokens[self.known_pages * size..][..size];
            self.known_text = pool.publish(self.known_text, text, self.pages[self.known_pages]);
            self.known_pages += 1;
        }
    }

    /// Tell the reader about the prompt tokens before `end`, unscored.
    pub fn echo(&mut self, end: usize) {
        if self.call.options.echo {
            for at in self.echoed..end.min(self.prompt_len) {
                self.echo_token(at, Score::default());
            }
        }
    }

    fn echo_token(&mut self, at: usize, score: Score) {
        let text = self.text.echo(self.tokens[at]);
        self.emit(self.tokens[at], score, text);
        self.echoed = at + 1;
    }

    fn emit(&self, token: Token, Score { logprob, top }: Score, text: String) {
        self.call.push(Event::Token(TokenEvent {
            index: self.index,
            token,
            logprob,
            text,
            top,
        }));
    }

    /// What is wanted of the row at `position`: a score for the next prompt token, or the next token.
    /// Tokens that it is chosen by go to `history`, where the one at `position` is known. Ids from `n_tokens` on are never drawn.
    pub fn choice(&self, position: usize, n_tokens: usize, history: &mut Vec<Token>) -> Choice {
        let options = &self.call.options;
        let (next, first) = (position + 1, history.len());
        let given = (next < self.prompt_len).then(|| self.tokens[next]);
        let strategy = (&Params::from(options)).into();
        if given.is_none() && options.repetition_penalty != 1.0 && next <= self.tokens.len() {
            history.extend_from_slice(&self.tokens[..next]);
        }
        Choice {
            given,
            strategy,
            draw: match given {
                Some(_) => 0,
                None => uniform(self.seed, u64::from(self.index), next as u64),
            },
            n_tokens,
            history: first..history.len(),
            logprob: options.logprobs,
            top: options.top_logprobs,
        }
    }

    /// Take what the row at `position` gave: the next prompt token's score or the next token. Sets
    /// [`Sequence::end`] if that ends the sequence.
    pub fn take(&mut self, position: usize, got: Option<(Token, Score)>, eos_ids: &[Token]) {
        let next = position + 1;
        let echoed = next < self.prompt_len;
        self.echo(if echoed { 1 } else { self.prompt_len });
        match got {
            Some((_, score)) if echoed => self.echo_token(next, score),
            Some((token, score)) => self.append(token, score, eos_ids),
            None => self.end = Some(Ok(FinishReason::NotFinite)),
        }
    }

    fn append(&mut self, token: Token, score: Score, eos_ids: &[Token]) {
        let call = self.call.clone();
        if eos_ids.contains(&token) && !call.options.ignore_eos {
            self.end = Some(Ok(FinishReason::Stop));
            return;
        }
        self.tokens.push(token);
        if self.generated() == 1 {
            self.first_token_ms = call.age_ms();
        }
        let (text, stopped) = self.text.push(token, &call.stops);
        self.emit(token, score, text);
        if stopped {
            self.end = Some(Ok(FinishReason::StopString));
        } else if self.generated() == self.extent.max_new {
            self.end = Some(Ok(FinishReason::Length));
        }
    }

    /// Tokens generated so far.
    pub fn generated(&self) -> usize {
        self.tokens.len() - self.prompt_len
    }

    /// Tell the reader that it is over, with the text that was held back.
    pub fn finish(&mut self, mut reason: FinishReason) {
        let call = self.call.clone();
        if reason == FinishReason::Length {
            self.echo(self.prompt_len);
        }
        let (text, stopped) = self.text.finish(&call.stops);
        if stopped && !matches!(reason, FinishReason::Cancelled | FinishReason::NotFinite) {
            reason = FinishReason::StopString;
        }
        let stats = RequestStats {
            prompt_tokens: self.prompt_len as u32,
            cached_tokens: self.cached as u32,
            generated_tokens: self.generated() as u32,
            queue_ms: self.queue_ms,
            first_token_ms: self.first_token_ms,
            total_ms: call.age_ms(),
        };
        call.finish(Finish {
            index: self.index,
            reason,
            text,
            stats,
        });
    }
}

/// Where the prefix cache begins for the prompts of a call.
fn root(call: &Call) -> NodeId {
    NodeId::Root {
        salt: call.options.cache_salt,
    }
}
