//! The RoPE keys of `config.json`.
//!
//! transformers 5 has all of them in `rope_parameters`; transformers 4 has `rope_theta` beside
//! `rope_scaling`. The types are those of transformers' modeling_rope_utils.py.

use super::keys::Keys;
use super::sizes::{factor, theta};
use crate::Result;
use crate::model::config::{QScale, RopeScaling};
use crate::model::family::Family;
use serde_json::Value;

/// What the keys say.
pub(super) struct Rope {
    pub theta: f64,
    pub scaling: RopeScaling,
    /// The number of dimensions of a head that are rotated.
    pub rotary_dim: usize,
    pub q_scale: Option<QScale>,
}

const TYPES: [&str; 7] = [
    "default", "linear", "llama3", "yarn", "dynamic", "longrope", "su",
];
const ORIGINAL: &str = "original_max_position_embeddings";

pub(super) fn read(keys: &Keys, family: &Family, head_dim: usize) -> Result<Rope> {
    let outer = theta(keys)?;
    let (new, old) = (
        keys.object("rope_parameters")?,
        keys.object("rope_scaling")?,
    );
    if new.is_some() && old.is_some() && keys.get("rope_parameters") != keys.get("rope_scaling") {
        return Err(keys.wrong("rope_scaling", "no other value than rope_parameters"));
    }
    let rope = new.or(old);
    let rotary_dim = rotary_dim(keys, rope.as_ref(), family, head_dim)?;
    let Some(rope) = rope else {
        if family.q_scale {
            return Err(keys.wrong("rope_parameters", "an object"));
        }
        return Ok(Rope {
            theta: outer.unwrap_or(family.absent.theta),
            scaling: RopeScaling::None,
            rotary_dim,
            q_scale: None,
        });
    };
    let inner = theta(&rope)?;
    if let (Some(outer), Some(inner)) = (outer, inner)
        && outer != inner
    {
        return Err(keys.wrong(
            "rope_theta",
            format!("{inner}, as among the rope parameters"),
        ));
    }
    let mut theta = inner.or(outer).unwrap_or(family.absent.theta);

    let name = rope.optional_name("rope_type", &TYPES)?;
    let older_name = rope.optional_name("type", &TYPES)?;
    if name.is_some() && older_name.is_some() && name != older_name {
        return Err(rope.wrong("type", "no other value than rope_type"));
    }
    let scaling = match name.or(older_name) {
        Some("default") => RopeScaling::None,
        Some("linear") => RopeScaling::Linear {
            factor: required_factor(&rope)?,
        },
        Some("llama3") => llama3(keys, &rope, family)?,
        Some("yarn") if family.yarn_is_longrope => long_rope(keys, &rope, family, rotary_dim)?,
        Some("yarn") if theta <= 1.0 => {
            return Err(keys.wrong("rope_theta", "a number over 1, for yarn"));
        }
        Some("yarn") => yarn(keys, &rope, family)?,
        Some("dynamic") if family.rope_alpha && rope.get("alpha").is_some() => {
            theta = theta_of_alpha(&rope, theta, head_dim)?;
            RopeScaling::None
        }
        Some("dynamic") => RopeScaling::Dynamic {
            factor: required_factor(&rope)?,
            original_context: context(keys, "max_position_embeddings")?,
        },
        Some(_) => long_rope(keys, &rope, family, rotary_dim)?,
        // A missing type means the default only if there are no other keys.
        None if rope
            .names()
            .all(|key| ["rope_theta", "partial_rotary_factor"].contains(&key)) =>
        {
            RopeScaling::None
        }
        None => return Err(rope.wrong("rope_type", format!("one of {}", TYPES.join(", ")))),
    };
    Ok(Rope {
        theta,
        scaling,
        rotary_dim,
        q_scale: match family.q_scale {
            true => Some(q_scale(keys, &rope, family)?),
            false => None,
        },
    })
}

