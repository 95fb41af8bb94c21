//! The sampler against reference distributions, and its promises about ties, draws and bad logits.

mod distributions;
mod edits;

use llamabi::Token;
use llamabi::backend::choice::{Changes, Choice, Choices, Edit, Search, Strategy};
use llamabi::engine::GenerateOptions as Params;
use llamabi::engine::sampler::{Sampler, uniform};
use std::collections::{HashMap, HashSet};

/// Nothing is cut off.
fn plain() -> Params {
    Params {
        temperature: 1.0,
        top_p: 1.0,
        ..Params::default()
    }
}

fn greedy() -> Params {
    Params {
        temperature: 0.0,
        ..plain()
    }
}

/// Ids that may be drawn and their probabilities, by ascending id.
fn distribution(logits: &[f32], params: &Params, previous: &[Token]) -> Vec<(Token, f64)> {
    let mut sampler = Sampler::new(logits.len());
    sampler.load(logits);
    let kept = sampler.distribution(&params.into(), Changes::after(previous));
    let total: u64 = kept.iter().map(|k| k.mass).sum();
    kept.iter()
        .map(|k| (k.token, k.mass as f64 / total as f64))
        .collect()
}

fn support(logits: &[f32], params: &Params) -> Vec<Token> {
    distribution(logits, params, &[])
        .into_iter()
        .map(|(token, _)| token)
        .collect()
}

/// `uniform` is in [0, 1).
fn sample(logits: &[f32], params: &Params, previous: &[Token], uniform: f64) -> Option<Token> {
    let mut sampler = Sampler::new(logits.len());
    sampler.load(logits);
    sampler.draw(
        &params.into(),
        Changes::after(previous),
        (uniform * 16_777_216.0) as u32,
    )
}

/// Logits with the shape of a model's: a few high, many low. From a linear congruential generator.
fn bell(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1u64 << 24) as f32
    };
    (0..n)
        .map(|_| ((0..12).map(|_| next()).sum::<f32>() - 6.0) * 3.0)
        .collect()
}

#[test]
fn ties_keep_the_lowest_ids() {
    let equal = [1.0; 4];
    assert_eq!(sample(&equal, &greedy(), &[], 0.99), Some(0));
    assert_eq!(sample(&[0.0, 2.0, 1.0, 2.0], &greedy(), &[], 0.99), Some(1));
    // Meta's rule at an exact tie: the mass before the third is 0.5, which is not more than 0.5.
    assert_eq!(
        support(
            &equal,
            &Params {
                top_p: 0.5,
                ..plain()
            }
        ),
        [0, 1, 2]
    );
    assert_eq!(
        support(
            &equal,
            &Params {
                top_p: 0.0,
                ..plain()
            }
        ),
        [0]
    );
    assert_eq!(
        support(
            &equal,
            &Params {
                top_p: 0.0,
                top_k: 3,
                ..plain()
            }
        ),
        [0]
    );
    // All that tie with the k-th stay.
    assert_eq!(
        support(
            &equal,
            &Params {
                top_k: 2,
                ..plain()
            }
        ),
        [0, 1, 2, 3]
    );
    assert_eq!(
        support(
            &[3.0, 1.0, 2.0, 2.0],
            &Params {
                top_k: 2,
                ..plain()
            }
        ),
        [0, 2, 3]
    );
    assert_eq!(
        support(
            &equal,
            &Params {
                min_p: 1.0,
                ..plain()
            }
        ),
        [0, 1, 2, 3]
    );
}

#[test]
fn the_draw_is_the_inverse_of_the_cumulative_distribution_by_ascending_id() {
    let logits = [0.0, f32::NEG_INFINITY, 3f32.ln(), 0.0];
    for (u, token) in [
        (0.0, 0),
        (0.19, 0),
        (0.21, 2),
        (0.79, 2),
        (0.81, 3),
        (0.9999999, 3),
    ] {
        assert_eq!(sample(&logits, &plain(), &[], u), Some(token), "{u}");
    }
}

