//! Turns tokens into the text that a caller sees: whole code points, cut before a stop string.

use crate::tokenizer::{Detokenizer, Piece, Tokenizer};
use crate::{Result, Token, reserve};
use std::sync::Arc;

/// A call's stop strings, prepared for matching byte by byte (Knuth, Morris, Pratt).
#[derive(Debug)]
pub(super) struct Stops(Vec<Stop>);

#[derive(Debug)]
struct Stop {
    text: Vec<u8>,
    /// `border[i]`: longest proper prefix of `text[..=i]` that is also its suffix.
    border: Vec<usize>,
}

const STOP: &str = "a stop string";

impl Stops {
    /// None of the strings is empty.
    pub fn new(stops: &[String]) -> Result<Self> {
        let mut all = reserve::room(STOP, stops.len())?;
        for stop in stops {
            all.push(Stop::new(stop.as_bytes())?);
        }
        Ok(Self(all))
    }
}

impl Stop {
    fn new(text: &[u8]) -> Result<Self> {
        let mut stop = Stop {
            text: reserve::copy(STOP, text)?,
            border: reserve::filled(STOP, text.len(), 0)?,
        };
        for (i, byte) in text.iter().enumerate().skip(1) {
            stop.border[i] = stop.advance(stop.border[i - 1], *byte);
        }
        Ok(stop)
    }

    /// The number of bytes that match after `byte`, if `matched` bytes (fewer than all) did before
    /// it.
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
#[derive(Clone)]
pub(super) struct TextStream {
    detokenizer: Detokenizer,
    /// For each stop string, how many of its bytes the text ends with.
    matched: Vec<usize>,
    /// Text that may be the beginning of a stop string.
    held: String,
    stopped: bool,
}

const TEXT: &str = "the text of a sequence";

/// More bytes than the detokenizer can hold back and append with the next token: three stray bytes
/// of a code point, each of which becomes U+FFFD.
const HELD_BACK: usize = 16;

impl TextStream {
    /// `special`: whether special tokens have their texts.
    pub fn new(tokenizer: Arc<dyn Tokenizer>, stops: &Stops, special: bool) -> Result<Self> {
        Ok(Self {
            detokenizer: match special {
                true => Detokenizer::with_special(tokenizer),
                false => Detokenizer::new(tokenizer),
            },
            matched: reserve::filled(TEXT, stops.0.len(), 0)?,
            held: String::new(),
            stopped: false,
        })
    }

    /// Become what `other` is, in the memory that there is.
    pub fn follow(&mut self, other: &Self) -> Result<()> {
        self.detokenizer.clone_from(&other.detokenizer);
        self.matched.clone_from(&other.matched);
        self.held.clear();
        reserve::string(TEXT, &mut self.held, other.held.len())?;
        self.held.push_str(&other.held);
        self.stopped = other.stopped;
        Ok(())
    }

    /// The text that an echoed prompt token completes. Stop strings are not searched for in it.
    pub fn echo(&mut self, token: Token) -> Result<String> {
        let mut text = String::new();
        reserve::string(TEXT, &mut text, self.most_bytes(token))?;
        self.detokenizer.push(token, &mut text);
        Ok(text)
    }

    /// The text that a generated token completes, and whether a stop string ended it.
    pub fn push(&mut self, token: Token, stops: &Stops) -> Result<(String, bool)> {
        let old = self.held.len();
        let most = self.most_bytes(token);
        reserve::string(TEXT, &mut self.held, most)?;
        self.detokenizer.push(token, &mut self.held);
        if self.has_dropped_a_space(token, old) {
            for (stop, matched) in stops.0.iter().zip(&mut self.matched) {
                if stop.text.iter().any(|byte| *byte != b' ') {
                    *matched = stop.advance(*matched, b' ');
                }
            }
        }
        Ok((self.release(old, stops)?, self.stopped))
    }

    /// The text that was held back, and whether a stop string ended it just now.
    pub fn finish(&mut self, stops: &Stops) -> Result<(String, bool)> {
        if self.stopped {
            return Ok((String::new(), false));
        }
        let old = self.held.len();
        reserve::string(TEXT, &mut self.held, HELD_BACK)?;
        self.detokenizer.finish(&mut self.held);
        let mut text = self.release(old, stops)?;
        reserve::string(TEXT, &mut text, self.held.len())?;
        text.push_str(&std::mem::take(&mut self.held));
        Ok((text, self.stopped))
    }

    /// The largest number of bytes that the detokenizer can append for this token.
    fn most_bytes(&self, token: Token) -> usize {
        let own = match self.detokenizer.piece(token) {
            Piece::Text(text) | Piece::Literal(text) => text.len(),
            Piece::Bytes(bytes) => bytes.len() * '\u{fffd}'.len_utf8(),
            Piece::Byte(_) | Piece::Control => 0,
        };
        own + HELD_BACK
    }

    /// Whether the token's text begins with a space that is missing in the text from `old` on.
    ///
    /// Decoding drops this space at the beginning of a text, as Meta's code does. But the model has
    /// written it after the prompt, and stop strings are searched for in what the model has
    /// written: otherwise a stop string that begins with the space would not be found there, and
    /// the sequence would run on to its limit. A stop string of spaces only is different: it means
    /// a space in the text that the caller gets.
    fn has_dropped_a_space(&self, token: Token, old: usize) -> bool {
        let added = self.held.len() - old;
        matches!(self.detokenizer.piece(token), Piece::Text(text)
            if text.starts_with(' ') && text.len() == added + 1)
    }

    /// Matches `held` from `old` on, and takes the text that cannot belong to a stop string. If
    /// several stop strings are complete, the text is cut before the one that begins first.
    fn release(&mut self, old: usize, stops: &Stops) -> Result<String> {
        let mut cut = None;
        let mut longest = 0;
        for (stop, matched) in stops.0.iter().zip(&mut self.matched) {
            for (i, byte) in self.held.bytes().enumerate().skip(old) {
                *matched = stop.advance(*matched, byte);
                if *matched == stop.text.len() {
                    // The stop string may begin with a space that was dropped at the beginning of
                    // the text.
                    let start = (i + 1).saturating_sub(stop.text.len());
                    cut = Some(cut.map_or(start, |cut: usize| cut.min(start)));
                    break;
                }
            }
            longest = longest.max(*matched);
        }
        // A stop string begins with a whole code point, so this is a boundary of code points in the
        // text as well.
        let certain = cut.unwrap_or(self.held.len().saturating_sub(longest));
        let mut text = String::new();
        reserve::string(TEXT, &mut text, certain)?;
        text.push_str(&self.held[..certain]);
        self.held.drain(..certain);
        if cut.is_some() {
            self.stopped = true;
            self.held = String::new();
        }
        Ok(text)
    }
}
