//! Products of matrices by cuBLASLt, with a stand-in for it.

use crate::cuda::{build_with, options, warnings};
use crate::emu::standin::Standin;
use llamabi::engine::{GenerateOptions, Prompt};
use llamabi::log::{Level, Log};
use llamabi::{BuildOptions, Dtype, Error, Llama, Token};
use std::sync::Arc;

type Asked<'a> = &'a dyn Fn(&Standin) -> String;

fn this(standin: &Standin) -> String {
    standin.path().to_owned()
}

fn of_prompts(log: &Arc<Log>) -> BuildOptions {
    BuildOptions {
        max_seq_len: 560,
        weights_dtype: Some(Dtype::Bf16),
        log: log.clone(),
        ..options()
    }
}

/// Log probabilities of two tokens after each prompt. `calls` has the lengths of the prompts of
/// each call; those of one call run at the same time.
fn of_calls(llama: &Llama, calls: &[&[usize]]) -> Vec<f32> {
    let prompt =
        |&n: &usize| Prompt::Tokens((0..n).map(|i| 1 + ((i * 37 + n) % 500) as Token).collect());
    let mut logprobs = Vec::new();
    for call in calls {
        let options = GenerateOptions {
            temperature: 0.0,
            logprobs: true,
            ignore_eos: true,
            max_gen_len: Some(2),
            ..GenerateOptions::default()
        };
        let prompts = call.iter().map(prompt).collect();
        let done = llama.generate(prompts, options, &mut |_| true).unwrap();
        logprobs.extend(done.sequences.iter().flat_map(|s| s.logprobs.clone()));
    }
    logprobs
}

#[track_caller]
fn assert_close(got: &[f32], want: &[f32], what: &str) {
    assert_eq!(got.len(), want.len());
    for (got, want) in got.iter().zip(want) {
        assert!((got - want).abs() < 1e-2, "{what}: {got} {want}");
    }
}

