//! The tokenizer that a GGUF's metadata describe.
//!
//! `llama` is a SentencePiece model in other words, and is made into one again. `gpt2` says what a
//! tokenizer.json says, except for the splits, of which there is only a name.

use super::added::AddedToken;
use super::extras::Extras;
use super::hf_json::Parts;
use super::hf_json::file::{AddedJson, File, MergeList, Model, Text, Texts, two};
use super::hf_json::parts::{Decoder, PreTokenizer};
use super::model_proto::{self, Checked, ModelProto, NormalizerSpec, TrainerSpec, Type};
use super::normalizer::{Normalizer, Step};
use super::split::{self, Expression};
use super::vocabulary::MAX_TOKEN_BYTES;
use super::{SentencePiece, Tokenizer};
use crate::{Error, Result, Token, reserve, sentence};
use std::path::Path;
use std::sync::Arc;

const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

/// Special tokens that end a turn in some model family. Most files name one EOS although the model
/// was trained to end turns with another token. llama.cpp goes by these texts, too.
const TURN_ENDS: [&str; 6] = [
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
];

/// Special tokens of Phi-3's SentencePiece vocabulary that do not take the white space behind them.
const KEEP_SPACE: [&str; 3] = ["<unk>", "<s>", "<|endoftext|>"];

/// The keys `tokenizer.ggml.*` of a GGUF, as they stand in the file. The reader of the file only
/// limits their sizes. Their meaning is checked when a tokenizer is made from them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GgufVocabulary {
    /// `model`: `llama` (SentencePiece) or `gpt2` (byte-level BPE). Others are not supported.
    pub model: String,
    /// `pre`: how texts are split before `gpt2` merges them.
    pub pre: Option<String>,
    /// `tokens`: the text of every id, in the spelling of its model.
    pub tokens: Vec<String>,
    /// `scores`, for `llama`: one for each token. Empty if the key is missing.
    pub scores: Vec<f32>,
    /// `token_type`: one for each token (1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused,
    /// 6 byte). Empty if the key is missing.
    pub types: Vec<i32>,
    /// `merges`, for `gpt2`: two tokens with a space between them. The first merge has the lowest
    /// rank.
    pub merges: Vec<String>,
    /// `bos_token_id`.
    pub bos_id: Option<u32>,
    /// `eos_token_id`.
    pub eos_id: Option<u32>,
    /// `eot_token_id`: end of a turn.
    pub eot_id: Option<u32>,
    /// `eom_token_id`: end of a message.
    pub eom_id: Option<u32>,
    /// `padding_token_id`.
    pub pad_id: Option<u32>,
    /// `unknown_token_id`.
    pub unk_id: Option<u32>,
    /// `add_bos_token`.
    pub add_bos: Option<bool>,
    /// `add_space_prefix`.
    pub add_space_prefix: Option<bool>,
    /// Whether `general.architecture` is `phi3`. With the model `llama`, most of Phi-3's special
    /// tokens take the white space behind them. No key says so. llama.cpp goes by the architecture
    /// as well.
    pub is_phi3: bool,
}

/// How the texts of a `gpt2` vocabulary are cut.
struct Pre {
    expressions: &'static [&'static str],
    ignore_merges: bool,
    nfc: bool,
}

impl Pre {
    /// The cut for a name that convert_hf_to_gguf.py of llama.cpp writes.
    fn named(name: &str) -> Option<Pre> {
        let (expressions, ignore_merges, nfc): (&[&str], bool, bool) = match name {
            "llama-bpe" | "llama3" | "llama-v3" | "falcon3" | "midm-2.0" => {
                (&[split::LLAMA3], true, false)
            }
            "smaug-bpe" | "dbrx" => (&[split::LLAMA3], false, false),
            // These models were trained with NFC. A GGUF cannot say so, and llama.cpp leaves NFC
            // out.
            "qwen2" | "deepseek-r1-qwen" => (&[split::QWEN2], false, true),
            "qwen35" => (&[split::QWEN35], false, true),
            "gpt-2" | "olmo" | "mellum" | "a.x-4.0" | "trillion" => (&[split::GPT2], false, false),
            "smollm" | "starcoder" | "refact" | "minerva-7b" => {
                (&[r"\p{N}", split::GPT2], false, false)
            }
            "tekken" => (&[split::TEKKEN], true, false),
            "gpt-4o" => (&[split::GPT4O], false, false),
            "seed-coder" => (&[split::SEED], false, false),
            "hunyuan-dense" | "deepseek-v3" => (&split::DEEPSEEK_V3, false, false),
            "deepseek-llm" => (&split::DEEPSEEK_LLM, false, false),
            "deepseek-coder" => (&split::DEEPSEEK_CODER, false, false),
            _ => return None,
        };
        Some(Pre {
            expressions,
            ignore_merges,
            nfc,
        })
    }
}

