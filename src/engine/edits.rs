//! The edits of a row's logits that a call's options ask for, given the tokens before the row:
//! penalties of the output, biases, and bans.

use super::request::GenerateOptions;
use crate::backend::Edit;
use crate::{Result, Token, reserve};

/// Makes the edits of one row at a time, for all sequences.
pub(super) struct Editor {
    /// Tokens that end a sequence unless EOS is ignored.
    eos_ids: Vec<Token>,
    /// The number to add to each token's logit, `[n_tokens]`; 0 for tokens that are not in
    /// `touched`.
    adds: Vec<f32>,
    /// How often each token occurs in the output; 0 between rows.
    counts: Vec<u32>,
    is_touched: Vec<bool>,
    touched: Vec<Token>,
    /// Of each place, counted from the end: how many tokens before it are those at the end.
    repeated: Vec<u32>,
}

impl Editor {
    /// Ids from `n_tokens` on are never drawn, so they are not edited. A sequence has at most
    /// `max_seq_len` tokens.
    pub fn new(n_tokens: usize, max_seq_len: usize, eos_ids: &[Token]) -> Result<Self> {
        let what = "the edits of a row (the vocabulary)";
        Ok(Self {
            repeated: reserve::room("the repeats of a sequence", max_seq_len.saturating_add(1))?,
            eos_ids: reserve::copy(what, eos_ids)?,
            adds: reserve::filled(what, n_tokens, 0.0)?,
            counts: reserve::filled(what, n_tokens, 0)?,
            is_touched: reserve::filled(what, n_tokens, false)?,
            touched: reserve::room(what, n_tokens)?,
        })
    }

    /// The largest number of edits of a row that comes after this many tokens.
    pub fn most(&self, options: &GenerateOptions, tokens: usize) -> usize {
        let repeats = match repeats_matter(options) {
            true => tokens,
            false => 0,
        };
        let ends = self.eos_ids.len() + options.stop_tokens.len();
        let lists = options.logit_bias.len() + options.bad_words.len();
        self.adds.len().min(repeats + ends + lists)
    }

    /// Appends the edits of the row after `tokens`. `output` is the generated part of `tokens`.
    /// `generated` is the number of tokens generated before the row's. It is larger than `output`
    /// if the last token is not known yet; then no edit may depend on that token
    /// ([`hang_on_last`]).
    pub fn write(
        &mut self,
        options: &GenerateOptions,
        tokens: &[Token],
        output: &[Token],
        generated: usize,
        edits: &mut Vec<Edit>,
    ) {
        let (presence, frequency) = (options.presence_penalty, options.frequency_penalty);
        if presence != 0.0 || frequency != 0.0 {
            for token in output {
                if let Some(at) = self.touch(*token) {
                    self.counts[at] += 1;
                }
            }
            for token in &self.touched {
                let at = *token as usize;
                let count = std::mem::take(&mut self.counts[at]) as f32;
                self.adds[at] = -finite(finite(count * frequency) + presence);
            }
        }
        for bias in &options.logit_bias {
            if let Some(at) = self.touch(bias.token) {
                self.adds[at] = match bias.bias == f32::NEG_INFINITY {
                    true => bias.bias,
                    false if self.adds[at] == f32::NEG_INFINITY => self.adds[at],
                    false => finite(self.adds[at] + bias.bias),
                };
            }
        }
        if generated < options.min_gen_len {
            if !options.ignore_eos {
                for at in 0..self.eos_ids.len() {
                    self.ban(self.eos_ids[at]);
                }
            }
            options
                .stop_tokens
                .iter()
                .for_each(|token| self.ban(*token));
        }
        for word in &options.bad_words {
            if let Some((last, head)) = word.split_last()
                && tokens.ends_with(head)
            {
                self.ban(*last);
            }
        }
        if let Some(head) = options.no_repeat_ngram_size.checked_sub(1) {
            self.ban_after_repeats(head, tokens);
        }
        self.touched.sort_unstable();
        for token in self.touched.drain(..) {
            let at = token as usize;
            self.is_touched[at] = false;
            let add = std::mem::take(&mut self.adds[at]);
            edits.push(Edit { token, add });
        }
    }

    /// Bans what followed earlier occurrences of the last `head` tokens. The time is linear in the
    /// number of tokens, even for a long run of one token: this is the Z-function (Gusfield 1997)
    /// of the tokens from their end on.
    fn ban_after_repeats(&mut self, head: usize, tokens: &[Token]) {
        let n = tokens.len();
        let Some(last) = n.checked_sub(head) else {
            return;
        };
        let back = |i: usize| tokens[n - 1 - i];
        self.repeated.clear();
        self.repeated.push(0);
        // What is known to be repeated and reaches furthest: from `start` to before `end`.
        let (mut start, mut end) = (0, 0);
        for i in 1..=last {
            let mut same = match i < end {
                true => (self.repeated[i - start] as usize).min(end - i),
                false => 0,
            };
            while same < head && i + same < n && back(same) == back(i + same) {
                same += 1;
            }
            if i + same > end {
                (start, end) = (i, i + same);
            }
            self.repeated.push(same as u32);
            if same == head {
                self.ban(back(i - 1));
            }
        }
    }

