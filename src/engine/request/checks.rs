//! What of the options must be in range, and what does not go together.

use super::RequestLimits;
use super::options::*;
use crate::{Error, Result, Token, reserve};
use std::fmt::Display;

impl GenerateOptions {
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
        let (beta, alpha) = (self.contrast_beta, self.contrast_alpha);
        if !(beta >= 0.0 && beta.is_finite()) {
            let expected = "finite and at least 0";
            return Err(Error::invalid("contrast_beta", expected, beta));
        }
        if !(0.0..=1.0).contains(&alpha) {
            return Err(Error::invalid("contrast_alpha", "0 to 1", alpha));
        }
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