impl GgufVocabulary {
    /// The tokenizer. `path` is for messages.
    ///
    /// [`Error::Unsupported`] for models and splits that are not known, [`Error::Format`] for lists
    /// that contradict each other.
    pub fn tokenizer(&self, path: &Path) -> Result<Arc<dyn Tokenizer>> {
        self.check(path)?;
        match &self.model[..] {
            "llama" => self.sentencepiece(path),
            "gpt2" => self.byte_level(path),
            other => Err(Error::Unsupported(format!(
                "{}: `tokenizer.ggml.model` is {:?}, supported are \"llama\" and \"gpt2\"",
                path.display(),
                sentence::name(other)
            ))),
        }
    }

    fn check(&self, path: &Path) -> Result<()> {
        let n = self.tokens.len();
        let lists = [
            ("scores", self.scores.len()),
            ("token_type", self.types.len()),
        ];
        for (key, len) in lists {
            if len != 0 && len != n {
                let detail = format!("`tokenizer.ggml.{key}` has {len} entries, `tokens` {n}");
                return Err(Error::format(path, detail));
            }
        }
        for (key, id) in [
            ("bos_token_id", self.bos_id),
            ("eos_token_id", self.eos_id),
            ("eot_token_id", self.eot_id),
            ("eom_token_id", self.eom_id),
            ("padding_token_id", self.pad_id),
            ("unknown_token_id", self.unk_id),
        ] {
            if let Some(id) = id.filter(|&id| id as usize >= n) {
                let detail = format!("`tokenizer.ggml.{key}` is {id}, there are {n} tokens");
                return Err(Error::format(path, detail));
            }
        }
        let long = self
            .tokens
            .iter()
            .position(|text| text.len() > 2 * MAX_TOKEN_BYTES);
        if let Some(id) = long {
            let bytes = self.tokens[id].len();
            let detail =
                format!("token {id} has {bytes} bytes, at most {MAX_TOKEN_BYTES} are supported");
            return Err(Error::format(path, detail));
        }
        match self
            .types
            .iter()
            .position(|kind| !(NORMAL..=BYTE).contains(kind))
        {
            Some(id) => {
                let detail = format!(
                    "`tokenizer.ggml.token_type[{id}]` is {}, expected 1 to 6",
                    self.types[id]
                );
                Err(Error::format(path, detail))
            }
            None => Ok(()),
        }
    }

    fn kind(&self, id: usize) -> i32 {
        self.types.get(id).copied().unwrap_or(NORMAL)
    }

    /// Ids that end a sequence besides `eos_id`. The time grows with the square of their number, so
    /// this is only for a vocabulary without two tokens of the same text: there they are few.
    fn stop_ids(&self) -> Vec<Token> {
        let named = [self.eot_id, self.eom_id].into_iter().flatten();
        let turn_ends = (0..).zip(&self.tokens).filter(|&(id, text)| {
            let kind = self.kind(id as usize);
            matches!(kind, CONTROL | USER_DEFINED) && TURN_ENDS.contains(&&text[..])
        });
        let mut ids: Vec<Token> = Vec::new();
        for id in named.chain(turn_ends.map(|(id, _)| id)) {
            if Some(id) != self.eos_id && !ids.contains(&(id as Token)) {
                ids.push(id as Token);
            }
        }
        ids
    }

    fn id(id: Option<u32>) -> Token {
        id.map_or(-1, |id| id as Token)
    }

