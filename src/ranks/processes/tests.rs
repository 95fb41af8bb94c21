//! Tests with ranks that are threads and talk through queues: what happens when one of them fails,
//! is silent, or says something else than it should.

mod adapters;

use super::adapters::Load;
use super::handshake::{Hello, PROTOCOL};
use super::link::Link;
use super::message::{Kind, Writer};
use super::queues::{Post, Queues};
use super::*;
use crate::Cancel;
use crate::ranks::figures::Figures;
use crate::ranks::tests::Pages;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Instant;

const SOON: Duration = Duration::from_millis(300);
const LONG: Duration = Duration::from_secs(60);

struct World {
    post: Arc<Post>,
    size: usize,
    timeout: Duration,
}

impl World {
    fn new(size: usize, timeout: Duration) -> World {
        World {
            post: Arc::default(),
            size,
            timeout,
        }
    }

    fn link(&self, rank: usize) -> Link {
        self.cancelled_by(rank, None)
    }

    fn cancelled_by(&self, rank: usize, cancel: Option<Cancel>) -> Link {
        let comm = Box::new(Queues {
            post: self.post.clone(),
            rank,
            size: self.size,
        });
        Link::new(
            comm,
            self.timeout,
            cancel,
            Arc::new(Figures::new(self.size)),
        )
        .unwrap()
    }
}

/// A rank that exchanges the tokens of its steps.
struct Fake {
    pages: Pages,
    wire: Shared,
    sum: Vec<f32>,
    breaks_at: Option<i32>,
    /// The adapters of its last step.
    adapters: Vec<Option<u32>>,
}

const LIMITS: Limits = Limits {
    page_size: 16,
    n_pages: 4,
    max_positions: 64,
    max_rows: 8,
    max_wanted: 4,
    vocab_size: 100,
};

impl Fake {
    fn new(wire: Shared, width: usize) -> Fake {
        Fake {
            pages: Pages::counting_from(0, LIMITS.n_pages, width),
            wire,
            sum: Vec::new(),
            breaks_at: None,
            adapters: Vec::new(),
        }
    }
}

impl Run for Fake {
    fn submit(&mut self, step: &Step, _: &Choices) -> Result<()> {
        if self.breaks_at == Some(step.tokens[0]) {
            return Err(Error::Device("out of order".into()));
        }
        self.adapters = step
            .adapters
            .iter()
            .map(|a| a.as_ref().map(|a| a.id))
            .collect();
        // Ranks other than 0 add the number of an adapter only if they have the adapter.
        let adapter = self.adapters.first().copied().flatten().unwrap_or(0);
        let number = step.tokens[0] as f32 + adapter as f32 / 100.0;
        let mine = vec![number; self.wire.rank() + 1];
        let sum = &mut self.sum;
        self.wire.all_gather(&mine, &|rank| rank + 1, &mut |parts| {
            *sum = vec![parts.iter().flat_map(|part| part.iter()).sum()];
        })
    }

    fn collect(&mut self) -> Result<Answer<'_>> {
        Ok(Answer::Logits(&self.sum))
    }

    fn copy_pages(&mut self, pairs: &[(u32, u32)]) -> Result<()> {
        self.pages.copy(pairs);
        Ok(())
    }

    fn page_bytes(&self) -> usize {
        self.pages.width
    }

    fn save_pages(&mut self, pages: &[u32], to: &mut [u8]) -> Result<()> {
        self.pages.save(pages, to);
        Ok(())
    }

    fn load_pages(&mut self, pages: &[u32], from: &[u8]) -> Result<()> {
        self.pages.load(pages, from);
        Ok(())
    }

    fn limits(&self) -> Limits {
        LIMITS
    }
}

fn a_step(token: i32) -> Step {
    Step {
        tokens: vec![token],
        slots: vec![0],
        spans: vec![crate::backend::Span {
            rows: 0..1,
            kind: crate::backend::RowKind::Prefill,
            position: 0,
            pages: 0..1,
        }],
        pages: vec![0],
        wanted: vec![0],
        ..Step::default()
    }
}

/// Serves `world`'s ranks, except the first, on threads, and runs `first` with rank 0. The last of
/// the ranks breaks at the token `breaks_at`. Returns what the other ranks ended with.
fn run(
    world: &World,
    breaks_at: Option<i32>,
    first: impl FnOnce(&mut Processes, &Shared),
) -> Vec<Result<()>> {
    let none = |_: &Path, _| panic!("no adapters");
    run_with(world, breaks_at, &|_| &none, |processes, shared, _| {
        first(processes, shared);
    })
}

