//! What a CPU says of itself and of memory; and AVX2 and AVX-512 beside each other.

use super::*;
use crate::Error;

pub fn avx2_and_avx512_agree_in_every_bit(avx512: Tier) {
    let (Ok(avx2), "AVX-512") = (Tier::named("avx2"), avx512.name()) else {
        return;
    };
    for (dtype, kv) in DTYPES.iter().flat_map(|&a| DTYPES.map(|b| (a, b))) {
        let shape = shape(40, [8, 2], 24, 50, 61);
        let model = random_model(&shape, dtype, true, false, 3);
        let tokens = random_tokens(280, 61, 2);
        let run = |tier| {
            let mut machine = Machine::new(&model, tier, 2, dtype, kv);
            let (mut sequence, mut out) = machine.prefill(&tokens[..275], 100);
            for t in 275..280 {
                out.extend(machine.step(&mut [(&mut sequence, &tokens[t..=t], RowKind::Decode)]));
            }
            out
        };
        assert!(run(avx2) == run(avx512), "{dtype} weights, {kv} cache");
    }
}

pub fn a_cpu_says_what_it_is(tier: Tier) {
    let s = shape(8, [2, 2], 4, 8, 8);
    let said = |threads| {
        let cpu = Cpu::with_tier(&s, rope(4, 16), threads, 4, tier).unwrap();
        cpu.description()
    };
    let name = tier.name();
    assert_eq!(said(1), format!("{name}, 1 thread"));
    assert_eq!(said(3), format!("{name}, 3 threads"));
    let (all, begin) = (said(0), format!("{name}, {} ", usable_threads()));
    assert!(all.starts_with(&begin), "{all}");
}

pub fn sizes_that_no_machine_has_are_errors(tier: Tier) {
    let s = shape(8, [2, 2], 4, 8, 8);
    let cpu = Cpu::with_tier(&s, rope(4, 16), 1, 4, tier).unwrap();
    for parts in [
        vec![usize::MAX],
        vec![usize::MAX / 2, usize::MAX / 2],
        vec![1 << 40],
    ] {
        for usage in [MatUse::Product, MatUse::Lookup] {
            let spec = MatSpec {
                parts: PartSpec::all(&parts, Dtype::F32),
                cols: 1 << 20,
                bias: false,
                scale: 1.0,
                usage,
                adapter_index: None,
            };
            assert!(matches!(cpu.new_mat(&spec), Err(Error::NoMemory { .. })));
            assert!(Cpu::mat_bytes(&spec) >= 1 << 60);
        }
    }
    assert!(matches!(
        cpu.new_kv(usize::MAX, Dtype::F32),
        Err(Error::NoMemory { .. })
    ));
    assert!(matches!(
        cpu.new_buf(usize::MAX, 2),
        Err(Error::NoMemory { .. })
    ));
    assert!(matches!(
        Cpu::new(&s, rope(4, 16), 1, usize::MAX),
        Err(Error::NoMemory { .. } | Error::Refused { .. })
    ));
    let odd = Shape {
        head_dim: 3,
        ..s.clone()
    };
    assert!(matches!(
        Cpu::new(&odd, rope(4, 16), 1, 4),
        Err(Error::InvalidArgument { .. })
    ));
    let uneven = Shape { n_kv_heads: 3, ..s };
    assert!(matches!(
        Cpu::new(&uneven, rope(4, 16), 1, 4),
        Err(Error::InvalidArgument { .. })
    ));
}

pub fn bytes_said_are_bytes_taken(tier: Tier) {
    let s = shape(8, [2, 2], 4, 8, 8);
    let cpu = Cpu::with_tier(&s, rope(4, 16), 1, 4, tier).unwrap();
    let spec = MatSpec {
        parts: PartSpec::all(&[17, 3], Dtype::Bf16),
        cols: 5,
        bias: true,
        scale: 1.0,
        usage: MatUse::Product,
        adapter_index: None,
    };
    let mat = cpu.new_mat(&spec).unwrap();
    let run = &mat.runs[0];
    assert_eq!(
        Cpu::mat_bytes(&spec),
        (2 * run.words().len() + 4 * run.bias.len()) as u64
    );
    assert_eq!(Cpu::mat_bytes(&spec), 2 * 3 * 16 * 32 + 4 * 48);
    let kv = cpu.new_kv(3, Dtype::F32).unwrap();
    let element::Data::Single(m) = &kv.data else {
        unreachable!()
    };
    assert_eq!(3 * Cpu::page_bytes(&s, Dtype::F32), 4 * m.len() as u64);
}
