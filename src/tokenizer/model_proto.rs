//! The fields of SentencePiece's `ModelProto` that change what a tokenizer does.
//!
//! Written from `sentencepiece_model.proto` of SentencePiece 0.2.1, with its tags and defaults.
//! Fields that are not declared here are dropped. So a message that is decoded and encoded again
//! has nothing that was not checked.

use prost::Message;
use prost::encoding::{DecodeContext, decode_key, skip_field};
use std::collections::HashMap;

/// What kind of symbol a piece is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum Type {
    /// A piece that merging produces.
    Normal = 1,
    /// Stands for what no piece covers.
    Unknown = 2,
    /// Has no text: BOS, EOS.
    Control = 3,
    /// Cut out of the text before any merging.
    UserDefined = 4,
    /// Produced while merging, then taken apart again.
    Unused = 5,
    /// One byte of a character that no piece covers.
    Byte = 6,
}

/// One entry of the vocabulary; its id is its index.
#[derive(Clone, PartialEq, Message)]
pub struct SentencePiece {
    /// UTF-8 in a valid file. These are bytes so that the check can say which piece is not UTF-8.
    #[prost(bytes = "vec", optional, tag = "1")]
    pub piece: Option<Vec<u8>>,
    /// The merge with the highest score comes first.
    #[prost(float, optional, tag = "2")]
    pub score: Option<f32>,
    /// `NORMAL` where absent.
    #[prost(enumeration = "Type", optional, tag = "3")]
    pub r#type: Option<i32>,
}

/// How the tokenizer was trained, as far as it matters afterwards.
#[derive(Clone, PartialEq, Message)]
pub struct TrainerSpec {
    /// 1 unigram (where absent), 2 BPE, 3 word, 4 char.
    #[prost(int32, optional, tag = "3")]
    pub model_type: Option<i32>,
    /// Puts the space that stands for the start of a text at its end.
    #[prost(bool, optional, tag = "24")]
    pub treat_whitespace_as_suffix: Option<bool>,
    /// Characters without a piece become byte pieces instead of `<unk>`.
    #[prost(bool, optional, tag = "35")]
    pub byte_fallback: Option<bool>,
    /// 0 where absent.
    #[prost(int32, optional, tag = "40")]
    pub unk_id: Option<i32>,
    /// 1 where absent.
    #[prost(int32, optional, tag = "41")]
    pub bos_id: Option<i32>,
    /// 2 where absent.
    #[prost(int32, optional, tag = "42")]
    pub eos_id: Option<i32>,
    /// -1 where absent.
    #[prost(int32, optional, tag = "43")]
    pub pad_id: Option<i32>,
    /// Text of a decoded `<unk>`; `" \u{2047} "` where absent.
    #[prost(string, optional, tag = "44")]
    pub unk_surface: Option<String>,
    /// `<s>` where absent or empty.
    #[prost(string, optional, tag = "46")]
    pub bos_piece: Option<String>,
    /// `</s>` where absent or empty.
    #[prost(string, optional, tag = "47")]
    pub eos_piece: Option<String>,
    /// `<pad>` where absent or empty.
    #[prost(string, optional, tag = "48")]
    pub pad_piece: Option<String>,
}

/// What happens to a text before it is cut.
#[derive(Clone, PartialEq, Message)]
pub struct NormalizerSpec {
    /// A double-array trie that SentencePiece follows without bounds checks.
    #[prost(bytes = "vec", optional, tag = "2")]
    pub precompiled_charsmap: Option<Vec<u8>>,
    /// A text starts with a space; true where absent.
    #[prost(bool, optional, tag = "3")]
    pub add_dummy_prefix: Option<bool>,
    /// Leading, trailing and repeated spaces go; true where absent.
    #[prost(bool, optional, tag = "4")]
    pub remove_extra_whitespaces: Option<bool>,
    /// Spaces become U+2581; true where absent.
    #[prost(bool, optional, tag = "5")]
    pub escape_whitespaces: Option<bool>,
}

/// A tokenizer file.
#[derive(Clone, PartialEq, Message)]
pub struct ModelProto {
    /// The vocabulary.
    #[prost(message, repeated, tag = "1")]
    pub pieces: Vec<SentencePiece>,
    /// See [`TrainerSpec`].
    #[prost(message, optional, tag = "2")]
    pub trainer_spec: Option<TrainerSpec>,
    /// See [`NormalizerSpec`].
    #[prost(message, optional, tag = "3")]
    pub normalizer_spec: Option<NormalizerSpec>,
    /// This message is kept as bytes, because only whether it is empty matters.
    #[prost(bytes = "vec", optional, tag = "5")]
    pub denormalizer_spec: Option<Vec<u8>>,
}

/// Number of pieces in a serialized [`ModelProto`], counted without allocating. That matters
/// because two bytes of a file are enough for one piece, which takes some fifty bytes in memory.
pub fn count_pieces(mut bytes: &[u8]) -> Result<usize, prost::DecodeError> {
    let mut n = 0;
    while !bytes.is_empty() {
        let (tag, wire_type) = decode_key(&mut bytes)?;
        skip_field(wire_type, tag, &mut bytes, DecodeContext::default())?;
        n += usize::from(tag == 1);
    }
    Ok(n)
}

