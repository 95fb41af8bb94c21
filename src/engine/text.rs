//! Tokens to the text a caller sees: whole code points, cut before a stop string.

use crate::Token;
use crate::tokenizer::{Detokenizer, Tokenizer};
use std::sync::Arc;

/// A call's stop strings, prepared for matching byte by byte (Knuth, Morris, Pratt).
#[derive(Debug)]
pub(super) struct Stops(Vec<Stop>);

#[derive(Debug)]
struct Stop {
    text: Box<[u8]>,
    /// `border[i]`: longest proper prefix of `text[..=i]` that is also its suffix.
    border: Box<[usize]>,
}

impl Stops {
    /// None of the strings is empty.
    pub fn new(stops: &[String]) -> Self {
        Self(
            stops
                .iter()
                .map(|stop| Stop::new(stop.as_bytes()))
                .collect(),
        )
    }
}

impl Stop {
    fn new(text: &[u8]) -> Self {
        let mut stop = Stop {
            text: text.into(),
            border: vec![0; text.len()].into(),
        };
        for (i, byte) in text.iter().enumerate().skip(1) {
            stop.border[i] = stop.advance(stop.border[i - 1], *byte);
        }
        stop
    }

    /// Bytes matched after `byte`, when `matched` (less than all) were before it.
    fn advance(&self, mut matched: usize, byte: u8) -> usize {
        loop {
            if self.text[matched] == byte {
                return matched + 1;
            }
            if matched == 0 {
                return 0;
            }
            matched = self.border[matched - 1];
        }
    }
}

/// The text of one sequence.
pub(super) struct TextStream {
    detokenizer: Detokenizer,
    /// For each stop string, how many of its bytes the text ends with.
    matched: Vec<usize>,
    /// Text that may be the beginning of a stop string.
    held: String,
    stopped: bool,
}

impl TextStream {
    /// `special`: with the texts of special tokens.
    pub fn new(tokenizer: Arc<dyn Tokenizer>, stops: &Stops, special: bool) -> Self {
        Self {
            detokenizer: match special {
                true => Detokenizer::with_special(tokenizer),
                false => Detokenizer::new(tokenizer),
            },
            matched: vec![0; stops.0.len()],
            held: String::new(),
            stopped: false,
        }
    }

    /// The text that an echoed prompt token makes certain. Stop strings are not looked for.
    pub fn echo(&mut self, token: Token) -> String {
        let mut text = String::new();
        self.detokenizer.push(token, &mut text);
        text
    }

    /// The text that a generated token makes certain, and whether a stop string ended it.
    pub fn push(&mut self, token: Token, stops: &Stops) -> (String, bool) {
        let old = self.held.len();
        self.detokenizer.push(token, &mut self.held);
        (self.release(old, stops), self.stopped)
    }

    /// What was held back, and whether a stop string ended it just now.
    pub fn finish(&mut self, stops: &Stops) -> (String, bool) {
        if self.stopped {
            return (String::new(), false);
        }
        let old = self.held.len();
        self.detokenizer.finish(&mut self.held);
        let mut text = self.release(old, stops);
        text.push_str(&std::mem::take(&mut self.held));
        (text, self.stopped)
    }

    /// Match `held` from `old` on, and take what cannot belong to a stop string. Where several stop
    /// strings are complete, the text is cut before the one that begins first.
    fn release(&mut self, old: usize, stops: &Stops) -> String {
        let mut cut = None;
        let mut longest = 0;
        for (stop, matched) in stops.0.iter().zip(&mut self.matched) {
            for (i, byte) in self.held.bytes().enumerate().skip(old) {
                *matched = stop.advance(*matched, byte);
                if *matched == stop.text.len() {
                    let start = i + 1 - stop.text.len();
                    cut = Some(cut.map_or(start, |cut: usize| cut.min(start)));
                    break;
                }
            }
            longest = longest.max(*matched);
        }
        if let Some(cut) = cut {
            self.stopped = true;
            self.held.truncate(cut);
            return std::mem::take(&mut self.held);
        }
        // A stop string begins with a whole code point, so this is a boundary of the text too.
        let certain = self.held.len() - longest;
        self.held.drain(..certain).collect()
    }
}
