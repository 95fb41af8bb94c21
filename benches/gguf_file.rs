//! A GGUF file of random blocks, in which tensors have the types that llama.cpp's Q4_K_M gives
//! them.

use half::f16;
use llamabi::backend::Shape;
use std::fs::File;
use std::io::{BufWriter, Result, Write};
use std::path::Path;

/// Types of tensors, by their numbers in a file.
const F32: u32 = 0;
const Q4_K: u32 = 12;
const Q6_K: u32 = 14;
/// Tensors begin at multiples of this.
const ALIGNMENT: usize = 32;

struct Tensor {
    name: String,
    /// Innermost first.
    dims: Vec<usize>,
    kind: u32,
}

impl Tensor {
    fn bytes(&self) -> usize {
        let numbers: usize = self.dims.iter().product();
        match self.kind {
            Q4_K => numbers / 256 * 144,
            Q6_K => numbers / 256 * 210,
            _ => 4 * numbers,
        }
    }
}

/// Writes the file, and returns its length.
pub fn write(shape: &Shape, path: &Path) -> Result<u64> {
    let tensors = tensors(shape);
    let keys = keys(shape);
    let mut head = Vec::new();
    head.extend(b"GGUF");
    head.extend(3u32.to_le_bytes());
    head.extend((tensors.len() as u64).to_le_bytes());
    head.extend((keys.len() as u64).to_le_bytes());
    for (key, value) in &keys {
        head.extend(text(key));
        head.extend(value);
    }
    let mut end = 0;
    for tensor in &tensors {
        head.extend(text(&tensor.name));
        head.extend((tensor.dims.len() as u32).to_le_bytes());
        for &dim in &tensor.dims {
            head.extend((dim as u64).to_le_bytes());
        }
        head.extend(tensor.kind.to_le_bytes());
        head.extend((end as u64).to_le_bytes());
        end += tensor.bytes().next_multiple_of(ALIGNMENT);
    }
    head.resize(head.len().next_multiple_of(ALIGNMENT), 0);
    let mut out = BufWriter::with_capacity(1 << 20, File::create(path)?);
    out.write_all(&head)?;
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    for tensor in &tensors {
        let bytes = tensor.bytes();
        let data = data(tensor, &mut random);
        out.write_all(&data)?;
        out.write_all(&vec![0; bytes.next_multiple_of(ALIGNMENT) - bytes])?;
    }
    out.flush()?;
    Ok((head.len() + end) as u64)
}

/// Q4_K_M gives more bits to v and down of the first and last eighth of the layers, and of each
/// third layer between them, and to the head.
fn tensors(shape: &Shape) -> Vec<Tensor> {
    let (dim, ffn, kv, n) = (shape.dim, shape.ffn_dim, shape.kv_dim(), shape.n_layers);
    let tensor = |name: String, dims: &[usize], kind| Tensor {
        name: name + ".weight",
        dims: dims.to_vec(),
        kind,
    };
    let mut list = vec![
        tensor("token_embd".into(), &[dim, shape.vocab_size], Q4_K),
        tensor("output_norm".into(), &[dim], F32),
        tensor("output".into(), &[dim, shape.vocab_size], Q6_K),
    ];
    for layer in 0..n {
        let more = layer < n / 8 || layer >= 7 * n / 8 || (layer - n / 8) % 3 == 2;
        let some = if more { Q6_K } else { Q4_K };
        for (name, dims, kind) in [
            ("attn_norm", &[dim][..], F32),
            ("attn_q", &[dim, dim], Q4_K),
            ("attn_k", &[dim, kv], Q4_K),
            ("attn_v", &[dim, kv], some),
            ("attn_output", &[dim, dim], Q4_K),
            ("ffn_norm", &[dim], F32),
            ("ffn_gate", &[dim, ffn], Q4_K),
            ("ffn_up", &[dim, ffn], Q4_K),
            ("ffn_down", &[ffn, dim], some),
        ] {
            list.push(tensor(format!("blk.{layer}.{name}"), dims, kind));
        }
    }
    list
}

