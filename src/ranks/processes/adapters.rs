//! Adapters of requests on ranks in several processes: each loads its own part of them.
//!
//! 1. A caller's thread at rank 0 leaves an `Order`, and waits.
//! 2. The engine's thread passes the order on between two steps. No other thread talks with the
//!    other ranks.
//! 3. The other ranks load on separate threads, so that steps go on meanwhile, and answer.
//! 4. If one rank refuses, the others forget the adapter again.
//!
//! Steps name adapters by their numbers. When nobody at rank 0 uses an adapter any more, rank 0
//! tells the others to forget it ([`Remote`]).

use super::Shared;
use super::link::Link;
use super::message::{Kind, Reader};
use crate::backend::Adapter;
use crate::error::{Kind as ErrorKind, panic_text};
use crate::thread::without_signals;
use crate::{Error, Result, reserve, sentence};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::Scope;
use std::time::Duration;

/// How often a waiting caller makes the engine's thread look for answers.
const LOOK: Duration = Duration::from_millis(2);

/// Loads a rank's part of an adapter, and returns the number that distinguishes it from other
/// adapters ([`crate::checkpoint::Adapter::load`]).
pub type Load<'a> = dyn Fn(&Path, f32) -> Result<(Adapter, u64)> + Sync + 'a;

/// An adapter that the other ranks are to load.
struct Order {
    id: u32,
    dir: PathBuf,
    scale: f32,
    /// The number of rank 0's adapter.
    print: u64,
    outcome: Sender<Result<()>>,
}

/// What callers have left for the engine's thread.
#[derive(Default)]
struct Desk {
    /// Why the engine's thread takes nothing from here any more.
    closed: Option<Error>,
    orders: Vec<Order>,
    /// Adapters that nobody uses any more. There is room for all that the other ranks have.
    dropped: Vec<u32>,
    /// The number of adapters that the other ranks have, or are to load.
    alive: usize,
}

/// Rank 0's orders to the others.
#[derive(Clone, Default)]
pub struct Orders(Arc<Mutex<Desk>>);

impl Orders {
    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Makes the other ranks load the adapter `id`, and waits for them. `print` is the number of
    /// rank 0's part; `nudge` wakes the engine's thread.
    ///
    /// # Errors
    /// The failure of a rank, in its words; then no rank has the adapter. [`Error::Peer`] if a rank
    /// is gone, or has another adapter in that directory.
    pub fn load(
        &self,
        id: u32,
        (dir, scale): (&Path, f32),
        print: u64,
        nudge: &dyn Fn() -> Result<()>,
    ) -> Result<Remote> {
        nudge()?;
        let (outcome, told) = channel();
        let order = Order {
            id,
            dir: dir.to_owned(),
            scale,
            print,
            outcome,
        };
        let mut desk = self.desk();
        if let Some(why) = &desk.closed {
            return Err(why.clone());
        }
        let room = desk.alive + 1;
        reserve::vec("adapters to be dropped", &mut desk.dropped, room)?;
        reserve::push("adapters to be loaded", &mut desk.orders, order)?;
        desk.alive = room;
        drop(desk);
        let outcome = loop {
            nudge()?;
            match told.recv_timeout(LOOK) {
                Ok(outcome) => break outcome,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    break Err(Error::Internal("nobody answers for other ranks".into()));
                }
            }
        };
        if outcome.is_err() {
            self.desk().alive -= 1;
        }
        outcome.map(|()| Remote {
            id,
            orders: self.clone(),
        })
    }
}

/// The other ranks' parts of an adapter. They forget the adapter when this is dropped.
pub struct Remote {
    id: u32,
    orders: Orders,
}

impl Drop for Remote {
    fn drop(&mut self) {
        let mut desk = self.orders.desk();
        desk.alive -= 1;
        desk.dropped.push(self.id);
    }
}

