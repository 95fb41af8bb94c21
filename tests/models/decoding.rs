//! The options between logits and token against transformers and a plain restatement
//! (tests/data/decoding: generate.py and spec.py made the cases), through the C API on the CPU.
#![allow(unsafe_code)]

use crate::common::*;
use crate::reference_cases::{LOGPROB_TOLERANCE, assert_close, sequences};
use llamabi::backend::choice::Changes;
use llamabi::capi::*;
use llamabi::engine::GenerateOptions;
use llamabi::engine::sampler::Sampler;
use serde_json::Value;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::os::unix::ffi::OsStringExt;

fn cases(file: &str) -> Vec<Value> {
    let all = json(&reference(&format!("../decoding/{file}")));
    all["cases"].as_array().unwrap().clone()
}

fn model(name: &str, n_threads: u32) -> Model {
    model_beside(name, None, n_threads)
}

/// With a draft model, if one is named.
fn model_beside(name: &str, draft: Option<&str>, n_threads: u32) -> Model {
    let mut options = build_options();
    let path = draft.map(|draft| reference(&format!("{draft}/hf")));
    let path = path.map(|path| CString::new(path.into_os_string().into_vec()).unwrap());
    options.draft_dir = path.as_ref().map_or(std::ptr::null(), |path| path.as_ptr());
    (options.draft_weights_dtype, options.draft_kv_dtype) = (LLAMA_DTYPE_F32, LLAMA_DTYPE_F32);
    options.device = LLAMA_DEVICE_CPU;
    (options.weights_dtype, options.kv_dtype) = (LLAMA_DTYPE_F32, LLAMA_DTYPE_F32);
    (options.max_seq_len, options.max_batch_size) = (64, 8);
    options.n_threads = n_threads;
    Model::open(&reference(&format!("{name}/hf")), None, &options).unwrap()
}

/// The options of a case, and the lists that they point to.
struct Options {
    c: llama_generate_options,
    _biases: Vec<llama_bias>,
    _stop_tokens: Vec<i32>,
    _words: (Vec<i32>, Vec<usize>),
    _phrases: (Vec<i32>, Vec<usize>, Vec<usize>),
}

// SAFETY: the pointers are to vectors that go with them.
unsafe impl Send for Options {}
// SAFETY: nothing is changed through a shared reference.
unsafe impl Sync for Options {}

impl Options {
    fn new(given: &Value) -> Options {
        let mut c = greedy(24);
        let (mut biases, mut stop_tokens) = (Vec::new(), Vec::new());
        let mut words = (Vec::new(), Vec::new());
        let mut phrases = (Vec::new(), Vec::new(), Vec::new());
        for (name, value) in given.as_object().unwrap() {
            let int = || value.as_u64().unwrap() as u32;
            let float = || value.as_f64().unwrap() as f32;
            match &name[..] {
                "max_gen_len" => c.max_gen_len = int(),
                "force_words" => {
                    for group in value.as_array().unwrap() {
                        let group = group.as_array().unwrap();
                        for word in group {
                            phrases.0.extend(tokens(word));
                            phrases.1.push(word.as_array().unwrap().len());
                        }
                        phrases.2.push(group.len());
                    }
                }
                "contrast_beta" => c.contrast_beta = float(),
                "contrast_alpha" => c.contrast_alpha = float(),
                "num_beams" => c.num_beams = int(),
                "num_return_sequences" => c.num_return_sequences = int(),
                "length_penalty" => c.length_penalty = float(),
                "early_stopping" => {
                    c.early_stopping = match value.as_str().unwrap() {
                        "false" => LLAMA_EARLY_FALSE,
                        "true" => LLAMA_EARLY_TRUE,
                        _ => LLAMA_EARLY_NEVER,
                    }
                }
                "min_gen_len" => c.min_gen_len = int(),
                "no_repeat_ngram_size" => c.no_repeat_ngram_size = int(),
                "repetition_penalty" => c.repetition_penalty = float(),
                "presence_penalty" => c.presence_penalty = float(),
                "frequency_penalty" => c.frequency_penalty = float(),
                "stop_tokens" => stop_tokens = tokens(value),
                "bad_words" => {
                    for word in value.as_array().unwrap() {
                        words.0.extend(tokens(word));
                        words.1.push(word.as_array().unwrap().len());
                    }
                }
                "logit_bias" => {
                    for pair in value.as_array().unwrap() {
                        biases.push(llama_bias {
                            token: pair[0].as_i64().unwrap() as i32,
                            bias: pair[1].as_f64().unwrap() as f32,
                        });
                    }
                }
                _ => panic!("a case has {name}"),
            }
        }
        (c.logit_bias, c.n_logit_bias) = (biases.as_ptr(), biases.len());
        (c.stop_tokens, c.n_stop_tokens) = (stop_tokens.as_ptr(), stop_tokens.len());
        (c.bad_words, c.bad_word_lens, c.n_bad_words) =
            (words.0.as_ptr(), words.1.as_ptr(), words.1.len());
        (c.force_words, c.force_word_lens) = (phrases.0.as_ptr(), phrases.1.as_ptr());
        (c.force_group_lens, c.n_force_groups) = (phrases.2.as_ptr(), phrases.2.len());
        Options {
            c,
            _biases: biases,
            _stop_tokens: stop_tokens,
            _words: words,
            _phrases: phrases,
        }
    }
}

