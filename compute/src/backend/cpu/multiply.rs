//! Which arithmetic the rows of a product have, by the tier, the format of the weights, the kind of
//! row and the handle.

use super::detect::Tier;
use super::mat::Run;
use super::results::{Ending, Finish, WriteOut};
use super::rows::Norm;
use super::simd::LANES;
use super::step::{ALL, Picks, kind_index};
use super::strips::{Job, Packed, Target, multiply};
use super::words::{Form, Words};
use super::{Cpu, CpuBuf, CpuMat, Workers, integers, lora, product, product_bf16};
#[cfg(target_arch = "x86_64")]
use super::{amx, product_amx};
use crate::Dtype;
use crate::backend::RowKind;
use crate::quant::Quant;

impl Cpu {
    /// Multiplies rows of `x`, one run of weights after another.
    pub(super) fn multiply(
        &mut self,
        out: &mut CpuBuf,
        w: &CpuMat,
        x: Rows<'_>,
        norm: Option<Norm<'_>>,
        finish: Finish,
    ) {
        let adapted = lora::AdapterParts::of(w).filter(|_| self.step.has_adapters());
        if let Some(adapted) = adapted {
            let workers = Workers {
                pool: &self.pool,
                tier: self.tier,
                scratch: &self.scratch,
            };
            let row = |from: usize| &x.buf.data[from * x.buf.width..][..x.buf.width];
            lora::shrink(workers, &self.step, adapted, row, norm, &mut self.thin);
        }
        match (finish, &w.runs[..]) {
            (Finish::SwiGlu, [gate, up]) => {
                self.multiply_run(out, gate, x, norm, Finish::Store, adapted);
                self.multiply_run(out, up, x, norm, Finish::Gated, adapted);
            }
            (_, runs) => {
                for run in runs {
                    self.multiply_run(out, run, x, norm, finish, adapted);
                }
            }
        }
    }

    /// Whether results of `first` can be tiles for `second`: prompt rows are tiles in both
    /// products, and generated rows in both or in neither. (In a layer of k4 and k6, they may be
    /// bytes in the first and tiles in the second.)
    #[cfg(target_arch = "x86_64")]
    pub(super) fn hands_on_tiles(&self, first: &CpuMat, second: &CpuMat) -> bool {
        let tiled = |mat: &CpuMat, kind| {
            mat.all(|dtype| {
                let arithmetic = Arithmetic::of(self.tier, dtype, kind, self.precision);
                matches!(arithmetic, Arithmetic::Tiles(_))
            })
        };
        let both = |kind| [first, second].map(|mat| tiled(mat, kind));
        let [generated, prompts] = [RowKind::Decode, RowKind::Prefill].map(both);
        prompts == [true; 2] && generated[0] == generated[1]
    }

    /// Multiplies rows of both kinds.
    fn multiply_run(
        &mut self,
        out: &mut CpuBuf,
        w: &Run,
        x: Rows<'_>,
        norm: Option<Norm<'_>>,
        finish: Finish,
        adapted: Option<lora::AdapterParts>,
    ) {
        let picks = if x.wanted {
            &self.step.wanted
        } else {
            &self.step.rows
        };
        let kinds = [RowKind::Decode, RowKind::Prefill].map(|kind| {
            let arithmetic = Arithmetic::of(self.tier, w.dtype, kind, self.precision);
            (arithmetic, kind_index(kind))
        });
        let [(generated, _), (prompts, _)] = kinds;
        let there = kinds.map(|(_, rows)| !picks[rows].to.is_empty());
        let mut multiply_rows = |parts: &[(Arithmetic, usize)]| {
            self.multiply_rows(parts, out, w, x, norm, finish, adapted);
        };
        match there {
            [false, false] => {}
            [true, false] => multiply_rows(&kinds[..1]),
            [false, true] => multiply_rows(&kinds[1..]),
            [true, true] if generated == prompts => multiply_rows(&[(prompts, ALL)]),
            // One after the other, because both are packed in the same place.
            [true, true] if generated.takes_words() && prompts.takes_words() => {
                multiply_rows(&kinds[..1]);
                multiply_rows(&kinds[1..]);
            }
            [true, true] => multiply_rows(&kinds),
        }
    }

