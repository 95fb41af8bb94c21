//! Chooses the instruction set of the kernels, once, when a handle is built.

#[cfg(target_arch = "x86_64")]
use super::amx::Amx;
#[cfg(target_arch = "x86_64")]
use super::simd::avx512::Avx512;
use super::simd::{Kernel, Simd, portable::Portable};
use crate::{Error, Result};
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::__cpuid;
#[cfg(target_arch = "x86_64")]
use std::sync::LazyLock;

#[cfg(target_arch = "x86_64")]
pub use super::simd::avx2::Avx2;

/// Forces a tier: one of [`TIERS`]. For tests; a tier that the processor lacks is an error.
pub const TIER_VARIABLE: &str = "LLAMABI_CPU_TIER";

/// The names of all tiers.
pub const TIERS: [&str; 6] = [
    "portable",
    "avx2",
    "avx2vnni",
    "avx512",
    "avx512bf16",
    "amx",
];

/// An instruction set that was found on this processor.
#[derive(Clone, Copy, Debug)]
pub enum Tier {
    /// The compiler's baseline.
    Portable(Portable),
    /// AVX2, FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    /// AVX2 with AVX-VNNI: what processors of Intel have that lack AVX-512.
    #[cfg(target_arch = "x86_64")]
    Avx2Vnni(Avx2<1>),
    /// AVX-512 F, BW, VL and DQ.
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
    /// AVX-512 with VNNI, BF16 and VBMI, whose products of bfloat16 multiply prompt rows.
    #[cfg(target_arch = "x86_64")]
    Avx512Bf16(Avx512<2>),
    /// AVX-512 with VNNI, BF16 and VBMI, and bfloat16 tiles for prompt rows.
    #[cfg(target_arch = "x86_64")]
    Amx(Avx512<2>, Amx),
}

/// The processor's maker, as `cpuid` names it. Under a hypervisor that instruction takes
/// microseconds, so it is asked once.
#[cfg(target_arch = "x86_64")]
static MAKER: LazyLock<[[u8; 4]; 3]> = LazyLock::new(|| {
    let vendor = __cpuid(0);
    [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes)
});

/// Whether products without tiles prefetch the weights of one row into L1; otherwise they do into
/// L2.
///
/// Prefetched into L1, two cores of a Zen 4 read 31 GB/s of the 54 that they read with L2,
/// presumably because no more lines can be on their way than L1 has buffers for misses. An Emerald
/// Rapids is 1.05 to 1.16 times as fast with L1; other processors of Intel, and AVX2 on them, were
/// not measured (benches/record/2026-11-27-before-and-after.txt).
pub(super) fn prefetches_into_l1() -> bool {
    #[cfg(target_arch = "x86_64")]
    return MAKER.as_flattened() == b"GenuineIntel";
    #[cfg(not(target_arch = "x86_64"))]
    false
}

impl Tier {
    /// The tier that [`TIER_VARIABLE`] names; without it, the best that the processor has.
    pub fn choose() -> Result<Tier> {
        // An empty variable counts as not set, because some shells and service files cannot unset
        // one.
        match std::env::var_os(TIER_VARIABLE).filter(|name| !name.is_empty()) {
            None => Ok(Self::best()),
            Some(name) => Self::named(&name.to_string_lossy()),
        }
    }

    /// The best tier that the processor has.
    pub fn best() -> Tier {
        #[cfg(target_arch = "x86_64")]
        {
            if let Some(s) = Avx512::detect() {
                let bf16 = || s.bf16().filter(|_| has_fast_bf16()).map(Tier::Avx512Bf16);
                return Self::tiles(s).or_else(bf16).unwrap_or(Tier::Avx512(s));
            }
        }
        Self::vectors()
    }

    /// The best tier that has nothing but vectors of float32 and of integers. Unlike
    /// [`Tier::best`], this never asks the system for the permission that tiles need.
    pub fn vectors() -> Tier {
        #[cfg(target_arch = "x86_64")]
        {
            if let Some(s) = Avx512::detect() {
                return Tier::Avx512(s);
            }
            if let Some(s) = Avx2::detect() {
                return s.vnni().map_or(Tier::Avx2(s), Tier::Avx2Vnni);
            }
        }
        Tier::Portable(Portable)
    }

