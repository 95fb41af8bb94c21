//! [`crate::span_cases`] on the emulated GPU, or with `LLAMABI_TEST_DEVICE=cuda` on a real one.

use crate::emu::{Emu, real};
use crate::small_model::{LIMITS, SHAPE, rope};
use crate::span_cases::check;
use llamabi::Dtype;
use llamabi::backend::gpu::Gpu;
use llamabi::backend::gpu::device::Device;
use std::sync::Arc;

const GIB: u64 = 1 << 30;

fn gpu<D: Device>(device: Arc<D>, dtype: Dtype, kv_dtype: Dtype) -> Gpu<D> {
    Gpu::new(device, &SHAPE, &rope(), &LIMITS, &[dtype], kv_dtype).unwrap()
}

#[test]
fn spans_of_decode_have_the_bits_of_their_rows() {
    use Dtype::{Bf16, F16, F32, Int4, Int8};
    let all = [
        (Bf16, Bf16),
        (Int8, Int8),
        (Int4, F16),
        (F16, Bf16),
        (F32, F32),
    ];
    for (at, (dtype, kv_dtype)) in all.into_iter().enumerate() {
        match real::cuda() {
            Some(cuda) => check(gpu(cuda, dtype, kv_dtype), dtype, kv_dtype, 15),
            // The emulator takes its time.
            None if at > 2 => {}
            None => check(gpu(Emu::new(GIB, 7), dtype, kv_dtype), dtype, kv_dtype, 1),
        }
    }
}
