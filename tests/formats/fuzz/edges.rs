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

/// The same of models, through configuration, tokenizer and plan. Sizes have 32 bits, lengths 64.
/// In a long file some places stand for all.
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
