//! The loading of ranks in separate processes: rank 0 makes the handle, and every other rank takes
//! part until the handle is freed.

mod share;

use super::build::{Build, Loaded, Opened};
use super::kinds::{Kind, OnCpus, OnGpus, group, own_gpu};
use super::{BuildOptions, Device, Llama, RankInfo};
use crate::backend::gpu::device::GroupId;
use crate::checkpoint;
use crate::error::panic_text;
use crate::log::Level;
use crate::ranks::board::MAX_RANKS;
use crate::ranks::figures::Figures;
use crate::ranks::processes::adapters::Orders;
use crate::ranks::processes::comm::Comm;
use crate::ranks::processes::handshake::{Found, Hello, Offer, check_page, check_room};
use crate::ranks::processes::link::Link;
use crate::ranks::processes::message::Kind as Message;
use crate::ranks::processes::{Processes, Shared, serve};
use crate::{Error, Result};
use share::{Said, Share};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

impl Llama {
    /// As [`Llama::build`], as rank 0 of several processes. The others call [`Llama::work`].
    ///
    /// Also fails if another rank does, with that rank's sentence, and with [`Error::Peer`] if a
    /// rank does not answer. The other ranks are told of any failure.
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

    /// Takes part as a rank other than 0 until rank 0's handle is freed. Of the options, only those
    /// count that concern this process; the others are those of rank 0. `progress` gets the share
    /// of this rank's bytes that was read, and stops everything by returning `false`; `meanwhile`
    /// is called now and then.
    ///
    /// Fails with a failure of this rank, of which rank 0 was told; with [`Error::Peer`] if another
    /// rank failed, in its words, or is gone; with [`Error::Cancelled`].
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
    /// Tells the other ranks that this rank fails before it begins.
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

/// Refuses options that ranks in several processes cannot have.
fn refuse(shared: &Shared, options: &BuildOptions) -> Result<()> {
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

/// Runs what a rank does. Tells the other ranks of its failure, even of a panic.
fn ended<T>(shared: &Shared, run: impl FnOnce() -> Result<T>) -> Result<T> {
    let result = catch_unwind(AssertUnwindSafe(run));
    let panicked =
        |payload: Box<dyn std::any::Any + Send>| Err(Error::Internal(panic_text(&*payload).into()));
    let result = result.unwrap_or_else(panicked);
    result.inspect_err(|error| shared.link().fail(error))
}

impl Build<'_> {
    fn load_among(
        &self,
        shared: &Shared,
        figures: Arc<Figures>,
        progress: &mut dyn FnMut(f32) -> bool,
    ) -> Result<Llama> {
        let options = self.options;
        let hellos = greeted(shared)?;
        match options.device {
            Device::Cuda => {
                let device = own_gpu(options)?;
                let group = group(&*device, options);
                if let Err(why) = &group {
                    self.warn_of_host(why);
                }
                let kind = OnGpus::here(self, device, 0, group.ok())?;
                self.load_first(&kind, kind.group, &hellos, shared, figures, progress)
            }
            _ => {
                self.check_cpu()?;
                let kind = OnCpus::here(options, hellos[0].sharers(&hellos));
                self.load_first(&kind, None, &hellos, shared, figures, progress)
            }
        }
    }

    fn load_first<K: Kind>(
        &self,
        kind: &K,
        group: Option<GroupId>,
        hellos: &[Hello],
        shared: &Shared,
        figures: Arc<Figures>,
        progress: &mut dyn FnMut(f32) -> bool,
    ) -> Result<Llama> {
        let options = self.options;
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
        let of = (&**checkpoint, files, config);
        let share = Share::new([0, n], kind, of, &adapters, options)?;
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
                sharers: hello.sharers(hellos),
                group,
            };
            shared
                .link()
                .tell(rank, Message::Options, |m| offer.write(m))?;
        }
        let (backend, name) = share.open(options)?;
        let mut found = vec![share.found(self.ckpt_dir, &name)];
        let names: Vec<String> = (0..n).map(|rank| shared.link().name(rank)).collect();
        for (rank, name) in names.iter().enumerate().skip(1) {
            // The other ranks must not think that rank 0 is gone because one of them is slow.
            let mut beat = |link: &mut Link| {
                let every = link.patience();
                match link.is_time(every) {
                    true => link.tell_all(Message::Progress, |m| m.f32(0.0)),
                    false => Ok(()),
                }
            };
            let message = shared.link().await_kind(rank, Message::Plan, &mut beat)?;
            let theirs = Found::read(&message)?;
            theirs.check_same(&found[0], name)?;
            found.push(theirs);
        }
        check_room(hellos, &found, &names)?;
        shared.link().tell_all(Message::Go, |m| m)?;
        let sum = |of: fn(&Found) -> u64| found.iter().map(of).fold(0, u64::saturating_add);
        let bytes = [sum(|f| f.weight_bytes), sum(|f| f.kv_bytes)];
        let device_name = format!("{n} ranks: {}", found[0].device_name);
        self.say(&opened, &share.setting, bytes, &device_name);
        let mut said = Said {
            share: 0.0,
            progress,
        };
        let (runner, carrier) = share.load(backend, options, shared, &mut said)?;
        let mut pages = Vec::with_capacity(n);
        for (rank, name) in names.iter().enumerate().skip(1) {
            let mut beat = |link: &mut Link| {
                if !said.say(link.progress()) {
                    return Err(Error::Cancelled);
                }
                let every = link.patience();
                match link.is_time(every) {
                    true => link.tell_all(Message::Progress, |m| m.f32(1.0)),
                    false => Ok(()),
                }
            };
            let ready = shared.link().await_kind(rank, Message::Ready, &mut beat)?;
            let page = share.page_bytes(rank);
            check_page(&ready, page, name)?;
            pages.push(page);
        }
        if !said.say(1.0) {
            return Err(Error::Cancelled);
        }
        {
            let mut link = shared.link();
            link.tell_all(Message::Start, |m| m)?;
            // Ranks that were ready were silent because they waited for the slowest one.
            link.forget_silence();
        }
        let runner = share.among(runner, shared)?;
        shared.link().forget_cancel();
        let ranks = hellos.iter().zip(&found);
        let ranks = ranks.map(|(hello, found)| RankInfo {
            device: K::DEVICE,
            pid: hello.pid,
            weight_bytes: found.weight_bytes,
            kv_bytes: found.kv_bytes,
            host: hello.host.clone(),
            device_name: found.device_name.clone(),
        });
        let orders = Orders::default();
        let run = Processes::new(Box::new(runner), shared.clone(), pages, orders.clone());
        let loaded = Loaded {
            draft: None,
            run: Box::new(run),
            ranks: ranks.collect(),
            figures,
            device: K::DEVICE,
            device_name,
            weights_dtype: share.setting.weights_dtypes[0],
            kv_dtype: share.setting.kv_dtype,
            weight_bytes: bytes[0],
            kv_bytes: bytes[1],
            adapters: share.loader(carrier),
            orders: Some(orders),
        };
        drop(share);
        self.handle(opened, loaded)
    }
}

