//! Several ranks, each on an emulated device of its own: what ranks on the CPU say, the laws and
//! memory. On a real device with LLAMABI_RANKS=staged, they share it.

use super::memory::assert_returned;
use super::*;
use llamabi::grammar::Source;
use llamabi::llama::Sequence;

pub fn devices(n: usize, seed: u64) -> Vec<Arc<Emu>> {
    (0..n)
        .map(|rank| Emu::new(GIB, 100 * seed + rank as u64))
        .collect()
}

pub fn on(devices: &[Arc<Emu>], dir: &Path, options: &BuildOptions) -> Result<Llama> {
    let options = BuildOptions {
        devices: (0..devices.len()).collect(),
        ..options.clone()
    };
    Llama::build_on_ranks(devices.to_vec(), dir, None, &options, &mut |_| true)
}

/// So many ranks on one real device.
fn staged(n: usize, dir: &Path, tokenizer: Option<&Path>, options: &BuildOptions) -> Result<Llama> {
    let options = BuildOptions {
        device: Device::Cuda,
        devices: vec![0; n],
        ..options.clone()
    };
    Llama::build(dir, tokenizer, &options, &mut |_| true)
}

/// Whether a test has no ranks to run on, which it says: those of a real device share it, which
/// only LLAMABI_RANKS=staged allows.
fn has_no_ranks() -> bool {
    let none = real() && std::env::var_os("LLAMABI_RANKS").is_none();
    if none {
        println!("on a real device only with LLAMABI_RANKS=staged");
    }
    none
}

/// So many ranks, emulated or real.
fn ranks(n: usize, seed: u64, dir: &Path, options: &BuildOptions) -> Result<Llama> {
    match real() {
        true => staged(n, dir, None, options),
        false => on(&devices(n, seed), dir, options),
    }
}

/// As many ranks on the CPU.
fn ranks_on_cpu(n: usize, dir: &Path, options: &BuildOptions) -> Llama {
    let options = BuildOptions {
        device: Device::Cpu,
        devices: vec![0; n],
        n_threads: 1,
        ..options.clone()
    };
    Llama::build(dir, None, &options, &mut |_| true).unwrap()
}

fn open_two(
    dir: &Path,
    tokenizer: Option<&Path>,
    options: &BuildOptions,
) -> std::result::Result<Model, Failure> {
    let llama = match real() {
        true => staged(2, dir, tokenizer, options),
        false => ranks(2, 1, dir, options),
    };
    let llama = llama.map_err(|e| (status_of(&e), e.to_string()))?;
    assert_eq!(llama.info().ranks.len(), 2);
    Ok(llama.into())
}

const TWO: Place = Place {
    open: open_two,
    ..GPU
};

/// The cases of the reference implementation, on two ranks.
#[test]
fn cases_of_the_reference() {
    if has_no_ranks() {
        return;
    }
    crate::reference_cases::logits(&TWO);
    crate::reference_cases::generate(&TWO);
    crate::reference_cases::nucleus(&TWO);
}

/// The models of which so many ranks can have shares. With four ranks, two have the same KV head.
const MODELS: [(&str, usize); 4] = [
    ("mha-f32/hf", 2),
    ("gqa-bf16/meta", 2),
    ("gqa-f16-mp2/meta", 2),
    ("gqa-f16-mp2/hf", 4),
];

