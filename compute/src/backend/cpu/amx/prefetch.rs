//! What is prefetched beside products of tiles.

#![allow(unsafe_code)]

use super::Half;
use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};

/// Memory that will be needed soon, prefetched line by line beside products: pairs of streams of
/// weights, and activations. Both go into L2 only: lines from memory would occupy the buffers
/// through which L1 is filled from L2.
pub struct Prefetch {
    /// streams: the next line of both streams of the first pair. distance: bytes from a stream to
    /// the same stream of the next pair. pairs: how many pairs there are.
    streams: [*const i8; 2],
    distance: usize,
    pairs: usize,
    /// left: lines of each stream that are left. share: how many of these lines are fetched at a
    /// time.
    left: usize,
    share: usize,
    /// first_a: where the activations of the first square begin. a_stride: the distance from there
    /// to the activations of the next square. a_share: how many times [`FOUR`] lines are fetched at
    /// a time. a: the next line.
    first_a: *const i8,
    a_stride: usize,
    a_share: usize,
    a: *const i8,
}

impl Prefetch {
    /// The most pairs of streams. Several streams side by side keep more lines in flight from
    /// memory, since the prefetchers of L2 are at most twenty lines ahead in each stream.
    pub const PAIRS: usize = 4;
    const LINE: usize = 64;

    /// `pairs` pairs of streams that are as long as `first` and `distance` bytes apart, in so many
    /// equal shares. They may go beyond the end of the array.
    #[inline(always)]
    pub fn new<T>(first: [&[T]; 2], distance: usize, pairs: usize, shares: usize) -> Self {
        let left = size_of_val(first[0]).div_ceil(Self::LINE);
        Self {
            streams: first.map(|stream| stream.as_ptr().cast()),
            distance,
            pairs,
            left,
            share: left.div_ceil(shares.max(1)),
            ..Self::none()
        }
    }

    /// Prefetches nothing.
    #[inline(always)]
    pub fn none() -> Self {
        let nothing = std::ptr::null();
        Self {
            streams: [nothing; 2],
            distance: 0,
            pairs: 1,
            left: 0,
            share: 0,
            first_a: nothing,
            a_stride: 0,
            a_share: 0,
            a: nothing,
        }
    }

    /// From now on, also part `part` of `parts` of the activations of each square, which are
    /// `stride` pairs of tiles apart, in `steps` equal shares.
    #[inline(always)]
    pub fn activations(
        &mut self,
        a: &[[Half; 2]],
        stride: usize,
        [part, parts]: [usize; 2],
        steps: usize,
    ) {
        self.a_stride = stride * size_of::<[Half; 2]>();
        let lines = (self.a_stride / Self::LINE).div_ceil(parts);
        let first = a.as_ptr().cast::<i8>();
        self.first_a = first.wrapping_add(part * lines * Self::LINE);
        self.a_share = lines.div_ceil(steps.max(1) * FOUR);
    }

    /// Where the activations of square `square` begin.
    #[inline(always)]
    pub(super) fn of_square(&self, square: usize) -> *const i8 {
        self.first_a.wrapping_add(square * self.a_stride)
    }

    /// Before the first of the steps of square `square`.
    #[inline(always)]
    pub fn begin(&mut self, square: usize) {
        self.a = self.of_square(square);
    }

    /// The lines beside one step.
    #[inline(always)]
    pub(super) fn step(&mut self) {
        match self.pairs {
            1 => self.step_of::<1>(),
            2 => self.step_of::<2>(),
            _ => self.step_of::<{ Self::PAIRS }>(),
        }
    }

    #[inline(always)]
    fn step_of<const PAIRS: usize>(&mut self) {
        let mut lines = self.lines::<PAIRS>();
        lines.step();
        self.went(&lines);
    }

    /// How many pairs of streams there are.
    pub fn pairs(&self) -> usize {
        self.pairs
    }

    /// Its lines, for a number of pairs that is known when it is compiled, in variables that stay
    /// in registers. Instructions beside the products cost, too: with a loop over the streams, and
    /// a pointer for each, a product took 8 % longer.
    #[inline(always)]
    pub(super) fn lines<const PAIRS: usize>(&self) -> Lines<PAIRS> {
        Lines {
            streams: self.streams,
            distance: self.distance,
            left: self.left,
            share: self.share,
            a: self.a,
            a_share: self.a_share,
        }
    }

    /// What is left of them.
    #[inline(always)]
    pub(super) fn went<const PAIRS: usize>(&mut self, lines: &Lines<PAIRS>) {
        self.streams = lines.streams;
        self.left = lines.left;
        self.a = lines.a;
    }
}

/// Lines of a [`Prefetch`], beside one square after another.
pub(super) struct Lines<const PAIRS: usize> {
    streams: [*const i8; 2],
    distance: usize,
    left: usize,
    share: usize,
    /// The next line of the activations.
    pub a: *const i8,
    a_share: usize,
}

impl<const PAIRS: usize> Lines<PAIRS> {
    /// The lines beside one step.
    #[inline(always)]
    pub fn step(&mut self) {
        let now = self.share.min(self.left);
        self.left -= now;
        for _ in 0..now {
            for stream in &mut self.streams {
                for pair in 1..PAIRS {
                    prefetch::<_MM_HINT_T1>(
                        &mut stream.wrapping_add(pair.wrapping_mul(self.distance)),
                    );
                }
                prefetch::<_MM_HINT_T1>(stream);
            }
        }
        for _ in 0..self.a_share {
            prefetch_four::<_MM_HINT_T1>(&mut self.a);
        }
    }
}

/// Prefetches a line, and goes on to the next one.
#[inline(always)]
fn prefetch<const HINT: i32>(line: &mut *const i8) {
    // SAFETY: a prefetch of any address is allowed.
    unsafe { _mm_prefetch::<HINT>(*line) };
    *line = line.wrapping_add(Prefetch::LINE);
}

/// So many lines of what lies in one piece are prefetched at once.
const FOUR: usize = 4;

#[inline(always)]
pub(super) fn prefetch_four<const HINT: i32>(line: &mut *const i8) {
    for _ in 0..FOUR {
        prefetch::<HINT>(line);
    }
}
