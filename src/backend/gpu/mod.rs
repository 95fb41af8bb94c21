//! The GPU backend: the operations of the seam as launches of `kernels/*.cu` on a [`Device`].
//!
//! | file | what it knows |
//! |---|---|
//! | [`device`] | what a device must do, and memory on it (U) |
//! | [`driver`], [`preflight`], [`cuda`] | the driver's functions, whether there is a GPU, a real GPU (U) |
//! | [`kernels`], [`images`] | which kernels there are, and compiled |
//! | `params`, `launch` | the kernels' parameters and geometry (U) |
//! | `step`, `mat`, `quantised`, `sample` | a step, weights, and the choice of tokens on the device |
//!
//! The rows of a step are split by kind: decode rows go through kernels that read the weights once for up
//! to eight rows, prefill rows through tiled products and attention with tensor cores. `kernels/params.h`
//! is the contract with the kernels. Operations cannot fail; what a device reports is kept and given by
//! [`Backend::read`], after which the engine poisons the handle.

pub mod cuda;
pub mod device;
pub mod driver;
pub mod images;
pub mod kernels;
pub mod preflight;

mod launch;
mod mat;
mod params;
mod quantised;
mod sample;
mod step;

pub use mat::GpuMat;

use super::cpu::Quantiser;
use super::{Answer, Backend, Block, Layer, Limits, MatSpec, QuantBlock, RopeTable, Shape, Step};
use crate::quant::Quant;
use crate::{Dtype, Error, Result};
use device::{Device, Memory};
use params::*;
use std::sync::{Arc, Mutex, OnceLock};

/// Positions in one page of the cache.
const PAGE: usize = 16;

/// Keys of one split of decode attention.
const CHUNK: usize = 256;

/// The widest head the kernels take.
const MAX_HEAD_DIM: usize = 256;

/// Rows of one launch of decode attention, which needs memory for each of its rows.
const ATTEND_ROWS: usize = 32;

fn pad32(n: usize) -> usize {
    n.checked_next_multiple_of(32).unwrap_or(usize::MAX)
}

fn head_stride(shape: &Shape) -> usize {
    shape.head_dim.next_multiple_of(16)
}

/// Bytes of K or V of one head of a page; behind int8 vectors lie their scales, float32.
fn head_of_page(shape: &Shape, dtype: Dtype) -> usize {
    let scales = if dtype == Dtype::Int8 { 4 * PAGE } else { 0 };
    PAGE * head_stride(shape) * dtype.size() + scales
}

/// Floats of K and V of the rows of a step before they are int8.
fn fresh_len(shape: &Shape, max_rows: usize) -> usize {
    max_rows.saturating_mul(2 * shape.kv_dim())
}

/// Floats of the partial results of decode attention over sequences of up to `positions`.
fn partial_len(shape: &Shape, positions: usize) -> usize {
    [
        shape.n_heads,
        positions.div_ceil(CHUNK),
        head_stride(shape) + 4,
    ]
    .iter()
    .fold(ATTEND_ROWS, |n, &f| n.saturating_mul(f))
}

/// The widest input of a product.
fn widest(shape: &Shape) -> usize {
    shape.dim.max(shape.q_dim()).max(shape.ffn_dim)
}

/// Activations, `[rows, width]` of float32, a row every `stride`; or a vector.
pub struct GpuBuf<D: Device> {
    memory: Memory<D>,
    stride: usize,
}

impl<D: Device> GpuBuf<D> {
    fn at(&self) -> u64 {
        self.memory.at()
    }
}

/// K and V of all layers, each `[layer][page][kv_head][16][head_stride]`; with int8, the scales of a head of a page
/// behind its vectors.
pub struct GpuKv<D: Device> {
    k: Memory<D>,
    v: Memory<D>,
    dtype: Dtype,
    n_pages: usize,
    /// Bytes of a page on one layer, K or V alone.
    page: usize,
}

impl<D: Device> GpuKv<D> {
    /// Bytes from one layer to the next.
    fn layer(&self) -> usize {
        self.n_pages * self.page
    }
}

/// A model's share of a GPU.
pub struct Gpu<D: Device> {
    device: Arc<D>,
    shape: Shape,
    weights_dtype: Dtype,
    cos: Memory<D>,
    sin: Memory<D>,
    step: step::Loaded<D>,
    chooser: sample::Chooser<D>,
    /// Rows as the prefill products read them, `[max_rows, pad32(widest)]`.
    prepared: Memory<D>,
    partial: Memory<D>,
    /// `[max_rows][k | v][kv_dim]`, for an int8 cache.
    fresh: Option<Memory<D>>,
    /// `[ATTEND_ROWS, n_kv_heads]`, zero between launches.
    counters: Memory<D>,
    host: D::Host,
    /// Made where a checkpoint is quantised as it is loaded.
    quantiser: OnceLock<Option<Quantiser>>,
    /// The first error of the device.
    failure: Mutex<Option<Error>>,
}

