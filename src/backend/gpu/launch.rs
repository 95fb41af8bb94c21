//! One function for each kernel: its geometry, as `kernels/params.h` states it. No launch anywhere else.
//!
//! The parameters hold addresses; `mod.rs` takes them from live [`super::device::Memory`] of the sizes
//! that params.h asks for.
#![allow(unsafe_code)]

use super::device::{Device, Geometry};
use super::params::*;
use crate::{Dtype, Result};

/// Every kernel of `GPU_KERNELS`.
pub const KERNELS: [&str; 39] = [
    "embed_f32",
    "embed_f16",
    "embed_bf16",
    "prepare_f32",
    "prepare_f16",
    "prepare_bf16",
    "qkv_f32",
    "qkv_f16",
    "qkv_bf16",
    "qkv_prefill_f32",
    "qkv_prefill_f16",
    "qkv_prefill_bf16",
    "attend_f32",
    "attend_f16",
    "attend_bf16",
    "attend_prefill_fma_f32",
    "attend_prefill_fma_f16",
    "attend_prefill_fma_bf16",
    "matmul_add_f32",
    "matmul_add_f16",
    "matmul_add_bf16",
    "matmul_add_prefill_f32",
    "matmul_add_prefill_f16",
    "matmul_add_prefill_bf16",
    "ffn_up_f32",
    "ffn_up_f16",
    "ffn_up_bf16",
    "ffn_up_prefill_f32",
    "ffn_up_prefill_f16",
    "ffn_up_prefill_bf16",
    "logits_f32",
    "logits_f16",
    "logits_bf16",
    "attend_prefill_f16_32",
    "attend_prefill_f16_64",
    "attend_prefill_f16_128",
    "attend_prefill_bf16_32",
    "attend_prefill_bf16_64",
    "attend_prefill_bf16_128",
];

/// Rows that a GEMV block works on.
const GEMV_ROWS: u32 = 8;

fn run<D: Device>(
    device: &D,
    kernel: &str,
    grid: [u32; 3],
    threads: u32,
    shared: u32,
    params: &impl Params,
) -> Result<()> {
    if grid.contains(&0) {
        return Ok(());
    }
    let geometry = Geometry {
        grid,
        block: [threads, 1, 1],
        shared,
    };
    // SAFETY: every caller below pairs a kernel with its own struct; the addresses in it are of live
    // memory that `mod.rs` allocated for this use.
    unsafe { device.launch(kernel, geometry, params.bytes()) }
}

/// Blocks of a tiled product of `n` columns, of which a block does `cols` for 16-bit weights (half of
/// that for float32), and its shared memory.
fn gemm(dtype: Dtype, n: u32, cols: u32, n_rows: u32) -> ([u32; 3], u32) {
    match dtype {
        Dtype::F32 => ([n.div_ceil(cols / 2), n_rows.div_ceil(64), 1], 20_480),
        _ => ([n.div_ceil(cols), n_rows.div_ceil(128), 1], 49_152),
    }
}

pub(super) fn embed<D: Device>(d: &D, dtype: Dtype, p: &EmbedParams) -> Result<()> {
    run(d, &format!("embed_{dtype}"), [p.n_rows, 1, 1], 128, 0, p)
}

pub(super) fn prepare<D: Device>(d: &D, dtype: Dtype, p: &PrepareParams) -> Result<()> {
    run(d, &format!("prepare_{dtype}"), [p.n_rows, 1, 1], 256, 32, p)
}

fn qkv_rows(p: &QkvParams) -> u32 {
    (p.n_heads + 2 * p.n_kv_heads) * p.head_dim
}

pub(super) fn qkv<D: Device>(d: &D, dtype: Dtype, p: &QkvParams) -> Result<()> {
    let grid = [qkv_rows(p).div_ceil(16), p.n_rows.div_ceil(GEMV_ROWS), 1];
    run(d, &format!("qkv_{dtype}"), grid, 256, 0, p)
}