    /// The tier of this name.
    pub fn named(name: &str) -> Result<Tier> {
        #[cfg(target_arch = "x86_64")]
        let (avx2, vnni, avx512, bf16, amx) = {
            let (avx2, avx512) = (Avx2::detect(), Avx512::detect());
            let vnni = avx2.and_then(Avx2::vnni).map(Tier::Avx2Vnni);
            let bf16 = avx512.and_then(Avx512::bf16).map(Tier::Avx512Bf16);
            // Tiles are requested only if they are wanted, because the permission holds for the
            // whole process.
            let amx = avx512.filter(|_| name == "amx").and_then(Self::tiles);
            let (avx2, avx512) = (avx2.map(Tier::Avx2), avx512.map(Tier::Avx512));
            (avx2, vnni, avx512, bf16, amx)
        };
        #[cfg(not(target_arch = "x86_64"))]
        let (avx2, vnni, avx512, bf16, amx) = (None, None, None, None, None);
        match name {
            "portable" => Ok(Tier::Portable(Portable)),
            "avx2" => avx2.ok_or("AVX2, FMA and F16C"),
            "avx2vnni" => vnni.ok_or("AVX2 with AVX-VNNI"),
            "avx512" => avx512.ok_or("AVX-512 F, BW, VL and DQ"),
            "avx512bf16" => bf16.ok_or("AVX-512 with VNNI, BF16 and VBMI"),
            "amx" => {
                amx.ok_or("AVX-512 and AMX with bfloat16, or the system does not let it be used")
            }
            _ => {
                return Err(Error::invalid(
                    TIER_VARIABLE,
                    "portable, avx2, avx2vnni, avx512, avx512bf16 or amx",
                    name,
                ));
            }
        }
        .map_err(|what| {
            Error::Unsupported(format!(
                "{TIER_VARIABLE}={name}: this processor has no {what}"
            ))
        })
    }

    /// The tier with tiles, if there are tiles and the vector instructions that fill them. Every
    /// processor with tiles has those, but what a hypervisor shows of it may not.
    #[cfg(target_arch = "x86_64")]
    fn tiles(s: Avx512) -> Option<Tier> {
        let s = s.bf16()?;
        Some(Tier::Amx(s, Amx::detect()?))
    }

