//! What `params.json` and `config.json` may not say.

use crate::checkpoints::{TempDir, config, sentence};
use crate::config::{config4, params, refused, with};
use llamabi::Error;
use serde_json::json;

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
            "`model_type` is \"gemma2\", expected one of llama, mistral, qwen2, qwen3, phi3, granite, smollm3, ernie4_5, hunyuan_v1_dense, seed_oss, ministral3",
        ),
        (
            json!({"model_type": "arcee"}),
            "`model_type` is \"arcee\", expected one of llama, mistral, qwen2, qwen3, phi3, granite, smollm3, ernie4_5, hunyuan_v1_dense, seed_oss, ministral3",
        ),
        (
            json!({"model_type": null}),
            "`model_type` is null, expected one of llama, mistral, qwen2, qwen3, phi3, granite, smollm3, ernie4_5, hunyuan_v1_dense, seed_oss, ministral3",
        ),
        (
            json!({"architectures": ["LlamaForSequenceClassification"]}),
            "`architectures` is [\"LlamaForSequenceClassification\"], expected [\"LlamaForCausalLM\"]",
        ),
        (
            json!({"hidden_act": "gelu"}),
            "`hidden_act` is \"gelu\", expected one of silu, swish",
        ),
        (
            json!({"transformers_weights": "other.safetensors"}),
            "`transformers_weights` is \"other.safetensors\", expected one of model.safetensors",
        ),
        (
            json!({"is_causal": false}),
            "`is_causal` is false, expected true: a token sees only those before it",
        ),
        (
            json!({"per_layer_config": {"1": {"intermediate_size": 64}}}),
            "`per_layer_config` is {\"1\":{\"intermediate_size\":64}}, expected no such key: all layers have the same sizes",
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
            "`quantization_config.dynamic` is {\"a\":1}, expected only patterns that begin with `-:`: all codes have the same options",
        ),
        (
            json!({"quantization_config": {"quant_method": "gptq", "bits": 4, "pack_dtype": "int16"}}),
            "`quantization_config.pack_dtype` is \"int16\", expected \"int32\"",
        ),
        (
            json!({"quantization_config": {"quant_method": "gptq", "bits": 4, "format": "marlin"}}),
            "`quantization_config.format` is \"marlin\", expected one of gptq, gptq_v2",
        ),
        (
            json!({"quantization_config": {"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq_v2", "format": "gptq"}}),
            "`quantization_config.format` is \"gptq\", expected gptq_v2, as checkpoint_format says",
        ),
        (
            json!({"quantization_config": {"quant_method": "gptq", "bits": 4, "method": "gptaq"}}),
            "`quantization_config.method` is \"gptaq\", expected \"gptq\"",
        ),
        (
            json!({"quantization_config": {"quant_method": "awq", "zero_point": true}, "compression_config": {}}),
            "`compression_config` is {}, expected no such key beside quantization_config",
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
            json!({"original_max_position_embeddings": 4096}),
            "`rope_scaling.original_max_position_embeddings` is 8192, expected 4096, as beside these keys",
        ),
        (
            json!({"rope_scaling": {"rope_type": "longrope", "factor": 0.5}}),
            "`rope_scaling.factor` is 0.5, expected a number from 1 to 1e30",
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
