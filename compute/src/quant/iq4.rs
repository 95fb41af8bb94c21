//! [`super::Quant::Iq4`]: codes of 4 bits that index a table of integers, which lie closer together
//! near zero. The table is that of IQ4_NL and IQ4_XS of GGUF files (`kvalues_iq4nl` of
//! ggml-common.h).

/// The values of codes.
pub const VALUES: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

/// [`VALUES`] as floats.
pub const CODEBOOK: [f32; 16] = {
    let (mut book, mut i) = ([0.0; 16], 0);
    while i < 16 {
        book[i] = VALUES[i] as f32;
        i += 1;
    }
    book
};
