//! Adapters that requests choose, on the emulated device: the CPU's numbers, and bits that do not
//! depend on company. `lifetime`: memory, and adapters that come and go while steps run. `ranks`:
//! on several devices.

mod lifetime;
mod ranks;

use crate::adapted::*;
use crate::checkpoints::TempDir;
use crate::checkpoints::lora::{self, ALL};
use crate::common::reference;
use crate::emu::Emu;
use crate::emu::real::built;
use crate::emu::standin::Standin;
use llamabi::engine::{Event, GenerateOptions, Next};
use llamabi::{BuildOptions, Device, Dtype, Error, Llama, Result};
use std::path::PathBuf;
use std::sync::Arc;

const GIB: u64 = 1 << 30;

/// Models in Hugging Face's form: Llama, with a factor of what layers add, with biases of gate and
/// up, and with norms of heads.
const MODELS: [&str; 4] = [
    "adapters/base",
    "families/granite",
    "families/llama-mlp-bias",
    "families/qwen3",
];

fn dir(model: &str) -> PathBuf {
    reference("..").join(model)
}

fn adapter(model: &str, rank: usize, seed: usize, modules: &[&str]) -> TempDir {
    lora::adapter(&dir(model), rank, seed, modules)
}

fn some(model: &str) -> [TempDir; 4] {
    lora::some(&dir(model))
}

fn options(weights: Option<Dtype>, kv: Option<Dtype>, chunk: usize) -> BuildOptions {
    BuildOptions {
        max_seq_len: 96,
        max_batch_size: 6,
        weights_dtype: weights,
        kv_dtype: kv,
        prefill_chunk: Some(chunk),
        ..BuildOptions::default()
    }
}

fn tokenizer(model: &str) -> PathBuf {
    dir(match model.starts_with("families") {
        true => "families/tokenizer.model",
        false => "adapters/base/tokenizer.model",
    })
}

fn on(device: Arc<Emu>, model: &str, options: &BuildOptions) -> Llama {
    let tokenizer = tokenizer(model);
    built(device, &dir(model), Some(&tokenizer), options)
        .unwrap_or_else(|error| panic!("{model}: {error}"))
}

fn on_cpu(model: &str, options: &BuildOptions) -> Llama {
    let options = BuildOptions {
        device: Device::Cpu,
        ..options.clone()
    };
    Llama::build(&dir(model), Some(&tokenizer(model)), &options, &mut |_| {
        true
    })
    .unwrap()
}

fn add(llama: &Llama, adapters: &[TempDir]) -> Vec<u32> {
    let add = |dir: &TempDir| llama.add_adapter(dir.path(), 0.75).unwrap();
    adapters.iter().map(add).collect()
}

/// In float32 the numbers are the CPU's; in other formats they are as near as without adapters.
#[test]
fn an_adapter_computes_what_it_does_on_the_cpu() {
    for model in MODELS {
        let adapters = some(model);
        for (weights, kv, hopper, tolerance) in [
            (Dtype::F32, Dtype::F32, false, 1e-3),
            (Dtype::Bf16, Dtype::Bf16, true, 0.15),
            (Dtype::Int8, Dtype::Int8, false, 0.15),
        ] {
            let options = options(Some(weights), Some(kv), 24);
            let (cpu, device) = (on_cpu(model, &options), Emu::either(hopper, GIB, 1));
            let gpu = on(device, model, &options);
            let ids = add(&cpu, &adapters);
            assert_eq!(add(&gpu, &adapters), ids);
            for (i, &id) in ids.iter().enumerate() {
                // The tokens of a prompt whose log probabilities are asked for cannot differ.
                let echo = |llama, id| {
                    let options = GenerateOptions {
                        echo: true,
                        ..with(id, 1)
                    };
                    run(llama, 33 + i, options)
                };
                let (want, got) = (echo(&cpu, id), echo(&gpu, id));
                let what = format!("{model}, {weights} weights, adapter {id}");
                assert!(want.len() > 33 && want.len() == got.len(), "{what}");
                let far = |a: &[Said], b: &[Said]| {
                    let far = a.iter().zip(b).map(|(a, b)| (a.1 - b.1).abs());
                    far.take(33 + i).fold(0.0, f32::max)
                };
                let off = far(&want, &got);
                assert!(off <= tolerance, "{what}: {off} off");
                if weights == Dtype::F32 {
                    let moved = far(&echo(&gpu, 0), &got);
                    assert!(
                        moved > 100.0 * off && moved > 0.003,
                        "{what}: {off}, moved {moved}"
                    );
                    let decoded = |llama| run(llama, 5 + i, with(id, 12));
                    for (want, got) in decoded(&cpu).iter().zip(&decoded(&gpu)) {
                        assert_eq!(want.0, got.0, "{what}");
                        assert!((want.1 - got.1).abs() <= tolerance, "{what}");
                    }
                }
            }
        }
    }
}

