//! Quantised weights and the int8 cache on an emulated device: logits are those of the CPU backend
//! within what rounding explains, and law four holds to the last bit. With
//! `LLAMABI_TEST_DEVICE=cuda`, on a real device.

use crate::common::reference;
use crate::emu::{Emu, real};
use llamabi::backend::cpu::Cpu;
use llamabi::backend::cpu::detect::Tier;
use llamabi::backend::gpu::Gpu;
use llamabi::backend::{Choices, Limits, RopeTable, RowKind, Run, Shape, Span, Step, Steps};
use llamabi::checkpoint::weights::{LoadControl, load};
use llamabi::checkpoint::{self, Plan};
use llamabi::engine::{GenerateOptions, Prompt};
use llamabi::llama::{Sequence, quantise};
use llamabi::model::{Runner, rope};
use llamabi::quant::Quant;
use llamabi::{BuildOptions, Dtype, Llama, Token};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const PAGE: usize = 16;
const POSITIONS: usize = 128;

fn prompt(n: i32, seed: i32) -> Vec<Token> {
    let token = |i: i32| 1 + (i * i * 31 + i * 17 + seed * 57) % 500;
    (0..n).map(token).collect()
}

/// A checkpoint on the backend that `open` makes.
fn runner<B: Steps + 'static>(
    dir: &str,
    weights: Dtype,
    kv: Dtype,
    open: impl FnOnce(&Shape, RopeTable, &Limits) -> B,
) -> Box<dyn Run> {
    let dir = reference(dir);
    let checkpoint = checkpoint::open(&dir).unwrap();
    let config = checkpoint.config(512).unwrap();
    let files = checkpoint.open(None).unwrap();
    let plan = Plan::new::<B>(&*checkpoint, &files, &config, Some(weights), &[]).unwrap();
    let limits = Limits {
        page_size: PAGE,
        n_pages: POSITIONS / PAGE,
        max_positions: POSITIONS,
        max_rows: POSITIONS,
        max_wanted: POSITIONS,
        vocab_size: config.shape.vocab_size,
    };
    let rope = rope::table(&config, POSITIONS).unwrap();
    let backend = open(&config.shape, rope, &limits);
    let mut control = LoadControl {
        cancel: None,
        progress: &mut |_| true,
    };
    let weights = load(&backend, &plan, &mut control).unwrap();
    let runner = Runner::new(backend, weights, &config.shape, kv, limits).unwrap();
    Box::new(runner)
}

/// In float32; decode rows have activations in 16 bits.
fn on_cpu(dir: &str, weights: Dtype, kv: Dtype) -> Box<dyn Run> {
    runner(dir, weights, kv, |shape, rope, limits| {
        let tier = Tier::named("portable").unwrap();
        Cpu::with_tier(shape, rope, 1, limits.max_rows, tier).unwrap()
    })
}

fn on_gpu(dir: &str, weights: Dtype, kv: Dtype) -> Box<dyn Run> {
    match real::cuda() {
        Some(cuda) => runner(dir, weights, kv, |shape, rope, limits| {
            Gpu::new(cuda, shape, &rope, limits, &[weights], kv).unwrap()
        }),
        None => on_emulated(Emu::new(1 << 30, 1), dir, weights, kv),
    }
}

fn on_emulated(device: Arc<Emu>, dir: &str, weights: Dtype, kv: Dtype) -> Box<dyn Run> {
    runner(dir, weights, kv, |shape, rope, limits| {
        Gpu::new(device, shape, &rope, limits, &[weights], kv).unwrap()
    })
}

/// Logits of every row of one sequence; `cuts` says how many rows of which kind each step has.
fn logits(runner: &mut dyn Run, tokens: &[Token], cuts: &[(usize, RowKind)]) -> Vec<f32> {
    let (mut all, mut position) = (Vec::new(), 0);
    // Not in order, as in a pool that has been used for a while.
    let pages: Vec<u32> = [3, 0, 7, 1, 6, 2, 5, 4].into();
    for &(n, kind) in cuts {
        let step = Step {
            tokens: tokens[position..position + n].to_vec(),
            slots: (position..position + n)
                .map(|p| pages[p / PAGE] * PAGE as u32 + (p % PAGE) as u32)
                .collect(),
            spans: vec![Span {
                rows: 0..n,
                kind,
                position,
                pages: 0..pages.len(),
            }],
            pages: pages.clone(),
            wanted: (0..n as u32).collect(),
            ..Step::default()
        };
        all.extend_from_slice(runner.run(&step, Choices::NONE).unwrap().logits());
        position += n;
    }
    all
}

