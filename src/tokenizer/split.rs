//! Cuts a text into pieces, with the expressions of pre-tokenizers. Each piece is merged by itself.
//!
//! The expressions in use have one look-ahead, in an ending `\s+(?!\S)|\s+`. Without this ending
//! they are regular, and a lazy DFA finds a match in time linear in what it reads for the match. So
//! the ending becomes a second expression, `\s+`, and a rule about the length of its matches
//! ([`Expression`]).
//!
//! With the expressions in use, a match is known at the character behind it. So any text takes time
//! linear in its length. A tokenizer.json may have an expression that must read on. With
//! `a*b|a|[^a]`, each match in a text of `a`s is known only at the end of the text, and the time
//! grows with the square of its length.

use super::scan::{self, Scanner};
use super::{oniguruma, possessive};
use crate::Result;
use regex_automata::meta::{BuildError, Config, Regex};
use regex_automata::{Anchored, Input};
use regex_syntax::hir::Hir;

/// GPT-2's expression, which `ByteLevel` uses.
pub(super) const GPT2: &str =
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
/// Llama 3's expression.
pub(super) const LLAMA3: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|",
    r"[^\r\n\p{L}\p{N}]?\p{L}+|",
    r"\p{N}{1,3}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|",
    r"\s*[\r\n]+|",
    r"\s+(?!\S)|",
    r"\s+",
);

/// Qwen2's expression: Llama 3's with single digits.
pub(super) const QWEN2: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|",
    r"[^\r\n\p{L}\p{N}]?\p{L}+|",
    r"\p{N}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|",
    r"\s*[\r\n]+|",
    r"\s+(?!\S)|",
    r"\s+",
);

/// Seed's expression: Qwen2's, but punctuation does not take the line feeds behind it.
pub(super) const SEED: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|",
    r"[^\r\n\p{L}\p{N}]?\p{L}+|",
    r"\p{N}|",
    r" ?[^\s\p{L}\p{N}]+|",
    r"\s*[\r\n]+|",
    r"\s+(?!\S)|",
    r"\s+",
);

/// Qwen3.5's expression: marks are letters.
pub(super) const QWEN35: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|",
    r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|",
    r"\p{N}|",
    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|",
    r"\s*[\r\n]+|",
    r"\s+(?!\S)|",
    r"\s+",
);

/// GPT-4o's expression.
pub(super) const GPT4O: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|",
    r"\p{N}{1,3}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*|",
    r"\s*[\r\n]+|",
    r"\s+(?!\S)|",
    r"\s+",
);

/// The expression of Mistral's Tekken: GPT-4o's without contractions, with single digits.
pub(super) const TEKKEN: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|",
    r"\p{N}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*|",
    r"\s*[\r\n]+|",
    r"\s+(?!\S)|",
    r"\s+",
);

