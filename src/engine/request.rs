//! Turns raw options into a checked request. Code that holds a [`Request`] need not check again.

use crate::backend::Adapter;
use crate::grammar::Grammar;
use crate::kv::Root;
use crate::{Cancel, Error, Result, Token, reserve};
use std::fmt::Display;
use std::sync::Arc;

/// The most bytes of a stop string. Nothing that is searched for is nearly so long, and the tables
/// of all stop strings stay small.
pub const MAX_STOP_BYTES: usize = 4096;

/// The most sequences of a call. They run as slots become free.
pub const MAX_SEQUENCES: usize = 65_536;

/// The most elements of a list of tokens. For bad words, this bounds the number of all their
/// tokens.
pub const MAX_LIST: usize = 65_536;

/// The most drafts of a sequence in a step.
pub const MAX_DRAFTS: usize = 16;

/// A number that is added to a token's logit.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct Bias {
    /// The token.
    pub token: Token,
    /// A finite number, or -inf, which makes the token impossible.
    pub bias: f32,
}

/// The most alternatives per token of a beam search, which keeps those of all its beams to its end.
pub const MAX_BEAM_TOP: usize = 128;

/// When a beam search ends that has as many finished beams as it may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EarlyStopping {
    /// It ends when the best running beam, if it ended here, would not be among the finished beams.
    #[default]
    False,
    /// It ends at once.
    True,
    /// It ends when no running beam can get among the finished beams any more.
    Never,
}

/// What guesses at the tokens that come, so that a step may compute several. Results do not depend
/// on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speculation {
    /// Nothing.
    Off,
    /// Whatever there is.
    Auto,
    /// Texts: what followed the last tokens before, in prompt and output and in
    /// [`GenerateOptions::predicted`].
    NGram,
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
    /// Continue after an end-of-sequence token, which then is part of the result.
    pub ignore_eos: bool,
    /// Show special tokens in texts, except the token that ends a sequence.
    pub special: bool,
    /// The most tokens to generate; `None` means as many as `max_seq_len` leaves room for.
    pub max_gen_len: Option<usize>,
    /// The temperature; 0 is greedy.
    pub temperature: f32,
    /// The probability of the nucleus; 1 is off.
    pub top_p: f32,
    /// How many of the most likely tokens to keep; 0 is off.
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
    /// The penalty is applied once for each distinct token of prompt and output; 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted from the logit of every token of the output.
    pub presence_penalty: f32,
    /// Subtracted from the logit of a token as often as the output has it.
    pub frequency_penalty: f32,
    /// Biases that are added to logits after the penalties. A token may have several.
    pub logit_bias: Vec<Bias>,
    /// How many tokens are generated before an EOS or a stop token is possible.
    pub min_gen_len: usize,
    /// No run of so many tokens may be in prompt and output twice; 0 is off.
    pub no_repeat_ngram_size: usize,
    /// Sequences of tokens that the output must not complete.
    pub bad_words: Vec<Vec<Token>>,
    /// Tokens that end a sequence as EOS does, also if EOS is ignored.
    pub stop_tokens: Vec<Token>,
    /// The call's sequences end with [`super::FinishReason::Time`] so many milliseconds after the
    /// call; 0 means never.
    pub max_time_ms: u32,
    /// The seed; 0 means the next draw of the handle's generator.
    pub seed: u64,
    /// How many sequences continue each prompt, as if the prompt stood that often in the call. They
    /// share one prefill. Sequence `i * num_return_sequences + j` of the call is the j-th of prompt
    /// i.
    pub num_return_sequences: usize,
    /// A number above 1 asks for a beam search with so many beams for each prompt.
    pub num_beams: usize,
    /// The score of a beam is its sum of log probabilities over its length to this power.
    pub length_penalty: f32,
    /// When a beam search ends.
    pub early_stopping: EarlyStopping,
    /// Report the beams of every step.
    pub beam_events: bool,
    /// What a beam search must write: of each group one of its alternatives.
    pub force_words: Vec<Vec<Vec<Token>>>,
    /// A grammar: the returned text is of its language, unless something else ends the text early.
    pub grammar: Option<Arc<Grammar>>,
    /// Texts that end the generation and are cut off.
    pub stop: Vec<String>,
    /// How many alternatives are reported for each token; at most the vocabulary.
    pub top_logprobs: usize,
    /// A prompt finds cached prefixes only of calls with the same salt. Results do not depend on
    /// it.
    pub cache_salt: u64,
    /// The number of the adapter to run with ([`crate::Llama::add_adapter`]); 0: none.
    pub adapter: u32,
    /// Ask the reader about the logits of every token before it is drawn: [`super::Question`].
    pub ask_logits: bool,
    /// What guesses at the tokens that come.
    pub speculation: Speculation,
    /// So many guesses in a step wherever there are some and there is room, at most
    /// [`MAX_DRAFTS`]; 0: as many as pay.
    pub draft_len: usize,
    /// A text that the output may repeat in parts.
    pub predicted: Vec<Token>,
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
            num_beams: 1,
            length_penalty: 1.0,
            early_stopping: EarlyStopping::False,
            beam_events: false,
            force_words: Vec::new(),
            grammar: None,
            stop: Vec::new(),
            top_logprobs: 0,
            cache_salt: 0,
            adapter: 0,
            ask_logits: false,
            speculation: Speculation::Off,
            draft_len: 0,
            predicted: Vec::new(),
            cancel: None,
        }
    }
}

