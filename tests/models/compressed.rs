//! Prompts that were compressed: what their texts have, and what others see of them.

use llamabi::engine::{GenerateOptions, Prompt};
use llamabi::llama::{CompressOptions, Segment, SegmentKind};
use llamabi::{BuildOptions, Llama};
use std::path::{Path, PathBuf};

fn build(dir: &Path) -> Llama {
    let options = BuildOptions {
        max_seq_len: 128,
        max_batch_size: 2,
        ..BuildOptions::default()
    };
    Llama::build(dir, None, &options, &mut |_| true).unwrap()
}

/// SentencePiece with tokens for bytes, and two byte-level tokenizers.
fn models() -> [PathBuf; 3] {
    let gguf = |name: &str| Path::new("tests/data/gguf").join(name);
    [
        demo().into(),
        gguf("q4_0-llama3.gguf"),
        gguf("mixed32-qwen2.gguf"),
    ]
}

fn demo() -> &'static Path {
    Path::new("demo/meta")
}

fn compressed(llama: &Llama, text: &str, rate: f32) -> String {
    let kind = SegmentKind::Compress;
    let options = CompressOptions {
        rate,
        window: 40,
        ..CompressOptions::default()
    };
    let done = llama.compress(&[Segment { text, kind }], &options).unwrap();
    done.sequences[0].text.clone()
}

/// Most of these characters are several tokens. What is left of two must not become a third.
#[test]
fn texts_have_only_characters_of_their_segments_in_order() {
    let texts = [
        "日本語の文章を短くする。長い文章は読むのに時間がかかる。",
        "Съешь же ещё этих мягких французских булок, да выпей чаю. ",
        "żółć 😀😃🐈 gęślą jaźń\u{fffd} €½ naïve — “quoted” ",
    ];
    for model in models() {
        let llama = build(&model);
        let mut shorter = 0;
        for text in texts.map(|text| text.repeat(2)) {
            for rate in [0.2, 0.3, 0.5, 0.7, 0.9] {
                let left = compressed(&llama, &text, rate);
                let mut all = text.chars();
                let in_order = left.chars().all(|c| all.any(|other| other == c));
                assert!(in_order, "{}: {left:?} of {text:?}", model.display());
                shorter += usize::from(!left.is_empty() && left.len() < text.len());
            }
        }
        assert!(shorter > 10, "{}: {shorter}", model.display());
    }
}

/// What is compressed takes no room from prompts that are used again, and nobody finds it.
#[test]
fn nothing_of_what_is_compressed_stays_in_the_prefix_cache() {
    let llama = build(demo());
    let cached = |text: &str| {
        let prompt = Prompt::Tokens(llama.tokenizer().encode(text).unwrap());
        let options = GenerateOptions {
            max_gen_len: Some(1),
            ..GenerateOptions::default()
        };
        let done = llama.generate(vec![prompt], options, &mut |_| true);
        done.unwrap().sequences[0].stats.cached_tokens
    };
    let system = "You are a kind teller of stories, and all of them are short. ".repeat(2);
    cached(&system);
    let before = cached(&system);
    assert!(before >= 16, "{before}");
    let text = "Once upon a time there was a little girl who lived in a small house. ".repeat(40);
    compressed(&llama, &text, 0.5);
    assert_eq!(cached(&system), before);
    let begin: String = text.chars().take(200).collect();
    assert_eq!(cached(&begin), 0);
}
