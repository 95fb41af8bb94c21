//! Reads Mistral's `tekken.json`: tokens in base64 by rank, which come behind special tokens, and
//! the expression that cuts texts. Written from mistral-common 1.13
//! (`tokens/tokenizers/tekken.py`).

use super::Joining;
use super::added::{Added, AddedToken};
use super::hf_json::file::Text;
use super::normalizer::Normalizer;
use super::pipeline::{Cut, Pipeline};
use super::ranked::{self, MAX_RANKS, base64};
use super::split::{Expression, Keep};
use super::vocabulary::{Kind, MAX_TOKEN_BYTES, Vocabulary};
use crate::{Error, Result, reserve, sentence};
use serde::de::IgnoredAny;
use std::path::Path;

const WHAT: &str = "a tokenizer's vocabulary";
/// The most bytes of memory that one byte of such a file turns into.
const WORK_PER_BYTE: usize = 16;
/// The most special tokens. All files have 1,000.
const MAX_SPECIAL: usize = 4 << 10;
/// The known versions, in order.
const VERSIONS: [&str; 7] = ["v1", "v2", "v3", "v7", "v11", "v13", "v15"];
/// Index of the last version whose files may leave out their special tokens.
const LAST_WITHOUT_SPECIAL: usize = 3;
/// The special tokens of a file that leaves them out.
const SPECIAL: [&str; 20] = [
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
];
/// Parts of an expression that mean something else to Oniguruma than to tiktoken, for which the
/// expression is written.
const AMBIGUOUS: [&str; 4] = [r"\w", r"\W", "[:", r"\s+$"];

/// The file, without what it says about images, sounds and settings.
#[derive(serde::Deserialize)]
struct File<'a> {
    config: Config,
    #[serde(borrow)]
    vocab: Vec<Entry<'a>>,
    #[serde(borrow, default)]
    special_tokens: Option<Vec<Special<'a>>>,
}

#[derive(serde::Deserialize)]
struct Config {
    pattern: String,
    /// Number of all tokens, special ones included.
    default_vocab_size: usize,
    default_num_special_tokens: usize,
    version: String,
}

#[derive(serde::Deserialize)]
struct Entry<'a> {
    rank: usize,
    #[serde(borrow)]
    token_bytes: Text<'a>,
}

#[derive(serde::Deserialize)]
struct Special<'a> {
    rank: usize,
    #[serde(borrow)]
    token_str: Text<'a>,
}

/// Whether these bytes look like such a file.
pub(super) fn is_tekken(bytes: &[u8]) -> bool {
    #[derive(serde::Deserialize)]
    struct Outline {
        #[serde(rename = "config")]
        _config: IgnoredAny,
        #[serde(rename = "vocab")]
        _vocab: IgnoredAny,
    }
    serde_json::from_slice::<Outline>(bytes).is_ok()
}

/// The tokenizer in a file with these contents. `path` is for messages.
pub(super) fn from_bytes(path: &Path, bytes: &[u8]) -> Result<Pipeline> {
    let format = |detail: String| Error::format(path, detail);
    reserve::headroom("reading a tokenizer", bytes.len() * WORK_PER_BYTE)?;
    let file: File = serde_json::from_slice(bytes)
        .map_err(|e| format(format!("not a tekken.json as expected: {e}")))?;
    let special = file.special(path)?;
    let expression = file.config.expression(path)?;
    let covers_bytes = expression.covers_all();
    let (first, n) = (special.len(), file.tokens(path)?);
    let mut shown: Vec<u8> = reserve::room(WHAT, bytes.len())?;
    let mut ends = reserve::room(WHAT, first + n)?;
    for text in &special {
        shown.extend_from_slice(text.as_bytes());
        ends.push(shown.len());
    }
    for (rank, entry) in file.vocab[..n].iter().enumerate() {
        let start = shown.len();
        let wrong = |what: String| format(format!("`vocab[{rank}]` {what}"));
        if entry.rank != rank {
            return Err(wrong(format!("has the rank {}", entry.rank)));
        }
        if !base64(entry.token_bytes.0.as_bytes(), &mut shown) {
            return Err(wrong("is not in base64".into()));
        }
        let len = shown.len() - start;
        if !(1..=MAX_TOKEN_BYTES).contains(&len) {
            let what = format!("has {len} bytes, expected 1 to {MAX_TOKEN_BYTES}");
            return Err(wrong(what));
        }
        ends.push(shown.len());
    }
    let entries = (0..first + n).map(|id| {
        let start = id.checked_sub(1).map_or(0, |before| ends[before]);
        let kind = match id < first {
            true => Kind::Special,
            false => Kind::Bytes,
        };
        (&shown[start..ends[id]], kind)
    });
    let vocabulary = Vocabulary::new(entries)?;
    let bpe = ranked::bpe(path, &vocabulary, first as u32..(first + n) as u32)?;
    let added = (0..).zip(special).map(|(id, text)| AddedToken {
        id,
        text,
        special: true,
        ..AddedToken::default()
    });
    let added = Added::new(added.collect(), |text| Ok(text.into())).map_err(format)?;
    let id = |text: &str| added.id(text).unwrap_or(-1);
    let (bos_id, eos_id, pad_id) = (id("<s>"), id("</s>"), id("<pad>"));
    Ok(Pipeline {
        vocabulary,
        raw: None,
        bpe,
        added,
        normalizer: Normalizer::default(),
        cut: Cut::expressions(vec![expression]),
        bos_id,
        eos_id,
        pad_id,
        stop_ids: Vec::new(),
        adds_bos: bos_id >= 0,
        strips_leading_space: false,
        strips_first: false,
        joining: Joining::ByteLevel,
        covers_bytes,
    })
}

