//! The operations of the seam, but for those around the cache (`attention`) and of Medusa heads
//! (`medusa`): which kernels each of them launches, and with which parameters. Each launch reads
//! what earlier launches wrote.

use super::adapters::AdapterInput;
use super::device::Device;
use super::geometry::prepares;
use super::mat::WeightRows;
use super::params::*;
use super::rows::{Input, Norm, Rows};
use super::{Gpu, GpuBuf, GpuMat, launch, rounded};
use crate::Result;
use crate::backend::{Layer, RowKind};

impl<D: Device> Gpu<D> {
    /// The norm with this weight.
    pub(super) fn norm(&self, weight: &GpuBuf<D>) -> Norm {
        Norm {
            weight: weight.at(),
            eps: self.shape.norm_eps,
        }
    }

    /// Prepares `rows` of x for products with `w`: applies the norm and rounds. With `permuted`,
    /// their columns are in permuted order. `done` is the form in which the rows are prepared
    /// already; it is updated.
    pub(super) fn prepare(
        &self,
        done: &mut Option<(u32, bool)>,
        w: &WeightRows<D>,
        x: &GpuBuf<D>,
        norm: Norm,
        rows: Rows,
        permuted: bool,
    ) -> Result<Input> {
        let input = Input {
            at: self.prepared.at(),
            stride: self.prepared.stride as u32,
        };
        let form = (activations_code(w.dtype), permuted);
        if done.replace(form) == Some(form) {
            return Ok(input);
        }
        let params = PrepareParams {
            out: input.at,
            x: x.at(),
            norm: norm.weight,
            rows: rows.at,
            n_rows: rows.n,
            width: w.cols as u32,
            x_stride: x.stride as u32,
            out_stride: input.stride,
            eps: norm.eps,
            permuted: u32::from(permuted),
            out_type: form.0,
            zero: 0,
        };
        launch::prepare(&*self.device, rounded(w.dtype), &params)?;
        Ok(input)
    }

    /// The input of a decode product of `rows` of x with `w`. It is x itself; or, where there are
    /// many rows, the output of `prepare`, which all blocks then share.
    pub(super) fn decode_input(
        &self,
        done: &mut Option<(u32, bool)>,
        w: &WeightRows<D>,
        x: &GpuBuf<D>,
        norm: Norm,
        rows: Rows,
    ) -> Result<Input> {
        if prepares(w.dtype, rows.n, w.cols as u32, &self.device.room()) {
            return self.prepare(done, w, x, norm, rows, false);
        }
        Ok(Input {
            at: x.at(),
            stride: x.stride as u32,
        })
    }

    pub(super) fn decode_rows(&self) -> Rows {
        Rows {
            at: self.step.decode(0),
            n: self.step.n_decode as u32,
        }
    }

    /// `x += w y + bias` for the rows of decode. `y`: where the rounded rows lie, and their stride.
    pub(super) fn product_of_decode_rows(
        &self,
        x: &GpuBuf<D>,
        w: &WeightRows<D>,
        bias: u64,
        (y, y_stride): (u64, u32),
    ) -> MatmulAddParams {
        let rows = self.decode_rows();
        MatmulAddParams {
            x: x.at(),
            y,
            w: w.at(),
            bias,
            rows: rows.at,
            scratch: self.split.at(),
            n_rows: rows.n,
            n: w.rows as u32,
            k: w.cols as u32,
            x_stride: x.stride as u32,
            y_stride,
            w_stride: w.stride as u32,
            splits: 1,
            first: 0,
            scale: 1.0,
            zero: 0,
        }
    }

    pub(super) fn prefill_rows(&self) -> Rows {
        Rows {
            at: self.step.prefill(),
            n: self.step.n_prefill as u32,
        }
    }
}

