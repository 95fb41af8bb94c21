//! Writes a checkpoint of random weights at the shape of a known model: in Hugging Face's form into
//! a directory, or as a GGUF file whose name ends in `.gguf`, with the types of llama.cpp's Q4_K_M.
//!
//!     cargo bench --bench make_model -- <160m|1b|3b|7b> <directory or file>
//!
//! `7b:8` is the first 8 layers of a 7B model, for machines whose memory or disk cannot hold all of
//! it.
//!
//! Speed depends on the shape and the bytes, not on the values of the weights, so benchmarks need
//! no download. Weights are uniform with the standard deviation 0.02 that Llamas start from, so
//! that activations stay in their usual range. The output is deterministic.

mod gguf_file;
mod shapes;

use half::bf16;
use llamabi::backend::Shape;
use std::fs::File;
use std::io::{BufWriter, Result, Write};
use std::path::Path;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| a != "--bench")
        .collect();
    let [name, dir] = &arguments[..] else {
        println!("usage: cargo bench --bench make_model -- <160m|1b|3b|7b> <directory or file>");
        return Ok(());
    };
    let Some(shape) = &shapes::named(name) else {
        return Err(std::io::Error::other(format!("no shape is called {name}")));
    };
    let dir = Path::new(dir);
    if dir.extension().is_some_and(|ending| ending == "gguf") {
        let bytes = gguf_file::write(shape, dir)?;
        println!("{}: {name}, {:.2} GB", dir.display(), bytes as f64 / 1e9);
        return Ok(());
    }
    std::fs::create_dir_all(dir)?;
    let tokenizer =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tokenizer/tokenizer.model");
    std::fs::copy(tokenizer, dir.join("tokenizer.model"))?;
    std::fs::write(dir.join("config.json"), config(shape).to_string())?;
    let bytes = write_weights(shape, &dir.join("model.safetensors"))?;
    println!(
        "{}: {name}, {:.2} GB of bf16",
        dir.display(),
        bytes as f64 / 1e9
    );
    Ok(())
}

fn config(shape: &Shape) -> serde_json::Value {
    serde_json::json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
        "hidden_size": shape.dim, "intermediate_size": shape.ffn_dim,
        "num_hidden_layers": shape.n_layers, "num_attention_heads": shape.n_heads,
        "num_key_value_heads": shape.n_kv_heads, "rms_norm_eps": 1e-5,
        "vocab_size": shape.vocab_size, "rope_theta": 10000.0, "max_position_embeddings": 4096,
        "tie_word_embeddings": false, "bos_token_id": 1, "eos_token_id": 2,
        "torch_dtype": "bfloat16",
    })
}

/// Names and sizes in the order they are written.
fn tensors(shape: &Shape) -> Vec<(String, Vec<usize>)> {
    let (dim, ffn, kv) = (shape.dim, shape.ffn_dim, shape.kv_dim());
    let mut list = vec![(
        "model.embed_tokens.weight".to_owned(),
        vec![shape.vocab_size, dim],
    )];
    for layer in 0..shape.n_layers {
        for (name, size) in [
            ("input_layernorm", vec![dim]),
            ("self_attn.q_proj", vec![dim, dim]),
            ("self_attn.k_proj", vec![kv, dim]),
            ("self_attn.v_proj", vec![kv, dim]),
            ("self_attn.o_proj", vec![dim, dim]),
            ("post_attention_layernorm", vec![dim]),
            ("mlp.gate_proj", vec![ffn, dim]),
            ("mlp.up_proj", vec![ffn, dim]),
            ("mlp.down_proj", vec![dim, ffn]),
        ] {
            list.push((format!("model.layers.{layer}.{name}.weight"), size));
        }
    }
    list.push(("model.norm.weight".into(), vec![dim]));
    list.push(("lm_head.weight".into(), vec![shape.vocab_size, dim]));
    list
}

fn write_weights(shape: &Shape, path: &Path) -> Result<u64> {
    let tensors = tensors(shape);
    let mut header = serde_json::Map::new();
    let mut end = 0u64;
    for (name, size) in &tensors {
        let start = end;
        end += 2 * size.iter().map(|&n| n as u64).product::<u64>();
        let entry =
            serde_json::json!({"dtype": "BF16", "shape": size, "data_offsets": [start, end]});
        header.insert(name.clone(), entry);
    }
    let mut header = serde_json::to_vec(&header)?;
    header.resize(header.len().next_multiple_of(64) - 8 + 64, b' ');
    let mut out = BufWriter::with_capacity(1 << 20, File::create(path)?);
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(&header)?;

    let mut random = 0x9e37_79b9_7f4a_7c15u64; // xorshift64
    let scale = 0.02 * 3f32.sqrt() / 32768.0;
    let mut buffer = Vec::with_capacity(1 << 20);
    for (_, size) in &tensors {
        let mut left: usize = size.iter().product();
        if size.len() == 1 {
            let ones = bf16::ONE.to_le_bytes().repeat(left);
            out.write_all(&ones)?;
            continue;
        }
        while left > 0 {
            buffer.clear();
            let n = left.min(1 << 18);
            for _ in 0..n.div_ceil(4) {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                for lane in 0..4 {
                    let value = f32::from((random >> (16 * lane)) as i16) * scale;
                    buffer.extend_from_slice(&bf16::from_f32(value).to_le_bytes());
                }
            }
            out.write_all(&buffer[..2 * n])?;
            left -= n;
        }
    }
    out.flush()?;
    Ok(end)
}
