//! `params.json` and `config.json`: what they mean, and what is refused.

use crate::checkpoints::{TempDir, config, reference, sentence};
use llamabi::backend::Shape;
use llamabi::checkpoint::open;
use llamabi::model::config::{Config, RopeScaling};
use llamabi::model::family::FAMILIES;
use llamabi::model::rope;
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

fn llama3_scaling(factor: f64, original_context: f64) -> RopeScaling {
    let (low_freq_factor, high_freq_factor) = (1.0, 4.0);
    RopeScaling::Llama3 {
        factor,
        low_freq_factor,
        high_freq_factor,
        original_context,
    }
}

/// Change keys of an object; `null` is a value like others.
fn with(mut base: Value, changes: &Value) -> Value {
    for (key, value) in changes.as_object().unwrap() {
        base[key] = value.clone();
    }
    base
}

fn read(file: &str, json: &Value) -> Result<Config> {
    let dir = TempDir::new();
    dir.file(file, json.to_string());
    config(dir.path(), 32_000)
}

fn refused(file: &str, json: &Value) -> String {
    let dir = TempDir::new();
    dir.file(file, json.to_string());
    let result = config(dir.path(), 32_000);
    assert!(matches!(result, Err(Error::Config { .. })), "{result:?}");
    sentence(result, dir.path())
}

/// Llama 2 7B's.
fn params() -> Value {
    json!({"dim": 4096, "multiple_of": 256, "n_heads": 32, "n_layers": 32, "norm_eps": 1e-5,
        "vocab_size": -1})
}

