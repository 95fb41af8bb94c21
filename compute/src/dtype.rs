//! Number formats of weights and of the KV cache.

use crate::quant::Quant;

/// How numbers are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// bfloat16: the upper half of a binary32.
    Bf16,
    /// Integers of 8 bits and a scale for each group: [`Quant::Int8`] in weights; in the KV cache a
    /// scale for each head's vector.
    Int8,
    /// [`Quant::Int4`]; weights only.
    Int4,
    /// [`Quant::Nf4`]; weights only.
    Nf4,
    /// 8-bit floats, e4m3, with a scale for each group: [`Quant::Fp8`] in weights; in the KV cache,
    /// a scale for the vector of each head. On GPUs only.
    Fp8,
    /// [`Quant::K4`]; weights of files that have it only.
    K4,
    /// [`Quant::K8`]; as K4.
    K8,
    /// [`Quant::K5`]; as K4.
    K5,
    /// [`Quant::K6`]; as K4.
    K6,
    /// [`Quant::Iq4`]; as K4.
    Iq4,
    /// [`Quant::Uint4`]; as K4.
    Uint4,
}

impl Dtype {
    /// All of them, each at the place of its number.
    pub const ALL: [Dtype; 13] = [
        Dtype::F32,
        Dtype::F16,
        Dtype::Bf16,
        Dtype::Int8,
        Dtype::Int4,
        Dtype::Nf4,
        Dtype::Fp8,
        Dtype::K4,
        Dtype::K8,
        Dtype::K5,
        Dtype::K6,
        Dtype::Iq4,
        Dtype::Uint4,
    ];

    /// Bytes of one element; for quantised weights, of one code that is not packed with others.
    pub const fn size(self) -> usize {
        match self {
            Dtype::F32 => 4,
            Dtype::F16 | Dtype::Bf16 => 2,
            _ => 1,
        }
    }

    /// Whether this is a floating-point format.
    pub const fn is_float(self) -> bool {
        matches!(self, Dtype::F32 | Dtype::F16 | Dtype::Bf16)
    }

    /// Whether only files of other programs have it, so that nobody can ask for it.
    pub const fn is_of_files(self) -> bool {
        matches!(
            self,
            Dtype::K4 | Dtype::K5 | Dtype::K6 | Dtype::K8 | Dtype::Iq4 | Dtype::Uint4
        )
    }

    /// Whether the KV cache can have it, on some backend.
    pub const fn is_of_cache(self) -> bool {
        self.is_float() || self.has_vector_scales()
    }

    /// Whether the KV cache has a scale for each head's vector with it.
    pub const fn has_vector_scales(self) -> bool {
        matches!(self, Dtype::Int8 | Dtype::Fp8)
    }

    /// The block format that weights of this dtype have.
    pub const fn quant(self) -> Option<Quant> {
        match self {
            Dtype::Int8 => Some(Quant::Int8),
            Dtype::Int4 => Some(Quant::Int4),
            Dtype::Nf4 => Some(Quant::Nf4),
            Dtype::K4 => Some(Quant::K4),
            Dtype::K5 => Some(Quant::K5),
            Dtype::K6 => Some(Quant::K6),
            Dtype::K8 => Some(Quant::K8),
            Dtype::Iq4 => Some(Quant::Iq4),
            Dtype::Uint4 => Some(Quant::Uint4),
            Dtype::Fp8 => Some(Quant::Fp8),
            Dtype::F32 | Dtype::F16 | Dtype::Bf16 => None,
        }
    }

    /// The field's short name: `f32`, `f16`, `bf16`, `int8`, `int4`, `nf4`, `k4`, `k5`, `k6`,
    /// `k8`, `iq4`, `uint4`, `fp8`.
    pub const fn name(self) -> &'static str {
        match self {
            Dtype::F32 => "f32",
            Dtype::F16 => "f16",
            Dtype::Bf16 => "bf16",
            Dtype::Int8 => "int8",
            Dtype::Int4 => "int4",
            Dtype::Nf4 => "nf4",
            Dtype::K4 => "k4",
            Dtype::K5 => "k5",
            Dtype::K6 => "k6",
            Dtype::K8 => "k8",
            Dtype::Iq4 => "iq4",
            Dtype::Uint4 => "uint4",
            Dtype::Fp8 => "fp8",
        }
    }
}

impl std::fmt::Display for Dtype {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
