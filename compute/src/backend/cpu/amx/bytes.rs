//! Products of tiles of int8, summed in int32: exact.

#![allow(unsafe_code)]

use super::{Amx, Config, SIDE};
use std::arch::asm;
use std::marker::PhantomData;

/// A row of B: sixteen columns with four k each, `[16 columns][4]`.
pub type Quads = [u16; 2 * SIDE];
/// Sixteen rows of A: 32 k each.
pub type Rows = [[i32; 8]; SIDE];

/// A tile of sums, `[16 rows][16 columns]` of int32.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct IntSums(pub [Quads; SIDE]);

impl IntSums {
    /// All zero.
    pub const ZERO: IntSums = IntSums([[0; 2 * SIDE]; SIDE]);
}

/// The tiles of this thread, for two sums over K bytes that are computed by turns. As with
/// [`super::Tiles`], they must not stay configured.
pub struct ByteTiles<const K: usize>(PhantomData<*const ()>);

impl<const K: usize> Drop for ByteTiles<K> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: tiles were configured on this thread, which `ByteTiles` does not leave.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}

/// Sums in tiles 0 and 1, A in 4 and 5, B in 6 and 7.
const fn config(k: usize) -> Config {
    let (row, rows) = (k as u16, (k / 4) as u8);
    Config::new(
        [64, 64, 64, 64, row, row, 64, 64],
        [16, 16, 16, 16, 16, 16, rows, rows],
    )
}

impl Amx {
    /// Configures the tiles of this thread for sums over K bytes.
    #[inline(always)]
    pub fn byte_tiles<const K: usize>(self) -> ByteTiles<K> {
        static OF_16: Config = config(16);
        static OF_32: Config = config(32);
        const { assert!(K == 16 || K == 32) };
        debug_assert!(self.bytes, "products of bytes");
        self.configure(if K == 16 { &OF_16 } else { &OF_32 });
        ByteTiles(PhantomData)
    }
}

// SAFETY of the blocks below: `ByteTiles` exists, so the tiles are configured as `config` says. A:
// 16 rows of K bytes, 32 apart; the last one lies within `Rows`, because `from + K` is at most 32.
// B: K / 4 rows of 64 bytes. Sums: 16 rows of 64 bytes.
impl<const K: usize> ByteTiles<K> {
    /// Begins `a b` in place `PLACE`, 0 or 1, of the bytes of each row of `a` from `from` on.
    #[inline(always)]
    pub fn multiply<const PLACE: usize>(&self, a: &Rows, from: usize, b: &[Quads]) {
        assert!(from + K <= size_of_val(&a[0]) && b.len() == K / 4);
        let a = a.as_ptr().cast::<i8>().wrapping_add(from);
        macro_rules! product {
            ($c:literal, $a:literal, $b:literal) => {
                asm!(
                    concat!("tileloadd tmm", $a, ", [{a} + {apart}*1]"),
                    concat!("tileloadd tmm", $b, ", [{b} + {line}*1]"),
                    concat!("tilezero tmm", $c),
                    concat!("tdpbssd tmm", $c, ", tmm", $a, ", tmm", $b),
                    a = in(reg) a, apart = in(reg) 32usize,
                    b = in(reg) b.as_ptr(), line = in(reg) 64usize,
                    options(nostack, readonly)
                )
            };
        }
        unsafe {
            match PLACE {
                0 => product!("0", "4", "6"),
                _ => product!("1", "5", "7"),
            }
        }
    }

    /// Stores what [`ByteTiles::multiply`] has computed in a place.
    #[inline(always)]
    pub fn store<const PLACE: usize>(&self, to: &mut IntSums) {
        unsafe {
            match PLACE {
                0 => store!("0", to),
                _ => store!("1", to),
            }
        }
    }
}
