//! **The seam** between the transformer and the machine it runs on.
//!
//! [`Backend`] is what a device must do for [`forward()`]. Everything that the model needs of a
//! step is passed in one [`Step`]. How tokens are chosen from its logits is not known here: that
//! changes with every option of a decoder, and these kernels take minutes to compile.

pub mod adapter;
pub mod cpu;
pub mod exchange;
pub mod forward;
pub mod matrix;

pub use adapter::{Adapter, Carrier};
pub use exchange::{Exchange, LONGEST_LOOK, Waited, Watch, Wire};
pub use forward::{Scratch, forward};
pub use matrix::{Block, MatSpec, MatUse, PartSpec, QuantBlock, QuantData, RowOrder};

use crate::quant::Quant;
use crate::{Dtype, Result};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// The sizes of a model that every operation needs.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// Width of the residual stream.
    pub dim: usize,
    /// Layers.
    pub n_layers: usize,
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads; divides `n_heads`.
    pub n_kv_heads: usize,
    /// Width of one head; even.
    pub head_dim: usize,
    /// Width of the feed-forward layer.
    pub ffn_dim: usize,
    /// Rows of the embedding and of the head.
    pub vocab_size: usize,
    /// Added to the mean square before the root in RMSNorm.
    pub norm_eps: f32,
}

impl Shape {
    /// `n_heads * head_dim`: columns of the output projection. Not always `dim`.
    pub fn q_dim(&self) -> usize {
        self.n_heads * self.head_dim
    }

    /// `n_kv_heads * head_dim`.
    pub fn kv_dim(&self) -> usize {
        self.n_kv_heads * self.head_dim
    }
}

/// Cosines and sines of every position: `[max_seq_len, head_dim / 2]`, row-major, float32. Rotates
/// neighbouring pairs (2i, 2i+1), as Meta's code does.
#[derive(Clone, Debug)]
pub struct RopeTable {
    /// `cos(position * frequency)`.
    pub cos: Vec<f32>,
    /// `sin(position * frequency)`.
    pub sin: Vec<f32>,
    /// What the rotated q is multiplied with at each position, `[max_seq_len]`; empty: nothing.
    pub q_scale: Vec<f32>,
}

/// When a layer rotates the heads of q and k.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rotation {
    /// After [`Layer::head_norms`], if there are any.
    #[default]
    AfterNorms,
    /// Before them.
    BeforeNorms,
    /// Never: the layer does not know positions.
    Never,
}

/// Which arithmetic a row gets (law four: chosen by kind, never by how many rows there are).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowKind {
    /// A token of a prompt.
    Prefill,
    /// A generated (or, when speculating, a verified) token.
    Decode,
}

/// Consecutive positions of one sequence among the rows of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// Which rows of the step.
    pub rows: Range<usize>,
    /// Prompt rows or generated rows; never mixed in one span.
    pub kind: RowKind,
    /// Position of the first row in its sequence.
    pub position: usize,
    /// The sequence's page table, as a range of [`Step::pages`]: entry `i` holds positions
    /// `i * page_size ..`. Covers at least every position up to the span's last.
    pub pages: Range<usize>,
}

/// One pass through the model: what the scheduler decided, in flat arrays.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// Token of each row.
    pub tokens: Vec<crate::Token>,
    /// Whether the tokens are not known yet, because this step is submitted before the answer of
    /// the previous one has been read. Row `i` then takes the token that the previous step picks
    /// for its wanted row `i`, and [`Step::tokens`] is ignored. Both steps have one decode row for
    /// each of the same sequences, in the same order, and every row is wanted. If no token is
    /// possible, or the sequence has ended since, the row's results and what it writes into its
    /// slot are discarded. Only a backend that chooses tokens itself gets such a step; the CPU does
    /// not.
    pub follows: bool,
    /// The slot for K and V of each row: `page * page_size + offset`, or [`Step::NO_SLOT`] for a
    /// row whose K and V are already in the cache (the last token of a fully cached prompt).
    pub slots: Vec<u32>,
    /// The sequences. Their `rows` partition `0..tokens.len()` in order; decode rows come first.
    pub spans: Vec<Span>,
    /// The adapter of each span. Spans beyond the end of this list have none.
    pub adapters: Vec<Option<Arc<Adapter>>>,
    /// The page tables of all sequences, end to end.
    pub pages: Vec<u32>,
    /// Rows whose logits are wanted, ascending.
    pub wanted: Vec<u32>,
}

impl Step {
    /// A row that must not write to the cache.
    pub const NO_SLOT: u32 = u32::MAX;

    /// Forgets the previous step but keeps the memory.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.follows = false;
        self.slots.clear();
        self.spans.clear();
        self.adapters.clear();
        self.pages.clear();
        self.wanted.clear();
    }
}

/// The largest step and the largest pool that a runner can take.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Positions in one KV page; divides 256.
    pub page_size: usize,
    /// Pages of the pool.
    pub n_pages: usize,
    /// Positions of the longest sequence.
    pub max_positions: usize,
    /// The largest number of rows of a step.
    pub max_rows: usize,
    /// The largest number of wanted rows of a step.
    pub max_wanted: usize,
    /// Logits per wanted row.
    pub vocab_size: usize,
}

