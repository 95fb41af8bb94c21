//! Reading in slabs: their size, the threads that read them, the conversion of their bytes, and the
//! progress.

use super::files::Source;
use super::finite;
use crate::backend::Backend;
use crate::format::Encoding;
use crate::{Dtype, Error, Result, reserve};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use std::sync::Mutex;

/// Bytes of a slab. It is so large that reading takes longer than the call, and so small that it
/// fits into L2.
const SLAB: usize = 2 << 20;

/// The number of pieces in which threads share a slab. With eight, the other threads do not wait
/// long for the last piece.
pub(super) const PIECES: usize = 8;

/// Slabs begin at multiples of this many rows, so that a backend that packs rows in strips mostly
/// gets whole strips.
const SLAB_ROWS: usize = 64;

/// Reads bytes of a tensor, from `offset` on, with all threads. (Two threads copy 2.2 GB from the
/// page cache in 0.14 s; one thread takes 0.27 s.) Floats will be converted to `to`: the thread
/// that has read them checks them while they are in its cache.
pub(super) fn read<B: Backend>(
    backend: &B,
    source: &Source,
    to: Dtype,
    offset: u64,
    bytes: &mut [u8],
) -> Result<()> {
    const PIECE: usize = SLAB / PIECES;
    on_threads(backend, bytes.chunks_mut(PIECE), |i, piece| {
        finite::read(source, to, offset + (i * PIECE) as u64, piece)
    })
}

/// Fills `n` rows of `width` numbers with all threads. Each call of `fill` gets the number of its
/// first row, and fills whole rows.
pub(super) fn by_rows<B: Backend, T: Send>(
    backend: &B,
    to: &mut [T],
    width: usize,
    n: usize,
    fill: impl Fn(usize, &mut [T]) -> Result<()> + Sync,
) -> Result<()> {
    let step = n.div_ceil(PIECES);
    on_threads(backend, to.chunks_mut(step * width), |i, to| {
        fill(i * step, to)
    })
}

/// Calls `fill` for each piece, with all threads; it gets the number of the piece. Returns the
/// error of the first piece that has one.
pub(super) fn on_threads<B: Backend, T: Send>(
    backend: &B,
    pieces: impl Iterator<Item = T>,
    fill: impl Fn(usize, &mut T) -> Result<()> + Sync,
) -> Result<()> {
    let pieces: Vec<Mutex<T>> = pieces.map(Mutex::new).collect();
    let failed: Mutex<Option<(usize, Error)>> = Mutex::new(None);
    backend.each(pieces.len(), &|i| {
        let mut to = pieces[i].lock().unwrap_or_else(|e| e.into_inner());
        if let Err(error) = fill(i, &mut to) {
            let mut first = failed.lock().unwrap_or_else(|e| e.into_inner());
            if first.as_ref().is_none_or(|&(before, _)| i < before) {
                *first = Some((i, error));
            }
        }
    });
    match failed.into_inner().unwrap_or_else(|e| e.into_inner()) {
        Some((_, error)) => Err(error),
        None => Ok(()),
    }
}

/// The progress of reading.
pub(super) struct Progress {
    done: u64,
    total: u64,
    /// The share that was reported last.
    share: f32,
}

impl Progress {
    /// The progress of reading `total` bytes.
    pub fn new(total: u64) -> Progress {
        Progress {
            done: 0,
            total,
            share: 0.0,
        }
    }

    /// Returns the share to report, if it differs from the last one. Whatever rounding gives, it is
    /// 1.0 only at the end.
    pub fn advance(&mut self, bytes: u64) -> Option<f32> {
        self.done += bytes;
        let share = if self.done == self.total {
            1.0
        } else {
            ((self.done as f64 / self.total as f64) as f32).min(1.0 - f32::EPSILON)
        };
        let news = share > self.share;
        self.share = share;
        news.then_some(share)
    }
}

/// Number of rows in a slab of a tensor with `rows` rows.
pub(super) fn slab_rows(rows: usize, row_bytes: usize) -> usize {
    let step = (SLAB / row_bytes).clamp(1, rows);
    match step > SLAB_ROWS {
        true => step - step % SLAB_ROWS,
        false => step,
    }
}

pub(super) fn zeros_f32(what: &str, len: usize) -> Result<Vec<f32>> {
    let mut values = Vec::new();
    let refused = |_| Error::refused(what, 4 * len as u64);
    values.try_reserve_exact(len).map_err(refused)?;
    values.resize(len, 0.0);
    Ok(values)
}

/// The dtype of an encoding of floats.
pub(super) fn float(encoding: Encoding) -> Dtype {
    encoding.float().expect("the plan has checked")
}

/// Appends little-endian elements of any alignment as float32.
pub(super) fn to_f32(encoding: Encoding, bytes: &[u8], values: &mut Vec<f32>) -> Result<()> {
    let (before, n) = (values.len(), bytes.len() / encoding.size());
    reserve::vec("rows as float32", values, n)?;
    values.resize(before + n, 0.0);
    as_f32(encoding, bytes, &mut values[before..]);
    Ok(())
}

/// Converts little-endian elements of any alignment to float32.
pub(super) fn as_f32(encoding: Encoding, bytes: &[u8], values: &mut [f32]) {
    match encoding {
        Encoding::F32 => {
            for (&from, to) in bytes.as_chunks().0.iter().zip(values) {
                *to = f32::from_le_bytes(from);
            }
        }
        Encoding::F16 => {
            // `half` converts slices with the processor's instructions, single numbers by a call.
            let mut some = [f16::ZERO; 64];
            for (from, to) in bytes
                .chunks(2 * some.len())
                .zip(values.chunks_mut(some.len()))
            {
                for (&from, to) in from.as_chunks().0.iter().zip(&mut some) {
                    *to = f16::from_le_bytes(from);
                }
                some[..to.len()].convert_to_f32_slice(to);
            }
        }
        Encoding::Bf16 => {
            for (&from, to) in bytes.as_chunks().0.iter().zip(values) {
                *to = bf16::from_le_bytes(from).to_f32();
            }
        }
        _ => unreachable!("{encoding} is no format of a float"),
    }
}

#[cfg(test)]
mod tests {
    use super::Progress;

    #[test]
    fn progress_is_news_and_ends_once() {
        // The total is a billion times larger than its parts, so most steps change nothing that a
        // float32 shows.
        let total = 1 << 40;
        let mut progress = Progress::new(total);
        let mut shares: Vec<f32> = (0..10_000)
            .filter_map(|_| progress.advance(1 << 10))
            .collect();
        shares.extend(progress.advance(total - progress.done - 2));
        assert_eq!(
            progress.advance(1),
            None,
            "rounds to 1.0, but is not the end"
        );
        assert!(shares.last().is_some_and(|&share| share < 1.0));
        shares.extend(progress.advance(1));
        assert_eq!(shares.last(), Some(&1.0));
        assert!(shares.is_sorted_by(|a, b| a < b));
    }
}
