//! Reads Llama 3's `tokenizer.model`. Each line has a token in base64 and its rank, as tiktoken
//! writes them.
//!
//! The special tokens are not in the file. They are those of Meta's code (llama-models,
//! `models/llama3/tokenizer.py`).

use super::Joining;
use super::added::{Added, AddedToken};
use super::normalizer::Normalizer;
use super::pipeline::{Cut, Pipeline};
use super::ranked::{self, MAX_RANKS, base64};
use super::split::{self, Expression};
use super::vocabulary::{Kind, MAX_TOKEN_BYTES, Vocabulary};
use crate::{Error, Result, Token, reserve};
use std::path::Path;

const WHAT: &str = "a tokenizer's vocabulary";
/// Number of lines of Llama 4's file. Llama 4 has other special tokens and splits texts in another
/// way.
const LLAMA4_RANKS: usize = 200_000;
/// Number of special tokens. Their ids come behind the ranks.
const N_SPECIAL: usize = 256;
/// The first special tokens, in order. The others are reserved ones.
const SPECIAL: [&str; 12] = [
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|reserved_special_token_0|>",
    "<|reserved_special_token_1|>",
    "<|finetune_right_pad_id|>",
    "<|step_id|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eom_id|>",
    "<|eot_id|>",
    "<|python_tag|>",
    "<|image|>",
];

/// Whether these bytes look like such a file.
pub(super) fn is_tiktoken(bytes: &[u8]) -> bool {
    let line = bytes.split(|&b| b == b'\n').next().unwrap_or(bytes);
    let Some(space) = line.iter().position(|&b| b == b' ') else {
        return false;
    };
    let (token, rank) = (&line[..space], line[space + 1..].trim_ascii_end());
    let base64 = |b: &u8| b.is_ascii_alphanumeric() || b"+/=".contains(b);
    !token.is_empty()
        && token.iter().all(base64)
        && !rank.is_empty()
        && rank.iter().all(u8::is_ascii_digit)
}

/// The tokenizer in a file with these contents. `path` is for messages.
pub(super) fn from_bytes(path: &Path, bytes: &[u8]) -> Result<Pipeline> {
    let format = |detail: String| Error::format(path, detail);
    let ranks = Ranks::parse(bytes, path)?;
    let n = ranks.ends.len();
    if n == LLAMA4_RANKS {
        return Err(Error::Unsupported(format!(
            "{}: {n} ranks are Llama 4's, whose models are not supported",
            path.display()
        )));
    }
    let special = special_tokens();
    let entries = (0..n + N_SPECIAL).map(|id| match id.checked_sub(n) {
        None => (ranks.token(id), Kind::Bytes),
        Some(i) => (special[i].as_bytes(), Kind::Special),
    });
    let vocabulary = Vocabulary::new(entries)?;
    let bpe = ranked::bpe(path, &vocabulary, 0..n as u32)?;
    let added = special.iter().zip(n as u32..).map(|(text, id)| AddedToken {
        id,
        text: text.clone(),
        special: true,
        ..AddedToken::default()
    });
    let added = Added::new(added.collect(), |text| Ok(text.into())).map_err(format)?;
    let id = |text: &str| added.id(text).unwrap_or(-1);
    let (bos_id, eos_id) = (id(SPECIAL[0]), id(SPECIAL[1]));
    let stop_ids: Vec<Token> = vec![id("<|eom_id|>"), id("<|eot_id|>")];
    let pad_id = id("<|finetune_right_pad_id|>");
    let expression = Expression::new(split::LLAMA3).map_err(Error::Internal)?;
    Ok(Pipeline {
        vocabulary,
        bpe,
        raw: None,
        added,
        normalizer: Normalizer::default(),
        cut: Cut::expressions(vec![expression]),
        bos_id,
        eos_id,
        pad_id,
        stop_ids,
        adds_bos: true,
        strips_leading_space: false,
        strips_first: false,
        joining: Joining::ByteLevel,
        covers_bytes: true,
    })
}

fn special_tokens() -> Vec<String> {
    let reserved = 2..2 + N_SPECIAL - SPECIAL.len();
    let reserved = reserved.map(|i| format!("<|reserved_special_token_{i}|>"));
    SPECIAL
        .iter()
        .map(|text| text.to_string())
        .chain(reserved)
        .collect()
}

/// The tokens of a file, by rank.
struct Ranks {
    bytes: Vec<u8>,
    /// Where each token ends in `bytes`.
    ends: Vec<u32>,
}

impl Ranks {
    fn parse(bytes: &[u8], path: &Path) -> Result<Ranks> {
        let lines = bytes
            .split(|&b| b == b'\n')
            .filter(|line| !line.trim_ascii().is_empty());
        let mut ranks = Ranks {
            bytes: reserve::room(WHAT, bytes.len() / 4 * 3)?,
            ends: Vec::new(),
        };
        for (i, line) in lines.enumerate() {
            let wrong = |what: &str| Err(Error::format(path, format!("line {}: {what}", i + 1)));
            if i == MAX_RANKS {
                return wrong("more lines than the most that are supported, a million");
            }
            let line = line.trim_ascii_end();
            let Some(space) = line.iter().position(|&b| b == b' ') else {
                return wrong("no space between a token and its rank");
            };
            let rank = std::str::from_utf8(&line[space + 1..]).ok();
            if rank.and_then(|rank| rank.parse().ok()) != Some(i) {
                return wrong(&format!("expected the rank {i}: they count up from 0"));
            }
            let start = ranks.bytes.len();
            if !base64(&line[..space], &mut ranks.bytes) {
                return wrong("the token is not in base64");
            }
            let len = ranks.bytes.len() - start;
            if !(1..=MAX_TOKEN_BYTES).contains(&len) {
                return wrong(&format!(
                    "a token of {len} bytes, expected 1 to {MAX_TOKEN_BYTES}"
                ));
            }
            reserve::vec(WHAT, &mut ranks.ends, 1)?;
            ranks.ends.push(ranks.bytes.len() as u32);
        }
        Ok(ranks)
    }

    fn token(&self, id: usize) -> &[u8] {
        let start = id.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start as usize..self.ends[id] as usize]
    }
}
