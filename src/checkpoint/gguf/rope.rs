//! Reads the keys of RoPE in a GGUF file.
//!
//! | `rope.scaling.type` | read |
//! |---|---|
//! | none, or absent | the divisors in the tensor `rope_freqs`, where it is (Llama 3.1) |
//! | `linear`; absent beside a factor | `rope.scaling.factor`, older `rope.scale_linear` |
//! | `yarn` | the factor, `original_context_length`, `attn_factor`, `yarn_beta_{fast,slow}` |
//! | `longrope`, or absent | divisors `rope_factors_{short,long}` (Phi-3), `attn_factor` |
//!
//! In longrope, `attn_factor` is the amplitude. In yarn, the amplitude is multiplied by it.

use super::keys::Hyper;
use crate::checkpoint::sizes::{DEFAULT_THETA, MAX_WIDTH};
use crate::file::zeros;
use crate::format::Encoding;
use crate::format::gguf::Set;
use crate::model::config::RopeScaling;
use crate::model::family::Family;
use crate::{Error, Result};

const FREQS: &str = "rope_freqs.weight";
const LONG: &str = "rope_factors_long.weight";
const SHORT: &str = "rope_factors_short.weight";

/// The tensors that are part of the configuration.
pub(super) const TENSORS: [&str; 3] = [FREQS, LONG, SHORT];

/// Options of yarn that llama.cpp knows. With values other than these, they mean a computation that
/// we do not have.
const NEUTRAL: [(&str, f64); 3] = [
    ("rope.scaling.yarn_ext_factor", 1.0),
    ("rope.scaling.yarn_attn_factor", 1.0),
    ("rope.scaling.yarn_log_multiplier", 0.0),
];

/// The number of dimensions of a head that are rotated.
pub(super) fn rotary_dim(keys: &Hyper<'_>, family: &Family, head_dim: usize) -> Result<usize> {
    let name = "rope.dimension_count";
    let rotated = keys.size(name, MAX_WIDTH)?.unwrap_or(head_dim);
    let (fits, expected) = match family.partial_rotation {
        true => (
            rotated.is_multiple_of(2) && rotated <= head_dim,
            format!("an even number up to {head_dim}"),
        ),
        false => (rotated == head_dim, format!("{head_dim}, as keys have")),
    };
    match fits {
        true => Ok(rotated),
        false => Err(keys.wrong(name, &expected, rotated)),
    }
}

/// Reads theta, and how the frequencies are stretched.
pub(super) fn read(keys: &Hyper<'_>, set: &Set, rotary_dim: usize) -> Result<(f64, RopeScaling)> {
    let base = "rope.freq_base";
    let theta = keys.accepted(base, "a number from 1 to 1e30", |x| {
        (1.0..=1e30).contains(&x)
    })?;
    let theta = theta.unwrap_or(DEFAULT_THETA);
    for (name, neutral) in NEUTRAL {
        let expected = format!("{neutral}: another value is not supported");
        keys.accepted(name, &expected, |x| x == neutral)?;
    }
    let pairs = rotary_dim / 2;
    let freqs = divisors(set, FREQS, pairs)?;
    let (long, short) = (divisors(set, LONG, pairs)?, divisors(set, SHORT, pairs)?);
    let name = "rope.scaling.type";
    let scaling = match keys.file.text(&keys.key(name))?.as_deref() {
        None | Some("longrope") if long.is_some() || short.is_some() => {
            long_rope(keys, set, long.zip(short))?
        }
        Some("longrope") => return Err(missing(set, SHORT, pairs)),
        None => linear(keys)?.unwrap_or(RopeScaling::None),
        Some("none") => RopeScaling::None,
        Some("linear") => match linear(keys)? {
            Some(scaling) => scaling,
            None => return Err(keys.wrong(FACTOR, "a number", "missing")),
        },
        Some("yarn") if theta <= 1.0 => {
            return Err(keys.wrong(base, "a number over 1, for yarn", theta));
        }
        Some("yarn") => yarn(keys)?,
        Some(other) => return Err(keys.wrong(name, "none, linear, yarn or longrope", other)),
    };
    let mut factors = [LONG, SHORT].into_iter();
    let held = factors.find(|name| set.tensor(name).is_some());
    if let Some(name) = held.filter(|_| !matches!(scaling, RopeScaling::LongRope { .. })) {
        let expected = "no such tensor beside this rope.scaling.type";
        let got = format!("{pairs} divisors");
        return Err(wrong(set, name, expected.into(), got));
    }
    if let RopeScaling::None | RopeScaling::Linear { .. } = scaling {
        let expected = "1: another value is not supported with this rope.scaling.type";
        keys.accepted(AMPLITUDE, expected, |x| x == 1.0)?;
    }
    match freqs {
        None => Ok((theta, scaling)),
        Some(by) if scaling == RopeScaling::None => Ok((theta, RopeScaling::Divided { by })),
        Some(_) => {
            let expected = "no such tensor beside rope.scaling or rope_factors";
            Err(wrong(
                set,
                FREQS,
                expected.into(),
                format!("{pairs} divisors"),
            ))
        }
    }
}