/// Token by token what the reference says; and alone, in the company of others with other options,
/// and on other numbers of threads the same bits.
#[test]
fn greedy_with_penalties_bans_and_biases() {
    let mut by_model: BTreeMap<String, Vec<(Value, Options)>> = BTreeMap::new();
    for case in cases("greedy.json") {
        let options = Options::new(&case["options"]);
        let name = case["model"].as_str().unwrap().to_owned();
        by_model.entry(name).or_default().push((case, options));
    }
    for (name, cases) in by_model {
        assert!(cases.len() > 30);
        let alone = model(&name, 1);
        let mut got = Vec::new();
        for (i, (case, options)) in cases.iter().enumerate() {
            let what = format!("case {i} of {name}, {}", case["kind"]);
            let sequence = alone.one(&tokens(&case["prompt"]), &options.c);
            assert_eq!(sequence.tokens, tokens(&case["tokens"]), "{what}");
            let finish = match case["finish"].as_str().unwrap() {
                "stop" => LLAMA_FINISH_STOP,
                _ => LLAMA_FINISH_LENGTH,
            };
            assert_eq!(sequence.finish, finish, "{what}");
            let logprobs = floats(&case["logprobs"]);
            assert_close(&sequence.logprobs, &logprobs, LOGPROB_TOLERANCE, &what);
            got.push(sequence);
        }
        let together = model(&name, 3);
        std::thread::scope(|scope| {
            for worker in 0..4 {
                let (name, cases, got, together) = (&name, &cases, &got, &together);
                scope.spawn(move || {
                    for (i, (case, options)) in cases.iter().enumerate().skip(worker).step_by(4) {
                        let sequence = together.one(&tokens(&case["prompt"]), &options.c);
                        assert_eq!(sequence.tokens, got[i].tokens, "case {i} of {name}");
                        assert_eq!(sequence.logprobs, got[i].logprobs, "case {i} of {name}");
                    }
                });
            }
        });
    }
}

