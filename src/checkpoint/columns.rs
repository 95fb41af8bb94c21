//! Some columns of whole rows: where they are, and copying them.

use crate::quant::Quant;
use std::ops::Range;

/// Where the codes of these columns are in a row of codes.
pub(super) fn code_columns(quant: Quant, cols: &Range<usize>) -> Range<usize> {
    quant.code_bytes(cols.start)..quant.code_bytes(cols.end)
}

/// Where the scales of these columns are in a row of scales.
pub(super) fn scale_columns(quant: Quant, cols: &Range<usize>) -> Range<usize> {
    quant.scales(cols.start)..quant.scales(cols.end)
}

/// Copies some columns of `n` whole rows.
pub(super) fn cut_rows<T: Copy>(from: &[T], n: usize, cols: Range<usize>, to: &mut [T]) {
    if n == 0 || cols.is_empty() {
        return;
    }
    let rows = from.chunks_exact(from.len() / n);
    for (from, to) in rows.zip(to.chunks_exact_mut(cols.len())) {
        to.copy_from_slice(&from[cols.clone()]);
    }
}
