//! AMX: products of bfloat16 tiles, summed in float32.
//!
//! Stable Rust has neither the intrinsics nor the feature's name, so the instructions are written
//! as `asm!`. The compiler itself never uses the tile registers.
//!
//! For every sum of a tile, `tdpbf16ps` computes two chains of fused multiply-adds from zero over
//! ascending k: one of the products of even k, one of those of odd k. It adds the two chains, and
//! adds the result to the sum. Subnormal inputs and results count as zero. `scalar` does the same
//! to the bit.

#![allow(unsafe_code)]

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count, _MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
use std::marker::PhantomData;
use std::ops::Range;

/// Rows of a tile, and columns of a tile of sums.
pub const SIDE: usize = 16;
/// Columns k of a tile of bfloat16.
pub const TILE_K: usize = 32;
/// Numbers of a tile of bfloat16: A as `[16 rows][32 k]`, B as `[16 pairs of k][16 columns][2]`.
pub const TILE: usize = SIDE * TILE_K;
/// A tile of bfloat16.
pub type Half = [u16; TILE];
/// A tile of sums, `[16 rows][16 columns]`.
pub type Sums = [f32; SIDE * SIDE];
/// The largest number of columns of tiles in [`Tiles::row`].
pub const MAX_ROW: usize = 6;

/// The proof that this process may use tiles.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Amx(());

impl Amx {
    /// `Some` if the processor, the hypervisor and the operating system all let this process use
    /// bfloat16 tiles. This asks the operating system for permission, which holds for the whole
    /// process, including future threads. From then on it refuses signal stacks that are too small
    /// for a frame with tiles. If a thread of the host already has such a stack, permission is
    /// refused.
    pub fn detect() -> Option<Self> {
        /// From arch/x86/include/uapi/asm/prctl.h.
        const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
        const XFEATURE_XTILEDATA: libc::c_long = 18;
        const TILE_AND_BF16: u32 = (1 << 24) | (1 << 22);
        const OSXSAVE: u32 = 1 << 27;
        if __cpuid(0).eax < 7
            || __cpuid_count(7, 0).edx & TILE_AND_BF16 != TILE_AND_BF16
            || __cpuid(1).ecx & OSXSAVE == 0
        {
            return None;
        }
        let enabled: u32;
        // SAFETY: OSXSAVE says that the instruction is there; it reads a register.
        unsafe {
            asm!("xgetbv", in("ecx") 0, out("eax") enabled, out("edx") _, options(nomem, nostack));
        }
        // Tile configuration and tile data.
        if (enabled >> 17) & 3 != 3 {
            return None;
        }
        // SAFETY: touches no memory; an operating system that does not know the request returns an
        // error.
        let answer = unsafe {
            libc::syscall(
                libc::SYS_arch_prctl,
                ARCH_REQ_XCOMP_PERM,
                XFEATURE_XTILEDATA,
            )
        };
        (answer == 0).then_some(Self(()))
    }

    /// Configures the tiles of this thread. A thread has only one configuration at a time.
    #[inline(always)]
    pub fn tiles(self) -> Tiles {
        static WHOLE: Config = Config::new([64; 8], [16; 8]);
        self.configure(&WHOLE);
        Tiles(PhantomData)
    }

    #[inline(always)]
    fn configure(self, config: &'static Config) {
        // SAFETY: `self` is the proof that tiles may be used; Config has the layout of palette 1.
        unsafe { asm!("ldtilecfg [{}]", in(reg) config, options(nostack, readonly)) };
    }
}

/// Palette 1: the shapes of tiles.
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Config {
    const fn new(row_bytes: [u16; 8], rows: [u8; 8]) -> Self {
        let mut config = Self {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            row_bytes: [0; 16],
            rows: [0; 16],
        };
        let mut i = 0;
        while i < 8 {
            config.row_bytes[i] = row_bytes[i];
            config.rows[i] = rows[i];
            i += 1;
        }
        config
    }
}

/// The tiles of this thread, eight full ones, until this is dropped. They must not stay configured:
/// with live tile state, every thread switch saves 8 KiB.
pub struct Tiles(PhantomData<*const ()>);

