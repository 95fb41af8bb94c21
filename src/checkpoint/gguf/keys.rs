//! Typed access to the keys of a GGUF file that begin with the architecture's name.

use crate::format::gguf::Gguf;
use crate::{Error, Result};

/// Keys of architectures that llama.cpp knows and we do not. With values other than 0, they change
/// what is computed.
const NEUTRAL: [&str; 5] = [
    "attention.clamp_kqv",
    "attention.max_alibi_bias",
    "attention.temperature_scale",
    "attn_logit_softcapping",
    "final_logit_softcapping",
];

/// The keys of an architecture: those that begin with its name.
pub(super) struct Hyper<'a> {
    pub file: &'a Gguf,
    /// The architecture.
    pub prefix: &'a str,
}

impl Hyper<'_> {
    pub fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.prefix)
    }

    pub fn wrong(&self, name: &str, expected: &str, got: impl ToString) -> Error {
        self.file.wrong(&self.key(name), expected, got)
    }

    /// An integer from 1 to `most`; or a list of equal ones, one for each layer.
    pub fn size(&self, name: &str, most: usize) -> Result<Option<usize>> {
        let Some(sizes) = self.file.u64s(&self.key(name))? else {
            return Ok(None);
        };
        let expected = format!("an integer from 1 to {most}");
        let Some(&first) = sizes.first() else {
            return Err(self.wrong(name, &expected, "an empty list"));
        };
        if let Some(other) = sizes.iter().find(|&&n| n != first) {
            let got = format!("{first} for one layer and {other} for another");
            return Err(self.wrong(name, "the same number for all layers", got));
        }
        match usize::try_from(first)
            .ok()
            .filter(|n| (1..=most).contains(n))
        {
            Some(size) => Ok(Some(size)),
            None => Err(self.wrong(name, &expected, first)),
        }
    }

    pub fn required(&self, name: &str, most: usize) -> Result<usize> {
        let missing = || self.wrong(name, &format!("an integer from 1 to {most}"), "missing");
        self.size(name, most)?.ok_or_else(missing)
    }

    /// A finite number that `accept` takes; `expected` describes such numbers.
    pub fn accepted(
        &self,
        name: &str,
        expected: &str,
        accept: impl Fn(f64) -> bool,
    ) -> Result<Option<f64>> {
        match self.number(name)? {
            Some(x) if !accept(x) => Err(self.wrong(name, expected, x)),
            x => Ok(x),
        }
    }

    /// A finite number.
    pub fn number(&self, name: &str) -> Result<Option<f64>> {
        match self.file.f64(&self.key(name))? {
            Some(x) if !x.is_finite() => Err(self.wrong(name, "a finite number", x)),
            x => Ok(x),
        }
    }

    /// Refuses mixtures of experts, attention that is not causal, and what else would be computed
    /// in another way.
    pub fn check_only_what_we_compute(&self) -> Result<()> {
        let experts = "expert_count";
        if let Some(n) = self.file.u64(&self.key(experts))?.filter(|&n| n != 0) {
            return Err(self.wrong(experts, "0: another value is not supported", n));
        }
        if self.file.bool(&self.key("attention.causal"))? == Some(false) {
            return Err(self.wrong("attention.causal", "true", "false"));
        }
        let parallel = "use_parallel_residual";
        if self.file.bool(&self.key(parallel))? == Some(true) {
            return Err(self.wrong(parallel, "false: another value is not supported", true));
        }
        for name in NEUTRAL {
            self.accepted(name, "0: another value is not supported", |x| x == 0.0)?;
        }
        Ok(())
    }
}
