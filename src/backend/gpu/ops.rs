//! The operations of the seam, as launches. They run one after another: each reads what earlier
//! ones wrote.

use super::device::{Device, Memory};
use super::params::*;
use super::{
    ATTEND_ROWS, Gpu, GpuBuf, GpuKv, GpuMat, PAGE, attend_rows, fresh_len, head_of_page,
    head_stride, launch, mapped, mat, most_decoded, pad32, partial_len, rounded, sample, step,
    tensor_cores,
};
use crate::backend::cpu::Quantiser;
use crate::backend::{
    Answer, Backend, Block, Layer, Limits, MatSpec, Needs, QuantBlock, Shape, Step,
};
use crate::quant::Quant;
use crate::{Dtype, Error, Result};

/// A list of row numbers on the device.
#[derive(Clone, Copy)]
struct Rows {
    at: u64,
    n: u32,
}

/// The input of a product of normed rows.
struct Input {
    at: u64,
    stride: u32,
}

impl<D: Device> Gpu<D> {
    /// Prepares `rows` of x, normalised by `norm`, in the form that products with weights of
    /// `dtype` read; in the order of `slots` if the products take that.
    fn prepare(
        &self,
        dtype: Dtype,
        x: &GpuBuf<D>,
        norm: u64,
        width: usize,
        rows: Rows,
        slots: u32,
    ) -> Result<Input> {
        let input = Input {
            at: self.prepared.at(),
            stride: self.prepared.stride as u32,
        };
        let params = PrepareParams {
            out: input.at,
            x: x.at(),
            norm,
            rows: rows.at,
            n_rows: rows.n,
            width: width as u32,
            x_stride: x.stride as u32,
            out_stride: input.stride,
            eps: self.shape.norm_eps,
            slots,
        };
        launch::prepare(&*self.device, rounded(dtype), &params)?;
        Ok(input)
    }

    /// What a decode product reads for `rows` of x: the rows themselves or, where there are many,
    /// what `prepare` makes of them once for all blocks.
    fn decode_input(
        &self,
        dtype: Dtype,
        x: &GpuBuf<D>,
        norm: u64,
        width: usize,
        rows: Rows,
    ) -> Result<Input> {
        if launch::prepares(dtype, rows.n) {
            return self.prepare(dtype, x, norm, width, rows, 0);
        }
        Ok(Input {
            at: x.at(),
            stride: x.stride as u32,
        })
    }

    fn decode_rows(&self) -> Rows {
        Rows {
            at: self.step.decode(0),
            n: self.step.n_decode as u32,
        }
    }

    fn prefill_rows(&self) -> Rows {
        Rows {
            at: self.step.prefill(),
            n: self.step.n_prefill as u32,
        }
    }

