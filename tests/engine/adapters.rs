//! Adapters on their way from a request to the steps, and who holds them.

use crate::support::*;
use llamabi::backend::{Adapter, Shape};
use llamabi::engine::{GenerateOptions, Prompt, Request, Stream};
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

fn submit(
    host: &Host,
    text: &str,
    options: GenerateOptions,
    adapter: Option<Arc<Adapter>>,
) -> Stream {
    let request = Request::with_adapter(vec![of(text)], options, adapter, &host.limits);
    host.engine.submit(request.unwrap()).unwrap()
}

/// Spans have the adapters of their own requests. When a call has ended nobody holds its adapter
/// any more, though its stream is still open.
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
        submit(
            &host,
            text,
            options,
            which.map(|i: usize| adapters[i].clone()),
        )
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
    until(&host, "nobody has the adapters", |_| free());
    assert_eq!(streams.len(), 4);
    host.assert_empty();
}

/// A prompt does not wait for the same prompt of another adapter, nor finds its pages.
#[test]
fn adapters_do_not_share_pages() {
    let (host, _) = Setup::default().start(hash_think);
    for (id, cached) in [(0, 0), (1, 0), (2, 0), (1, 8), (0, 8)] {
        let given = (id > 0).then(|| adapter(id));
        let stream = submit(&host, "abcdefghij", options(id), given);
        let (got, _) = collect(&stream, 1).unwrap();
        assert_eq!(got[0].stats.cached_tokens, cached, "adapter {id}");
    }
}

/// Whoever makes a request cannot forget the adapter that its options name, nor give another one.
#[test]
fn a_request_has_the_adapter_that_it_names() {
    let (host, _) = Setup::default().start(hash_think);
    let refused = |named, given: Option<u32>| {
        let given = given.map(adapter);
        let request = Request::with_adapter(vec![of("abc")], options(named), given, &host.limits);
        request.unwrap_err().to_string()
    };
    for (named, given) in [(1, None), (0, Some(1)), (2, Some(1))] {
        let sentence = refused(named, given);
        let (named, given) = (named.to_string(), given.unwrap_or(0).to_string());
        assert!(
            sentence.contains("adapter") && sentence.contains(&named) && sentence.contains(&given),
            "{sentence}"
        );
    }
    let forgotten = Request::new(vec![of("abc")], options(1), &host.limits);
    assert!(forgotten.is_err());
}
