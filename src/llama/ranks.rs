//! The loading of several ranks: each reads its share of the weights onto its own device, all at
//! the same time.

use super::adapters::Loader;
use super::build::{Build, Loaded, Opened};
use super::kinds::{Items, Kind, OnCpus, OnGpus, by_item, gpus, group, neighbours};
use super::setting::{Setting, memory, setting};
use super::{Device, Llama, RankInfo};
use crate::backend::gpu;
use crate::backend::{Backend, Carrier, RopeTable};
use crate::checkpoint::weights::{self, LoadControl};
use crate::checkpoint::{Adapter, Plan};
use crate::error::panic_text;
use crate::log::Level;
use crate::model::{Cuts, Runner, rope};
use crate::ranks::board::{Board, MAX_RANKS};
use crate::ranks::figures::Figures;
use crate::ranks::nodes;
use crate::ranks::{Rank, Ranks, of_rank};
use crate::thread::without_signals;
use crate::{Cancel, Error, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How often the caller hears of the progress, and is asked whether to go on.
const REPORT: Duration = Duration::from_millis(20);

/// What the loading of all ranks has in common.
struct Shares<'a, K> {
    build: &'a Build<'a>,
    kind: &'a K,
    cuts: &'a Cuts,
    plans: &'a [Plan<'a>],
    items: &'a [Items],
    setting: &'a Setting<'a>,
    rope: &'a RopeTable,
    board: &'a Arc<Board>,
    /// The share of its bytes that each rank has read, as bits of a float.
    progress: Vec<AtomicU32>,
    /// The number of ranks that have loaded their weights.
    loaded: AtomicUsize,
    stop: AtomicBool,
}

