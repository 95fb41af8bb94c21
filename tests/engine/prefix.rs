//! Prefix reuse: what is found again, what is not, and what that costs and changes.

use crate::support::*;
use llamabi::Token;
use llamabi::backend::{RowKind, Step};
use llamabi::engine::{GenerateOptions, Prompt};

fn tokens(text: &str) -> Vec<Token> {
    ids(text)
}

fn of(text: &str) -> Prompt {
    Prompt::Tokens(tokens(text))
}

fn short() -> GenerateOptions {
    GenerateOptions {
        max_gen_len: Some(3),
        ignore_eos: true,
        ..greedy()
    }
}

/// Prompt rows of all steps from `from` on.
fn prompt_rows(steps: &[Step]) -> usize {
    let spans = steps.iter().flat_map(|step| &step.spans);
    spans
        .filter(|span| span.kind == RowKind::Prefill)
        .map(|span| span.rows.len())
        .sum()
}

fn expect(text: &str, got: &Output) {
    let want = simulate(&mut hash_think, &tokens(text), 0, &short(), 64);
    assert_same(got, &want);
}

#[test]
fn a_second_request_computes_only_what_is_new() {
    let (host, probe) = Setup::default().start(hash_think);
    for (text, rows, cached) in [
        ("abcdefghij", 10, 0),
        ("abcdefghxy", 2, 8),  // two pages of four
        ("abcdefghij", 2, 8),  // the last, partial page is never shared
        ("abcdefxxxx", 6, 4),  // a page is shared whole or not at all
        ("xbcdefghij", 10, 0), // equal pages after another beginning are other pages
        ("abc", 3, 0),         // shorter than a page
        ("abcdefgh", 1, 7),    // fully cached: the last token is computed all the same
        ("abcd", 1, 3),
    ] {
        let before = probe.steps().len();
        let got = host.one(of(text), short());
        expect(text, &got);
        assert_eq!(prompt_rows(&probe.steps()[before..]), rows, "{text}");
        assert_eq!(got.stats.cached_tokens, cached, "{text}");
        host.assert_empty();
    }
    let timings = host.engine.timings();
    assert_eq!(
        (timings.prompt_tokens, timings.cached_tokens),
        (65, 8 + 8 + 4 + 7 + 3)
    );
}

#[test]
fn the_last_token_of_a_fully_cached_prompt_writes_nothing() {
    let (host, probe) = Setup::default().start(hash_think);
    host.one(of("abcdefgh"), short());
    let before = probe.steps().len();
    expect("abcdefgh", &host.one(of("abcdefgh"), short()));
    let step = &probe.steps()[before];
    assert_eq!(step.slots, [Step::NO_SLOT]);
    assert_eq!((step.spans[0].position, step.pages.len()), (7, 2));
}

/// What decode computed has another arithmetic, so a continued dialog computes its answers again.
#[test]
fn pages_that_decode_wrote_are_not_found() {
    let setup = Setup {
        max_seq_len: 64,
        ..Setup::default()
    };
    let (host, _) = setup.start(hash_think);
    let options = GenerateOptions {
        max_gen_len: Some(20),
        ..short()
    };
    let first = host.one(of("abcdefg"), options);
    let mut dialog = tokens("abcdefg");
    dialog.extend(&first.tokens);
    let got = host.one(Prompt::Tokens(dialog.clone()), short());
    assert_eq!(
        got.stats.cached_tokens, 4,
        "only the page that lies within the first prompt"
    );
    assert_same(&got, &simulate(&mut hash_think, &dialog, 0, &short(), 64));
    // By now prefill has written all of it.
    assert_eq!(
        host.one(Prompt::Tokens(dialog), short())
            .stats
            .cached_tokens,
        24
    );
}

#[test]
fn running_sequences_share_as_soon_as_the_step_that_wrote_has_ended() {
    let setup = Setup {
        prefill_chunk: Some(8),
        ..Setup::default()
    };
    let (host, probe) = setup.start(hash_think);
    probe.hold();
    let first = host
        .submit(vec![of("abcdefghijklmnopqrst")], short())
        .unwrap();
    probe.wait_for(1);
    let second = host
        .submit(vec![of("abcdefghijklmnopXXXX")], short())
        .unwrap();
    probe.release();
    let first = collect(&first, 1).unwrap().0.remove(0);
    let second = collect(&second, 1).unwrap().0.remove(0);
    expect("abcdefghijklmnopqrst", &first);
    expect("abcdefghijklmnopXXXX", &second);
    assert_eq!(
        (first.stats.cached_tokens, second.stats.cached_tokens),
        (0, 16)
    );
    host.assert_empty();
}

