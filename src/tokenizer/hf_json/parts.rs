//! The parts of a tokenizer.json around its model. Each part has a `type`. A type that is not
//! known, or a field that would change ids or texts, is an error that names its place in the JSON.

use crate::tokenizer::normalizer::{Normalizer, Step};
use crate::tokenizer::pairs::SPACE_SYMBOL;
use crate::tokenizer::pipeline::{Metaspace, Prepend};
use crate::tokenizer::split::{self, Expression, Keep};
use crate::{Error, Result, Token, reserve, sentence};
use serde_json::Value;
use serde_json::value::RawValue;
use std::path::Path;

/// The most bytes of such a part. DeepSeek's expressions have some five thousand.
const MAX_BYTES: usize = 256 << 10;
/// The most bytes of memory that one byte of JSON turns into.
const WORK_PER_BYTE: usize = 100;
/// The most normalisers, or expressions, that may follow one another.
const MAX_STEPS: usize = 16;
/// Normalisers may make a text at most this many times as long. Without a limit, each doubling
/// would double the result of the last one.
const MAX_GROWTH: usize = 16;

/// A part, or a part of a part.
pub(super) struct Node<'a> {
    file: &'a Path,
    /// Its place in the JSON.
    at: String,
    value: Value,
}

/// How a text is cut.
#[derive(Default)]
pub(crate) struct PreTokenizer {
    pub expressions: Vec<Expression>,
    pub metaspace: Option<Metaspace>,
    pub byte_level: bool,
}

/// How the texts of tokens are put together again.
pub(crate) enum Decoder {
    /// Tokens are spelled in the byte alphabet.
    ByteLevel,
    /// Tokens are pieces of text.
    Pieces {
        /// U+2581 is a space.
        spaces: bool,
        /// `<0x41>` is a byte.
        bytes: bool,
        /// A leading space of the text goes.
        strips: bool,
        /// Every U+2581 of the first token goes.
        strips_first: bool,
    },
}

impl<'a> Node<'a> {
    /// The part of the file under this key, if there is one.
    pub fn of(file: &'a Path, key: &str, raw: Option<&RawValue>) -> Result<Option<Node<'a>>> {
        let Some(raw) = raw else {
            return Ok(None);
        };
        let bytes = raw.get().len();
        if bytes > MAX_BYTES {
            let detail = format!("`{key}` has {bytes} bytes, at most {MAX_BYTES} are supported");
            return Err(Error::format(file, detail));
        }
        reserve::headroom("reading a tokenizer", bytes * WORK_PER_BYTE)?;
        let value = serde_json::from_str(raw.get());
        let value = value.map_err(|e| Error::format(file, format!("`{key}`: {e}")))?;
        Ok(Some(Node {
            file,
            at: key.into(),
            value,
        }))
    }

    fn unsupported(&self, what: impl std::fmt::Display) -> Error {
        Error::Unsupported(format!(
            "{}: `{}` {what}, which is not supported",
            self.file.display(),
            self.at
        ))
    }

    fn wrong(&self, key: &str, expected: &str) -> Error {
        let got = self
            .value
            .get(key)
            .map_or("missing".into(), Value::to_string);
        let (at, got) = (&self.at, sentence::value(&got));
        Error::format(
            self.file,
            format!("`{at}.{key}` is {got}, expected {expected}"),
        )
    }

    fn kind(&self) -> Result<&str> {
        let kind = self.value.get("type").and_then(Value::as_str);
        kind.ok_or_else(|| self.wrong("type", "a name"))
    }

    fn refuse(&self) -> Error {
        let kind = self.kind().unwrap_or_default();
        self.unsupported(format_args!("is of type {}", sentence::value(kind)))
    }

    /// A field that is true or false. `default` if it is absent.
    fn flag(&self, key: &str, default: bool) -> Result<bool> {
        match self.value.get(key) {
            None | Some(Value::Null) => Ok(default),
            Some(Value::Bool(value)) => Ok(*value),
            Some(_) => Err(self.wrong(key, "true or false")),
        }
    }

    fn text(&self, key: &str) -> Result<&str> {
        let text = self.value.get(key).and_then(Value::as_str);
        text.ok_or_else(|| self.wrong(key, "a string"))
    }

    /// Refuses fields that are not in `known`, except `type`.
    fn only(&self, known: &[&str]) -> Result<()> {
        let Value::Object(map) = &self.value else {
            return Err(self.unsupported("is no object"));
        };
        match map
            .keys()
            .find(|key| *key != "type" && !known.contains(&key.as_str()))
        {
            Some(key) => {
                Err(self.unsupported(format_args!("has a field {:?}", sentence::name(key))))
            }
            None => Ok(()),
        }
    }

    /// The steps of a `Sequence`. Another node is a single step.
    fn steps(self, key: &str) -> Result<Vec<Node<'a>>> {
        let mut open = vec![self];
        let mut steps = Vec::new();
        while let Some(mut node) = open.pop() {
            if node.kind()? != "Sequence" {
                steps.push(node);
                continue;
            }
            node.only(&[key])?;
            let Some(Value::Array(list)) = node.value.get_mut(key).map(Value::take) else {
                return Err(node.wrong(key, "an array"));
            };
            if list.len() + open.len() + steps.len() > MAX_STEPS {
                return Err(node.unsupported(format_args!("has more than {MAX_STEPS} steps")));
            }
            let file = node.file;
            let inner = list.into_iter().enumerate().map(|(i, value)| Node {
                file,
                at: format!("{}.{key}[{i}]", node.at),
                value,
            });
            open.extend(inner.rev());
        }
        Ok(steps)
    }

