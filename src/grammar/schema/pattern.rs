//! Translates regular expressions of ECMA 262, the language of `pattern`, for the parser.
//!
//! They are read as if with the flag `u`. What that flag makes an error is read as without the flag
//! (annex B). The parser's regular expressions are those of Rust's regex-syntax. There a class may
//! contain classes and operators, `.` matches everything except a line feed, and `\s` matches other
//! characters than in ECMA 262.

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
/// The characters that `.` does not match.
const LINE_ENDS: &[(u32, u32)] = &[(0x0a, 0x0a), (0x0d, 0x0d), (0x2028, 0x2029)];

/// A pattern, translated for the parser.
pub(super) struct Translated {
    pub text: String,
    /// Whether the pattern has a place where every possible character is one that JSON writes by
    /// its code.
    pub asks_for_code: bool,
}

/// Translates `pattern` for the parser. The error says what is wrong with the pattern.
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

/// The only text that `pattern` matches, if the pattern spells it letter by letter between `^` and
/// `$`.
pub(super) fn literal(pattern: &str) -> Option<String> {
    let inside = pattern.strip_prefix('^')?.strip_suffix('$')?;
    let mut text = String::new();
    let mut chars = inside.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next()? {
                // An escaped letter or digit would be another character, or a class.
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
    /// Whether flags in front of this place make `.` match every character. Python and Rust have
    /// these flags.
    dot_is_all: bool,
    /// The value of `dot_is_all` in front of each open group, because flags hold to the end of
    /// their group.
    outside: Vec<bool>,
    asks_for_code: bool,
}

impl Reader<'_> {
    fn all(&mut self) -> Found<()> {
        // Whether something that may be repeated stands directly in front.
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
        // Lazy or greedy: that changes how the pattern matches, not whether it does.
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

    /// Writes a place for one character of `atom`, or one that is not of `atom` if `is_negated`.
    fn one_of(&mut self, atom: Atom, is_negated: bool) {
        let mut class = Class::default();
        class.add(atom);
        self.asks_for_code |= class.is_spelt_by_code(is_negated);
        self.made.push_str(&class.text(is_negated));
    }

    /// Reads what follows an opening `(`.
    fn group(&mut self) -> Found<()> {
        if self.rest.next_if_eq(&'?').is_none() {
            self.made.push('(');
            self.outside.push(self.dot_is_all);
            return Ok(());
        }
        // `(?P<name>` is the syntax of Python and Rust.
        let is_python = self.rest.next_if_eq(&'P').is_some();
        match self.rest.next() {
            Some('<') => {
                if matches!(self.rest.peek(), Some('=' | '!')) {
                    return Err(LOOK_AROUND);
                }
                // The name is dropped, because it may mean something to the parser.
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

    /// Reads flags, of which `first` has been read already. They hold for the group that they open,
    /// or for the rest of the group that is open.
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

    /// Reads `2}`, `2,}` or `2,3}` behind a `{`. Anything else there is literal text.
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

    /// Reads the begin or the end of a text as Python and Rust write them, behind a backslash.
    fn anchor(&mut self) -> Option<char> {
        let anchor = match self.rest.peek()? {
            'A' => '^',
            'z' | 'Z' => '$',
            _ => return None,
        };
        self.rest.next();
        Some(anchor)
    }

    /// Reads what follows a backslash.
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

    /// Reads what follows `\u`.
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
        // A character beyond U+FFFF is written in two halves. This is the second one.
        if self.rest.next() != Some('\\') || self.rest.next() != Some('u') {
            return Err("has half a character");
        }
        let second = self.hex(4)?;
        match second {
            0xdc00..0xe000 => Ok(0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00)),
            _ => Err("has half a character"),
        }
    }

    /// Reads what follows `\p` or `\P`.
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

    /// Reads what follows the `[` that opens a class.
    fn class(&mut self) -> Found<()> {
        let is_negated = self.rest.next_if_eq(&'^').is_some();
        let mut class = Class::default();
        loop {
            if self.rest.next_if_eq(&']').is_some() {
                break;
            }
            let first = self.class_atom()?;
            // A hyphen between two characters makes a range. Before the end of the class, or beside
            // a set, it is one of the characters.
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