/// The greatest distance, relative to the greatest logit.
fn apart(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let most = a.iter().fold(0f32, |m, x| m.max(x.abs()));
    let pairs = a.iter().zip(b);
    pairs.fold(0.0, |m: f32, (a, b)| {
        assert!(a.is_finite() && b.is_finite(), "{a} {b}");
        m.max((a - b).abs() / most)
    })
}

/// The error that rounding makes in logits, relative to the greatest. The input of each product is
/// off by at most 2^-11 of each number (f16). The errors of four products a layer and of the head
/// are independent, so their sum grows with the root of their number. (In decode, the CPU takes
/// activations as 16-bit integers, whose error is far smaller.)
fn rounding(dir: &str) -> f32 {
    let config = checkpoint::open(&reference(dir))
        .unwrap()
        .config(512)
        .unwrap();
    let products = 4 * config.shape.n_layers + 1;
    (products as f32).sqrt() / 2048.0
}

/// Checks the greatest distances of decode steps and of a prompt before them.
fn assert_close(dir: &str, weights: Dtype, kv: Dtype, decoded: f32, prefilled: f32) {
    let mut cpu = on_cpu(dir, weights, kv);
    let mut gpu = on_gpu(dir, weights, kv);
    let tokens = prompt(35, 1);
    let one = (1, RowKind::Decode);
    let cases = [
        (decoded, vec![one; 20]),
        (
            prefilled,
            [
                vec![(7, RowKind::Prefill), (25, RowKind::Prefill)],
                vec![one; 3],
            ]
            .concat(),
        ),
    ];
    for (tolerance, cuts) in cases {
        let want = logits(&mut *cpu, &tokens, &cuts);
        let apart = apart(&want, &logits(&mut *gpu, &tokens, &cuts));
        assert!(
            apart < tolerance,
            "{dir} {weights} {kv}: {apart}, not {tolerance}"
        );
    }
}

#[test]
fn logits_are_those_of_the_cpu() {
    for (dir, weights) in [
        ("gqa-f16-mp2/meta", Dtype::Int8),
        ("mha-f32/hf", Dtype::Int4),
        ("mha-f32/meta", Dtype::Nf4),
        // The embedding is also the int8 head.
        ("variants/tied", Dtype::Int4),
        ("variants/attn-bias", Dtype::Int8),
    ] {
        // In decode, the CPU has nf4's table as multiples of 1/1722. This is an error of 1/3444 of
        // the greatest weight, several times that of f16.
        let table = if weights == Dtype::Nf4 { 2e-3 } else { 0.0 };
        let decoded = rounding(dir);
        // Products of a prompt also have their weights in f16.
        assert_close(dir, weights, Dtype::F32, decoded + table, 2.0 * decoded);
    }
}

/// Prompts go through the kernels for compute capability 9.0, with each kind of attention before
/// them, and steps of both kinds in turns.
#[test]
fn prompts_by_wgmma_are_those_of_the_cpu() {
    if real::real() {
        println!("SKIPPED: only the emulated device counts which kernels ran");
        return;
    }
    let tokens = prompt(35, 1);
    let one = (1, RowKind::Decode);
    let cuts = [(7, RowKind::Prefill), one, (25, RowKind::Prefill), one, one];
    for (dir, weights, kv, attention) in [
        ("mha-f32/hf", Dtype::Int8, Dtype::F32, false),
        ("mha-f32/hf", Dtype::Int4, Dtype::F16, true),
        ("mha-f32/meta", Dtype::Nf4, Dtype::Int8, false),
    ] {
        let device = Emu::hopper(1 << 30, 1, 132);
        let got = logits(
            &mut *on_emulated(device.clone(), dir, weights, kv),
            &tokens,
            &cuts,
        );
        let (products, attended) = device.hoppers();
        assert_eq!((products, attended > 0), (2 * 4 * 3, attention));
        let want = logits(&mut *on_cpu(dir, weights, kv), &tokens, &cuts);
        let apart = apart(&want, &got);
        // As above: nf4's table, and numbers on the edge between two codes of the cache.
        let more = match kv {
            Dtype::Int8 => 2e-3 + 6.0 * (1.0 / 2048.0 / 127.0f32).sqrt(),
            _ => 0.0,
        };
        let tolerance = 2.0 * rounding(dir) + more;
        assert!(
            apart < tolerance,
            "{dir} {weights} {kv}: {apart}, not {tolerance}"
        );
    }
}

