//! Steps that the stand-in driver records as graphs: when it cannot, what spoils a record, and what
//! graphs take.

use crate::cuda::{build, build_with, greedy, options, warnings};
use crate::emu::standin::Standin;
use llamabi::backend::gpu::device::Device;
use llamabi::backend::gpu::memory::Memory;
use llamabi::engine::{GenerateOptions, Prompt};
use llamabi::log::{Level, Log};
use llamabi::{BuildOptions, Llama};
use std::sync::Arc;

/// If the driver does not record, launches go one by one, with the same tokens and a warning.
#[test]
fn steps_run_where_they_cannot_be_recorded() {
    let prompt = || vec![vec![1, 500, 243, 283, 146]];
    let want = {
        let standin = Standin::new("");
        let llama = build(standin.open().unwrap(), "mha-f32/meta").unwrap();
        let want = greedy(&llama, prompt(), 6).unwrap();
        assert!(standin.count("replays") > 3);
        want
    };
    for failure in [
        "cuStreamBeginCapture_v2:1:801",
        "cuStreamEndCapture:1:901",
        "cuGraphInstantiateWithFlags:1:2",
        "cuGraphUpload:1:2",
        "cuLaunchKernelEx:0:1",
    ] {
        let log = Arc::new(Log::new(Some(Level::Warn)));
        let options = BuildOptions {
            log: log.clone(),
            ..options()
        };
        let standin = Standin::new("seed=3");
        let llama = build_with(standin.open().unwrap(), "mha-f32/meta", &options).unwrap();
        // Counts the launches of the prompt alone. In the next call, the third launch after those
        // of the same prompt fails.
        greedy(&llama, prompt(), 1).unwrap();
        let launches = standin.count("launches");
        let failure = failure.replace(":0:", &format!(":{}:", launches + 3));
        standin.set(&format!("fail={failure}"));
        for round in 0..2 {
            assert_eq!(
                greedy(&llama, prompt(), 6).unwrap(),
                want,
                "{failure}, {round}"
            );
        }
        assert_eq!(standin.count("replays"), 0, "{failure}");
        let warnings = warnings(&log);
        let (function, _) = failure.split_once(':').unwrap();
        assert_eq!(warnings.len(), 1, "{failure}: {warnings:?}");
        assert!(warnings[0].contains(function), "{warnings:?}");
        drop(llama);
        standin.assert_clean();
    }
}

/// The stand-in driver reports what may not happen while launches are recorded; other threads are
/// not restricted.
#[test]
fn a_record_is_spoilt_by_its_own_thread() {
    let standin = Standin::new("");
    let cuda = Arc::new(standin.open().unwrap());
    let other = Arc::new(standin.open().unwrap());
    cuda.begin_capture().unwrap();
    std::thread::scope(|scope| {
        let free = scope.spawn(|| Memory::zeroed(&other, "a test", 64).map(drop));
        free.join().unwrap().unwrap();
    });
    drop(cuda.end_capture().unwrap());
    drop((cuda, other));
    standin.assert_clean();
    for (mistake, words) in [
        (0, "cuMemAlloc_v2 while a stream records"),
        (1, "waiting for a stream that records"),
        (2, "cuEventSynchronize while a stream records"),
    ] {
        let standin = Standin::new("");
        let cuda = Arc::new(standin.open().unwrap());
        let memory = Memory::new(&cuda, "a test", 64).unwrap();
        cuda.begin_capture().unwrap();
        let outcome = match mistake {
            0 => Memory::new(&cuda, "a test", 64).map(drop),
            1 => cuda.synchronize(),
            _ => memory.write_floats(0, &[1.0]),
        };
        assert!(outcome.is_err(), "{words}");
        let error = cuda.end_capture().err().unwrap().to_string();
        assert!(error.contains("CAPTURE_INVALIDATED (901)"), "{error}");
        let (n, text) = standin.report();
        assert!(n > 0 && text.contains(words), "{text}");
        // Afterwards everything runs again.
        memory.write_floats(0, &[1.0]).unwrap();
    }
}

/// Steps whose rows are all greedy have fewer launches than others, so they are recorded apart.
#[test]
fn greedy_steps_and_others_are_recorded_apart() {
    let standin = Standin::new("");
    let open = || build(standin.open().unwrap(), "mha-f32/meta").unwrap();
    let run = |llama: &Llama, temperature: f32| {
        let options = GenerateOptions {
            temperature,
            top_p: 0.9,
            seed: 9,
            ignore_eos: true,
            max_gen_len: Some(6),
            ..GenerateOptions::default()
        };
        let prompts = vec![Prompt::Tokens(vec![1, 500, 243, 283, 146])];
        let completion = llama.generate(prompts, options, &mut |_| true).unwrap();
        completion.sequences[0].tokens.clone()
    };
    let apart = [0.0, 0.9].map(|temperature| run(&open(), temperature));
    let llama = open();
    for (temperature, want) in [(0.0, 0), (0.9, 1), (0.0, 0), (0.9, 1)] {
        assert_eq!(run(&llama, temperature), apart[want], "{temperature}");
    }
    drop(llama);
    standin.assert_clean();
}

/// The log says how much memory the driver takes for graphs. If there is not enough, steps run
/// without graphs.
#[test]
fn graphs_take_memory() {
    let log = Arc::new(Log::new(Some(Level::Debug)));
    let options = BuildOptions {
        log: log.clone(),
        ..options()
    };
    let standin = Standin::new("graph=3000000");
    let llama = build_with(standin.open().unwrap(), "mha-f32/meta", &options).unwrap();
    let prompt = || vec![vec![1, 500, 243, 283, 146]];
    let want = greedy(&llama, prompt(), 6).unwrap();
    let mut said = Vec::new();
    log.drain(|level, line| {
        if line.contains("CUDA graph") {
            said.push((level, line.to_owned()));
        }
    });
    let (levels, lines): (Vec<_>, Vec<_>) = said.into_iter().unzip();
    assert_eq!(levels, [Level::Debug], "{lines:?}");
    assert!(lines[0].contains(" 3000000 bytes"), "{lines:?}");
    drop(llama);
    standin.assert_clean();
    let llama = build_with(standin.open().unwrap(), "mha-f32/meta", &options).unwrap();
    // As much as the model needs, and a little more.
    let replays = standin.count("replays");
    standin.set(&format!("memory={}", standin.count("bytes") + 2_999_999));
    assert_eq!(greedy(&llama, prompt(), 6).unwrap(), want);
    assert_eq!(standin.count("replays"), replays);
    let words = warnings(&log);
    assert_eq!(words.len(), 1, "{words:?}");
    assert!(
        words[0].contains("cuGraphUpload: CUDA_ERROR_OUT_OF_MEMORY (2)"),
        "{words:?}"
    );
    drop(llama);
    standin.assert_clean();
    // A graph that is refused does not affect existing ones.
    standin.set("memory=1000000000");
    let llama = build_with(standin.open().unwrap(), "mha-f32/meta", &options).unwrap();
    assert_eq!(greedy(&llama, prompt(), 6).unwrap(), want);
    standin.set(&format!("memory={}", standin.count("bytes") + 2_999_999));
    let two = [prompt(), prompt()].concat();
    assert_eq!(
        greedy(&llama, two, 6).unwrap(),
        [&want[..], &want[..]].concat()
    );
    assert_eq!(warnings(&log).len(), 1);
    let replays = standin.count("replays");
    assert_eq!(greedy(&llama, prompt(), 6).unwrap(), want);
    assert!(standin.count("replays") > replays);
    drop(llama);
    standin.assert_clean();
}
