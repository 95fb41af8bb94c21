//! Layers whose matrices have different dtypes, also q, k and v of one matrix: logits are those of
//! the same weights in float32 on the CPU, with and without the kernels for compute capability 9.0,
//! and cutting a prompt changes no bit.

use crate::emu::{Emu, real};
use crate::small_model::{LIMITS, LayerDtypes, SHAPE, mixed, rope};
use llamabi::backend::adapter::LowRank;
use llamabi::backend::cpu::Cpu;
use llamabi::backend::cpu::detect::Tier;
use llamabi::backend::gpu::Gpu;
use llamabi::backend::*;
use llamabi::{Dtype, Error};
use std::sync::Arc;

const PAGE: usize = LIMITS.page_size;

/// Logits of all rows of a sequence; `cuts` says how many rows of which kind each step has.
pub fn logits(runner: &mut dyn Run, cuts: &[(usize, RowKind)]) -> Vec<f32> {
    let (mut all, mut position) = (Vec::new(), 0);
    for &(n, kind) in cuts {
        let positions = position..position + n;
        let step = Step {
            tokens: positions.clone().map(|p| (p * 37 % 300) as i32).collect(),
            slots: positions.clone().map(|p| (p + 2 * PAGE) as u32).collect(),
            spans: vec![Span {
                rows: 0..n,
                kind,
                position,
                pages: 0..8,
            }],
            pages: (2..10).collect(),
            wanted: (0..n as u32).collect(),
            ..Step::default()
        };
        all.extend_from_slice(runner.run(&step, Choices::NONE).unwrap().logits());
        position += n;
    }
    all
}

/// The greatest difference, as a share of the root mean square of `want`.
pub fn apart(want: &[f32], got: &[f32]) -> f32 {
    assert_eq!(want.len(), got.len());
    // Comparisons below are never true of a NaN.
    assert!(got.iter().all(|x| x.is_finite()), "not finite");
    let square: f32 = want.iter().map(|x| x * x).sum();
    let most = want.iter().zip(got).map(|(a, b)| (a - b).abs());
    most.fold(0.0, f32::max) / (square / want.len() as f32).sqrt()
}

fn shape(ffn_dim: usize) -> Shape {
    Shape {
        ffn_dim,
        ..SHAPE.clone()
    }
}

fn on_gpu(device: Arc<Emu>, shape: &Shape, layers: &[LayerDtypes]) -> Box<dyn Run> {
    let weights = layers.concat();
    const F16: Dtype = Dtype::F16;
    if let Some(cuda) = real::cuda() {
        let gpu = Gpu::new(cuda, shape, &rope(), &LIMITS, &weights, F16).unwrap();
        return Box::new(mixed(gpu, shape, layers, F16, F16, false));
    }
    let gpu = Gpu::new(device, shape, &rope(), &LIMITS, &weights, F16).unwrap();
    Box::new(mixed(gpu, shape, layers, F16, F16, false))
}

#[test]
fn matrices_of_a_layer_may_differ() {
    use Dtype::{Bf16, F16, F32, Int4, Int8};
    let (prompt, decode) = (RowKind::Prefill, RowKind::Decode);
    // Decode rows are rounded by the product, or before it where there are many.
    let cuts = [(37, prompt), (1, decode), (9, decode), (20, prompt)];
    let pieces = [
        (16, prompt),
        (21, prompt),
        (1, decode),
        (4, decode),
        (5, decode),
        (20, prompt),
    ];
    // As in Q4_K_M: v and down have more bits in some layers.
    let integers = [
        [Int4, Int4, Int8, Int4, Int4, Int8],
        [Int4, Int4, Int4, Int4, Int4, Int4],
        [Int8, Int4, Int8, Int8, Int8, Int4],
    ];
    let floats = [
        [Bf16, Int8, Int4, Bf16, Int4, Bf16],
        [Int4, Bf16, Bf16, Int8, Bf16, Int8],
        [F16, Bf16, F16, Int4, F16, Bf16],
    ];
    let exact = [
        [F32, Int4, F32, Int8, F32, Int8],
        [Bf16, F32, Int4, F32, Int4, F32],
        [F32, F32, Bf16, F32, Bf16, F32],
    ];
    // Where ffn_dim is not a multiple of 16, no product takes h in permuted order.
    for (ffn_dim, layers) in [
        (200, integers),
        (208, integers),
        (200, floats),
        (208, floats),
        (224, exact),
    ] {
        let shape = shape(ffn_dim);
        let tier = Tier::named("portable").unwrap();
        let cpu = Cpu::with_tier(&shape, rope(), 1, LIMITS.max_rows, tier).unwrap();
        let mut cpu = mixed(cpu, &shape, &layers, F16, F32, true);
        let want = logits(&mut cpu, &cuts);
        for hopper in [false, true] {
            let device = Emu::either(hopper, 1 << 30, 1);
            let got = logits(&mut *on_gpu(device.clone(), &shape, &layers), &cuts);
            assert!(real::real() || (device.hoppers().0 > 0) == hopper);
            let (apart, bound) = (apart(&want, &got), 0.05);
            assert!(apart < bound, "{ffn_dim} {layers:?} {hopper}: {apart}");
            let again = logits(&mut *on_gpu(device, &shape, &layers), &pieces);
            assert!(
                got.iter()
                    .zip(&again)
                    .all(|(a, b)| a.to_bits() == b.to_bits()),
                "{ffn_dim} {layers:?} {hopper}: other bits in other pieces"
            );
        }
    }
}

