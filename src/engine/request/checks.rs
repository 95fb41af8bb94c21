//! What of the options must be in range, and what does not go together.

use super::RequestLimits;
use super::options::*;
use crate::{Error, Result, Token, reserve};
use std::fmt::Display;

/// What a float may be. Every range is of finite numbers.
#[derive(Clone, Copy)]
pub(super) enum Range {
    Finite,
    AtLeast0,
    Above0,
    To1,
    ToBelow1,
}

impl Range {
    fn contains(self, value: f32) -> bool {
        // A NaN fails every comparison.
        match self {
            Range::Finite => value.is_finite(),
            Range::AtLeast0 => value >= 0.0 && value.is_finite(),
            Range::Above0 => value > 0.0 && value.is_finite(),
            Range::To1 => (0.0..=1.0).contains(&value),
            Range::ToBelow1 => (0.0..1.0).contains(&value),
        }
    }

    /// The range as an error says it.
    fn expected(self) -> &'static str {
        match self {
            Range::Finite => "finite",
            Range::AtLeast0 => "finite and at least 0",
            Range::Above0 => "finite and more than 0",
            Range::To1 => "0 to 1",
            Range::ToBelow1 => "0 to below 1",
        }
    }
}

impl GenerateOptions {
    /// Check every number; the error names it, its range and its value.
    pub fn check(&self, limits: &RequestLimits) -> Result<()> {
        for (name, value, range) in self.floats() {
            if !range.contains(value) {
                return Err(Error::invalid(name, range.expected(), value));
            }
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
        self.check_guessers(limits)?;
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
    fn check_guessers(&self, limits: &RequestLimits) -> Result<()> {
        let beta = self.contrast_beta;
        let invalid = |name: &str, expected: &str, value: &dyn Display| {
            Err(Error::invalid(name, expected, value))
        };
        if self.contrasts() && self.has_beams() {
            return invalid("contrast_beta", "0 with beams", &beta);
        }
        if self.speculation == Speculation::Medusa && !limits.has_heads {
            let expected = "not MEDUSA without Medusa heads (medusa_dir of the build options)";
            return invalid("speculation", expected, &"MEDUSA");
        }
        if limits.has_draft {
            return Ok(());
        }
        let expected = "without a draft model (draft_dir of the build options)";
        if self.contrasts() {
            return invalid("contrast_beta", &format!("0 {expected}"), &beta);
        }
        if self.speculation == Speculation::Draft {
            return invalid("speculation", &format!("not DRAFT {expected}"), &"DRAFT");
        }
        Ok(())
    }

    fn check_beams(&self) -> Result<()> {
        let beams = self.num_beams;
        let invalid = |name: &str, expected: String, value: &dyn Display| {
            Err(Error::invalid(name, expected, value))
        };
        if beams == 0 {
            return invalid("num_beams", "at least 1".into(), &0);
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

    /// What [`crate::engine::phrases`] relies on. `most`: tokens that there is room for.
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
    pub(super) fn least_phrases(&self) -> usize {
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

#[cfg(test)]
mod tests {
    use super::{GenerateOptions, Range};

    /// The ranges that the tests of the C API ask for.
    #[test]
    fn every_float_has_the_range_of_the_table() {
        let table = include_str!("../../../tests/bindings/fields.txt");
        for (name, _, range) in GenerateOptions::default().floats() {
            if name == "contrast_beta" {
                continue; // it needs a draft model, so that it has no range of its own there
            }
            let field = format!("llama_generate_options {name} ");
            let line = table.lines().find(|line| line.starts_with(&field));
            let said = line.and_then(|line| line.split_once(" from "));
            let want = match range {
                Range::Finite => "-max to max",
                Range::AtLeast0 => "0 to max",
                Range::Above0 => "above 0 to max",
                Range::To1 => "0 to 1",
                Range::ToBelow1 => "0 to below 1",
            };
            assert_eq!(said.map(|(_, range)| range), Some(want), "{name}");
        }
    }

    #[test]
    fn ranges_have_their_ends_and_no_nan() {
        let (least, most) = (f32::from_bits(1), f32::MAX);
        let below_1 = 1.0f32.next_down();
        for (range, within, outside) in [
            (
                Range::Finite,
                [-most, most],
                [f32::NEG_INFINITY, f32::INFINITY],
            ),
            (Range::AtLeast0, [0.0, most], [-least, f32::INFINITY]),
            (Range::Above0, [least, most], [0.0, f32::INFINITY]),
            (Range::To1, [0.0, 1.0], [-least, 1.0f32.next_up()]),
            (Range::ToBelow1, [0.0, below_1], [-least, 1.0]),
        ] {
            let name = range.expected();
            assert!(within.iter().all(|x| range.contains(*x)), "{name}");
            assert!(!outside.iter().any(|x| range.contains(*x)), "{name}");
            assert!(!range.contains(f32::NAN), "{name}");
        }
    }
}
