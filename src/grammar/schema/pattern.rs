//! Regular expressions of ECMA 262, of which `pattern` is, as the parser reads them.
//!
//! They are read with the flag `u`, and what would be wrong with it as without (annex B). The
//! parser's are those of Rust's regex-syntax: a class may have classes and operators in it, `.` is
//! all but a line feed, and `\s` other characters.

use super::class::{Atom, Class};
use super::keys::is_spelt_by_code;
use std::fmt::Write as _;
use std::iter::Peekable;
use std::str::Chars;

type Found<T> = Result<T, &'static str>;

const BACK_REFERENCE: &str = "has a back-reference, which no automaton can follow";
const LOOK_AROUND: &str = "has look-around, which no automaton can follow";
const BOUNDARY: &str = "has a word boundary, which cannot be followed";
const NO_PATTERN: &str = "is no regular expression of ECMA 262";

/// The characters of `\d`, `\w` and `\s`, as ranges.
const DIGITS: &[(u32, u32)] = &[(0x30, 0x39)];
const WORD: &[(u32, u32)] = &[(0x30, 0x39), (0x41, 0x5a), (0x5f, 0x5f), (0x61, 0x7a)];
const SPACES: &[(u32, u32)] = &[
    (0x09, 0x0d),
    (0x20, 0x20),
    (0xa0, 0xa0),
    (0x1680, 0x1680),
    (0x2000, 0x200a),
    (0x2028, 0x2029),
    (0x202f, 0x202f),
    (0x205f, 0x205f),
    (0x3000, 0x3000),
    (0xfeff, 0xfeff),
];
/// What `.` is not.
const LINE_ENDS: &[(u32, u32)] = &[(0x0a, 0x0a), (0x0d, 0x0d), (0x2028, 0x2029)];

/// A pattern as the parser reads it.
pub(super) struct Translated {
    pub text: String,
    /// Whether it has a place that only characters are of which JSON writes by their code.
    pub asks_for_code: bool,
}

/// `pattern` as the parser reads it, or what is wrong with it.
pub(super) fn translated(pattern: &str) -> Found<Translated> {
    let mut reader = Reader {
        rest: pattern.chars().peekable(),
        made: String::with_capacity(pattern.len() * 2),
        dot_is_all: false,
        outside: Vec::new(),
        asks_for_code: false,
    };
    reader.all()?;
    Ok(Translated {
        text: reader.made,
        asks_for_code: reader.asks_for_code,
    })
}

/// The one text that `pattern` matches, where it says so by its letters between `^` and `$`.
pub(super) fn literal(pattern: &str) -> Option<String> {
    let inside = pattern.strip_prefix('^')?.strip_suffix('$')?;
    let mut text = String::new();
    let mut chars = inside.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next()? {
                // A letter or a digit behind it would be another one, or a class.
                c if c.is_ascii_punctuation() => text.push(c),
                _ => return None,
            },
            '.' | '*' | '+' | '?' | '(' | ')' | '[' | ']' | '{' | '}' | '|' | '^' | '$' => {
                return None;
            }
            c => text.push(c),
        }
    }
    Some(text)
}

struct Reader<'a> {
    rest: Peekable<Chars<'a>>,
    made: String,
    /// Whether flags in front of it make `.` every character. They are Python's and Rust's.
    dot_is_all: bool,
    /// What `dot_is_all` was in front of each group that is open: flags hold to the end of theirs.
    outside: Vec<bool>,
    asks_for_code: bool,
}

