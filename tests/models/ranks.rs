//! Several ranks in one process: the reference's outputs, every weight format against one rank,
//! and what is refused.

use crate::common::*;
use crate::reference_cases::{Place, reference_cases};
use llamabi::capi::*;
use llamabi::{BuildOptions, Dtype};
use std::path::Path;

/// A model of `dir` on ranks of node 0.
fn open_on(ranks: usize, dir: &Path, options: &BuildOptions) -> Result<Model, Failure> {
    open_with(ranks, dir, None, options)
}

fn open_with(
    ranks: usize,
    dir: &Path,
    tokenizer: Option<&Path>,
    options: &BuildOptions,
) -> Result<Model, Failure> {
    let devices = vec![0; ranks];
    let mut c = build_options();
    c.device = LLAMA_DEVICE_CPU;
    c.max_seq_len = options.max_seq_len as u32;
    c.max_batch_size = options.max_batch_size as u32;
    c.weights_dtype = match options.weights_dtype {
        None => LLAMA_DTYPE_AUTO,
        Some(Dtype::F32) => LLAMA_DTYPE_F32,
        Some(Dtype::F16) => LLAMA_DTYPE_F16,
        Some(Dtype::Bf16) => LLAMA_DTYPE_BF16,
        Some(Dtype::Int8) => LLAMA_DTYPE_INT8,
        Some(Dtype::Int4) => LLAMA_DTYPE_INT4,
        Some(Dtype::Nf4) => LLAMA_DTYPE_NF4,
        Some(dtype) => panic!("{dtype}"),
    };
    c.n_threads = 1;
    (c.devices, c.n_devices) = (devices.as_ptr(), ranks as u32);
    let model = Model::open(dir, tokenizer, &c)?;
    assert_eq!(model.info().model_parallel_size, ranks as u32);
    Ok(model)
}

const TWO: Place = Place {
    open: |dir, tokenizer, options| open_with(2, dir, tokenizer, options),
    draws: 160,
    pull: true,
    as_stored: |_, name| match name {
        "mha-f32" => 1e-3,
        "families" => 0.3,
        _ => 0.15,
    },
    refused: &[],
};

reference_cases!(TWO; logits generate nucleus greedy_strategies beam_strategies as_stored
    families);

fn options(weights_dtype: Option<Dtype>) -> BuildOptions {
    BuildOptions {
        max_seq_len: 96,
        max_batch_size: 4,
        weights_dtype,
        ..BuildOptions::default()
    }
}

/// Log probabilities of a prompt, then of what is generated.
fn logprobs(model: &Model) -> Vec<f32> {
    let prompt: Vec<i32> = std::iter::once(1)
        .chain((1..40).map(|i| 3 + i * i % 500))
        .collect();
    let mut greedy = greedy(16);
    greedy.flags |= LLAMA_GEN_ECHO | LLAMA_GEN_IGNORE_EOS;
    model.one(&prompt, &greedy).logprobs
}

/// Every format is cut between its blocks, so the weights are those of one rank. What differs is
/// the order in which float32 sums are rounded, and what that does to 16-bit activations and
/// caches.
#[test]
fn every_format_says_what_one_rank_says() {
    for (name, ranks) in [
        ("mha-f32", 2),
        ("gqa-bf16", 2),
        ("gqa-f16-mp2", 2),
        ("gqa-f16-mp2", 4),
    ] {
        for form in ["meta", "hf"] {
            let dir = reference(&format!("{name}/{form}"));
            let formats = [
                None,
                Some(Dtype::F32),
                Some(Dtype::F16),
                Some(Dtype::Bf16),
                Some(Dtype::Int8),
                Some(Dtype::Int4),
                Some(Dtype::Nf4),
            ];
            for dtype in formats {
                let what = format!("{name}/{form} as {dtype:?} on {ranks} ranks");
                let options = options(dtype);
                let Ok(one) = open_on(1, &dir, &options) else {
                    assert_eq!(dtype, Some(Dtype::Nf4), "{what}");
                    continue;
                };
                let several = match open_on(ranks, &dir, &options) {
                    Ok(model) => model,
                    // The output projection would be cut within blocks.
                    Err((LLAMA_E_UNSUPPORTED, sentence)) => {
                        assert!(
                            sentence.contains("stored in blocks of"),
                            "{what}: {sentence}"
                        );
                        continue;
                    }
                    Err(error) => panic!("{what}: {error:?}"),
                };
                let (want, got) = (logprobs(&one), logprobs(&several));
                let tolerance = if dtype == Some(Dtype::F32) {
                    1e-3
                } else {
                    0.15
                };
                // Where two tokens are nearly as likely, generated texts may part.
                let prompt = 1..40;
                for i in prompt {
                    let off = (want[i] - got[i]).abs();
                    assert!(off <= tolerance, "{what}: {i}: {} and {}", want[i], got[i]);
                }
            }
        }
    }
}

