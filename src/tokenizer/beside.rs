//! Reads what the files beside a tokenizer say about it.

use super::added::AddedToken;
use super::extras::{Extras, check};
use super::{MAX_FILE_BYTES, hf_json};
use crate::file::read_small;
use crate::{Error, Result, reserve};
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

/// Size of the largest such file that is read. A tokenizer_config.json has a megabyte if a model
/// has many added tokens.
const MAX_CONFIG_BYTES: u64 = 16 << 20;
/// The most bytes of memory that one byte of such a file turns into.
const WORK_PER_BYTE: usize = 32;

const CONFIG: &str = "tokenizer_config.json";
const MAP: &str = "special_tokens_map.json";

/// The names of special tokens that every tokenizer of transformers has.
const USUAL: [&str; 7] = [
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
];
/// Keys with special tokens that have no name each, or any name.
const FURTHER: [&str; 2] = ["additional_special_tokens", "extra_special_tokens"];

/// The special tokens that `tokenizer_config.json` and `special_tokens_map.json` name. As in
/// transformers, the second file counts only if the first does not describe the added tokens (older
/// versions did not write them). In that case the second file takes precedence.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    /// Texts by name, such as `bos_token`. `None`: the files say that there is no such token.
    pub named: BTreeMap<String, Option<String>>,
    /// Special tokens without a name.
    further: BTreeSet<String>,
}

impl SpecialTokens {
    /// Reads the files in `dir`.
    ///
    /// [`Error::Io`] and [`Error::Format`] for a file that exists but cannot be read.
    pub fn read(dir: &Path) -> Result<SpecialTokens> {
        let mut tokens = SpecialTokens::default();
        let config = dir.join(CONFIG);
        let keys: Keys = read(&config)?.unwrap_or_default();
        let describes = keys.describes;
        tokens.add(&config, keys)?;
        if !describes {
            let map = dir.join(MAP);
            tokens.add(&map, read(&map)?.unwrap_or_default())?;
        }
        Ok(tokens)
    }

    /// The text of the token with this name.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.named.get(name)?.as_deref()
    }

    /// The texts of all of them, in order.
    fn texts(&self) -> Result<Vec<&str>> {
        let mut texts = reserve::room("special tokens", self.named.len() + self.further.len())?;
        let named = self.named.values().flatten();
        texts.extend(named.chain(&self.further).map(String::as_str));
        texts.sort_unstable();
        Ok(texts)
    }

    fn add(&mut self, path: &Path, keys: Keys) -> Result<()> {
        for (name, value) in keys.tokens {
            match value {
                Value::Array(list) if FURTHER.contains(&&*name) => {
                    self.further.extend(list.iter().filter_map(text_of));
                }
                Value::Object(map) if FURTHER.contains(&&*name) => {
                    let text = |(name, value)| Some((name, Some(text_of(&value)?)));
                    self.named.extend(map.into_iter().filter_map(text));
                }
                _ if FURTHER.contains(&&*name) => {}
                Value::Null => _ = self.named.insert(name, None),
                value => match text_of(&value) {
                    Some(text) => _ = self.named.insert(name, Some(text)),
                    None if USUAL.contains(&&*name) => {
                        let value = crate::sentence::value(&value.to_string());
                        let detail = format!("`{name}` is {value}, expected the text of a token");
                        return Err(Error::format(path, detail));
                    }
                    // `add_bos_token`
                    None => {}
                },
            }
        }
        Ok(())
    }
}

/// A token's text, or the text inside an object that describes the token.
fn text_of(value: &Value) -> Option<String> {
    let text = value.as_str().or_else(|| value.get("content")?.as_str());
    text.map(str::to_owned)
}

/// The keys that [`SpecialTokens`] is made of. Other keys, which may be large, are skipped.
#[derive(Default)]
struct Keys {
    tokens: Vec<(String, Value)>,
    /// Whether the file has the key `added_tokens_decoder`.
    describes: bool,
}