pub(super) fn qkv_prefill<D: Device>(d: &D, dtype: Dtype, p: &QkvParams) -> Result<()> {
    let (grid, shared) = gemm(dtype, qkv_rows(p), 128, p.n_rows);
    run(d, &format!("qkv_prefill_{dtype}"), grid, 256, shared, p)
}

pub(super) fn attend<D: Device>(d: &D, kv: Dtype, p: &AttendParams) -> Result<()> {
    let grid = [p.n_kv_heads, p.max_splits, p.n_rows];
    let shared = 4160 + 96 * p.head_stride;
    run(d, &format!("attend_{kv}"), grid, 128, shared, p)
}

/// With tensor cores; `kv` has 16 bits, `head_stride` is at most 128.
pub(super) fn attend_prefill<D: Device>(d: &D, kv: Dtype, p: &AttendPrefillParams) -> Result<()> {
    let width = p.head_stride.next_power_of_two().max(32);
    let kernel = format!("attend_prefill_{kv}_{width}");
    run(d, &kernel, [p.n_heads, p.n_tiles, 1], 128, 512 * width, p)
}

pub(super) fn attend_prefill_fma<D: Device>(
    d: &D,
    kv: Dtype,
    p: &AttendPrefillParams,
) -> Result<()> {
    let shared = 4160 + 96 * p.head_stride;
    let kernel = format!("attend_prefill_fma_{kv}");
    run(d, &kernel, [p.n_heads, p.n_tiles, 1], 128, shared, p)
}

pub(super) fn matmul_add<D: Device>(d: &D, dtype: Dtype, p: &MatmulAddParams) -> Result<()> {
    let grid = [p.n.div_ceil(4), p.n_rows.div_ceil(GEMV_ROWS), 1];
    run(d, &format!("matmul_add_{dtype}"), grid, 256, 512, p)
}

pub(super) fn matmul_add_prefill<D: Device>(
    d: &D,
    dtype: Dtype,
    p: &MatmulAddParams,
) -> Result<()> {
    let (grid, shared) = gemm(dtype, p.n, 128, p.n_rows);
    run(
        d,
        &format!("matmul_add_prefill_{dtype}"),
        grid,
        256,
        shared,
        p,
    )
}

pub(super) fn ffn_up<D: Device>(d: &D, dtype: Dtype, p: &FfnUpParams) -> Result<()> {
    let grid = [p.ffn_dim.div_ceil(8), p.n_rows.div_ceil(GEMV_ROWS), 1];
    run(d, &format!("ffn_up_{dtype}"), grid, 256, 0, p)
}

pub(super) fn ffn_up_prefill<D: Device>(d: &D, dtype: Dtype, p: &FfnUpParams) -> Result<()> {
    let (grid, shared) = gemm(dtype, p.ffn_dim, 64, p.n_rows);
    run(d, &format!("ffn_up_prefill_{dtype}"), grid, 256, shared, p)
}

pub(super) fn logits<D: Device>(d: &D, dtype: Dtype, p: &LogitsParams) -> Result<()> {
    let grid = [p.vocab_size.div_ceil(16), p.n_rows.div_ceil(GEMV_ROWS), 1];
    run(d, &format!("logits_{dtype}"), grid, 256, 0, p)
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_kernel_of_params_h_is_named() {
        let text = include_str!("../../../kernels/params.h");
        let mut names = Vec::new();
        for line in text.lines().filter(|line| line.contains("    X(")) {
            let name = line.trim().trim_start_matches("X(");
            let name = name.split(',').next().unwrap();
            match name.strip_suffix("##T") {
                Some(stem) => names.extend(["f32", "f16", "bf16"].map(|t| format!("{stem}{t}"))),
                None => names.push(name.into()),
            }
        }
        names.sort();
        let mut known = super::KERNELS.map(String::from).to_vec();
        known.sort();
        assert_eq!(known, names);
    }
}
