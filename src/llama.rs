//! The handle: a checkpoint, its tokenizer and its engine, put together.

use crate::backend::cpu::{self, Cpu};
use crate::backend::gpu::{self, Gpu, cuda::Cuda};
use crate::backend::{Backend, Limits, RopeTable, Run};
use crate::chat::{self, Encoding, Message};
use crate::engine::request::RequestLimits;
use crate::engine::{
    Alternative, Engine, EngineOptions, Event, FinishReason, GenerateOptions, Next, Prompt,
    Request, RequestStats, Stream, Timings,
};
use crate::format::Checkpoint;
use crate::log::{Level, Log};
use crate::model::config::Form;
use crate::model::names::Dtypes;
use crate::model::weights::{self, LoadControl};
use crate::model::{Config, Runner, rope};
use crate::tokenizer::{self, Bound, Encoded, Tokenizer};
use crate::{Cancel, Dtype, Error, Result, Token};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Where the model runs. Numbered as `LLAMA_DEVICE_*`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(i32)]
pub enum Device {
    /// The best that is usable.
    #[default]
    Auto = 0,
    /// The CPU; never looks for anything else.
    Cpu = 1,
    /// An NVIDIA GPU.
    Cuda = 2,
}

/// Options of [`Llama::build`].
#[derive(Clone, Debug)]
pub struct BuildOptions {
    /// Most tokens of a sequence, prompt included.
    pub max_seq_len: usize,
    /// Most sequences that run at the same time.
    pub max_batch_size: usize,
    /// Shards the checkpoint must have; 0: as many as it has. All are merged onto one device.
    pub model_parallel_size: usize,
    /// Where to run.
    pub device: Device,
    /// Which one of several; the CPU is 0.
    pub device_index: usize,
    /// Most bytes of GPU memory to allocate; 0: as much as is free.
    pub gpu_memory_bytes: u64,
    /// 0: as many as affinity and cgroup allow.
    pub n_threads: usize,
    /// `None`: as stored.
    pub weights_dtype: Option<Dtype>,
    /// `None`: f32 for f32 weights, f16 for f16, else bf16. [`Dtype::Int8`] has a scale per vector.
    pub kv_dtype: Option<Dtype>,
    /// Seed of the handle's generator.
    pub seed: u64,
    /// Most prompt rows of a step; `None`: chosen while running. Results do not depend on it.
    pub prefill_chunk: Option<usize>,
    /// Stops the loading.
    pub cancel: Option<Cancel>,
    /// Where log lines go, from the first one of the build on, to be taken out with
    /// [`Log::drain`]; the default is silent.
    pub log: Arc<Log>,
}

impl Default for BuildOptions {
    fn default() -> Self {
        Self {
            max_seq_len: 512,
            max_batch_size: 8,
            model_parallel_size: 0,
            device: Device::Auto,
            device_index: 0,
            gpu_memory_bytes: 0,
            n_threads: 0,
            weights_dtype: None,
            kv_dtype: None,
            seed: 1,
            prefill_chunk: None,
            cancel: None,
            log: Arc::default(),
        }
    }
}

/// What was loaded.
#[derive(Clone, Debug)]
pub struct Info {
    /// The model.
    pub config: Config,
    /// As built.
    pub max_seq_len: usize,
    /// As built.
    pub max_batch_size: usize,
    /// As chosen; never [`Device::Auto`].
    pub device: Device,
    /// As chosen.
    pub weights_dtype: Dtype,
    /// As chosen.
    pub kv_dtype: Dtype,
    /// Bytes of the weights in memory.
    pub weight_bytes: u64,
    /// Bytes of the KV pool.
    pub kv_bytes: u64,
    /// The device in words.
    pub device_name: String,
    /// Time [`Llama::build`] took.
    pub load_ms: f64,
}

