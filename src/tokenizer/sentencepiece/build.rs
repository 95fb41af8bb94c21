//! Makes a [`SentencePiece`] from a checked model and the files beside it.

use super::{Entry, MAX_PART_BYTES, MAX_UNK_PART_BYTES, Parts, SentencePiece};
use crate::tokenizer::added::{Added, AddedToken};
use crate::tokenizer::extras::Extras;
use crate::tokenizer::model_proto::{Checked, ModelProto, Type, byte_of};
use crate::tokenizer::pairs::{Pairs, SPACE_SYMBOL};
use crate::tokenizer::scored_bpe::ScoredBpe;
use crate::{Error, Result, Token, reserve};
use prost::Message;
use sentencepiece::SentencePieceProcessor;
use std::collections::BTreeMap;
use std::path::Path;

const DEFAULT_UNK_SURFACE: &str = " \u{2047} ";

impl SentencePiece {
    /// The tokenizer of a checked model. `path` is for messages. `extras` is what the files beside
    /// the model say.
    ///
    /// [`Error::Format`] if they contradict the model.
    pub(in crate::tokenizer) fn from_checked(
        path: &Path,
        checked: Checked,
        extras: &Extras,
    ) -> Result<Self> {
        let format = |detail: String| Error::format(path, detail);
        let Checked {
            mut proto,
            mut bos_id,
            mut eos_id,
            mut pad_id,
        } = checked;
        let trainer = proto.trainer_spec.get_or_insert_default();
        let byte_fallback = trainer.byte_fallback();
        let suffix = trainer.treat_whitespace_as_suffix();
        // The library takes the text as a C string, so it ends at the first NUL.
        let unk_surface = trainer
            .unk_surface
            .as_deref()
            .unwrap_or(DEFAULT_UNK_SURFACE);
        let unk_surface = unk_surface
            .split('\0')
            .next()
            .unwrap_or_default()
            .to_owned();
        let normalizer = proto.normalizer_spec.get_or_insert_default();
        normalizer.add_dummy_prefix = extras.add_prefix_space.or(normalizer.add_dummy_prefix);
        let add_dummy_prefix = normalizer.add_dummy_prefix.unwrap_or(true);
        let remove_extra_whitespaces = normalizer.remove_extra_whitespaces.unwrap_or(true);
        let parts = if !byte_fallback {
            Parts::Whole(MAX_UNK_PART_BYTES)
        } else if remove_extra_whitespaces {
            Parts::Whole(MAX_PART_BYTES)
        } else {
            normalizer.add_dummy_prefix = Some(false);
            let space = match normalizer.escape_whitespaces.unwrap_or(true) {
                true => SPACE_SYMBOL,
                false => ' ',
            };
            let joined = Pairs::new(proto.pieces.iter().map(|p| p.piece()));
            Parts::Cut {
                joined,
                prefix: add_dummy_prefix && !suffix,
                suffix: add_dummy_prefix && suffix,
                bpe: ScoredBpe::new(&proto).map(Box::new),
                space,
            }
        };

        let added = added_tokens(&proto, extras).map_err(format)?;
        for (id, text) in [
            (&mut bos_id, &extras.bos),
            (&mut eos_id, &extras.eos),
            (&mut pad_id, &extras.pad),
        ] {
            let text = text.as_deref();
            let named = text.and_then(|text| id_of(text, &added, &proto));
            *id = named.unwrap_or(*id);
        }
        let mut texts = Texts::default();
        let mut unk_id = -1;
        for (id, piece) in (0..).zip(&proto.pieces) {
            let text = std::str::from_utf8(piece.piece()).unwrap_or_default();
            match (piece.r#type(), added.get(&id)) {
                (_, Some(token)) if token.special => texts.special(text),
                (Type::Unknown, _) => {
                    unk_id = id as Token;
                    texts.push(&unk_surface, true);
                }
                (_, Some(_)) => texts.push(text, true),
                (Type::Control, None) => texts.entries.push(Entry::Absent),
                (Type::Byte, _) => texts.byte(byte_of(text)),
                // To the library only U+2581 is a leading space. A plain space is not.
                (Type::Normal | Type::UserDefined | Type::Unused, None) => {
                    texts.push(&text.replace(SPACE_SYMBOL, " "), text.starts_with(' '));
                }
            }
        }
        for (&id, token) in added.range(proto.pieces.len() as u32..) {
            let gap = id as usize - texts.entries.len();
            reserve::vec("a tokenizer's vocabulary", &mut texts.entries, gap + 1)?;
            texts.entries.resize(id as usize, Entry::Absent);
            match token.special {
                true => texts.special(&token.text),
                false => texts.push(&token.text, true),
            }
        }
        let Texts {
            entries,
            texts,
            longest,
        } = texts;
        let added: Vec<AddedToken> = added.into_values().collect();
        let added = Added::new(added, |text| Ok(text.into())).map_err(format)?;

        let by_library = !matches!(parts, Parts::Cut { bpe: Some(_), .. });
        let processor = |proto: &ModelProto| {
            SentencePieceProcessor::from_serialized_proto(&proto.encode_to_vec())
                .map_err(|e| format(format!("SentencePiece refuses it: {e}")))
        };
        let whole = by_library.then(|| processor(&proto)).transpose()?;
        let prefix_behind_added = extras.legacy.unwrap_or(true);
        let is_bare = by_library && !prefix_behind_added && matches!(parts, Parts::Whole(_));
        let bare = is_bare.then(|| {
            let normalizer = proto.normalizer_spec.get_or_insert_default();
            normalizer.add_dummy_prefix = Some(false);
            processor(&proto)
        });
        Ok(Self {
            processor: whole,
            bare_processor: bare.transpose()?,
            added,
            prefix_behind_added,
            entries,
            texts,
            longest,
            bos_id,
            eos_id,
            pad_id,
            unk_id,
            stop_ids: extras.stop_ids.clone(),
            adds_bos: extras.add_bos.unwrap_or(true) && bos_id >= 0,
            strips: add_dummy_prefix || remove_extra_whitespaces,
            strips_every: remove_extra_whitespaces,
            parts,
        })
    }
}

