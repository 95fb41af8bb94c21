//! The sizes of a model that both kinds of configuration file give, and the bounds of each.

use super::keys::Keys;
use crate::{Error, Result};

/// The largest width; the largest of Llama 3.1 405B is 53,248. With these limits no product of
/// sizes overflows a u64, whatever a file says.
pub(super) const MAX_WIDTH: usize = 1 << 22;
/// The largest number of rows of the embedding; Llama 3 has 128,256.
pub(super) const MAX_VOCAB: usize = 1 << 24;
/// The largest number of layers; Llama 3.1 405B has 126.
pub(super) const MAX_LAYERS: usize = 1 << 12;

pub(super) const DEFAULT_THETA: f64 = 10_000.0;
/// Of SmolLM3's layers, each of this number does not rotate unless the file says otherwise.
pub(super) const UNROTATED_INTERVAL: usize = 4;

/// For each layer, whether its number, from 1 on, is a multiple of `interval`.
pub(super) fn every(interval: usize, n_layers: usize) -> Vec<bool> {
    (1..=n_layers).map(|n| n.is_multiple_of(interval)).collect()
}

pub(super) fn head_dim(
    keys: &Keys,
    explicit: Option<usize>,
    dim: usize,
    (heads_key, n_heads): (&str, usize),
) -> Result<usize> {
    let (key, head_dim) = match explicit {
        Some(head_dim) => ("head_dim", head_dim),
        None if dim.is_multiple_of(n_heads) => (heads_key, dim / n_heads),
        None => return Err(keys.wrong(heads_key, format!("a divisor of the width, {dim}"))),
    };
    if head_dim % 2 != 0 {
        let expected = format!("heads of an even width (RoPE rotates pairs), not {head_dim}");
        return Err(keys.wrong(key, expected));
    }
    if n_heads * head_dim > MAX_WIDTH {
        let expected = format!("{n_heads} heads of together at most {MAX_WIDTH}");
        return Err(keys.wrong(key, expected));
    }
    Ok(head_dim)
}

pub(super) fn n_kv_heads(keys: &Keys, key: &str, n_heads: usize) -> Result<usize> {
    let n = keys.optional_size(key, MAX_WIDTH)?.unwrap_or(n_heads);
    if !n_heads.is_multiple_of(n) {
        return Err(not_a_divisor(keys, key, n_heads));
    }
    Ok(n)
}

pub(super) fn not_a_divisor(keys: &Keys, key: &str, n_heads: usize) -> Error {
    keys.wrong(key, format!("a divisor of the number of heads, {n_heads}"))
}

pub(super) fn norm_eps(keys: &Keys, key: &str, default: Option<f64>) -> Result<f32> {
    let expected = "a number over 0 and under 1";
    // Checked as a float32, because 1e-60 would become 0.
    let eps = keys.optional_number(key, expected, |x| x as f32 > 0.0 && x < 1.0)?;
    let eps = eps.or(default).ok_or_else(|| keys.wrong(key, expected))?;
    Ok(eps as f32)
}

pub(super) fn theta(keys: &Keys) -> Result<Option<f64>> {
    keys.optional_number("rope_theta", "a number from 1 to 1e30", |x| {
        (1.0..=1e30).contains(&x)
    })
}

/// A factor that stretches the frequencies. It is at least 1: transformers and Meta never shrink
/// them.
pub(super) fn factor(keys: &Keys, key: &str) -> Result<Option<f64>> {
    keys.optional_number(key, "a number from 1 to 1e30", |x| {
        (1.0..=1e30).contains(&x)
    })
}
