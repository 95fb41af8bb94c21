//! The list of kernels, which `build.rs` takes from `kernels/params.h`. A launch names a kernel by
//! its index in [`KERNELS`]. The compiler finds the index, so a step neither formats names nor
//! looks them up.

use crate::{Dtype, Error, Result};

include!(concat!(env!("OUT_DIR"), "/kernel_list.rs"));

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

    /// All kernels.
    pub fn all() -> impl Iterator<Item = Kernel> {
        (0..KERNELS.len() as u16).map(Kernel)
    }

    /// Whether the kernel exists for compute capability 9.0 only.
    pub fn is_hopper(self) -> bool {
        self.name().contains("_hopper_")
    }

    /// Whether launches of it may start early where kernels are for compute capability 9.0: those
    /// of decode, and those for 9.0 alone.
    pub fn starts_early(self) -> bool {
        let of_prompts = ["_prefill", "_epilogue"];
        !of_prompts.iter().any(|part| self.name().contains(part))
    }

    /// Threads of a block.
    pub const fn threads(self) -> u32 {
        THREADS[self.index()]
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        KERNELS[self.index()]
    }
}

/// Kernels that differ only in the type of their weights, cache or output.
pub(super) struct Family {
    pattern: &'static str,
    /// Indexed by dtype.
    kernels: [Option<Kernel>; Dtype::ALL.len()],
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
        let (mut kernels, mut i, mut none) = ([None; Dtype::ALL.len()], 0, true);
        while i < Dtype::ALL.len() {
            if let Some(at) = position(before, Dtype::ALL[i].name(), after) {
                kernels[Dtype::ALL[i] as usize] = Some(Kernel(at));
                none = false;
            }
            i += 1;
        }
        assert!(!none, "KERNELS has none of this pattern");
        Family { pattern, kernels }
    }

    /// Whether there is one of this dtype.
    pub const fn has(&self, dtype: Dtype) -> bool {
        self.kernels[dtype as usize].is_some()
    }

    pub fn of(&self, dtype: Dtype) -> Result<Kernel> {
        self.kernels[dtype as usize].ok_or_else(|| {
            let name = self.pattern.replacen('*', dtype.name(), 1);
            Error::Internal(format!("there is no kernel {name}"))
        })
    }
}

/// The index of the kernel whose name consists of the parts `before`, `middle` and `after`.
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
    fn the_list_is_what_the_c_compiler_makes_of_params_h() {
        let source = "#include \"params.h\"\n\
                      #define ONE(name, Params, THREADS) kernel name THREADS\n\
                      GPU_KERNELS(ONE)\n";
        let file = std::env::temp_dir().join(format!("llamabi-list-{}.c", std::process::id()));
        std::fs::write(&file, source).unwrap();
        let output = std::process::Command::new("cc")
            .args(["-E", "-P", "-I"])
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/kernels"))
            .arg(&file)
            .output()
            .unwrap();
        std::fs::remove_file(&file).unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let words: Vec<&str> = text.split_whitespace().collect();
        let listed: Vec<String> = words
            .windows(3)
            .filter(|window| window[0] == "kernel")
            .map(|window| format!("{} {}", window[1], window[2]))
            .collect();
        assert!(
            listed.len() > 100,
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let known = Kernel::all().map(|k| format!("{} {}", k.name(), k.threads()));
        assert_eq!(known.collect::<Vec<_>>(), listed);
    }

    #[test]
    fn kernels_are_found_by_dtype() {
        assert_eq!(Kernel::named("ffn_up_f32").name(), "ffn_up_f32");
        let family = Family::new("attend_prefill_*_64");
        let kernel = family.of(Dtype::Bf16).unwrap();
        assert_eq!(kernel.name(), "attend_prefill_bf16_64");
        let error = family.of(Dtype::F32).unwrap_err();
        assert!(error.to_string().contains("attend_prefill_f32_64"));
        // Neither a part of a name nor a name with something after it is found.
        for name in ["embed", "embed_f", "embed_f322", ""] {
            assert_eq!(position(name, "", ""), None);
        }
        for (i, dtype) in Dtype::ALL.iter().enumerate() {
            assert_eq!(*dtype as usize, i);
        }
    }
}
