//! Adapters on their way from a request to the steps, and who holds them.

use crate::support::*;
use llamabi::backend::{Adapter, Shape};
use llamabi::engine::{GenerateOptions, Prompt, Request};
use std::sync::Arc;

fn adapter(id: u32) -> Arc<Adapter> {
    let shape = Shape {
        dim: 4,
        n_layers: 1,
        n_heads: 1,
        n_kv_heads: 1,
        head_dim: 4,
        ffn_dim: 4,
        vocab_size: 4,
        norm_eps: 1e-5,
    };
    let mut adapter = Adapter::new(&shape).unwrap();
    adapter.id = id;
    Arc::new(adapter)
}

fn options(id: u32) -> GenerateOptions {
    GenerateOptions {
        adapter: id,
        ignore_eos: true,
        ..length(20)
    }
}

fn of(text: &str) -> Prompt {
    Prompt::Tokens(ids(text))
}

/// Spans have the adapters of their own requests. When a call has ended nobody holds its adapter any
/// more, though its stream is still open.
#[test]
fn steps_have_the_adapters_of_their_requests_and_give_them_back() {
    let (host, probe) = Setup::default().start(hash_think);
    let adapters = [adapter(1), adapter(2)];
    probe.hold();
    let streams: Vec<_> = [
        (Some(0), "abc"),
        (None, "bcd"),
        (Some(1), "cde"),
        (Some(0), "def"),
    ]
    .into_iter()
    .map(|(which, text)| {
        let options = options(which.map_or(0, |i: usize| adapters[i].id));
        let mut request = Request::new(vec![of(text)], options, &host.limits).unwrap();
        request.adapter = which.map(|i: usize| adapters[i].clone());
        host.engine.submit(request).unwrap()
    })
    .collect();
    probe.release();
    for stream in &streams {
        collect(stream, 1).unwrap();
    }
    let steps = probe.take_steps();
    let widest = steps.iter().max_by_key(|step| step.spans.len()).unwrap();
    let ids: Vec<u32> = (0..widest.spans.len())
        .map(|i| match widest.adapters.get(i) {
            Some(Some(adapter)) => adapter.id,
            _ => 0,
        })
        .collect();
    assert_eq!(ids, [1, 0, 2, 1]);
    drop(steps);
    // The engine's thread clears its plan after the last event is out.
    let free = || {
        adapters
            .iter()
            .all(|adapter| Arc::strong_count(adapter) == 1)
    };
    let start = std::time::Instant::now();
    while !free() && start.elapsed().as_secs() < 10 {
        std::thread::yield_now();
    }
    assert!(free());
    assert_eq!(streams.len(), 4);
    host.assert_empty();
}

/// A prompt does not wait for the same prompt of another adapter, nor finds its pages.
#[test]
fn adapters_do_not_share_pages() {
    let (host, _) = Setup::default().start(hash_think);
    for (id, cached) in [(0, 0), (1, 0), (2, 0), (1, 8), (0, 8)] {
        let got = host.one(of("abcdefghij"), options(id));
        assert_eq!(got.stats.cached_tokens, cached, "adapter {id}");
    }
}
