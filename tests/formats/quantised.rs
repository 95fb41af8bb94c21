//! Quantised weights through the whole library: at load, in written checkpoints, in hostile ones.

use crate::checkpoints::collect::{Collect, Mat};
use crate::checkpoints::{Opened, TempDir, reference, sentence};
use llamabi::backend::Weights;
use llamabi::checkpoint::weights::LoadControl;
use llamabi::engine::{GenerateOptions, Prompt};
use llamabi::llama::quantise;
use llamabi::quant::Quant;
use llamabi::{BuildOptions, Dtype, Error, Llama, Result};
use std::path::Path;

fn demo(form: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("demo")
        .join(form)
}

fn load_dir(dir: &Path, dtype: Option<Dtype>) -> Result<Weights<Collect>> {
    let opened = Opened::new(dir, 512)?;
    let mut shares = Vec::new();
    let mut control = LoadControl {
        cancel: None,
        progress: &mut |share| {
            shares.push(share);
            true
        },
    };
    let weights = opened.load(&Collect::default(), dtype, &mut control)?;
    assert_eq!(shares.last(), Some(&1.0), "all that there is was read");
    Ok(weights)
}

fn matrices(w: &Weights<Collect>) -> Vec<&Mat> {
    let mut all = vec![&w.embedding];
    for l in &w.layers {
        all.extend([&l.wqkv, &l.wo, &l.w13, &l.w2]);
    }
    all.extend(&w.head);
    all
}

/// Bits, as some values may be NaN.
fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// What a matrix keeps of its floats.
fn kept(mat: &Mat) -> Vec<u32> {
    let round = |x: &f32| match mat.dtype() {
        Dtype::Bf16 => half::bf16::from_f32(*x).to_f32(),
        Dtype::F16 => half::f16::from_f32(*x).to_f32(),
        _ => *x,
    };
    bits(&mat.values.iter().map(round).collect::<Vec<_>>())
}

fn assert_same(a: &Weights<Collect>, b: &Weights<Collect>, what: &str) {
    for (a, b) in matrices(a).into_iter().zip(matrices(b)) {
        assert_eq!(a.dtypes, b.dtypes, "{what}");
        assert!(a.codes == b.codes && a.scales == b.scales, "{what}");
        assert!(
            kept(a) == kept(b) && bits(&a.bias) == bits(&b.bias),
            "{what}"
        );
        if a.dtype().quant().is_some() {
            assert!(a.packed.iter().flatten().all(|&packed| packed), "{what}");
        }
    }
    for (a, b) in a.layers.iter().zip(&b.layers) {
        assert_eq!(a.attention_norm, b.attention_norm);
        assert_eq!(a.ffn_norm, b.ffn_norm);
    }
    assert_eq!(a.norm, b.norm);
}

const MODELS: [&str; 6] = [
    "mha-f32/meta",
    "mha-f32/hf",
    "gqa-bf16/hf",
    "gqa-f16-mp2/meta",
    "variants/tied",
    "variants/attn-bias",
];

#[test]
fn written_checkpoints_are_what_loading_quantises() {
    let sources = MODELS.map(reference).into_iter();
    for source in sources.chain(["meta", "hf"].map(demo)) {
        for quant in Quant::OURS {
            let dir = TempDir::new();
            let to = dir.path().join("new");
            let what = format!("{} {quant:?}", source.display());
            let at_load = load_dir(&source, Some(quant.dtype()));
            let written = quantise::write(&source, &to, quant);
            let at_load = match at_load {
                // Rows that 64 does not divide.
                Err(error) if quant == Quant::Nf4 => {
                    let text = error.to_string();
                    assert!(
                        text.contains("rows that 64 divides, for nf4 weights"),
                        "{text}"
                    );
                    assert_eq!(written.unwrap_err().to_string(), text);
                    assert!(!to.exists(), "{what}");
                    continue;
                }
                other => other.unwrap(),
            };
            written.unwrap();
            assert_same(&at_load, &load_dir(&to, None).unwrap(), &what);
            assert_same(
                &at_load,
                &load_dir(&to, Some(quant.dtype())).unwrap(),
                &what,
            );
            let layer = &at_load.layers[0].wqkv;
            assert_eq!(layer.dtype(), quant.dtype());
            let head = at_load.head.as_ref().unwrap_or(&at_load.embedding);
            assert_eq!(head.dtype(), Dtype::Int8, "{what}");
        }
    }
}

