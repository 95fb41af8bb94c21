//! The GPU backend: it does the operations of the seam by launching `kernels/*.cu` on a [`Device`].
//!
//! | file | what it knows |
//! |---|---|
//! | [`device`] | what a device must be able to do (U) |
//! | [`memory`] | allocations on a device, and memory into which it copies (U) |
//! | [`room`] | the shared memory of a multiprocessor |
//! | [`driver`], [`preflight`] | the driver's functions (U), whether there is a GPU (U) |
//! | [`reason`] | why a GPU cannot be used |
//! | [`cuda`] | a real GPU (U) |
//! | [`kernels`], [`images`] | the list of kernels, and the compiled kernels |
//! | `params` | the kernels' parameters and constants (U) |
//! | `backend` | the seam, and `Steps`: building, loading a step, its answer, pages |
//! | `ops`, `attention` | the operations: which kernels, with which parameters |
//! | `launch`, `geometry` | one function for each kernel (U); grids and shared memory of products |
//! | `graph` | steps that are recorded once and repeated |
//! | `library` | products of prompts that a vendor's library does |
//! | `step`, `mat`, `quantised` | a step and weights on the device |
//! | `rows` | what kernels read besides weights |
//! | `medusa` | what Medusa heads need beside their weights, and their operations |
//! | `adapters` | adapters of requests: their memory, and the rows of a step that have them |
//! | `exchange`, `peers` | what several ranks of a model exchange, or read of each other |
//! | `sample` | the choice of tokens on the device |
//! | `answer` | the answer of a step, while the next step may already run |
//!
//! The rows of a step are split by kind. For decode rows, kernels read the weights once for up to
//! 64 rows. For prefill rows, products and attention go by tiles on tensor cores. Compute
//! capability 9.0 has kernels of its own for the products of prefill rows (with all weights but
//! float32) and for their attention over 16-bit caches. These kernels take a [`device::TensorMap`].
//!
//! `kernels/params.h` is the contract with the kernels. Operations cannot return errors: the first
//! error of the device is kept, and [`super::Steps::answer`] returns it. Then the engine poisons
//! the handle.

pub mod cuda;
pub mod device;
pub mod driver;
pub mod images;
pub mod kernels;
pub mod memory;
pub mod preflight;
pub mod reason;
pub mod room;

mod adapters;
mod answer;
mod attention;
mod backend;
mod exchange;
mod geometry;
mod graph;
mod launch;
mod library;
mod mat;
mod medusa;
mod ops;
mod params;
mod peers;
mod quantised;
mod rows;
mod sample;
mod step;

pub use exchange::{GpuExchange, Group, Slices};
pub use mat::GpuMat;
pub use peers::{Neighbours, Peers};

use super::cpu::HostThreads;
use super::{Limits, RopeTable, Shape};
use crate::log::{Level, Log};
use crate::{Dtype, Error, Result};
use device::{BOX, Device, TensorMap};
use mat::WeightRows;
use memory::Memory;
use std::sync::{Arc, Mutex, OnceLock};

/// Positions of one page of the cache.
const PAGE: usize = params::GPU_PAGE as usize;

/// Keys of one split (chunk) of decode attention.
const CHUNK: usize = params::GPU_CHUNK as usize;

/// The widest head that the kernels take.
const MAX_HEAD_DIM: usize = params::GPU_MAX_HEAD_DIM as usize;

/// The largest number of rows of a step, padded: some kernels have a row of blocks for each, and a
/// grid has 65,535 (CUDA programming guide, "Technical Specifications per Compute Capability").
const MAX_ROWS: usize = 65_504;

/// The largest number of rows in one launch of decode attention, which needs memory for each row.
const ATTEND_ROWS: usize = 32;

fn pad32(n: usize) -> usize {
    n.checked_next_multiple_of(32).unwrap_or(usize::MAX)
}

fn head_stride(shape: &Shape) -> usize {
    shape.head_dim.next_multiple_of(16)
}

/// Bytes of one head of a page, K or V alone. In 8-bit caches, the vectors' scales in float32
/// follow the vectors.
fn head_of_page(shape: &Shape, dtype: Dtype) -> usize {
    let scales = match dtype.has_vector_scales() {
        true => 4 * PAGE,
        false => 0,
    };
    PAGE * head_stride(shape) * dtype.size() + scales
}

/// Number of floats in the buffer for K and V of a step's rows. They wait there until they are
/// quantised for an 8-bit cache, or until the heads of K have got their norms.
fn fresh_len(shape: &Shape, limits: &Limits) -> usize {
    limits.max_rows.saturating_mul(2 * shape.kv_dim())
}

