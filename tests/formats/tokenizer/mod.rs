//! The tokenizer against its reference cases and against SentencePiece itself.

mod random;
mod refused;

use crate::tokenizers::{WIDE, all_cases};
use llamabi::capi::status_of;
use llamabi::tokenizer::model_proto::{
    MAX_PIECE_BYTES, MAX_USER_DEFINED_NESTING, ModelProto, SentencePiece as Entry, Type,
};
use llamabi::tokenizer::sentencepiece::{MAX_PART_BYTES, MAX_UNK_PART_BYTES};
use llamabi::tokenizer::{self, Detokenizer, MAX_FILE_BYTES, Piece, Tokenizer};
use llamabi::{Error, Token};
use proptest::prelude::*;
use prost::Message;
use sentencepiece::SentencePieceProcessor;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

const SMALL: &str = "tests/data/small-tokenizer.model";

/// A tokenizer of ours and the library's on the same file.
struct Both {
    ours: Arc<dyn Tokenizer>,
    library: SentencePieceProcessor,
}

impl Both {
    fn new(bytes: &[u8]) -> Both {
        Both {
            ours: tokenizer::from_bytes(Path::new("test.model"), bytes).unwrap(),
            library: SentencePieceProcessor::from_serialized_proto(bytes).unwrap(),
        }
    }

    fn library_encode(&self, text: &str) -> Vec<Token> {
        if text.is_empty() {
            return Vec::new(); // The crate takes the empty answer for an error.
        }
        self.library
            .encode(text)
            .unwrap()
            .iter()
            .map(|p| p.id as Token)
            .collect()
    }

    fn library_decode(&self, tokens: &[Token]) -> String {
        let ids: Vec<u32> = tokens.iter().map(|&t| t as u32).collect();
        self.library.decode_piece_ids(&ids).unwrap()
    }

    /// Text, ids and text again are the library's; streamed text as well.
    fn agree_on(&self, text: &str) {
        let ids = self.ours.encode(text).unwrap();
        assert_eq!(ids, self.library_encode(text), "{text:?}");
        self.agree_on_ids(&ids);
    }

    fn agree_on_ids(&self, ids: &[Token]) {
        let expected = self.library_decode(ids);
        assert_eq!(self.ours.decode(ids).unwrap(), expected, "{ids:?}");
        assert_eq!(stream(&self.ours, ids), expected, "{ids:?}");
    }
}

static BOTH: LazyLock<[Both; 2]> =
    LazyLock::new(|| [WIDE, SMALL].map(|file| Both::new(&std::fs::read(file).unwrap())));

fn stream(tokenizer: &Arc<dyn Tokenizer>, ids: &[Token]) -> String {
    let mut detokenizer = Detokenizer::new(tokenizer.clone());
    let mut text = String::new();
    for &id in ids {
        let mut part = String::new();
        detokenizer.push(id, &mut part);
        text += &part;
    }
    detokenizer.finish(&mut text);
    text
}

/// The token that is this text.
fn id_of(tokenizer: &Arc<dyn Tokenizer>, text: &str) -> Token {
    let mut ids = 0..tokenizer.vocab_size() as Token;
    ids.find(|&id| tokenizer.piece(id) == Piece::Text(text))
        .unwrap()
}

/// The small model, changed.
fn small_with(change: impl FnOnce(&mut ModelProto)) -> Vec<u8> {
    let mut proto = ModelProto::decode(&*std::fs::read(SMALL).unwrap()).unwrap();
    change(&mut proto);
    proto.encode_to_vec()
}

fn entry(piece: &str, r#type: Type) -> Entry {
    Entry {
        piece: Some(piece.into()),
        score: Some(-1000.0),
        r#type: Some(r#type as i32),
    }
}

fn format_error(bytes: &[u8]) -> String {
    match tokenizer::from_bytes(Path::new("some.model"), bytes).map(|_| ()) {
        Err(error @ Error::Format { .. }) => {
            let message = error.to_string();
            assert!(message.starts_with("some.model: "), "{message}");
            message
        }
        other => panic!("{other:?}"),
    }
}

const TEXTS: [&str; 16] = [
    "",
    " ",
    "   ",
    "a",
    " leading",
    "trailing  ",
    "two  spaces \n and\ttab",
    "NUL \0 inside\0",
    "\0",
    "世界 naïve — 🦙 \u{2581} \u{2581}x",
    "<s> </s> <unk> <0x41>",
    "\u{fffd}\u{feff}\u{10ffff}",
    "the the the",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "ab abc abcd a b",
    "x = {\n    'key': [1, 2, 3],\n}\n",
];