/// `first`: the token of the table's first row.
pub(super) fn embed<D: Device>(
    gpu: &Gpu<D>,
    x: &GpuBuf<D>,
    table: &GpuMat<D>,
    first: usize,
) -> Result<()> {
    let table = table.whole();
    let params = EmbedParams {
        x: x.at(),
        table: table.at(),
        tokens: gpu.step.tokens(),
        n_rows: gpu.step.n_rows as u32,
        dim: gpu.shape.dim as u32,
        x_stride: x.stride as u32,
        w_stride: table.stride as u32,
        first: first as u32,
        n: table.rows as u32,
    };
    launch::embed(&*gpu.device, table.dtype, &params)
}

pub(super) fn matmul_add<D: Device>(
    gpu: &Gpu<D>,
    x: &GpuBuf<D>,
    w: &GpuMat<D>,
    y: &GpuBuf<D>,
) -> Result<()> {
    let (device, bias) = (&*gpu.device, w.bias());
    let (scale, mat) = (w.scale, w);
    let w = w.whole();
    let input = AdapterInput::rounded(y, w);
    let adapt_out = |kind| gpu.adapt_out(mat, (x.at(), x.stride), (0, 0), [w.rows; 3], kind);
    gpu.adapt_in(mat, 1, input, RowKind::Decode)?;
    let decode = MatmulAddParams {
        scale,
        ..gpu.product_of_decode_rows(x, w, bias, (y.at(), y.stride as u32))
    };
    launch::matmul_add(device, w.dtype, &decode)?;
    adapt_out(RowKind::Decode)?;
    gpu.adapt_in(mat, 1, input, RowKind::Prefill)?;
    let (rows, first) = (gpu.prefill_rows(), gpu.step.first_prefill);
    let prefill = MatmulAddParams {
        y: y.at() + (first * y.stride * rounded(w.dtype).size()) as u64,
        rows: rows.at,
        n_rows: rows.n,
        first: first as u32,
        ..decode
    };
    if !gpu.matmul_add_by_library(w.dtype, &prefill) {
        match y.maps(w, y.permuted) {
            Some(maps) => launch::matmul_add_hopper(device, w.dtype, maps, &prefill),
            None => launch::matmul_add_prefill(device, w.dtype, &prefill),
        }?;
    }
    adapt_out(RowKind::Prefill)
}

pub(super) fn ffn_up<D: Device>(
    gpu: &Gpu<D>,
    h: &mut GpuBuf<D>,
    x: &GpuBuf<D>,
    layer: &Layer<Gpu<D>>,
) -> Result<()> {
    let (w, norm, device) = (layer.w13.whole(), &layer.ffn_norm, &*gpu.device);
    let w2 = layer.w2.whole();
    // Of the kernels for gate and up, those that read quantised rows through maps always write
    // permuted order, and no others do. So h gets this order only if both products take their input
    // in it.
    h.permuted = gpu.prepared.takes_permuted(w) && h.takes_permuted(w2);
    let all = FfnUpParams {
        h: h.at(),
        norm: norm.at(),
        w: w.at(),
        scratch: gpu.split.at(),
        ffn_dim: gpu.shape.ffn_dim as u32,
        dim: gpu.shape.dim as u32,
        w_stride: w.stride as u32,
        h_stride: h.stride as u32,
        eps: gpu.shape.norm_eps,
        splits: 1,
        h_type: activations_code(w2.dtype),
        bias: layer.w13.bias(),
        ..FfnUpParams::default()
    };
    let of = |rows: Rows, input: Input| FfnUpParams {
        x: input.at,
        x_stride: input.stride,
        rows: rows.at,
        n_rows: rows.n,
        ..all
    };
    let for_adapters = AdapterInput::normed(x, norm, &layer.w13);
    let decode_input = |rows| gpu.decode_input(&mut None, w, x, gpu.norm(norm), rows);
    let rows = gpu.decode_rows();
    if let Some(adapted) = gpu.adapted(RowKind::Decode) {
        gpu.adapt_in(&layer.w13, 2, for_adapters, RowKind::Decode)?;
        adapted.up(&all, &layer.w13, false, decode_input)?;
    } else {
        launch::ffn_up(device, w.dtype, &of(rows, decode_input(rows)?))?;
    }
    let prefill_input = |rows| gpu.prepare(&mut None, w, x, gpu.norm(norm), rows, h.permuted);
    let rows = gpu.prefill_rows();
    if let Some(adapted) = gpu.adapted(RowKind::Prefill) {
        gpu.adapt_in(&layer.w13, 2, for_adapters, RowKind::Prefill)?;
        return adapted.up(&all, &layer.w13, h.permuted, prefill_input);
    }
    let prefill = of(rows, prefill_input(rows)?);
    if gpu.ffn_up_by_library(w.dtype, rounded(w2.dtype), &prefill)? {
        return Ok(());
    }
    match gpu.prepared.maps(w, h.permuted) {
        Some(maps) => launch::ffn_up_hopper(device, w.dtype, maps, &prefill),
        None => launch::ffn_up_prefill(device, w.dtype, &prefill),
    }
}

