//! Raw options to a checked request: whoever holds a [`Request`] need not check again.

use crate::backend::Adapter;
use crate::grammar::Grammar;
use crate::kv::Root;
use crate::{Cancel, Error, Result, Token};
use std::sync::Arc;

/// Most bytes of a stop string: far more than anything that is searched for, and little enough that
/// the tables of all of them are small.
pub const MAX_STOP_BYTES: usize = 4096;

/// Most sequences of a call. They run as slots come free.
pub const MAX_SEQUENCES: usize = 65_536;

/// Most elements of a list of tokens; of bad words, their tokens together.
pub const MAX_LIST: usize = 65_536;

/// A number that is added to a token's logit.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct Bias {
    /// Whose.
    pub token: Token,
    /// Finite, or -inf: the token is impossible.
    pub bias: f32,
}

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
    /// Show special tokens in texts, but for the one that ends a sequence.
    pub special: bool,
    /// Most tokens to generate; `None`: as many as `max_seq_len` leaves room for.
    pub max_gen_len: Option<usize>,
    /// 0 is greedy.
    pub temperature: f32,
    /// Nucleus; 1 is off.
    pub top_p: f32,
    /// Most likely tokens to keep; 0 is off.
    pub top_k: i32,
    /// Keep tokens with at least this share of the most likely token's probability; 0 is off.
    pub min_p: f32,
    /// Typical sampling: keep the tokens whose surprise is nearest to the expected one, until they
    /// have this probability together; 0 and 1 are off.
    pub typical_p: f32,
    /// Drop tokens less probable than this; 0 is off.
    pub epsilon_cutoff: f32,
    /// Drop tokens less probable than `min(eta, sqrt(eta) exp(-entropy))`; 0 is off.
    pub eta_cutoff: f32,
    /// Applied once per distinct token of prompt and output; 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted from the logit of every token of the output.
    pub presence_penalty: f32,
    /// Subtracted from the logit of a token as often as the output has it.
    pub frequency_penalty: f32,
    /// Added to logits after the penalties. A token may stand in it several times.
    pub logit_bias: Vec<Bias>,
    /// So many tokens are generated before an EOS or a stop token is possible.
    pub min_gen_len: usize,
    /// No run of so many tokens is in prompt and output twice; 0 is off.
    pub no_repeat_ngram_size: usize,
    /// Sequences of tokens that the output does not complete.
    pub bad_words: Vec<Vec<Token>>,
    /// Tokens that end a sequence as EOS does, also where that is ignored.
    pub stop_tokens: Vec<Token>,
    /// So many milliseconds after the call its sequences end with
    /// [`super::FinishReason::Time`]; 0: never.
    pub max_time_ms: u32,
    /// 0: the next draw of the handle's generator.
    pub seed: u64,
    /// Sequences that continue each prompt, as if it stood that often in the call; they share one
    /// prefill. Sequence `i * num_return_sequences + j` of the call is the j-th of prompt i.
    pub num_return_sequences: usize,
    /// The returned text is of this language, unless something else ends it early.
    pub grammar: Option<Arc<Grammar>>,
    /// Texts that end the generation and are cut off.
    pub stop: Vec<String>,
    /// Alternatives reported per token; at most the vocabulary.
    pub top_logprobs: usize,
    /// Prompts find the cached prefixes of calls with the same salt only. Results do not depend on
    /// it.
    pub cache_salt: u64,
    /// The number of the adapter to run with ([`crate::Llama::add_adapter`]); 0: none.
    pub adapter: u32,
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
            special: false,
            max_gen_len: None,
            temperature: 0.6,
            top_p: 0.9,
            top_k: 0,
            min_p: 0.0,
            typical_p: 0.0,
            epsilon_cutoff: 0.0,
            eta_cutoff: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            min_gen_len: 0,
            no_repeat_ngram_size: 0,
            bad_words: Vec::new(),
            stop_tokens: Vec::new(),
            max_time_ms: 0,
            seed: 0,
            num_return_sequences: 1,
            grammar: None,
            stop: Vec::new(),
            top_logprobs: 0,
            cache_salt: 0,
            adapter: 0,
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
    /// What [`GenerateOptions::adapter`] names.
    pub adapter: Option<Arc<Adapter>>,
}

/// What a request is checked against.
#[derive(Clone, Copy, Debug)]
pub struct RequestLimits {
    /// Most tokens of a sequence.
    pub max_seq_len: usize,
    /// Most sequences of one prompt: all of them have slots and pages at the same time.
    pub max_samples: usize,
    /// Token ids are below this.
    pub vocab_size: usize,
}

impl GenerateOptions {
    /// Whose pages of the prefix cache its prompts may take.
    pub(super) fn root(&self) -> Root {
        Root {
            salt: self.cache_salt,
            adapter: self.adapter,
        }
    }