impl<D: Device> Gpu<D> {
    /// Memory for steps within `limits`, for weights and a cache of these dtypes.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for heads the kernels have no room for, [`Error::DeviceMemory`].
    pub fn new(
        device: Arc<D>,
        shape: &Shape,
        rope: &RopeTable,
        limits: &Limits,
        weights_dtype: Dtype,
        kv_dtype: Dtype,
    ) -> Result<Self> {
        if shape.head_dim > MAX_HEAD_DIM || shape.head_dim == 0 || shape.head_dim % 2 == 1 {
            return Err(Error::Unsupported(format!(
                "head_dim is {}, the GPU kernels take even ones up to {MAX_HEAD_DIM}",
                shape.head_dim
            )));
        }
        if !kv_dtype.is_float() && kv_dtype != Dtype::Int8 {
            return Err(Error::Unsupported(format!(
                "kv_dtype is {kv_dtype}: the cache is kept as f32, f16, bf16 or int8 only"
            )));
        }
        let table = |values: &[f32]| -> Result<Memory<D>> {
            let memory = Memory::new(&device, "the RoPE table", size_of_val(values))?;
            memory.write_floats(0, values)?;
            Ok(memory)
        };
        let positions = rope.cos.len() / (shape.head_dim / 2);
        let prepared = limits.max_rows.saturating_mul(pad32(widest(shape)));
        let tile = if tensor_cores(weights_dtype, kv_dtype, shape) {
            step::TILE_MMA
        } else {
            step::TILE_FMA
        };
        let what = "scratch buffers";
        // What comes back of a row: logits, or what was chosen.
        let row = limits.vocab_size.max(sample::out_len());
        Ok(Gpu {
            cos: table(&rope.cos)?,
            sin: table(&rope.sin)?,
            step: step::Loaded::new(&device, limits.max_rows, limits.n_pages, tile)?,
            chooser: sample::Chooser::new(&device, limits)?,
            prepared: Memory::new(&device, what, prepared.saturating_mul(4))?,
            partial: Memory::new(
                &device,
                what,
                partial_len(shape, positions).saturating_mul(4),
            )?,
            fresh: match kv_dtype {
                Dtype::Int8 => {
                    let bytes = fresh_len(shape, limits.max_rows).saturating_mul(4);
                    Some(Memory::new(&device, what, bytes)?)
                }
                _ => None,
            },
            counters: Memory::zeroed(&device, what, 4 * ATTEND_ROWS * shape.n_kv_heads)?,
            host: device.host(limits.max_wanted.saturating_mul(row))?,
            quantiser: OnceLock::new(),
            failure: Mutex::new(None),
            shape: shape.clone(),
            weights_dtype,
            device,
        })
    }

    /// Keep the first error; nothing is launched after it.
    fn run(&self, work: impl FnOnce(&Self) -> Result<()>) {
        let mut failure = self.failure.lock().unwrap_or_else(|e| e.into_inner());
        if failure.is_none() {
            *failure = work(self).err();
        }
    }

    fn check(&self) -> Result<()> {
        let failure = self.failure.lock().unwrap_or_else(|e| e.into_inner());
        failure.clone().map_or(Ok(()), Err)
    }

    /// Rows `x` of the prefill rows, normalised by `norm` if it is not 0, in the type that products with
    /// weights of `dtype` read.
    fn prepare(&self, dtype: Dtype, x: &GpuBuf<D>, norm: u64, width: usize) -> Result<()> {
        let params = PrepareParams {
            out: self.prepared.at(),
            x: x.at(),
            norm,
            rows: self.step.prefill(),
            n_rows: self.step.n_prefill as u32,
            width: width as u32,
            x_stride: x.stride as u32,
            out_stride: pad32(width) as u32,
            eps: self.shape.norm_eps,
            zero: 0,
        };
        let dtype = if dtype.is_float() { dtype } else { Dtype::F16 };
        launch::prepare(&*self.device, dtype, &params)
    }

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

/// Whether prefill attention uses tensor cores: not where the weights ask for float32 throughout.
fn tensor_cores(weights: Dtype, kv: Dtype, shape: &Shape) -> bool {
    weights != Dtype::F32 && kv != Dtype::F32 && head_stride(shape) <= 128
}

impl<D: Device> Backend for Gpu<D> {
    type Buf = GpuBuf<D>;
    type Mat = GpuMat<D>;
    type Kv = GpuKv<D>;
    const PAGE_SIZE: usize = PAGE;

