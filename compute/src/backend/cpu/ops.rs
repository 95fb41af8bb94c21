//! The operations of [`Backend`]: each stage of the transformer as products, attention and what
//! lies between them, on the buffers and threads of [`Cpu`].

use super::attention::InBf16;
use super::blocks;
use super::element::with_cache_element;
use super::multiply::attends_in_bf16;
use super::pool::{self, Grid, Tasks};
use super::results::Finish;
use super::rows::{Norm, Normalise};
use super::step::ALL;
use super::{
    Cpu, CpuBuf, CpuKv, CpuMat, PAGE, Rows, Workers, attention, kv, lora, mat, qkv_width, quantise,
    rows, scratch_len, simd, threads, tiles_len, widest, words,
};
use crate::backend::{
    Backend, Block, Layer, Limits, MatSpec, QuantBlock, Rotation, Shape, Step, Threads,
};
use crate::quant::Quant;
use crate::{Dtype, Result};

impl Cpu {
    /// Loads a step into fixed buffers. Operations work on this step until the next step is loaded.
    pub fn load_step(&mut self, step: &Step) {
        self.step.load(step);
        self.plan.load(step);
    }

    /// The rows of `out` that the loaded step, which has ended, wants. Lets go of its adapters.
    pub fn read<'a>(&mut self, out: &'a CpuBuf) -> &'a [f32] {
        self.step.release_adapters();
        let wanted = self.step.wanted[ALL].to.len();
        &out.data[..wanted * out.width]
    }
}

impl Threads for Cpu {
    fn count(&self) -> usize {
        self.pool.n_threads()
    }

    fn each(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        self.pool.run(Tasks(tasks), |i, _, ()| task(i));
    }
}

impl Backend for Cpu {
    type Buf = CpuBuf;
    type Mat = CpuMat;
    type Kv = CpuKv;
    const PAGE_SIZE: usize = PAGE;
    const PREFILL_CHUNK: usize = 512;

    fn keeps(quant: Quant) -> bool {
        blocks::has_type(quant)
    }

    fn mat_bytes(spec: &MatSpec) -> u64 {
        mat::bytes(spec)
    }

    fn page_bytes(shape: &Shape, dtype: Dtype) -> u64 {
        kv::page_bytes(shape, dtype)
    }

    fn scratch_bytes(shape: &Shape, limits: &Limits, _: Dtype, n_threads: usize) -> u64 {
        let rows = limits.max_rows;
        let per_thread = scratch_len(shape, rows);
        let numbers = [
            per_thread.saturating_mul(threads(n_threads)),
            rows::panels_len(rows, widest(shape)),
            // These numbers have half the size.
            tiles_len(rows, widest(shape)).saturating_add(tiles_len(rows, shape.ffn_dim)) / 2,
            words::rows_len(rows, widest(shape)),
            rows.saturating_mul(qkv_width(shape)),
            rows.saturating_mul(lora::WIDTH),
            attention::partials_len(shape, rows, limits.max_positions),
        ];
        numbers.iter().fold(0u64, |sum, &n| {
            sum.saturating_add((n as u64).saturating_mul(4))
        })
    }

    fn new_mat(&self, spec: &MatSpec) -> Result<CpuMat> {
        CpuMat::new(spec)
    }

    fn pack(&self, mat: &mut CpuMat, block: &Block<'_>) {
        mat.pack(&self.pool, self.tier, block);
    }

    fn each(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        Threads::each(self, tasks, task);
    }

    fn quantise(
        &self,
        quant: Quant,
        cols: usize,
        values: &[f32],
        codes: &mut [u8],
        scales: &mut [f32],
    ) {
        quantise(self.tier, &self.pool, quant, cols, values, codes, scales);
    }

    fn pack_quantised(&self, mat: &mut CpuMat, block: &QuantBlock<'_>) {
        mat.pack_quantised(&self.pool, self.tier, block);
    }

    fn set_bias(&self, mat: &mut CpuMat, part: usize, values: &[f32]) {
        mat.set_bias(part, values);
    }

    fn new_vector(&self, values: &[f32]) -> Result<CpuBuf> {
        let mut vector = CpuBuf::new("a vector", 1, values.len())?;
        vector.data.copy_from_slice(values);
        Ok(vector)
    }

    fn new_buf(&self, rows: usize, width: usize) -> Result<CpuBuf> {
        CpuBuf::new("activations", rows, width)
    }

    fn new_kv(&self, n_pages: usize, dtype: Dtype) -> Result<CpuKv> {
        CpuKv::new(&self.shape, n_pages, dtype)
    }

