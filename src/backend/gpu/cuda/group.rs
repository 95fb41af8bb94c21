//! The communicator of a rank's GPU: joining the others, exchanges, and the end. (U)
#![allow(unsafe_code)]

use super::Cuda;
use super::context::{Context, Owned};
use super::graph::GroupGraph;
use super::nccl::{Failed, Nccl};
use crate::backend::Watch;
use crate::backend::gpu::device::GroupId;
use crate::backend::gpu::driver::sys::{CUevent_st, CUstream};
use crate::thread::without_signals;
use crate::{Error, Result};
use cudarc::nccl::sys::{ncclComm_t, ncclDataType_t, ncclUniqueId};
use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// How long the other ranks have for ending together with this one.
const FAREWELL: Duration = Duration::from_secs(2);

/// One rank's end of a communicator. It is non-blocking: a call may return before it is done, and
/// the next one waits for that.
pub(super) struct Group {
    nccl: Nccl,
    comm: ncclComm_t,
    ranks: usize,
    /// The graphs that may have recorded an exchange. The library waits without end for such graphs
    /// when a communicator ends, so they go first.
    graphs: Mutex<Vec<Weak<GroupGraph>>>,
}

// SAFETY: a communicator may be used from any thread, by one at a time: it lies behind a lock.
unsafe impl Send for Group {}

impl Group {
    /// Joins the others, and waits for all of them. The context must be current.
    pub fn join(
        nccl: Nccl,
        id: &GroupId,
        rank: usize,
        ranks: usize,
        watch: &dyn Watch,
    ) -> Result<Group> {
        let id = ncclUniqueId {
            internal: id.map(|byte| byte as _),
        };
        let group = Group {
            nccl,
            comm: nccl.begin(id, rank, ranks)?,
            ranks,
            graphs: Mutex::default(),
        };
        // The library looks at the machine, and connects to all ranks, which takes seconds.
        match group.settle(&Patient(watch)) {
            Ok(()) => Ok(group),
            Err(error) => {
                group.abort(watch.timeout());
                Err(error)
            }
        }
    }

    /// Waits until the last call is done.
    pub fn settle(&self, watch: &dyn Watch) -> Result<()> {
        super::waits::poll(watch, || {
            // SAFETY: alive.
            let in_progress = unsafe { self.nccl.is_in_progress(self.comm) };
            Ok((!in_progress?).then_some(()))
        })
    }

    /// The failure of an exchange, if there was one.
    pub fn check(&self) -> Result<()> {
        // SAFETY: alive.
        let in_progress = unsafe { self.nccl.is_in_progress(self.comm) };
        in_progress
            .map(drop)
            .map_err(|failed| Error::Peer(failed.text))
    }

    /// Gives the `n` floats at `from` to all ranks, and writes the floats of all ranks to `to`, in
    /// the order of the ranks.
    ///
    /// # Safety
    /// The context is current, and both lie in live memory of the stream's device.
    pub unsafe fn all_gather(
        &self,
        to: u64,
        from: u64,
        n: usize,
        stream: CUstream,
        watch: &dyn Watch,
    ) -> Result<()> {
        let float = ncclDataType_t::ncclFloat32;
        // SAFETY: by this function's contract.
        let done = unsafe {
            self.nccl
                .ncclAllGather(at(from), at(to), n, float, self.comm, stream.cast())
        };
        self.done(done, watch)
    }

    /// Gives the `r`th `n` floats of `from` to rank `r`, and puts what the ranks give to this one
    /// to `to`, in their order.
    ///
    /// # Safety
    /// As [`Group::all_gather`].
    pub unsafe fn all_to_all(
        &self,
        to: u64,
        from: u64,
        n: usize,
        stream: CUstream,
        watch: &dyn Watch,
    ) -> Result<()> {
        let float = ncclDataType_t::ncclFloat32;
        // SAFETY: by this function's contract.
        let done = unsafe {
            let nccl = &self.nccl;
            let begun = nccl.ncclGroupStart();
            let exchange = |peer: usize| -> std::result::Result<(), Failed> {
                let (offset, peer) = ((4 * n * peer) as u64, peer as c_int);
                nccl.ncclSend(at(from + offset), n, float, peer, self.comm, stream.cast())?;
                nccl.ncclRecv(at(to + offset), n, float, peer, self.comm, stream.cast())?;
                Ok(())
            };
            let exchanged = begun.and_then(|_| (0..self.ranks).try_for_each(exchange));
            // A group that was begun ends, whatever happened in it.
            let ended = nccl.ncclGroupEnd();
            exchanged.and(ended)
        };
        self.done(done, watch)
    }

    fn done(&self, done: std::result::Result<bool, Failed>, watch: &dyn Watch) -> Result<()> {
        match done? {
            true => self.settle(watch),
            false => Ok(()),
        }
    }

    /// Remembers a graph that may have recorded an exchange.
    pub fn recorded(&self, graph: Weak<GroupGraph>) {
        let mut graphs = self.graphs.lock().unwrap_or_else(|e| e.into_inner());
        graphs.retain(|graph| graph.strong_count() > 0);
        graphs.push(graph);
    }

