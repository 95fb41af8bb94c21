//! What happens to a text before it is cut and merged.

use super::Run;
use crate::{Result, reserve};
use std::borrow::Cow;
use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc, is_nfc_quick};

const WHAT: &str = "encoding a text";

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Unicode's normalisation form C.
    Nfc,
    /// This text goes in front, unless there is nothing.
    Prepend(String),
    /// Each `from` becomes `to`. `from` is not empty.
    Replace { from: String, to: String },
}

/// Steps, first to last.
#[derive(Debug, Default)]
pub(super) struct Normalizer(pub Vec<Step>);

impl Normalizer {
    /// The normalised text.
    pub fn apply<'a>(&self, text: &'a str) -> Result<Cow<'a, str>> {
        let mut text = Cow::Borrowed(text);
        for step in &self.0 {
            if let Some(changed) = step.change(&text)? {
                text = Cow::Owned(changed);
            }
        }
        Ok(text)
    }

    /// The same, and which runs the result has. A character that is made of both the template's and
    /// others' makes the whole text others'.
    pub fn apply_to_runs<'a>(
        &self,
        text: &'a str,
        runs: &[Run],
    ) -> Result<(Cow<'a, str>, Vec<Run>)> {
        let whole = self.apply(text)?;
        if self.0.is_empty() || runs.len() <= 1 {
            let from_template = runs.iter().all(|run| run.from_template);
            let one = [Run {
                len: whole.len(),
                from_template,
            }];
            let runs = if self.0.is_empty() { runs } else { &one };
            return Ok((whole, runs.to_vec()));
        }
        let mut parts = Vec::new();
        let mut joined = String::new();
        reserve::string(WHAT, &mut joined, whole.len())?;
        let mut start = 0;
        for run in runs {
            let part = &text[start..start + run.len];
            start += run.len;
            let first = joined.is_empty();
            let mut part = Cow::Borrowed(part);
            for step in &self.0 {
                if matches!(step, Step::Prepend(_)) && !first {
                    continue;
                }
                if let Some(changed) = step.change(&part)? {
                    part = Cow::Owned(changed);
                }
            }
            joined.push_str(&part);
            parts.push(Run {
                len: part.len(),
                from_template: run.from_template,
            });
        }
        if joined != *whole {
            parts = vec![Run {
                len: whole.len(),
                from_template: false,
            }];
        }
        Ok((whole, parts))
    }

    /// By how much it may make a text shorter, at most; `None` where there is no such bound.
    pub fn most_shrinking(&self) -> Option<usize> {
        self.0.iter().try_fold(1, |most, step| match step {
            Step::Prepend(_) => Some(most),
            Step::Replace { from, to } => (to.len() >= from.len()).then_some(most),
            // Hangul: three letters of three bytes are one syllable of three.
            Step::Nfc => Some(most * 4),
        })
    }
}

impl Step {
    /// The changed text, if it changes.
    fn change(&self, text: &str) -> Result<Option<String>> {
        match self {
            _ if text.is_empty() => Ok(None),
            Step::Prepend(prefix) => {
                let mut to = String::new();
                reserve::string(WHAT, &mut to, prefix.len() + text.len())?;
                to.push_str(prefix);
                to.push_str(text);
                Ok(Some(to))
            }
            Step::Replace { from, to } => {
                let n = text.matches(from.as_str()).count();
                if n == 0 {
                    return Ok(None);
                }
                let len = text.len() - n * from.len();
                let mut out = String::new();
                reserve::string(
                    WHAT,
                    &mut out,
                    len.saturating_add(n.saturating_mul(to.len())),
                )?;
                for (i, part) in text.split(from.as_str()).enumerate() {
                    if i > 0 {
                        out.push_str(to);
                    }
                    out.push_str(part);
                }
                Ok(Some(out))
            }
            Step::Nfc => {
                if text.is_ascii()
                    || is_nfc_quick(text.chars()) == IsNormalized::Yes
                    || is_nfc(text)
                {
                    return Ok(None);
                }
                // A run of marks is sorted in memory that the library takes by itself.
                reserve::headroom(WHAT, text.len().saturating_mul(16))?;
                let mut out = String::new();
                reserve::string(WHAT, &mut out, text.len().saturating_mul(3))?;
                out.extend(text.nfc());
                Ok(Some(out))
            }
        }
    }
}
