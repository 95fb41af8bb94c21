//! Thousands of broken tokenizer files: each is refused, or survives whatever is encoded with it.
//! Deterministic; a crash in SentencePiece would take the test process down.

use super::inputs;
use crate::rng::Rng;
use llamabi::tokenizer::model_proto::{ModelProto, SentencePiece, Type};
use llamabi::tokenizer::{self, Detokenizer, Tokenizer};
use llamabi::{Error, Token};
use prost::Message;
use std::path::Path;
use std::sync::Arc;

/// How many files were taken and how many refused.
#[derive(Default)]
struct Count {
    accepted: usize,
    refused: usize,
}

impl Count {
    fn say(&self, what: &str) {
        let n = self.accepted + self.refused;
        eprintln!("sentencepiece, {what}: {} of {n} accepted", self.accepted);
    }

    fn try_file(&mut self, bytes: &[u8], rng: &mut Rng) {
        match tokenizer::from_bytes(Path::new("mutated"), bytes) {
            Ok(tokenizer) => {
                self.accepted += 1;
                exercise(&tokenizer, rng);
            }
            Err(error) => {
                self.refused += 1;
                assert!(
                    matches!(error, Error::Format { .. } | Error::Unsupported(_)),
                    "{error}"
                );
                assert!(error.to_string().contains("mutated"), "{error}");
            }
        }
    }
}

fn exercise(tokenizer: &Arc<dyn Tokenizer>, rng: &mut Rng) {
    let nested = "q".repeat(700);
    let texts = [
        "",
        "The cat sat.",
        "  世 🦙\0qqq ",
        &nested,
        "aa<s>ab\u{2581}ba \u{fffd}",
        "<0x41>",
        "\n",
    ];
    let n = tokenizer.vocab_size() as Token;
    for text in texts {
        let ids = tokenizer.encode(text).unwrap();
        assert!(ids.iter().all(|id| (0..n).contains(id)));
        decode(tokenizer, &ids);
    }
    let ids: Vec<Token> = (0..20)
        .map(|_| rng.below(n as usize + 2) as Token - 1)
        .collect();
    decode(tokenizer, &ids);
    for id in ids {
        assert_eq!(tokenizer.token_bytes_with_nul(id).last(), Some(&0));
    }
}

fn decode(tokenizer: &Arc<dyn Tokenizer>, ids: &[Token]) {
    let mut text = String::new();
    let mut detokenizer = Detokenizer::new(tokenizer.clone());
    ids.iter().for_each(|&id| detokenizer.push(id, &mut text));
    detokenizer.finish(&mut text);
    assert_eq!(text, tokenizer.decode(ids).unwrap());
}

fn mutate_bytes(bytes: &mut Vec<u8>, rng: &mut Rng) {
    for _ in 0..=rng.below(3) {
        // The specifications lie at the end: half of the time there.
        let at = match rng.below(2) {
            0 => bytes.len().saturating_sub(1 + rng.below(64)),
            _ => rng.below(bytes.len()),
        };
        let to = (at + rng.below(40)).min(bytes.len());
        match rng.below(6) {
            0 => bytes[at] ^= 1 << rng.below(8),
            1 => bytes[at] = rng.pick(&[0, 1, 0x0a, 0x12, 0x7f, 0x80, 0xff]),
            2 => bytes.insert(at, rng.next() as u8),
            3 => drop(bytes.drain(at..to)),
            4 => {
                let copy = bytes[at..to].to_vec();
                let into = rng.below(bytes.len());
                bytes.splice(into..into, copy);
            }
            _ => bytes.truncate(at),
        }
        if bytes.is_empty() {
            return;
        }
    }
}

#[test]
fn files_with_broken_bytes() {
    let small = std::fs::read("tests/data/small-tokenizer.model").unwrap();
    let wide = std::fs::read("tests/data/tokenizer/tokenizer.model").unwrap();
    let mut rng = Rng(1);
    let mut count = Count::default();
    for i in inputs(4000) {
        let mut bytes = if i % 200 == 0 {
            wide.clone()
        } else {
            small.clone()
        };
        mutate_bytes(&mut bytes, &mut rng);
        count.try_file(&bytes, &mut rng);
    }
    count.say("bytes");
    assert!(
        count.accepted > 200 && count.refused > 1500,
        "{} {}",
        count.accepted,
        count.refused
    );
}

#[test]
fn files_from_noise() {
    let mut rng = Rng(2);
    let mut count = Count::default();
    for _ in inputs(3000) {
        let bytes: Vec<u8> = (0..rng.below(200))
            .map(|_| match rng.below(2) {
                0 => rng.pick(&[0x0a, 0x12, 0x1a, 0x2a, 2, 3, 0x18, 0x15]),
                _ => rng.next() as u8,
            })
            .collect();
        count.try_file(&bytes, &mut rng);
    }
    count.say("noise");
    assert!(count.accepted == 0 && count.refused >= 3000);
}

