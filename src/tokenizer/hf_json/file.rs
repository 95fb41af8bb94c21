//! The JSON of a tokenizer.json. Vocabulary and merges are borrowed from the file's bytes. The
//! other parts have few bytes.

use super::unsupported;
use crate::{Error, Result, reserve};
use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;
use std::path::Path;

/// The most bytes of memory that one byte of such a file turns into. A token of one letter has six
/// bytes in the file and takes 32 bytes in a list. The list may have room for twice as many entries
/// as it has.
const WORK_PER_BYTE: usize = 16;

/// The whole file.
#[derive(Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct File<'a> {
    #[serde(rename = "version", default)]
    pub _version: IgnoredAny,
    #[serde(rename = "truncation", default)]
    pub _truncation: IgnoredAny,
    #[serde(rename = "padding", default)]
    pub _padding: IgnoredAny,
    #[serde(borrow, default)]
    pub added_tokens: Vec<AddedJson<'a>>,
    #[serde(borrow, default)]
    pub normalizer: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub pre_tokenizer: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub post_processor: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub decoder: Option<&'a RawValue>,
    #[serde(borrow)]
    pub model: Model<'a>,
}

/// One of `added_tokens`.
#[derive(Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AddedJson<'a> {
    pub id: u32,
    #[serde(borrow)]
    pub content: Text<'a>,
    #[serde(default)]
    pub single_word: bool,
    #[serde(default)]
    pub lstrip: bool,
    #[serde(default)]
    pub rstrip: bool,
    #[serde(default)]
    pub normalized: bool,
    #[serde(default)]
    pub special: bool,
}

/// `model`.
#[derive(Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Model<'a> {
    /// [`File::parse`] checks it.
    #[serde(borrow, rename = "type", default)]
    pub kind: Option<Text<'a>>,
    #[serde(default)]
    pub dropout: Option<f64>,
    #[serde(borrow, default)]
    pub unk_token: Option<Text<'a>>,
    #[serde(borrow, default)]
    pub continuing_subword_prefix: Option<Text<'a>>,
    #[serde(borrow, default)]
    pub end_of_word_suffix: Option<Text<'a>>,
    #[serde(default)]
    pub fuse_unk: bool,
    #[serde(default)]
    pub byte_fallback: bool,
    #[serde(default)]
    pub ignore_merges: bool,
    #[serde(borrow)]
    pub vocab: Texts<'a>,
    #[serde(borrow)]
    pub merges: MergeList<'a>,
}

/// Finds out the kind of a model that could not be read as expected.
#[derive(serde::Deserialize)]
struct Kind<'a> {
    #[serde(borrow, rename = "type", default)]
    kind: Option<Text<'a>>,
}

#[derive(serde::Deserialize)]
struct Outline<'a> {
    #[serde(borrow)]
    model: &'a RawValue,
}

impl<'a> File<'a> {
    /// [`Error::Format`] if it is not a tokenizer.json; [`Error::Unsupported`] for a model that is
    /// not BPE, and for unknown keys.
    pub fn parse(path: &Path, bytes: &'a [u8]) -> Result<File<'a>> {
        let work = bytes.len().saturating_mul(WORK_PER_BYTE);
        reserve::headroom("reading a tokenizer", work)?;
        let wrong = |e: serde_json::Error| {
            let text = e.to_string();
            match text.starts_with("unknown field") {
                true => Error::Unsupported(format!(
                    "{}: not a tokenizer.json as supported: {text}",
                    path.display()
                )),
                false => Error::format(path, format!("not a tokenizer.json: {text}")),
            }
        };
        let parsed = serde_json::from_slice::<File>(bytes);
        let kind = match &parsed {
            Ok(file) => file.model.kind.as_ref().map(|kind| kind.0.to_string()),
            // Other models have other keys. The name of the model says more than the key that is
            // wrong.
            Err(_) => {
                let outline: Outline = serde_json::from_slice(bytes).map_err(wrong)?;
                let kind: Kind = serde_json::from_str(outline.model.get()).map_err(wrong)?;
                kind.kind.map(|kind| kind.0.into_owned())
            }
        };
        match kind {
            Some(kind) if kind != "BPE" => Err(unsupported(path, "model.type", &kind)),
            _ => parsed.map_err(wrong),
        }
    }
}

impl Model<'_> {
    /// Refuses settings that would change ids.
    pub fn check(&self, path: &Path) -> Result<()> {
        if let Some(dropout) = self.dropout.filter(|&p| p != 0.0) {
            return Err(unsupported(path, "model.dropout", &dropout.to_string()));
        }
        for (key, text) in [
            (
                "model.continuing_subword_prefix",
                &self.continuing_subword_prefix,
            ),
            ("model.end_of_word_suffix", &self.end_of_word_suffix),
        ] {
            if let Some(text) = text.as_ref().filter(|text| !text.0.is_empty()) {
                return Err(unsupported(path, key, &format!("{:?}", text.0)));
            }
        }
        Ok(())
    }
}

