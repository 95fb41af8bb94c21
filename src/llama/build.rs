//! From a checkpoint to a handle: which device, whether it fits, and the loading.

use super::adapters::{Adapters, Loader, say_base};
use super::plan::Budget;
use super::setting::Setting;
use super::tokens::eos_ids;
use super::{BuildOptions, Device, Info, Llama, RankInfo};
use crate::backend::cpu::Cpu;
use crate::backend::gpu::{self, Gpu, cuda::Cuda, driver::LIBRARIES, images::Images};
use crate::backend::{RopeTable, Run, Shape};
use crate::checkpoint::{self, Adapter, Checkpoint, Files};
use crate::engine::{Engine, EngineOptions};
use crate::grammar::Grammars;
use crate::log::Level;
use crate::model::Config;
use crate::ranks::figures::Figures;
use crate::ranks::nodes;
use crate::ranks::processes::adapters::Orders;
use crate::tokenizer::Tokenizer;
use crate::{Dtype, Error, Result, Token, sentence};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

impl Llama {
    /// Load `ckpt_dir` (Meta's or Hugging Face's form) with the tokenizer at `tokenizer_path`
    /// (`None`: the directory's `tokenizer.model` or `tokenizer.json`, see
    /// [`crate::tokenizer::open_in`]).
    ///
    /// `progress` gets the share of bytes read, and stops the loading by returning `false`. Fails
    /// with [`Error::Cancelled`] if `progress` or `options.cancel` stopped it; otherwise, every
    /// error names the file, tensor or option. A failed build leaves nothing behind.
    pub fn build(
        ckpt_dir: &Path,
        tokenizer_path: Option<&Path>,
        options: &BuildOptions,
        progress: &mut dyn FnMut(f32) -> bool,
    ) -> Result<Llama> {
        let build = Build::new(ckpt_dir, tokenizer_path, options)?;
        if !options.devices.is_empty() {
            return build.load_on_ranks(progress);
        }
        if let Some(cuda) = cuda(options)? {
            match build.load_on_gpu(Arc::new(cuda), progress) {
                // The model is in a format that the GPU's kernels do not read.
                Err(error @ Error::Unsupported(_)) if options.device == Device::Auto => {
                    fall_back(options, &error);
                }
                result => return result,
            }
        }
        build.load_on_cpu(progress)
    }

    /// As [`Llama::build`], on this device whatever the options say.
    ///
    /// Can also fail with [`Error::DeviceMemory`], whose message has all that was planned.
    pub fn build_on<D: gpu::device::Device>(
        device: Arc<D>,
        ckpt_dir: &Path,
        tokenizer_path: Option<&Path>,
        options: &BuildOptions,
        progress: &mut dyn FnMut(f32) -> bool,
    ) -> Result<Llama> {
        Build::new(ckpt_dir, tokenizer_path, options)?.load_on_gpu(device, progress)
    }

    /// As [`Llama::build_on`], with a rank on each of these devices. [`BuildOptions::devices`] has
    /// a number for each; equal numbers are devices that share one memory.
    pub fn build_on_ranks<D: gpu::device::Device>(
        devices: Vec<Arc<D>>,
        ckpt_dir: &Path,
        tokenizer_path: Option<&Path>,
        options: &BuildOptions,
        progress: &mut dyn FnMut(f32) -> bool,
    ) -> Result<Llama> {
        Build::new(ckpt_dir, tokenizer_path, options)?.load_on_gpus(devices, progress)
    }
}

/// What is to be built.
pub(super) struct Build<'a> {
    pub(super) ckpt_dir: &'a Path,
    tokenizer_path: Option<&'a Path>,
    pub(super) options: &'a BuildOptions,
    /// How many ranks compute the model; 0: one, and the shards of the checkpoint are merged.
    ranks: usize,
    /// When the build began.
    start: Instant,
}