impl Reader<'_> {
    fn all(&mut self) -> Found<()> {
        // Whether there is something in front that may be repeated.
        let mut repeats = false;
        while let Some(c) = self.rest.next() {
            let was = std::mem::replace(&mut repeats, true);
            match c {
                '.' if self.dot_is_all => self.made.push_str("(?s:.)"),
                '.' => self.one_of(
                    Atom::Set {
                        ranges: LINE_ENDS,
                        is_negated: false,
                    },
                    true,
                ),
                '[' => self.class()?,
                '(' => {
                    self.group()?;
                    repeats = false;
                }
                '|' | '^' | '$' => {
                    self.made.push(c);
                    repeats = false;
                }
                ')' => {
                    self.dot_is_all = self.outside.pop().unwrap_or(self.dot_is_all);
                    self.made.push(c);
                }
                '*' | '+' | '?' if was => {
                    self.made.push(c);
                    self.lazy();
                    repeats = false;
                }
                '*' | '+' | '?' => return Err(NO_PATTERN),
                '{' => match self.counts() {
                    Some(counts) if was => {
                        self.made.push_str(&counts);
                        self.lazy();
                        repeats = false;
                    }
                    Some(_) => return Err(NO_PATTERN),
                    None => self.literal('{'),
                },
                '\\' => match self.anchor() {
                    Some(anchor) => {
                        self.made.push(anchor);
                        repeats = false;
                    }
                    None => match self.escape(false)? {
                        Atom::Char('\0') => self.one_of(Atom::Char('\0'), false),
                        Atom::Char(c) => self.literal(c),
                        set => self.one_of(set, false),
                    },
                },
                c => self.literal(c),
            }
        }
        Ok(())
    }

    fn lazy(&mut self) {
        // Which of the ways it matches in makes no difference to whether it does.
        self.rest.next_if_eq(&'?');
    }

    fn literal(&mut self, c: char) {
        self.asks_for_code |= is_spelt_by_code(c);
        match c {
            c if c.is_alphanumeric()
                || matches!(c, '_' | ' ' | '"' | '\'' | ',' | ':' | ';' | '@') =>
            {
                self.made.push(c);
            }
            c => _ = write!(self.made, "\\x{{{:X}}}", u32::from(c)),
        }
    }

    /// What one of a set is.
    fn one_of(&mut self, atom: Atom, is_negated: bool) {
        let mut class = Class::default();
        class.add(atom);
        self.asks_for_code |= class.is_spelt_by_code(is_negated);
        self.made.push_str(&class.text(is_negated));
    }

    /// Behind an opening bracket.
    fn group(&mut self) -> Found<()> {
        if self.rest.next_if_eq(&'?').is_none() {
            self.made.push('(');
            self.outside.push(self.dot_is_all);
            return Ok(());
        }
        // Python's and Rust's `(?P<name>`.
        let is_python = self.rest.next_if_eq(&'P').is_some();
        match self.rest.next() {
            Some('<') => {
                if matches!(self.rest.peek(), Some('=' | '!')) {
                    return Err(LOOK_AROUND);
                }
                // To the parser a name may mean something.
                if !self.rest.by_ref().any(|c| c == '>') {
                    return Err(NO_PATTERN);
                }
                self.made.push('(');
            }
            _ if is_python => return Err(BACK_REFERENCE),
            Some('=' | '!') => return Err(LOOK_AROUND),
            Some(':') => self.made.push_str("(?:"),
            Some(first @ ('i' | 's' | '-')) => return self.flags(first),
            _ => return Err(NO_PATTERN),
        }
        self.outside.push(self.dot_is_all);
        Ok(())
    }

    /// Flags, of which `first` is read: of the group that they open, or of what is behind them in
    /// the one that is open.
    fn flags(&mut self, first: char) -> Found<()> {
        self.made.push_str("(?");
        let (mut next, mut is_off, mut dot_is_all) = (Some(first), false, self.dot_is_all);
        loop {
            match next {
                Some('i') => {}
                Some('s') => dot_is_all = !is_off,
                Some('-') => is_off = true,
                Some(':') => {
                    self.outside.push(self.dot_is_all);
                    break;
                }
                Some(')') => break,
                _ => return Err(NO_PATTERN),
            }
            self.made.extend(next);
            next = self.rest.next();
        }
        self.made.extend(next);
        self.dot_is_all = dot_is_all;
        Ok(())
    }

    /// `2}`, `2,}` or `2,3}` behind a bracket that opens it; anything else is a text there.
    fn counts(&mut self) -> Option<String> {
        let mut ahead = self.rest.clone();
        let mut text = String::from("{");
        let mut commas = 0;
        for c in ahead.by_ref() {
            text.push(c);
            match c {
                '0'..='9' => {}
                ',' if commas == 0 && text.len() > 2 => commas = 1,
                '}' if text.len() > 2 => {
                    self.rest = ahead;
                    return Some(text);
                }
                _ => return None,
            }
        }
        None
    }

    /// What Python and Rust call the begin and the end of a text, behind a backslash.
    fn anchor(&mut self) -> Option<char> {
        let anchor = match self.rest.peek()? {
            'A' => '^',
            'z' | 'Z' => '$',
            _ => return None,
        };
        self.rest.next();
        Some(anchor)
    }

    /// Behind a backslash.
    fn escape(&mut self, is_in_class: bool) -> Found<Atom> {
        let c = self.rest.next().ok_or(NO_PATTERN)?;
        let set = |ranges, is_negated| Ok(Atom::Set { ranges, is_negated });
        let code = match c {
            'd' | 'D' => return set(DIGITS, c == 'D'),
            'w' | 'W' => return set(WORD, c == 'W'),
            's' | 'S' => return set(SPACES, c == 'S'),
            'p' | 'P' => return self.property(c),
            'b' if is_in_class => 8,
            'b' | 'B' => return Err(BOUNDARY),
            '1'..='9' | 'k' => return Err(BACK_REFERENCE),
            '0' if self.rest.peek().is_some_and(char::is_ascii_digit) => return Err(NO_PATTERN),
            '0' => 0,
            't' => 9,
            'n' => 10,
            'v' => 11,
            'f' => 12,
            'r' => 13,
            'c' => match self.rest.next() {
                Some(letter) if letter.is_ascii_alphabetic() => u32::from(letter) % 32,
                _ => return Err(NO_PATTERN),
            },
            'x' => self.hex(2)?,
            'u' => self.code_point()?,
            c if c.is_ascii_alphabetic() => return Err(NO_PATTERN),
            c => c.into(),
        };
        char::from_u32(code).map(Atom::Char).ok_or(NO_PATTERN)
    }

    fn hex(&mut self, digits: usize) -> Found<u32> {
        (0..digits).try_fold(0, |code, _| {
            let digit = self.rest.next().and_then(|c| c.to_digit(16));
            Ok(code * 16 + digit.ok_or(NO_PATTERN)?)
        })
    }

    /// Behind `\u`.
    fn code_point(&mut self) -> Found<u32> {
        if self.rest.next_if_eq(&'{').is_some() {
            let mut code: u32 = 0;
            loop {
                match self.rest.next().ok_or(NO_PATTERN)? {
                    '}' => return Ok(code),
                    c => {
                        let digit = c.to_digit(16).ok_or(NO_PATTERN)?;
                        code = code.checked_mul(16).ok_or(NO_PATTERN)? + digit;
                    }
                }
            }
        }
        let first = self.hex(4)?;
        if !(0xd800..0xdc00).contains(&first) {
            return Ok(first);
        }
        // The other half of a character behind U+FFFF.
        if self.rest.next() != Some('\\') || self.rest.next() != Some('u') {
            return Err("has half a character");
        }
        let second = self.hex(4)?;
        match second {
            0xdc00..0xe000 => Ok(0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00)),
            _ => Err("has half a character"),
        }
    }

    /// Behind `\p` or `\P`.
    fn property(&mut self, letter: char) -> Found<Atom> {
        let mut text = format!("\\{letter}");
        if self.rest.next() != Some('{') {
            return Err(NO_PATTERN);
        }
        text.push('{');
        loop {
            match self.rest.next() {
                Some(c) if c.is_ascii_alphanumeric() || matches!(c, '_' | '=') => text.push(c),
                Some('}') => {
                    text.push('}');
                    return Ok(Atom::Property(text));
                }
                _ => return Err(NO_PATTERN),
            }
        }
    }

    /// Behind the bracket that opens it.
    fn class(&mut self) -> Found<()> {
        let is_negated = self.rest.next_if_eq(&'^').is_some();
        let mut class = Class::default();
        loop {
            if self.rest.next_if_eq(&']').is_some() {
                break;
            }
            let first = self.class_atom()?;
            // A hyphen between two characters is a range; before the end, or beside a set, it is
            // one of the characters.
            let mut ahead = self.rest.clone();
            let has_hyphen = ahead.next() == Some('-') && ahead.next().is_some_and(|c| c != ']');
            match first {
                Atom::Char(from) if has_hyphen => {
                    self.rest.next();
                    match self.class_atom()? {
                        Atom::Char(to) if to < from => return Err(NO_PATTERN),
                        Atom::Char(to) => class.add_range(from.into(), to.into()),
                        other => {
                            class.add(Atom::Char(from));
                            class.add(Atom::Char('-'));
                            class.add(other);
                        }
                    }
                }
                other => class.add(other),
            }
        }
        self.asks_for_code |= class.is_spelt_by_code(is_negated);
        self.made.push_str(&class.text(is_negated));
        Ok(())
    }

    fn class_atom(&mut self) -> Found<Atom> {
        match self.rest.next().ok_or(NO_PATTERN)? {
            '\\' => self.escape(true),
            c => Ok(Atom::Char(c)),
        }
    }
}
