//! The kernels against their scalar twins, with the same suite on every tier; and against
//! themselves: whatever must not change a result is compared with `==`.

use super::element::with_element;
use super::results::Finish;
use super::rows::Norm;
use super::simd::{Kernel, LANES, Simd};
use super::*;
use crate::backend::{
    Backend, Block, Layer, MatSpec, MatUse, PartSpec, QuantBlock, Rotation, RowKind, RowOrder,
    Scratch, Span, Step, Weights, forward,
};
use crate::{Dtype, Token};
use machine::*;
use scalar::{Dense, rounded};

const DTYPES: [Dtype; 3] = [Dtype::F32, Dtype::F16, Dtype::Bf16];

/// xorshift64*: numbers for tests.
#[derive(Clone)]
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
    fn below(&mut self, n: usize) -> usize {
        (self.next() >> 33) as usize % n
    }
    /// Uniform in (-1, 1).
    fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
    fn vector(&mut self, n: usize, scale: f32) -> Vec<f32> {
        (0..n).map(|_| self.unit() * scale).collect()
    }
}

fn encode(dtype: Dtype, values: &[f32]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for &x in values {
        match dtype {
            Dtype::F32 => bytes.extend(x.to_le_bytes()),
            Dtype::F16 => bytes.extend(half::f16::from_f32(x).to_le_bytes()),
            Dtype::Bf16 => bytes.extend(half::bf16::from_f32(x).to_le_bytes()),
            _ => unreachable!("{dtype} is no float"),
        }
    }
    bytes
}

/// Every number of a packed matrix, `[rows of all parts, cols]`, read back one by one.
fn unpack(mat: &CpuMat) -> Vec<f32> {
    let mut out = Vec::new();
    let [mat] = &mat.runs[..] else {
        panic!("several runs")
    };
    for part in &mat.parts {
        for row in 0..part.rows {
            for k in 0..mat.cols {
                let at = match mat.usage {
                    MatUse::Lookup => (part.first + row) * mat.cols + k,
                    MatUse::Product => {
                        let strip = (part.first + row / LANES) * mat.strip_len();
                        strip
                            + with_element!(mat.dtype, E => <E as element::Element>::index(k, row % LANES))
                    }
                };
                out.push(with_element!(mat.dtype, E => {
                    <E as element::Element>::to_f32(<E as element::Element>::bits(&mat.data)[at])
                }));
            }
        }
    }
    out
}

/// Whether this tier multiplies such rows as bfloat16.
fn rounds(tier: Tier, kind: RowKind, dtype: Dtype) -> bool {
    let tiles = tier.has_tiles() && dtype != Dtype::F32;
    kind == RowKind::Prefill && (tiles || tier.has_bf16() && dtype == Dtype::Bf16)
}

/// Rows of a kind, and the backend's precision.
const KINDS: [(RowKind, Precision); 6] = [
    (RowKind::Decode, Precision::Full),
    (RowKind::Prefill, Precision::Full),
    (RowKind::Decode, Precision::AsPrompts),
    (RowKind::Decode, Precision::Fast(16)),
    (RowKind::Decode, Precision::Fast(17)),
    (RowKind::Prefill, Precision::Fast(1)),
];

/// Whose arithmetic rows of a kind have.
fn arithmetic(kind: RowKind, precision: Precision) -> RowKind {
    match precision {
        Precision::Full => kind,
        Precision::AsPrompts | Precision::Fast(_) => RowKind::Prefill,
        Precision::Auto(_) => unreachable!("one of the others"),
    }
}

/// Loads a step of `rows` rows of no particular sequence, for products only.
fn load_rows(cpu: &mut Cpu, rows: usize, kind: RowKind) {
    let spans = vec![Span {
        rows: 0..rows,
        kind,
        position: 0,
        pages: 0..0,
    }];
    cpu.step.load(&Step {
        tokens: vec![0; rows],
        spans,
        ..Step::default()
    });
}

fn shape(dim: usize, heads: [usize; 2], head_dim: usize, ffn_dim: usize, vocab: usize) -> Shape {
    Shape {
        dim,
        n_layers: 2,
        n_heads: heads[0],
        n_kv_heads: heads[1],
        head_dim,
        ffn_dim,
        vocab_size: vocab,
        norm_eps: 1e-5,
    }
}

fn rope(head_dim: usize, positions: usize) -> RopeTable {
    let half = head_dim / 2;
    let angle = |i: usize| {
        let frequency = 10000f64.powf(-((i % half) as f64) / half as f64);
        (i / half) as f64 * frequency
    };
    RopeTable {
        cos: (0..positions * half)
            .map(|i| angle(i).cos() as f32)
            .collect(),
        sin: (0..positions * half)
            .map(|i| angle(i).sin() as f32)
            .collect(),
        q_scale: Vec::new(),
    }
}

mod adapters;
mod attention;
mod checks;
mod encoded;
mod machine;
mod medusa;
mod numbers;
mod parts;
mod products;
mod quantised;
mod quantised_products;
mod scalar;
mod sizes;
mod steps;
mod unusual_scores;

pub use quantised_products::some_quantised_products_match;

/// Calls a macro with what follows its name, a colon, and the names of all checks.
#[macro_export]
macro_rules! for_each_check {
    ($macro:ident $($first:tt)*) => {
        $macro! {
            $($first)*:
            exp_is_within_two_ulp
            silu_is_right_at_both_ends
            weights_of_a_softmax_are_right
            weights_in_bfloat16_are_right
            every_half_number_survives
            narrowing_rounds_to_nearest_even
            weights_are_decoded_as_they_are
            transposing_moves_every_lane
            packing_places_every_number
            products_match
            products_of_bad_numbers
            adapters_match
            parts_keep_their_own_formats
            gate_and_up_of_two_formats
            norms_match
            residual_blocks_match
            hidden_rows_match
            guesses_of_long_texts_are_loaded
            forward_matches
            long_sequences_match
            company_threads_and_chunks_change_nothing
            wide_prompts_do_not_depend_on_their_chunks
            rows_without_slot_and_copied_pages
            wanted_rows_only
            quantised_strips_hold_what_the_format_says
            quantised_products_match
            quantised_products_of_bad_numbers
            quantised_forward_matches
            quantised_company_changes_nothing
            int8_cache_matches
            generated_rows_attend
            prompt_rows_attend
            prompt_rows_of_bad_numbers
            prompt_rows_of_unusual_scores
            generated_rows_of_bad_numbers
            shared_pages_change_nothing
            avx2_and_avx512_agree_in_every_bit
            a_cpu_says_what_it_is
            sizes_that_no_machine_has_are_errors
            bytes_said_are_bytes_taken
        }
    };
}

/// What one tier must do. It panics, and says what, if the tier does not.
pub type Check = fn(Tier);

macro_rules! table {
    (: $($check:ident)*) => {
        /// All checks by name.
        pub const CHECKS: &[(&str, Check)] = &[$((stringify!($check), checks::$check)),*];
    };
}

for_each_check!(table);

/// Runs checks on one tier. `told` hears the name of each and, where it failed, why.
pub fn run(checks: &[(&str, Check)], tier: Tier, told: &mut dyn FnMut(&str, Option<&str>)) {
    for (name, check) in checks {
        let failed = std::panic::catch_unwind(|| check(tier)).err();
        let why = failed
            .as_ref()
            .map(|payload| crate::error::panic_text(&**payload));
        told(name, why);
    }
}
