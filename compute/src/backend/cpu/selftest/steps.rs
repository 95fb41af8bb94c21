//! Whole steps of a small model.

use super::*;
use std::convert::identity;

/// What a model gets beside what Llama has.
type Change = fn(scalar::Model) -> scalar::Model;

/// The whole transformer, every storage format, GQA 1, 4 and 8, odd sizes.
pub fn forward_matches(tier: Tier) {
    let shapes = [
        shape(24, [2, 2], 6, 20, 37),
        shape(40, [8, 2], 16, 50, 61),
        shape(64, [8, 1], 32, 90, 100),
        shape(50, [4, 4], 80, 33, 45),
    ];
    for (i, shape) in shapes.iter().enumerate() {
        for (dtype, kv) in DTYPES.iter().flat_map(|&a| DTYPES.map(|b| (a, b))) {
            let model = random_model(shape, dtype, i % 2 == 1, i == 2, 11 + i as u64);
            let mut machine = Machine::new(&model, tier, 2, dtype, kv);
            let tokens = random_tokens(45, shape.vocab_size, 3);
            let want = model.logits(&tokens, kv);
            let (mut sequence, mut got) = machine.prefill(&tokens[..40], 23);
            for t in 40..45 {
                let token = &tokens[t..t + 1];
                got.extend(machine.step(&mut [(&mut sequence, token, RowKind::Decode)]));
            }
            // With a 16-bit cache, a last-bit difference before rounding may become a difference of
            // 2^-9 or 2^-11 in one of the numbers of K or V.
            let tolerance = match kv {
                _ if rounds(tier, RowKind::Prefill, dtype) => 0.04,
                Dtype::F32 => 1e-5,
                Dtype::F16 => 2e-4,
                _ => 1e-3,
            };
            assert_close(&got, &want, tolerance, &format!("{shape:?} {dtype} {kv}"));
        }
    }
}

/// Long enough for several chunks of keys, with heads of the usual widths and of odd ones.
pub fn long_sequences_match(tier: Tier) {
    let cases: [([usize; 2], usize, Change); 6] = [
        ([2, 2], 64, identity),
        ([4, 1], 128, with_features),
        ([16, 2], 16, identity),
        ([3, 3], 42, with_features),
        ([3, 3], 42, with_rotations),
        ([3, 3], 42, identity),
    ];
    for (heads, head_dim, change) in cases {
        let shape = shape(32, heads, head_dim, 32, 40);
        for dtype in DTYPES {
            let model = change(random_model(&shape, dtype, false, false, 31));
            let mut machine = Machine::new(&model, tier, 2, dtype, dtype);
            let tokens = random_tokens(530, 40, 9);
            let want = model.logits(&tokens, dtype);
            let (sequence, got) = machine.prefill(&tokens, 300);
            let tolerance = match dtype {
                _ if rounds(tier, RowKind::Prefill, dtype) => 0.03,
                Dtype::F32 => 2e-5,
                Dtype::F16 => 2e-4,
                _ => 2e-3,
            };
            let what = format!("{heads:?} {head_dim} {dtype}");
            assert_close(&got, &want, tolerance, &what);
            machine.release(sequence);
        }
    }
}

