//! What happens to a text before it is cut and merged.

use super::Run;
use super::pairs::SPACE_SYMBOL;
use crate::{Result, reserve};
use std::borrow::Cow;
use unicode_normalization::{
    IsNormalized, UnicodeNormalization, is_nfc, is_nfc_quick, is_nfkc_quick,
};

const WHAT: &str = "encoding a text";

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Unicode's normalisation form C.
    Nfc,
    /// Unicode's normalisation form KC.
    Nfkc,
    /// This text goes in front of a text that is not empty.
    Prepend(String),
    /// Each `from` becomes `to`. `from` is not empty.
    Replace { from: String, to: String },
    /// Leading and trailing spaces go.
    Trim,
    /// Several spaces in a row become one.
    Squeeze,
    /// A text that begins with U+2581 gets another one in front.
    DoubleSymbol,
}

/// Steps, in order.
#[derive(Debug, Default)]
pub(super) struct Normalizer(pub Vec<Step>);

/// A normalised text.
pub(super) struct Normalized<'a> {
    pub text: Cow<'a, str>,
    /// Whether its first character comes from the first character of the given text.
    pub has_start: bool,
}

impl Normalizer {
    /// The normalised text.
    pub fn apply<'a>(&self, text: &'a str) -> Result<Normalized<'a>> {
        let mut text = Cow::Borrowed(text);
        // How many of its first characters come from the first character of the given text, or were
        // put in front of it.
        let mut lead = 1;
        for step in &self.0 {
            lead = step.lead(&text, lead);
            if let Some(changed) = step.change(&text, Place::WHOLE)? {
                text = Cow::Owned(changed);
            }
        }
        let has_start = lead > 0;
        Ok(Normalized { text, has_start })
    }

    /// As [`Self::apply`], with the runs of the result. If a character is made of both template
    /// text and other text, the whole result counts as other text.
    pub fn apply_to_runs<'a>(
        &self,
        text: &'a str,
        runs: &[Run],
    ) -> Result<(Normalized<'a>, Vec<Run>)> {
        let normalized = self.apply(text)?;
        let whole = &normalized.text;
        if self.0.is_empty() || runs.len() <= 1 {
            let from_template = runs.iter().all(|run| run.from_template);
            let one = [Run {
                len: whole.len(),
                from_template,
            }];
            let runs = if self.0.is_empty() { runs } else { &one };
            let runs = runs.to_vec();
            return Ok((normalized, runs));
        }
        let mut parts = Vec::new();
        let mut joined = String::new();
        reserve::string(WHAT, &mut joined, whole.len())?;
        let mut start = 0;
        for run in runs {
            let part = &text[start..start + run.len];
            start += run.len;
            let place = Place {
                begins: joined.is_empty(),
                ends: start == text.len(),
            };
            let mut part = Cow::Borrowed(part);
            for step in &self.0 {
                if let Some(changed) = step.change(&part, place)? {
                    part = Cow::Owned(changed);
                }
            }
            joined.push_str(&part);
            parts.push(Run {
                len: part.len(),
                from_template: run.from_template,
            });
        }
        if joined != **whole {
            parts = vec![Run {
                len: whole.len(),
                from_template: false,
            }];
        }
        Ok((normalized, parts))
    }

    /// The largest factor by which it may make a text shorter. `None` if there is no bound.
    pub fn most_shrinking(&self) -> Option<usize> {
        self.0.iter().try_fold(1, |most, step| match step {
            Step::Prepend(_) => Some(most),
            Step::Replace { from, to } => (to.len() >= from.len()).then_some(most),
            // For example Hangul: three letters of three bytes each become one syllable of three
            // bytes.
            Step::Nfc => Some(most * 4),
            Step::Trim | Step::Squeeze | Step::Nfkc => None,
            Step::DoubleSymbol => Some(most),
        })
    }
}

/// Whether a part lies at the beginning and at the end of a text.
#[derive(Clone, Copy)]
struct Place {
    begins: bool,
    ends: bool,
}

impl Place {
    const WHOLE: Place = Place {
        begins: true,
        ends: true,
    };
}

