//! Medusa heads on the emulated device, or with `LLAMABI_TEST_DEVICE=cuda` on a real one: what they
//! compute, and the same bits with their guesses, which the device chooses.

use crate::common::reference;
use crate::emu::{Emu, real};
use crate::medusa_cases::{always, check, from};
use crate::small_model::{LIMITS, SHAPE, rope};
use llamabi::backend::gpu::Gpu;
use llamabi::backend::gpu::device::Device;
use llamabi::backend::*;
use llamabi::engine::{GenerateOptions, Prompt, Speculation};
use llamabi::{BuildOptions, Dtype, Llama, Token};
use std::sync::Arc;

const GIB: u64 = 1 << 30;

fn gpu<D: Device>(device: Arc<D>, dtype: Dtype) -> Gpu<D> {
    let gpu = Gpu::new(device, &SHAPE, &rope(), &LIMITS, &[dtype], dtype).unwrap();
    gpu.with_medusa(&LIMITS).unwrap()
}

#[test]
fn heads_compute_what_they_are_said_to() {
    // Products of 16-bit weights take activations of 16 bits.
    for (dtype, off) in [(Dtype::F32, 1e-5), (Dtype::F16, 3e-3), (Dtype::Bf16, 2e-2)] {
        match real::cuda() {
            Some(cuda) => check(gpu(cuda, dtype), dtype, off),
            None => check(gpu(Emu::new(GIB, 5), dtype), dtype, off),
        }
    }
}

#[test]
fn guesses_change_no_bit() {
    let dir = reference("mha-f32/hf");
    let token = |i: usize, n: usize| (1 + (i * i * 31 + i * 17 + n * 57) % 290) as Token;
    let prompt = |n: usize| Prompt::Tokens((0..n).map(|i| token(i, n)).collect());
    for (dtype, hopper) in [(Some(Dtype::Int8), false), (Some(Dtype::Bf16), true)] {
        let build = |heads: Option<&std::path::Path>| {
            let options = BuildOptions {
                max_seq_len: 64,
                max_batch_size: 3,
                weights_dtype: dtype,
                medusa_dir: heads.map(Into::into),
                ..BuildOptions::default()
            };
            let device = Emu::either(hopper, GIB, 1);
            Llama::build_on(device, &dir, None, &options, &mut |_| true).unwrap()
        };
        let plainly = build(None);
        let options = |temperature, speculation| GenerateOptions {
            temperature,
            speculation,
            draft_len: 3,
            seed: 5,
            logprobs: true,
            ignore_eos: true,
            max_gen_len: Some(17),
            ..GenerateOptions::default()
        };
        let run = |llama: &Llama, options: GenerateOptions| {
            let prompts = [7, 33, 1].map(prompt).into();
            let done = llama.generate(prompts, options, &mut |_| true);
            done.unwrap().sequences
        };
        let said = run(&plainly, options(0.0, Speculation::Off));
        // So that a guess is right once at least.
        let token = said[0].tokens[5];
        let shape = &plainly.info().config.shape;
        let heads = always(token as usize, 2, [shape.dim, shape.vocab_size], "");
        let llama = build(Some(heads.path()));
        assert_eq!(llama.info().medusa_heads, 2);
        for temperature in [0.0, 1.0] {
            let want = run(&plainly, options(temperature, Speculation::Off));
            let got = run(&llama, options(temperature, Speculation::Medusa));
            for (got, want) in got.iter().zip(&want) {
                assert_eq!(got.tokens, want.tokens, "{dtype:?} {temperature}");
                let bits = |logprobs: &[f32]| logprobs.iter().map(|x| x.to_bits()).collect();
                let [a, b]: [Vec<u32>; 2] = [bits(&got.logprobs), bits(&want.logprobs)];
                assert_eq!(a, b);
                assert!(got.stats.drafted_tokens > 8, "{}", got.stats.drafted_tokens);
            }
            let right: u32 = got.iter().map(|s| s.stats.accepted_tokens).sum();
            assert!(temperature > 0.0 || right > 0, "no guess was right");
        }
    }
}

/// The rows that pad a step of nine have room, although no step has more than nine.
#[test]
fn padded_rows_have_room() {
    let limits = Limits {
        max_rows: 9,
        max_wanted: 9,
        ..LIMITS
    };
    for dtype in [Dtype::F32, Dtype::Bf16] {
        let (device, rope) = (Emu::new(GIB, 1), rope());
        let gpu = Gpu::new(device, &SHAPE, &rope, &limits, &[dtype], dtype).unwrap();
        let mut gpu = gpu.with_medusa(&limits).unwrap();
        let spec = MatSpec {
            parts: PartSpec::all(&[SHAPE.dim], dtype),
            cols: SHAPE.dim,
            bias: false,
            scale: 1.0,
            usage: MatUse::Product,
            adapter_index: None,
        };
        let w = gpu.new_mat(&spec).unwrap();
        let [h, mut out] = [0; 2].map(|_| gpu.new_buf(32, SHAPE.dim).unwrap());
        gpu.load(&from(&[0; 9]), Choices::NONE);
        gpu.residual_block(&mut out, &w, &h);
        // An operation has no error of its own; one beyond the buffer ends the process, too.
        if let Err(error) = gpu.new_vector(&[]) {
            panic!("{dtype}: {error}");
        }
    }
}