/// The theta that HunYuan's `alpha` stands for. transformers up to 5.23 goes over to another one
/// for sequences over `max_position_embeddings`, under keys that are already rotated; here it is
/// this one always.
fn theta_of_alpha(rope: &Keys, theta: f64, head_dim: usize) -> Result<f64> {
    let alpha = rope.number("alpha", "a number from 1 to 1e6", |x| {
        (1.0..=1e6).contains(&x)
    })?;
    rope.optional_number("factor", "1 beside alpha", |x| x == 1.0)?;
    let head_dim = head_dim as f64;
    // A single pair of dimensions has the frequency 1 whatever theta is.
    Ok(theta * alpha.powf(head_dim / (head_dim - 2.0).max(1.0)))
}

/// Ministral 3's keys about q.
fn q_scale(keys: &Keys, rope: &Keys, family: &Family) -> Result<QScale> {
    let beta = "llama_4_scaling_beta";
    Ok(QScale {
        beta: rope.number(beta, "a number from 0 to 1000", |x| {
            (0.0..=1e3).contains(&x)
        })?,
        original_context: required_original_context(keys, rope, family)?,
    })
}

/// `head_dim * partial_rotary_factor`.
fn rotary_dim(keys: &Keys, rope: Option<&Keys>, family: &Family, head_dim: usize) -> Result<usize> {
    let key = "partial_rotary_factor";
    let mut found = None;
    for keys in [Some(keys), rope].into_iter().flatten() {
        let Some(part) = (match family.partial_rotation {
            true => {
                keys.optional_number(key, "a number over 0, up to 1", |x| x > 0.0 && x <= 1.0)?
            }
            false => keys.optional_number(key, "1 (all of every head is rotated)", |x| x == 1.0)?,
        }) else {
            continue;
        };
        // Python's int() truncates, and so does `as`.
        let dim = (head_dim as f64 * part) as usize;
        if dim == 0 || dim % 2 == 1 {
            let expected = format!("a share that leaves an even number of {head_dim} dimensions");
            return Err(keys.wrong(key, expected));
        }
        if found.is_some_and(|found| found != dim) {
            return Err(keys.wrong(key, "no other value than beside rope_parameters"));
        }
        found = Some(dim);
    }
    Ok(found.unwrap_or(head_dim))
}

fn required_factor(rope: &Keys) -> Result<f64> {
    factor(rope, "factor")?.ok_or_else(|| rope.wrong("factor", "a number"))
}

/// A number of positions.
fn context(keys: &Keys, key: &str) -> Result<f64> {
    Ok(keys.size(key, u32::MAX as usize)? as f64)
}

/// The context that the model was first trained with, if a key says it. It may stand beside the
/// RoPE keys or among them. transformers 5 believes the one beside them, transformers 4 does so for
/// longrope only; so the two must not differ.
fn original_context(keys: &Keys, rope: &Keys, family: &Family) -> Result<Option<f64>> {
    let (beside, says) = match keys.get(ORIGINAL) {
        Some(_) => (Some(context(keys, ORIGINAL)?), "as beside these keys"),
        None => {
            let absent = family.absent.original_context.map(|n| n as f64);
            (absent, "which is meant where the key is not beside these")
        }
    };
    let among = match rope.get(ORIGINAL) {
        Some(_) => Some(context(rope, ORIGINAL)?),
        None => None,
    };
    match (beside, among) {
        (Some(beside), Some(among)) if beside != among => {
            Err(rope.wrong(ORIGINAL, format!("{beside}, {says}")))
        }
        _ => Ok(beside.or(among)),
    }
}

fn required_original_context(keys: &Keys, rope: &Keys, family: &Family) -> Result<f64> {
    match original_context(keys, rope, family)? {
        Some(context) => Ok(context),
        // It is missing, and this says so.
        None => context(rope, ORIGINAL),
    }
}

