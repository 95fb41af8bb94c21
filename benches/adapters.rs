//! What LoRA adapters of requests cost: `cargo bench --bench adapters -- <directory> [rounds]`.
//!
//! Eight sequences are generated at once, 64 tokens each, by a handle that has eight adapters of
//! rank 16 on every matrix of every layer: without any, all with the same, each with its own. The
//! three are measured in turns, by the engine's own time of decode steps; so is a handle that has
//! no adapters. `<directory>` is a Hugging Face checkpoint (`benches/make_model.rs` writes one);
//! the adapters are random numbers, written into a temporary folder. `BENCH_DTYPE` (default: as
//! stored) is the type that weights are converted to. Medians over the rounds, and ratios.

use half::bf16;
use llamabi::engine::{GenerateOptions, Prompt};
use llamabi::{BuildOptions, Dtype, Llama};
use safetensors::tensor::{Dtype as Stored, TensorView, serialize_to_file};
use std::path::Path;

const N: usize = 8;
const RANK: usize = 16;
const TOKENS: usize = 64;

fn main() {
    let arguments = std::env::args().skip(1).filter(|a| a != "--bench");
    let arguments: Vec<String> = arguments.collect();
    let (dir, rounds) = match &arguments[..] {
        [dir] => (dir, 7),
        [dir, rounds] => (dir, rounds.parse().expect("a number of rounds")),
        _ => return println!("usage: cargo bench --bench adapters -- <directory> [rounds]"),
    };
    let dtype = std::env::var("BENCH_DTYPE").ok();
    let dtype = dtype.map(|name| Dtype::named(&name).expect("BENCH_DTYPE is a dtype"));
    let options = BuildOptions {
        max_seq_len: 256,
        max_batch_size: N,
        weights_dtype: dtype,
        ..BuildOptions::default()
    };
    let build = || Llama::build(Path::new(dir), None, &options, &mut |_| true).expect("a model");
    let (plain, llama) = (build(), build());
    let folder = std::env::temp_dir().join(format!("llamabi-adapters-{}", std::process::id()));
    let ids: Vec<u32> = (0..N)
        .map(|i| {
            let adapter = folder.join(i.to_string());
            write_adapter(Path::new(dir), &adapter, i as u32);
            llama.add_adapter(&adapter, 1.0).expect("an adapter")
        })
        .collect();
    std::fs::remove_dir_all(&folder).expect("the adapters' folder");

    let cases: [(&str, &Llama, Vec<u32>); 4] = [
        ("no adapters in the handle", &plain, vec![0; N]),
        ("8 in the handle, none used", &llama, vec![0; N]),
        ("one for all 8 rows", &llama, vec![ids[0]; N]),
        ("8 rows, 8 adapters", &llama, ids.clone()),
    ];
    let mut seconds = vec![Vec::new(); cases.len()];
    for round in 0..=rounds {
        for (case, seconds) in cases.iter().zip(&mut seconds) {
            let took = decode_seconds(case.1, &case.2);
            if round > 0 {
                seconds.push(took);
            }
        }
    }
    let info = llama.info();
    println!(
        "{dir}, {}, {}, adapters of rank {RANK}",
        info.device_name, info.weights_dtype
    );
    let medians: Vec<f64> = seconds.iter_mut().map(|s| median(s)).collect();
    for ((name, ..), seconds) in cases.iter().zip(&medians) {
        let tokens = (N * TOKENS) as f64 / seconds;
        let ratio = seconds / medians[0];
        println!("{name:30}{tokens:8.1} tok/s, time x {ratio:.3}");
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The engine's seconds in steps that generate, for one sequence of each adapter.
fn decode_seconds(llama: &Llama, adapters: &[u32]) -> f64 {
    let before = llama.timings().decode_ms;
    std::thread::scope(|scope| {
        for (i, &adapter) in adapters.iter().enumerate() {
            scope.spawn(move || {
                let options = GenerateOptions {
                    max_gen_len: Some(TOKENS + 1),
                    temperature: 0.0,
                    ignore_eos: true,
                    adapter,
                    ..GenerateOptions::default()
                };
                let prompt = vec![Prompt::Tokens(vec![3 + i as i32; 4])];
                let done = llama.generate(prompt, options, &mut |_| true);
                done.expect("tokens");
            });
        }
    });
    (llama.timings().decode_ms - before) / 1e3
}

/// An adapter of random numbers, as peft stores it.
fn write_adapter(model: &Path, to: &Path, seed: u32) {
    std::fs::create_dir_all(to).expect("a folder");
    let text = std::fs::read_to_string(model.join("config.json")).expect("config.json");
    let config: serde_json::Value = serde_json::from_str(&text).expect("config.json is JSON");
    let n = |key: &str| config[key].as_u64().unwrap_or_else(|| panic!("{key}")) as usize;
    let (dim, ffn, heads) = (
        n("hidden_size"),
        n("intermediate_size"),
        n("num_attention_heads"),
    );
    let kv = dim / heads * n("num_key_value_heads");
    let matrices = [
        ("self_attn.q_proj", dim, dim),
        ("self_attn.k_proj", dim, kv),
        ("self_attn.v_proj", dim, kv),
        ("self_attn.o_proj", dim, dim),
        ("mlp.gate_proj", dim, ffn),
        ("mlp.up_proj", dim, ffn),
        ("mlp.down_proj", ffn, dim),
    ];
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    let mut random = |n: usize| -> Vec<u8> {
        let next = |_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let x = (state >> 8) as f32 / (1 << 24) as f32 - 0.5;
            bf16::from_f32(x * 0.02).to_le_bytes()
        };
        (0..n).flat_map(next).collect()
    };
    let mut tensors = Vec::new();
    for layer in 0..n("num_hidden_layers") {
        for (name, cols, rows) in matrices {
            let prefix = format!("base_model.model.model.layers.{layer}.{name}");
            for (part, shape) in [("lora_A", [RANK, cols]), ("lora_B", [rows, RANK])] {
                let bytes = random(shape[0] * shape[1]);
                tensors.push((format!("{prefix}.{part}.weight"), shape, bytes));
            }
        }
    }
    let views = tensors.iter().map(|(name, shape, bytes)| {
        let view = TensorView::new(Stored::BF16, shape.to_vec(), bytes).expect("a tensor");
        (name.as_str(), view)
    });
    serialize_to_file(views, None, &to.join("adapter_model.safetensors")).expect("the weights");
    let names: Vec<&str> = matrices
        .map(|(name, ..)| name.split_once('.').unwrap().1)
        .into();
    let config = serde_json::json!({
        "peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": names, "bias": "none",
    });
    std::fs::write(to.join("adapter_config.json"), config.to_string()).expect("the configuration");
}