/// The numbers of as many ranks on the CPU, in float32: prompts in chunks and together, and what is
/// generated. Every schedule gives the same bits.
#[test]
fn ranks_say_what_ranks_on_the_cpu_say() {
    if has_no_ranks() {
        return;
    }
    let mut options = options(Some(Dtype::F32));
    options.prefill_chunk = Some(24);
    let prompts = [1, 17, 40].map(|n| prompt(n, n));
    let walk = |llama: &Llama| {
        let streams = prompts.each_ref().map(|p| start(llama, p, going_on(6)));
        streams.each_ref().map(finish)
    };
    for (model, n) in MODELS {
        let dir = reference(model);
        let want = walk(&ranks_on_cpu(n, &dir, &options));
        let mut first = None;
        for seed in [1, 2] {
            // A real GPU needs no emulator, and its machine has none.
            let devices = if real() { vec![] } else { devices(n, seed) };
            let llama = match real() {
                true => staged(n, &dir, None, &options),
                false => on(&devices, &dir, &options),
            };
            let llama = llama.unwrap();
            let info = llama.info();
            assert_eq!((info.device, info.ranks.len()), (Device::Cuda, n));
            let got = walk(&llama);
            for (got, want) in got.iter().zip(&want) {
                assert_near(got, want, 1e-3, &format!("{model} on {n} ranks"));
            }
            let got = got.each_ref().map(bits);
            assert_eq!(got, *first.get_or_insert(got.clone()), "{model}, {n}");
            // Steps that wait for other ranks are not recorded.
            assert!(devices.iter().all(|device| device.replays() == 0));
            let ran = |device: &Arc<Emu>| device.order().contains('<');
            assert!(real() || devices.iter().all(ran));
        }
    }
}

/// All that a caller can see of a sequence, with bits for floats.
type Seen = (Vec<Token>, Vec<u32>, Vec<(Token, u32)>);

fn seen(sequence: &Sequence) -> Seen {
    let top = sequence.top.iter().flatten();
    (
        sequence.tokens.clone(),
        sequence.logprobs.iter().map(|l| l.to_bits()).collect(),
        top.map(|a| (a.token, a.logprob.to_bits())).collect(),
    )
}

/// Law four, on several ranks: alone or in company, greedy and drawn, in chunks, from the prefix
/// cache.
#[test]
fn company_changes_nothing() {
    if has_no_ranks() {
        return;
    }
    let prompts: Vec<_> = [40, 1, 17, 33].map(|n| prompt(n, n)).into();
    let asked = |index: usize| GenerateOptions {
        temperature: if index.is_multiple_of(2) { 0.0 } else { 0.9 },
        top_p: 0.9,
        seed: 11 + index as u64,
        repetition_penalty: if index == 3 { 1.2 } else { 1.0 },
        top_logprobs: 2,
        ..going_on(6)
    };
    let one = |llama: &Llama, index: usize| {
        let prompt = Prompt::Tokens(prompts[index].clone());
        let done = llama.generate(vec![prompt], asked(index), &mut |_| true);
        seen(&done.unwrap().sequences[0])
    };
    for (model, n, weights) in [
        ("gqa-bf16/meta", 2, None),
        ("gqa-f16-mp2/meta", 2, Some(Dtype::Int8)),
        ("gqa-f16-mp2/meta", 4, None),
    ] {
        let mut want = None;
        for (chunk, together) in [(64, false), (7, false), (24, true)] {
            let mut options = options(weights);
            options.prefill_chunk = Some(chunk);
            let llama = ranks(n, chunk as u64, &reference(model), &options).unwrap();
            let all = 0..prompts.len();
            let got: Vec<_> = if together {
                std::thread::scope(|scope| {
                    let (llama, one) = (&llama, &one);
                    let calls = all.map(|i| scope.spawn(move || one(llama, i)));
                    let calls: Vec<_> = calls.collect();
                    calls.into_iter().map(|call| call.join().unwrap()).collect()
                })
            } else {
                all.map(|i| one(&llama, i)).collect()
            };
            assert_eq!(
                got[0],
                one(&llama, 0),
                "{model}, {n}: from the prefix cache"
            );
            let want = want.get_or_insert(got.clone());
            assert_eq!(got, *want, "{model}, {n} ranks, chunks of {chunk}");
        }
    }
}

