//! The kernels of adapters around a product, for the rows of one kind.

use super::Room;
use crate::backend::RowKind;
use crate::backend::adapter::MAX_PARTS;
use crate::backend::gpu::device::Device;
use crate::backend::gpu::mat::WeightRows;
use crate::backend::gpu::params::*;
use crate::backend::gpu::rows::{Input, Rows};
use crate::backend::gpu::{Gpu, GpuBuf, GpuMat, launch, pad32, rounded};
use crate::{Dtype, Error, Result};

/// Rows of one kind of a step, for the kernels of adapters: neighbours, from row `first` on.
#[derive(Clone, Copy)]
pub(in crate::backend::gpu) struct Adapted<'a, D: Device> {
    gpu: &'a Gpu<D>,
    room: &'a Room<D>,
    kind: RowKind,
    first: usize,
    n: u32,
    /// The highest rank of their adapters.
    rank: u32,
}

/// The input of a product as the kernels of adapters read it, from the step's first row on.
#[derive(Clone, Copy)]
pub(in crate::backend::gpu) struct AdapterInput {
    at: u64,
    stride: usize,
    cols: usize,
    /// The address of the norm; 0 if the rows have been normed and rounded already.
    norm: u64,
    /// The type of the rows, and its code.
    dtype: Dtype,
    code: u32,
    /// Whether the columns of prefill rows are in permuted order.
    permuted: bool,
}

impl AdapterInput {
    /// Rows of the residual stream.
    pub fn normed<D: Device>(x: &GpuBuf<D>, norm: &GpuBuf<D>, w: &GpuMat<D>) -> Self {
        AdapterInput {
            at: x.at(),
            stride: x.stride,
            cols: w.whole().cols,
            norm: norm.at(),
            dtype: Dtype::F32,
            code: GPU_F32,
            permuted: false,
        }
    }

    /// Rows that a product with `w` takes as they are.
    pub fn rounded<D: Device>(y: &GpuBuf<D>, w: &WeightRows<D>) -> Self {
        AdapterInput {
            at: y.at(),
            stride: y.stride,
            cols: w.cols,
            norm: 0,
            dtype: rounded(w.dtype),
            code: activations_code(w.dtype),
            permuted: y.permuted,
        }
    }
}

/// The number of a matrix's first part in the list of an adapter's parts.
fn first_part<D: Device>(w: &GpuMat<D>) -> Result<u32> {
    let lacking = || Error::Internal("a product with a matrix that has no adapters".into());
    let index = w.adapter_index.ok_or_else(lacking)?;
    Ok((index * MAX_PARTS) as u32)
}

impl<D: Device> Gpu<D> {
    /// The step's rows of this kind, if one of them has an adapter.
    pub(in crate::backend::gpu) fn adapted(&self, kind: RowKind) -> Option<Adapted<'_, D>> {
        let step = &self.step;
        let (first, n, rank) = match kind {
            // Behind the rows of decode, other rows take the place of padding.
            RowKind::Decode if step.n_prefill > 0 => (0, step.first_prefill, self.adapters.decode),
            RowKind::Decode => (0, step.n_decode, self.adapters.decode),
            RowKind::Prefill => (step.first_prefill, step.n_prefill, self.adapters.prefill),
        };
        let room = self.adapters.room()?;
        (rank > 0).then_some(Adapted {
            gpu: self,
            room,
            kind,
            first,
            n: n as u32,
            rank,
        })
    }

    /// Computes what adapters make of the input of a product with `w`.
    pub(in crate::backend::gpu) fn adapt_in(
        &self,
        w: &GpuMat<D>,
        n_parts: u32,
        x: AdapterInput,
        kind: RowKind,
    ) -> Result<()> {
        let Some(rows) = self.adapted(kind) else {
            return Ok(());
        };
        let skipped = rows.first * x.stride * x.dtype.size();
        let params = AdaptInParams {
            thin: rows.thin(0),
            x: x.at + skipped as u64,
            norm: x.norm,
            adapters: rows.room.adapters(rows.first),
            n_rows: rows.n,
            cols: x.cols as u32,
            x_stride: x.stride as u32,
            x_type: x.code,
            permuted: u32::from(x.permuted && kind == RowKind::Prefill),
            first_part: first_part(w)?,
            n_parts,
            rank: rows.rank,
            eps: self.shape.norm_eps,
            zero: 0,
        };
        launch::adapt_in(&*self.device, (self.adapters.dtype, kind), &params)
    }

    /// Adds what they add to a product with `w`. `y` and `other` are as in the kernel's parameters,
    /// each with its stride, from the step's first row on; `ends` are the columns before which the
    /// parts of `w` end.
    pub(in crate::backend::gpu) fn adapt_out(
        &self,
        w: &GpuMat<D>,
        (y, y_stride): (u64, usize),
        (other, other_stride): (u64, usize),
        ends: [usize; 3],
        kind: RowKind,
    ) -> Result<()> {
        let Some(rows) = self.adapted(kind) else {
            return Ok(());
        };
        let [second, third, n] = ends.map(|n| n as u32);
        let params = AdaptOutParams {
            y: y + (4 * rows.first * y_stride) as u64,
            other: other + (4 * rows.first * other_stride) as u64,
            thin: rows.thin(0),
            adapters: rows.room.adapters(rows.first),
            n_rows: rows.n,
            n,
            y_stride: y_stride as u32,
            other_stride: other_stride as u32,
            second,
            third,
            first_part: first_part(w)?,
            factor: w.scale,
        };
        launch::adapt_out(&*self.device, (self.adapters.dtype, kind), &params)
    }
}

