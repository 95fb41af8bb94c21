//! Medusa heads on the CPU: what they compute, heads as files, and the same bits with their
//! guesses.

use crate::checkpoints::TempDir;
use crate::drafts::{model, plain_kinds, run, said};
use crate::medusa_cases::{always, check};
use crate::small_model::{LIMITS, SHAPE, rope};
use llamabi::backend::cpu::Cpu;
use llamabi::backend::cpu::detect::{TIERS, Tier};
use llamabi::engine::{GenerateOptions, Speculation};
use llamabi::{BuildOptions, Device, Dtype, Llama, Token};
use std::path::Path;

#[test]
fn heads_compute_what_they_are_said_to() {
    for tier in TIERS.iter().filter_map(|name| Tier::named(name).ok()) {
        for (dtype, off) in [(Dtype::F32, 2e-6), (Dtype::Bf16, 2e-6), (Dtype::F16, 2e-6)] {
            let cpu = Cpu::with_tier(&SHAPE, rope(), 2, LIMITS.max_rows, tier).unwrap();
            check(cpu, dtype, off);
        }
    }
}

fn with_heads(dir: &Path, dtype: Option<Dtype>) -> llamabi::Result<Llama> {
    let options = BuildOptions {
        medusa_dir: Some(dir.into()),
        max_seq_len: 256,
        max_batch_size: 4,
        device: Device::Cpu,
        weights_dtype: dtype,
        ..BuildOptions::default()
    };
    Llama::build("demo/meta".as_ref(), None, &options, &mut |_| true)
}

fn sizes(model: &Llama) -> [usize; 2] {
    let shape = &model.info().config.shape;
    [shape.dim, shape.vocab_size]
}

/// Heads that always guess the same token are right where the text has it, and nowhere else.
#[test]
fn guesses_change_no_bit() {
    const PROMPTS: [&str; 3] = ["Once upon a time", "Lily has a dog. Lily has", "Q"];
    for dtype in [None, Some(Dtype::Bf16), Some(Dtype::Int8)] {
        let plainly = model(dtype);
        let frequent = plainly.tokenizer().encode(".").unwrap().last().copied();
        let token = frequent.unwrap_or(5);
        let dir = always(token as usize, 2, sizes(&plainly), "");
        let model = with_heads(dir.path(), dtype).unwrap();
        assert_eq!(model.info().medusa_heads, 2);
        assert!(model.info().weight_bytes > plainly.info().weight_bytes);
        for plain in plain_kinds() {
            let want = run(&plainly, &PROMPTS[..2], &plain);
            for (speculation, draft_len) in [
                (Speculation::Medusa, 0),
                (Speculation::Medusa, 1),
                (Speculation::Auto, 5),
            ] {
                let guesses = GenerateOptions {
                    speculation,
                    draft_len,
                    ..plain.clone()
                };
                let got = run(&model, &PROMPTS[..2], &guesses);
                for (got, want) in got.iter().zip(&want) {
                    assert_eq!(said(got), said(want));
                    let (drafted, accepted) = (got.stats.drafted_tokens, got.stats.accepted_tokens);
                    if draft_len == 1 {
                        // The token is guessed at every place but behind one that was guessed
                        // right, and behind the first and the last.
                        let is_it = |at: &Token| *at == token;
                        let there = got.tokens.iter().skip(1).filter(|at| is_it(at)).count();
                        assert!(
                            accepted > 0 && accepted as usize <= there,
                            "{accepted} {there}"
                        );
                        assert!(drafted as usize + accepted as usize + 2 >= got.tokens.len());
                    }
                }
                let alone = run(&model, &PROMPTS[..1], &guesses);
                assert_eq!(said(&alone[0]), said(&want[0]), "alone");
            }
        }
    }
}