/// Weights do not depend on the number of ranks. What differs from one device is the order in which
/// float32 sums are rounded, and what that does to 16-bit activations and caches.
#[test]
fn every_format_says_what_one_device_says() {
    if has_no_ranks() {
        return;
    }
    let dir = reference("gqa-f16-mp2/meta");
    let tokens = prompt(40, 3);
    let echo = || GenerateOptions {
        echo: true,
        ..going_on(0)
    };
    let formats = [
        None,
        Some(Dtype::F32),
        Some(Dtype::Bf16),
        Some(Dtype::Int8),
        Some(Dtype::Int4),
        Some(Dtype::Nf4),
        Some(Dtype::Fp8),
    ];
    let mut shared = 0;
    for dtype in formats {
        for hopper in [false, true] {
            let device = |seed| Emu::either(hopper, GIB, seed);
            let options = options(dtype);
            let one = match real() {
                true => build(&dir, None, &options, 1),
                false => Llama::build_on(device(1), &dir, None, &options, &mut |_| true),
            };
            let Ok(one) = one else {
                assert_eq!(dtype, Some(Dtype::Nf4));
                continue;
            };
            let two = match real() {
                true => staged(2, &dir, None, &options),
                false => on(&[device(2), device(3)], &dir, &options),
            };
            let two = match two {
                Ok(llama) => llama,
                // The output projection would be cut within blocks.
                Err(error) => {
                    assert!(error.to_string().contains("stored in blocks of"), "{error}");
                    continue;
                }
            };
            let want = run(&one, &tokens, echo());
            let got = run(&two, &tokens, echo());
            let tolerance = match dtype {
                Some(Dtype::F32) => 1e-3,
                _ => 0.15,
            };
            assert_near(&got, &want, tolerance, &format!("{dtype:?}, {hopper}"));
            shared += 1;
        }
    }
    assert!(shared >= 8, "{shared}");
}

/// Pages that lie in several caches are copied and forgotten as one.
#[test]
fn samples_share_a_prompt_on_ranks() {
    if has_no_ranks() {
        return;
    }
    let llama = ranks(2, 5, &reference("gqa-bf16/meta"), &options(None)).unwrap();
    let asked = |n| GenerateOptions {
        temperature: 0.9,
        seed: 5,
        num_return_sequences: n,
        ..going_on(8)
    };
    let prompt = || Prompt::Tokens(prompt(33, 1));
    let all = |prompts, n| -> Vec<Seen> {
        let done = llama.generate(prompts, asked(n), &mut |_| true).unwrap();
        done.sequences.iter().map(seen).collect()
    };
    assert_eq!(
        all(vec![prompt()], 3),
        all(vec![prompt(), prompt(), prompt()], 1)
    );
}