/// The same as [`run`], but each rank has a way to load adapters.
fn run_with<'l>(
    world: &World,
    breaks_at: Option<i32>,
    load: &(dyn Fn(usize) -> &'l Load<'l> + Sync),
    first: impl FnOnce(&mut Processes, &Shared, &Orders),
) -> Vec<Result<()>> {
    std::thread::scope(|scope| {
        let serve = |rank: usize| {
            let shared = Shared::new(world.link(rank));
            move || {
                let mut run = Fake::new(shared.clone(), 10 + rank);
                if rank + 1 == world.size {
                    run.breaks_at = breaks_at;
                }
                serve::serve(&mut run, &shared, load(rank), &mut || {})
            }
        };
        let threads: Vec<_> = (1..world.size)
            .map(|rank| scope.spawn(serve(rank)))
            .collect();
        let shared = Shared::new(world.link(0));
        let own = Box::new(Fake::new(shared.clone(), 10));
        let others = (1..world.size).map(|rank| 10 + rank).collect();
        let orders = Orders::default();
        let mut processes = Processes::new(own, shared.clone(), others, orders.clone());
        first(&mut processes, &shared, &orders);
        drop(processes);
        drop(shared);
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    })
}

fn sum_of(processes: &mut Processes, token: i32) -> Result<f32> {
    Ok(processes.run(&a_step(token), Choices::NONE)?.logits()[0])
}

#[test]
fn steps_and_pages_reach_every_rank() {
    for size in [2, 3] {
        let ended = run(&World::new(size, LONG), None, |processes, _| {
            let ranks: f32 = (1..=size).map(|n| n as f32).sum();
            assert_eq!(sum_of(processes, 5).unwrap(), 5.0 * ranks);
            let whole = processes.page_bytes();
            let mut saved = vec![0; 2 * whole];
            processes.save_pages(&[3, 0], &mut saved).unwrap();
            // The parts of ranks lie side by side, and each rank's bytes are numbered separately.
            assert_eq!((saved[0], saved[10]), (30, 33));
            assert_eq!((saved[whole], saved[whole + 10]), (0, 0));
            processes.load_pages(&[1, 2], &saved).unwrap();
            processes.copy_pages(&[(1, 0)]).unwrap();
            let mut again = vec![0; 2 * whole];
            processes.save_pages(&[0, 2], &mut again).unwrap();
            assert_eq!(again, saved);
            assert_eq!(sum_of(processes, 7).unwrap(), 7.0 * ranks);
        });
        assert!(ended.iter().all(Result::is_ok), "{ended:?}");
    }
}

#[test]
fn sums_by_slices_are_those_of_whole_messages() {
    for n in [1usize, 2, 7, 9] {
        // Each case has a world of its own: what was sent to a closed link would reach the next
        // link.
        let world = World::new(3, LONG);
        let slice = n.div_ceil(3);
        std::thread::scope(|scope| {
            for rank in 0..3 {
                let mut link = world.link(rank);
                scope.spawn(move || {
                    let numbers: Vec<f32> = (0..n).map(|i| (100 * rank + i) as f32).collect();
                    let own = (rank * slice).min(n)..((rank + 1) * slice).min(n);
                    link.all_to_all(&numbers, slice, &mut |parts| {
                        for (from, part) in parts.iter().enumerate() {
                            let expected: Vec<f32> =
                                own.clone().map(|i| (100 * from + i) as f32).collect();
                            assert_eq!(*part, expected);
                        }
                    })
                    .unwrap();
                    link.close();
                });
            }
        });
    }
}

#[test]
fn the_failure_of_a_rank_is_told_to_all_in_its_words() {
    let start = Instant::now();
    let ended = run(&World::new(3, LONG), Some(6), |processes, _| {
        sum_of(processes, 5).unwrap();
        let error = sum_of(processes, 6).unwrap_err();
        assert_eq!(error.to_string(), "rank 2 of 3: out of order");
        assert_eq!(error.kind(), crate::error::Kind::Device);
        assert!(sum_of(processes, 5).is_err(), "it has ended");
    });
    let sentences: Vec<String> = ended
        .iter()
        .map(|e| e.as_ref().unwrap_err().to_string())
        .collect();
    assert_eq!(sentences[0], "rank 0 of 3: rank 2 of 3: out of order");
    assert_eq!(sentences[1], "out of order");
    assert!(start.elapsed() < LONG / 2, "nobody waited for the timeout");
}

