//! A backend that keeps weights as row-major float32 and cannot compute.

use half::{bf16, f16};
use llamabi::backend::{
    Backend, Block, Layer, Limits, MatSpec, PartSpec, QuantBlock, QuantData, Shape,
};
use llamabi::quant::Quant;
use llamabi::{Dtype, Result};
use std::cell::Cell;

#[derive(Clone, Debug, PartialEq)]
pub struct Mat {
    pub parts: Vec<usize>,
    pub cols: usize,
    /// `[sum of parts, cols]`; NaN where nothing was packed.
    pub values: Vec<f32>,
    /// Empty, or one per row.
    pub bias: Vec<f32>,
    /// Of quantised parts, one after another: codes, and scales as f16 bits; which rows of the
    /// matrix have them.
    pub codes: Vec<u8>,
    pub scales: Vec<u16>,
    pub packed: [Vec<bool>; 2],
    /// Of each part.
    pub dtypes: Vec<Dtype>,
}

impl Mat {
    /// The format of all parts.
    pub fn dtype(&self) -> Dtype {
        assert!(self.dtypes.iter().all(|&dtype| dtype == self.dtypes[0]));
        self.dtypes[0]
    }

    /// Codes and scales of a row of a part.
    fn widths(&self, part: usize) -> [usize; 2] {
        widths(self.dtypes[part], self.cols)
    }

    /// Codes and scales of a quantised part.
    pub fn coded(&self, part: usize) -> (&[u8], &[u16]) {
        let [codes, scales] = self.places(part);
        let (rows, [code_bytes, n_scales]) = (self.parts[part], self.widths(part));
        (
            &self.codes[codes..][..rows * code_bytes],
            &self.scales[scales..][..rows * n_scales],
        )
    }

    /// Where codes and scales of a part begin.
    fn places(&self, part: usize) -> [usize; 2] {
        let before = (0..part).map(|p| self.widths(p).map(|n| n * self.parts[p]));
        before.fold([0; 2], |[a, b], [c, d]| [a + c, b + d])
    }

    /// Rows of one part.
    pub fn part(&self, part: usize) -> &[f32] {
        let first: usize = self.parts[..part].iter().sum();
        &self.values[first * self.cols..(first + self.parts[part]) * self.cols]
    }
}

fn widths(dtype: Dtype, cols: usize) -> [usize; 2] {
    let of = |quant: Quant| [quant.code_bytes(cols), quant.scales(cols)];
    dtype.quant().map_or([0; 2], of)
}

#[derive(Default)]
pub struct Collect {
    /// The largest block that was handed over.
    pub largest: Cell<usize>,
}

pub fn to_f32(dtype: Dtype, bytes: &[u8]) -> Vec<f32> {
    let values = bytes.chunks_exact(dtype.size()).map(|b| match dtype {
        Dtype::F32 => f32::from_le_bytes(b.try_into().unwrap()),
        Dtype::F16 => f16::from_le_bytes(b.try_into().unwrap()).to_f32(),
        Dtype::Bf16 => bf16::from_le_bytes(b.try_into().unwrap()).to_f32(),
        _ => unreachable!("{dtype} is no float"),
    });
    values.collect()
}

#[allow(unused_variables)]
impl Backend for Collect {
    type Buf = Vec<f32>;
    type Mat = Mat;
    type Kv = ();
    const PAGE_SIZE: usize = 16;
    const PREFILL_CHUNK: usize = 1;

