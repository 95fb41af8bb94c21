//! [`crate::span_cases`] on the emulated GPU, or with `LLAMABI_TEST_DEVICE=cuda` on a real one.

use crate::emu::{Emu, real};
use crate::small_model::{LIMITS, rope};
use crate::span_cases::{check, shape};
use llamabi::Dtype;
use llamabi::backend::Backend;
use llamabi::backend::gpu::Gpu;
use llamabi::backend::gpu::device::Device;
use std::sync::Arc;

const GIB: u64 = 1 << 30;

fn gpu<D: Device>(device: Arc<D>, dtype: Dtype, kv_dtype: Dtype) -> Gpu<D> {
    Gpu::new(device, &shape(dtype), &rope(), &LIMITS, &[dtype], kv_dtype).unwrap()
}

#[test]
fn spans_of_decode_have_the_bits_of_their_rows() {
    use Dtype::{Bf16, F16, Int4, Int8};
    let caches = [Bf16, F16, Int8].into_iter().cycle();
    let kept = |dtype: &Dtype| dtype.quant().is_none_or(Gpu::<Emu>::keeps);
    for (dtype, other) in Dtype::ALL.into_iter().filter(kept).zip(caches) {
        // Where the cache can have the format of the weights, it has it.
        let kv_dtype = if dtype.is_of_cache() { dtype } else { other };
        let pair = (dtype, kv_dtype);
        if let Some(cuda) = real::cuda() {
            check(gpu(cuda, dtype, kv_dtype), "a GPU", pair, 1..=15);
            continue;
        }
        // The emulator takes its time: it has some of them, with fewer drafts.
        let drafts: &[usize] = match dtype {
            Bf16 => &[1, 3, 15],
            Int8 | Int4 => &[1],
            _ => continue,
        };
        let emu = gpu(Emu::new(GIB, 7), dtype, kv_dtype);
        check(emu, "the emulator", pair, drafts.iter().copied());
    }
}
