//! Law four where many run: 64 sequences, each alone and then all together, in another order, on
//! every format that weights are kept in and in every precision; and as many as a handle has whose
//! matrices have several arithmetics. A step's kernels are chosen by its
//! rows: few, many, a last panel that is not full. The sequences end one after another, so steps
//! have had every number of rows when the last one has ended.

use llamabi::engine::{GenerateOptions, Prompt};
use llamabi::llama::Sequence;
use llamabi::{BuildOptions, Dtype, Llama, Precision, Token};
use std::path::Path;

const STREAMS: usize = 64;

/// Checkpoints, their tokenizers, and what their weights become, if not what they are stored as:
/// k4 and k6 (q4_k_m), k5 and others (mixed-k), int4, uint4 (AWQ), nf4.
const MODELS: [(&str, Option<&str>, Option<Dtype>); 9] = [
    (BF16, None, None),
    (BF16, None, Some(Dtype::F16)),
    (BF16, None, Some(Dtype::F32)),
    (BF16, None, Some(Dtype::Int8)),
    ("gguf/q4_k_m.gguf", None, None),
    ("gguf/mixed-k.gguf", None, None),
    ("gguf/q4_0-llama3.gguf", None, None),
    ("quantised/awq-g32", TOKENIZER, None),
    ("quantised/bnb-nf4", TOKENIZER, None),
];
const BF16: &str = "reference/gqa-bf16/hf";
const TOKENIZER: Option<&str> = Some("quantised/tokenizer.model");

fn sequence(llama: &Llama, index: usize) -> Sequence {
    let token = |i: usize| 3 + ((index * 7919 + i * i * 31 + i * 17) % 250) as Token;
    let prompt = Prompt::Tokens((0..1 + index % 21).map(token).collect());
    let options = GenerateOptions {
        logprobs: true,
        ignore_eos: true,
        max_gen_len: Some(2 + index / 3),
        temperature: if index.is_multiple_of(2) { 0.0 } else { 0.9 },
        seed: 1 + index as u64,
        ..GenerateOptions::default()
    };
    let outcome = llama.generate(vec![prompt], options, &mut |_| true);
    outcome.unwrap().sequences.remove(0)
}

fn bits(sequence: &Sequence) -> (Vec<Token>, Vec<u32>) {
    let logprobs = sequence.logprobs.iter().map(|l| l.to_bits());
    (sequence.tokens.clone(), logprobs.collect())
}

#[test]
fn sixty_four_streams_have_the_bits_of_one() {
    for model in MODELS {
        for precision in [Precision::Auto, Precision::Full, Precision::Fast] {
            together_as_alone(model, precision, STREAMS);
        }
    }
}

/// On AMX, the formats of a layer's matrices differ in how generated rows are multiplied, if a
/// handle has so many sequences: those of k4 as bytes on tiles, and those of k5 and k6 as bfloat16
/// (16), or with 16 bits (10).
#[test]
fn formats_of_a_layer_may_have_different_arithmetics() {
    let mixed = MODELS
        .into_iter()
        .filter(|(file, ..)| file.contains("-k.") || file.contains("_k_"));
    let mixed: Vec<_> = mixed.collect();
    assert_eq!(mixed.len(), 2, "q4_k_m and mixed-k");
    for model in mixed {
        for streams in [10, 16] {
            together_as_alone(model, Precision::Auto, streams);
        }
    }
}

/// As many sequences as a handle is built for.
fn together_as_alone(
    (model, tokenizer, weights_dtype): (&str, Option<&str>, Option<Dtype>),
    precision: Precision,
    streams: usize,
) {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let options = BuildOptions {
        max_seq_len: 64,
        max_batch_size: streams,
        n_threads: 2,
        weights_dtype,
        precision,
        ..BuildOptions::default()
    };
    let tokenizer = tokenizer.map(|file| data.join(file));
    let path = data.join(model);
    let llama = Llama::build(&path, tokenizer.as_deref(), &options, &mut |_| true);
    let llama = &llama.unwrap();
    let alone: Vec<Sequence> = (0..streams).map(|i| sequence(llama, i)).collect();
    let together = std::thread::scope(|scope| {
        let order = (0..streams).map(|i| (i * 29 + 5) % streams);
        let calls: Vec<_> = order
            .map(|i| (i, scope.spawn(move || sequence(llama, i))))
            .collect();
        calls
            .into_iter()
            .map(|(i, call)| (i, call.join().unwrap()))
            .collect::<Vec<_>>()
    });
    for (i, together) in together {
        let what =
            format!("{model} as {weights_dtype:?}, {precision:?}, sequence {i} of {streams}");
        assert_eq!(bits(&together), bits(&alone[i]), "{what}");
    }
}