impl Step {
    /// How many of the first characters of the result come from the first `lead` characters of
    /// `text`. As in tokenizers, what replaces several characters counts as coming from the last of
    /// them.
    fn lead(&self, text: &str, lead: usize) -> usize {
        match self {
            _ if lead == 0 || text.is_empty() => lead,
            Step::Prepend(prefix) => lead + prefix.chars().count(),
            Step::DoubleSymbol => lead + usize::from(text.starts_with(SPACE_SYMBOL)),
            Step::Trim => lead.saturating_sub(text.len() - text.trim_start_matches(' ').len()),
            Step::Squeeze => {
                let ends = |(c, next): (char, Option<char>)| (c, next) != (' ', Some(' '));
                let next = text.chars().skip(1).map(Some).chain([None]);
                let kept = text.chars().zip(next).take(lead);
                kept.filter(|&pair| ends(pair)).count()
            }
            Step::Replace { from, to } => {
                let (width, made) = (from.chars().count(), to.chars().count());
                let (mut rest, mut at, mut count) = (text, 0, 0);
                while at < lead {
                    let found = rest.starts_with(from.as_str());
                    let next = match found {
                        true => from.len(),
                        false => rest.chars().next().map_or(0, char::len_utf8),
                    };
                    if next == 0 {
                        break;
                    }
                    at += if found { width } else { 1 };
                    if at <= lead {
                        count += if found { made } else { 1 };
                    }
                    rest = &rest[next..];
                }
                count
            }
            Step::Nfc | Step::Nfkc => lead,
        }
    }

    /// The changed text, or part of a text. `None` if it does not change.
    fn change(&self, text: &str, place: Place) -> Result<Option<String>> {
        match self {
            _ if text.is_empty() => Ok(None),
            Step::Prepend(_) | Step::DoubleSymbol if !place.begins => Ok(None),
            Step::Prepend(prefix) => joined(prefix, text).map(Some),
            Step::DoubleSymbol => match text.starts_with(SPACE_SYMBOL) {
                true => joined(SPACE_SYMBOL.encode_utf8(&mut [0; 4]), text).map(Some),
                false => Ok(None),
            },
            Step::Trim => {
                let mut rest = text;
                if place.begins {
                    rest = rest.trim_start_matches(' ');
                }
                if place.ends {
                    rest = rest.trim_end_matches(' ');
                }
                match rest.len() < text.len() {
                    true => joined("", rest).map(Some),
                    false => Ok(None),
                }
            }
            Step::Squeeze => {
                if !text.contains("  ") {
                    return Ok(None);
                }
                let mut out = String::new();
                reserve::string(WHAT, &mut out, text.len())?;
                let mut before = None;
                for c in text.chars() {
                    if (before, c) != (Some(' '), ' ') {
                        out.push(c);
                    }
                    before = Some(c);
                }
                Ok(Some(out))
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
                // The library sorts a run of marks in memory that it allocates itself.
                reserve::headroom(WHAT, text.len().saturating_mul(16))?;
                let mut out = String::new();
                reserve::string(WHAT, &mut out, text.len().saturating_mul(3))?;
                out.extend(text.nfc());
                Ok(Some(out))
            }
            Step::Nfkc => {
                if text.is_ascii() || is_nfkc_quick(text.chars()) == IsNormalized::Yes {
                    return Ok(None);
                }
                reserve::headroom(WHAT, text.len().saturating_mul(16))?;
                // One character may become eighteen, so the bytes are counted first.
                let len = text.nfkc().map(char::len_utf8).sum();
                let mut out = String::new();
                reserve::string(WHAT, &mut out, len)?;
                out.extend(text.nfkc());
                Ok(Some(out))
            }
        }
    }
}

fn joined(first: &str, second: &str) -> Result<String> {
    let mut both = String::new();
    reserve::string(WHAT, &mut both, first.len() + second.len())?;
    both.push_str(first);
    both.push_str(second);
    Ok(both)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parts are normalised as the whole text is, so that the template's parts stay known.
    #[test]
    fn runs_of_what_is_trimmed_and_squeezed() {
        let replace = Step::Replace {
            from: " ".into(),
            to: "\u{2581}".into(),
        };
        let normalizer = Normalizer(vec![Step::Trim, Step::Squeeze, replace, Step::DoubleSymbol]);
        let run = |len, from_template| Run { len, from_template };
        for (parts, want, runs) in [
            (
                [" \u{2581}a ", "b  c", " d  "],
                "\u{2581}\u{2581}a\u{2581}b\u{2581}c\u{2581}d",
                vec![run(10, true), run(5, false), run(4, true)],
            ),
            (
                ["  ", " \u{2581}a", "b"],
                "\u{2581}\u{2581}ab",
                vec![run(0, true), run(7, false), run(1, true)],
            ),
            // Spaces are squeezed across two runs, so no part of the result is the template's.
            (["a ", " b", "c"], "a\u{2581}bc", vec![run(6, false)]),
        ] {
            let given = [0, 1, 2].map(|i| run(parts[i].len(), i != 1));
            let text = parts.concat();
            let (normalized, got) = normalizer.apply_to_runs(&text, &given).unwrap();
            assert_eq!((&*normalized.text, got), (want, runs), "{text:?}");
            assert_eq!(normalized.has_start, !text.starts_with(' '), "{text:?}");
        }
    }
}