    /// Multiplies rows of one or two arithmetics, each with those of one of the [`Picks`]. Only one
    /// of them may take [`Words`]. Tiles come last: generated rows are never tiles if prompts are
    /// something else.
    #[allow(clippy::too_many_arguments)] // each is needed below, and one caller has them all
    fn multiply_rows(
        &mut self,
        parts: &[(Arithmetic, usize)],
        out: &mut CpuBuf,
        w: &Run,
        x: Rows<'_>,
        norm: Option<Norm<'_>>,
        finish: Finish,
        adapted: Option<lora::AdapterParts>,
    ) {
        let Self {
            tier,
            pool,
            panels,
            words,
            scratch,
            step,
            thin,
            ..
        } = self;
        let (tier, picks) = (*tier, if x.wanted { &step.wanted } else { &step.rows });
        for &(arithmetic, rows) in parts {
            let Picks { from, to } = &picks[rows];
            let row = |i: usize| &x.buf.data[from[i] as usize * x.buf.width..][..x.buf.width];
            match arithmetic {
                #[cfg(target_arch = "x86_64")]
                Arithmetic::Tiles(_) if x.buf.tiled => {}
                #[cfg(target_arch = "x86_64")]
                Arithmetic::Tiles(_) => self.tiles.fill(pool, tier, to.len(), row, norm),
                Arithmetic::Bf16 => {
                    let form = product_bf16::form(to.len());
                    words.fill(pool, tier, form, to.len(), row, norm);
                }
                Arithmetic::Bytes(quant) | Arithmetic::Pairs(quant) => {
                    let bytes = arithmetic == Arithmetic::Bytes(quant);
                    let form = integers::form(tier, quant, to.len(), bytes);
                    words.fill(pool, tier, form, to.len(), row, norm);
                }
                Arithmetic::Floats => {
                    let side = product::side(tier, w, to.len());
                    panels.fill(pool, tier, side, to.len(), row, norm);
                }
            }
        }
        let stride = out.width;
        #[cfg(target_arch = "x86_64")]
        let tiled = out.tiled;
        let first = match finish {
            Finish::Gated => 0,
            _ => w.first * LANES,
        };
        let low = adapted.map(|adapted| lora::Low::new(step, adapted, w, thin));
        let target = Target {
            out: &mut out.data[..picks[ALL].to.len() * stride],
            stride,
            columns: first..stride.min(first + w.strips() * LANES),
            ending: Ending { finish, low },
        };
        let workers = Workers {
            pool,
            tier,
            scratch,
        };
        let job = |&(arithmetic, rows): &(Arithmetic, usize)| Job {
            rows: match arithmetic {
                #[cfg(target_arch = "x86_64")]
                Arithmetic::Tiles(_) => unreachable!("tiles are packed otherwise, and come last"),
                Arithmetic::Floats => &*panels,
                _ => &*words,
            },
            to: &picks[rows].to,
        };
        match parts {
            #[cfg(target_arch = "x86_64")]
            [others @ .., (Arithmetic::Tiles(amx), rows)] => {
                let (tiles, hidden) = (&self.tiles, &mut self.hidden);
                let (panels, hidden) = match (x.buf.tiled, tiled) {
                    (true, _) => (&*hidden, None),
                    (false, true) => (tiles, Some(hidden)),
                    (false, false) => (tiles, None),
                };
                let rows = product_amx::TiledRows {
                    amx: *amx,
                    panels,
                    to: &picks[*rows].to,
                    hidden,
                };
                product_amx::product(workers, w, target, rows, others.first().map(job));
            }
            [one] => multiply(workers, w, target, &[job(one)]),
            [one, other] => multiply(workers, w, target, &[job(one), job(other)]),
            _ => unreachable!("at most two kinds of rows"),
        }
    }
}

impl Packed for Words {
    fn multiply(&self, tier: Tier, weights: &Run, scratch: &mut [f32], write: WriteOut<'_>) {
        match self.form() {
            Form::Bf16 => product_bf16::product(tier, self, weights, scratch, write),
            _ => integers::product(tier, self, weights, scratch, write),
        }
    }
}