impl Build<'_> {
    /// Loads a rank onto each of the GPUs or nodes that `devices` names.
    pub(super) fn load_on_ranks(&self, progress: &mut dyn FnMut(f32) -> bool) -> Result<Llama> {
        let options = self.options;
        if options.device == Device::Cuda {
            let mut devices = gpus(options)?;
            return match devices.len() {
                1 => self.load_on_gpu(devices.remove(0), progress),
                _ => self.load_on_gpus(devices, progress),
            };
        }
        self.check_cpu()?;
        let places = nodes::choose(&nodes::of_machine(), &options.devices)?;
        self.load_ranks(&OnCpus::on_nodes(options, places), progress)
    }

    /// Loads a rank onto each of these GPUs. Equal numbers in `devices` are the same GPU.
    pub(super) fn load_on_gpus<D: gpu::device::Device>(
        &self,
        devices: Vec<Arc<D>>,
        progress: &mut dyn FnMut(f32) -> bool,
    ) -> Result<Llama> {
        let options = self.options;
        if devices.len() != options.devices.len() {
            let (have, want) = (devices.len(), options.devices.len());
            return Err(Error::Internal(format!("{have} GPUs for {want} ranks")));
        }
        let group = group(&*devices[0], options);
        if let Err(why) = &group
            && devices.len() > 1
        {
            self.warn_of_host(why);
        }
        let neighbours = match group {
            Ok(_) if devices.len() > 1 => Some(neighbours(&devices)),
            _ => None,
        };
        if let Some(Err(why)) = &neighbours {
            options.log.write(Level::Info, || {
                format!("all sums of the ranks go by NCCL: {why}")
            });
        }
        let available = devices.iter().map(|device| self.available(&**device));
        let kind = OnGpus {
            build: self,
            first: 0,
            indices: options.devices.clone(),
            available: available.collect::<Result<_>>()?,
            group: group.ok(),
            neighbours: neighbours.and_then(std::result::Result::ok),
            devices,
        };
        self.load_ranks(&kind, progress)
    }

    /// Says that ranks on GPUs are slower than they could be.
    pub(super) fn warn_of_host(&self, why: &str) {
        self.options.log.write(Level::Warn, || {
            format!(
                "ranks on GPUs exchange numbers through the memory of the host, and wait for every \
                 exchange, because NCCL is not used: {why}"
            )
        });
    }

    /// Checks what ranks of any kind refuse.
    fn check_ranks(&self, n: usize) -> Result<()> {
        let options = self.options;
        let refused = [
            (options.draft_dir.is_some(), "draft_dir", "draft model"),
            (options.medusa_dir.is_some(), "medusa_dir", "Medusa heads"),
        ];
        for (asked, name, what) in refused {
            if asked {
                return Err(Error::Unsupported(format!(
                    "devices together with {name}: a model of several ranks has no {what}"
                )));
            }
        }
        if n > MAX_RANKS {
            return Err(Error::invalid(
                "n_devices",
                format!("at most {MAX_RANKS}"),
                n,
            ));
        }
        Ok(())
    }

    fn load_ranks<K: Kind>(
        &self,
        kind: &K,
        progress: &mut dyn FnMut(f32) -> bool,
    ) -> Result<Llama> {
        let options = self.options;
        let n = options.devices.len();
        self.check_ranks(n)?;
        let opened = self.open_checkpoint()?;
        K::Backend::takes(&opened.config.needs(options.max_seq_len))?;
        let adapters = self.adapters()?;
        let whole = self.plan::<K::Backend>(&opened, &adapters)?;
        let cuts = Cuts::new(&opened.config.shape, n, whole.blocks())?;
        let setting = setting::<K::Backend>(options, &opened.config, &whole, options.kv_dtype);
        let mut plans = vec![whole.cut(&cuts, 0)];
        for rank in 1..n {
            let whole = self.plan::<K::Backend>(&opened, &adapters)?;
            plans.push(whole.cut(&cuts, rank));
        }
        let (dim, limits) = (opened.config.shape.dim, &setting.limits);
        let most = kind.most(dim, limits, cuts.vocabulary());
        let items: Vec<Items> = (0..n)
            .map(|rank| {
                let shape = cuts.shape(rank);
                let mut own = memory::<K::Backend>(&shape, &plans[rank], &setting, options);
                if n > 1 {
                    let exchange = kind.exchange_bytes(dim, limits, &cuts, rank);
                    own[3].1 = own[3].1.saturating_add(exchange);
                }
                own
            })
            .collect();
        let on_board = match n {
            1 => 0,
            _ => Board::bytes(n, most),
        };
        kind.check(&items, on_board)?;
        let all = by_item(&items);
        let (weight_bytes, kv_bytes) = (all[0].1, all[1].1);
        let figures = Arc::new(Figures::new(n));
        let timeout = Duration::from_millis(options.rank_timeout_ms.into());
        let board = Board::new(n, most, timeout, figures.clone())?;
        let rope = rope::table(&opened.config, options.max_seq_len)?;
        let shares = Shares {
            build: self,
            kind,
            cuts: &cuts,
            plans: &plans,
            items: &items,
            setting: &setting,
            rope: &rope,
            board: &board,
            progress: (0..n).map(|_| AtomicU32::new(0)).collect(),
            loaded: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
        };
        let runners = shares.load(progress)?;
        let device_name = match n {
            1 => runners[0].1.clone(),
            _ => format!("{n} ranks: {}", runners[0].1),
        };
        self.say(&opened, &setting, [weight_bytes, kv_bytes], &device_name);
        let (weights_dtype, kv_dtype) = (setting.weights_dtypes[0], setting.kv_dtype);
        drop(plans);
        let infos = runners.iter().zip(&items);
        let infos = infos.map(|((_, name, _), own)| {
            RankInfo::here(K::DEVICE, [own[0].1, own[1].1], name.clone())
        });
        let infos = infos.collect();
        let (mut ranks, mut carriers) = (Vec::with_capacity(n), Vec::with_capacity(n));
        for (rank, (runner, _, carrier)) in runners.into_iter().enumerate() {
            ranks.push(Rank {
                run: Box::new(runner),
                processors: kind.processors(rank),
            });
            carriers.push(carrier);
        }
        // A failure is put on the board, so that devices end at once. Otherwise each device would
        // wait for the others to end with it. But devices on which nothing runs end here one after
        // another, so they would wait in vain.
        let fail = |error: &Error| board.fail(error.clone());
        let loaded = Loaded {
            draft: None,
            run: Box::new(Ranks::new(ranks, board.clone()).inspect_err(fail)?),
            ranks: infos,
            figures,
            device: K::DEVICE,
            device_name,
            weights_dtype,
            kv_dtype,
            weight_bytes,
            kv_bytes,
            adapters: Loader {
                config: opened.config.clone(),
                dtype: weights_dtype,
                cuts,
                first: 0,
                allowed: kind.takes_adapters(),
                carriers,
            },
            orders: None,
        };
        self.handle(opened, loaded).inspect_err(fail)
    }

    fn plan<'a, B: Backend>(
        &self,
        opened: &'a Opened,
        adapters: &'a [Adapter],
    ) -> Result<Plan<'a>> {
        let Opened {
            checkpoint,
            config,
            files,
            ..
        } = opened;
        let asked = self.options.weights_dtype;
        Plan::new::<B>(&**checkpoint, files, config, asked, adapters)
    }
}

/// A loaded rank, its description, and what brings adapters to its device.
type LoadedRank<B> = (Runner<B>, String, Option<Box<dyn Carrier>>);