/// One transformer layer's weights, in a backend's own form. Differences within the family (bias,
/// head width, grouping) are data in here, never a branch on an architecture.
pub struct Layer<B: Backend> {
    /// The number of the layer, which selects its part of the KV cache.
    pub index: usize,
    /// RMSNorm before attention, `[dim]`.
    pub attention_norm: B::Buf,
    /// q | k | v, `[q_dim + 2 * kv_dim, dim]`, perhaps with bias.
    pub wqkv: B::Mat,
    /// RMSNorm of each head of q and of k, `[head_dim]` each; in some families.
    pub head_norms: Option<[B::Buf; 2]>,
    /// When RoPE rotates q and k.
    pub rotation: Rotation,
    /// How many keys a row sees: its own position and those before it. `None`: all.
    pub window: Option<usize>,
    /// Output projection, `[dim, q_dim]`, perhaps with bias.
    pub wo: B::Mat,
    /// RMSNorm before the feed-forward, `[dim]`.
    pub ffn_norm: B::Buf,
    /// gate | up (Meta's w1 | w3), `[2 * ffn_dim, dim]`, perhaps with bias.
    pub w13: B::Mat,
    /// Down (Meta's w2), `[dim, ffn_dim]`, perhaps with bias.
    pub w2: B::Mat,
}

/// Features that the layers of some families need of a backend, beyond what Llama's layers need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// [`Layer::head_norms`].
    pub head_norms: bool,
    /// A [`Layer::window`] that is shorter than the longest sequence.
    pub window: bool,
    /// A bias of [`Layer::w13`].
    pub ffn_bias: bool,
    /// A [`MatSpec::scale`] that is not 1.
    pub scale: bool,
    /// [`RopeTable::q_scale`].
    pub q_scale: bool,
}

/// All weights of a model, in a backend's own form.
pub struct Weights<B: Backend> {
    /// `[vocab_size, dim]`.
    pub embedding: B::Mat,
    /// The layers, in order.
    pub layers: Vec<Layer<B>>,
    /// RMSNorm before the head, `[dim]`.
    pub norm: B::Buf,
    /// `[vocab_size, dim]`; `None` where the embedding serves as the head (tied).
    pub head: Option<B::Mat>,
}

/// Threads of the host that a backend computes with, between its steps.
pub trait Threads {
    /// How many there are.
    fn count(&self) -> usize;
    /// Runs tasks `0..tasks` on them.
    fn each(&self, tasks: usize, task: &(dyn Fn(usize) + Sync));
}

impl fmt::Debug for dyn Threads + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} threads", self.count())
    }
}

/// A device that can run the transformer.
///
/// Each operation is a stage between two barriers of a fused decode kernel, so a device would not
/// want to fuse more than one operation.
///
/// A step is loaded before its operations and its answer is read after them; how, depends on what
/// chooses tokens, which is above this crate.
///
/// The laws for the operations of a step: they write into buffers that their caller owns, never
/// allocate, and never wait. A backend that executes them later keeps their order. And batch
/// invariance: the result of a row depends on that row, its kind and its sequence alone. Reductions
/// run in an order that is fixed by the size of the matrix and, in attention, by chunks of 256 keys
/// at absolute positions.
pub trait Backend: Sized + Send {
    /// Activations, `[rows, width]` of float32, or a vector.
    type Buf: Send;
    /// A weight matrix in the layout this backend likes, dense or quantised, perhaps with bias.
    type Mat: Send;
    /// The paged KV cache of all layers; its layout is private.
    type Kv: Send;

    /// Positions in one KV page; divides 256.
    const PAGE_SIZE: usize;
    /// The largest number of prompt rows of a step, if the options do not set it. It is so large
    /// that a step does not wait for reading the weights, and so small that a caller who cancels is
    /// heard soon.
    const PREFILL_CHUNK: usize;

    // ---- when a model is built ----