#[test]
fn a_silent_rank_is_named_within_the_time() {
    // Rank 2 never comes; rank 1 waits in the exchange.
    let world = World::new(3, SOON);
    let start = Instant::now();
    std::thread::scope(|scope| {
        let mut other = world.link(1);
        let other = scope.spawn(move || other.all_gather(&[1.0], &|_| 1, &mut |_| {}));
        let mut first = world.link(0);
        let error = first.all_gather(&[1.0], &|_| 1, &mut |_| {}).unwrap_err();
        assert_eq!(
            error.to_string(),
            "rank 2 of 3 has not been heard of for 300 ms"
        );
        assert_eq!(error.kind(), crate::error::Kind::Peer);
        let told = other.join().unwrap().unwrap_err().to_string();
        assert_eq!(told, format!("rank 0 of 3: {error}"));
    });
    let most = SOON + Duration::from_secs(2);
    assert!(start.elapsed() < most, "{:?}", start.elapsed());
}

#[test]
fn a_broken_connection_ends_an_exchange_at_once() {
    let world = World::new(2, LONG);
    let gone = world.post.clone();
    let start = Instant::now();
    std::thread::scope(|scope| {
        let mut first = world.link(0);
        let waits = scope.spawn(move || first.all_gather(&[1.0], &|_| 1, &mut |_| {}));
        std::thread::sleep(Duration::from_millis(50));
        gone.gone[1].store(true, Ordering::Relaxed);
        let error = waits.join().unwrap().unwrap_err().to_string();
        assert_eq!(error, "rank 1 of 2 is gone: its connection failed (-75)");
    });
    assert!(start.elapsed() < LONG / 2);
}

#[test]
fn a_rank_that_left_is_heard_though_its_connection_has_failed() {
    for exchanges in [false, true] {
        let world = World::new(2, LONG);
        let mut first = world.link(0);
        world.link(1).fail(&Error::Cancelled);
        world.post.gone[1].store(true, Ordering::Relaxed);
        let ended = match exchanges {
            true => first.all_gather(&[1.0], &|_| 1, &mut |_| {}),
            false => first.tell_all(Kind::Ping, |m| m),
        };
        let error = ended.unwrap_err().to_string();
        assert_eq!(error, "rank 1 of 2 left: cancelled");
    }
}

#[test]
fn an_idle_rank_that_is_silent_is_noticed_and_one_that_is_there_is_not() {
    // A timeout that is longer, and one that is shorter, than the time between two beats when idle.
    for timeout in [1500, 900].map(Duration::from_millis) {
        let ended = run(&World::new(2, timeout), None, |processes, shared| {
            let start = Instant::now();
            while start.elapsed() < 2 * timeout {
                processes.beat().unwrap();
                std::thread::sleep(timeout / 15);
            }
            let silent = shared.link().silent(1);
            assert!(silent < timeout, "{silent:?}");
            sum_of(processes, 1).unwrap();
        });
        assert!(ended[0].is_ok(), "{ended:?}");
    }
    // Nobody serves rank 1 now.
    let world = World::new(2, Duration::from_millis(1500));
    let mut first = world.link(0);
    let start = Instant::now();
    let error = loop {
        std::thread::sleep(Duration::from_millis(200));
        if let Err(error) = first.beat() {
            break error.to_string();
        }
        assert!(start.elapsed() < LONG);
    };
    assert_eq!(error, "rank 1 of 2 has not been heard of for 1500 ms");
}

#[test]
fn a_cancelled_rank_leaves_and_rank_0_hears_of_it() {
    let world = World::new(2, LONG);
    let cancel = Cancel::new();
    std::thread::scope(|scope| {
        let mut other = world.cancelled_by(1, Some(cancel.clone()));
        let waits = scope.spawn(move || other.await_kind(0, Kind::Go, &mut |_| Ok(())));
        cancel.trigger();
        let error = waits.join().unwrap().unwrap_err();
        assert!(matches!(error, Error::Cancelled));
    });
    let mut first = world.link(0);
    let error = first
        .await_kind(1, Kind::Plan, &mut |_| Ok(()))
        .unwrap_err();
    assert_eq!(error.to_string(), "rank 1 of 2 left: cancelled");
}

#[test]
fn a_cancelled_build_cancels_the_others() {
    let world = World::new(2, LONG);
    world.link(0).fail(&Error::Cancelled);
    let mut other = world.link(1);
    let error = other
        .await_kind(0, Kind::Options, &mut |_| Ok(()))
        .unwrap_err();
    assert!(matches!(error, Error::Cancelled), "{error}");
}

