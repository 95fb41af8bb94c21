//! What other programs have written into quantised checkpoints over the years: every spelling of a
//! header, and tensors beside the codes, give the weights of the case that they were made from.

use crate::checkpoints::collect::{Collect, Mat};
use crate::checkpoints::{Opened, TempDir, sentence};
use llamabi::checkpoint::weights::LoadControl;
use llamabi::log::{Level, Log};
use llamabi::{BuildOptions, Dtype, Llama};
use safetensors::tensor::TensorView;
use safetensors::{Dtype as Stored, SafeTensors};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const OPTIONS: &str = "quantization_config";
const WEIGHTS: &str = "model.safetensors";

/// A tensor that is added to a checkpoint: its name, format, shape and bytes.
type Extra<'a> = (&'a str, Stored, &'a [usize], &'a [u8]);

fn case(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data/quantised")
        .join(name)
}

/// A copy of a case with another `config.json` and more tensors.
fn changed(name: &str, change: impl Fn(&mut Value), extras: &[Extra<'_>]) -> TempDir {
    let (from, dir) = (case(name), TempDir::new());
    let config = std::fs::read(from.join("config.json")).unwrap();
    let mut config = serde_json::from_slice(&config).unwrap();
    change(&mut config);
    dir.file("config.json", config.to_string());
    let bytes = std::fs::read(from.join(WEIGHTS)).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let mut tensors = file.tensors();
    for (name, dtype, shape, bytes) in extras {
        let view = TensorView::new(*dtype, shape.to_vec(), bytes).unwrap();
        tensors.push(((*name).to_owned(), view));
    }
    dir.file(WEIGHTS, safetensors::serialize(tensors, None).unwrap());
    dir
}

fn load(dir: &Path) -> llamabi::Result<Vec<Mat>> {
    let mut control = LoadControl {
        cancel: None,
        progress: &mut |_| true,
    };
    let opened = Opened::new(dir, 300)?;
    let weights = opened.load(&Collect::default(), Some(Dtype::F32), &mut control)?;
    let layers = weights.layers.into_iter();
    let matrices = layers.flat_map(|l| [l.wqkv, l.wo, l.w13, l.w2]);
    Ok(matrices.collect())
}

#[track_caller]
fn assert_unchanged(name: &str, dir: &TempDir) {
    let got = load(dir.path()).unwrap_or_else(|e| panic!("{name}: {e}"));
    let want = load(&case(name)).unwrap();
    assert!(want.iter().all(|mat| mat.values.iter().any(|&x| x != 0.0)));
    assert!(got == want, "{name}");
}

/// Floats beside quantised modules are those of a checkpoint of floats, in the same order: here all
/// of them, of a family whose q and k have norms in the order of their rows.
#[test]
fn norms_of_heads_are_those_of_the_floats() {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/families/qwen3");
    let dir = TempDir::new();
    std::fs::copy(from.join(WEIGHTS), dir.path().join(WEIGHTS)).unwrap();
    let config = std::fs::read(from.join("config.json")).unwrap();
    let mut config: Value = serde_json::from_slice(&config).unwrap();
    config[OPTIONS] = json!({"quant_method": "fp8", "ignored_layers": ["model.layers"]});
    dir.file("config.json", config.to_string());
    let norms = |dir: &Path| {
        let mut control = LoadControl {
            cancel: None,
            progress: &mut |_| true,
        };
        let opened = Opened::new(dir, 300).unwrap();
        let weights = opened.load(&Collect::default(), Some(Dtype::F32), &mut control);
        let layers = weights.unwrap().layers.into_iter();
        let norms = layers.map(|layer| layer.head_norms.expect("of Qwen3"));
        norms.collect::<Vec<_>>()
    };
    assert!(norms(dir.path()) == norms(&from));
}

/// Takes a key out of `config.json`.
fn take(config: &mut Value, key: &str) -> Value {
    config.as_object_mut().unwrap().remove(key).unwrap()
}

#[test]
fn the_older_key_of_compressed_tensors() {
    for name in ["ct-pack-sym", "ct-pack-asym", "ct-int8", "ct-fp8"] {
        let dir = changed(
            name,
            |config| {
                let mut options = take(config, OPTIONS);
                take(&mut options, "quant_method");
                config["compression_config"] = options;
            },
            &[],
        );
        assert_unchanged(name, &dir);
    }
}

/// What GPTQModel 7 writes for a model whose last layer stays in floats: the method and the format
/// have two keys each, and `meta` says how the codes were found.
fn gptqmodel(format: &str, options: &Value) -> Value {
    json!({
        "bits": options["bits"],
        "dynamic": {"-:.*lm_head.*": {}},
        "group_size": options["group_size"],
        "desc_act": false,
        "lm_head": false,
        "method": "gptq",
        "quant_method": "gptq",
        "format": format,
        "checkpoint_format": format,
        "pack_dtype": "int32",
        "meta": {
            "quantizer": ["gptqmodel:7.3.2"],
            "uri": "https://github.com/modelcloud/gptqmodel",
            "damp_percent": 0.05,
            "damp_auto_increment": 0.01,
            "act_group_aware": true,
            "fallback": {"strategy": "rtn", "threshold": "0.5%", "smooth": null},
            "offload_to_disk": true,
            "pack_impl": "cpu",
        },
        "sym": options["sym"],
    })
}

#[test]
fn headers_of_gptqmodel() {
    for (name, format) in [("gptq-sym-g32", "gptq"), ("gptq-v2", "gptq_v2")] {
        let current = changed(
            name,
            |config| config[OPTIONS] = gptqmodel(format, &config[OPTIONS]),
            &[],
        );
        assert_unchanged(name, &current);
        let one_name = changed(
            name,
            |config| {
                let options = &mut config[OPTIONS];
                take(options, "checkpoint_format");
                options["format"] = format.into();
            },
            &[],
        );
        assert_unchanged(name, &one_name);
        // As transformers writes it, whose options of the search are not in `meta`.
        let flat = changed(
            name,
            |config| {
                let options = &mut config[OPTIONS];
                for key in ["act_group_aware", "true_sequential", "hyb_act"] {
                    options[key] = true.into();
                }
                options["damp_auto_increment"] = 0.0025.into();
                options["mse"] = 2.0.into();
                options["block_size"] = 128.into();
            },
            &[],
        );
        assert_unchanged(name, &flat);
    }
}

/// AWQ as GPTQModel writes it: beside AutoAWQ's options those that its GPTQ has.
fn awq_of_gptqmodel(options: &Value) -> Value {
    json!({
        "bits": 4,
        "checkpoint_format": "gemm",
        "desc_act": false,
        "dynamic": {"-:.*lm_head.*": {}},
        "format": "gemm",
        "group_size": options["group_size"],
        "lm_head": false,
        "meta": {"quantizer": ["gptqmodel:5.6.12"], "act_group_aware": true},
        "method": "awq",
        "pack_dtype": "int32",
        "quant_method": "awq",
        "sym": false,
        "version": "gemm",
        "zero_point": true,
    })
}

#[test]
fn headers_of_awq_from_gptqmodel() {
    let name = "awq-g32";
    let written = |key: &str, value: Value| {
        let rewrite = |config: &mut Value| {
            config[OPTIONS] = awq_of_gptqmodel(&config[OPTIONS]);
            config[OPTIONS][key] = value.clone();
        };
        changed(name, rewrite, &[])
    };
    assert_unchanged(name, &written("sym", true.into()));
    for (key, value, expected) in [
        ("format", "gemv".into(), "expected gemm"),
        ("checkpoint_format", "gemv_fast".into(), "expected gemm"),
        ("method", "gptq".into(), "expected \"awq\""),
        ("pack_dtype", "int64".into(), "expected \"int32\""),
        (
            "dynamic",
            json!({"+:.*up_proj": {"bits": 8}}),
            "begin with `-:`",
        ),
        ("zero_point", false.into(), "expected true"),
    ] {
        let dir = written(key, value);
        let text = sentence(load(dir.path()), dir.path());
        assert!(text.contains(key) && text.contains(expected), "{text}");
    }
}

/// What AutoRound adds to the options of the formats that it writes.
#[test]
fn headers_of_autoround() {
    let added = json!({
        "act_bits": 16, "act_data_type": "int", "act_dynamic": true, "act_group_size": 128,
        "act_sym": true, "amp": true, "autoround_version": "0.5.1", "batch_size": 8,
        "data_type": "int", "enable_minmax_tuning": true, "enable_norm_bias_tuning": false,
        "enable_quanted_input": true, "gradient_accumulate_steps": 1, "iters": 1000,
        "low_gpu_mem_usage": true, "lr": 0.001, "minmax_lr": 0.001, "nsamples": 512,
        "quant_block_list": null, "scale_dtype": "torch.float16", "seqlen": 2048,
        "super_bits": null, "super_group_size": null, "to_quant_block_names": null, "train_bs": 8,
    });
    let written = |name: &str, key: &str, value: Value| {
        let rewrite = |config: &mut Value| {
            let options = config[OPTIONS].as_object_mut().unwrap();
            options.extend(added.as_object().unwrap().clone());
            options.insert(key.into(), value.clone());
        };
        changed(name, rewrite, &[])
    };
    for name in ["gptq-sym-g32", "gptq-asym-g64", "awq-g32"] {
        assert_unchanged(name, &written(name, "amp", false.into()));
        for (key, value, expected) in [
            ("data_type", json!("mx_fp"), "expected \"int\""),
            ("act_bits", json!(8), "expected 16"),
            ("super_bits", json!(6), "no such option"),
        ] {
            let dir = written(name, key, value);
            let text = sentence(load(dir.path()), dir.path());
            assert!(text.contains(key) && text.contains(expected), "{text}");
        }
    }
}

/// What transformers 5 writes of fp8, with options of other families' models.
#[test]
fn headers_of_fp8_from_transformers() {
    let name = "fp8-blocks";
    let written = |scales: &str| {
        let rewrite = |config: &mut Value| {
            let options = config[OPTIONS].as_object_mut().unwrap();
            let added = json!({
                "dequantize": true, "expert_dtype": "fp8", "modules_to_convert": ["embed_tokens"],
                "scale_fmt": scales,
            });
            options.extend(added.as_object().unwrap().clone());
        };
        changed(name, rewrite, &[])
    };
    assert_unchanged(name, &written("float"));
    let dir = written("ue8m0");
    assert_eq!(
        sentence(load(dir.path()), dir.path()),
        "config.json: `quantization_config.scale_fmt` is \"ue8m0\", expected \"float\""
    );
}

/// Without the version, zero points of version 2 would be read as one more than they are.
#[test]
fn the_format_counts_whichever_key_names_it() {
    let name = "gptq-asym-g64";
    let as_version_2 = |config: &mut Value| {
        take(&mut config[OPTIONS], "checkpoint_format");
        config[OPTIONS]["format"] = "gptq_v2".into();
    };
    let dir = changed(name, as_version_2, &[]);
    assert!(load(dir.path()).unwrap() != load(&case(name)).unwrap());
}

#[test]
fn options_in_a_file_of_their_own() {
    for name in ["gptq-sym-g32", "gptq-asym-g64", "gptq-act-order"] {
        let mut options = Value::Null;
        let dir = changed(name, |config| drop(take(config, OPTIONS)), &[]);
        let config = std::fs::read(case(name).join("config.json")).unwrap();
        let config: Value = serde_json::from_slice(&config).unwrap();
        options.clone_from(&config[OPTIONS]);
        // As AutoGPTQ wrote it: it names no method, and no format before version 0.8.
        for key in ["quant_method", "checkpoint_format"] {
            take(&mut options, key);
        }
        options["static_groups"] = false.into();
        options["model_name_or_path"] = Value::Null;
        options["model_file_base_name"] = "model".into();
        dir.file("quantize_config.json", options.to_string());
        assert_unchanged(name, &dir);
    }
}

/// AutoGPTQ and optimum give a bias of zeros to every module.
#[test]
fn biases_of_zeros_are_dropped() {
    let name = "gptq-sym-g32";
    let bias = "model.layers.1.mlp.down_proj.bias";
    let mut zeros = [0u8; 128];
    let tensor: Extra<'_> = (bias, Stored::F16, &[64], &zeros);
    assert_unchanged(name, &changed(name, |_| (), &[tensor]));
    zeros[2 * 5 + 1] = 0x3c;
    let dir = changed(name, |_| (), &[(bias, Stored::F16, &[64], &zeros)]);
    assert_eq!(
        sentence(load(dir.path()), dir.path()),
        format!(
            "{WEIGHTS}: tensor `{bias}`: expected a bias of zeros, as this model has none, \
             found another number at index 5"
        )
    );
}

#[test]
fn scales_of_activations_and_of_the_cache_are_ignored() {
    let one = 1f32.to_le_bytes();
    let layer = "model.layers.0";
    let names = [
        "self_attn.q_proj.input_scale",
        "self_attn.q_proj.output_scale",
        "self_attn.k_scale",
        "self_attn.v_scale",
        "self_attn.k_proj.k_scale",
        "mlp.up_proj.input_scale",
        "mlp.up_proj.input_scale_ub",
        "mlp.up_proj.activation_scale",
    ]
    .map(|name| format!("{layer}.{name}"));
    let extras: Vec<Extra<'_>> = names
        .iter()
        .map(|name| (&name[..], Stored::F32, &[1][..], &one[..]))
        .collect();
    for name in ["ct-fp8", "fp8-blocks", "ct-int8"] {
        assert_unchanged(name, &changed(name, |_| (), &extras));
    }
    let other: Extra<'_> = ("model.layers.0.self_attn.q_scale", Stored::F32, &[1], &one);
    let dir = changed("ct-fp8", |_| (), &[other]);
    let text = sentence(load(dir.path()), dir.path());
    assert!(text.contains("q_scale"), "{text}");
}

/// bitsandbytes' scales of scales: the tensor that has the number is named, not the one whose
/// scales it makes infinite.
#[test]
fn scales_of_scales_are_finite() {
    let name = "bnb-nf4";
    let dir = changed(name, |_| (), &[]);
    let mut bytes = std::fs::read(dir.path().join(WEIGHTS)).unwrap();
    let tensor = "model.layers.1.mlp.up_proj.weight.nested_absmax";
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let data = file.tensor(tensor).unwrap().data().as_ptr();
    let at = data as usize - bytes.as_ptr() as usize;
    bytes[at..at + 4].copy_from_slice(&f32::INFINITY.to_le_bytes());
    dir.file(WEIGHTS, bytes);
    assert_eq!(
        sentence(load(dir.path()), dir.path()),
        format!("{WEIGHTS}: tensor `{tensor}`: expected finite numbers, found inf at index 0")
    );
}

/// A checkpoint that is loaded with these adapters merged, and its log.
fn logged(dir: &Path, adapters: &[PathBuf]) -> (Llama, Arc<Log>) {
    let log = Arc::new(Log::new(Some(Level::Info)));
    let options = BuildOptions {
        max_seq_len: 32,
        log: log.clone(),
        adapters: adapters.iter().map(|dir| (dir.clone(), 1.0)).collect(),
        ..BuildOptions::default()
    };
    let tokenizer = case("tokenizer.model");
    let llama = Llama::build(dir, Some(&tokenizer), &options, &mut |_| true).unwrap();
    (llama, log)
}

/// How many lines of the log say this. They are gone from it then.
fn said(log: &Log, words: &str) -> usize {
    let mut n = 0;
    log.drain(|_, line| n += usize::from(line.contains(words)));
    n
}

#[test]
fn what_is_ignored_is_logged() {
    let count = |dir: &Path, words: &str| said(&logged(dir, &[]).1, words);
    let (activations, cache) = (
        "scales of activations are ignored",
        "scales of the KV cache",
    );
    for (name, of_activations) in [("gptq-sym-g32", 0), ("fp8-blocks", 1), ("fbgemm-fp8", 1)] {
        assert_eq!(count(&case(name), activations), of_activations, "{name}");
        assert_eq!(count(&case(name), cache), 0, "{name}");
    }
    let dir = changed(
        "ct-int8",
        |config| {
            let options = &mut config[OPTIONS];
            options["config_groups"]["group_0"]["input_activations"] = json!({"num_bits": 8});
            options["kv_cache_scheme"] = json!({"num_bits": 8});
        },
        &[],
    );
    assert_eq!(count(dir.path(), activations), 1);
    assert_eq!(count(dir.path(), cache), 1);
    let one = 1f32.to_le_bytes();
    let scale: Extra<'_> = ("model.layers.0.self_attn.k_scale", Stored::F32, &[1], &one);
    let dir = changed("ct-int8", |_| (), &[scale]);
    assert_eq!(count(dir.path(), activations), 0);
    assert_eq!(count(dir.path(), cache), 1);
}

/// Merged or added, an adapter's base is said and not compared.
#[test]
fn the_base_of_an_adapter_is_logged() {
    let adapters = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/adapters");
    let dir = TempDir::new();
    let weights = "adapter_model.safetensors";
    std::fs::copy(
        adapters.join("plain").join(weights),
        dir.path().join(weights),
    )
    .unwrap();
    let config = std::fs::read(adapters.join("plain/adapter_config.json")).unwrap();
    let mut config: Value = serde_json::from_slice(&config).unwrap();
    config["base_model_name_or_path"] = "somebody/some-model".into();
    dir.file("adapter_config.json", config.to_string());
    let (base, words) = (
        adapters.join("base"),
        "an adapter for `somebody/some-model`",
    );
    let (_, log) = logged(&base, &[dir.path().to_owned()]);
    assert_eq!(said(&log, words), 1);
    let (llama, log) = logged(&base, &[]);
    assert_eq!(said(&log, words), 0);
    llama.add_adapter(dir.path(), 1.0).unwrap();
    assert_eq!(said(&log, words), 1);
}
