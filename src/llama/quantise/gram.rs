//! Sums of products of a matrix's inputs `X`: `X^T X`.
//!
//! The backend's own product computes them, with all its threads and instructions. `X^T` has the
//! shape `[k, rows]`. It is treated as a matrix like a tied embedding: its rows are looked up, and
//! then multiplied by it.

use crate::backend::cpu::{Cpu, CpuBuf, CpuMat};
use crate::backend::{
    Backend, Block, MatSpec, MatUse, PartSpec, RopeTable, RowKind, RowOrder, Shape, Span, Step,
};
use crate::{Dtype, Result, reserve};

/// A backend for products of `X^T`.
pub(super) struct Adder {
    pub cpu: Cpu,
    rows: usize,
    /// Rows of `X^T` that were looked up, `[rows, rows]`.
    factor: CpuBuf,
}

/// `X^T X` of one width.
pub(super) struct Gram {
    k: usize,
    transposed: CpuMat,
    /// The rows of the sums. Each buffer has as many rows as a step takes.
    sums: Vec<CpuBuf>,
}

/// A step of consecutive tokens of one sequence, all of whose results are wanted.
pub(super) fn step(first: usize, rows: usize) -> Step {
    let all = 0..rows as u32;
    let pages = rows.div_ceil(Cpu::PAGE_SIZE);
    Step {
        tokens: (first..first + rows).map(|t| t as i32).collect(),
        slots: all.clone().collect(),
        spans: vec![Span {
            rows: 0..rows,
            kind: RowKind::Prefill,
            position: 0,
            pages: 0..pages,
        }],
        pages: (0..pages as u32).collect(),
        wanted: all.collect(),
        ..Step::default()
    }
}

/// A matrix of float32.
pub(super) fn floats(cpu: &Cpu, rows: usize, cols: usize) -> Result<CpuMat> {
    cpu.new_mat(&MatSpec {
        parts: PartSpec::all(&[rows], Dtype::F32),
        cols,
        bias: false,
        scale: 1.0,
        usage: MatUse::Product,
        adapter_index: None,
    })
}

/// Writes rows of float32, given as bytes, into the first rows of a matrix.
pub(super) fn pack(cpu: &Cpu, mat: &mut CpuMat, cols: usize, bytes: &[u8]) {
    let block = Block {
        part: 0,
        row: 0,
        col: 0,
        cols,
        order: RowOrder::AsStored,
        dtype: Dtype::F32,
        bytes,
    };
    cpu.pack(mat, &block);
}

impl Adder {
    /// A backend for up to `rows` rows of `X`, which is up to `widest` wide.
    pub fn new(rows: usize, widest: usize) -> Result<Adder> {
        let widest = widest.max(rows);
        let shape = Shape {
            dim: widest,
            n_layers: 1,
            n_heads: 1,
            n_kv_heads: 1,
            head_dim: 2,
            ffn_dim: widest,
            vocab_size: widest,
            norm_eps: 0.0,
        };
        let rope = RopeTable {
            cos: vec![1.0; rows],
            sin: vec![0.0; rows],
            q_scale: Vec::new(),
        };
        let cpu = Cpu::new(&shape, rope, 0, rows)?;
        let factor = cpu.new_buf(rows, rows)?;
        Ok(Adder { cpu, rows, factor })
    }
}

impl Gram {
    /// Sums that are zero, `[k, k]`.
    pub fn new(adder: &Adder, k: usize) -> Result<Gram> {
        let blocks = k.div_ceil(adder.rows);
        let sums = (0..blocks).map(|_| adder.cpu.new_buf(adder.rows, k));
        Ok(Gram {
            k,
            transposed: floats(&adder.cpu, k, adder.rows)?,
            sums: sums.collect::<Result<_>>()?,
        })
    }

    /// Adds the products of `x`, `[rows, k]`.
    pub fn add(&mut self, adder: &mut Adder, x: &[f32]) -> Result<()> {
        let (k, rows) = (self.k, adder.rows);
        let mut bytes = crate::file::zeros("inputs of a matrix", (4 * k * rows) as u64)?;
        for (row, x) in x.chunks_exact(k).enumerate() {
            for (col, x) in x.iter().enumerate() {
                let at = 4 * (col * rows + row);
                bytes[at..at + 4].copy_from_slice(&x.to_le_bytes());
            }
        }
        pack(&adder.cpu, &mut self.transposed, rows, &bytes);
        for (block, sums) in self.sums.iter_mut().enumerate() {
            let first = block * rows;
            adder.cpu.load_step(&step(first, rows.min(k - first)));
            adder.cpu.embed(&mut adder.factor, &self.transposed);
            adder.cpu.matmul_add(sums, &self.transposed, &adder.factor);
        }
        Ok(())
    }

    /// The sums, `[k, k]`.
    pub fn sums(self, adder: &mut Adder) -> Result<Vec<f32>> {
        let mut all = Vec::new();
        reserve::vec("sums of products", &mut all, self.k * self.k)?;
        for (block, sums) in self.sums.into_iter().enumerate() {
            let first = block * adder.rows;
            let step = step(first, adder.rows.min(self.k - first));
            adder.cpu.load_step(&step);
            all.extend_from_slice(adder.cpu.read(&sums));
        }
        Ok(all)
    }
}