/// A number near the edge between two codes may fall to either side; it then differs by a step,
/// 1/127 of the greatest number of its vector. This happens to numbers that are nearer to the edge
/// than their error, which is a share error / step of all numbers. So the error becomes the root of
/// (error * step) on average. The greatest number is some three times a usual one; the bound
/// doubles that for safety. In float32 it happens to hardly any number.
#[test]
fn the_int8_cache_is_that_of_the_cpu() {
    for (dir, weights) in [
        ("gqa-bf16/meta", Dtype::F32),
        ("gqa-f16-mp2/meta", Dtype::F16),
        ("mha-f32/hf", Dtype::Int8),
    ] {
        let off = match weights {
            Dtype::F32 => 1e-6,
            _ => 1.0 / 2048.0,
        };
        let tolerance = 6.0 * (off / 127.0f32).sqrt();
        assert_close(dir, weights, Dtype::Int8, tolerance, tolerance);
    }
}

/// A copy of a float32 checkpoint in which one number of each norm is so large that f16 cannot hold
/// what comes out of it. The weights that are multiplied with it are zero.
fn with_large_activations(dir: &str) -> PathBuf {
    let to = std::env::temp_dir().join(format!("llamabi-gpu-large-{}", std::process::id()));
    std::fs::create_dir_all(&to).unwrap();
    std::fs::copy(reference(dir).join("config.json"), to.join("config.json")).unwrap();
    let mut file = std::fs::read(reference(dir).join("model.safetensors")).unwrap();
    let start = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&file[8..start]).unwrap();
    for (name, info) in header.as_object().unwrap() {
        let Some(shape) = info["shape"].as_array() else {
            continue;
        };
        assert_eq!(info["dtype"], "F32");
        let takes_norm = [
            "q_proj",
            "k_proj",
            "v_proj",
            "gate_proj",
            "up_proj",
            "lm_head",
        ];
        let value = match shape.len() {
            1 => 1e6f32,
            _ if takes_norm.iter().any(|part| name.contains(part)) => 0.0,
            _ => continue,
        };
        let cols = shape.last().unwrap().as_u64().unwrap() as usize;
        let at = |i: usize| start + info["data_offsets"][i].as_u64().unwrap() as usize;
        for row in file[at(0)..at(1)].chunks_exact_mut(4 * cols) {
            row[4 * 5..4 * 6].copy_from_slice(&value.to_le_bytes());
        }
    }
    std::fs::write(to.join("model.safetensors"), file).unwrap();
    to
}

/// An activation that f16 cannot hold is multiplied with zeros, in prompts and in decode. As
/// infinity it would make everything NaN.
#[test]
fn large_activations_stay_finite() {
    let dir = with_large_activations("mha-f32/hf");
    let path = dir.to_str().unwrap();
    let tokens = prompt(20, 1);
    let whole = [(20, RowKind::Prefill)];
    for weights in [Dtype::Int8, Dtype::Int4] {
        // Decode on the CPU shares a scale among activations, so all that is compared is prompts.
        let want = logits(&mut *on_cpu(path, weights, Dtype::F32), &tokens, &whole);
        let mut gpu = on_gpu(path, weights, Dtype::F32);
        for cuts in [&whole[..], &[(1, RowKind::Decode); 20]] {
            let apart = apart(&want, &logits(&mut *gpu, &tokens, cuts));
            let tolerance = 2.0 * rounding("mha-f32/hf");
            assert!(apart < tolerance, "{weights}: {apart}, not {tolerance}");
        }
    }
    std::fs::remove_dir_all(dir).unwrap();
}

