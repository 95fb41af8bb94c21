//! Finds the inputs of a layer's matrices, one layer at a time: a text goes through the previous
//! layers as they were written.
//!
//! [`forward`] gets each layer as a whole model. The model's embedding is the residual stream after
//! the previous layers. Its [`Exchange`], which several ranks would use, is where the layer's inner
//! numbers are seen. So nothing in the transformer knows of the calibration.
//!
//! Memory at its most: a layer in float32; the residual stream, `4 dim` bytes per token; the sums,
//! `4 (3 dim^2 + ffn_dim^2)` bytes; and the factor of one of them. For Llama 3 8B, with 16,384
//! tokens: 0.9 + 0.3 + 1.0 + 0.8 GB.

use super::feedback::Feedback;
use super::gram::{Adder, Gram, floats, pack, step};
use super::layout::{Output, Unit};
use super::partial::Partial;
use crate::backend::cpu::{Cpu, CpuBuf, CpuKv, CpuMat};
use crate::backend::{Backend, Block, Exchange, Layer, Scratch, Shape, Weights, forward};
use crate::checkpoint::plan::{MatPlan, Plan};
use crate::checkpoint::weights::{LoadControl, Loader};
use crate::model::{Config, rope};
use crate::{Dtype, Error, Result, Token, reserve};
use std::sync::{Arc, Mutex};

/// Tokens per passage.
pub(super) const ROWS: usize = 256;

/// Rows that are read back at a time.
const READ_BACK: usize = 64;

/// The residual streams of some passages, and what computes them.
pub(super) struct Calibrator<'a> {
    config: &'a Config,
    plan: &'a Plan<'a>,
    cpu: Cpu,
    kv: CpuKv,
    scratch: Scratch<Cpu>,
    seen: Arc<Mutex<Seen>>,
    adder: Adder,
    /// `[ROWS, dim]` of each passage.
    streams: Vec<Vec<f32>>,
    /// The residual stream that goes into the layer.
    table: Option<CpuMat>,
}

/// The inputs of a layer's matrices in the last step.
#[derive(Default)]
struct Seen {
    /// The output of attention.
    attended: Vec<f32>,
    /// The residual stream before the feed-forward.
    middle: Vec<f32>,
    /// The numbers inside the feed-forward.
    hidden: Vec<f32>,
    /// The residual stream after the layer.
    end: Vec<f32>,
    /// The number of products so far.
    products: usize,
    failed: Option<Error>,
}

impl Seen {
    /// Computes a product of the layer's second or fourth matrix.
    fn product(&mut self, cpu: &mut Cpu, x: &mut CpuBuf, w: &CpuMat, y: &CpuBuf) -> Result<()> {
        let (input, output) = match self.products {
            0 => (&mut self.attended, &mut self.middle),
            _ => (&mut self.hidden, &mut self.end),
        };
        self.products += 1;
        input.clear();
        input.extend_from_slice(cpu.read(y));
        cpu.matmul_add(x, w, y);
        output.clear();
        output.extend_from_slice(cpu.read(x));
        Ok(())
    }
}

/// Sees the numbers that ranks would exchange.
struct Tap(Arc<Mutex<Seen>>);

impl Exchange<Cpu> for Tap {
    fn embed(&mut self, cpu: &mut Cpu, x: &mut CpuBuf, table: &CpuMat) {
        cpu.embed(x, table);
    }

    fn matmul_add(&mut self, cpu: &mut Cpu, x: &mut CpuBuf, w: &CpuMat, y: &CpuBuf) {
        let mut seen = self.0.lock().unwrap_or_else(|e| e.into_inner());
        let outcome = seen.product(cpu, x, w, y);
        seen.failed = seen.failed.take().or(outcome.err());
    }

    /// A layer has no logits.
    fn logits(&mut self, _: &mut Cpu, _: &mut CpuBuf, _: &CpuBuf, _: &CpuBuf, _: &CpuMat) {}

    fn failure(&self) -> Option<Error> {
        let seen = self.0.lock().unwrap_or_else(|e| e.into_inner());
        seen.failed.clone()
    }
}

