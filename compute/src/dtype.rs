//! Number formats of weights and of the KV cache.

use crate::quant::{Quant, all_quants};

macro_rules! dtypes {
    ($($(#[$doc:meta])* $quant:ident $name:literal,)*) => {
        /// How numbers are stored. Weights have all of them; the KV cache has floats, and int8 and
        /// fp8 with a scale for each head's vector.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Dtype {
            /// IEEE binary32.
            F32,
            /// IEEE binary16.
            F16,
            /// bfloat16: the upper half of a binary32.
            Bf16,
            $(#[doc = concat!("[`Quant::", stringify!($quant), "`].")] $quant,)*
        }

        impl Dtype {
            /// All of them, in the order of their numbers.
            pub const ALL: [Dtype; 3 + Quant::ALL.len()] =
                [Dtype::F32, Dtype::F16, Dtype::Bf16, $(Dtype::$quant,)*];

            /// The field's short name, in lower case. The C API has it in upper case.
            pub const fn name(self) -> &'static str {
                match self {
                    Dtype::F32 => "f32",
                    Dtype::F16 => "f16",
                    Dtype::Bf16 => "bf16",
                    $(Dtype::$quant => $name,)*
                }
            }

            /// The block format that weights of this dtype have.
            pub const fn quant(self) -> Option<Quant> {
                match self {
                    Dtype::F32 | Dtype::F16 | Dtype::Bf16 => None,
                    $(Dtype::$quant => Some(Quant::$quant),)*
                }
            }
        }
    };
}

all_quants!(dtypes);

impl Dtype {
    /// The number of the C API, which is `LLAMA_DTYPE_` and the name.
    pub const fn number(self) -> i32 {
        // 0 is `LLAMA_DTYPE_AUTO`.
        self as i32 + 1
    }

    /// The dtype of this name.
    pub fn named(name: &str) -> Option<Dtype> {
        Self::ALL.into_iter().find(|dtype| dtype.name() == name)
    }

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
        self.quant().is_none()
    }

    /// Whether only files of other programs have it, so that nobody can ask for it.
    pub const fn is_of_files(self) -> bool {
        matches!(self.quant(), Some(quant) if quant.is_of_files())
    }

    /// Whether the KV cache can have it, on some backend.
    pub const fn is_of_cache(self) -> bool {
        self.is_float() || self.has_vector_scales()
    }

    /// Whether the KV cache has a scale for each head's vector with it.
    pub const fn has_vector_scales(self) -> bool {
        matches!(self, Dtype::Int8 | Dtype::Fp8)
    }
}

impl std::fmt::Display for Dtype {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