fn llama3(keys: &Keys, rope: &Keys, family: &Family) -> Result<RopeScaling> {
    let low = rope.number("low_freq_factor", "a number from 1e-30 to 1e29", |x| {
        (1e-30..=1e29).contains(&x)
    })?;
    let expected = format!("a number over low_freq_factor, {low}, up to 1e30");
    Ok(RopeScaling::Llama3 {
        factor: required_factor(rope)?,
        low_freq_factor: low,
        high_freq_factor: rope.number("high_freq_factor", &expected, |x| x > low && x <= 1e30)?,
        original_context: required_original_context(keys, rope, family)?,
    })
}

fn yarn(keys: &Keys, rope: &Keys, family: &Family) -> Result<RopeScaling> {
    let factor = required_factor(rope)?;
    let turns = |key, default: f64| {
        let number = rope.optional_number(key, "a number from 1e-3 to 1e6", |x| {
            (1e-3..=1e6).contains(&x)
        })?;
        Ok::<f64, crate::Error>(number.unwrap_or(default))
    };
    let (beta_fast, beta_slow) = (turns("beta_fast", 32.0)?, turns("beta_slow", 1.0)?);
    if beta_fast <= beta_slow {
        return Err(rope.wrong("beta_fast", format!("a number over beta_slow, {beta_slow}")));
    }
    let scale =
        |key| rope.optional_number(key, "a number from 0 to 1000", |x| (0.0..=1e3).contains(&x));
    let amplitude = |mscale: f64| 0.1 * mscale * factor.ln() + 1.0;
    let (mscale, all) = (scale("mscale")?, scale("mscale_all_dim")?);
    Ok(RopeScaling::Yarn {
        factor,
        beta_fast,
        beta_slow,
        original_context: match original_context(keys, rope, family)? {
            Some(context) => context,
            None => context(keys, "max_position_embeddings")?,
        },
        truncate: rope.get("truncate").is_none() || rope.flag("truncate")?,
        amplitude: match (attention_factor(rope)?, mscale, all) {
            (Some(given), _, _) => given,
            // transformers treats 0 as absent.
            (None, Some(one), Some(all)) if one != 0.0 && all != 0.0 => {
                amplitude(one) / amplitude(all)
            }
            _ => amplitude(1.0),
        },
    })
}

fn attention_factor(rope: &Keys) -> Result<Option<f64>> {
    rope.optional_number("attention_factor", "a number from 1e-3 to 1e3", |x| {
        (1e-3..=1e3).contains(&x)
    })
}

/// The amplitude follows from `factor`, or from how far the context is stretched.
fn long_rope(keys: &Keys, rope: &Keys, family: &Family, rotary_dim: usize) -> Result<RopeScaling> {
    let longest = context(keys, "max_position_embeddings")?;
    let original_context = original_context(keys, rope, family)?.unwrap_or(longest);
    let stretch = factor(rope, "factor")?.unwrap_or(longest / original_context);
    Ok(RopeScaling::LongRope {
        short: divisors(rope, "short_factor", rotary_dim / 2)?,
        long: divisors(rope, "long_factor", rotary_dim / 2)?,
        original_context,
        amplitude: match attention_factor(rope)? {
            Some(given) => given,
            None if stretch <= 1.0 || original_context <= 1.0 => 1.0,
            None => (1.0 + stretch.ln() / original_context.ln()).sqrt(),
        },
    })
}

/// A list of `n` divisors of frequencies.
fn divisors(rope: &Keys, key: &str, n: usize) -> Result<Vec<f64>> {
    let number = |value: &Value| value.as_f64().filter(|x| (1e-6..=1e9).contains(x));
    let list = rope.get(key).and_then(Value::as_array);
    let list = list.filter(|list| list.len() == n);
    let numbers: Option<Vec<f64>> = list.and_then(|list| list.iter().map(number).collect());
    numbers.ok_or_else(|| rope.wrong(key, format!("a list of {n} numbers from 1e-6 to 1e9")))
}
