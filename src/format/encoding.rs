//! What the bytes of a stored tensor are.

use crate::Dtype;
use crate::quant::ggml;

/// The encoding of a tensor in a file. This set is open: every checkpoint format may add to it.
/// What kernels multiply is a [`Dtype`], a closed set; only the floats are both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// bfloat16: the upper half of a binary32.
    Bf16,
    /// Signed bytes: 8-bit codes.
    I8,
    /// Unsigned bytes: two 4-bit codes, or the 8-bit code of a scale.
    U8,
    /// Words of 32 bits: several codes each, or the numbers of groups.
    I32,
    /// Words of 64 bits: sizes.
    I64,
    /// 8-bit floats, e4m3 ([`crate::quant::fp8`]).
    F8E4m3,
    /// Blocks of a GGUF file; never one of its floats.
    Ggml(ggml::Type),
}

impl Encoding {
    /// Bytes of one element; of one block where elements lie in blocks.
    pub fn size(self) -> usize {
        match self {
            Encoding::I64 => 8,
            Encoding::F32 | Encoding::I32 => 4,
            Encoding::F16 | Encoding::Bf16 => 2,
            Encoding::I8 | Encoding::U8 | Encoding::F8E4m3 => 1,
            Encoding::Ggml(kind) => kind.block_bytes(),
        }
    }

    /// The format of the numbers themselves, where they are plain floats.
    pub const fn float(self) -> Option<Dtype> {
        match self {
            Encoding::F32 => Some(Dtype::F32),
            Encoding::F16 => Some(Dtype::F16),
            Encoding::Bf16 => Some(Dtype::Bf16),
            _ => None,
        }
    }

    /// The field's short name: `f32`, `f16`, `bf16`, `i8`, `u8`, `i32`, `i64`, `f8_e4m3`; ggml's
    /// own of its blocks, `Q4_K`.
    pub fn name(self) -> &'static str {
        match self {
            Encoding::F32 => "f32",
            Encoding::F16 => "f16",
            Encoding::Bf16 => "bf16",
            Encoding::I8 => "i8",
            Encoding::U8 => "u8",
            Encoding::I32 => "i32",
            Encoding::I64 => "i64",
            Encoding::F8E4m3 => "f8_e4m3",
            Encoding::Ggml(kind) => kind.name(),
        }
    }
}

impl From<ggml::Type> for Encoding {
    fn from(kind: ggml::Type) -> Encoding {
        match kind {
            ggml::Type::F32 => Encoding::F32,
            ggml::Type::F16 => Encoding::F16,
            ggml::Type::Bf16 => Encoding::Bf16,
            kind => Encoding::Ggml(kind),
        }
    }
}

impl std::fmt::Display for Encoding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
