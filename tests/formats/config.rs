//! `params.json` and `config.json`: what they mean.

use crate::checkpoints::{TempDir, config, reference, sentence};
use llamabi::backend::Shape;
use llamabi::checkpoint::open;
use llamabi::model::config::{Config, RopeScaling};
use llamabi::model::family::FAMILIES;
use llamabi::{Error, Result};
use serde_json::{Value, json};

#[test]
fn the_reference_models() {
    let read = |name: &str| config(&reference(name), 512).unwrap();
    let shape = Shape {
        dim: 96,
        n_layers: 2,
        n_heads: 6,
        n_kv_heads: 2,
        head_dim: 16,
        ffn_dim: 336,
        vocab_size: 512,
        norm_eps: 1e-6,
    };
    let expected = Config::plain(&FAMILIES[0], shape);
    assert_eq!(read("gqa-bf16/meta"), expected);
    let hf = Config {
        eos_ids: vec![2],
        ..expected
    };
    assert_eq!(read("gqa-bf16/hf"), hf);

    assert_eq!(
        read("variants/linear-rope").rope_scaling,
        RopeScaling::Linear { factor: 4.0 }
    );
    assert_eq!(read("variants/rope-theta-500k").rope_theta, 500_000.0);
    assert_eq!(read("variants/head-dim-32").shape.head_dim, 32);
    let biases = read("variants/attn-bias").biases;
    assert_eq!((biases.qkv, biases.o, biases.mlp), (true, true, false));
    assert!(read("variants/tied").tied_embeddings);
    let llama3 = read("variants/llama3-rope");
    assert_eq!(llama3.rope_theta, 500_000.0);
    assert_eq!(llama3.rope_scaling, llama3_scaling(8.0, 64.0));
}

pub fn llama3_scaling(factor: f64, original_context: f64) -> RopeScaling {
    let (low_freq_factor, high_freq_factor) = (1.0, 4.0);
    RopeScaling::Llama3 {
        factor,
        low_freq_factor,
        high_freq_factor,
        original_context,
    }
}

/// Change keys of an object; `null` is a value like others.
pub fn with(mut base: Value, changes: &Value) -> Value {
    for (key, value) in changes.as_object().unwrap() {
        base[key] = value.clone();
    }
    base
}

pub fn read(file: &str, json: &Value) -> Result<Config> {
    let dir = TempDir::new();
    dir.file(file, json.to_string());
    config(dir.path(), 32_000)
}

pub fn refused(file: &str, json: &Value) -> String {
    let dir = TempDir::new();
    dir.file(file, json.to_string());
    let result = config(dir.path(), 32_000);
    assert!(matches!(result, Err(Error::Config { .. })), "{result:?}");
    sentence(result, dir.path())
}

/// Llama 2 7B's.
pub fn params() -> Value {
    json!({"dim": 4096, "multiple_of": 256, "n_heads": 32, "n_layers": 32, "norm_eps": 1e-5,
        "vocab_size": -1})
}

/// Llama 3.2 1B's, as transformers 4 wrote it.
pub fn config4() -> Value {
    json!({"architectures": ["LlamaForCausalLM"], "attention_bias": false, "bos_token_id": 128000,
        "eos_token_id": [128001, 128008, 128009], "head_dim": 64, "hidden_act": "silu",
        "hidden_size": 2048, "intermediate_size": 8192, "max_position_embeddings": 131072,
        "mlp_bias": false, "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 16,
        "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-5,
        "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192, "rope_type": "llama3"},
        "rope_theta": 500000.0, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
        "use_cache": true, "vocab_size": 128256})
}

/// Widths as published: Llama 2 7B, 13B, 70B; Llama 3 8B, 70B; Llama 3.2 1B, 3B; Llama 3.1 405B.
#[test]
fn the_feed_forward_width_of_every_release() {
    for (dim, multiple_of, multiplier, width) in [
        (4096, 256, None, 11008),
        (5120, 256, None, 13824),
        (8192, 4096, Some(1.3), 28672),
        (4096, 1024, Some(1.3), 14336),
        (2048, 256, Some(1.5), 8192),
        (3072, 256, Some(1.0), 8192),
        (16384, 4096, Some(1.2), 53248),
    ] {
        let changes =
            json!({"dim": dim, "multiple_of": multiple_of, "ffn_dim_multiplier": multiplier});
        let config = read("params.json", &with(params(), &changes)).unwrap();
        assert_eq!(config.shape.ffn_dim, width, "{changes}");
    }
}