/// Collects the texts of all pieces.
#[derive(Default)]
struct Texts {
    entries: Vec<Entry>,
    texts: String,
    longest: usize,
}

impl Texts {
    fn push(&mut self, text: &str, literal: bool) {
        // These fit because a file has at most 64 MiB.
        let (start, len) = (self.texts.len() as u32, text.len() as u32);
        self.entries.push(match literal {
            true => Entry::Literal { start, len },
            false => Entry::Text { start, len },
        });
        self.longest = self.longest.max(text.len());
        self.texts.push_str(text);
        self.texts.push('\0');
    }

    fn special(&mut self, text: &str) {
        let (start, len) = (self.texts.len() as u32, text.len() as u32);
        self.entries.push(Entry::Special { start, len });
        self.texts.push_str(text);
        self.texts.push('\0');
    }

    fn byte(&mut self, byte: Option<u8>) {
        self.longest = self.longest.max(1);
        self.entries.push(byte.map_or(Entry::Absent, Entry::Byte));
    }
}

/// The id of the token with this text: an added token, else a piece.
fn id_of(text: &str, added: &BTreeMap<u32, AddedToken>, proto: &ModelProto) -> Option<Token> {
    let named = added.values().find(|token| token.text == text);
    let piece = || {
        let mut pieces = proto.pieces.iter();
        pieces.position(|piece| piece.piece() == text.as_bytes())
    };
    let id = named.map(|token| token.id as usize).or_else(piece);
    id.map(|id| id as Token)
}

/// The added tokens by id: control pieces, the unknown piece, and what the files beside the model
/// list. User-defined pieces stay the model's. The error is a sentence.
fn added_tokens(
    proto: &ModelProto,
    extras: &Extras,
) -> std::result::Result<BTreeMap<u32, AddedToken>, String> {
    let mut added = BTreeMap::new();
    for (id, piece) in (0..).zip(&proto.pieces) {
        let kind = piece.r#type();
        let text = String::from_utf8_lossy(piece.piece()).into_owned();
        let listed = extras.added.get(&id);
        if let Some(token) = listed.filter(|token| token.text != text) {
            return Err(format!(
                "piece {id} is {text:?}, the files beside the model call that token {:?}",
                token.text
            ));
        }
        if kind == Type::UserDefined || extras.unused.contains(&id) {
            continue;
        }
        let is_special = matches!(kind, Type::Control | Type::Unknown);
        let token = match listed {
            Some(token) => token.clone(),
            None if is_special => AddedToken {
                id,
                text,
                special: kind == Type::Control,
                ..AddedToken::default()
            },
            None => continue,
        };
        added.insert(id, token);
    }
    let beyond = extras.added.range(proto.pieces.len() as u32..);
    added.extend(beyond.map(|(&id, token)| (id, token.clone())));
    Ok(added)
}