/// At rank 0: waits for the ranks to say who they are.
fn greeted(shared: &Shared) -> Result<Vec<Hello>> {
    let size = shared.size();
    let mut hellos = vec![Hello::own()];
    for rank in 1..size {
        let mut link = shared.link();
        let message = link.await_kind(rank, Message::Hello, &mut |_| Ok(()))?;
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
    let offer = shared.link().await_kind(0, Message::Options, &mut idle)?;
    let offer = Offer::read(&offer)?;
    shared.set_timeout(offer.timeout);
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
    let build = Build::new(ckpt_dir, None, &options)?;
    let mut worker = Worker {
        build: &build,
        shared,
        n_tokens: offer.n_tokens,
        progress,
        meanwhile,
    };
    match options.device {
        Device::Cuda => {
            let device = own_gpu(&options)?;
            worker.work(&OnGpus::here(&build, device, shared.rank(), offer.group)?)
        }
        _ => {
            build.check_cpu()?;
            worker.work(&OnCpus::here(&options, offer.sharers))
        }
    }
}

struct Worker<'a> {
    build: &'a Build<'a>,
    shared: &'a Shared,
    /// The number of tokens of the tokenizer. Only rank 0 opens the tokenizer.
    n_tokens: usize,
    progress: &'a mut dyn FnMut(f32) -> bool,
    meanwhile: &'a mut dyn FnMut(),
}

impl Worker<'_> {
    fn work<K: Kind>(&mut self, kind: &K) -> Result<()> {
        let Worker { build, shared, .. } = *self;
        let (options, ckpt_dir) = (build.options, build.ckpt_dir);
        let checkpoint = checkpoint::open(ckpt_dir)?;
        let config = checkpoint.config(self.n_tokens)?;
        let files = checkpoint.open(options.cancel.as_ref())?;
        let adapters = build.adapters()?;
        let ranks = [shared.rank(), shared.size()];
        let of = (&*checkpoint, &files, &config);
        let share = Share::new(ranks, kind, of, &adapters, options)?;
        let (backend, name) = share.open(options)?;
        let found = share.found(ckpt_dir, &name);
        shared.link().tell(0, Message::Plan, |m| found.write(m))?;
        // Rank 0 knows what else is on this machine, so it says whether there is room.
        self.hear(Message::Go)?;
        options.log.write(Level::Info, || {
            let ([rank, size], weights) = (ranks, found.weight_bytes);
            format!("rank {rank} of {size}: weights {weights} bytes, {name}")
        });
        let mut said = Said {
            share: 0.0,
            progress: &mut *self.progress,
        };
        let (runner, carrier) = share.load(backend, options, shared, &mut said)?;
        let loader = share.loader(carrier);
        let page = crate::backend::Run::page_bytes(&runner);
        shared.link().tell(0, Message::Ready, |m| m.size(page))?;
        self.hear(Message::Start)?;
        let mut runner = share.among(runner, shared)?;
        drop(share);
        drop(adapters);
        drop(files);
        let load = |dir: &Path, scale| loader.load_own(dir, scale);
        serve::serve(&mut runner, shared, &load, self.meanwhile)
    }

    /// Waits for a message of rank 0.
    fn hear(&mut self, kind: Message) -> Result<()> {
        let mut idle = |_: &mut Link| {
            (self.meanwhile)();
            Ok(())
        };
        self.shared.link().await_kind(0, kind, &mut idle).map(drop)
    }
}
