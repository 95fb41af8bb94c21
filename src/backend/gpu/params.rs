//! The structs of `kernels/params.h`, field for field, and its constants, which `build.rs` takes
//! from that file. Addresses are addresses of device memory. (U)
#![allow(unsafe_code)]

use super::device::{BOX, TensorMap};
use crate::Dtype;
use crate::backend::Step;

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

#[allow(dead_code)] // the host does not use all constants
mod constants {
    include!(concat!(env!("OUT_DIR"), "/constants.rs"));
}
pub(super) use constants::*;

const _: () = assert!(GPU_NO_SLOT == Step::NO_SLOT && GPU_BOX_ROWS == BOX[0]);

macro_rules! params {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty),* $(,)? })*) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            #[derive(Clone, Copy, Debug, Default)]
            pub(super) struct $name { $(pub $field: $type),* }
            const _: () = assert!(0 $(+ size_of::<$type>())* == size_of::<$name>(), "padding");
            // SAFETY: repr(C), and the fields' sizes add up to the struct's, as just asserted.
            unsafe impl Params for $name {}
        )*

        /// The assertions that a C compiler must find true of its structs.
        #[cfg(test)]
        fn assertions() -> Vec<String> {
            vec![$(
                format!("sizeof({}) == {}", stringify!($name), size_of::<$name>()),
                $(format!(
                    "offsetof({}, {}) == {}",
                    stringify!($name), stringify!($field), std::mem::offset_of!($name, $field)
                ),)*
            )*]
        }
    };
}

