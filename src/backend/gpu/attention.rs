//! The operations around the cache: q, k and v of a layer, and attention.

use super::adapters::AdapterInput;
use super::device::Device;
use super::mat::WeightRows;
use super::params::*;
use super::rows::{Input, Rows};
use super::{ATTEND_ROWS, Gpu, GpuBuf, GpuKv, head_stride, launch};
use crate::backend::{Layer, Rotation, RowKind};
use crate::{Dtype, Result};

impl<D: Device> Gpu<D> {
    /// Attention of the decode rows, [`ATTEND_ROWS`] at a time.
    fn attend_decode(&self, all: &AttendParams, kv: Dtype) -> Result<()> {
        for first in (0..self.step.n_decode).step_by(ATTEND_ROWS) {
            let params = AttendParams {
                rows: self.step.decode(first),
                n_rows: (self.step.n_decode - first).min(ATTEND_ROWS) as u32,
                ..*all
            };
            launch::attend(&*self.device, kv, &params)?;
        }
        Ok(())
    }
}

pub(super) fn qkv<D: Device>(
    gpu: &Gpu<D>,
    q: &mut GpuBuf<D>,
    kv: &mut GpuKv<D>,
    x: &GpuBuf<D>,
    layer: &Layer<Gpu<D>>,
) -> Result<()> {
    let (norm, device, shape) = (&layer.attention_norm, &*gpu.device, &gpu.shape);
    let offset = (layer.index * kv.layer()) as u64;
    let pages = (kv.k.at() + offset, kv.v.at() + offset);
    let kv_bytes = 4 * shape.kv_dim() as u64;
    let room = gpu.adapters.room();
    let fresh = gpu
        .fresh
        .as_ref()
        .or(room.and_then(|room| room.fresh.as_ref()));
    let (k_pages, v_pages) = match fresh {
        Some(fresh) => (fresh.at(), fresh.at() + kv_bytes),
        None => pages,
    };
    let (cos, sin, positions) = match &gpu.still {
        Some(still) if layer.rotation == Rotation::Never => {
            (still.cos.at(), still.sin.at(), still.positions.at())
        }
        _ => (gpu.cos.at(), gpu.sin.at(), gpu.step.positions()),
    };
    let raw = layer.head_norms.is_some() || room.is_some();
    let all = QkvParams {
        q: q.at(),
        k_pages,
        v_pages,
        norm: norm.at(),
        bias: layer.wqkv.bias(),
        cos,
        sin,
        positions,
        slots: gpu.step.slots(),
        scratch: gpu.split.at(),
        dim: shape.dim as u32,
        q_stride: q.stride as u32,
        n_heads: shape.n_heads as u32,
        n_kv_heads: shape.n_kv_heads as u32,
        head_dim: shape.head_dim as u32,
        head_stride: head_stride(shape) as u32,
        kv_type: type_code(kv.dtype),
        eps: shape.norm_eps,
        splits: 1,
        raw: u32::from(raw),
        ..QkvParams::default()
    };
    let of = |w: &WeightRows<D>, rows: Rows, input: Input| QkvParams {
        x: input.at,
        x_stride: input.stride,
        w: w.at(),
        w_stride: w.stride as u32,
        rows: rows.at,
        n_rows: rows.n,
        first: w.first as u32,
        n: w.rows as u32,
        ..all
    };
    let input = AdapterInput::normed(x, norm, &layer.wqkv);
    let (q_dim, kv_dim) = (shape.q_dim(), shape.kv_dim());
    let ends = [q_dim, q_dim + kv_dim, q_dim + 2 * kv_dim];
    let adapt_out = |kind| {
        let fresh = (all.k_pages, 2 * kv_dim);
        gpu.adapt_out(&layer.wqkv, (all.q, q.stride), fresh, ends, kind)
    };
    gpu.adapt_in(&layer.wqkv, 3, input, RowKind::Decode)?;
    let (rows, mut done) = (gpu.decode_rows(), None);
    for w in layer.wqkv.runs() {
        let input = gpu.decode_input(&mut done, w, x, gpu.norm(norm), rows)?;
        launch::qkv(device, w.dtype, &of(w, rows, input))?;
    }
    adapt_out(RowKind::Decode)?;
    gpu.adapt_in(&layer.wqkv, 3, input, RowKind::Prefill)?;
    let (rows, mut done) = (gpu.prefill_rows(), None);
    for w in layer.wqkv.runs() {
        let permuted = gpu.prepared.takes_permuted(w);
        let params = of(
            w,
            rows,
            gpu.prepare(&mut done, w, x, gpu.norm(norm), rows, permuted)?,
        );
        if gpu.qkv_by_library(w.dtype, &params)? {
            continue;
        }
        match gpu.prepared.maps(w, permuted) {
            Some(maps) => launch::qkv_hopper(device, w.dtype, maps, &params)?,
            None => launch::qkv_prefill(device, w.dtype, &params)?,
        }
    }
    adapt_out(RowKind::Prefill)?;
    let Some(fresh) = fresh else {
        return Ok(());
    };
    let [q_norm, k_norm] = match &layer.head_norms {
        Some(norms) => norms.each_ref().map(GpuBuf::at),
        None => [0; 2],
    };
    let rest = match raw {
        true => AppendParams {
            q: all.q,
            q_norm,
            k_norm,
            cos: all.cos,
            sin: all.sin,
            tokens: gpu.step.tokens(),
            positions: all.positions,
            n_heads: all.n_heads,
            q_stride: all.q_stride,
            eps: all.eps,
            rope_first: u32::from(layer.rotation == Rotation::BeforeNorms),
            ..AppendParams::default()
        },
        false => AppendParams::default(),
    };
    let append = AppendParams {
        k_pages: pages.0,
        v_pages: pages.1,
        fresh: fresh.at(),
        slots: all.slots,
        n_rows: gpu.step.n_rows as u32,
        n_kv_heads: all.n_kv_heads,
        head_dim: all.head_dim,
        head_stride: all.head_stride,
        ..rest
    };
    launch::append(device, kv.dtype, &append)
}