impl<K: Kind> Shares<'_, K> {
    /// Loads all ranks. Returns each with its description, in order.
    fn load(&self, progress: &mut dyn FnMut(f32) -> bool) -> Result<Vec<LoadedRank<K::Backend>>> {
        let n = self.plans.len();
        let results: Mutex<Vec<Option<Result<_>>>> = Mutex::new((0..n).map(|_| None).collect());
        let keep = |rank: usize, result: Result<_>| {
            if let Err(error) = &result {
                // Other ranks may wait for this one. Which rank failed first is known afterwards.
                self.board.fail(of_rank(Error::clone(error), rank));
                self.stop.store(true, Ordering::Relaxed);
            }
            results.lock().unwrap_or_else(|e| e.into_inner())[rank] = Some(result);
        };
        let mut share = 0.0;
        std::thread::scope(|scope| {
            let (ended, ends) = channel::<()>();
            for rank in 0..n {
                let (ended, keep) = (ended.clone(), &keep);
                let builder = std::thread::Builder::new().name(format!("llamabi-load-{rank}"));
                let load = move || {
                    let result = catch_unwind(AssertUnwindSafe(|| self.load_rank(rank)));
                    let panicked = |panic: Box<dyn std::any::Any + Send>| {
                        Err(Error::Internal(panic_text(&*panic).into()))
                    };
                    keep(rank, result.unwrap_or_else(panicked));
                    drop(ended);
                };
                if let Err(e) = without_signals(|| builder.spawn_scoped(scope, load)) {
                    keep(rank, Err(Error::thread(format!("rank {rank}"), &e)));
                }
            }
            drop(ended);
            // Ends when all threads have dropped their end of the channel.
            while ends.recv_timeout(REPORT) == Err(RecvTimeoutError::Timeout) {
                self.report(&mut share, progress);
            }
            self.report(&mut share, progress);
        });
        let results = results.into_inner().unwrap_or_else(|e| e.into_inner());
        let (mut loaded, mut failed) = (Vec::with_capacity(n), None);
        for (rank, result) in results.into_iter().flatten().enumerate() {
            match result {
                Ok(rank) => loaded.push(rank),
                // Ranks that were stopped because another rank failed are not the reason.
                Err(Error::Cancelled) => failed = failed.or(Some(Error::Cancelled)),
                Err(error) if matches!(failed, None | Some(Error::Cancelled)) => {
                    failed = Some(of_rank(error, rank));
                }
                Err(_) => {}
            }
        }
        match failed {
            Some(Error::Cancelled) => Err(Error::Cancelled),
            Some(error) => Err(self.board.failure().unwrap_or(error)),
            None if self.stop.load(Ordering::Relaxed) => Err(Error::Cancelled),
            None => Ok(loaded),
        }
    }

    /// Tells the caller how far the slowest rank is, if that is news. If the caller cancels, all
    /// ranks stop, even if they wait for one another.
    fn report(&self, share: &mut f32, progress: &mut dyn FnMut(f32) -> bool) {
        if self.stop.load(Ordering::Relaxed) {
            return;
        }
        let of_rank = |bits: &AtomicU32| f32::from_bits(bits.load(Ordering::Relaxed));
        let now = self.progress.iter().map(of_rank).fold(1.0, f32::min);
        let is_news = now > *share;
        *share = share.max(now);
        let cancel = self.build.options.cancel.as_ref();
        if cancel.is_some_and(Cancel::is_triggered) || is_news && !progress(now) {
            self.stop.store(true, Ordering::Relaxed);
            self.board.fail(Error::Cancelled);
        }
    }

    fn load_rank(&self, rank: usize) -> Result<LoadedRank<K::Backend>> {
        let explain = |error| self.kind.explain(error, rank, self.items);
        let (shape, limits) = (self.cuts.shape(rank), &self.setting.limits);
        let opened = self
            .kind
            .open(rank, &shape, self.rope, self.setting, self.items);
        let (backend, description) = opened.map_err(explain)?;
        let mut control = LoadControl {
            cancel: self.build.options.cancel.as_ref(),
            progress: &mut |share| {
                self.progress[rank].store(share.to_bits(), Ordering::Relaxed);
                !self.stop.load(Ordering::Relaxed)
            },
        };
        let weights = weights::load(&backend, &self.plans[rank], &mut control).map_err(explain)?;
        let kv_dtype = self.setting.kv_dtype;
        let carrier = backend.carrier();
        let runner = Runner::new(backend, weights, &shape, kv_dtype, limits.clone());
        let runner = runner.map_err(explain)?;
        if self.cuts.ranks() == 1 {
            return Ok((runner, description, carrier));
        }
        self.meet()?;
        let wire = Box::new(self.board.wire(rank));
        let vocabulary = self.cuts.vocabulary();
        let exchange = |backend: &mut _| {
            self.kind
                .exchange(backend, wire, shape.dim, limits, vocabulary)
        };
        let runner = runner.among(exchange).map_err(explain)?;
        Ok((runner, description, carrier))
    }

    /// Waits until all ranks are here. This may take as long as the slowest disk.
    fn meet(&self) -> Result<()> {
        self.loaded.fetch_add(1, Ordering::Relaxed);
        while self.loaded.load(Ordering::Relaxed) < self.cuts.ranks() {
            if self.stop.load(Ordering::Relaxed) {
                return Err(Error::Cancelled);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}