/// Another rank's answer to [`Kind::Adapt`].
pub struct Answer {
    pub(super) id: u32,
    outcome: std::result::Result<u64, (ErrorKind, String)>,
}

impl Answer {
    /// Reads [`Kind::Adapted`].
    pub fn read(m: &mut Reader<'_>) -> Result<Answer> {
        let id = m.u32()?;
        let outcome = match m.u32()? {
            0 => Ok(m.u64()?),
            _ => Err(m.error()?),
        };
        Ok(Answer { id, outcome })
    }
}

/// The engine's end of [`Orders`].
pub(super) struct Desks {
    orders: Orders,
    /// Orders that the other ranks have, and what each of them has answered.
    under_way: Vec<(Order, Vec<Option<Answer>>)>,
}

impl Desks {
    pub fn new(orders: Orders) -> Desks {
        Desks {
            orders,
            under_way: Vec::new(),
        }
    }

    /// Passes on what callers have ordered and what other ranks have answered.
    pub fn serve(&mut self, link: &mut Link) -> Result<()> {
        let mut desk = self.orders.desk();
        let (orders, dropped) = (std::mem::take(&mut desk.orders), desk.dropped.to_vec());
        desk.dropped.clear();
        drop(desk);
        for id in dropped {
            link.tell_all(Kind::Forget, |m| m.u32(id))?;
        }
        let others = link.size() - 1;
        let told = self.under_way.len();
        let unanswered = |order| (order, (0..others).map(|_| None).collect());
        self.under_way.extend(orders.into_iter().map(unanswered));
        for (order, _) in &self.under_way[told..] {
            let dir = order.dir.as_os_str().as_bytes();
            link.tell_all(Kind::Adapt, |m| m.u32(order.id).f32(order.scale).bytes(dir))?;
        }
        if self.under_way.is_empty() {
            return Ok(());
        }
        link.look()?;
        for rank in 1..=others {
            while let Some(answer) = link.answer(rank) {
                let id = answer.id;
                let order = self.under_way.iter_mut().find(|(order, _)| order.id == id);
                match order.map(|(_, answers)| &mut answers[rank - 1]) {
                    Some(none @ None) => *none = Some(answer),
                    _ => return Err(link.nonsense(rank, format!("an answer about adapter {id}"))),
                }
            }
        }
        let answered =
            |(_, answers): &(_, Vec<Option<Answer>>)| answers.iter().all(Option::is_some);
        while let Some(at) = self.under_way.iter().position(answered) {
            let (order, answers) = self.under_way.swap_remove(at);
            let answers: Vec<Answer> = answers.into_iter().flatten().collect();
            let outcome = verdict(&order, &answers, link);
            if outcome.is_err() {
                for (i, answer) in answers.iter().enumerate() {
                    if answer.outcome.is_ok() {
                        link.tell(i + 1, Kind::Forget, |m| m.u32(order.id))?;
                    }
                }
            }
            // The caller that ordered the adapter waits for this.
            let _ = order.outcome.send(outcome);
        }
        Ok(())
    }

    /// Refuses the orders that are left, and all later ones, for the reason `why`.
    pub fn close(&mut self, why: &Error) {
        let mut desk = self.orders.desk();
        desk.closed = Some(why.clone());
        let left = std::mem::take(&mut desk.orders);
        let under_way = self.under_way.drain(..).map(|(order, _)| order);
        for order in left.into_iter().chain(under_way) {
            let _ = order.outcome.send(Err(why.clone()));
        }
    }
}

/// The outcome of an order that all ranks have answered.
fn verdict(order: &Order, answers: &[Answer], link: &Link) -> Result<()> {
    for (i, answer) in answers.iter().enumerate() {
        let name = link.name(i + 1);
        match &answer.outcome {
            Ok(print) if *print == order.print => {}
            Ok(print) => {
                return Err(Error::Peer(format!(
                    "{name} has another adapter in {}: its fingerprint is {print:016x}, that of \
                     rank 0's is {:016x}",
                    sentence::path(&order.dir),
                    order.print
                )));
            }
            Err((kind, sentence)) => {
                return Err(Error::Told {
                    kind: *kind,
                    sentence: format!("{name}: {sentence}"),
                });
            }
        }
    }
    Ok(())
}