/// The buffer of [`fresh_len`] floats.
fn fresh<D: Device>(device: &Arc<D>, shape: &Shape, limits: &Limits) -> Result<Memory<D>> {
    let bytes = fresh_len(shape, limits).saturating_mul(4);
    Memory::new(device, "scratch buffers", bytes)
}

/// Bytes of [`Still`].
fn still_bytes(shape: &Shape, limits: &Limits) -> usize {
    4 * (shape.head_dim + limits.max_rows)
}

/// What layers read that do not rotate q and k: the cosines and sines of one position, and the
/// positions of a step's rows, which all are that one.
struct Still<D: Device> {
    cos: Memory<D>,
    sin: Memory<D>,
    positions: Memory<D>,
}

impl<D: Device> Still<D> {
    fn new(device: &Arc<D>, shape: &Shape, limits: &Limits) -> Result<Self> {
        let what = "scratch buffers";
        let half = shape.head_dim / 2;
        let cos = Memory::new(device, what, 4 * half)?;
        cos.write_floats(0, &vec![1.0; half])?;
        Ok(Still {
            cos,
            sin: Memory::zeroed(device, what, 4 * half)?,
            positions: Memory::zeroed(device, what, 4 * limits.max_rows)?,
        })
    }
}

/// The largest number of real rows in one launch of decode attention. The padding after them needs
/// no memory.
fn attend_rows(limits: &Limits) -> usize {
    ATTEND_ROWS.min(limits.max_rows)
}

/// Number of counters of decode attention: `[attend_rows]` with one for each KV head and each eight
/// query heads that share it.
fn attend_counters(shape: &Shape, limits: &Limits) -> usize {
    let heads = (shape.n_heads / shape.n_kv_heads).div_ceil(params::GPU_ATTEND_HEADS as usize);
    attend_rows(limits) * shape.n_kv_heads * heads
}

/// The largest number of decode rows of a step. Each of them wants logits, so both limits hold.
fn most_decoded(limits: &Limits) -> usize {
    limits.max_rows.min(limits.max_wanted)
}

/// Number of floats in the buffer for the partial results of decode attention.
fn partial_len(shape: &Shape, limits: &Limits) -> usize {
    [
        shape.n_heads,
        limits.max_positions.div_ceil(CHUNK),
        head_stride(shape) + 4,
    ]
    .iter()
    .fold(attend_rows(limits), |n, &f| n.saturating_mul(f))
}

/// The type of the activations that products with weights of this type take.
fn rounded(weights: Dtype) -> Dtype {
    match weights.is_float() {
        true => weights,
        false => Dtype::F16,
    }
}

/// Activations, `[rows, width]` with `stride` numbers from row to row; or a vector. The buffer is
/// sized for float32. Attention and the first half of the feed-forward write values of 16 bits
/// instead where the next product takes these: from offset 0 on, with zeros from `width` to
/// `stride`. Such rows take half of the buffer, so there is also room for the rows that pad a
/// bucket.
pub struct GpuBuf<D: Device> {
    memory: Memory<D>,
    stride: usize,
    /// The map of rows of 16-bit numbers, if the device has kernels that take a map.
    map: Option<TensorMap>,
    /// Whether the columns of prefill rows are in permuted order (`kernels/params.h`). The
    /// operation that writes the rows sets this, by what the product that reads them takes.
    permuted: bool,
}

impl<D: Device> GpuBuf<D> {
    /// `rows` rows of zeros.
    fn new(device: &Arc<D>, what: &str, rows: usize, width: usize) -> Result<Self> {
        let stride = pad32(width);
        let bytes = rows.saturating_mul(stride).saturating_mul(4);
        let memory = Memory::zeroed(device, what, bytes)?;
        Ok(GpuBuf {
            map: match bytes {
                0 => None,
                _ => memory.tensor_map(2 * stride, rows, BOX[0])?,
            },
            memory,
            stride,
            permuted: false,
        })
    }

    /// Whether a product with `w` can read these rows in permuted order.
    fn takes_permuted(&self, w: &WeightRows<D>) -> bool {
        self.map.is_some() && w.permutes()
    }

    /// The maps of these rows and of `w`, if there is a kernel that reads its operands through
    /// maps. For quantised weights, such a kernel reads only the rows through a map, and they must
    /// be in permuted order: `permuted` says whether they are. The result depends only on the
    /// device and on the model's weights, so a row goes through the same kernels whatever the other
    /// rows are.
    fn maps(&self, w: &WeightRows<D>, permuted: bool) -> Option<(TensorMap, TensorMap)> {
        let map = match w.dtype.is_float() {
            true => w.map?,
            false if permuted => TensorMap::default(),
            false => return None,
        };
        Some((self.map?, map))
    }

    fn at(&self) -> u64 {
        self.memory.at()
    }
}

