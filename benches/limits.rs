//! The limits of this machine: memory read bandwidth, float32 multiply-adds, products of bfloat16
//! tiles. (U)

#![allow(unsafe_code)]
#![allow(dead_code)] // each benchmark uses its part

use llamabi::backend::cpu::buf::Mem;
#[cfg(target_arch = "x86_64")]
use llamabi::backend::cpu::{amx::Amx, detect::Tier};
use std::hint::black_box;
use std::time::Instant;

/// Runs `f(thread, round)` for `rounds` rounds on `threads` threads that start together. Returns
/// the seconds of each round, ascending. The threads live through all rounds, so that the system
/// has time to give each its own processor.
fn seconds(threads: usize, rounds: usize, f: impl Fn(usize, usize) + Sync) -> Vec<f64> {
    let barrier = std::sync::Barrier::new(threads);
    let times: Vec<Vec<(Instant, Instant)>> = std::thread::scope(|s| {
        let spawned: Vec<_> = (0..threads)
            .map(|thread| {
                let (f, barrier) = (&f, &barrier);
                s.spawn(move || {
                    let run = |round| {
                        barrier.wait();
                        let start = Instant::now();
                        f(thread, round);
                        (start, Instant::now())
                    };
                    (0..rounds).map(run).collect()
                })
            })
            .collect();
        spawned.into_iter().map(|t| t.join().unwrap()).collect()
    });
    let seconds = |round: usize| {
        let start = times.iter().map(|t| t[round].0).min().unwrap();
        let end = times.iter().map(|t| t[round].1).max().unwrap();
        (end - start).as_secs_f64()
    };
    let mut all: Vec<f64> = (0..rounds).map(seconds).collect();
    all.sort_by(f64::total_cmp);
    all
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;
    use std::hint::black_box;

    /// Asks for the line 1 KiB after `p`, into L1 or L2, or leaves it to the processor.
    #[inline(always)]
    fn prefetch<const INTO: i32>(p: *const i32) {
        let p = p.wrapping_add(256).cast();
        // SAFETY: any address may be prefetched.
        unsafe {
            match INTO {
                _MM_HINT_T0 => _mm_prefetch::<_MM_HINT_T0>(p),
                _MM_HINT_T1 => _mm_prefetch::<_MM_HINT_T1>(p),
                _ => {}
            }
        }
    }

    /// Eight streams.
    #[target_feature(enable = "avx512f")]
    pub fn read_512<const INTO: i32>(data: &[i32]) -> i32 {
        let stride = data.len() / 8;
        let mut sum = [_mm512_setzero_si512(); 8];
        for i in (0..stride - 15).step_by(16) {
            for (s, sum) in sum.iter_mut().enumerate() {
                // SAFETY: `i + 16 <= stride`.
                unsafe {
                    let p = data.as_ptr().add(s * stride + i);
                    prefetch::<INTO>(p);
                    *sum = _mm512_xor_si512(*sum, _mm512_loadu_si512(p.cast()));
                }
            }
        }
        let mut all = sum[0];
        for s in &sum[1..] {
            all = _mm512_xor_si512(all, *s);
        }
        _mm512_reduce_add_epi32(all)
    }

    #[target_feature(enable = "avx2")]
    pub fn read_256<const INTO: i32>(data: &[i32]) -> i32 {
        let stride = data.len() / 8;
        let mut sum = [_mm256_setzero_si256(); 8];
        for i in (0..stride - 15).step_by(16) {
            for (s, sum) in sum.iter_mut().enumerate() {
                // SAFETY: as above.
                unsafe {
                    let p = data.as_ptr().add(s * stride + i);
                    prefetch::<INTO>(p);
                    let a = _mm256_loadu_si256(p.cast());
                    let b = _mm256_loadu_si256(p.add(8).cast());
                    *sum = _mm256_xor_si256(*sum, _mm256_xor_si256(a, b));
                }
            }
        }
        let mut all = sum[0];
        for s in &sum[1..] {
            all = _mm256_xor_si256(all, *s);
        }
        _mm256_extract_epi32::<0>(all)
    }

    #[target_feature(enable = "avx512f")]
    pub fn fma_512(n: usize) {
        let (x, y) = (
            _mm512_set1_ps(black_box(1.0)),
            _mm512_set1_ps(black_box(1e-9)),
        );
        let mut a = [x; 16];
        for _ in 0..n {
            for a in &mut a {
                *a = _mm512_fmadd_ps(*a, x, y);
            }
        }
        black_box(a);
    }

    #[target_feature(enable = "avx2,fma")]
    pub fn fma_256(n: usize) {
        let (x, y) = (
            _mm256_set1_ps(black_box(1.0)),
            _mm256_set1_ps(black_box(1e-9)),
        );
        let mut a = [x; 12];
        for _ in 0..n {
            for a in &mut a {
                *a = _mm256_fmadd_ps(*a, x, y);
            }
        }
        black_box(a);
    }
}

/// Does 4 n products of tiles with nothing else beside them; returns the number of operations.
#[cfg(target_arch = "x86_64")]
fn tile_products(amx: Amx, n: usize) -> f64 {
    // Numbers between 1 and 2, of either sign.
    let number = |i: usize| 0x3f80 | (i * 7919 % 128) as u16 | ((i as u16 & 1) << 15);
    let data = [(); 4].map(|()| std::array::from_fn(number));
    amx.tiles().spin(n, &data);
    n as f64 * 4.0 * 2.0 * (16 * 16 * 32) as f64
}

