//! Decode steps as CUDA graphs. The launches of each form of step are recorded once; after that,
//! one call repeats them.
//!
//! If a step has decode rows only, its launches depend on six things, which are its form: the
//! number of rows (a bucket), the number of chunks of keys for which attention has blocks, the kind
//! of answer, whether a row needs more than its largest logit, whether tokens are chosen later, and
//! the highest rank of the rows' adapters (a power of two, or 0 if there are none). Kernels read
//! everything else from buffers at fixed addresses, which are filled before the launches. The
//! number of chunks is rounded up to a power of two, so that a growing sequence passes through few
//! forms. Blocks for chunks that a row does not have end at once; there are at most as many of them
//! as other blocks.
//!
//! Steps that are not recorded launch the same kernels in the same way, so graphs cannot change a
//! result.
//!
//! With several ranks whose devices exchange by themselves, exchanges are recorded, too, and all
//! ranks must record the same steps or none. They do so because they count the same forms of the
//! same steps, and because each tells the others whether it could: if one could not, none of them
//! records any more. A form is recorded when it comes for the second time, since the library that
//! moves the numbers makes some connections when it is first used.
//!
//! The driver takes memory for a graph when the graph is made. The memory plan and gpu_memory_bytes
//! do not count it: the amount is not known in advance, and a plan with a guess might refuse models
//! that fit. Instead, the amount is measured and written to the log at debug level; it includes
//! what other processes take at the same moment. If the driver cannot get the memory, steps of that
//! form and of every new form are launched kernel by kernel.

use super::device::Device;
use super::{CHUNK, Gpu, launch};
use crate::backend::Wire;
use crate::log::{Level, Log};
use crate::{Error, Result, reserve};
use std::sync::Arc;

/// The largest number of graphs. Before one more is added, the graph that has been unused for the
/// longest time is dropped. The number suffices for nine buckets of up to 64 rows at seven lengths
/// of up to 16384 positions.
const MOST: usize = 64;

/// The numbers on which the launches of a decode step depend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Form {
    rows: usize,
    wanted: usize,
    splits: usize,
    /// Number of words in a row's answer; 0 if the answer is logits.
    answer: usize,
    /// [`super::sample::Chooser::draws`].
    draws: bool,
    /// [`super::sample::Chooser::is_changed`]: then tokens are chosen behind what is recorded.
    changed: bool,
    /// [`super::adapters::Adapters::decode`].
    rank: u32,
}

struct Recorded<D: Device> {
    form: Form,
    /// `None` if the form has come once and is recorded the next time.
    graph: Option<D::Graph>,
    /// The time of its last use, as `clock` counts it.
    used: u64,
}

/// The graphs of a model.
pub(super) struct Graphs<D: Device> {
    all: Vec<Recorded<D>>,
    clock: u64,
    /// Whether more graphs are made. False if the device records nothing, if there are other ranks
    /// that cannot record as well, or once a graph has been refused.
    pub on: bool,
    pub log: Arc<Log>,
    /// To the other ranks, if they record together.
    wire: Option<Box<dyn Wire>>,
}

/// What is known of a form.
#[derive(Clone, Copy)]
enum Known {
    Recorded,
    /// It is to be recorded.
    Ripe,
    /// It comes for the first time, and other ranks record with this one.
    New,
}

impl<D: Device> Graphs<D> {
    pub fn new(on: bool) -> Result<Self> {
        let mut all = Vec::new();
        if on {
            reserve::vec("the graphs of steps", &mut all, MOST)?;
        }
        Ok(Graphs {
            all,
            clock: 0,
            on,
            log: Arc::default(),
            wire: None,
        })
    }

    /// What is known of a form that is used now.
    fn look_up(&mut self, form: Form) -> Known {
        self.clock += 1;
        let alone = self.wire.is_none();
        match self.all.iter_mut().find(|one| one.form == form) {
            Some(found) => {
                found.used = self.clock;
                match found.graph {
                    Some(_) => Known::Recorded,
                    None => Known::Ripe,
                }
            }
            None if alone => Known::Ripe,
            None => Known::New,
        }
    }

    fn graph(&self, form: Form) -> Option<&D::Graph> {
        let found = self.all.iter().find(|one| one.form == form)?;
        found.graph.as_ref()
    }

    /// Whether this is so on all ranks.
    pub(super) fn agree(&mut self, own: bool) -> Result<bool> {
        let Some(wire) = &mut self.wire else {
            return Ok(own);
        };
        let mut all = true;
        let mine = f32::from(u8::from(own));
        wire.all_gather(&[mine], &|_| 1, &mut |answers| {
            all = answers.iter().all(|answer| *answer == [1.0]);
        })?;
        Ok(all)
    }

