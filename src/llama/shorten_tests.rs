//! The arithmetic of budgets, with scores that are made up: a token's log probability is minus its
//! id, so that a higher id is less likely.

use super::*;
use SegmentKind::{Compress, Keep, Question};
use proptest::prelude::*;

fn part(kind: SegmentKind, tokens: &[Token]) -> Part {
    Part {
        tokens: tokens.to_vec(),
        forced: Vec::new(),
        kind,
    }
}

fn budget(target: usize, window: usize) -> Budget {
    Budget {
        target,
        window,
        coarse: 2.0,
    }
}

/// A context and a text that were scored.
type Asked = (Vec<Token>, Vec<Token>);

fn run(parts: &[Part], budget: &Budget) -> (Vec<Left>, Vec<Asked>) {
    let mut asked = Vec::new();
    let lefts = shorten(parts, budget, &mut |stretches| {
        asked.extend(
            stretches
                .iter()
                .map(|s| (s.context.to_vec(), s.text.to_vec())),
        );
        let score = |s: &Stretch<'_>| s.text.iter().map(|t| -*t as f32).collect();
        Ok(stretches.iter().map(score).collect())
    });
    (lefts.unwrap(), asked)
}

fn tokens(lefts: &[Left]) -> Vec<&[Token]> {
    lefts.iter().map(|left| &left.tokens[..]).collect()
}

#[test]
fn the_least_likely_tokens_stay_in_their_order() {
    let parts = [part(Compress, &[5, 9, 1, 7, 7, 2, 8])];
    let (lefts, asked) = run(&parts, &budget(4, 100));
    assert_eq!(tokens(&lefts), [[9, 7, 7, 8]]);
    assert_eq!(lefts[0].logprobs, [-9.0, -7.0, -7.0, -8.0]);
    assert_eq!(asked, [(vec![], parts[0].tokens.clone())]);
    let (lefts, _) = run(&parts, &budget(3, 100));
    assert_eq!(tokens(&lefts), [[9, 7, 8]], "of equals the earlier stays");
}

#[test]
fn what_stays_in_any_case_is_counted_and_is_in_front_of_what_follows() {
    let parts = [
        part(Keep, &[1, 2]),
        part(Compress, &[3, 4, 5, 6]),
        part(Question, &[7]),
        part(Compress, &[9, 8]),
    ];
    let (lefts, asked) = run(&parts, &budget(6, 2));
    assert_eq!(tokens(&lefts), [&[1, 2][..], &[4, 6], &[7], &[9]]);
    let texts = [
        (vec![1, 2], vec![3, 4]),
        (vec![1, 2, 4], vec![5, 6]),
        (vec![1, 2, 4, 6, 7], vec![9, 8]),
    ];
    assert_eq!(asked, texts);
}

#[test]
fn nothing_is_asked_where_nothing_is_to_be_decided() {
    let parts = [part(Keep, &[1, 2, 3]), part(Compress, &[4, 5])];
    for (target, expected) in [(3, &[][..]), (1, &[]), (5, &[4, 5]), (99, &[4, 5])] {
        let (lefts, asked) = run(&parts, &budget(target, 1));
        assert_eq!(tokens(&lefts), [&[1, 2, 3], expected], "{target}");
        assert_eq!(lefts[1].whole, !expected.is_empty());
        assert!(asked.is_empty());
    }
}

/// Without a question, the parts that surprise most go on. With one, those go on after which the
/// question is most expected. The made-up score of the question is the same after each, so the
/// earlier parts go on.
#[test]
fn the_first_pass_takes_the_best_and_cuts_one() {
    let compress = [
        part(Compress, &[1, 1, 1, 1]),
        part(Compress, &[9, 8, 7, 6]),
        part(Compress, &[5, 5, 5, 5]),
    ];
    let (lefts, asked) = run(&compress, &budget(3, 100));
    assert_eq!(tokens(&lefts), [&[][..], &[9, 8], &[5]]);
    assert_eq!(
        lefts.iter().map(|l| l.worth).collect::<Vec<_>>(),
        [1.0, 7.5, 5.0]
    );
    assert_eq!(asked.len(), 3 + 2);
    assert_eq!(asked[4], (vec![9, 8], vec![5, 5]), "the second best is cut");

    let [a, b, c] = compress;
    let (lefts, asked) = run(&[a, b, c, part(Question, &[2, 4])], &budget(5, 100));
    assert_eq!(tokens(&lefts), [&[1, 1][..], &[9], &[], &[2, 4]]);
    assert_eq!(asked[1], (vec![9, 8, 7, 6], vec![2, 4]));
    assert_eq!(lefts[0].worth, -3.0);
}

