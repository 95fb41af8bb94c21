//! Quantised weights as tile strips: the layout, and how rows are written into it.
//!
//! A strip has sixteen outputs and is a sequence of blocks. A block begins with the codes, in lines
//! of 64 bytes with four bytes of every output. Then come the scales, sixteen f16 for each group.
//! Blocks consist of whole cache lines. (nf4 in blocks of 64 k, where half of the lines straddle
//! two cache lines, was 15 % slower.) k is padded to whole blocks with zeros, and outputs are
//! padded to whole strips.
//!
//! | | a line's four bytes of an output | k in a block | lines | bytes |
//! |---|---|---:|---:|---:|
//! | int8 | k, k + 1, k + 2, k + 3 | 64 | 16 | 1024 + 64 |
//! | int4 | k + i in the lower and k + 4 + i in the upper half of byte i | 64 | 8 | 512 + 64 |
//! | nf4 | as int4 | 128 | 16 | 1024 + 64 |
//! | iq4 | as int4 | 64 | 8 | 512 + 64 |
//! | uint4 | as int4 | 64 | 8 | 512 + 128 |
//! | k4 | as int4 | 256 | 32 | 2048 + 256 + 64 |
//! | k5 | as k4 | 256 | 32 + 8 | 2048 + 512 + 256 + 64 |
//! | k6 | as k4 | 256 | 32 + 16 | 2048 + 1024 + 256 + 64 |
//! | k8 | as int8 | 256 | 64 | 4096 + 256 + 64 |
//!
//! In k5 and k6, the lines with the low four bits are followed by the lines of the plane, which
//! have the high bits. Such a line has one 32-bit word of [`crate::quant::k`] per output, with the
//! high bits of 32 (k5) or 16 (k6) columns.
//!
//! The scales of the K types are the words of [`crate::quant::k`]. Four lines have, for every
//! output, two of the words with small integers. A fifth line has sixteen `d` and, in k4 and k5,
//! sixteen `dmin`. In k6 and k8, the second half of that line is padding, so that blocks stay whole
//! cache lines.
//!
//! The scales of uint4 are one line for each group: sixteen scales, then sixteen zero points.
//!
//! Kernels multiply the lines of a group by sixteen words of activations, in int16 or in the two
//! bytes of an int16: [`Blocks::words`]. For many rows, a line of any format becomes pairs of
//! int16: [`Blocks::int_pairs`].

mod bytes;
mod fours;
mod k;
mod ours;
mod parts;
mod place;

use super::element::Weights;
use super::simd::{LANES, Lookahead, Simd};
use crate::quant::Quant;
use crate::quant::k::{BLOCK, GROUP_WORDS, K4_WORDS, high_bits, plane_bits};
pub use bytes::{BYTE_WORDS, Bytes};
pub use fours::{Iq4, Uint4};
pub use k::{K4, K5, K6, K8};
pub use ours::{Int4, Int8, Nf4};
pub(super) use place::{PlaceCodes, PlaceScales};

/// The number of columns of a block (k in the table above).
const fn block_k(quant: Quant) -> usize {
    match quant {
        Quant::Nf4 => 128,
        _ if quant.is_k() => BLOCK,
        _ => 64,
    }
}

/// Activations are padded to a multiple of this. It is a multiple of every format's block, except
/// of formats whose matrices are never padded.
pub(super) const PADDED_K: usize = 128;
/// The number of columns that share an activation scale.
pub(super) const GROUP_K: usize = 32;
/// 16-bit words per line.
pub(super) const LINE: usize = 2 * LANES;
/// The number of words in the activations of [`GROUP_K`] columns.
pub(super) const WORDS: usize = GROUP_K / 2;

/// How many words the lines of a block take that have codes, or the lower four bits of codes.
const fn lines_len(quant: Quant) -> usize {
    block_k(quant) * LANES / 2 / if quant.has_bytes() { 1 } else { 2 }
}

/// How many words the codes of a block take, including the words of a plane.
const fn codes_len(quant: Quant) -> usize {
    lines_len(quant) + block_k(quant) * LANES / 16 * plane_bits(quant)
}

/// 16-bit words of a block.
pub(super) const fn block_len(quant: Quant) -> usize {
    codes_len(quant)
        + match quant.is_k() {
            true => (GROUP_WORDS + 2) * LANES,
            false => quant.scales(block_k(quant)) * LANES,
        }
}