pub(super) fn attend<D: Device>(
    gpu: &Gpu<D>,
    y: &mut GpuBuf<D>,
    q: &GpuBuf<D>,
    kv: &GpuKv<D>,
    layer: &Layer<Gpu<D>>,
) -> Result<()> {
    let wo = layer.wo.whole();
    y.permuted = y.takes_permuted(wo);
    let (shape, step) = (&gpu.shape, &gpu.step);
    let offset = (layer.index * kv.layer()) as u64;
    let (k_pages, v_pages) = (kv.k.at() + offset, kv.v.at() + offset);
    let decode = AttendParams {
        y: y.at(),
        q: q.at(),
        k_pages,
        v_pages,
        partial: gpu.partial.at(),
        counters: gpu.counters.at(),
        positions: step.positions(),
        row_pages: step.row_pages(),
        pages: step.pages(),
        n_heads: shape.n_heads as u32,
        n_kv_heads: shape.n_kv_heads as u32,
        head_dim: shape.head_dim as u32,
        head_stride: head_stride(shape) as u32,
        q_stride: q.stride as u32,
        y_stride: y.stride as u32,
        max_splits: gpu.splits() as u32,
        scale: (1.0 / (shape.head_dim as f64).sqrt()) as f32,
        y_type: activations_code(wo.dtype),
        // 0 means that there is none; one that is too large for the kernel has no effect.
        window: layer.window.map_or(0, |n| u32::try_from(n).unwrap_or(0)),
        group: (shape.n_heads / shape.n_kv_heads) as u32,
        ..AttendParams::default()
    };
    gpu.attend_decode(&decode, kv.dtype)?;
    let prefill = AttendPrefillParams {
        y: decode.y,
        q: decode.q,
        k_pages,
        v_pages,
        tiles: step.tiles(),
        rows: step.prefill(),
        pages: decode.pages,
        n_tiles: step.n_tiles as u32,
        n_heads: decode.n_heads,
        n_kv_heads: decode.n_kv_heads,
        head_dim: decode.head_dim,
        head_stride: decode.head_stride,
        q_stride: decode.q_stride,
        y_stride: decode.y_stride,
        scale: decode.scale,
        y_type: decode.y_type,
        permuted: u32::from(y.permuted),
        window: decode.window,
        zero: 0,
    };
    if let Some([k, v]) = kv.maps {
        let rows_of = |bytes: usize| (bytes / (2 * head_stride(shape))) as u32;
        let params = AttendHopperParams {
            k,
            v,
            p: prefill,
            first: rows_of(layer.index * kv.layer()),
            end: rows_of(kv.k.bytes()),
            ..Default::default()
        };
        launch::attend_hopper(&*gpu.device, kv.dtype, &params)
    } else if gpu.tensor_cores {
        launch::attend_prefill(&*gpu.device, kv.dtype, &prefill)
    } else {
        launch::attend_prefill_fma(&*gpu.device, kv.dtype, &prefill)
    }
}
