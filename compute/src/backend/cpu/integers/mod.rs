//! Products with quantised weights: activations as integers, sums in int32 within each group of 32
//! k and in float32 over the groups.
//!
//! | file | |
//! |---|---|
//! | `integer` | what the two kinds of integers do differently |
//! | `pairs` | int16: for generated rows, and for prompt rows if nothing is faster |
//! | `bytes` | int8: if the handle asks for it; without VNNI, only for codes up to 15 |
//! | `few`, `many` | weights are unpacked for every few rows; decoded once for many rows |
//! | `tiled` | many rows of int8 on AMX |
//!
//! Formats with a scale for each 16 k have two sums in a group. Minima of weights are multiplied by
//! the sum of a group's activations.
//!
//! Each group of activations has a scale: its greatest magnitude divided by about 32767 (int16) or
//! by 127 (int8). So an activation is off by at most 1.6e-5 (int16) or 4e-3 (int8) of the greatest
//! magnitude in its group, and the sum of a group is exact. Every output is one chain of
//! multiply-adds over ascending groups, from zero. So its bits depend neither on the number of
//! rows, nor on how rows and strips are cut, nor on the number of threads. Because integer sums are
//! exact, AVX2 and AVX-512 agree too.
//!
//! Few rows are bound by memory: a thread reads all strips of a task side by side, as
//! [`super::product`] does for few rows, and unpacks codes again for every eight rows, or every
//! four. Many rows are bound by arithmetic. The choice between the two is a matter of speed alone.

mod bytes;
mod few;
mod integer;
mod many;
mod pairs;
#[cfg(target_arch = "x86_64")]
mod tiled;

use super::blocks::{self, Blocks, with_blocks, with_bytes, with_nibbles};
use super::detect::Tier;
use super::mat::Run;
use super::results::WriteOut;
use super::strips::{Strips, TASK_STRIPS};
use super::words::{Form, MAX_SIDE, TILE_SIDE, Task, Words};
use crate::quant::Quant;
use bytes::InBytes;
use pairs::InPairs;

/// The largest number of rows that count as few, in any format.
const MAX_FEW: usize = 3 * MAX_SIDE;

/// Whether multiplying weights of this format with int8 activations is faster than with int16.
pub(super) fn has_bytes(tier: Tier, quant: Quant) -> bool {
    match tier.has_bytes() {
        true => blocks::in_bytes(quant),
        false => tier.has_nibbles() && blocks::in_nibbles(quant),
    }
}

/// How many float32 of scratch memory a thread needs for steps of up to `max_rows` rows.
pub(super) fn scratch_len(max_rows: usize) -> usize {
    let few = TASK_STRIPS * MAX_FEW * super::simd::LANES;
    #[cfg(target_arch = "x86_64")]
    let few = few.max(tiled::scratch_len(max_rows));
    many::scratch_len(max_rows).max(few)
}

/// The largest number of rows that count as few, as int8 (`bytes`) or as int16, with up to `side`
/// rows side by side. Unpacking weights again for every eight rows costs less than writing the
/// unpacked weights and reading them again; how much less depends on the format. (Measured on an
/// Emerald Rapids: benches/record/2026-11-29-many-rows-without-tiles.txt.) With AVX2 on a Zen 3, 14
/// to 24 rows of int8 took 1.1 to 1.2 times as long when unpacked for every four rows as when
/// unpacked once (benches/record/2026-11-30-avx2-few-rows.txt).
fn few(quant: Quant, bytes: bool, side: usize) -> usize {
    match quant {
        Quant::Int8 | Quant::K8 if bytes => 2 * MAX_SIDE + 2,
        Quant::Int8 | Quant::K8 if side == MAX_SIDE => MAX_FEW,
        _ => MAX_SIDE + MAX_SIDE / 2,
    }
}