/// A copy of a float32 checkpoint in which every weight has the value that its format gives: layers
/// in fp8, the head in int8, the embedding in bf16.
fn rounded_to_fp8(dir: &str) -> PathBuf {
    let to = std::env::temp_dir().join(format!("llamabi-gpu-rounded-{}", std::process::id()));
    std::fs::create_dir_all(&to).unwrap();
    std::fs::copy(reference(dir).join("config.json"), to.join("config.json")).unwrap();
    let mut file = std::fs::read(reference(dir).join("model.safetensors")).unwrap();
    let start = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&file[8..start]).unwrap();
    for (name, info) in header.as_object().unwrap() {
        let Some([_, cols]) = info["shape"].as_array().map(Vec::as_slice) else {
            continue;
        };
        assert_eq!(info["dtype"], "F32");
        let cols = cols.as_u64().unwrap() as usize;
        let at = |i: usize| start + info["data_offsets"][i].as_u64().unwrap() as usize;
        for row in file[at(0)..at(1)].chunks_exact_mut(4 * cols) {
            let numbers = row.as_chunks_mut::<4>().0;
            let mut values: Vec<f32> = numbers.iter().map(|&b| f32::from_le_bytes(b)).collect();
            if name.contains("embed_tokens") {
                for x in &mut values {
                    *x = half::bf16::from_f32(*x).to_f32();
                }
            } else {
                let quant = match name.starts_with("lm_head") {
                    true => Quant::Int8,
                    false => Quant::Fp8,
                };
                let mut codes = vec![0; quant.code_bytes(cols)];
                let mut scales = vec![0.0; quant.scales(cols)];
                quant.encode(cols, &values, &mut codes, &mut scales);
                let bits = |s: &f32| half::f16::from_f32(*s).to_bits();
                let scales: Vec<u16> = scales.iter().map(bits).collect();
                quant.decode(&codes, &scales, &mut values);
            }
            for (to, x) in numbers.iter_mut().zip(values) {
                *to = x.to_le_bytes();
            }
        }
    }
    std::fs::write(to.join("model.safetensors"), file).unwrap();
    to
}

/// Weights in fp8 against the same numbers in float32, decoded one by one and after a prompt.
#[test]
fn fp8_weights_are_those_of_the_format() {
    let dir = "mha-f32/hf";
    let rounded = rounded_to_fp8(dir);
    let mut cpu = on_cpu(rounded.to_str().unwrap(), Dtype::F32, Dtype::F32);
    let mut gpu = on_gpu(dir, Dtype::Fp8, Dtype::F32);
    let tokens = prompt(35, 1);
    let one = (1, RowKind::Decode);
    for (tolerance, cuts) in [
        (rounding(dir), vec![one; 20]),
        (
            2.0 * rounding(dir),
            vec![(32, RowKind::Prefill), one, one, one],
        ),
    ] {
        let want = logits(&mut *cpu, &tokens, &cuts);
        let apart = apart(&want, &logits(&mut *gpu, &tokens, &cuts));
        assert!(apart < tolerance, "{apart}, not {tolerance}");
    }
    std::fs::remove_dir_all(rounded).unwrap();
    let llama = build(&reference(dir), Some(Dtype::Fp8), Dtype::Fp8, 64, 1);
    let info = llama.info();
    assert_eq!(
        (info.weights_dtype, info.kv_dtype),
        (Dtype::Fp8, Dtype::Fp8)
    );
    assert_eq!(generate(&llama, &[prompt(9, 1)])[0].0.len(), 5);
}