    /// Adds a graph, or the form of one. The graph of the previous step may still be running, but
    /// no other. It was used last, so it is not the one that is dropped.
    fn add(&mut self, form: Form, graph: Option<D::Graph>) {
        if let Some(found) = self.all.iter_mut().find(|one| one.form == form) {
            found.graph = graph;
            return;
        }
        let oldest = (0..self.all.len()).min_by_key(|&at| self.all[at].used);
        if let Some(oldest) = oldest
            && self.all.len() == MOST
        {
            self.all.swap_remove(oldest);
        }
        self.all.push(Recorded {
            form,
            graph,
            used: self.clock,
        });
    }
}

impl<D: Device> Gpu<D> {
    /// The number of chunks of keys for which decode attention has blocks.
    pub(super) fn splits(&self) -> usize {
        let splits = (self.step.longest / CHUNK + 1).next_power_of_two();
        splits.min(self.most_splits)
    }

    /// Does the operations of the loaded step: repeats a graph, records one, or launches the
    /// kernels.
    pub(super) fn forward(&mut self, forward: &mut dyn FnMut(&mut Self)) {
        if self.check().is_err() {
            return;
        }
        let device = self.device.clone();
        let _pass = device.gate().pass();
        if self.step.n_prefill > 0 || self.step.n_decode == 0 {
            return forward(self);
        }
        let form = Form {
            rows: self.step.n_decode,
            wanted: self.step.n_wanted_padded,
            splits: self.splits(),
            answer: match self.chooser.n_rows {
                0 => 0,
                _ if !self.chooses_in_record() => 0,
                _ => self.chooser.out_stride,
            },
            draws: self.chooser.draws && self.chooses_in_record(),
            changed: self.chooser.is_changed(),
            rank: self.adapters.decode,
        };
        match self.graphs.look_up(form) {
            Known::Recorded => {}
            _ if !self.graphs.on => return forward(self),
            Known::New => {
                self.graphs.add(form, None);
                return forward(self);
            }
            // A rank that has failed does not come to an agreement: the others hear of the failure.
            Known::Ripe if self.is_idle().is_err() => return,
            Known::Ripe => match self.capture(forward) {
                Ok(graph) => self.graphs.add(form, Some(graph)),
                Err(error) => {
                    // If the device is broken, the launches will report it.
                    self.graphs.on = false;
                    self.graphs.log.write(Level::Warn, || {
                        format!(
                            "new forms of decode steps are launched kernel by kernel, not as CUDA \
                             graphs: {error}"
                        )
                    });
                    return forward(self);
                }
            },
        }
        if let Some(graph) = self.graphs.graph(form)
            && let Err(error) = launch::replay(&*self.device, graph)
        {
            self.run(|_| Err(error));
        }
    }

    /// Records from now on only what the ranks at the other ends of `wire` record, too. Steps may
    /// run ahead.
    pub(super) fn record_with(&mut self, wire: Box<dyn Wire>) -> Result<()> {
        self.graphs.wire = Some(wire);
        self.graphs.on = self.graphs.agree(self.device.records())?;
        self.runs_ahead = self.graphs.agree(self.device.runs_ahead())?;
        Ok(())
    }

    /// Waits for the device if other ranks record with this one.
    fn is_idle(&mut self) -> Result<()> {
        if self.graphs.wire.is_some()
            && let Err(error) = self.device.synchronize()
        {
            self.run(|_| Err(error));
        }
        self.check()
    }

    /// Records a step if all ranks can. They begin together, and with idle devices, because what
    /// moves the numbers may have to talk to the other ranks while it is recorded.
    fn capture(&mut self, forward: &mut dyn FnMut(&mut Self)) -> Result<D::Graph> {
        self.graphs.agree(true)?;
        let graph = self.captured(forward);
        match self.graphs.agree(graph.is_ok())? {
            true => graph,
            false => graph.and(Err(Error::Peer("another rank recorded none".into()))),
        }
    }

    fn captured(&mut self, forward: &mut dyn FnMut(&mut Self)) -> Result<D::Graph> {
        let before = self.device.available()?;
        let graph = self.recorded(forward)?;
        let after = self.device.available()?;
        self.graphs.log.write(Level::Debug, || {
            let (n, taken) = (self.step.n_decode, before.saturating_sub(after));
            format!(
                "a decode step of {n} rows is now a CUDA graph, for which the driver took {taken} \
                 bytes of device memory"
            )
        });
        Ok(graph)
    }

    fn recorded(&mut self, forward: &mut dyn FnMut(&mut Self)) -> Result<D::Graph> {
        self.device.begin_capture()?;
        forward(self);
        let failure: Option<Error> = {
            let mut failure = self.failure.lock().unwrap_or_else(|e| e.into_inner());
            failure.take()
        };
        let graph = self.device.end_capture();
        failure.map_or(graph, Err)
    }
}