/// If the first pass leaves no more than the budget, the second pass has nothing to decide.
#[test]
fn a_window_that_stays_as_a_whole_is_not_scored() {
    let parts = [part(Compress, &[1, 1, 1]), part(Compress, &[9, 8, 7])];
    let budget = Budget {
        coarse: 1.0,
        ..budget(4, 2)
    };
    let (lefts, asked) = run(&parts, &budget);
    assert_eq!(tokens(&lefts), [&[1][..], &[9, 8, 7]]);
    assert_eq!(lefts[1].logprobs, [0.0; 3]);
    assert_eq!(asked.len(), 2, "by the first pass");
}

/// Windows that are equally long keep equally much in every stretch of a text.
#[test]
fn no_end_of_a_text_is_preferred() {
    let parts = [part(Compress, &[5; 16])];
    for (target, window, places) in [
        (8, 1, &[0, 2, 4, 6, 8, 10, 12, 14][..]),
        (2, 2, &[2, 10]),
        (5, 4, &[0, 4, 5, 8, 12]),
    ] {
        let (lefts, _) = run(&parts, &budget(target, window));
        assert_eq!(lefts[0].places, places, "{target} of 16");
    }
}

#[test]
fn a_single_part_is_not_cut() {
    let parts = [part(Compress, &[1, 2, 3, 4, 5, 6, 7, 8])];
    let (lefts, _) = run(&parts, &budget(2, 100));
    assert_eq!(tokens(&lefts), [[7, 8]]);
}

#[test]
fn tokens_that_are_to_stay_do_so_first() {
    let mut parts = [part(Compress, &[1, 9, 2, 9, 3, 9, 9, 9])];
    parts[0].forced = parts[0].tokens.iter().map(|token| *token < 9).collect();
    // One token is left over for two windows, which have two and three other tokens.
    let (lefts, _) = run(&parts, &budget(4, 4));
    assert_eq!(tokens(&lefts), [[1, 2, 3, 9]]);
    // There is no room for all tokens that are to stay: the number is still the budget's.
    let (lefts, _) = run(&parts, &budget(2, 8));
    assert_eq!(tokens(&lefts), [[2, 3]]);
}

proptest! {
    #[test]
    fn the_budget_is_met_exactly(
        parts in prop::collection::vec((0..3u8, prop::collection::vec(0..50, 0..40)), 1..6),
        target in 0..200usize, window in 1..20usize, coarse in 1.0f32..4.0, every in 1..9,
    ) {
        let parts: Vec<Part> = parts.into_iter().map(|(kind, tokens)| Part {
            forced: tokens.iter().map(|token: &Token| token % every == 1).collect(),
            tokens,
            kind: [Keep, Compress, Question][usize::from(kind)],
        }).collect();
        let (lefts, _) = run(&parts, &Budget { target, window, coarse });
        let all: usize = lens(&parts).sum();
        let kept: usize = parts.iter().filter(|p| p.kind != Compress).map(|p| p.tokens.len()).sum();
        let left: usize = lefts.iter().map(|left| left.tokens.len()).sum();
        prop_assert_eq!(left, target.clamp(kept, all));
        for (part, left) in parts.iter().zip(&lefts) {
            prop_assert_eq!(left.logprobs.len(), left.tokens.len());
            // What is left is a part of it, in its order.
            let mut rest = part.tokens.iter();
            prop_assert!(left.tokens.iter().all(|token| rest.any(|other| other == token)));
        }
    }
}
