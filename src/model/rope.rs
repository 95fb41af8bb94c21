//! The table of cosines and sines that RoPE multiplies with.
//!
//! Su et al. 2021 (RoFormer); Meta's `precompute_freqs_cis` in llama/model.py; the `llama3`
//! stretching is `apply_scaling` in llama-models' models/llama3/model.py; the other types are those
//! of transformers' modeling_rope_utils.py.
//!
//! Every type becomes one table when a model is built, so no request changes the angles of another.

use super::Config;
use super::config::RopeScaling;
use crate::backend::RopeTable;
use crate::{Result, reserve};
use std::f64::consts::PI;

/// Bytes of the table for `max_seq_len` positions.
pub fn table_bytes(config: &Config, max_seq_len: usize) -> u64 {
    let scale = u64::from(config.q_grows(max_seq_len).is_some());
    let per_position = 4 * (config.shape.head_dim as u64 / 2 * 2 + scale);
    per_position.saturating_mul(max_seq_len as u64)
}

/// The table for positions `0..max_seq_len`. Frequencies and angles are computed as Meta computes
/// them: in float32, with each operation rounded. At position 100,000 an angle in float32 is off by
/// up to 0.004 from the exact one, so a more exact table would be a different model. Only cosine
/// and sine themselves (and the power) are computed in float64 and rounded once, which is within
/// half a unit of what a float32 library gives.
///
/// # Errors
/// [`Error::Refused`](crate::Error::Refused) if there is no memory for the table.
pub fn table(config: &Config, max_seq_len: usize) -> Result<RopeTable> {
    let frequencies = frequencies(config, max_seq_len);
    // Pairs that are not rotated have an angle of 0 at every position.
    let still = config.shape.head_dim / 2 - frequencies.len();
    let mut table = RopeTable {
        cos: Vec::new(),
        sin: Vec::new(),
        q_scale: Vec::new(),
    };
    let n = max_seq_len.saturating_mul(config.shape.head_dim / 2);
    for v in [&mut table.cos, &mut table.sin] {
        reserve::vec("the RoPE table", v, n)?;
    }
    if let Some(grows) = config.q_grows(max_seq_len) {
        reserve::vec("the RoPE table", &mut table.q_scale, max_seq_len)?;
        let times = |position: usize| (position as f64 / grows.original_context).floor();
        let scale = |position| (1.0 + grows.beta * (1.0 + times(position)).ln()) as f32;
        table.q_scale.extend((0..max_seq_len).map(scale));
    }
    let scale = config.qk_scale;
    let amplitude = scale * amplitude(&config.rope_scaling);
    for position in 0..max_seq_len {
        for frequency in &frequencies {
            let angle = position as f32 * frequency;
            let (sin, cos) = f64::from(angle).sin_cos();
            table.cos.push((cos * amplitude) as f32);
            table.sin.push((sin * amplitude) as f32);
        }
        table.cos.extend(std::iter::repeat_n(scale as f32, still));
        table.sin.extend(std::iter::repeat_n(0.0, still));
    }
    Ok(table)
}

/// What cosines and sines of the rotated dimensions are multiplied with.
fn amplitude(scaling: &RopeScaling) -> f64 {
    match *scaling {
        RopeScaling::Yarn { amplitude, .. } | RopeScaling::LongRope { amplitude, .. } => amplitude,
        _ => 1.0,
    }
}

/// Radians per position, `[rotary_dim / 2]`.
fn frequencies(config: &Config, max_seq_len: usize) -> Vec<f32> {
    let dim = config.rotary_dim;
    let theta = match config.rope_scaling {
        RopeScaling::Dynamic {
            factor,
            original_context,
        } => {
            let length = (max_seq_len as f64).max(original_context);
            let stretch = factor * length / original_context - (factor - 1.0);
            // A single pair of dimensions has the frequency 1 whatever theta is.
            let exponent = dim as f64 / (dim as f64 - 2.0).max(1.0);
            config.rope_theta * stretch.powf(exponent)
        }
        _ => config.rope_theta,
    };
    let theta = f64::from(theta as f32);
    // theta ** (arange(0, dim, 2).float() / dim): the exponent is a float32.
    let power = |i: usize| theta.powf(f64::from(i as f32 / dim as f32)) as f32;
    let powers = (0..dim).step_by(2).map(power);
    match &config.rope_scaling {
        RopeScaling::LongRope {
            short,
            long,
            original_context,
            ..
        } => {
            let divisors = match max_seq_len as f64 > *original_context {
                true => long,
                false => short,
            };
            let divided = |(power, &divisor): (f32, &f64)| 1.0 / (divisor as f32 * power);
            powers.zip(divisors).map(divided).collect()
        }
        RopeScaling::Yarn {
            factor,
            beta_fast,
            beta_slow,
            original_context,
            truncate,
            ..
        } => {
            // The dimension whose frequency makes so many turns over the original context.
            let dimension = |turns: f64| {
                let longest = (original_context / (turns * 2.0 * PI)).ln();
                dim as f64 * longest / (2.0 * config.rope_theta.ln())
            };
            let (mut low, mut high) = (dimension(*beta_fast), dimension(*beta_slow));
            if *truncate {
                (low, high) = (low.floor(), high.ceil());
            }
            let (low, mut high) = (low.max(0.0), high.min(dim as f64 - 1.0));
            if low == high {
                high += 0.001;
            }
            let (low, width) = (low as f32, (high - low) as f32);
            let blend = |(i, power): (usize, f32)| {
                let ramp = ((i as f32 - low) / width).clamp(0.0, 1.0);
                let divided = 1.0 / (*factor as f32 * power);
                divided * ramp + 1.0 / power * (1.0 - ramp)
            };
            powers.enumerate().map(blend).collect()
        }
        scaling => {
            let stretched = |(i, power)| stretch(scaling, i, 1.0 / power);
            powers.enumerate().map(stretched).collect()
        }
    }
}

/// Stretches frequency i. PyTorch computes `scalar / tensor` as the reciprocal times the scalar,
/// which rounds twice; so do we.
fn stretch(scaling: &RopeScaling, i: usize, frequency: f32) -> f32 {
    match *scaling {
        RopeScaling::None => frequency,
        RopeScaling::Divided { ref by } => frequency / by[i],
        RopeScaling::Linear { factor } => frequency / factor as f32,
        RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_context,
        } => {
            let wavelength = frequency.recip() * (2.0 * PI) as f32;
            let longest = (original_context / low_freq_factor) as f32;
            let shortest = (original_context / high_freq_factor) as f32;
            let factor = factor as f32;
            if wavelength > longest {
                frequency / factor
            } else if wavelength < shortest {
                frequency
            } else {
                let smooth = (wavelength.recip() * original_context as f32
                    - low_freq_factor as f32)
                    / (high_freq_factor - low_freq_factor) as f32;
                (1.0 - smooth) * frequency / factor + smooth * frequency
            }
        }
        _ => frequency,
    }
}