/// The outcome of one sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct Sequence {
    /// Generated tokens, after the prompt's if echoed; without the EOS.
    pub tokens: Vec<Token>,
    /// One per token if asked for, else empty.
    pub logprobs: Vec<f32>,
    /// The tokens' text, cut before a stop string.
    pub text: String,
    /// Alternatives per token if asked for, else empty.
    pub top: Vec<Vec<Alternative>>,
    /// Why it ended.
    pub finish: FinishReason,
    /// Its figures.
    pub stats: RequestStats,
}

/// The outcome of one call.
#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    /// In the order of the prompts.
    pub sequences: Vec<Sequence>,
    /// Whether the call was cancelled; the sequences hold what there was by then.
    pub cancelled: bool,
}

impl Completion {
    /// That of a call of `n` prompts which was cancelled before it began.
    pub fn cancelled(n: usize) -> Completion {
        let sequence = Sequence {
            tokens: Vec::new(),
            logprobs: Vec::new(),
            text: String::new(),
            top: Vec::new(),
            finish: FinishReason::Cancelled,
            stats: RequestStats::default(),
        };
        Completion {
            sequences: vec![sequence; n],
            cancelled: true,
        }
    }
}

/// A loaded model. Every method may be called from any thread; concurrent calls share batches.
/// Dropping it cancels what runs.
pub struct Llama {
    engine: Engine,
    tokenizer: Arc<dyn Tokenizer>,
    info: Info,
}

impl Llama {
    /// Load `ckpt_dir` (Meta's or Hugging Face's form) with the tokenizer at `tokenizer_path`
    /// (`None`: `ckpt_dir/tokenizer.model`).
    ///
    /// `progress` gets the share of bytes read and stops the loading by returning `false`. Fails
    /// with [`Error::Cancelled`] where it or `options.cancel` did that; otherwise every error names
    /// the file, tensor or option. Nothing is left behind by a failed build.
    pub fn build(
        ckpt_dir: &Path,
        tokenizer_path: Option<&Path>,
        options: &BuildOptions,
        progress: &mut dyn FnMut(f32) -> bool,
    ) -> Result<Llama> {
        check(options)?;
        if let Some(cuda) = cuda(options)? {
            let cuda = Arc::new(cuda);
            match Self::build_on(cuda, ckpt_dir, tokenizer_path, options, progress) {
                // A model in a format that the GPU's kernels do not read.
                Err(error @ Error::Unsupported(_)) if options.device == Device::Auto => {
                    fall_back(options, &error);
                }
                result => return result,
            }
        }
        if options.device_index != 0 {
            return Err(Error::invalid(
                "device_index",
                "0 on the CPU",
                options.device_index,
            ));
        }
        let log = &options.log;
        let usable = std::thread::available_parallelism().map_or(1, usize::from);
        if options.n_threads > usable {
            log.write(Level::Warn, || {
                let n = options.n_threads;
                format!("n_threads is {n}, this process may use {usable} processors at a time")
            });
        }
        let place = Place {
            device: Device::Cpu,
            available: cpu::available_bytes(),
            no_memory: |what, needed, available| Error::NoMemory {
                what,
                needed,
                available,
            },
        };
        let open = |rope: RopeTable, setting: &Setting| {
            let cpu = Cpu::new(
                setting.shape(),
                rope,
                options.n_threads,
                setting.limits.max_rows,
            )?;
            let name = cpu.description();
            Ok((cpu, name))
        };
        Self::load(place, open, ckpt_dir, tokenizer_path, options, progress)
    }

