//! AVX-VNNI on a processor that lacks it: the instructions are illegal there, and a handler of the
//! signal does what they would. So the kernels of the tier `avx2vnni` are tested as they are
//! compiled. With AVX-VNNI no signal is sent, and the processor is tested.
//!
//! `vpdpbusd` and `vpdpwssd`: Intel 64 and IA-32 Architectures Software Developer's Manual, volume
//! 2; registers in a signal's frame: volume 1, 13.4, the standard format of the XSAVE area.

#![cfg(all(target_arch = "x86_64", target_os = "linux"))]
#![allow(unsafe_code)]

use libc::{REG_RIP, SIG_DFL, SIGILL, c_int, c_void, siginfo_t, ucontext_t};
use llamabi_compute::backend::cpu::detect::{Avx2, Tier};
use llamabi_compute::backend::cpu::selftest::some_quantised_products_match;
use std::arch::x86_64::__cpuid_count;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Where the XSAVE area has the upper halves of the ymm registers.
static UPPER_HALVES: AtomicUsize = AtomicUsize::new(0);

/// Instructions that were illegal: `vpdpbusd` and `vpdpwssd`.
static EMULATED: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

const LOWER_HALVES: usize = 160;
/// Says which parts of the area hold anything: bit 1 the lower halves, bit 2 the upper ones. A part
/// that holds nothing is zero.
const PARTS_IN_USE: usize = 512;

/// An instruction of AVX-VNNI on ymm registers.
struct Dot {
    of_bytes: bool,
    to: usize,
    a: usize,
    b: usize,
}

impl Dot {
    const BYTES: usize = 5;

    /// `VEX.256.66.0F38.W0 50 /r` and `52 /r` with three registers.
    fn decode(code: [u8; Dot::BYTES]) -> Option<Dot> {
        let [prefix, map, vector, opcode, registers] = code;
        let known = prefix == 0xc4 && map & 31 == 2 && vector & 0b1000_0111 == 0b101;
        if !known || registers < 0xc0 || !matches!(opcode, 0x50 | 0x52) {
            return None;
        }
        // Upper bits of registers are inverted.
        let upper = |bit: u8| usize::from(!map >> bit & 1) << 3;
        Some(Dot {
            of_bytes: opcode == 0x50,
            to: upper(7) | usize::from(registers >> 3 & 7),
            a: usize::from(!vector >> 3 & 15),
            b: upper(5) | usize::from(registers & 7),
        })
    }

    fn lane(&self, a: [u8; 4], b: [u8; 4]) -> i32 {
        if self.of_bytes {
            let products = a.iter().zip(b);
            return products
                .map(|(&a, b)| i32::from(a) * i32::from(b as i8))
                .sum();
        }
        let words = |x: [u8; 4]| [[x[0], x[1]], [x[2], x[3]]].map(i16::from_le_bytes);
        let ([a0, a1], [b0, b1]) = (words(a), words(b));
        let product = |a, b| i32::from(a) * i32::from(b);
        product(a0, b0).wrapping_add(product(a1, b1))
    }
}

/// The signal's handler.
extern "C" fn emulate(_: c_int, _: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel gives a handler with SA_SIGINFO the context that it will resume, with an
    // XSAVE area that has the ymm registers, because the instruction that was tried needs AVX. The
    // instruction pointer is at the bytes that were executed, of which at least five can be read:
    // no function ends with an illegal instruction.
    unsafe {
        let context = &mut *context.cast::<ucontext_t>();
        let at = context.uc_mcontext.gregs[REG_RIP as usize];
        let Some(dot) = Dot::decode(*(at as *const [u8; Dot::BYTES])) else {
            libc::signal(SIGILL, SIG_DFL);
            return;
        };
        let area = context.uc_mcontext.fpregs.cast::<u8>();
        let in_use = area.add(PARTS_IN_USE).cast::<u64>();
        for (half, part) in [(LOWER_HALVES, 2), (UPPER_HALVES.load(Relaxed), 4)] {
            if in_use.read_unaligned() & part == 0 {
                area.add(half).write_bytes(0, 16 * 16);
                in_use.write_unaligned(in_use.read_unaligned() | part);
            }
            let lane = |register: usize, i: usize| {
                area.add(half + 16 * register + 4 * i).cast::<[u8; 4]>()
            };
            for i in 0..4 {
                let sum = i32::from_le_bytes(*lane(dot.to, i));
                let dots = dot.lane(*lane(dot.a, i), *lane(dot.b, i));
                *lane(dot.to, i) = sum.wrapping_add(dots).to_le_bytes();
            }
        }
        EMULATED[usize::from(!dot.of_bytes)].fetch_add(1, Relaxed);
        context.uc_mcontext.gregs[REG_RIP as usize] += Dot::BYTES as i64;
    }
}

#[test]
fn products_of_avx_vnni_match() {
    let Ok(avx2) = Tier::named("avx2") else {
        return println!("skipped: this processor has no AVX2");
    };
    let has = Tier::named("avx2vnni").is_ok();
    UPPER_HALVES.store(__cpuid_count(13, 2).ebx as usize, Relaxed);
    // SAFETY: the handler is async-signal-safe, and what it does not know it gives back to the
    // system. The instructions of AVX-VNNI are those that it knows.
    let tier = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = emulate as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(libc::sigaction(SIGILL, &action, std::ptr::null_mut()), 0);
        Tier::Avx2Vnni(Avx2::presumed())
    };
    some_quantised_products_match(avx2);
    some_quantised_products_match(tier);
    let emulated = EMULATED.each_ref().map(|n| n.load(Relaxed));
    println!("instructions of AVX-VNNI that were emulated: {emulated:?}");
    assert!(has || emulated.iter().all(|&n| n > 10_000), "{emulated:?}");
}
