//! What the bytes of a stored tensor are.

use crate::Dtype;

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
}

impl Encoding {
    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            Encoding::F32 => 4,
            Encoding::F16 | Encoding::Bf16 => 2,
            Encoding::I8 | Encoding::U8 => 1,
        }
    }

    /// The format of the numbers themselves, where they are plain floats.
    pub const fn float(self) -> Option<Dtype> {
        match self {
            Encoding::F32 => Some(Dtype::F32),
            Encoding::F16 => Some(Dtype::F16),
            Encoding::Bf16 => Some(Dtype::Bf16),
            Encoding::I8 | Encoding::U8 => None,
        }
    }

    /// The field's short name: `f32`, `f16`, `bf16`, `i8`, `u8`.
    pub const fn name(self) -> &'static str {
        match self {
            Encoding::F32 => "f32",
            Encoding::F16 => "f16",
            Encoding::Bf16 => "bf16",
            Encoding::I8 => "i8",
            Encoding::U8 => "u8",
        }
    }
}

impl std::fmt::Display for Encoding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