#[test]
fn the_penalty_is_applied_once_per_distinct_token_and_to_greedy_too() {
    let logits = [2.0, 1.5, -1.0];
    let penalty = |p| Params {
        repetition_penalty: p,
        ..greedy()
    };
    assert_eq!(sample(&logits, &penalty(1.2), &[0], 0.0), Some(0));
    assert_eq!(
        sample(&logits, &penalty(1.2), &[0, 0, 0, 0], 0.0),
        Some(0),
        "once, not four times"
    );
    assert_eq!(sample(&logits, &penalty(1.4), &[0], 0.0), Some(1));
    assert_eq!(
        sample(&[-1.0, -1.5], &penalty(2.0), &[0], 0.0),
        Some(1),
        "negative: multiplied"
    );
    assert_eq!(
        sample(&logits, &penalty(0.1), &[1], 0.0),
        Some(1),
        "below 1 it favours"
    );
    // Overflow stays a possible token.
    assert_eq!(
        sample(&[1.0, 2.0], &penalty(f32::from_bits(1)), &[0], 0.0),
        Some(0)
    );
    assert_eq!(sample(&[-1e30], &penalty(1e30), &[0], 0.0), Some(0));
}

#[test]
fn logits_that_are_not_finite_are_impossible_tokens() {
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let logits = [nan, 1.0, -inf, inf, 2.0];
    for params in [
        plain(),
        greedy(),
        Params {
            top_k: 3,
            ..plain()
        },
        Params {
            top_p: 0.99,
            ..plain()
        },
    ] {
        let kept = support(&logits, &params);
        assert!(
            kept.iter().all(|t| [1, 4].contains(t)) && kept.contains(&4),
            "{params:?} {kept:?}"
        );
        for bad in [nan, -inf, inf] {
            assert_eq!(sample(&[bad; 70], &params, &[0], 0.5), None);
        }
        assert_eq!(sample(&[], &params, &[], 0.5), None);
    }
    let mut sampler = Sampler::new(5);
    sampler.load(&logits);
    let softmax = sampler.log_softmax().unwrap();
    assert_eq!(sampler.logprob(&softmax, 0), -inf);
    let all: Vec<Token> = sampler
        .alternatives(&softmax, 9)
        .unwrap()
        .iter()
        .map(|a| a.token)
        .collect();
    assert_eq!(
        all,
        [4, 1, 0, 2, 3],
        "impossible tokens come last, lowest id first"
    );
    sampler.load(&[nan; 5]);
    assert!(sampler.log_softmax().is_none());
}

#[test]
fn extreme_temperatures_give_numbers() {
    let logits = [1.0, f32::MAX, f32::MIN, 3.0];
    for temperature in [1e-30, f32::from_bits(1), 1e30, f32::MAX] {
        let params = Params {
            temperature,
            top_p: 0.9,
            ..plain()
        };
        let got = distribution(&logits, &params, &[]);
        assert!(
            got.iter().all(|(_, p)| p.is_finite() && *p > 0.0),
            "{temperature}: {got:?}"
        );
        assert!(got.iter().any(|(token, _)| *token == 1));
    }
    assert_eq!(
        support(
            &[1.0, 1.0 + 1e-6],
            &Params {
                temperature: 1e-30,
                ..plain()
            }
        ),
        [1]
    );
    assert_eq!(
        support(
            &[1.0, 1.0],
            &Params {
                temperature: 1e-30,
                ..plain()
            }
        ),
        [0, 1]
    );
}

