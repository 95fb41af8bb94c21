//! The loading of ranks in processes of their own: rank 0 makes the handle, and every other rank
//! takes part until the handle is freed.

use super::build::{Build, Loaded, Opened};
use super::plan::{MemoryPlan, Place};
use super::setting::{Setting, memory, setting};
use super::{BuildOptions, Device, Llama, RankInfo};
use crate::backend::Backend;
use crate::backend::cpu::{Cpu, CpuExchange, usable_threads};
use crate::checkpoint::weights::{self, LoadControl};
use crate::checkpoint::{self, Adapter, Checkpoint, Files, Plan, fingerprint};
use crate::error::panic_text;
use crate::log::Level;
use crate::model::{Config, Cuts, Runner, matrices::LAYER, rope};
use crate::ranks::board::MAX_RANKS;
use crate::ranks::figures::Figures;
use crate::ranks::processes::comm::Comm;
use crate::ranks::processes::handshake::{Found, Hello, Offer, check_room};
use crate::ranks::processes::link::{BEAT, Link, MOST};
use crate::ranks::processes::message::{Kind, Writer};
use crate::ranks::processes::{Processes, Shared, serve};
use crate::{Error, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

impl Llama {
    /// As [`Llama::build`], as rank 0 of several processes. The others call [`Llama::work`].
    ///
    /// Fails also as each of the other ranks does, with its sentence, and with [`Error::Peer`] if
    /// one does not answer. Whatever it fails with, the other ranks are told.
    pub fn build_among(
        comm: Box<dyn Comm>,
        ckpt_dir: &Path,
        tokenizer_path: Option<&Path>,
        options: &BuildOptions,
        progress: &mut dyn FnMut(f32) -> bool,
    ) -> Result<Llama> {
        let (shared, figures) = connect(comm, options)?;
        let build = || {
            refuse(&shared, options)?;
            let ranks = shared.size();
            if shared.rank() != 0 {
                let (expected, rank) = ("0; other ranks call llama_worker_run", shared.rank());
                return Err(Error::invalid("comm.rank", expected, rank));
            }
            let build = Build::new(ckpt_dir, tokenizer_path, options)?.among(ranks);
            build.load_among(&shared, figures, progress)
        };
        ended(&shared, build)
    }

    /// Takes part as a rank other than 0 until rank 0's handle is freed. Of the options, those that
    /// concern this process count: the others are rank 0's. `progress` gets the share of this
    /// rank's bytes that was read, and stops everything by returning `false`; `meanwhile` is called
    /// now and then.
    ///
    /// Fails with a failure of its own, of which rank 0 was told, and with [`Error::Peer`] if
    /// another rank failed, in its words, or is gone. [`Error::Cancelled`].
    pub fn work(
        comm: Box<dyn Comm>,
        ckpt_dir: &Path,
        options: &BuildOptions,
        progress: &mut dyn FnMut(f32) -> bool,
        meanwhile: &mut dyn FnMut(),
    ) -> Result<()> {
        let (shared, _) = connect(comm, options)?;
        let work = || {
            refuse(&shared, options)?;
            if shared.rank() == 0 {
                return Err(Error::invalid(
                    "comm.rank",
                    "1 or more; rank 0 calls llama_build",
                    0,
                ));
            }
            work(&shared, ckpt_dir, options, progress, meanwhile)
        };
        ended(&shared, work)
    }
}

impl Llama {
    /// Tells the other ranks that this one fails before it begins.
    pub fn leave(comm: Box<dyn Comm>, error: &Error, timeout: Duration) {
        let size = comm.size();
        if (2..=MAX_RANKS).contains(&size)
            && comm.rank() < size
            && let Ok(mut link) = Link::new(comm, timeout, None, Arc::new(Figures::new(size)))
        {
            link.fail(error);
        }
    }
}

fn connect(comm: Box<dyn Comm>, options: &BuildOptions) -> Result<(Shared, Arc<Figures>)> {
    let (rank, size) = (comm.rank(), comm.size());
    if !(2..=MAX_RANKS).contains(&size) {
        return Err(Error::invalid(
            "comm.size",
            format!("2 to {MAX_RANKS}"),
            size,
        ));
    }
    if rank >= size {
        return Err(Error::invalid(
            "comm.rank",
            format!("below comm.size, {size}"),
            rank,
        ));
    }
    let figures = Arc::new(Figures::new(size));
    let timeout = Duration::from_millis(options.rank_timeout_ms.into());
    let link = Link::new(comm, timeout, options.cancel.clone(), figures.clone())?;
    Ok((Shared::new(link), figures))
}

/// Refuses what ranks in several processes cannot have.
fn refuse(shared: &Shared, options: &BuildOptions) -> Result<()> {
    if options.device == Device::Cuda {
        let what = "comm: ranks in several processes run on the CPU";
        return Err(Error::Unsupported(what.into()));
    }
    if !options.devices.is_empty() {
        let (n, size) = (options.devices.len(), shared.size());
        return Err(Error::Unsupported(format!(
            "comm of {size} ranks together with {n} devices: a process is one rank"
        )));
    }
    if options.draft_dir.is_some() {
        let what = "comm together with draft_dir: a model of several ranks has no draft model";
        return Err(Error::Unsupported(what.into()));
    }
    if options.medusa_dir.is_some() {
        let what = "comm together with medusa_dir: a model of several ranks has no Medusa heads";
        return Err(Error::Unsupported(what.into()));
    }
    Ok(())
}

/// Runs what a rank does. The others are told of its failure, a panic included.
fn ended<T>(shared: &Shared, run: impl FnOnce() -> Result<T>) -> Result<T> {
    let result = catch_unwind(AssertUnwindSafe(run));
    let panicked =
        |payload: Box<dyn std::any::Any + Send>| Err(Error::Internal(panic_text(&*payload).into()));
    let result = result.unwrap_or_else(panicked);
    result.inspect_err(|error| shared.link().fail(error))
}

/// A rank's share of a model: what it is made for, and the memory that it takes.
struct Share<'a> {
    rank: usize,
    cuts: Cuts,
    plan: Plan<'a>,
    setting: Setting<'a>,
    memory: MemoryPlan,
    fingerprint: u64,
}

