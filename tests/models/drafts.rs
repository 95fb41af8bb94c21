//! Speculation with the model that the project ships: the same bits with drafts and without.

use llamabi::engine::{FinishReason, GenerateOptions, Speculation};
use llamabi::llama::Sequence;
use llamabi::{BuildOptions, Device, Dtype, Llama, Token};

const PROMPTS: [&str; 3] = [
    "Once upon a time",
    "Lily has a dog. Lily has a cat. Lily has",
    "Q",
];

pub fn model(dtype: Option<Dtype>) -> Llama {
    model_beside(dtype, None)
}

/// With itself in another format as a draft model.
pub fn model_beside(dtype: Option<Dtype>, draft: Option<Dtype>) -> Llama {
    let options = BuildOptions {
        draft_dir: draft.map(|_| "demo/meta".into()),
        draft_weights_dtype: draft,
        max_seq_len: 256,
        max_batch_size: 4,
        device: Device::Cpu,
        weights_dtype: dtype,
        ..BuildOptions::default()
    };
    Llama::build("demo/meta".as_ref(), None, &options, &mut |_| true).unwrap()
}

pub fn run(model: &Llama, texts: &[&str], options: &GenerateOptions) -> Vec<Sequence> {
    let prompts = model.text_prompts(texts, None).unwrap();
    let done = model.generate(prompts, options.clone(), &mut |_| true);
    done.unwrap().sequences
}

/// Everything but the figures, floats as bits.
pub fn said(sequence: &Sequence) -> (&[Token], Vec<u32>, &str, FinishReason) {
    let bits = sequence.logprobs.iter().map(|x| x.to_bits()).collect();
    (&sequence.tokens[..], bits, &sequence.text, sequence.finish)
}

/// Calls without guesses: greedy ones, drawn ones, and samples with a penalty.
pub fn plain_kinds() -> [GenerateOptions; 3] {
    let kinds = [(0.0, 1.0, 1), (1.0, 1.0, 1), (0.8, 1.2, 2)];
    kinds.map(
        |(temperature, repetition_penalty, samples)| GenerateOptions {
            temperature,
            repetition_penalty,
            num_return_sequences: samples,
            seed: 9,
            logprobs: true,
            max_gen_len: Some(120),
            ..GenerateOptions::default()
        },
    )
}

#[test]
fn drafts_change_no_bit() {
    for dtype in [None, Some(Dtype::Bf16), Some(Dtype::Int8)] {
        let model = model(dtype);
        for (temperature, repetition_penalty) in [(0.0, 1.0), (1.0, 1.0), (0.8, 1.2)] {
            let plain = GenerateOptions {
                temperature,
                repetition_penalty,
                seed: 9,
                logprobs: true,
                max_gen_len: Some(120),
                ..GenerateOptions::default()
            };
            let want = run(&model, &PROMPTS, &plain);
            // What they say, every ninth token another.
            let all = want.iter().flat_map(|sequence| &sequence.tokens);
            let text = all.enumerate().map(|(at, token)| match at % 9 {
                8 => (token + 1) % 100,
                _ => *token,
            });
            let predicted: Vec<Token> = text.collect();
            for (draft_len, predicted) in [(0, predicted.clone()), (5, predicted), (3, vec![])] {
                let drafts = GenerateOptions {
                    speculation: Speculation::Auto,
                    draft_len,
                    predicted,
                    ..plain.clone()
                };
                let before = model.timings();
                let got = run(&model, &PROMPTS, &drafts);
                let steps = model.timings().steps - before.steps;
                for (got, want) in got.iter().zip(&want) {
                    assert_eq!(said(got), said(want));
                }
                let alone = run(&model, &PROMPTS[..1], &drafts);
                assert_eq!(said(&alone[0]), said(&want[0]), "alone");
                let taken: u32 = got.iter().map(|s| s.stats.accepted_tokens).sum();
                let longest = got.iter().map(|s| s.tokens.len()).max().unwrap_or(0);
                if draft_len == 5 {
                    assert!(taken > 40, "{taken} drafts were right");
                    assert!(steps < longest as u64, "{steps} steps for {longest} tokens");
                }
            }
        }
    }
}