#[test]
fn what_cannot_be_shared_is_refused() {
    let dir = reference("gqa-bf16/hf");
    let build = |n: usize, set: &dyn Fn(&mut llama_build_options)| {
        let devices = vec![0; n];
        let mut c = build_options();
        c.device = LLAMA_DEVICE_CPU;
        (c.devices, c.n_devices) = (devices.as_ptr(), n as u32);
        set(&mut c);
        Model::open(&dir, None, &c).map(drop)
    };
    let refused = |n, set: &dyn Fn(&mut llama_build_options), status, words: &str| {
        let (got, sentence) = build(n, set).expect_err(words);
        assert_eq!(got, status, "{sentence}");
        assert!(sentence.contains(words), "{sentence}");
    };
    build(2, &|_| {}).unwrap();
    build(2, &|c| c.model_parallel_size = 2).unwrap();
    let invalid = LLAMA_E_INVALID_ARGUMENT;
    refused(
        2,
        &|c| c.model_parallel_size = 1,
        invalid,
        "model_parallel_size is 1",
    );
    refused(65, &|_| {}, invalid, "n_devices is 65, must be at most 64");
    refused(2, &|c| c.devices = std::ptr::null(), invalid, "devices");
    refused(
        2,
        &|c| c.devices = [0, -1].as_ptr(),
        invalid,
        "devices[1] is -1",
    );
    refused(
        2,
        &|c| c.devices = [0, 4711].as_ptr(),
        invalid,
        "devices[1] is 4711, must be a NUMA",
    );
    refused(2, &|c| c.device_index = 1, invalid, "device_index");
    let unsupported = LLAMA_E_UNSUPPORTED;
    refused(
        4,
        &|_| {},
        unsupported,
        "6 heads cannot be shared among 4 ranks",
    );
    refused(
        3,
        &|_| {},
        unsupported,
        "2 KV heads cannot be shared among 3 ranks",
    );
    // Ranks need the heads' columns in whole blocks: three heads of 16 are no blocks of 32.
    refused(
        2,
        &|c| c.weights_dtype = LLAMA_DTYPE_INT8,
        unsupported,
        "48 columns",
    );
}

#[test]
fn loading_stops_when_it_is_told() {
    unsafe extern "C" fn stop(_: *mut std::ffi::c_void, fraction: f32) -> i32 {
        i32::from(fraction < 0.1)
    }
    let mut c = build_options();
    c.device = LLAMA_DEVICE_CPU;
    (c.devices, c.n_devices) = ([0, 0].as_ptr(), 2);
    c.progress = Some(stop);
    let stopped = Model::open(&reference("gqa-bf16/hf"), None, &c).map(drop);
    assert_eq!(stopped.expect_err("stopped").0, LLAMA_CANCELLED);
}

/// Pages that lie in several caches are copied and forgotten as one.
#[test]
fn samples_share_a_prompt() {
    let model = open_on(2, &reference("gqa-bf16/meta"), &options(None)).unwrap();
    let prompt: Vec<i32> = std::iter::once(1)
        .chain((1..33).map(|i| 3 + i * i % 500))
        .collect();
    let mut o = greedy(20);
    (o.temperature, o.seed, o.num_return_sequences) = (0.9, 5, 3);
    let together = model.generate(std::slice::from_ref(&prompt), &o).unwrap();
    o.num_return_sequences = 0;
    let apart = model
        .generate(&[prompt.clone(), prompt.clone(), prompt], &o)
        .unwrap();
    for (a, b) in together.iter().zip(&apart) {
        assert_eq!(a.tokens, b.tokens);
        assert_eq!(a.logprobs, b.logprobs);
    }
}
