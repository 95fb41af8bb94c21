//! Weights as the tiles of bfloat16 that [`super::product_amx`] multiplies.

use super::amx::{Half, SIDE, TILE_K};
use super::blocks::{Blocks, GROUP_K};
use super::element::{Bf16, F16, Pairs, Weights};
use super::simd::{LANES, Simd};
use std::marker::PhantomData;

/// A storage format that is multiplied as tiles of bfloat16.
pub(super) trait AsTiles: Weights {
    /// Whether strips of the format are tiles already.
    const TILES: bool = false;
    /// Tiles of k that are unpacked at a time: whole blocks of the format.
    const UNIT_TILES: usize = 2;
    /// Whether a weight that lies halfway between two numbers of bfloat16 is rounded to even;
    /// otherwise it may be rounded away from zero. Every eighth number of f16 lies halfway. Of
    /// decoded weights, 2 % do with int8 and 9 % with int4. Rounding these away from zero makes
    /// weights grow by 1e-4, which is a tenth of the rounding error ([`Simd::weight_pairs`]).
    const TO_EVEN: bool = false;
    /// The tiles of a strip, if strips of the format are tiles.
    fn tiles(_: &[Self::Bits]) -> &[Half] {
        unreachable!("no tiles")
    }
}

impl AsTiles for Bf16 {
    const TILES: bool = true;
    #[inline(always)]
    fn tiles(strip: &[u16]) -> &[Half] {
        strip.as_chunks().0
    }
}

impl AsTiles for F16 {
    const TO_EVEN: bool = true;
}
impl<Q: Blocks + Weights> AsTiles for Q {
    const UNIT_TILES: usize = Q::GROUPS * GROUP_K / TILE_K;
}

/// Converts blocks of k of a strip to tiles; the last tile is filled up with zeros.
#[inline(always)]
pub(super) fn unpack<E: AsTiles, S: Simd>(s: S, from: &[E::Bits], to: &mut [Half]) {
    let to = to.as_flattened_mut().as_chunks_mut::<{ 2 * LANES }>().0;
    let mut end = 0;
    E::unpack(
        s,
        from,
        OfTiles::<S, E> {
            s,
            to,
            end: &mut end,
            weights: PhantomData,
        },
    );
    to[end..end.next_multiple_of(SIDE)]
        .as_flattened_mut()
        .fill(0);
}

/// Pairs of columns in the layout of tiles.
struct OfTiles<'a, S, E> {
    s: S,
    to: &'a mut [[u16; 2 * LANES]],
    /// How many there are now.
    end: &'a mut usize,
    weights: PhantomData<E>,
}

impl<S: Simd, E: AsTiles> Pairs<S> for OfTiles<'_, S, E> {
    #[inline(always)]
    fn put(&mut self, pair: usize, both: [S::F; 2]) {
        match E::TO_EVEN {
            true => self.s.tile_pairs(both, &mut self.to[pair]),
            false => self.s.weight_pairs(both, &mut self.to[pair]),
        }
        *self.end = pair + 1;
    }
}
