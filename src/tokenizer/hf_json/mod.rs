//! Reads Hugging Face's `tokenizer.json`, if it merges by rank: what its parts mean, and a sentence
//! about each part that is not supported.
//!
//! | file | what it reads |
//! |---|---|
//! | `mod` | the added tokens, and puts all together |
//! | `entries` | the model: texts of tokens, and merges |
//! | `file` | the JSON itself, with limits |
//! | `parts` | normalizer, pre-tokenizer, decoder, post-processor |

mod entries;
pub(super) mod file;
pub(super) mod parts;

use self::entries::{Entries, Normalise};
use self::file::{AddedJson, File, Text};
use self::parts::{Decoder, Node, PreTokenizer};
use super::Joining;
use super::added::{Added, AddedToken};
use super::extras::Extras;
use super::normalizer::Normalizer;
use super::pipeline::{By, Cut, Pipeline};
use super::split::Expression;
use super::vocabulary::{MAX_ID, MAX_TOKEN_BYTES};
use crate::{Error, Result, Token, reserve};
use std::collections::{HashMap, HashSet};
use std::path::Path;

/// Whether these bytes look like such a file.
pub(super) fn is_json(bytes: &[u8]) -> bool {
    let rest = bytes
        .trim_ascii_start()
        .strip_prefix(b"{")
        .map(<[u8]>::trim_ascii_start);
    rest.is_some_and(|rest| rest.starts_with(b"\"") || rest.starts_with(b"}"))
}

/// The tokenizer in a file with these contents. `path` is for messages. `extras` is what the files
/// beside it say.
pub(super) fn from_bytes(path: &Path, bytes: &[u8], extras: &Extras) -> Result<Pipeline> {
    let mut file = File::parse(path, bytes)?;
    describe(&mut file, &extras.described);
    if let Some(end) = extras.added_end {
        file.added_tokens.retain(|token| token.id < end);
    }
    let model = &file.model;
    model.check(path)?;
    let normalizer = Node::of(path, "normalizer", file.normalizer)?;
    let normalizer = normalizer
        .map(|n| n.normalizer())
        .transpose()?
        .unwrap_or_default();
    let pre = Node::of(path, "pre_tokenizer", file.pre_tokenizer)?;
    let pre = pre
        .map(|n| n.pre_tokenizer())
        .transpose()?
        .unwrap_or_default();
    let decoder = Node::of(path, "decoder", file.decoder)?;
    let Some(decoder) = decoder.map(|n| n.decoder()).transpose()? else {
        return Err(unsupported(
            path,
            "decoder",
            "none: the tokens' texts would have spaces between them",
        ));
    };
    let bos = Node::of(path, "post_processor", file.post_processor)?;
    let bos = bos.map(|n| n.bos()).transpose()?.flatten();
    let byte_level = matches!(decoder, Decoder::ByteLevel);
    if byte_level != pre.byte_level {
        let what = "of ByteLevel in only one of decoder and pre_tokenizer";
        return Err(unsupported(path, "decoder", what));
    }

    let parts = Parts {
        decoder,
        pre,
        normalizer,
        bos,
        decodes_added: true,
    };
    parts.tokenizer(path, &file, extras)
}

/// Applies the added tokens that a tokenizer_config.json describes, as transformers does. The
/// config has the last word on tokens that the file has, and may add others. If the file gives the
/// id of such a token to another text, the token is not a token of this tokenizer.
fn describe(file: &mut File<'_>, described: &[AddedToken]) {
    let File {
        added_tokens,
        model,
        ..
    } = file;
    let (mut by_text, mut ids) = (HashMap::new(), HashSet::new());
    for (i, added) in added_tokens.iter().enumerate() {
        by_text.insert(added.content.0.to_string(), i);
        ids.insert(added.id);
    }
    let mut more: HashMap<&str, &AddedToken> = HashMap::new();
    for token in described {
        match by_text.get(&token.text) {
            Some(&i) => added_tokens[i] = as_json(token, added_tokens[i].id),
            None if ids.insert(token.id) => _ = more.insert(&token.text, token),
            None => {}
        }
    }
    if more.is_empty() {
        return;
    }
    let of_model = |(text, id): &(Text<'_>, u32)| (more.get(&*text.0).map(|token| token.id), *id);
    let (mut own, mut taken) = (HashMap::new(), HashSet::new());
    for (wanted, id) in model.vocab.0.iter().map(of_model) {
        match wanted {
            Some(wanted) => _ = own.insert(wanted, id),
            None if ids.contains(&id) => _ = taken.insert(id),
            None => {}
        }
    }
    let mut more: Vec<&AddedToken> = more.into_values().collect();
    more.sort_unstable_by_key(|token| token.id);
    for token in more {
        match own.get(&token.id) {
            Some(&id) => added_tokens.push(as_json(token, id)),
            None if !taken.contains(&token.id) => added_tokens.push(as_json(token, token.id)),
            None => {}
        }
    }
}

fn as_json(token: &AddedToken, id: u32) -> AddedJson<'static> {
    AddedJson {
        id,
        content: Text(token.text.clone().into()),
        single_word: token.single_word,
        lstrip: token.lstrip,
        rstrip: token.rstrip,
        normalized: token.normalized,
        special: token.special,
    }
}

