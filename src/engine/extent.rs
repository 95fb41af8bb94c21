//! How far a prompt and its continuation go, which is known before they begin.

use super::request::GenerateOptions;

/// How far a prompt and its continuation go.
#[derive(Clone, Copy)]
pub(super) struct Extent {
    prompt_len: usize,
    /// The most tokens to generate.
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

    /// The most tokens to generate.
    pub fn max_new(&self) -> usize {
        self.max_new
    }

    /// Whether the prompt's own tokens are scored. Cached rows have no logits, so such a sequence
    /// does not use the prefix cache.
    pub fn scores_prompt(&self) -> bool {
        self.scores_prompt
    }

    /// The number of prompt rows to compute. These are all rows; but the last row only predicts the
    /// first generated token, so it is not needed if none is generated.
    pub fn prefill_len(&self) -> usize {
        match (self.max_new > 0, self.scores_prompt) {
            (true, _) => self.prompt_len,
            (false, true) => self.prompt_len - 1,
            (false, false) => 0,
        }
    }

    /// The most positions that are computed. The last generated token is never fed back.
    pub fn most_positions(&self) -> usize {
        match self.max_new {
            0 => self.prefill_len(),
            n => self.prompt_len + n - 1,
        }
    }
}
