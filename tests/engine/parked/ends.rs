//! How those end who do not go on: nobody has read of them for too long, memory does not suffice
//! for what is parked, or somebody ends them.

use super::*;
use llamabi::Cancel;
use llamabi::engine::FinishReason;

fn events(stream: &Stream) -> (Vec<Token>, Vec<FinishReason>, Next) {
    let (mut tokens, mut reasons) = (Vec::new(), Vec::new());
    loop {
        match stream.next(Some(PATIENCE)).unwrap() {
            Next::Event(Event::Token(e)) => tokens.push(e.token),
            Next::Event(Event::Finish(e)) => reasons.push(e.reason),
            end => return (tokens, reasons, end),
        }
    }
}

/// Whether its sequences run, sit in their slots, were parked or have not begun.
#[test]
fn a_stream_that_nobody_reads_ends_and_keeps_what_it_has() {
    for others in [false, true] {
        let setup = Setup {
            max_unread_ms: 150,
            ..setup()
        };
        let (host, _) = setup.start(hash_think);
        let unread = host.submit(vec![prompt("ab"); 6], long(600)).unwrap();
        if others {
            host.run(vec![prompt("k"); 4], short());
            assert!(parked(&host) > 0);
        }
        until(&host, "it ends", |host| {
            let timings = host.engine.timings();
            (timings.running, timings.parked, timings.waiting) == (0, 0, 0)
        });
        let (tokens, reasons, end) = events(&unread);
        // That is no cancellation.
        assert_eq!((reasons, end), (vec![FinishReason::Unread; 6], Next::Done));
        assert!((1024..1100).contains(&tokens.len()), "{}", tokens.len());
        host.assert_empty();
    }
}

/// One who reads anything at all in time goes on, however slowly; so does one who is not behind.
#[test]
fn a_stream_that_is_read_does_not_end() {
    // On a busy machine one of the pauses may be longer than the bound: then again with longer
    // ones.
    assert!([1, 4, 16].into_iter().any(read_now_and_then));
}

/// Whether a stream of which an event is read every 300 ms, times `longer`, comes to its own end.
fn read_now_and_then(longer: u32) -> bool {
    let setup = Setup {
        max_unread_ms: longer * 2000,
        ..setup()
    };
    let (host, _) = setup.start(hash_think);
    let few = host.submit(vec![prompt("ab")], long(900)).unwrap();
    collect(&host.submit(vec![prompt("k")], short()).unwrap(), 1).unwrap();
    let slow = host.submit(vec![prompt("ab"); 2], long(900)).unwrap();
    until_behind(&host, 900);
    for _ in 0..8 {
        // Eight of these are longer than the bound, and one is far shorter.
        assert!(matches!(slow.next(None).unwrap(), Next::Event(_)));
        std::thread::sleep(longer * Duration::from_millis(300));
    }
    assert_eq!(events(&few).1, [FinishReason::Length]);
    let (_, reasons, _) = events(&slow);
    reasons == [FinishReason::Length; 2]
}

/// Where the memory does not suffice, the one that was not read for the longest time ends.
#[test]
fn memory_for_what_is_parked_is_bounded() {
    // A page of the model has 20 bytes.
    for (stall_memory_bytes, left) in [(0, 0), (4 * 300 / 4 * 20, 1)] {
        let setup = Setup {
            stall_memory_bytes,
            ..setup()
        };
        let (host, _) = setup.start(hash_think);
        let first = host.submit(vec![prompt("ab"); 4], long(600)).unwrap();
        until_behind(&host, 0);
        let before = host.engine.timings().generated_tokens;
        let second = host.submit(vec![prompt("cd"); 4], long(600)).unwrap();
        until(&host, "it has the slots", |host| {
            host.engine.timings().running == 4 && host.engine.timings().waiting == 0
        });
        until_behind(&host, before);
        host.run(vec![prompt("k"); 4], short());
        let (_, reasons, end) = events(&first);
        assert_eq!((reasons, end), (vec![FinishReason::Unread; 4], Next::Done));
        let want = match left {
            0 => FinishReason::Unread,
            _ => FinishReason::Length,
        };
        assert_eq!(events(&second).1, [want; 4]);
        host.assert_empty();
    }
}

#[test]
fn what_is_parked_can_be_cancelled_and_failed() {
    type Ending = fn(&Host, &Stream, &Cancel);
    let endings: [Ending; 4] = [
        |_, _, flag| flag.trigger(),
        |_, stream, _| stream.cancel(),
        |host, _, _| host.engine.shutdown(),
        |host, _, _| host.engine.poison("enough"),
    ];
    for (at, end) in endings.into_iter().enumerate() {
        let (host, _) = setup().start(hash_think);
        let flag = Cancel::new();
        let options = GenerateOptions {
            cancel: Some(flag.clone()),
            ..long(600)
        };
        let unread = host.submit(vec![prompt("ab"); 4], options).unwrap();
        host.run(vec![prompt("k"); 4], short());
        until(&host, "all are parked", |host| parked(host) == 4);
        end(&host, &unread, &flag);
        until(&host, "they are gone", |host| parked(host) == 0);
        let mut reasons = Vec::new();
        let last = loop {
            match unread.next(Some(PATIENCE)) {
                Ok(Next::Event(Event::Finish(e))) => reasons.push(e.reason),
                Ok(Next::Event(_)) => {}
                last => break last,
            }
        };
        match at {
            3 => assert!(last.is_err() && reasons.is_empty()),
            _ => {
                assert_eq!(last.unwrap(), Next::Cancelled);
                assert_eq!(reasons, [FinishReason::Cancelled; 4]);
                host.assert_empty();
            }
        }
    }
}

/// A handle on which nobody does anything does nothing, even if sequences are parked.
#[test]
#[cfg(target_os = "linux")]
fn an_engine_that_waits_for_readers_sleeps() {
    let switches = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let status = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("status"));
        let engines = tasks.filter_map(|task| status(task.ok()?).ok());
        let engines = engines.filter(|s| s.lines().next() == Some("Name:\tllamabi-engine"));
        let count = |s: String| -> u64 {
            let line = s.lines().find(|l| l.starts_with("voluntary_ctxt_switches"));
            line.unwrap()
                .split_whitespace()
                .last()
                .unwrap()
                .parse()
                .unwrap()
        };
        engines.map(count).sum::<u64>()
    };
    let setup = Setup {
        max_unread_ms: 60_000,
        ..setup()
    };
    let (host, _) = setup.start(hash_think);
    let unread = host.submit(vec![prompt("ab"); 4], long(600)).unwrap();
    host.run(vec![prompt("k"); 4], short());
    until(&host, "all are parked", |host| parked(host) == 4);
    std::thread::sleep(Duration::from_millis(50));
    // Other tests of this binary have engines too, but none that idles for so long... so the least
    // of some spans.
    let spans = (0..20).map(|_| {
        let before = switches();
        std::thread::sleep(Duration::from_millis(50));
        switches().saturating_sub(before)
    });
    assert!(spans.min().unwrap() < 5, "it looks up again and again");
    drop(unread);
}
