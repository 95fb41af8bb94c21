//! A stream that nobody reads, on a handle as everybody builds it: the others go on, and its
//! reader, once it is there, gets what it would have got.

use llamabi::engine::{Event, FinishReason, GenerateOptions, Next, Stream};
use llamabi::{BuildOptions, Device, Dtype, Llama};
use std::path::Path;
use std::time::Duration;

fn demo(options: BuildOptions) -> Llama {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("demo/meta");
    let options = BuildOptions {
        device: Device::Cpu,
        ..options
    };
    Llama::build(&dir, None, &options, &mut |_| true).unwrap()
}

fn options(max_gen_len: Option<usize>) -> GenerateOptions {
    GenerateOptions {
        ignore_eos: true,
        logprobs: true,
        seed: 3,
        max_gen_len,
        ..GenerateOptions::default()
    }
}

/// Of each sequence its tokens, the bits of their log probabilities, its text and how it ended.
type Seen = Vec<(Vec<(i32, u32)>, String, Option<FinishReason>)>;

fn read(stream: &Stream, n: usize) -> Seen {
    let mut seen: Seen = vec![Default::default(); n];
    loop {
        match stream.next(Some(Duration::from_secs(60))).unwrap() {
            Next::Event(Event::Token(e)) => {
                let (tokens, text, _) = &mut seen[e.index as usize];
                tokens.push((e.token, e.logprob.to_bits()));
                text.push_str(&e.text);
            }
            Next::Event(Event::Finish(e)) => {
                let (_, text, finish) = &mut seen[e.index as usize];
                text.push_str(&e.text);
                *finish = Some(e.reason);
            }
            end => {
                assert_eq!(end, Next::Done);
                return seen;
            }
        }
    }
}

fn unread(build: BuildOptions) {
    let llama = demo(build);
    let texts = [
        "Once upon a time",
        "One day",
        "Tom",
        "The",
        "Lily",
        "A",
        "Once upon a time there",
        "Ben",
    ];
    let prompts = || llama.text_prompts(&texts, None).unwrap();
    let want = read(&llama.stream(prompts(), options(None)).unwrap(), 8);

    let paused = llama.stream(prompts(), options(None)).unwrap();
    while llama.timings().running < 8 {
        std::thread::sleep(Duration::from_millis(1));
    }
    for _ in 0..2 {
        let other = llama.text_prompts(&["Once"; 8], None).unwrap();
        let got = read(&llama.stream(other, options(Some(4))).unwrap(), 8);
        assert!(got.iter().all(|(tokens, ..)| tokens.len() == 4));
    }
    // Without giving slots up, the others would have come when it had ended as unread.
    assert!(llama.timings().parked > 0);
    assert!(read(&paused, 8) == want);
    let timings = llama.timings();
    assert_eq!(
        (timings.running, timings.parked, timings.pages_used),
        (0, 0, 0)
    );
}

#[test]
fn a_default_handle_serves_others() {
    unread(BuildOptions::default());
}

#[test]
fn whatever_the_cache_holds() {
    for kv_dtype in [Dtype::F32, Dtype::F16, Dtype::Int8] {
        unread(BuildOptions {
            kv_dtype: Some(kv_dtype),
            max_seq_len: 200,
            max_stall_ms: 50,
            ..BuildOptions::default()
        });
    }
}
