//! What Medusa heads need on a GPU besides their weights.

use super::device::{Device, Memory};
use super::{Gpu, GpuBuf, pad32};
use crate::backend::Limits;
use crate::{Error, Result};

/// With this and [`WEIGHT`], RMSNorm changes nothing: beside it the mean square of a row is lost, and
/// both are powers of two, so a number is multiplied and divided by the same. The kernels of a product
/// then need no second form without a norm.
pub(super) const EPS: f32 = 1.208_925_8e24; // 2^80
const WEIGHT: f32 = 1.099_511_6e12; // 2^40

pub(super) struct Medusa<D: Device> {
    /// `[pad32(dim)]`, all [`WEIGHT`].
    pub plain: Memory<D>,
    /// Where the product of a residual block is added, `[max_wanted, dim]`: zero between blocks.
    pub sums: GpuBuf<D>,
}

impl<D: Device> Gpu<D> {
    /// Takes Medusa heads.
    ///
    /// # Errors
    /// [`Error::DeviceMemory`].
    pub fn with_medusa(mut self, limits: &Limits) -> Result<Self> {
        let (what, width) = ("scratch buffers", pad32(self.shape.dim));
        let plain = Memory::new(&self.device, what, 4 * width)?;
        plain.write_floats(0, &vec![WEIGHT; width])?;
        let rows = limits.max_wanted.next_multiple_of(32);
        let sums = GpuBuf::new(&self.device, what, rows, self.shape.dim)?;
        self.medusa = Some(Medusa { plain, sums });
        Ok(self)
    }

    pub(super) fn medusa(&self) -> Result<&Medusa<D>> {
        let none = || Error::Internal("a Medusa head on a GPU backend without room for it".into());
        self.medusa.as_ref().ok_or_else(none)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_norm_that_changes_nothing() {
        assert_eq!((EPS, WEIGHT), (80f32.exp2(), 40f32.exp2()));
        for mean_square in [0.0, 1e-30, 1.0, 1e15] {
            assert_eq!((mean_square + EPS).sqrt(), WEIGHT);
        }
    }
}