/// DeepSeek-Coder's expressions, one after the other.
pub(super) const DEEPSEEK_CODER: [&str; 5] = [
    r"[\r\n]",
    r"\s?\p{L}+",
    r"\s?\p{P}+",
    "[\u{4e00}-\u{9fa5}\u{800}-\u{4e00}\u{ac00}-\u{d7ff}]+",
    r"\p{N}",
];
/// DeepSeek V3's expressions, one after the other. Hunyuan's dense models have the same.
pub(super) const DEEPSEEK_V3: [&str; 3] = [
    r"\p{N}{1,3}",
    "[\u{4e00}-\u{9fa5}\u{3040}-\u{309f}\u{30a0}-\u{30ff}]+",
    concat!(
        r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|"##,
        r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|",
        r" ?[\p{P}\p{S}]+[\r\n]*|",
        r"\s*[\r\n]+|",
        r"\s+(?!\S)|",
        r"\s+",
    ),
];
/// DeepSeek-LLM's expressions, one after the other. Their letters are those of scripts with upper
/// and lower case.
pub(super) const DEEPSEEK_LLM: [&str; 6] = [
    r"[\r\n]",
    "\\s?[A-Za-z\
     \u{b5}\u{c0}-\u{d6}\u{d8}-\u{f6}\u{f8}-\u{1ba}\u{1bc}-\u{1bf}\u{1c4}-\u{293}\
     \u{295}-\u{2af}\u{370}-\u{373}\u{376}\u{377}\u{37b}-\u{37d}\u{37f}\u{386}\u{388}-\u{38a}\
     \u{38c}\u{38e}-\u{3a1}\u{3a3}-\u{3f5}\u{3f7}-\u{481}\u{48a}-\u{52f}\u{531}-\u{556}\
     \u{10a0}-\u{10c5}\u{13a0}-\u{13f5}\u{13f8}-\u{13fd}\u{1c90}-\u{1cba}\u{1cbd}-\u{1cbf}\
     \u{1d00}-\u{1d2b}\u{1d6b}-\u{1d77}\u{1d79}-\u{1d9a}\u{1e00}-\u{1f15}\u{1f18}-\u{1f1d}\
     \u{1f20}-\u{1f45}\u{1f48}-\u{1f4d}\u{1f50}-\u{1f57}\u{1f59}\u{1f5b}\u{1f5d}\
     \u{1f5f}-\u{1f7d}\u{1f80}-\u{1fb4}\u{1fb6}-\u{1fbc}\u{1fbe}\u{1fc2}-\u{1fc4}\
     \u{1fc6}-\u{1fcc}\u{1fd0}-\u{1fd3}\u{1fd6}-\u{1fdb}\u{1fe0}-\u{1fec}\u{1ff2}-\u{1ff4}\
     \u{1ff6}-\u{1ffc}\u{2102}\u{2107}\u{210a}-\u{2113}\u{2115}\u{2119}-\u{211d}\u{2124}\
     \u{2126}\u{2128}\u{212a}-\u{212d}\u{212f}-\u{2134}\u{2139}\u{213c}-\u{213f}\
     \u{2145}-\u{2149}\u{214e}\u{2183}\u{2184}\u{2c00}-\u{2c7b}\u{2c7e}-\u{2ce4}\
     \u{2ceb}-\u{2cee}\u{2cf2}\u{2cf3}\u{a640}-\u{a66d}\u{a680}-\u{a69b}\u{a722}-\u{a76f}\
     \u{a771}-\u{a787}\u{a78b}-\u{a78e}\u{ab70}-\u{abbf}\u{fb00}-\u{fb06}\u{fb13}-\u{fb17}\
     \u{ff21}-\u{ff3a}\u{ff41}-\u{ff5a}\u{10400}-\u{1044f}\u{104b0}-\u{104d3}\
     \u{104d8}-\u{104fb}\u{10c80}-\u{10cb2}\u{10cc0}-\u{10cf2}\u{118a0}-\u{118df}\
     \u{1e900}-\u{1e943}\
     ]+",
    "\\s?[!-/:-~\u{ff01}-\u{ff0f}\u{ff1a}-\u{ff5e}\u{2018}-\u{201f}\u{3000}-\u{3002}]+",
    LINE_ENDING_SPACE,
    DEEPSEEK_CODER[3],
    r"\p{N}",
];
/// The only other look-around that is supported: white space up to the end of a line.
const LINE_ENDING_SPACE: &str = r"\s+$";

/// The only ending with a look-ahead that is supported.
const ENDING: &str = r"|\s+(?!\S)|\s+";
/// The most bytes of an expression's NFA, and of the lazy DFA that a thread's searches build from
/// it. If the DFA had 2 MiB, GPT-4o's expression would fill it over and over in Chinese text, at a
/// tenth of the speed.
const NFA_BYTES: usize = 2 << 20;
const DFA_BYTES: usize = 16 << 20;
/// The most bytes of an expression. The longest in use have a few thousand. An expression that
/// transformers writes for user-defined pieces may have a thousand of them.
pub(super) const MAX_BYTES: usize = 64 << 10;

/// An expression of a pre-tokenizer. Every match is a piece, and so is the text between two
/// matches. [`Keep`] may leave out one of the two kinds.
pub(super) struct Expression {
    search: Search,
    keep: Keep,
}

/// Which pieces of a text stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keep {
    All,
    Matches,
    Between,
}

enum Search {
    Scanner(Scanner),
    Regex {
        regex: Box<Regex>,
        /// The second pattern is `\s+`. If its match has two characters or more and does not reach
        /// the end of the text, the last character of the match is left to what follows.
        ending: bool,
    },
}

impl Expression {
    /// The error is a phrase about the expression.
    pub fn new(text: &str) -> std::result::Result<Expression, String> {
        let scanner = match text {
            GPT2 => Some(Scanner::Gpt2),
            LLAMA3 => Some(Scanner::Llama3),
            QWEN2 => Some(Scanner::Qwen2),
            _ => None,
        };
        match scanner {
            Some(scanner) => Ok(Expression {
                search: Search::Scanner(scanner),
                keep: Keep::All,
            }),
            None => Expression::regex(text),
        }
    }