/// 16-bit words per strip; `None` if no machine could hold them.
pub(super) fn strip_len(quant: Quant, cols: usize) -> Option<usize> {
    cols.div_ceil(block_k(quant)).checked_mul(block_len(quant))
}

/// Weight `k` of an output of a strip.
pub(super) fn weight(quant: Quant, strip: &[u16], lane: usize, k: usize) -> f32 {
    let block = &strip[k / block_k(quant) * block_len(quant)..][..block_len(quant)];
    let within = k % block_k(quant);
    let code = match quant.has_bytes() {
        true => {
            let word = block[within / 4 * LINE + 2 * lane + within % 4 / 2];
            word >> (8 * (within % 2)) & 255
        }
        false => {
            let byte = within % 4;
            let word = block[within / 8 * LINE + 2 * lane + byte / 2];
            let low = word >> (8 * (byte % 2) + within % 8 / 4 * 4) & 15;
            match plane_bits(quant) {
                0 => low,
                bits => {
                    let line = lines_len(quant) + within / (32 / bits) * LINE;
                    let [a, b] = [0, 1].map(|i| block[line + 2 * lane + i].to_le_bytes());
                    let word = [a[0], a[1], b[0], b[1]];
                    low | u16::from(high_bits(&word, bits, within % (32 / bits))) << 4
                }
            }
        }
    };
    let mut scales = [0; K4_WORDS];
    let n = quant.scales(block_k(quant));
    for (i, scale) in scales[..n].iter_mut().enumerate() {
        *scale = block[scale_at(quant, i, lane)];
    }
    let [scale, minimum] = quant.scale(&scales[..n], within);
    scale * quant.value(code as u8) - minimum
}

/// The place of scale `i` of an output in a block.
fn scale_at(quant: Quant, i: usize, lane: usize) -> usize {
    codes_len(quant)
        + match quant.is_k() && i < GROUP_WORDS {
            true => i / 2 * LINE + 2 * lane + i % 2,
            false => i * LANES + lane,
        }
}