    /// Checks that there are kernels for a model with these needs.
    ///
    /// # Errors
    /// [`crate::Error::Unsupported`] naming the missing feature.
    fn takes(_needs: &Needs) -> Result<()> {
        Ok(())
    }
    /// Whether weights can be kept in a format.
    fn keeps(quant: Quant) -> bool;
    /// Changes the formats in which the parts of a matrix are to be kept, if there are no kernels
    /// for these formats: to int8, or to float32 beside floats.
    fn settle(_parts: &mut [PartSpec]) {}
    /// Bytes that [`Backend::new_mat`] would take.
    fn mat_bytes(spec: &MatSpec) -> u64;
    /// Bytes that one page takes on all layers together.
    fn page_bytes(shape: &Shape, dtype: Dtype) -> u64;
    /// Bytes that the backend allocates besides the buffers that it is asked for, with a cache of
    /// `kv_dtype` and `n_threads` threads of the host (0: as many as this process may use).
    fn scratch_bytes(shape: &Shape, limits: &Limits, kv_dtype: Dtype, n_threads: usize) -> u64;
    /// A matrix of zeros.
    fn new_mat(&self, spec: &MatSpec) -> Result<Self::Mat>;
    /// Converts a rectangle of a stored tensor and places it into a matrix of floats. The caller
    /// has checked that it fits.
    fn pack(&self, mat: &mut Self::Mat, block: &Block<'_>);
    /// Runs tasks `0..tasks` on all host threads of this backend.
    fn each(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        (0..tasks).for_each(task);
    }
    /// Quantises rows of `cols` weights on the host, on all threads: [`Quant::encode`].
    fn quantise(
        &self,
        quant: Quant,
        cols: usize,
        values: &[f32],
        codes: &mut [u8],
        scales: &mut [f32],
    ) {
        quant.encode(cols, values, codes, scales);
    }
    /// Places rows of a quantised tensor. The caller has checked that they fit.
    fn pack_quantised(&self, mat: &mut Self::Mat, block: &QuantBlock<'_>);
    /// Sets the bias of a part; `values` is in the order of the part's rows.
    fn set_bias(&self, mat: &mut Self::Mat, part: usize, values: &[f32]);
    /// A vector with these values.
    fn new_vector(&self, values: &[f32]) -> Result<Self::Buf>;
    /// An activation buffer, `[rows, width]`.
    fn new_buf(&self, rows: usize, width: usize) -> Result<Self::Buf>;
    /// What brings adapters of requests to the device; `None` if steps read them where they are
    /// loaded.
    fn carrier(&self) -> Option<Box<dyn Carrier>> {
        None
    }
    /// A pool of `n_pages` pages for all layers.
    fn new_kv(&self, n_pages: usize, dtype: Dtype) -> Result<Self::Kv>;

    // ---- in every step ----

    /// Runs the operations of the loaded step; `forward` calls all of them. A backend may record
    /// them and repeat the record for later steps of the same form instead of calling `forward`
    /// again, or it may call `forward` twice. So `forward` must call the same operations each time,
    /// on the same weights, cache and buffers, which must live until the last step.
    fn record(&mut self, forward: &mut dyn FnMut(&mut Self)) {
        forward(self);
    }
    /// `x[row] = table[token[row]]`; `x: [rows, dim]`.
    fn embed(&mut self, x: &mut Self::Buf, table: &Self::Mat);
    /// RMSNorm, `wqkv`, bias, norms of heads and RoPE in the layer's order, q's scale; q to `q:
    /// [rows, q_dim]`, k and v to the rows' slots.
    fn qkv(&mut self, q: &mut Self::Buf, kv: &mut Self::Kv, x: &Self::Buf, layer: &Layer<Self>);
    /// Causal attention of every row over its sequence's pages, as far as the layer's window
    /// reaches; `y, q: [rows, q_dim]`.
    fn attend(&mut self, y: &mut Self::Buf, q: &Self::Buf, kv: &Self::Kv, layer: &Layer<Self>);
    /// `x += scale * (w y (+ bias))`; used twice per layer.
    fn matmul_add(&mut self, x: &mut Self::Buf, w: &Self::Mat, y: &Self::Buf);
    /// RMSNorm, gate and up (+ bias), `h = silu(gate) * up`; `h: [rows, ffn_dim]`.
    fn ffn_up(&mut self, h: &mut Self::Buf, x: &Self::Buf, layer: &Layer<Self>);
    /// RMSNorm (if there is one) and head for the wanted rows only; `out: [wanted, vocab_size]`.
    fn logits(
        &mut self,
        out: &mut Self::Buf,
        x: &Self::Buf,
        norm: Option<&Self::Buf>,
        head: &Self::Mat,
    );
    /// Runs operations of the loaded step that are never recorded: the operations of Medusa heads.
    fn unrecorded(&mut self, work: &mut dyn FnMut(&mut Self)) {
        work(self);
    }
    /// RMSNorm of rows of an earlier step, whose numbers are the tokens of the loaded one:
    /// `out[row] = norm(x[token[row]])`; `out, x: [rows, dim]`.
    fn hidden(&mut self, out: &mut Self::Buf, x: &Self::Buf, norm: &Self::Buf);
    /// `out = h + silu(w h (+ bias))`, for rows of decode; `out, h: [rows, dim]`. The block of a
    /// Medusa head (`ResBlock` in FasterDecoding/Medusa's medusa_model.py).
    fn residual_block(&mut self, out: &mut Self::Buf, w: &Self::Mat, h: &Self::Buf);
    /// Copies whole pages, `(from, to)`, on every layer.
    fn copy_pages(&mut self, kv: &mut Self::Kv, pairs: &[(u32, u32)]) -> Result<()>;
    /// Copies whole pages to the host, as the steps so far leave them: [`Backend::page_bytes`]
    /// each, end to end.
    fn save_pages(&mut self, kv: &Self::Kv, pages: &[u32], to: &mut [u8]) -> Result<()>;
    /// Copies the bytes that [`Backend::save_pages`] gave into pages, for the steps that are loaded
    /// from now on.
    fn load_pages(&mut self, kv: &mut Self::Kv, pages: &[u32], from: &[u8]) -> Result<()>;
}
