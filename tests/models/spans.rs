//! [`crate::span_cases`] on the CPU: every tier that this processor has, every format of weights
//! and of the cache.

use crate::small_model::{LIMITS, SHAPE, rope};
use crate::span_cases::check;
use llamabi::Dtype;
use llamabi::backend::cpu::Cpu;
use llamabi::backend::cpu::detect::{TIERS, Tier};

fn on_every_tier(dtype: Dtype, kv_dtype: Dtype, drafts: usize) {
    let mut tiers = 0;
    for name in TIERS {
        let Ok(tier) = Tier::named(name) else {
            continue;
        };
        let cpu = Cpu::with_tier(&SHAPE, rope(), 2, LIMITS.max_rows, tier).unwrap();
        check(cpu, dtype, kv_dtype, drafts);
        tiers += 1;
    }
    assert!(tiers > 0);
}

#[test]
fn spans_of_decode_have_the_bits_of_their_rows() {
    on_every_tier(Dtype::Bf16, Dtype::Bf16, 15);
}

#[test]
fn with_every_weight_format() {
    for dtype in [Dtype::F32, Dtype::F16, Dtype::Int8, Dtype::Int4] {
        on_every_tier(dtype, Dtype::Bf16, 4);
    }
}

#[test]
fn with_every_cache_format() {
    for kv_dtype in [Dtype::F32, Dtype::F16, Dtype::Int8] {
        on_every_tier(Dtype::Bf16, kv_dtype, 4);
    }
}
