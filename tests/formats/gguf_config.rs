//! What the keys of a GGUF file mean, and which of them are refused.

use crate::checkpoints::gguf::{File, Tensor, bool, f32, text, u32};
use crate::checkpoints::{Opened, TempDir, sentence};
use llamabi::backend::Rotation;
use llamabi::checkpoint;
use llamabi::model::Config;
use llamabi::model::config::{Biases, RopeScaling};

type Keys<'a> = &'a [(&'a str, Vec<u8>)];
type Tensors<'a> = &'a [(&'a str, &'a [f32])];

/// A file of these keys, beside those that every model has, and of tensors of float32.
fn file(arch: &str, keys: Keys<'_>, tensors: Tensors<'_>) -> File {
    let of = |name: &str| format!("{arch}.{name}");
    let mut file = File::default().key("general.architecture", text(arch));
    for (name, n) in [
        ("block_count", 2),
        ("context_length", 128),
        ("embedding_length", 32),
        ("feed_forward_length", 48),
        ("attention.head_count", 4),
        ("vocab_size", 300),
    ] {
        if keys.iter().all(|(given, _)| *given != name) {
            file = file.key(&of(name), u32(n));
        }
    }
    file = file.key(&of("attention.layer_norm_rms_epsilon"), f32(1e-5));
    for (name, value) in keys {
        file = file.key(&of(name), value.clone());
    }
    for (name, numbers) in tensors {
        let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
        file = file.tensor(Tensor::new(name, &[numbers.len() as u64], 0, &bytes));
    }
    file
}

/// What the keys of such a file mean.
fn config(arch: &str, keys: Keys<'_>, tensors: Tensors<'_>) -> Result<Config, String> {
    let dir = TempDir::new();
    let path = dir.file("m.gguf", file(arch, keys, tensors).bytes());
    let config = checkpoint::open(&path).and_then(|checkpoint| checkpoint.config(0));
    match config {
        Ok(config) => Ok(config),
        error => Err(sentence(error, dir.path())),
    }
}

#[test]
fn rope_types() {
    let original = ("rope.scaling.original_context_length", u32(32));
    let factor = ("rope.scaling.factor", f32(4.0));
    let kind = |name: &str| ("rope.scaling.type", text(name));
    let scaling =
        |keys: Keys<'_>, tensors: Tensors<'_>| config("phi3", keys, tensors).unwrap().rope_scaling;
    assert_eq!(scaling(&[], &[]), RopeScaling::None);
    assert_eq!(
        scaling(&[kind("none"), factor.clone()], &[]),
        RopeScaling::None
    );
    let linear = RopeScaling::Linear { factor: 4.0 };
    assert_eq!(scaling(&[kind("linear"), factor.clone()], &[]), linear);
    assert_eq!(scaling(std::slice::from_ref(&factor), &[]), linear);
    assert_eq!(scaling(&[("rope.scale_linear", f32(4.0))], &[]), linear);
    let by = RopeScaling::Divided {
        by: vec![1.0, 2.0, 3.0, 4.0],
    };
    assert_eq!(
        scaling(&[], &[("rope_freqs.weight", &[1.0, 2.0, 3.0, 4.0])]),
        by
    );
    let yarn = |beta_fast, beta_slow, original_context, more: f64| RopeScaling::Yarn {
        factor: 4.0,
        beta_fast,
        beta_slow,
        original_context,
        truncate: true,
        amplitude: more * (0.1 * 4f64.ln() + 1.0),
    };
    // Without an original context it is the context that the model is for.
    assert_eq!(
        scaling(&[kind("yarn"), factor.clone()], &[]),
        yarn(32.0, 1.0, 128.0, 1.0)
    );
    let keys = [
        kind("yarn"),
        factor.clone(),
        original.clone(),
        ("rope.scaling.yarn_beta_fast", f32(16.0)),
        ("rope.scaling.yarn_beta_slow", f32(2.0)),
        ("rope.scaling.attn_factor", f32(1.5)),
        ("rope.scaling.yarn_log_multiplier", f32(0.0)),
    ];
    assert_eq!(scaling(&keys, &[]), yarn(16.0, 2.0, 32.0, 1.5));
    let (long, short): (&[f32], &[f32]) = (&[1.0, 2.0, 3.0, 4.0], &[1.0, 1.0, 1.5, 2.0]);
    let tensors = [
        ("rope_factors_long.weight", long),
        ("rope_factors_short.weight", short),
    ];
    let wide = |by: &[f32]| by.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
    for keys in [
        vec![original.clone()],
        vec![kind("longrope"), original.clone()],
    ] {
        let keys = [keys, vec![("rope.scaling.attn_factor", f32(1.25))]].concat();
        let found = scaling(&keys, &tensors);
        let (long, short) = (wide(long), wide(short));
        let want = RopeScaling::LongRope {
            short,
            long,
            original_context: 32.0,
            amplitude: 1.25,
        };
        assert_eq!(found, want);
    }
}

#[test]
fn windows_parts_of_heads_and_multipliers() {
    let window = |arch, n| config(arch, &[("attention.sliding_window", u32(n))], &[]);
    assert_eq!(window("phi3", 16).unwrap().windows, [Some(16); 2]);
    assert_eq!(window("llama", 16).unwrap().windows, [Some(16); 2]);
    assert!(window("qwen2", 0).unwrap().windows.is_empty());
    let dims = |n| config("phi3", &[("rope.dimension_count", u32(n))], &[]);
    assert_eq!(dims(6).unwrap().rotary_dim, 6);
    let config_of = |arch| config(arch, &[("block_count", u32(9))], &[]).unwrap();
    let never = |n: &usize| config_of("smollm3").rotation(*n) == Rotation::Never;
    assert_eq!((0..9).filter(never).collect::<Vec<_>>(), [3, 7]);
    assert_eq!(
        config_of("hunyuan-dense").rotation(3),
        Rotation::BeforeNorms
    );
    let keys = [
        ("embedding_scale", f32(12.0)),
        ("residual_scale", f32(0.25)),
        ("attention.scale", f32(0.125)),
        ("logit_scale", f32(8.0)),
    ];
    let granite = config("granite", &keys, &[]).unwrap();
    assert_eq!(granite.residual_scale, 0.25 / 12.0);
    assert_eq!(granite.logits_scale, 0.125);
    assert_eq!(granite.qk_scale, (0.125 * 8f64.sqrt()).sqrt());
    assert_eq!(granite.shape.norm_eps, (f64::from(1e-5f32) / 144.0) as f32);
    let plain = config("granite", &[("attention.scale", f32(0.0))], &[]).unwrap();
    assert_eq!(
        (plain.qk_scale, plain.residual_scale, plain.logits_scale),
        (1.0, 1.0, 1.0)
    );
}

#[test]
fn what_would_be_another_model_is_refused() {
    let kind = |name: &str| ("rope.scaling.type", text(name));
    let factor = ("rope.scaling.factor", f32(4.0));
    let four: &[f32] = &[1.0; 4];
    let cases: [(&str, Keys<'_>, Tensors<'_>, &str); 25] = [
        (
            "llama",
            &[("final_logit_softcapping", f32(30.0))],
            &[],
            "`llama.final_logit_softcapping` is 30, expected 0",
        ),
        (
            "llama",
            &[("use_parallel_residual", bool(1))],
            &[],
            "`llama.use_parallel_residual` is true, expected false",
        ),
        (
            "llama",
            &[("expert_count", u32(8))],
            &[],
            "`llama.expert_count` is 8, expected 0",
        ),
        (
            "llama",
            &[("embedding_scale", f32(2.0))],
            &[],
            "`llama.embedding_scale` is 2, expected 1",
        ),
        (
            "qwen2",
            &[("attention.scale", f32(0.5))],
            &[],
            "`qwen2.attention.scale` is 0.5, expected 0",
        ),
        (
            "granite",
            &[("logit_scale", f32(0.0))],
            &[],
            "`granite.logit_scale` is 0, expected a number from 1e-6",
        ),
        (
            "granite",
            &[("embedding_scale", f32(f32::INFINITY))],
            &[],
            "`granite.embedding_scale` is inf",
        ),
        (
            "qwen2",
            &[("attention.sliding_window", u32(16))],
            &[],
            "`qwen2.attention.sliding_window` is 16, expected 0",
        ),
        (
            "llama",
            &[("rope.dimension_count", u32(6))],
            &[],
            "`llama.rope.dimension_count` is 6, expected 8",
        ),
        (
            "phi3",
            &[("rope.dimension_count", u32(5))],
            &[],
            "`phi3.rope.dimension_count` is 5, expected an even number up to 8",
        ),
        (
            "phi3",
            &[("rope.dimension_count", u32(10))],
            &[],
            "`phi3.rope.dimension_count` is 10",
        ),
        (
            "llama",
            &[kind("su")],
            &[],
            "`llama.rope.scaling.type` is su, expected none, linear, yarn or longrope",
        ),
        (
            "llama",
            &[kind("linear")],
            &[],
            "`llama.rope.scaling.factor` is missing",
        ),
        (
            "llama",
            &[kind("yarn")],
            &[],
            "`llama.rope.scaling.factor` is missing",
        ),
        (
            "llama",
            &[kind("linear"), ("rope.scaling.factor", f32(0.5))],
            &[],
            "`llama.rope.scaling.factor` is 0.5",
        ),
        (
            "llama",
            &[kind("yarn"), factor.clone(), ("rope.freq_base", f32(1.0))],
            &[],
            "`llama.rope.freq_base` is 1, expected a number over 1",
        ),
        (
            "llama",
            &[
                kind("yarn"),
                factor.clone(),
                ("rope.scaling.yarn_beta_fast", f32(1.0)),
            ],
            &[],
            "`llama.rope.scaling.yarn_beta_fast` is 1, expected a number over yarn_beta_slow",
        ),
        (
            "llama",
            &[
                kind("yarn"),
                factor.clone(),
                ("rope.scaling.yarn_ext_factor", f32(0.5)),
            ],
            &[],
            "`llama.rope.scaling.yarn_ext_factor` is 0.5, expected 1",
        ),
        (
            "llama",
            &[("rope.scaling.attn_factor", f32(2.0))],
            &[],
            "`llama.rope.scaling.attn_factor` is 2, expected 1",
        ),
        (
            "phi3",
            &[kind("longrope")],
            &[],
            "tensor `rope_factors_short.weight`: expected shape [4] of f32, for longrope, found no such tensor",
        ),
        (
            "phi3",
            &[],
            &[("rope_factors_long.weight", four)],
            "tensor `rope_factors_long.weight`: expected rope_factors_long.weight and rope_factors_short.weight together",
        ),
        (
            "llama",
            std::slice::from_ref(&factor),
            &[("rope_freqs.weight", four)],
            "tensor `rope_freqs.weight`: expected no such tensor beside rope.scaling",
        ),
        (
            "phi3",
            &[kind("none")],
            &[("rope_factors_long.weight", four)],
            "tensor `rope_factors_long.weight`: expected no such tensor beside this rope.scaling",
        ),
        (
            "phi3",
            &[kind("linear"), factor.clone()],
            &[("rope_factors_short.weight", four)],
            "tensor `rope_factors_short.weight`: expected no such tensor beside this rope.scaling",
        ),
        (
            "phi3",
            &[kind("yarn"), factor.clone()],
            &[("rope_factors_long.weight", four)],
            "tensor `rope_factors_long.weight`: expected no such tensor beside this rope.scaling",
        ),
    ];
    for (arch, keys, tensors, expected) in cases {
        let found = config(arch, keys, tensors).unwrap_err();
        assert!(
            found.starts_with(&format!("m.gguf: {expected}")),
            "{found}\n{expected}"
        );
    }
    let zero = config(
        "llama",
        &[],
        &[("rope_freqs.weight", &[1.0, 0.0, 1.0, 1.0])],
    )
    .unwrap_err();
    assert!(
        zero.ends_with("expected numbers from 1e-30 to 1e30, found 0"),
        "{zero}"
    );
}

#[test]
fn biases_are_those_that_the_file_has_or_the_family_always_has() {
    let q = ("blk.0.attn_q.bias", &[0f32; 32][..]);
    for (arch, tensors, qkv) in [
        ("llama", &[][..], false),
        ("llama", &[q], true),
        // Those that are missing are then required, as every tensor is.
        ("qwen2", &[], true),
    ] {
        let Biases { qkv: has, o, mlp } = config(arch, &[], tensors).unwrap().biases;
        assert_eq!([has, o, mlp], [qkv, false, false], "{arch}");
    }
    let norm = &[1f32; 32][..];
    let norms = [
        ("blk.0.attn_norm.weight", norm),
        ("blk.0.ffn_norm.weight", norm),
    ];
    let embedding = Tensor::new("token_embd.weight", &[32, 300], 0, &[0; 4 * 32 * 300]);
    let dir = TempDir::new();
    let file = file("qwen2", &[], &norms).tensor(embedding);
    let opened = Opened::new(&dir.file("m.gguf", file.bytes()), 0).unwrap();
    let found = sentence(opened.plan(None), dir.path());
    let expected = "m.gguf: tensor `blk.0.attn_q.bias`: expected shape [32], found no such tensor";
    assert_eq!(found, expected);
}
