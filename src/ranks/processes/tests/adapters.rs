//! Adapters on ranks as threads: who has them, and what happens when one is refused or lost.

use super::*;
use crate::backend::Adapter;
use crate::ranks::processes::adapters::Remote;

fn an_adapter(held: &Arc<()>) -> Adapter {
    Adapter {
        id: 0,
        matrices: Vec::new(),
        on_device: Some(Box::new(held.clone())),
        on_ranks: None,
    }
}

/// A caller's order, while the engine's thread does what it always does between steps.
fn ordered(
    processes: &mut Processes,
    orders: &Orders,
    (id, dir): (u32, &str),
    meanwhile: &mut dyn FnMut(&mut Processes),
) -> Result<Remote> {
    std::thread::scope(|scope| {
        let order = || orders.load(id, (Path::new(dir), 0.5), 77, &|| Ok(()));
        let waits = scope.spawn(order);
        while !waits.is_finished() {
            if let Err(error) = processes.beat() {
                processes.desks.close(&error);
                break;
            }
            meanwhile(processes);
            std::thread::sleep(Duration::from_millis(1));
        }
        waits.join().unwrap()
    })
}

fn step_with(token: i32, id: u32) -> Step {
    let adapter = Adapter {
        id,
        ..an_adapter(&Arc::new(()))
    };
    Step {
        adapters: vec![Some(Arc::new(adapter))],
        ..a_step(token)
    }
}

fn sum_with(processes: &mut Processes, token: i32, id: u32) -> Result<f32> {
    Ok(processes
        .run(&step_with(token, id), Choices::NONE)?
        .logits()[0])
}

