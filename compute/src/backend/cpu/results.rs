//! What becomes of the sums of a product without tiles ([`super::results_amx`] has those of tiles).

use super::exp::silu;
use super::lora::{Low, OfRow};
use super::pool::Rect;
use super::simd::{Kernel, LANES, Simd};
use super::strips::Cut;
use std::ops::Range;

/// What happens to the sums of a product.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Finish {
    /// `out = y + bias`.
    Store,
    /// `out += scale * (y + bias)`.
    Add { scale: f32 },
    /// `out += silu(y + bias)`.
    AddSilu,
    /// `out = silu(first part) * second part`.
    SwiGlu,
    /// `out = silu(out) * (y + bias)`: SwiGLU if the two parts have different formats. `out` then
    /// holds the product of the first part.
    Gated,
}

/// What a product does with its sums.
#[derive(Clone, Copy)]
pub(super) struct Ending<'a> {
    pub finish: Finish,
    /// What adapters add to the sums first.
    pub low: Option<Low<'a>>,
}

impl Finish {
    /// Writes `out` for one strip of a row, from its sum and, in SwiGLU, the sum of the second
    /// part.
    #[inline(always)]
    pub fn write<S: Simd>(self, s: S, out: &mut [f32], y: S::F, second: S::F) {
        match self {
            Finish::SwiGlu => s.store_partial(s.mul(silu(s, y), second), out),
            _ => self.put(s, out, y),
        }
    }

    /// The same for all but SwiGLU.
    #[inline(always)]
    pub fn put<S: Simd>(self, s: S, out: &mut [f32], y: S::F) {
        let y = match self {
            Finish::Store => y,
            Finish::Add { scale } => s.add(s.load_partial(out), s.mul(y, s.splat(scale))),
            Finish::AddSilu => s.add(s.load_partial(out), silu(s, y)),
            Finish::Gated => s.mul(silu(s, s.load_partial(out)), y),
            Finish::SwiGlu => unreachable!("two sums"),
        };
        s.store_partial(y, out);
    }
}

/// The sums of a task: `[tile][panel][wide][side][16]`. `wide` strips times `side` rows are a
/// register tile.
#[derive(Clone, Copy)]
pub(super) struct TaskSums<'a> {
    numbers: &'a [[f32; LANES]],
    panels: usize,
    wide: usize,
    side: usize,
}

impl<'a> TaskSums<'a> {
    /// Of `panels` panels.
    #[inline(always)]
    pub fn new<const SIDE: usize, const WIDE: usize>(
        sums: &'a [[[[f32; LANES]; SIDE]; WIDE]],
        panels: usize,
    ) -> Self {
        Self {
            numbers: sums.as_flattened().as_flattened(),
            panels,
            wide: WIDE,
            side: SIDE,
        }
    }

    /// The sums of strip `strip` of the task and of those after it, for row `row` of the panels.
    #[inline(always)]
    fn from(self, strip: usize, row: usize) -> Walk<'a> {
        let (tile, b) = (strip / self.wide, strip % self.wide);
        let (panel, r) = (row / self.side, row % self.side);
        Walk {
            sums: self,
            at: ((tile * self.panels + panel) * self.wide + b) * self.side + r,
            b,
        }
    }
}

/// Goes from strip to strip without a division, which takes a Skylake 26 cycles (Fog's tables).
struct Walk<'a> {
    sums: TaskSums<'a>,
    at: usize,
    /// The strip's place in its tile.
    b: usize,
}

impl<'a> Walk<'a> {
    #[inline(always)]
    fn next(&mut self) -> &'a [f32; LANES] {
        let TaskSums {
            numbers,
            panels,
            wide,
            side,
        } = self.sums;
        let sums = &numbers[self.at];
        self.at += side;
        self.b += 1;
        if self.b == wide {
            self.b = 0;
            self.at += (panels - 1) * wide * side;
        }
        sums
    }
}

/// What happens to the sums of a task.
pub(super) struct WriteOut<'a> {
    pub cut: Cut,
    pub bias: &'a [f32],
    pub ending: Ending<'a>,
    /// Row `i` of the sums goes to row `to[i]` of `out`.
    pub to: &'a [u32],
    pub out: Rect<'a, f32>,
}

impl WriteOut<'_> {
    /// Writes `rows`, of which the first is the first of the sums.
    ///
    /// Each instruction set has one such function, which the kernels call. When it was inlined into
    /// them, for each format and number of rows, it was three tenths of the crate's machine code
    /// (benches/record/2026-11-25-make-demo.txt).
    #[inline(always)]
    pub fn rows<S: Simd>(&mut self, s: S, rows: Range<usize>, sums: TaskSums<'_>) {
        s.vectorize(WriteRows {
            write: self,
            rows,
            sums,
        });
    }
}

struct WriteRows<'w, 'a, 's> {
    write: &'w mut WriteOut<'a>,
    rows: Range<usize>,
    sums: TaskSums<'s>,
}

/// So many rows before a row is written, its place is prefetched. It lies in another page than the
/// row before it, so the processor does not foresee it. Prompts and many streams were about 2 %
/// faster on a Zen 4 (benches/record/2026-11-27-results-prefetched.txt).
const ROWS_AHEAD: usize = 4;

impl Kernel for WriteRows<'_, '_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { write, rows, sums } = self;
        let WriteOut { cut, to, out, .. } = write;
        let bias = write.bias.as_chunks::<LANES>().0;
        let Ending { finish, low } = write.ending;
        for (i, row) in rows.enumerate() {
            if let Some(&later) = to.get(row + ROWS_AHEAD) {
                for out in out.row(later as usize).chunks_mut(LANES) {
                    s.prefetch_to_write(&mut out[0]);
                }
            }
            let low = low.and_then(|low| low.of_row(to[row]));
            let low = low.as_ref();
            let (mut firsts, mut seconds) = (sums.from(0, i), sums.from(cut.count, i));
            let columns = out.row(to[row] as usize).chunks_mut(LANES);
            for (strip, out) in (cut.first..).zip(columns) {
                let y = complete(s, firsts.next(), bias, low, strip);
                let other = match cut.second {
                    Some(second) => complete(s, seconds.next(), bias, low, second + strip),
                    None => y,
                };
                finish.write(s, out, y, other);
            }
        }
    }
}

/// The sums of a strip, with its bias and what the row's adapter adds. As a closure that is called
/// twice, this became a function without the caller's instruction set, and with adapters a step
/// took 1.4 times as long.
#[inline(always)]
fn complete<S: Simd>(
    s: S,
    sums: &[f32; LANES],
    bias: &[[f32; LANES]],
    low: Option<&OfRow<'_>>,
    strip: usize,
) -> S::F {
    let y = s.load(sums);
    let y = match bias.get(strip) {
        Some(b) => s.add(y, s.load(b)),
        None => y,
    };
    match low {
        Some(low) => low.add(s, strip, y),
        None => y,
    }
}
