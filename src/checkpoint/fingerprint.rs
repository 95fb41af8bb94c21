//! Whether two processes have opened the same checkpoint, told without reading its weights.

use super::{Files, Plan};
use crate::Result;
use crate::model::Config;

/// Places of the files that are read.
const PROBES: u64 = 64;

/// Bytes that are read at each place.
const PROBE: usize = 4096;

/// A number that differs, as good as certainly, if a file, a tensor or the configuration does: a
/// hash (64-bit FNV-1a) of the configuration, of the tensors' names and shapes, of all norms, and
/// of some places of the weights, which follow from the rest. A weight that differs elsewhere goes
/// unnoticed.
///
/// # Errors
/// [`crate::Error::Io`] if a file cannot be read.
pub fn fingerprint(config: &Config, files: &Files, plan: &Plan<'_>) -> Result<u64> {
    let mut hash = Fnv::default();
    hash.add(format!("{config:?}").as_bytes());
    let tensors = || {
        let of_file = files.files.iter().map(|file| (file, &file.tensors));
        of_file.flat_map(|(file, tensors)| tensors.iter().map(move |tensor| (file, tensor)))
    };
    for (_, (name, info)) in tensors() {
        hash.add(format!("{name} {} {:?} {}", info.encoding, info.shape, info.len).as_bytes());
    }
    let mut bytes = vec![0; PROBE];
    for source in plan.norms() {
        let mut at = 0;
        while at < source.info.len {
            let n = (source.info.len - at).min(PROBE as u64) as usize;
            source.file.read(source.info, at, &mut bytes[..n])?;
            hash.add(&bytes[..n]);
            at += n as u64;
        }
    }
    let all: u64 = tensors().fold(0, |sum, (_, (_, info))| sum.saturating_add(info.len));
    for _ in 0..PROBES.min(all) {
        // The places follow from what was read before, so they are the same only where that is.
        let mut at = hash.0 % all;
        for (file, (_, info)) in tensors() {
            if at >= info.len {
                at -= info.len;
                continue;
            }
            let n = (info.len - at).min(PROBE as u64) as usize;
            file.read(info, at, &mut bytes[..n])?;
            hash.add(&bytes[..n]);
            break;
        }
    }
    Ok(hash.0)
}

/// Fowler, Noll and Vo's hash, variant 1a.
pub(super) struct Fnv(pub u64);

impl Default for Fnv {
    fn default() -> Self {
        Fnv(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    /// Adds numbers, each at once: byte by byte takes four times as long.
    pub fn add_floats(&mut self, floats: &[f32]) {
        for x in floats {
            self.0 = (self.0 ^ u64::from(x.to_bits())).wrapping_mul(0x100_0000_01b3);
        }
    }

    pub fn add(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
}