/// A block format, as a type that kernels are generic over.
pub trait Blocks: 'static {
    /// The format.
    const QUANT: Quant;
    /// 16-bit words of a block.
    const LEN: usize = block_len(Self::QUANT);
    /// Groups of [`GROUP_K`] in a block.
    const GROUPS: usize = block_k(Self::QUANT) / GROUP_K;
    /// How many parts of a group have a scale of their own.
    const SPANS: usize = if Self::QUANT.group() < GROUP_K {
        GROUP_K / Self::QUANT.group()
    } else {
        1
    };
    /// Lines of codes in a group.
    const LINES: usize = lines_len(Self::QUANT) / LINE / Self::GROUPS;
    /// A factor that the scales of activations contain. The lookup table has the values of codes in
    /// multiples of this factor.
    const UNIT: f32;
    /// How many blocks before its use a block is prefetched.
    const AHEAD: usize = 1;
    /// The greatest integer that an activation is converted to.
    const TOP: f32 = 32767.0;
    /// Whether weights have minima.
    const MINIMA: bool = false;
    /// The format with this format's scales and a plane, whose weights look the same once they are
    /// decoded for many rows. This format itself if there is no such format.
    type Planed: Blocks + Weights<Bits = u16>;
    /// Whether there is such a format.
    const HAS_PLANED: bool = false;
    /// The format whose kernels for many rows this format uses: the format that has this format as
    /// [`Self::Planed`], or this format itself.
    type ForMany: Blocks + Weights<Bits = u16>;

    /// The lookup table of [`Blocks::int_pairs`].
    type Pairs<S: Simd>: Copy;
    /// Builds the table.
    fn table_of_pairs<S: Simd>(s: S) -> Self::Pairs<S>;
    /// The weights of a line in multiples of [`Blocks::UNIT`], as pairs of int16, in the order of
    /// [`pair_words`]: the first two, or all four.
    fn int_pairs<S: Simd>(s: S, table: Self::Pairs<S>, line: Self::Line<'_>) -> [S::I; 4];

    /// The activations of a group as words for [`Blocks::add`].
    fn words(x: &[i32; GROUP_K]) -> [i32; WORDS];
    /// Per span: the correction that [`Blocks::accumulate`] needs, computed from the sum of the
    /// activations. The last argument is the activations' scale.
    #[inline(always)]
    fn offsets(_: &[i32; GROUP_K], _: f32) -> Offsets {
        [0; MAX_SPANS]
    }
    /// The lookup table of [`Blocks::add`].
    type Table<S: Simd>: Copy;
    /// Builds the table.
    fn table<S: Simd>(s: S) -> Self::Table<S>;
    /// The sum of a group, in parts.
    type Sum<S: Simd>: Copy;
    /// The number of registers of a sum.
    const PARTS: usize = 1;
    /// A sum of zero.
    fn zero<S: Simd>(s: S) -> Self::Sum<S>;
    /// Adds the products of a line with its words of SIDE rows, which begin with word `first`, in
    /// multiples of [`Blocks::UNIT`].
    fn add<S: Simd, const SIDE: usize>(
        s: S,
        table: Self::Table<S>,
        line: Self::Line<'_>,
        x: &[[i32; WORDS]; SIDE],
        first: usize,
        sums: &mut [Self::Sum<S>; SIDE],
    );
    /// The exact sum of a group.
    fn total<S: Simd>(s: S, sum: Self::Sum<S>, offset: i32) -> S::I;

    /// The lookup table of [`Blocks::weights`].
    type Values<S: Simd>: Copy;
    /// Builds the table.
    fn table_of_values<S: Simd>(s: S) -> Self::Values<S>;
    /// The weights of a line, in the order of k: the first four, or all eight.
    fn weights<S: Simd>(
        s: S,
        table: Self::Values<S>,
        line: Self::Line<'_>,
        scale: Self::Scale<S>,
    ) -> [S::F; 8];

    /// An array of [`Blocks::LEN`] words.
    type Block: 'static;
    /// A strip as blocks.
    fn blocks(strip: &[u16]) -> &[Self::Block];
    /// A line of codes: a reference to it, and a reference to a line of a plane if the format has
    /// one.
    type Line<'a>: Copy;
    /// Line `i` of a block, counted over the [`Blocks::LINES`] of all its groups.
    fn line(block: &Self::Block, i: usize) -> Self::Line<'_>;
    /// Prefetches what lies `ahead` of a line of codes, and of its line of a plane.
    fn prefetch_line<S: Simd>(s: S, line: Self::Line<'_>, ahead: Lookahead);
    /// Prefetches from L2 into L1 the line of codes that one row needs soon. This is worth it if
    /// lines take many instructions: with eight bits and int16, one stream of a Zen 4 that reads 66
    /// GB/s is 1.17 times as fast. If [`Lookahead::into_l1`] is set, the line is in L1 already, and
    /// this does nothing; leaving it out there was not measured.
    #[inline(always)]
    fn prefetch_near<S: Simd>(_: S, _: Self::Line<'_>) {}

    /// What the scales of all spans of a block have in common.
    type Common<S: Simd>: Copy;
    /// Reads the common part.
    fn common<S: Simd>(s: S, block: &Self::Block) -> Self::Common<S>;
    /// The scale of a span, in the form that sums and weights need.
    type Scale<S: Simd>: Copy;
    /// The scale of span `i` of a block, counted over all its groups.
    fn scale<S: Simd>(
        s: S,
        block: &Self::Block,
        common: Self::Common<S>,
        i: usize,
    ) -> Self::Scale<S>;
    /// Prefetches what lies `ahead` of the data that [`Blocks::scale`] reads.
    fn prefetch_scale<S: Simd>(s: S, block: &Self::Block, i: usize, ahead: Lookahead);
    /// Computes the scale of weights, and their minimum (zero if they have none).
    fn factors<S: Simd>(s: S, scale: Self::Scale<S>) -> [S::F; 2];
    /// Adds the scaled sum of a span of a group to `sum`. `offset` and `unit` are the offset and
    /// the scale of the activations.
    fn accumulate<S: Simd>(
        s: S,
        scale: Self::Scale<S>,
        dot: Self::Sum<S>,
        offset: i32,
        unit: f32,
        sum: S::F,
    ) -> S::F;
    /// The scale, with every NaN replaced by [`Simd::quiet`].
    fn quiet<S: Simd>(s: S, scale: Self::Scale<S>) -> Self::Scale<S>;
}

/// The largest number of spans in a group, in any format.
pub(super) const MAX_SPANS: usize = 2;
/// A number for each span of a group of activations.
pub(super) type Offsets = [i32; MAX_SPANS];

/// A group of activations as pairs of int16. Of every four columns, the first and the third form a
/// pair, and the second and the fourth: codes of these columns are bytes, or half bytes, at the
/// same place in their two words.
#[inline(always)]
pub(super) fn pair_words(x: &[i32; GROUP_K]) -> [i32; WORDS] {
    let mut words = [0; WORDS];
    for (x, to) in x
        .as_chunks::<4>()
        .0
        .iter()
        .zip(words.as_chunks_mut::<2>().0)
    {
        *to = [(x[0] & 0xffff) | x[2] << 16, (x[1] & 0xffff) | x[3] << 16];
    }
    words
}

/// Calls the given macro with the list of all formats that have a kernel type, followed by the
/// remaining arguments.
macro_rules! all_formats {
    ({$($make:tt)*} $($rest:tt)*) => {
        $($make)*! { [Int8 Int4 Nf4 Iq4 Uint4 K4 K5 K6 K8] $($rest)* }
    };
}
pub(super) use all_formats;

/// The same for formats with weights in [`Bytes`]. nf4 is excluded: its codebook values are not
/// integer multiples of one unit in a byte.
macro_rules! formats_in_bytes {
    ({$($make:tt)*} $($rest:tt)*) => {
        $($make)*! { [Int8 Int4 Iq4 Uint4 K4 K5 K6 K8] $($rest)* }
    };
}
pub(super) use formats_in_bytes;

/// The same for formats with [`Bytes::NIBBLES`].
macro_rules! formats_in_nibbles {
    ({$($make:tt)*} $($rest:tt)*) => {
        $($make)*! { [Int4 Uint4 K4] $($rest)* }
    };
}
pub(super) use formats_in_nibbles;

macro_rules! is_one_of {
    ([$($type:ident)*] $quant:expr) => {
        matches!($quant, $(Quant::$type)|*)
    };
}

/// Whether a format has a kernel type. (Fp8 is for GPUs.)
pub(super) fn has_type(quant: Quant) -> bool {
    all_formats! { {is_one_of} quant }
}

/// Whether a format has weights in [`Bytes`].
pub(super) const fn in_bytes(quant: Quant) -> bool {
    formats_in_bytes! { {is_one_of} quant }
}

/// Whether a format has weights in [`Bytes`] with [`Bytes::NIBBLES`].
pub(super) const fn in_nibbles(quant: Quant) -> bool {
    formats_in_nibbles! { {is_one_of} quant }
}

macro_rules! assert_nibbles {
    ([$($type:ident)*]) => {$(
        const _: () = assert!($type::NIBBLES == in_nibbles(Quant::$type), "another list");
    )*};
}
formats_in_bytes! { {assert_nibbles} }

/// Runs `$body`, in which `$Q` stands for the type of `$quant`.
macro_rules! with_blocks {
    ($quant:expr, $Q:ident => $body:expr) => {
        $crate::backend::cpu::blocks::all_formats! {
            {$crate::backend::cpu::blocks::with_one_of} $quant, $Q => $body
        }
    };
}
pub(super) use with_blocks;

/// The same for formats with weights in [`Bytes`].
macro_rules! with_bytes {
    ($quant:expr, $Q:ident => $body:expr) => {
        $crate::backend::cpu::blocks::formats_in_bytes! {
            {$crate::backend::cpu::blocks::with_one_of} $quant, $Q => $body
        }
    };
}
pub(super) use with_bytes;

/// The same for formats with [`Bytes::NIBBLES`].
macro_rules! with_nibbles {
    ($quant:expr, $Q:ident => $body:expr) => {
        $crate::backend::cpu::blocks::formats_in_nibbles! {
            {$crate::backend::cpu::blocks::with_one_of} $quant, $Q => $body
        }
    };
}
pub(super) use with_nibbles;

macro_rules! with_one_of {
    ([$($type:ident)*] $quant:expr, $Q:ident => $body:expr) => {
        match $quant {
            $($crate::quant::Quant::$type => {
                type $Q = $crate::backend::cpu::blocks::$type;
                $body
            })*
            // `CpuMat::new` refuses formats without a type.
            other => unreachable!("no such product of {other:?}"),
        }
    };
}
pub(super) use with_one_of;