impl<'a> Share<'a> {
    fn new(
        [rank, ranks]: [usize; 2],
        checkpoint: &dyn Checkpoint,
        files: &'a Files,
        config: &'a Config,
        adapters: &'a [Adapter],
        options: &BuildOptions,
    ) -> Result<Share<'a>> {
        let whole = Plan::new::<Cpu>(checkpoint, files, config, options.weights_dtype, adapters)?;
        let [_, o, _, down] = std::array::from_fn::<_, { LAYER.len() }, _>(|i| whole.block(i));
        let cuts = Cuts::new(&config.shape, ranks, [o, down])?;
        let setting = setting::<Cpu>(options, config, &whole, options.kv_dtype);
        let fingerprint = fingerprint(config, files, &whole)?;
        let plan = whole.cut(&cuts, rank);
        let shape = cuts.shape(rank);
        let mut items = memory::<Cpu>(&shape, &plan, &setting, options);
        let limits = &setting.limits;
        let most = CpuExchange::most(shape.dim, limits, cuts.vocabulary());
        if most > MOST {
            return Err(Error::Unsupported(format!(
                "ranks would exchange {most} numbers at a time, at most {MOST}: a smaller \
                 max_batch_size or prefill_chunk would need fewer"
            )));
        }
        let own = cuts.vocabulary()[rank].len();
        let exchange = CpuExchange::bytes(shape.dim, limits, own);
        let page = Cpu::page_bytes(&shape, setting.kv_dtype) as usize;
        let link = Link::bytes(ranks, Writer::most(limits).max(page), most);
        items[3].1 = items[3].1.saturating_add(exchange).saturating_add(link);
        let place = Place::cpu();
        Ok(Share {
            rank,
            cuts,
            plan,
            setting,
            memory: MemoryPlan {
                items: items.to_vec(),
                place,
            },
            fingerprint,
        })
    }

    fn found(&self, path: &Path, cpu: &Cpu) -> Found {
        let items = &self.memory.items;
        Found {
            fingerprint: self.fingerprint,
            path: path.to_owned(),
            needed: self.memory.needed(),
            weight_bytes: items[0].1,
            kv_bytes: items[1].1,
            available: self.memory.place.available,
            device_name: cpu.description(),
        }
    }

    fn cpu(&self, options: &BuildOptions, sharers: usize) -> Result<Cpu> {
        let n_threads = match options.n_threads {
            0 => (usable_threads() / sharers).max(1),
            n => n,
        };
        let rope = rope::table(self.setting.config, options.max_seq_len)?;
        let rows = self.setting.limits.max_rows;
        let cpu = Cpu::new(&self.cuts.shape(self.rank), rope, n_threads, rows)?;
        Ok(cpu.precision(options.precision.of_cpu(options.max_batch_size)))
    }

    /// Reads this rank's weights, and tells the others how far it is. The caller hears the smallest
    /// share of all ranks.
    fn load(
        &self,
        cpu: Cpu,
        options: &BuildOptions,
        shared: &Shared,
        said: &mut Said<'_>,
    ) -> Result<Runner<Cpu>> {
        let mut failed = None;
        let mut tell = |share: f32| {
            let mut link = shared.link();
            let told = match link.is_time(BEAT / 4) {
                true => link.tell_all(Kind::Progress, |m| m.f32(share)),
                false => link.look(),
            };
            let least = share.min(link.progress());
            drop(link);
            match told {
                Ok(()) => said.say(least),
                Err(error) => {
                    failed = Some(error);
                    false
                }
            }
        };
        let mut control = LoadControl {
            cancel: options.cancel.as_ref(),
            progress: &mut tell,
        };
        let weights = weights::load(&cpu, &self.plan, &mut control);
        // What stopped the loading is the reason, and not that it was stopped.
        let weights = failed.map_or(weights, Err)?;
        let limits = &self.setting.limits;
        let shape = self.cuts.shape(self.rank);
        let most = CpuExchange::most(shape.dim, limits, self.cuts.vocabulary());
        let kv_dtype = self.setting.kv_dtype;
        let page = Cpu::page_bytes(&shape, kv_dtype) as usize;
        shared
            .link()
            .make_room(Writer::most(limits).max(page), most)?;
        let runner = Runner::new(cpu, weights, &shape, kv_dtype, limits.clone())?;
        let vocabulary = self.cuts.vocabulary().to_vec();
        let wire = Box::new(shared.clone());
        let exchange = CpuExchange::new(wire, shape.dim, limits, vocabulary)?;
        Ok(runner.among(Box::new(exchange)))
    }
}

