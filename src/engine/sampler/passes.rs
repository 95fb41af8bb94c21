//! Passes over a row of the vocabulary's size, written so that they vectorise.

use super::{Place, place};
use crate::backend::choice::{Scale, mass_parts};

/// The number of elements that vectorised loops process together.
const LANES: usize = 16;

/// The largest value; -inf for an empty slice. It uses lanes, because a chain of dependent maxima
/// would not vectorise.
pub(super) fn maximum(values: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let chunks = values.chunks_exact(lanes.len());
    let rest = chunks.remainder();
    for chunk in chunks {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane = larger(*lane, *value);
        }
    }
    lanes
        .into_iter()
        .chain(rest.iter().copied())
        .fold(f32::NEG_INFINITY, larger)
}

/// The sum of all masses.
pub(super) fn total_mass(shares: &[f32]) -> u64 {
    let part = |shares: &[f32]| -> u64 {
        let (mut highs, mut lows) = (0u32, 0i32);
        for share in shares {
            let (high, low) = mass_parts(*share);
            highs = highs.wrapping_add(high);
            lows = lows.wrapping_add(low);
        }
        (u64::from(highs) << 19).wrapping_add_signed(i64::from(lows))
    };
    // A part has so few shares that their sum fits into 32 bits. (With checks for overflow, the
    // loop would not be vectorised.)
    shares.chunks(2048).map(part).sum()
}

/// Roughly the sum of the shares of the values that are `least` or more.
pub(super) fn share_from(shares: &[f32], values: &[f32], least: f32) -> f32 {
    let mut lanes = [0.0; LANES];
    let chunks = shares.chunks_exact(LANES).zip(values.chunks_exact(LANES));
    for (shares, values) in chunks {
        for ((lane, share), value) in lanes.iter_mut().zip(shares).zip(values) {
            *lane += if *value >= least { *share } else { 0.0 };
        }
    }
    let rest = shares.len() / LANES * LANES;
    let counted = shares[rest..].iter().zip(&values[rest..]);
    let counted = counted.filter(|(_, value)| **value >= least);
    lanes.iter().chain(counted.map(|(share, _)| share)).sum()
}

/// `out[i] = share(values[i])`. This is a loop over slices, because an iterator with a capturing
/// closure does not vectorise and takes twice as long.
pub(super) fn exponentials(out: &mut Vec<f32>, values: &[f32], max: f32, scale: Scale) {
    out.resize(values.len(), 0.0);
    for (out, value) in out.iter_mut().zip(values) {
        *out = scale.share(*value, max);
    }
}

/// The indices of the values that are `least` or more, in ascending order. There are few such
/// values, so whole blocks are skipped. Looking at each value took a third of the time of a draw.
pub(super) fn at_least(values: &[f32], least: f32) -> impl Iterator<Item = usize> {
    let blocks = values.as_chunks::<LANES>().0;
    // The last block may be shorter.
    let has_some = move |at: &usize| match blocks.get(*at) {
        Some(block) => block.iter().fold(false, |any, v| any | (*v >= least)),
        None => true,
    };
    (0..values.len().div_ceil(LANES))
        .filter(has_some)
        .flat_map(move |at| at * LANES..values.len().min((at + 1) * LANES))
        .filter(move |at| values[*at] >= least)
}

/// The `k`-th largest value, 1 <= k <= len.
///
/// The k-th largest of the maxima of blocks is a lower bound, because k values are at least as
/// large. One vectorised pass finds it and leaves few values from which to select. Without this
/// bound, selecting from 32,000 values takes longer than everything else together.
pub(super) fn kth_largest(values: &[f32], k: usize, select: &mut Vec<f32>) -> f32 {
    const BLOCK: usize = 64;
    let descending = |a: &f32, b: &f32| b.total_cmp(a);
    select.clear();
    if k <= values.len() / BLOCK {
        select.extend(values.chunks(BLOCK).map(maximum));
        let bound = *select.select_nth_unstable_by(k - 1, descending).1;
        select.clear();
        select.extend(at_least(values, bound).map(|at| values[at]));
    } else {
        select.extend_from_slice(values);
    }
    *select.select_nth_unstable_by(k - 1, descending).1
}

/// The places of the `n` largest values, and of values equal to the last of these, in order.
pub(super) fn best(values: &[f32], n: usize, select: &mut Vec<f32>, order: &mut Vec<(Place, u64)>) {
    order.clear();
    let n = n.min(values.len());
    if n > 0 {
        let floor = kth_largest(values, n, select);
        order.extend(at_least(values, floor).map(|id| (place(values[id], id), 0)));
        order.sort_unstable();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::choice::{ONE, mass};

    #[test]
    fn places_are_those_of_values_that_are_large_enough() {
        for len in [0, 1, LANES - 1, LANES, LANES + 1, 5 * LANES + 7] {
            for least in [f32::NEG_INFINITY, -3.0, 0.5, f32::INFINITY] {
                let values: Vec<f32> = (0..len).map(|i| ((i * 7) % 11) as f32 - 8.0).collect();
                let want: Vec<usize> = (0..len).filter(|i| values[*i] >= least).collect();
                let got: Vec<usize> = at_least(&values, least).collect();
                assert_eq!(got, want, "{len} values, {least}");
            }
        }
    }

    #[test]
    fn masses_add_up_to_what_each_has() {
        let scale = Scale::new(0.7);
        let values: Vec<f32> = (0..5000u32)
            .map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32 * (-30.0 / (1 << 24) as f32))
            .collect();
        let mut shares = Vec::new();
        exponentials(&mut shares, &values, 0.0, scale);
        let want: u64 = shares.iter().map(|share| mass(*share)).sum();
        assert_eq!(total_mass(&shares), want);
        for least in [f32::NEG_INFINITY, -20.0, -1.0, 1.0] {
            let counted = shares.iter().zip(&values).filter(|(_, v)| **v >= least);
            let want: f64 = counted.map(|(share, _)| f64::from(*share)).sum();
            let got = f64::from(share_from(&shares, &values, least));
            assert!((got - want).abs() <= 1e-4 * want, "{least}: {got} {want}");
        }
        // The largest sum that a part can have.
        let equal = vec![1.0; 10_000];
        assert_eq!(total_mass(&equal), 10_000 * ONE);
    }

    #[test]
    fn the_kth_largest_is_what_sorting_gives() {
        let mut select = Vec::new();
        for n in [1, 2, 63, 64, 65, 128, 1000] {
            let mut values: Vec<f32> = (0..n).map(|i| ((i * 7919) % 101) as f32 - 50.0).collect();
            values[0] = f32::NEG_INFINITY;
            let mut sorted = values.clone();
            sorted.sort_by(|a, b| b.total_cmp(a));
            for k in 1..=n {
                assert_eq!(
                    kth_largest(&values, k, &mut select),
                    sorted[k - 1],
                    "{k} of {n}"
                );
            }
        }
    }
}
