//! Options of quantised checkpoints: lists those that do not change any number, and refuses unknown
//! ones.

use crate::Result;
use crate::checkpoint::keys::Keys;
use serde_json::Value;

/// These say how the weights were made, or how other programs run them. Real files are full of
/// them.
const NO_EFFECT: [&str; 45] = [
    "_load_in_4bit",
    "_load_in_8bit",
    "activation_scale_ub",
    "activation_scheme",
    "backend",
    "batch_size",
    "block_name_to_quantize",
    "bnb_4bit_compute_dtype",
    "cache_block_outputs",
    "damp_percent",
    "dataset",
    "do_fuse",
    "exllama_config",
    "fuse_max_seq_len",
    "global_compression_ratio",
    "ignore",
    "ignored_layers",
    "kv_cache_scheme",
    "llm_int8_enable_fp32_cpu_offload",
    "llm_int8_has_fp16_weight",
    "llm_int8_skip_modules",
    "llm_int8_threshold",
    "max_input_length",
    "meta",
    "model_file_base_name",
    "model_name_or_path",
    "model_seqlen",
    "module_name_preceding_first_block",
    "modules_in_block_to_quantize",
    "modules_to_fuse",
    "modules_to_not_convert",
    "observer",
    "observer_kwargs",
    "pad_token_id",
    "quant_method",
    "quantization_status",
    "scale_dtype",
    "static_groups",
    "tokenizer",
    "true_sequential",
    "use_cuda_fp16",
    "use_exllama",
    "use_mlp_norm",
    "version",
    "zp_dtype",
];

/// Refuses an option that is neither in `read` nor in [`NO_EFFECT`], unless it is null, false or
/// empty.
pub(super) fn check(keys: &Keys, read: &[&str]) -> Result<()> {
    let known = |key: &str| read.contains(&key) || NO_EFFECT.contains(&key);
    let is_empty = |key: &str| match keys.get(key) {
        Some(Value::Bool(flag)) => !flag,
        Some(Value::String(text)) => text.is_empty(),
        Some(Value::Array(list)) => list.is_empty(),
        Some(Value::Object(map)) => map.is_empty(),
        Some(_) => false,
        None => true,
    };
    match keys.names().find(|key| !known(key) && !is_empty(key)) {
        Some(key) => Err(keys.wrong(key, "no such option: it may change what codes mean")),
        None => Ok(()),
    }
}

/// Checks an option that must have this value or be absent.
pub(super) fn only(keys: &Keys, key: &str, value: &Value) -> Result<()> {
    match keys.get(key) {
        Some(other) if other != value => Err(keys.wrong(key, value.to_string())),
        _ => Ok(()),
    }
}

/// Reads `group_size`; -1 and null mean a whole row.
pub(super) fn group_size(keys: &Keys) -> Result<Option<usize>> {
    const KEY: &str = "group_size";
    match keys.get(KEY).and_then(Value::as_i64) {
        Some(-1) => Ok(None),
        _ => keys.optional_size(KEY, 1 << 22),
    }
}
