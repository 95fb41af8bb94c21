//! A rank's share of a model in a separate process, on a device of any kind.

use crate::backend::{Backend, Carrier};
use crate::checkpoint::weights::{self, LoadControl};
use crate::checkpoint::{Adapter, Checkpoint, Files, Plan, fingerprint};
use crate::llama::adapters::Loader;
use crate::llama::kinds::{Items, Kind};
use crate::llama::plan::MemoryPlan;
use crate::llama::setting::{Setting, memory, setting};
use crate::llama::{BuildOptions, Device};
use crate::model::{Config, Cuts, Runner, rope};
use crate::ranks::processes::Shared;
use crate::ranks::processes::handshake::Found;
use crate::ranks::processes::link::{Link, MOST};
use crate::ranks::processes::message::{Kind as Message, Writer};
use crate::{Error, Result};
use std::path::Path;

/// A rank's share of a model: what it is made for, and the memory that it takes.
pub(super) struct Share<'a, K> {
    rank: usize,
    kind: &'a K,
    cuts: Cuts,
    plan: Plan<'a>,
    pub setting: Setting<'a>,
    items: Items,
    /// The most numbers that the rank gives at a time through the host.
    most: usize,
    fingerprint: u64,
}

/// A loaded rank, and what brings adapters to its device.
type Loaded<B> = (Runner<B>, Option<Box<dyn Carrier>>);

impl<'a, K: Kind> Share<'a, K> {
    pub fn new(
        [rank, ranks]: [usize; 2],
        kind: &'a K,
        (checkpoint, files, config): (&dyn Checkpoint, &'a Files, &'a Config),
        adapters: &'a [Adapter],
        options: &BuildOptions,
    ) -> Result<Self> {
        K::Backend::takes(&config.needs(options.max_seq_len))?;
        let asked = options.weights_dtype;
        let whole = Plan::new::<K::Backend>(checkpoint, files, config, asked, adapters)?;
        let cuts = Cuts::new(&config.shape, ranks, whole.blocks())?;
        let setting = setting::<K::Backend>(options, config, &whole, options.kv_dtype);
        let fingerprint = fingerprint(config, files, &whole)?;
        let plan = whole.cut(&cuts, rank);
        let shape = cuts.shape(rank);
        let mut items = memory::<K::Backend>(&shape, &plan, &setting, options);
        let limits = &setting.limits;
        let most = kind.most(shape.dim, limits, cuts.vocabulary());
        if most > MOST {
            return Err(Error::Unsupported(format!(
                "ranks would exchange {most} numbers at a time, at most {MOST}: a smaller \
                 max_batch_size or prefill_chunk would need fewer"
            )));
        }
        let exchange = kind.exchange_bytes(shape.dim, limits, &cuts, rank);
        items[3].1 = items[3].1.saturating_add(exchange);
        if K::DEVICE == Device::Cpu {
            let page = K::Backend::page_bytes(&shape, setting.kv_dtype) as usize;
            let link = Link::bytes(ranks, Writer::most(limits).max(page), most);
            items[3].1 = items[3].1.saturating_add(link);
        }
        Ok(Share {
            rank,
            kind,
            cuts,
            plan,
            setting,
            items,
            most,
            fingerprint,
        })
    }

    pub fn found(&self, path: &Path, device_name: &str) -> Found {
        let memory = MemoryPlan {
            items: self.items.to_vec(),
            budget: self.kind.budget(self.rank),
        };
        Found {
            on_gpu: K::DEVICE == Device::Cuda,
            fingerprint: self.fingerprint,
            path: path.to_owned(),
            needed: memory.needed(),
            weight_bytes: self.items[0].1,
            kv_bytes: self.items[1].1,
            available: memory.budget.available,
            device_name: device_name.to_owned(),
        }
    }

    /// Bytes of a page at a rank, this one or another.
    pub fn page_bytes(&self, rank: usize) -> usize {
        K::Backend::page_bytes(&self.cuts.shape(rank), self.setting.kv_dtype) as usize
    }

    fn explain(&self, error: Error) -> Error {
        self.kind.explain(error, self.rank, &[self.items])
    }

    pub fn open(&self, options: &BuildOptions) -> Result<(K::Backend, String)> {
        let rope = rope::table(self.setting.config, options.max_seq_len)?;
        let (rank, shape) = (self.rank, self.cuts.shape(self.rank));
        let opened = self
            .kind
            .open(rank, &shape, &rope, &self.setting, &[self.items]);
        opened.map_err(|error| self.explain(error))
    }

    /// Reads this rank's weights, and tells the other ranks how far it is. The caller at rank 0
    /// hears the smallest share of all ranks; other callers hear their own rank's share.
    pub fn load(
        &self,
        backend: K::Backend,
        options: &BuildOptions,
        shared: &Shared,
        said: &mut Said<'_>,
    ) -> Result<Loaded<K::Backend>> {
        let mut failed = None;
        let mut tell = |share: f32| {
            let mut link = shared.link();
            let every = link.patience();
            let told = match link.is_time(every) {
                true => link.tell_all(Message::Progress, |m| m.f32(share)),
                false => link.look(),
            };
            let heard = match self.rank {
                0 => share.min(link.progress()),
                _ => share,
            };
            drop(link);
            match told {
                Ok(()) => said.say(heard),
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
        let weights = weights::load(&backend, &self.plan, &mut control);
        // The reason is what stopped the loading, not that it was stopped.
        let weights = failed.map_or(weights, Err);
        let weights = weights.map_err(|error| self.explain(error))?;
        let limits = &self.setting.limits;
        let shape = self.cuts.shape(self.rank);
        let kv_dtype = self.setting.kv_dtype;
        let message = Writer::most(limits).max(self.page_bytes(self.rank));
        shared.link().make_room(message, self.most)?;
        let carrier = backend.carrier();
        let runner = Runner::new(backend, weights, &shape, kv_dtype, limits.clone());
        Ok((runner.map_err(|error| self.explain(error))?, carrier))
    }

    /// A loader of this rank's adapters of requests.
    pub fn loader(&self, carrier: Option<Box<dyn Carrier>>) -> Loader {
        Loader {
            config: self.setting.config.clone(),
            dtype: self.setting.weights_dtypes[0],
            cuts: self.cuts.clone(),
            first: self.rank,
            allowed: self.kind.takes_adapters(),
            carriers: vec![carrier],
        }
    }

    /// Makes the runner one of the ranks, once all ranks are loaded.
    pub fn among(&self, runner: Runner<K::Backend>, shared: &Shared) -> Result<Runner<K::Backend>> {
        let wire = Box::new(shared.clone());
        let (shape, limits) = (self.cuts.shape(self.rank), &self.setting.limits);
        let vocabulary = self.cuts.vocabulary();
        let runner = runner.among(|backend| {
            self.kind
                .exchange(backend, wire, shape.dim, limits, vocabulary)
        });
        runner.map_err(|error| self.explain(error))
    }
}

/// The progress that the caller was told, which never falls.
pub(super) struct Said<'a> {
    pub share: f32,
    pub progress: &'a mut dyn FnMut(f32) -> bool,
}

impl Said<'_> {
    /// Tells the caller a share that is news. Returns whether to go on.
    pub fn say(&mut self, share: f32) -> bool {
        share <= self.share || {
            self.share = share;
            (self.progress)(share)
        }
    }
}
