//! The list of kernels. A launch names a kernel by its index in [`KERNELS`], which is found at
//! compile time: a step neither formats nor looks up names.

use crate::{Dtype, Error, Result};

/// Every kernel of `GPU_KERNELS` in `kernels/params.h`, in any order; a test compares them.
pub const KERNELS: &[&str] = &[
    "embed_f32",
    "embed_f16",
    "embed_bf16",
    "prepare_f32",
    "prepare_f16",
    "prepare_bf16",
    "qkv_f32",
    "qkv_f16",
    "qkv_bf16",
    "qkv_prefill_f32",
    "qkv_prefill_f16",
    "qkv_prefill_bf16",
    "attend_f32",
    "attend_f16",
    "attend_bf16",
    "attend_prefill_fma_f32",
    "attend_prefill_fma_f16",
    "attend_prefill_fma_bf16",
    "matmul_add_f32",
    "matmul_add_f16",
    "matmul_add_bf16",
    "matmul_add_prefill_f32",
    "matmul_add_prefill_f16",
    "matmul_add_prefill_bf16",
    "ffn_up_f32",
    "ffn_up_f16",
    "ffn_up_bf16",
    "ffn_up_prefill_f32",
    "ffn_up_prefill_f16",
    "ffn_up_prefill_bf16",
    "logits_f32",
    "logits_f16",
    "logits_bf16",
    "qkv_int8",
    "qkv_prefill_int8",
    "matmul_add_int8",
    "matmul_add_prefill_int8",
    "ffn_up_int8",
    "ffn_up_prefill_int8",
    "qkv_int4",
    "qkv_prefill_int4",
    "matmul_add_int4",
    "matmul_add_prefill_int4",
    "ffn_up_int4",
    "ffn_up_prefill_int4",
    "qkv_nf4",
    "qkv_prefill_nf4",
    "matmul_add_nf4",
    "matmul_add_prefill_nf4",
    "ffn_up_nf4",
    "ffn_up_prefill_nf4",
    "qkv_hopper_f16",
    "qkv_hopper_bf16",
    "matmul_add_hopper_f16",
    "matmul_add_hopper_bf16",
    "ffn_up_hopper_f16",
    "ffn_up_hopper_bf16",
    "qkv_hopper_half_f16",
    "qkv_hopper_half_bf16",
    "matmul_add_hopper_half_f16",
    "matmul_add_hopper_half_bf16",
    "ffn_up_hopper_half_f16",
    "ffn_up_hopper_half_bf16",
    "qkv_hopper_int8",
    "qkv_hopper_half_int8",
    "matmul_add_hopper_int8",
    "matmul_add_hopper_half_int8",
    "ffn_up_hopper_int8",
    "ffn_up_hopper_half_int8",
    "qkv_hopper_int4",
    "qkv_hopper_half_int4",
    "matmul_add_hopper_int4",
    "matmul_add_hopper_half_int4",
    "ffn_up_hopper_int4",
    "ffn_up_hopper_half_int4",
    "qkv_hopper_nf4",
    "qkv_hopper_half_nf4",
    "matmul_add_hopper_nf4",
    "matmul_add_hopper_half_nf4",
    "ffn_up_hopper_nf4",
    "ffn_up_hopper_half_nf4",
    "qkv_hopper_fp8",
    "qkv_hopper_half_fp8",
    "matmul_add_hopper_fp8",
    "matmul_add_hopper_half_fp8",
    "ffn_up_hopper_fp8",
    "ffn_up_hopper_half_fp8",
    "attend_hopper_f16_64",
    "attend_hopper_f16_128",
    "attend_hopper_bf16_64",
    "attend_hopper_bf16_128",
    "embed_int8",
    "logits_int8",
    "append_int8",
    "attend_int8",
    "attend_prefill_fma_int8",
    "attend_prefill_int8_32",
    "attend_prefill_int8_64",
    "attend_prefill_int8_128",
    "attend_prefill_f16_32",
    "attend_prefill_f16_64",
    "attend_prefill_f16_128",
    "attend_prefill_bf16_32",
    "attend_prefill_bf16_64",
    "attend_prefill_bf16_128",
    "sample",
    "qkv_place",
    "ffn_join_f16",
    "ffn_join_bf16",
    "qkv_batch_f16",
    "matmul_add_batch_f16",
    "ffn_up_batch_f16",
    "logits_batch_f16",
    "qkv_batch_bf16",
    "matmul_add_batch_bf16",
    "ffn_up_batch_bf16",
    "logits_batch_bf16",
    "qkv_batch_int8",
    "matmul_add_batch_int8",
    "ffn_up_batch_int8",
    "qkv_batch_int4",
    "matmul_add_batch_int4",
    "ffn_up_batch_int4",
    "qkv_batch_nf4",
    "matmul_add_batch_nf4",
    "ffn_up_batch_nf4",
    "logits_batch_int8",
    "qkv_fp8",
    "qkv_prefill_fp8",
    "qkv_batch_fp8",
    "matmul_add_fp8",
    "matmul_add_prefill_fp8",
    "matmul_add_batch_fp8",
    "ffn_up_fp8",
    "ffn_up_prefill_fp8",
    "ffn_up_batch_fp8",
    "append_fp8",
    "attend_fp8",
    "attend_prefill_fma_fp8",
    "attend_prefill_fp8_32",
    "attend_prefill_fp8_64",
    "attend_prefill_fp8_128",
];

