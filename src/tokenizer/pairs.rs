//! Finds where a text may be cut so that both parts encode as they would together.

/// SentencePiece writes a space as this.
pub(super) const SPACE_SYMBOL: char = '\u{2581}';

/// Pairs of adjacent characters that occur inside some piece. If a pair never occurs, no merge can
/// cross between its characters, so the text may be split there.
///
/// One bit per hash value. A collision only means fewer split points. Llama 2's 3,538 pairs fill
/// one in three hundred of the bits.
pub(super) struct Pairs(Vec<u64>);

impl Pairs {
    const LOG2_BITS: u32 = 20;

    pub fn new<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut pairs = Self(vec![0; 1 << (Self::LOG2_BITS - 6)]);
        for piece in pieces {
            let chars = std::str::from_utf8(piece).unwrap_or_default().chars();
            for (a, b) in chars.clone().zip(chars.skip(1)) {
                let bit = Self::bit(a, b);
                pairs.0[bit / 64] |= 1 << (bit % 64);
            }
        }
        pairs
    }

    fn contains(&self, a: char, b: char) -> bool {
        let bit = Self::bit(a, b);
        self.0[bit / 64] >> (bit % 64) & 1 == 1
    }

    fn bit(a: char, b: char) -> usize {
        let escape = |c| u64::from(u32::from(if c == ' ' { SPACE_SYMBOL } else { c }));
        let pair = escape(a) << 32 | escape(b);
        // Fibonacci hashing: the high bits of a product with 2^64 / golden ratio.
        (pair.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - Self::LOG2_BITS)) as usize
    }

    /// Length of the text up to the first split point.
    pub fn first_word(&self, text: &str) -> usize {
        self.cut_from(text, 0, usize::MAX)
    }

    /// Length of the first part of `text`: up to the first split point behind byte `least`. If
    /// there is none up to `most`, the result is larger than `most`.
    pub fn first_part(&self, text: &str, least: usize, most: usize) -> usize {
        self.cut_from(text, text.floor_char_boundary(least), most)
    }

    /// The first split point of `text` behind byte `start`. If there is none up to `most`, the
    /// first place beyond `most`.
    fn cut_from(&self, text: &str, start: usize, most: usize) -> usize {
        let mut previous = None;
        for (i, c) in text[start..].char_indices() {
            let at = start + i;
            if at > most || previous.is_some_and(|p| !self.contains(p, c)) {
                return at;
            }
            previous = Some(c);
        }
        text.len()
    }
}
