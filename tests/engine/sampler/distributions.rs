//! Distributions: those of the references, over seeds, and what a sort would keep.

use super::*;

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
