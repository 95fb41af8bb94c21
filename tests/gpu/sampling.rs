//! Tokens that the (emulated) device chooses are those that the host's sampler chooses from the
//! same logits: equal, not close. With `LLAMABI_TEST_DEVICE=cuda`, on a real device.

mod generations;

use crate::emu::{Emu, real};
use llamabi::backend::choice::{Search, Strategy, mask_words};
use llamabi::backend::gpu::Gpu;
use llamabi::backend::gpu::device::Device;
use llamabi::backend::*;
use llamabi::engine::GenerateOptions;
use llamabi::engine::sampler::{Sampler, Score, picked};
use llamabi::model::Runner;
use llamabi::{Dtype, Error, Token};
use std::sync::Arc;

const GIB: u64 = 1 << 30;
/// Rows of a step.
const ROWS: usize = 12;
const PAGE: usize = 16;

/// Numbers from a linear congruential generator.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n
    }
    fn unit(&mut self) -> f32 {
        self.below(1 << 24) as f32 / (1 << 24) as f32
    }
    fn bell(&mut self) -> f32 {
        ((0..12).map(|_| self.unit()).sum::<f32>() - 6.0) * 3.0
    }
    fn of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }
}

/// A model without layers, whose logits are roughly these for every token.
fn model(logits: &[f32]) -> Box<dyn Run> {
    match real::cuda() {
        Some(cuda) => model_on(cuda, logits),
        None => model_on(Emu::new(GIB, logits.len() as u64), logits),
    }
}

fn model_on<D: Device>(device: Arc<D>, logits: &[f32]) -> Box<dyn Run> {
    let shape = Shape {
        dim: 2,
        n_layers: 0,
        n_heads: 1,
        n_kv_heads: 1,
        head_dim: 2,
        ffn_dim: 2,
        vocab_size: logits.len(),
        norm_eps: 1e-5,
    };
    let limits = Limits {
        page_size: PAGE,
        n_pages: ROWS,
        max_positions: PAGE,
        max_rows: ROWS + 1,
        max_wanted: ROWS,
        vocab_size: logits.len(),
    };
    let rope = RopeTable {
        cos: vec![1.0; PAGE],
        sin: vec![0.0; PAGE],
        q_scale: Vec::new(),
    };
    let gpu = Gpu::new(device, &shape, &rope, &limits, &[Dtype::F32], Dtype::F32).unwrap();
    let matrix = |values: &dyn Fn(usize) -> f32| {
        let spec = MatSpec {
            parts: PartSpec::all(&[logits.len()], Dtype::F32),
            cols: 2,
            bias: false,
            scale: 1.0,
            usage: MatUse::Product,
            adapter_index: None,
        };
        let mut mat = gpu.new_mat(&spec).unwrap();
        let numbers = (0..logits.len()).flat_map(|i| [values(i), 0.0]);
        let bytes: Vec<u8> = numbers.flat_map(f32::to_le_bytes).collect();
        let block = Block {
            part: 0,
            row: 0,
            col: 0,
            cols: 2,
            order: RowOrder::AsStored,
            dtype: Dtype::F32,
            bytes: &bytes,
        };
        gpu.pack(&mut mat, &block);
        mat
    };
    let weights = Weights {
        embedding: matrix(&|_| 1.0),
        layers: Vec::new(),
        norm: gpu
            .new_vector(&[std::f32::consts::FRAC_1_SQRT_2, 1.0])
            .unwrap(),
        head: Some(matrix(&|i| logits[i])),
    };
    Box::new(Runner::new(gpu, weights, &shape, Dtype::F32, limits).unwrap())
}

/// Sequences of one token each.
fn step(rows: usize) -> Step {
    let span = |row: usize| Span {
        rows: row..row + 1,
        kind: RowKind::Decode,
        position: 0,
        pages: row..row + 1,
    };
    Step {
        tokens: vec![0; rows],
        slots: (0..rows).map(|row| (row * PAGE) as u32).collect(),
        spans: (0..rows).map(span).collect(),
        pages: (0..rows as u32).collect(),
        wanted: (0..rows as u32).collect(),
        ..Step::default()
    }
}

