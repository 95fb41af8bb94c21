//! The hash function for the tables of the vocabularies.

use std::hash::{BuildHasher, Hasher, RandomState};

/// The start value of each hash. It is random, so that nobody can write a vocabulary whose pieces
/// collide.
#[derive(Clone, Copy)]
pub(super) struct Key(u64);

impl Key {
    pub fn random() -> Key {
        Key(RandomState::new().hash_one(0))
    }
}

impl BuildHasher for Key {
    type Hasher = Fold;

    fn build_hasher(&self) -> Fold {
        Fold(self.0)
    }
}

/// A hash that takes few instructions for each eight bytes. Speed matters, because a lookup for
/// every two neighbours is most of the work of an encoding.
pub(super) struct Fold(u64);

impl Fold {
    fn fold(&mut self, word: u64) {
        // Multiplies by 2^64 / golden ratio. The high half of the product depends on all bits, the
        // low half on few.
        let product = u128::from(self.0 ^ word) * 0x9e37_79b9_7f4a_7c15;
        self.0 = product as u64 ^ (product >> 64) as u64;
    }
}

impl Hasher for Fold {
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks();
        words
            .iter()
            .for_each(|&word| self.fold(u64::from_le_bytes(word)));
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.fold(u64::from_le_bytes(last));
    }

    fn write_u64(&mut self, n: u64) {
        self.fold(n);
    }

    /// Hashes the length of a slice, which comes before its bytes.
    fn write_usize(&mut self, n: usize) {
        self.fold(n as u64 + 1);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
