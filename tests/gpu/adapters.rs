//! Adapters that requests choose, on the emulated device: the CPU's numbers, bits that do not depend
//! on company, memory, and adapters that come and go while steps run.

use crate::checkpoints::{TempDir, write};
use crate::common::{json, reference};
use crate::emu::Emu;
use crate::emu::standin::Standin;
use llamabi::engine::{Event, GenerateOptions, Next, Prompt, Stream};
use llamabi::{BuildOptions, Device, Dtype, Error, Llama, Result, Token};
use serde_json::json;
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

/// An adapter for a model, as peft writes it: of these modules, with numbers that are made up.
fn adapter(model: &str, rank: usize, seed: usize, modules: &[&str]) -> TempDir {
    let config = json(&dir(model).join("config.json"));
    let size = |key: &str| config[key].as_u64().map(|n| n as usize);
    let [dim, ffn, heads, kv_heads] = [
        "hidden_size",
        "intermediate_size",
        "num_attention_heads",
        "num_key_value_heads",
    ]
    .map(|key| size(key).unwrap());
    let head = size("head_dim").unwrap_or(dim / heads);
    let mut tensors = Vec::new();
    for layer in 0..size("num_hidden_layers").unwrap() {
        for (i, &module) in modules.iter().enumerate() {
            let (of, rows, cols) = match module {
                "q_proj" => ("self_attn", heads * head, dim),
                "k_proj" | "v_proj" => ("self_attn", kv_heads * head, dim),
                "o_proj" => ("self_attn", dim, heads * head),
                "gate_proj" | "up_proj" => ("mlp", ffn, dim),
                _ => ("mlp", dim, ffn),
            };
            for (which, shape, scale) in [("A", [rank, cols], 0.3), ("B", [rows, rank], 0.6)] {
                let number = |at: usize| {
                    let seed = seed * 7 + layer * 31 + i * 3 + shape[0];
                    let x = (at * 7919 + at * at % 911 * 13 + seed * 389) % 1000;
                    (x as f32 / 500.0 - 1.0) * scale / (rank as f32).sqrt()
                };
                let numbers = (0..shape[0] * shape[1]).map(number);
                tensors.push(write::Tensor {
                    name: format!(
                        "base_model.model.model.layers.{layer}.{of}.{module}.lora_{which}.weight"
                    ),
                    dtype: "F32",
                    shape: shape.into(),
                    bytes: numbers.flat_map(f32::to_le_bytes).collect(),
                });
            }
        }
    }
    let dir = TempDir::new();
    let config = json!({"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank});
    dir.file("adapter_config.json", config.to_string());
    dir.file("adapter_model.safetensors", write::safetensors(&tensors, 0));
    dir
}

const ALL: [&str; 7] = [
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
];

/// Adapters of different ranks, two of which change only some of the matrices.
fn some(model: &str) -> [TempDir; 4] {
    [
        adapter(model, 5, 1, &ALL),
        adapter(model, 16, 2, &ALL),
        adapter(model, 1, 3, &["v_proj", "up_proj"]),
        adapter(model, 40, 4, &["q_proj", "down_proj", "gate_proj"]),
    ]
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
    Llama::build_on(device, &dir(model), Some(&tokenizer), options, &mut |_| {
        true
    })
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

/// Greedy, past EOS.
fn with(adapter: u32, n: usize) -> GenerateOptions {
    GenerateOptions {
        temperature: 0.0,
        logprobs: true,
        ignore_eos: true,
        max_gen_len: Some(n),
        adapter,
        ..GenerateOptions::default()
    }
}

fn prompt(n: usize) -> Vec<Token> {
    (0..n)
        .map(|i| (1 + (i * i * 31 + i * 17 + n * 57) % 290) as Token)
        .collect()
}

fn start(llama: &Llama, n: usize, options: GenerateOptions) -> Result<Stream> {
    llama.stream(vec![Prompt::Tokens(prompt(n))], options)
}

type Tokens = Vec<(Token, f32)>;

/// The next token; `None` at the end.
fn next(stream: &Stream) -> Option<(Token, f32)> {
    loop {
        match stream.next(None).unwrap() {
            Next::Event(Event::Token(e)) => return Some((e.token, e.logprob)),
            Next::Event(_) => {}
            Next::Done => return None,
            other => panic!("{other:?}"),
        }
    }
}

fn finish(stream: &Stream) -> Tokens {
    std::iter::from_fn(|| next(stream)).collect()
}

fn run(llama: &Llama, n: usize, options: GenerateOptions) -> Tokens {
    finish(&start(llama, n, options).unwrap())
}

fn bits(tokens: &Tokens) -> Vec<(Token, u32)> {
    tokens.iter().map(|&(t, l)| (t, l.to_bits())).collect()
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
            let (cpu, device) = (on_cpu(model, &options), device(hopper, 1));
            let gpu = on(device, model, &options);
            let ids = add(&cpu, &adapters);
            assert_eq!(add(&gpu, &adapters), ids);
            for (i, &id) in ids.iter().enumerate() {
                // The tokens of a prompt whose log probabilities are asked for cannot differ.
                let echo = |llama| {
                    let options = GenerateOptions {
                        echo: true,
                        ..with(id, 1)
                    };
                    run(llama, 33 + i, options)
                };
                let (want, got) = (echo(&cpu), echo(&gpu));
                let plain = run(
                    &gpu,
                    33 + i,
                    GenerateOptions {
                        echo: true,
                        ..with(0, 1)
                    },
                );
                let what = format!("{model}, {weights} weights, adapter {id}");
                assert!(want.len() > 33 && want.len() == got.len(), "{what}");
                let far = |a: &Tokens, b: &Tokens| {
                    let far = a.iter().zip(b).map(|(a, b)| (a.1 - b.1).abs());
                    far.take(33 + i).fold(0.0, f32::max)
                };
                let (off, moved) = (far(&want, &got), far(&plain, &got));
                assert!(off <= tolerance, "{what}: {off} off");
                if weights == Dtype::F32 {
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

fn device(hopper: bool, seed: u64) -> Arc<Emu> {
    match hopper {
        true => Emu::hopper(GIB, seed, 132),
        false => Emu::new(GIB, seed),
    }
}

/// Rows with different adapters, and rows without any, have the same bits in each other's company as
/// alone, however their prompts are cut, cold and from the prefix cache. Those without have the bits
/// of a handle that knows no adapters.
#[test]
fn company_and_cuts_change_no_bit() {
    // Weights, KV cache, and whether it is the device with wgmma.
    let formats = [
        (None, None, false),
        (Some(Dtype::Int4), Some(Dtype::Int8), false),
        (Some(Dtype::Int8), Some(Dtype::F16), true),
    ];
    const LENGTHS: [usize; 6] = [1, 16, 40, 5, 33, 70];
    for model in MODELS {
        let adapters = some(model);
        for (weights, kv, hopper) in formats {
            let what = format!("{model}, {weights:?} {kv:?}, hopper {hopper}");
            let bare = on(device(hopper, 1), model, &options(weights, kv, 96));
            let alone = on(device(hopper, 2), model, &options(weights, kv, 96));
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
                let llama = on(
                    device(hopper, chunk as u64),
                    model,
                    &options(weights, kv, chunk),
                );
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
            let llama = on(device(hopper, 1), model, &options);
            let id = add(&llama, &adapters)[0];
            bits(&run(&llama, 600, with(id, 3)))
        };
        assert_eq!(of(600), of(50), "{weights}");
    }
}

/// Recorded steps serve any adapters, and one that follows before the tokens are known has them too.
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

fn cached(llama: &Llama, n: usize, options: GenerateOptions) -> (usize, Tokens) {
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

fn unknown(error: Error, name: &str, id: u32) {
    let want =
        format!("{name} is {id}, must be the id of an adapter that was added and not dropped");
    assert_eq!(error.to_string(), want);
}

/// Waits until this much is allocated.
#[track_caller]
fn assert_falls_to(device: &Emu, bytes: u64) {
    for _ in 0..200_000 {
        if device.allocated().0 == bytes {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    panic!("{} bytes, not {bytes}", device.allocated().0);
}

#[test]
fn adapters_come_and_go_while_the_handle_runs() {
    let model = "adapters/base";
    let device = Emu::new(GIB, 1);
    let llama = on(device.clone(), model, &options(None, None, 96));
    let built = device.allocated().0;
    let adapters = some(model);
    let first = add(&llama, &adapters[..1])[0];
    let shared = {
        let one = device.allocated().0;
        llama.drop_adapter(first).unwrap();
        let without = device.allocated().0;
        assert!(built < without && without < one);
        without
    };
    let id = add(&llama, &adapters[..1])[0];
    assert_eq!((first, id), (1, 2));
    let whole = bits(&run(&llama, 4, with(id, 60)));
    // Dropped while a stream runs: that one goes on as it began, and then the memory is free.
    let stream = start(&llama, 4, with(id, 60)).unwrap();
    let mut got = vec![next(&stream).unwrap()];
    llama.drop_adapter(id).unwrap();
    unknown(start(&llama, 4, with(id, 2)).err().unwrap(), "adapter", id);
    unknown(llama.drop_adapter(id).unwrap_err(), "id", id);
    got.extend(finish(&stream));
    assert_eq!(bits(&got), whole);
    drop(stream);
    assert_falls_to(&device, shared);
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
    drop(streams);
    llama.drop_adapter(stays).unwrap();
    assert_falls_to(&device, shared);
    drop(llama);
    assert_falls_to(&device, 0);
}

/// What adapters take counts towards the handle's limit, and what dropped ones took does not.
#[test]
fn adapters_keep_to_the_limit() {
    let model = "adapters/base";
    let dirs = [adapter(model, 64, 1, &ALL), adapter(model, 64, 2, &ALL)];
    // What the model, the buffers that adapters share, and an adapter take.
    let mut options = options(None, None, 96);
    options.gpu_memory_bytes = 1;
    let build = |device: &Arc<Emu>, options: &BuildOptions| {
        let tokenizer = tokenizer(model);
        Llama::build_on(
            device.clone(),
            &dir(model),
            Some(&tokenizer),
            options,
            &mut |_| true,
        )
    };
    let Some(Error::DeviceMemory { needed, .. }) = build(&Emu::new(GIB, 1), &options).err() else {
        panic!("one byte is not enough");
    };
    let device = Emu::new(GIB, 1);
    options.gpu_memory_bytes = GIB;
    let llama = build(&device, &options).unwrap();
    let mut at = vec![device.allocated().0];
    for dir in &dirs {
        llama.add_adapter(dir.path(), 1.0).unwrap();
        at.push(device.allocated().0);
    }
    let (both, one) = (at[1] - at[0], at[2] - at[1]);
    for (limit, fits) in [
        (both, 1),
        (both - 1, 0),
        (both + one, 2),
        (both + one - 1, 1),
    ] {
        options.gpu_memory_bytes = needed + limit;
        let device = Emu::new(GIB, 1);
        let llama = build(&device, &options).unwrap();
        let mut ids = Vec::new();
        for (i, dir) in dirs.iter().enumerate() {
            match llama.add_adapter(dir.path(), 1.0) {
                Ok(id) => ids.push(id),
                Err(Error::DeviceMemory {
                    what, available, ..
                }) => {
                    assert_eq!(what, "an adapter");
                    assert!(i >= fits && available < both, "{limit}: adapter {i}");
                }
                Err(other) => panic!("{other}"),
            }
        }
        assert_eq!(ids.len(), fits, "{limit}");
        assert!(device.allocated().1 <= options.gpu_memory_bytes);
        if let Some(&id) = ids.first() {
            llama.drop_adapter(id).unwrap();
            llama.add_adapter(dirs[1].path(), 1.0).unwrap();
        }
    }
    // The device itself may have no more memory, or fail.
    let taken = at[0];
    for more in [0, both - one / 2] {
        options.gpu_memory_bytes = 0;
        // The plan is told of more than there is.
        let device = Emu::with_promise(taken + more, needed, 1);
        let llama = build(&device, &options).unwrap();
        let before = device.allocated().0;
        assert_eq!(before, taken);
        let error = llama.add_adapter(dirs[0].path(), 1.0).unwrap_err();
        assert!(matches!(error, Error::DeviceMemory { .. }), "{error}");
        assert_eq!(run(&llama, 5, with(0, 3)).len(), 3, "the handle goes on");
    }
    for n in 0..12 {
        let device = Emu::new(GIB, 1);
        let llama = build(&device, &options).unwrap();
        device.break_after(n);
        let error = llama.add_adapter(dirs[0].path(), 1.0).unwrap_err();
        assert!(matches!(error, Error::Device(_)), "{error}");
        drop(llama);
        assert_falls_to(&device, 0);
    }
}

fn launches(standin: &Standin, llama: &Llama, adapter: u32) -> u64 {
    // Only the second call repeats graphs alone.
    run(llama, 5, with(adapter, 12));
    let before = standin.count("launches");
    run(llama, 5, with(adapter, 12));
    standin.count("launches") - before
}

/// On the stand-in driver: an adapter that no row has costs no launch, and adding and dropping does
/// nothing that may not happen while launches are recorded.
#[test]
fn the_driver_sees_adapters_of_rows_only() {
    let model = "adapters/base";
    let adapters = some(model);
    let build = |standin: &Standin| {
        let cuda = Arc::new(standin.open().unwrap());
        let tokenizer = tokenizer(model);
        let options = options(None, None, 96);
        Llama::build_on(cuda, &dir(model), Some(&tokenizer), &options, &mut |_| true).unwrap()
    };
    let standin = Standin::new("seed=5");
    let llama = build(&standin);
    let bare = launches(&standin, &llama, 0);
    let id = add(&llama, &adapters[..1])[0];
    assert_eq!(launches(&standin, &llama, 0), bare);
    assert!(launches(&standin, &llama, id) > bare);
    drop(llama);
    standin.assert_clean();
    // New forms of steps are recorded all the time while adapters come and go.
    let emulated = on(Emu::new(GIB, 1), model, &options(None, None, 96));
    let ids = add(&emulated, &adapters);
    let want: Vec<_> = ids
        .iter()
        .enumerate()
        .map(|(i, &id)| bits(&run(&emulated, 4 + i, with(id, 10))))
        .collect();
    for seed in [1, 9] {
        let standin = Standin::new(&format!("seed={seed}"));
        let llama = build(&standin);
        std::thread::scope(|scope| {
            for (i, dir) in adapters.iter().enumerate() {
                let (llama, want) = (&llama, &want);
                scope.spawn(move || {
                    for _ in 0..3 {
                        let id = add(llama, std::slice::from_ref(dir))[0];
                        assert_eq!(bits(&run(llama, 4 + i, with(id, 10))), want[i]);
                        llama.drop_adapter(id).unwrap();
                    }
                });
            }
        });
        assert!(standin.count("replays") > 10);
        drop(llama);
        standin.assert_clean();
    }
}
