//! Weights in the formats of files, GGUF's and others, on the emulated device or a real one: logits
//! are those of the same weights in float32 on the CPU, with and without the kernels for compute
//! capability 9.0, and cutting a prompt changes no bit.

use crate::common::reference;
use crate::emu::real::built;
use crate::emu::{Emu, real};
use crate::mixed::{apart, logits};
use crate::small_model::{LIMITS, LayerDtypes, SHAPE, mixed, rope};
use llamabi::Dtype;
use llamabi::backend::cpu::Cpu;
use llamabi::backend::cpu::detect::Tier;
use llamabi::backend::gpu::Gpu;
use llamabi::backend::*;
use llamabi::checkpoint::weights::{LoadControl, load};
use llamabi::checkpoint::{self, Plan};
use llamabi::model::{Runner, rope as ropes};
use llamabi::quant::Quant;
use std::path::Path;
use std::sync::Arc;

const PROMPT: RowKind = RowKind::Prefill;
const DECODE: RowKind = RowKind::Decode;
// Decode rows are rounded by the product, or before it where there are many.
const CUTS: [(usize, RowKind); 4] = [(37, PROMPT), (1, DECODE), (9, DECODE), (20, PROMPT)];
const PIECES: [(usize, RowKind); 6] = [
    (16, PROMPT),
    (21, PROMPT),
    (1, DECODE),
    (4, DECODE),
    (5, DECODE),
    (20, PROMPT),
];

/// The portable kernels of the CPU.
fn cpu(shape: &Shape, rope: RopeTable) -> Cpu {
    let tier = Tier::named("portable").unwrap();
    Cpu::with_tier(shape, rope, 1, LIMITS.max_rows, tier).unwrap()
}

/// Compares the devices that `on_gpu` takes with `want`. `bound`: how far logits may be apart.
fn compare(what: &str, want: &[f32], bound: f32, on_gpu: impl Fn(Arc<Emu>) -> Box<dyn Run>) {
    for hopper in [false, true] {
        let device = Emu::either(hopper, 1 << 30, 1);
        let got = logits(&mut *on_gpu(device.clone()), &CUTS);
        let apart = apart(want, &got);
        assert!(apart < bound, "{what}, hopper {hopper}: {apart}");
        let again = logits(&mut *on_gpu(device), &PIECES);
        let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits();
        assert!(
            got.iter().zip(&again).all(same),
            "{what}, hopper {hopper}: other bits in other pieces"
        );
    }
}

#[test]
fn formats_of_files_are_multiplied_as_they_are() {
    use Dtype::{Bf16, F16, F32, Int4, Int8, Iq4, K4, K5, K6, K8, Uint4};
    type Model = ([LayerDtypes; 3], Dtype);
    // Rows of K types are whole blocks of 256.
    let shape = Shape {
        dim: 256,
        n_heads: 16,
        ffn_dim: 512,
        ..SHAPE.clone()
    };
    // As in Q4_K_M and Q5_K_M, and beside formats that have kernels for compute capability 9.0.
    let mixed_up: [Model; 4] = [
        (
            [
                [K4, Int8, K8, Int8, K4, Int8],
                [Int4, K4, K4, K8, Int4, K4],
                [Bf16, K8, K4, K4, Bf16, K8],
            ],
            K4,
        ),
        (
            [
                [K4, K4, K4, Bf16, K8, K4],
                [K8, K8, K8, K4, Int8, K8],
                [K4; 6],
            ],
            Int4,
        ),
        (
            [
                [K5; 6],
                [K5, K5, K6, K5, K5, K6],
                [Int8, K6, K8, K4, K5, K5],
            ],
            K6,
        ),
        (
            [
                [Uint4; 6],
                [Uint4, Int8, Iq4, Uint4, K4, Iq4],
                [Int4, K6, Uint4, Iq4, Uint4, K8],
            ],
            Uint4,
        ),
    ];
    let kept = |quant: &Quant| quant.is_of_files() && Gpu::<Emu>::keeps(*quant);
    let of_files = Quant::ALL.into_iter().filter(kept).map(Quant::dtype);
    let alone = of_files.map(|d| ([[d; 6], [d, d, K8, d, d, Int8], [d; 6]], d));
    for (layers, head) in mixed_up.into_iter().chain(alone) {
        let mut exact = mixed(cpu(&shape, rope()), &shape, &layers, head, F32, true);
        let want = logits(&mut exact, &CUTS);
        compare(&format!("{head} {layers:?}"), &want, 0.05, |device| {
            let weights = layers.concat();
            if let Some(cuda) = real::cuda() {
                let gpu = Gpu::new(cuda, &shape, &rope(), &LIMITS, &weights, F16).unwrap();
                return Box::new(mixed(gpu, &shape, &layers, head, F16, false));
            }
            let gpu = Gpu::new(device, &shape, &rope(), &LIMITS, &weights, F16).unwrap();
            Box::new(mixed(gpu, &shape, &layers, head, F16, false))
        });
    }
}

