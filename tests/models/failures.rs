//! What goes wrong while building, and after: each has its status, and a sentence that names the
//! file or the option.

use crate::common::*;
use llamabi::capi::*;
use llamabi::engine::{GenerateOptions, Prompt};
use llamabi::{BuildOptions, Error, Llama};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

const META: &str = "mha-f32/meta";

/// A scratch copy of the smallest checkpoint.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, source: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("llamabi-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        for entry in fs::read_dir(reference(source)).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), dir.join(entry.file_name())).unwrap();
        }
        Scratch(dir)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::set_permissions(&self.0, fs::Permissions::from_mode(0o755));
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn fails(dir: &Path, tokenizer: Option<&Path>, options: &llama_build_options) -> Failure {
    match Model::open(dir, tokenizer, options) {
        Err(failure) => failure,
        Ok(_) => panic!("{} was built", dir.display()),
    }
}

#[track_caller]
fn assert_failure((status, sentence): Failure, expected: i32, words: &[&str]) {
    assert_eq!(status, expected, "{sentence}");
    for word in words {
        assert!(
            sentence.contains(word),
            "{sentence:?} does not say {word:?}"
        );
    }
}

#[test]
fn missing_and_wrong_directories() {
    let options = build_options();
    let absent = Path::new("/nonexistent/model");
    assert_failure(
        fails(absent, None, &options),
        LLAMA_E_IO,
        &["/nonexistent/model", "No such file"],
    );

    let file = reference("mha-f32/meta/params.json");
    assert_failure(
        fails(&file, None, &options),
        LLAMA_E_IO,
        &["params.json", "the directory it lies in"],
    );

    assert_failure(
        fails(Path::new(""), None, &options),
        LLAMA_E_IO,
        &["ckpt_dir", "empty"],
    );

    // Not a checkpoint at all: the sentence says what was looked for.
    let wrong = reference("");
    assert_failure(
        fails(&wrong, None, &options),
        LLAMA_E_IO,
        &["params.json", "config.json"],
    );

    let scratch = Scratch::new("no-tokenizer", META);
    fs::remove_file(scratch.path("tokenizer.model")).unwrap();
    assert_failure(
        fails(&scratch.0, None, &options),
        LLAMA_E_IO,
        &["tokenizer.model"],
    );
    assert_failure(
        fails(&scratch.0, Some(&scratch.0), &options),
        LLAMA_E_IO,
        &["llamabi-no-tokenizer"],
    );

    let scratch = Scratch::new("no-weights", META);
    fs::remove_file(scratch.path("consolidated.00.pth")).unwrap();
    assert_failure(
        fails(&scratch.0, None, &options),
        LLAMA_E_IO,
        &["consolidated.00.pth"],
    );
}

#[test]
fn a_read_only_directory_is_enough() {
    let scratch = Scratch::new("read-only", META);
    fs::set_permissions(&scratch.0, fs::Permissions::from_mode(0o555)).unwrap();
    let model = Model::open(&scratch.0, None, &build_options()).unwrap();
    assert_eq!(model.one(&[1, 5], &greedy(3)).tokens.len(), 3);
}

#[test]
fn files_of_the_wrong_kind() {
    let options = build_options();
    for (name, contents) in [
        ("params.json", &b"{\"dim\": 64"[..]),
        ("params.json", b"\x00\xff"),
        ("tokenizer.model", b"not a tokenizer"),
        ("tokenizer.model", b""),
        // Llama 3's kind, and hardly anything of it.
        ("tokenizer.model", b"IQ== 0\nIg== 1\nIw== 2\n"),
        ("consolidated.00.pth", b"PK\x03\x04 nothing else"),
        ("consolidated.00.pth", b""),
    ] {
        let scratch = Scratch::new("wrong-kind", META);
        fs::write(scratch.path(name), contents).unwrap();
        assert_failure(fails(&scratch.0, None, &options), LLAMA_E_FORMAT, &[name]);
    }
    // Another tokenizer family: known, not supported, and said so.
    let scratch = Scratch::new("other-tokenizer", META);
    fs::write(
        scratch.path("tokenizer.model"),
        r#"{"model": {"type": "WordPiece"}}"#,
    )
    .unwrap();
    let (status, sentence) = fails(&scratch.0, None, &options);
    assert!(status == LLAMA_E_UNSUPPORTED, "{status} {sentence}");
    assert!(
        sentence.contains("tokenizer.model") && sentence.contains("WordPiece"),
        "{sentence}"
    );
}

