//! The word-by-word encoder against SentencePiece's own on the whole text.

use crate::rng::Rng;
use crate::tokenizers;
use llamabi::Token;
use llamabi::tokenizer::model_proto::{ModelProto, SentencePiece as Entry, Type};
use llamabi::tokenizer::{self, Tokenizer};
use prost::Message;
use sentencepiece::SentencePieceProcessor;
use std::path::Path;
use std::sync::Arc;

const SMALL: &str = "tests/data/small-tokenizer.model";

struct Both {
    ours: Arc<dyn Tokenizer>,
    library: SentencePieceProcessor,
    proto: ModelProto,
}

impl Both {
    fn new(proto: ModelProto) -> Both {
        let bytes = proto.encode_to_vec();
        Both {
            ours: tokenizer::from_bytes(Path::new("test.model"), &bytes).unwrap(),
            library: SentencePieceProcessor::from_serialized_proto(&bytes).unwrap(),
            proto,
        }
    }

    #[track_caller]
    fn agree_on(&self, text: &str) {
        let library = self.library.encode(text).unwrap();
        let library: Vec<Token> = library.iter().map(|p| p.id as Token).collect();
        let ours = self.ours.encode(text).unwrap();
        if ours != library {
            let at = ours
                .iter()
                .zip(&library)
                .take_while(|(a, b)| a == b)
                .count();
            let start: String = text.chars().take(300).collect();
            panic!(
                "{start:?}: at token {at} {:?} {:?}",
                &ours[at..],
                &library[at..]
            );
        }
    }
}

/// The small model and the wide ones.
fn protos() -> Vec<ModelProto> {
    let wide = tokenizers::all_cases().into_iter().map(|c| c.tokenizer);
    let files = wide.chain([SMALL.into()]);
    files.map(|file| proto(&file)).collect()
}

fn proto(file: &Path) -> ModelProto {
    ModelProto::decode(&*std::fs::read(file).unwrap()).unwrap()
}

/// Pieces, halves of pieces, characters of all kinds and runs of one: what merges, nearly merges,
/// and does not.
fn random_text(rng: &mut Rng, proto: &ModelProto, parts: usize) -> String {
    let mut text = String::new();
    for _ in 0..parts {
        let piece = &proto.pieces[rng.below(proto.pieces.len())];
        let piece = std::str::from_utf8(piece.piece()).unwrap();
        match rng.below(8) {
            0..=2 => text += &piece.replace('\u{2581}', " "),
            3 => text.extend(piece.chars().take(2)),
            4 => text
                .push([' ', '\n', '\0', '\u{2581}', 'é', '世', '🦙', '\u{10ffff}'][rng.below(8)]),
            5 => text.extend(std::iter::repeat_n(
                [' ', 'a', '=', '-', '0'][rng.below(5)],
                rng.below(40),
            )),
            6 => text.extend((0..rng.below(12)).map(|_| (b'a' + rng.below(26) as u8) as char)),
            _ => text.extend((0..3).map(|_| "etaoin shrdlu".as_bytes()[rng.below(13)] as char)),
        }
    }
    text
}

fn agree_on_random_texts(both: &Both, seed: u64, texts: usize) {
    let mut rng = Rng(seed);
    for _ in 0..texts {
        let parts = 1 + rng.below(30);
        let text = random_text(&mut rng, &both.proto, parts);
        if !text.is_empty() {
            both.agree_on(&text);
        }
    }
    both.agree_on(&random_text(&mut rng, &both.proto, 20_000));
}

#[test]
fn random_texts_are_what_the_library_makes_of_them() {
    for (seed, proto) in (1..).zip(protos()) {
        agree_on_random_texts(&Both::new(proto), seed, 3000);
    }
}

#[test]
fn texts_of_this_project_are_what_the_library_makes_of_them() {
    for proto in protos() {
        let both = Both::new(proto);
        for text in [
            "README.md",
            "include/llamabi.h",
            "demo/held_out.py",
            "THIRD-PARTY.md",
            "Cargo.lock",
        ] {
            both.agree_on(&std::fs::read_to_string(text).unwrap());
        }
    }
}

/// Vocabularies that train never makes: equal scores, both zeros, nested user-defined symbols,
/// unions of characters that are no pieces, pieces that contain each other.
#[test]
fn odd_vocabularies_are_what_the_library_makes_of_them() {
    let mut rng = Rng(7);
    let entry = |piece: &str, score: f32, r#type: Type| Entry {
        piece: Some(piece.into()),
        score: Some(score),
        r#type: Some(r#type as i32),
    };
    for round in 0..12 {
        let mut odd = proto(SMALL.as_ref());
        let scores = [0.0, -0.0, -1.0, 1.0, -1e30, 1e30];
        for piece in &mut odd.pieces {
            if piece.r#type() == Type::Normal {
                piece.score = Some(match round % 3 {
                    0 => 0.0,
                    1 => scores[rng.below(6)],
                    _ => rng.below(1000) as f32 / 7.0,
                });
            }
        }
        let mut more = vec![
            entry("世界", 3.0, Type::Normal),
            entry("🦙🦙", 1.0, Type::Normal),
            entry("qqq", -0.0, Type::Normal),
            entry("qqqqq", 0.0, Type::Normal),
            entry("qqqqqqqq", 5.0, Type::Normal),
        ];
        if round >= 6 {
            for piece in [
                "\u{2581}<A>",
                "<A>",
                "<A><B>",
                "<A><B>\u{2581}",
                "A",
                "the the",
                "\n\n",
            ] {
                if !odd.pieces.iter().any(|p| p.piece() == piece.as_bytes()) {
                    more.push(entry(piece, 2.0, Type::UserDefined));
                }
            }
        }
        if round == 11 {
            more.push(entry("qqqqqqqqq", 9.0, Type::Unused));
        }
        odd.pieces.extend(more);
        let both = Both::new(odd);
        for text in [
            "世界世界 世 🦙🦙🦙",
            &"q".repeat(61),
            "qq qqqq qqqqqqqqq",
            "<A><B> <A><B><A> <A>the the the\n\n\nAA<A",
        ] {
            both.agree_on(text);
        }
        agree_on_random_texts(&both, 100 + round, 400);
    }
}

/// A text without any place to cut is one word.
#[test]
fn a_long_word_is_what_the_library_makes_of_it() {
    let both = Both::new(proto(tokenizers::WIDE.as_ref()));
    let mut rng = Rng(9);
    let letters: String = (0..300_000)
        .map(|_| "etaoinshrdlu".as_bytes()[rng.below(12)] as char)
        .collect();
    both.agree_on(&letters);
    both.agree_on(&"a".repeat(100_000));
    both.agree_on(&"\u{2581} ".repeat(30_000));
}
