//! Law four: what a sequence says does not depend on its company, the number of threads, how its
//! prompt was cut into chunks, or what the prefix cache remembers. Tokens are equal and log
//! probabilities and alternatives are equal to the last bit.

use crate::common::reference;
use llamabi::engine::{GenerateOptions, Prompt};
use llamabi::llama::Sequence;
use llamabi::{BuildOptions, Dtype, Llama, Token};

const MAX_SEQ_LEN: usize = 160;

/// Unlike prompts: lengths around the page and chunk sizes, some sharing a beginning.
fn prompts() -> Vec<Vec<Token>> {
    let text = |seed: Token, len: usize| -> Vec<Token> {
        let body = (1..len as Token).map(|i| 3 + (seed * 7919 + i * i * 31 + i * 17) % 500);
        std::iter::once(1).chain(body).collect()
    };
    let shared = text(1, 70);
    let longer = [shared.clone(), text(5, 30)].concat();
    vec![
        shared,
        longer,
        text(2, 1),
        text(3, 16),
        text(4, 17),
        text(6, 64),
        text(7, 33),
        text(8, 120),
    ]
}

fn options(index: usize) -> GenerateOptions {
    GenerateOptions {
        logprobs: true,
        ignore_eos: true,
        max_gen_len: Some(24),
        // Greedy and sampled sequences side by side.
        temperature: if index.is_multiple_of(2) { 0.0 } else { 0.9 },
        seed: 11 + index as u64,
        top_logprobs: 3,
        ..GenerateOptions::default()
    }
}

#[derive(Clone, Copy, Debug)]
struct Setting {
    ranks: usize,
    n_threads: usize,
    prefill_chunk: Option<usize>,
    together: bool,
}

fn build(model: &str, weights_dtype: Option<Dtype>, setting: Setting) -> Llama {
    let build = BuildOptions {
        max_seq_len: MAX_SEQ_LEN,
        devices: match setting.ranks {
            1 => Vec::new(),
            n => vec![0; n],
        },
        n_threads: setting.n_threads,
        prefill_chunk: setting.prefill_chunk,
        weights_dtype,
        ..BuildOptions::default()
    };
    Llama::build(&reference(model), None, &build, &mut |_| true).unwrap()
}

/// One outcome per prompt; in company, eight threads call at the same time.
fn run(llama: &Llama, together: bool) -> Vec<Sequence> {
    let one = |(index, prompt): (usize, Vec<Token>)| {
        llama
            .generate(vec![Prompt::Tokens(prompt)], options(index), &mut |_| true)
            .unwrap()
            .sequences
            .remove(0)
    };
    let prompts = prompts().into_iter().enumerate();
    if together {
        std::thread::scope(|scope| {
            let calls: Vec<_> = prompts.map(|p| scope.spawn(move || one(p))).collect();
            calls.into_iter().map(|call| call.join().unwrap()).collect()
        })
    } else {
        prompts.map(one).collect()
    }
}

/// Everything a caller can see, bits for floats: tokens, their logprobs, alternatives, text.
type Bits = (Vec<Token>, Vec<u32>, Vec<(Token, u32)>, String);

fn bits(sequence: &Sequence) -> Bits {
    (
        sequence.tokens.clone(),
        sequence.logprobs.iter().map(|l| l.to_bits()).collect(),
        sequence
            .top
            .iter()
            .flatten()
            .map(|a| (a.token, a.logprob.to_bits()))
            .collect(),
        sequence.text.clone(),
    )
}

fn assert_invariant(model: &str, weights_dtype: Option<Dtype>) {
    let chunks = [Some(1), Some(7), Some(64), Some(MAX_SEQ_LEN), None];
    invariant_with(1, model, weights_dtype, &chunks);
}

fn invariant_with(
    ranks: usize,
    model: &str,
    weights_dtype: Option<Dtype>,
    chunks: &[Option<usize>],
) {
    let whole = Some(MAX_SEQ_LEN);
    let alone = Setting {
        ranks,
        n_threads: 1,
        prefill_chunk: whole,
        together: false,
    };
    let want = run(&build(model, weights_dtype, alone), false);
    assert!(want.iter().all(|s| s.tokens.len() == 24));

    for &prefill_chunk in chunks {
        for (n_threads, together) in [(1, true), (2, false), (2, true), (3, true)] {
            let setting = Setting {
                ranks,
                n_threads,
                prefill_chunk,
                together,
            };
            let llama = build(model, weights_dtype, setting);
            for pass in ["cold", "warm"] {
                let got = run(&llama, setting.together);
                for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                    assert_eq!(
                        bits(got),
                        bits(want),
                        "{model}, prompt {i}, {setting:?}, {pass}"
                    );
                }
                if pass == "warm" {
                    // Not vacuous: the second pass did take pages from the cache.
                    assert!(got[7].stats.cached_tokens >= 112, "{:?}", got[7].stats);
                }
            }
        }
    }
}

#[test]
fn bf16_weights_and_cache() {
    assert_invariant("gqa-bf16/meta", None);
}

#[test]
fn f16_weights_and_cache() {
    assert_invariant("gqa-f16-mp2/hf", None);
}

#[test]
fn float32() {
    assert_invariant("mha-f32/meta", Some(Dtype::F32));
}

/// Every sequence of one call, against each of them in a call of its own. The index in the call
/// selects the random stream, so the sampled ones are compared at index 0 only.
#[test]
fn one_call_of_eight() {
    let llama = build(
        "gqa-bf16/hf",
        None,
        Setting {
            ranks: 1,
            n_threads: 2,
            prefill_chunk: None,
            together: false,
        },
    );
    let greedy = GenerateOptions {
        temperature: 0.0,
        ..options(0)
    };
    let all = prompts().into_iter().map(Prompt::Tokens).collect();
    let batch = llama
        .generate(all, greedy.clone(), &mut |_| true)
        .unwrap()
        .sequences;
    for (prompt, in_batch) in prompts().into_iter().zip(&batch) {
        let alone = llama
            .generate(vec![Prompt::Tokens(prompt)], greedy.clone(), &mut |_| true)
            .unwrap();
        assert_eq!(bits(&alone.sequences[0]), bits(in_batch));
    }
}

/// Six heads and two KV heads.
#[test]
fn two_ranks() {
    invariant_with(2, "gqa-bf16/meta", None, &[Some(7), None]);
}

/// Eight heads, and two KV heads that pairs of ranks share.
#[test]
fn four_ranks() {
    invariant_with(4, "gqa-f16-mp2/hf", Some(Dtype::Int8), &[Some(64)]);
}