/// An adapter of gate and up for a model of this shape.
fn adapter(gpu: &Gpu<Emu>, shape: &Shape, kept: Dtype) -> Arc<Adapter> {
    const RANK: usize = 8;
    const GATE_AND_UP: usize = 2;
    let numbers = |n: usize| (0..n).map(|i| (i * 29 % 23) as f32 / 115.0 - 0.1);
    let a: Vec<f32> = numbers(RANK * shape.dim).collect();
    let b: Vec<f32> = numbers(shape.ffn_dim * RANK).collect();
    let mut adapter = Adapter::new(shape).unwrap();
    adapter.id = 1;
    for layer in 0..shape.n_layers {
        for part in &mut adapter.matrices[layer * 4 + GATE_AND_UP][..2] {
            let sizes = [shape.ffn_dim, RANK, shape.dim];
            *part = Some(LowRank::new(kept, sizes, 1.0, &a, &b).unwrap());
        }
    }
    let carrier = gpu.carrier().unwrap();
    carrier.carry(&mut adapter).unwrap();
    Arc::new(adapter)
}

/// Logits of a prompt's rows in a step, beside a prompt with this adapter if there is one.
fn beside(runner: &mut dyn Run, adapter: Option<Arc<Adapter>>) -> Vec<u32> {
    const ROWS: usize = 2 * PAGE;
    let prompts = 1 + usize::from(adapter.is_some());
    let span = |i: usize| Span {
        rows: i * ROWS..(i + 1) * ROWS,
        kind: RowKind::Prefill,
        position: 0,
        pages: 2 * i..2 * i + 2,
    };
    let step = Step {
        tokens: (0..prompts * ROWS)
            .map(|i| (i % ROWS * 37 % 300) as i32)
            .collect(),
        slots: (0..prompts * ROWS).map(|i| (i + 2 * PAGE) as u32).collect(),
        spans: (0..prompts).map(span).collect(),
        pages: (2..2 + 2 * prompts as u32).collect(),
        wanted: (0..ROWS as u32).collect(),
        adapters: match adapter {
            Some(adapter) => vec![None, Some(adapter)],
            None => Vec::new(),
        },
        ..Step::default()
    };
    let logits = runner.run(&step, Choices::NONE).unwrap();
    logits.logits().iter().map(|x| x.to_bits()).collect()
}

/// A row of a prompt has the same bits beside a row with an adapter, also where gate and up have
/// another type than that by which the adapter's numbers are kept.
#[test]
fn an_adapter_of_another_type_changes_no_other_row() {
    use Dtype::{Bf16, F32};
    let shape = shape(224);
    for (most, up) in [(Bf16, F32), (F32, Bf16), (Bf16, Bf16), (F32, F32)] {
        let layers = [[most, most, most, most, up, most]; SHAPE.n_layers];
        for hopper in [false, true] {
            let device = Emu::either(hopper, 1 << 30, 1);
            let weights = layers.concat();
            let gpu = Gpu::new(device, &shape, &rope(), &LIMITS, &weights, Dtype::F16).unwrap();
            let adapter = adapter(&gpu, &shape, most);
            let mut runner = mixed(gpu, &shape, &layers, Dtype::F16, Dtype::F16, false);
            let alone = beside(&mut runner, None);
            let together = beside(&mut runner, Some(adapter));
            assert!(alone == together, "{most:?} {up:?} {hopper}");
        }
    }
}

#[test]
fn float32_beside_others_needs_whole_rows() {
    let shape = shape(200);
    let weights = [Dtype::F32, Dtype::Bf16];
    let device = Emu::new(1 << 30, 1);
    let made = Gpu::new(device, &shape, &rope(), &LIMITS, &weights, Dtype::F16);
    let Err(error @ Error::Unsupported(_)) = made else {
        panic!("rows of 200 numbers in f32 and in bf16");
    };
    assert!(error.to_string().contains("ffn_dim (200)"), "{error}");
}

#[test]
fn a_step_of_more_rows_than_a_grid_has() {
    let limits = Limits {
        max_rows: 65_505,
        ..LIMITS
    };
    let device = Emu::new(1 << 40, 1);
    let made = Gpu::new(device, &SHAPE, &rope(), &limits, &[Dtype::F32], Dtype::F16);
    let error = made.err().unwrap().to_string();
    assert!(error.contains("steps of 65505 rows"), "{error}");
}
