//! Added tokens: texts that are one token wherever they stand, cut out before anything else
//! happens.

use super::Run;
use super::scan::is_word;
use crate::{Result, Token, reserve};
use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};
use std::collections::HashMap;
use std::ops::Range;

/// Most bytes of all added tokens' texts. The largest in use have some 20 KiB; the automaton takes
/// up to a hundred times as much.
pub(super) const MAX_BYTES: usize = 1 << 20;

/// One added token, as tokenizers describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct AddedToken {
    pub id: u32,
    pub text: String,
    /// Not shown in a decoded text.
    pub special: bool,
    /// White space before or behind it belongs to it.
    pub lstrip: bool,
    pub rstrip: bool,
    /// Only where no word's character stands beside it.
    pub single_word: bool,
    /// Looked for in the normalised text, else in the text as it was given.
    pub normalized: bool,
}

/// All added tokens of a tokenizer.
#[derive(Default)]
pub(super) struct Added {
    tokens: Vec<AddedToken>,
    ids: HashMap<String, Token>,
    raw: Option<Matcher>,
    normalized: Option<Matcher>,
    /// Bytes of the longest text; `None` where one takes any number of spaces too.
    longest: Option<usize>,
}

/// Which of [`Added`]'s two searches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    Raw,
    Normalized,
}

struct Matcher {
    automaton: AhoCorasick,
    /// Which token each pattern is.
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
    /// `normalise` is what happens to a text before those with `normalized` are looked for. The
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

    /// Most bytes of a text that one of them takes the place of, if there is such a bound.
    pub fn longest(&self) -> Option<usize> {
        self.longest
    }

    /// Cut `text` at this pass's tokens: stretches, first to last, with the id of those that are a
    /// token. Tokens are looked for in the runs that the template wrote, each by itself.
    ///
    /// A token that consists of white space is also found where one before it has taken that, as in
    /// tokenizers, and the next stretch begins behind it: stretches may go back.
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
    /// What of `text` it takes where its text stands at `at`; of the white space in front nothing
    /// before `from`. Where it ends before `white`, there is white space up to there and no
    /// further: looking again each time would take a long while.
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
