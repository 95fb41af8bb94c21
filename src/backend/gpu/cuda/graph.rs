//! Recorded launches. (U)
#![allow(unsafe_code)]

use super::context::Owned;
use super::group::Group;
use crate::backend::gpu::driver::Driver;
use crate::backend::gpu::driver::sys::{CUgraphExec_st, CUstream};
use crate::{Error, Result};
use std::sync::{Arc, Mutex};

/// Recorded launches, ready to run.
pub struct Graph(Recorded);

enum Recorded {
    Own(Owned<CUgraphExec_st>),
    /// With exchanges in it.
    OfGroup(Arc<GroupGraph>),
}

/// A graph that NCCL waits for when its communicator ends, and which is therefore destroyed before.
pub(super) struct GroupGraph(Mutex<Option<Owned<CUgraphExec_st>>>);

impl GroupGraph {
    /// What runs meanwhile goes on.
    pub fn destroy(&self) {
        self.0.lock().unwrap_or_else(|e| e.into_inner()).take();
    }
}

impl Graph {
    /// `group`: whose exchanges may be among the launches.
    pub(super) fn new(graph: Owned<CUgraphExec_st>, group: Option<&Group>) -> Graph {
        let Some(group) = group else {
            return Graph(Recorded::Own(graph));
        };
        let graph = Arc::new(GroupGraph(Mutex::new(Some(graph))));
        group.recorded(Arc::downgrade(&graph));
        Graph(Recorded::OfGroup(graph))
    }

    /// Runs the launches in this stream. The context must be current.
    ///
    /// # Safety
    /// The stream is alive, and every recorded launch and exchange is safe now.
    pub(super) unsafe fn launch(&self, driver: &Driver, stream: CUstream) -> Result<()> {
        let launch = |graph: &Owned<CUgraphExec_st>| {
            // SAFETY: alive while it is borrowed; the rest is by this function's contract.
            Ok(unsafe { driver.cuGraphLaunch(graph.raw, stream) }?)
        };
        match &self.0 {
            Recorded::Own(graph) => launch(graph),
            Recorded::OfGroup(graph) => match &*graph.0.lock().unwrap_or_else(|e| e.into_inner()) {
                Some(graph) => launch(graph),
                None => Err(Error::Peer("the ranks' exchanges have ended".into())),
            },
        }
    }
}