/// Llama 3.2 1B's, as transformers 4 wrote it.
fn config4() -> Value {
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

#[test]
fn what_params_json_may_not_say() {
    for (changes, expected) in [
        (
            json!({"dim": null}),
            "`dim` is null, expected an integer from 1 to 4194304",
        ),
        (
            json!({"dim": 0}),
            "`dim` is 0, expected an integer from 1 to 4194304",
        ),
        (
            json!({"dim": -4096}),
            "`dim` is -4096, expected an integer from 1 to 4194304",
        ),
        (
            json!({"dim": 4096.0}),
            "`dim` is 4096.0, expected an integer from 1 to 4194304",
        ),
        (
            json!({"dim": "4096"}),
            "`dim` is \"4096\", expected an integer from 1 to 4194304",
        ),
        (
            json!({"dim": u64::MAX}),
            "`dim` is 18446744073709551615, expected an integer from 1 to 4194304",
        ),
        (
            json!({"n_layers": 1e9 as u64}),
            "`n_layers` is 1000000000, expected an integer from 1 to 4096",
        ),
        (
            json!({"n_heads": 24}),
            "`n_heads` is 24, expected a divisor of the width, 4096",
        ),
        (
            json!({"n_heads": 4096}),
            "`n_heads` is 4096, expected heads of an even width (RoPE rotates pairs), not 1",
        ),
        (
            json!({"n_kv_heads": 6}),
            "`n_kv_heads` is 6, expected a divisor of the number of heads, 32",
        ),
        (
            json!({"n_kv_heads": 64}),
            "`n_kv_heads` is 64, expected a divisor of the number of heads, 32",
        ),
        (
            json!({"vocab_size": 0}),
            "`vocab_size` is 0, expected an integer from 1 to 16777216",
        ),
        (
            json!({"vocab_size": -2}),
            "`vocab_size` is -2, expected an integer from 1 to 16777216",
        ),
        (
            json!({"norm_eps": 0}),
            "`norm_eps` is 0, expected a number over 0 and under 1",
        ),
        (
            json!({"norm_eps": 1e-60}),
            "`norm_eps` is 1e-60, expected a number over 0 and under 1",
        ),
        (
            json!({"norm_eps": "1e-5"}),
            "`norm_eps` is \"1e-5\", expected a number over 0 and under 1",
        ),
        (
            json!({"multiple_of": 0}),
            "`multiple_of` is 0, expected an integer from 1 to 4194304",
        ),
        (
            json!({"ffn_dim_multiplier": -1.3}),
            "`ffn_dim_multiplier` is -1.3, expected a positive number that gives a feed-forward layer of some width",
        ),
        (
            json!({"ffn_dim_multiplier": 1e300}),
            "`ffn_dim_multiplier` is 1e+300, expected a positive number that gives a feed-forward layer of some width",
        ),
        (
            json!({"rope_theta": 0}),
            "`rope_theta` is 0, expected a number from 1 to 1e30",
        ),
        (
            json!({"use_scaled_rope": 1}),
            "`use_scaled_rope` is 1, expected true or false",
        ),
        (
            json!({"rope_scaling_factor": 32}),
            "`rope_scaling_factor` is 32, expected no such key, as use_scaled_rope is not true",
        ),
        (
            json!({"quantization_args": {"group_size": 32}}),
            "`quantization_args` is {\"group_size\":32}, expected no such key: only dense text models are supported",
        ),
        (
            json!({"moe_args": {"num_experts": 16}}),
            "`moe_args` is {\"num_experts\":16}, expected no such key: only dense text models are supported",
        ),
        (
            json!({"vision_chunk_size": 448}),
            "`vision_chunk_size` is 448, expected -1 (no vision)",
        ),
    ] {
        let got = refused("params.json", &with(params(), &changes));
        assert_eq!(got, format!("params.json: {expected}"));
    }
    let mut without = params();
    without.as_object_mut().unwrap().remove("n_layers");
    assert_eq!(
        refused("params.json", &without),
        "params.json: `n_layers` is missing, expected an integer from 1 to 4096"
    );
}

#[test]
fn what_config_json_may_not_say() {
    for (changes, expected) in [
        (
            json!({"model_type": "gemma2"}),
            "`model_type` is \"gemma2\", expected one of llama, mistral, qwen2, qwen3, phi3, granite",
        ),
        (
            json!({"model_type": null}),
            "`model_type` is null, expected one of llama, mistral, qwen2, qwen3, phi3, granite",
        ),
        (
            json!({"architectures": ["LlamaForSequenceClassification"]}),
            "`architectures` is [\"LlamaForSequenceClassification\"], expected [\"LlamaForCausalLM\"]",
        ),
        (
            json!({"hidden_act": "gelu"}),
            "`hidden_act` is \"gelu\", expected one of silu",
        ),
        (
            json!({"torch_dtype": "float64"}),
            "`torch_dtype` is \"float64\", expected one of float32, float16, bfloat16",
        ),
        (
            json!({"dtype": "int8"}),
            "`dtype` is \"int8\", expected one of float32, float16, bfloat16",
        ),
        (
            json!({"mlp_bias": 1}),
            "`mlp_bias` is 1, expected true or false",
        ),
        (
            json!({"attention_bias": "yes"}),
            "`attention_bias` is \"yes\", expected true or false",
        ),
        (
            json!({"quantization_config": {"bits": 4}}),
            "`quantization_config.quant_method` is missing, expected the name of a method",
        ),
        (
            json!({"quantization_config": {"quant_method": "gptq"}}),
            "`quantization_config.bits` is missing, expected an integer from 1 to 8",
        ),
        (
            json!({"quantization_config": {"quant_method": "gptq", "bits": 5}}),
            "`quantization_config.bits` is 5, expected 2, 3, 4 or 8",
        ),
        (
            json!({"quantization_config": {"quant_method": "gptq", "bits": 4, "dynamic": {"a": 1}}}),
            "`quantization_config.dynamic` is {\"a\":1}, expected no such option: it may change what codes mean",
        ),
        (
            json!({"quantization_config": {"quant_method": "awq", "bits": 4, "zero_point": false}}),
            "`quantization_config.zero_point` is false, expected true",
        ),
        (
            json!({"quantization_config": {"quant_method": "awq", "zero_point": true, "version": "gemv"}}),
            "`quantization_config.version` is \"gemv\", expected gemm",
        ),
        (
            json!({"quantization_config": {"quant_method": "bitsandbytes"}}),
            "`quantization_config.load_in_4bit` is missing, expected it or load_in_8bit to be true",
        ),
        (
            json!({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128]}}),
            "`quantization_config.weight_block_size` is [128], expected two sizes of a block",
        ),
        (
            json!({"quantization_config": {"quant_method": "compressed-tensors", "format": "marlin-24"}}),
            "`quantization_config.format` is \"marlin-24\", expected one of pack-quantized, int-quantized, float-quantized",
        ),
        (
            json!({"quantization_config": {"quant_method": "llamabi", "format": "int4", "group_size": 128}}),
            "`quantization_config.group_size` is 128, expected no such key beside quant_method and format",
        ),
        (
            json!({"head_dim": 63}),
            "`head_dim` is 63, expected heads of an even width (RoPE rotates pairs), not 63",
        ),
        (
            json!({"head_dim": 1 << 20}),
            "`head_dim` is 1048576, expected 32 heads of together at most 4194304",
        ),
        (
            json!({"head_dim": 0}),
            "`head_dim` is 0, expected an integer from 1 to 4194304",
        ),
        (
            json!({"num_key_value_heads": 3}),
            "`num_key_value_heads` is 3, expected a divisor of the number of heads, 32",
        ),
        (
            json!({"vocab_size": -1}),
            "`vocab_size` is -1, expected an integer from 1 to 16777216",
        ),
        (
            json!({"rms_norm_eps": null}),
            "`rms_norm_eps` is null, expected a number over 0 and under 1",
        ),
        (
            json!({"eos_token_id": 128256}),
            "`eos_token_id` is 128256, expected an id, or a list of ids, from 0 to 128255",
        ),
        (
            json!({"eos_token_id": [1, -1]}),
            "`eos_token_id` is [1,-1], expected an id, or a list of ids, from 0 to 128255",
        ),
        (
            json!({"rope_scaling": {"rope_type": "mrope", "factor": 2}}),
            "`rope_scaling.rope_type` is \"mrope\", expected one of default, linear, llama3, yarn, dynamic, longrope, su",
        ),
        (
            json!({"rope_scaling": {"type": "ntk", "factor": 2}}),
            "`rope_scaling.type` is \"ntk\", expected one of default, linear, llama3, yarn, dynamic, longrope, su",
        ),
        (
            json!({"rope_scaling": {"type": "linear", "rope_type": "default"}}),
            "`rope_scaling.type` is \"linear\", expected no other value than rope_type",
        ),
        (
            json!({"rope_scaling": {"factor": 2}}),
            "`rope_scaling.rope_type` is missing, expected one of default, linear, llama3, yarn, dynamic, longrope, su",
        ),
        (
            json!({"rope_scaling": {"rope_type": "linear"}}),
            "`rope_scaling.factor` is missing, expected a number",
        ),
        (
            json!({"rope_scaling": {"rope_type": "yarn", "factor": 2, "beta_fast": 1}}),
            "`rope_scaling.beta_fast` is 1, expected a number over beta_slow, 1",
        ),
        (
            json!({"rope_scaling": {"rope_type": "longrope", "short_factor": [1, 2]}}),
            "`rope_scaling.short_factor` is [1,2], expected a list of 32 numbers from 1e-6 to 1e9",
        ),
        (
            json!({"sliding_window": 5}),
            "`sliding_window` is 5, expected no such key: every token sees all before it",
        ),
        (
            json!({"rope_scaling": {"rope_type": "linear", "factor": 0.5}}),
            "`rope_scaling.factor` is 0.5, expected a number from 1 to 1e30",
        ),
        (
            json!({"rope_scaling": {"rope_type": "llama3", "factor": 8}}),
            "`rope_scaling.low_freq_factor` is missing, expected a number from 1e-30 to 1e29",
        ),
        (
            json!({"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4}}),
            "`rope_scaling.high_freq_factor` is 4, expected a number over low_freq_factor, 4, up to 1e30",
        ),
        (
            json!({"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4}}),
            "`rope_scaling.original_max_position_embeddings` is missing, expected an integer from 1 to 4294967295",
        ),
        (
            json!({"rope_scaling": "linear"}),
            "`rope_scaling` is \"linear\", expected an object",
        ),
        (
            json!({"rope_parameters": {"rope_type": "default"}}),
            "`rope_scaling` is {\"factor\":32.0,\"high_freq_factor\":4.0,\"low_freq_factor\":1.0,\"original_max_positi..., expected no other value than rope_parameters",
        ),
        (
            json!({"rope_scaling": null, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}),
            "`rope_theta` is 500000.0, expected 10000, as among the rope parameters",
        ),
        (
            json!({"partial_rotary_factor": 0.5}),
            "`partial_rotary_factor` is 0.5, expected 1 (all of every head is rotated)",
        ),
    ] {
        let got = refused("config.json", &with(config4(), &changes));
        assert_eq!(got, format!("config.json: {expected}"));
    }
}

#[test]
fn files_that_are_no_configuration() {
    let got = |name: &str, content: &str| {
        let dir = TempDir::new();
        dir.file(name, content);
        let result = config(dir.path(), 1);
        assert!(matches!(result, Err(Error::Format { .. })), "{result:?}");
        sentence(result, dir.path())
    };
    assert_eq!(got("params.json", "[]"), "params.json: not a JSON object");
    assert!(got("params.json", "").starts_with("params.json: not valid JSON: EOF"));
    assert!(
        got("config.json", "{\"a\": NaN}").contains("not valid JSON: expected value at line 1")
    );
    assert!(got("config.json", &"[".repeat(100_000)).contains("recursion limit"));
    assert_eq!(
        got("config.json", &" ".repeat((1 << 20) + 1)),
        "config.json: has 1048577 bytes, a configuration file has at most 1048576"
    );

    let dir = TempDir::new();
    let result = config(dir.path(), 1);
    assert!(matches!(&result, Err(Error::Io { path, .. }) if path == dir.path()));
    std::os::unix::fs::symlink("config.json", dir.path().join("config.json")).unwrap();
    let result = config(dir.path(), 1);
    assert!(matches!(&result, Err(Error::Io { .. })), "a link to itself");
    std::fs::create_dir(dir.path().join("params.json")).unwrap();
    assert_eq!(
        sentence(config(dir.path(), 1), dir.path()),
        "params.json: is a directory, expected a regular file"
    );
}

// ---- the RoPE table ----

/// Inverse frequencies computed with PyTorch's operations, each in float32.
fn table(
    rope_theta: f64,
    rope_scaling: RopeScaling,
    head_dim: usize,
    n: usize,
) -> (Vec<f32>, Vec<f32>) {
    let config = read("config.json", &config4()).unwrap();
    let shape = Shape {
        head_dim,
        ..config.shape.clone()
    };
    let config = Config {
        rope_theta,
        rope_scaling,
        rotary_dim: head_dim,
        shape,
        ..config
    };
    let table = rope::table(&config, n).unwrap();
    assert_eq!(
        rope::table_bytes(&config, n),
        4 * (table.cos.len() + table.sin.len()) as u64
    );
    (table.cos, table.sin)
}

#[test]
fn the_table_is_metas() {
    let (cos, sin) = table(10_000.0, RopeScaling::None, 8, 3);
    // Frequencies 1, 0.1, 0.01, 0.001.
    let angle = |position: f32, i: i32| position * 10f32.powi(-i);
    for (k, (cos, sin)) in cos.iter().zip(&sin).enumerate() {
        let angle = angle((k / 4) as f32, (k % 4) as i32);
        assert!((cos - angle.cos()).abs() < 1e-6 && (sin - angle.sin()).abs() < 1e-6);
    }
}

#[test]
fn angles_are_rounded_to_float32_as_metas_are() {
    // At position 131,071 the float32 product differs from the exact angle by up to 2^-8.
    let n = 131_072;
    let (cos, _) = table(500_000.0, RopeScaling::None, 128, n);
    let mut worst: f64 = 0.0;
    for (i, cos) in cos[(n - 1) * 64..].iter().enumerate() {
        let exponent = (2 * i) as f32 / 128.0;
        let frequency = 1.0 / (500_000f64.powf(exponent.into()) as f32);
        let rounded = (n - 1) as f32 * frequency;
        assert!((f64::from(*cos) - f64::from(rounded).cos()).abs() < 1e-6);
        worst = worst.max((f64::from(*cos) - ((n - 1) as f64 * f64::from(frequency)).cos()).abs());
    }
    assert!(
        worst > 1e-4,
        "the exact angle would be another model: {worst}"
    );
}

#[test]
fn stretched_frequencies() {
    // The first row after position 0 holds cos and sin of the frequencies themselves.
    let frequencies = |scaling| -> Vec<f64> {
        let (cos, sin) = table(500_000.0, scaling, 128, 2);
        let pairs = sin[64..].iter().zip(&cos[64..]);
        pairs
            .map(|(s, c)| f64::from(*s).atan2(f64::from(*c)))
            .collect()
    };
    let plain = frequencies(RopeScaling::None);
    let linear = frequencies(RopeScaling::Linear { factor: 4.0 });
    let llama3 = frequencies(llama3_scaling(8.0, 8192.0));
    let (mut kept, mut between, mut divided) = (0, 0, 0);
    for i in 0..64 {
        assert!((linear[i] / plain[i] - 0.25).abs() < 1e-6);
        let wavelength = 2.0 * std::f64::consts::PI / plain[i];
        let expected = if wavelength < 8192.0 / 4.0 {
            kept += 1;
            1.0
        } else if wavelength > 8192.0 {
            divided += 1;
            1.0 / 8.0
        } else {
            between += 1;
            let smooth = (8192.0 / wavelength - 1.0) / 3.0;
            (1.0 - smooth) / 8.0 + smooth
        };
        assert!((llama3[i] / plain[i] - expected).abs() < 1e-5, "{i}");
    }
    // Llama 3.1: 29 pairs keep their frequency, 6 are on the ramp, 29 turn eight times slower.
    assert_eq!((kept, between, divided), (29, 6, 29));
}

/// Frequencies of theta 10,000 and heads of 128, and their amplitude.
fn frequencies_and_amplitude(scaling: RopeScaling, positions: usize) -> (Vec<f64>, f64) {
    let (cos, sin) = table(10_000.0, scaling, 128, positions);
    let pair = |i: usize| (f64::from(sin[64 + i]), f64::from(cos[64 + i]));
    let frequencies = (0..64).map(|i| pair(i).0.atan2(pair(i).1)).collect();
    (frequencies, f64::from(cos[0]))
}

#[test]
fn yarn_divides_what_turns_slowly() {
    for truncate in [true, false] {
        let scaling = RopeScaling::Yarn {
            factor: 4.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            original_context: 4096.0,
            truncate,
            amplitude: 1.25,
        };
        let (got, amplitude) = frequencies_and_amplitude(scaling, 2);
        assert_eq!(amplitude, 1.25);
        // The dimensions that turn 32 times and once in 4,096 positions are 20.94 and 45.03.
        let dimension = |turns: f64| {
            64.0 * (4096.0 / (turns * 2.0 * std::f64::consts::PI)).ln() / 10_000f64.ln()
        };
        let (low, high) = match truncate {
            true => (20.0, 46.0),
            false => (dimension(32.0), dimension(1.0)),
        };
        for (i, got) in got.iter().enumerate() {
            let plain = 10_000f64.powf(-(i as f64) / 64.0);
            let ramp = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
            let want = plain * (1.0 - ramp) + plain / 4.0 * ramp;
            assert!((got / want - 1.0).abs() < 1e-5, "{i}: {got}, not {want}");
        }
    }
}

#[test]
fn dynamic_and_longrope_go_by_the_longest_sequence() {
    let dynamic = RopeScaling::Dynamic {
        factor: 2.0,
        original_context: 64.0,
    };
    let long = RopeScaling::LongRope {
        short: vec![1.5; 64],
        long: vec![3.0; 64],
        original_context: 64.0,
        amplitude: 1.25,
    };
    for (positions, stretch, divisor) in [(2, 1.0, 1.5), (64, 1.0, 1.5), (192, 5.0, 3.0)] {
        let theta = 10_000.0 * f64::powf(stretch, 128.0 / 126.0);
        let (dynamic, one) = frequencies_and_amplitude(dynamic.clone(), positions);
        let (long, amplitude) = frequencies_and_amplitude(long.clone(), positions);
        assert_eq!((one, amplitude), (1.0, 1.25));
        for i in 0..64 {
            let want = theta.powf(-(i as f64) / 64.0);
            assert!((dynamic[i] / want - 1.0).abs() < 1e-5, "{positions}, {i}");
            let want = 10_000f64.powf(-(i as f64) / 64.0) / divisor;
            assert!((long[i] / want - 1.0).abs() < 1e-5, "{positions}, {i}");
        }
    }
}

#[test]
fn windows_and_defaults_are_the_familys() {
    let family = |model_type: &str, class: &str, changes: &Value| {
        let names = json!({"model_type": model_type, "architectures": [class],
            "rope_scaling": null});
        let mut config = with(with(config4(), &names), changes);
        for key in ["num_key_value_heads", "head_dim"] {
            config.as_object_mut().unwrap().remove(key);
        }
        config
    };
    let mistral = |changes| family("mistral", "MistralForCausalLM", &changes);
    let config = read("config.json", &mistral(json!({}))).unwrap();
    assert_eq!(
        (config.shape.n_kv_heads, config.window(15)),
        (8, Some(4096))
    );
    let none = read("config.json", &mistral(json!({"sliding_window": null}))).unwrap();
    assert_eq!(none.window(0), None);

    let qwen = |changes| family("qwen3", "Qwen3ForCausalLM", &changes);
    let config = read("config.json", &qwen(json!({"sliding_window": 7}))).unwrap();
    assert_eq!((config.shape.head_dim, config.window(0)), (128, None));
    let windows = |changes: Value| {
        let on = json!({"use_sliding_window": true, "sliding_window": 7});
        let config = read("config.json", &qwen(with(on, &changes))).unwrap();
        (0..16).map(|n| config.window(n)).collect::<Vec<_>>()
    };
    let from = |first| {
        (0..16)
            .map(|n| (n >= first).then_some(7))
            .collect::<Vec<_>>()
    };
    assert_eq!(windows(json!({})), from(28));
    assert_eq!(windows(json!({"max_window_layers": 0})), from(0));
    assert_eq!(windows(json!({"max_window_layers": 9})), from(9));
    let kind = |n| ["full_attention", "sliding_attention"][usize::from(n >= 3)];
    let layers: Vec<&str> = (0..16).map(kind).collect();
    assert_eq!(windows(json!({"layer_types": layers})), from(3));
    for layers in [json!(["full_attention"]), json!(vec!["linear"; 16])] {
        let on = json!({"use_sliding_window": true, "layer_types": layers});
        let error = refused("config.json", &qwen(on));
        assert!(error.contains("a list of 16 times"), "{error}");
    }
}

#[test]
fn a_table_that_cannot_be_had() {
    let config = read("config.json", &config4()).unwrap();
    let result = rope::table(&config, usize::MAX / 4);
    assert!(matches!(result, Err(Error::Refused { .. })));
}
