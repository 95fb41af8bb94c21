//! Decode steps as CUDA graphs: the launches of each form of step are recorded once and then
//! repeated by one call.
//!
//! The form of a step is what its launches depend on if it has decode rows only: how many rows (a
//! bucket), for how many chunks of keys attention has blocks, and which answer it gives. Everything
//! else is read from buffers at fixed addresses, which are filled before. The number of chunks is
//! rounded up to a power of two, so that a growing sequence passes through few forms. Blocks of
//! chunks that a row does not have end at once; there are at most as many of them as blocks that
//! work.
//!
//! Steps that are not recorded are launched in exactly the same way, so graphs cannot change a
//! result.
//!
//! The memory plan and gpu_memory_bytes do not count what the driver keeps for a graph: nobody says
//! how much that is before it is taken. If the plan counted a guess, it might refuse models that
//! fit. So the amount is measured and written to the log at debug level (including what other
//! processes took at the same moment). The driver takes the memory when the graph is made. If it
//! cannot, steps of that form and of every new form are launched kernel by kernel.

use super::device::Device;
use super::{CHUNK, Gpu, launch};
use crate::log::{Level, Log};
use crate::{Error, Result, reserve};
use std::sync::Arc;

/// Most graphs that are kept; beyond that, the one that has been unused for the longest time goes.
/// This is enough for nine buckets of up to 64 rows at seven lengths of up to 16384 positions.
const MOST: usize = 64;

/// What the launches of a decode step depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Form {
    rows: usize,
    wanted: usize,
    splits: usize,
    /// Words of a row's outcome; 0 if the step gives logits.
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
    /// Whether more graphs are made. False if the device records nothing, and once a graph was
    /// refused.
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

    /// At most the graph of the previous step may be running. It was used last, so it is not
    /// dropped here.
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
    /// Number of chunks of keys for which decode attention has blocks.
    pub(super) fn splits(&self) -> usize {
        let splits = (self.step.longest / CHUNK + 1).next_power_of_two();
        splits.min(self.most_splits)
    }

    /// Does the operations of the loaded step: repeats, records or launches them.
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
