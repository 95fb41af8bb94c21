//! [`crate::span_cases`] on the emulated GPU, or with `LLAMABI_TEST_DEVICE=cuda` on a real one.

use crate::emu::{Emu, real};
use crate::small_model::{LIMITS, rope};
use crate::span_cases::{check, shape};
use llamabi::Dtype;
use llamabi::backend::gpu::Gpu;
use llamabi::backend::gpu::device::Device;
use std::sync::Arc;

const GIB: u64 = 1 << 30;

fn gpu<D: Device>(device: Arc<D>, dtype: Dtype, kv_dtype: Dtype) -> Gpu<D> {
    Gpu::new(device, &shape(dtype), &rope(), &LIMITS, &[dtype], kv_dtype).unwrap()
}

#[test]
fn spans_of_decode_have_the_bits_of_their_rows() {
    use Dtype::{Bf16, F16, F32, Fp8, Int4, Int8, Iq4, K4, K5, K6, K8, Nf4, Uint4};
    // The emulator takes its time: it has the first ones, with fewer drafts.
    let all = [
        (Bf16, Bf16),
        (Int8, Int8),
        (Int4, F16),
        (F16, Bf16),
        (F32, F32),
        (Nf4, Int8),
        (Fp8, Fp8),
        (K4, Bf16),
        (K5, F16),
        (K6, Bf16),
        (K8, Int8),
        (Iq4, Bf16),
        (Uint4, F16),
    ];
    for (at, pair) in all.into_iter().enumerate() {
        let (dtype, kv_dtype) = pair;
        if let Some(cuda) = real::cuda() {
            check(gpu(cuda, dtype, kv_dtype), "a GPU", pair, 1..=15);
            continue;
        }
        let drafts: &[usize] = match at {
            0 => &[1, 3, 15],
            1 | 2 => &[1],
            _ => break,
        };
        let emu = gpu(Emu::new(GIB, 7), dtype, kv_dtype);
        check(emu, "the emulator", pair, drafts.iter().copied());
    }
}
