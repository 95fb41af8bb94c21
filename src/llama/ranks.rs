//! The loading of several ranks: each reads its share of the weights on its own processors, all at
//! the same time.

use super::build::{Build, Loaded, Opened};
use super::plan::{MemoryPlan, Place};
use super::setting::{Setting, memory, setting};
use super::{BuildOptions, Device, Llama, RankInfo};
use crate::backend::RopeTable;
use crate::backend::cpu::{Cpu, CpuExchange, usable_threads};
use crate::checkpoint::weights::{self, LoadControl};
use crate::checkpoint::{Adapter, Plan};
use crate::error::panic_text;
use crate::log::Level;
use crate::model::{Cuts, Runner, matrices::LAYER, rope};
use crate::ranks::board::{Board, MAX_RANKS};
use crate::ranks::figures::Figures;
use crate::ranks::nodes::{self, Processors};
use crate::ranks::{Rank, Ranks};
use crate::thread::without_signals;
use crate::{Error, Result};
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How often the caller hears of the progress, and is asked whether to go on.
const REPORT: Duration = Duration::from_millis(20);

/// What all ranks are loaded from.
struct Shares<'a> {
    build: &'a Build<'a>,
    cuts: &'a Cuts,
    plans: &'a [Plan<'a>],
    setting: &'a Setting<'a>,
    rope: &'a RopeTable,
    places: &'a [Processors],
    board: &'a Arc<Board>,
    /// The share of its bytes that each rank has read, as bits of a float.
    progress: Vec<AtomicU32>,
    stop: AtomicBool,
}