/// The fp8 cache keeps 4 bits of every number, so each number of a vector is off by at most a 16th.
#[test]
fn the_fp8_cache_is_near() {
    for (dir, weights) in [("gqa-bf16/meta", Dtype::F32), ("mha-f32/hf", Dtype::Int8)] {
        let tokens = prompt(35, 1);
        let one = (1, RowKind::Decode);
        for cuts in [vec![one; 20], vec![(32, RowKind::Prefill), one, one, one]] {
            let want = logits(&mut *on_cpu(dir, weights, Dtype::F32), &tokens, &cuts);
            let got = logits(&mut *on_gpu(dir, weights, Dtype::Fp8), &tokens, &cuts);
            let apart = apart(&want, &got);
            // This shows that it is this cache: a float32 cache is a hundred times closer.
            assert!(
                (1e-3..1.0 / 16.0).contains(&apart),
                "{dir} {weights}: {apart}"
            );
        }
    }
}

fn generate(llama: &Llama, prompts: &[Vec<Token>]) -> Vec<(Vec<Token>, Vec<u32>)> {
    let prompts = prompts.iter().cloned().map(Prompt::Tokens).collect();
    let options = GenerateOptions {
        temperature: 0.0,
        logprobs: true,
        ignore_eos: true,
        max_gen_len: Some(5),
        ..GenerateOptions::default()
    };
    let result = llama.generate(prompts, options, &mut |_| true).unwrap();
    let bits = |s: &Sequence| s.logprobs.iter().map(|l| l.to_bits()).collect();
    let sequences = result.sequences.iter();
    sequences.map(|s| (s.tokens.clone(), bits(s))).collect()
}

fn build(dir: &Path, weights: Option<Dtype>, kv: Dtype, chunk: usize, seed: u64) -> Llama {
    let options = BuildOptions {
        max_seq_len: POSITIONS,
        max_batch_size: 9,
        weights_dtype: weights,
        kv_dtype: Some(kv),
        prefill_chunk: Some(chunk),
        ..BuildOptions::default()
    };
    let tokenizer = reference("mha-f32/hf/tokenizer.model");
    let tokenizer = Some(&*tokenizer);
    match real::cuda() {
        Some(cuda) => Llama::build_on(cuda, dir, tokenizer, &options, &mut |_| true),
        None => Llama::build_on(
            Emu::new(1 << 30, seed),
            dir,
            tokenizer,
            &options,
            &mut |_| true,
        ),
    }
    .unwrap()
}

/// Alone or beside eight others, whole or in chunks, on any schedule.
#[test]
fn company_changes_no_bit() {
    let prompts: Vec<_> = [1, 16, 17, 33, 2, 5, 9, 3, 4]
        .iter()
        .enumerate()
        .map(|(seed, &n)| prompt(n, seed as i32))
        .collect();
    for (dir, weights, kv) in [
        ("mha-f32/meta", Dtype::Nf4, Dtype::Fp8),
        ("gqa-bf16/meta", Dtype::Int4, Dtype::Int8),
    ] {
        let dir = reference(dir);
        let llama = build(&dir, Some(weights), kv, 64, 1);
        let alone = |p| generate(&llama, std::slice::from_ref(p)).remove(0);
        let want: Vec<_> = prompts.iter().map(alone).collect();
        let llama = build(&dir, Some(weights), kv, 5, 2);
        // Cold, then with what the prefix cache kept.
        for _ in 0..2 {
            assert_eq!(generate(&llama, &prompts), want, "{weights} {kv}");
        }
    }
}

#[test]
fn a_written_checkpoint_says_the_same_to_the_last_bit() {
    let from = reference("mha-f32/meta");
    let error = quantise::write(&from, Path::new("nowhere"), Quant::Fp8).unwrap_err();
    assert!(error.to_string().contains("fp8"), "{error}");
    for quant in Quant::OURS {
        let dir =
            std::env::temp_dir().join(format!("llamabi-gpu-{}-{quant:?}", std::process::id()));
        quantise::write(&from, &dir, quant).unwrap();
        let prompts = [prompt(20, 3)];
        let at_load = build(&from, Some(quant.dtype()), Dtype::Bf16, 64, 1);
        let want = generate(&at_load, &prompts);
        let written = build(&dir, None, Dtype::Bf16, 64, 2);
        assert_eq!(written.info().weights_dtype, quant.dtype());
        assert_eq!(written.info().weight_bytes, at_load.info().weight_bytes);
        let got = generate(&written, &prompts);
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!(got, want, "{quant:?}");
    }
}