/// No prefetch, in the place of a hint.
const NONE: i32 = -1;
/// Ways to read. Which is the fastest depends on the machine: prefetched into L1, two cores of a
/// Zen 4 read 39 GB/s line by line, into L2 55, and 58 if nothing is prefetched.
#[cfg(target_arch = "x86_64")]
const WAYS: [fn(&[i32]) -> i32; 3] = [
    read::<{ std::arch::x86_64::_MM_HINT_T0 }>,
    read::<{ std::arch::x86_64::_MM_HINT_T1 }>,
    read::<NONE>,
];
#[cfg(not(target_arch = "x86_64"))]
const WAYS: [fn(&[i32]) -> i32; 1] = [read::<NONE>];

/// Reads all of it. `INTO` is a hint for prefetches, or [`NONE`].
fn read<const INTO: i32>(data: &[i32]) -> i32 {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: just detected.
            return unsafe { x86::read_512::<INTO>(data) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: just detected.
            return unsafe { x86::read_256::<INTO>(data) };
        }
    }
    data.iter().fold(0, |a, b| a ^ b)
}

/// Multiply-adds: runs about `n` rounds and returns how many operations that were (a multiply-add
/// is 2).
fn multiply_add(n: usize) -> f64 {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: just detected.
            unsafe { x86::fma_512(n) };
            return n as f64 * 16.0 * 16.0 * 2.0;
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: just detected.
            unsafe { x86::fma_256(n) };
            return n as f64 * 12.0 * 8.0 * 2.0;
        }
    }
    let mut a = [black_box(1.0f32); 16];
    for _ in 0..n {
        a.iter_mut().for_each(|a| *a = *a * 1.000_001 + 1e-9);
    }
    black_box(a);
    n as f64 * 16.0 * 2.0
}

/// Measures again and again what `threads` threads reach together, so that a benchmark can
/// alternate this with its cases.
pub struct Limits {
    threads: usize,
    /// Much more data than the last-level cache holds, in pages as large as those of weights.
    data: Mem<i32>,
    /// Set if the tier has bfloat16 tiles; otherwise float32 multiply-adds are the peak.
    #[cfg(target_arch = "x86_64")]
    amx: Option<Amx>,
    /// Bytes a second, in the order measured.
    pub read: Vec<f64>,
    /// Operations a second.
    pub peak: Vec<f64>,
}

impl Limits {
    pub fn new(threads: usize) -> Limits {
        let mut data = Mem::zeroed("what is read", (1 << 30) / 4).expect("memory");
        data.fill(1);
        Limits {
            threads,
            data,
            #[cfg(target_arch = "x86_64")]
            amx: Tier::choose().expect("a tier").amx(),
            read: Vec::new(),
            peak: Vec::new(),
        }
    }

    /// Measures both once: the median over windows of some milliseconds. Of the ways to read, the
    /// fastest counts.
    pub fn measure(&mut self) {
        let (threads, rounds) = (self.threads, 25);
        let window = (64 << 20) / 4;
        let windows = self.data.len() / window;
        let rate = |read: fn(&[i32]) -> i32| {
            let time = seconds(threads, rounds, |thread, round| {
                let w = (round * threads + thread) % windows;
                black_box(read(&self.data[w * window..][..window]));
            });
            (threads * window * 4) as f64 / time[rounds / 2]
        };
        let fastest = WAYS.map(rate).into_iter().fold(0.0, f64::max);
        self.read.push(fastest);
        #[cfg(target_arch = "x86_64")]
        if let Some(amx) = self.amx {
            let n = 100_000;
            let operations = tile_products(amx, 1) * n as f64;
            let time = seconds(threads, rounds, |_, _| {
                black_box(tile_products(amx, n));
            });
            self.peak
                .push(threads as f64 * operations / time[rounds / 2]);
            return;
        }
        let n = 500_000;
        let operations = multiply_add(1) * n as f64;
        let time = seconds(threads, rounds, |_, _| {
            black_box(multiply_add(n));
        });
        self.peak
            .push(threads as f64 * operations / time[rounds / 2]);
    }

    /// Bytes that measuring itself keeps in memory.
    pub fn bytes(&self) -> u64 {
        4 * self.data.len() as u64
    }

    /// What the peak counts.
    pub fn peak_name(&self) -> &'static str {
        #[cfg(target_arch = "x86_64")]
        if self.amx.is_some() {
            return "bf16 tiles";
        }
        "f32 multiply-adds"
    }
}

/// The median.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// Work of the processors so far, in ticks.
pub struct Busy {
    /// Working, or taken by the host.
    work: u64,
    /// The same, plus idle.
    all: u64,
    /// Working for this process.
    own: u64,
}

impl Busy {
    pub fn now() -> Busy {
        // Fields that are not numbers of ticks (a name, a letter, -1) keep their positions.
        let ticks = |line: &str, which: &[usize]| -> u64 {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let number = |&i: &usize| fields.get(i)?.parse::<u64>().ok();
            which.iter().filter_map(number).sum()
        };
        let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let stat = stat.lines().next().unwrap_or("");
        let own = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        Busy {
            // user, nice, system, (idle, iowait,) irq, softirq, steal
            work: ticks(stat, &[1, 2, 3, 6, 7, 8]),
            all: ticks(stat, &[1, 2, 3, 4, 5, 6, 7, 8]),
            // user and system time; fields are counted from the end of the program's name, which
            // may contain spaces
            own: ticks(own.rsplit(')').next().unwrap_or(""), &[11, 12]),
        }
    }

    /// The share of the processors' time that other processes have had since then.
    pub fn others(&self) -> f64 {
        let now = Busy::now();
        let others = (now.work - self.work).saturating_sub(now.own - self.own);
        others as f64 / (now.all - self.all).max(1) as f64
    }
}

/// Seconds of processors' time that this process has had.
pub fn processor_seconds() -> f64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a place for what the function writes, and the clock is one of POSIX's.
    let status = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    assert_eq!(status, 0);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}
