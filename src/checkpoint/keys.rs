//! Typed access to the keys of a configuration file, with errors that name file, key and both
//! values.

use crate::file::read_small;
use crate::{Error, Result, reserve};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

/// The largest configuration file; real ones have a few KiB.
const MAX_LEN: u64 = 1 << 20;

/// The most bytes of memory that parsing takes for a byte of JSON: an object of one key has eight
/// bytes and takes 700 in a list. serde_json cannot report a lack of memory, so we check beforehand
/// that there is enough.
const WORK_PER_BYTE: usize = 100;

/// An object of a configuration file, or of an object inside it.
#[derive(Debug)]
pub(crate) struct Keys {
    path: PathBuf,
    /// The name of the outer key and a dot, for an inner object.
    prefix: String,
    map: Map<String, Value>,
}

impl Keys {
    /// Parses a file, which must be one JSON object. serde_json limits the nesting to 128.
    pub fn read(path: &Path) -> Result<Keys> {
        let json = read_small(path, "a configuration file", MAX_LEN)?;
        let work = json.len() * WORK_PER_BYTE;
        reserve::headroom(&format!("reading {}", path.display()), work)?;
        match serde_json::from_slice(&json) {
            Ok(Value::Object(map)) => Ok(Keys {
                path: path.into(),
                prefix: String::new(),
                map,
            }),
            Ok(_) => Err(Error::format(path, "not a JSON object")),
            Err(e) => Err(Error::format(path, format!("not valid JSON: {e}"))),
        }
    }

    /// Makes an error about `key`.
    pub fn wrong(&self, key: &str, expected: impl Into<String>) -> Error {
        let got = self.map.get(key).map_or("missing".into(), |value| {
            let text = value.to_string();
            let cut = text.char_indices().nth(80).map(|(at, _)| at);
            cut.map_or(text.clone(), |at| format!("{}...", &text[..at]))
        });
        let key = format!("{}{key}", self.prefix);
        Error::Config {
            path: self.path.clone(),
            key,
            expected: expected.into(),
            got,
        }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The value of a key; `null` counts as absent.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// Whether a key is present, even if its value is `null`.
    pub fn holds(&self, key: &str) -> bool {
        self.map.contains_key(key)
    }

    /// The keys that have a value.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.map
            .iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(key, _)| key.as_str())
    }

    /// An inner object.
    pub fn object(&self, key: &str) -> Result<Option<Keys>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Object(map)) => {
                let prefix = format!("{}{key}.", self.prefix);
                Ok(Some(Keys {
                    path: self.path.clone(),
                    prefix,
                    map: map.clone(),
                }))
            }
            Some(_) => Err(self.wrong(key, "an object")),
        }
    }

    /// An integer `1..=most`.
    pub fn optional_size(&self, key: &str, most: usize) -> Result<Option<usize>> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let size = value.as_u64().and_then(|n| usize::try_from(n).ok());
        match size.filter(|n| (1..=most).contains(n)) {
            Some(size) => Ok(Some(size)),
            None => Err(self.wrong(key, format!("an integer from 1 to {most}"))),
        }
    }

    /// The same as [`Keys::optional_size`], for a key that must be present.
    pub fn size(&self, key: &str, most: usize) -> Result<usize> {
        let size = self.optional_size(key, most)?;
        size.ok_or_else(|| self.wrong(key, format!("an integer from 1 to {most}")))
    }

    /// A finite number that `accept` takes.
    pub fn optional_number(
        &self,
        key: &str,
        expected: &str,
        accept: impl Fn(f64) -> bool,
    ) -> Result<Option<f64>> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        match value.as_f64().filter(|&x| x.is_finite() && accept(x)) {
            Some(x) => Ok(Some(x)),
            None => Err(self.wrong(key, expected)),
        }
    }

    /// The same as [`Keys::optional_number`], for a key that must be present.
    pub fn number(&self, key: &str, expected: &str, accept: impl Fn(f64) -> bool) -> Result<f64> {
        let number = self.optional_number(key, expected, accept)?;
        number.ok_or_else(|| self.wrong(key, expected))
    }

    /// `true` or `false`. An absent key is `false`, which is the default of every such key in
    /// LlamaConfig and ModelArgs.
    pub fn flag(&self, key: &str) -> Result<bool> {
        self.flag_or(key, false)
    }

    /// `true` or `false`, or what the absence of the key means.
    pub fn flag_or(&self, key: &str, absent: bool) -> Result<bool> {
        match self.get(key) {
            None => Ok(absent),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(_) => Err(self.wrong(key, "true or false")),
        }
    }

    /// A string; the key may be absent.
    pub fn text(&self, key: &str) -> Result<Option<&str>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.wrong(key, "a string")),
        }
    }

    /// A string that is one of `known`; the key may be absent.
    pub fn optional_name(&self, key: &str, known: &[&str]) -> Result<Option<&str>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(name)) if known.contains(&name.as_str()) => Ok(Some(name)),
            Some(_) => Err(self.wrong(key, format!("one of {}", known.join(", ")))),
        }
    }
}