impl Drop for Tiles {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: tiles were configured on this thread, which `Tiles` does not leave.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}

/// Like [`Tiles`], for sums over sixteen k: A has rows of sixteen numbers, B has eight rows of
/// pairs.
pub struct PageTiles(PhantomData<*const ()>);

impl Drop for PageTiles {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: as for `Tiles`.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}

/// A row of B: sixteen columns with two k each, `[16 columns][2]`.
pub type Pairs = [u16; 2 * SIDE];

macro_rules! zero {
    ($c:literal) => {
        asm!(concat!("tilezero tmm", $c), options(nostack, nomem))
    };
}
macro_rules! load {
    ($t:literal, $from:expr) => {
        load!($t, $from, 64usize)
    };
    ($t:literal, $from:expr, $stride:expr) => {
        asm!(concat!("tileloadd tmm", $t, ", [{} + {}*1]"), in(reg) $from, in(reg) $stride,
            options(nostack, readonly))
    };
}
/// Like `load!`, for tiles that this core will not need again soon. They are loaded from L2 and not
/// kept in L1, where they would displace data that is used again.
macro_rules! load_past_l1 {
    ($t:literal, $from:expr) => {
        asm!(concat!("tileloaddt1 tmm", $t, ", [{} + {}*1]"), in(reg) $from, in(reg) 64usize,
            options(nostack, readonly))
    };
}
macro_rules! store {
    ($t:literal, $to:expr) => {
        asm!(concat!("tilestored [{} + {}*1], tmm", $t), in(reg) $to, in(reg) 64usize, options(nostack))
    };
}
macro_rules! multiply {
    ($c:literal, $a:literal, $b:literal) => {
        asm!(
            concat!("tdpbf16ps tmm", $c, ", tmm", $a, ", tmm", $b),
            options(nostack, nomem)
        )
    };
}

/// Memory that will be needed soon, prefetched line by line beside products: pairs of streams of
/// weights, and activations. Both go into L2 only: lines from memory would occupy the buffers
/// through which L1 is filled from L2.
pub struct Prefetch {
    /// The next line of both streams of the first pair; how many bytes lie between a stream and
    /// that of the next pair; and how many pairs there are.
    streams: [*const i8; 2],
    distance: usize,
    pairs: usize,
    /// Lines of each stream that are left, and how many of them are fetched at a time.
    left: usize,
    share: usize,
    /// Where the first square's activations begin, how far it is from there to those of the next
    /// square, and how many times [`FOUR`] lines are fetched at a time.
    a: *const i8,
    a_stride: usize,
    a_share: usize,
}

impl Prefetch {
    /// The most pairs of streams. Streams beside each other keep more lines on their way from
    /// memory, since the prefetchers of L2 are at most twenty lines ahead in each.
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