    fn embed(&mut self, x: &mut CpuBuf, table: &CpuMat) {
        let Self {
            tier, pool, step, ..
        } = self;
        let width = x.width;
        let out = &mut x.data[..step.tokens.len() * width];
        let work = |row: usize, _: usize, mut x: pool::Rect<'_, f32>| {
            table.lookup(*tier, step.tokens[row] as usize, x.row(0));
        };
        let rows = Grid::pieces(out, width);
        if step.tokens.len() < 8 {
            pool.here(rows, work)
        } else {
            pool.run(rows, work)
        }
    }

    fn qkv(&mut self, q: &mut CpuBuf, kv: &mut CpuKv, x: &CpuBuf, layer: &Layer<Self>) {
        // Moved out for the duration of the product, which borrows the rest of `self`.
        let mut qkv = std::mem::replace(&mut self.qkv, CpuBuf::none());
        let norm = Norm {
            weight: &layer.attention_norm.data,
            eps: self.shape.norm_eps,
        };
        let x = Rows {
            buf: x,
            wanted: false,
        };
        self.multiply(&mut qkv, &layer.wqkv, x, Some(norm), Finish::Store);
        let stride = qkv.width;
        let mut at = [0; 3];
        for (at, (_, first)) in at.iter_mut().zip(layer.wqkv.parts()) {
            *at = first * simd::LANES;
        }
        let head_dim = self.shape.head_dim;
        let turning = kv::Angles::turning(&self.rope, head_dim);
        let parts = at.iter().zip(layer.wqkv.parts());
        for (norm, (&at, (rows, _))) in layer.head_norms.iter().flatten().zip(parts) {
            let mut heads = kv::Heads {
                rows: &mut qkv.data[..self.step.positions.len() * stride],
                stride,
                columns: at..at + rows,
            };
            if layer.rotation == Rotation::BeforeNorms {
                heads.rotate(&self.pool, self.tier, turning, &self.step.positions);
            }
            let norm = Norm {
                weight: &norm.data,
                eps: self.shape.norm_eps,
            };
            heads.normalise(&self.pool, self.tier, norm);
        }
        let rotated = layer.rotation == Rotation::BeforeNorms && layer.head_norms.is_some();
        let placement = kv::Placement {
            qkv: &qkv.data,
            stride,
            at,
            positions: &self.step.positions,
            slots: &self.step.slots,
            angles: match rotated || layer.rotation == Rotation::Never {
                true => kv::Angles::none(&self.still, head_dim),
                false => turning,
            },
            q_scale: &self.rope.q_scale,
        };
        with_cache_element!(kv.dtype, E => {
            placement.place::<E>(&self.pool, self.tier, &mut q.data, q.width, kv, layer.index)
        });
        self.qkv = qkv;
    }

    fn attend(&mut self, y: &mut CpuBuf, q: &CpuBuf, kv: &CpuKv, layer: &Layer<Self>) {
        let Self {
            tier,
            pool,
            step,
            plan,
            scratch,
            precision,
            ..
        } = self;
        let workers = Workers {
            pool,
            tier: *tier,
            scratch,
        };
        // Numbers of a float32 cache would be rounded once more.
        let bf16 = |dtype| attends_in_bf16(*tier, dtype, *precision);
        let full = |dtype| precision.is_full(*tier, dtype);
        let in_bf16 = match layer.wqkv.all(bf16) && kv.dtype != Dtype::F32 {
            false => InBf16::Nothing,
            true if tier.has_bf16() && !layer.wqkv.all(full) => InBf16::All,
            true => InBf16::Prompts,
        };
        let (q, y) = (&q.data, &mut y.data);
        let window = layer.window.unwrap_or(usize::MAX);
        plan.attend(workers, in_bf16, &step.pages, kv, layer.index, window, q, y);
    }

    fn matmul_add(&mut self, x: &mut CpuBuf, w: &CpuMat, y: &CpuBuf) {
        let y = Rows {
            buf: y,
            wanted: false,
        };
        self.multiply(x, w, y, None, Finish::Add { scale: w.scale });
    }

    fn ffn_up(&mut self, h: &mut CpuBuf, x: &CpuBuf, layer: &Layer<Self>) {
        let norm = Norm {
            weight: &layer.ffn_norm.data,
            eps: self.shape.norm_eps,
        };
        let x = Rows {
            buf: x,
            wanted: false,
        };
        #[cfg(target_arch = "x86_64")]
        {
            // Adapters read the input of the next product as numbers, not as tiles. With adapters,
            // the tiles are made of the same numbers later, and are rounded alike.
            h.tiled = !self.step.has_adapters()
                && layer.w13.runs.len() == 1
                && self.hands_on_tiles(&layer.w13, &layer.w2);
        }
        self.multiply(h, &layer.w13, x, Some(norm), Finish::SwiGlu);
    }

    fn logits(&mut self, out: &mut CpuBuf, x: &CpuBuf, norm: Option<&CpuBuf>, head: &CpuMat) {
        let eps = self.shape.norm_eps;
        let norm = norm.map(|norm| Norm {
            weight: &norm.data,
            eps,
        });
        let x = Rows {
            buf: x,
            wanted: true,
        };
        self.multiply(out, head, x, norm, Finish::Store);
    }

    fn hidden(&mut self, out: &mut CpuBuf, x: &CpuBuf, norm: &CpuBuf) {
        let norm = Norm {
            weight: &norm.data,
            eps: self.shape.norm_eps,
        };
        let rows = out.data.chunks_exact_mut(out.width);
        for (to, &from) in rows.zip(&self.step.tokens) {
            to.copy_from_slice(&x.data[from as usize * x.width..][..x.width]);
            self.tier.run(Normalise { vectors: to, norm });
        }
    }

    fn residual_block(&mut self, out: &mut CpuBuf, w: &CpuMat, h: &CpuBuf) {
        let n = self.step.tokens.len() * h.width;
        out.data[..n].copy_from_slice(&h.data[..n]);
        let h = Rows {
            buf: h,
            wanted: false,
        };
        self.multiply(out, w, h, None, Finish::AddSilu);
    }

    fn copy_pages(&mut self, kv: &mut CpuKv, pairs: &[(u32, u32)]) -> Result<()> {
        kv.copy_pages(pairs);
        Ok(())
    }

    fn save_pages(&mut self, kv: &CpuKv, pages: &[u32], to: &mut [u8]) -> Result<()> {
        kv.save_pages(pages, to);
        Ok(())
    }

    fn load_pages(&mut self, kv: &mut CpuKv, pages: &[u32], from: &[u8]) -> Result<()> {
        kv.load_pages(pages, from);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::buf::tests::TAKEN;
    use super::*;
    use crate::backend::{MatUse, PartSpec, RopeTable};

    const SHAPE: Shape = Shape {
        dim: 320,
        n_layers: 2,
        n_heads: 6,
        n_kv_heads: 2,
        head_dim: 64,
        ffn_dim: 896,
        vocab_size: 1000,
        norm_eps: 1e-5,
    };

    /// The bytes that `make` takes.
    fn taken<T>(make: impl FnOnce() -> T) -> u64 {
        let before = TAKEN.get();
        make();
        TAKEN.get() - before
    }

    /// The plan counts the tiles of AMX on every machine, and does not count what a step itself
    /// needs of tokens and pages.
    #[test]
    fn scratch_is_what_is_planned() {
        let (max_positions, max_rows) = (640, 48);
        let limits = Limits {
            page_size: 16,
            n_pages: 8,
            max_positions,
            max_rows,
            max_wanted: 4,
            vocab_size: SHAPE.vocab_size,
        };
        let angles = max_positions * SHAPE.head_dim / 2;
        let tiles = tiles_len(max_rows, widest(&SHAPE)) + tiles_len(max_rows, SHAPE.ffn_dim);
        for threads in [1, 2, 64] {
            let rope = RopeTable {
                cos: vec![1.0; angles],
                sin: vec![0.0; angles],
                q_scale: Vec::new(),
            };
            let mut absent = 0;
            let taken = taken(|| {
                let cpu = Cpu::new(&SHAPE, rope, threads, max_rows).unwrap();
                absent = if cpu.tier.has_tiles() { 0 } else { 2 * tiles };
            });
            let planned = Cpu::scratch_bytes(&SHAPE, &limits, Dtype::Bf16, threads);
            assert_eq!(planned, taken + absent as u64, "{threads} threads");
        }
    }

    #[test]
    fn matrices_are_what_is_planned() {
        let formats = Dtype::ALL.into_iter();
        for dtype in formats.filter(|dtype| dtype.quant().is_none_or(Cpu::keeps)) {
            for (usage, bias) in [(MatUse::Product, true), (MatUse::Lookup, false)] {
                let mut parts = PartSpec::all(&[100, 7], dtype);
                parts.extend(PartSpec::all(&[33], Dtype::Bf16));
                let spec = MatSpec {
                    parts,
                    cols: 512,
                    bias,
                    scale: 1.0,
                    usage,
                    adapter_index: None,
                };
                let mut biases = 0;
                let taken = taken(|| {
                    let mat = CpuMat::new(&spec).unwrap();
                    biases = mat.runs.iter().map(|run| 4 * run.bias.len()).sum();
                });
                let taken = taken + biases as u64;
                assert_eq!(Cpu::mat_bytes(&spec), taken, "{dtype} {usage:?}");
            }
        }
    }

    #[test]
    fn pages_are_what_is_planned() {
        for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16, Dtype::Int8] {
            let taken = taken(|| CpuKv::new(&SHAPE, 3, dtype).unwrap());
            assert_eq!(3 * Cpu::page_bytes(&SHAPE, dtype), taken, "{dtype}");
        }
    }
}
