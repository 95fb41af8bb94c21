//! Random changes to files, the same ones in every run.

use rand::rngs::ChaCha8Rng;
use rand::{Rng, SeedableRng};

/// Numbers at the edges of what fields can hold.
const INTERESTING: [u64; 16] = [
    0,
    1,
    2,
    7,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x1_0000_0000,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    u64::MAX,
];

/// A source of inputs: mutated corpus files, joined with pieces of each other and with words of the
/// format.
pub struct Mutator<'a> {
    rng: ChaCha8Rng,
    corpus: &'a [Vec<u8>],
    words: &'a [&'a [u8]],
}

impl<'a> Mutator<'a> {
    pub fn new(seed: u64, corpus: &'a [Vec<u8>], words: &'a [&'a [u8]]) -> Self {
        Mutator {
            rng: ChaCha8Rng::seed_from_u64(seed),
            corpus,
            words,
        }
    }

    fn below(&mut self, n: usize) -> usize {
        (self.rng.next_u64() % n.max(1) as u64) as usize
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// The next input: mostly near a corpus file, since far from it everything fails alike.
    pub fn next(&mut self) -> Vec<u8> {
        let i = self.below(self.corpus.len());
        let mut data = self.corpus[i].clone();
        let changes = 1 << self.below(4);
        for _ in 0..changes {
            self.change(&mut data);
        }
        data
    }

    fn change(&mut self, data: &mut Vec<u8>) {
        let at = self.below(data.len() + 1);
        let len = (1 << self.below(8)).min(data.len() - at);
        let random = self.rng.next_u64();
        let number = self.pick(&INTERESTING);
        match self.below(9) {
            0 if at < data.len() => data[at] ^= 1 << (random % 8),
            1 if at < data.len() => data[at] = random as u8,
            2 => {
                let bytes = number.to_le_bytes();
                let width = self.pick(&[1, 2, 4, 8]).min(data.len() - at);
                data[at..at + width].copy_from_slice(&bytes[..width]);
            }
            3 => drop(data.drain(at..at + len)),
            4 => {
                let copy = data[at..at + len].to_vec();
                data.splice(at..at, copy);
            }
            5 => {
                // A piece of a corpus file, over or between what is here.
                let other = self.below(self.corpus.len());
                let other = &self.corpus[other].clone();
                let from = self.below(other.len());
                let piece = &other[from..(from + len).min(other.len())];
                let replaced = if random.is_multiple_of(2) {
                    piece.len().min(data.len() - at)
                } else {
                    0
                };
                data.splice(at..at + replaced, piece.iter().copied());
            }
            6 => {
                let word = self.pick(self.words);
                let replaced = if random.is_multiple_of(2) {
                    word.len().min(data.len() - at)
                } else {
                    0
                };
                data.splice(at..at + replaced, word.iter().copied());
            }
            7 => {
                // A decimal number becomes another one.
                let digits = |b: &u8| b.is_ascii_digit();
                let Some(start) = data[at..].iter().position(digits) else {
                    return;
                };
                let start = at + start;
                let end = data[start..].iter().position(|b| !digits(b));
                let end = end.map_or(data.len(), |n| start + n);
                data.splice(start..end, number.to_string().into_bytes());
            }
            8 if random.is_multiple_of(8) => data.truncate(at),
            _ => {}
        }
    }
}