/// Norms of ones. Blocks of random bytes, with f16 scales that give weights the standard deviation
/// of 0.02 that Llamas start from.
fn data(tensor: &Tensor, random: &mut u64) -> Vec<u8> {
    if tensor.kind == F32 {
        return 1f32.to_le_bytes().repeat(tensor.dims[0]);
    }
    let mut bytes = Vec::with_capacity(tensor.bytes() + 8);
    while bytes.len() < tensor.bytes() {
        *random ^= *random << 13;
        *random ^= *random >> 7;
        *random ^= *random << 17;
        bytes.extend(random.to_le_bytes());
    }
    bytes.truncate(tensor.bytes());
    // Scales of Q4_K are up to 63 and codes up to 15: d is in proportion, and dmin so that the
    // greatest minimum is half of the greatest product. Those of Q6_K are up to 128 and 32.
    let (size, at, scales) = match tensor.kind {
        Q4_K => (144, 0, &[8e-5, 6e-4][..]),
        _ => (210, 208, &[1.5e-5][..]),
    };
    for block in bytes.chunks_exact_mut(size) {
        for (i, &scale) in scales.iter().enumerate() {
            let to = &mut block[at + 2 * i..at + 2 * i + 2];
            to.copy_from_slice(&f16::from_f32(scale).to_le_bytes());
        }
    }
    bytes
}

/// Configuration, and a SentencePiece vocabulary: three special tokens, the 256 bytes, and words
/// that no merge makes.
fn keys(shape: &Shape) -> Vec<(&'static str, Vec<u8>)> {
    let number = |n: usize| [&4u32.to_le_bytes()[..], &(n as u32).to_le_bytes()].concat();
    let float = |x: f32| [&6u32.to_le_bytes()[..], &x.to_le_bytes()].concat();
    let word = |s: &str| [&8u32.to_le_bytes()[..], &text(s)].concat();
    let array = |kind: u32, items: Vec<Vec<u8>>| {
        let n = (items.len() as u64).to_le_bytes();
        let head = [&9u32.to_le_bytes()[..], &kind.to_le_bytes(), &n];
        [head.concat(), items.concat()].concat()
    };
    let tokens: Vec<(String, i32)> = (0..shape.vocab_size)
        .map(|id| match id {
            0 => ("<unk>".into(), 2),
            1 => ("<s>".into(), 3),
            2 => ("</s>".into(), 3),
            3..259 => (format!("<0x{:02X}>", id - 3), 6),
            _ => (format!("\u{2581}word{id}"), 1),
        })
        .collect();
    let texts = tokens.iter().map(|(token, _)| text(token)).collect();
    let scores = (0..tokens.len()).map(|id| (-(id as f32)).to_le_bytes().to_vec());
    let kinds = tokens.iter().map(|(_, kind)| kind.to_le_bytes().to_vec());
    vec![
        ("general.architecture", word("llama")),
        ("llama.context_length", number(4096)),
        ("llama.embedding_length", number(shape.dim)),
        ("llama.block_count", number(shape.n_layers)),
        ("llama.feed_forward_length", number(shape.ffn_dim)),
        ("llama.attention.head_count", number(shape.n_heads)),
        ("llama.attention.head_count_kv", number(shape.n_kv_heads)),
        (
            "llama.attention.layer_norm_rms_epsilon",
            float(shape.norm_eps),
        ),
        ("llama.rope.dimension_count", number(shape.head_dim)),
        ("llama.rope.freq_base", float(10000.0)),
        ("llama.vocab_size", number(shape.vocab_size)),
        ("tokenizer.ggml.model", word("llama")),
        ("tokenizer.ggml.pre", word("default")),
        ("tokenizer.ggml.tokens", array(8, texts)),
        ("tokenizer.ggml.scores", array(6, scores.collect())),
        ("tokenizer.ggml.token_type", array(5, kinds.collect())),
        ("tokenizer.ggml.bos_token_id", number(1)),
        ("tokenizer.ggml.eos_token_id", number(2)),
        ("tokenizer.ggml.unknown_token_id", number(0)),
    ]
}

fn text(s: &str) -> Vec<u8> {
    [&(s.len() as u64).to_le_bytes()[..], s.as_bytes()].concat()
}
