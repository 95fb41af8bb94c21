//! How fast a tokenizer is loaded and encodes, on one thread:
//! `cargo bench --bench tokenizer -- FILE [rounds]`, FILE being a `tokenizer.model`,
//! `tokenizer.json` or `.gguf`. `make chat` fetches one of the latter, with 49,152 tokens.
//!
//! Texts of a megabyte: this project's documentation (English) and its sources (code), repeated;
//! characters of Chinese drawn at random, a few of them often and most of them seldom; one letter
//! without an end. The figures are the best of the rounds, and CPU time of this thread, because
//! other programs may run beside it.

use llamabi::checkpoint::gguf::vocabulary;
use llamabi::format::gguf::Set;
use llamabi::tokenizer::{self, Tokenizer};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const TEXT: usize = 1 << 20;

fn main() {
    let arguments = std::env::args().skip(1).filter(|a| a != "--bench");
    let arguments: Vec<String> = arguments.collect();
    let (file, rounds) = match &arguments[..] {
        [file] => (file, 7),
        [file, rounds] => (file, rounds.parse().expect("a number of rounds")),
        _ => return println!("usage: cargo bench --bench tokenizer -- FILE [rounds]"),
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let texts = [
        ("English", files(root, "docs", "md")),
        ("code", files(root, "src", "rs")),
        ("Chinese", chinese()),
        ("no space", "a".repeat(TEXT)),
    ];
    let path = Path::new(file);
    let tokenizer = open(path);
    println!("{file}: {} tokens", tokenizer.vocab_size());
    let load = best(rounds, || drop(open(path)));
    println!("{:<10}{:>8.0} ms", "load", load.as_secs_f64() * 1e3);
    for (name, text) in &texts {
        let mut n = 0;
        let time = best(rounds, || n = tokenizer.encode(text).expect("tokens").len());
        let speed = text.len() as f64 / time.as_secs_f64() / 1e6;
        println!(
            "{name:<10}{speed:>8.1} MB/s, {:.2} bytes a token",
            text.len() as f64 / n as f64
        );
    }
}

fn open(path: &Path) -> Arc<dyn Tokenizer> {
    let built = match path.extension().is_some_and(|ending| ending == "gguf") {
        true => Set::open(path, None)
            .and_then(|set| vocabulary(set.first()))
            .and_then(|vocabulary| vocabulary.tokenizer(path)),
        false => tokenizer::open(path),
    };
    built.unwrap_or_else(|error| panic!("{error}"))
}

/// The shortest CPU time of this thread.
fn best(rounds: usize, mut run: impl FnMut()) -> Duration {
    let one = |_| {
        let before = cpu_time();
        run();
        cpu_time() - before
    };
    (0..rounds).map(one).min().expect("at least one round")
}

fn cpu_time() -> Duration {
    // Nanoseconds that this thread ran; the first number of the line.
    let line = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    let number = line.split_whitespace().next().expect("three numbers");
    Duration::from_nanos(number.parse().expect("a number"))
}

/// All files of a folder with this ending, repeated to a megabyte.
fn files(root: &Path, folder: &str, ending: &str) -> String {
    let (mut folders, mut paths): (Vec<PathBuf>, Vec<PathBuf>) = (vec![root.join(folder)], vec![]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("the project's sources") {
            let path = entry.expect("an entry").path();
            match path.is_dir() {
                true => folders.push(path),
                false if path.extension().is_some_and(|e| e == ending) => paths.push(path),
                false => {}
            }
        }
    }
    paths.sort();
    let read = |path: &PathBuf| std::fs::read_to_string(path).expect("UTF-8");
    let all: String = paths.iter().map(read).collect();
    all.chars().cycle().take(TEXT).collect()
}

/// Characters from U+4E00 on, the earlier the likelier, with commas.
fn chinese() -> String {
    let (mut text, mut state) = (String::new(), 1u64);
    while text.len() < TEXT {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let share = (state >> 11) as f64 / (1u64 << 53) as f64;
        // Zipf's law: rank r has a probability of about 1/r.
        let rank = (20_000f64.powf(share)) as u32;
        text.extend(char::from_u32(0x4e00 + rank % 20_000));
        if (state >> 60) == 0 {
            text.push('，');
        }
    }
    text
}