#[test]
fn ids_beyond_the_tokenizers_are_never_sampled_but_count_in_the_softmax() {
    let logits = [0.0, 1.0, 9.0];
    let mut sampler = Sampler::new(2);
    sampler.load(&logits);
    assert_eq!(
        sampler.draw(&Strategy::from(&greedy()), Changes::default(), 0),
        Some(1)
    );
    let ids: Vec<Token> = sampler
        .distribution(&Strategy::from(&plain()), Changes::after(&[2]))
        .iter()
        .map(|k| k.token)
        .collect();
    assert_eq!(ids, [0, 1]);
    let softmax = sampler.log_softmax().unwrap();
    let total: f64 = logits.iter().map(|l| f64::from(*l).exp()).sum();
    assert!((f64::from(sampler.logprob(&softmax, 1)) - (1.0 - total.ln())).abs() < 1e-6);
    assert_eq!(sampler.alternatives(&softmax, 1).unwrap()[0].token, 2);
}

#[test]
fn log_probabilities_are_of_the_raw_logits_and_alternatives_are_in_order() {
    let mut logits = bell(3000, 9);
    logits[7] = 20.0;
    logits[2000] = 20.0;
    let mut sampler = Sampler::new(logits.len());
    sampler.load(&logits);
    // The penalty and the temperature of a draw do not touch them.
    let params = Params {
        repetition_penalty: 3.0,
        temperature: 0.1,
        ..plain()
    };
    sampler.draw(&Strategy::from(&params), Changes::after(&[7]), 1 << 23);
    let softmax = sampler.log_softmax().unwrap();
    let max = 20.0;
    let total: f64 = logits.iter().map(|l| (f64::from(*l) - max).exp()).sum();
    let want = |token: usize| (f64::from(logits[token]) - max - total.ln()) as f32;
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
    assert_eq!(order[..2], [7, 2000]);
    for n in [0, 1, 2, 40, 2999, 3000, 5000] {
        let top = sampler.alternatives(&softmax, n).unwrap();
        assert_eq!(top.len(), n.min(3000));
        for (alternative, token) in top.iter().zip(&order) {
            assert_eq!(alternative.token as usize, *token);
            assert!(
                (alternative.logprob - want(*token)).abs() < 1e-6 && alternative.logprob <= 0.0
            );
        }
    }
    sampler.load(&[5.0]);
    let softmax = sampler.log_softmax().unwrap();
    assert_eq!(sampler.logprob(&softmax, 0), 0.0, "a certain token");
}

/// Prints microseconds per token; the bound is loose, for unoptimised builds on a busy machine.
#[test]
fn speed() {
    for vocabulary in [32_000, 128_256] {
        let logits = bell(vocabulary, 1);
        let flat: Vec<f32> = logits.iter().map(|l| l * 0.01).collect();
        let mut sampler = Sampler::new(vocabulary);
        let mut time = |name: &str, logits: &[f32], work: &mut dyn FnMut(&mut Sampler, u32)| {
            const REPEATS: u32 = 20;
            let mut best = f64::INFINITY;
            for i in 0..REPEATS {
                let start = std::time::Instant::now();
                sampler.load(logits);
                work(&mut sampler, (i << 24) / REPEATS);
                best = best.min(start.elapsed().as_secs_f64() * 1e6);
            }
            println!("{vocabulary:7} {name:28} {best:7.0} us per token");
            assert!(best < 100_000.0);
        };
        let reference = || Params {
            temperature: 0.6,
            top_p: 0.9,
            ..plain()
        };
        for (name, params, logits) in [
            ("greedy", greedy(), &logits),
            ("temperature 0.6, top_p 0.9", reference(), &logits),
            ("flat logits, top_p 0.9", reference(), &flat),
            (
                "top_k 40",
                Params {
                    top_k: 40,
                    ..plain()
                },
                &logits,
            ),
            ("temperature 1", plain(), &logits),
        ] {
            time(name, logits, &mut |sampler, draw| {
                assert!(
                    sampler
                        .draw(&Strategy::from(&params), Changes::after(&[1, 2, 3]), draw)
                        .is_some()
                );
            });
        }
        time("logprob, 5 alternatives", &logits, &mut |sampler, _| {
            let softmax = sampler.log_softmax().unwrap();
            assert_eq!(sampler.alternatives(&softmax, 5).unwrap().len(), 5);
        });
    }
}
