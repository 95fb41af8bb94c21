//! A template's text as tokens: jinja2's lexer with `trim_blocks` and `lstrip_blocks`, and without
//! `keep_trailing_newline`, `line_statement_prefix` and `line_comment_prefix`.

use super::fault::{Fault, Kind, Result};
use crate::chat::python::is_whitespace;

/// What a token is.
#[derive(Clone, Debug, PartialEq)]
pub enum Tok<'s> {
    /// Text outside of tags.
    Data(&'s str),
    /// `{{`
    PrintBegin,
    /// `}}`
    PrintEnd,
    /// `{%`
    BlockBegin,
    /// `%}`
    BlockEnd,
    /// An identifier or a keyword.
    Name(&'s str),
    /// A string literal with its escapes resolved.
    Str(String),
    /// An integer literal.
    Int(i128),
    /// A literal with a point or an exponent.
    Float(f64),
    /// An operator or a bracket, as it is written.
    Op(&'static str),
    /// The end, after the last token.
    End,
}

impl Tok<'_> {
    /// The token in words for a sentence.
    pub fn describe(&self) -> String {
        match self {
            Tok::Data(_) => "text".into(),
            Tok::PrintBegin => "`{{`".into(),
            Tok::PrintEnd => "`}}`".into(),
            Tok::BlockBegin => "`{%`".into(),
            Tok::BlockEnd => "`%}`".into(),
            Tok::Name(name) => format!("`{name}`"),
            Tok::Str(_) => "a string".into(),
            Tok::Int(_) | Tok::Float(_) => "a number".into(),
            Tok::Op(op) => format!("`{op}`"),
            Tok::End => "the end of the template".into(),
        }
    }
}

/// A token and the line it begins on.
#[derive(Clone, Debug)]
pub struct Token<'s> {
    /// The line, from 1.
    pub line: u32,
    /// What it is.
    pub tok: Tok<'s>,
}

/// The text with `\n` as line ends, and with one line end removed from its end.
pub fn normalised(source: &str) -> String {
    let mut text = source.replace("\r\n", "\n").replace('\r', "\n");
    if text.ends_with('\n') {
        text.pop();
    }
    text
}

/// The tokens of a text that [`normalised`] has returned. [`Tok::End`] is the last.
pub fn tokens(source: &str) -> Result<Vec<Token<'_>>> {
    let mut lexer = Lexer {
        source,
        at: 0,
        line: 1,
        counted: 0,
        line_starts: true,
        tokens: Vec::new(),
    };
    lexer.root()?;
    lexer.push(Tok::End);
    Ok(lexer.tokens)
}

struct Lexer<'s> {
    source: &'s str,
    at: usize,
    /// The line of byte `counted`.
    line: u32,
    counted: usize,
    /// Whether the text that was read last ended with a line end.
    line_starts: bool,
    tokens: Vec<Token<'s>>,
}

/// The longest operators come first.
const OPERATORS: [&str; 26] = [
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}",
    ">", "<", "=", ".", ":", "|", ",", ";",
];