impl File<'_> {
    /// The texts of all special tokens, by id.
    fn special(&self, path: &Path) -> Result<Vec<String>> {
        let format = |detail: String| Error::format(path, detail);
        let version = &self.config.version;
        let known = VERSIONS.iter().position(|known| known == version);
        let Some(known) = known else {
            return Err(Error::Unsupported(format!(
                "{}: `config.version` is {:?}, expected one of {}",
                path.display(),
                sentence::name(version),
                VERSIONS.join(", ")
            )));
        };
        let n = self.config.default_num_special_tokens;
        if n > MAX_SPECIAL {
            let detail = format!(
                "`config.default_num_special_tokens` is {n}, at most {MAX_SPECIAL} are supported"
            );
            return Err(format(detail));
        }
        let mut texts: Vec<String> = reserve::room(WHAT, n)?;
        match &self.special_tokens {
            Some(tokens) => {
                for (i, token) in tokens.iter().enumerate() {
                    let (text, rank) = (&token.token_str.0, token.rank);
                    if rank != i || i >= n || !(1..=MAX_TOKEN_BYTES).contains(&text.len()) {
                        return Err(format(format!(
                            "`special_tokens[{i}]` has the rank {rank} and {} bytes, expected its \
                             place as rank, below {n}, and 1 to {MAX_TOKEN_BYTES} bytes",
                            text.len()
                        )));
                    }
                    texts.push(text.to_string());
                }
            }
            None if known <= LAST_WITHOUT_SPECIAL && n >= SPECIAL.len() => {
                texts.extend(SPECIAL.map(String::from));
            }
            None => {
                return Err(format(format!(
                    "no `special_tokens`, which files of version {version} with {n} of them must \
                     have"
                )));
            }
        }
        texts.extend((texts.len()..n).map(|id| format!("<SPECIAL_{id}>")));
        Ok(texts)
    }

    /// How many tokens there are besides the special ones. The list may have more entries.
    fn tokens(&self, path: &Path) -> Result<usize> {
        let (all, special) = (
            self.config.default_vocab_size,
            self.config.default_num_special_tokens,
        );
        let listed = self.vocab.len();
        match all.checked_sub(special) {
            Some(n) if n <= listed.min(MAX_RANKS) => Ok(n),
            _ => Err(Error::format(
                path,
                format!(
                    "`config.default_vocab_size` is {all}, there are {special} special tokens and \
                     {listed} others, at most {MAX_RANKS} of these are supported"
                ),
            )),
        }
    }
}

impl Config {
    fn expression(&self, path: &Path) -> Result<Expression> {
        let text = &self.pattern;
        let refused = |why: String| {
            Error::Unsupported(format!(
                "{}: `config.pattern` is {}: {why}, which is not supported",
                path.display(),
                sentence::value(text)
            ))
        };
        match AMBIGUOUS.iter().find(|part| text.contains(*part)) {
            Some(part) => Err(refused(format!("it has {part}"))),
            // Text between matches is dropped.
            None => Ok(Expression::new(text)
                .map_err(refused)?
                .keeping(Keep::Matches)),
        }
    }
}