    /// Nothing.
    #[inline(always)]
    pub fn none() -> Self {
        let nothing = std::ptr::null();
        Self {
            streams: [nothing; 2],
            distance: 0,
            pairs: 1,
            left: 0,
            share: 0,
            a: nothing,
            a_stride: 0,
            a_share: 0,
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
        self.a = a
            .as_ptr()
            .cast::<i8>()
            .wrapping_add(part * lines * Self::LINE);
        self.a_share = lines.div_ceil(steps.max(1) * FOUR);
    }

    /// Pairs of streams.
    pub fn pairs(&self) -> usize {
        self.pairs
    }

    /// The same with a number of pairs that is known when it is compiled, in variables that stay in
    /// registers: instructions beside the products cost as well. Loops over both numbers, with a
    /// pointer for each stream, took 8 % of a product.
    #[inline(always)]
    fn lines<const PAIRS: usize>(&self) -> Lines<PAIRS> {
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
    fn went<const PAIRS: usize>(&mut self, lines: &Lines<PAIRS>) {
        self.streams = lines.streams;
        self.left = lines.left;
    }
}

/// Lines of a [`Prefetch`], beside one square after another.
struct Lines<const PAIRS: usize> {
    streams: [*const i8; 2],
    distance: usize,
    left: usize,
    share: usize,
    /// The next line of the activations.
    a: *const i8,
    a_share: usize,
}

impl<const PAIRS: usize> Lines<PAIRS> {
    /// The lines beside one step.
    #[inline(always)]
    fn step(&mut self) {
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
fn prefetch_four<const HINT: i32>(line: &mut *const i8) {
    for _ in 0..FOUR {
        prefetch::<HINT>(line);
    }
}

/// What becomes of sums while the next ones are computed: vector instructions, which leave the tile
/// unit alone.
pub trait Beside {
    /// Takes these of the [`SQUARE`] rows of square number `square`, whose sums are complete.
    fn rows(&mut self, square: usize, sums: &[Sums; 4], rows: Range<usize>);
}

impl Beside for () {
    #[inline(always)]
    fn rows(&mut self, _: usize, _: &[Sums; 4], _: Range<usize>) {}
}

/// Rows of a square.
pub const SQUARE: usize = 2 * SIDE;

// SAFETY of every block below: `Tiles` exists, so eight full tiles are configured; a tile is 1 KiB,
// rows 64 bytes apart, read from and written to references to arrays of that size.
impl Tiles {
    /// Configures the tiles for products over sixteen k instead.
    #[inline(always)]
    pub fn for_pages(self, amx: Amx) -> PageTiles {
        static HALF: Config = Config::new(
            [64, 64, 64, 64, 32, 64, 64, 64],
            [16, 16, 16, 16, 16, 8, 8, 8],
        );
        drop(self);
        amx.configure(&HALF);
        PageTiles(PhantomData)
    }

    /// `c = a b`: 32 rows by 32 columns, with `c` as `[half of the rows][half of the columns]`; or
    /// if they are not `WHOLE`, the first 16 rows only.
    #[inline(always)]
    pub fn square<const WHOLE: bool>(&self, a: &[[Half; 2]], b: [&[Half]; 2], c: &mut [Sums; 4]) {
        self.begin_square::<WHOLE>(c, true);
        self.square_steps::<WHOLE>(a, b, &mut Prefetch::none());
        self.end_square::<WHOLE>(c);
    }

    /// The beginning of a [`Tiles::square`]: zero if it is the `first` block of k, otherwise its
    /// sums so far. Nothing else may use the tiles until its end.
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

    /// Some tiles of k of a [`Tiles::square`].
    #[inline(always)]
    pub fn square_steps<const WHOLE: bool>(
        &self,
        a: &[[Half; 2]],
        b: [&[Half]; 2],
        ahead: &mut Prefetch,
    ) {
        let (b0, b1) = (&b[0][..a.len()], &b[1][..a.len()]);
        let mut lines = ahead.lines::<{ Prefetch::PAIRS }>();
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
                lines.step();
            }
        }
        ahead.went(&lines);
    }

    /// The end of a [`Tiles::square`].
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

    /// Squares from number `from` on that have `b` in common: `c = a b` in the `first` block of k,
    /// `c += a b` after it. `a` has `stride` tiles for each square, of which as many count as `b`
    /// has. `beside` gets the squares before the last one, from `from - 1` on.
    ///
    /// The tile unit shall never wait. Two products lie between the last use of a tile of A and
    /// its next use, one or two for a tile of B, so that tiles are loaded meanwhile. At the end of
    /// a square, each tile of sums is stored as soon as its last product is done, and the next one
    /// is loaded in its place, while products of the other three are computed; the lines of the
    /// next sums were prefetched. With the loads and stores of all four sums together, a square of
    /// 16 tiles of k took 1335 to 1530 cycles instead of 1090 to 1180, of which products alone are
    /// 1024 (A and sums in L2, B in L1; 2 vCPUs of a Xeon with 480 MiB of L3).
    ///
    /// `ahead` has `PAIRS` pairs of streams, or fewer.
    #[allow(clippy::too_many_arguments)] // one caller has them all
    #[inline(always)]
    pub fn squares<const PAIRS: usize>(
        &self,
        a: &[[Half; 2]],
        stride: usize,
        b: [&[Half]; 2],
        sums: &mut [[Sums; 4]],
        from: usize,
        first: bool,
        ahead: &mut Prefetch,
        beside: &mut impl Beside,
    ) {
        let (steps, squares) = (b[0].len(), sums.len());
        if steps == 0 || from >= squares {
            return;
        }
        let (b0, b1) = (b[0], &b[1][..steps]);
        let mut lines = ahead.lines::<PAIRS>();
        // Beside each half of a step, and each step.
        let rows = SQUARE.div_ceil(2 * steps);
        macro_rules! sums {
            ($t:literal, $from:expr) => {
                match first {
                    true => zero!($t),
                    false => load!($t, $from),
                }
            };
        }
        unsafe {
            let begin = &a[from * stride];
            load_past_l1!("4", &begin[0]);
            load!("6", &b0[0]);
            load!("7", &b1[0]);
            load_past_l1!("5", &begin[1]);
            sums!("0", &sums[from][0]);
            sums!("1", &sums[from][1]);
            sums!("2", &sums[from][2]);
            sums!("3", &sums[from][3]);
            for square in from..squares {
                // Behind the last square, itself again.
                let later = (square + 1).min(squares - 1);
                let next = sums[later].each_ref().map(|sums| sums.as_ptr());
                let (mut a, next_a) = (a[square * stride..][..steps].as_ptr(), &a[later * stride]);
                let (mut b0, mut b1) = (b0.as_ptr(), b1.as_ptr());
                let (begin_b0, begin_b1) = (b0, b1);
                let (done, rest) = sums.split_at_mut(square);
                let (done, c) = (done.last(), &mut rest[0]);
                let (mut parts, mut line) = ((0..SQUARE).step_by(rows), next[0].cast::<i8>());
                lines.a = ahead.a.wrapping_add(square * ahead.a_stride);
                macro_rules! beside {
                    () => {
                        if let Some(done) = done
                            && let Some(row) = parts.next()
                        {
                            beside.rows(square - 1, done, row..(row + rows).min(SQUARE));
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
                store!("0", &mut c[0]);
                sums!("0", next[0]);
                multiply!("2", "5", "6");
                load_past_l1!("5", &next_a[1]);
                load!("6", begin_b0);
                beside!();
                ahead!();
                store!("1", &mut c[1]);
                sums!("1", next[1]);
                store!("3", &mut c[3]);
                sums!("3", next[3]);
                store!("2", &mut c[2]);
                sums!("2", next[2]);
            }
        }
        ahead.went(&lines);
    }

    /// `c = a b`, or `c += a b`: 16 rows by four columns of tiles. (Two columns would wait for each
    /// other.)
    #[inline(always)]
    pub fn wide(&self, a: &[Half], b: [&[Half]; 4], c: &mut [Sums; 4], first: bool) {
        let b = b.map(|b| &b[..a.len()]);
        unsafe {
            if first {
                zero!("0");
                zero!("1");
                zero!("2");
                zero!("3");
            } else {
                load!("0", &c[0]);
                load!("1", &c[1]);
                load!("2", &c[2]);
                load!("3", &c[3]);
            }
            for (k, a) in a.iter().enumerate() {
                load!("4", a);
                load!("5", &b[0][k]);
                multiply!("0", "4", "5");
                load!("6", &b[1][k]);
                multiply!("1", "4", "6");
                load!("7", &b[2][k]);
                multiply!("2", "4", "7");
                load!("5", &b[3][k]);
                multiply!("3", "4", "5");
            }
            store!("0", &mut c[0]);
            store!("1", &mut c[1]);
            store!("2", &mut c[2]);
            store!("3", &mut c[3]);
        }
    }

    /// `c = a b` (`c += a b`): 16 rows by [`MAX_ROW`] columns of tiles. Each column is a separate
    /// stream of memory, prefetched `AHEAD` tiles ahead.
    #[inline(always)]
    pub fn row<const AHEAD: usize>(
        &self,
        a: &[[Half; 2]],
        b: [&[Half]; MAX_ROW],
        c: &mut [Sums; MAX_ROW],
        first: bool,
    ) {
        let b = b.map(|b| &b[..a.len()]);
        unsafe {
            if first {
                zero!("0");
                zero!("1");
                zero!("2");
                zero!("3");
                zero!("4");
                zero!("5");
            } else {
                load!("0", &c[0]);
                load!("1", &c[1]);
                load!("2", &c[2]);
                load!("3", &c[3]);
                load!("4", &c[4]);
                load!("5", &c[5]);
            }
            macro_rules! column {
                ($c:literal, $b:expr) => {{
                    let tile: *const Half = $b;
                    for line in 0..SIDE {
                        let at = tile.cast::<i8>().wrapping_add(AHEAD * 1024 + line * 64);
                        _mm_prefetch::<_MM_HINT_T0>(at);
                    }
                    load!("7", tile);
                    multiply!($c, "6", "7");
                }};
            }
            for (k, a) in a.iter().enumerate() {
                load!("6", &a[0]);
                column!("0", &b[0][k]);
                column!("1", &b[1][k]);
                column!("2", &b[2][k]);
                column!("3", &b[3][k]);
                column!("4", &b[4][k]);
                column!("5", &b[5][k]);
            }
            store!("0", &mut c[0]);
            store!("1", &mut c[1]);
            store!("2", &mut c[2]);
            store!("3", &mut c[3]);
            store!("4", &mut c[4]);
            store!("5", &mut c[5]);
        }
    }

    /// For benchmarks, `4 n` products of two tiles of rows and two of columns and nothing else: the
    /// most that the processor can do. The tiles must not be zero: zeros take less power and would
    /// be faster.
    #[inline(always)]
    pub fn spin(&self, n: usize, data: &[Half; 4]) {
        unsafe {
            zero!("0");
            zero!("1");
            zero!("2");
            zero!("3");
            load!("4", &data[0]);
            load!("5", &data[1]);
            load!("6", &data[2]);
            load!("7", &data[3]);
            for _ in 0..n {
                multiply!("0", "4", "6");
                multiply!("1", "4", "7");
                multiply!("2", "5", "6");
                multiply!("3", "5", "7");
            }
        }
    }
}

impl PageTiles {
    /// `c = a b`: 16 rows by four columns of tiles, from column tile `first` of `b` on (beyond the
    /// end, the last tile again), summed page by page. Each tile of `a` has two pages. `b` has for
    /// each page eight rows of pairs with all columns. `between` runs after each page.
    #[inline(always)]
    pub fn wide(
        &self,
        a: &[Half],
        b: &[&[Pairs]],
        first: usize,
        c: &mut [Sums; 4],
        mut between: impl FnMut(),
    ) {
        // SAFETY: `PageTiles` exists, so the tiles are configured. A: 16 rows of 32 bytes, 64
        // apart, in the half of a 1 KiB tile that begins 0 or 32 bytes after its beginning. B: 8
        // rows of 64 bytes, `columns` apart; the last one is found with a bounds check. Sums as for
        // `Tiles`.
        unsafe {
            zero!("0");
            zero!("1");
            zero!("2");
            zero!("3");
            for (page, b) in b.iter().enumerate() {
                let columns = b.len() / (SIDE / 2);
                let stride = columns * size_of::<Pairs>();
                let column = |i: usize| -> *const Pairs {
                    let i = (first + i).min(columns - 1);
                    let rows = &b[i..(SIDE / 2 - 1) * columns + i + 1];
                    rows.as_ptr()
                };
                load!("4", a[page / 2].as_ptr().add(page % 2 * SIDE), 64usize);
                load!("5", column(0), stride);
                multiply!("0", "4", "5");
                load!("6", column(1), stride);
                multiply!("1", "4", "6");
                load!("7", column(2), stride);
                multiply!("2", "4", "7");
                load!("5", column(3), stride);
                multiply!("3", "4", "5");
                between();
            }
            store!("0", &mut c[0]);
            store!("1", &mut c[1]);
            store!("2", &mut c[2]);
            store!("3", &mut c[3]);
        }
    }
}