/// cuBLASLt, if it is asked for, gives the same numbers within rounding, and is asked for an
/// algorithm once for each shape. If it is missing, too old, or fails at any time, our own kernels
/// do the work, and that is logged once.
#[test]
fn products_by_a_library() {
    let walk = |settings: &str,
                asked: Option<Asked<'_>>,
                calls: &[&[usize]],
                change: &dyn Fn(&mut BuildOptions)| {
        let standin = Standin::new(settings);
        let log = Arc::new(Log::new(Some(Level::Warn)));
        let mut options = of_prompts(&log);
        change(&mut options);
        let mut cuda = standin.open().unwrap();
        if let Some(asked) = asked {
            cuda = cuda.with_blaslt(&asked(&standin)).unwrap();
        }
        let llama = build_with(cuda, "gqa-bf16/meta", &options).unwrap();
        let logprobs = of_calls(&llama, calls);
        drop(llama);
        standin.assert_clean();
        let counts = (standin.count("heuristics"), standin.count("products"));
        (logprobs, counts, warnings(&log))
    };
    let same = |_: &mut BuildOptions| ();
    // Two shapes by rows, the first of them twice; small prompts do not go to the library.
    let calls: [&[usize]; 4] = [&[100], &[130], &[90], &[20]];
    let (want, counts, words) = walk("", None, &calls, &same);
    assert_eq!((counts, words.len()), ((0, 0), 0));
    for settings in ["", "seed=5"] {
        let (got, counts, words) = walk(settings, Some(&this), &calls, &same);
        assert!(words.is_empty(), "{words:?}");
        // Two layers, four products, three prompts; of up to 128 and up to 256 rows.
        assert_eq!(counts, (4 * 2, 2 * 4 * 3));
        assert_close(&got, &want, settings);
        assert_eq!(got[6..], want[6..], "a small one");
    }
    let absent = |_: &Standin| "/nowhere/libcublasLt.so".to_owned();
    let reasons: [(&str, Asked<'_>, &str); 6] = [
        ("", &absent, "/nowhere/libcublasLt.so: it cannot be opened"),
        ("blaslt=110803", &this, "version 110803, needed is 120000"),
        ("fail=cublasLtCreate:1:1", &this, "cublasLtCreate: status 1"),
        (
            "fail=cublasLtMatmulAlgoGetHeuristic:2:15",
            &this,
            "AlgoGetHeuristic: status 15",
        ),
        (
            "fail=cublasLtMatrixLayoutCreate:2:3",
            &this,
            "LayoutCreate: status 3",
        ),
        (
            "fail=cublasLtMatmul:3:13",
            &this,
            "cublasLtMatmul: status 13",
        ),
    ];
    for (settings, asked, reason) in reasons {
        let (got, _, words) = walk(settings, Some(asked), &calls, &same);
        assert_eq!(words.len(), 1, "{words:?}");
        assert!(words[0].contains(reason), "{words:?}");
        assert_close(&got, &want, reason);
    }
    // More rows than the sums have room for, so two groups of 260. The library may fail between the
    // two.
    let calls: [&[usize]; 1] = [&[520]];
    let (want, ..) = walk("", None, &calls, &same);
    let (got, counts, words) = walk("", Some(&this), &calls, &same);
    assert_eq!((counts, words.len()), ((4, 2 * (2 + 2 * 2)), 0));
    assert_close(&got, &want, "groups");
    let (got, (_, products), words) = walk("fail=cublasLtMatmul:2:13", Some(&this), &calls, &same);
    assert_eq!((products, words.len()), (1, 1), "{words:?}");
    assert_close(&got, &want, "half a product");
    // Rows of a prompt after a decode row, and an 8-bit cache.
    let calls: [&[usize]; 1] = [&[5, 150]];
    let mixed = |options: &mut BuildOptions| {
        options.prefill_chunk = Some(80);
        options.kv_dtype = Some(Dtype::Int8);
    };
    let (want, ..) = walk("", None, &calls, &mixed);
    let (got, (_, products), _) = walk("", Some(&this), &calls, &mixed);
    assert_eq!(
        products,
        2 * 4 * 2,
        "a step of prompts alone, and one beside decode"
    );
    assert_close(&got, &want, "beside decode");
}

/// The library and its buffers count towards the limit, and are given up if the model would not fit
/// beside them.
#[test]
fn a_library_takes_what_is_left() {
    let log = Arc::new(Log::new(Some(Level::Warn)));
    let built = |standin: &Standin, limit: u64, weights: Dtype| {
        let options = BuildOptions {
            gpu_memory_bytes: limit,
            weights_dtype: Some(weights),
            ..of_prompts(&log)
        };
        let cuda = standin.open().unwrap();
        let cuda = cuda.with_blaslt(&this(standin)).unwrap();
        build_with(cuda, "gqa-bf16/meta", &options)
    };
    let standin = Standin::new("");
    let Some(Error::DeviceMemory { needed, .. }) = built(&standin, 1, Dtype::Bf16).err() else {
        panic!("one byte is not enough");
    };
    // How much it takes beside the model, by the driver's count.
    let taken = |limit: u64, weights: Dtype| {
        let llama = built(&standin, limit, weights).unwrap();
        let before = standin.count("products");
        let logprobs = of_calls(&llama, &[&[100]]);
        let bytes = standin.count("bytes");
        assert!(limit == 0 || bytes <= limit, "{bytes} of {limit}");
        drop(llama);
        standin.assert_clean();
        (bytes, standin.count("products") > before, logprobs)
    };
    let (most, used, want) = taken(0, Dtype::Bf16);
    assert!(used && warnings(&log).is_empty());
    let (least, used, _) = taken(needed, Dtype::Bf16);
    assert!(!used && least <= needed, "{least} of {needed}");
    let words = warnings(&log);
    assert!(
        words.len() == 1 && words[0].ends_with("the model leaves 0"),
        "{words:?}"
    );
    // The sums of gate and up for 512 rows, and the workspace.
    assert_eq!(most - least, (32 << 20) + 512 * 672 * 4);
    assert!(taken(needed + (most - least), Dtype::Bf16).1);
    assert!(warnings(&log).is_empty());
    let (bytes, used, got) = taken(needed + (most - least) - 1, Dtype::Bf16);
    assert_eq!((bytes, used, warnings(&log).len()), (least, false, 1));
    assert_close(&got, &want, "by our own kernels");
    // It keeps no memory for a library that it would never ask.
    let (bytes, used, _) = taken(0, Dtype::Int8);
    assert!(!used && bytes < 32 << 20, "{bytes}");
    assert!(warnings(&log).is_empty());
    // This much is free when it is opened, and no more.
    standin.set(&format!("memory={}", needed + (32 << 20) + 1000));
    assert!(!taken(0, Dtype::Bf16).1);
    assert_eq!(warnings(&log).len(), 1);
    // The memory is there when it is counted and gone when it is requested. Of the first
    // allocations (after the workspace), one is not the model's.
    standin.set("memory=100000000");
    let mut without = 0;
    for n in 2..20 {
        standin.set(&format!("fail=cuMemAlloc_v2:{n}:2"));
        if built(&standin, 0, Dtype::Bf16).is_ok() {
            let words = warnings(&log);
            assert!(
                words.len() == 1 && words[0].contains("sums of products"),
                "{words:?}"
            );
            without += 1;
        }
        standin.assert_clean();
    }
    assert_eq!(without, 1);
}