/// Law four: alone or among others, on one thread or three, in chunks or whole, by decode steps or
/// by prefill, the bits are the same.
pub fn company_threads_and_chunks_change_nothing(tier: Tier) {
    let (full, as_prompts, fast) = (Precision::Full, Precision::AsPrompts, Precision::Fast(1));
    let cases: [(Dtype, Dtype, [usize; 2], usize, Change, Precision); 6] = [
        (Dtype::Bf16, Dtype::Bf16, [4, 2], 32, with_features, full),
        (
            Dtype::Bf16,
            Dtype::Bf16,
            [4, 2],
            32,
            with_features,
            as_prompts,
        ),
        (Dtype::F32, Dtype::F32, [3, 3], 10, identity, full),
        (Dtype::F16, Dtype::F16, [4, 1], 64, with_rotations, full),
        (Dtype::Bf16, Dtype::Int8, [3, 1], 16, with_features, full),
        (Dtype::Bf16, Dtype::Int8, [3, 1], 16, identity, fast),
    ];
    for (dtype, kv, heads, head_dim, change, precision) in cases {
        let shape = shape(40, heads, head_dim, 60, 70);
        let model = change(random_model(&shape, dtype, true, false, 5));
        let tokens = random_tokens(272, 70, 21);
        let mut reference = Machine::new(&model, tier, 1, dtype, kv);
        reference.cpu.precision = precision;
        let (sequence, want) = reference.prefill(&tokens, tokens.len());
        reference.release(sequence);
        // Decodes from 250 on, alone.
        let (mut sequence, mut decoded) = reference.prefill(&tokens[..250], 250);
        for t in 250..262 {
            let token = &tokens[t..t + 1];
            decoded.extend(reference.step(&mut [(&mut sequence, token, RowKind::Decode)]));
        }
        assert!(decoded[..250] == want[..250]);
        // Prompt rows on tiles have an order of their own, and those in bfloat16 without tiles
        // where generated rows are not.
        if !rounds(tier, RowKind::Prefill, dtype) || precision != full && !tier.has_tiles() {
            assert!(decoded == want[..262], "decode and prefill");
        }
        // Prefills up to 258 and then decodes, as the tests with other sequences do.
        let (mut sequence, _) = reference.prefill(&tokens[..258], 258);
        let late: Vec<Vec<f32>> = (258..260)
            .flat_map(|t| {
                let token = &tokens[t..t + 1];
                reference.step(&mut [(&mut sequence, token, RowKind::Decode)])
            })
            .collect();
        for threads in [1, 2, 3] {
            let mut machine = Machine::new(&model, tier, threads, dtype, kv);
            machine.cpu.precision = precision;
            for chunk in [7, 100, 272] {
                let (sequence, got) = machine.prefill(&tokens, chunk);
                assert!(got == want, "{threads} threads, chunks of {chunk}");
                machine.release(sequence);
            }
            // Decodes token by token past a boundary of chunks.
            let (mut sequence, _) = machine.prefill(&tokens[..250], 100);
            for t in 250..262 {
                let token = &tokens[t..t + 1];
                let got = machine.step(&mut [(&mut sequence, token, RowKind::Decode)]);
                assert!(got[0] == decoded[t], "{threads} threads, decode at {t}");
            }
            machine.release(sequence);
            // Among one to eight other sequences.
            let others: Vec<Vec<Token>> = (0..8)
                .map(|i| random_tokens(3 + 9 * i, 70, 70 + i as u64))
                .collect();
            let mut company: Vec<Sequence> = others
                .iter()
                .map(|tokens| machine.prefill(tokens, 100).0)
                .collect();
            for (n, rows) in [(1, 40), (5, 200), (8, 40)] {
                let (mut sequence, _) = machine.prefill(&tokens[..258], 258);
                let mut before = company[..n].to_vec();
                let mut work: Vec<(&mut Sequence, &[Token], RowKind)> = before
                    .iter_mut()
                    .map(|s| (s, &tokens[..1], RowKind::Decode))
                    .collect();
                work.insert(n / 2, (&mut sequence, &tokens[258..259], RowKind::Decode));
                let got = machine.step(&mut work);
                assert!(got[n / 2] == late[0], "{threads} threads, {n} others");
                for (i, s) in before.into_iter().enumerate() {
                    company[i].pages = s.pages;
                }
                // A prompt among decoding rows, in one step.
                let mut second = Sequence::default();
                let mut work: Vec<(&mut Sequence, &[Token], RowKind)> =
                    vec![(&mut second, &tokens[..rows], RowKind::Prefill)];
                work.push((&mut sequence, &tokens[259..260], RowKind::Decode));
                let got = machine.step(&mut work);
                assert!(got[..rows] == want[..rows], "{threads} threads, mixed");
                assert!(got[rows] == late[1], "{threads} threads, mixed");
                machine.release(second);
                machine.release(sequence);
            }
        }
    }
}

/// A row without a slot reads the cache and does not change it; copied pages give the same result.
pub fn rows_without_slot_and_copied_pages(tier: Tier) {
    let shape = shape(32, [4, 2], 16, 40, 50);
    let model = random_model(&shape, Dtype::Bf16, false, false, 77);
    let mut machine = Machine::new(&model, tier, 2, Dtype::Bf16, Dtype::F16);
    let tokens = random_tokens(50, 50, 1);
    let (sequence, want) = machine.prefill(&tokens, 50);
    let copies: Vec<u32> = sequence
        .pages
        .iter()
        .map(|_| machine.free.pop().unwrap())
        .collect();
    let pairs: Vec<(u32, u32)> = sequence
        .pages
        .iter()
        .copied()
        .zip(copies.iter().copied())
        .collect();
    machine.cpu.copy_pages(&mut machine.kv, &pairs).unwrap();
    let before = match &machine.kv.data {
        element::Data::Half(m) => m.to_vec(),
        _ => unreachable!(),
    };
    for pages in [sequence.pages, copies] {
        let step = Step {
            tokens: vec![tokens[49]],
            slots: vec![Step::NO_SLOT],
            spans: vec![Span {
                rows: 0..1,
                kind: RowKind::Prefill,
                position: 49,
                pages: 0..pages.len(),
            }],
            pages,
            wanted: vec![0],
            ..Step::default()
        };
        let got = machine.run(&step);
        assert!(got[0] == want[49]);
    }
    let element::Data::Half(after) = &machine.kv.data else {
        unreachable!()
    };
    assert!(before == **after, "the cache was written");
}