impl<'a> Calibrator<'a> {
    /// Begins with the embeddings of the passages, which have [`ROWS`] tokens each. `plan` keeps
    /// all weights as float32.
    pub fn new(config: &'a Config, plan: &'a Plan<'a>, passages: Vec<Vec<Token>>) -> Result<Self> {
        let shape = Shape {
            n_layers: 1,
            vocab_size: ROWS,
            ..config.shape.clone()
        };
        let (q, ffn) = (shape.q_dim(), shape.ffn_dim);
        let cpu = Cpu::new(&shape, rope::table(config, ROWS)?, 0, ROWS)?;
        let seen = Arc::new(Mutex::new(Seen::default()));
        let scratch = Scratch {
            x: cpu.new_buf(ROWS, shape.dim)?,
            q: cpu.new_buf(ROWS, q)?,
            y: cpu.new_buf(ROWS, q)?,
            h: cpu.new_buf(ROWS, ffn)?,
            logits: cpu.new_buf(1, 1)?,
            exchange: Some(Box::new(Tap(seen.clone()))),
        };
        let mut calibrator = Calibrator {
            config,
            plan,
            kv: cpu.new_kv(ROWS / Cpu::PAGE_SIZE, Dtype::F32)?,
            table: Some(floats(&cpu, ROWS, shape.dim)?),
            adder: Adder::new(ROWS, shape.dim.max(q).max(ffn))?,
            cpu,
            scratch,
            seen,
            streams: Vec::new(),
        };
        calibrator.embed(&passages)?;
        Ok(calibrator)
    }

    /// Looks up the passages' tokens, in one pass over the embedding.
    fn embed(&mut self, passages: &[Vec<Token>]) -> Result<()> {
        let dim = self.config.shape.dim;
        let mut places: Vec<(usize, usize, usize)> = Vec::new();
        for (n, passage) in passages.iter().enumerate() {
            let stream = reserve::filled("the residual stream", ROWS * dim, 0.0f32)?;
            self.streams.push(stream);
            let tokens = passage.iter().enumerate();
            places.extend(tokens.map(|(row, &token)| (token.max(0) as usize, n, row)));
        }
        places.sort_unstable();
        let (mut at, mut row) = (0, 0);
        let mut go_on = |_: f32| true;
        let mut control = LoadControl {
            cancel: None,
            progress: &mut go_on,
        };
        let mut loader = Loader::new(&self.cpu, &mut control, self.plan.read_bytes());
        let stored = &self.plan.embedding.parts[0].stored;
        let streams = &mut self.streams;
        loader.float_rows(dim, stored, Dtype::F32, |values| {
            for values in values.chunks_exact(dim) {
                while places.get(at).is_some_and(|place| place.0 == row) {
                    let (_, stream, to) = places[at];
                    streams[stream][to * dim..][..dim].copy_from_slice(values);
                    at += 1;
                }
                row += 1;
            }
            Ok(())
        })
    }

    /// Quantises the layer's matrices into `partial`, if that is not done yet. Then sends the
    /// passages through the layer as it was written.
    pub fn layer(
        &mut self,
        number: usize,
        is_done: bool,
        partial: &mut Partial,
        unit: &Unit<'_>,
        say: &mut dyn FnMut(&str) -> bool,
    ) -> Result<()> {
        let plan = &self.plan.layers[number];
        let last = number + 1 == self.plan.layers.len();
        if last && is_done {
            return Ok(());
        }
        let backend = Cpu::new(&self.config.shape, rope::table(self.config, 1)?, 0, 1)?;
        let mut go_on = |_: f32| true;
        let mut control = LoadControl {
            cancel: None,
            progress: &mut go_on,
        };
        let mut loader = Loader::new(&backend, &mut control, self.plan.read_bytes());
        let norms = [
            loader.norm_values(&plan.norms[0])?,
            loader.norm_values(&plan.norms[1])?,
        ];
        let [wqkv, wo, w13, w2] = &plan.matrices;
        let layer = Layer {
            index: 0,
            attention_norm: self.cpu.new_vector(&norms[0])?,
            wqkv: loader.matrix(wqkv)?,
            head_norms: match &plan.head_norms {
                Some([q, k]) => Some([
                    self.cpu.new_vector(&loader.norm_values(q)?)?,
                    self.cpu.new_vector(&loader.norm_values(k)?)?,
                ]),
                None => None,
            },
            window: plan.window,
            rotation: plan.rotation,
            wo: loader.matrix(wo)?,
            ffn_norm: self.cpu.new_vector(&norms[1])?,
            w13: loader.matrix(w13)?,
            w2: loader.matrix(w2)?,
        };
        let mut model = Weights {
            embedding: self.table.take().expect("put back by the last layer"),
            layers: vec![layer],
            norm: self.cpu.new_vector(&[])?,
            head: None,
        };
        if !is_done {
            let mut grams = Vec::new();
            for matrix in &plan.matrices {
                grams.push(Gram::new(&self.adder, matrix.spec.cols)?);
            }
            for n in 0..self.streams.len() {
                self.watch(&mut model, n, &norms, &mut grams)?;
                if !say("the text") {
                    return Err(Error::Cancelled);
                }
            }
            let mut outputs = unit.outputs.iter();
            for (gram, matrix) in grams.into_iter().zip(&plan.matrices) {
                let sums = gram.sums(&mut self.adder)?;
                let feedback = Feedback::new(&self.adder.cpu, matrix.spec.cols, sums)?;
                let adder = &self.adder.cpu;
                let encode = |values: &[f32], codes: &mut [u8], scales: &mut [f32]| {
                    feedback.encode(adder, values, codes, scales);
                };
                // The outputs of a matrix are its parts, then their biases.
                let biases = matrix.parts.iter().filter(|part| part.bias.is_some());
                for output in outputs.by_ref().take(matrix.parts.len() + biases.count()) {
                    output.write(&mut loader, partial, Some(&encode))?;
                    if !say("codes") {
                        return Err(Error::Cancelled);
                    }
                }
            }
        }
        if !last {
            let layer = &mut model.layers[0];
            let mats = [
                &mut layer.wqkv,
                &mut layer.wo,
                &mut layer.w13,
                &mut layer.w2,
            ];
            let mut outputs = unit.outputs.iter().filter(|o| o.coded_cols().is_some());
            for (mat, plan) in mats.into_iter().zip(&plan.matrices) {
                self.read_back(mat, plan, &mut outputs, partial)?;
            }
            for n in 0..self.streams.len() {
                self.pass(&mut model, n)?;
                let seen = self.seen.lock().unwrap_or_else(|e| e.into_inner());
                self.streams[n].copy_from_slice(&seen.end);
            }
        }
        self.table = Some(model.embedding);
        Ok(())
    }