/// Token by token what a plain restatement says; alone, in company and on other numbers of threads
/// the same bits; and nothing of it in a call that asks for no contrast.
#[test]
fn contrast_with_a_smaller_model() {
    let mut by_models: BTreeMap<(String, String), Vec<(Value, Options)>> = BTreeMap::new();
    for case in cases("contrastive.json") {
        let options = Options::new(&case["options"]);
        let name = |key: &str| case[key].as_str().unwrap().to_owned();
        let models = (name("model"), name("amateur"));
        by_models.entry(models).or_default().push((case, options));
    }
    let (mut differ, mut all) = (0, 0);
    for ((name, amateur), cases) in by_models {
        let alone = model_beside(&name, Some(&amateur), 1);
        assert_eq!(alone.info().has_draft, 1);
        let plain = model(&name, 1);
        let mut got = Vec::new();
        for (i, (case, options)) in cases.iter().enumerate() {
            let what = format!("case {i} of {name} without {amateur}");
            let prompt = tokens(&case["prompt"]);
            let sequence = alone.one(&prompt, &options.c);
            // Where the reference hardly decides, other sums may decide otherwise.
            if case["gap"].as_f64().unwrap() > 1e-3 {
                assert_eq!(sequence.tokens, tokens(&case["tokens"]), "{what}");
                let logprobs = floats(&case["logprobs"]);
                assert_close(&sequence.logprobs, &logprobs, LOGPROB_TOLERANCE, &what);
                all += 1;
            }
            let mut without = options.c;
            without.contrast_beta = 0.0;
            let plain = plain.one(&prompt, &without).tokens;
            assert_eq!(alone.one(&prompt, &without).tokens, plain, "{what}");
            differ += usize::from(plain != sequence.tokens);
            got.push(sequence);
        }
        let together = model_beside(&name, Some(&amateur), 3);
        std::thread::scope(|scope| {
            for worker in 0..4 {
                let (cases, got, together, name) = (&cases, &got, &together, &name);
                scope.spawn(move || {
                    for (i, (case, options)) in cases.iter().enumerate().skip(worker).step_by(4) {
                        let sequence = together.one(&tokens(&case["prompt"]), &options.c);
                        assert_eq!(sequence.tokens, got[i].tokens, "case {i} of {name}");
                        assert_eq!(sequence.logprobs, got[i].logprobs, "case {i} of {name}");
                    }
                });
            }
        });
    }
    assert!(all > 10 && differ > all / 2, "{differ} of {all}");
}

/// The filters on given logits, and on what models say of their first token.
#[test]
fn typical_epsilon_and_eta() {
    let mut models = BTreeMap::new();
    let mut seen = (0, 0);
    for (i, case) in cases("distributions.json").iter().enumerate() {
        let params = &case["params"];
        if !case["history"].is_null() {
            continue; // penalties of an output: src/engine/edits.rs
        }
        let logits = match case["logits"].is_null() {
            false => floats(&case["logits"]),
            // Log probabilities are logits, but for a constant.
            true => {
                let name = case["model"].as_str().unwrap();
                let model = models
                    .entry(name.to_owned())
                    .or_insert_with(|| model(name, 2));
                let mut options = greedy(1);
                options.flags |= LLAMA_GEN_IGNORE_EOS;
                options.top_logprobs = model.info().vocab_size;
                let sequence = model.one(&tokens(&case["prompt"]), &options);
                let mut logits = vec![0.0; options.top_logprobs as usize];
                for (token, logprob) in &sequence.top[0] {
                    logits[*token as usize] = *logprob;
                }
                logits
            }
        };
        let float = |name: &str, off: f32| params[name].as_f64().map_or(off, |v| v as f32);
        let options = GenerateOptions {
            temperature: float("temperature", 1.0),
            top_k: params["top_k"].as_i64().unwrap_or(0) as i32,
            top_p: float("top_p", 1.0),
            min_p: float("min_p", 0.0),
            typical_p: float("typical_p", 0.0),
            epsilon_cutoff: float("epsilon_cutoff", 0.0),
            eta_cutoff: float("eta_cutoff", 0.0),
            ..GenerateOptions::default()
        };
        let mut sampler = Sampler::new(logits.len());
        sampler.load(&logits);
        let kept = sampler.distribution(&(&options).into(), Changes::default());
        let total: u64 = kept.iter().map(|k| k.mass).sum();
        let support: Vec<i32> = kept.iter().map(|k| k.token).collect();
        assert_eq!(support, tokens(&case["support"]), "case {i}: {params}");
        let probs: Vec<f32> = kept.iter().map(|k| k.mass as f32 / total as f32).collect();
        assert_close(&probs, &floats(&case["probs"]), 1e-5, &format!("case {i}"));
        match case["logits"].is_null() {
            false => seen.0 += 1,
            true => seen.1 += 1,
        }
    }
    assert_eq!(seen, (20, 16));
}