    /// As [`Llama::build`], on this device whatever the options say.
    ///
    /// Fails also with [`Error::DeviceMemory`], which has all that was planned in its message.
    pub fn build_on<D: gpu::device::Device>(
        device: Arc<D>,
        ckpt_dir: &Path,
        tokenizer_path: Option<&Path>,
        options: &BuildOptions,
        progress: &mut dyn FnMut(f32) -> bool,
    ) -> Result<Llama> {
        check(options)?;
        let available = match options.gpu_memory_bytes {
            0 => device.available()?,
            limit => device.available()?.min(limit),
        };
        let place = Place {
            device: Device::Cuda,
            available,
            no_memory: |what, needed, available| Error::DeviceMemory {
                what,
                needed,
                available,
            },
        };
        let open = |rope: RopeTable, setting: &Setting| {
            let name = device.name();
            let gpu = Gpu::new(
                device,
                setting.shape(),
                &rope,
                &setting.limits,
                setting.weights_dtype,
                setting.kv_dtype,
            )?;
            Ok((gpu, name))
        };
        Self::load(place, open, ckpt_dir, tokenizer_path, options, progress)
    }

    /// Read a checkpoint onto the backend that `open` makes.
    fn load<B: Backend + 'static>(
        place: Place,
        open: impl FnOnce(RopeTable, &Setting) -> Result<(B, String)>,
        ckpt_dir: &Path,
        tokenizer_path: Option<&Path>,
        options: &BuildOptions,
        progress: &mut dyn FnMut(f32) -> bool,
    ) -> Result<Llama> {
        let start = Instant::now();
        let log = &options.log;
        if !ckpt_dir.is_dir() {
            // Distinguish "not there" and "not a directory" in the system's own words.
            let error = match std::fs::read_dir(ckpt_dir) {
                Err(e) => e,
                Ok(_) => std::io::ErrorKind::NotADirectory.into(),
            };
            return Err(Error::io(ckpt_dir, &error));
        }
        // Before the tokenizer, so that a directory of something else is called that.
        Form::of(ckpt_dir)?;
        let default_tokenizer = ckpt_dir.join("tokenizer.model");
        let tokenizer_path = tokenizer_path.unwrap_or(&default_tokenizer);
        let tokenizer = tokenizer::open(tokenizer_path)?;
        let config = Config::read(ckpt_dir, tokenizer.vocab_size())?;
        if tokenizer.vocab_size() > config.shape.vocab_size {
            return Err(Error::format(
                tokenizer_path,
                format!(
                    "the tokenizer has {} pieces, the model's vocabulary only {}",
                    tokenizer.vocab_size(),
                    config.shape.vocab_size
                ),
            ));
        }
        let checkpoint = config.open(ckpt_dir)?;
        check_shards(options, &config, &checkpoint)?;

        let dtypes = Dtypes::choose(options.weights_dtype, &checkpoint, &config);
        let weights_dtype = dtypes.layers;
        check_quantised(&config, weights_dtype)?;
        let kv_dtype = options.kv_dtype.unwrap_or(match weights_dtype.is_float() {
            true => weights_dtype,
            false => Dtype::Bf16,
        });
        let setting = Setting {
            limits: limits::<B>(options, config.shape.vocab_size),
            config,
            weights_dtype,
            kv_dtype,
        };
        let (limits, config) = (&setting.limits, &setting.config);
        let weight_bytes = weights::weight_bytes::<B>(config, dtypes);
        let kv_bytes =
            (limits.n_pages as u64).saturating_mul(B::page_bytes(&config.shape, kv_dtype));
        let plan = MemoryPlan {
            items: [
                ("the weights", weight_bytes),
                ("the KV pool (max_batch_size x max_seq_len)", kv_bytes),
                (
                    "the RoPE table (max_seq_len)",
                    rope::table_bytes(config, options.max_seq_len),
                ),
                (
                    "scratch buffers",
                    Runner::<B>::scratch_bytes(&config.shape, limits),
                ),
            ],
            place,
        };
        plan.check()?;
        let rope = rope::table(config, options.max_seq_len)?;
        let (backend, device_name) = open(rope, &setting).map_err(|e| plan.explain(e))?;
        log.write(Level::Info, || {
            format!(
                "{}: {:?} form, {} layers, {weights_dtype} weights {weight_bytes} bytes, \
                 {kv_dtype} KV pool {kv_bytes} bytes, {device_name}",
                ckpt_dir.display(),
                config.form,
                config.shape.n_layers
            )
        });
        let mut control = LoadControl {
            cancel: options.cancel.as_ref(),
            progress,
        };
        let weights = weights::load(&backend, &checkpoint, config, dtypes, &mut control)
            .map_err(|e| plan.explain(e))?;
        drop(checkpoint);
        let runner = Runner::new(backend, weights, &config.shape, kv_dtype, limits.clone())
            .map_err(|e| plan.explain(e))?;
        let runner: Box<dyn Run> = Box::new(runner);
        let device = plan.place.device;
        let config = setting.config;

        let mut eos_ids = config.eos_ids.clone();
        if !eos_ids.contains(&tokenizer.eos_id()) {
            eos_ids.push(tokenizer.eos_id());
        }
        let engine = Engine::new(
            runner,
            tokenizer.clone(),
            EngineOptions {
                max_seq_len: options.max_seq_len,
                max_batch_size: options.max_batch_size,
                seed: options.seed,
                prefill_chunk: options.prefill_chunk,
                eos_ids,
            },
            log.clone(),
        )?;
        let info = Info {
            config,
            max_seq_len: options.max_seq_len,
            max_batch_size: options.max_batch_size,
            device,
            weights_dtype,
            kv_dtype,
            weight_bytes,
            kv_bytes,
            device_name,
            load_ms: start.elapsed().as_secs_f64() * 1e3,
        };
        Ok(Llama {
            engine,
            tokenizer,
            info,
        })
    }

    /// What was loaded.
    pub fn info(&self) -> &Info {
        &self.info
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &dyn Tokenizer {
        &*self.tokenizer
    }

    /// Totals of the handle.
    pub fn timings(&self) -> Timings {
        self.engine.timings()
    }

    /// What requests are checked against.
    pub fn request_limits(&self) -> RequestLimits {
        RequestLimits {
            max_seq_len: self.info.max_seq_len,
            max_batch_size: self.info.max_batch_size,
            vocab_size: self.info.config.shape.vocab_size,
        }
    }

    /// Start a call and pull its events.
    pub fn stream(&self, prompts: Vec<Prompt>, options: GenerateOptions) -> Result<Stream> {
        self.engine
            .submit(Request::new(prompts, options, &self.request_limits())?)
    }

    /// Run a call to its end on the calling thread. `on_event` sees every event as it comes and
    /// stops the whole call by returning `false`.
    pub fn generate(
        &self,
        prompts: Vec<Prompt>,
        options: GenerateOptions,
        on_event: &mut dyn FnMut(&Event) -> bool,
    ) -> Result<Completion> {
        let (logprobs, top) = (options.logprobs, options.top_logprobs > 0);
        let n = prompts.len();
        let stream = self.stream(prompts, options)?;
        collect(&stream, n, logprobs, top, on_event)
    }

    /// Prompts for [`Llama::generate`] from texts: BOS and the text's tokens.
    ///
    /// [`Error::TextTooLong`] as soon as that is certain; [`Error::Cancelled`].
    pub fn text_prompts(&self, texts: &[&str], cancel: Option<&Cancel>) -> Result<Vec<Prompt>> {
        let encode = |(index, text): (usize, &&str)| {
            let mut tokens = vec![self.tokenizer.bos_id()];
            match self
                .tokenizer
                .encode_onto(text, &mut tokens, self.bound(cancel))?
            {
                Encoded::Whole => Ok(Prompt::Tokens(tokens)),
                Encoded::TooLong(least) => Err(self.too_long(index, text.len(), least)),
            }
        };
        texts.iter().enumerate().map(encode).collect()
    }

    /// Prompts for [`Llama::generate`] from dialogs in Meta's chat format. A dialog with a special
    /// tag in a message is answered with the reference's sentence. Fails as
    /// [`Llama::text_prompts`], and on roles out of order.
    pub fn chat_prompts(
        &self,
        dialogs: &[&[Message<'_>]],
        cancel: Option<&Cancel>,
    ) -> Result<Vec<Prompt>> {
        let encode = |(index, dialog): (usize, &&[Message<'_>])| match chat::encode_dialog(
            &*self.tokenizer,
            dialog,
            self.bound(cancel),
        )? {
            Encoding::Tokens(tokens) => Ok(Prompt::Tokens(tokens)),
            Encoding::Unsafe => Ok(Prompt::Refused(chat::UNSAFE_ERROR)),
            Encoding::TooLong(least) => {
                let bytes = dialog.iter().map(|m| m.content.len()).sum();
                Err(self.too_long(index, bytes, least))
            }
        };
        dialogs.iter().enumerate().map(encode).collect()
    }

    /// What cannot fit is not encoded to its end.
    fn bound<'a>(&self, cancel: Option<&'a Cancel>) -> Bound<'a> {
        Bound {
            max_tokens: Some(self.info.max_seq_len),
            cancel,
        }
    }

    fn too_long(&self, index: usize, bytes: usize, least: usize) -> Error {
        Error::TextTooLong {
            index,
            bytes,
            least,
            max: self.info.max_seq_len,
        }
    }

    /// Cancel what runs or waits and refuse what comes.
    pub fn shutdown(&self) {
        self.engine.shutdown();
    }

    /// Make every later call fail, as after a panic in one of ours.
    pub fn poison(&self, reason: &str) {
        self.engine.poison(reason);
    }
}

/// Pull a stream dry into a [`Completion`].
fn collect(
    stream: &Stream,
    n: usize,
    logprobs: bool,
    top: bool,
    on_event: &mut dyn FnMut(&Event) -> bool,
) -> Result<Completion> {
    let Completion { mut sequences, .. } = Completion::cancelled(n);
    let mut stopped = false;
    loop {
        let event = match stream.next(None)? {
            Next::Event(event) => event,
            Next::Timeout => continue,
            Next::Done => {
                return Ok(Completion {
                    sequences,
                    cancelled: stopped,
                });
            }
            Next::Cancelled => {
                return Ok(Completion {
                    sequences,
                    cancelled: true,
                });
            }
        };
        // After the callback has said stop it is not called again, but what was generated is kept.
        if !stopped && !on_event(&event) {
            stopped = true;
            stream.cancel();
        }
        match event {
            Event::Token(e) => {
                let s = &mut sequences[e.index as usize];
                s.tokens.push(e.token);
                s.text.push_str(&e.text);
                if logprobs {
                    s.logprobs.push(e.logprob);
                }
                if top {
                    s.top.push(e.top);
                }
            }
            Event::Finish(e) => {
                let s = &mut sequences[e.index as usize];
                s.text.push_str(&e.text);
                s.finish = e.reason;
                s.stats = e.stats;
            }
        }
    }
}

fn check(options: &BuildOptions) -> Result<()> {
    if options.max_seq_len == 0 {
        return Err(Error::invalid("max_seq_len", "at least 1", 0));
    }
    if options.max_batch_size == 0 {
        return Err(Error::invalid("max_batch_size", "at least 1", 0));
    }
    if options.prefill_chunk == Some(0) {
        return Err(Error::invalid("prefill_chunk", "at least 1", 0));
    }
    Ok(())
}

/// A quantised checkpoint is used as it is.
fn check_quantised(config: &Config, weights_dtype: Dtype) -> Result<()> {
    match config.quantised {
        _ if weights_dtype == Dtype::U8 => Err(Error::invalid(
            "weights_dtype",
            "a format of weights",
            weights_dtype,
        )),
        Some(quant) if quant.dtype() != weights_dtype => Err(Error::Unsupported(format!(
            "weights_dtype is {weights_dtype}, but the checkpoint is quantised as {}: only that and AUTO \
             are possible",
            quant.dtype()
        ))),
        _ => Ok(()),
    }
}

fn check_shards(options: &BuildOptions, config: &Config, checkpoint: &Checkpoint) -> Result<()> {
    let shards = match config.form {
        Form::Meta if config.quantised.is_none() => checkpoint.files.len(),
        _ => 1,
    };
    if options.model_parallel_size != 0 && options.model_parallel_size != shards {
        return Err(Error::invalid(
            "model_parallel_size",
            format!("0 or the checkpoint's number of shards, {shards}"),
            options.model_parallel_size,
        ));
    }
    Ok(())
}

/// Rows of a step: a long prefill chunk beside every running sequence.
const MAX_PREFILL_CHUNK: usize = 256;

fn limits<B: Backend>(options: &BuildOptions, vocab_size: usize) -> Limits {
    let pages = options.max_seq_len.div_ceil(B::PAGE_SIZE);
    let chunk = options
        .prefill_chunk
        .unwrap_or(MAX_PREFILL_CHUNK)
        .min(options.max_seq_len);
    Limits {
        page_size: B::PAGE_SIZE,
        n_pages: pages.saturating_mul(options.max_batch_size),
        max_rows: chunk.saturating_add(options.max_batch_size),
        // Prompt rows want logits too where the prompt is echoed with logprobs.
        max_wanted: options.max_batch_size.max(32),
        vocab_size,
    }
}

/// Where a model goes.
struct Place {
    device: Device,
    /// Bytes that can be had there.
    available: u64,
    /// The error for memory that is not there: what for, bytes needed, bytes available.
    no_memory: fn(String, u64, u64) -> Error,
}

/// What a backend is made for.
struct Setting {
    config: Config,
    limits: Limits,
    weights_dtype: Dtype,
    kv_dtype: Dtype,
}

impl Setting {
    fn shape(&self) -> &crate::backend::Shape {
        &self.config.shape
    }
}

/// Everything is counted before anything is allocated.
struct MemoryPlan {
    items: [(&'static str, u64); 4],
    place: Place,
}

impl MemoryPlan {
    fn check(&self) -> Result<()> {
        if self.needed() <= self.place.available {
            return Ok(());
        }
        Err(self.lacking())
    }

    fn needed(&self) -> u64 {
        let add = |sum: u64, item: &(&str, u64)| sum.saturating_add(item.1);
        self.items.iter().fold(0, add)
    }

    fn words(&self) -> String {
        let item = |(what, bytes): &(&str, u64)| format!("{what} {bytes}");
        self.items.iter().map(item).collect::<Vec<_>>().join(", ")
    }

    /// The message names all items, and the largest.
    fn lacking(&self) -> Error {
        let largest = self.items.iter().max_by_key(|item| item.1);
        let largest = largest.map_or("", |item| item.0);
        let what = format!("the model ({}; most of it {largest})", self.words());
        (self.place.no_memory)(what, self.needed(), self.place.available)
    }

    /// A device that refuses what was planned for (others use it too): the plan belongs to the message.
    fn explain(&self, error: Error) -> Error {
        match error {
            Error::DeviceMemory {
                what,
                needed,
                available,
            } => {
                let what = format!("{what} (of {})", self.words());
                (self.place.no_memory)(what, needed, available)
            }
            error => error,
        }
    }
}

/// The GPU that the options ask for. AUTO makes do with the CPU, which one line of the log says.
fn cuda(options: &BuildOptions) -> Result<Option<Cuda>> {
    if options.device == Device::Cpu {
        return Ok(None);
    }
    let images = &gpu::images::IMAGES;
    match Cuda::open(images, options.device_index, &gpu::launch::KERNELS) {
        Ok(cuda) => Ok(Some(cuda)),
        Err(error) if options.device == Device::Cuda => Err(error),
        Err(error) => {
            fall_back(options, &error);
            Ok(None)
        }
    }
}

fn fall_back(options: &BuildOptions, error: &Error) {
    options.log.write(Level::Info, || {
        let text = error.to_string();
        let reason = text.strip_prefix("device is CUDA: ").unwrap_or(&text);
        format!("device AUTO: {reason}; running on the CPU")
    });
}