/// The guesses of several long texts are one step, whose rows have positions beyond a chunk of
/// attention and no pages.
#[test]
fn guesses_of_long_texts_change_no_bit() {
    let texts = ["Once upon a time, ", "Lily has a dog. "].map(|text| text.repeat(80));
    let texts = [texts[0].as_str(), texts[1].as_str()];
    let dir = always(5, 2, sizes(&model(None)), "");
    let options = BuildOptions {
        medusa_dir: Some(dir.path().into()),
        max_seq_len: 1024,
        max_batch_size: 4,
        n_threads: 1,
        device: Device::Cpu,
        ..BuildOptions::default()
    };
    let model = Llama::build("demo/meta".as_ref(), None, &options, &mut |_| true).unwrap();
    let plain = GenerateOptions {
        temperature: 0.0,
        logprobs: true,
        ignore_eos: true,
        max_gen_len: Some(8),
        ..GenerateOptions::default()
    };
    let want = run(&model, &texts, &plain);
    assert!(want.iter().all(|text| text.stats.prompt_tokens > 256));
    let guesses = GenerateOptions {
        speculation: Speculation::Medusa,
        draft_len: 1,
        ..plain
    };
    for (got, want) in run(&model, &texts, &guesses).iter().zip(&want) {
        assert_eq!(said(got), said(want));
        assert!(got.stats.drafted_tokens > 0);
    }
}

#[test]
fn names_may_have_a_prefix_and_the_configuration_may_be_missing() {
    let sizes = sizes(&model(None));
    let dir = always(7, 3, sizes, "medusa_head.");
    std::fs::remove_file(dir.path().join("config.json")).unwrap();
    let all = with_heads(dir.path(), None).unwrap();
    assert_eq!(all.info().medusa_heads, 3);
    dir.file("config.json", r#"{"medusa_num_heads":2}"#);
    let some = with_heads(dir.path(), None).unwrap();
    assert_eq!(some.info().medusa_heads, 2);
    assert!(some.info().weight_bytes < all.info().weight_bytes);
    // More than a step can use.
    let many = always(7, 18, sizes, "");
    let many = with_heads(many.path(), None).unwrap();
    assert_eq!(many.info().medusa_heads, 16);
}

#[test]
fn what_is_no_head_is_refused_with_a_sentence() {
    let refused = |dir: &Path, parts: &[&str]| {
        let error = with_heads(dir, None).err().expect("must be refused");
        let error = error.to_string();
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    };
    refused("/nonexistent".as_ref(), &["/nonexistent"]);
    refused(TempDir::new().path(), &["medusa_lm_head.safetensors"]);
    let sizes = sizes(&model(None));
    let narrow = always(7, 1, [sizes[0] / 2, sizes[1]], "");
    refused(narrow.path(), &["0.0.linear.weight", "shape"]);
    let few = always(7, 1, [sizes[0], 9], "");
    refused(few.path(), &["0.1.weight", "shape"]);
    let dir = always(7, 1, sizes, "");
    for (config, parts) in [
        (
            r#"{"medusa_num_heads":2}"#,
            &["1.0.linear.weight", "no such tensor"][..],
        ),
        (r#"{"medusa_num_layers":2}"#, &["0.1.linear.weight"]),
        (r#"{"medusa_num_heads":0}"#, &["medusa_num_heads"]),
        (r#"{"medusa_num_heads":65}"#, &["medusa_num_heads"]),
        (r#"{"medusa_num_heads":"two"}"#, &["medusa_num_heads"]),
        ("[", &["config.json"]),
    ] {
        dir.file("config.json", config);
        refused(dir.path(), parts);
    }
    let ranks = BuildOptions {
        devices: vec![0, 0],
        medusa_dir: Some(dir.path().into()),
        ..BuildOptions::default()
    };
    let error = Llama::build("demo/meta".as_ref(), None, &ranks, &mut |_| true).err();
    assert!(error.is_some_and(|error| error.to_string().contains("medusa_dir")));
}

/// The share that has been read only grows, and what is not loaded to its end leaves nothing
/// behind.
#[test]
fn the_loading_is_told_and_can_be_stopped() {
    let dir = always(7, 4, sizes(&model(None)), "");
    let options = BuildOptions {
        device: Device::Cpu,
        medusa_dir: Some(dir.path().into()),
        draft_dir: Some("demo/meta".into()),
        ..BuildOptions::default()
    };
    let mut shares = Vec::new();
    let mut tell = |share| {
        shares.push(share);
        true
    };
    let both = Llama::build("demo/meta".as_ref(), None, &options, &mut tell).unwrap();
    assert!(both.info().has_draft && both.info().medusa_heads == 4);
    assert!(
        shares.is_sorted() && shares.last() == Some(&1.0),
        "{shares:?}"
    );
    for at in [0.3, 0.6, 0.9] {
        let mut stop = |share: f32| share < at;
        let stopped = Llama::build("demo/meta".as_ref(), None, &options, &mut stop);
        assert!(matches!(stopped.err(), Some(llamabi::Error::Cancelled)));
    }
}