    fn mat_bytes(spec: &MatSpec) -> u64 {
        mat::bytes(spec)
    }

    fn page_bytes(shape: &Shape, dtype: Dtype) -> u64 {
        let layer = 2 * shape.n_kv_heads as u64 * head_of_page(shape, dtype) as u64;
        layer.saturating_mul(shape.n_layers as u64)
    }

    fn scratch_bytes(shape: &Shape, limits: &Limits) -> u64 {
        // No sequence is longer than the pool.
        let positions = limits.n_pages.saturating_mul(PAGE);
        let padding = 4 * 31;
        let floats = [
            limits
                .max_rows
                .saturating_mul(pad32(widest(shape)) + padding),
            partial_len(shape, positions),
            // Where the cache is int8.
            fresh_len(shape, limits.max_rows),
            ATTEND_ROWS * shape.n_kv_heads,
            step::bytes(limits.max_rows, limits.n_pages) / 4,
            sample::bytes(limits) / 4,
        ];
        floats.iter().fold(0u64, |sum, &n| {
            sum.saturating_add((n as u64).saturating_mul(4))
        })
    }

    fn new_mat(&self, spec: &MatSpec) -> Result<GpuMat<D>> {
        self.check()?;
        GpuMat::new(&self.device, spec)
    }

    fn pack(&self, mat: &mut GpuMat<D>, block: &Block<'_>) {
        self.run(|_| mat.pack(block));
    }

    fn quantise(
        &self,
        quant: Quant,
        cols: usize,
        values: &[f32],
        codes: &mut [u8],
        scales: &mut [f32],
    ) {
        match self.quantiser.get_or_init(|| Quantiser::new().ok()) {
            Some(all) => all.quantise(quant, cols, values, codes, scales),
            None => quant.encode(cols, values, codes, scales),
        }
    }

    fn pack_quantised(&self, mat: &mut GpuMat<D>, block: &QuantBlock<'_>) {
        self.run(|_| mat.pack_quantised(block));
    }

    fn set_bias(&self, mat: &mut GpuMat<D>, part: usize, values: &[f32]) {
        self.run(|_| mat.set_bias(part, values));
    }

    fn new_vector(&self, values: &[f32]) -> Result<GpuBuf<D>> {
        self.check()?;
        let stride = pad32(values.len());
        let memory = Memory::new(&self.device, "a vector", stride.saturating_mul(4))?;
        memory.write_floats(0, values)?;
        Ok(GpuBuf { memory, stride })
    }

    fn new_buf(&self, rows: usize, width: usize) -> Result<GpuBuf<D>> {
        self.check()?;
        let stride = pad32(width);
        let bytes = rows.saturating_mul(stride).saturating_mul(4);
        Ok(GpuBuf {
            memory: Memory::new(&self.device, "activations", bytes)?,
            stride,
        })
    }

    fn new_kv(&self, n_pages: usize, dtype: Dtype) -> Result<GpuKv<D>> {
        self.check()?;
        let page = self.shape.n_kv_heads * head_of_page(&self.shape, dtype);
        let bytes = n_pages
            .saturating_mul(page)
            .saturating_mul(self.shape.n_layers);
        Ok(GpuKv {
            k: Memory::new(&self.device, "the KV pool", bytes)?,
            v: Memory::new(&self.device, "the KV pool", bytes)?,
            dtype,
            n_pages,
            page,
        })
    }

    fn load_step(&mut self, step: &Step) {
        if self.check().is_ok()
            && let Err(error) = self.step.load(step).and_then(|()| self.chooser.load(step))
        {
            self.run(|_| Err(error));
        }
    }

    fn embed(&mut self, x: &mut GpuBuf<D>, table: &GpuMat<D>) {
        self.run(|this| {
            let params = EmbedParams {
                x: x.at(),
                table: table.weights.at(),
                tokens: this.step.tokens(),
                n_rows: this.step.n_rows as u32,
                dim: this.shape.dim as u32,
                x_stride: x.stride as u32,
                w_stride: table.stride as u32,
            };
            launch::embed(&*this.device, table.dtype, &params)
        });
    }

