//! Adapters that requests choose, on several ranks of one process.

use super::data;
use crate::adapted::*;
use crate::checkpoints::TempDir;
use crate::checkpoints::lora::{self, ALL};
use crate::common::reference;
use llamabi::engine::{GenerateOptions, Prompt};
use llamabi::{BuildOptions, Device, Dtype, Error, Llama, Token};
use std::path::PathBuf;

/// Models of which so many ranks can have shares: Llama, with a factor of what layers add, with
/// biases, with norms of heads; and one with fewer KV heads than ranks.
const MODELS: [(&str, usize); 5] = [
    ("../adapters/base", 2),
    ("../families/granite", 2),
    ("../families/llama-mlp-bias", 2),
    ("../families/qwen3", 2),
    ("gqa-f16-mp2/hf", 4),
];

fn tokenizer(model: &str) -> Option<PathBuf> {
    let of = |name| Some(reference("..").join(name));
    match model {
        "../adapters/base" => of("adapters/base/tokenizer.model"),
        _ if model.starts_with("../families") => of("families/tokenizer.model"),
        _ => None,
    }
}

fn on(ranks: usize, model: &str, weights: Option<Dtype>, chunk: usize) -> Llama {
    let options = BuildOptions {
        device: Device::Cpu,
        devices: vec![0; ranks],
        max_seq_len: 96,
        max_batch_size: 6,
        n_threads: 1,
        prefill_chunk: Some(chunk),
        weights_dtype: weights,
        ..BuildOptions::default()
    };
    let tokenizer = tokenizer(model);
    let dir = reference(model);
    let llama = Llama::build(&dir, tokenizer.as_deref(), &options, &mut |_| true).unwrap();
    assert_eq!(llama.info().ranks.len(), ranks);
    llama
}

/// With the prompt's tokens, which are the same whoever computes them.
fn echoed(llama: &Llama, n: usize, adapter: u32) -> Vec<Said> {
    let options = GenerateOptions {
        echo: true,
        ..with(adapter, 1)
    };
    let mut said = run(llama, n, options);
    said.truncate(n);
    said
}

fn add(llama: &Llama, adapters: &[TempDir]) -> Vec<u32> {
    let add = |dir: &TempDir| llama.add_adapter(dir.path(), 0.75).unwrap();
    adapters.iter().map(add).collect()
}

fn far(a: &[Said], b: &[Said]) -> f32 {
    assert_eq!(a.len(), b.len());
    let far = a.iter().zip(b).map(|(a, b)| (a.1 - b.1).abs());
    far.fold(0.0, f32::max)
}

/// What the ranks add together is what one rank adds. What differs is the order in which sums of
/// float32 are rounded, and what that does to 16-bit activations and caches.
#[test]
fn ranks_add_together_what_one_rank_adds() {
    for (model, n) in MODELS {
        let adapters = lora::some(&reference(model));
        for (weights, tolerance) in [(Dtype::F32, 1e-3), (Dtype::Bf16, 0.15)] {
            let one = on(1, model, Some(weights), 24);
            let several = on(n, model, Some(weights), 24);
            let ids = add(&one, &adapters);
            assert_eq!(add(&several, &adapters), ids);
            for (i, &id) in ids.iter().enumerate() {
                let len = 33 + i;
                let (want, got) = (echoed(&one, len, id), echoed(&several, len, id));
                let moved = far(&echoed(&several, len, 0), &got);
                let (off, what) = (far(&want, &got), format!("{model}, {weights}, {id}"));
                assert!(off <= tolerance, "{what}: {off} off");
                if weights == Dtype::F32 {
                    assert!(
                        moved > 100.0 * off && moved > 0.003,
                        "{what}: {off}, {moved}"
                    );
                    let decoded = |llama| run(llama, 5 + i, with(id, 12));
                    assert!(
                        far(&decoded(&one), &decoded(&several)) <= tolerance,
                        "{what}"
                    );
                }
            }
        }
    }
}

