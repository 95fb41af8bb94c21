//! Every count, length, offset and value that a GGUF file states, at the edges of what it can say.

use super::{allowance, corpus, harness, tokenizer_allowance};
use crate::account::measure;

/// Every count, length and offset of a GGUF file, and whatever else lies before its data, at the
/// edges of what it can say; and every length that the file can be cut off at.
#[test]
fn gguf_fields_at_their_edges() {
    let whole = corpus("gguf").remove(0);
    let check = |data: &[u8], at: usize| within(allowance, harness::gguf, data, at);
    assert!(check(&whole, 0));
    // The last tensor has 8 bytes, and 8 of padding that nobody reads.
    for len in 0..whole.len() - 8 {
        assert!(!check(&whole[..len], len), "cut off at {len}");
    }
    let mut refused = 0;
    for at in 0..whole.len() - 8 {
        for edge in EDGES {
            for width in [4, 8] {
                let data = at_edge(&whole, at, edge, width);
                refused += usize::from(!check(&data, at));
            }
        }
    }
    assert!(refused > 5_000, "{refused}");
}

/// The same of models, through configuration, tokenizer and plan: every number of the file, of
/// whatever width.
#[test]
fn numbers_of_gguf_models_at_their_edges() {
    for whole in corpus("gguf_model") {
        let check =
            |data: &[u8], at: usize| within(tokenizer_allowance, harness::gguf_model, data, at);
        let numbers = numbers(&whole);
        let (mut refused, mut accepted) = (0, 0);
        for &(at, width) in &numbers {
            let max = u64::MAX >> (64 - 8 * width);
            for edge in [0, 1, max - 1, max] {
                match check(&at_edge(&whole, at, edge, width), at) {
                    true => accepted += 1,
                    false => refused += 1,
                }
            }
        }
        eprintln!(
            "{} numbers of a GGUF: {accepted} accepted, {refused} refused",
            numbers.len()
        );
        assert!(refused > numbers.len() && accepted > 50);
    }
}

/// Where the numbers before the data of a GGUF lie, and how many bytes each has.
fn numbers(file: &[u8]) -> Vec<(usize, usize)> {
    let mut walk = Walk {
        file,
        at: b"GGUF".len(),
        numbers: Vec::new(),
    };
    let _version = walk.number(4);
    let (n_tensors, n_keys) = (walk.number(8), walk.number(8));
    for _ in 0..n_keys {
        walk.text();
        let kind = walk.number(4);
        walk.value(kind);
    }
    for _ in 0..n_tensors {
        walk.text();
        for _ in 0..walk.number(4) {
            walk.number(8);
        }
        let (_kind, _offset) = (walk.number(4), walk.number(8));
    }
    walk.numbers
}

struct Walk<'a> {
    file: &'a [u8],
    at: usize,
    numbers: Vec<(usize, usize)>,
}

impl Walk<'_> {
    fn number(&mut self, width: usize) -> u64 {
        let mut bytes = [0; 8];
        bytes[..width].copy_from_slice(&self.file[self.at..self.at + width]);
        self.numbers.push((self.at, width));
        self.at += width;
        u64::from_le_bytes(bytes)
    }

    fn text(&mut self) {
        let len = self.number(8);
        self.at += len as usize;
    }

    fn value(&mut self, kind: u64) {
        match kind {
            0 | 1 | 7 => drop(self.number(1)),
            2 | 3 => drop(self.number(2)),
            4..=6 => drop(self.number(4)),
            8 => self.text(),
            9 => {
                let (kind, n) = (self.number(4), self.number(8));
                (0..n).for_each(|_| self.value(kind));
            }
            10..=12 => drop(self.number(8)),
            _ => panic!("a value of type {kind}"),
        }
    }
}

/// Models with zeros and greatest numbers anywhere, names and texts included. In a long file some
/// places stand for all.
#[test]
fn gguf_models_at_their_edges() {
    let (mut refused, mut accepted) = (0, 0);
    for whole in corpus("gguf_model") {
        let check =
            |data: &[u8], at: usize| within(tokenizer_allowance, harness::gguf_model, data, at);
        assert!(check(&whole, 0));
        // Nobody reads the data behind the names of tensors.
        let last = b"output_norm.weight";
        let names = whole.windows(last.len()).position(|w| w == last).unwrap() + last.len();
        let step = 1 + whole.len() / 2048;
        for at in (0..names).step_by(step) {
            for (edge, width) in [(0, 4), (u32::MAX.into(), 4), (u64::MAX, 8)] {
                match check(&at_edge(&whole, at, edge, width), at) {
                    true => accepted += 1,
                    false => refused += 1,
                }
            }
        }
    }
    eprintln!("gguf_model: {accepted} accepted, {refused} refused");
    assert!(refused > 1_500 && accepted > 50, "{refused}, {accepted}");
}

/// What counts, lengths and offsets can say at most and at least.
const EDGES: [u64; 8] = [
    0,
    1,
    u64::MAX,
    u64::MAX - 1,
    1 << 63,
    (1 << 63) - 1,
    0xffff_ffff,
    0xffff_fffe,
];

/// A copy with another number at a place.
fn at_edge(whole: &[u8], at: usize, edge: u64, width: usize) -> Vec<u8> {
    let mut data = whole.to_vec();
    data[at..at + width].copy_from_slice(&edge.to_le_bytes()[..width]);
    data
}

/// Whether `target` takes the bytes, for which it may not need more memory than is allowed.
fn within(
    allowance: fn(usize) -> usize,
    target: fn(&[u8]) -> llamabi::Result<()>,
    data: &[u8],
    at: usize,
) -> bool {
    let (result, used) = measure(usize::MAX, || target(data));
    let most = used.largest.max(used.most);
    assert!(
        most <= allowance(data.len()),
        "{most} bytes; changed at {at}"
    );
    result.is_ok()
}