    /// As [`Self::new`], but without a hand-made scanner.
    pub fn regex(text: &str) -> std::result::Result<Expression, String> {
        if text.len() > MAX_BYTES {
            return Err(format!(
                "it has {} bytes, at most {MAX_BYTES} are supported",
                text.len()
            ));
        }
        let (body, ending) = match text.strip_suffix(ENDING) {
            Some(body) => (body, true),
            None => (text, false),
        };
        let mut patterns = vec![match body {
            LINE_ENDING_SPACE => oniguruma::parse_as_it_is(r"(?m:\s+$)")?,
            body => oniguruma::parse(&possessive::greedy(body)?)?,
        }];
        if ending {
            patterns.push(oniguruma::parse(r"\s+")?);
        }
        Expression::of(&patterns, ending)
    }

    /// An expression for a text that stands for itself. The text is not empty.
    pub fn literal(text: &str) -> std::result::Result<Expression, String> {
        Expression::of(&[Hir::literal(text.as_bytes())], false)
    }

    /// An expression for a short text that is written for Rust's regex.
    pub fn of_rust(text: &str) -> std::result::Result<Expression, String> {
        Expression::of(&[oniguruma::parse_as_it_is(text)?], false)
    }

    fn of(patterns: &[Hir], ending: bool) -> std::result::Result<Expression, String> {
        let config = Config::new()
            .nfa_size_limit(Some(NFA_BYTES))
            .hybrid_cache_capacity(DFA_BYTES)
            .onepass(false)
            .backtrack(false);
        let regex = Regex::builder()
            .configure(config)
            .build_many_from_hir(patterns)
            .map_err(|e| explain(&e))?;
        // Only our own expressions look around. So an expression that does not match an empty text
        // matches nothing empty inside another text, either. (The least length that an expression
        // reports is not known if a part of it never matches.)
        if regex.is_match("") {
            return Err("it matches an empty text".into());
        }
        let regex = Box::new(regex);
        Ok(Expression {
            search: Search::Regex { regex, ending },
            keep: Keep::All,
        })
    }

    /// The same expression, of whose pieces only `keep` stay.
    pub fn keeping(self, keep: Keep) -> Expression {
        // A scanner leaves nothing between its matches.
        match (&self.search, keep) {
            (Search::Scanner(_), Keep::Matches) => self,
            _ => Expression { keep, ..self },
        }
    }

    /// Whether all of a text stays.
    pub fn keeps_all(&self) -> bool {
        self.keep == Keep::All
    }

    /// Whether every text is matched from its first to its last character. That is so if each
    /// character by itself is a match.
    pub fn covers_all(&self) -> bool {
        let Search::Regex { regex, .. } = &self.search else {
            return true;
        };
        let mut utf8 = [0; 4];
        ('\0'..=char::MAX).all(|c| {
            let input = Input::new(c.encode_utf8(&mut utf8)).anchored(Anchored::Yes);
            regex.search(&input).is_some()
        })
    }

    /// Calls `each` with every piece of `text`, in order. No piece is empty.
    fn split(&self, text: &str, each: &mut dyn FnMut(&str) -> Result<()>) -> Result<()> {
        let (regex, ending) = match &self.search {
            Search::Scanner(_) if self.keep == Keep::Between => return Ok(()),
            Search::Scanner(scanner) => return scan::split(*scanner, text, each),
            Search::Regex { regex, ending } => (regex, *ending),
        };
        let between = |piece: &str, each: &mut dyn FnMut(&str) -> Result<()>| match piece.is_empty()
            || self.keep == Keep::Matches
        {
            true => Ok(()),
            false => each(piece),
        };
        let mut start = 0;
        while start < text.len() {
            let input = Input::new(text).range(start..);
            let Some(found) = regex.search(&input) else {
                return between(&text[start..], each);
            };
            let mut end = found.end();
            if ending && found.pattern().as_usize() == 1 && end < text.len() {
                let white = &text[found.start()..end];
                let last = white.char_indices().next_back().map_or(0, |(at, _)| at);
                // A single white-space character stays in the match.
                end = if last > 0 { found.start() + last } else { end };
            }
            between(&text[start..found.start()], each)?;
            if self.keep != Keep::Between {
                each(&text[found.start()..end])?;
            }
            start = end;
        }
        Ok(())
    }
}

/// Cuts `text` by one expression after the other.
pub(super) fn split(
    expressions: &[Expression],
    text: &str,
    each: &mut dyn FnMut(&str) -> Result<()>,
) -> Result<()> {
    match expressions {
        [] => each(text),
        [only] => only.split(text, each),
        [first, rest @ ..] => first.split(text, &mut |piece| split(rest, piece, each)),
    }
}

