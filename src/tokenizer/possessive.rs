//! Replaces possessive repetitions by greedy ones where both mean the same, because an automaton
//! cannot express possessive repetitions.

use super::oniguruma::{parse, tree};
use regex_syntax::ast::{self, Ast, Span};
use regex_syntax::hir::{Class, ClassUnicode, ClassUnicodeRange, Hir, HirKind};
use std::ops::Range;

/// The most possessive repetitions that are looked at. The expressions in use have four.
const MAX_POSSESSIVE: usize = 16;

/// Writes `X?+`, `X*+` and `X++` of a class of characters as `X?`, `X*` and `X+` where that means
/// the same: where what follows in the same alternative never wants a character back. Other
/// possessive repetitions stay.
pub(super) fn greedy(text: &str) -> Result<String, String> {
    let tree = tree(text)?;
    let alternatives = match &tree {
        Ast::Alternation(all) => &all.asts[..],
        only => std::slice::from_ref(only),
    };
    // The places of the signs to be removed, and how many repetitions may still be looked at.
    let mut signs = Vec::new();
    let mut left = MAX_POSSESSIVE;
    for alternative in alternatives {
        let parts = match alternative {
            Ast::Concat(all) => &all.asts[..],
            only => std::slice::from_ref(only),
        };
        // A flag would also apply to parts that are parsed by themselves here.
        if parts.iter().any(|part| matches!(part, Ast::Flags(_))) {
            break;
        }
        let end = alternative.span().end.offset;
        // From the last part to the first, so that the text behind a part has no possessive
        // repetition any more.
        for part in parts.iter().rev() {
            let Ast::Repetition(outer) = part else {
                continue;
            };
            let Some(class) = repeated(outer).filter(|_| left > 0) else {
                continue;
            };
            left -= 1;
            let class = &text[class.start.offset..class.end.offset];
            let sign = outer.op.span.start.offset;
            if never_gives_back(class, &without(text, sign + 1..end, &signs)) {
                signs.push(sign);
            }
        }
    }
    Ok(without(text, 0..text.len(), &signs))
}

/// `text[range]` without the characters that begin at the places in `gone`.
fn without(text: &str, range: Range<usize>, gone: &[usize]) -> String {
    let start = range.start;
    let kept = text[range].char_indices();
    let kept = kept.filter(|(at, _)| !gone.contains(&(start + at)));
    kept.map(|(_, c)| c).collect()
}

/// The span of `X`, if `outer` is `X?+`, `X*+` or `X++`. `X` may be a single character.
fn repeated(outer: &ast::Repetition) -> Option<&Span> {
    let Ast::Repetition(inner) = &*outer.ast else {
        return None;
    };
    let is_sign = !matches!(inner.op.kind, ast::RepetitionKind::Range(_));
    let plus = outer.op.kind == ast::RepetitionKind::OneOrMore;
    (is_sign && inner.greedy && plus && outer.greedy).then(|| inner.ast.span())
}

/// Whether `class` is one character, and `behind` either matches an empty text as well or begins
/// with no character of `class`.
fn never_gives_back(class: &str, behind: &str) -> bool {
    let (Ok(class), Ok(behind)) = (parse(class), parse(behind)) else {
        return false;
    };
    let one = match class.kind() {
        HirKind::Class(_) => true,
        HirKind::Literal(literal) => {
            let text = std::str::from_utf8(&literal.0);
            text.is_ok_and(|text| text.chars().nth(1).is_none())
        }
        _ => false,
    };
    if behind.properties().minimum_len() == Some(0) {
        return one;
    }
    match (firsts(&class), firsts(&behind)) {
        (Some(mut common), Some(other)) if one => {
            common.intersect(&other);
            common.ranges().is_empty()
        }
        _ => false,
    }
}

/// The characters that a match may begin with. `None` if they are not known.
fn firsts(hir: &Hir) -> Option<ClassUnicode> {
    match hir.kind() {
        HirKind::Empty => Some(ClassUnicode::empty()),
        HirKind::Literal(literal) => {
            let first = std::str::from_utf8(&literal.0).ok()?.chars().next()?;
            Some(ClassUnicode::new([ClassUnicodeRange::new(first, first)]))
        }
        HirKind::Class(Class::Unicode(class)) => Some(class.clone()),
        HirKind::Class(_) | HirKind::Look(_) => None,
        HirKind::Repetition(repetition) => firsts(&repetition.sub),
        HirKind::Capture(capture) => firsts(&capture.sub),
        HirKind::Concat(parts) => {
            let mut all = ClassUnicode::empty();
            for part in parts {
                all.union(&firsts(part)?);
                // The least length is not known if a part of the expression never matches.
                if part
                    .properties()
                    .minimum_len()
                    .is_some_and(|least| least > 0)
                {
                    break;
                }
            }
            Some(all)
        }
        HirKind::Alternation(parts) => {
            let mut all = ClassUnicode::empty();
            for part in parts {
                all.union(&firsts(part)?);
            }
            Some(all)
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::tokenizer::split::{Expression, tests::pieces};

    fn pieces_by(expression: &str, text: &str) -> Vec<String> {
        pieces(&[Expression::new(expression).unwrap()], text)
    }

    #[test]
    fn possessive_repetitions_that_give_nothing_back() {
        for (possessive, greedy) in [
            (
                r"[^\r\n\p{L}\p{N}]?+\p{L}+| ?[^\s\p{L}\p{N}]++[\r\n]*",
                r"[^\r\n\p{L}\p{N}]?\p{L}+| ?[^\s\p{L}\p{N}]+[\r\n]*",
            ),
            (r"a*+b++c?+|\s++", r"a*b+c?|\s+"),
            (r"x\p{N}++(?:a|b1)?[ab]", r"x\p{N}+(?:a|b1)?[ab]"),
        ] {
            for text in [" ab c\n", "...\r\n\n a", "aabbccbcx12b1a", "x12ax1b1b  "] {
                assert_eq!(
                    pieces_by(possessive, text),
                    pieces_by(greedy, text),
                    "{text:?}"
                );
            }
        }
        for expression in [
            r"a?+b?a",
            r"\w++a",
            r"a?+a",
            r"a(?:b?+)c",
            r"(?:ab)?+c",
            r"(?i)[a-c]?+x",
            r"a{1,2}+",
            r"a??+",
            // More repetitions than are looked at.
            &r"a?+b|".repeat(20),
        ] {
            let error = Expression::new(expression).map(|_| ()).unwrap_err();
            assert!(error.contains("possessive"), "{expression}: {error}");
        }
    }
}