    fn keeps(quant: Quant) -> bool {
        quant != Quant::Fp8
    }
    fn mat_bytes(spec: &MatSpec) -> u64 {
        let bytes =
            |p: &PartSpec| p.rows * (spec.cols * p.dtype.size() + usize::from(spec.bias) * 4);
        spec.parts.iter().map(bytes).sum::<usize>() as u64
    }
    fn page_bytes(shape: &Shape, dtype: Dtype) -> u64 {
        unreachable!("nothing runs on this backend")
    }
    fn scratch_bytes(shape: &Shape, limits: &Limits, kv_dtype: Dtype, n_threads: usize) -> u64 {
        unreachable!("nothing runs on this backend")
    }
    fn new_mat(&self, spec: &MatSpec) -> Result<Mat> {
        let rows = spec.rows();
        let widths = |part: &PartSpec| widths(part.dtype, spec.cols).map(|n| n * part.rows);
        let sizes = spec.parts.iter().map(widths);
        let [codes, scales] = sizes.fold([0; 2], |[a, b], [c, d]| [a + c, b + d]);
        Ok(Mat {
            parts: spec.parts.iter().map(|part| part.rows).collect(),
            cols: spec.cols,
            values: vec![f32::NAN; rows * spec.cols],
            bias: vec![f32::NAN; if spec.bias { rows } else { 0 }],
            codes: vec![0; codes],
            scales: vec![0; scales],
            packed: [vec![false; rows], vec![false; rows]],
            dtypes: spec.parts.iter().map(|part| part.dtype).collect(),
        })
    }
    fn pack(&self, mat: &mut Mat, block: &Block<'_>) {
        self.largest.set(self.largest.get().max(block.bytes.len()));
        let first: usize = mat.parts[..block.part].iter().sum();
        let values = to_f32(block.dtype, block.bytes);
        assert_eq!(
            block.bytes.len() % (block.cols * block.dtype.size()),
            0,
            "whole rows"
        );
        for (i, row) in values.chunks_exact(block.cols).enumerate() {
            let row_in_part = block.order.destination(block.row + i);
            assert!(row_in_part < mat.parts[block.part], "inside its part");
            assert!(block.col + block.cols <= mat.cols, "inside the columns");
            let at = (first + row_in_part) * mat.cols + block.col;
            let place = &mut mat.values[at..at + block.cols];
            assert!(place.iter().all(|x| x.is_nan()), "packed once");
            place.copy_from_slice(row);
        }
    }
    fn pack_quantised(&self, mat: &mut Mat, block: &QuantBlock<'_>) {
        fn place<T: Copy>(
            (rows, order): (usize, impl Fn(usize) -> usize),
            (from, to, width): (&[T], &mut [T], usize),
            packed: &mut [bool],
        ) {
            assert_eq!(from.len() % width, 0, "whole rows");
            for (i, from) in from.chunks_exact(width).enumerate() {
                let row = order(rows + i);
                assert!(!std::mem::replace(&mut packed[row], true), "packed once");
                to[row * width..][..width].copy_from_slice(from);
            }
        }
        let first: usize = mat.parts[..block.part].iter().sum();
        let rows = (block.row, |row| block.order.destination(row));
        let [codes, scales] = mat.places(block.part);
        let [code_bytes, n_scales] = mat.widths(block.part);
        let [has_codes, has_scales] = &mut mat.packed;
        match block.data {
            QuantData::Codes(c) => {
                let to = (c, &mut mat.codes[codes..], code_bytes);
                place(rows, to, &mut has_codes[first..]);
            }
            QuantData::Scales(s) => {
                let to = (s, &mut mat.scales[scales..], n_scales);
                place(rows, to, &mut has_scales[first..]);
            }
        }
    }
    fn set_bias(&self, mat: &mut Mat, part: usize, values: &[f32]) {
        let first: usize = mat.parts[..part].iter().sum();
        let place = &mut mat.bias[first..first + mat.parts[part]];
        assert!(place.iter().all(|x| x.is_nan()), "set once");
        place.copy_from_slice(values);
    }
    fn new_vector(&self, values: &[f32]) -> Result<Vec<f32>> {
        Ok(values.to_vec())
    }
    fn new_buf(&self, rows: usize, width: usize) -> Result<Vec<f32>> {
        unreachable!("nothing runs on this backend")
    }
    fn new_kv(&self, n_pages: usize, dtype: Dtype) -> Result<()> {
        unreachable!("nothing runs on this backend")
    }
    fn embed(&mut self, x: &mut Vec<f32>, table: &Mat) {
        unreachable!("nothing runs on this backend")
    }
    fn qkv(&mut self, q: &mut Vec<f32>, kv: &mut (), x: &Vec<f32>, layer: &Layer<Self>) {
        unreachable!("nothing runs on this backend")
    }
    fn attend(&mut self, y: &mut Vec<f32>, q: &Vec<f32>, kv: &(), layer: &Layer<Self>) {
        unreachable!("nothing runs on this backend")
    }
    fn matmul_add(&mut self, x: &mut Vec<f32>, w: &Mat, y: &Vec<f32>) {
        unreachable!("nothing runs on this backend")
    }
    fn ffn_up(&mut self, h: &mut Vec<f32>, x: &Vec<f32>, layer: &Layer<Self>) {
        unreachable!("nothing runs on this backend")
    }
    fn logits(&mut self, out: &mut Vec<f32>, x: &Vec<f32>, norm: Option<&Vec<f32>>, head: &Mat) {
        unreachable!("nothing runs on this backend")
    }
    fn hidden(&mut self, out: &mut Vec<f32>, x: &Vec<f32>, norm: &Vec<f32>) {
        unreachable!("nothing runs on this backend")
    }
    fn residual_block(&mut self, out: &mut Vec<f32>, w: &Mat, h: &Vec<f32>) {
        unreachable!("nothing runs on this backend")
    }
    fn copy_pages(&mut self, kv: &mut (), pairs: &[(u32, u32)]) -> Result<()> {
        unreachable!("nothing runs on this backend")
    }
    fn save_pages(&mut self, kv: &(), pages: &[u32], to: &mut [u8]) -> Result<()> {
        unreachable!("nothing runs on this backend")
    }
    fn load_pages(&mut self, kv: &mut (), pages: &[u32], from: &[u8]) -> Result<()> {
        unreachable!("nothing runs on this backend")
    }
}