/// A string, borrowed unless it has escapes.
#[derive(Debug, Default)]
pub(crate) struct Text<'a>(pub Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> std::result::Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> std::result::Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(V)
    }
}

/// A map from texts to ids, in the order of the file.
#[derive(Default)]
pub(crate) struct Texts<'a>(pub Vec<(Text<'a>, u32)>);

impl<'de: 'a, 'a> Deserialize<'de> for Texts<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = Texts<'de>;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object of tokens and ids")
            }

            fn visit_map<A: MapAccess<'de>>(
                self,
                mut map: A,
            ) -> std::result::Result<Self::Value, A::Error> {
                let mut texts = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    texts.push(entry);
                }
                Ok(Texts(texts))
            }
        }
        deserializer.deserialize_map(V)
    }
}

/// Merges. Each is a string with one space in it, or a pair of strings.
#[derive(Default)]
pub(crate) struct MergeList<'a>(pub Vec<(Text<'a>, Text<'a>)>);

impl<'de: 'a, 'a> Deserialize<'de> for MergeList<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = MergeList<'de>;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an array of merges")
            }

            fn visit_seq<A: SeqAccess<'de>>(
                self,
                mut seq: A,
            ) -> std::result::Result<Self::Value, A::Error> {
                let mut merges = Vec::new();
                while let Some(OneMerge(left, right)) = seq.next_element()? {
                    merges.push((left, right));
                }
                Ok(MergeList(merges))
            }
        }
        deserializer.deserialize_seq(V)
    }
}

struct OneMerge<'a>(Text<'a>, Text<'a>);

impl<'de: 'a, 'a> Deserialize<'de> for OneMerge<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = OneMerge<'de>;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("two tokens with a space between them, or an array of two")
            }

            fn visit_borrowed_str<E: serde::de::Error>(
                self,
                text: &'de str,
            ) -> std::result::Result<Self::Value, E> {
                let (left, right) = two(text).ok_or_else(|| E::custom(not_two(text)))?;
                Ok(OneMerge(
                    Text(Cow::Borrowed(left)),
                    Text(Cow::Borrowed(right)),
                ))
            }

            fn visit_str<E: serde::de::Error>(
                self,
                text: &str,
            ) -> std::result::Result<Self::Value, E> {
                let (left, right) = two(text).ok_or_else(|| E::custom(not_two(text)))?;
                let owned = |text: &str| Text(Cow::Owned(text.to_owned()));
                Ok(OneMerge(owned(left), owned(right)))
            }

            fn visit_seq<A: SeqAccess<'de>>(
                self,
                mut seq: A,
            ) -> std::result::Result<Self::Value, A::Error> {
                let left = seq.next_element()?;
                let right = seq.next_element()?;
                match (left, right, seq.next_element::<IgnoredAny>()?) {
                    (Some(left), Some(right), None) => Ok(OneMerge(left, right)),
                    _ => Err(A::Error::custom("a merge that is not of two tokens")),
                }
            }
        }
        deserializer.deserialize_any(V)
    }
}

/// The two sides of a merge that is written as one string.
pub(in super::super) fn two(text: &str) -> Option<(&str, &str)> {
    text.split_once(' ')
        .filter(|(_, right)| !right.contains(' '))
}

fn not_two(text: &str) -> String {
    format!("the merge {text:?} is not two tokens with one space between them")
}
