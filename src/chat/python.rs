//! What Python's `str` knows of characters: white space, letters, digits, and their cases.

use regex_syntax::hir::{Class, ClassUnicode, HirKind};
use std::iter;
use std::sync::LazyLock;

/// Python's `str.isspace` of one character. Unlike Unicode's `White_Space`, it includes the
/// separators U+001C to U+001F.
pub(crate) fn is_whitespace(c: char) -> bool {
    matches!(
        c,
        '\u{9}'..='\u{d}'
            | '\u{1c}'..='\u{20}'
            | '\u{85}'
            | '\u{a0}'
            | '\u{1680}'
            | '\u{2000}'..='\u{200a}'
            | '\u{2028}'
            | '\u{2029}'
            | '\u{202f}'
            | '\u{205f}'
            | '\u{3000}'
    )
}

static LETTERS: LazyLock<ClassUnicode> = LazyLock::new(|| class(r"\p{L}"));
static DECIMALS: LazyLock<ClassUnicode> = LazyLock::new(|| class(r"\p{Nd}"));
// Unicode's Case_Ignorable, by the definition in section 3.13 of the standard.
static IGNORABLE: LazyLock<ClassUnicode> =
    LazyLock::new(|| class(r"[\p{Mn}\p{Me}\p{Cf}\p{Lm}\p{Sk}'’‘․﹒＇．.:··՟״‧︓﹕：]"));

fn class(expression: &str) -> ClassUnicode {
    match regex_syntax::parse(expression).map(|hir| hir.into_kind()) {
        Ok(HirKind::Class(Class::Unicode(class))) => class,
        _ => ClassUnicode::empty(),
    }
}

fn has(class: &ClassUnicode, c: char) -> bool {
    let ranges = class.ranges();
    let behind = ranges.partition_point(|range| range.start() <= c);
    behind > 0 && c <= ranges[behind - 1].end()
}

/// Python's `str.isalpha` of one character: Unicode's letters, without the vowel signs that Rust's
/// `is_alphabetic` accepts.
pub(super) fn is_alpha(c: char) -> bool {
    match c.is_ascii() {
        true => c.is_ascii_alphabetic(),
        false => has(&LETTERS, c),
    }
}

/// Python's `str.isdecimal` of one character.
pub(super) fn is_decimal(c: char) -> bool {
    match c.is_ascii() {
        true => c.is_ascii_digit(),
        false => has(&DECIMALS, c),
    }
}

/// Python's `str.isdigit` of one character, which includes superscripts and digits in circles.
pub(super) fn is_digit(c: char) -> bool {
    is_decimal(c)
        || matches!(
            c,
            '²' | '³' | '¹' | '⁰' | '⁴'..='⁹' | '₀'..='₉' | '፩'..='፱' | '᧚'
                | '①'..='⑨' | '⑴'..='⑼' | '⒈'..='⒐' | '⓪' | '⓵'..='⓽' | '⓿'
                | '❶'..='❾' | '➀'..='➈' | '➊'..='➒' | '𐩀'..='𐩃' | '𐹠'..='𐹨'
                | '𑁒'..='𑁚' | '🄀'..='🄊'
        )
}

/// Python's `str.isalnum` of one character. Together with `_`, these are the word characters of
/// Python's regular expressions.
pub(super) fn is_alnum(c: char) -> bool {
    is_alpha(c) || c.is_numeric()
}

/// Python's `str.lower` of the character `c` at byte `at` of `text`. A capital sigma at the end of
/// a word becomes a letter of its own.
pub(super) fn lower(text: &str, at: usize, c: char) -> impl Iterator<Item = char> {
    let is_final = c == 'Σ' && {
        let cased = |c: Option<char>| c.is_some_and(is_cased);
        let ignorable = |c: &char| has(&IGNORABLE, *c);
        let mut behind = text[at + c.len_utf8()..].chars();
        cased(text[..at].chars().rev().find(|c| !ignorable(c)))
            && !cased(behind.find(|c| !ignorable(c)))
    };
    let other = is_final.then_some('ς');
    let usual = c.to_lowercase().filter(move |_| !is_final);
    other.into_iter().chain(usual)
}

/// Unicode's Cased: a letter with a case, the capital form of a digraph, or a capital with an iota
/// below.
pub(super) fn is_cased(c: char) -> bool {
    c.is_lowercase()
        || c.is_uppercase()
        || matches!(c, 'ǅ' | 'ǈ' | 'ǋ' | 'ǲ' | 'ᾼ' | 'ῌ' | 'ῼ')
        || matches!(c, 'ᾈ'..='ᾏ' | 'ᾘ'..='ᾟ' | 'ᾨ'..='ᾯ')
}

/// A character at the beginning of a word, as Python's `str.title` writes it. If it becomes several
/// letters, only the first is a capital. A few characters have a form of their own.
pub(super) fn title(c: char) -> impl Iterator<Item = char> {
    let own = match c {
        'Ǆ'..='ǆ' => Some('ǅ'),
        'Ǉ'..='ǉ' => Some('ǈ'),
        'Ǌ'..='ǌ' => Some('ǋ'),
        'Ǳ'..='ǳ' => Some('ǲ'),
        'ა'..='ჺ' | 'ჽ'..='ჿ' => Some(c),
        'ᾀ'..='ᾯ' => char::from_u32(u32::from(c) | 8),
        'ᾳ' | 'ᾼ' => Some('ᾼ'),
        'ῃ' | 'ῌ' => Some('ῌ'),
        'ῳ' | 'ῼ' => Some('ῼ'),
        _ => None,
    };
    let mut upper = c.to_uppercase().filter(move |_| own.is_none());
    let first = own.or_else(|| upper.next());
    let iota_below = matches!(c, 'ᾲ' | 'ᾴ' | 'ᾷ' | 'ῂ' | 'ῄ' | 'ῇ' | 'ῲ' | 'ῴ' | 'ῷ');
    let rest = upper.flat_map(move |more| {
        let below = (iota_below && more == 'Ι').then_some('\u{345}');
        // ŉ keeps a capital after its apostrophe.
        let capital = (c == 'ŉ').then_some(more);
        let own = below.or(capital);
        own.into_iter()
            .chain(more.to_lowercase().filter(move |_| own.is_none()))
    });
    first.into_iter().chain(rest)
}

/// Python's `str.casefold` of one character. The result is the character in lower case, of which
/// the upper case is taken, and then the lower case again. Exceptions are ı, and Cherokee letters,
/// which fold to capitals.
pub(super) fn fold(c: char) -> impl Iterator<Item = char> {
    let own = match c {
        'ı' | '\u{13a0}'..='\u{13f5}' => Some(c),
        '\u{13f8}'..='\u{13fd}' => char::from_u32(u32::from(c) - 8),
        '\u{ab70}'..='\u{abbf}' => char::from_u32(u32::from(c) - 0x97d0),
        _ => None,
    };
    let usual = iter::once(c).filter(move |_| own.is_none());
    let usual = usual.flat_map(char::to_lowercase);
    let usual = usual.flat_map(char::to_uppercase);
    own.into_iter().chain(usual.flat_map(char::to_lowercase))
}