fn mutate_model(proto: &mut ModelProto, rng: &mut Rng) {
    let a_type = |rng: &mut Rng| rng.pick(&[1, 2, 3, 4, 4, 5, 5, 6, 0, 7, -1, i32::MIN]);
    let a_flag = |rng: &mut Rng| rng.pick(&[None, Some(false), Some(true)]);
    let an_id = |rng: &mut Rng| {
        rng.pick(&[
            None,
            Some(-1),
            Some(0),
            Some(1),
            Some(2),
            Some(512),
            Some(i32::MIN),
        ])
    };
    let a_name = |rng: &mut Rng| {
        rng.pick(&[None, Some(""), Some("<s>"), Some("a\0b"), Some("the")])
            .map(String::from)
    };
    let a_text = |rng: &mut Rng| -> Vec<u8> {
        match rng.below(9) {
            0 => vec![],
            1 => vec![b'q'; rng.pick(&[1, 511, 512, 513, 70_000])],
            2 => vec![0xff, 0xc0],
            3 => b"a\0b".to_vec(),
            4 => "\u{2581}\u{2581} \u{2581}".into(),
            5 => format!("<0x{:02X}>", rng.below(300)).into_bytes(),
            6 => "世🦙".into(),
            7 => b"q".repeat(1 + rng.below(9)),
            _ => (0..rng.below(6))
                .map(|_| b'a' + rng.below(3) as u8)
                .collect(),
        }
    };
    let at = rng.below(proto.pieces.len());
    let trainer = proto.trainer_spec.get_or_insert_default();
    let normalizer = proto.normalizer_spec.get_or_insert_default();
    match rng.below(22) {
        0 => proto.pieces[at].r#type = Some(a_type(rng)),
        1 => proto.pieces[at].piece = Some(a_text(rng)),
        2 | 3 => proto.pieces[at].score = Some(f32::from_bits(rng.next() as u32)),
        4 => proto.pieces[at].score = Some(rng.pick(&[0.0, 1e38, -1e38, f32::NAN, f32::INFINITY])),
        5 => proto.pieces[at].piece = proto.pieces[0].piece.clone(),
        6 => drop(proto.pieces.remove(at)),
        7 => proto.pieces.truncate(at),
        8 => proto.pieces.swap(0, at),
        9..=12 => proto
            .pieces
            .extend((0..rng.pick(&[1, 3, 70])).map(|_| SentencePiece {
                piece: Some(a_text(rng)),
                score: Some(rng.below(100) as f32),
                r#type: Some(a_type(rng)),
            })),
        // Pieces that contain each other, of one kind.
        13 | 14 => {
            let r#type = Some(rng.pick(&[Type::Normal, Type::Unused, Type::UserDefined]) as i32);
            let longest = rng.pick(&[9, 64, 65, 512]);
            proto.pieces.extend((1..=longest).map(|n| SentencePiece {
                piece: Some(b"q".repeat(n)),
                score: Some(n as f32),
                r#type,
            }));
        }
        15 => {
            normalizer.precompiled_charsmap =
                Some((0..rng.below(1200)).map(|_| rng.next() as u8).collect())
        }
        16 => proto.denormalizer_spec = Some(a_text(rng)),
        17 => {
            normalizer.add_dummy_prefix = a_flag(rng);
            normalizer.remove_extra_whitespaces = a_flag(rng);
            normalizer.escape_whitespaces = a_flag(rng);
            trainer.treat_whitespace_as_suffix = a_flag(rng);
        }
        18 => trainer.byte_fallback = a_flag(rng),
        19 => {
            trainer.model_type =
                rng.pick(&[None, Some(1), Some(3), Some(4), Some(99), Some(i32::MIN)])
        }
        20 => match rng.below(4) {
            0 => trainer.unk_id = an_id(rng),
            1 => trainer.bos_id = an_id(rng),
            2 => trainer.eos_id = an_id(rng),
            _ => trainer.pad_id = an_id(rng),
        },
        _ => match rng.below(4) {
            0 => trainer.unk_surface = a_name(rng),
            1 => trainer.bos_piece = a_name(rng),
            2 => trainer.eos_piece = a_name(rng),
            _ => trainer.pad_piece = a_name(rng),
        },
    }
}

#[test]
fn models_with_broken_fields() {
    let small = std::fs::read("tests/data/small-tokenizer.model").unwrap();
    let small = ModelProto::decode(&*small).unwrap();
    let mut rng = Rng(3);
    let mut count = Count::default();
    for _ in inputs(4000) {
        let mut proto = small.clone();
        for _ in 0..=rng.below(3) {
            if proto.pieces.is_empty() {
                break;
            }
            mutate_model(&mut proto, &mut rng);
        }
        count.try_file(&proto.encode_to_vec(), &mut rng);
    }
    count.say("fields");
    assert!(
        count.accepted > 400 && count.refused > 1500,
        "{} {}",
        count.accepted,
        count.refused
    );
}