/// Masks, biases, penalties and beams reach all ranks: the tokens of one device, in float32.
#[test]
fn ranks_choose_as_one_device_does() {
    if has_no_ranks() {
        return;
    }
    let (dir, options) = (reference("mha-f32/hf"), options(Some(Dtype::F32)));
    let one = build(&dir, None, &options, 1).unwrap();
    let two = ranks(2, 9, &dir, &options).unwrap();
    // Its device chooses, too, and gets masks through the same layer as several.
    let single = ranks(1, 9, &dir, &options).unwrap();
    let plain = run(&one, &prompt(20, 4), going_on(12));
    let plain: Vec<Token> = plain.iter().map(|(token, _)| *token).collect();
    let banned = vec![Bias {
        token: plain[0],
        bias: f32::NEG_INFINITY,
    }];
    type Asked<'a> = &'a dyn Fn(&Llama) -> GenerateOptions;
    let asked: [(&str, Asked); 5] = [
        ("bias", &|_| GenerateOptions {
            logit_bias: banned.clone(),
            ..going_on(6)
        }),
        ("penalties", &|_| GenerateOptions {
            repetition_penalty: 1.5,
            presence_penalty: 2.0,
            no_repeat_ngram_size: 2,
            ..going_on(12)
        }),
        ("grammar", &|llama| GenerateOptions {
            grammar: Some(Arc::new(
                llama.grammar(Source::Regex("[a-z ]{4,9}")).unwrap(),
            )),
            ignore_eos: false,
            ..going_on(9)
        }),
        ("beams", &|_| GenerateOptions {
            num_beams: 3,
            num_return_sequences: 3,
            ignore_eos: false,
            logprobs: false,
            ..going_on(6)
        }),
        ("drawn with a grammar", &|llama| GenerateOptions {
            temperature: 1.0,
            seed: 4,
            grammar: Some(Arc::new(
                llama.grammar(Source::Regex("[a-z ]{4,9}")).unwrap(),
            )),
            ignore_eos: false,
            ..going_on(9)
        }),
    ];
    for (what, asked) in asked {
        let tokens = |llama: &Llama| -> Vec<Vec<Token>> {
            let prompt = vec![Prompt::Tokens(prompt(20, 4))];
            let done = llama.generate(prompt, asked(llama), &mut |_| true);
            let sequences = done.unwrap().sequences;
            sequences.into_iter().map(|of| of.tokens).collect()
        };
        let (got, want) = (tokens(&two), tokens(&one));
        assert_eq!(got, want, "{what}");
        assert_eq!(tokens(&single), want, "{what} on one rank");
        assert!(!plain.starts_with(&want[0]), "{what} changes nothing");
        // Beside a call whose tokens the devices choose.
        let beside = start(&two, &prompt(20, 4), going_on(12));
        assert_eq!(tokens(&two), want, "{what} in company");
        let beside: Vec<Token> = finish(&beside).iter().map(|(token, _)| *token).collect();
        assert_eq!(beside, plain, "beside {what}");
    }
}

/// What the plan asks for is enough on each device, and never is more taken.
#[test]
fn every_rank_keeps_to_the_plan() {
    if real() {
        return println!("only on emulated devices");
    }
    let dir = reference("gqa-bf16/meta");
    let mut options = options(None);
    options.gpu_memory_bytes = 1;
    let error = on(&devices(2, 1), &dir, &options).err().unwrap();
    let text = error.to_string();
    let Error::DeviceMemory { needed, .. } = error else {
        panic!("{text}");
    };
    assert!(
        text.starts_with("rank 0: the model (the weights "),
        "{text}"
    );
    options.gpu_memory_bytes = needed - 1;
    assert!(on(&devices(2, 1), &dir, &options).is_err());
    // The first rank has the most, so this suffices for all.
    options.gpu_memory_bytes = needed;
    let devices = devices(2, 1);
    let llama = on(&devices, &dir, &options).unwrap();
    let built = devices.each_allocated();
    assert!(built.iter().all(|&bytes| bytes <= needed), "{built:?}");
    assert!(built[0] > needed - needed / 8, "{built:?} of {needed}");
    run(&llama, &prompt(60, 1), going_on(4));
    assert_eq!(devices.each_allocated(), built, "nothing later");
    let ranks = &llama.info().ranks;
    let sum: u64 = ranks.iter().map(|rank| rank.weight_bytes).sum();
    assert_eq!(sum, llama.info().weight_bytes);
    drop(llama);
    for device in &devices {
        assert_returned(device);
    }

    // Two ranks on one GPU have its memory together.
    options.devices = vec![3, 3];
    let both = |devices: &[Arc<Emu>]| {
        Llama::build_on_ranks(devices.to_vec(), &dir, None, &options, &mut |_| true)
    };
    let text = both(&devices).err().unwrap().to_string();
    assert!(text.starts_with("rank 1: the model ("), "{text}");
    assert_eq!(devices[0].allocated().0, 0, "planned, not tried");
}

trait Allocated {
    fn each_allocated(&self) -> Vec<u64>;
}

impl Allocated for Vec<Arc<Emu>> {
    /// The most that each ever had.
    fn each_allocated(&self) -> Vec<u64> {
        self.iter().map(|device| device.allocated().1).collect()
    }
}