    fn qkv(&mut self, q: &mut GpuBuf<D>, kv: &mut GpuKv<D>, x: &GpuBuf<D>, layer: &Layer<Self>) {
        self.run(|this| {
            let w = &layer.wqkv;
            let offset = (layer.index * kv.layer()) as u64;
            let pages = (kv.k.at() + offset, kv.v.at() + offset);
            let kv_bytes = 4 * this.shape.kv_dim() as u64;
            let (k_pages, v_pages) = match &this.fresh {
                Some(fresh) => (fresh.at(), fresh.at() + kv_bytes),
                None => pages,
            };
            let params = QkvParams {
                q: q.at(),
                k_pages,
                v_pages,
                x: x.at(),
                norm: layer.attention_norm.at(),
                w: w.weights.at(),
                bias: w.bias(),
                cos: this.cos.at(),
                sin: this.sin.at(),
                rows: this.step.decode(0),
                positions: this.step.positions(),
                slots: this.step.slots(),
                n_rows: this.step.n_decode as u32,
                dim: this.shape.dim as u32,
                x_stride: x.stride as u32,
                w_stride: w.stride as u32,
                q_stride: q.stride as u32,
                n_heads: this.shape.n_heads as u32,
                n_kv_heads: this.shape.n_kv_heads as u32,
                head_dim: this.shape.head_dim as u32,
                head_stride: head_stride(&this.shape) as u32,
                kv_type: type_code(kv.dtype),
                eps: this.shape.norm_eps,
                zero: 0,
            };
            launch::qkv(&*this.device, w.dtype, &params)?;
            this.prepare(w.dtype, x, layer.attention_norm.at(), w.cols)?;
            let params = QkvParams {
                x: this.prepared.at(),
                x_stride: pad32(w.cols) as u32,
                rows: this.step.prefill(),
                n_rows: this.step.n_prefill as u32,
                ..params
            };
            launch::qkv_prefill(&*this.device, w.dtype, &params)?;
            let Some(fresh) = &this.fresh else {
                return Ok(());
            };
            let append = AppendParams {
                k_pages: pages.0,
                v_pages: pages.1,
                fresh: fresh.at(),
                slots: params.slots,
                n_rows: this.step.n_rows as u32,
                n_kv_heads: params.n_kv_heads,
                head_dim: params.head_dim,
                head_stride: params.head_stride,
            };
            launch::append(&*this.device, &append)
        });
    }

    fn attend(&mut self, y: &mut GpuBuf<D>, q: &GpuBuf<D>, kv: &GpuKv<D>, layer: &Layer<Self>) {
        self.run(|this| {
            let (shape, step) = (&this.shape, &this.step);
            let offset = (layer.index * kv.layer()) as u64;
            let (k_pages, v_pages) = (kv.k.at() + offset, kv.v.at() + offset);
            let decode = AttendParams {
                y: y.at(),
                q: q.at(),
                k_pages,
                v_pages,
                partial: this.partial.at(),
                counters: this.counters.at(),
                positions: step.positions(),
                row_pages: step.row_pages(),
                pages: step.pages(),
                n_heads: shape.n_heads as u32,
                n_kv_heads: shape.n_kv_heads as u32,
                head_dim: shape.head_dim as u32,
                head_stride: head_stride(shape) as u32,
                q_stride: q.stride as u32,
                y_stride: y.stride as u32,
                max_splits: (step.longest / CHUNK + 1) as u32,
                scale: scale(shape),
                ..AttendParams::default()
            };
            this.attend_decode(&decode, kv.dtype)?;
            let prefill = AttendPrefillParams {
                y: y.at(),
                q: q.at(),
                k_pages,
                v_pages,
                tiles: step.tiles(),
                rows: step.prefill(),
                pages: step.pages(),
                n_tiles: step.n_tiles as u32,
                n_heads: decode.n_heads,
                n_kv_heads: decode.n_kv_heads,
                head_dim: decode.head_dim,
                head_stride: decode.head_stride,
                q_stride: decode.q_stride,
                y_stride: decode.y_stride,
                scale: decode.scale,
            };
            if tensor_cores(this.weights_dtype, kv.dtype, shape) {
                launch::attend_prefill(&*this.device, kv.dtype, &prefill)
            } else {
                launch::attend_prefill_fma(&*this.device, kv.dtype, &prefill)
            }
        });
    }