/// K and V of all layers, each `[layer][page][kv_head][16][head_stride]`. In 8-bit caches, the
/// vectors of a head of a page are followed by their scales.
pub struct GpuKv<D: Device> {
    k: Memory<D>,
    v: Memory<D>,
    dtype: Dtype,
    n_pages: usize,
    /// Bytes of one layer of a page, K or V alone.
    page: usize,
    /// The maps of K and V, if prefill attention reads the cache through maps.
    maps: Option<[TensorMap; 2]>,
}

impl<D: Device> GpuKv<D> {
    /// Bytes from one layer to the next.
    fn layer(&self) -> usize {
        self.n_pages * self.page
    }

    /// The two halves of each page of `pages`, in order: the page's number with K, and the page's
    /// number with V.
    fn halves<'a>(&'a self, pages: &'a [u32]) -> impl Iterator<Item = (usize, &'a Memory<D>)> {
        let halves = |&page| [(page as usize, &self.k), (page as usize, &self.v)];
        pages.iter().flat_map(halves)
    }
}

/// The GPU backend of one model: what it has on a GPU besides weights, activations and cache.
pub struct Gpu<D: Device> {
    device: Arc<D>,
    shape: Shape,
    cos: Memory<D>,
    sin: Memory<D>,
    step: step::Loaded<D>,
    chooser: sample::Chooser<D>,
    /// Normed rows in the form that products read, `[max_rows, pad32(dim)]`.
    prepared: GpuBuf<D>,
    /// Whether prefill attention uses tensor cores.
    tensor_cores: bool,
    /// Whether prefill attention reads the cache through maps. This depends only on the device, the
    /// dtypes and the heads, so a row goes through the same kernel whatever the other rows are.
    maps_cache: bool,
    partial: Memory<D>,
    /// Scratch of split-K products of decode rows: counters, which are zero between launches, and
    /// partial sums.
    split: Memory<D>,
    /// K and V of the step's rows, for an 8-bit cache or before the norms of heads: `[max_rows][k |
    /// v][kv_dim]`.
    fresh: Option<Memory<D>>,
    still: Option<Still<D>>,
    medusa: Option<medusa::Medusa<D>>,
    /// Counters of decode attention ([`attend_counters`]), zero between launches.
    counters: Memory<D>,
    answers: answer::Answers<D>,
    /// Number of rows of a step that may follow the loaded one: as many as the loaded one has, or 0
    /// if none may follow.
    follow: usize,
    /// Whether a step may be launched while the one before it still runs.
    runs_ahead: bool,
    /// How it gets the other ranks' logits, if it is one of several ranks.
    gather: Option<exchange::Gather>,
    /// Made when a checkpoint or an adapter is loaded, and given up with the next step. `None`: the
    /// host refused to start threads.
    loaders: OnceLock<Option<HostThreads>>,
    /// The first error of the device.
    failure: Mutex<Option<Error>>,
    /// Number of chunks of the longest possible sequence.
    most_splits: usize,
    /// The sums that a library computes in products of prompts.
    sums: Option<Memory<D>>,
    graphs: graph::Graphs<D>,
    adapters: adapters::Adapters<D>,
}