/// The largest number of rows of int8 that are faster without tiles. Tiles take as long for one row
/// as for eight. (Speed of eight rows without tiles, relative to tiles: int4 1.07, int8 1.02, k8
/// 0.97, k4 0.90, k6 0.83; benches/record/2026-11-30-bytes-on-tiles.txt.)
fn few_beside_tiles(quant: Quant) -> usize {
    match quant.is_k() {
        true => 6,
        false => 8,
    }
}

/// The largest number of rows side by side when there are few rows. Without VNNI, a product takes a
/// register beside its sum, so the sixteen registers of AVX2 hold the sums of four rows: with
/// eight, sums were spilled. The portable tier takes so long to emulate products of pairs that more
/// rows would save no noticeable time, and each number of rows has to be compiled.
const fn most_side(registers: usize, vnni: bool) -> usize {
    match (registers, vnni) {
        (4, _) => 2,
        (8, false) => MAX_SIDE / 2,
        _ => MAX_SIDE,
    }
}

/// The form of `rows` rows of activations for weights of this format, as int8 (`bytes`) or as
/// int16, and how many rows lie side by side.
pub(super) fn form(tier: Tier, quant: Quant, rows: usize, bytes: bool) -> (Form, usize) {
    let most = most_side(tier.registers(), tier.has_bytes());
    let tiled = bytes && tier.has_byte_tiles();
    let many = match tiled {
        true => rows > few_beside_tiles(quant),
        false => rows > few(quant, bytes, most),
    };
    let side = match many {
        true if tiled => TILE_SIDE,
        true => many::side(tier),
        // Panels have one size and are as full as possible: rows that only fill up the last panel
        // take as long as other rows.
        false => rows.div_ceil(rows.div_ceil(most).max(1)),
    };
    let form = match (bytes, many) {
        (true, many) => Form::Bytes(quant, many),
        (false, true) => Form::Pairs(quant),
        (false, false) => Form::Own(quant),
    };
    (form, side)
}

/// As [`super::strips::Packed::multiply`].
pub(super) fn product(
    tier: Tier,
    x: &Words,
    weights: &Run,
    scratch: &mut [f32],
    write: WriteOut<'_>,
) {
    macro_rules! task {
        ($Q:ty) => {
            Task::<$Q> {
                weights: Strips::cut(weights, write.cut),
                x,
                scratch,
                write,
            }
        };
    }
    macro_rules! many {
        ($run:ident, $As:ident, $Q:ty) => {
            tier.$run(many::Many::<$As<$Q>>(task!($Q)))
        };
    }
    match x.form() {
        Form::Own(quant) => with_blocks!(quant, Q => {
            tier.run_integers(few::Few::<InPairs<Q>>(task!(Q)))
        }),
        // Formats with a plane have separate kernels for few rows only.
        Form::Pairs(quant) => with_blocks!(quant, Q => {
            many!(run_integers, InPairs, <Q as Blocks>::ForMany)
        }),
        #[cfg(target_arch = "x86_64")]
        Form::Bytes(quant, true) if tier.has_byte_tiles() => with_bytes!(quant, Q => {
            let amx = tier.amx().expect("has_byte_tiles");
            tier.run_with_tiles(tiled::Tiled::<Q> { amx, task: task!(Q) })
        }),
        Form::Bytes(quant, true) if !tier.has_bytes() => with_nibbles!(quant, Q => {
            many!(run_nibbles, InBytes, Q)
        }),
        Form::Bytes(quant, false) if !tier.has_bytes() => with_nibbles!(quant, Q => {
            tier.run_nibbles(few::Few::<InBytes<Q>>(task!(Q)))
        }),
        Form::Bytes(quant, true) => with_bytes!(quant, Q => {
            many!(run_bytes, InBytes, <Q as Blocks>::ForMany)
        }),
        Form::Bytes(quant, false) => with_bytes!(quant, Q => {
            tier.run_bytes(few::Few::<InBytes<Q>>(task!(Q)))
        }),
        other => unreachable!("integers in {other:?}"),
    }
}