impl Build<'_> {
    /// Loads a rank onto each of the nodes that `devices` names.
    pub(super) fn load_on_ranks(&self, progress: &mut dyn FnMut(f32) -> bool) -> Result<Llama> {
        let options = self.options;
        let n = options.devices.len();
        if options.device == Device::Cuda {
            let what = "devices: ranks run on the CPU; a GPU is chosen by device_index";
            return Err(Error::Unsupported(what.into()));
        }
        if options.draft_dir.is_some() {
            let what =
                "devices together with draft_dir: a model of several ranks has no draft model";
            return Err(Error::Unsupported(what.into()));
        }
        if options.medusa_dir.is_some() {
            let what =
                "devices together with medusa_dir: a model of several ranks has no Medusa heads";
            return Err(Error::Unsupported(what.into()));
        }
        if n > MAX_RANKS {
            return Err(Error::invalid(
                "n_devices",
                format!("at most {MAX_RANKS}"),
                n,
            ));
        }
        self.check_cpu()?;
        let places = nodes::choose(&nodes::of_machine(), &options.devices)?;
        let opened = self.open_checkpoint()?;
        let adapters = self.adapters()?;
        let whole = self.plan(&opened, &adapters)?;
        let [_, o, _, down] = std::array::from_fn::<_, { LAYER.len() }, _>(|i| whole.block(i));
        let cuts = Cuts::new(&opened.config.shape, n, [o, down])?;
        let setting = setting::<Cpu>(options, &opened.config, &whole, options.kv_dtype);
        let mut plans = vec![whole.cut(&cuts, 0)];
        for rank in 1..n {
            plans.push(self.plan(&opened, &adapters)?.cut(&cuts, rank));
        }
        let most = CpuExchange::most(opened.config.shape.dim, &setting.limits, cuts.vocabulary());
        let plan = MemoryPlan {
            items: self.memory_of_all(&cuts, &plans, &setting, most).to_vec(),
            place: Place::cpu(),
        };
        plan.check()?;
        let (weight_bytes, kv_bytes) = (plan.items[0].1, plan.items[1].1);
        let of_rank = |rank: usize| {
            let items = memory::<Cpu>(&cuts.shape(rank), &plans[rank], &setting, options);
            [items[0].1, items[1].1]
        };
        let bytes: Vec<[u64; 2]> = (0..n).map(of_rank).collect();
        warn_of_full_nodes(options, &bytes);
        let figures = Arc::new(Figures::new(n));
        let timeout = Duration::from_millis(options.rank_timeout_ms.into());
        let board = Board::new(n, most, timeout, figures.clone())?;
        let rope = rope::table(&opened.config, options.max_seq_len)?;
        let shares = Shares {
            build: self,
            cuts: &cuts,
            plans: &plans,
            setting: &setting,
            rope: &rope,
            places: &places,
            board: &board,
            progress: (0..n).map(|_| AtomicU32::new(0)).collect(),
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
        let infos = runners.iter().zip(bytes);
        let infos =
            infos.map(|((_, name), bytes)| RankInfo::here(Device::Cpu, bytes, name.clone()));
        let infos = infos.collect();
        let ranks = runners.into_iter().zip(places);
        let ranks = ranks.map(|((runner, _), processors)| Rank {
            run: Box::new(runner),
            processors,
        });
        let what = "adapters of requests are for one rank; with several, merge them while loading";
        let loaded = Loaded {
            draft: None,
            run: Box::new(Ranks::new(ranks.collect(), board)?),
            ranks: infos,
            figures,
            device: Device::Cpu,
            device_name,
            weights_dtype,
            kv_dtype,
            weight_bytes,
            kv_bytes,
            carrier: match n {
                1 => Ok(None),
                _ => Err(Error::Unsupported(what.into())),
            },
        };
        self.handle(opened, loaded)
    }

    fn plan<'a>(&self, opened: &'a Opened, adapters: &'a [Adapter]) -> Result<Plan<'a>> {
        let Opened {
            checkpoint,
            config,
            files,
            ..
        } = opened;
        let asked = self.options.weights_dtype;
        Plan::new::<Cpu>(&**checkpoint, files, config, asked, adapters)
    }

    /// What all ranks take together, which exchange at most `most` numbers at a time.
    fn memory_of_all(
        &self,
        cuts: &Cuts,
        plans: &[Plan<'_>],
        setting: &Setting<'_>,
        most: usize,
    ) -> [(&'static str, u64); 4] {
        let mut all = memory::<Cpu>(&cuts.shape(0), &plans[0], setting, self.options);
        for (rank, plan) in plans.iter().enumerate().skip(1) {
            let own = memory::<Cpu>(&cuts.shape(rank), plan, setting, self.options);
            for (all, own) in all.iter_mut().zip(own) {
                all.1 = all.1.saturating_add(own.1);
            }
        }
        if cuts.ranks() > 1 {
            let (dim, limits) = (cuts.shape(0).dim, &setting.limits);
            let own = |range: &std::ops::Range<usize>| CpuExchange::bytes(dim, limits, range.len());
            let parts: u64 = cuts.vocabulary().iter().map(own).sum();
            let scratch = &mut all[3].1;
            *scratch = scratch.saturating_add(parts + Board::bytes(cuts.ranks(), most));
        }
        all
    }
}

impl Shares<'_> {
    /// Loads all ranks. Returns each with its description, in order.
    fn load(&self, progress: &mut dyn FnMut(f32) -> bool) -> Result<Vec<(Runner<Cpu>, String)>> {
        let n = self.plans.len();
        let results: Mutex<Vec<Option<Result<_>>>> = Mutex::new((0..n).map(|_| None).collect());
        let keep = |rank: usize, result: Result<_>| {
            if result.is_err() {
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
                // Ranks that were stopped because another one failed are not the reason.
                Err(Error::Cancelled) => failed = failed.or(Some(Error::Cancelled)),
                Err(error) if matches!(failed, None | Some(Error::Cancelled)) => {
                    failed = Some(of_rank(error, rank));
                }
                Err(_) => {}
            }
        }
        match failed {
            Some(error) => Err(error),
            None if self.stop.load(Ordering::Relaxed) => Err(Error::Cancelled),
            None => Ok(loaded),
        }
    }

    /// Tells the caller how far the slowest rank is, if that is news.
    fn report(&self, share: &mut f32, progress: &mut dyn FnMut(f32) -> bool) {
        let of_rank = |bits: &AtomicU32| f32::from_bits(bits.load(Ordering::Relaxed));
        let now = self.progress.iter().map(of_rank).fold(1.0, f32::min);
        if now > *share && !self.stop.load(Ordering::Relaxed) {
            *share = now;
            if !progress(now) {
                self.stop.store(true, Ordering::Relaxed);
            }
        }
    }

    fn load_rank(&self, rank: usize) -> Result<(Runner<Cpu>, String)> {
        let options = self.build.options;
        let place = &self.places[rank];
        if !nodes::stay_on(place) {
            let node = options.devices[rank];
            options.log.write(Level::Warn, || {
                format!("rank {rank} cannot be kept on the processors of NUMA node {node}")
            });
        }
        let n_threads = match options.n_threads {
            0 => {
                let same = self.places.iter().filter(|other| *other == place);
                (usable_threads() / same.count()).max(1)
            }
            n => n,
        };
        let (shape, limits) = (self.cuts.shape(rank), &self.setting.limits);
        let precision = options.precision.of_cpu(options.max_batch_size);
        let cpu = Cpu::new(&shape, self.rope.clone(), n_threads, limits.max_rows)?;
        let cpu = cpu.precision(precision);
        let description = cpu.description();
        let mut control = LoadControl {
            cancel: options.cancel.as_ref(),
            progress: &mut |share| {
                self.progress[rank].store(share.to_bits(), Ordering::Relaxed);
                !self.stop.load(Ordering::Relaxed)
            },
        };
        let weights = weights::load(&cpu, &self.plans[rank], &mut control)?;
        let kv_dtype = self.setting.kv_dtype;
        let runner = Runner::new(cpu, weights, &shape, kv_dtype, limits.clone())?;
        if self.cuts.ranks() == 1 {
            return Ok((runner, description));
        }
        let wire = Box::new(self.board.wire(rank));
        let vocabulary = self.cuts.vocabulary().to_vec();
        let exchange = CpuExchange::new(wire, shape.dim, limits, vocabulary)?;
        Ok((runner.among(Box::new(exchange)), description))
    }
}

/// Says where the memory of a node is too small for the weights and caches of its ranks.
fn warn_of_full_nodes(options: &BuildOptions, bytes: &[[u64; 2]]) {
    let nodes: BTreeSet<usize> = options.devices.iter().copied().collect();
    for node in nodes {
        let of_rank = options.devices.iter().zip(bytes);
        let of_node = of_rank.filter(|(device, _)| **device == node);
        let needed: u64 = of_node.map(|(_, bytes)| bytes.iter().sum::<u64>()).sum();
        if let Some(room) = nodes::room(node).filter(|&room| room < needed) {
            options.log.write(Level::Warn, || {
                format!(
                    "the ranks on NUMA node {node} need {needed} bytes, and it has {room} left: the \
                     rest will lie on other nodes, which takes longer to read"
                )
            });
        }
    }
}

/// Memory that lacks says which rank lacks it. Other errors name a file or an option.
fn of_rank(error: Error, rank: usize) -> Error {
    match error {
        Error::NoMemory {
            what,
            needed,
            available,
            limit,
        } => Error::NoMemory {
            what: format!("rank {rank}: {what}"),
            needed,
            available,
            limit,
        },
        Error::Refused {
            what,
            needed,
            limit,
        } => Error::Refused {
            what: format!("rank {rank}: {what}"),
            needed,
            limit,
        },
        error => error,
    }
}