/// The sequences of a case, their ends and scores.
fn assert_beams(got: &[Sequence], case: &Value, what: &str) {
    let tokens_of = |s: &Sequence| s.tokens.clone();
    assert_eq!(
        got.iter().map(tokens_of).collect::<Vec<_>>(),
        sequences(case),
        "{what}"
    );
    for (sequence, finish) in got.iter().zip(case["finish"].as_array().unwrap()) {
        let stop = finish == "stop";
        let want = if stop {
            LLAMA_FINISH_STOP
        } else {
            LLAMA_FINISH_LENGTH
        };
        assert_eq!(sequence.finish, want, "{what}");
        // Without a processor, what is summed are the log probabilities of the model.
        let plain = ["repetition_penalty", "logit_bias"]
            .iter()
            .all(|o| case["options"][o].is_null());
        if plain && !stop {
            let sum: f64 = sequence.logprobs.iter().map(|l| f64::from(*l)).sum();
            assert_eq!(sequence.sum_logprob, sum as f32, "{what}");
        }
    }
    let scores: Vec<f32> = got.iter().map(|s| s.score).collect();
    assert_close(&scores, &floats(&case["scores"]), 1e-3, what);
    let sums: Vec<f32> = got.iter().map(|s| s.sum_logprob).collect();
    assert_close(&sums, &floats(&case["sum_logprobs"]), 1e-3, what);
}

/// As the reference has them where it decides clearly; and alone, in the company of others and on
/// other numbers of threads the same bits.
fn beams_of(file: &str, least: usize) {
    let mut by_model: BTreeMap<String, Vec<(Value, Options)>> = BTreeMap::new();
    for case in cases(file) {
        let options = Options::new(&case["options"]);
        let name = case["model"].as_str().unwrap().to_owned();
        by_model.entry(name).or_default().push((case, options));
    }
    let mut seen = 0;
    for (name, cases) in by_model {
        let alone = model(&name, 1);
        let mut got = Vec::new();
        for (i, (case, options)) in cases.iter().enumerate() {
            let sequences = alone
                .generate(&[tokens(&case["prompt"])], &options.c)
                .unwrap();
            if case["gap"].as_f64().unwrap() > 1e-3 {
                assert_beams(
                    &sequences,
                    case,
                    &format!("case {i} of {name}: {}", case["options"]),
                );
                seen += 1;
            }
            got.push(sequences);
            let timings = alone.timings();
            assert_eq!(
                (timings.running, timings.pages_used),
                (0, 0),
                "case {i} of {name}"
            );
        }
        let together = model(&name, 3);
        std::thread::scope(|scope| {
            for worker in 0..4 {
                let (name, cases, got, together) = (&name, &cases, &got, &together);
                scope.spawn(move || {
                    for (i, (case, options)) in cases.iter().enumerate().skip(worker).step_by(4) {
                        let prompt = tokens(&case["prompt"]);
                        let sequences = together.generate(&[prompt], &options.c).unwrap();
                        for (sequence, alone) in sequences.iter().zip(&got[i]) {
                            let cached = alone.cached_tokens;
                            let sequence = Sequence {
                                cached_tokens: cached,
                                ..sequence.clone()
                            };
                            assert_eq!(&sequence, alone, "case {i} of {name}");
                        }
                    }
                });
            }
        });
        assert_eq!(together.timings().pages_used, 0);
    }
    assert!(seen >= least, "{seen} cases");
}

#[test]
fn beams() {
    beams_of("beam.json", 60);
}

#[test]
fn beams_that_must_write_phrases() {
    beams_of("constrained-beam.json", 80);
}
