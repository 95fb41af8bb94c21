//! AMX: products of bfloat16 tiles, summed in float32; in `bytes`, products of tiles of int8.
//!
//! Stable Rust has neither the intrinsics nor the feature's name, so the instructions are written
//! as `asm!`. The compiler itself never uses the tile registers.
//!
//! For every sum of a tile, `tdpbf16ps` computes two chains of fused multiply-adds from zero over
//! ascending k. One chain has the products of even k, the other has the products of odd k. It adds
//! the two chains, and adds the result to the sum. Subnormal inputs and results count as zero.
//! `scalar` does the same to the bit.

#![allow(unsafe_code)]

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count, _MM_HINT_T0, _mm_prefetch};
use std::marker::PhantomData;

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
pub struct Amx {
    /// Whether there are products of bytes, too.
    bytes: bool,
}

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
        const INT8: u32 = 1 << 25;
        const OSXSAVE: u32 = 1 << 27;
        if __cpuid(0).eax < 7 || __cpuid(1).ecx & OSXSAVE == 0 {
            return None;
        }
        let features = __cpuid_count(7, 0).edx;
        if features & TILE_AND_BF16 != TILE_AND_BF16 {
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
        (answer == 0).then_some(Self {
            bytes: features & INT8 != 0,
        })
    }

    /// Whether there are [`ByteTiles`].
    pub fn has_bytes(self) -> bool {
        self.bytes
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

// After the macros, which they use.
mod bytes;
mod prefetch;
mod squares;

pub use bytes::{ByteTiles, IntSums, Rows};
pub use prefetch::Prefetch;
pub use squares::Beside;

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