    /// This part as a normaliser.
    pub fn normalizer(self) -> Result<Normalizer> {
        let mut steps = Vec::new();
        let mut growth = 1_usize;
        for node in self.steps("normalizers")? {
            let step = match node.kind()? {
                "NFC" => Step::Nfc,
                "NFKC" => Step::Nfkc,
                "Prepend" => {
                    node.only(&["prepend"])?;
                    Step::Prepend(node.text("prepend")?.into())
                }
                "Replace" => node.replacement()?,
                _ => return Err(node.refuse()),
            };
            if let Step::Replace { from, to } = &step {
                growth = growth.saturating_mul(to.len().div_ceil(from.len()).max(1));
            }
            if growth > MAX_GROWTH {
                let what = format_args!("makes texts more than {MAX_GROWTH} times as long");
                return Err(node.unsupported(what));
            }
            steps.push(step);
        }
        Ok(Normalizer(steps))
    }

    /// The replacement of a string, or one of the three expressions that transformers writes for
    /// SentencePiece models.
    fn replacement(&self) -> Result<Step> {
        self.only(&["pattern", "content"])?;
        let regex = self.value.get("pattern").and_then(|p| p.get("Regex"));
        let to = self.text("content")?;
        match (regex.and_then(Value::as_str), to) {
            (Some(r"\A +| +\z"), "") => Ok(Step::Trim),
            (Some(" {2,}"), " ") => Ok(Step::Squeeze),
            (Some("\\A\u{2581}"), "\u{2581}\u{2581}") => Ok(Step::DoubleSymbol),
            _ => Ok(Step::Replace {
                from: self.literal()?,
                to: to.to_owned(),
            }),
        }
    }

    /// A `pattern` that is a plain string.
    fn literal(&self) -> Result<String> {
        let pattern = self.value.get("pattern");
        match pattern
            .and_then(|p| p.get("String"))
            .and_then(Value::as_str)
        {
            Some(text) if !text.is_empty() => Ok(text.into()),
            _ if pattern.is_some_and(|p| p.get("Regex").is_some()) => {
                Err(self.unsupported("replaces a regular expression"))
            }
            _ => Err(self.wrong("pattern", "a string that is not empty")),
        }
    }