/// Reads [`Kind::Adapt`]: the adapter's number, its directory and its weight.
pub fn read_order(m: &mut Reader<'_>) -> Result<(u32, PathBuf, f32)> {
    let (id, scale) = (m.u32()?, m.f32()?);
    let dir = PathBuf::from(OsStr::from_bytes(m.bytes()?));
    Ok((id, dir, scale))
}

/// The number of an adapter, and the outcome of loading it.
type Done = (u32, Result<(Adapter, u64)>);

/// The adapters of a rank other than 0.
pub(super) struct Adapters<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    load: &'env Load<'env>,
    known: HashMap<u32, Arc<Adapter>>,
    loading: Vec<u32>,
    done: (Sender<Done>, Receiver<Done>),
}

impl<'scope, 'env> Adapters<'scope, 'env> {
    pub fn new(scope: &'scope Scope<'scope, 'env>, load: &'env Load<'env>) -> Self {
        Adapters {
            scope,
            load,
            known: HashMap::new(),
            loading: Vec::new(),
            done: channel(),
        }
    }

    /// The adapter that a step names.
    pub fn get(&self, id: u32) -> Option<Arc<Adapter>> {
        self.known.get(&id).cloned()
    }

    pub fn are_loading(&self) -> bool {
        !self.loading.is_empty()
    }

    /// Begins to load what a [`Kind::Adapt`] asks for.
    pub fn begin(&mut self, m: &mut Reader<'_>) -> Result<()> {
        let (id, dir, scale) = read_order(m)?;
        if id == 0 || self.known.contains_key(&id) || self.loading.contains(&id) {
            return Err(Error::Peer(format!("a message to load adapter {id}")));
        }
        reserve::push("adapters that are loading", &mut self.loading, id)?;
        let (load, done) = (self.load, self.done.0.clone());
        let work = move || {
            let loaded = catch_unwind(AssertUnwindSafe(|| load(&dir, scale)));
            let panicked = |panic: Box<dyn std::any::Any + Send>| {
                Err(Error::Internal(panic_text(&*panic).into()))
            };
            // The receiver lives longer than this thread.
            let _ = done.send((id, loaded.unwrap_or_else(panicked)));
        };
        let builder = std::thread::Builder::new().name("llamabi-adapter".into());
        if let Err(e) = without_signals(|| builder.spawn_scoped(self.scope, work)) {
            let failed = Err(Error::thread("the loading of an adapter", &e));
            let _ = self.done.0.send((id, failed));
        }
        Ok(())
    }

    /// Tells rank 0 the outcomes of its orders.
    pub fn answer(&mut self, shared: &Shared) -> Result<()> {
        while let Ok((id, loaded)) = self.done.1.try_recv() {
            self.loading.retain(|&loading| loading != id);
            let mut link = shared.link();
            match loaded {
                Ok((adapter, print)) => {
                    self.known.insert(id, Arc::new(Adapter { id, ..adapter }));
                    link.tell(0, Kind::Adapted, |m| m.u32(id).u32(0).u64(print))?;
                }
                Err(error) => {
                    link.tell(0, Kind::Adapted, |m| m.u32(id).u32(1).error(&error))?;
                }
            }
        }
        Ok(())
    }

    /// Forgets the adapter that a [`Kind::Forget`] names.
    pub fn forget(&mut self, m: &mut Reader<'_>) -> Result<()> {
        let id = m.u32()?;
        match self.known.remove(&id) {
            Some(_) => Ok(()),
            None => Err(Error::Peer(format!("a message to forget adapter {id}"))),
        }
    }
}
