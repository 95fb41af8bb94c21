//! What Medusa heads compute, stated plainly in float64, and heads as files.

use crate::checkpoints::TempDir;
use crate::checkpoints::write::{Tensor, safetensors};
use crate::small_model::{LIMITS, SHAPE, runner};
use llamabi::backend::*;
use llamabi::model::medusa::{Head, Heads};
use llamabi::{Dtype, Token};

const DIM: usize = SHAPE.dim;
const VOCAB: usize = SHAPE.vocab_size;

/// A matrix, row by row, with numbers that any format of floats holds exactly.
struct Numbers {
    weights: Vec<f32>,
    bias: Vec<f32>,
}

impl Numbers {
    fn new(rows: usize, seed: usize) -> Self {
        let number = |i: usize| ((i * 7919 + i / 13 * 31 + seed * 101) % 17) as f32 / 64.0 - 0.125;
        Numbers {
            weights: (0..rows * DIM).map(number).collect(),
            bias: (0..rows).map(|i| number(i * 3 + 1) * 2.0).collect(),
        }
    }

    /// A vocabulary whose first logits are the hidden state itself.
    fn one() -> Self {
        let mut weights = vec![0.0; VOCAB * DIM];
        (0..DIM).for_each(|i| weights[i * DIM + i] = 1.0);
        Numbers {
            weights,
            bias: Vec::new(),
        }
    }

    fn product(&self, x: &[f64]) -> Vec<f64> {
        let rows = self.weights.chunks(DIM);
        let sum = |row: &[f32]| row.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum();
        rows.map(sum).collect()
    }

    fn matrix<B: Steps>(&self, backend: &B, dtype: Dtype, bias: bool) -> B::Mat {
        let rows = self.weights.len() / DIM;
        let spec = MatSpec {
            parts: PartSpec::all(&[rows], dtype),
            cols: DIM,
            bias,
            scale: 1.0,
            usage: MatUse::Product,
            adapter_index: None,
        };
        let mut mat = backend.new_mat(&spec).unwrap();
        let bytes: Vec<u8> = self.weights.iter().flat_map(|w| w.to_le_bytes()).collect();
        let block = Block {
            part: 0,
            row: 0,
            col: 0,
            cols: DIM,
            order: RowOrder::AsStored,
            dtype: Dtype::F32,
            bytes: &bytes,
        };
        backend.pack(&mut mat, &block);
        if bias {
            backend.set_bias(&mut mat, 0, &self.bias);
        }
        mat
    }
}

/// The blocks and the vocabulary of each head: the first shows the hidden state, the second what a
/// block makes of it.
fn heads() -> Vec<(Vec<Numbers>, Numbers)> {
    let block = |seed| Numbers::new(DIM, seed);
    vec![
        (vec![], Numbers::one()),
        (vec![block(1)], Numbers::one()),
        (vec![block(2), block(3)], Numbers::new(VOCAB, 4)),
    ]
}

/// Rows of two prompts and of a third one's decoding.
fn step() -> Step {
    let mut step = Step::default();
    for (sequence, kind, rows) in [
        (0, RowKind::Decode, 2),
        (1, RowKind::Prefill, 21),
        (2, RowKind::Prefill, 3),
    ] {
        let (row, page) = (step.tokens.len(), step.pages.len());
        for i in 0..rows {
            step.tokens
                .push(((sequence * 57 + i * 13 + 1) % VOCAB) as Token);
            step.slots.push((sequence * 64 + i) as u32);
        }
        step.pages
            .extend([4 * sequence as u32, 4 * sequence as u32 + 1]);
        step.spans.push(Span {
            rows: row..row + rows,
            kind,
            position: 0,
            pages: page..page + 2,
        });
    }
    step.wanted = vec![0, 1, 22, 25];
    step
}

/// Rows of the last step, to be guessed from.
pub fn from(rows: &[u32]) -> Step {
    let n = rows.len();
    Step {
        tokens: rows.iter().map(|&row| row as Token).collect(),
        slots: vec![Step::NO_SLOT; n],
        spans: (0..n)
            .map(|row| Span {
                rows: row..row + 1,
                kind: RowKind::Decode,
                position: 9 + row,
                pages: 0..0,
            })
            .collect(),
        wanted: (0..n as u32).collect(),
        ..Step::default()
    }
}