    /// This part as a pre-tokenizer.
    pub fn pre_tokenizer(self) -> Result<PreTokenizer> {
        let mut all = PreTokenizer::default();
        for node in self.steps("pretokenizers")? {
            if all.byte_level || all.metaspace.is_some_and(|metaspace| metaspace.split) {
                return Err(node.unsupported("comes behind the step that must be the last"));
            }
            match node.kind()? {
                "ByteLevel" => {
                    if all.metaspace.is_some() {
                        return Err(node.unsupported("comes behind Metaspace"));
                    }
                    node.only(&["add_prefix_space", "trim_offsets", "use_regex"])?;
                    // The space goes in front of each piece, so this step must be the first one
                    // that cuts.
                    if node.flag("add_prefix_space", true)? {
                        if !all.expressions.is_empty() {
                            let what = "has `add_prefix_space` and comes behind another step";
                            return Err(node.unsupported(what));
                        }
                        all.metaspace = Some(Metaspace {
                            symbol: ' ',
                            prepend: Prepend::Always,
                            split: false,
                        });
                    }
                    if node.flag("use_regex", true)? {
                        all.expressions.push(node.expression(split::GPT2)?);
                    }
                    all.byte_level = true;
                }
                "Metaspace" => {
                    if !all.expressions.is_empty() || all.metaspace.is_some() {
                        return Err(node.unsupported("comes behind another step"));
                    }
                    all.metaspace = Some(node.metaspace()?);
                }
                "Split" => all.expressions.push(node.split()?),
                // In tokenizers these two do not use Oniguruma.
                "Whitespace" => {
                    node.only(&[])?;
                    let words = Expression::of_rust(r"\w+|[^\w\s]+").map_err(Error::Internal)?;
                    all.expressions.push(words.keeping(Keep::Matches));
                }
                "WhitespaceSplit" => {
                    node.only(&[])?;
                    let white = Expression::of_rust(r"\s+").map_err(Error::Internal)?;
                    all.expressions.push(white.keeping(Keep::Between));
                }
                "Digits" => {
                    node.only(&["individual_digits"])?;
                    let expression = match node.flag("individual_digits", false)? {
                        true => r"\p{N}",
                        false => r"\p{N}+",
                    };
                    all.expressions.push(node.expression(expression)?);
                }
                "Punctuation" => {
                    node.only(&["behavior"])?;
                    let expression = match node.value.get("behavior").and_then(Value::as_str) {
                        None | Some("Isolated") => r"[!-/:-@\[-`{-~\p{P}]",
                        Some("Contiguous") => r"[!-/:-@\[-`{-~\p{P}]+",
                        Some(other) => return Err(node.behaviour(other)),
                    };
                    all.expressions.push(node.expression(expression)?);
                }
                _ => return Err(node.refuse()),
            }
        }
        Ok(all)
    }

    fn behaviour(&self, behaviour: &str) -> Error {
        self.unsupported(format_args!("has behavior {}", sentence::value(behaviour)))
    }

    fn expression(&self, text: &str) -> Result<Expression> {
        let refused = |why| {
            let shown = sentence::value(text);
            self.unsupported(format_args!("has the expression {shown}: {why}"))
        };
        Expression::new(text).map_err(refused)
    }

    fn split(&self) -> Result<Expression> {
        self.only(&["pattern", "behavior", "invert"])?;
        let pattern = self.value.get("pattern");
        let regex = pattern.and_then(|p| p.get("Regex")).and_then(Value::as_str);
        let expression = match regex {
            Some(regex) => self.expression(regex)?,
            None => Expression::literal(&self.literal()?).map_err(Error::Internal)?,
        };
        let behaviour = self.text("behavior")?;
        match (behaviour, self.flag("invert", false)?) {
            ("Isolated", _) => Ok(expression),
            // This removes what lies between matches, and nothing does.
            ("Removed", true) if expression.covers_all() => Ok(expression),
            ("Removed", true) => Ok(expression.keeping(Keep::Matches)),
            ("Removed", false) => Ok(expression.keeping(Keep::Between)),
            (behaviour, true) => Err(self.behaviour(&format!("{behaviour}, inverted"))),
            (behaviour, false) => Err(self.behaviour(behaviour)),
        }
    }