const FACTOR: &str = "rope.scaling.factor";
const AMPLITUDE: &str = "rope.scaling.attn_factor";

fn factor(keys: &Hyper<'_>) -> Result<Option<f64>> {
    let expected = "a number from 1 to 1e30";
    keys.accepted(FACTOR, expected, |x| (1.0..=1e30).contains(&x))
}

fn amplitude(keys: &Hyper<'_>) -> Result<f64> {
    let expected = "a number from 1e-3 to 1e3";
    let factor = keys.accepted(AMPLITUDE, expected, |x| (1e-3..=1e3).contains(&x))?;
    Ok(factor.unwrap_or(1.0))
}

/// The context length with which the model was first trained; if it is absent, the model's context
/// length.
fn original_context(keys: &Hyper<'_>) -> Result<f64> {
    let original = keys.size("rope.scaling.original_context_length", u32::MAX as usize)?;
    match original {
        Some(n) => Ok(n as f64),
        None => Ok(keys.required("context_length", u32::MAX as usize)? as f64),
    }
}

fn linear(keys: &Hyper<'_>) -> Result<Option<RopeScaling>> {
    let older = "rope.scale_linear";
    let older = keys.accepted(older, "a number from 1 to 1e30", |x| {
        (1.0..=1e30).contains(&x)
    })?;
    let factor = factor(keys)?.or(older.filter(|&x| x != 1.0));
    Ok(factor.map(|factor| RopeScaling::Linear { factor }))
}

fn yarn(keys: &Hyper<'_>) -> Result<RopeScaling> {
    let Some(factor) = factor(keys)? else {
        return Err(keys.wrong(FACTOR, "a number", "missing"));
    };
    let turns = |name, default| {
        let expected = "a number from 1e-3 to 1e6";
        let number = keys.accepted(name, expected, |x| (1e-3..=1e6).contains(&x))?;
        Ok::<f64, Error>(number.unwrap_or(default))
    };
    let fast = "rope.scaling.yarn_beta_fast";
    let (beta_fast, beta_slow) = (
        turns(fast, 32.0)?,
        turns("rope.scaling.yarn_beta_slow", 1.0)?,
    );
    if beta_fast <= beta_slow {
        let expected = format!("a number over yarn_beta_slow, {beta_slow}");
        return Err(keys.wrong(fast, &expected, beta_fast));
    }
    Ok(RopeScaling::Yarn {
        factor,
        beta_fast,
        beta_slow,
        original_context: original_context(keys)?,
        truncate: true,
        amplitude: amplitude(keys)? * (0.1 * factor.ln() + 1.0),
    })
}

fn long_rope(
    keys: &Hyper<'_>,
    set: &Set,
    divisors: Option<(Vec<f32>, Vec<f32>)>,
) -> Result<RopeScaling> {
    let Some((long, short)) = divisors else {
        let expected = format!("{LONG} and {SHORT} together");
        let held = [LONG, SHORT]
            .into_iter()
            .find(|name| set.tensor(name).is_some());
        return Err(wrong(
            set,
            held.unwrap_or(LONG),
            expected,
            "one of them".into(),
        ));
    };
    let wide = |by: Vec<f32>| by.into_iter().map(f64::from).collect();
    Ok(RopeScaling::LongRope {
        short: wide(short),
        long: wide(long),
        original_context: original_context(keys)?,
        amplitude: amplitude(keys)?,
    })
}

/// The divisors of the frequencies, if the file has the tensor `name`.
fn divisors(set: &Set, name: &str, pairs: usize) -> Result<Option<Vec<f32>>> {
    let Some((file, tensor)) = set.tensor(name) else {
        return Ok(None);
    };
    if (&tensor.shape[..], tensor.encoding) != (&[pairs], Encoding::F32) {
        let got = format!("shape {:?} of {}", tensor.shape, tensor.encoding);
        return Err(wrong(set, name, format!("shape [{pairs}] of f32"), got));
    }
    let mut bytes = zeros("the divisors of RoPE's frequencies", tensor.len)?;
    file.table.read(tensor, 0, &mut bytes)?;
    let divisors = bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b));
    let divisors: Vec<f32> = divisors.collect();
    match divisors.iter().find(|x| !(1e-30..=1e30).contains(*x)) {
        Some(x) => Err(wrong(
            set,
            name,
            "numbers from 1e-30 to 1e30".into(),
            x.to_string(),
        )),
        None => Ok(Some(divisors)),
    }
}

fn missing(set: &Set, name: &str, pairs: usize) -> Error {
    let expected = format!("shape [{pairs}] of f32, for longrope");
    wrong(set, name, expected, "no such tensor".into())
}

fn wrong(set: &Set, name: &str, expected: String, got: String) -> Error {
    let file = set.tensor(name).map_or(set.first(), |(file, _)| file);
    Error::Tensor {
        path: file.table.path.clone(),
        tensor: name.into(),
        expected,
        got,
    }
}