#[test]
fn several_answers_to_one_prompt_cost_one_prefill() {
    let (host, probe) = Setup::default().start(hash_think);
    let options = GenerateOptions {
        temperature: 1.0,
        seed: 5,
        max_gen_len: Some(6),
        ..short()
    };
    let got = host.run(vec![of("abcdefghijklmnopq"); 4], options.clone());
    for (index, got) in (0..).zip(&got) {
        let want = simulate(
            &mut hash_think,
            &tokens("abcdefghijklmnopq"),
            index,
            &options,
            64,
        );
        assert_same(got, &want);
    }
    assert_ne!(
        got[0].tokens, got[1].tokens,
        "each sequence has its own draws"
    );
    assert_eq!(
        prompt_rows(&probe.steps()),
        17 + 3,
        "the shared pages once, the last token each"
    );
    host.assert_empty();
}

#[test]
fn the_least_recently_used_text_is_forgotten_when_pages_are_needed() {
    // Room for three sequences of two prompt pages and one more.
    let setup = Setup {
        n_pages: 9,
        max_seq_len: 16,
        max_batch_size: 1,
        ..Setup::default()
    };
    let (host, _) = setup.start(hash_think);
    let cached = |text: &str| {
        let got = host.one(
            of(text),
            GenerateOptions {
                max_gen_len: Some(1),
                ..short()
            },
        );
        host.assert_empty();
        got.stats.cached_tokens
    };
    let texts = ["aaaabbbbx", "ccccddddx", "eeeeffffx"];
    texts.iter().for_each(|text| assert_eq!(cached(text), 0));
    // Six pages are remembered, three are free.
    assert_eq!(cached(texts[0]), 8, "used just now");
    assert_eq!(
        cached("gggghhhhiiiix"),
        0,
        "needs four pages: three free ones and the oldest"
    );
    assert_eq!(cached(texts[0]), 8);
    assert_eq!(cached(texts[2]), 8);
    assert_eq!(cached(texts[1]), 4, "its end went first");
}

#[test]
fn a_scored_prompt_does_not_look_but_can_be_found() {
    let (host, probe) = Setup::default().start(hash_think);
    let scored = GenerateOptions {
        echo: true,
        logprobs: true,
        ..short()
    };
    for _ in 0..2 {
        let before = probe.steps().len();
        let got = host.one(of("abcdefghij"), scored.clone());
        assert_same(
            &got,
            &simulate(&mut hash_think, &tokens("abcdefghij"), 0, &scored, 64),
        );
        assert_eq!(got.stats.cached_tokens, 0);
        assert_eq!(prompt_rows(&probe.steps()[before..]), 10);
    }
    assert_eq!(host.one(of("abcdefghij"), short()).stats.cached_tokens, 8);
    let top = GenerateOptions {
        echo: true,
        top_logprobs: 2,
        ..short()
    };
    let got = host.one(of("abcdefghij"), top.clone());
    assert_same(
        &got,
        &simulate(&mut hash_think, &tokens("abcdefghij"), 0, &top, 64),
    );
    assert_eq!(got.stats.cached_tokens, 0);
    // Without scores the echo needs no logits.
    let echo = GenerateOptions {
        echo: true,
        ..short()
    };
    let got = host.one(of("abcdefghij"), echo.clone());
    assert_same(
        &got,
        &simulate(&mut hash_think, &tokens("abcdefghij"), 0, &echo, 64),
    );
    assert_eq!(got.stats.cached_tokens, 8);
}

#[test]
fn what_a_cancelled_prefill_has_written_is_found() {
    let setup = Setup {
        prefill_chunk: Some(8),
        ..Setup::default()
    };
    let (host, probe) = setup.start(hash_think);
    probe.hold();
    let stream = host
        .submit(vec![of("abcdefghijklmnopqrst")], short())
        .unwrap();
    probe.wait_for(1);
    stream.cancel();
    probe.release();
    assert!(collect(&stream, 1).unwrap().1);
    host.assert_empty();
    let got = host.one(of("abcdefghijklmnopqrst"), short());
    expect("abcdefghijklmnopqrst", &got);
    assert_eq!(got.stats.cached_tokens, 8);
}

#[test]
fn prompts_find_the_prefixes_of_their_own_salt_only_and_get_the_same_tokens() {
    let (host, _) = Setup::default().start(hash_think);
    for (salt, cached) in [(0, 0), (7, 0), (u64::MAX, 0), (7, 8), (0, 8), (u64::MAX, 8)] {
        let options = GenerateOptions {
            cache_salt: salt,
            ..short()
        };
        let got = host.one(of("abcdefghij"), options);
        expect("abcdefghij", &got);
        assert_eq!(got.stats.cached_tokens, cached, "salt {salt}");
    }
    host.assert_empty();
}

#[test]
fn running_sequences_with_different_salts_do_not_wait_for_each_others_pages() {
    let (host, probe) = Setup::default().start(hash_think);
    probe.hold();
    let streams = [0, 7].map(|salt| {
        let options = GenerateOptions {
            cache_salt: salt,
            ..short()
        };
        host.submit(vec![of("abcdefghijkl")], options).unwrap()
    });
    probe.release();
    for stream in &streams {
        let got = collect(stream, 1).unwrap().0.remove(0);
        expect("abcdefghijkl", &got);
        assert_eq!(got.stats.cached_tokens, 0);
    }
    host.assert_empty();
}