    /// The tier's name for people.
    pub fn name(self) -> &'static str {
        match self {
            Tier::Portable(_) => "portable",
            #[cfg(target_arch = "x86_64")]
            Tier::Avx2(_) => "AVX2",
            #[cfg(target_arch = "x86_64")]
            Tier::Avx2Vnni(_) => "AVX2 with VNNI",
            #[cfg(target_arch = "x86_64")]
            Tier::Avx512(_) => "AVX-512",
            #[cfg(target_arch = "x86_64")]
            Tier::Avx512Bf16(_) => "AVX-512 with BF16",
            #[cfg(target_arch = "x86_64")]
            Tier::Amx(..) => "AVX-512 and AMX",
        }
    }

    /// Runs a kernel with these instructions.
    #[inline]
    pub fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self {
            Tier::Portable(s) => s.vectorize(kernel),
            #[cfg(target_arch = "x86_64")]
            Tier::Avx2(s) => s.vectorize(kernel),
            #[cfg(target_arch = "x86_64")]
            Tier::Avx2Vnni(s) => s.base().vectorize(kernel),
            #[cfg(target_arch = "x86_64")]
            Tier::Avx512(s) => s.vectorize(kernel),
            #[cfg(target_arch = "x86_64")]
            Tier::Avx512Bf16(s) | Tier::Amx(s, _) => s.base().vectorize(kernel),
        }
    }

    /// Like [`Tier::run`], for kernels that multiply integers. It uses VNNI if the processor has
    /// it.
    #[inline]
    pub fn run_integers<K: Kernel>(self, kernel: K) -> K::Output {
        match self.has_bytes() {
            true => self.run_bytes(kernel),
            false => self.run(kernel),
        }
    }

    /// Runs a kernel that multiplies bytes. It is compiled for VNNI alone.
    ///
    /// # Panics
    /// On a tier without [`Tier::has_bytes`].
    #[inline]
    pub fn run_bytes<K: Kernel>(self, kernel: K) -> K::Output {
        #[cfg(target_arch = "x86_64")]
        match (self, self.vnni()) {
            (Tier::Avx2Vnni(s), _) => return s.vectorize(kernel),
            (_, Some(s)) => return s.vectorize(kernel),
            _ => drop(kernel),
        }
        unreachable!("the tier {} has no products of bytes", self.name())
    }

    /// Runs a kernel that sums products of codes up to 15 in 16 bits. It is compiled for AVX2
    /// without VNNI.
    ///
    /// # Panics
    /// On a tier without [`Tier::has_nibbles`].
    #[inline]
    pub fn run_nibbles<K: Kernel>(self, kernel: K) -> K::Output {
        match self {
            #[cfg(target_arch = "x86_64")]
            Tier::Avx2(s) => s.vectorize(kernel),
            _ => unreachable!("the tier {} has other products", self.name()),
        }
    }

    /// Runs a kernel that rounds to bfloat16 and multiplies pairs of it or tiles. It is compiled
    /// for processors with BF16.
    ///
    /// # Panics
    /// On a tier without [`Tier::has_bf16`] and [`Tier::has_tiles`].
    #[inline]
    pub fn run_bf16<K: Kernel>(self, kernel: K) -> K::Output {
        match self {
            #[cfg(target_arch = "x86_64")]
            Tier::Avx512Bf16(s) | Tier::Amx(s, _) => s.vectorize(kernel),
            _ => unreachable!("the tier {} has no products of bfloat16", self.name()),
        }
    }

    /// VNNI of AVX-512.
    #[cfg(target_arch = "x86_64")]
    fn vnni(self) -> Option<Avx512<1>> {
        match self {
            Tier::Avx512(s) => s.vnni(),
            Tier::Avx512Bf16(s) | Tier::Amx(s, _) => Some(s.without_bf16()),
            _ => None,
        }
    }

    /// Runs a kernel that fills tiles, or that works beside them. It is compiled for the tier that
    /// has them and for no other.
    ///
    /// # Panics
    /// On a tier without tiles.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    pub fn run_with_tiles<K: Kernel>(self, kernel: K) -> K::Output {
        match self {
            Tier::Amx(s, _) => s.vectorize(kernel),
            _ => unreachable!("the tier {} has no tiles", self.name()),
        }
    }

    /// [`Simd::REGISTERS`] of this tier.
    pub fn registers(self) -> usize {
        match self {
            Tier::Portable(_) => Portable::REGISTERS,
            #[cfg(target_arch = "x86_64")]
            Tier::Avx2(_) | Tier::Avx2Vnni(_) => Avx2::<0>::REGISTERS,
            #[cfg(target_arch = "x86_64")]
            Tier::Avx512(_) | Tier::Avx512Bf16(_) | Tier::Amx(..) => Avx512::<0>::REGISTERS,
        }
    }

    /// Whether the tier multiplies pairs of int16 faster than float32. Without such instructions a
    /// product of integers takes half as many operations again.
    pub fn has_pairs(self) -> bool {
        !matches!(self, Tier::Portable(_))
    }

    /// Whether the tier multiplies bytes, four at a time, faster than pairs of int16: VNNI.
    pub fn has_bytes(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return matches!(self, Tier::Avx2Vnni(_)) || self.vnni().is_some();
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    /// Whether the tier multiplies bytes with codes up to 15, two at a time, faster than pairs of
    /// int16. AVX-512 without VNNI has the instruction, too, but has not been measured.
    pub fn has_nibbles(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return matches!(self, Tier::Avx2(_));
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    /// Whether prompt rows are multiplied as pairs of bfloat16 without tiles.
    pub fn has_bf16(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return matches!(self, Tier::Avx512Bf16(_));
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    /// Whether prompt rows are multiplied with bfloat16 tiles.
    pub fn has_tiles(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return self.amx().is_some();
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    /// Whether the tier multiplies tiles of bytes.
    pub fn has_byte_tiles(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return self.amx().is_some_and(Amx::has_bytes);
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    /// The tile unit that multiplies prompt rows, if this tier has it.
    #[cfg(target_arch = "x86_64")]
    pub fn amx(self) -> Option<Amx> {
        match self {
            Tier::Amx(_, amx) => Some(amx),
            _ => None,
        }
    }
}

/// Whether `vdpbf16ps` does more products in a cycle than float32 does: twice as many on AMD's
/// cores (Zen 4: 117 and 58 G multiply-adds a second on one core, measured), half as many on
/// Intel's (Sapphire Rapids: 40 and 74). The maker decides, not a measurement, because results
/// depend on the answer and must not depend on noise.
#[cfg(target_arch = "x86_64")]
fn has_fast_bf16() -> bool {
    MAKER.as_flattened() == b"AuthenticAMD"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_names_are_errors_that_list_the_known_ones() {
        let error = Tier::named("avx1024").unwrap_err();
        assert_eq!(
            error.to_string(),
            "LLAMABI_CPU_TIER is avx1024, must be portable, avx2, avx2vnni, avx512, avx512bf16 or amx"
        );
        assert_eq!(Tier::named("portable").unwrap().name(), "portable");
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn a_tier_is_there_exactly_when_the_processor_has_it() {
        let has = |t| Tier::named(t).is_ok();
        assert_eq!(has("avx512"), Avx512::detect().is_some());
        assert_eq!(has("avx2"), Avx2::detect().is_some());
        let vnni = Avx2::detect().and_then(Avx2::vnni);
        assert_eq!(has("avx2vnni"), vnni.is_some());
        let tiles = Avx512::detect().and_then(Tier::tiles);
        assert_eq!(has("amx"), tiles.is_some());
        let bf16 = Avx512::detect().and_then(Avx512::bf16);
        assert_eq!(has("avx512bf16"), bf16.is_some());
        let best = Tier::best().name();
        assert_eq!(has("amx"), best == "AVX-512 and AMX", "{best}");
        if !has("avx512") {
            let error = Tier::named("avx512").unwrap_err();
            assert!(matches!(error, Error::Unsupported(_)), "{error}");
        }
    }
}