    /// The token's index, if the token can be drawn at all.
    fn touch(&mut self, token: Token) -> Option<usize> {
        let at = usize::try_from(token).ok()?;
        let touched = self.is_touched.get_mut(at)?;
        if !std::mem::replace(touched, true) {
            self.touched.push(token);
        }
        Some(at)
    }

    fn ban(&mut self, token: Token) {
        if let Some(at) = self.touch(token) {
            self.adds[at] = f32::NEG_INFINITY;
        }
    }
}

/// Replaces an infinity by the largest finite number of its sign.
fn finite(value: f32) -> f32 {
    value.clamp(f32::MIN, f32::MAX)
}

/// Whether the options edit any row.
pub(super) fn any(options: &GenerateOptions) -> bool {
    options.min_gen_len > 0
        || !options.logit_bias.is_empty()
        || !options.bad_words.is_empty()
        || repeats_matter(options)
}

/// Whether the edits of a row depend on the last token before it.
pub(super) fn hang_on_last(options: &GenerateOptions) -> bool {
    repeats_matter(options) || options.bad_words.iter().any(|word| word.len() > 1)
}

/// Whether the edits depend on how often tokens have occurred.
fn repeats_matter(options: &GenerateOptions) -> bool {
    options.presence_penalty != 0.0
        || options.frequency_penalty != 0.0
        || options.no_repeat_ngram_size > 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::choice::{Changes, Strategy};
    use crate::engine::request::Bias;
    use crate::engine::sampler::Sampler;
    use serde_json::Value;
    use std::path::Path;

    const NEVER: f32 = f32::NEG_INFINITY;

    fn edits(options: &GenerateOptions, prompt: &[Token], output: &[Token]) -> Vec<(Token, f32)> {
        let tokens = [prompt, output].concat();
        let mut editor = Editor::new(10, tokens.len(), &[2]).unwrap();
        let mut edits = Vec::new();
        let n = editor.most(options, tokens.len());
        // Twice: nothing of a row may be left for the next one.
        for _ in 0..2 {
            edits.clear();
            editor.write(options, &tokens, output, output.len(), &mut edits);
        }
        assert!(edits.len() <= n);
        assert!(edits.is_sorted_by(|a, b| a.token < b.token));
        edits.iter().map(|edit| (edit.token, edit.add)).collect()
    }

    fn bias(token: Token, bias: f32) -> Bias {
        Bias { token, bias }
    }

    #[test]
    fn penalties_are_of_the_output_and_biases_add_to_them_in_order() {
        let options = GenerateOptions {
            presence_penalty: 0.5,
            frequency_penalty: 0.25,
            logit_bias: vec![
                bias(7, 1e30),
                bias(4, 1.0),
                bias(7, -1e30),
                bias(9, 3.0),
                bias(40, 1.0),
            ],
            ..GenerateOptions::default()
        };
        // 40 is no token of this tokenizer; 3 is in the prompt only.
        assert_eq!(
            edits(&options, &[3, 4], &[4, 7, 4]),
            [(4, 0.0), (7, 0.0), (9, 3.0)]
        );
        let overflow = GenerateOptions {
            presence_penalty: -f32::MAX,
            frequency_penalty: f32::MAX,
            logit_bias: vec![
                bias(5, f32::MAX),
                bias(5, f32::MAX),
                bias(6, NEVER),
                bias(6, 1.0),
            ],
            ..GenerateOptions::default()
        };
        // 2 * MAX is MAX, less MAX is 0.
        let got = edits(&overflow, &[1], &[8, 8]);
        assert_eq!(got, [(5, f32::MAX), (6, NEVER), (8, 0.0)]);
    }

    #[test]
    fn ends_are_banned_up_to_the_least_length() {
        let options = |ignore_eos| GenerateOptions {
            min_gen_len: 2,
            stop_tokens: vec![6, 5, 6],
            ignore_eos,
            ..GenerateOptions::default()
        };
        let all = [(2, NEVER), (5, NEVER), (6, NEVER)];
        assert_eq!(edits(&options(false), &[1], &[3]), all);
        assert_eq!(edits(&options(true), &[1], &[3]), all[1..]);
        assert_eq!(edits(&options(false), &[1], &[3, 3]), []);
        assert!(any(&options(false)) && !hang_on_last(&options(false)));
    }

    #[test]
    fn words_and_ngrams_are_banned_across_prompt_and_output() {
        let words = GenerateOptions {
            bad_words: vec![vec![3], vec![1, 4, 5], vec![4, 6], vec![1, 4, 1, 4, 7]],
            ..GenerateOptions::default()
        };
        assert_eq!(
            edits(&words, &[1], &[4]),
            [(3, NEVER), (5, NEVER), (6, NEVER)]
        );
        assert_eq!(edits(&words, &[1], &[]), [(3, NEVER)]);
        assert!(hang_on_last(&words));
        let ngrams = |no_repeat_ngram_size| GenerateOptions {
            no_repeat_ngram_size,
            ..GenerateOptions::default()
        };
        let (prompt, output) = (&[1, 2, 3, 1][..], &[2][..]);
        assert_eq!(
            edits(&ngrams(1), prompt, output),
            [(1, NEVER), (2, NEVER), (3, NEVER)]
        );
        assert_eq!(edits(&ngrams(2), prompt, output), [(3, NEVER)]);
        assert_eq!(edits(&ngrams(3), prompt, output), [(3, NEVER)]);
        assert_eq!(edits(&ngrams(4), prompt, output), []);
        for n in [5, 6, 7, usize::MAX] {
            assert_eq!(edits(&ngrams(n), prompt, output), [], "{n}");
        }
    }

    /// By what the definition says, in all texts of two tokens that are not too long.
    #[test]
    fn ngrams_are_found_in_every_text() {
        for bits in 0u32..1 << 10 {
            for len in 1..=10 {
                let tokens: Vec<Token> = (0..len).map(|i| (bits >> i & 1) as Token + 3).collect();
                for n in 1..=len + 1 {
                    let head = &tokens[len + 1 - n..];
                    let ngrams = tokens.windows(n).filter(|ngram| ngram[..n - 1] == *head);
                    let mut want: Vec<_> = ngrams.map(|ngram| (ngram[n - 1], NEVER)).collect();
                    want.sort_by_key(|(token, _)| *token);
                    want.dedup();
                    let options = GenerateOptions {
                        no_repeat_ngram_size: n,
                        ..GenerateOptions::default()
                    };
                    assert_eq!(edits(&options, &tokens, &[]), want, "{tokens:?} {n}");
                }
            }
        }
    }

    /// What the sampler draws from with the edits of an output: as a plain restatement of the chain
    /// says (tests/data/decoding/spec.py).
    #[test]
    fn penalties_and_biases_give_the_distribution_of_the_reference() {
        let path = "tests/data/decoding/distributions.json";
        let text = std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap();
        let all: Value = serde_json::from_slice(&text).unwrap();
        let tokens = |list: &Value| -> Vec<Token> { serde_json::from_value(list.clone()).unwrap() };
        let floats = |list: &Value| -> Vec<f32> { serde_json::from_value(list.clone()).unwrap() };
        let mut seen = 0;
        for case in all["cases"].as_array().unwrap() {
            if case["history"].is_null() {
                continue; // tests/models/decoding.rs has the others
            }
            let params = &case["params"];
            let float = |name: &str, off: f32| params[name].as_f64().map_or(off, |v| v as f32);
            let biases = params["logit_bias"].as_array();
            let pair = |pair: &Value| bias(floats(pair)[0] as Token, floats(pair)[1]);
            let options = GenerateOptions {
                temperature: float("temperature", 1.0),
                top_k: params["top_k"].as_i64().unwrap_or(0) as i32,
                top_p: 1.0,
                repetition_penalty: float("repetition_penalty", 1.0),
                presence_penalty: float("presence_penalty", 0.0),
                frequency_penalty: float("frequency_penalty", 0.0),
                logit_bias: biases.map_or(vec![], |all| all.iter().map(pair).collect()),
                ..GenerateOptions::default()
            };
            let (logits, want) = (floats(&case["logits"]), floats(&case["probs"]));
            let output = tokens(&case["history"][1]);
            let text = [tokens(&case["history"][0]), output.clone()].concat();
            let mut editor = Editor::new(logits.len(), text.len(), &[2]).unwrap();
            let mut edits = Vec::new();
            editor.write(&options, &text, &output, output.len(), &mut edits);
            let changes = Changes {
                edits: &edits,
                ..Changes::after(&text)
            };
            let mut sampler = Sampler::new(logits.len());
            sampler.load(&logits);
            let kept = sampler.distribution(&Strategy::from(&options), changes);
            let total: u64 = kept.iter().map(|k| k.mass).sum();
            let support = tokens(&case["support"]);
            assert!(kept.iter().all(|k| support.contains(&k.token)), "{params}");
            for (token, want) in support.iter().zip(want) {
                // A token whose share is less than the least mass is not kept.
                let mass = kept
                    .iter()
                    .find(|k| k.token == *token)
                    .map_or(0, |k| k.mass);
                let got = mass as f32 / total as f32;
                assert!((got - want).abs() < 1e-5, "{params}: {token} {got} {want}");
            }
            seen += 1;
        }
        assert_eq!(seen, 8);
    }

    /// To compare every run of tokens with the last one took a minute here, for one row.
    #[test]
    fn a_long_run_of_one_token_takes_no_long_time() {
        let tokens = vec![5; 1 << 19];
        let options = GenerateOptions {
            no_repeat_ngram_size: 1 << 18,
            ..GenerateOptions::default()
        };
        let start = std::time::Instant::now();
        assert_eq!(edits(&options, &tokens, &[]), [(5, NEVER)]);
        assert!(start.elapsed().as_secs() < 10, "{:?}", start.elapsed());
    }
}