/// The most pieces of a vocabulary. The largest in use have a quarter of this.
pub const MAX_PIECES: usize = 1 << 20;
/// The most bytes of a piece (Llama 2's longest has 48). Each merge hashes strings of this length,
/// and SentencePiece takes an unused piece apart recursively, one level per character.
pub const MAX_PIECE_BYTES: usize = 512;
/// The most bytes of all user-defined symbols. Their trie may take a kilobyte for each byte.
pub const MAX_USER_DEFINED_BYTES: usize = 64 << 10;
/// If more user-defined symbols than this begin a text, SentencePiece reads past the end of the
/// array in which it collects them.
pub const MAX_USER_DEFINED_NESTING: usize = 64;

/// A [`ModelProto`] that SentencePiece can be given without harm, and the ids that it names.
#[derive(Debug)]
pub struct Checked {
    /// Only declared fields; no denormalizer, no precompiled charsmap.
    pub proto: ModelProto,
    /// Begin-of-sequence id, -1 if there is none. The same holds for the other ids.
    pub bos_id: i32,
    /// End-of-sequence id.
    pub eos_id: i32,
    /// Padding id.
    pub pad_id: i32,
}

impl Checked {
    /// Parses a tokenizer file. Refuses a file that SentencePiece would crash on, would decode
    /// differently than its documentation says, or would itself refuse with less of an explanation.
    ///
    /// The error is a sentence about the contents; the caller knows the file's name.
    pub fn parse(bytes: &[u8]) -> Result<Checked, String> {
        let not_proto = |e| format!("not a SentencePiece model: {e}");
        let n_pieces = count_pieces(bytes).map_err(not_proto)?;
        if n_pieces == 0 {
            return Err("not a SentencePiece model: it has no pieces".into());
        }
        if n_pieces > MAX_PIECES {
            return Err(format!(
                "{n_pieces} pieces, at most {MAX_PIECES} are supported"
            ));
        }
        let mut proto = ModelProto::decode(bytes).map_err(not_proto)?;
        let trainer = proto.trainer_spec.get_or_insert_default();
        let model_type = trainer.model_type.unwrap_or(1);
        if model_type != 2 {
            let name = match model_type {
                1 => "unigram",
                3 => "word",
                4 => "char",
                _ => "unknown",
            };
            return Err(format!(
                "model_type is {model_type} ({name}), expected 2 (BPE)"
            ));
        }
        // A crafted map or denormalizer makes SentencePiece read outside its buffers.
        let normalizer = proto.normalizer_spec.get_or_insert_default();
        let charsmap = normalizer.precompiled_charsmap.take().unwrap_or_default();
        if !charsmap.is_empty() {
            return Err(format!(
                "precompiled_charsmap has {} bytes, expected none: no Llama tokenizer has one",
                charsmap.len()
            ));
        }
        let denormalizer = proto.denormalizer_spec.take().unwrap_or_default();
        if !denormalizer.is_empty() {
            return Err(format!(
                "denormalizer_spec has {} bytes, expected none: no Llama tokenizer has one",
                denormalizer.len()
            ));
        }
        let ids = check_pieces(&proto)?;
        let trainer = proto.trainer_spec.clone().unwrap_or_default();
        let control = |what: &str, name: &Option<String>, default: &str, id: Option<i32>| {
            let name = name.as_deref().filter(|n| !n.is_empty()).unwrap_or(default);
            let found = ids
                .get(name.as_bytes())
                .filter(|&&i| proto.pieces[i].r#type() == Type::Control)
                .map_or(-1, |&i| i as i32);
            match id {
                Some(id) if !(-1..n_pieces as i32).contains(&id) => Err(format!(
                    "{what}_id is {id}, expected -1 to {} for {n_pieces} pieces",
                    n_pieces - 1
                )),
                // SentencePiece goes by the name, so the id must agree. For padding, files commonly
                // have only the name.
                Some(id) if id != found && what != "pad" => Err(format!(
                    "{what}_id is {id}, but the control piece {name:?} has id {found}"
                )),
                // An id of -1 would say that there is no such piece.
                None if found < 0 && what != "pad" => {
                    Err(format!("there is no control piece {name:?} for {what}_id"))
                }
                _ => Ok(found),
            }
        };
        let bos_id = control("bos", &trainer.bos_piece, "<s>", trainer.bos_id)?;
        let eos_id = control("eos", &trainer.eos_piece, "</s>", trainer.eos_id)?;
        let pad_id = control("pad", &trainer.pad_piece, "<pad>", trainer.pad_id)?;
        drop(ids);
        Ok(Checked {
            proto,
            bos_id,
            eos_id,
            pad_id,
        })
    }

    /// A model that was put together from a GGUF's metadata, which name ids rather than pieces.
    /// Only the pieces of `proto` are checked. The caller sets the ids.
    pub(super) fn assembled(proto: ModelProto) -> Result<Checked, String> {
        if proto.pieces.len() > MAX_PIECES {
            let n = proto.pieces.len();
            return Err(format!("{n} pieces, at most {MAX_PIECES} are supported"));
        }
        check_pieces(&proto)?;
        Ok(Checked {
            proto,
            bos_id: -1,
            eos_id: -1,
            pad_id: -1,
        })
    }
}

/// Checks every piece. Returns the ids of the pieces by their bytes.
fn check_pieces(proto: &ModelProto) -> Result<HashMap<&[u8], usize>, String> {
    let trainer = proto.trainer_spec.as_ref();
    let byte_fallback = trainer.is_some_and(|t| t.byte_fallback());
    let mut ids = HashMap::with_capacity(proto.pieces.len());
    let mut unknown = None;
    let mut bytes_found = 0;
    let mut user_defined: Vec<&[u8]> = Vec::new();
    for (id, entry) in proto.pieces.iter().enumerate() {
        let bytes = entry.piece();
        let Ok(text) = std::str::from_utf8(bytes) else {
            return Err(format!("piece {id} is not valid UTF-8"));
        };
        if text.is_empty() || text.len() > MAX_PIECE_BYTES {
            return Err(format!(
                "piece {id} has {} bytes, expected 1 to {MAX_PIECE_BYTES}",
                text.len()
            ));
        }
        if let Some(first) = ids.insert(bytes, id) {
            return Err(format!("pieces {first} and {id} are both {text:?}"));
        }
        if !entry.score().is_finite() {
            return Err(format!(
                "the score of piece {id} ({text:?}) is {}",
                entry.score()
            ));
        }
        let r#type = entry.r#type.unwrap_or(Type::Normal as i32);
        match Type::try_from(r#type) {
            Err(_) => return Err(format!("the type of piece {id} ({text:?}) is {}", r#type)),
            Ok(Type::Normal | Type::Unused) => {}
            Ok(Type::Control) => {
                // SentencePiece finds such a piece in texts, and a character is then missing.
                if text.chars().nth(1).is_none() {
                    return Err(format!(
                        "control piece {id} ({text:?}) is a single character"
                    ));
                }
            }
            Ok(Type::Unknown) => {
                if let Some(first) = unknown.replace(id) {
                    return Err(format!("pieces {first} and {id} both have type UNKNOWN"));
                }
            }
            Ok(Type::Byte) => {
                if byte_of(text).is_none() {
                    return Err(format!(
                        "byte piece {id} is {text:?}, expected \"<0x00>\" to \"<0xFF>\""
                    ));
                }
                bytes_found += 1;
            }
            Ok(Type::UserDefined) => {
                if text.contains('\0') {
                    return Err(format!("user-defined piece {id} ({text:?}) contains a NUL"));
                }
                user_defined.push(bytes);
            }
        }
    }
    let Some(unknown) = unknown else {
        return Err("no piece has type UNKNOWN".into());
    };
    if let Some(id) = trainer
        .and_then(|t| t.unk_id)
        .filter(|&id| id != unknown as i32)
    {
        return Err(format!(
            "unk_id is {id}, but piece {unknown} has type UNKNOWN"
        ));
    }
    // The byte pieces are well-formed and all different, so it is enough to count them.
    let bytes_expected = if byte_fallback { 256 } else { 0 };
    if bytes_found != bytes_expected {
        return Err(format!(
            "{bytes_found} byte pieces, expected {bytes_expected} where byte_fallback is {byte_fallback}"
        ));
    }
    check_user_defined(&mut user_defined)?;
    Ok(ids)
}

fn check_user_defined(symbols: &mut [&[u8]]) -> Result<(), String> {
    let total: usize = symbols.iter().map(|s| s.len()).sum();
    if total > MAX_USER_DEFINED_BYTES {
        return Err(format!(
            "user-defined pieces have {total} bytes, at most {MAX_USER_DEFINED_BYTES} are supported"
        ));
    }
    symbols.sort_unstable();
    // In sorted order the prefixes of a symbol come right before it. They are what is left on the
    // stack.
    let mut nested: Vec<&[u8]> = Vec::new();
    for symbol in symbols.iter() {
        while nested
            .last()
            .is_some_and(|prefix| !symbol.starts_with(prefix))
        {
            nested.pop();
        }
        nested.push(symbol);
        if nested.len() > MAX_USER_DEFINED_NESTING {
            return Err(format!(
                "more than {MAX_USER_DEFINED_NESTING} user-defined pieces begin the piece {:?}",
                String::from_utf8_lossy(symbol)
            ));
        }
    }
    Ok(())
}

/// The byte that a byte piece, `<0x00>` to `<0xFF>` with capital digits, stands for.
pub fn byte_of(piece: &str) -> Option<u8> {
    let digits = piece.strip_prefix("<0x")?.strip_suffix('>')?;
    let byte = u8::from_str_radix(digits, 16).ok()?;
    (format!("{byte:02X}") == digits).then_some(byte)
}