/// A choice of one of the first `n_tokens`. It is appended, with what it refers to.
fn random_choice(random: &mut Random, vocab_size: usize, n_tokens: usize, choices: &mut Choices) {
    let params = GenerateOptions {
        temperature: random.of(&[0.0, 1e-30, 0.1, 0.6, 1.0, 1.0, 5.0, 1e30]),
        top_k: random.of(&[0, 0, 1, 5, 40, vocab_size / 2, vocab_size, vocab_size + 1]) as i32,
        top_p: random.of(&[0.0, 1e-6, 0.3, 0.5, 0.9, 0.9, 0.9999, 1.0, 1.0]),
        min_p: random.of(&[0.0, 0.0, 1e-20, 0.05, 0.3, 1.0]),
        repetition_penalty: random.of(&[1.0, 1.0, 1.3, 0.5, 1e-38]),
        ..GenerateOptions::default()
    };
    let history = &mut choices.history;
    let first = history.len();
    if params.repetition_penalty != 1.0 {
        let n = random.below(200);
        history.extend((0..n).map(|_| random.below(vocab_size) as Token));
    }
    let history = first..history.len();
    let given = (random.below(6) == 0).then(|| random.below(vocab_size) as Token);
    let (first, mut mask) = (choices.edits.len(), None);
    if given.is_none() && random.below(2) == 0 {
        let one_in = random.of(&[1, 3, 100]);
        let edited = (0..n_tokens).filter(|_| random.below(one_in) == 0);
        let edited: Vec<_> = edited.take(5000).collect();
        for token in edited {
            let bell = random.bell();
            let add = random.of(&[f32::NEG_INFINITY, f32::MAX, f32::MIN, 0.0, 1.5, bell]);
            let token = token as Token;
            choices.edits.push(Edit { token, add });
        }
    }
    if given.is_none() && random.below(3) == 0 {
        let words = mask_words(n_tokens);
        mask = Some((choices.masks.len() / words) as u32);
        let dense = random.below(3);
        choices.masks.extend((0..words).map(|_| match dense {
            0 => 0,
            1 => 1 << random.below(32) & !(random.below(2) as u32),
            _ => random.below(1 << 31) as u32 * 2 + random.below(2) as u32,
        }));
    }
    choices.rows.push(Choice {
        given,
        strategy: Strategy::from(&params),
        draw: match random.below(4) {
            0 => random.of(&[0, (1 << 24) - 1]),
            _ => random.below(1 << 24) as u32,
        },
        n_tokens,
        history,
        edits: first..choices.edits.len(),
        mask,
        to_host: random.below(8) == 0,
        logprob: random.below(2) == 0,
        top: random.of(&[0, 0, 1, 5, 128, 129]).min(vocab_size),
        search: Search::Off,
    });
}

/// What is chosen for each row: by the device, or from the logits that it leaves to the host, which
/// must be `logits`.
fn picks(
    runner: &mut dyn Run,
    choices: &Choices,
    logits: &[Vec<f32>],
) -> Vec<Option<(Token, Score)>> {
    let answer = runner.run(&step(choices.rows.len()), choices).unwrap();
    answer
        .complete(choices.rows.len(), logits[0].len())
        .unwrap();
    let rows = choices.rows.iter().enumerate();
    rows.map(|(at, choice)| match answer.row(at, logits[at].len()) {
        RowAnswer::Pick(pick, top) => {
            assert!(!for_host(choice), "{choice:?}");
            let mut sampler = Sampler::new(choice.n_tokens);
            sampler.load(&logits[at]);
            let possible = pick.token.is_none() && sampler.has_possible();
            assert_eq!(pick.possible, possible, "{choice:?}");
            picked(choice, pick, top).unwrap()
        }
        RowAnswer::Logits(given) => {
            assert!(for_host(choice), "{choice:?}");
            let bits = |row: &[f32]| row.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(given), bits(&logits[at]), "row {at}");
            let mut sampler = Sampler::new(choice.n_tokens);
            sampler.load(given);
            sampler.choose(choice, choices).unwrap()
        }
    })
    .collect()
}