/// A kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel(u16);

impl Kernel {
    /// The kernel of this name. In a `const`, a name that does not exist does not compile.
    pub const fn named(name: &str) -> Kernel {
        match position(name, "", "") {
            Some(at) => Kernel(at),
            None => panic!("KERNELS has no such kernel"),
        }
    }

    /// Its index in [`KERNELS`].
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// All of them.
    pub fn all() -> impl Iterator<Item = Kernel> {
        (0..KERNELS.len() as u16).map(Kernel)
    }

    /// Whether it exists for compute capability 9.0 only.
    pub fn is_hopper(self) -> bool {
        self.name().contains("_hopper_")
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        KERNELS[self.index()]
    }
}

const DTYPES: [Dtype; 7] = [
    Dtype::F32,
    Dtype::F16,
    Dtype::Bf16,
    Dtype::Int8,
    Dtype::Int4,
    Dtype::Nf4,
    Dtype::Fp8,
];

/// Kernels that differ in the type of their input only.
pub(super) struct Family {
    pattern: &'static str,
    /// By dtype.
    kernels: [Option<Kernel>; DTYPES.len()],
}

impl Family {
    /// The kernels whose name is `pattern` with the name of a dtype in place of the star. In a
    /// `const`, a pattern that matches no kernel does not compile.
    pub const fn new(pattern: &'static str) -> Family {
        let mut star = 0;
        while pattern.as_bytes()[star] != b'*' {
            star += 1;
        }
        let (before, after) = pattern.split_at(star);
        let after = after.split_at(1).1;
        let (mut kernels, mut i, mut none) = ([None; DTYPES.len()], 0, true);
        while i < DTYPES.len() {
            if let Some(at) = position(before, DTYPES[i].name(), after) {
                kernels[DTYPES[i] as usize] = Some(Kernel(at));
                none = false;
            }
            i += 1;
        }
        assert!(!none, "KERNELS has none of this pattern");
        Family { pattern, kernels }
    }

    pub fn of(&self, dtype: Dtype) -> Result<Kernel> {
        self.kernels[dtype as usize].ok_or_else(|| {
            let name = self.pattern.replacen('*', dtype.name(), 1);
            Error::Internal(format!("there is no kernel {name}"))
        })
    }
}

/// The index of the name that consists of these parts.
const fn position(before: &str, middle: &str, after: &str) -> Option<u16> {
    let parts = [before.as_bytes(), middle.as_bytes(), after.as_bytes()];
    let length = parts[0].len() + parts[1].len() + parts[2].len();
    let mut at = 0;
    while at < KERNELS.len() {
        let name = KERNELS[at].as_bytes();
        let (mut same, mut part, mut i) = (name.len() == length, 0, 0);
        while same && part < parts.len() {
            let mut j = 0;
            while same && j < parts[part].len() {
                same = name[i] == parts[part][j];
                (i, j) = (i + 1, j + 1);
            }
            part += 1;
        }
        if same {
            return Some(at as u16);
        }
        at += 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_of_params_h_is_named() {
        let text = include_str!("../../../kernels/params.h");
        let mut names = Vec::new();
        for line in text.lines().filter(|line| line.contains("    X(")) {
            let name = line.trim().trim_start_matches("X(");
            let name = name.split(',').next().unwrap();
            let (stem, types): (_, &[&str]) = match name.split_once("##") {
                Some((stem, "T")) => (stem, &["f32", "f16", "bf16"]),
                Some((stem, "H")) => (stem, &["f16", "bf16"]),
                Some((stem, _)) => (stem, &["int8", "int4", "nf4", "fp8"]),
                None => (name, &[""]),
            };
            names.extend(types.iter().map(|t| format!("{stem}{t}")));
        }
        names.sort();
        let mut known = KERNELS.to_vec();
        known.sort();
        assert_eq!(known, names);
    }

    #[test]
    fn kernels_are_found_by_dtype() {
        assert_eq!(Kernel::named("ffn_up_f32").name(), "ffn_up_f32");
        let family = Family::new("attend_prefill_*_64");
        let kernel = family.of(Dtype::Bf16).unwrap();
        assert_eq!(kernel.name(), "attend_prefill_bf16_64");
        let error = family.of(Dtype::F32).unwrap_err();
        assert!(error.to_string().contains("attend_prefill_f32_64"));
        // Neither a part of a name nor more than a name.
        for name in ["embed", "embed_f", "embed_f322", ""] {
            assert_eq!(position(name, "", ""), None);
        }
        for (i, dtype) in DTYPES.iter().enumerate() {
            assert_eq!(*dtype as usize, i);
        }
    }
}
