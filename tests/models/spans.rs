//! [`crate::span_cases`] on the CPU: every tier that this processor has, every format of weights
//! and of the cache, and every precision: a handle for many sequences decodes with the arithmetic
//! of prompts.

use crate::small_model::{LIMITS, rope};
use crate::span_cases::{check, shape};
use llamabi::Dtype;
use llamabi::backend::Backend;
use llamabi::backend::cpu::detect::{TIERS, Tier};
use llamabi::backend::cpu::{Cpu, Precision};

/// Each is another arithmetic for quantised weights. To floats the fastest is that of prompts.
fn precisions(dtype: Dtype) -> &'static [Precision] {
    let all = &[Precision::Full, Precision::AsPrompts, Precision::Fast(1)];
    match dtype.is_float() {
        true => &all[..2],
        false => all,
    }
}

fn on_every_tier(dtype: Dtype, kv_dtype: Dtype, drafts: impl IntoIterator<Item = usize> + Clone) {
    let mut tiers = 0;
    for name in TIERS {
        let Ok(tier) = Tier::named(name) else {
            continue;
        };
        for precision in precisions(dtype) {
            let cpu = Cpu::with_tier(&shape(dtype), rope(), 2, LIMITS.max_rows, tier).unwrap();
            let how = format!("{name}, {precision:?}");
            let cpu = cpu.precision(*precision);
            check(cpu, &how, (dtype, kv_dtype), drafts.clone());
        }
        tiers += 1;
    }
    assert!(tiers > 0);
}

#[test]
fn spans_of_decode_have_the_bits_of_their_rows() {
    on_every_tier(Dtype::Bf16, Dtype::Bf16, 1..=15);
}

#[test]
fn with_every_weight_format() {
    let kept = |dtype: &Dtype| dtype.quant().is_none_or(Cpu::keeps);
    for dtype in Dtype::ALL.into_iter().filter(kept) {
        on_every_tier(dtype, Dtype::Bf16, [3, 15]);
    }
}

#[test]
fn with_every_cache_format() {
    for kv_dtype in [Dtype::F32, Dtype::F16, Dtype::Int8] {
        on_every_tier(Dtype::Bf16, kv_dtype, [3, 15]);
    }
}
