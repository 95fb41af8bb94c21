//! Implements [`Backend`] and [`Steps`] for a GPU: the objects that are made when a model is
//! built, the beginning and the end of a step, and the pages of the cache. `ops` and `attention`
//! have the operations of a step.

use super::adapters::Carriage;
use super::answer::LogitRows;
use super::device::Device;
use super::memory::Memory;
use super::{
    Gpu, GpuBuf, GpuKv, GpuMat, PAGE, attend_counters, attention, fresh_len, geometry,
    head_of_page, head_stride, launch, mat, medusa, most_decoded, ops, pad32, partial_len, sample,
    step, still_bytes,
};
use crate::backend::cpu::HostThreads;
use crate::backend::{
    Answer, Backend, Block, Carrier, Choices, Layer, Limits, MatSpec, Needs, PartSpec, QuantBlock,
    Shape, Step, Steps,
};
use crate::quant::Quant;
use crate::{Dtype, Error, Result};

impl<D: Device> Gpu<D> {
    /// The threads of the host that load checkpoints.
    fn loaders(&self) -> Option<&HostThreads> {
        self.loaders
            .get_or_init(|| HostThreads::new().ok())
            .as_ref()
    }

    fn try_load(&mut self, step: &Step, choices: &Choices) -> Result<()> {
        drop(self.loaders.take());
        let rows = step.tokens.len();
        if step.follows && (rows != self.follow || !self.answers.has_room()) {
            return Err(Error::Internal(format!(
                "a step of {rows} rows follows one that {} can follow",
                self.follow
            )));
        }
        self.follow = 0;
        self.step.load(step)?;
        self.load_adapters(step)?;
        // Of several ranks, one gets the masks when they come, and other processes have no choices.
        let changes = self.gather.is_none();
        self.chooser
            .load(step, choices, changes, self.step.choices_mut())?;
        self.step.copy(step.follows)?;
        // A step may follow if every row is a decode row whose token is chosen on the device.
        let all_here =
            self.chooser.n_rows == rows && !self.chooser.is_mixed() && !self.chooser.awaits_masks();
        if self.runs_ahead && self.step.n_prefill == 0 && all_here {
            self.follow = rows;
        }
        Ok(())
    }

    /// Begins to fetch what the step's rows asked for: tokens, and the logits of the rows that are
    /// left to the host.
    fn fetch_answer(&mut self, out: &GpuBuf<D>) -> Result<()> {
        let logits = LogitRows {
            memory: &out.memory,
            stride: self.logits_stride(out),
            width: self.shape.vocab_size,
        };
        // Only rank 0 reads logits.
        let is_reader = self.gather.is_none_or(|gather| gather.rank == 0);
        let Gpu {
            answers, chooser, ..
        } = self;
        match chooser.n_rows {
            0 => {
                let rows = if is_reader { self.step.n_wanted } else { 0 };
                let n = rows * logits.width;
                answers.fetch(logits.memory, n, 0, &mut chooser.asked, None)
            }
            rows => {
                let stride = chooser.out_stride;
                let logits = is_reader.then_some(logits);
                answers.fetch(
                    &chooser.out,
                    rows * stride,
                    stride,
                    &mut chooser.asked,
                    logits,
                )
            }
        }
    }
}

impl<D: Device> Backend for Gpu<D> {
    type Buf = GpuBuf<D>;
    type Mat = GpuMat<D>;
    type Kv = GpuKv<D>;
    const PAGE_SIZE: usize = PAGE;
    /// With so many rows, even the smaller products have more than one tile for every
    /// multiprocessor.
    const PREFILL_CHUNK: usize = 2048;

    fn takes(needs: &Needs) -> Result<()> {
        if needs.q_scale {
            return Err(Error::Unsupported(
                "device is CUDA: its kernels do not know a scale of q that grows with its position \
                 yet; the CPU does"
                    .into(),
            ));
        }
        Ok(())
    }

    fn keeps(quant: Quant) -> bool {
        launch::multiplies(quant.dtype())
    }