    fn metaspace(&self) -> Result<Metaspace> {
        let known = [
            "replacement",
            "prepend_scheme",
            "split",
            "add_prefix_space",
            "str_rep",
        ];
        self.only(&known)?;
        let symbol = String::from(SPACE_SYMBOL);
        if self.text("replacement")? != symbol {
            return Err(self.unsupported("has another replacement than U+2581"));
        }
        // Older files say `add_prefix_space`.
        let scheme = match self.flag("add_prefix_space", true)? {
            true => "always",
            false => "never",
        };
        let prepend = match self
            .value
            .get("prepend_scheme")
            .and_then(Value::as_str)
            .unwrap_or(scheme)
        {
            "always" => Prepend::Always,
            "first" => Prepend::First,
            "never" => Prepend::Never,
            other => return Err(self.unsupported(format_args!("has prepend_scheme {other:?}"))),
        };
        let split = self.flag("split", true)?;
        Ok(Metaspace {
            symbol: SPACE_SYMBOL,
            prepend,
            split,
        })
    }

    /// This part as a decoder.
    pub fn decoder(self) -> Result<Decoder> {
        let (mut spaces, mut bytes, mut strips, mut fused) = (false, false, false, false);
        let mut strips_first = false;
        let mut steps = self.steps("decoders")?;
        // `ByteLevel` gives one text already, so `Fuse` does nothing.
        while steps.len() > 1 && steps[0].kind()? == "ByteLevel" && steps[1].kind()? == "Fuse" {
            steps.remove(1);
        }
        let n = steps.len();
        for node in steps {
            match node.kind()? {
                "ByteLevel" if n == 1 => return Ok(Decoder::ByteLevel),
                "Replace" if !fused => {
                    node.only(&["pattern", "content"])?;
                    let symbol = String::from(SPACE_SYMBOL);
                    if (node.literal()?, node.text("content")?) != (symbol, " ") {
                        return Err(node.unsupported("replaces something else than U+2581"));
                    }
                    spaces = true;
                }
                "Metaspace" if !fused => {
                    // If another step has turned every U+2581 into a space, none is left to strip.
                    strips_first |= node.metaspace()?.prepend != Prepend::Never && !spaces;
                    spaces = true;
                }
                "ByteFallback" if !fused => bytes = true,
                "Fuse" => fused = true,
                "Strip" if fused => {
                    node.only(&["content", "start", "stop"])?;
                    let count = |key: &str| node.value.get(key).and_then(Value::as_u64);
                    match (node.text("content")?, count("start"), count("stop")) {
                        (" ", Some(start @ 0..=1), Some(0)) => strips |= start == 1,
                        _ => return Err(node.unsupported("strips more than one leading space")),
                    }
                }
                _ => return Err(node.refuse()),
            }
        }
        Ok(Decoder::Pieces {
            spaces,
            bytes,
            strips,
            strips_first,
        })
    }

    /// The token that this part, a post-processor, puts in front of a text.
    pub fn bos(self) -> Result<Option<Token>> {
        let mut bos = None;
        for node in self.steps("processors")? {
            match node.kind()? {
                "ByteLevel" => {}
                "TemplateProcessing" if bos.is_none() => {
                    let first = node.value.get("single").and_then(|single| single.get(0));
                    let Some(name) = first.and_then(|first| first.get("SpecialToken")) else {
                        continue;
                    };
                    let name = name.get("id").and_then(Value::as_str).unwrap_or_default();
                    let tokens = node.value.get("special_tokens");
                    let ids = tokens.and_then(|t| t.get(name)).and_then(|t| t.get("ids"));
                    let ids = ids.and_then(Value::as_array);
                    bos = match ids.map(Vec::as_slice) {
                        Some([id]) => id.as_u64().and_then(|id| Token::try_from(id).ok()),
                        _ => None,
                    };
                    if bos.is_none() {
                        return Err(node.wrong("special_tokens", "one id of each token"));
                    }
                }
                _ => return Err(node.refuse()),
            }
        }
        Ok(bos)
    }
}