/// The parts around a model.
pub(super) struct Parts {
    pub decoder: Decoder,
    pub pre: PreTokenizer,
    pub normalizer: Normalizer,
    /// The token that goes in front of a text.
    pub bos: Option<Token>,
    /// Whether added tokens are shown as the decoder makes them from their texts, like other
    /// tokens.
    pub decodes_added: bool,
}

impl Parts {
    /// Puts all parts together.
    pub fn tokenizer(self, path: &Path, file: &File<'_>, extras: &Extras) -> Result<Pipeline> {
        let Parts {
            decoder,
            pre,
            normalizer,
            bos,
            decodes_added,
        } = self;
        let format = |detail: String| Error::format(path, detail);
        let byte_level = matches!(decoder, Decoder::ByteLevel);
        let normalise = |text: &str| -> Result<String> {
            let normalized = normalizer.apply(text)?;
            Ok(normalized.text.into_owned())
        };
        let of_added: Option<Normalise<'_>> = decodes_added.then_some(&normalise);
        let entries = Entries::new(path, file, &decoder, of_added)?;
        let raw = match byte_level {
            true => None,
            false => Some(entries.vocabulary(false)?),
        };
        let vocabulary = entries.vocabulary(true)?;
        let bpe = entries.bpe(path, file, raw.as_ref().unwrap_or(&vocabulary))?;
        let all_bytes = bpe.bytes.iter().all(Option::is_some);
        let keeps_all = pre.expressions.iter().all(Expression::keeps_all);
        let covers_bytes = keeps_all && (all_bytes || bpe.unk.is_some() && !bpe.fuse_unk);
        let cut = Cut {
            metaspace: pre.metaspace,
            by: match byte_level || !pre.expressions.is_empty() {
                true => By::Expressions(pre.expressions),
                false => By::Pairs(entries.pairs(&bpe)),
            },
        };
        let added = Added::new(added(path, file)?, normalise).map_err(format)?;
        let id_of = |text: &Option<String>| {
            let text = text.as_deref()?;
            let known = || entries.id(text).map(|id| id as Token);
            added.id(text).or_else(known)
        };
        if let Some(id) = bos.filter(|&id| id as usize >= vocabulary.len()) {
            let detail = format!("`post_processor` adds the token {id}, which is none");
            return Err(format(detail));
        }
        let bos_id = id_of(&extras.bos).or(bos).unwrap_or(-1);
        Ok(Pipeline {
            bos_id,
            eos_id: id_of(&extras.eos).unwrap_or(-1),
            pad_id: id_of(&extras.pad).unwrap_or(-1),
            stop_ids: Vec::new(),
            adds_bos: extras.add_bos.unwrap_or(bos.is_some()) && bos_id >= 0,
            strips_leading_space: matches!(decoder, Decoder::Pieces { strips: true, .. }),
            strips_first: matches!(
                decoder,
                Decoder::Pieces {
                    strips_first: true,
                    ..
                }
            ),
            joining: match byte_level {
                true => Joining::ByteLevel,
                false => Joining::SentencePiece,
            },
            vocabulary,
            raw,
            bpe,
            added,
            normalizer,
            cut,
            covers_bytes,
        })
    }
}

/// The added tokens of a tokenizer.json, for a SentencePiece model beside it.
pub(super) fn added_tokens(path: &Path, bytes: &[u8]) -> Result<Vec<AddedToken>> {
    added(path, &File::parse(path, bytes)?)
}

fn added(path: &Path, file: &File<'_>) -> Result<Vec<AddedToken>> {
    let mut tokens = reserve::room("a tokenizer's added tokens", file.added_tokens.len())?;
    for token in &file.added_tokens {
        let bytes = token.content.0.len();
        if !(1..=MAX_TOKEN_BYTES).contains(&bytes) || token.id >= MAX_ID {
            return Err(Error::format(
                path,
                format!(
                    "added token {} has {bytes} bytes, expected an id below {MAX_ID} and 1 to \
                     {MAX_TOKEN_BYTES} bytes",
                    token.id
                ),
            ));
        }
        tokens.push(AddedToken {
            id: token.id,
            text: token.content.0.to_string(),
            special: token.special,
            lstrip: token.lstrip,
            rstrip: token.rstrip,
            single_word: token.single_word,
            normalized: token.normalized,
        });
    }
    Ok(tokens)
}

fn unsupported(path: &Path, at: &str, what: &str) -> Error {
    Error::Unsupported(format!(
        "{}: `{at}` is {what}, which is not supported",
        path.display()
    ))
}
