//! The table of cosines and sines that RoPE multiplies with.
//!
//! Su et al. 2021 (RoFormer); Meta's `precompute_freqs_cis` in llama/model.py; the `llama3` stretching
//! is `apply_scaling` in llama-models' model.py.

use super::Config;
use crate::Result;
use crate::backend::RopeTable;

/// Bytes of the table for `max_seq_len` positions.
pub fn table_bytes(config: &Config, max_seq_len: usize) -> u64 {
    2 * 4 * (config.shape.head_dim as u64 / 2) * max_seq_len as u64
}

/// The table for positions `0..max_seq_len`. Frequencies and angles are computed as Meta does.
pub fn table(config: &Config, max_seq_len: usize) -> Result<RopeTable> {
    let _ = (config, max_seq_len);
    todo!()
}