/// How exactly rows are multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// For a handle in which up to so many sequences run: [`Precision::Full`] if they are few, and
    /// [`Precision::AsPrompts`] if they are so many that it is faster (`most_full`). Between the
    /// two, on tiles, the activations of generated rows are int8 for int4 and k4
    /// (`MOST_BYTE_TILES`).
    Auto(usize),
    /// Prompts have the fastest arithmetic whose rounding is small beside the rounding of the
    /// weights. Generated rows have an arithmetic that rounds very little, and with few of them
    /// reading weights takes longer than the products: float32, and with quantised weights
    /// activations in int16.
    Full,
    /// Generated rows have the arithmetic of prompts: for many sequences, when products take longer
    /// than reading weights.
    AsPrompts,
    /// For a handle in which up to so many sequences run: all rows have the fastest arithmetic that
    /// the instruction set has for the format of the weights, even if it loses more than the format
    /// has lost.
    Fast(usize),
}

impl Precision {
    /// Whether generated rows are multiplied as [`Precision::Full`] says.
    pub(super) fn is_full(self, tier: Tier, dtype: Dtype) -> bool {
        match self {
            Precision::Auto(sequences) => sequences <= most_full(tier, dtype),
            Precision::Full => true,
            Precision::AsPrompts | Precision::Fast(_) => false,
        }
    }
}

/// The most sequences with which [`Precision::Auto`] is [`Precision::Full`]. For tiles, quantised
/// weights have to be decoded: on an Emerald Rapids, one stream of int8 or int4 is two to three
/// times as fast without them, eight are 1.0 to 1.6 times, sixteen 0.7 to 0.9 times. (Other formats
/// have not been measured in full precision there.) With activations in int8, one stream of int4 or
/// k4 is as fast as in full precision, and eight are 1.35 and 1.38 times.
fn most_full(tier: Tier, dtype: Dtype) -> usize {
    match dtype.quant() {
        Some(quant) if tier.has_byte_tiles() && is_coarse(quant) => 8,
        Some(_) if tier.has_tiles() => 12,
        _ => 8,
    }
}

/// The most sequences of a handle with which tiles multiply generated rows as int8. Their time
/// grows with the rows, because the sums of every 32 k are stored, scaled and added; tiles of
/// bfloat16 take most of theirs for decoding weights. With 16 rows int8 is 1.2 to 1.7 times as
/// fast, depending on the format, with 32 rows 0.9 to 1.3 times, and with 64 rows of int8 or int4
/// 0.8 and 0.7 times (benches/record/2026-11-30-bytes-on-tiles.txt).
///
/// Beside prompt rows, products of bytes and of bfloat16 follow each other and share nothing but
/// the reading of weights. With 32 here, a prompt beside 20 streams of int4 waited four to five
/// times as long for its first token as with tiles of bfloat16 for all rows, which without prompts
/// were as fast (benches/record/2026-12-01-prompts-beside-streams.txt).
const MOST_BYTE_TILES: usize = 16;

/// Whether so few bits are left of weights that activations in int8 lose nothing beside that.
fn is_coarse(quant: Quant) -> bool {
    matches!(quant, Quant::Int4 | Quant::K4)
}

/// Whether prompt rows attend in bfloat16 beside such weights, over a cache of at most 16 bits:
/// where their products round activations as much, or more.
pub(super) fn attends_in_bf16(tier: Tier, dtype: Dtype, precision: Precision) -> bool {
    let arithmetic = Arithmetic::of(tier, dtype, RowKind::Prefill, precision);
    !matches!(arithmetic, Arithmetic::Floats | Arithmetic::Pairs(_))
}

/// How rows are multiplied. The kind of row decides, and the handle, but never how many rows there
/// are.
#[derive(Clone, Copy, PartialEq)]
enum Arithmetic {
    /// As tiles of bfloat16.
    #[cfg(target_arch = "x86_64")]
    Tiles(amx::Amx),
    /// As pairs of bfloat16.
    Bf16,
    /// Quantised weights, activations as int8.
    Bytes(Quant),
    /// Quantised weights, activations as int16.
    Pairs(Quant),
    /// In float32.
    Floats,
}

