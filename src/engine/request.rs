//! Raw options to a checked request: whoever holds a [`Request`] need not check again.

use crate::{Cancel, Result, Token};

/// Options of one call, as a caller gives them. The defaults are the reference's.
#[derive(Clone, Debug)]
pub struct GenerateOptions {
    /// Put the prompt's tokens in front of the result.
    pub echo: bool,
    /// Report the log probability of each token.
    pub logprobs: bool,
    /// Fail with [`crate::Error::Busy`] rather than wait for a slot.
    pub no_wait: bool,
    /// Go on after an end-of-sequence token (which then is part of the result).
    pub ignore_eos: bool,
    /// Most tokens to generate; `None`: `max_seq_len - 1`.
    pub max_gen_len: Option<usize>,
    /// 0 is greedy.
    pub temperature: f32,
    /// Nucleus; 1 is off.
    pub top_p: f32,
    /// Most likely tokens to keep; 0 is off.
    pub top_k: i32,
    /// Keep tokens with at least this share of the most likely token's probability; 0 is off.
    pub min_p: f32,
    /// Applied once per distinct token of prompt and output; 1 is off.
    pub repetition_penalty: f32,
    /// 0: the next draw of the handle's generator.
    pub seed: u64,
    /// Texts that end the generation and are cut off.
    pub stop: Vec<String>,
    /// Alternatives reported per token; at most the vocabulary.
    pub top_logprobs: usize,
    /// Stops the call.
    pub cancel: Option<Cancel>,
}

impl Default for GenerateOptions {
    fn default() -> Self {
        Self {
            echo: false,
            logprobs: false,
            no_wait: false,
            ignore_eos: false,
            max_gen_len: None,
            temperature: 0.6,
            top_p: 0.9,
            top_k: 0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            seed: 0,
            stop: Vec::new(),
            top_logprobs: 0,
            cancel: None,
        }
    }
}

/// One sequence to be continued.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    /// Its tokens; at least one.
    Tokens(Vec<Token>),
    /// Answered with this text and [`super::FinishReason::Unsafe`], without the model.
    Refused(&'static str),
}

/// A request whose every number is in range.
#[derive(Debug)]
pub struct Request {
    /// The sequences; their index in the call also selects their random stream.
    pub prompts: Vec<Prompt>,
    /// In range.
    pub options: GenerateOptions,
}

/// What a request is checked against.
#[derive(Clone, Copy, Debug)]
pub struct RequestLimits {
    /// Most tokens of a sequence.
    pub max_seq_len: usize,
    /// Most sequences of a call.
    pub max_batch_size: usize,
    /// Token ids are below this.
    pub vocab_size: usize,
}

impl GenerateOptions {
    /// Check every number; the error names it, its range and its value.
    pub fn check(&self, limits: &RequestLimits) -> Result<()> {
        let _ = limits;
        todo!()
    }
}

impl Request {
    /// Check lengths first, then tokens, then options.
    pub fn new(prompts: Vec<Prompt>, options: GenerateOptions, limits: &RequestLimits) -> Result<Self> {
        let _ = (prompts, options, limits);
        todo!()
    }
}
