//! The three most common expressions, matched by hand-written code: five times as fast as the lazy
//! DFA.

use crate::Result;
use regex_syntax::hir::{Class, HirKind};
use std::sync::LazyLock;

/// The expression of [`super::split`] that a scanner follows.
#[derive(Clone, Copy, Debug)]
pub(super) enum Scanner {
    Gpt2,
    Llama3,
    Qwen2,
}

const LETTER: u8 = 1;
const NUMBER: u8 = 2;
const WHITE: u8 = 4;
const WORD: u8 = 8;
const LINE_END: u8 = 16;

/// The classes of characters that the expressions use, from Unicode's tables as regex-syntax has
/// them. The table consists of blocks of 256 characters; equal blocks are stored once.
struct Classes {
    block_of: Vec<u16>,
    blocks: Vec<[u8; 256]>,
}

static CLASSES: LazyLock<Classes> = LazyLock::new(|| {
    let mut all = vec![0; 0x11_0000];
    for (class, bit) in [
        (r"\p{L}", LETTER),
        (r"\p{N}", NUMBER),
        (r"\s", WHITE),
        (r"\w", WORD),
        (r"[\r\n]", LINE_END),
    ] {
        let hir = regex_syntax::parse(class);
        if let Ok(HirKind::Class(Class::Unicode(class))) = hir.as_ref().map(|hir| hir.kind()) {
            for range in class.iter() {
                let range = range.start() as usize..=range.end() as usize;
                all[range].iter_mut().for_each(|bits: &mut u8| *bits |= bit);
            }
        }
    }
    let mut classes = Classes {
        block_of: Vec::new(),
        blocks: Vec::new(),
    };
    for block in all.as_chunks().0 {
        let known = classes.blocks.iter().position(|b| b == block);
        let index = known.unwrap_or_else(|| {
            classes.blocks.push(*block);
            classes.blocks.len() - 1
        });
        classes.block_of.push(index as u16);
    }
    classes
});

impl Classes {
    fn of(&self, c: char) -> u8 {
        let block = self.block_of[c as usize >> 8];
        self.blocks[usize::from(block)][c as usize & 255]
    }
}

/// Whether `\w` of a regular expression matches `c`.
pub(super) fn is_word(c: char) -> bool {
    CLASSES.of(c) & WORD != 0
}

/// Calls `each` with every piece of `text`, in order.
pub(super) fn split(
    scanner: Scanner,
    text: &str,
    each: &mut dyn FnMut(&str) -> Result<()>,
) -> Result<()> {
    let text = Text {
        text,
        classes: &CLASSES,
    };
    let mut start = 0;
    while start < text.text.len() {
        let end = match scanner {
            Scanner::Gpt2 => text.gpt2(start),
            Scanner::Llama3 => text.llama3(start, 3),
            Scanner::Qwen2 => text.llama3(start, 1),
        };
        each(&text.text[start..end])?;
        start = end;
    }
    Ok(())
}

#[derive(Clone, Copy)]
struct Text<'a> {
    text: &'a str,
    classes: &'a Classes,
}

impl Text<'_> {
    /// The class of the character at `at`, and where the character ends. At the end of the text:
    /// `(0, at)`.
    #[inline]
    fn class(&self, at: usize) -> (u8, usize) {
        match self.text.as_bytes().get(at) {
            None => (0, at),
            Some(&byte) if byte < 0x80 => (self.classes.blocks[0][usize::from(byte)], at + 1),
            Some(_) => match self.text[at..].chars().next() {
                Some(c) => (self.classes.of(c), at + c.len_utf8()),
                None => (0, at),
            },
        }
    }

    /// The end of the run of characters, from `at` on, whose classes satisfy `is`.
    #[inline]
    fn run(&self, mut at: usize, is: impl Fn(u8) -> bool) -> usize {
        loop {
            let (class, next) = self.class(at);
            if next == at || !is(class) {
                return at;
            }
            at = next;
        }
    }

    /// Matches `'s|'t|'re|'ve|'m|'ll|'d` at `at`, where an apostrophe stands. Returns where the
    /// match ends.
    fn contraction(&self, at: usize, any_case: bool) -> Option<usize> {
        let rest = &self.text.as_bytes()[at + 1..];
        let lower = |i: usize| match rest.get(i) {
            Some(byte) if any_case => byte.to_ascii_lowercase(),
            Some(byte) => *byte,
            None => 0,
        };
        match (lower(0), lower(1)) {
            (b's' | b't' | b'm' | b'd', _) => Some(at + 2),
            (b'r' | b'v', b'e') | (b'l', b'l') => Some(at + 3),
            // The long s, whose capital is S.
            (0xc5, 0xbf) if any_case => Some(at + 3),
            _ => None,
        }
    }

    /// Where `\s+(?!\S)|\s+` ends for the white space at `at`. Its last character is left to what
    /// follows, unless it is the only character or the last one of the text.
    fn white(&self, at: usize) -> usize {
        let end = self.run(at, |class| class & WHITE != 0);
        if end == self.text.len() {
            return end;
        }
        let last = self.text[at..end].char_indices().next_back();
        match last {
            Some((last, _)) if last > 0 => at + last,
            _ => end,
        }
    }

    fn gpt2(&self, start: usize) -> usize {
        let byte = self.text.as_bytes()[start];
        if byte == b'\''
            && let Some(end) = self.contraction(start, false)
        {
            return end;
        }
        let at = start + usize::from(byte == b' ');
        let (class, next) = self.class(at);
        if next > at {
            for wanted in [LETTER, NUMBER] {
                if class & wanted != 0 {
                    return self.run(next, |class| class & wanted != 0);
                }
            }
            if class & WHITE == 0 {
                return self.run(next, |class| class & (WHITE | LETTER | NUMBER) == 0);
            }
        }
        self.white(start)
    }

    fn llama3(&self, start: usize, digits: usize) -> usize {
        let byte = self.text.as_bytes()[start];
        if byte == b'\''
            && let Some(end) = self.contraction(start, true)
        {
            return end;
        }
        let (class, next) = self.class(start);
        let is_letter = |class: u8| class & LETTER != 0;
        if is_letter(class) {
            return self.run(next, is_letter);
        }
        if class & NUMBER != 0 {
            let mut end = next;
            for _ in 1..digits {
                let (class, next) = self.class(end);
                if class & NUMBER != 0 {
                    end = next;
                }
            }
            return end;
        }
        let (second, behind) = self.class(next);
        if class & LINE_END == 0 && is_letter(second) {
            return self.run(behind, is_letter);
        }
        let is_other = |class: u8| class & (WHITE | LETTER | NUMBER) == 0;
        let is_line_end = |class: u8| class & LINE_END != 0;
        if is_other(class) || byte == b' ' && behind > next && is_other(second) {
            let end = self.run(next, is_other);
            return self.run(end, is_line_end);
        }
        let white = self.run(start, |class| class & WHITE != 0);
        match self.text[start..white].rfind(['\r', '\n']) {
            Some(last) => start + last + 1,
            None => self.white(start),
        }
    }
}
