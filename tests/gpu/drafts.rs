//! A draft model beside the model, on the emulated device or a real one: two models take turns
//! there, the draft model's tokens are chosen by the device, and what is contrasted comes to the
//! host.

use crate::common::reference;
use crate::emu::Emu;
use crate::emu::real::built;
use llamabi::engine::{GenerateOptions, Prompt, Speculation};
use llamabi::llama::Sequence;
use llamabi::{BuildOptions, Device, Dtype, Llama, Token};
use std::sync::Arc;

fn options(draft: Option<&str>, dtype: Option<Dtype>) -> BuildOptions {
    BuildOptions {
        max_seq_len: 64,
        max_batch_size: 3,
        weights_dtype: dtype,
        kv_dtype: dtype,
        draft_dir: draft.map(|name| reference(&format!("{name}/hf"))),
        draft_weights_dtype: dtype,
        draft_kv_dtype: dtype,
        ..BuildOptions::default()
    }
}

fn on(device: Arc<Emu>, draft: Option<&str>, dtype: Option<Dtype>) -> Llama {
    let dir = reference("mha-f32/hf");
    let options = options(draft, dtype);
    built(device, &dir, None, &options).unwrap()
}

fn prompts() -> Vec<Prompt> {
    let token = |i: usize, n: usize| (1 + (i * i * 31 + i * 17 + n * 57) % 290) as Token;
    let prompt = |n: usize| Prompt::Tokens((0..n).map(|i| token(i, n)).collect());
    [7, 33, 1].map(prompt).into()
}

fn run(llama: &Llama, options: &GenerateOptions) -> Vec<Sequence> {
    let done = llama.generate(prompts(), options.clone(), &mut |_| true);
    done.unwrap().sequences
}

fn bits(sequence: &Sequence) -> (&[Token], Vec<u32>) {
    let bits = sequence.logprobs.iter().map(|x| x.to_bits());
    (&sequence.tokens, bits.collect())
}

#[test]
fn drafts_of_a_model_change_no_bit() {
    for (dtype, hopper) in [(None, false), (Some(Dtype::Bf16), true)] {
        let device = |seed| Emu::either(hopper, 1 << 30, seed);
        let plainly = on(device(1), None, dtype);
        let ways = [(0.0, 1.0), (1.0, 1.2)].map(|(temperature, repetition_penalty)| {
            let plain = GenerateOptions {
                temperature,
                repetition_penalty,
                seed: 5,
                logprobs: true,
                ignore_eos: true,
                max_gen_len: Some(17),
                ..GenerateOptions::default()
            };
            let want = run(&plainly, &plain);
            (plain, want)
        });
        for (draft, agrees) in [("mha-f32", true), ("gqa-bf16", false)] {
            let llama = on(device(2), Some(draft), dtype);
            for (plain, want) in &ways {
                let drafts = GenerateOptions {
                    speculation: Speculation::Draft,
                    draft_len: 3,
                    ..plain.clone()
                };
                for (got, want) in run(&llama, &drafts).iter().zip(want) {
                    assert_eq!(bits(got), bits(want), "{draft} {dtype:?} {plain:?}");
                    let (drafted, taken) = (got.stats.drafted_tokens, got.stats.accepted_tokens);
                    assert!(drafted > 8, "{drafted}");
                    if agrees {
                        assert_eq!(taken, drafted, "it is the model itself");
                    }
                }
            }
        }
    }
}

#[test]
fn contrast_is_what_it_is_on_the_cpu() {
    let (draft, dtype) = (Some("gqa-bf16"), Some(Dtype::F32));
    let llama = on(Emu::new(1 << 30, 1), draft, dtype);
    let cpu = BuildOptions {
        device: Device::Cpu,
        ..options(draft, dtype)
    };
    let dir = reference("mha-f32/hf");
    let cpu = Llama::build(&dir, None, &cpu, &mut |_| true).unwrap();
    let contrast = |contrast_beta| GenerateOptions {
        contrast_beta,
        temperature: 0.0,
        ignore_eos: true,
        logprobs: true,
        max_gen_len: Some(12),
        ..GenerateOptions::default()
    };
    let (got, want) = (run(&llama, &contrast(0.5)), run(&cpu, &contrast(0.5)));
    for (got, want) in got.iter().zip(&want) {
        assert_eq!(got.tokens, want.tokens);
        for (got, want) in got.logprobs.iter().zip(&want.logprobs) {
            assert!((got - want).abs() < 1e-3, "{got} {want}");
        }
    }
    let plain = run(&llama, &contrast(0.0));
    let same = |(a, b): (&Sequence, &Sequence)| a.tokens == b.tokens;
    assert!(!got.iter().zip(&plain).all(same), "it changes nothing");
}
