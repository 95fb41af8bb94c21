//! What some families have and Llama has not, on the emulated device or a real one: in float32 the
//! numbers are those of the CPU, and in any format a row's bits depend neither on how its prompt
//! was cut, nor on the other rows, nor on the schedule.

use crate::common::reference;
use crate::emu::Emu;
use crate::emu::real::built;
use llamabi::engine::{Event, GenerateOptions, Next, Prompt};
use llamabi::{BuildOptions, Device, Dtype, Llama, Token};
use std::path::PathBuf;
use std::sync::Arc;

/// Models of tests/data/families.
const MODELS: &[&str] = &[
    "granite",
    "llama-mlp-bias",
    "qwen3",
    "mistral-window",
    "qwen2-window",
    "smollm3",
    "hunyuan_v1_dense",
];

/// Lengths of prompts: shorter and longer than pages and than the models' windows.
const LENGTHS: [usize; 6] = [1, 16, 40, 5, 33, 70];

type Tokens = Vec<(Token, f32)>;

fn options(weights: Option<Dtype>, kv: Option<Dtype>, chunk: usize) -> BuildOptions {
    BuildOptions {
        max_seq_len: 96,
        max_batch_size: LENGTHS.len(),
        weights_dtype: weights,
        kv_dtype: kv,
        prefill_chunk: Some(chunk),
        ..BuildOptions::default()
    }
}

/// The checkpoint and its tokenizer.
fn files(name: &str) -> (PathBuf, PathBuf) {
    let root = reference("../families");
    (root.join(name), root.join("tokenizer.model"))
}

fn on(device: Arc<Emu>, name: &str, options: &BuildOptions) -> Llama {
    let (dir, tokenizer) = files(name);
    built(device, &dir, Some(&tokenizer), options).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Greedy continuations of prompts of these lengths, all at once.
fn answers(llama: &Llama, lengths: &[usize]) -> Vec<Tokens> {
    let start = |&n: &usize| {
        let token = |i: usize| (1 + (i * i * 31 + i * 17 + n * 57) % 290) as Token;
        let options = GenerateOptions {
            temperature: 0.0,
            logprobs: true,
            ignore_eos: true,
            max_gen_len: Some(4 + n % 3),
            ..GenerateOptions::default()
        };
        let prompt = Prompt::Tokens((0..n).map(token).collect());
        llama.stream(vec![prompt], options).unwrap()
    };
    let streams: Vec<_> = lengths.iter().map(start).collect();
    let finish = |stream: &llamabi::engine::Stream| {
        let mut tokens = Vec::new();
        loop {
            match stream.next(None).unwrap() {
                Next::Event(Event::Token(e)) => tokens.push((e.token, e.logprob)),
                Next::Event(_) => {}
                Next::Done => return tokens,
                other => panic!("{other:?}"),
            }
        }
    };
    streams.iter().map(finish).collect()
}

fn bits(answers: &[Tokens]) -> Vec<Vec<(Token, u32)>> {
    let one = |tokens: &Tokens| tokens.iter().map(|&(t, l)| (t, l.to_bits())).collect();
    answers.iter().map(one).collect()
}

#[test]
fn float32_is_what_the_cpu_computes() {
    for name in MODELS {
        let options = options(Some(Dtype::F32), Some(Dtype::F32), 24);
        let cpu = BuildOptions {
            device: Device::Cpu,
            ..options.clone()
        };
        let (dir, tokenizer) = files(name);
        let cpu = Llama::build(&dir, Some(&tokenizer), &cpu, &mut |_| true).unwrap();
        let want = answers(&cpu, &LENGTHS);
        let got = answers(&on(Emu::new(1 << 30, 1), name, &options), &LENGTHS);
        for (want, got) in want.iter().zip(&got) {
            assert_eq!(want.len(), got.len());
            for (want, got) in want.iter().zip(got) {
                assert_eq!(want.0, got.0, "{name}: {want:?} {got:?}");
                assert!((want.1 - got.1).abs() < 1e-3, "{name}: {want:?} {got:?}");
            }
        }
    }
}

fn company_and_cuts(weights: Option<Dtype>, kv: Option<Dtype>, hopper: bool) {
    for name in MODELS {
        let what = format!("{name}, {weights:?} {kv:?}, hopper {hopper}");
        let device = |seed| Emu::either(hopper, 1 << 30, seed);
        let alone = on(device(1), name, &options(weights, kv, 96));
        let want: Vec<_> = LENGTHS.iter().map(|&n| answers(&alone, &[n])).collect();
        let want = bits(&want.concat());
        for chunk in [3, 40] {
            let llama = on(device(chunk as u64), name, &options(weights, kv, chunk));
            // Cold, then with what the prefix cache kept.
            for round in ["cold", "warm"] {
                let got = bits(&answers(&llama, &LENGTHS));
                assert_eq!(got, want, "{what}, chunks of {chunk}, {round}");
            }
        }
    }
}

/// Each kernel once. A test for each format, because together they outlast the rest of the room.
mod company_and_cuts_change_no_bit {
    use super::*;

    #[test]
    fn as_stored() {
        company_and_cuts(None, None, false);
    }

    #[test]
    fn as_stored_by_wgmma() {
        company_and_cuts(None, None, true);
    }

    #[test]
    fn int8_cache() {
        company_and_cuts(None, Some(Dtype::Int8), false);
    }

    #[test]
    fn int8_weights_by_wgmma() {
        company_and_cuts(Some(Dtype::Int8), Some(Dtype::F16), true);
    }

    #[test]
    fn float32() {
        company_and_cuts(Some(Dtype::F32), Some(Dtype::F32), false);
    }
}