#[test]
fn reference_cases() {
    for cases in all_cases() {
        let tokenizer = tokenizer::open(&cases.tokenizer).unwrap();
        assert_eq!(tokenizer.vocab_size(), 32000);
        assert_eq!(
            (tokenizer.bos_id(), tokenizer.eos_id(), tokenizer.pad_id()),
            (1, 2, -1)
        );
        for case in cases.texts() {
            let text = case["text"].as_str().unwrap();
            let ids: Vec<Token> = serde_json::from_value(case["ids"].clone()).unwrap();
            let decoded = case["decoded"].as_str().unwrap();
            assert_eq!(tokenizer.encode(text).unwrap(), ids, "{text:?}");
            assert_eq!(tokenizer.decode(&ids).unwrap(), decoded);
            assert_eq!(stream(&tokenizer, &ids), decoded);
        }
    }
}

#[test]
fn both_models_agree_with_the_library() {
    for both in &*BOTH {
        TEXTS.iter().for_each(|text| both.agree_on(text));
    }
}

#[test]
fn byte_pieces_become_replacement_characters_one_by_one() {
    let cases: [(&[u8], &str); 13] = [
        (b"\xe4\xbd\xa0", "你"),
        (b"\xf0\x9f\xa6\x99", "🦙"),
        (b"\xf0\x9f\xa6", "\u{fffd}\u{fffd}\u{fffd}"), // truncated
        (b"\xe4\xbdA", "\u{fffd}\u{fffd}A"),           // broken off
        (b"\xe4\xbd\xe4\xbd\xa0", "\u{fffd}\u{fffd}你"), // broken off by a good one
        (b"\xf0\xf0\x9f\xa6\x99", "\u{fffd}🦙"),
        (b"\x80\xbf", "\u{fffd}\u{fffd}"), // stray continuations
        (b"\xc0\x80", "\u{fffd}\u{fffd}"), // overlong
        (b"\xe0\x80\x80", "\u{fffd}\u{fffd}\u{fffd}"), // overlong
        (b"\xed\xa0\x80", "\u{fffd}\u{fffd}\u{fffd}"), // surrogate
        (b"\xf4\x90\x80\x80", "\u{fffd}\u{fffd}\u{fffd}\u{fffd}"), // beyond U+10FFFF
        (b"\xff\xfe", "\u{fffd}\u{fffd}"),
        (b"\xef\xbf\xbd\x00", "\u{fffd}\0"), // the character itself, and NUL
    ];
    for both in &*BOTH {
        let byte_id = |byte: u8| {
            let n = both.ours.vocab_size() as Token;
            (0..n)
                .find(|&id| both.ours.piece(id) == Piece::Byte(byte))
                .unwrap()
        };
        for (bytes, expected) in cases {
            let ids: Vec<Token> = bytes.iter().map(|&b| byte_id(b)).collect();
            assert_eq!(both.ours.decode(&ids).unwrap(), expected, "{bytes:x?}");
            both.agree_on_ids(&ids);
        }
        // A control ends the run of bytes.
        let (e4, bd, a0) = (byte_id(0xe4), byte_id(0xbd), byte_id(0xa0));
        assert_eq!(
            both.ours.decode(&[e4, 1, bd, a0]).unwrap(),
            "\u{fffd}\u{fffd}\u{fffd}"
        );
        both.agree_on_ids(&[e4, 1, bd, a0]);
    }
}

#[test]
fn streaming_holds_back_only_what_may_become_a_character() {
    let tokenizer = &BOTH[0].ours;
    let ids = tokenizer.encode("a🦙b").unwrap();
    let mut detokenizer = Detokenizer::new(tokenizer.clone());
    let parts: Vec<String> = ids
        .iter()
        .map(|&id| {
            let mut part = String::new();
            detokenizer.push(id, &mut part);
            part
        })
        .collect();
    assert_eq!(parts, ["a", "", "", "", "🦙", "b"]);
}

