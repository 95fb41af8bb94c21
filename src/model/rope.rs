//! The table of cosines and sines that RoPE multiplies with.
//!
//! Su et al. 2021 (RoFormer); Meta's `precompute_freqs_cis` in llama/model.py; the `llama3`
//! stretching is `apply_scaling` in llama-models' models/llama3/model.py.

use super::Config;
use super::config::RopeScaling;
use crate::backend::RopeTable;
use crate::{Result, reserve};

/// Bytes of the table for `max_seq_len` positions.
pub fn table_bytes(config: &Config, max_seq_len: usize) -> u64 {
    let per_position = 2 * 4 * (config.shape.head_dim as u64 / 2);
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
    let frequencies = frequencies(config);
    let mut table = RopeTable {
        cos: Vec::new(),
        sin: Vec::new(),
    };
    let n = max_seq_len.saturating_mul(frequencies.len());
    for v in [&mut table.cos, &mut table.sin] {
        reserve::vec("the RoPE table", v, n)?;
    }
    for position in 0..max_seq_len {
        for frequency in &frequencies {
            let angle = position as f32 * frequency;
            let (sin, cos) = f64::from(angle).sin_cos();
            table.cos.push(cos as f32);
            table.sin.push(sin as f32);
        }
    }
    Ok(table)
}

/// Radians per position, `[head_dim / 2]`.
fn frequencies(config: &Config) -> Vec<f32> {
    let dim = config.shape.head_dim;
    let theta = f64::from(config.rope_theta as f32);
    let frequency = |i: usize| {
        // theta ** (arange(0, dim, 2).float() / dim): the exponent is a float32.
        let exponent = i as f32 / dim as f32;
        1.0 / theta.powf(f64::from(exponent)) as f32
    };
    (0..dim)
        .step_by(2)
        .map(frequency)
        .map(|f| stretch(config.rope_scaling, f))
        .collect()
}

/// Stretches one frequency. PyTorch computes `scalar / tensor` as the reciprocal times the scalar,
/// which rounds twice; so do we.
fn stretch(scaling: RopeScaling, frequency: f32) -> f32 {
    match scaling {
        RopeScaling::None => frequency,
        RopeScaling::Linear { factor } => frequency / factor as f32,
        RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_context,
        } => {
            let wavelength = frequency.recip() * (2.0 * std::f64::consts::PI) as f32;
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
    }
}