fn for_host(choice: &Choice) -> bool {
    choice.is_for_host() || choice.top > 128 || choice.edits.len() > 4096
}

type Bits = Option<(Token, u32, Vec<(Token, u32)>)>;

/// With log probabilities as bits, because NaN must not equal everything.
fn bits(got: &Option<(Token, Score)>) -> Bits {
    let (token, score) = got.as_ref()?;
    let top = score.top.iter();
    let top = top.map(|a| (a.token, a.logprob.to_bits())).collect();
    Some((*token, score.logprob.to_bits(), top))
}

#[test]
fn the_device_chooses_what_the_host_chooses() {
    let mut random = Random(1);
    let (mut drawn, mut impossible, mut left, mut changed) = (0, 0, 0, 0);
    for vocab_size in [1, 2, 33, 512, 1001, 20_000] {
        for kind in 0..6 {
            if vocab_size > 5000 && kind > 1 {
                continue;
            }
            let logits: Vec<f32> = (0..vocab_size)
                .map(|_| match kind {
                    0 => random.bell(),
                    1 => random.bell() * 0.01,
                    2 => random.below(3) as f32,
                    3 => -1.5,
                    4 => random.of(&[
                        f32::NAN,
                        f32::INFINITY,
                        f32::NEG_INFINITY,
                        0.0,
                        -0.0,
                        2.0,
                        3.5,
                    ]),
                    _ => f32::NEG_INFINITY,
                })
                .collect();
            let mut runner = model(&logits);
            let logits: Vec<Vec<f32>> = runner
                .run(&step(ROWS), Choices::NONE)
                .unwrap()
                .logits()
                .chunks(vocab_size)
                .map(<[f32]>::to_vec)
                .collect();
            for _ in 0..if vocab_size > 5000 { 1 } else { 2 } {
                let mut choices = Choices::default();
                let n_tokens = random.of(&[vocab_size, vocab_size, vocab_size.div_ceil(2)]);
                for _ in 0..ROWS {
                    random_choice(&mut random, vocab_size, n_tokens, &mut choices);
                }
                let got = picks(&mut *runner, &choices, &logits);
                left += choices.rows.iter().filter(|c| for_host(c)).count();
                for (at, choice) in choices.rows.iter().enumerate() {
                    let mut sampler = Sampler::new(choice.n_tokens);
                    sampler.load(&logits[at]);
                    let want = sampler.choose(choice, &choices).unwrap();
                    assert_eq!(
                        bits(&got[at]),
                        bits(&want),
                        "{vocab_size} tokens, kind {kind}, {choice:?}"
                    );
                    drawn += usize::from(choice.given.is_none() && want.is_some());
                    impossible += usize::from(want.is_none());
                    changed += usize::from(choice.is_edited() && !for_host(choice));
                }
                // A row alone gives the same result as among others.
                let at = random.below(ROWS);
                let alone = Choices {
                    rows: vec![choices.rows[at].clone()],
                    ..choices
                };
                let alone = picks(&mut *runner, &alone, &logits[at..]);
                assert_eq!(bits(&alone[0]), bits(&got[at]));
            }
        }
    }
    assert!(drawn > 350 && impossible > 20, "{drawn} {impossible}");
    assert!(left > 50 && changed > 150, "{left} {changed}");
}