/// What the caller was told of the progress, which never falls.
struct Said<'a> {
    share: f32,
    progress: &'a mut dyn FnMut(f32) -> bool,
}

impl Said<'_> {
    /// Tells the caller if it is news. Returns whether to go on.
    fn say(&mut self, share: f32) -> bool {
        share <= self.share || {
            self.share = share;
            (self.progress)(share)
        }
    }
}

impl Build<'_> {
    fn load_among(
        &self,
        shared: &Shared,
        figures: Arc<Figures>,
        progress: &mut dyn FnMut(f32) -> bool,
    ) -> Result<Llama> {
        let options = self.options;
        self.check_cpu()?;
        let hellos = greeted(shared)?;
        let n = hellos.len();
        let opened = self.open_checkpoint()?;
        let adapters = self.adapters()?;
        let Opened {
            checkpoint,
            config,
            files,
            tokenizer,
            ..
        } = &opened;
        let share = Share::new([0, n], &**checkpoint, files, config, &adapters, options)?;
        for (rank, hello) in hellos.iter().enumerate().skip(1) {
            let offer = Offer {
                max_seq_len: options.max_seq_len,
                max_batch_size: options.max_batch_size,
                prefill_chunk: options.prefill_chunk,
                weights_dtype: options.weights_dtype,
                kv_dtype: options.kv_dtype,
                precision: options.precision,
                timeout: Duration::from_millis(options.rank_timeout_ms.into()),
                adapters: options.adapters.clone(),
                n_tokens: tokenizer.vocab_size(),
                sharers: hello.sharers(&hellos),
            };
            shared
                .link()
                .tell(rank, Kind::Options, |m| offer.write(m))?;
        }
        let cpu = share.cpu(options, hellos[0].sharers(&hellos))?;
        let mut found = vec![share.found(self.ckpt_dir, &cpu)];
        let names: Vec<String> = (0..n).map(|rank| shared.link().name(rank)).collect();
        for (rank, name) in names.iter().enumerate().skip(1) {
            let message = shared
                .link()
                .await_kind(rank, Kind::Plan, &mut |_| Ok(()))?;
            let theirs = Found::read(&message)?;
            theirs.check_same(&found[0], name)?;
            found.push(theirs);
        }
        check_room(&hellos, &found, &names)?;
        shared.link().tell_all(Kind::Go, |m| m)?;
        let sum = |of: fn(&Found) -> u64| found.iter().map(of).fold(0, u64::saturating_add);
        let bytes = [sum(|f| f.weight_bytes), sum(|f| f.kv_bytes)];
        let device_name = format!("{n} ranks: {}", found[0].device_name);
        self.say(&opened, &share.setting, bytes, &device_name);
        let mut said = Said {
            share: 0.0,
            progress,
        };
        let runner = share.load(cpu, options, shared, &mut said)?;
        let mut pages = Vec::with_capacity(n);
        for rank in 1..n {
            // The others must not think that rank 0 is gone because one of them is slow.
            let mut beat = |link: &mut Link| {
                if !said.say(link.progress()) {
                    return Err(Error::Cancelled);
                }
                match link.is_time(BEAT / 4) {
                    true => link.tell_all(Kind::Progress, |m| m.f32(1.0)),
                    false => Ok(()),
                }
            };
            let ready = shared.link().await_kind(rank, Kind::Ready, &mut beat)?;
            pages.push(ready.reader().size()?);
        }
        if !said.say(1.0) {
            return Err(Error::Cancelled);
        }
        shared.link().tell_all(Kind::Start, |m| m)?;
        shared.link().forget_cancel();
        let ranks = hellos.into_iter().zip(&found);
        let ranks = ranks.map(|(hello, found)| RankInfo {
            device: Device::Cpu,
            pid: hello.pid,
            weight_bytes: found.weight_bytes,
            kv_bytes: found.kv_bytes,
            host: hello.host,
            device_name: found.device_name.clone(),
        });
        let what = "adapters of requests are for one rank; with several, merge them while loading";
        let loaded = Loaded {
            draft: None,
            run: Box::new(Processes::new(Box::new(runner), shared.clone(), pages)),
            ranks: ranks.collect(),
            figures,
            device: Device::Cpu,
            device_name,
            weights_dtype: share.setting.weights_dtypes[0],
            kv_dtype: share.setting.kv_dtype,
            weight_bytes: bytes[0],
            kv_bytes: bytes[1],
            carrier: Err(Error::Unsupported(what.into())),
        };
        drop(share);
        self.handle(opened, loaded)
    }
}