/// Compares guesses with the plain statement, and rows alone with rows in company. `backend` makes
/// the same one each time; `off` is how far a number may be off, as a share of the largest.
pub fn check<B: Steps + 'static>(backend: B, dtype: Dtype, off: f64) {
    let numbers = heads();
    let made = numbers.iter().map(|(blocks, vocabulary)| Head {
        blocks: blocks
            .iter()
            .map(|block| block.matrix(&backend, dtype, true))
            .collect(),
        vocabulary: vocabulary.matrix(&backend, dtype, false),
    });
    let made = made.collect();
    let heads = Heads::new(&backend, made, &SHAPE, LIMITS.max_wanted).unwrap();
    let mut runner = runner(backend, dtype, dtype).with_heads(heads);
    assert_eq!(runner.medusa_heads(), 3);
    let logits = runner
        .run(&step(), Choices::NONE)
        .unwrap()
        .logits()
        .to_vec();
    assert!(logits.iter().all(|logit| logit.is_finite()));
    let rows = [25, 0, 22, 1, 25];
    let mut guess = |head, rows: &[u32]| {
        runner
            .guess(head, &from(rows), Choices::NONE)
            .unwrap()
            .logits()
            .to_vec()
    };
    let hidden = guess(0, &rows);
    assert_eq!(hidden[..VOCAB], hidden[4 * VOCAB..], "the same row twice");
    let near = |got: &[f32], want: &[f64], what: &str| {
        let largest = want.iter().fold(0.0f64, |max, x| max.max(x.abs()));
        for (i, (got, want)) in got.iter().zip(want).enumerate() {
            let error = (f64::from(*got) - want).abs();
            assert!(
                error <= off * largest,
                "{what} {i}: {got} {want} of {largest}"
            );
        }
    };
    for (at, hidden) in hidden.chunks(VOCAB).enumerate() {
        let h: Vec<f64> = hidden[..DIM].iter().map(|x| f64::from(*x)).collect();
        let mean_square = h.iter().map(|x| x * x).sum::<f64>() / DIM as f64;
        assert!(
            (mean_square - 1.0).abs() < 0.02,
            "a normed row: {mean_square}"
        );
        for (head, (blocks, vocabulary)) in numbers.iter().enumerate() {
            let silu = |x: f64| x / (1.0 + (-x).exp());
            let mut h = h.clone();
            for block in blocks {
                let sums = block.product(&h);
                let sums = sums.iter().zip(&block.bias);
                let after: Vec<f64> = h
                    .iter()
                    .zip(sums)
                    .map(|(h, (sum, bias))| h + silu(sum + f64::from(*bias)))
                    .collect();
                h = after;
            }
            let want = vocabulary.product(&h);
            let all = guess(head, &rows);
            let got = &all[at * VOCAB..][..VOCAB];
            near(got, &want, &format!("{dtype} head {head} row {}", rows[at]));
            assert_eq!(got, guess(head, &rows[at..=at]), "alone");
        }
    }
    // What was guessed does not change the next step.
    let again = runner
        .run(&step(), Choices::NONE)
        .unwrap()
        .logits()
        .to_vec();
    assert_eq!(logits, again);
    assert!(runner.guess(3, &from(&[0]), Choices::NONE).is_err());
}

/// Files of `n` heads that all guess one token, whatever they see: the block makes a large number
/// of each place, and only the token's row has weights.
pub fn always(token: usize, n: usize, [dim, vocab_size]: [usize; 2], prefix: &str) -> TempDir {
    let dir = TempDir::new();
    let floats = |name: String, shape: &[usize], values: Vec<f32>| Tensor {
        name: format!("{prefix}{name}"),
        dtype: "F32",
        shape: shape.into(),
        bytes: values.iter().flat_map(|x| x.to_le_bytes()).collect(),
    };
    let mut tensors = Vec::new();
    for i in 0..n {
        let mut rows = vec![0.0; vocab_size * dim];
        rows[token * dim..][..dim].fill(1.0);
        tensors.extend([
            floats(
                format!("{i}.0.linear.weight"),
                &[dim, dim],
                vec![0.0; dim * dim],
            ),
            floats(format!("{i}.0.linear.bias"), &[dim], vec![50.0; dim]),
            floats(format!("{i}.1.weight"), &[vocab_size, dim], rows),
        ]);
    }
    dir.file("medusa_lm_head.safetensors", safetensors(&tensors, 0));
    let config = format!(r#"{{"medusa_num_heads":{n},"medusa_num_layers":1}}"#);
    dir.file("config.json", config);
    dir
}
