//! The loading of a checkpoint, and of a draft model's beside it, onto one device.

use super::adapters::Loader;
use super::build::{Build, Loaded, Opened};
use super::plan::{Budget, MemoryPlan};
use super::setting::{Setting, memory, setting};
use super::{Llama, RankInfo};
use crate::backend::{Backend, Carrier, RopeTable, Run, Steps};
use crate::checkpoint::medusa::{HeadsPlan, Medusa};
use crate::checkpoint::weights::{self, LoadControl};
use crate::checkpoint::{Adapter, Plan};
use crate::engine::MAX_DRAFTS;
use crate::model::medusa::Heads;
use crate::model::{Cuts, Runner, rope};
use crate::ranks::figures::Figures;
use crate::{Dtype, Result};
use std::sync::Arc;

/// The parts of a checkpoint that are to be loaded.
struct Part<'a> {
    plan: Plan<'a>,
    /// Medusa heads beside the checkpoint.
    heads: Option<HeadsPlan<'a>>,
    setting: Setting<'a>,
    /// The memory that it takes, as [`memory`] counts it.
    items: [(&'static str, u64); 4],
}

/// A model that runs, what brings adapters to its device, and the name of the device.
type Running = (Box<dyn Run>, Option<Box<dyn Carrier>>, String);

/// The items of the memory plan that Medusa heads take.
const HEADS_ITEMS: [&str; 2] = ["the Medusa heads", "their scratch buffers"];

/// The names of the items that a draft model takes, in the order of [`memory`].
const DRAFT_ITEMS: [&str; 4] = [
    "the draft model's weights",
    "its KV pool",
    "its RoPE table",
    "its scratch buffers",
];

impl Build<'_> {
    /// Loads the checkpoint, and that of the draft model, onto backends that `open` makes. `open`
    /// is told how many bytes are planned for.
    pub(super) fn load<B: Steps + 'static>(
        &self,
        budget: Budget,
        open: impl Fn(RopeTable, &Setting<'_>, u64) -> Result<(B, String)>,
        progress: &mut dyn FnMut(f32) -> bool,
    ) -> Result<Llama> {
        let options = self.options;
        let opened = self.open_checkpoint()?;
        let draft = self.open_draft(&opened)?;
        let cancel = options.cancel.as_ref();
        let medusa = options.medusa_dir.as_ref();
        let medusa = medusa.map(|dir| Medusa::open(dir, cancel)).transpose()?;
        let adapters = self.adapters()?;
        let dtypes = (options.weights_dtype, options.kv_dtype);
        let mut model = self.part::<B>(&opened, dtypes, &adapters)?;
        if let Some(medusa) = &medusa {
            let heads = medusa.plan::<B>(&opened.config, &model.plan, MAX_DRAFTS)?;
            model.heads = Some(heads);
        }
        let dtypes = (options.draft_weights_dtype, options.draft_kv_dtype);
        let draft_part = draft
            .as_ref()
            .map(|draft| self.part::<B>(draft, dtypes, &[]));
        let draft_part = draft_part.transpose()?;
        let mut items = model.items.to_vec();
        let heads_bytes = match &model.heads {
            Some(heads) => {
                let rows = model.setting.limits.max_wanted;
                let scratch = Heads::<B>::scratch_bytes(&opened.config.shape, rows);
                let bytes = [heads.weight_bytes::<B>(), scratch];
                items.extend(HEADS_ITEMS.into_iter().zip(bytes));
                bytes[0]
            }
            None => 0,
        };
        if let Some(part) = &draft_part {
            let of_draft = DRAFT_ITEMS.iter().zip(part.items);
            items.extend(of_draft.map(|(name, (_, bytes))| (*name, bytes)));
        }
        let plan = MemoryPlan { items, budget };
        plan.check()?;
        let bytes = |part: &Part<'_>| part.items[0].1;
        let model_bytes = bytes(&model) + heads_bytes;
        let all_bytes = model_bytes + draft_part.as_ref().map_or(0, bytes);
        let share = model_bytes as f32 / all_bytes.max(1) as f32;
        let mut go_on = |read: f32| progress(read * share);
        let (run, carrier, device_name) = self.runner(&opened, &model, &plan, &open, &mut go_on)?;
        // Written like this, the last share is exactly 1, whatever is rounded.
        let mut go_on = |read: f32| progress(1.0 - (1.0 - read) * (1.0 - share));
        let draft_run = match (&draft, &draft_part) {
            (Some(draft), Some(part)) => {
                let run = self.runner(draft, part, &plan, &open, &mut go_on)?.0;
                // The true share is another one if rows cost much in comparison with reading
                // weights. But then drafts are worth least.
                Some((run, bytes(part) as f64 / bytes(&model).max(1) as f64))
            }
            _ => None,
        };
        let sum = |item: usize| {
            let of_draft = draft_part.as_ref().map_or(0, |part| part.items[item].1);
            model.items[item].1 + of_draft
        };
        let (weight_bytes, kv_bytes) = (sum(0) + heads_bytes, sum(1));
        let (weights_dtype, kv_dtype) = (model.setting.weights_dtypes[0], model.setting.kv_dtype);
        drop(model);
        let loaded = Loaded {
            run,
            draft: draft_run,
            ranks: vec![RankInfo::here(
                plan.budget.device,
                [weight_bytes, kv_bytes],
                device_name.clone(),
            )],
            figures: Arc::new(Figures::new(1)),
            device: plan.budget.device,
            device_name,
            weights_dtype,
            kv_dtype,
            weight_bytes,
            kv_bytes,
            adapters: Loader {
                config: opened.config.clone(),
                dtype: weights_dtype,
                cuts: Cuts::one(&opened.config.shape),
                first: 0,
                allowed: Ok(()),
                carriers: vec![carrier],
            },
            orders: None,
        };
        self.handle(opened, loaded)
    }

    /// The parts of a checkpoint that are to be loaded, with these types of weights and of the
    /// cache.
    fn part<'o, B: Backend>(
        &self,
        opened: &'o Opened,
        (weights_dtype, kv_dtype): (Option<Dtype>, Option<Dtype>),
        adapters: &'o [Adapter],
    ) -> Result<Part<'o>> {
        let options = self.options;
        let (config, files) = (&opened.config, &opened.files);
        B::takes(&config.needs(options.max_seq_len))?;
        let plan = Plan::new::<B>(&*opened.checkpoint, files, config, weights_dtype, adapters)?;
        let setting = setting::<B>(options, config, &plan, kv_dtype);
        let items = memory::<B>(&config.shape, &plan, &setting, options);
        Ok(Part {
            plan,
            heads: None,
            setting,
            items,
        })
    }

    /// Loads a part onto a backend of its own.
    fn runner<B: Steps + 'static>(
        &self,
        opened: &Opened,
        part: &Part<'_>,
        memory: &MemoryPlan,
        open: &impl Fn(RopeTable, &Setting<'_>, u64) -> Result<(B, String)>,
        progress: &mut dyn FnMut(f32) -> bool,
    ) -> Result<Running> {
        let options = self.options;
        let Setting {
            config,
            limits,
            kv_dtype,
            ..
        } = &part.setting;
        let explain = |error| memory.explain(error);
        let rope = rope::table(config, options.max_seq_len)?;
        let (backend, device_name) = open(rope, &part.setting, memory.needed()).map_err(explain)?;
        let bytes = [part.items[0].1, part.items[1].1];
        self.say(opened, &part.setting, bytes, &device_name);
        let heads_bytes = part.heads.as_ref().map_or(0, HeadsPlan::weight_bytes::<B>);
        let share = bytes[0] as f32 / (bytes[0] + heads_bytes).max(1) as f32;
        let mut control = LoadControl {
            cancel: options.cancel.as_ref(),
            progress: &mut |read| progress(read * share),
        };
        let weights = weights::load(&backend, &part.plan, &mut control).map_err(explain)?;
        let mut control = LoadControl {
            cancel: options.cancel.as_ref(),
            progress: &mut |read| progress(1.0 - (1.0 - read) * (1.0 - share)),
        };
        let heads = part.heads.as_ref().map(|plan| {
            let heads = plan.load(&backend, &mut control)?;
            Heads::new(&backend, heads, &config.shape, limits.max_wanted)
        });
        let heads = heads.transpose().map_err(explain)?;
        let carrier = backend.carrier();
        let runner = Runner::new(backend, weights, &config.shape, *kv_dtype, limits.clone());
        let mut runner = runner.map_err(explain)?;
        if let Some(heads) = heads {
            runner = runner.with_heads(heads);
        }
        Ok((Box::new(runner), carrier, device_name))
    }
}
