//! Speculation with the model that the project ships: the same bits with drafts and without.

use llamabi::engine::{FinishReason, GenerateOptions, Speculation};
use llamabi::llama::Sequence;
use llamabi::{BuildOptions, Device, Dtype, Llama, Token};

const PROMPTS: [&str; 3] = [
    "Once upon a time",
    "Lily has a dog. Lily has a cat. Lily has",
    "Q",
];

fn model(dtype: Option<Dtype>) -> Llama {
    let options = BuildOptions {
        max_seq_len: 256,
        max_batch_size: 4,
        device: Device::Cpu,
        weights_dtype: dtype,
        ..BuildOptions::default()
    };
    Llama::build("demo/meta".as_ref(), None, &options, &mut |_| true).unwrap()
}

fn run(model: &Llama, texts: &[&str], options: &GenerateOptions) -> Vec<Sequence> {
    let prompts = model.text_prompts(texts, None).unwrap();
    let done = model.generate(prompts, options.clone(), &mut |_| true);
    done.unwrap().sequences
}

/// Everything but the figures, floats as bits.
fn said(sequence: &Sequence) -> (&[Token], Vec<u32>, &str, FinishReason) {
    let bits = sequence.logprobs.iter().map(|x| x.to_bits()).collect();
    (&sequence.tokens[..], bits, &sequence.text, sequence.finish)
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