impl<D: Device> Gpu<D> {
    /// Allocates memory for steps within `limits`. `weights` are the dtypes of the layers'
    /// matrices: if all of them are float32, attention computes in float32 throughout as well.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for heads, a cache or a number of rows that the kernels do not take,
    /// [`Error::DeviceMemory`].
    pub fn new(
        device: Arc<D>,
        shape: &Shape,
        rope: &RopeTable,
        limits: &Limits,
        weights: &[Dtype],
        kv_dtype: Dtype,
    ) -> Result<Self> {
        if shape.head_dim > MAX_HEAD_DIM || shape.head_dim == 0 || shape.head_dim % 2 == 1 {
            return Err(Error::Unsupported(format!(
                "head_dim is {}, the GPU kernels take even ones up to {MAX_HEAD_DIM}",
                shape.head_dim
            )));
        }
        if limits.max_rows > MAX_ROWS {
            return Err(Error::Unsupported(format!(
                "prefill_chunk and max_batch_size allow steps of {} rows, the GPU kernels take up \
                 to {MAX_ROWS}",
                limits.max_rows
            )));
        }
        if !kv_dtype.is_of_cache() {
            return Err(Error::Unsupported(format!(
                "kv_dtype is {kv_dtype}: the cache is kept as f32, f16, bf16, int8 or fp8 only"
            )));
        }
        // Layers with float32 weights and layers with others use the same buffers. The padding of
        // float32 rows must be zero, but 16-bit rows would have left their numbers there.
        let single = |&dtype: &Dtype| dtype == Dtype::F32;
        let whole = |width: usize| width.is_multiple_of(32);
        if weights.iter().any(single)
            && !weights.iter().all(single)
            && !(whole(shape.q_dim()) && whole(shape.ffn_dim))
        {
            return Err(Error::Unsupported(format!(
                "layers with weights in f32 and in other dtypes: on a GPU, the width of attention \
                 ({}) and ffn_dim ({}) must then be multiples of 32",
                shape.q_dim(),
                shape.ffn_dim
            )));
        }
        let table = |values: &[f32]| -> Result<Memory<D>> {
            let memory = Memory::new(&device, "the RoPE table", size_of_val(values))?;
            memory.write_floats(0, values)?;
            Ok(memory)
        };
        // This is allocated first. If there is no room for the second answer, the first one is then
        // freed while nothing is in flight.
        let answers = answer::Answers::new(&device, limits)?;
        let what = "scratch buffers";
        let prepared = GpuBuf::new(&device, what, limits.max_rows, shape.dim)?;
        let exact = weights.iter().all(single);
        let tensor_cores = !exact && kv_dtype != Dtype::F32 && head_stride(shape) <= 128;
        // Asks for a map of some memory only to find out whether the device makes maps.
        let maps_cache = tensor_cores
            && matches!(kv_dtype, Dtype::F16 | Dtype::Bf16)
            && limits.max_rows > 0
            && prepared.memory.tensor_map(64, 1, BOX[0])?.is_some();
        let tile = match (tensor_cores, maps_cache) {
            (_, true) => step::TILE_HOPPER,
            (true, _) => step::TILE_MMA,
            _ => step::TILE_FMA,
        };
        Ok(Gpu {
            cos: table(&rope.cos)?,
            sin: table(&rope.sin)?,
            step: step::Loaded::new(&device, limits, tile)?,
            chooser: sample::Chooser::new(&device, limits)?,
            prepared,
            tensor_cores,
            maps_cache,
            partial: Memory::new(&device, what, partial_len(shape, limits).saturating_mul(4))?,
            split: {
                let bytes = geometry::scratch_bytes(shape, step::bucket(most_decoded(limits)));
                let split =
                    Memory::new(&device, what, usize::try_from(bytes).unwrap_or(usize::MAX))?;
                split.write_numbers(0, &[0; params::GPU_SPLIT_BELOW as usize])?;
                split
            },
            fresh: match kv_dtype.has_vector_scales() {
                true => Some(fresh(&device, shape, limits)?),
                false => None,
            },
            still: None,
            medusa: None,
            counters: Memory::zeroed(&device, what, 4 * attend_counters(shape, limits))?,
            answers,
            follow: 0,
            runs_ahead: device.runs_ahead(),
            gather: None,
            loaders: OnceLock::new(),
            failure: Mutex::new(None),
            most_splits: limits.max_positions.div_ceil(CHUNK),
            sums: None,
            graphs: graph::Graphs::new(device.records())?,
            adapters: adapters::Adapters::new(weights[0]),
            shape: shape.clone(),
            device,
        })
    }

    /// Takes layers whose heads of q and k have norms.
    ///
    /// # Errors
    /// [`Error::DeviceMemory`].
    pub fn head_norms(mut self, limits: &Limits) -> Result<Self> {
        if self.fresh.is_none() {
            self.fresh = Some(fresh(&self.device, &self.shape, limits)?);
        }
        Ok(self)
    }

    /// Takes layers that do not rotate q and k.
    ///
    /// # Errors
    /// [`Error::DeviceMemory`].
    pub fn unrotated(mut self, limits: &Limits) -> Result<Self> {
        self.still = Some(Still::new(&self.device, &self.shape, limits)?);
        Ok(self)
    }

    /// Becomes one of several ranks. Launches are not recorded, and no step runs ahead of another,
    /// unless the devices turn out to exchange by themselves.
    fn among(&mut self, gather: exchange::Gather) {
        self.graphs.on = false;
        self.runs_ahead = false;
        self.gather = Some(gather);
    }

    /// Sets the log, to which it writes when steps are not recorded.
    pub fn log(mut self, log: Arc<Log>) -> Self {
        if let Some(ways) = self.device.ways() {
            log.write(Level::Info, || format!("GPU: {ways}"));
        }
        self.graphs.log = log;
        self
    }

    /// Runs `work` unless an earlier call has failed, and keeps its error.
    fn run(&self, work: impl FnOnce(&Self) -> Result<()>) {
        let mut failure = self.failure.lock().unwrap_or_else(|e| e.into_inner());
        if failure.is_none() {
            *failure = work(self).err();
        }
    }

    fn check(&self) -> Result<()> {
        let failure = self.failure.lock().unwrap_or_else(|e| e.into_inner());
        failure.clone().map_or(Ok(()), Err)
    }
}
