//! Products of 32 rows by 32 columns of sums.

#![allow(unsafe_code)]

use super::prefetch::prefetch_four;
use super::{Half, Prefetch, SIDE, Sums, Tiles};
use std::arch::asm;
use std::arch::x86_64::_MM_HINT_T0;
use std::ops::Range;

/// What becomes of sums while the next ones are computed: vector instructions, which leave the tile
/// unit alone.
pub trait Beside {
    /// `rows` begin at a multiple of this, and end at one unless they are the last.
    const UNIT: usize;

    /// Takes a share of square number `square`, whose sums are complete: these of its 32 rows, or
    /// as large a part of it. The shares of a square follow each other.
    fn rows(&mut self, square: usize, sums: &mut [Sums; 4], rows: Range<usize>);
}

impl Beside for () {
    const UNIT: usize = SQUARE;

    #[inline(always)]
    fn rows(&mut self, _: usize, _: &mut [Sums; 4], _: Range<usize>) {}
}

/// Rows of a square.
const SQUARE: usize = 2 * SIDE;

// SAFETY of every block below: `Tiles` exists, so eight full tiles are configured; a tile is 1 KiB,
// rows 64 bytes apart, read from and written to references to arrays of that size, or to places in
// slices whose lengths are checked before.
impl Tiles {
    /// The beginning of a product `c = a b` of 32 rows by 32 columns, or if it is not `WHOLE`, of
    /// its first 16 rows, with `c` as `[half of the rows][half of the columns]`: zero if it is the
    /// `first` block of k, otherwise its sums so far. Nothing else may use the tiles until its end.
    #[inline(always)]
    pub fn begin_square<const WHOLE: bool>(&self, c: &[Sums; 4], first: bool) {
        unsafe {
            if first {
                zero!("0");
                zero!("1");
                if WHOLE {
                    zero!("2");
                    zero!("3");
                }
            } else {
                load!("0", &c[0]);
                load!("1", &c[1]);
                if WHOLE {
                    load!("2", &c[2]);
                    load!("3", &c[3]);
                }
            }
        }
    }

    /// Some tiles of k of a square.
    #[inline(always)]
    pub fn square_steps<const WHOLE: bool>(
        &self,
        a: &[[Half; 2]],
        b: [&[Half]; 2],
        ahead: &mut Prefetch,
    ) {
        let (b0, b1) = (&b[0][..a.len()], &b[1][..a.len()]);
        unsafe {
            for (k, a) in a.iter().enumerate() {
                load_past_l1!("4", &a[0]);
                load!("6", &b0[k]);
                multiply!("0", "4", "6");
                load!("7", &b1[k]);
                multiply!("1", "4", "7");
                if WHOLE {
                    load_past_l1!("5", &a[1]);
                    multiply!("2", "5", "6");
                    multiply!("3", "5", "7");
                }
                ahead.step();
            }
        }
    }

    /// The end of a square.
    #[inline(always)]
    pub fn end_square<const WHOLE: bool>(&self, c: &mut [Sums; 4]) {
        unsafe {
            store!("0", &mut c[0]);
            store!("1", &mut c[1]);
            if WHOLE {
                store!("2", &mut c[2]);
                store!("3", &mut c[3]);
            }
        }
    }

