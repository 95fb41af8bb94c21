//! What Medusa heads need on a GPU besides their weights, and their operations.

use super::device::Device;
use super::memory::Memory;
use super::params::{PrepareParams, SiluAddParams, activations_code};
use super::rows::Norm;
use super::{Gpu, GpuBuf, GpuMat, launch, pad32};
use crate::backend::Limits;
use crate::{Dtype, Error, Result};

/// With this and [`WEIGHT`], RMSNorm changes nothing: beside it the mean square of a row is lost,
/// and both are powers of two, so a number is multiplied and divided by the same. The kernels of a
/// product then need no second form without a norm.
const EPS: f32 = 1.208_925_8e24; // 2^80
const WEIGHT: f32 = 1.099_511_6e12; // 2^40

pub(super) struct Medusa<D: Device> {
    /// `[pad32(dim)]`, all [`WEIGHT`].
    plain: Memory<D>,
    /// Where the product of a residual block is added, `[max_wanted, dim]`: zero between blocks.
    sums: GpuBuf<D>,
}

impl<D: Device> Medusa<D> {
    /// The norm that changes nothing.
    pub fn no_norm(&self) -> Norm {
        Norm {
            weight: self.plain.at(),
            eps: EPS,
        }
    }
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
        // Rows for float32 weights take all of the buffer, so there is no room in it for those that
        // pad a bucket. No other product of decode rows with such weights has prepared rows.
        if rows > limits.max_rows {
            self.prepared = GpuBuf::new(&self.device, what, rows, self.shape.dim)?;
        }
        self.medusa = Some(Medusa { plain, sums });
        Ok(self)
    }

    pub(super) fn medusa(&self) -> Result<&Medusa<D>> {
        let none = || Error::Internal("a Medusa head on a GPU backend without room for it".into());
        self.medusa.as_ref().ok_or_else(none)
    }
}

/// Rows of an earlier step, normed. Their numbers are the tokens of the loaded step.
pub(super) fn hidden<D: Device>(
    gpu: &Gpu<D>,
    out: &mut GpuBuf<D>,
    x: &GpuBuf<D>,
    norm: &GpuBuf<D>,
) -> Result<()> {
    let params = PrepareParams {
        out: out.at(),
        x: x.at(),
        norm: norm.at(),
        rows: gpu.step.tokens(),
        n_rows: gpu.step.n_rows as u32,
        width: gpu.shape.dim as u32,
        x_stride: x.stride as u32,
        out_stride: out.stride as u32,
        eps: gpu.shape.norm_eps,
        permuted: 0,
        out_type: activations_code(Dtype::F32),
        zero: 0,
    };
    launch::prepare(&*gpu.device, Dtype::F32, &params)
}

/// The residual block of a Medusa head.
pub(super) fn residual_block<D: Device>(
    gpu: &Gpu<D>,
    out: &mut GpuBuf<D>,
    w: &GpuMat<D>,
    h: &GpuBuf<D>,
) -> Result<()> {
    let medusa = gpu.medusa()?;
    let (rows, device, sums) = (gpu.decode_rows(), &*gpu.device, &medusa.sums);
    let (bias, w) = (w.bias(), w.whole());
    let input = gpu.prepare(&mut None, w, h, medusa.no_norm(), rows, false)?;
    let product = gpu.product_of_decode_rows(sums, w, bias, (input.at, input.stride));
    launch::matmul_add(device, w.dtype, &product)?;
    let end = SiluAddParams {
        out: out.at(),
        h: h.at(),
        t: sums.at(),
        n_rows: gpu.step.n_rows as u32,
        width: gpu.shape.dim as u32,
        stride: out.stride as u32,
        zero: 0,
    };
    launch::silu_add(device, &end)
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