    fn settle(parts: &mut [PartSpec]) {
        mat::settle(parts);
    }

    fn mat_bytes(spec: &MatSpec) -> u64 {
        mat::bytes(spec)
    }

    fn page_bytes(shape: &Shape, dtype: Dtype) -> u64 {
        let layer = 2 * shape.n_kv_heads as u64 * head_of_page(shape, dtype) as u64;
        layer.saturating_mul(shape.n_layers as u64)
    }

    fn scratch_bytes(shape: &Shape, limits: &Limits, _: Dtype, _: usize) -> u64 {
        // The padding of the rows of x, q, y and h. The logits' padding is below (max_wanted * 31).
        let padding = 4 * 31;
        let floats = [
            limits.max_rows.saturating_mul(pad32(shape.dim) + padding),
            limits.max_wanted.saturating_mul(31),
            partial_len(shape, limits),
            // Only layers with norms of heads need it with every cache, and only layers without
            // rotation need the next one. This function does not know the layers, so it counts
            // both.
            fresh_len(shape, limits),
            still_bytes(shape, limits) / 4,
            attend_counters(shape, limits),
            step::bytes(limits) / 4,
            sample::bytes(limits) / 4,
        ];
        let split = geometry::scratch_bytes(shape, step::bucket(most_decoded(limits)));
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

    fn each(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        match self.loaders() {
            Some(all) => all.each(tasks, task),
            None => (0..tasks).for_each(task),
        }
    }

    fn quantise(
        &self,
        quant: Quant,
        cols: usize,
        values: &[f32],
        codes: &mut [u8],
        scales: &mut [f32],
    ) {
        match self.loaders() {
            Some(all) => all.quantise(quant, cols, values, codes, scales),
            None => quant.encode(cols, values, codes, scales),
        }
    }

    fn pack_quantised(&self, mat: &mut GpuMat<D>, block: &QuantBlock<'_>) {
        self.run(|_| mat.pack_quantised(block, &|tasks, task| self.each(tasks, task)));
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
            permuted: false,
        })
    }

    fn new_buf(&self, rows: usize, width: usize) -> Result<GpuBuf<D>> {
        self.check()?;
        GpuBuf::new(&self.device, "activations", rows, width)
    }

    fn carrier(&self) -> Option<Box<dyn Carrier>> {
        Some(Box::new(Carriage::new(self)))
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
            // Kernels count the rows of a tensor map in 31 bits.
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

    fn record(&mut self, forward: &mut dyn FnMut(&mut Self)) {
        self.forward(forward);
    }

    fn embed(&mut self, x: &mut GpuBuf<D>, table: &GpuMat<D>) {
        self.run(|this| ops::embed(this, x, table, 0));
    }

    fn qkv(&mut self, q: &mut GpuBuf<D>, kv: &mut GpuKv<D>, x: &GpuBuf<D>, layer: &Layer<Self>) {
        self.run(|this| attention::qkv(this, q, kv, x, layer));
    }

    fn attend(&mut self, y: &mut GpuBuf<D>, q: &GpuBuf<D>, kv: &GpuKv<D>, layer: &Layer<Self>) {
        self.run(|this| attention::attend(this, y, q, kv, layer));
    }

    fn matmul_add(&mut self, x: &mut GpuBuf<D>, w: &GpuMat<D>, y: &GpuBuf<D>) {
        self.run(|this| ops::matmul_add(this, x, w, y));
    }

    fn ffn_up(&mut self, h: &mut GpuBuf<D>, x: &GpuBuf<D>, layer: &Layer<Self>) {
        self.run(|this| ops::ffn_up(this, h, x, layer));
    }

    fn logits(
        &mut self,
        out: &mut GpuBuf<D>,
        x: &GpuBuf<D>,
        norm: Option<&GpuBuf<D>>,
        head: &GpuMat<D>,
    ) {
        self.run(|this| ops::logits(this, out, x, norm, head));
    }

    fn unrecorded(&mut self, work: &mut dyn FnMut(&mut Self)) {
        let device = self.device.clone();
        let _pass = device.gate().pass();
        work(self);
    }

    fn hidden(&mut self, out: &mut GpuBuf<D>, x: &GpuBuf<D>, norm: &GpuBuf<D>) {
        self.run(|this| medusa::hidden(this, out, x, norm));
    }

    fn residual_block(&mut self, out: &mut GpuBuf<D>, w: &GpuMat<D>, h: &GpuBuf<D>) {
        self.run(|this| medusa::residual_block(this, out, w, h));
    }

    fn copy_pages(&mut self, kv: &mut GpuKv<D>, pairs: &[(u32, u32)]) -> Result<()> {
        let _pass = self.device.gate().pass();
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
        let _pass = self.device.gate().pass();
        let halves = to.chunks_exact_mut(kv.page * self.shape.n_layers);
        for ((page, memory), to) in kv.halves(pages).zip(halves) {
            memory.read(page * kv.page, kv.page, kv.layer(), to)?;
        }
        Ok(())
    }

    fn load_pages(&mut self, kv: &mut GpuKv<D>, pages: &[u32], from: &[u8]) -> Result<()> {
        self.check()?;
        let _pass = self.device.gate().pass();
        let halves = from.chunks_exact(kv.page * self.shape.n_layers);
        for ((page, memory), from) in kv.halves(pages).zip(halves) {
            // The layers of a large pool may lie farther apart than the rows of one copy may.
            for (layer, row) in from.chunks_exact(kv.page).enumerate() {
                let at = layer * kv.layer() + page * kv.page;
                memory.write(at, row.len(), row.len(), row)?;
            }
        }
        Ok(())
    }
}