/// A row that wants more than the kernel has room for is left to the host; if all do, the step
/// gives logits.
#[test]
fn more_alternatives_than_the_device_finds_come_from_the_host() {
    let mut runner = model(&[1.0; 300]);
    let mut choices = Choices::default();
    random_choice(&mut Random(7), 300, 300, &mut choices);
    let mut choice = choices.rows.remove(0);
    (choice.given, choice.edits, choice.mask) = (None, 0..0, None);
    choice.to_host = false;
    choice.top = 128;
    choices.rows = vec![choice.clone(), choice];
    let left =
        |runner: &mut dyn Run, choices: &Choices| match runner.run(&step(2), choices).unwrap() {
            Answer::Picks { picks, logits, .. } => {
                (picks.iter().map(|pick| pick.logits).collect(), logits.len())
            }
            Answer::Logits(_) | Answer::Beside { .. } => (Vec::new(), 0),
        };
    assert_eq!(left(&mut *runner, &choices), (vec![None, None], 0));
    choices.rows[0].top = 129;
    assert_eq!(left(&mut *runner, &choices), (vec![Some(0), None], 300));
    choices.rows[1].top = 129;
    assert!(matches!(runner.run(&step(2), &choices).unwrap(), Answer::Logits(l) if l.len() == 600));
}

/// A step that follows another uses the histories on the device. If its choices asked for other
/// histories, it would use those of another row, so it is refused.
#[test]
fn histories_of_a_step_that_follows_are_those_there() {
    let of = |penalties: [f32; 3]| {
        let mut all = Choices::default();
        for repetition_penalty in penalties {
            let params = GenerateOptions {
                temperature: 0.0,
                top_k: 0,
                top_p: 1.0,
                min_p: 0.0,
                repetition_penalty,
                ..GenerateOptions::default()
            };
            all.rows.push(Choice {
                given: None,
                strategy: Strategy::from(&params),
                draw: 0,
                n_tokens: 300,
                history: 0..0,
                edits: 0..0,
                mask: None,
                to_host: false,
                logprob: false,
                top: 0,
                search: Search::Off,
            });
        }
        all
    };
    for (then, fits) in [
        ([1.0, 1.3, 1.3], true),
        ([1.3, 1.3, 1.3], false),
        ([1.0, 1.0, 1.3], false),
        ([1.0, 1.3, 1.0], false),
    ] {
        let mut runner = model(&[1.0; 300]);
        runner.submit(&step(3), &of([1.0, 1.3, 1.3])).unwrap();
        let mut next = step(3);
        next.follows = true;
        assert!(runner.can_follow());
        runner.submit(&next, &of(then)).unwrap();
        let first = runner.collect().map(drop);
        let error = first.and_then(|()| runner.collect().map(drop)).err();
        match fits {
            true => assert!(error.is_none(), "{error:?}"),
            false => assert!(
                matches!(&error, Some(Error::Internal(text)) if text.contains("has history")),
                "{then:?}: {error:?}"
            ),
        }
    }
}

/// A step that exceeds the room is an error, before a kernel would write or read beyond it.
#[test]
fn steps_beyond_what_there_is_room_for() {
    let ending_at = |position: usize| {
        let mut all = step(2);
        all.spans[1].position = position;
        all
    };
    let mut too_many = step(ROWS);
    too_many.tokens.push(0);
    too_many.slots.push(1);
    too_many.spans.push(Span {
        rows: ROWS..ROWS + 1,
        kind: RowKind::Decode,
        position: 1,
        pages: 0..1,
    });
    for (step, wrong) in [
        (step(ROWS), None),
        (ending_at(PAGE - 1), None),
        (ending_at(PAGE), Some("17 positions, at most 16")),
        (too_many, Some("13 rows that decode, at most 12")),
    ] {
        let mut runner = model(&[1.0; 300]);
        runner.submit(&step, Choices::NONE).unwrap();
        let said = runner.collect().map(drop).map_err(|e| e.to_string());
        match wrong {
            None => assert_eq!(said, Ok(())),
            Some(wrong) => assert!(said.clone().unwrap_err().contains(wrong), "{said:?}"),
        }
    }
}
