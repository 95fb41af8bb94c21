//! Added tokens: texts that are one token wherever they stand. They are cut out of a text before
//! anything else happens.

use super::Run;
use super::scan::is_word;
use crate::{Result, Token, reserve};
use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};
use std::collections::HashMap;
use std::ops::Range;

/// The most bytes of all added tokens' texts. The largest in use have some 20 KiB. The automaton
/// takes up to a hundred times as much.
pub(super) const MAX_BYTES: usize = 1 << 20;

/// One added token, as tokenizers describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct AddedToken {
    pub id: u32,
    pub text: String,
    /// Not shown in a decoded text.
    pub special: bool,
    /// White space in front of the token (`lstrip`) or behind it (`rstrip`) belongs to it.
    pub lstrip: bool,
    pub rstrip: bool,
    /// It counts as the token only if no word character stands beside it.
    pub single_word: bool,
    /// Whether it is looked for in the normalised text. Otherwise it is looked for in the given
    /// text.
    pub normalized: bool,
}

/// All added tokens of a tokenizer.
#[derive(Default)]
pub(super) struct Added {
    tokens: Vec<AddedToken>,
    ids: HashMap<String, Token>,
    raw: Option<Matcher>,
    normalized: Option<Matcher>,
    /// Length of the longest text in bytes. `None` if some token also takes any number of spaces.
    longest: Option<usize>,
}

/// The two searches of [`Added`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    Raw,
    Normalized,
}

struct Matcher {
    automaton: AhoCorasick,
    /// The index of the token for each pattern.
    tokens: Vec<u32>,
}

impl Matcher {
    fn new(patterns: Vec<(u32, String)>) -> std::result::Result<Option<Matcher>, String> {
        let bytes: usize = patterns.iter().map(|(_, text)| text.len()).sum();
        if bytes > MAX_BYTES {
            return Err(format!(
                "the added tokens have {bytes} bytes, at most {MAX_BYTES} are supported"
            ));
        }
        if patterns.is_empty() {
            return Ok(None);
        }
        let (tokens, texts): (Vec<u32>, Vec<String>) = patterns.into_iter().unzip();
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .kind(Some(AhoCorasickKind::ContiguousNFA))
            .build(texts)
            .map_err(|e| format!("the added tokens: {e}"))?;
        Ok(Some(Matcher { automaton, tokens }))
    }
}

impl Added {
    /// `normalise` is applied to a text before tokens with `normalized` are looked for in it. The
    /// error is a sentence about the tokens.
    pub fn new(
        tokens: Vec<AddedToken>,
        normalise: impl Fn(&str) -> Result<String>,
    ) -> std::result::Result<Added, String> {
        let (mut raw, mut normalized) = (Vec::new(), Vec::new());
        let mut ids = HashMap::new();
        let mut longest = Some(1);
        for (index, token) in (0..).zip(&tokens) {
            if let Some(other) = ids.insert(token.text.clone(), token.id as Token)
                && other != token.id as Token
            {
                let (text, id) = (&token.text, token.id);
                return Err(format!(
                    "the added tokens {other} and {id} are both {text:?}"
                ));
            }
            longest = match token.lstrip || token.rstrip {
                true => None,
                false => longest.map(|longest: usize| longest.max(token.text.len())),
            };
            match token.normalized {
                false => raw.push((index, token.text.clone())),
                true => {
                    let text = normalise(&token.text).map_err(|e| e.to_string())?;
                    if !text.is_empty() {
                        normalized.push((index, text));
                    }
                }
            }
        }
        Ok(Added {
            raw: Matcher::new(raw)?,
            normalized: Matcher::new(normalized)?,
            tokens,
            ids,
            longest,
        })
    }

    /// The token with this text.
    pub fn id(&self, text: &str) -> Option<Token> {
        self.ids.get(text).copied()
    }

    /// The most bytes of a text that one added token can replace, if there is such a bound.
    pub fn longest(&self) -> Option<usize> {
        self.longest
    }

    /// Cuts `text` at the tokens of this pass. Returns stretches in order, with an id for each
    /// stretch that is a token. Tokens are looked for only in text that the template wrote. A token
    /// must lie within one uninterrupted part of it.
    ///
    /// A token of white space is also found if a token before it has taken that white space, as in
    /// tokenizers. The next stretch then begins behind the white-space token. So a stretch may
    /// begin before the end of an earlier one.
    pub fn cut(
        &self,
        pass: Pass,
        text: &str,
        runs: &[Run],
    ) -> Result<Vec<(Option<Token>, Range<usize>)>> {
        let matcher = match pass {
            Pass::Raw => &self.raw,
            Pass::Normalized => &self.normalized,
        };
        let mut stretches = Vec::new();
        let (mut start, mut white) = (0, 0);
        let mut push = |id, range: Range<usize>| -> Result<()> {
            reserve::vec("the added tokens of a text", &mut stretches, 1)?;
            stretches.push((id, range));
            Ok(())
        };
        if let Some(matcher) = matcher {
            for range in template_runs(runs) {
                for found in matcher.automaton.find_iter(&text[range.clone()]) {
                    let index = matcher.tokens[found.pattern().as_usize()];
                    let token = &self.tokens[index as usize];
                    let at = range.start + found.start()..range.start + found.end();
                    let Some(at) = token.bounds(text, at, start, white) else {
                        continue;
                    };
                    white = white.max(at.end);
                    if start < at.start {
                        push(None, start..at.start)?;
                    }
                    start = at.end;
                    push(Some(token.id as Token), at)?;
                }
            }
        }
        if start < text.len() {
            push(None, start..text.len())?;
        }
        Ok(stretches)
    }
}

impl AddedToken {
    /// The range of `text` that the token takes if its own text stands at `at`; `None` if it does
    /// not count there. It takes no white space in front of `from`. `white` saves time: if the
    /// token ends before `white`, the white space behind it ends at `white`, and need not be
    /// searched again.
    fn bounds(
        &self,
        text: &str,
        at: Range<usize>,
        from: usize,
        white: usize,
    ) -> Option<Range<usize>> {
        let Range { mut start, mut end } = at;
        let (before, behind) = (&text[..start], &text[end..]);
        let in_word = before.chars().next_back().is_some_and(is_word)
            || behind.chars().next().is_some_and(is_word);
        if self.single_word && in_word {
            return None;
        }
        if self.lstrip && from < start {
            start = from + text[from..start].trim_end().len();
        }
        if self.rstrip {
            end = match end < white {
                true => white,
                false => end + behind.len() - behind.trim_start().len(),
            };
        }
        Some(start..end)
    }
}

/// The stretches of a text that the template wrote without a break.
fn template_runs(runs: &[Run]) -> impl Iterator<Item = Range<usize>> {
    let mut at = 0;
    let mut runs = runs.iter().peekable();
    std::iter::from_fn(move || {
        loop {
            let run = runs.next()?;
            let start = at;
            at += run.len;
            if run.from_template {
                while let Some(next) = runs.next_if(|next| next.from_template) {
                    at += next.len;
                }
                return Some(start..at);
            }
        }
    })
}