/// The int8 cache against its scalar twin; other sequences, threads, chunks and copied pages change
/// nothing.
pub fn int8_cache_matches(tier: Tier) {
    let kv = Dtype::Int8;
    for (heads, head_dim) in [([4, 2], 32), ([8, 1], 10), ([3, 3], 64)] {
        let shape = shape(40, heads, head_dim, 60, 70);
        let model = random_model(&shape, Dtype::F32, false, false, 15);
        let tokens = random_tokens(300, 70, 4);
        let want = model.logits(&tokens, kv);
        let mut alone = Machine::new(&model, tier, 1, Dtype::F32, kv);
        let (sequence, got) = alone.prefill(&tokens, 300);
        // A last-bit difference before rounding may change a number of K or V by 1/127 of its
        // vector's maximum.
        assert_close(&got, &want, 4e-3, &format!("{heads:?} {head_dim}"));
        let pairs: Vec<(u32, u32)> = sequence
            .pages
            .iter()
            .map(|&page| (page, alone.free.pop().unwrap()))
            .collect();
        alone.cpu.copy_pages(&mut alone.kv, &pairs).unwrap();
        let mut copy = Sequence {
            pages: pairs.iter().map(|p| p.1).collect(),
            len: 299,
        };
        let again = alone.step(&mut [(&mut copy, &tokens[299..], RowKind::Decode)]);
        assert!(again[0] == got[299], "a copy");
        let mut machine = Machine::new(&model, tier, 3, Dtype::F32, kv);
        let (mut sequence, chunks) = machine.prefill(&tokens[..290], 37);
        assert!(chunks == got[..290], "chunks");
        for t in 290..300 {
            let mut other = Sequence::default();
            let step = machine.step(&mut [
                (&mut other, &tokens[..9], RowKind::Prefill),
                (&mut sequence, &tokens[t..=t], RowKind::Decode),
            ]);
            assert!(step[9] == got[t], "in company");
            machine.release(other);
        }
    }
    // Zeros stay zeros, tiny vectors become zero, and numbers that are not finite show.
    for (x, want) in [
        ([0.0, 0.0], [0.0, 0.0]),
        ([1e-38, -1e-38], [0.0, 0.0]),
        ([1.0, -0.5], [1.0, -0.503_937]),
        ([3e38, -3e38], [3e38, -3e38]),
    ] {
        use element::{Element, I8};
        let unit = I8::unit(|take| x.iter().for_each(|&x| take(x)));
        let got = x.map(|x| I8::to_f32(I8::from_f32(x * I8::inverse(unit))) * unit);
        for (got, want) in got.iter().zip(want) {
            assert!((got - want).abs() <= 1e-6 * want.abs(), "{got} for {want}");
        }
        for bad in [f32::NAN, f32::INFINITY] {
            assert!(I8::unit(|take| [x[0], bad, x[1]].iter().for_each(|&x| take(x))).is_nan());
        }
    }
}

/// Only the wanted rows have logits, in order; none is fine too.
pub fn wanted_rows_only(tier: Tier) {
    let shape = shape(32, [4, 2], 16, 40, 50);
    let model = random_model(&shape, Dtype::F32, false, true, 7);
    let mut machine = Machine::new(&model, tier, 2, Dtype::F32, Dtype::F32);
    let tokens = random_tokens(20, 50, 1);
    let (sequence, want) = machine.prefill(&tokens, 20);
    let mut step = Step {
        tokens: tokens.clone(),
        slots: vec![Step::NO_SLOT; 20],
        spans: vec![Span {
            rows: 0..20,
            kind: RowKind::Prefill,
            position: 0,
            pages: 0..sequence.pages.len(),
        }],
        pages: sequence.pages,
        wanted: vec![3, 4, 19],
        ..Step::default()
    };
    let got = machine.run(&step);
    assert!(got[0] == want[3] && got[1] == want[4] && got[2] == want[19]);
    step.wanted.clear();
    assert!(machine.run(&step).is_empty());
}

/// Law four where products have several blocks of k, several groups and bands of rows, and tasks
/// with several strips: prompts in chunks of any size have the bits that they have in small ones.
pub fn wide_prompts_do_not_depend_on_their_chunks(tier: Tier) {
    let shape = Shape {
        n_layers: 1,
        ..shape(1056, [4, 2], 16, 1328, 40)
    };
    let chunks: &[usize] = match tier.has_tiles() {
        true => &[33, 64, 65, 128, 145, 176, 300, 560],
        false => &[65, 560],
    };
    for dtype in [Dtype::Bf16, Dtype::F16, Dtype::Int8, Dtype::Int4] {
        let model = random_model(&shape, Dtype::Bf16, true, false, 5);
        let mut machine = Machine::new(&model, tier, 3, dtype, Dtype::Bf16);
        let tokens = random_tokens(560, shape.vocab_size, 21);
        let (sequence, want) = machine.prefill(&tokens, 13);
        machine.release(sequence);
        for &chunk in chunks {
            let (sequence, got) = machine.prefill(&tokens, chunk);
            assert!(got == want, "{dtype}, chunks of {chunk}");
            machine.release(sequence);
        }
    }
}
