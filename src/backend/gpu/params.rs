//! The structs of `kernels/params.h`, field for field. Addresses are addresses of device memory.
#![allow(unsafe_code)]

use super::device::TensorMap;
use crate::Dtype;

/// A kernel's parameters, as bytes.
///
/// # Safety
/// Implementors are `#[repr(C)]` without padding, so that every byte is initialised.
pub(super) unsafe trait Params: Sized {
    fn bytes(&self) -> &[u8] {
        // SAFETY: no padding (the trait's contract); borrowed as long as `self`.
        unsafe { std::slice::from_raw_parts((&raw const *self).cast(), size_of::<Self>()) }
    }
}

macro_rules! params {
    ($name:ident, $size:literal { $($field:ident: $type:ty),* $(,)? }) => {
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default)]
        pub(super) struct $name { $(pub $field: $type),* }
        // params.h asserts the same number.
        const _: () = assert!(size_of::<$name>() == $size);
        const _: () = assert!(0 $(+ size_of::<$type>())* == $size, "no padding");
        // SAFETY: repr(C), and the fields' sizes add up to the struct's, as just asserted.
        unsafe impl Params for $name {}
    };
}

params!(EmbedParams, 40 {
    x: u64, table: u64, tokens: u64,
    n_rows: u32, dim: u32, x_stride: u32, w_stride: u32,
});
params!(PrepareParams, 56 {
    out: u64, x: u64, norm: u64, rows: u64,
    n_rows: u32, width: u32, x_stride: u32, out_stride: u32,
    eps: f32, slots: u32,
});
params!(QkvParams, 152 {
    q: u64, k_pages: u64, v_pages: u64, x: u64, norm: u64, w: u64, bias: u64, cos: u64, sin: u64,
    rows: u64, positions: u64, slots: u64, scratch: u64,
    n_rows: u32, dim: u32, x_stride: u32, w_stride: u32, q_stride: u32,
    n_heads: u32, n_kv_heads: u32, head_dim: u32, head_stride: u32,
    kv_type: u32, eps: f32, splits: u32,
});
params!(QkvHopperParams, 512 { x: TensorMap, w: TensorMap, p: QkvParams, groups: u32, zeros: [u32; 25] });
params!(AppendParams, 48 {
    k_pages: u64, v_pages: u64, fresh: u64, slots: u64,
    n_rows: u32, n_kv_heads: u32, head_dim: u32, head_stride: u32,
});
params!(AttendParams, 120 {
    y: u64, q: u64, k_pages: u64, v_pages: u64, partial: u64, counters: u64,
    rows: u64, positions: u64, row_pages: u64, pages: u64,
    n_rows: u32, n_heads: u32, n_kv_heads: u32, head_dim: u32, head_stride: u32,
    q_stride: u32, y_stride: u32, max_splits: u32, scale: f32, y_type: u32,
});
params!(AttendPrefillParams, 96 {
    y: u64, q: u64, k_pages: u64, v_pages: u64, tiles: u64, rows: u64, pages: u64,
    n_tiles: u32, n_heads: u32, n_kv_heads: u32, head_dim: u32, head_stride: u32,
    q_stride: u32, y_stride: u32, scale: f32, y_type: u32, slots: u32,
});
params!(AttendHopperParams, 384 {
    k: TensorMap, v: TensorMap, p: AttendPrefillParams, first: u32, end: u32, zeros: [u32; 6],
});
params!(MatmulAddParams, 80 {
    x: u64, y: u64, w: u64, bias: u64, rows: u64, scratch: u64,
    n_rows: u32, n: u32, k: u32, x_stride: u32, y_stride: u32, w_stride: u32, splits: u32, first: u32,
});
params!(FfnUpParams, 80 {
    h: u64, x: u64, norm: u64, w: u64, rows: u64, scratch: u64,
    n_rows: u32, ffn_dim: u32, dim: u32, x_stride: u32, w_stride: u32, h_stride: u32,
    eps: f32, splits: u32,
});
params!(MatmulAddHopperParams, 384 { y: TensorMap, w: TensorMap, p: MatmulAddParams, groups: u32, zeros: [u32; 11] });
params!(FfnUpHopperParams, 384 { x: TensorMap, w: TensorMap, p: FfnUpParams, groups: u32, zeros: [u32; 11] });
params!(LogitsParams, 80 {
    out: u64, x: u64, norm: u64, w: u64, rows: u64, scratch: u64,
    n_rows: u32, vocab_size: u32, dim: u32, x_stride: u32, w_stride: u32, out_stride: u32,
    eps: f32, splits: u32,
});

