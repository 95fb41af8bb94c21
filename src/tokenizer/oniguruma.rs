//! Translates an expression from the language of Oniguruma, for which tokenizers' expressions are
//! written, into that of `regex_syntax`. If a part has no translation, the error is a phrase about
//! that part.
//!
//! `\w`, the POSIX classes and most properties were compared with Oniguruma's (as in tokenizers
//! 0.23.3) on every character. Some thousand random expressions were compared on random texts.

use super::split::MAX_BYTES;
use crate::sentence;
use regex_syntax::ast::{self, Ast, ClassAsciiKind, ClassPerl, ClassPerlKind, ClassSetItem};
use regex_syntax::ast::{HexLiteralKind, LiteralKind, Span};
use regex_syntax::hir::Hir;
use std::result::Result;

/// Deepest nesting of groups and classes.
const NESTING: u32 = 100;

/// Oniguruma's `\w` and `[:word:]` inside a class: to `regex_syntax` two joiners are letters, to
/// Oniguruma they are not. Outside a class, Oniguruma's `\w` also matches six numbers, those of
/// Latin-1 that are not digits.
const WORD: &str = r"[\w&&[^\x{200c}\x{200d}]]";
const WORD_NUMBERS: &str = "²³¹¼½¾";

/// Pairs of letters that, if case is ignored, also match one character, but only in Oniguruma: ß,
/// ﬆ, ﬀ, ﬁ, ﬂ. All other sequences of that kind have a character beyond ASCII.
const LIGATURES: [[char; 2]; 5] = [['s', 's'], ['s', 't'], ['f', 'f'], ['f', 'i'], ['f', 'l']];

/// What an expression means to Oniguruma. The error is a phrase about the expression.
pub(super) fn parse(text: &str) -> Result<Hir, String> {
    let translation = ast::visit(&tree(text)?, Translation::of(text))?;
    let mut translated = String::new();
    let mut start = 0;
    for (span, with) in translation {
        translated.push_str(&text[start..span.start.offset]);
        translated.push_str(&with);
        start = span.end.offset;
    }
    translated.push_str(&text[start..]);
    if translated.len() > MAX_BYTES {
        return Err(format!(
            "it has {} bytes where its classes are written out, at most {MAX_BYTES} are supported",
            translated.len()
        ));
    }
    parse_as_it_is(&translated)
}

/// What an expression means to `regex_syntax`.
pub(super) fn parse_as_it_is(text: &str) -> Result<Hir, String> {
    let hir = regex_syntax::ParserBuilder::new()
        .nest_limit(NESTING)
        .build()
        .parse(text);
    hir.map_err(|e| e.to_string().lines().last().unwrap_or_default().to_owned())
}

/// The syntax tree of an expression.
pub(super) fn tree(text: &str) -> Result<Ast, String> {
    let mut parser = ast::parse::ParserBuilder::new();
    let tree = parser.nest_limit(NESTING).build().parse(text);
    tree.map_err(|e| e.kind().to_string())
}

/// Collects replacements for the parts of the text that mean something else to Oniguruma.
struct Translation<'a> {
    text: &'a str,
    edits: Vec<(Span, String)>,
    /// Whether case is ignored in the whole expression.
    ignores_case: bool,
    /// Whether case is ignored in each group that is open.
    groups: Vec<bool>,
    /// The character directly before the current node, if that is a literal.
    before: Option<char>,
}

impl<'a> Translation<'a> {
    fn of(text: &'a str) -> Self {
        Self {
            text,
            edits: Vec::new(),
            ignores_case: false,
            groups: Vec::new(),
            before: None,
        }
    }