    fn destroy_graphs(&self) {
        let graphs = std::mem::take(&mut *self.graphs.lock().unwrap_or_else(|e| e.into_inner()));
        graphs
            .iter()
            .filter_map(Weak::upgrade)
            .for_each(|graph| graph.destroy());
    }

    /// Ends it together with the other ranks, which end it as well; without them if they do not
    /// come. The stream is idle. Returns false if the library does not return.
    pub fn end(self) -> bool {
        struct Briefly;
        impl Watch for Briefly {
            fn timeout(&self) -> Duration {
                FAREWELL
            }

            fn look(&self, waited: Duration) -> Result<()> {
                match waited > FAREWELL {
                    true => Err(Error::Peer("another rank does not end".into())),
                    false => Ok(()),
                }
            }
        }
        self.destroy_graphs();
        // SAFETY: alive, and no call is in progress.
        let finalized = unsafe { self.nccl.ncclCommFinalize(self.comm) };
        if self.done(finalized, &Briefly).is_err() {
            return self.abort(FAREWELL);
        }
        self.forget(FAREWELL, Nccl::ncclCommDestroy)
    }

    /// Ends it at once, with exchanges that are under way. Returns false if the library does not
    /// return within `limit`.
    pub fn abort(self, limit: Duration) -> bool {
        self.destroy_graphs();
        self.forget(limit, Nccl::ncclCommAbort)
    }

    /// Ends it by this function, on a thread that is not waited for if it does not come back.
    fn forget(
        self,
        limit: Duration,
        end: unsafe fn(&Nccl, ncclComm_t) -> std::result::Result<bool, Failed>,
    ) -> bool {
        let (ended, ends) = channel();
        let (nccl, comm) = (self.nccl, Address(self.comm));
        let forget = move || {
            // SAFETY: alive; not used again. The library knows the device.
            let _ = unsafe { end(&nccl, comm.take()) };
            let _ = ended.send(());
        };
        let builder = std::thread::Builder::new().name("llamabi-nccl".into());
        // Without a thread, it is left behind.
        let begun = without_signals(|| builder.spawn(forget));
        begun.is_ok() && ends.recv_timeout(limit).is_ok()
    }
}

/// Waits for ten times as long.
struct Patient<'a>(&'a dyn Watch);

impl Watch for Patient<'_> {
    fn look(&self, waited: Duration) -> Result<()> {
        self.0.look(waited / 10)
    }

    fn timeout(&self) -> Duration {
        self.0.timeout() * 10
    }
}

struct Address(ncclComm_t);

// SAFETY: the thread that gets it is the only one that uses it from then on.
unsafe impl Send for Address {}

impl Address {
    fn take(self) -> ncclComm_t {
        self.0
    }
}

fn at(address: u64) -> *mut c_void {
    std::ptr::without_provenance_mut(address as usize)
}

impl Context {
    /// The library, opened when it is first asked for.
    pub fn nccl(&self) -> std::result::Result<Nccl, String> {
        self.nccl.get_or_init(Nccl::open).clone()
    }
}

/// How far the host runs ahead of the exchanges that it has launched. A stream takes about a
/// thousand pieces of work; for one more, the driver waits, and nothing would watch over that wait.
pub(super) struct Pace {
    exchanges: usize,
    /// Recorded in turns.
    marks: [Owned<CUevent_st>; 2],
}

/// Exchanges from one mark to the next. Between two exchanges there are a layer's launches at most.
const MARK: usize = 16;

impl Pace {
    /// The context must be current.
    pub fn new(context: &Arc<Context>) -> Result<Pace> {
        Ok(Pace {
            exchanges: 0,
            marks: [Owned::event(context)?, Owned::event(context)?],
        })
    }
}

impl Cuda {
    /// Waits for an exchange that was launched a while ago. The context must be current.
    pub(super) fn pace(&self) -> Result<()> {
        if self.recording.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut pace = self.pace.lock().unwrap_or_else(|e| e.into_inner());
        pace.exchanges += 1;
        if !pace.exchanges.is_multiple_of(MARK) {
            return Ok(());
        }
        let mark = pace.marks[pace.exchanges / MARK % 2].raw;
        // SAFETY: the event is alive, and so is our own stream.
        unsafe {
            self.context.wait_for_event(mark)?;
            self.driver().cuEventRecord(mark, self.stream.raw)?;
        }
        Ok(())
    }

    /// Does an exchange in the group, with what watches over it. The context must be current.
    pub(super) fn in_group<T>(
        &self,
        exchange: impl FnOnce(&Group, &dyn Watch) -> Result<T>,
    ) -> Result<T> {
        self.pace()?;
        let group = self.context.group();
        match (&*group, self.context.watcher()) {
            (Some(group), Some(watch)) => exchange(group, watch),
            _ => Err(Error::Peer("the ranks' exchanges have ended".into())),
        }
    }
}
