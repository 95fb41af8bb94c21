//! Adapters on several ranks, each with a device of its own: what ranks on the CPU say, the laws,
//! memory, and a rank that refuses.

use super::lifetime::assert_falls_to;
use super::*;

fn devices(hopper: bool, seed: u64) -> Vec<Arc<Emu>> {
    let device = |rank| Emu::either(hopper, GIB, 100 * seed + rank);
    (0..2).map(device).collect()
}

fn on_ranks(devices: &[Arc<Emu>], model: &str, options: &BuildOptions) -> Result<Llama> {
    let options = BuildOptions {
        devices: (0..devices.len()).collect(),
        ..options.clone()
    };
    let (dir, tokenizer) = (dir(model), tokenizer(model));
    Llama::build_on_ranks(
        devices.to_vec(),
        &dir,
        Some(&tokenizer),
        &options,
        &mut |_| true,
    )
}

/// In float32 the numbers are those of two ranks on the CPU, and nearly those of one device.
#[test]
fn ranks_add_together_what_ranks_on_the_cpu_add() {
    for model in [
        "adapters/base",
        "families/granite",
        "families/llama-mlp-bias",
    ] {
        let adapters = some(model);
        for (weights, hopper, tolerance) in [(Dtype::F32, false, 1e-3), (Dtype::Bf16, true, 0.15)] {
            let options = options(Some(weights), Some(weights), 24);
            let on_nodes = BuildOptions {
                devices: vec![0, 0],
                n_threads: 1,
                ..options.clone()
            };
            let cpu = on_cpu(model, &on_nodes);
            let one = on(Emu::either(hopper, GIB, 3), model, &options);
            let two = on_ranks(&devices(hopper, 1), model, &options).unwrap();
            let ids = add(&two, &adapters);
            assert_eq!(
                (add(&cpu, &adapters), add(&one, &adapters)),
                (ids.clone(), ids.clone())
            );
            for (i, &id) in ids.iter().enumerate() {
                let echo = |llama: &Llama, id| {
                    let options = GenerateOptions {
                        echo: true,
                        ..with(id, 1)
                    };
                    let mut all = run(llama, 33 + i, options);
                    all.truncate(33 + i);
                    all
                };
                let far = |a: &[Said], b: &[Said]| {
                    assert_eq!(a.len(), b.len());
                    let far = a.iter().zip(b).map(|(a, b)| (a.1 - b.1).abs());
                    far.fold(0.0, f32::max)
                };
                let got = echo(&two, id);
                let what = format!("{model}, {weights}, adapter {id}");
                for other in [&cpu, &one] {
                    let off = far(&echo(other, id), &got);
                    assert!(off <= tolerance, "{what}: {off} off");
                }
                let moved = far(&echo(&two, 0), &got);
                if weights == Dtype::F32 {
                    assert!(moved > 0.003, "{what}: {moved}");
                    let decoded = |llama| run(llama, 5 + i, with(id, 6));
                    let off = far(&decoded(&cpu), &decoded(&two));
                    assert!(off <= tolerance, "{what}: {off} off");
                }
            }
        }
    }
}

/// Rows with different adapters, and rows without any, have the same bits in each other's company
/// as alone, cold and from the prefix cache.
#[test]
fn company_and_cuts_change_no_bit_on_ranks() {
    const LENGTHS: [usize; 4] = [1, 16, 40, 33];
    let model = "adapters/base";
    let adapters = some(model);
    for (weights, hopper) in [(None, false), (Some(Dtype::F32), false), (None, true)] {
        let build = |chunk, seed| {
            let options = options(weights, None, chunk);
            on_ranks(&devices(hopper, seed), model, &options).unwrap()
        };
        let (bare, alone) = (build(96, 1), build(96, 2));
        let ids = add(&alone, &adapters);
        let of = |i: usize| if i == 1 { 0 } else { ids[i] };
        let each = || LENGTHS.iter().enumerate();
        let want: Vec<_> = each()
            .map(|(i, &n)| bits(&run(&alone, n, with(of(i), 4))))
            .collect();
        for (i, &n) in each() {
            let plain = bits(&run(&bare, n, with(0, 4)));
            assert_eq!(plain == want[i], of(i) == 0, "{n}");
        }
        let llama = build(7, 3);
        assert_eq!(add(&llama, &adapters), ids);
        for round in ["cold", "warm"] {
            let streams = each().map(|(i, &n)| start(&llama, n, with(of(i), 4)));
            let streams: Vec<_> = streams.collect::<Result<_>>().unwrap();
            let got: Vec<_> = streams.iter().map(|s| bits(&finish(s))).collect();
            assert_eq!(got, want, "{weights:?}, {hopper}, {round}");
        }
    }
}

