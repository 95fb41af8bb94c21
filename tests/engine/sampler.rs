//! The sampler against reference distributions, and its promises about ties, draws and bad logits.

use llamabi::Token;
use llamabi::backend::Step;
use llamabi::backend::choice::{Changes, Choice, Edit, Search, Strategy};
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

#[derive(serde::Deserialize)]
struct Reference {
    order: String,
    cases: Vec<Case>,
}

#[derive(serde::Deserialize)]
struct Case {
    params: HashMap<String, f64>,
    logits: Vec<f32>,
    previous_tokens: Vec<Token>,
    support: Vec<Token>,
    probs: Vec<f64>,
}

impl Case {
    fn params(&self) -> Params {
        let get = |name: &str, off: f64| self.params.get(name).copied().unwrap_or(off);
        Params {
            temperature: get("temperature", 1.0) as f32,
            top_k: get("top_k", 0.0) as i32,
            top_p: get("top_p", 1.0) as f32,
            min_p: get("min_p", 0.0) as f32,
            repetition_penalty: get("repetition_penalty", 1.0) as f32,
            ..Params::default()
        }
    }
}

fn reference() -> Reference {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/data/reference/sampler-distributions.json"
    );
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn support_and_probabilities_are_the_references() {
    let reference = reference();
    assert_eq!(
        reference.order,
        "repetition_penalty -> temperature -> top_k -> top_p -> min_p"
    );
    assert_eq!(reference.cases.len(), 8);
    for case in &reference.cases {
        let got = distribution(&case.logits, &case.params(), &case.previous_tokens);
        let mut want: Vec<_> = case
            .support
            .iter()
            .copied()
            .zip(case.probs.iter().copied())
            .collect();
        want.sort_by_key(|(token, _)| *token);
        let ids = |list: &[(Token, f64)]| list.iter().map(|(t, _)| *t).collect::<Vec<_>>();
        assert_eq!(ids(&got), ids(&want), "{:?}", case.params);
        for ((token, got), (_, want)) in got.iter().zip(&want) {
            // The file has eight digits of a float32 computation.
            assert!(
                (got - want).abs() < 2e-7 + 1e-6 * want,
                "{token}: {got} {want} {:?}",
                case.params
            );
        }
    }
}

/// Pearson's chi-square over 20,000 seeds, rare tokens in one bin. The bound is five standard
/// deviations of the statistic above its mean: a fixed seed set either passes for ever or never.
#[test]
fn frequencies_over_seeds_follow_the_distribution() {
    const DRAWS: u64 = 20_000;
    for (at, case) in reference().cases.iter().enumerate() {
        let expected = distribution(&case.logits, &case.params(), &case.previous_tokens);
        let mut sampler = Sampler::new(case.logits.len());
        sampler.load(&case.logits);
        let mut counts: HashMap<Token, f64> = HashMap::new();
        for seed in 0..DRAWS {
            let draw = uniform(seed, at as u64, 17);
            let token = sampler
                .draw(
                    &Strategy::from(&case.params()),
                    Changes::after(&case.previous_tokens),
                    draw,
                )
                .unwrap();
            *counts.entry(token).or_default() += 1.0;
        }
        let allowed: HashSet<Token> = expected.iter().map(|(token, _)| *token).collect();
        assert!(counts.keys().all(|token| allowed.contains(token)));

        let (mut statistic, mut bins, mut rare, mut rare_count) = (0.0, 0, 0.0, 0.0);
        for (token, probability) in &expected {
            let (want, got) = (
                probability * DRAWS as f64,
                counts.get(token).copied().unwrap_or(0.0),
            );
            if want < 10.0 {
                (rare, rare_count) = (rare + want, rare_count + got);
            } else {
                statistic += (got - want).powi(2) / want;
                bins += 1;
            }
        }
        if rare > 10.0 {
            statistic += (rare_count - rare).powi(2) / rare;
            bins += 1;
        }
        let freedom = f64::from(bins - 1);
        let bound = freedom + 5.0 * (2.0 * freedom).sqrt();
        assert!(
            statistic <= bound,
            "case {at}: {statistic} > {bound} with {bins} bins"
        );
    }
}

/// Less than this share of the most likely token's probability is none.
const LEAST: f64 = 1.0 / (1u64 << 40) as f64;

/// Sorting, in float64, by the words of the specification.
fn by_sorting(logits: &[f32], params: &Params, previous: &[Token]) -> Vec<Token> {
    let mut values: Vec<(f64, usize)> = logits.iter().map(|l| f64::from(*l)).zip(0..).collect();
    for token in previous.iter().collect::<HashSet<_>>() {
        let value = &mut values[*token as usize].0;
        let penalty = params.repetition_penalty;
        let logit = *value as f32;
        *value = f64::from(if logit > 0.0 {
            logit / penalty
        } else {
            logit * penalty
        });
    }
    values.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    if params.top_k > 0 && (params.top_k as usize) < values.len() {
        let last = values[params.top_k as usize - 1].0;
        values.retain(|v| v.0 >= last);
    }
    let max = values[0].0;
    let weight = |v: f64| ((v - max) / f64::from(params.temperature)).exp();
    let total: f64 = values.iter().map(|v| weight(v.0)).sum();
    let mut before = 0.0;
    let mut kept = Vec::new();
    for (value, id) in values {
        if params.top_p < 1.0 && before > f64::from(params.top_p) * total {
            break;
        }
        before += weight(value);
        if weight(value) >= f64::from(params.min_p) && weight(value) >= LEAST {
            kept.push(id as Token);
        }
    }
    kept.sort();
    kept
}

#[test]
fn selection_keeps_what_sorting_keeps() {
    let previous = [3, 5, 3, 0];
    for n in [1, 2, 63, 64, 65, 1000, 5000] {
        let mut logits = bell(n, n as u64);
        let previous = &previous[..if n > 5 { 4 } else { 0 }];
        if n > 100 {
            // Ties, also across the k-th place.
            logits[50] = logits[49];
            logits[n - 1] = logits[0];
        }
        for temperature in [0.1, 1.0, 5.0] {
            for top_k in [0, 1, 7, 64, 900] {
                for top_p in [0.0, 1e-6, 0.3, 0.9, 0.9999, 1.0] {
                    for min_p in [0.0, 0.1, 1.0] {
                        let params = Params {
                            temperature,
                            top_k,
                            top_p,
                            min_p,
                            repetition_penalty: 1.5,
                            ..plain()
                        };
                        let got: Vec<Token> = distribution(&logits, &params, previous)
                            .into_iter()
                            .map(|(token, _)| token)
                            .collect();
                        assert_eq!(
                            got,
                            by_sorting(&logits, &params, previous),
                            "{n} {params:?}"
                        );
                    }
                }
            }
        }
    }
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

fn edit(token: Token, add: f32) -> Edit {
    Edit { token, add }
}

/// One order: penalty, edits, mask. What overflows stays finite, a ban wins, and what is impossible
/// stays so.
#[test]
fn edits_and_masks_come_after_the_penalty() {
    let logits = [4.0, -1.0, f32::MAX, f32::NAN, 2.0, 0.5];
    let step = Step {
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
        ..Step::default()
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
        let kept = sampler.distribution(&choice.strategy, step.changes(&choice));
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
    let none = Step {
        masks: vec![0],
        ..Step::default()
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