impl<D: Device> Adapted<'_, D> {
    /// What the kernels leave for these rows, from their row `skip` on.
    fn thin(&self, skip: usize) -> u64 {
        self.room.thin.at() + (4 * (self.first + skip) * GPU_THIN as usize) as u64
    }

    /// Computes gate and up of these rows. `input(rows)` is the input of a product of `rows`, which
    /// are some of them. The products are the same that `ops::ffn_up` would do. But they are
    /// launched like q | k | v before norms and RoPE: such a launch leaves sums in float32, and
    /// takes all types and all numbers of rows.
    pub fn up(
        &self,
        up: &FfnUpParams,
        w: &GpuMat<D>,
        permuted: bool,
        input: impl Fn(Rows) -> Result<Input>,
    ) -> Result<()> {
        let Adapted { gpu, room, .. } = *self;
        let (rows_of_w, device) = (w.whole(), &*gpu.device);
        let sums_stride = pad32(2 * gpu.shape.ffn_dim);
        let most = room.sums.bytes() / (4 * sums_stride);
        // Rows of decode lie in the sums by their numbers, which begin at 0.
        let (all, group) = match self.kind {
            RowKind::Decode => (gpu.step.decode(0), self.n as usize),
            RowKind::Prefill => (gpu.step.prefill(), most.min(room.counting.bytes() / 4)),
        };
        for skip in (0..self.n as usize).step_by(group.max(1)) {
            let n = group.min(self.n as usize - skip) as u32;
            let rows = Rows {
                at: all + 4 * skip as u64,
                n,
            };
            let input = input(rows)?;
            let product = QkvParams {
                q: room.sums.at(),
                x: input.at,
                norm: up.norm,
                w: rows_of_w.at(),
                bias: up.bias,
                rows: match self.kind {
                    RowKind::Decode => rows.at,
                    RowKind::Prefill => room.counting.at(),
                },
                positions: gpu.step.positions(),
                slots: gpu.step.slots(),
                scratch: gpu.split.at(),
                n_rows: n,
                dim: up.dim,
                x_stride: input.stride,
                w_stride: up.w_stride,
                q_stride: sums_stride as u32,
                n_heads: up.ffn_dim,
                head_dim: 2,
                head_stride: 2,
                eps: up.eps,
                splits: 1,
                n: 2 * up.ffn_dim,
                raw: 1,
                ..QkvParams::default()
            };
            match (self.kind, gpu.prepared.maps(rows_of_w, permuted)) {
                (RowKind::Decode, _) => launch::qkv(device, rows_of_w.dtype, &product),
                (_, Some(maps)) => launch::qkv_hopper(device, rows_of_w.dtype, maps, &product),
                (_, None) => launch::qkv_prefill(device, rows_of_w.dtype, &product),
            }?;
            let params = AdaptUpParams {
                h: up.h,
                sums: room.sums.at(),
                thin: self.thin(skip),
                adapters: room.adapters(self.first + skip),
                rows: rows.at,
                n_rows: n,
                ffn_dim: up.ffn_dim,
                sums_stride: sums_stride as u32,
                h_stride: up.h_stride,
                h_type: up.h_type,
                permuted: u32::from(permuted),
                first_part: first_part(w)?,
                fast: u32::from(rows_of_w.dtype != Dtype::F32),
            };
            launch::adapt_up(device, (gpu.adapters.dtype, self.kind), &params)?;
        }
        Ok(())
    }
}