/// What adapters take counts towards the limit of each GPU. Where a rank refuses, none keeps
/// anything.
#[test]
fn adapters_of_ranks_keep_to_the_limit_of_each_gpu() {
    let model = "adapters/base";
    let dirs = [adapter(model, 64, 1, &ALL), adapter(model, 64, 2, &ALL)];
    let mut options = options(None, None, 96);
    options.gpu_memory_bytes = 1;
    let error = on_ranks(&devices(false, 1), model, &options).err();
    let Some(Error::DeviceMemory { needed, .. }) = error else {
        panic!("one byte is not enough");
    };
    options.gpu_memory_bytes = GIB;
    let roomy = devices(false, 1);
    let allocated = |devices: &[Arc<Emu>]| [0, 1].map(|rank: usize| devices[rank].allocated().0);
    let llama = on_ranks(&roomy, model, &options).unwrap();
    let mut at = vec![allocated(&roomy)];
    for dir in &dirs {
        llama.add_adapter(dir.path(), 1.0).unwrap();
        at.push(allocated(&roomy));
    }
    let [both, one] = [1, 2].map(|i| [0, 1].map(|rank: usize| at[i][rank] - at[i - 1][rank]));
    // The first rank has two of the three blocks of the feed-forward.
    assert!(both[0] > both[1] && one[0] > one[1], "{both:?} {one:?}");
    for (limit, fits) in [(both[0], 1), (both[0] - 1, 0), (both[0] + one[0], 2)] {
        options.gpu_memory_bytes = needed + limit;
        let devices = devices(false, 2);
        let llama = on_ranks(&devices, model, &options).unwrap();
        let mut ids = Vec::new();
        for dir in &dirs {
            match llama.add_adapter(dir.path(), 1.0) {
                Ok(id) => ids.push(id),
                Err(error) => {
                    let text = error.to_string();
                    assert!(text.starts_with("rank 0: an adapter needs"), "{text}");
                }
            }
        }
        assert_eq!(ids.len(), fits, "{limit}");
        assert!(devices[0].allocated().1 <= options.gpu_memory_bytes);
    }
    // The second rank's device breaks while the adapter comes to it.
    options.gpu_memory_bytes = 0;
    for good in 0..12 {
        let devices = devices(false, 3);
        let llama = on_ranks(&devices, model, &options).unwrap();
        // The buffers that adapters share stay.
        let id = llama.add_adapter(dirs[0].path(), 1.0).unwrap();
        llama.drop_adapter(id).unwrap();
        let before = devices[0].allocated().0;
        devices[1].break_after(good);
        match llama.add_adapter(dirs[1].path(), 1.0) {
            Err(error) => assert!(error.to_string().contains("rank 1: "), "{error}"),
            Ok(id) => llama.drop_adapter(id).unwrap(),
        }
        assert_falls_to(&devices[0], before);
        drop(llama);
        devices.iter().for_each(|device| assert_falls_to(device, 0));
    }
}

#[test]
fn adapters_of_ranks_are_freed_on_each_when_the_last_call_with_them_ends() {
    let model = "adapters/base";
    let devices = devices(false, 5);
    let llama = on_ranks(&devices, model, &options(None, None, 96)).unwrap();
    let adapters = some(model);
    let first = add(&llama, &adapters[..1])[0];
    llama.drop_adapter(first).unwrap();
    let shared = [0, 1].map(|rank: usize| devices[rank].allocated().0);
    let id = add(&llama, &adapters[..1])[0];
    let whole = bits(&run(&llama, 4, with(id, 30)));
    let stream = start(&llama, 4, with(id, 30)).unwrap();
    let mut got = vec![next(&stream).unwrap()];
    llama.drop_adapter(id).unwrap();
    assert!(start(&llama, 4, with(id, 2)).is_err());
    got.extend(finish(&stream));
    assert_eq!(bits(&got), whole);
    drop(stream);
    for (device, bytes) in devices.iter().zip(shared) {
        assert_falls_to(device, bytes);
    }
    // Other threads add and drop them while a stream runs.
    let stays = add(&llama, &adapters[..1])[0];
    let stream = start(&llama, 4, with(stays, 30)).unwrap();
    std::thread::scope(|scope| {
        for dir in &adapters[1..] {
            let llama = &llama;
            scope.spawn(move || {
                for _ in 0..2 {
                    let id = llama.add_adapter(dir.path(), 1.0).unwrap();
                    run(llama, 7, with(id, 3));
                    llama.drop_adapter(id).unwrap();
                }
            });
        }
        assert_eq!(bits(&finish(&stream)), whole);
    });
}

/// On the stand-in driver: the same bits while adapters come and go, where numbers go through the
/// host; and where they go by the library that stands in for NCCL, adapters are refused.
#[test]
fn ranks_that_exchange_by_the_host_take_adapters_and_others_refuse_them() {
    let model = "adapters/base";
    let adapters = some(model);
    let options = BuildOptions {
        devices: vec![0, 1],
        ..options(None, None, 96)
    };
    let mut want = None;
    for (nccl, seed) in [(false, 1), (true, 2), (false, 9)] {
        let standin = Standin::new(&format!("devices=2 seed={seed}"));
        let open = |index| {
            let cuda = standin.open_at(index).unwrap();
            match nccl {
                true => Arc::new(cuda.with_nccl(standin.path()).unwrap()),
                false => Arc::new(cuda),
            }
        };
        let (dir, tokenizer) = (dir(model), tokenizer(model));
        let cudas = [0, 1].map(open).to_vec();
        let llama = Llama::build_on_ranks(cudas, &dir, Some(&tokenizer), &options, &mut |_| true);
        let llama = llama.unwrap();
        if nccl {
            let error = llama.add_adapter(adapters[0].path(), 1.0).unwrap_err();
            assert!(error.to_string().contains("exchange by NCCL"), "{error}");
            continue;
        }
        let ids = add(&llama, &adapters);
        let asked = |i: usize| with([0, ids[0], ids[1], ids[3]][i], 8);
        let streams = [0, 1, 2, 3].map(|i| start(&llama, 4 + i, asked(i)).unwrap());
        let together = streams.each_ref().map(|stream| bits(&finish(stream)));
        std::thread::scope(|scope| {
            for (i, dir) in adapters[..2].iter().enumerate() {
                let (llama, together) = (&llama, &together);
                scope.spawn(move || {
                    for _ in 0..3 {
                        let id = add(llama, std::slice::from_ref(dir))[0];
                        assert_eq!(bits(&run(llama, 5 + i, with(id, 8))), together[1 + i]);
                        llama.drop_adapter(id).unwrap();
                    }
                });
            }
        });
        assert_eq!(
            together,
            *want.get_or_insert(together.clone()),
            "{nccl}, {seed}"
        );
        drop(llama);
        standin.assert_clean();
    }
}