fn generate(dir: &Path, weights: Option<Dtype>, kv: Option<Dtype>) -> (Vec<i32>, Vec<u32>, Dtype) {
    let options = BuildOptions {
        max_seq_len: 96,
        weights_dtype: weights,
        kv_dtype: kv,
        ..BuildOptions::default()
    };
    let llama = Llama::build(dir, None, &options, &mut |_| true).unwrap();
    let greedy = GenerateOptions {
        temperature: 0.0,
        logprobs: true,
        max_gen_len: Some(40),
        ..GenerateOptions::default()
    };
    let prompts = llama.text_prompts(&["Once upon a time"], None).unwrap();
    let s = llama.generate(prompts, greedy, &mut |_| true).unwrap();
    let s = &s.sequences[0];
    (
        s.tokens.clone(),
        bits(&s.logprobs),
        llama.info().weights_dtype,
    )
}

#[test]
fn a_written_checkpoint_says_the_same_to_the_last_bit() {
    for (form, quant) in [
        ("meta", Quant::Int8),
        ("hf", Quant::Int4),
        ("meta", Quant::Nf4),
    ] {
        let dir = TempDir::new();
        let to = dir.path().join("new");
        quantise::write(&demo(form), &to, quant).unwrap();
        let want = generate(&demo(form), Some(quant.dtype()), None);
        assert_eq!(generate(&to, None, None), want);
        assert_eq!(want.2, quant.dtype());
        assert!(want.0.len() > 10, "{:?}", want.0);
    }
}

#[test]
fn int8_weights_and_cache_tell_the_same_story() {
    let want = generate(&demo("meta"), None, None).0;
    let same = |got: &[i32]| want.iter().zip(got).take_while(|(a, b)| a == b).count();
    let int8 = generate(&demo("meta"), Some(Dtype::Int8), Some(Dtype::Int8)).0;
    // Greedy choices flip where two tokens are about as likely; not at once.
    assert!(same(&int8) >= 8, "{int8:?} for {want:?}");
}

/// As written, with its header or configuration changed.
fn changed(
    quant: Quant,
    change: impl Fn(&mut serde_json::Value, &mut serde_json::Value),
) -> String {
    let dir = TempDir::new();
    let to = dir.path().join("new");
    quantise::write(&demo("hf"), &to, quant).unwrap();
    let path = to.join("model.safetensors");
    let file = std::fs::read(&path).unwrap();
    let len = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let mut header = serde_json::from_slice(&file[8..8 + len]).unwrap();
    let json = std::fs::read(to.join("config.json")).unwrap();
    let mut config = serde_json::from_slice(&json).unwrap();
    change(&mut header, &mut config);
    let header = header.to_string();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(&file[8 + len..]);
    std::fs::write(&path, bytes).unwrap();
    std::fs::write(to.join("config.json"), config.to_string()).unwrap();
    let options = BuildOptions::default();
    let built = Llama::build(&to, None, &options, &mut |_| true).map(|_| ());
    let text = sentence(built, &to);
    // Without the file.
    let at = text.find("tensor `").unwrap_or(0);
    text[at..].to_owned()
}

#[test]
fn hostile_checkpoints_are_errors_that_name_the_tensor() {
    const Q: &str = "model.layers.0.self_attn.q_proj.weight";
    let rename = |header: &mut serde_json::Value, from: &str, to: &str| {
        let map = header.as_object_mut().unwrap();
        let info = map.remove(from).unwrap();
        map.insert(to.into(), info);
    };
    let scale = format!("{Q}.scale");
    let text = changed(Quant::Int4, |h, _| {
        h[&scale]["shape"] = serde_json::json!([6, 192])
    });
    assert_eq!(
        text,
        format!("tensor `{scale}`: expected shape [192, 6], found shape [6, 192]")
    );
    let text = changed(Quant::Int4, |h, _| h[&scale]["dtype"] = "BF16".into());
    assert_eq!(
        text,
        format!("tensor `{scale}`: expected dtype f16, as weights are int4, found dtype bf16")
    );
    let text = changed(Quant::Int4, |h, _| rename(h, &scale, "model.other"));
    assert_eq!(
        text,
        format!("tensor `{scale}`: expected shape [192, 6], found no such tensor")
    );
    let text = changed(Quant::Int4, |h, _| h[Q]["dtype"] = "I8".into());
    assert_eq!(
        text,
        format!("tensor `{Q}`: expected dtype u8, as weights are int4, found dtype i8")
    );
    for suffix in ["absmax", "nested_absmax", "nested_offset"] {
        let name = format!("{Q}.{suffix}");
        let text = changed(Quant::Nf4, |h, _| rename(h, &name, "model.other"));
        assert!(
            text.starts_with(&format!("tensor `{name}`: expected shape ")),
            "{text}"
        );
    }
    let text = changed(Quant::Nf4, |h, _| {
        let shape = serde_json::json!([1, 1]);
        h[&format!("{Q}.nested_offset")]["shape"] = shape;
    });
    assert!(
        text.contains("nested_offset`: expected shape [1], found shape [1, 1]"),
        "{text}"
    );
    // Another format than the configuration says, none, and what others write.
    let set = |format: &'static str| {
        move |_: &mut serde_json::Value, c: &mut serde_json::Value| {
            c["quantization_config"]["format"] = format.into();
        }
    };
    let text = changed(Quant::Int4, set("int8"));
    assert!(
        text.contains("expected shape [192, 192], found shape [192, 96]"),
        "{text}"
    );
    let text = changed(Quant::Int8, set("int3"));
    assert!(text.contains("quantization_config.format"), "{text}");
    let text = changed(Quant::Int8, |_, c| {
        c.as_object_mut().unwrap().remove("quantization_config");
    });
    assert!(text.contains("no quantization_config"), "{text}");
    assert!(text.contains("dtype i8"), "{text}");
}