impl<D: Device> Gpu<D> {
    /// Numbers from one row of logits to the next. If the host reads the logits, their rows have no
    /// padding, so that one copy brings them all. If tokens are chosen on the device, the kernel
    /// needs aligned rows.
    pub(super) fn logits_stride(&self, out: &GpuBuf<D>) -> usize {
        match self.chooser.n_rows {
            0 => self.shape.vocab_size,
            _ => out.stride,
        }
    }

    /// Whether tokens are chosen by what is recorded of a step. They are chosen behind it, if the
    /// ranks' logits have to be gathered first, and where edits or masks change logits: masks come
    /// when the rest of the step has been launched, and edits go the same way.
    pub(super) fn chooses_in_record(&self) -> bool {
        self.gather.is_none() && !self.chooser.is_changed()
    }
}

/// Logits of the wanted rows, and the choice of their tokens if the step asks for it.
pub(super) fn logits<D: Device>(
    gpu: &Gpu<D>,
    out: &mut GpuBuf<D>,
    x: &GpuBuf<D>,
    norm: Option<&GpuBuf<D>>,
    head: &GpuMat<D>,
) -> Result<()> {
    self::head(gpu, (out, gpu.logits_stride(out)), x, norm, head)?;
    match gpu.chooses_in_record() {
        true => choose(gpu, out),
        false => Ok(()),
    }
}

/// Logits of the wanted rows for the tokens that `head` has, with this stride.
pub(super) fn head<D: Device>(
    gpu: &Gpu<D>,
    (out, out_stride): (&GpuBuf<D>, usize),
    x: &GpuBuf<D>,
    norm: Option<&GpuBuf<D>>,
    head: &GpuMat<D>,
) -> Result<()> {
    let rows = Rows {
        at: gpu.step.wanted(),
        n: gpu.step.n_wanted_padded as u32,
    };
    let head = head.whole();
    let norm = match norm {
        Some(norm) => gpu.norm(norm),
        None => gpu.medusa()?.no_norm(),
    };
    let input = gpu.decode_input(&mut None, head, x, norm, rows)?;
    let params = LogitsParams {
        out: out.at(),
        x: input.at,
        norm: norm.weight,
        w: head.at(),
        rows: rows.at,
        scratch: gpu.split.at(),
        n_rows: rows.n,
        vocab_size: head.rows as u32,
        dim: gpu.shape.dim as u32,
        x_stride: input.stride,
        w_stride: head.stride as u32,
        out_stride: out_stride as u32,
        eps: norm.eps,
        splits: 1,
    };
    launch::logits(&*gpu.device, head.dtype, &params)
}

/// The choice of tokens from logits, if the step asks for it.
pub(super) fn choose<D: Device>(gpu: &Gpu<D>, logits: &GpuBuf<D>) -> Result<()> {
    let (rows, next) = (gpu.step.choices(), gpu.step.tokens());
    let stride = gpu.logits_stride(logits);
    gpu.chooser
        .launch(&gpu.device, rows, logits.at(), stride, next)
}