params!(SampleRow, 64 {
    given: i32, n_tokens: u32, mask: u32,
    penalty: f32, halvings: f32, high: f32, low: f32, inverse: f32,
    top_k: u32, top_p: u32, min_low: u32, min_high: u32, draw: u32, scored: u32, n_top: u32, zero: u32,
});
params!(SampleParams, 80 {
    out: u64, logits: u64, rows: u64, masks: u64, next: u64,
    n_rows: u32, vocab_size: u32, stride: u32, mask_stride: u32, out_stride: u32,
    halvings: f32, high: f32, low: f32, inverse: f32, zero: u32,
});

impl SampleRow {
    /// As the kernel reads it.
    pub fn words(&self) -> impl Iterator<Item = u32> {
        let words = self.bytes().chunks_exact(4);
        words.map(|b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]]))
    }
}

/// The number of a type in `params.h` (GPU_F32, GPU_F16, GPU_BF16, GPU_INT8, GPU_FP8), for the
/// cache and for activations.
pub(super) fn type_code(dtype: Dtype) -> u32 {
    match dtype {
        Dtype::F32 => 0,
        Dtype::F16 => 1,
        Dtype::Bf16 => 2,
        Dtype::Int8 => 3,
        Dtype::Fp8 => 6,
        // `Gpu::new` refuses these types; no kernel has this number.
        Dtype::Int4 | Dtype::Nf4 => u32::MAX,
    }
}