    /// The part of the text from which a node was read.
    fn words(&self, span: &Span) -> &'a str {
        &self.text[span.start.offset..span.end.offset]
    }

    fn ignores_case(&self) -> bool {
        *self.groups.last().unwrap_or(&self.ignores_case)
    }

    /// Refuses a class whose letters have other cases, if case is ignored: to Oniguruma another
    /// case may be two characters.
    fn refuse_without_case(&self, class: &str) -> Result<(), String> {
        match self.ignores_case() {
            true => Err(format!("it has {class} where case is ignored")),
            false => Ok(()),
        }
    }

    /// A character by itself, or one end of a range.
    fn literal(&self, literal: &ast::Literal) -> Result<(), String> {
        let c = literal.c;
        // To Oniguruma `\xe9` is one byte of UTF-8, and only `\x` may have braces.
        let means_the_same = match &literal.kind {
            LiteralKind::HexFixed(HexLiteralKind::X) => c.is_ascii(),
            LiteralKind::HexFixed(kind) => *kind == HexLiteralKind::UnicodeShort,
            LiteralKind::HexBrace(kind) => *kind == HexLiteralKind::X,
            _ => true,
        };
        if !means_the_same {
            let words = self.words(&literal.span);
            return Err(format!("it has {}", sentence::name(words)));
        }
        let has_no_case = c.is_ascii() || ('\u{2000}'..='\u{206f}').contains(&c);
        match has_no_case {
            true => Ok(()),
            false => self.refuse_without_case(&format!("{c:?}")),
        }
    }

    fn letter(&mut self, literal: &ast::Literal) -> Result<(), String> {
        self.literal(literal)?;
        let c = literal.c.to_ascii_lowercase();
        if let Some(before) = self.before.replace(c)
            && LIGATURES.contains(&[before, c])
        {
            return self.refuse_without_case(&format!("\"{before}{c}\""));
        }
        Ok(())
    }

    /// A class by itself, or within another one.
    fn perl(&mut self, class: &ClassPerl, numbers: &str) -> Result<(), String> {
        if class.kind == ClassPerlKind::Word {
            self.refuse_without_case("\\w")?;
            self.replace(class.span, class.negated, &format!("{WORD}{numbers}"));
        }
        Ok(())
    }

    /// The class of a property, by itself or within another one.
    fn property(&self, class: &ast::ClassUnicode) -> Result<(), String> {
        // To Oniguruma `\pL` is the text "pL".
        if let ast::ClassUnicodeKind::OneLetter(_) = class.kind {
            return Err(format!("it has {} without braces", self.words(&class.span)));
        }
        self.refuse_without_case("\\p{..}")
    }

    /// Checks how a class in brackets begins.
    fn beginning(&self, class: &ast::ClassBracketed) -> Result<(), String> {
        let words = self.words(&class.span);
        // To Oniguruma `[--a]` is a range that begins with a hyphen. To `regex_syntax` it is three
        // characters.
        match words[1..].trim_start_matches('^').starts_with("--") {
            true => Err("it has a class that begins with two hyphens".into()),
            false => Ok(()),
        }
    }

    fn replace(&mut self, span: Span, negated: bool, class: &str) {
        let not = if negated { "^" } else { "" };
        self.edits.push((span, format!("[{not}{class}]")));
    }
}

impl ast::Visitor for Translation<'_> {
    type Output = Vec<(Span, String)>;
    type Err = String;

    fn finish(self) -> Result<Self::Output, String> {
        Ok(self.edits)
    }

    fn visit_pre(&mut self, node: &Ast) -> Result<(), String> {
        let before = self.before.take();
        match node {
            Ast::Assertion(_) => return Err("it looks at what lies around a match".into()),
            Ast::Flags(set) => {
                only_case(&set.flags)?;
                // To Oniguruma flags here put all that follows into a group, other alternatives
                // included.
                if set.span.start.offset > 0 {
                    return Err("it sets a flag behind its beginning".into());
                }
                self.ignores_case = set.flags.flag_state(ast::Flag::CaseInsensitive) == Some(true);
            }
            Ast::Group(group) => {
                self.before = before;
                let mut ignores = self.ignores_case();
                if let ast::GroupKind::NonCapturing(flags) = &group.kind {
                    only_case(flags)?;
                    let state = flags.flag_state(ast::Flag::CaseInsensitive);
                    ignores = state.unwrap_or(ignores);
                }
                self.groups.push(ignores);
            }
            Ast::Repetition(repetition) => {
                self.before = before;
                self.repetition(repetition)?;
            }
            Ast::Literal(literal) => {
                self.before = before;
                self.letter(literal)?;
            }
            Ast::ClassPerl(class) => self.perl(class, WORD_NUMBERS)?,
            Ast::ClassUnicode(class) => self.property(class)?,
            Ast::ClassBracketed(class) => {
                self.beginning(class)?;
                // A class of one character is that character to Oniguruma.
                if let ast::ClassSet::Item(ClassSetItem::Literal(only)) = &class.kind {
                    self.before = before;
                    self.letter(only)?;
                }
            }
            Ast::Concat(_) | Ast::Alternation(_) => self.before = before,
            Ast::Empty(_) | Ast::Dot(_) => {}
        }
        Ok(())
    }

    fn visit_post(&mut self, node: &Ast) -> Result<(), String> {
        if let Ast::Group(_) = node {
            self.groups.pop();
        }
        Ok(())
    }

    fn visit_alternation_in(&mut self) -> Result<(), String> {
        self.before = None;
        Ok(())
    }

    fn visit_class_set_item_pre(&mut self, item: &ClassSetItem) -> Result<(), String> {
        match item {
            ClassSetItem::Literal(literal) => self.literal(literal),
            ClassSetItem::Range(range) => {
                self.literal(&range.start)?;
                self.literal(&range.end)
            }
            ClassSetItem::Ascii(class) => {
                self.refuse_without_case("a POSIX class")?;
                self.replace(class.span, class.negated, posix(&class.kind));
                Ok(())
            }
            ClassSetItem::Unicode(class) => self.property(class),
            ClassSetItem::Perl(class) => self.perl(class, ""),
            ClassSetItem::Bracketed(class) => {
                if class.negated {
                    self.refuse_without_case("a negated class within another one")?;
                }
                self.beginning(class)
            }
            ClassSetItem::Empty(_) | ClassSetItem::Union(_) => Ok(()),
        }
    }

    fn visit_class_set_binary_op_pre(&mut self, op: &ast::ClassSetBinaryOp) -> Result<(), String> {
        match op.kind {
            ast::ClassSetBinaryOpKind::Intersection => Ok(()),
            _ => Err("it subtracts one class of characters from another".into()),
        }
    }
}

