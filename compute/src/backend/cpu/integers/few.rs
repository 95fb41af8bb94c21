//! Kernels for few rows: weights are read directly from memory, and unpacked again for every few
//! rows.

use super::super::blocks::Blocks;
use super::super::results::TaskSums;
use super::super::simd::{Kernel, LANES, Simd};
use super::super::strips::TASK_STRIPS;
use super::super::words::{MAX_SIDE, Task};
use super::integer::{Groups, Integers};
use super::most_side;

/// A [`Task`] with few rows.
pub struct Few<'a, A: Integers>(pub Task<'a, A::Q>);

/// The blocks of a task's strips.
type Blocked<'a, A> = [&'a [<<A as Integers>::Q as Blocks>::Block]; TASK_STRIPS];

impl<A: Integers> Kernel for Few<'_, A> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // The strips are cut into blocks here: cutting them in every arm of the `match` was 8 % of
        // the crate's machine code.
        let mut strips: Blocked<'_, A> = [&[]; TASK_STRIPS];
        for (i, strip) in strips.iter_mut().enumerate() {
            *strip = A::Q::blocks(self.0.weights.get(i));
        }
        // The number of registers has a `match` of its own, because the compiler leaves out an arm
        // only if a constant rules it out. In the portable tier, all the other arms took a tenth of
        // the compile time of the crate.
        match S::REGISTERS {
            4 => match self.0.x.side() {
                1 => self.tiles::<S, 1, 1>(s, &strips),
                2 => self.tiles::<S, 2, 1>(s, &strips),
                side => unreachable!("{side} rows"),
            },
            _ => self.many_registers(s, &strips),
        }
    }
}

impl<A: Integers> Few<'_, A> {
    /// Chooses (rows side by side, strips side by side): as many sums as registers allow.
    #[inline(always)]
    fn many_registers<S: Simd>(self, s: S, strips: &Blocked<'_, A>) {
        let side = self.0.x.side();
        match const { S::REGISTERS / A::PARTS } {
            32 => match side {
                1 => self.tiles::<S, 1, 8>(s, strips),
                2 => self.tiles::<S, 2, 8>(s, strips),
                3 => self.tiles::<S, 3, 4>(s, strips),
                4 => self.tiles::<S, 4, 4>(s, strips),
                5 => self.tiles::<S, 5, 2>(s, strips),
                6 => self.tiles::<S, 6, 2>(s, strips),
                7 => self.tiles::<S, 7, 2>(s, strips),
                8 => self.tiles::<S, 8, 2>(s, strips),
                _ => unreachable!("{side} rows"),
            },
            16 => match side {
                1 => self.tiles::<S, 1, 8>(s, strips),
                2 => self.tiles::<S, 2, 4>(s, strips),
                3 => self.tiles::<S, 3, 2>(s, strips),
                4 => self.tiles::<S, 4, 2>(s, strips),
                _ => self.one_strip(s, strips),
            },
            8 => match side {
                1 => self.tiles::<S, 1, 4>(s, strips),
                2 => self.tiles::<S, 2, 2>(s, strips),
                _ => self.one_strip(s, strips),
            },
            4 => match side {
                1 => self.tiles::<S, 1, 2>(s, strips),
                _ => self.one_strip(s, strips),
            },
            _ => self.one_strip(s, strips),
        }
    }

    #[inline(always)]
    fn one_strip<S: Simd>(self, s: S, strips: &Blocked<'_, A>) {
        match self.0.x.side() {
            1 => self.tiles::<S, 1, 1>(s, strips),
            2 => self.tiles::<S, 2, 1>(s, strips),
            3 => self.tiles::<S, 3, 1>(s, strips),
            4 => self.tiles::<S, 4, 1>(s, strips),
            side => match const { most_side(S::REGISTERS, S::BYTES) } {
                MAX_SIDE => match side {
                    5 => self.tiles::<S, 5, 1>(s, strips),
                    6 => self.tiles::<S, 6, 1>(s, strips),
                    7 => self.tiles::<S, 7, 1>(s, strips),
                    8 => self.tiles::<S, 8, 1>(s, strips),
                    _ => unreachable!("{side} rows"),
                },
                most => unreachable!("{side} rows, of which {most} are multiplied at once"),
            },
        }
    }

    /// Takes one block of every strip in turn. All rows pass over a block while it is in the near
    /// caches.
    #[inline(always)]
    fn tiles<S: Simd, const SIDE: usize, const WIDE: usize>(self, s: S, strips: &Blocked<'_, A>) {
        let Task {
            weights,
            x,
            scratch,
            mut write,
        } = self.0;
        let table = A::table(s);
        let strips = strips.as_chunks::<WIDE>().0;
        let blocks = strips[0][0].len();
        let sums = scratch.as_chunks_mut::<LANES>().0;
        let sums = sums.as_chunks_mut::<SIDE>().0.as_chunks_mut::<WIDE>().0;
        let panels = x.rows().div_ceil(SIDE);
        let sums = &mut sums[..weights.total().div_ceil(WIDE) * panels];
        sums.as_flattened_mut()
            .as_flattened_mut()
            .fill([0.0; LANES]);
        for k in 0..blocks {
            let bytes = A::Q::AHEAD * size_of::<<A::Q as Blocks>::Block>();
            let ahead = weights.ahead(bytes, k + A::Q::AHEAD >= blocks, SIDE == 1);
            let of_panel = |panel| Groups {
                x,
                panel,
                first: k * A::Q::GROUPS,
                count: A::Q::GROUPS,
            };
            // Activations of several rows come from L2. Without the prefetch they would wait behind
            // the weights.
            for i in 0..panels {
                A::prefetch::<S, SIDE>(s, of_panel(i));
            }
            for (strips, sums) in strips.iter().zip(sums.chunks_exact_mut(panels)) {
                let w = strips.map(|strip| &strip[k]);
                for (i, sums) in sums.iter_mut().enumerate() {
                    A::few::<S, SIDE, WIDE>(s, table, w, ahead, of_panel(i), sums);
                }
            }
        }
        write.rows(s, 0..x.rows(), TaskSums::new(sums, panels));
    }
}