    /// Check every number; the error names it, its range and its value.
    pub fn check(&self, limits: &RequestLimits) -> Result<()> {
        let in_range = |name: &str, value: f32, ok: bool, expected: &str| {
            // A NaN fails every comparison that `ok` is made of.
            if ok {
                Ok(())
            } else {
                Err(Error::invalid(name, expected, value))
            }
        };
        let (t, p, m, r) = (
            self.temperature,
            self.top_p,
            self.min_p,
            self.repetition_penalty,
        );
        in_range(
            "temperature",
            t,
            t >= 0.0 && t.is_finite(),
            "finite and at least 0",
        )?;
        in_range("top_p", p, (0.0..=1.0).contains(&p), "0 to 1")?;
        in_range("min_p", m, (0.0..=1.0).contains(&m), "0 to 1")?;
        let typical = self.typical_p;
        in_range(
            "typical_p",
            typical,
            (0.0..=1.0).contains(&typical),
            "0 to 1",
        )?;
        for (name, cutoff) in [
            ("epsilon_cutoff", self.epsilon_cutoff),
            ("eta_cutoff", self.eta_cutoff),
        ] {
            in_range(name, cutoff, (0.0..1.0).contains(&cutoff), "0 to below 1")?;
        }
        in_range(
            "repetition_penalty",
            r,
            r > 0.0 && r.is_finite(),
            "finite and more than 0",
        )?;
        for (name, penalty) in [
            ("presence_penalty", self.presence_penalty),
            ("frequency_penalty", self.frequency_penalty),
        ] {
            in_range(name, penalty, penalty.is_finite(), "finite")?;
        }
        self.check_lists(limits.vocab_size)?;
        if let Some(most) = self.max_gen_len
            && self.min_gen_len > most
        {
            let expected = format!("at most max_gen_len, {most}");
            return Err(Error::invalid("min_gen_len", expected, self.min_gen_len));
        }
        if self.num_return_sequences == 0 {
            return Err(Error::invalid("num_return_sequences", "at least 1", 0));
        }
        if self.top_k < 0 {
            return Err(Error::invalid("top_k", "at least 0", self.top_k));
        }
        if self.top_logprobs > limits.vocab_size {
            let expected = format!("at most the vocabulary, {}", limits.vocab_size);
            return Err(Error::invalid("top_logprobs", expected, self.top_logprobs));
        }
        if self.grammar.is_some() && self.ignore_eos {
            let expected = "off with a grammar, which says where a text ends";
            return Err(Error::invalid("IGNORE_EOS", expected, "set"));
        }
        if let Some(i) = self.stop.iter().position(|s| s.len() > MAX_STOP_BYTES) {
            return Err(Error::invalid(
                format!("stop[{i}]"),
                format!("at most {MAX_STOP_BYTES} bytes long"),
                format!("{} bytes long", self.stop[i].len()),
            ));
        }
        if let Some(i) = self.stop.iter().position(String::is_empty) {
            return Err(Error::invalid(
                format!("stop[{i}]"),
                "at least one character",
                "empty",
            ));
        }
        Ok(())
    }
}

impl GenerateOptions {
    fn check_lists(&self, vocab_size: usize) -> Result<()> {
        let length = |name: &str, n: usize| match n <= MAX_LIST {
            true => Ok(()),
            false => Err(Error::invalid(name, format!("at most {MAX_LIST}"), n)),
        };
        let known = |name: &dyn Fn() -> String, token: Token| match usize::try_from(token) {
            Ok(at) if at < vocab_size => Ok(()),
            _ => {
                let expected = format!("0 to {}", vocab_size.saturating_sub(1));
                Err(Error::invalid(name(), expected, token))
            }
        };
        length("n_logit_bias", self.logit_bias.len())?;
        for (i, Bias { token, bias }) in self.logit_bias.iter().enumerate() {
            known(&|| format!("logit_bias[{i}].token"), *token)?;
            if !(bias.is_finite() || *bias == f32::NEG_INFINITY) {
                let name = format!("logit_bias[{i}].bias");
                return Err(Error::invalid(name, "finite or minus infinity", bias));
            }
        }
        length("n_stop_tokens", self.stop_tokens.len())?;
        for (i, token) in self.stop_tokens.iter().enumerate() {
            known(&|| format!("stop_tokens[{i}]"), *token)?;
        }
        length("n_bad_words", self.bad_words.len())?;
        let tokens = self.bad_words.iter().map(Vec::len);
        length(
            "the length of bad_words",
            tokens.fold(0, usize::saturating_add),
        )?;
        for (i, word) in self.bad_words.iter().enumerate() {
            if word.is_empty() {
                return Err(Error::invalid(
                    format!("bad_word_lens[{i}]"),
                    "at least 1",
                    0,
                ));
            }
            for token in word {
                known(&|| format!("a token of bad word {i}"), *token)?;
            }
        }
        Ok(())
    }
}

impl Request {
    /// Check lengths first, then tokens, then options.
    pub fn new(
        prompts: Vec<Prompt>,
        options: GenerateOptions,
        limits: &RequestLimits,
    ) -> Result<Self> {
        let n = prompts
            .len()
            .saturating_mul(options.num_return_sequences.max(1));
        if !(1..=MAX_SEQUENCES).contains(&n) {
            let max = MAX_SEQUENCES;
            return Err(Error::Batch { n, max });
        }
        if options.num_return_sequences > limits.max_samples {
            return Err(Error::Samples {
                n: options.num_return_sequences,
                max: limits.max_samples,
            });
        }
        let token_prompts = || {
            prompts
                .iter()
                .enumerate()
                .filter_map(|(i, prompt)| match prompt {
                    Prompt::Tokens(tokens) => Some((i, tokens)),
                    Prompt::Refused(_) => None,
                })
        };
        for (index, tokens) in token_prompts() {
            if tokens.len() > limits.max_seq_len {
                return Err(Error::TooLong {
                    index,
                    len: tokens.len(),
                    max: limits.max_seq_len,
                });
            }
            if tokens.is_empty() {
                return Err(Error::invalid(format!("lens[{index}]"), "at least 1", 0));
            }
        }
        for (index, tokens) in token_prompts() {
            let known =
                |token: &Token| usize::try_from(*token).is_ok_and(|t| t < limits.vocab_size);
            if let Some(at) = tokens.iter().position(|token| !known(token)) {
                let name = format!("token {at} of prompt {index}");
                let expected = format!("0 to {}", limits.vocab_size.saturating_sub(1));
                return Err(Error::invalid(name, expected, tokens[at]));
            }
        }
        options.check(limits)?;
        Ok(Self {
            prompts,
            options,
            adapter: None,
        })
    }
}