#[test]
fn truncated_weights() {
    for (source, name) in [
        (META, "consolidated.00.pth"),
        ("mha-f32/hf", "model.safetensors"),
    ] {
        let scratch = Scratch::new("truncated", source);
        let whole = fs::read(scratch.path(name)).unwrap();
        for keep in [8, 100, whole.len() / 2, whole.len() - 1] {
            fs::write(scratch.path(name), &whole[..keep]).unwrap();
            let (status, sentence) = fails(&scratch.0, None, &build_options());
            assert!(
                status == LLAMA_E_FORMAT || status == LLAMA_E_IO,
                "{status} {sentence}"
            );
            assert!(sentence.contains(name), "{sentence}");
        }
    }
}

#[test]
fn more_memory_than_there_is() {
    let mut options = build_options();
    options.max_seq_len = 1 << 31;
    let failure = fails(&reference(META), None, &options);
    assert_failure(failure, LLAMA_E_NO_MEMORY, &["max_seq_len", "bytes"]);

    options.max_seq_len = u32::MAX;
    options.max_batch_size = u32::MAX;
    assert_failure(
        fails(&reference(META), None, &options),
        LLAMA_E_NO_MEMORY,
        &["bytes"],
    );
}

/// Every thread of the CPU backend has scratch buffers of its own, and the memory plan counts those
/// of the threads that were asked for, not those that the machine could run.
#[test]
fn the_plan_counts_the_threads_asked_for() {
    let scratch = |n_threads| {
        let mut options = build_options();
        (options.max_seq_len, options.n_threads) = (1 << 31, n_threads);
        let (status, sentence) = fails(&reference(META), None, &options);
        assert_eq!(status, LLAMA_E_NO_MEMORY, "{sentence}");
        let (_, after) = sentence.split_once("scratch buffers ").unwrap();
        let digits = after.split(|c: char| !c.is_ascii_digit()).next().unwrap();
        digits.parse::<u64>().unwrap()
    };
    let per_thread = scratch(2) - scratch(1);
    assert!(per_thread > 0);
    assert_eq!(scratch(64) - scratch(1), 63 * per_thread);
    let usable = std::thread::available_parallelism().unwrap().get();
    assert_eq!(scratch(0), scratch(usable as u32));
}

#[test]
fn options_out_of_range() {
    type Change = fn(&mut llama_build_options);
    let cases: [(Change, i32, &str); 11] = [
        (
            |o| o.max_seq_len = 0,
            LLAMA_E_INVALID_ARGUMENT,
            "max_seq_len",
        ),
        (
            |o| o.max_batch_size = 0,
            LLAMA_E_INVALID_ARGUMENT,
            "max_batch_size",
        ),
        (
            |o| o.model_parallel_size = 2,
            LLAMA_E_INVALID_ARGUMENT,
            "model_parallel_size",
        ),
        (
            |o| o.model_parallel_size = -1,
            LLAMA_E_INVALID_ARGUMENT,
            "model_parallel_size",
        ),
        (|o| o.device = 9, LLAMA_E_INVALID_ARGUMENT, "device"),
        (
            |o| o.device = LLAMA_DEVICE_CUDA,
            LLAMA_E_UNSUPPORTED,
            "CUDA",
        ),
        (
            |o| o.weights_dtype = 99,
            LLAMA_E_INVALID_ARGUMENT,
            "weights_dtype",
        ),
        (
            |o| (o.device, o.weights_dtype) = (LLAMA_DEVICE_CPU, LLAMA_DTYPE_FP8),
            LLAMA_E_UNSUPPORTED,
            "weights_dtype is FP8",
        ),
        (
            |o| (o.device, o.kv_dtype) = (LLAMA_DEVICE_CPU, LLAMA_DTYPE_FP8),
            LLAMA_E_UNSUPPORTED,
            "kv_dtype is FP8",
        ),
        (|o| o.kv_dtype = LLAMA_DTYPE_NF4, LLAMA_E_UNSUPPORTED, "nf4"),
        (|o| o.kv_dtype = -1, LLAMA_E_INVALID_ARGUMENT, "kv_dtype"),
    ];
    for (change, status, word) in cases {
        let mut options = build_options();
        change(&mut options);
        assert_failure(fails(&reference(META), None, &options), status, &[word]);
    }
}

