//! Python's methods of `str` that return a text or a truth value, as functions. Methods and filters
//! use them.

use super::arguments::count;
use super::fault::Result;
use super::limits::Meter;
use super::text::{Text, extend, room};
use crate::chat::python::{self, is_whitespace};

/// Python's `str.isupper` and `str.islower`.
pub fn is_cased(s: &str, upper: bool) -> bool {
    let mut any = false;
    for c in s.chars() {
        let (is, is_not) = match upper {
            true => (c.is_uppercase(), c.is_lowercase()),
            false => (c.is_lowercase(), c.is_uppercase()),
        };
        if is_not {
            return false;
        }
        any |= is;
    }
    any
}

/// Python's `str.istitle`.
pub fn is_title(s: &str) -> bool {
    let (mut any, mut behind_cased) = (false, false);
    for c in s.chars() {
        let cased = python::is_cased(c);
        if cased && c.is_lowercase() != behind_cased {
            return false;
        }
        any |= cased;
        behind_cased = cased;
    }
    any
}

/// Python's `str.strip`, `lstrip` and `rstrip`. `sides` says whether to strip on the left and on
/// the right.
pub fn strip(
    meter: &mut Meter<'_>,
    of: &Text,
    chars: Option<&Text>,
    sides: (bool, bool),
) -> Result<Text> {
    let set = chars.map_or("", Text::as_str);
    meter.look_at(of.as_str().len().saturating_mul(1 + set.len()))?;
    let goes = |c: char| match chars {
        Some(_) => set.contains(c),
        None => is_whitespace(c),
    };
    let mut rest = of.as_str();
    if sides.0 {
        rest = rest.trim_start_matches(goes);
    }
    if sides.1 {
        rest = rest.trim_end_matches(goes);
    }
    of.part(meter, rest)
}

/// Lines as in Python's `str.splitlines`: each without its end, and with it.
pub fn lines_of(s: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut rest = s;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let is_end = |c: char| matches!(c, '\n'..='\r' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}');
        let (line, end) = match rest.char_indices().find(|(_, c)| is_end(*c)) {
            None => (rest.len(), rest.len()),
            Some((at, '\r')) if rest[at + 1..].starts_with('\n') => (at, at + 2),
            Some((at, c)) => (at, at + c.len_utf8()),
        };
        let found = (&rest[..line], &rest[..end]);
        rest = &rest[end..];
        Some(found)
    })
}

/// Python's `str.replace`, `n` times; if `n` is negative, everywhere.
pub fn replace(meter: &mut Meter<'_>, of: &Text, old: &Text, new: &Text, n: i128) -> Result<Text> {
    let (s, old_text) = (of.as_str(), old.as_str());
    let mut out = String::new();
    let mut from = 0;
    let most = if n < 0 { usize::MAX } else { count(n) };
    // An empty text is found before each character and at the end.
    for (at, found) in s.match_indices(old_text).take(most) {
        meter.step()?;
        meter.write(&mut out, &s[from..at])?;
        meter.write(&mut out, new.as_str())?;
        from = at + found.len();
    }
    if out.is_empty() && from == 0 {
        return Ok(of.clone());
    }
    meter.write(&mut out, &s[from..])?;
    Ok(of.derived(out, &[new]))
}

/// HTML that shows this text. A text that is `Markup` already stays as it is.
pub fn escaped(meter: &mut Meter<'_>, of: &Text) -> Result<Text> {
    if of.is_markup() {
        return Ok(of.clone());
    }
    let mut out = String::new();
    let mut rest = of.as_str();
    meter.look_at(rest.len())?;
    while let Some(at) = rest.find(['&', '<', '>', '"', '\'']) {
        meter.write(&mut out, &rest[..at])?;
        let escape = match rest.as_bytes()[at] {
            b'&' => "&amp;",
            b'<' => "&lt;",
            b'>' => "&gt;",
            b'"' => "&#34;",
            _ => "&#39;",
        };
        meter.write(&mut out, escape)?;
        rest = &rest[at + 1..];
    }
    if out.is_empty() {
        return Ok(of.clone().marked(true));
    }
    meter.write(&mut out, rest)?;
    Ok(of.derived(out, &[]).marked(true))
}

/// Python's methods that change the case of a text, by name.
pub fn cased(meter: &mut Meter<'_>, of: &Text, how: &str) -> Result<Text> {
    #[derive(Clone, Copy)]
    enum To {
        Upper,
        Lower,
        Folded,
        Title,
        Swapped,
    }
    let s = of.as_str();
    // A change of case makes a text at most three times as long.
    meter.make(s.len().saturating_mul(3))?;
    let mut out = room(s.len())?;
    let (first, words, rest) = match how {
        "upper" => (To::Upper, false, To::Upper),
        "lower" => (To::Lower, false, To::Lower),
        "casefold" => (To::Folded, false, To::Folded),
        "swapcase" => (To::Swapped, false, To::Swapped),
        "capitalize" => (To::Title, false, To::Lower),
        _ => (To::Title, true, To::Lower),
    };
    let mut to = first;
    for (at, c) in s.char_indices() {
        match to {
            To::Upper | To::Title if c.is_ascii() => extend(&mut out, [c.to_ascii_uppercase()])?,
            To::Lower | To::Folded if c.is_ascii() => extend(&mut out, [c.to_ascii_lowercase()])?,
            To::Upper => extend(&mut out, c.to_uppercase())?,
            To::Title => extend(&mut out, python::title(c))?,
            To::Folded => extend(&mut out, python::fold(c))?,
            To::Swapped if c.is_lowercase() => extend(&mut out, c.to_uppercase())?,
            To::Swapped if !c.is_uppercase() => extend(&mut out, [c])?,
            To::Lower | To::Swapped => extend(&mut out, python::lower(s, at, c))?,
        }
        to = match words && !python::is_cased(c) {
            true => first,
            false => rest,
        };
    }
    Ok(of.derived(out, &[]))
}

/// Python's `center`, `ljust` and `rjust`.
pub fn justified(
    meter: &mut Meter<'_>,
    of: &Text,
    width: usize,
    fill: char,
    how: &str,
) -> Result<String> {
    let missing = width.saturating_sub(of.chars(meter)?);
    let left = match how {
        "ljust" => 0,
        "rjust" => missing,
        // CPython's rule for a number that cannot be halved.
        _ => missing / 2 + (missing & width & 1),
    };
    let mut out = String::new();
    meter.fill(&mut out, fill, left)?;
    meter.write(&mut out, of.as_str())?;
    meter.fill(&mut out, fill, missing - left)?;
    Ok(out)
}