impl Translation<'_> {
    fn repetition(&self, repetition: &ast::Repetition) -> Result<(), String> {
        let range = match &repetition.op.kind {
            ast::RepetitionKind::Range(range) => Some(range),
            _ => None,
        };
        let words = self.words(&repetition.op.span);
        if words.contains(char::is_whitespace) {
            return Err("it has a repetition with a space between the braces".into());
        }
        match (&*repetition.ast, range) {
            (Ast::Repetition(_), _) => {
                Err("it has a possessive repetition, or one of a repetition".into())
            }
            // To Oniguruma `a{2}?` is any two `a`, or nothing.
            (_, Some(ast::RepetitionRange::Exactly(n))) if !repetition.greedy => {
                Err(format!("it has a lazy repetition {{{n}}}?"))
            }
            (Ast::Literal(_) | Ast::Group(_), Some(_)) => {
                self.refuse_without_case("a repetition of letters")
            }
            _ => Ok(()),
        }
    }
}

fn only_case(flags: &ast::Flags) -> Result<(), String> {
    let known = |item: &ast::FlagsItem| {
        matches!(
            item.kind,
            ast::FlagsItemKind::Negation | ast::FlagsItemKind::Flag(ast::Flag::CaseInsensitive)
        )
    };
    match flags.items.iter().all(known) {
        true => Ok(()),
        false => Err("it has another flag than i".into()),
    }
}

/// The content of a POSIX class, as `regex_syntax` writes it.
fn posix(kind: &ClassAsciiKind) -> &'static str {
    match kind {
        ClassAsciiKind::Alnum => r"\p{Alphabetic}\p{Nd}",
        ClassAsciiKind::Alpha => r"\p{Alphabetic}",
        ClassAsciiKind::Ascii => r"\x00-\x7f",
        ClassAsciiKind::Blank => r"\t\p{Zs}",
        ClassAsciiKind::Cntrl => r"\p{Cc}",
        ClassAsciiKind::Digit => r"\p{Nd}",
        ClassAsciiKind::Graph => r"[^\s\p{Cc}\p{Cn}]",
        ClassAsciiKind::Lower => r"\p{Lowercase}",
        ClassAsciiKind::Print => r"[^\s\p{Cc}\p{Cn}]\p{Zs}",
        ClassAsciiKind::Punct => r"\p{P}\p{S}",
        ClassAsciiKind::Space => r"\s",
        ClassAsciiKind::Upper => r"\p{Uppercase}",
        ClassAsciiKind::Word => WORD,
        ClassAsciiKind::Xdigit => "0-9A-Fa-f",
    }
}

#[cfg(test)]
mod tests {
    use crate::tokenizer::split::{Expression, tests::pieces};

    fn pieces_by(expression: &str, text: &str) -> Vec<String> {
        pieces(&[Expression::new(expression).unwrap()], text)
    }