impl Arithmetic {
    /// The arithmetic of rows of a kind with weights of a format.
    ///
    /// Activations in int8 are the same for int8 weights and for four bits; but with int8 they lose
    /// more than the weights have lost (SmolLM2-135M, mean divergence from float32 in nats: 1.3e-3
    /// with activations in int16, 4.6e-3 with int8), and with four bits nothing that shows (0.28
    /// with both). That is beside weights that were never quantised. Iq4 and uint4 are compared
    /// with the file that has them: on SmolLM2-135M in Q4_1, int8 moves the difference between the
    /// logits of two tokens by 0.127 in the mean, and int16 by 0.015.
    fn of(tier: Tier, dtype: Dtype, kind: RowKind, precision: Precision) -> Arithmetic {
        let exact = kind == RowKind::Decode && precision.is_full(tier, dtype);
        let Some(quant) = dtype.quant() else {
            return match exact {
                true => Arithmetic::Floats,
                false => Self::of_floats(tier, dtype),
            };
        };
        if exact {
            return Arithmetic::Pairs(quant);
        }
        let coarse = is_coarse(quant) || matches!(precision, Precision::Fast(_));
        let bytes = coarse && integers::has_bytes(tier, quant);
        #[cfg(target_arch = "x86_64")]
        if let Some(amx) = tier.amx() {
            let few = match precision {
                Precision::Auto(sequences) | Precision::Fast(sequences) => {
                    sequences <= MOST_BYTE_TILES
                }
                Precision::Full | Precision::AsPrompts => false,
            };
            let generated = kind == RowKind::Decode && few && tier.has_byte_tiles();
            return match bytes && generated {
                true => Arithmetic::Bytes(quant),
                false => Arithmetic::Tiles(amx),
            };
        }
        if bytes {
            return Arithmetic::Bytes(quant);
        }
        match tier.has_pairs() {
            true => Arithmetic::Pairs(quant),
            false => Arithmetic::Floats,
        }
    }

    /// Whether its activations are packed as [`Words`].
    fn takes_words(self) -> bool {
        matches!(
            self,
            Arithmetic::Bf16 | Arithmetic::Bytes(_) | Arithmetic::Pairs(_)
        )
    }

    /// The fastest for weights that are not quantised.
    fn of_floats(tier: Tier, dtype: Dtype) -> Arithmetic {
        #[cfg(target_arch = "x86_64")]
        if let Some(amx) = tier.amx().filter(|_| product_amx::takes(dtype)) {
            return Arithmetic::Tiles(amx);
        }
        match dtype == Dtype::Bf16 && tier.has_bf16() {
            true => Arithmetic::Bf16,
            false => Arithmetic::Floats,
        }
    }
}

/// Rows of a buffer: all of the step, or those whose logits are wanted.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    pub buf: &'a CpuBuf,
    pub wanted: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_is_full_up_to_a_number_of_sequences() {
        let tier = Tier::choose().unwrap();
        for dtype in [Dtype::Bf16, Dtype::Int8, Dtype::K4] {
            let of = |precision| Arithmetic::of(tier, dtype, RowKind::Decode, precision);
            let most = match tier.has_tiles() && dtype == Dtype::Int8 {
                true => 12,
                false => 8,
            };
            for few in [1, most] {
                assert!(of(Precision::Auto(few)) == of(Precision::Full), "{dtype}");
            }
            let between = match dtype == Dtype::K4 && tier.has_byte_tiles() {
                true => Precision::Fast(16),
                false => Precision::AsPrompts,
            };
            for many in [most + 1, 16] {
                assert!(of(Precision::Auto(many)) == of(between), "{dtype}");
            }
            for many in [17, usize::MAX] {
                assert!(
                    of(Precision::Auto(many)) == of(Precision::AsPrompts),
                    "{dtype}"
                );
            }
        }
    }
}
