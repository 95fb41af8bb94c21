//! Languages that texts keep to: each as a grammar, and a second time as a list of words.

use super::toy::{BYTE, EOS, IDS, Toy, VOCAB};
use llamabi::Token;
use llamabi::backend::choice::mask_words;
use llamabi::engine::GenerateOptions;
use llamabi::grammar::{Grammar, Grammars, Source};
use llamabi::tokenizer::{Piece, Tokenizer};
use std::ops::RangeInclusive;
use std::sync::{Arc, LazyLock};

/// Texts of so many words.
struct Language {
    words: &'static [&'static str],
    times: RangeInclusive<usize>,
    grammar: Arc<Grammar>,
}

/// How many words have ended, and how many bytes there are of which word behind them.
type State = (usize, Option<(usize, usize)>);

/// Where in a language a text is: whatever it may have been until here.
#[derive(Clone)]
struct Place {
    states: Vec<State>,
    bytes: usize,
}

static LANGUAGES: LazyLock<Vec<Language>> = LazyLock::new(|| {
    let grammars = Grammars::new(VOCAB, vec![EOS]);
    let language = |words: &'static [&'static str], times: RangeInclusive<usize>| {
        let (least, most) = (times.start(), times.end());
        let regex = format!("({}){{{least},{most}}}", words.join("|"));
        let grammar = grammars.compile(&Toy, Source::Regex(&regex)).unwrap();
        Language {
            words,
            times,
            grammar: Arc::new(grammar),
        }
    };
    vec![
        language(&["ab", "c"], 1..=1),
        language(&["he", "hello", "help the bear", "日本", "é"], 1..=1),
        language(&["ab", "the", "c"], 2..=5),
        language(&["a", "b", "日"], 1..=4),
        language(&["the ", "abc", "é", "日本"], 40..=400),
    ]
});

/// How many languages there are for texts of few tokens; the one behind them is of long texts.
pub const SHORT_LANGUAGES: usize = 4;

pub fn grammar(language: usize) -> Arc<Grammar> {
    LANGUAGES[language].grammar.clone()
}

/// What follows a text that is of a language.
#[derive(Clone, Copy, PartialEq)]
pub struct Follows {
    pub end: bool,
    pub more: bool,
}

/// How far a text has come in the language of a call, token by token.
#[derive(Clone)]
pub struct Reading<'a> {
    language: &'static Language,
    options: &'a GenerateOptions,
    place: Place,
}

impl<'a> Reading<'a> {
    /// `None` for a call without a grammar.
    pub fn new(options: &'a GenerateOptions) -> Option<Self> {
        let grammar = options.grammar.as_ref()?;
        let is_own = |language: &&Language| Arc::ptr_eq(&language.grammar, grammar);
        Some(Self {
            language: LANGUAGES.iter().find(is_own).expect("a grammar from here"),
            options,
            place: Place {
                states: vec![(0, None)],
                bytes: 0,
            },
        })
    }

    /// The place behind a token that is text; `None` where the language does not have it there.
    fn behind(&self, token: Token) -> Option<Place> {
        let bytes = match Toy.piece(token) {
            Piece::Text(text) => text.as_bytes(),
            Piece::Byte(byte) => &[byte][..],
            _ => return None,
        };
        // A byte's own space is not dropped where a text begins; a word's is.
        let begins_text = self.place.bytes == 0 && !self.options.echo;
        if begins_text && token == BYTE + Token::from(b' ') {
            return None;
        }
        let mut place = Place {
            states: Vec::new(),
            bytes: self.place.bytes,
        };
        for (at, byte) in bytes.iter().enumerate() {
            let states = if at == 0 {
                &self.place.states
            } else {
                &place.states
            };
            place.states = match (place.bytes, *byte) {
                (0, b' ') => states.clone(),
                _ => self.language.step(states, *byte),
            };
            place.bytes += 1;
            if place.states.is_empty() {
                return None;
            }
        }
        Some(place)
    }

    pub fn take(&mut self, token: Token) {
        self.place = self.behind(token).expect("a token that is allowed");
    }

    pub fn follows(&self) -> Follows {
        let times = &self.language.times;
        let states = &self.place.states;
        Follows {
            end: states
                .iter()
                .any(|(n, begun)| begun.is_none() && times.contains(n)),
            more: states
                .iter()
                .any(|(n, begun)| begun.is_some() || n < times.end()),
        }
    }

    /// What ends a sequence is allowed where the text is of the language, all else where it goes
    /// on.
    pub fn allows(&self, token: Token) -> bool {
        match token == EOS || self.options.stop_tokens.contains(&token) {
            true => self.follows().end,
            false => self.behind(token).is_some(),
        }
    }

    pub fn mask(&self) -> Vec<u32> {
        let mut mask = vec![0; mask_words(VOCAB)];
        for token in (0..IDS as Token).filter(|token| self.allows(*token)) {
            mask[token as usize / 32] |= 1 << (token % 32);
        }
        mask
    }
}

impl Language {
    fn step(&self, states: &[State], byte: u8) -> Vec<State> {
        let goes_on = |n: usize, word: usize, at: usize| -> Option<State> {
            let text = self.words[word].as_bytes();
            match text.get(at) == Some(&byte) && n < *self.times.end() {
                true if at + 1 == text.len() => Some((n + 1, None)),
                true => Some((n, Some((word, at + 1)))),
                false => None,
            }
        };
        let mut next = Vec::new();
        for (n, begun) in states {
            match begun {
                Some((word, at)) => next.extend(goes_on(*n, *word, *at)),
                None => next.extend((0..self.words.len()).filter_map(|word| goes_on(*n, word, 0))),
            }
        }
        next
    }
}