params! {
    EmbedParams {
        x: u64, table: u64, tokens: u64, n_rows: u32, dim: u32, x_stride: u32, w_stride: u32,
        first: u32, n: u32,
    }
    ReduceParams { x: u64, parts: u64, own: u64, n: u64, ranks: u32, adds: u32 }
    ReducePeersParams {
        x: u64, parts: [u64; GPU_PEERS as usize], turns: [u64; GPU_PEERS as usize], turn: u64,
        next: u64, given_up: u64, n: u64, rank: u32, ranks: u32, adds: u32, zero: u32,
    }
    GatherParams {
        out: u64, shares: u64, firsts: u64, n_rows: u32, ranks: u32, share_stride: u32,
        out_stride: u32,
    }
    PrepareParams {
        out: u64, x: u64, norm: u64, rows: u64, n_rows: u32, width: u32, x_stride: u32,
        out_stride: u32, eps: f32, permuted: u32, out_type: u32, zero: u32,
    }
    SiluAddParams {
        out: u64, h: u64, t: u64, n_rows: u32, width: u32, stride: u32, zero: u32,
    }
    QkvParams {
        q: u64, k_pages: u64, v_pages: u64, x: u64, norm: u64, w: u64, bias: u64, cos: u64,
        sin: u64, rows: u64, positions: u64, slots: u64, scratch: u64, n_rows: u32, dim: u32,
        x_stride: u32, w_stride: u32, q_stride: u32, n_heads: u32, n_kv_heads: u32, head_dim: u32,
        head_stride: u32, kv_type: u32, eps: f32, splits: u32, first: u32, n: u32, raw: u32,
        zero: u32,
    }
    QkvHopperParams {
        x: TensorMap, w: TensorMap, p: QkvParams, groups: u32, across: u32, zeros: [u32; 20],
    }
    AppendParams {
        k_pages: u64, v_pages: u64, fresh: u64, slots: u64, n_rows: u32, n_kv_heads: u32,
        head_dim: u32, head_stride: u32, q: u64, q_norm: u64, k_norm: u64, cos: u64, sin: u64,
        tokens: u64, positions: u64, n_heads: u32, q_stride: u32, eps: f32,
        rope_first: u32,
    }
    AttendParams {
        y: u64, q: u64, k_pages: u64, v_pages: u64, partial: u64, counters: u64, rows: u64,
        positions: u64, row_pages: u64, pages: u64, n_rows: u32, n_heads: u32, n_kv_heads: u32,
        head_dim: u32, head_stride: u32, q_stride: u32, y_stride: u32, max_splits: u32, scale: f32,
        y_type: u32, window: u32, group: u32,
    }
    AttendPrefillParams {
        y: u64, q: u64, k_pages: u64, v_pages: u64, tiles: u64, rows: u64, pages: u64, n_tiles: u32,
        n_heads: u32, n_kv_heads: u32, head_dim: u32, head_stride: u32, q_stride: u32,
        y_stride: u32, scale: f32, y_type: u32, permuted: u32, window: u32, zero: u32,
    }
    AttendHopperParams {
        k: TensorMap, v: TensorMap, p: AttendPrefillParams, first: u32, end: u32, zeros: [u32; 4],
    }
    MatmulAddParams {
        x: u64, y: u64, w: u64, bias: u64, rows: u64, scratch: u64, n_rows: u32, n: u32, k: u32,
        x_stride: u32, y_stride: u32, w_stride: u32, splits: u32, first: u32, scale: f32,
        zero: u32,
    }
    FfnUpParams {
        h: u64, x: u64, norm: u64, w: u64, rows: u64, scratch: u64, n_rows: u32, ffn_dim: u32,
        dim: u32, x_stride: u32, w_stride: u32, h_stride: u32, eps: f32, splits: u32,
        h_type: u32, zero: u32, bias: u64,
    }
    MatmulAddHopperParams {
        y: TensorMap, w: TensorMap, p: MatmulAddParams, groups: u32, across: u32, zeros: [u32; 8],
    }
    FfnUpHopperParams {
        x: TensorMap, w: TensorMap, p: FfnUpParams, groups: u32, across: u32, zeros: [u32; 6],
    }
    LogitsParams {
        out: u64, x: u64, norm: u64, w: u64, rows: u64, scratch: u64, n_rows: u32, vocab_size: u32,
        dim: u32, x_stride: u32, w_stride: u32, out_stride: u32, eps: f32, splits: u32,
    }
    AdaptInParams {
        thin: u64, x: u64, norm: u64, adapters: u64, n_rows: u32, cols: u32, x_stride: u32,
        x_type: u32, permuted: u32, first_part: u32, n_parts: u32, rank: u32, eps: f32, zero: u32,
    }
    AdaptOutParams {
        y: u64, other: u64, thin: u64, adapters: u64, n_rows: u32, n: u32, y_stride: u32,
        other_stride: u32, second: u32, third: u32, first_part: u32, factor: f32,
    }
    AdaptUpParams {
        h: u64, sums: u64, thin: u64, adapters: u64, rows: u64, n_rows: u32, ffn_dim: u32,
        sums_stride: u32, h_stride: u32, h_type: u32, permuted: u32, first_part: u32, fast: u32,
    }
    SampleRow {
        given: i32, n_tokens: u32, history: u32, penalty: f32, halvings: f32, high: f32, low: f32,
        inverse: f32, top_k: u32, top_p: u32, min_low: u32, min_high: u32, draw: u32, scored: u32,
        n_top: u32, mask: u32, first_edit: u32, n_edits: u32, zeros: [u32; 2],
    }
    SampleEdit { token: u32, add: f32 }
    ChangeParams {
        changed: u64, logits: u64, rows: u64, histories: u64, edits: u64, masks: u64, possible: u64,
        n_rows: u32, vocab_size: u32, stride: u32, history_stride: u32, mask_stride: u32, zero: u32,
    }
    /// A row's answer.
    SampleOut { token: i32, logit: f32, max: f32, low: u32, high: u32 }
    SampleParams {
        out: u64, logits: u64, rows: u64, histories: u64, next: u64, slices: u64, counters: u64,
        changed: u64, possible: u64, n_rows: u32, vocab_size: u32, stride: u32, history_stride: u32,
        out_stride: u32,
        halvings: f32, high: f32, low: f32, inverse: f32, zero: u32,
    }
}

impl SampleRow {
    /// The words of the row, as the kernel reads them.
    pub fn words(&self) -> impl Iterator<Item = u32> {
        let words = self.bytes().chunks_exact(4);
        words.map(|b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]]))
    }
}

/// The number that `params.h` gives to a type of the cache or of activations.
pub(super) fn type_code(dtype: Dtype) -> u32 {
    match dtype {
        Dtype::F32 => GPU_F32,
        Dtype::F16 => GPU_F16,
        Dtype::Bf16 => GPU_BF16,
        Dtype::Int8 => GPU_INT8,
        Dtype::Fp8 => GPU_FP8,
        // `Gpu::new` refuses these types. No type has this number.
        _ => u32::MAX,
    }
}

/// The code of the activations that products with weights of this type take.
pub(super) fn activations_code(weights: Dtype) -> u32 {
    match weights.is_float() {
        true => type_code(weights),
        false => GPU_F16_FINITE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write;
    use std::process::Command;

    #[test]
    fn structs_and_constants_are_those_of_params_h() {
        let mut c = String::from("#include <stddef.h>\n#include \"params.h\"\n");
        let constants = CONSTANTS
            .iter()
            .map(|(name, value)| format!("{name} == {value}"));
        for fact in assertions().into_iter().chain(constants) {
            writeln!(c, "_Static_assert({fact}, \"{fact}\");").unwrap();
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