impl<'de> Deserialize<'de> for Keys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = Keys;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(
                self,
                mut map: A,
            ) -> std::result::Result<Keys, A::Error> {
                let mut keys = Keys::default();
                while let Some(key) = map.next_key::<String>()? {
                    keys.describes |= key == "added_tokens_decoder";
                    match key.ends_with("_token") || FURTHER.contains(&&*key) {
                        true => keys.tokens.push((key, map.next_value()?)),
                        false => _ = map.next_value::<IgnoredAny>()?,
                    }
                }
                Ok(keys)
            }
        }
        deserializer.deserialize_map(V)
    }
}

/// The other fields of `tokenizer_config.json` that matter here.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Config {
    add_bos_token: Option<bool>,
    add_prefix_space: Option<bool>,
    legacy: Option<bool>,
    added_tokens_decoder: BTreeMap<String, Described>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Described {
    content: String,
    special: bool,
    lstrip: bool,
    rstrip: bool,
    single_word: bool,
    normalized: Option<bool>,
}

/// What the files in a directory say about its tokenizer. A SentencePiece model gets its added
/// tokens from them. For a tokenizer.json, one of them may correct what the tokenizer.json says.
pub(super) fn extras(dir: &Path, of_sentencepiece: bool) -> Result<Extras> {
    let special = SpecialTokens::read(dir)?;
    let config_path = dir.join(CONFIG);
    let config: Config = read(&config_path)?.unwrap_or_default();
    let text = |name| special.text(name).map(str::to_owned);
    let mut extras = Extras {
        bos: text("bos_token"),
        eos: text("eos_token"),
        pad: text("pad_token"),
        add_bos: config.add_bos_token,
        add_prefix_space: config.add_prefix_space,
        legacy: config.legacy,
        ..Extras::default()
    };
    let mut described = reserve::room("added tokens", config.added_tokens_decoder.len())?;
    for (id, token) in config.added_tokens_decoder {
        let Ok(id) = id.parse() else {
            let detail = format!("`added_tokens_decoder` has the key {id:?}, which is no id");
            return Err(Error::format(&config_path, detail));
        };
        described.push(AddedToken {
            id,
            text: token.content,
            special: token.special,
            lstrip: token.lstrip,
            rstrip: token.rstrip,
            single_word: token.single_word,
            normalized: token.normalized.unwrap_or(!token.special),
        });
    }
    if !of_sentencepiece {
        // In a tokenizer.json, a token with an empty text is no token.
        described.retain(|token: &AddedToken| !token.text.is_empty());
        for token in &described {
            check(&config_path, token)?;
        }
        extras.described = described;
        return Ok(extras);
    }
    // All three lists are read, because a fine-tune may have any of them.
    let json_path = dir.join("tokenizer.json");
    if json_path.symlink_metadata().is_ok() {
        let bytes = read_small(&json_path, "a tokenizer", MAX_FILE_BYTES)?;
        for token in hf_json::added_tokens(&json_path, &bytes)? {
            extras.add(&json_path, token)?;
        }
    }
    for token in described {
        extras.add(&config_path, token)?;
    }
    let list_path = dir.join("added_tokens.json");
    let list: Option<BTreeMap<String, u32>> = read(&list_path)?;
    let special = special.texts()?;
    for (text, id) in list.unwrap_or_default() {
        // This list does not say whether a token is special.
        let special = special.binary_search(&&*text).is_ok();
        let token = AddedToken {
            id,
            text,
            special,
            ..AddedToken::default()
        };
        extras.add(&list_path, token)?;
    }
    Ok(extras)
}

/// A file beside a tokenizer, if it is there.
fn read<T: serde::de::DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    if path.symlink_metadata().is_err() {
        return Ok(None);
    }
    let bytes = read_small(path, "a tokenizer's configuration", MAX_CONFIG_BYTES)?;
    reserve::headroom("reading a tokenizer", bytes.len() * WORK_PER_BYTE)?;
    let value = serde_json::from_slice(&bytes);
    value
        .map(Some)
        .map_err(|e| Error::format(path, format!("not as expected: {e}")))
}
