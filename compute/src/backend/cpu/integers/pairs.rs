//! Products of int16: a word holds two activations.

use super::super::blocks::{Blocks, WORDS};
use super::super::element::Weights;
use super::super::simd::{Lookahead, Simd};
use super::super::words::Panel;
use super::integer::{Decoded, Groups, Integers, Sums, accumulate, unrolled};
use std::marker::PhantomData;

/// int16 activations times weights of a format.
pub struct InPairs<Q>(PhantomData<Q>);

#[inline(always)]
fn panel<'a, const SIDE: usize>(x: Groups<'a>) -> Panel<'a, SIDE, WORDS> {
    x.x.panel(x.panel, x.first, x.count)
}

impl<Q: Blocks + Weights<Bits = u16>> Integers for InPairs<Q> {
    type Q = Q;
    type Table<S: Simd> = Q::Table<S>;
    #[inline(always)]
    fn table<S: Simd>(s: S) -> Q::Table<S> {
        Q::table(s)
    }
    const PARTS: usize = Q::PARTS;

    #[inline(always)]
    fn prefetch<S: Simd, const SIDE: usize>(s: S, x: Groups<'_>) {
        let words = panel::<SIDE>(x).words;
        for line in words.as_flattened() {
            s.prefetch(line, size_of_val(words));
        }
    }

    #[inline(always)]
    fn few<S: Simd, const SIDE: usize, const WIDE: usize>(
        s: S,
        table: Q::Table<S>,
        w: [&Q::Block; WIDE],
        ahead: Lookahead,
        x: Groups<'_>,
        sums: &mut Sums<SIDE, WIDE>,
    ) {
        let x = panel::<SIDE>(x);
        // Words of activations per line.
        let each = WORDS / Q::LINES;
        // Lines per span.
        let lines = Q::LINES / Q::SPANS;
        let mut common = [Q::common(s, w[0]); WIDE];
        unrolled!(WIDE, b => { common[b] = Q::common(s, w[b]); });
        for i in 0..Q::GROUPS * Q::SPANS {
            let (g, span) = (i / Q::SPANS, i % Q::SPANS);
            let (words, units, offsets) = (&x.words[g], &x.scales[g], &x.offsets[g]);
            let mut dots = [[Q::zero(s); SIDE]; WIDE];
            for j in 0..lines {
                let first = (span * lines + j) * each;
                unrolled!(WIDE, b => {
                    let line = Q::line(w[b], i * lines + j);
                    Q::prefetch_line(s, line, ahead);
                    if SIDE == 1 {
                        Q::prefetch_near(s, line);
                    }
                    Q::add(s, table, line, words, first, &mut dots[b]);
                });
            }
            unrolled!(WIDE, b => {
                Q::prefetch_scale(s, w[b], i, ahead);
                let scale = Q::scale(s, w[b], common[b], i);
                for r in 0..SIDE {
                    let sum = s.load(&sums[b][r]);
                    let (dot, offset) = (dots[b][r], offsets[r][span]);
                    let sum = Q::accumulate(s, scale, dot, offset, units[r], sum);
                    s.store(sum, &mut sums[b][r]);
                }
            });
        }
    }

    type Codes<S: Simd> = Q::Pairs<S>;
    #[inline(always)]
    fn codes<S: Simd>(s: S) -> Q::Pairs<S> {
        Q::table_of_pairs(s)
    }
    const LINES: usize = WORDS;
    #[inline(always)]
    fn decode<S: Simd>(s: S, codes: Q::Pairs<S>, line: Q::Line<'_>) -> [S::I; 4] {
        Q::int_pairs(s, codes, line)
    }
    type Planed = InPairs<Q::Planed>;

    #[inline(always)]
    fn many<S: Simd, const ROWS: usize, const SIDE: usize, const WIDE: usize>(
        s: S,
        w: &Decoded<'_, WIDE>,
        x: Groups<'_>,
        sums: &mut Sums<SIDE, WIDE>,
    ) {
        let x = panel::<SIDE>(x);
        for (i, words) in x.words.iter().enumerate() {
            for span in 0..Q::SPANS {
                let each = WORDS / Q::SPANS;
                let lines = &w.lines[i * WORDS + span * each..][..each];
                let mut dots = [[s.splat_i32(0); ROWS]; WIDE];
                let mut pairs = [s.splat_i32(0); WIDE];
                for b in 0..WIDE {
                    pairs[b] = s.load_i16(&lines[0][b]);
                }
                for r in 0..ROWS {
                    let x = s.splat_i32(words[r][span * each]);
                    for b in 0..WIDE {
                        dots[b][r] = s.mul_i16(pairs[b], x);
                    }
                }
                for j in 1..each {
                    for b in 0..WIDE {
                        pairs[b] = s.load_i16(&lines[j][b]);
                    }
                    for r in 0..ROWS {
                        let x = s.splat_i32(words[r][span * each + j]);
                        for b in 0..WIDE {
                            dots[b][r] = s.dot_i16(dots[b][r], pairs[b], x);
                        }
                    }
                }
                let of_rows = (&x.scales[i], &x.offsets[i]);
                accumulate::<Q, S, ROWS, SIDE, WIDE>(s, w, (i, span), dots, of_rows, sums);
            }
        }
    }
}