#[test]
fn scales_that_are_no_numbers_are_refused() {
    let dir = TempDir::new();
    let to = dir.path().join("new");
    quantise::write(&demo("meta"), &to, Quant::Int8).unwrap();
    let path = to.join("model.safetensors");
    let mut file = std::fs::read(&path).unwrap();
    let len = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    file[8 + len..].fill(0xff);
    std::fs::write(&path, file).unwrap();
    let error = Llama::build(&to, None, &BuildOptions::default(), &mut |_| true).err();
    let error = error.unwrap().to_string();
    assert!(
        error.contains("expected finite numbers, found NaN at index 0"),
        "{error}"
    );
}

#[test]
fn a_quantised_checkpoint_is_used_as_it_is() {
    let dir = TempDir::new();
    let to = dir.path().join("new");
    quantise::write(&demo("meta"), &to, Quant::Int8).unwrap();
    for dtype in [Dtype::Bf16, Dtype::Int4, Dtype::F32] {
        let options = BuildOptions {
            weights_dtype: Some(dtype),
            ..BuildOptions::default()
        };
        let error = Llama::build(&to, None, &options, &mut |_| true)
            .err()
            .unwrap();
        assert!(matches!(error, Error::Unsupported(_)), "{error}");
        let text = format!("weights_dtype is {dtype}, but the checkpoint is quantised as int8");
        assert!(error.to_string().contains(&text), "{error}");
    }
    let again = quantise::write(&to, &dir.path().join("again"), Quant::Int4).unwrap_err();
    assert!(
        again.to_string().contains("quantised as int8 already"),
        "{again}"
    );
    // Nothing is written over.
    let exists = quantise::write(&demo("meta"), &to, Quant::Int4).unwrap_err();
    assert!(matches!(exists, Error::Io { .. }), "{exists}");
}

/// Law four through the engine: an answer has the same bits alone and in company.
#[test]
fn company_changes_no_bit() {
    for (weights, kv) in [
        (Dtype::Int4, Dtype::Int8),
        (Dtype::Nf4, Dtype::Bf16),
        (Dtype::Int8, Dtype::Int8),
    ] {
        let build = |n_threads, prefill_chunk| {
            let options = BuildOptions {
                max_seq_len: 128,
                weights_dtype: Some(weights),
                kv_dtype: Some(kv),
                n_threads,
                prefill_chunk,
                ..BuildOptions::default()
            };
            Llama::build(&demo("meta"), None, &options, &mut |_| true).unwrap()
        };
        let prompt =
            |i: i32| -> Vec<i32> { (0..20 + 9 * i).map(|j| 3 + (j * 31 + i) % 900).collect() };
        let options = || GenerateOptions {
            temperature: 0.0,
            logprobs: true,
            ignore_eos: true,
            max_gen_len: Some(20),
            ..GenerateOptions::default()
        };
        let alone: Vec<_> = (0..6)
            .map(|i| {
                let prompts = vec![Prompt::Tokens(prompt(i))];
                let all = build(1, Some(128)).generate(prompts, options(), &mut |_| true);
                all.unwrap().sequences.remove(0)
            })
            .collect();
        let together = build(2, Some(7));
        for _warm in [false, true] {
            let prompts = (0..6).map(|i| Prompt::Tokens(prompt(i))).collect();
            let all = together
                .generate(prompts, options(), &mut |_| true)
                .unwrap();
            for (got, want) in all.sequences.iter().zip(&alone) {
                assert_eq!(got.tokens, want.tokens, "{weights} {kv}");
                assert_eq!(bits(&got.logprobs), bits(&want.logprobs), "{weights} {kv}");
            }
        }
    }
}