    fn sentencepiece(&self, path: &Path) -> Result<Arc<dyn Tokenizer>> {
        let format = |detail: String| Error::format(path, detail);
        if self.scores.is_empty() || self.types.is_empty() {
            let detail =
                "`tokenizer.ggml.scores` and `token_type` are needed for the model \"llama\"";
            return Err(format(detail.into()));
        }
        let mut extras = Extras {
            add_bos: self.add_bos,
            ..Extras::default()
        };
        let mut proto = ModelProto::default();
        reserve::vec(
            "a tokenizer's vocabulary",
            &mut proto.pieces,
            self.tokens.len(),
        )?;
        let mut n_bytes = 0;
        // Some converters have written holes as unknown tokens, and the unknown token as a control
        // token.
        let first_unknown = self.types.iter().position(|&kind| kind == UNKNOWN);
        let unk = self.unk_id.or(first_unknown.map(|id| id as u32));
        for (id, (text, score)) in (0..).zip(self.tokens.iter().zip(&self.scores)) {
            // Added tokens and holes are never merged. So they become control pieces where these
            // may have such a text: control pieces are not merged either and, unlike unused pieces,
            // need not be taken apart again.
            let hidden = match text.chars().nth(1) {
                Some(_) => Type::Control,
                None => Type::Unused,
            };
            let kind = match self.types[id as usize] {
                _ if Some(id) == unk => Type::Unknown,
                kind @ (CONTROL | USER_DEFINED) => {
                    let token = AddedToken {
                        id,
                        text: text.clone(),
                        special: kind == CONTROL,
                        rstrip: self.is_phi3 && !KEEP_SPACE.contains(&&text[..]),
                        ..AddedToken::default()
                    };
                    extras.added.insert(id, token);
                    match kind {
                        CONTROL => Type::Control,
                        _ => hidden,
                    }
                }
                UNUSED | UNKNOWN => {
                    extras.unused.insert(id);
                    hidden
                }
                BYTE => {
                    n_bytes += 1;
                    Type::Byte
                }
                _ => Type::Normal,
            };
            proto.pieces.push(model_proto::SentencePiece {
                piece: Some(text.clone().into_bytes()),
                score: Some(*score),
                r#type: Some(kind as i32),
            });
        }
        proto.trainer_spec = Some(TrainerSpec {
            model_type: Some(2),
            byte_fallback: Some(n_bytes > 0),
            ..TrainerSpec::default()
        });
        proto.normalizer_spec = Some(NormalizerSpec {
            add_dummy_prefix: Some(self.add_space_prefix.unwrap_or(true)),
            remove_extra_whitespaces: Some(false),
            escape_whitespaces: Some(true),
            ..NormalizerSpec::default()
        });
        let mut checked = Checked::assembled(proto).map_err(format)?;
        checked.bos_id = Self::id(self.bos_id);
        checked.eos_id = Self::id(self.eos_id);
        checked.pad_id = Self::id(self.pad_id);
        extras.stop_ids = self.stop_ids();
        Ok(Arc::new(SentencePiece::from_checked(
            path, checked, &extras,
        )?))
    }

    fn byte_level(&self, path: &Path) -> Result<Arc<dyn Tokenizer>> {
        let name = self.pre.as_deref().unwrap_or("missing");
        let Some(pre) = Pre::named(name) else {
            return Err(Error::Unsupported(format!(
                "{}: `tokenizer.ggml.pre` is {}, so it is not known how texts are cut; a tokenizer_path \
                 to the model's tokenizer.json helps",
                path.display(),
                sentence::name(name)
            )));
        };
        let mut vocab = reserve::room("a tokenizer's vocabulary", self.tokens.len())?;
        let mut added_tokens = Vec::new();
        for (id, text) in (0..).zip(&self.tokens) {
            let content = Text(text.into());
            match self.kind(id as usize) {
                UNUSED => {}
                kind @ (CONTROL | USER_DEFINED) => added_tokens.push(AddedJson {
                    id,
                    content,
                    special: kind == CONTROL,
                    ..AddedJson::default()
                }),
                _ => vocab.push((content, id)),
            }
        }
        let mut merges = reserve::room("a tokenizer's merges", self.merges.len())?;
        for (i, merge) in self.merges.iter().enumerate() {
            let Some((left, right)) = two(merge) else {
                let detail =
                    format!("`tokenizer.ggml.merges[{i}]` is {merge:?}, expected two tokens");
                return Err(Error::format(path, detail));
            };
            merges.push((Text(left.into()), Text(right.into())));
        }
        let file = File {
            added_tokens,
            model: Model {
                ignore_merges: pre.ignore_merges,
                vocab: Texts(vocab),
                merges: MergeList(merges),
                ..Model::default()
            },
            ..File::default()
        };
        let expressions = pre.expressions.iter().map(|text| Expression::new(text));
        let expressions: std::result::Result<_, String> = expressions.collect();
        let parts = Parts {
            decoder: Decoder::ByteLevel,
            pre: PreTokenizer {
                expressions: expressions.map_err(Error::Internal)?,
                metaspace: None,
                byte_level: true,
            },
            normalizer: Normalizer(if pre.nfc { vec![Step::Nfc] } else { Vec::new() }),
            bos: None,
            // Converters write added tokens as they are shown.
            decodes_added: false,
        };
        let mut tokenizer = parts.tokenizer(path, &file, &Extras::default())?;
        tokenizer.vocabulary.grow(self.tokens.len())?;
        tokenizer.bos_id = Self::id(self.bos_id);
        tokenizer.eos_id = Self::id(self.eos_id);
        tokenizer.pad_id = Self::id(self.pad_id);
        tokenizer.stop_ids = self.stop_ids();
        tokenizer.adds_bos = self.add_bos.unwrap_or(pre.ignore_merges) && self.bos_id.is_some();
        Ok(Arc::new(tokenizer))
    }
}