/// A checkpoint that has been opened, and the tokenizer that fits it.
pub(super) struct Opened {
    pub dir: PathBuf,
    pub checkpoint: Box<dyn Checkpoint>,
    pub tokenizer: Arc<dyn Tokenizer>,
    pub config: Config,
    pub files: Files,
}

/// A draft model, and [`EngineOptions::draft_share`].
type DraftRun = (Box<dyn Run>, f64);

/// A model that runs, with the facts that the handle reports about it.
pub(super) struct Loaded {
    pub run: Box<dyn Run>,
    pub draft: Option<DraftRun>,
    pub ranks: Vec<RankInfo>,
    pub figures: Arc<Figures>,
    pub device: Device,
    pub device_name: String,
    pub weights_dtype: Dtype,
    pub kv_dtype: Dtype,
    pub weight_bytes: u64,
    pub kv_bytes: u64,
    pub adapters: Loader,
    /// Makes ranks of other processes load adapters, if there are such ranks.
    pub orders: Option<Orders>,
}

impl<'a> Build<'a> {
    pub(super) fn new(
        ckpt_dir: &'a Path,
        tokenizer_path: Option<&'a Path>,
        options: &'a BuildOptions,
    ) -> Result<Build<'a>> {
        let start = Instant::now();
        check(options)?;
        Ok(Build {
            ckpt_dir,
            tokenizer_path,
            options,
            ranks: options.devices.len(),
            start,
        })
    }

    /// The same build for `ranks` ranks.
    pub(super) fn among(self, ranks: usize) -> Self {
        Build { ranks, ..self }
    }

    /// Checks what only the CPU refuses.
    pub(super) fn check_cpu(&self) -> Result<()> {
        let options = self.options;
        for (name, dtype) in [
            ("weights_dtype", options.weights_dtype),
            ("kv_dtype", options.kv_dtype),
            ("draft_weights_dtype", options.draft_weights_dtype),
            ("draft_kv_dtype", options.draft_kv_dtype),
        ] {
            if dtype == Some(Dtype::Fp8) {
                return Err(Error::Unsupported(format!(
                    "{name} is FP8: 8-bit floats are for GPUs; on the CPU INT8 takes as many bytes"
                )));
            }
        }
        if options.device_index != 0 {
            return Err(Error::invalid(
                "device_index",
                "0 on the CPU",
                options.device_index,
            ));
        }
        Ok(())
    }

    fn load_on_cpu(&self, progress: &mut dyn FnMut(f32) -> bool) -> Result<Llama> {
        let options = self.options;
        self.check_cpu()?;
        let n_nodes = nodes::of_machine().len();
        if n_nodes > 1 {
            options.log.write(Level::Info, || {
                format!(
                    "this process may use {n_nodes} NUMA nodes; with `devices` each would have a \
                     share of the weights in its own memory"
                )
            });
        }
        let budget = Budget::cpu();
        let open = |rope: RopeTable, setting: &Setting<'_>, _| {
            let usable = std::thread::available_parallelism().map_or(1, usize::from);
            if options.n_threads > usable {
                options.log.write(Level::Warn, || {
                    let n = options.n_threads;
                    format!("n_threads is {n}, this process may use {usable} processors at a time")
                });
            }
            let cpu = Cpu::new(
                &setting.config.shape,
                rope,
                options.n_threads,
                setting.limits.max_rows,
            )?
            .precision(options.precision.of_cpu(options.max_batch_size));
            let name = cpu.description();
            Ok((cpu, name))
        };
        self.load(budget, open, progress)
    }

    pub(super) fn load_on_gpu<D: gpu::device::Device>(
        &self,
        device: Arc<D>,
        progress: &mut dyn FnMut(f32) -> bool,
    ) -> Result<Llama> {
        let available = self.available(&*device)?;
        let open = |rope: RopeTable, setting: &Setting<'_>, needed: u64| {
            let (shape, limits) = (&setting.config.shape, &setting.limits);
            let gpu = self.gpu(&device, shape, &rope, setting, available - needed)?;
            let gpu = match self.options.medusa_dir {
                Some(_) => gpu.with_medusa(limits)?,
                None => gpu,
            };
            let gpu = match self.options.gpu_memory_bytes {
                0 => gpu,
                limit => gpu.adapters_within(limit.saturating_sub(needed)),
            };
            Ok((gpu, device.name()))
        };
        self.load(Budget::gpu(available), open, progress)
    }

    /// The bytes that a device has for a model.
    pub(super) fn available<D: gpu::device::Device>(&self, device: &D) -> Result<u64> {
        // The device gives back memory that it has taken for an optional library if the model needs
        // it.
        let free = device.available()?.saturating_add(device.own_bytes());
        Ok(match self.options.gpu_memory_bytes {
            0 => free,
            limit => free.min(limit),
        })
    }

    /// The backend of a model or a rank of this shape, which leaves `room` bytes of the device
    /// free.
    pub(super) fn gpu<D: gpu::device::Device>(
        &self,
        device: &Arc<D>,
        shape: &Shape,
        rope: &RopeTable,
        setting: &Setting<'_>,
        room: u64,
    ) -> Result<Gpu<D>> {
        let (limits, weights) = (&setting.limits, &setting.weights_dtypes);
        let given_up = Gpu::give_up_library(&**device, shape, limits, weights, room);
        let kv_dtype = setting.kv_dtype;
        let gpu = Gpu::new(device.clone(), shape, rope, limits, weights, kv_dtype)?;
        let gpu = match setting.config.family.head_norms {
            Some(_) => gpu.head_norms(limits)?,
            None => gpu,
        };
        let gpu = match setting.config.unrotated.is_empty() {
            true => gpu,
            false => gpu.unrotated(limits)?,
        };
        let gpu = gpu.log(self.options.log.clone());
        Ok(gpu.library(limits, given_up))
    }

    /// Logs what is going to be loaded, with the bytes of the weights and of the KV pool.
    pub(super) fn say(
        &self,
        opened: &Opened,
        setting: &Setting<'_>,
        [weight_bytes, kv_bytes]: [u64; 2],
        device_name: &str,
    ) {
        let (weights_dtype, kv_dtype) = (setting.weights_dtypes[0], setting.kv_dtype);
        self.options.log.write(Level::Info, || {
            format!(
                "{}: {} form, {} layers, {weights_dtype} weights {weight_bytes} bytes, \
                 {kv_dtype} KV pool {kv_bytes} bytes, {device_name}",
                sentence::path(&opened.dir),
                opened.checkpoint.form(),
                opened.config.shape.n_layers
            )
        });
        for left_out in opened.checkpoint.left_out(&opened.files) {
            let line = || format!("{}: {left_out}", sentence::path(&opened.dir));
            self.options.log.write(Level::Info, line);
        }
    }

    /// Makes the handle of a model that is loaded.
    pub(super) fn handle(&self, opened: Opened, loaded: Loaded) -> Result<Llama> {
        let options = self.options;
        let Opened {
            checkpoint,
            tokenizer,
            config,
            files,
            ..
        } = opened;
        let stored_format = checkpoint::stored_format(&*checkpoint, &files);
        drop(files);
        let eos_ids = eos_ids(self.ckpt_dir, &config, &*tokenizer)?;
        let has_draft = loaded.draft.is_some();
        let medusa_heads = loaded.run.medusa_heads();
        let engine = self.engine(
            (loaded.run, loaded.draft),
            &tokenizer,
            eos_ids.clone(),
            loaded.kv_bytes,
        )?;
        let info = Info {
            max_seq_len: options.max_seq_len,
            max_batch_size: options.max_batch_size,
            has_draft,
            medusa_heads,
            ranks: loaded.ranks,
            device: loaded.device,
            weights_dtype: loaded.weights_dtype,
            kv_dtype: loaded.kv_dtype,
            weight_bytes: loaded.weight_bytes,
            kv_bytes: loaded.kv_bytes,
            stored_format,
            device_name: loaded.device_name,
            gpu_kernels: !Images::embedded().fatbins.is_empty(),
            load_ms: self.start.elapsed().as_secs_f64() * 1e3,
            config,
            eos_ids,
        };
        let chat = super::chat::chat(options, &*checkpoint, &info.config, &*tokenizer);
        Ok(Llama {
            adapters: Adapters::new(loaded.adapters, loaded.orders, options.log.clone()),
            engine,
            tokenizer,
            chat,
            grammars: Grammars::new(info.config.shape.vocab_size, info.eos_ids.clone()),
            info,
            figures: loaded.figures,
        })
    }

    pub(super) fn adapters(&self) -> Result<Vec<Adapter>> {
        let cancel = self.options.cancel.as_ref();
        let adapters = self.options.adapters.iter();
        let open = |(dir, scale): &(PathBuf, f32)| match scale.is_finite() {
            true => {
                let adapter = Adapter::open(dir, *scale, cancel)?;
                say_base(&adapter, &self.options.log);
                Ok(adapter)
            }
            false => Err(Error::invalid("adapter_scales", "finite numbers", scale)),
        };
        adapters.map(open).collect()
    }

    pub(super) fn open_checkpoint(&self) -> Result<Opened> {
        let opened = self.open_at(self.ckpt_dir, self.tokenizer_path)?;
        check_shards(self.options, &opened.files, self.ranks)?;
        Ok(opened)
    }

    fn engine(
        &self,
        (run, draft): (Box<dyn Run>, Option<DraftRun>),
        tokenizer: &Arc<dyn Tokenizer>,
        eos_ids: Vec<Token>,
        kv_bytes: u64,
    ) -> Result<Engine> {
        let options = self.options;
        let (draft, draft_share) = draft.unzip();
        let engine_options = EngineOptions {
            max_batch_size: options.max_batch_size,
            seed: options.seed,
            prefill_chunk: options.prefill_chunk,
            max_step_ms: options.max_step_ms,
            max_waiting: options.max_waiting,
            max_stall_ms: options.max_stall_ms,
            max_unread_ms: options.max_unread_ms,
            stall_memory_bytes: options.stall_memory_bytes.unwrap_or(kv_bytes),
            draft_share: draft_share.unwrap_or(0.0),
            eos_ids,
        };
        Engine::with_draft(
            run,
            draft,
            tokenizer.clone(),
            engine_options,
            options.log.clone(),
        )
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
    for (name, dtype) in [
        ("weights_dtype", options.weights_dtype),
        ("draft_weights_dtype", options.draft_weights_dtype),
    ] {
        if let Some(dtype) = dtype.filter(|dtype| dtype.is_of_files()) {
            return Err(Error::Unsupported(format!(
                "{name} is {dtype}, which only files have; AUTO keeps it"
            )));
        }
    }
    Ok(())
}

fn check_shards(options: &BuildOptions, files: &Files, ranks: usize) -> Result<()> {
    let shards = files.shards();
    if ranks > 0 && ![0, ranks].contains(&options.model_parallel_size) {
        return Err(Error::invalid(
            "model_parallel_size",
            format!("0 or the number of ranks, {ranks}"),
            options.model_parallel_size,
        ));
    }
    if ranks == 0 && options.model_parallel_size != 0 && options.model_parallel_size != shards {
        return Err(Error::invalid(
            "model_parallel_size",
            format!("0 or the checkpoint's number of shards, {shards}"),
            options.model_parallel_size,
        ));
    }
    Ok(())
}

/// The GPU that the options ask for. AUTO falls back to the CPU, and one line of the log says so.
fn cuda(options: &BuildOptions) -> Result<Option<Cuda>> {
    if options.device == Device::Cpu {
        return Ok(None);
    }
    let open = || {
        let images = Images::choose()?;
        Cuda::open(&LIBRARIES, &images, options.device_index)
    };
    match open() {
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