    fn matmul_add(&mut self, x: &mut GpuBuf<D>, w: &GpuMat<D>, y: &GpuBuf<D>) {
        self.run(|this| {
            let params = MatmulAddParams {
                x: x.at(),
                y: y.at(),
                w: w.weights.at(),
                bias: w.bias(),
                rows: this.step.decode(0),
                n_rows: this.step.n_decode as u32,
                n: w.rows() as u32,
                k: w.cols as u32,
                x_stride: x.stride as u32,
                y_stride: y.stride as u32,
                w_stride: w.stride as u32,
            };
            launch::matmul_add(&*this.device, w.dtype, &params)?;
            this.prepare(w.dtype, y, 0, w.cols)?;
            let params = MatmulAddParams {
                y: this.prepared.at(),
                y_stride: pad32(w.cols) as u32,
                rows: this.step.prefill(),
                n_rows: this.step.n_prefill as u32,
                ..params
            };
            launch::matmul_add_prefill(&*this.device, w.dtype, &params)
        });
    }

    fn ffn_up(&mut self, h: &mut GpuBuf<D>, x: &GpuBuf<D>, layer: &Layer<Self>) {
        self.run(|this| {
            let w = &layer.w13;
            let params = FfnUpParams {
                h: h.at(),
                x: x.at(),
                norm: layer.ffn_norm.at(),
                w: w.weights.at(),
                rows: this.step.decode(0),
                n_rows: this.step.n_decode as u32,
                ffn_dim: this.shape.ffn_dim as u32,
                dim: this.shape.dim as u32,
                x_stride: x.stride as u32,
                w_stride: w.stride as u32,
                h_stride: h.stride as u32,
                eps: this.shape.norm_eps,
                zero: 0,
            };
            launch::ffn_up(&*this.device, w.dtype, &params)?;
            this.prepare(w.dtype, x, layer.ffn_norm.at(), w.cols)?;
            let params = FfnUpParams {
                x: this.prepared.at(),
                x_stride: pad32(w.cols) as u32,
                rows: this.step.prefill(),
                n_rows: this.step.n_prefill as u32,
                ..params
            };
            launch::ffn_up_prefill(&*this.device, w.dtype, &params)
        });
    }

    fn logits(&mut self, out: &mut GpuBuf<D>, x: &GpuBuf<D>, norm: &GpuBuf<D>, head: &GpuMat<D>) {
        self.run(|this| {
            let vocab_size = this.shape.vocab_size as u32;
            // Dense, so that `read` is one copy; aligned, where they are chosen from.
            let out_stride = match this.chooser.n_rows {
                0 => this.shape.vocab_size,
                _ => out.stride,
            };
            let params = LogitsParams {
                out: out.at(),
                x: x.at(),
                norm: norm.at(),
                w: head.weights.at(),
                rows: this.step.wanted(),
                n_rows: this.step.n_wanted as u32,
                vocab_size,
                dim: this.shape.dim as u32,
                x_stride: x.stride as u32,
                w_stride: head.stride as u32,
                out_stride: out_stride as u32,
                eps: this.shape.norm_eps,
                zero: 0,
            };
            launch::logits(&*this.device, head.dtype, &params)?;
            this.chooser.launch(&this.device, out.at(), out_stride)
        });
    }

    fn read<'a>(&'a mut self, out: &'a GpuBuf<D>) -> Result<Answer<'a>> {
        self.check()?;
        let chosen = self.chooser.n_rows > 0;
        let (from, n) = match chosen {
            true => (self.chooser.out(), self.chooser.len()),
            false => (&out.memory, self.step.n_wanted * self.shape.vocab_size),
        };
        // Waits also where nothing is wanted: a failure belongs to the step that caused it.
        if let Err(error) = from.read(&mut self.host, n) {
            self.run(|_| Err(error));
            self.check()?;
        }
        let read = &self.host[..n];
        if !chosen {
            return Ok(Answer::Logits(read));
        }
        self.chooser.take(read);
        Ok(Answer::Picks {
            picks: &self.chooser.picks,
            top: &self.chooser.top,
        })
    }

    fn copy_pages(&mut self, kv: &mut GpuKv<D>, pairs: &[(u32, u32)]) -> Result<()> {
        self.run(|this| {
            for &(from, to) in pairs {
                let (from, to) = (from as usize * kv.page, to as usize * kv.page);
                for pages in [&kv.k, &kv.v] {
                    pages.copy(to, from, kv.page, kv.layer(), this.shape.n_layers)?;
                }
            }
            Ok(())
        });
        self.check()
    }
}

fn scale(shape: &Shape) -> f32 {
    (1.0 / (shape.head_dim as f64).sqrt()) as f32
}
