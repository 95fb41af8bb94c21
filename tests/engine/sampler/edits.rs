//! Edits, masks and cutoffs, and their order.

use super::*;

fn edit(token: Token, add: f32) -> Edit {
    Edit { token, add }
}

/// One order: penalty, edits, mask. What overflows stays finite, a ban wins, and what is impossible
/// stays so.
#[test]
fn edits_and_masks_come_after_the_penalty() {
    let logits = [4.0, -1.0, f32::MAX, f32::NAN, 2.0, 0.5];
    let choices = Choices {
        history: vec![0],
        edits: vec![
            edit(0, 3.0),
            edit(1, f32::NEG_INFINITY),
            edit(2, f32::MAX),
            edit(3, 100.0),
            edit(4, -1.5),
        ],
        // Two rows: the first allows everything, the second all but token 2; neither has bits for
        // more than the vocabulary.
        masks: vec![u32::MAX, 0b11_1011],
        ..Choices::default()
    };
    let params = Params {
        repetition_penalty: 2.0,
        ..plain()
    };
    let choice = |mask, edits| Choice {
        given: None,
        strategy: Strategy::from(&params),
        draw: 0,
        n_tokens: 6,
        history: 0..1,
        edits,
        mask,
        to_host: false,
        logprob: false,
        top: 0,
        search: Search::Off,
    };
    let mut sampler = Sampler::new(6);
    sampler.load(&logits);
    let mut kept = |choice: Choice| -> Vec<(Token, f64)> {
        let kept = sampler.distribution(&choice.strategy, choices.changes(&choice));
        let one = kept.iter().map(|k| k.mass).max().unwrap();
        let share = |mass: u64| (mass as f64 / one as f64).ln();
        kept.iter().map(|k| (k.token, share(k.mass))).collect()
    };
    // Token 2 leaves no other one a chance: it is as large as a number can be, not infinite.
    assert_eq!(kept(choice(Some(0), 0..5)), [(2, 0.0)]);
    assert_eq!(kept(choice(None, 0..5)), [(2, 0.0)]);
    // 4 / 2 + 3 = 5, 2 - 1.5 = 0.5, and 0.5 as it is.
    let left = kept(choice(Some(1), 0..5));
    let ids: Vec<Token> = left.iter().map(|k| k.0).collect();
    assert_eq!(ids, [0, 4, 5]);
    for ((_, got), want) in left.iter().zip([0.0, -4.5, -4.5]) {
        assert!((got - want).abs() < 1e-4, "{left:?}");
    }
    // Without edits: 4 / 2 = 2 and 2 are equal.
    let left = kept(choice(Some(1), 0..0));
    assert_eq!(left.iter().map(|k| k.0).collect::<Vec<_>>(), [0, 1, 4, 5]);
    assert_eq!(left[0].1, left[2].1);
    // Nothing is left, though the row has possible tokens.
    let none = Choices {
        masks: vec![0],
        ..Choices::default()
    };
    let nothing = Choice {
        history: 0..0,
        ..choice(Some(0), 0..0)
    };
    assert_eq!(sampler.choose(&nothing, &none).unwrap(), None);
    assert!(sampler.has_possible());
    sampler.load(&[f32::NAN; 6]);
    assert!(!sampler.has_possible());
}

#[test]
fn cutoffs_are_of_the_probabilities_that_are_left() {
    // Probabilities 0.5, 0.25, 0.125, 0.0625, 0.0625 in another order.
    let logits = [0.0625f32, 0.5, 0.125, 0.25, 0.0625].map(f32::ln);
    let kept = |params: Params| support(&logits, &params);
    let epsilon = |epsilon_cutoff| Params {
        epsilon_cutoff,
        ..plain()
    };
    assert_eq!(kept(epsilon(0.1)), [1, 2, 3]);
    assert_eq!(kept(epsilon(0.9)), [1], "the most likely token stays");
    // top_k leaves 0.5, 0.25 and 0.125 of 0.875: 0.571, 0.286, 0.143.
    let after_top_k = |epsilon_cutoff| Params {
        epsilon_cutoff,
        top_k: 3,
        ..plain()
    };
    assert_eq!(kept(after_top_k(0.14)), [1, 2, 3]);
    assert_eq!(kept(after_top_k(0.15)), [1, 3]);
    // The entropy is 1.3 nats: 0.25 (1.39) is nearest, then 0.5 (0.69), then 0.125 (2.08).
    let typical = |typical_p| Params {
        typical_p,
        ..plain()
    };
    assert_eq!(kept(typical(0.2)), [3]);
    assert_eq!(kept(typical(0.3)), [1, 3]);
    assert_eq!(kept(typical(0.8)), [1, 2, 3]);
    assert_eq!(
        kept(typical(0.9)),
        [0, 1, 2, 3, 4],
        "ties with the last stay"
    );
    assert_eq!(kept(typical(1.0)), [0, 1, 2, 3, 4]);
    // sqrt(0.04) exp(-1.3) = 0.054, more than 0.04; sqrt(0.3) exp(-1.3) = 0.149, less than 0.3.
    let eta = |eta_cutoff| Params {
        eta_cutoff,
        ..plain()
    };
    assert_eq!(kept(eta(0.04)), [0, 1, 2, 3, 4]);
    assert_eq!(kept(eta(0.3)), [1, 3]);
    // Greedy, they have no effect.
    let all = Params {
        temperature: 0.0,
        typical_p: 0.2,
        ..epsilon(0.9)
    };
    assert_eq!(kept(all), [1]);
}
