//! The CPU backend.

use super::{Backend, Block, Layer, MatSpec, RopeTable, Shape, Step};
use crate::{Dtype, Result};

/// The CPU this process runs on.
pub struct Cpu {}

/// Activations.
pub struct CpuBuf {}

/// Packed weights.
pub struct CpuMat {}

/// The paged KV cache.
pub struct CpuKv {}

/// Bytes this process can still have: the least of free memory and of what its cgroups leave.
pub fn available_bytes() -> u64 {
    todo!()
}

/// Threads that the process may use at the same time: its affinity mask and its cgroup's quota.
pub fn usable_threads() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

impl Cpu {
    /// `n_threads` 0: [`usable_threads`]. `max_rows` bounds the rows of a step.
    pub fn new(
        shape: &Shape,
        rope: RopeTable,
        n_threads: usize,
        max_rows: usize,
    ) -> Result<Cpu> {
        let _ = (shape, rope, n_threads, max_rows);
        todo!()
    }

    /// What was found and chosen: "AVX-512, 2 threads".
    pub fn description(&self) -> String {
        todo!()
    }
}

#[allow(unused_variables)]
impl Backend for Cpu {
    type Buf = CpuBuf;
    type Mat = CpuMat;
    type Kv = CpuKv;
    const PAGE_SIZE: usize = 16;

    fn mat_bytes(spec: &MatSpec) -> u64 {
        todo!()
    }
    fn page_bytes(shape: &Shape, dtype: Dtype) -> u64 {
        todo!()
    }
    fn new_mat(&self, spec: &MatSpec) -> Result<CpuMat> {
        todo!()
    }
    fn pack(&self, mat: &mut CpuMat, block: &Block<'_>) {
        todo!()
    }
    fn set_bias(&self, mat: &mut CpuMat, part: usize, values: &[f32]) {
        todo!()
    }
    fn new_vector(&self, values: &[f32]) -> Result<CpuBuf> {
        todo!()
    }
    fn new_buf(&self, rows: usize, width: usize) -> Result<CpuBuf> {
        todo!()
    }
    fn new_kv(&self, n_pages: usize, dtype: Dtype) -> Result<CpuKv> {
        todo!()
    }
    fn load_step(&mut self, step: &Step) {
        todo!()
    }
    fn embed(&mut self, x: &mut CpuBuf, table: &CpuMat) {
        todo!()
    }
    fn qkv(&mut self, q: &mut CpuBuf, kv: &mut CpuKv, x: &CpuBuf, layer: &Layer<Self>) {
        todo!()
    }
    fn attend(&mut self, y: &mut CpuBuf, q: &CpuBuf, kv: &CpuKv, layer: &Layer<Self>) {
        todo!()
    }
    fn matmul_add(&mut self, x: &mut CpuBuf, w: &CpuMat, y: &CpuBuf) {
        todo!()
    }
    fn ffn_up(&mut self, h: &mut CpuBuf, x: &CpuBuf, layer: &Layer<Self>) {
        todo!()
    }
    fn logits(&mut self, out: &mut CpuBuf, x: &CpuBuf, norm: &CpuBuf, head: &CpuMat) {
        todo!()
    }
    fn read<'a>(&mut self, out: &'a CpuBuf) -> Result<&'a [f32]> {
        todo!()
    }
    fn copy_pages(&mut self, kv: &mut CpuKv, pairs: &[(u32, u32)]) -> Result<()> {
        todo!()
    }
}