/// Rank 0: who the ranks are.
fn greeted(shared: &Shared) -> Result<Vec<Hello>> {
    let size = shared.size();
    let mut hellos = vec![Hello::own()];
    for rank in 1..size {
        let mut link = shared.link();
        let message = link.await_kind(rank, Kind::Hello, &mut |_| Ok(()))?;
        let hello = Hello::read(&message, rank, size);
        let hello = hello.map_err(|e| Error::Peer(format!("{}: {e}", link.name(rank))))?;
        link.set_host(rank, hello.host.clone());
        hellos.push(hello);
    }
    Ok(hellos)
}

/// What a rank other than 0 does.
fn work(
    shared: &Shared,
    ckpt_dir: &Path,
    own: &BuildOptions,
    progress: &mut dyn FnMut(f32) -> bool,
    meanwhile: &mut dyn FnMut(),
) -> Result<()> {
    Hello::own().tell(&mut shared.link())?;
    let mut idle = |_: &mut Link| {
        meanwhile();
        Ok(())
    };
    let offer = shared.link().await_kind(0, Kind::Options, &mut idle)?;
    let offer = Offer::read(&offer)?;
    shared.link().set_timeout(offer.timeout);
    let options = BuildOptions {
        max_seq_len: offer.max_seq_len,
        max_batch_size: offer.max_batch_size,
        prefill_chunk: offer.prefill_chunk,
        weights_dtype: offer.weights_dtype,
        kv_dtype: offer.kv_dtype,
        precision: offer.precision,
        adapters: offer.adapters,
        ..own.clone()
    };
    let (rank, size) = (shared.rank(), shared.size());
    let checkpoint = checkpoint::open(ckpt_dir)?;
    let config = checkpoint.config(offer.n_tokens)?;
    let files = checkpoint.open(options.cancel.as_ref())?;
    let build = Build::new(ckpt_dir, None, &options)?;
    let adapters = build.adapters()?;
    let share = Share::new(
        [rank, size],
        &*checkpoint,
        &files,
        &config,
        &adapters,
        &options,
    )?;
    let cpu = share.cpu(&options, offer.sharers)?;
    let found = share.found(ckpt_dir, &cpu);
    shared.link().tell(0, Kind::Plan, |m| found.write(m))?;
    // Rank 0 knows what else is on this machine, so it says whether there is room.
    shared.link().await_kind(0, Kind::Go, &mut idle)?;
    options.log.write(Level::Info, || {
        let weights = found.weight_bytes;
        format!(
            "rank {rank} of {size}: weights {weights} bytes, {}",
            found.device_name
        )
    });
    let mut said = Said {
        share: 0.0,
        progress,
    };
    let mut runner = share.load(cpu, &options, shared, &mut said)?;
    let page = crate::backend::Run::page_bytes(&runner);
    shared.link().tell(0, Kind::Ready, |m| m.size(page))?;
    shared.link().await_kind(0, Kind::Start, &mut idle)?;
    drop(share);
    drop(adapters);
    drop(files);
    serve::serve(&mut runner, shared, meanwhile)
}
