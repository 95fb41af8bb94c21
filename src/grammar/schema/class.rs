//! A class of characters, translated from ECMA 262 for the parser.

use super::keys::SPELT_BY_CODE;
use std::fmt::Write as _;

/// Characters that are escaped in a JSON string. If a class contains all control characters, the
/// parser allows these two as well, whether the class contains them or not. If a class lacks
/// U+0000, the parser reads it character by character. So U+0000 is removed from each class that
/// lacks one of these two.
const ESCAPED: [u32; 2] = [0x22, 0x5c];

/// The content of one place of a pattern or of a class.
pub(super) enum Atom {
    Char(char),
    Set {
        ranges: &'static [(u32, u32)],
        is_negated: bool,
    },
    /// A Unicode property, as it is written.
    Property(String),
}

/// The content between the brackets of a class.
#[derive(Default)]
pub(super) struct Class {
    text: String,
    /// Whether the class contains U+0000, and each of [`ESCAPED`].
    has: [bool; 3],
    has_property: bool,
    /// Whether the class contains a character that JSON can write in another way than by its code.
    has_spelling: bool,
}

impl Class {
    pub fn add_range(&mut self, first: u32, last: u32) {
        let codes = [0, ESCAPED[0], ESCAPED[1]];
        for (has, code) in self.has.iter_mut().zip(codes) {
            *has |= (first..=last).contains(&code);
        }
        let is_in = |&(from, to): &(u32, u32)| from <= first && last <= to;
        self.has_spelling |= !SPELT_BY_CODE.iter().any(is_in);
        _ = write!(self.text, "\\x{{{first:X}}}");
        if last > first {
            _ = write!(self.text, "-\\x{{{last:X}}}");
        }
    }

    pub fn add(&mut self, atom: Atom) {
        match atom {
            Atom::Char(c) => self.add_range(c.into(), c.into()),
            Atom::Set { ranges, is_negated } => {
                let mut set = Class::default();
                ranges
                    .iter()
                    .for_each(|&(first, last)| set.add_range(first, last));
                for (has, other) in self.has.iter_mut().zip(set.has) {
                    *has |= other != is_negated;
                }
                self.has_spelling |= is_negated || set.has_spelling;
                self.text += match is_negated {
                    true => "[^",
                    false => "[",
                };
                self.text += &set.text;
                self.text.push(']');
            }
            Atom::Property(text) => {
                self.text += &text;
                self.has_property = true;
                self.has_spelling = true;
            }
        }
    }

    /// Whether JSON writes all characters of the class by their code. There are few such
    /// characters. So a negated class always contains others.
    pub fn is_spelt_by_code(&self, is_negated: bool) -> bool {
        !is_negated && !self.has_spelling && !self.text.is_empty()
    }

    /// The class as the parser reads it. U+0000 is removed if that keeps [`ESCAPED`] out.
    pub fn text(&self, is_negated: bool) -> String {
        const ALL: &str = "\\x{0}-\\x{10FFFF}";
        let text = &self.text;
        let [has_nul, escaped @ ..] = self.has;
        let has_escaped = escaped.iter().all(|&has| has != is_negated) && !self.has_property;
        match (is_negated, text.is_empty()) {
            (false, true) => format!("[^{ALL}]"),
            (true, true) => format!("[{ALL}]"),
            (true, _) if !has_escaped => format!("[^{text}\\x{{0}}]"),
            (true, _) => format!("[^{text}]"),
            (false, _) if !has_escaped && (has_nul || self.has_property) => {
                format!("[[{text}]&&[^\\x{{0}}]]")
            }
            (false, _) => format!("[{text}]"),
        }
    }
}
