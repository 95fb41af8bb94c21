//! Adapters that come and go while steps run, and the memory that they take.

use super::*;
use crate::cuda::warnings;
use llamabi::Token;
use llamabi::engine::request::Bias;
use llamabi::engine::{Prompt, Speculation};
use llamabi::llama::Sequence;
use llamabi::log::{Level, Log};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn unknown(error: Error, name: &str, id: u32) {
    let want =
        format!("{name} is {id}, must be the id of an adapter that was added and not dropped");
    assert_eq!(error.to_string(), want);
}

/// Waits until this much is allocated.
#[track_caller]
pub(super) fn assert_falls_to(device: &Emu, bytes: u64) {
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

/// What is copied in a step of decode: no more than there are buffers for (the test of
/// `cuda::the_copies_of_a_step_wait_for_nothing`), and its answer.
#[test]
fn a_step_has_few_copies() {
    let model = "adapters/base";
    let standin = Standin::new("");
    let cuda = Arc::new(standin.open().unwrap());
    let tokenizer = tokenizer(model);
    let options = options(None, None, 96);
    let llama =
        Llama::build_on(cuda, &dir(model), Some(&tokenizer), &options, &mut |_| true).unwrap();
    let id = add(&llama, &some(model)[..1])[0];
    let copies = |n: usize| {
        let before = standin.count("copies");
        let options = GenerateOptions {
            logit_bias: vec![Bias {
                token: 9,
                bias: -1.0,
            }],
            repetition_penalty: 1.2,
            presence_penalty: 0.5,
            ..with(id, n)
        };
        assert_eq!(run(&llama, 5, options).len(), n);
        standin.count("copies") - before
    };
    copies(4); // waits for what the building has left
    let each = (copies(24) - copies(14)) / 10;
    assert!((3..=5).contains(&each), "{each}");
    drop(llama);
    standin.assert_clean();
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

/// A draft model records its steps in the stream of the model, whose adapters come and go.
#[test]
fn adapters_come_and_go_beside_a_draft_model() {
    let model = "adapters/base";
    let adapters = some(model);
    let options = BuildOptions {
        max_batch_size: 8,
        draft_dir: Some(dir(model)),
        ..options(None, None, 96)
    };
    // More sequences at a time: every number of them is another form of step.
    let generate = |llama: &Llama, n: usize| {
        let prompt = |i: usize| Prompt::Tokens(vec![1, 20 + i as Token, 40 + n as Token]);
        let options = GenerateOptions {
            temperature: 0.0,
            ignore_eos: true,
            max_gen_len: Some(5),
            speculation: Speculation::Draft,
            draft_len: 3,
            ..GenerateOptions::default()
        };
        let all = llama.generate((0..n).map(prompt).collect(), options, &mut |_| true);
        let tokens = |sequence: Sequence| sequence.tokens;
        all.unwrap().sequences.into_iter().map(tokens).collect()
    };
    let walk =
        |llama: &Llama| -> Vec<Vec<Vec<Token>>> { [1, 2, 4, 8].map(|n| generate(llama, n)).into() };
    let want = walk(&on(Emu::new(GIB, 1), model, &options));
    let walk_while_they_come = |llama: &Llama| {
        let done = AtomicBool::new(false);
        let (got, n) = std::thread::scope(|scope| {
            let adding = scope.spawn(|| {
                let mut n = 0;
                while !done.load(Ordering::SeqCst) {
                    let id = add(llama, &adapters[n % 4..][..1])[0];
                    llama.drop_adapter(id).unwrap();
                    n += 1;
                }
                n
            });
            let got = walk(llama);
            done.store(true, Ordering::SeqCst);
            (got, adding.join().unwrap())
        });
        assert_eq!(got, want);
        assert!(n > 0);
    };
    let device = Emu::new(GIB, 2);
    device.stall_captures(Duration::from_millis(20));
    walk_while_they_come(&on(device.clone(), model, &options));
    assert!(device.replays() > 10);
    let standin = Standin::new("seed=9");
    let log = Arc::new(Log::new(Some(Level::Warn)));
    let options = BuildOptions {
        log: log.clone(),
        ..options.clone()
    };
    let (cuda, tokenizer) = (Arc::new(standin.open().unwrap()), tokenizer(model));
    let llama =
        Llama::build_on(cuda, &dir(model), Some(&tokenizer), &options, &mut |_| true).unwrap();
    walk_while_they_come(&llama);
    assert!(standin.count("replays") > 10);
    assert_eq!(warnings(&log), [""; 0]);
    drop(llama);
    standin.assert_clean();
}