/// A prompt, which one or more sequences continue.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    /// The prompt's tokens; at least one.
    Tokens(Vec<Token>),
    /// A text with which the prompt is answered without the model, and
    /// [`super::FinishReason::Unsafe`].
    Refused(&'static str),
}

/// A request whose every number is in range, with the adapter that its options name.
#[derive(Debug)]
pub struct Request {
    /// The prompts. The index of a sequence in the call also selects its random stream.
    pub(super) prompts: Vec<Prompt>,
    /// The options, which are in range.
    pub(super) options: GenerateOptions,
    /// The adapter that [`GenerateOptions::adapter`] names.
    pub(super) adapter: Option<Arc<Adapter>>,
}

/// The limits against which a request is checked.
#[derive(Clone, Copy, Debug)]
pub struct RequestLimits {
    /// The most tokens of a sequence.
    pub max_seq_len: usize,
    /// The most sequences of one prompt. All of them have slots and pages at the same time.
    pub max_samples: usize,
    /// Token ids are below this.
    pub vocab_size: usize,
}

impl RequestLimits {
    /// Whether a call may have so many prompts, each with so many sequences.
    pub fn check_sequences(&self, prompts: usize, samples: usize) -> Result<()> {
        let n = prompts.saturating_mul(samples.max(1));
        if !(1..=MAX_SEQUENCES).contains(&n) {
            let max = MAX_SEQUENCES;
            return Err(Error::Batch { n, max });
        }
        match samples <= self.max_samples {
            true => Ok(()),
            false => Err(Error::Samples {
                n: samples,
                max: self.max_samples,
            }),
        }
    }
}

impl GenerateOptions {
    /// Whether each prompt is searched with beams.
    pub(super) fn has_beams(&self) -> bool {
        self.num_beams > 1
    }

    /// The number of slots that a prompt takes.
    pub(super) fn width(&self) -> usize {
        self.num_beams.max(self.num_return_sequences)
    }

    /// Whose pages of the prefix cache the request's prompts may take.
    pub(super) fn root(&self) -> Root {
        Root {
            salt: self.cache_salt,
            adapter: self.adapter,
        }
    }

    /// Whether drafts are looked up. Of a text that follows a grammar the mask of a token hangs on
    /// the token before; of beams, who goes on; where the reader is asked, one token is asked
    /// about.
    pub(super) fn searches_drafts(&self) -> bool {
        let plain = self.grammar.is_none() && !self.has_beams() && !self.ask_logits;
        self.speculation != Speculation::Off && plain
    }