fn explain(error: &BuildError) -> String {
    match error.size_limit() {
        Some(limit) => format!("it takes more than {limit} bytes when compiled"),
        None => error.to_string(),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::tokenizer) fn pieces(expressions: &[Expression], text: &str) -> Vec<String> {
        let mut pieces = Vec::new();
        split(expressions, text, &mut |piece| {
            pieces.push(piece.to_owned());
            Ok(())
        })
        .unwrap();
        pieces
    }

    /// Characters of every class, and those that only one alternative knows.
    const POOL: [char; 48] = [
        ' ', ' ', ' ', '\n', '\r', '\t', '\u{a0}', '\u{3000}', '\u{85}', '\'', '\'', 's', 'S', 't',
        'r', 'e', 'E', 'v', 'l', 'L', 'd', 'm', 'a', 'Z', '\u{17f}', 'K', 'é', 'ß', '中', 'あ',
        'ǅ', 'ʰ', '\u{301}', '\u{200d}', '1', '2', '٣', 'Ⅷ', '²', '!', '.', '_', '$', '—', '🎉',
        '\0', '\u{feff}', '\u{e000}',
    ];

    #[test]
    fn scanners_are_their_expressions() {
        let mut state = 1_u64;
        let mut below = |n: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % n
        };
        let three = [GPT2, LLAMA3, QWEN2].map(|text| {
            let scanner = Expression::new(text).unwrap();
            assert!(matches!(scanner.search, Search::Scanner(_)));
            ([scanner], [Expression::regex(text).unwrap()])
        });
        for _ in 0..1_000_000 {
            let text: String = (0..below(12)).map(|_| POOL[below(POOL.len())]).collect();
            for (scanner, regex) in &three {
                let (mut by_hand, mut expected) = (Vec::new(), Vec::new());
                let take = |to: &mut Vec<usize>, piece: &str| {
                    to.push(piece.len());
                    Ok(())
                };
                scanner[0]
                    .split(&text, &mut |piece| take(&mut by_hand, piece))
                    .unwrap();
                split(regex, &text, &mut |piece| take(&mut expected, piece)).unwrap();
                assert_eq!(by_hand, expected, "{text:?}");
            }
        }
    }

    #[test]
    fn the_last_white_space_goes_to_what_follows() {
        let ending = [Expression::regex(r"\p{L}+|\s+(?!\S)|\s+").unwrap()];
        for (text, expected) in [
            ("a   b", &["a", "  ", " ", "b"][..]),
            ("a b", &["a", " ", "b"]),
            ("a  ", &["a", "  "]),
            ("\u{3000}\u{3000}b", &["\u{3000}", "\u{3000}", "b"]),
            (" \n!", &[" ", "\n", "!"]),
            ("", &[]),
        ] {
            assert_eq!(pieces(&ending, text), expected, "{text:?}");
        }
        // Without that ending, white space stays together.
        let plain = [Expression::regex(r"\p{L}+|\s+").unwrap()];
        assert_eq!(pieces(&plain, "a   b"), ["a", "   ", "b"]);
    }

    #[test]
    fn expressions_one_after_the_other() {
        let all = DEEPSEEK_LLM.map(|text| Expression::new(text).unwrap());
        let expected = [
            "ab", " cd", "1", "2", "\n", " ", " ", "中文", "。", "x", "  ",
        ];
        assert_eq!(pieces(&all, "ab cd12\n  中文。x  ")[..5], expected[..5]);
        let white = [Expression::new(LINE_ENDING_SPACE).unwrap()];
        assert_eq!(pieces(&white, "a  \nb  "), ["a", "  ", "\nb", "  "]);
    }

    #[test]
    fn all_that_is_known_compiles_and_covers() {
        for text in [GPT2, LLAMA3, QWEN2, QWEN35, SEED, GPT4O, TEKKEN] {
            let regex = Expression::regex(text).unwrap();
            assert!(regex.covers_all(), "{text}");
        }
        assert!(!Expression::new(DEEPSEEK_CODER[1]).unwrap().covers_all());
    }

    #[test]
    fn what_would_mean_something_else_is_refused() {
        for (text, why) in [
            (r"a(?=b)", "look-around"),
            (r"(?<!a)b", "look-around"),
            (r"\bword", "looks at what lies around"),
            (r"^a", "looks at what lies around"),
            (r"a?+a", "possessive"),
            (r"(?s:.)", "another flag"),
            (r"[a-z--b]", "subtracts"),
            (r"a*", "empty text"),
            (r"(", "unclosed"),
            (r"(a)\1", "backreferences"),
            (r"\s+(?!\S)|\s+", "look-around"),
            (r"\p{L}{1000}{1000}", "possessive"),
            (r"(?:\p{L}{1000}){1000}", "bytes when compiled"),
        ] {
            let error = Expression::new(text).map(|_| ()).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
        let long = "a".repeat(MAX_BYTES + 1);
        assert!(
            Expression::new(&long)
                .map(|_| ())
                .unwrap_err()
                .contains("65537 bytes")
        );
    }
}