#[test]
fn foreign_ids_decode_to_nothing() {
    for both in &*BOTH {
        let n = both.ours.vocab_size() as Token;
        let word = both.ours.encode("the").unwrap();
        for id in [-1, n, n + 1, Token::MIN, Token::MAX] {
            assert_eq!(both.ours.piece(id), Piece::Control);
            assert_eq!(both.ours.token_bytes_with_nul(id), b"\0");
            let ids: Vec<Token> = [id].into_iter().chain(word.clone()).chain([id]).collect();
            assert_eq!(both.ours.decode(&ids).unwrap(), "the");
            assert_eq!(stream(&both.ours, &ids), "the");
        }
    }
}

#[test]
fn token_bytes_are_what_a_token_adds_mid_sequence() {
    let both = &BOTH[0];
    let the = both.ours.encode("the").unwrap()[0];
    assert_eq!(both.ours.token_bytes(the), b" the");
    assert_eq!(both.ours.token_bytes_with_nul(the), b" the\0");
    assert_eq!(both.ours.token_bytes(0), " \u{2047} ".as_bytes());
    assert_eq!(both.ours.token_bytes(both.ours.bos_id()), b"");
    assert_eq!(both.ours.token_bytes(3), [0]); // <0x00>
    assert_eq!(both.ours.token_bytes_with_nul(3 + 0xe4), [0xe4, 0]);
    // Every token, between two others, as the library has it.
    for both in &*BOTH {
        let x = id_of(&both.ours, "x");
        for id in 0..both.ours.vocab_size() as Token {
            let bytes = both.ours.token_bytes(id);
            let decoded = both.library_decode(&[x, id, x]);
            let middle = &decoded.as_bytes()[1..decoded.len() - 1];
            match both.ours.piece(id) {
                Piece::Byte(b) if b >= 0x80 => assert_eq!(middle, "\u{fffd}".as_bytes()),
                _ => assert_eq!(middle, bytes, "token {id}"),
            }
            assert_eq!(both.ours.token_bytes_with_nul(id).last(), Some(&0));
        }
    }
}

/// Every switch of the normalizer and the decoder, as the library reads it.
#[test]
fn switches_agree_with_the_library() {
    for bits in 0..32 {
        let bit = |i: u32| Some(bits >> i & 1 == 1);
        let both = Both::new(&small_with(|proto| {
            let normalizer = proto.normalizer_spec.get_or_insert_default();
            normalizer.add_dummy_prefix = bit(0);
            normalizer.remove_extra_whitespaces = bit(1);
            normalizer.escape_whitespaces = bit(2);
            let trainer = proto.trainer_spec.get_or_insert_default();
            trainer.treat_whitespace_as_suffix = bit(3);
            if bit(4) == Some(true) {
                trainer.byte_fallback = Some(false);
                for (i, piece) in proto.pieces.iter_mut().enumerate() {
                    if piece.r#type() == Type::Byte {
                        *piece = entry(&format!("unused {i}"), Type::Unused);
                    }
                }
                trainer.unk_surface = Some(["", "?\0!"][bits as usize & 1].into());
            }
            proto.pieces.extend([
                entry(" raw space", Type::Normal),
                entry("the the", Type::UserDefined),
                entry("\u{2581}<PRE>", Type::UserDefined),
                entry("\0\0", Type::Normal),
            ]);
        }));
        TEXTS.iter().for_each(|text| both.agree_on(text));
        both.agree_on("the the <PRE>  <PRE>x the <PRE>\0\0");
        both.agree_on(&"the the <PRE>  <PRE>x \n the,  then ".repeat(900));
        let n = both.ours.vocab_size() as Token;
        let (one, two) = (id_of(&both.ours, " "), id_of(&both.ours, "  "));
        for first in [0, 1, 30, 300, one, two, n - 4, n - 3, n - 2] {
            both.agree_on_ids(&[first, one, one, two, first]);
            both.agree_on_ids(&[1, first, 0, two, first]);
            both.agree_on_ids(&[one, 30, two, first]);
        }
    }
}

#[test]
fn long_texts_are_cut_where_nothing_changes() {
    let prose =
        "The quick brown fox, as it happens, jumped over 12,345 lazy dogs.\n\n  世界 🦙 naïve\t";
    let code =
        "    for (int i = 0; i < n; ++i) {\n        total += a[i];  // ====------====\n    }\n";
    for both in &*BOTH {
        for text in [
            prose.repeat(1500),
            code.repeat(1500),
            format!(" {} ", prose.repeat(1100)),
        ] {
            assert!(text.len() > 10 * 8192);
            let ids = both.ours.encode(&text).unwrap();
            assert!(ids == both.library_encode(&text), "{} bytes", text.len());
            assert_eq!(both.ours.decode(&ids).unwrap(), text);
        }
        // No place to cut, not even after the spaces have become other characters.
        both.agree_on(&" ".repeat(40_000));
        both.agree_on(&"\0".repeat(20_000));
    }
}