#[test]
fn params_json_of_llama_2_and_3() {
    let config = read("params.json", &params()).unwrap();
    assert_eq!(config.shape.vocab_size, 32_000, "the tokenizer's");
    assert_eq!((config.shape.n_kv_heads, config.shape.head_dim), (32, 128));
    assert_eq!(
        (config.rope_theta, config.rope_scaling),
        (10_000.0, RopeScaling::None)
    );

    let llama3 = json!({"n_kv_heads": 8, "vocab_size": 128256, "rope_theta": 500000.0,
        "use_scaled_rope": true, "ffn_dim_multiplier": 1.3, "multiple_of": 1024});
    let config = read("params.json", &with(params(), &llama3)).unwrap();
    assert_eq!(
        (config.shape.vocab_size, config.shape.n_kv_heads),
        (128_256, 8)
    );
    assert_eq!(config.rope_theta, 500_000.0);
    assert_eq!(config.rope_scaling, llama3_scaling(8.0, 8192.0));

    let given =
        json!({"use_scaled_rope": true, "rope_scaling_factor": 32, "rope_high_freq_factor": 4});
    let config = read("params.json", &with(params(), &given)).unwrap();
    assert_eq!(config.rope_scaling, llama3_scaling(32.0, 8192.0));

    // Llama 3.2 of 1B, and of 3B: their files do not say the factor with which they were trained.
    let scaled = json!({"use_scaled_rope": true, "vocab_size": 128256, "rope_theta": 500000.0});
    for (dim, n_layers, n_heads, factor) in [
        (2048, 16, 32, 32.0),
        (3072, 28, 24, 32.0),
        (4096, 32, 32, 8.0),
    ] {
        let sizes = json!({"dim": dim, "n_layers": n_layers, "n_heads": n_heads});
        let params = with(with(params(), &scaled), &sizes);
        let config = read("params.json", &params).unwrap();
        assert_eq!(config.rope_scaling, llama3_scaling(factor, 8192.0), "{dim}");
        let given = with(params, &json!({"rope_scaling_factor": 16.0}));
        let config = read("params.json", &given).unwrap();
        assert_eq!(config.rope_scaling, llama3_scaling(16.0, 8192.0), "{dim}");
    }

    // The defaults of ModelArgs.
    let few = json!({"dim": 64, "n_layers": 1, "n_heads": 4});
    let config = read("params.json", &few).unwrap();
    assert_eq!((config.shape.norm_eps, config.shape.ffn_dim), (1e-5, 256));
}

#[test]
fn config_json_of_both_generations() {
    let four = read("config.json", &config4()).unwrap();
    assert_eq!(four.eos_ids, [128001, 128008, 128009]);
    assert_eq!(four.rope_scaling, llama3_scaling(32.0, 8192.0));
    assert!(four.tied_embeddings);

    let mut five = config4();
    let map = five.as_object_mut().unwrap();
    let mut rope = map.remove("rope_scaling").unwrap();
    rope["rope_theta"] = map.remove("rope_theta").unwrap();
    map.remove("torch_dtype");
    let five = with(five, &json!({"rope_parameters": rope, "dtype": "bfloat16"}));
    assert_eq!(read("config.json", &five).unwrap(), four);
    // Another name of the same function.
    let swish = with(config4(), &json!({"hidden_act": "swish"}));
    assert_eq!(read("config.json", &swish).unwrap(), four);

    // Llama 1 as first converted: no theta, no key heads, no bias keys; and null for "not set".
    let first = json!({"architectures": ["LlamaForCausalLM"], "eos_token_id": 2, "hidden_act": "silu",
        "hidden_size": 4096, "intermediate_size": 11008, "model_type": "llama",
        "num_attention_heads": 32, "num_hidden_layers": 32, "rms_norm_eps": 1e-6,
        "torch_dtype": "float16", "vocab_size": 32000, "rope_scaling": null, "head_dim": null,
        "num_key_value_heads": null, "quantization_config": null});
    let config = read("config.json", &first).unwrap();
    assert_eq!((config.shape.n_kv_heads, config.shape.head_dim), (32, 128));
    assert_eq!(
        (config.rope_theta, config.rope_scaling),
        (10_000.0, RopeScaling::None)
    );
    assert_eq!(
        (config.eos_ids, config.tied_embeddings, config.biases.qkv),
        (vec![2], false, false)
    );
}

#[test]
fn rope_types_under_both_names() {
    let rope = |rope: Value| {
        let config = with(config4(), &json!({"rope_scaling": rope}));
        read("config.json", &config).map(|config| config.rope_scaling)
    };
    let linear = RopeScaling::Linear { factor: 2.0 };
    assert_eq!(
        rope(json!({"type": "linear", "factor": 2})).unwrap(),
        linear
    );
    assert_eq!(
        rope(json!({"rope_type": "linear", "factor": 2.0})).unwrap(),
        linear
    );
    let both = json!({"type": "linear", "rope_type": "linear", "factor": 2.0});
    assert_eq!(rope(both).unwrap(), linear);
    assert_eq!(
        rope(json!({"rope_type": "default"})).unwrap(),
        RopeScaling::None
    );
    assert_eq!(
        rope(json!({"rope_theta": 500000.0})).unwrap(),
        RopeScaling::None
    );
}

/// It would take long to compare each of these with each other one.
#[test]
fn many_eos_ids_are_each_taken_once() {
    let dir = TempDir::new();
    let list = |ids: std::ops::Range<i32>| json!({"eos_token_id": ids.collect::<Vec<_>>()});
    let mut first = list(1_000_000..1_120_000);
    first["vocab_size"] = 2_000_000.into();
    dir.file("config.json", with(config4(), &first).to_string());
    let second = list(1_060_000..1_180_000);
    dir.file("generation_config.json", second.to_string());
    let ids = config(dir.path(), 1).unwrap().eos_ids;
    assert!(ids.into_iter().eq(1_000_000..1_180_000));
}

#[test]
fn generation_config_adds_and_weights_tell_the_form() {
    let dir = TempDir::new();
    dir.file("config.json", config4().to_string());
    dir.file(
        "generation_config.json",
        r#"{"eos_token_id": [128009, 7], "temperature": 0.6}"#,
    );
    let both = config(dir.path(), 1).unwrap();
    assert_eq!(both.eos_ids, [128001, 128008, 128009, 7]);
    dir.file("generation_config.json", r#"{"eos_token_id": "</s>"}"#);
    assert_eq!(
        sentence(config(dir.path(), 1), dir.path()),
        "generation_config.json: `eos_token_id` is \"</s>\", expected an id, or a list of ids, from 0 \
         to 128255"
    );
    dir.file("params.json", params().to_string());
    assert_eq!(open(dir.path()).unwrap().form(), "HuggingFace");
    dir.file("consolidated.00.pth", "");
    assert_eq!(open(dir.path()).unwrap().form(), "Meta");
}