/// Rows with different adapters, and rows without any, have the same bits in each other's company
/// as alone, however their prompts are cut, cold and from the prefix cache. Those without have the
/// bits of a handle that knows no adapters.
#[test]
fn company_and_cuts_change_no_bit_on_ranks() {
    const LENGTHS: [usize; 6] = [1, 16, 40, 5, 33, 70];
    for (model, n) in [MODELS[0], MODELS[4]] {
        for weights in [None, Some(Dtype::F32)] {
            let adapters = lora::some(&reference(model));
            let what = format!("{model}, {weights:?}");
            let bare = on(n, model, weights, 96);
            let alone = on(n, model, weights, 96);
            let ids = add(&alone, &adapters);
            // Two rows have no adapter.
            let of = |i: usize| match i {
                1 | 4 => 0,
                _ => ids[(i * 3) % ids.len()],
            };
            let each = || LENGTHS.iter().enumerate();
            let asked = |i: usize, n: usize| with(of(i), 4 + n % 3);
            let want: Vec<_> = each()
                .map(|(i, &n)| bits(&run(&alone, n, asked(i, n))))
                .collect();
            for (i, &n) in each() {
                let plain = bits(&run(&bare, n, with(0, 4 + n % 3)));
                assert_eq!(plain == want[i], of(i) == 0, "{what}, {n}");
            }
            for chunk in [3, 40] {
                let llama = on(n, model, weights, chunk);
                assert_eq!(add(&llama, &adapters), ids);
                for round in ["cold", "warm"] {
                    let streams = each().map(|(i, &n)| start(&llama, n, asked(i, n)));
                    let streams: Vec<_> = streams.collect::<llamabi::Result<_>>().unwrap();
                    let got: Vec<_> = streams.iter().map(|s| bits(&finish(s))).collect();
                    assert_eq!(got, want, "{what}, chunks of {chunk}, {round}");
                }
            }
        }
    }
}

fn cached(llama: &Llama, n: usize, adapter: u32) -> (usize, Vec<(Token, u32)>) {
    let prompt = vec![Prompt::Tokens(prompt(n))];
    let mut done = llama
        .generate(prompt, with(adapter, 3), &mut |_| true)
        .unwrap();
    let of = done.sequences.remove(0);
    let said: Vec<Said> = of.tokens.iter().copied().zip(of.logprobs).collect();
    (of.stats.cached_tokens as usize, bits(&said))
}

#[test]
fn pages_of_different_adapters_are_told_apart_on_ranks() {
    let model = MODELS[0].0;
    let llama = on(2, model, None, 96);
    let ids = add(&llama, &lora::some(&reference(model))[..2]);
    let all = [0, ids[0], ids[1]];
    let cold = all.map(|id| cached(&llama, 40, id));
    assert_eq!(cold.each_ref().map(|(n, _)| *n), [0; 3]);
    assert!(cold[0].1 != cold[1].1 && cold[1].1 != cold[2].1 && cold[0].1 != cold[2].1);
    for (id, (_, want)) in all.into_iter().zip(cold) {
        assert_eq!(cached(&llama, 40, id), (32, want));
    }
}

#[test]
fn adapters_come_and_go_while_ranks_run() {
    let model = MODELS[0].0;
    let llama = on(2, model, None, 96);
    let adapters = lora::some(&reference(model));
    let id = add(&llama, &adapters[..1])[0];
    let whole = bits(&run(&llama, 4, with(id, 60)));
    // Dropped while a stream runs: that one goes on as it began.
    let stream = start(&llama, 4, with(id, 60)).unwrap();
    let mut got = vec![next(&stream).unwrap()];
    llama.drop_adapter(id).unwrap();
    let unknown = start(&llama, 4, with(id, 2)).err().unwrap().to_string();
    assert!(
        unknown.starts_with(&format!("adapter is {id}, must be")),
        "{unknown}"
    );
    assert!(llama.drop_adapter(id).is_err());
    got.extend(finish(&stream));
    assert_eq!(bits(&got), whole);
    // Other threads add and drop them while two streams run.
    let stays = add(&llama, &adapters[..1])[0];
    let streams = [stays, 0].map(|id| start(&llama, 4, with(id, 60)).unwrap());
    std::thread::scope(|scope| {
        for dir in &adapters[1..] {
            let llama = &llama;
            scope.spawn(move || {
                for _ in 0..4 {
                    let id = llama.add_adapter(dir.path(), 1.0).unwrap();
                    run(llama, 7, with(id, 3));
                    llama.drop_adapter(id).unwrap();
                }
            });
        }
        assert_eq!(bits(&finish(&streams[0])), whole);
    });
}

#[test]
fn ranks_refuse_what_one_rank_refuses() {
    let model = MODELS[0].0;
    let llama = on(2, model, None, 96);
    let refused = |dir: PathBuf| llama.add_adapter(&dir, 1.0).unwrap_err();
    let error = refused(data("with-head"));
    assert!(matches!(error, Error::Unsupported(_)), "{error}");
    assert!(matches!(refused(data("none")), Error::Io { .. }));
    // Another model's, whose shapes are wrong.
    let other = lora::adapter(&reference(MODELS[4].0), 4, 1, &ALL);
    let error = refused(other.path().into());
    assert!(
        error.to_string().contains("expected shape [4, 32]"),
        "{error}"
    );
    // A failure takes no number.
    assert_eq!(llama.add_adapter(&data("plain"), 1.0).unwrap(), 1);
}
