//! Number formats of weights and of the KV cache.

use crate::quant::Quant;

/// Declares [`Dtype`] and what follows from the list of its names: the one list of all formats.
macro_rules! dtypes {
    (
        floats { $($(#[$doc_of_float:meta])* $float:ident $name_of_float:literal,)* }
        quantised { $($(#[$doc:meta])* $quant:ident $name:literal,)* }
    ) => {
        /// How numbers are stored.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Dtype {
            $($(#[$doc_of_float])* $float,)*
            $($(#[$doc])* $quant,)*
        }

        impl Dtype {
            /// All of them, in the order of their numbers.
            pub const ALL: [Dtype; [$($name_of_float,)* $($name,)*].len()] =
                [$(Dtype::$float,)* $(Dtype::$quant,)*];

            /// The field's short name, in lower case. The C API has it in upper case.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Dtype::$float => $name_of_float,)*
                    $(Dtype::$quant => $name,)*
                }
            }

            /// The block format that weights of this dtype have.
            pub const fn quant(self) -> Option<Quant> {
                match self {
                    $(Dtype::$float => None,)*
                    $(Dtype::$quant => Some(Quant::$quant),)*
                }
            }
        }

        impl Quant {
            /// All formats.
            pub const ALL: [Quant; [$($name,)*].len()] = [$(Quant::$quant,)*];

            /// The format as a [`Dtype`].
            pub const fn dtype(self) -> Dtype {
                match self {
                    $(Quant::$quant => Dtype::$quant,)*
                }
            }
        }
    };
}

// A new format is the last one, because the C API numbers them in this order.
dtypes! {
    floats {
        /// IEEE binary32.
        F32 "f32",
        /// IEEE binary16.
        F16 "f16",
        /// bfloat16: the upper half of a binary32.
        Bf16 "bf16",
    }
    quantised {
        /// Integers of 8 bits and a scale for each group: [`Quant::Int8`] in weights; in the KV
        /// cache a scale for each head's vector.
        Int8 "int8",
        /// [`Quant::Int4`]; weights only.
        Int4 "int4",
        /// [`Quant::Nf4`]; weights only.
        Nf4 "nf4",
        /// 8-bit floats, e4m3, with a scale for each group: [`Quant::Fp8`] in weights; in the KV
        /// cache, a scale for the vector of each head. On GPUs only.
        Fp8 "fp8",
        /// [`Quant::K4`]; weights of files that have it only.
        K4 "k4",
        /// [`Quant::K8`]; as K4.
        K8 "k8",
        /// [`Quant::K5`]; as K4.
        K5 "k5",
        /// [`Quant::K6`]; as K4.
        K6 "k6",
        /// [`Quant::Iq4`]; as K4.
        Iq4 "iq4",
        /// [`Quant::Uint4`]; as K4.
        Uint4 "uint4",
    }
}

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
