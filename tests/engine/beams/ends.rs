//! How searches narrow and end.

use super::*;

/// Here and there only one token is possible, so a search has fewer beams for a while.
fn narrow_think(history: &History, logits: &mut [f32]) {
    hash_think(history, logits);
    if history.len() % 5 < 2 {
        let only = 3 + history.len() % 20;
        for (id, logit) in logits.iter_mut().enumerate() {
            if id != only {
                *logit = f32::NAN;
            }
        }
    }
}

#[test]
fn a_search_that_has_narrowed_widens_again() {
    for ahead in [false, true] {
        for text in ["", "abc", "abcd", "abcdefg"] {
            let (host, _) = Setup::default().start_ahead(ahead, narrow_think);
            let options = GenerateOptions {
                max_gen_len: Some(17),
                ..beams(4)
            };
            let got = host.run(vec![prompt(text)], options.clone());
            let prompt = tokens_of(&prompt(text));
            let want = simulate_beams(&mut narrow_think, &prompt, &options, 64);
            for (got, want) in got.iter().zip(&want) {
                assert_same_beams(got, want);
            }
            host.assert_empty();
        }
    }
}

#[test]
fn what_is_impossible_ends_a_search_with_what_has_finished() {
    // After a few tokens nothing is a number any more.
    let think = |end: usize| {
        move |history: &History, logits: &mut [f32]| match history.len() < end {
            true => hash_think(history, logits),
            false => logits.fill(f32::NAN),
        }
    };
    for ahead in [false, true] {
        let (host, _) = Setup::default().start_ahead(ahead, think(9));
        let got = host.run(vec![prompt("abc")], beams(4));
        let (finished, rest): (Vec<_>, Vec<_>) =
            got.iter().partition(|out| out.score > f32::NEG_INFINITY);
        assert!(!finished.is_empty() && !rest.is_empty(), "{got:?}");
        for out in rest {
            assert_eq!(
                (&out.tokens[..], out.reason()),
                (&[][..], FinishReason::Stop)
            );
            assert_eq!(out.sum_logprob, f32::NEG_INFINITY);
        }
        // Nothing had finished: what there was by then.
        let (host, _) = Setup::default().start_ahead(ahead, think(6));
        let options = GenerateOptions {
            min_gen_len: 4,
            ..beams(2)
        };
        for out in host.run(vec![prompt("abc")], options) {
            assert_eq!(
                (out.tokens.len(), out.reason()),
                (2, FinishReason::NotFinite)
            );
        }
        host.assert_empty();
        // The options leave nothing.
        let (host, _) = Setup::default().start_ahead(ahead, hash_think);
        let ban = |token| Bias {
            token,
            bias: f32::NEG_INFINITY,
        };
        let options = GenerateOptions {
            logit_bias: (0..IDS as i32).map(ban).collect(),
            ..beams(2)
        };
        let stream = host.submit(vec![prompt("abc")], options).unwrap();
        let error = collect(&stream, 2).unwrap_err();
        let expected = matches!(
            error,
            Error::NoToken {
                index: 0,
                position: 4
            }
        );
        assert!(expected, "{error}");
        host.assert_empty();
    }
}

#[test]
fn a_search_that_is_stopped_gives_what_it_has() {
    let (host, probe) = Setup::default().start(hash_think);
    let whole = host.run(vec![prompt("abc")], beams(3));
    probe.take_steps();
    for steps in 1..8 {
        probe.hold();
        let flag = Cancel::new();
        let options = GenerateOptions {
            cancel: Some(flag.clone()),
            ..beams(3)
        };
        let stream = host.submit(vec![prompt("abc")], options).unwrap();
        probe.wait_for(1);
        for step in 1..steps {
            probe.allow(1);
            probe.wait_for(step + 1);
        }
        flag.trigger();
        probe.release();
        let (got, cancelled) = collect(&stream, 3).unwrap();
        probe.take_steps();
        if !cancelled {
            assert_eq!(got[0].tokens, whole[0].tokens);
            continue;
        }
        let is_cut = |out: &Output| out.reason() == FinishReason::Cancelled;
        assert!(
            got.iter().is_sorted_by_key(is_cut),
            "the finished ones first"
        );
        for out in got.iter().filter(|out| is_cut(out)) {
            assert!(out.tokens.len() <= steps, "{out:?}");
            let length = out.tokens.len().max(1) as f32;
            assert!((out.score - out.sum_logprob / length).abs() < 1e-5);
            let sum: f32 = out.logprobs.iter().sum();
            assert!((sum - out.sum_logprob).abs() < 1e-4);
        }
        host.assert_empty();
    }
    // Its time is over.
    probe.hold();
    let options = GenerateOptions {
        max_time_ms: 1000, // a busy machine begins within it
        ..beams(3)
    };
    let stream = host.submit(vec![prompt("abc")], options).unwrap();
    probe.wait_for(1);
    std::thread::sleep(Duration::from_millis(1020));
    probe.release();
    let (got, cancelled) = collect(&stream, 3).unwrap();
    assert!(!cancelled);
    assert!(got.iter().all(|out| out.reason() == FinishReason::Time));
    host.assert_empty();
}

/// Readers get nothing of a search before its end but its events.
#[test]
fn tokens_come_at_the_end() {
    let (host, probe) = Setup::default().start(hash_think);
    probe.hold();
    let stream = host.submit(vec![prompt("abc")], beams(2)).unwrap();
    let stream = Arc::new(stream);
    for step in 1..4 {
        probe.wait_for(step);
        let next = stream.next(Some(Duration::ZERO)).unwrap();
        assert_eq!(next, Next::Timeout);
        probe.allow(1);
    }
    probe.release();
    let mut finished = 0;
    while let Next::Event(event) = stream.next(Some(PATIENCE)).unwrap() {
        match event {
            Event::Token(token) => assert_eq!(token.index, finished),
            Event::Finish(end) => {
                assert_eq!(end.index, finished);
                finished += 1;
            }
            Event::Beam(_) => panic!("nobody asked for it"),
        }
    }
    assert_eq!(finished, 2);
}