#[test]
fn a_link_that_is_dropped_is_missed() {
    let world = World::new(2, LONG);
    drop(world.link(1));
    let mut first = world.link(0);
    let error = first
        .await_kind(1, Kind::Hello, &mut |_| Ok(()))
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "rank 1 of 2: internal error: rank 1 has ended"
    );
}

/// Otherwise rank 0 would think that this rank is lost, and would not wait until the others have
/// heard its farewell.
#[test]
fn a_rank_that_said_farewell_may_end_before_the_others() {
    let world = World::new(3, LONG);
    let (mut first, mut slow, mut quick) = (world.link(0), world.link(1), world.link(2));
    std::thread::scope(|scope| {
        let closes = scope.spawn(move || first.close());
        quick.await_kind(0, Kind::Bye, &mut |_| Ok(())).unwrap();
        quick.close();
        world.post.gone[2].store(true, Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(50));
        assert!(!closes.is_finished(), "rank 1 has not said farewell");
        slow.await_kind(0, Kind::Bye, &mut |_| Ok(())).unwrap();
        // Rank 0 has not failed.
        slow.look().unwrap();
        slow.close();
    });
}

/// Rank 0's farewell comes while rank 1 waits in an exchange, and rank 2 never answers it.
#[test]
fn a_rank_that_is_lost_behind_rank_0s_farewell_ends_an_exchange() {
    let start = Instant::now();
    let world = World::new(3, LONG);
    let (mut first, mut other) = (world.link(0), world.link(1));
    std::thread::scope(|scope| {
        let waits = scope.spawn(move || other.all_gather(&[1.0], &|_| 1, &mut |_| {}));
        scope.spawn(move || first.close());
        // By then rank 1 has taken the farewell.
        std::thread::sleep(Duration::from_millis(50));
        world.post.gone[2].store(true, Ordering::Relaxed);
        let error = waits.join().unwrap().unwrap_err().to_string();
        assert_eq!(
            error,
            "rank 0 of 3: rank 2 of 3 is gone: its connection failed (-75)"
        );
    });
    assert!(start.elapsed() < LONG / 2);
}

#[test]
fn messages_that_make_no_sense_end_it() {
    type Send = fn(&Queues, &mut Writer);
    let cases: [(&str, Send); 4] = [
        ("message 7 came instead of message 0", |q, w| {
            q.put(0, false, w.begin(Kind::Hello).end(7).to_vec());
        }),
        ("a message that is too short", |q, _| {
            q.put(0, false, vec![1, 2, 3])
        }),
        ("a message Ready, expected Hello", |q, w| {
            q.put(0, false, w.begin(Kind::Ready).end(0).to_vec());
        }),
        ("a message of an unknown kind, 99", |q, _| {
            let mut bytes = vec![0; 16];
            bytes[0] = 99;
            q.put(0, false, bytes);
        }),
    ];
    for (sentence, send) in cases {
        let world = World::new(2, LONG);
        let queues = Queues {
            post: world.post.clone(),
            rank: 1,
            size: 2,
        };
        send(&queues, &mut Writer::default());
        let mut first = world.link(0);
        let error = first
            .await_kind(1, Kind::Hello, &mut |_| Ok(()))
            .unwrap_err();
        assert_eq!(error.to_string(), format!("rank 1 of 2: {sentence}"));
    }
}

#[test]
fn enormous_messages_are_planned_and_refused_without_overflow() {
    assert_eq!(Link::bytes(2, 1000, 10), 3 * 1000 + 4 * 3 * 10);
    assert_eq!(Link::bytes(64, usize::MAX, 1), u64::MAX);
    let error = World::new(2, LONG).link(0).make_room(usize::MAX, 1);
    assert_eq!(error.unwrap_err().kind(), crate::error::Kind::NoMemory);
}

#[test]
fn a_rank_of_another_version_is_refused() {
    let world = World::new(2, LONG);
    let (mut first, mut other) = (world.link(0), world.link(1));
    other
        .tell(0, Kind::Hello, |m| {
            m.bytes(b"llamabi").u32(PROTOCOL).bytes(b"0.0.0")
        })
        .unwrap();
    let hello = first.await_kind(1, Kind::Hello, &mut |_| Ok(())).unwrap();
    let error = Hello::read(&hello, 1, 2).unwrap_err().to_string();
    let own = env!("CARGO_PKG_VERSION");
    assert_eq!(
        error,
        format!("its version is 0.0.0, that of rank 0 is {own}")
    );
    Hello::own().tell(&mut other).unwrap();
    let hello = first.await_kind(1, Kind::Hello, &mut |_| Ok(())).unwrap();
    assert_eq!(Hello::read(&hello, 1, 2).unwrap(), Hello::own());
}