#[test]
fn text_without_a_place_to_cut_is_limited() {
    let both = &BOTH[0];
    let text = "a".repeat(MAX_PART_BYTES);
    assert_eq!(
        both.ours.decode(&both.ours.encode(&text).unwrap()).unwrap(),
        text
    );
    let invalid = |tokenizer: &dyn Tokenizer, text: &str| {
        let error = tokenizer.encode(text).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
        error.to_string()
    };
    let message = invalid(&*both.ours, &"a".repeat(10 << 20));
    assert!(message.contains(&MAX_PART_BYTES.to_string()), "{message}");

    let squeezing = Both::new(&small_with(|proto| {
        proto
            .normalizer_spec
            .get_or_insert_default()
            .remove_extra_whitespaces = None;
    }));
    invalid(&*squeezing.ours, &"a\n".repeat(MAX_PART_BYTES));
    let unk = Both::new(&small_with(|proto| {
        proto.trainer_spec.get_or_insert_default().byte_fallback = None;
        for (i, piece) in proto.pieces.iter_mut().enumerate() {
            if piece.r#type() == Type::Byte {
                *piece = entry(&format!("unused {i}"), Type::Unused);
            }
        }
    }));
    invalid(&*unk.ours, &"世".repeat(MAX_UNK_PART_BYTES / 3 + 1));
    assert_eq!(
        unk.ours
            .encode(&"世".repeat(MAX_UNK_PART_BYTES / 3))
            .unwrap()
            .len(),
        2
    );
}

#[test]
fn eight_threads_encode_on_one_tokenizer() {
    let both = &BOTH[0];
    let expected: Vec<Vec<Token>> = TEXTS.iter().map(|t| both.library_encode(t)).collect();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let expected = &expected;
            scope.spawn(move || {
                for i in 0..400 {
                    let i = (i + thread) % TEXTS.len();
                    assert_eq!(both.ours.encode(TEXTS[i]).unwrap(), expected[i]);
                    assert_eq!(
                        both.ours.decode(&expected[i]).unwrap(),
                        both.library_decode(&expected[i])
                    );
                }
            });
        }
    });
}

/// User-defined symbols come out of the text whole; so many that begin each other are the most the
/// library has room for.
#[test]
fn user_defined_symbols() {
    let nested = |n: usize| {
        small_with(|proto| {
            // "abc" and "x<SEP>" sort around and between them.
            proto
                .pieces
                .extend(["abc", "x<SEP>", "ab<"].map(|p| entry(p, Type::UserDefined)));
            proto
                .pieces
                .extend((1..=n).map(|i| entry(&"qz".repeat(i), Type::UserDefined)));
        })
    };
    let both = Both::new(&nested(MAX_USER_DEFINED_NESTING));
    let n = both.ours.vocab_size() as Token;
    both.agree_on(&format!("abcx<SEP>{}q and qz", "qz".repeat(100)));
    both.agree_on("ab<\0abc\0x<SEP>\0qz\0");
    assert_eq!(both.ours.encode("abcqzqz").unwrap()[1..], [n - 67, n - 63]);
    assert_eq!(both.ours.token_bytes(n - 66), b"x<SEP>");
    let error = format_error(&nested(MAX_USER_DEFINED_NESTING + 1));
    assert!(error.contains("user-defined"), "{error}");
}

/// The deepest nesting of unused pieces that is let through, on a small stack.
#[test]
fn unused_pieces_are_taken_apart_on_a_small_stack() {
    let both = Both::new(&small_with(|proto| {
        proto.pieces.extend((2..=MAX_PIECE_BYTES).map(|i| {
            let score = Some(1e6 + i as f32);
            Entry {
                score,
                ..entry(&"q".repeat(i), Type::Unused)
            }
        }));
    }));
    let thread = std::thread::Builder::new().stack_size(256 << 10);
    let check = move || both.agree_on(&"q".repeat(5 * MAX_PIECE_BYTES + 7));
    thread.spawn(check).unwrap().join().unwrap();
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Any,
    Byte,
    Special,
    Space,
}