/// Compares the size and field offsets of every struct with C's `sizeof` and `offsetof`.
#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write;
    use std::process::Command;

    macro_rules! facts {
        ($text:ident: $($name:ident { $($field:ident)* })*) => {$(
            writeln!($text, "_Static_assert(sizeof({0}) == {1}, \"{0}\");", stringify!($name), size_of::<$name>()).unwrap();
            $(writeln!(
                $text,
                "_Static_assert(offsetof({0}, {1}) == {2}, \"{0}.{1}\");",
                stringify!($name), stringify!($field), std::mem::offset_of!($name, $field)
            ).unwrap();)*
        )*};
    }

    #[test]
    fn structs_are_those_of_params_h() {
        let mut c = String::from("#include <stddef.h>\n#include \"params.h\"\n");
        facts!(c:
            EmbedParams { x table tokens n_rows dim x_stride w_stride }
            PrepareParams { out x norm rows n_rows width x_stride out_stride eps slots }
            QkvParams { q k_pages v_pages x norm w bias cos sin rows positions slots scratch n_rows dim x_stride w_stride
                q_stride n_heads n_kv_heads head_dim head_stride kv_type eps splits }
            QkvHopperParams { x w p groups zeros }
            MatmulAddHopperParams { y w p groups zeros }
            AttendHopperParams { k v p first end zeros }
            FfnUpHopperParams { x w p groups zeros }
            AppendParams { k_pages v_pages fresh slots n_rows n_kv_heads head_dim head_stride }
            AttendParams { y q k_pages v_pages partial counters rows positions row_pages pages n_rows n_heads
                n_kv_heads head_dim head_stride q_stride y_stride max_splits scale y_type }
            AttendPrefillParams { y q k_pages v_pages tiles rows pages n_tiles n_heads n_kv_heads head_dim
                head_stride q_stride y_stride scale y_type slots }
            MatmulAddParams { x y w bias rows scratch n_rows n k x_stride y_stride w_stride splits first }
            FfnUpParams { h x norm w rows scratch n_rows ffn_dim dim x_stride w_stride h_stride eps splits }
            LogitsParams { out x norm w rows scratch n_rows vocab_size dim x_stride w_stride out_stride eps splits }
            SampleRow { given n_tokens mask penalty halvings high low inverse top_k top_p min_low min_high draw scored
                n_top zero }
            SampleParams { out logits rows masks next n_rows vocab_size stride mask_stride out_stride halvings high low
                inverse zero }
        );
        for (name, value) in [
            ("GPU_PAGE", super::super::PAGE as u32),
            ("GPU_CHUNK", super::super::CHUNK as u32),
            ("GPU_MAX_HEAD_DIM", super::super::MAX_HEAD_DIM as u32),
            ("GPU_TILE_MMA", super::super::step::TILE_MMA as u32),
            ("GPU_TILE_HOPPER", super::super::step::TILE_HOPPER as u32),
            ("GPU_TILE_FMA", super::super::step::TILE_FMA as u32),
            ("GPU_F32", type_code(Dtype::F32)),
            ("GPU_F16", type_code(Dtype::F16)),
            ("GPU_BF16", type_code(Dtype::Bf16)),
            ("GPU_INT8", type_code(Dtype::Int8)),
            ("GPU_FP8", type_code(Dtype::Fp8)),
            ("GPU_BLOCK_K", super::super::quantised::BLOCK_K as u32),
            ("GPU_TABLE_BYTES", super::super::launch::TABLE),
            ("GPU_FEW_ROWS", super::super::launch::FEW_ROWS),
            ("GPU_FEW_SHARED", super::super::launch::FEW_SHARED),
            ("GPU_BATCH_ROWS", super::super::launch::BATCH_ROWS),
            ("GPU_BATCH_PAIRS", super::super::launch::BATCH_PAIRS),
            ("GPU_BATCH_SHARED", super::super::launch::BATCH_SHARED),
            (
                "GPU_BATCH_SHARED_CODES",
                super::super::launch::BATCH_SHARED_CODES,
            ),
            ("GPU_BATCH_LEVEL", super::super::launch::BATCH_LEVEL),
            ("GPU_SPLIT_BELOW", super::super::launch::SPLIT_BELOW),
            ("GPU_HOPPER_SHARED", super::super::launch::HOPPER_SHARED),
            (
                "GPU_HOPPER_HALF_SHARED",
                super::super::launch::HOPPER_HALF_SHARED,
            ),
            ("GPU_CODES_SHARED", super::super::launch::CODES_SHARED),
            (
                "GPU_CODES_HALF_SHARED",
                super::super::launch::CODES_HALF_SHARED,
            ),
            ("GPU_BOX_ROWS", super::super::device::BOX[0]),
            ("GPU_NO_SLOT", crate::backend::Step::NO_SLOT),
            ("GPU_NO_MASK", super::super::sample::NO_MASK),
            ("GPU_DRAW", super::super::sample::DRAW as u32),
            ("(unsigned)GPU_NO_ROW", super::super::sample::NO_ROW as u32),
            ("GPU_MAX_TOP", super::super::sample::MAX_TOP as u32),
            ("GPU_SAMPLE_SHARED", super::super::launch::SAMPLE_SHARED),
            ("sizeof(SampleOut) / 4", super::super::sample::OUT as u32),
        ] {
            writeln!(c, "_Static_assert({name} == {value}u, \"{name}\");").unwrap();
        }
        let file = std::env::temp_dir().join(format!("llamabi-params-{}.c", std::process::id()));
        std::fs::write(&file, c).unwrap();
        let root = env!("CARGO_MANIFEST_DIR");
        let output = Command::new("cc")
            .args(["-std=c11", "-fsyntax-only", "-I"])
            .arg(format!("{root}/kernels"))
            .arg(&file)
            .output()
            .unwrap();
        std::fs::remove_file(&file).unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}