    /// Some squares that have `b` in common: `c = a b` in the `first` block of k, `c += a b` after
    /// it. `a` has `stride` pairs of tiles for each square, of which as many count as `b` has.
    /// `beside` gets all squares before the last one, and the one before the first of these.
    ///
    /// Square `i` is in place `i % sums.len()`. In the `first` block, two places suffice, of which
    /// one is summed and the other one is taken by `beside`.
    ///
    /// The tile unit shall never wait. For three of the four tiles that are multiplied, two
    /// products lie between the last use of one and the first use of the next in its register, so
    /// that it is loaded meanwhile. At the end of a square, each tile of sums is stored as soon as
    /// its last product is done, and the next one is loaded in its place, while the other three are
    /// computed; the next sums were prefetched (all of them if there are 16 steps). With A and sums
    /// in L2 and B in L1, a square of 16 tiles of k took 1090 to 1180 cycles, of which products are
    /// 1024; with all stores before all loads, 1135 to 1218; in the order that there was before,
    /// without what goes across squares, 1325 to 1530 (2 vCPUs of a Xeon with 480 MiB of L3).
    ///
    /// `ahead` has `PAIRS` pairs of streams.
    #[allow(clippy::too_many_arguments)] // products have them all
    #[inline(always)]
    pub fn squares<const PAIRS: usize, B: Beside>(
        &self,
        a: &[[Half; 2]],
        stride: usize,
        b: [&[Half]; 2],
        sums: &mut [[Sums; 4]],
        squares: Range<usize>,
        first: bool,
        ahead: &mut Prefetch,
        beside: &mut B,
    ) {
        let (steps, places) = (b[0].len(), sums.len());
        if steps == 0 || squares.is_empty() {
            return;
        }
        assert!(
            places
                >= if first {
                    squares.end.min(2)
                } else {
                    squares.end
                }
        );
        let (b0, b1) = (b[0], &b[1][..steps]);
        let mut lines = ahead.lines::<PAIRS>();
        // So many are given to `beside` in each half of a step.
        let rows = SQUARE.div_ceil(2 * steps).next_multiple_of(B::UNIT);
        macro_rules! sums {
            ($t:literal, $from:expr) => {
                match first {
                    true => zero!($t),
                    false => load!($t, $from),
                }
            };
        }
        unsafe {
            let all = sums.as_mut_ptr();
            let mut at = squares.start % places;
            let mut done = squares.start.checked_sub(1).map(|i| all.add(i % places));
            let begin = &a[squares.start * stride];
            let c = all.add(at).cast::<Sums>();
            load_past_l1!("4", &begin[0]);
            load!("6", &b0[0]);
            load!("7", &b1[0]);
            load_past_l1!("5", &begin[1]);
            sums!("0", c.add(0));
            sums!("1", c.add(1));
            sums!("2", c.add(2));
            sums!("3", c.add(3));
            for square in squares.clone() {
                // After the last square it is loaded again, which nobody uses.
                let (later, place) = match square + 1 == squares.end {
                    true => (square, at),
                    false => (square + 1, if at + 1 == places { 0 } else { at + 1 }),
                };
                let (mut a, next_a) = (a[square * stride..][..steps].as_ptr(), &a[later * stride]);
                let (mut b0, mut b1) = (b0.as_ptr(), b1.as_ptr());
                let (begin_b0, begin_b1) = (b0, b1);
                let c = all.add(at).cast::<Sums>();
                // The next four tiles of sums, or the same ones.
                let next = all.add(place).cast::<Sums>().cast_const();
                let (mut parts, mut line) = ((0..SQUARE).step_by(rows), next.cast::<i8>());
                lines.a = ahead.of_square(square);
                macro_rules! beside {
                    () => {
                        if let Some(done) = done
                            && let Some(row) = parts.next()
                        {
                            // `done` is not `c`: two squares have two places or more.
                            beside.rows(square - 1, &mut *done, row..(row + rows).min(SQUARE));
                        }
                    };
                }
                macro_rules! ahead {
                    () => {
                        prefetch_four::<_MM_HINT_T0>(&mut line);
                        lines.step();
                    };
                }
                for _ in 1..steps {
                    (a, b0, b1) = (a.add(1), b0.add(1), b1.add(1));
                    multiply!("0", "4", "6");
                    multiply!("1", "4", "7");
                    load_past_l1!("4", a);
                    beside!();
                    multiply!("3", "5", "7");
                    load!("7", b1);
                    multiply!("2", "5", "6");
                    load_past_l1!("5", a.cast::<Half>().add(1));
                    load!("6", b0);
                    beside!();
                    ahead!();
                }
                multiply!("0", "4", "6");
                multiply!("1", "4", "7");
                load_past_l1!("4", &next_a[0]);
                beside!();
                multiply!("3", "5", "7");
                load!("7", begin_b1);
                store!("0", c.add(0));
                sums!("0", next.add(0));
                multiply!("2", "5", "6");
                load_past_l1!("5", &next_a[1]);
                load!("6", begin_b0);
                beside!();
                ahead!();
                store!("1", c.add(1));
                sums!("1", next.add(1));
                store!("3", c.add(3));
                sums!("3", next.add(3));
                store!("2", c.add(2));
                sums!("2", next.add(2));
                (done, at) = (Some(all.add(at)), place);
            }
        }
        ahead.went(&lines);
    }
}
