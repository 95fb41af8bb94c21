//! A span of several rows of decode is these rows one by one, to the bit: what speculation rests
//! on.

use crate::small_model::{LIMITS, SHAPE, mixed};
use llamabi::backend::*;
use llamabi::model::Runner;
use llamabi::{Dtype, Token};
use std::slice::from_ref;

const PAGE: usize = LIMITS.page_size;

/// Where rows of decode begin, and where they end: attention splits its keys at 256.
const PROMPT: usize = 236;
const END: usize = 276;

/// Rows of one sequence. Those from `wrong` on have other tokens than the sequence.
#[derive(Clone)]
struct Part<'a> {
    sequence: usize,
    kind: RowKind,
    position: usize,
    rows: usize,
    pages: &'a [u32],
    wrong: usize,
}

impl<'a> Part<'a> {
    fn decode(sequence: usize, position: usize, rows: usize, pages: &'a [u32]) -> Self {
        Part {
            sequence,
            kind: RowKind::Decode,
            position,
            rows,
            pages,
            wrong: usize::MAX,
        }
    }

    fn token(&self, position: usize) -> Token {
        let other = if position >= self.wrong { 5 } else { 0 };
        ((position * 37 + self.sequence * 11 + other) % SHAPE.vocab_size) as Token
    }
}

/// A step in which every row is wanted.
fn step(parts: &[Part<'_>]) -> Step {
    let mut step = Step::default();
    for part in parts {
        let (row, page) = (step.tokens.len(), step.pages.len());
        for p in part.position..part.position + part.rows {
            let slot = part.pages[p / PAGE] * PAGE as u32 + (p % PAGE) as u32;
            step.tokens.push(part.token(p));
            step.slots.push(slot);
            step.wanted.push(step.wanted.len() as u32);
        }
        step.pages.extend_from_slice(part.pages);
        step.spans.push(Span {
            rows: row..step.tokens.len(),
            kind: part.kind,
            position: part.position,
            pages: page..step.pages.len(),
        });
    }
    step
}

/// The bits of the logits of each row.
fn run<B: Steps>(runner: &mut Runner<B>, parts: &[Part<'_>]) -> Vec<Vec<u32>> {
    let logits = runner.run(&step(parts), Choices::NONE).unwrap().logits();
    let bits = |row: &[f32]| row.iter().map(|x| x.to_bits()).collect();
    logits.chunks(SHAPE.vocab_size).map(bits).collect()
}

/// The shape of the model that has weights of a format: rows of K types are whole blocks of 256.
pub fn shape(dtype: Dtype) -> Shape {
    match dtype.quant().is_some_and(|quant| quant.block() == 256) {
        false => SHAPE.clone(),
        true => Shape {
            dim: 256,
            n_heads: 16,
            ffn_dim: 512,
            ..SHAPE.clone()
        },
    }
}

/// Spans of so many drafts, from several positions on, alone and beside others. The backend is of
/// [`shape`]; `how` says which it is.
pub fn check<B: Steps>(
    backend: B,
    how: &str,
    (dtype, kv_dtype): (Dtype, Dtype),
    drafts: impl IntoIterator<Item = usize>,
) {
    let what = format!("{how}, {dtype}, cache {kv_dtype}");
    let layers = [[dtype; 6]; SHAPE.n_layers];
    // Models in these formats have a head in INT8, and the GPU no kernel for another.
    let head = match dtype {
        Dtype::Nf4 | Dtype::Fp8 => Dtype::Int8,
        _ => dtype,
    };
    let mut runner = mixed(backend, &shape(dtype), &layers, head, kv_dtype, false);
    let n_pages = END.div_ceil(PAGE) as u32;
    // Two sequences, whose pages lie between each other's.
    let pages: Vec<Vec<u32>> = (0..2)
        .map(|s| (0..n_pages).map(|i| 2 * (i * 7 % n_pages) + s).collect())
        .collect();
    let want: Vec<Vec<Vec<u32>>> = (0..2)
        .map(|s| {
            for position in (0..PROMPT).step_by(118) {
                let kind = RowKind::Prefill;
                let part = Part {
                    kind,
                    ..Part::decode(s, position, 118, &pages[s])
                };
                run(&mut runner, &[part]);
            }
            (PROMPT..END)
                .map(|p| run(&mut runner, &[Part::decode(s, p, 1, &pages[s])]).remove(0))
                .collect()
        })
        .collect();
    let same = |got: &[Vec<u32>], s: usize, position: usize, how: &str| {
        for (i, row) in got.iter().enumerate() {
            let at = position + i;
            assert!(*row == want[s][at - PROMPT], "{what}: position {at}, {how}");
        }
    };
    let differ = want[0].windows(2).all(|pair| pair[0] != pair[1]) && want[0] != want[1];
    assert!(differ, "the rows differ");

    for k in drafts {
        for position in [PROMPT + 1, 256 - k.div_ceil(2), 256] {
            let span = Part::decode(0, position, k + 1, &pages[0]);
            // What rejected drafts have left there.
            let stale = Part {
                wrong: 0,
                ..span.clone()
            };
            run(&mut runner, from_ref(&stale));
            let got = run(&mut runner, from_ref(&span));
            same(&got, 0, position, &format!("a span of {}", k + 1));

            // Beside another span and a row, all of which keep their bits.
            run(&mut runner, &[stale]);
            let other = Part::decode(1, END - 4, 3, &pages[1]);
            let prompt = Part {
                kind: RowKind::Prefill,
                ..Part::decode(1, 0, 20, &pages[1])
            };
            let got = run(&mut runner, &[other, span.clone(), prompt]);
            same(&got[..3], 1, END - 4, "a span beside");
            same(
                &got[3..k + 4],
                0,
                position,
                &format!("a span of {} beside others", k + 1),
            );

            // Drafts that are wrong from some place on: the rows before are right, and so is the
            // row that follows them.
            let taken = position + k / 2 + 1;
            let drafted = Part {
                wrong: taken,
                ..span
            };
            let got = run(&mut runner, &[drafted]);
            same(
                &got[..taken - position],
                0,
                position,
                "before a wrong draft",
            );
            if k > 1 {
                assert!(
                    got[taken - position] != want[0][taken - PROMPT],
                    "a wrong draft shows"
                );
            }
            let got = run(&mut runner, &[Part::decode(0, taken, 1, &pages[0])]);
            same(&got, 0, taken, "behind a wrong draft");
            // The rest of what was drafted, for the next round.
            for p in taken + 1..position + k + 1 {
                run(&mut runner, &[Part::decode(0, p, 1, &pages[0])]);
            }
        }
    }
}
