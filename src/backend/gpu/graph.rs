//! Decode steps as graphs: their launches recorded once for each form of step and then repeated by one call.
//!
//! A form is what launches of a step of decode rows alone depend on: how many rows (a bucket), how many chunks
//! of keys attention has blocks for, which answer. All else is read from buffers at fixed places, which are
//! filled before. Chunks go by powers of two, so that a sequence that grows passes through few forms; blocks of
//! chunks that a row does not have end at once, and are at most as many as those that work.
//!
//! Steps that are not recorded are launched in exactly the same way, so graphs cannot change a number.
//!
//! What the driver keeps for a graph is not in the memory plan, nor in gpu_memory_bytes: nobody says how much that is before
//! it is taken. Counted in advance by a guess it could refuse models that fit; so it is measured, and said on the log at debug
//! level (with what other processes took in the same moment). It is taken when the graph is made: where that
//! is refused, steps of that form and of every new one are launched kernel by kernel.

use super::device::Device;
use super::{CHUNK, Gpu, launch};
use crate::log::{Level, Log};
use crate::{Error, Result, reserve};
use std::sync::Arc;

/// Graphs that are kept; then the one that was not used for the longest time goes. Nine buckets of up to 64 rows at
/// seven lengths of up to 16384 positions.
const MOST: usize = 64;

/// What the launches of a decode step depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Form {
    rows: usize,
    wanted: usize,
    splits: usize,
    /// Words of a row's outcome; 0: logits.
    answer: usize,
}

struct Recorded<D: Device> {
    form: Form,
    graph: D::Graph,
    /// When it was last used.
    used: u64,
}

/// The graphs of a model.
pub(super) struct Graphs<D: Device> {
    all: Vec<Recorded<D>>,
    clock: u64,
    /// Whether more are made: not where the device records nothing, nor once one was refused.
    on: bool,
    pub log: Arc<Log>,
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
        })
    }

    fn find(&mut self, form: Form) -> Option<&D::Graph> {
        self.clock += 1;
        let found = self.all.iter_mut().find(|one| one.form == form)?;
        found.used = self.clock;
        Some(&found.graph)
    }

    /// At most the graph of the step before may be running, and that was used last.
    fn add(&mut self, form: Form, graph: D::Graph) {
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
    /// Chunks of keys that decode attention has blocks for.
    pub(super) fn splits(&self) -> usize {
        let splits = (self.step.longest / CHUNK + 1).next_power_of_two();
        splits.min(self.most_splits)
    }

    /// The operations of the loaded step: repeated, recorded or launched.
    pub(super) fn forward(&mut self, forward: &mut dyn FnMut(&mut Self)) {
        if self.check().is_err() {
            return;
        }
        if self.step.n_prefill > 0 || self.step.n_decode == 0 {
            return forward(self);
        }
        let form = Form {
            rows: self.step.n_decode,
            wanted: self.step.n_wanted_padded,
            splits: self.splits(),
            answer: match self.chooser.n_rows {
                0 => 0,
                _ => self.chooser.out_stride,
            },
        };
        if self.graphs.find(form).is_none() {
            if !self.graphs.on {
                return forward(self);
            }
            match self.capture(forward) {
                Ok(graph) => self.graphs.add(form, graph),
                Err(error) => {
                    // Of a device that is broken the launches say so.
                    self.graphs.on = false;
                    self.graphs.log.write(Level::Warn, || {
                        format!("decode steps of other forms than so far are launched kernel by kernel, not as CUDA graphs: {error}")
                    });
                    return forward(self);
                }
            }
        }
        let device = self.device.clone();
        if let Some(graph) = self.graphs.find(form)
            && let Err(error) = launch::replay(&*device, graph)
        {
            self.run(|_| Err(error));
        }
    }

    fn capture(&mut self, forward: &mut dyn FnMut(&mut Self)) -> Result<D::Graph> {
        let before = self.device.available()?;
        let graph = self.recorded(forward)?;
        let after = self.device.available()?;
        self.graphs.log.write(Level::Debug, || {
            let (n, taken) = (self.step.n_decode, before.saturating_sub(after));
            format!("a decode step of {n} rows is a CUDA graph, {taken} bytes of device memory the driver's")
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