#[test]
fn requests_out_of_range() {
    let mut options = build_options();
    options.max_seq_len = 16;
    options.max_batch_size = 2;
    let model = Model::open(&reference(META), None, &options).unwrap();
    let refuse = |prompts: &[Vec<i32>], options: &llama_generate_options| {
        model
            .generate(prompts, options)
            .expect_err("the request was accepted")
    };
    let plain = greedy(4);
    assert_failure(refuse(&[], &plain), LLAMA_E_BATCH, &["0", "65536"]);
    assert_failure(
        refuse(&vec![vec![1]; 65_537], &plain),
        LLAMA_E_BATCH,
        &["65537", "65536"],
    );
    assert_failure(
        refuse(&[vec![1], vec![1; 17]], &plain),
        LLAMA_E_TOO_LONG,
        &["1", "17", "16"],
    );
    assert_failure(
        refuse(&[vec![]], &plain),
        LLAMA_E_INVALID_ARGUMENT,
        &["lens[0]", "0"],
    );
    assert_failure(
        refuse(&[vec![1, 512]], &plain),
        LLAMA_E_INVALID_ARGUMENT,
        &["512"],
    );
    assert_failure(
        refuse(&[vec![1, -1]], &plain),
        LLAMA_E_INVALID_ARGUMENT,
        &["-1"],
    );

    type Change = fn(&mut llama_generate_options);
    let cases: [(Change, &str); 12] = [
        (|o| o.temperature = -0.5, "temperature"),
        (|o| o.temperature = f32::NAN, "temperature"),
        (|o| o.temperature = f32::INFINITY, "temperature"),
        (|o| o.top_p = 1.5, "top_p"),
        (|o| o.top_p = f32::NAN, "top_p"),
        (|o| o.min_p = -0.1, "min_p"),
        (|o| o.top_k = -1, "top_k"),
        (|o| o.repetition_penalty = 0.0, "repetition_penalty"),
        (
            |o| o.repetition_penalty = f32::INFINITY,
            "repetition_penalty",
        ),
        (|o| o.flags |= 1 << 20, "flags"),
        (|o| o.top_logprobs = 513, "top_logprobs"),
        (|o| o.n_stop = 1, "stop"),
    ];
    for (change, word) in cases {
        let mut options = greedy(4);
        change(&mut options);
        assert_failure(
            refuse(&[vec![1]], &options),
            LLAMA_E_INVALID_ARGUMENT,
            &[word],
        );
    }
    // After all that the handle is as good as new.
    assert_eq!(model.one(&[1, 5], &plain).tokens.len(), 4);
    assert_eq!(model.timings().pages_used, 0);
}

#[test]
fn a_poisoned_handle_says_so() {
    let llama = Llama::build(
        &reference(META),
        None,
        &BuildOptions::default(),
        &mut |_| true,
    )
    .unwrap();
    let call = || {
        let prompts = vec![Prompt::Tokens(vec![1, 5])];
        llama.generate(prompts, GenerateOptions::default(), &mut |_| true)
    };
    call().unwrap();
    llama.poison("a test said so");
    let error = call().unwrap_err();
    assert!(matches!(error, Error::Poisoned(_)), "{error}");
    assert_eq!(status_of(&error), LLAMA_E_POISONED);
    assert!(error.to_string().contains("a test said so"), "{error}");
}

/// Minutes of tokenising, or gigabytes of tables, for what can never be of use: refused at once.
#[test]
fn texts_beyond_all_measure() {
    let model = Model::open(&reference(META), None, &build_options()).unwrap();
    let long = "word ".repeat(4 << 20);
    let refused = model.text_completion(&[&long], &greedy(4)).unwrap_err();
    assert_failure(refused, LLAMA_E_TOO_LONG, &["20971520 bytes", "512"]);
    let dialog = vec![("user", long.as_str())];
    let refused = model.chat_completion(&[dialog], &greedy(4)).unwrap_err();
    assert_failure(refused, LLAMA_E_TOO_LONG, &["max_seq_len"]);

    let stop = StopStrings::new(&["fine", &"x".repeat(4097)]);
    let mut options = greedy(4);
    stop.set(&mut options);
    let refused = model.generate(&[vec![1]], &options).unwrap_err();
    assert_failure(
        refused,
        LLAMA_E_INVALID_ARGUMENT,
        &["stop[1]", "4097", "4096"],
    );
}