impl<D: Device> Steps for Gpu<D> {
    fn load(&mut self, step: &Step, choices: &Choices) {
        let device = self.device.clone();
        let _pass = device.gate().pass();
        if self.check().is_ok()
            && let Err(error) = self.try_load(step, choices)
        {
            self.run(|_| Err(error));
        }
    }

    fn awaits_masks(&self) -> bool {
        self.chooser.awaits_masks()
    }

    fn give_masks(&mut self, masks: &[u32]) {
        let device = self.device.clone();
        let _pass = device.gate().pass();
        if self.check().is_ok()
            && let Err(error) = self.chooser.load_masks(masks)
        {
            self.run(|_| Err(error));
        }
    }

    fn fetch(&mut self, out: &GpuBuf<D>) {
        if self.check().is_err() {
            return;
        }
        let device = self.device.clone();
        let _pass = device.gate().pass();
        if let Some(gather) = self.gather {
            self.run(|this| gather.logits(this, out));
        } else if !self.chooses_in_record() {
            self.run(|this| ops::choose(this, out));
        }
        if let Err(error) = self.fetch_answer(out) {
            self.run(|_| Err(error));
        }
    }

    fn can_follow(&self) -> bool {
        self.follow > 0 && self.answers.has_room() && self.check().is_ok()
    }

    fn answer<'a>(&'a mut self, _: &'a GpuBuf<D>) -> Result<Answer<'a>> {
        self.check()?;
        let Gpu {
            answers,
            chooser,
            failure,
            ..
        } = self;
        let outcome = answers.take()?;
        // This waits even if no row is wanted, so that a failure is reported by the step that
        // caused it.
        let read = outcome.landing.wait().inspect_err(|error| {
            let failure = failure.get_mut().unwrap_or_else(|e| e.into_inner());
            *failure = Some(error.clone());
        })?;
        if outcome.stride == 0 {
            return Ok(Answer::Logits(read));
        }
        let (words, logits) = read.split_at(outcome.asked.len() * outcome.stride);
        chooser.take(words, outcome.stride, &outcome.asked);
        Ok(Answer::Picks {
            picks: &chooser.picks,
            top: &chooser.top,
            logits,
        })
    }
}