    /// Check every number; the error names it, its range and its value.
    pub fn check(&self, limits: &RequestLimits) -> Result<()> {
        let in_range = |name: &str, value: f32, ok: bool, expected: &str| {
            // A NaN fails every comparison of which `ok` is made.
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
        if self.draft_len > MAX_DRAFTS {
            let expected = format!("at most {MAX_DRAFTS}");
            return Err(Error::invalid("draft_len", expected, self.draft_len));
        }
        if self.num_return_sequences == 0 {
            return Err(Error::invalid("num_return_sequences", "at least 1", 0));
        }
        self.check_beams()?;
        self.check_phrases(limits.vocab_size)?;
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
    fn check_beams(&self) -> Result<()> {
        let beams = self.num_beams;
        let invalid = |name: &str, expected: String, value: &dyn Display| {
            Err(Error::invalid(name, expected, value))
        };
        if beams == 0 {
            return invalid("num_beams", "at least 1".into(), &0);
        }
        if !self.length_penalty.is_finite() {
            return invalid("length_penalty", "finite".into(), &self.length_penalty);
        }
        if !self.has_beams() {
            let expected = "off without beams (num_beams above 1)".into();
            return match (self.beam_events, self.force_words.len()) {
                (true, _) => invalid("BEAM_EVENTS", expected, &"set"),
                (false, 0) => Ok(()),
                (false, n) => {
                    let expected = "0 without beams (num_beams above 1)".into();
                    invalid("n_force_groups", expected, &n)
                }
            };
        }
        if self.ask_logits {
            return invalid("on_logits", "NULL with beams".into(), &"given");
        }
        let n = self.num_return_sequences;
        if n > beams {
            let expected = format!("at most num_beams, {beams}");
            return invalid("num_return_sequences", expected, &n);
        }
        if self.top_logprobs > MAX_BEAM_TOP {
            let expected = format!("at most {MAX_BEAM_TOP} with beams");
            return invalid("top_logprobs", expected, &self.top_logprobs);
        }
        Ok(())
    }

    /// What [`super::phrases`] relies on. `most`: tokens that there is room for.
    fn check_phrases(&self, vocab_size: usize) -> Result<()> {
        let groups = &self.force_words;
        if !groups.is_empty() && self.grammar.is_some() {
            let expected = "0 with a grammar";
            return Err(Error::invalid("n_force_groups", expected, groups.len()));
        }
        let tokens = groups.iter().flatten().map(Vec::len);
        let total = tokens.fold(0, usize::saturating_add);
        if total > MAX_LIST {
            let expected = format!("at most {MAX_LIST}");
            return Err(Error::invalid("the length of force_words", expected, total));
        }
        for (g, group) in groups.iter().enumerate() {
            if group.is_empty() {
                let name = format!("force_group_lens[{g}]");
                return Err(Error::invalid(name, "at least 1", 0));
            }
            if group.iter().any(Vec::is_empty) {
                let name = format!("the length of an alternative of group {g}");
                return Err(Error::invalid(name, "at least 1", 0));
            }
            let known = |token: &&Token| usize::try_from(**token).is_ok_and(|t| t < vocab_size);
            if let Some(token) = group.iter().flatten().find(|token| !known(token)) {
                let name = format!("a token of group {g} of force_words");
                let expected = format!("0 to {}", vocab_size.saturating_sub(1));
                return Err(Error::invalid(name, expected, token));
            }
            let mut sorted = reserve::room("force_words", group.len())?;
            sorted.extend(group.iter());
            sorted.sort_unstable();
            if sorted.windows(2).any(|pair| pair[1].starts_with(pair[0])) {
                let name = format!("group {g} of force_words");
                let expected = "without an alternative that another begins with";
                return Err(Error::invalid(name, expected, "one with such"));
            }
        }
        Ok(())
    }

    /// Fewest tokens that satisfy all groups.
    fn least_phrases(&self) -> usize {
        let shortest = |group: &Vec<Vec<Token>>| group.iter().map(Vec::len).min().unwrap_or(0);
        self.force_words.iter().map(shortest).sum()
    }

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
        length("n_predicted", self.predicted.len())?;
        for (i, token) in self.predicted.iter().enumerate() {
            known(&|| format!("predicted[{i}]"), *token)?;
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
    /// Checks a request without an adapter: first the lengths, then the tokens, then the options.
    pub fn new(
        prompts: Vec<Prompt>,
        options: GenerateOptions,
        limits: &RequestLimits,
    ) -> Result<Self> {
        Self::with_adapter(prompts, options, None, limits)
    }

    /// Checks a request that runs with `adapter`. This must be the adapter that the options name,
    /// because by its name the prefix cache tells the pages of this adapter from those of others.
    pub fn with_adapter(
        prompts: Vec<Prompt>,
        mut options: GenerateOptions,
        adapter: Option<Arc<Adapter>>,
        limits: &RequestLimits,
    ) -> Result<Self> {
        limits.check_sequences(prompts.len(), options.num_return_sequences)?;
        if options.num_beams > limits.max_samples {
            return Err(Error::Beams {
                n: options.num_beams,
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
        let given = adapter.as_ref().map_or(0, |adapter| adapter.id);
        if options.adapter != given {
            let expected = format!("{given}, the adapter that the request was given");
            return Err(Error::invalid("adapter", expected, options.adapter));
        }
        for group in &mut options.force_words {
            group.sort_unstable();
        }
        let least = options.least_phrases();
        for (index, tokens) in token_prompts() {
            let room = limits.max_seq_len - tokens.len();
            let most = options.max_gen_len.map_or(room, |most| most.min(room));
            if least > most {
                let name = format!("the shortest of force_words, together, for prompt {index}");
                let expected = format!("at most {most} tokens, which there is room for");
                return Err(Error::invalid(name, expected, least));
            }
        }
        Ok(Self {
            prompts,
            options,
            adapter,
        })
    }
}