    /// The expected pieces are those of tokenizers.
    #[test]
    fn classes_are_those_of_oniguruma() {
        for (expression, text, expected) in [
            (r"[[:alpha:]]+", "naïve ⓑ1", &["naïve", " ", "ⓑ", "1"][..]),
            (r"[[:^alpha:]]+", "naïve, é", &["naïve", ", ", "é"]),
            (r"[[:alnum:]_]+", "é٣_½", &["é٣_", "½"]),
            (r"[[:punct:]]+", "a—b $€", &["a", "—", "b ", "$€"]),
            (r"[[:digit:]]+", "a٣4²", &["a", "٣4", "²"]),
            (
                r"[[:space:]]+",
                "a\u{a0}\u{3000}b",
                &["a", "\u{a0}\u{3000}", "b"],
            ),
            (r"[[:blank:]]+", "a\t\u{a0}\nb", &["a", "\t\u{a0}", "\nb"]),
            (r"[[:cntrl:]]+", "a\u{85}\u{ad}", &["a", "\u{85}", "\u{ad}"]),
            (r"[[:upper:]]+", "ÀÉé", &["ÀÉ", "é"]),
            (r"[[:lower:]]+", "ÀéßÀ", &["À", "éß", "À"]),
            (
                r"[[:graph:]]+",
                "é €\u{e000}\u{378}",
                &["é", " ", "€\u{e000}", "\u{378}"],
            ),
            (r"[[:print:]]+", "é €\n\u{378}", &["é €", "\n\u{378}"]),
            (r"[[:word:]]+", "é_²٣", &["é_", "²", "٣"]),
            (r"[[:xdigit:]]+", "fFgé", &["fF", "gé"]),
            (r"[[:ascii:]]+", "aé", &["a", "é"]),
            (
                r"\w+",
                "x² می\u{200c}خ",
                &["x²", " ", "می", "\u{200c}", "خ"],
            ),
            (r"\W+", "x² ½\u{200c}.", &["x²", " ", "½", "\u{200c}."]),
            (r"[\w\-]+", "x-²-é", &["x-", "²", "-é"]),
            (r"[^\W_]+", "x_²é", &["x", "_²", "é"]),
            (r"(?i)'s|[a-k]+", "'S'ſaK", &["'S", "'ſ", "aK"]),
            (r"(?i:[sdmt]|ll)", "xLLS", &["x", "LL", "S"]),
        ] {
            assert_eq!(
                pieces_by(expression, text),
                expected,
                "{expression} {text:?}"
            );
        }
    }

    #[test]
    fn what_has_no_such_words_is_refused() {
        for (expression, why) in [
            (r"ab(?i)c|d", "a flag behind its beginning"),
            (r"(?:(?i)a|b)", "a flag behind its beginning"),
            (r"(?i:ss)", "\"ss\" where case is ignored"),
            (r"(?i:a|'sT)", "\"st\" where"),
            (r"(?i)[f]i", "\"fi\" where"),
            (r"(?i:\p{Lu})", r"\p{..} where"),
            (r"(?i:[\p{L}])", r"\p{..} where"),
            (r"(?i:\w)", r"\w where"),
            (r"(?i:[\w])", r"\w where"),
            (r"(?i:[[:alpha:]])", "a POSIX class where"),
            (r"(?i:ß)", "'ß' where"),
            (r"(?i:[à-é])", "'à' where"),
            (r"(?i:s{2})", "a repetition of letters where"),
            (r"a{2}?", "lazy repetition {2}?"),
            (r"\pL+", r"it has \pL without braces"),
            (r"[^\PN]", r"it has \PN without braces"),
            (r"\xc3\xa9", r"it has \xc3"),
            (r"[a-\xff]", r"it has \xff"),
            (r"\U000000e9", r"it has \U000000e9"),
            (r"\u{e9}", r"it has \u{e9}"),
            (r"a{ 1 }", "a space between the braces"),
            (r"[--a]", "begins with two hyphens"),
            (r"[a[^--b]]", "begins with two hyphens"),
            (r"(?i)[^[^a]]", "a negated class within another one where"),
            (r"a{2}{3}", "or one of a repetition"),
            (r"a?|[^\s\S]", "matches an empty text"),
            (r"(?:a|[b&&c])?", "matches an empty text"),
            (r"(?:)|[b&&c]", "matches an empty text"),
            (&r"\w".repeat(2000), "where its classes are written out"),
        ] {
            let error = Expression::new(expression).map(|_| ()).unwrap_err();
            assert!(error.contains(why), "{expression}: {error}");
        }
        for expression in [
            r"(?-i:\p{L})ss",
            r"(?i:'s|'t)|ss",
            r"(?i:s|s)",
            r"a{1,2}?b",
            r"(?i:’s)",
            r"\x{e9}\x41\u00e9[-a]",
        ] {
            Expression::new(expression).unwrap();
        }
    }
}