impl<'s> Lexer<'s> {
    fn rest(&self) -> &'s str {
        &self.source[self.at..]
    }

    fn fail<T>(&mut self, message: impl Into<String>) -> Result<T> {
        Err(Fault::at(self.line(), Kind::Syntax, message))
    }

    /// The line of the place that is being read.
    fn line(&mut self) -> u32 {
        let between = &self.source.as_bytes()[self.counted..self.at];
        self.line += between.iter().filter(|&&b| b == b'\n').count() as u32;
        self.counted = self.at;
        self.line
    }

    fn push(&mut self, tok: Tok<'s>) {
        let line = self.line();
        self.tokens.push(Token { line, tok });
    }

    /// Adds the text before a tag that begins at `tag`. `print`: the tag is not that of a comment,
    /// a block or a `raw`.
    fn data(&mut self, tag: usize, sign: Option<u8>, print: bool) {
        let text = &self.source[self.at..tag];
        let kept = match sign {
            Some(b'-') => text.trim_end_matches(is_whitespace),
            Some(b'+') => text,
            _ if print => text,
            _ => {
                let line = text.rfind('\n').map_or(0, |at| at + 1);
                let blank = text[line..].chars().all(is_whitespace);
                match blank && (line > 0 || self.line_starts) {
                    true => &text[..line],
                    false => text,
                }
            }
        };
        if !kept.is_empty() {
            self.push(Tok::Data(kept));
        }
    }

    /// Goes to `end`, which comes after everything that was matched.
    fn go(&mut self, end: usize) {
        self.line_starts = self.source[..end].ends_with('\n');
        self.at = end;
    }

    fn skip_whitespace(&self, from: usize) -> usize {
        let rest = &self.source[from..];
        self.source.len() - rest.trim_start_matches(is_whitespace).len()
    }

    /// The end of a tag's closing `close` at `at`, including its sign and what is trimmed after it.
    fn closing(&self, at: usize, close: &str, plus: bool) -> Option<usize> {
        let rest = &self.source[at..];
        if let Some(behind) = rest.strip_prefix('-')
            && behind.starts_with(close)
        {
            return Some(self.skip_whitespace(at + 1 + close.len()));
        }
        if plus
            && let Some(behind) = rest.strip_prefix('+')
            && behind.starts_with(close)
        {
            return Some(at + 1 + close.len());
        }
        if !rest.starts_with(close) {
            return None;
        }
        let end = at + close.len();
        let trims = close != "}}" && self.source[end..].starts_with('\n');
        Some(end + usize::from(trims))
    }

    fn root(&mut self) -> Result<()> {
        loop {
            let mut from = self.at;
            let tag = loop {
                let Some(brace) = self.source[from..].find('{') else {
                    let rest = self.rest();
                    if !rest.is_empty() {
                        self.push(Tok::Data(rest));
                        self.at = self.source.len();
                    }
                    return Ok(());
                };
                from += brace;
                match self.source.as_bytes().get(from + 1) {
                    Some(b'{' | b'%' | b'#') => break from,
                    _ => from += 1,
                }
            };
            let kind = self.source.as_bytes()[tag + 1];
            let sign = self.source.as_bytes().get(tag + 2).copied();
            let sign = sign.filter(|sign| matches!(sign, b'-' | b'+'));
            let inside = tag + 2 + usize::from(sign.is_some());
            if kind == b'%'
                && let Some(end) = self.raw_begin(inside)
            {
                self.data(tag, sign, false);
                self.go(end);
                self.raw()?;
                continue;
            }
            self.data(tag, sign, kind == b'{');
            self.at = tag;
            match kind {
                b'#' => {
                    self.line();
                    self.comment(inside)?;
                }
                b'%' => {
                    self.push(Tok::BlockBegin);
                    self.go(inside);
                    self.code("%}", Tok::BlockEnd)?;
                }
                _ => {
                    self.push(Tok::PrintBegin);
                    self.go(inside);
                    self.code("}}", Tok::PrintEnd)?;
                }
            }
        }
    }

    /// The end of `raw %}`. A line end after it stays, unlike after other blocks.
    fn raw_begin(&self, inside: usize) -> Option<usize> {
        let at = self.skip_whitespace(inside);
        self.source[at..].strip_prefix("raw")?;
        let at = self.skip_whitespace(at + 3);
        let rest = &self.source[at..];
        if rest.starts_with("-%}") {
            return Some(self.skip_whitespace(at + 3));
        }
        rest.starts_with("%}").then_some(at + 2)
    }

    fn raw(&mut self) -> Result<()> {
        let mut from = self.at;
        while let Some(found) = self.source[from..].find("{%") {
            let tag = from + found;
            let sign = self.source.as_bytes().get(tag + 2).copied();
            let sign = sign.filter(|sign| matches!(sign, b'-' | b'+'));
            let inside = self.skip_whitespace(tag + 2 + usize::from(sign.is_some()));
            if self.source[inside..].starts_with("endraw") {
                let close = self.skip_whitespace(inside + 6);
                if let Some(end) = self.closing(close, "%}", true) {
                    self.data(tag, sign, false);
                    self.go(end);
                    return Ok(());
                }
            }
            from = tag + 2;
        }
        self.fail("`{% raw %}` has no `{% endraw %}`")
    }

    fn comment(&mut self, inside: usize) -> Result<()> {
        let mut from = inside;
        while let Some(found) = self.source[from..].find("#}") {
            let at = from + found;
            let signed = at > inside && matches!(self.source.as_bytes()[at - 1], b'-' | b'+');
            let close = at - usize::from(signed);
            if let Some(end) = self.closing(close, "#}", true) {
                self.go(end);
                return Ok(());
            }
            from = at + 2;
        }
        self.fail("a comment has no `#}`")
    }

    /// The inside of `{{ }}` and `{% %}`.
    fn code(&mut self, close: &'static str, end: Tok<'s>) -> Result<()> {
        let mut open: Vec<&'static str> = Vec::new();
        loop {
            if open.is_empty()
                && let Some(behind) = self.closing(self.at, close, close == "%}")
            {
                self.push(end);
                self.go(behind);
                return Ok(());
            }
            let Some(c) = self.rest().chars().next() else {
                return self.fail("the template ends inside of a tag");
            };
            if is_whitespace(c) {
                self.at = self.skip_whitespace(self.at);
            } else if c.is_ascii_digit() {
                self.number()?;
            } else if c.is_alphabetic() || c == '_' {
                let rest = self.rest();
                let len = rest.find(|c: char| !(c.is_alphanumeric() || c == '_'));
                let name = &rest[..len.unwrap_or(rest.len())];
                self.push(Tok::Name(name));
                self.at += name.len();
            } else if c == '"' || c == '\'' {
                self.string(c)?;
            } else {
                let op = OPERATORS.iter().find(|op| self.rest().starts_with(**op));
                let Some(op) = op else {
                    return self.fail(format!("unexpected character {c:?}"));
                };
                match *op {
                    "(" => open.push(")"),
                    "[" => open.push("]"),
                    "{" => open.push("}"),
                    ")" | "]" | "}" if open.pop() != Some(*op) => {
                        return self.fail(format!("unexpected `{op}`"));
                    }
                    _ => {}
                }
                self.push(Tok::Op(op));
                self.at += op.len();
            }
        }
    }

    /// The end of digits, which single underscores may separate; `from` if there are no digits.
    fn digits(&self, from: usize, is_digit: impl Fn(u8) -> bool) -> usize {
        let bytes = self.source.as_bytes();
        let digit = |at: usize| bytes.get(at).is_some_and(|&b| is_digit(b));
        let mut at = from;
        while digit(at) || (at > from && bytes.get(at) == Some(&b'_') && digit(at + 1)) {
            at += 1;
        }
        at
    }

    fn number(&mut self) -> Result<()> {
        let bytes = self.source.as_bytes();
        let start = self.at;
        let whole = self.digits(start, |b| b.is_ascii_digit());
        let mut end = whole;
        let behind_point = start > 0 && bytes[start - 1] == b'.';
        if !behind_point {
            if bytes.get(end) == Some(&b'.') {
                let fraction = self.digits(end + 1, |b| b.is_ascii_digit());
                end = if fraction > end + 1 { fraction } else { end };
            }
            if matches!(bytes.get(end), Some(b'e' | b'E')) {
                let sign = matches!(bytes.get(end + 1), Some(b'+' | b'-'));
                let first = end + 1 + usize::from(sign);
                let exponent = self.digits(first, |b| b.is_ascii_digit());
                end = if exponent > first { exponent } else { end };
            }
        }
        if end > whole {
            let text = self.source[start..end].replace('_', "");
            let number = text.parse().unwrap_or(f64::NAN);
            self.push(Tok::Float(number));
            self.at = end;
            return Ok(());
        }
        let base = match bytes.get(start + 1) {
            Some(b'x' | b'X') => 16,
            Some(b'o' | b'O') => 8,
            Some(b'b' | b'B') => 2,
            _ => 10,
        };
        let mut digits = start;
        let mut end = whole;
        if base != 10 && bytes[start] == b'0' {
            let from = start + 2 + usize::from(bytes.get(start + 2) == Some(&b'_'));
            let behind = self.digits(from, |b| char::from(b).is_digit(base));
            if behind > from {
                (digits, end) = (from, behind);
            }
        }
        if digits == start && bytes[start] == b'0' {
            end = self.digits(start, |b| b == b'0');
        }
        let radix = if digits == start { 10 } else { base };
        let text = self.source[digits..end].replace('_', "");
        match i128::from_str_radix(&text, radix) {
            Ok(number) => self.push(Tok::Int(number)),
            Err(_) => return self.fail("an integer of more than 128 bits"),
        }
        self.at = end;
        Ok(())
    }

    fn string(&mut self, quote: char) -> Result<()> {
        let body = &self.source[self.at + 1..];
        let mut text = String::new();
        let mut chars = body.char_indices();
        while let Some((at, c)) = chars.next() {
            if c == quote {
                self.push(Tok::Str(text));
                self.at += at + 2;
                return Ok(());
            }
            if c != '\\' {
                text.push(c);
                continue;
            }
            let Some((at, escape)) = chars.next() else {
                break;
            };
            let mut code = |digits: usize, radix: u32, from: usize| {
                let hex = body.get(from..from + digits)?;
                let number = u32::from_str_radix(hex, radix).ok()?;
                hex.bytes().all(|b| b.is_ascii_hexdigit()).then_some(())?;
                chars.nth(digits - 1);
                char::from_u32(number)
            };
            let plain = match escape {
                '\n' => continue,
                '\\' | '\'' | '"' => Some(escape),
                'n' => Some('\n'),
                't' => Some('\t'),
                'r' => Some('\r'),
                'a' => Some('\u{7}'),
                'b' => Some('\u{8}'),
                'f' => Some('\u{c}'),
                'v' => Some('\u{b}'),
                'x' => code(2, 16, at + 1),
                'u' => code(4, 16, at + 1),
                'U' => code(8, 16, at + 1),
                '0'..='7' => {
                    let octal = |b: u8| (b'0'..=b'7').contains(&b);
                    let more = body.as_bytes()[at + 1..].iter().take(2);
                    let more = more.take_while(|&&b| octal(b)).count();
                    let number = u32::from_str_radix(&body[at..=at + more], 8).ok();
                    (0..more).for_each(|_| _ = chars.next());
                    number.and_then(char::from_u32)
                }
                'N' => None,
                other => {
                    text.push('\\');
                    Some(other)
                }
            };
            match plain {
                Some(c) => text.push(c),
                None if escape == 'N' => {
                    let message = "`\\N{...}` in a string is not supported in chat templates";
                    return Err(Fault::at(self.line(), Kind::Unsupported, message));
                }
                None => return self.fail(format!("the escape `\\{escape}` is not a character")),
            }
        }
        self.fail("a string has no end")
    }
}