/// Rows with different adapters, and rows without any, have the same bits in each other's company
/// as alone, however their prompts are cut, cold and from the prefix cache. Those without have the
/// bits of a handle that knows no adapters.
fn company_and_cuts(weights: Option<Dtype>, kv: Option<Dtype>, hopper: bool) {
    const LENGTHS: [usize; 6] = [1, 16, 40, 5, 33, 70];
    for model in MODELS {
        let adapters = some(model);
        let what = format!("{model}, {weights:?} {kv:?}, hopper {hopper}");
        let bare = on(
            Emu::either(hopper, GIB, 1),
            model,
            &options(weights, kv, 96),
        );
        let alone = on(
            Emu::either(hopper, GIB, 2),
            model,
            &options(weights, kv, 96),
        );
        let ids = add(&alone, &adapters);
        // Two rows have no adapter.
        let of = |i: usize| match i {
            1 | 4 => 0,
            _ => ids[(i * 3) % ids.len()],
        };
        let each = || LENGTHS.iter().enumerate();
        let want: Vec<_> = each()
            .map(|(i, &n)| bits(&run(&alone, n, with(of(i), 4 + n % 3))))
            .collect();
        for (i, &n) in each() {
            let plain = bits(&run(&bare, n, with(0, 4 + n % 3)));
            assert_eq!(plain == want[i], of(i) == 0, "{what}, {n}");
        }
        for chunk in [3, 40] {
            let options = options(weights, kv, chunk);
            let llama = on(Emu::either(hopper, GIB, chunk as u64), model, &options);
            assert_eq!(add(&llama, &adapters), ids);
            for round in ["cold", "warm"] {
                let streams = each().map(|(i, &n)| start(&llama, n, with(of(i), 4 + n % 3)));
                let streams: Vec<_> = streams.collect::<Result<_>>().unwrap();
                let got: Vec<_> = streams.iter().map(|s| bits(&finish(s))).collect();
                assert_eq!(got, want, "{what}, chunks of {chunk}, {round}");
            }
        }
    }
}

/// A test for each format, because together they outlast most of the room.
mod company_and_cuts_change_no_bit {
    use super::*;

    #[test]
    fn as_stored() {
        company_and_cuts(None, None, false);
    }

    #[test]
    fn int4_weights_and_int8_cache() {
        company_and_cuts(Some(Dtype::Int4), Some(Dtype::Int8), false);
    }

    #[test]
    fn int8_weights_by_wgmma() {
        company_and_cuts(Some(Dtype::Int8), Some(Dtype::F16), true);
    }
}

/// More rows of a prompt than have their sums of gate and up in memory at once.
#[test]
fn long_prompts_go_in_groups() {
    let model = "adapters/base";
    let adapters = [adapter(model, 9, 1, &ALL)];
    for (weights, hopper) in [(Dtype::Bf16, false), (Dtype::Int8, true)] {
        let of = |chunk| {
            let options = BuildOptions {
                max_seq_len: 620,
                ..options(Some(weights), None, chunk)
            };
            let llama = on(Emu::either(hopper, GIB, 1), model, &options);
            let id = add(&llama, &adapters)[0];
            bits(&run(&llama, 600, with(id, 3)))
        };
        assert_eq!(of(600), of(50), "{weights}");
    }
}

/// Recorded steps serve any adapters, and one that follows before the tokens are known has them
/// too.
#[test]
fn graphs_and_steps_ahead_change_nothing() {
    let model = "adapters/base";
    let adapters = some(model);
    let walk = |device: &Arc<Emu>| {
        let llama = on(device.clone(), model, &options(None, None, 96));
        let ids = add(&llama, &adapters);
        let mut all = Vec::new();
        for round in 0..3 {
            let start = |i: usize| {
                let id = [0, ids[0], ids[1], ids[2], ids[3]][(i + round) % 5];
                start(&llama, 3 + i, with(id, 9 + i)).unwrap()
            };
            let streams: Vec<_> = (0..4).map(start).collect();
            all.extend(streams.iter().map(|s| bits(&finish(s))));
        }
        all
    };
    let fast = Emu::new(GIB, 1);
    let want = walk(&Emu::without_graphs(GIB, 2));
    assert_eq!(walk(&fast), want);
    assert!(fast.replays() > 10, "{}", fast.replays());
    assert!(fast.order().contains("<<"), "{}", fast.order());
    assert_eq!(walk(&Emu::step_by_step(GIB, 3)), want);
}

fn cached(llama: &Llama, n: usize, options: GenerateOptions) -> (usize, Vec<Said>) {
    let stream = start(llama, n, options).unwrap();
    let mut tokens = Vec::new();
    loop {
        match stream.next(None).unwrap() {
            Next::Event(Event::Token(e)) => tokens.push((e.token, e.logprob)),
            Next::Event(Event::Finish(e)) => return (e.stats.cached_tokens as usize, tokens),
            Next::Event(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn pages_of_different_adapters_are_told_apart() {
    let model = "adapters/base";
    let llama = on(Emu::new(GIB, 1), model, &options(None, None, 96));
    let adapters = some(model);
    let ids = add(&llama, &adapters[..2]);
    let (none, base) = cached(&llama, 40, with(0, 3));
    let (one, first) = cached(&llama, 40, with(ids[0], 3));
    let (other, second) = cached(&llama, 40, with(ids[1], 3));
    assert_eq!((none, one, other), (0, 0, 0));
    assert!(base != first && first != second && base != second);
    for (id, want) in [(0, base), (ids[0], first), (ids[1], second)] {
        let (n, got) = cached(&llama, 40, with(id, 3));
        assert_eq!((n, bits(&got)), (32, bits(&want)));
    }
}