/// Waits until nobody else holds this.
fn assert_freed(processes: &mut Processes, held: &Arc<()>) {
    let start = Instant::now();
    while Arc::strong_count(held) > 1 {
        processes.beat().unwrap();
        assert!(start.elapsed() < LONG, "{}", Arc::strong_count(held));
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn adapters_reach_every_rank_and_are_forgotten_when_nobody_uses_them() {
    for size in [2, 3] {
        let held = Arc::new(());
        let load = |dir: &Path, scale: f32| {
            assert_eq!((dir, scale), (Path::new("some/where"), 0.5));
            Ok((an_adapter(&held), 77))
        };
        let world = World::new(size, LONG);
        let ended = run_with(&world, None, &|_| &load, |processes, _, orders| {
            let ranks: f32 = (1..=size).map(|n| n as f32).sum();
            let remote = ordered(processes, orders, (9, "some/where"), &mut |_| {}).unwrap();
            assert_eq!(Arc::strong_count(&held), size, "one for each other rank");
            let got = sum_with(processes, 5, 9).unwrap();
            assert!((got - 5.09 * ranks).abs() < 1e-4, "{got}");
            assert_eq!(sum_of(processes, 5).unwrap(), 5.0 * ranks);
            assert_eq!(Arc::strong_count(&held), size, "it stays");
            drop(remote);
            assert_freed(processes, &held);
            // That number is not given again, but another one is.
            let other = ordered(processes, orders, (10, "some/where"), &mut |_| {}).unwrap();
            sum_with(processes, 5, 10).unwrap();
            // No step without it comes behind the last one with it.
            drop(other);
            assert_freed(processes, &held);
        });
        assert!(ended.iter().all(Result::is_ok), "{ended:?}");
    }
}

#[test]
fn an_adapter_that_a_rank_refuses_is_kept_by_none() {
    let held = Arc::new(());
    let good = |_: &Path, _| Ok((an_adapter(&held), 77));
    let bad = |dir: &Path, _: f32| match dir.to_str().unwrap() {
        "other" => Ok((an_adapter(&held), 78)),
        "panic" => panic!("out of its mind"),
        "good" => Ok((an_adapter(&held), 77)),
        _ => Err(Error::no_memory("an adapter", 10, 5)),
    };
    let load = |rank: usize| -> &Load<'_> { if rank == 2 { &bad } else { &good } };
    let world = World::new(3, LONG);
    let ended = run_with(&world, None, &load, |processes, _, orders| {
        for (dir, sentence) in [
            ("memory", "rank 2 of 3: an adapter needs 10 bytes"),
            (
                "other",
                "rank 2 of 3 has another adapter in other: its fingerprint is 00",
            ),
            ("panic", "rank 2 of 3: internal error: out of its mind"),
        ] {
            let refused = ordered(processes, orders, (1, dir), &mut |_| {})
                .err()
                .unwrap();
            assert!(refused.to_string().starts_with(sentence), "{refused}");
            assert_freed(processes, &held);
            assert_eq!(sum_of(processes, 5).unwrap(), 30.0, "the handle goes on");
        }
        ordered(processes, orders, (1, "good"), &mut |_| {}).unwrap();
        assert_freed(processes, &held);
    });
    assert!(ended.iter().all(Result::is_ok), "{ended:?}");
}

/// Loading takes longer than a rank may be silent.
#[test]
fn steps_and_beats_go_on_while_a_rank_loads() {
    let timeout = Duration::from_millis(1500);
    let world = World::new(2, timeout);
    let begun = Instant::now();
    let held = Arc::new(());
    let load = |_: &Path, _| {
        std::thread::sleep(timeout * 3 / 2);
        Ok((an_adapter(&held), 77))
    };
    let ended = run_with(&world, None, &|_| &load, |processes, _, orders| {
        let (mut steps, mut n) = (0, 0);
        ordered(processes, orders, (1, "slow"), &mut |processes| {
            n += 1;
            // For some of the time there are no steps.
            if n % 200 == 0 {
                assert_eq!(sum_of(processes, 5).unwrap(), 15.0);
                steps += 1;
            }
        })
        .unwrap();
        assert!(steps > 2 && begun.elapsed() > timeout, "{steps}");
    });
    assert!(ended.iter().all(Result::is_ok), "{ended:?}");
}

#[test]
fn a_rank_that_is_lost_while_it_loads_is_named() {
    // Nobody serves rank 1.
    let world = World::new(2, Duration::from_millis(1500));
    let shared = Shared::new(world.link(0));
    let own = Box::new(Fake::new(shared.clone(), 10));
    let orders = Orders::default();
    let mut processes = Processes::new(own, shared.clone(), vec![11], orders.clone());
    let why = ordered(&mut processes, &orders, (1, "a"), &mut |_| {});
    let lost = "rank 1 of 2 has not been heard of for 1500 ms";
    assert_eq!(why.err().unwrap().to_string(), lost);
    drop(processes);
    let later = orders.load(2, (Path::new("a"), 1.0), 0, &|| Ok(()));
    assert_eq!(later.err().unwrap().to_string(), lost, "nobody hears of it");
}

#[test]
fn a_handle_that_is_freed_cancels_what_is_being_loaded() {
    let world = World::new(2, LONG);
    let held = Arc::new(());
    let load = |_: &Path, _| {
        std::thread::sleep(SOON);
        Ok((an_adapter(&held), 77))
    };
    std::thread::scope(|scope| {
        let ended = run_with(&world, None, &|_| &load, |processes, _, orders| {
            let orders = orders.clone();
            let waits = scope.spawn(move || {
                let cancelled = orders.load(1, (Path::new("a"), 0.5), 77, &|| Ok(()));
                assert!(matches!(cancelled.err().unwrap(), Error::Cancelled));
            });
            // The outcome is the same whether rank 1 has been told by now or not.
            for _ in 0..20 {
                processes.beat().unwrap();
                std::thread::sleep(Duration::from_millis(1));
            }
            assert!(!waits.is_finished());
        });
        assert!(ended[0].is_ok(), "{ended:?}");
    });
    assert_eq!(Arc::strong_count(&held), 1);
}

#[test]
fn messages_about_adapters_that_make_no_sense_end_it() {
    type Tell = fn(&mut Link) -> Result<()>;
    let held = Arc::new(());
    let load = |_: &Path, _| Ok((an_adapter(&held), 77));
    let cases: [(&str, Tell); 5] = [
        ("a message to load adapter 0", |link| {
            link.tell(1, Kind::Adapt, |m| m.u32(0).f32(1.0).bytes(b"a"))
        }),
        ("a message to load adapter 3", |link| {
            link.tell(1, Kind::Adapt, |m| m.u32(3).f32(1.0).bytes(b"a"))?;
            link.tell(1, Kind::Adapt, |m| m.u32(3).f32(1.0).bytes(b"a"))
        }),
        ("a message that is too short", |link| {
            link.tell(1, Kind::Adapt, |m| m.u32(3).f32(1.0).size(7))
        }),
        ("a message to forget adapter 4", |link| {
            link.tell(1, Kind::Forget, |m| m.u32(4))
        }),
        ("a message with 5 among its adapters", |link| {
            link.tell(1, Kind::Step, |m| m.step(&step_with(5, 5)))
        }),
    ];
    for (sentence, tell) in cases {
        let world = World::new(2, LONG);
        let ended = run_with(&world, None, &|_| &load, |_, shared, _| {
            tell(&mut shared.link()).unwrap();
            // Rank 1 says why it ends.
            let error = loop {
                if let Err(error) = shared.link().look() {
                    break error.to_string();
                }
            };
            assert_eq!(error, format!("rank 1 of 2: {sentence}"));
        });
        assert_eq!(ended[0].as_ref().unwrap_err().to_string(), sentence);
    }
    // An answer that nobody has asked for.
    let world = World::new(2, LONG);
    let (mut first, mut other) = (world.link(0), world.link(1));
    other
        .tell(0, Kind::Adapted, |m| m.u32(1).u32(0).u64(7))
        .unwrap();
    first.look().unwrap();
    assert_eq!(first.answer(1).map(|answer| answer.id), Some(1));
    other.tell(0, Kind::Adapted, |m| m.u32(1).u32(0)).unwrap();
    let error = first.look().unwrap_err().to_string();
    assert_eq!(error, "rank 1 of 2: a message that is too short");
}