    /// Sends a passage through a layer.
    fn pass(&mut self, model: &mut Weights<Cpu>, n: usize) -> Result<()> {
        let dim = self.config.shape.dim;
        let mut bytes = Vec::new();
        let stream = &self.streams[n];
        reserve::vec("the residual stream", &mut bytes, 4 * stream.len())?;
        bytes.extend(stream.iter().flat_map(|x| x.to_le_bytes()));
        pack(&self.cpu, &mut model.embedding, dim, &bytes);
        self.seen.lock().unwrap_or_else(|e| e.into_inner()).products = 0;
        self.cpu.load_step(&step(0, ROWS));
        forward(&mut self.cpu, model, &mut self.kv, &mut self.scratch);
        match self.scratch.exchange.as_ref().and_then(|e| e.failure()) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Sends a passage through a layer, and adds the inputs of its matrices to `grams`.
    fn watch(
        &mut self,
        model: &mut Weights<Cpu>,
        n: usize,
        norms: &[Vec<f32>; 2],
        grams: &mut [Gram],
    ) -> Result<()> {
        self.pass(model, n)?;
        let seen = self.seen.lock().unwrap_or_else(|e| e.into_inner());
        let eps = self.config.shape.norm_eps;
        let adder = &mut self.adder;
        grams[0].add(adder, &normalised(&self.streams[n], &norms[0], eps))?;
        grams[1].add(adder, &seen.attended)?;
        grams[2].add(adder, &normalised(&seen.middle, &norms[1], eps))?;
        grams[3].add(adder, &seen.hidden)
    }

    /// Replaces the weights of a matrix by those that were written.
    fn read_back<'o>(
        &self,
        mat: &mut CpuMat,
        plan: &MatPlan<'_>,
        outputs: &mut impl Iterator<Item = &'o Output<'o>>,
        partial: &Partial,
    ) -> Result<()> {
        let cols = plan.spec.cols;
        for (index, part) in plan.parts.iter().enumerate() {
            let output = outputs.next().expect("an output for each part");
            let rows = plan.spec.parts[index].rows;
            for row in (0..rows).step_by(READ_BACK) {
                let n = READ_BACK.min(rows - row);
                let mut values = reserve::filled("rows that were written", n * cols, 0.0f32)?;
                output.decoded(partial, row, &mut values)?;
                let mut bytes = reserve::room("rows that were written", 4 * n * cols)?;
                bytes.extend(values.iter().flat_map(|x| x.to_le_bytes()));
                let block = Block {
                    part: index,
                    row,
                    col: 0,
                    cols,
                    order: part.order,
                    dtype: Dtype::F32,
                    bytes: &bytes,
                };
                self.cpu.pack(mat, &block);
            }
        }
        Ok(())
    }
}

/// RMSNorm of rows.
fn normalised(x: &[f32], weight: &[f32], eps: f32) -> Vec<f32> {
    let mut out = Vec::with_capacity(x.len());
    for row in x.chunks_exact(weight.len()) {
        let squares = row.iter().map(|&x| f64::from(x) * f64::from(x));
        let mean = squares.sum::<f64>() / row.len() as f64;
        let factor = 1.0 / (mean + f64::from(eps)).sqrt();
        let scaled = row.iter().zip(weight);
        out.extend(scaled.map(|(&x, &w)| (f64::from(x) * factor) as f32 * w));
    }
    out
}