/// A file's weights on the backend that `open` makes; `asked` as in the options.
fn runner<B: Steps + 'static>(
    path: &Path,
    asked: Option<Dtype>,
    kv: Dtype,
    open: impl FnOnce(&Shape, RopeTable, &[Dtype]) -> B,
) -> Box<dyn Run> {
    let checkpoint = checkpoint::open(path).unwrap();
    let config = checkpoint.config(0).unwrap();
    let files = checkpoint.open(None).unwrap();
    let plan = Plan::new::<B>(&*checkpoint, &files, &config, asked, &[]).unwrap();
    let limits = Limits {
        vocab_size: config.shape.vocab_size,
        ..LIMITS
    };
    let rope = ropes::table(&config, limits.max_positions).unwrap();
    let backend = open(&config.shape, rope, &plan.layer_dtypes());
    let mut control = LoadControl {
        cancel: None,
        progress: &mut |_| true,
    };
    let weights = load(&backend, &plan, &mut control).unwrap();
    Box::new(Runner::new(backend, weights, &config.shape, kv, limits).unwrap())
}

#[test]
fn files_are_computed_with_as_they_are_stored() {
    use Dtype::{Fp8, Int4, Int8, Iq4, K6, K8, Uint4};
    let root = reference("..");
    // What layers are kept as, among others. The first file has formats besides that become int8:
    // Q2_K, and Q4_K in a gate beside an up in Q5_K. The second has an embedding in int4, which is
    // the head too. The blocks of the first fp8 checkpoint are 128 wide; the others have a scale
    // for each row.
    let cases: [(&str, &[Dtype], f32); 9] = [
        ("gguf/mixed-k.gguf", &[Iq4, K6, K8, Int8], 0.15),
        ("gguf/q4_0-llama3.gguf", &[Int4], 0.05),
        ("gguf/q8_0.gguf", &[Int8], 0.05),
        ("gguf/mixed32-qwen2.gguf", &[Iq4, Uint4], 0.15),
        ("quantised/awq-g32", &[Uint4], 0.05),
        ("quantised/gptq-asym-g64", &[Uint4], 0.05),
        ("quantised/fp8-blocks", &[Fp8], 0.05),
        ("quantised/fbgemm-fp8", &[Fp8], 0.05),
        ("quantised/ct-fp8", &[Fp8], 0.05),
    ];
    for (name, kept, bound) in cases {
        let path = root.join(name);
        let asked = Some(Dtype::F32);
        let mut exact = runner(&path, asked, Dtype::F32, |shape, rope, _| cpu(shape, rope));
        let want = logits(&mut *exact, &CUTS);
        let limits = |shape: &Shape| Limits {
            vocab_size: shape.vocab_size,
            ..LIMITS
        };
        const F16: Dtype = Dtype::F16;
        let check = |weights: &[Dtype]| {
            let missing = kept.iter().find(|&dtype| !weights.contains(dtype));
            assert_eq!(missing, None, "{name}: {weights:?}");
        };
        compare(name, &want, bound, |device| match real::cuda() {
            Some(cuda) => runner(&path, None, F16, |shape, rope, weights| {
                check(weights);
                Gpu::new(cuda, shape, &rope, &limits(shape), weights, F16).unwrap()
            }),
            None => runner(&path, None, F16, |shape, rope, weights| {
                check(weights);
                Gpu::new(device, shape, &rope, &limits(shape), weights, F16).unwrap()
            }),
        });
    }
}

/// What the handle says of its weights.
#[test]
fn a_handle_has_the_formats_of_its_file() {
    let path = reference("../gguf/mixed-k.gguf");
    let device = Emu::new(1 << 30, 1);
    let llama = built(device, &path, None, &Default::default()).unwrap();
    let answer = llama.info().weights_dtype;
    assert_eq!(answer, Dtype::Int8);
}