    fn load(&mut self, step: &Step) -> Result<()> {
        let rows = step.tokens.len();
        if step.follows && (rows != self.follow || !self.answers.has_room()) {
            return Err(Error::Internal(format!(
                "a step of {rows} rows follows one that {} can follow",
                self.follow
            )));
        }
        self.follow = 0;
        self.step.load(step)?;
        self.chooser.load(step, self.step.n_wanted_padded)?;
        // Every row is a decode row whose token is chosen on the device.
        if self.device.runs_ahead() && self.step.n_prefill == 0 && self.chooser.n_rows == rows {
            self.follow = rows;
        }
        Ok(())
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

impl<D: Device> Backend for Gpu<D> {
    type Buf = GpuBuf<D>;
    type Mat = GpuMat<D>;
    type Kv = GpuKv<D>;
    const PAGE_SIZE: usize = PAGE;
    /// So many that the smaller products have more than one tile for every multiprocessor.
    const PREFILL_CHUNK: usize = 2048;

    fn takes(needs: &Needs) -> Result<()> {
        let lacking = [
            (needs.head_norms, "norms of the heads of q and k"),
            (needs.window, "a sliding window shorter than max_seq_len"),
            (needs.ffn_bias, "biases of the feed-forward (mlp_bias)"),
            (needs.scale, "multipliers of the residual stream"),
        ];
        match lacking.into_iter().find(|(needed, _)| *needed) {
            Some((_, what)) => Err(Error::Unsupported(format!(
                "device is CUDA: its kernels do not know {what} yet; the CPU does"
            ))),
            None => Ok(()),
        }
    }

    fn mat_bytes(spec: &MatSpec) -> u64 {
        mat::bytes(spec)
    }

    fn page_bytes(shape: &Shape, dtype: Dtype) -> u64 {
        let layer = 2 * shape.n_kv_heads as u64 * head_of_page(shape, dtype) as u64;
        layer.saturating_mul(shape.n_layers as u64)
    }

    fn scratch_bytes(shape: &Shape, limits: &Limits, kv_dtype: Dtype, _: usize) -> u64 {
        // The padding of x, q, y and h; below, that of the logits.
        let padding = 4 * 31;
        let floats = [
            limits.max_rows.saturating_mul(pad32(shape.dim) + padding),
            limits.max_wanted.saturating_mul(31),
            partial_len(shape, limits),
            fresh_len(shape, limits, kv_dtype),
            attend_rows(limits) * shape.n_kv_heads,
            step::bytes(limits.max_rows, limits.n_pages) / 4,
            sample::bytes(limits) / 4,
        ];
        let split = launch::scratch_bytes(shape, step::bucket(most_decoded(limits)));
        floats.iter().fold(split, |sum, &n| {
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
        Ok(GpuBuf {
            memory,
            stride,
            map: None,
        })
    }

    fn new_buf(&self, rows: usize, width: usize) -> Result<GpuBuf<D>> {
        self.check()?;
        let mapped = mapped(&self.shape, self.weights_dtype);
        GpuBuf::new(&self.device, "activations", rows, width, mapped)
    }

    fn new_kv(&self, n_pages: usize, dtype: Dtype) -> Result<GpuKv<D>> {
        self.check()?;
        let page = self.shape.n_kv_heads * head_of_page(&self.shape, dtype);
        let bytes = n_pages
            .saturating_mul(page)
            .saturating_mul(self.shape.n_layers);
        let new = || Memory::new(&self.device, "the KV pool", bytes);
        let (k, v) = (new()?, new()?);
        let (row, mut maps) = (2 * head_stride(&self.shape), None);
        if self.maps_cache && bytes > 0 {
            // Kernels count rows of a tensor map in 31 bits.
            let rows = i32::try_from(bytes / row).map_err(|_| {
                let n = bytes / row;
                Error::Unsupported(format!("a KV pool of {n} vectors, at most {}", i32::MAX))
            })?;
            let map = |pages: &Memory<D>| pages.tensor_map(row, rows as usize, PAGE as u32);
            maps = map(&k)?.zip(map(&v)?).map(|(k, v)| [k, v]);
        }
        Ok(GpuKv {
            k,
            v,
            maps,
            dtype,
            n_pages,
            page,
        })
    }

    fn load_step(&mut self, step: &Step) {
        if self.check().is_ok()
            && let Err(error) = self.load(step)
        {
            self.run(|_| Err(error));
        }
    }

    fn record(&mut self, forward: &mut dyn FnMut(&mut Self)) {
        self.forward(forward);
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
            let (norm, rows) = (layer.attention_norm.at(), this.decode_rows());
            let input = this.decode_input(w.dtype, x, norm, w.cols, rows)?;
            let params = QkvParams {
                q: q.at(),
                k_pages,
                v_pages,
                x: input.at,
                norm,
                w: w.weights.at(),
                bias: w.bias(),
                cos: this.cos.at(),
                sin: this.sin.at(),
                rows: rows.at,
                positions: this.step.positions(),
                slots: this.step.slots(),
                scratch: this.split.at(),
                n_rows: rows.n,
                dim: this.shape.dim as u32,
                x_stride: input.stride,
                w_stride: w.stride as u32,
                q_stride: q.stride as u32,
                n_heads: this.shape.n_heads as u32,
                n_kv_heads: this.shape.n_kv_heads as u32,
                head_dim: this.shape.head_dim as u32,
                head_stride: head_stride(&this.shape) as u32,
                kv_type: type_code(kv.dtype),
                eps: this.shape.norm_eps,
                splits: 1,
            };
            launch::qkv(&*this.device, w.dtype, &params)?;
            let rows = this.prefill_rows();
            let input = this.prepare(w.dtype, x, norm, w.cols, rows, this.slots(w))?;
            let params = QkvParams {
                x: input.at,
                x_stride: input.stride,
                rows: rows.at,
                n_rows: rows.n,
                ..params
            };
            match this.prepared.maps(w) {
                _ if this.qkv_by_library(w.dtype, &params)? => {}
                Some((x, map)) => {
                    let (p, groups, zeros) = (params, 2, Default::default());
                    let params = QkvHopperParams {
                        x,
                        w: map,
                        p,
                        groups,
                        zeros,
                    };
                    launch::qkv_hopper(&*this.device, w.dtype, &params)?;
                }
                None => launch::qkv_prefill(&*this.device, w.dtype, &params)?,
            }
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
            launch::append(&*this.device, kv.dtype, &append)
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
                max_splits: this.splits() as u32,
                scale: scale(shape),
                y_type: type_code(rounded(layer.wo.dtype)),
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
                y_type: decode.y_type,
                slots: this.slots(&layer.wo),
            };
            if let Some([k, v]) = kv.maps {
                let rows_of = |bytes: usize| (bytes / (2 * head_stride(shape))) as u32;
                let params = AttendHopperParams {
                    k,
                    v,
                    p: prefill,
                    first: rows_of(layer.index * kv.layer()),
                    end: rows_of(kv.k.bytes()),
                    zeros: Default::default(),
                };
                launch::attend_hopper(&*this.device, kv.dtype, &params)
            } else if tensor_cores(this.weights_dtype, kv.dtype, shape) {
                launch::attend_prefill(&*this.device, kv.dtype, &prefill)
            } else {
                launch::attend_prefill_fma(&*this.device, kv.dtype, &prefill)
            }
        });
    }

    fn matmul_add(&mut self, x: &mut GpuBuf<D>, w: &GpuMat<D>, y: &GpuBuf<D>) {
        self.run(|this| {
            let rows = this.decode_rows();
            let params = MatmulAddParams {
                x: x.at(),
                y: y.at(),
                w: w.weights.at(),
                bias: w.bias(),
                rows: rows.at,
                scratch: this.split.at(),
                n_rows: rows.n,
                n: w.rows() as u32,
                k: w.cols as u32,
                x_stride: x.stride as u32,
                y_stride: y.stride as u32,
                w_stride: w.stride as u32,
                splits: 1,
                first: 0,
            };
            launch::matmul_add(&*this.device, w.dtype, &params)?;
            let (rows, first) = (this.prefill_rows(), this.step.first_prefill);
            let params = MatmulAddParams {
                y: y.at() + (first * y.stride * rounded(w.dtype).size()) as u64,
                rows: rows.at,
                n_rows: rows.n,
                first: first as u32,
                ..params
            };
            if this.matmul_add_by_library(w.dtype, &params) {
                return Ok(());
            }
            match y.maps(w) {
                Some((y, map)) => {
                    let (p, groups, zeros) = (params, 2, Default::default());
                    let params = MatmulAddHopperParams {
                        y,
                        w: map,
                        p,
                        groups,
                        zeros,
                    };
                    launch::matmul_add_hopper(&*this.device, w.dtype, &params)
                }
                None => launch::matmul_add_prefill(&*this.device, w.dtype, &params),
            }
        });
    }

    fn ffn_up(&mut self, h: &mut GpuBuf<D>, x: &GpuBuf<D>, layer: &Layer<Self>) {
        self.run(|this| {
            let w = &layer.w13;
            let (norm, rows) = (layer.ffn_norm.at(), this.decode_rows());
            let input = this.decode_input(w.dtype, x, norm, w.cols, rows)?;
            let params = FfnUpParams {
                h: h.at(),
                x: input.at,
                norm,
                w: w.weights.at(),
                rows: rows.at,
                scratch: this.split.at(),
                n_rows: rows.n,
                ffn_dim: this.shape.ffn_dim as u32,
                dim: this.shape.dim as u32,
                x_stride: input.stride,
                w_stride: w.stride as u32,
                h_stride: h.stride as u32,
                eps: this.shape.norm_eps,
                splits: 1,
            };
            launch::ffn_up(&*this.device, w.dtype, &params)?;
            let rows = this.prefill_rows();
            let input = this.prepare(w.dtype, x, norm, w.cols, rows, this.slots(w))?;
            let params = FfnUpParams {
                x: input.at,
                x_stride: input.stride,
                rows: rows.at,
                n_rows: rows.n,
                ..params
            };
            match this.prepared.maps(w) {
                _ if this.ffn_up_by_library(w.dtype, &params)? => Ok(()),
                Some((x, map)) => {
                    let (p, groups, zeros) = (params, 2, Default::default());
                    let params = FfnUpHopperParams {
                        x,
                        w: map,
                        p,
                        groups,
                        zeros,
                    };
                    launch::ffn_up_hopper(&*this.device, w.dtype, &params)
                }
                None => launch::ffn_up_prefill(&*this.device, w.dtype, &params),
            }
        });
    }

    fn logits(&mut self, out: &mut GpuBuf<D>, x: &GpuBuf<D>, norm: &GpuBuf<D>, head: &GpuMat<D>) {
        self.run(|this| {
            let vocab_size = this.shape.vocab_size as u32;
            // Without padding, `read` is one copy of the logits. For the choice of tokens, rows are
            // aligned.
            let out_stride = match this.chooser.n_rows {
                0 => this.shape.vocab_size,
                _ => out.stride,
            };
            let rows = Rows {
                at: this.step.wanted(),
                n: this.step.n_wanted_padded as u32,
            };
            let input = this.decode_input(head.dtype, x, norm.at(), head.cols, rows)?;
            let params = LogitsParams {
                out: out.at(),
                x: input.at,
                norm: norm.at(),
                w: head.weights.at(),
                rows: rows.at,
                scratch: this.split.at(),
                n_rows: rows.n,
                vocab_size,
                dim: this.shape.dim as u32,
                x_stride: input.stride,
                w_stride: head.stride as u32,
                out_stride: out_stride as u32,
                eps: this.shape.norm_eps,
                splits: 1,
            };
            launch::logits(&*this.device, head.dtype, &params)?;
            let next = this.step.tokens();
            this.chooser
                .launch(&this.device, out.at(), out_stride, next)
        });
    }

    fn fetch(&mut self, out: &GpuBuf<D>) {
        if self.check().is_err() {
            return;
        }
        let Gpu {
            answers, chooser, ..
        } = self;
        let fetched = match chooser.n_rows {
            0 => {
                let n = self.step.n_wanted * self.shape.vocab_size;
                answers.fetch(&out.memory, n, 0, &mut chooser.asked)
            }
            rows => {
                let stride = chooser.out_stride;
                answers.fetch(&chooser.out, rows * stride, stride, &mut chooser.asked)
            }
        };
        if let Err(error) = fetched {
            self.run(|_| Err(error));
        }
    }

    fn can_follow(&self) -> bool {
        self.follow > 0 && self.answers.has_room() && self.check().is_ok()
    }

    fn read<'a>(&'a mut self, _: &'a GpuBuf<D>) -> Result<Answer<'a>> {
        self.check()?;
        let Gpu {
            answers,
            chooser,
            failure,
            ..
        } = self;
        let outcome = answers.take()?;
        // This waits also where nothing is wanted: a failure belongs to the step that caused it.
        let read = outcome.landing.wait().inspect_err(|error| {
            let failure = failure.get_mut().unwrap_or_else(|e| e.into_inner());
            *failure = Some(error.clone());
        })?;
        if outcome.stride == 0 {
            return Ok(Answer::Logits(read));
        }
        chooser.take(read, outcome.stride, &outcome.asked);
        Ok(Answer::Picks {
            picks: &chooser.picks,
            top: &chooser.top,
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

    fn save_pages(&mut self, kv: &GpuKv<D>, pages: &[u32], to: &mut [u8]) -> Result<()> {
        self.check()?;
        let halves = to.chunks_exact_mut(kv.page * self.shape.n_layers);
        for ((page, memory), to) in kv.halves(pages).zip(halves) {
            memory.read(page * kv.page, kv.page, kv.layer(), to)?;
        }
        Ok(())
    }

    fn load_pages(&mut self, kv: &mut GpuKv<D>, pages: &[u32], from: &[u8]) -> Result<()> {
        self.check()?;
        let halves = from.chunks_exact(kv.page * self.shape.n_layers);
        for ((page, memory), from) in kv.halves(pages).zip(halves) {
            // Layers of a large pool may lie farther apart than one copy of rows can.
            for (layer, row) in from.chunks_exact(kv.page).enumerate() {
                let at = layer * kv.layer() + page * kv.page;
                memory.write(at, row.len(), row.len(), row)?;
            }
        }
        Ok(())
    }
}

fn scale(shape: &Shape) -> f32 {
    (1.0 / (shape.head_dim as f64).sqrt()) as f32
}
