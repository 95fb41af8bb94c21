//! Options of quantised checkpoints: lists those that do not change any number, and refuses unknown
//! ones.

use crate::Result;
use crate::checkpoint::keys::Keys;
use serde_json::{Value, json};

/// These say how the weights were made, or how other programs run them. Real files are full of
/// them. (What AutoRound says of activations comes beside `act_bits`, which [`common`] checks.)
const NO_EFFECT: [&str; 67] = [
    "_load_in_4bit",
    "_load_in_8bit",
    "act_data_type",
    "act_dynamic",
    "act_group_size",
    "act_sym",
    "activation_scale_ub",
    "activation_scheme",
    "amp",
    "autoround_version",
    "backend",
    "batch_size",
    "block_name_to_quantize",
    "bnb_4bit_compute_dtype",
    "cache_block_outputs",
    "damp_percent",
    "dataset",
    "dequantize",
    "do_fuse",
    "enable_minmax_tuning",
    "enable_norm_bias_tuning",
    "enable_quanted_input",
    "exllama_config",
    "expert_dtype",
    "fuse_max_seq_len",
    "global_compression_ratio",
    "gradient_accumulate_steps",
    "ignore",
    "ignored_layers",
    "iters",
    "kv_cache_scheme",
    "llm_int8_enable_fp32_cpu_offload",
    "llm_int8_has_fp16_weight",
    "llm_int8_skip_modules",
    "llm_int8_threshold",
    "low_gpu_mem_usage",
    "lr",
    "max_input_length",
    "meta",
    "minmax_lr",
    "model_file_base_name",
    "model_name_or_path",
    "model_seqlen",
    "module_name_preceding_first_block",
    "modules_in_block_to_quantize",
    "modules_to_convert",
    "modules_to_fuse",
    "modules_to_not_convert",
    "nsamples",
    "observer",
    "observer_kwargs",
    "pad_token_id",
    "quant_block_list",
    "quant_method",
    "quantization_status",
    "scale_dtype",
    "seqlen",
    "static_groups",
    "to_quant_block_names",
    "tokenizer",
    "train_bs",
    "true_sequential",
    "use_cuda_fp16",
    "use_exllama",
    "use_mlp_norm",
    "version",
    "zp_dtype",
];

/// What GPTQ and AWQ both have, as GPTQModel, AutoRound and transformers write it: what [`common`]
/// reads, and how codes were searched for.
pub(super) const COMMON: [&str; 14] = [
    "act_bits",
    "act_group_aware",
    "block_size",
    "damp_auto_increment",
    "data_type",
    "desc_act",
    "dynamic",
    "foem",
    "gptaq",
    "hyb_act",
    "lm_head",
    "method",
    "mse",
    "pack_dtype",
];

/// Checks the options of [`COMMON`] that say what codes mean; `method` is the one of this file.
pub(super) fn common(keys: &Keys, method: &str) -> Result<()> {
    only(keys, "method", &json!(method))?;
    only(keys, "pack_dtype", &json!("int32"))?;
    only(keys, "data_type", &json!("int"))?;
    only(keys, "act_bits", &json!(16))?;
    no_exceptions(keys)
}

/// Checks `dynamic`, which maps patterns of modules to options of their own. A pattern that begins
/// with `-:` only names modules that are stored as floats, which their tensors show.
fn no_exceptions(keys: &Keys) -> Result<()> {
    const KEY: &str = "dynamic";
    let rules = keys.object(KEY)?;
    let mut patterns = rules.iter().flat_map(Keys::names);
    match patterns.find(|pattern| !pattern.starts_with("-:")) {
        Some(_) => {
            let expected = "only patterns that begin with `-:`: all codes have the same options";
            Err(keys.wrong(KEY, expected))
        }
        None => Ok(()),
    }
}

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