#[test]
fn a_draft_model_changes_no_bit() {
    for (dtype, draft, least) in [
        (None, Dtype::Bf16, 0.9),
        (Some(Dtype::Int8), Dtype::Int4, 0.3),
        (Some(Dtype::Int4), Dtype::Int4, 1.0),
    ] {
        let (plainly, model) = (model(dtype), model_beside(dtype, Some(draft)));
        let (both, one) = (model.info(), plainly.info());
        assert!(both.has_draft && both.weight_bytes > one.weight_bytes);
        for plain in plain_kinds() {
            let want = run(&plainly, &PROMPTS[..2], &plain);
            for draft_len in [0, 1, 5] {
                let drafts = GenerateOptions {
                    speculation: Speculation::Draft,
                    draft_len,
                    ..plain.clone()
                };
                let got = run(&model, &PROMPTS[..2], &drafts);
                for (got, want) in got.iter().zip(&want) {
                    assert_eq!(said(got), said(want));
                    let (drafted, accepted) = (got.stats.drafted_tokens, got.stats.accepted_tokens);
                    if draft_len == 1 && drafted > 20 {
                        // Only the last draft may lie behind the end of the text.
                        let share = f64::from(accepted + 1) / f64::from(drafted);
                        assert!(share >= least, "{accepted} of {drafted} with {draft}");
                    }
                }
                let alone = run(&model, &PROMPTS[..1], &drafts);
                assert_eq!(said(&alone[0]), said(&want[0]), "alone");
            }
            assert!(model.timings().accepted_tokens > 100);
        }
    }
}

#[test]
fn a_draft_model_has_the_models_tokens() {
    let build = |draft: &str| {
        let options = BuildOptions {
            device: Device::Cpu,
            draft_dir: Some(draft.into()),
            ..BuildOptions::default()
        };
        Llama::build("demo/meta".as_ref(), None, &options, &mut |_| true)
            .err()
            .map(|error| error.to_string())
    };
    let other = build("tests/data/reference/mha-f32/hf").expect("other tokens");
    assert!(
        other.contains("mha-f32") && other.contains("tokens"),
        "{other}"
    );
    let missing = build("/nonexistent").expect("no such directory");
    assert!(missing.contains("/nonexistent"), "{missing}");
    let ranks = BuildOptions {
        devices: vec![0, 0],
        draft_dir: Some("demo/meta".into()),
        ..BuildOptions::default()
    };
    let refused = Llama::build("demo/meta".as_ref(), None, &ranks, &mut |_| true).err();
    assert!(refused.is_some_and(|error| error.to_string().contains("draft_dir")));
}

/// The share of the checkpoints that has been read only grows, and a draft model that is not loaded
/// to its end leaves nothing behind.
#[test]
fn the_loading_of_a_draft_model_is_told_and_can_be_stopped() {
    let options = BuildOptions {
        device: Device::Cpu,
        draft_dir: Some("demo/meta".into()),
        ..BuildOptions::default()
    };
    let mut shares = Vec::new();
    let mut tell = |share| {
        shares.push(share);
        true
    };
    Llama::build("demo/meta".as_ref(), None, &options, &mut tell).unwrap();
    assert!(
        shares.is_sorted() && shares.last() == Some(&1.0),
        "{shares:?}"
    );
    assert!(shares.iter().any(|share| (0.5..1.0).contains(share)));
    let mut stop = |share: f32| share < 0.7;
    let stopped = Llama::build("demo/meta".as_ref(), None, &options, &mut stop);
    assert!(matches!(stopped.err(), Some(llamabi::Error::Cancelled)));
}
