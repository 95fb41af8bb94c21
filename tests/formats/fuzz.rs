//! Mutation fuzzing of everything that reads files, in every test run: some thousand inputs per
//! target, the same each time. Nothing may panic, and no input may make us ask for memory out of
//! proportion to its size, nor for a minute.
//!
//! `LLAMABI_TEST_FUZZ_SECONDS`: every target goes on for so long, behind those inputs that it has
//! in every run.

mod chats;
mod checkpoints;
mod edges;
mod grammars;
mod harness;
mod messages;
mod mutate;
mod sentencepiece;
mod tokenizers;

use crate::account::measure;
use mutate::Mutator;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

/// The longest that one input may take: far more than an idle machine needs.
const LONGEST: Duration = Duration::from_secs(60);

/// What asks for more inputs.
const SECONDS: &str = "LLAMABI_TEST_FUZZ_SECONDS";

/// Numbers of inputs: the first `n`, and more while there is time.
fn inputs(n: usize) -> impl Iterator<Item = usize> {
    let seconds = std::env::var(SECONDS).map_or(0, |s| s.parse().unwrap());
    let (start, time) = (Instant::now(), Duration::from_secs(seconds));
    (0..).take_while(move |&i| i < n || start.elapsed() < time)
}

/// Memory an input of this length may cost. A parsed JSON number of two bytes takes 32, in a vector
/// that doubles; the rest is for paths, messages and the standard library's buffers.
fn allowance(len: usize) -> usize {
    (64 << 10) + 128 * len
}

/// The same for a tokenizer: expressions have tables and caches of some megabytes each, of which a
/// file may ask for 16.
fn tokenizer_allowance(len: usize) -> usize {
    (64 << 20) + 128 * len
}

/// The same for an adapter, whose patterns may be expressions: to compile one takes 320 kB for the
/// ranges of UTF-8 alone.
fn adapter_allowance(len: usize) -> usize {
    (4 << 20) + 128 * len
}

fn corpus(folder: &str) -> Vec<Vec<u8>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/corpus")
        .join(folder);
    let mut paths: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    paths.sort();
    paths
        .iter()
        .map(|path| std::fs::read(path).unwrap())
        .collect()
}

/// Run `target` on the corpus, which it must accept, and on `n` mutations of it. They must fail in
/// at least `kinds` different ways, or the mutations do not get anywhere.
fn fuzz(
    folder: &str,
    words: &[&[u8]],
    n: usize,
    kinds: usize,
    target: fn(&[u8]) -> llamabi::Result<()>,
) {
    fuzz_within(allowance, folder, words, n, kinds, target);
}

/// The same with another bound on memory.
fn fuzz_within(
    allowance: fn(usize) -> usize,
    folder: &str,
    words: &[&[u8]],
    n: usize,
    kinds: usize,
    target: fn(&[u8]) -> llamabi::Result<()>,
) {
    let corpus = corpus(folder);
    for (i, data) in corpus.iter().enumerate() {
        target(data).unwrap_or_else(|e| panic!("corpus file {i} of {folder}: {e}"));
    }
    let (mut accepted, mut n_inputs, mut seen) = (0, 0, BTreeSet::new());
    let mut slowest = (Duration::ZERO, 0, Vec::new());
    let mut mutator = Mutator::new(1, &corpus, words);
    for i in inputs(n) {
        n_inputs += 1;
        let data = mutator.next();
        let run = || measure(usize::MAX, || target(&data));
        let keep = |what: &str| {
            let kept = keep(folder, i, &data);
            format!("{what}; the input is in {kept}")
        };
        let start = Instant::now();
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
        let took = start.elapsed();
        let Ok((result, used)) = outcome else {
            panic!("{}", keep("a panic"))
        };
        let limit = allowance(data.len());
        assert!(
            used.largest <= limit && used.most <= limit,
            "{}",
            keep(&format!("{}, {} bytes", used.largest, used.most))
        );
        assert!(took < LONGEST, "{}", keep(&format!("{took:?}")));
        slowest = slowest.max((used.time, i, data));
        match result {
            Ok(()) => accepted += 1,
            // One kind of failure: the sentence without what varies.
            Err(e) => drop(seen.insert(kind(&e.to_string()))),
        }
    }
    let (took, i, data) = slowest;
    let kept = keep(folder, i, &data);
    eprintln!(
        "{folder}: {accepted} of {n_inputs} accepted, {} kinds of failure; at most {took:.1?}, for {kept}",
        seen.len()
    );
    assert!(
        accepted > 0 && accepted < n_inputs,
        "{folder}: {accepted} of {n_inputs} were accepted"
    );
    assert!(
        seen.len() >= kinds,
        "{folder}: only {} kinds of failure: {seen:#?}",
        seen.len()
    );
}

/// Where an input is to be found.
fn keep(folder: &str, i: usize, data: &[u8]) -> String {
    let name = format!("fuzz-{folder}-{i}.bin");
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, data).unwrap();
    path.display().to_string()
}

fn kind(sentence: &str) -> String {
    let mut quoted = false;
    let letters = sentence.chars().filter(|&c| {
        quoted ^= c == '`';
        !quoted && (c.is_ascii_lowercase() || c == ' ')
    });
    letters.collect()
}
