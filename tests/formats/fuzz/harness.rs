//! Fuzz targets: functions from bytes to a result that must neither panic nor ask for memory that
//! the bytes do not justify.
//!
//! They run twice: `tests/formats/fuzz.rs` mutates the committed corpus on stable Rust in every
//! `cargo test`, and `fuzz/` hands the same functions to cargo-fuzz. A new target is a function
//! here, a folder in `tests/corpus/`, three lines in a file beside this one and a file of four in
//! `fuzz/fuzz_targets/`.
#![allow(dead_code)]

use llamabi::backend::cpu::Cpu;
use llamabi::backend::{Adapter as Requested, Limits, Step};
use llamabi::chat::jinja::{Fault, Meter, Moment, Template, Value, limits, read_json};
use llamabi::chat::{Chat, ChatRequest, Sources};
use llamabi::checkpoint::{self, Adapter, Plan, TokenizerSource, hugging_face};
use llamabi::format::{Encoding, TensorFile, gguf as gg, pickle, pth, safetensors as st};
use llamabi::grammar::{Cursor, Grammars, Source};
use llamabi::model::{Config, rope};
use llamabi::ranks::processes::adapters;
use llamabi::ranks::processes::handshake::{Found, Hello, Offer};
use llamabi::ranks::processes::message::{Kind, Message};
use llamabi::tokenizer::{self, Bound, Detokenizer, Run, Tokenizer};
use llamabi::{Error, Result, Token};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

/// A folder of this thread, in memory where the system has such a thing.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        let memory = PathBuf::from("/dev/shm");
        let base = if memory.is_dir() {
            memory
        } else {
            std::env::temp_dir()
        };
        let thread = format!("{:?}", std::thread::current().id());
        let number: String = thread.chars().filter(char::is_ascii_digit).collect();
        let dir = base.join(format!("llamabi-fuzz-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Scratch(dir)
    }

    fn file(&self, name: &str, data: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, data).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

thread_local!(static SCRATCH: Scratch = Scratch::new());

/// A safetensors file.
pub fn safetensors(data: &[u8]) -> Result<()> {
    let path = SCRATCH.with(|dir| dir.file("model.safetensors", data));
    check(&st::open(&path, None)?, data.len());
    Ok(())
}

/// A `.pth`: the zip and the pickle in it.
pub fn pth(data: &[u8]) -> Result<()> {
    let path = SCRATCH.with(|dir| dir.file("consolidated.00.pth", data));
    check(&pth::open(&path, None)?, data.len());
    Ok(())
}

/// A pickle on its own, which mutations of a whole `.pth` seldom reach.
pub fn pickle(data: &[u8]) -> Result<()> {
    let stored = pickle::tensors(data).map_err(|e| Error::format("data.pkl", e))?;
    for (_, stored) in stored {
        stored.is_contiguous();
        assert_eq!(stored.shape.len(), stored.strides.len());
    }
    Ok(())
}

/// A GGUF file: its structure, and every key asked for as every type.
pub fn gguf(data: &[u8]) -> Result<()> {
    let path = SCRATCH.with(|dir| dir.file("model.gguf", data));
    let file = gg::Gguf::open(&path, None)?;
    for (name, tensor) in &file.table.tensors {
        let cols = *tensor.shape.last().unwrap();
        let rows = tensor.shape.iter().product::<usize>() / cols;
        let row = tensor.len as usize / rows;
        assert!(tensor.offset + tensor.len <= data.len() as u64, "{name}");
        let mut bytes = vec![0; row];
        let last = tensor.len - row as u64;
        file.table.read(tensor, last, &mut bytes).unwrap();
        if let Encoding::Ggml(kind) = tensor.encoding {
            assert_eq!(kind.row_bytes(cols), Some(row), "{name}");
            kind.decode(&bytes, &mut vec![0.0; cols]);
        }
    }
    let keys: Vec<String> = file.keys().map(String::from).collect();
    for key in &keys {
        let one = [
            file.u64(key).is_ok(),
            file.f64(key).is_ok(),
            file.bool(key).is_ok(),
            file.text(key).is_ok(),
        ];
        let lists = [
            file.u64s(key).is_ok(),
            file.i32s(key).is_ok(),
            file.f32s(key).is_ok(),
            file.texts(key).is_ok(),
        ];
        assert!(
            one.iter().filter(|&&ok| ok).count() <= 1,
            "{key} has two types"
        );
        assert!(lists.iter().filter(|&&ok| ok).count() <= 2 || file.u64s(key)?.unwrap().is_empty());
    }
    Ok(())
}

/// A whole model in GGUF: its structure, then everything that is checked before weights are read.
pub fn gguf_model(data: &[u8]) -> Result<()> {
    gguf(data)?;
    let path = SCRATCH.with(|dir| dir.file("model.gguf", data));
    let checkpoint = checkpoint::open(&path)?;
    let TokenizerSource::Gguf(file) = checkpoint.tokenizer() else {
        panic!("a GGUF has its tokenizer in its metadata");
    };
    // Both are tried, whatever is wrong with the other.
    let tokenizer = checkpoint::gguf::vocabulary(file).and_then(|words| words.tokenizer(&path));
    let n_tokens = tokenizer.as_ref().map_or(0, |t| t.vocab_size());
    let config = checkpoint.config(n_tokens);
    try_texts(tokenizer?)?;
    let config = config?;
    check_config(&config)?;
    checkpoint.chat_template()?;
    checkpoint.trained_context();
    let files = checkpoint.open(None)?;
    let plan = Plan::new::<Cpu>(&*checkpoint, &files, &config, None, &[])?;
    assert!(plan.read_bytes() <= data.len() as u64);
    Ok(())
}

/// A `config.json` in a line, then the safetensors of its model: everything that is checked before
/// weights are read.
pub fn quant_config(data: &[u8]) -> Result<()> {
    let line = data.iter().position(|&b| b == b'\n').unwrap_or(data.len());
    let (config, weights) = data.split_at(line);
    SCRATCH.with(|dir| {
        let dir = Scratch(dir.0.join("quantised"));
        std::fs::create_dir_all(&dir.0).unwrap();
        dir.file("config.json", config);
        dir.file("model.safetensors", weights.get(1..).unwrap_or_default());
        let checkpoint = checkpoint::open(&dir.0)?;
        let config = checkpoint.config(0)?;
        let files = checkpoint.open(None)?;
        let plan = Plan::new::<Cpu>(&*checkpoint, &files, &config, None, &[])?;
        assert!(plan.read_bytes() <= data.len() as u64);
        Ok(())
    })
}

/// A `model.safetensors.index.json` beside one shard.
pub fn index(data: &[u8]) -> Result<()> {
    let shard = include_bytes!("../../corpus/safetensors/plain.safetensors");
    SCRATCH.with(|dir| {
        let dir = Scratch(dir.0.join("index"));
        std::fs::create_dir_all(&dir.0).unwrap();
        dir.file("a.safetensors", shard);
        dir.file("model.safetensors.index.json", data);
        let checkpoint = hugging_face::open(&dir.0, None)?;
        checkpoint
            .files
            .iter()
            .for_each(|file| check(file, shard.len()));
        Ok(())
    })
}

/// A `params.json` if it has a `dim`, else a `config.json` that is its own
/// `generation_config.json`.
pub fn config(data: &[u8]) -> Result<()> {
    let meta = data.windows(5).any(|w| w == b"\"dim\"");
    let config = SCRATCH.with(|dir| {
        let dir = Scratch(dir.0.join("config"));
        std::fs::create_dir_all(&dir.0).unwrap();
        if meta {
            dir.file("params.json", data);
        } else {
            dir.file("config.json", data);
            dir.file("generation_config.json", data);
        }
        checkpoint::open(&dir.0)?.config(512)
    })?;
    check_config(&config)
}

/// Whatever a configuration that was accepted says, nothing overflows, and the table of RoPE is of
/// numbers.
fn check_config(config: &Config) -> Result<()> {
    let s = &config.shape;
    let sizes = [
        s.dim,
        s.n_layers,
        s.n_heads,
        s.n_kv_heads,
        s.head_dim,
        s.ffn_dim,
        s.vocab_size,
    ];
    assert!(sizes.iter().all(|&n| n > 0));
    assert!(s.n_heads.is_multiple_of(s.n_kv_heads) && s.head_dim.is_multiple_of(2));
    assert!(s.norm_eps > 0.0 && s.norm_eps.is_finite());
    let rows = (s.vocab_size as u64)
        .max(s.ffn_dim as u64)
        .max(s.q_dim() as u64);
    let widest = (s.dim as u64).max(s.ffn_dim as u64).max(s.q_dim() as u64);
    let all = rows
        .checked_mul(widest)
        .and_then(|n| n.checked_mul(4 * 9 * s.n_layers as u64));
    assert!(all.is_some(), "sizes whose products overflow");
    assert!(
        config
            .eos_ids
            .iter()
            .all(|&id| (id as usize) < s.vocab_size)
    );
    if s.head_dim <= 256 {
        let table = rope::table(config, 3)?;
        assert!(
            // The greatest amplitudes that a configuration may have.
            table.cos.iter().chain(&table.sin).all(|x| x.abs() <= 1e7),
            "{config:?}"
        );
    }
    Ok(())
}

/// An `adapter_config.json` in a line, then the safetensors of the adapter: everything that is
/// checked before it is merged into `tests/data/adapters/base`.
pub fn adapter(data: &[u8]) -> Result<()> {
    let line = data.iter().position(|&b| b == b'\n').unwrap_or(data.len());
    let (config, weights) = data.split_at(line);
    SCRATCH.with(|dir| {
        let dir = Scratch(dir.0.join("adapter"));
        std::fs::create_dir_all(&dir.0).unwrap();
        dir.file("adapter_config.json", config);
        let weights = weights.get(1..).unwrap_or_default();
        dir.file("adapter_model.safetensors", weights);
        let adapters = [Adapter::open(&dir.0, 1.0, None)?];
        let base = checkpoint::open(Path::new("tests/data/adapters/base"))?;
        let (config, files) = (base.config(0)?, base.open(None)?);
        Plan::new::<Cpu>(&*base, &files, &config, None, &adapters)?;
        Ok(())
    })
}

/// A chat template and its variables as JSON, a NUL between them.
pub fn jinja(data: &[u8]) -> Result<()> {
    let text = String::from_utf8_lossy(data);
    let (template, json) = text.split_once('\0').unwrap_or((&text, "{}"));
    let moment = Moment {
        year: 2026,
        month: 1,
        day: 15,
        hour: 12,
        minute: 34,
        second: 56,
        weekday: 4,
        yearday: 14,
    };
    let wrong = |fault: Box<Fault>| Error::format("template", fault.message);
    let mut meter = Meter::new(json.len(), None);
    let Value::Dict(variables) = read_json(&mut meter, json).map_err(wrong)? else {
        return Err(Error::format("template", "variables that are no object"));
    };
    let pairs = variables
        .entries()
        .iter()
        .filter_map(|(name, value)| match name {
            Value::Text(name) => Some((name.as_str(), value.clone())),
            _ => None,
        });
    let template = Template::read(template).map_err(wrong)?;
    let done = template.render(meter, moment, pairs.collect());
    let done = done.map_err(wrong)?;
    assert!(done.used.0 <= limits::MAX_STEPS && done.text.len() <= limits::MAX_OUTPUT);
    let runs = done.runs.iter().map(|run| run.len);
    assert_eq!(runs.sum::<usize>(), done.text.len());
    Ok(())
}

/// Messages as JSON, through a template that shows all of them.
pub fn chat_json(data: &[u8]) -> Result<()> {
    let Ok(messages) = std::str::from_utf8(data) else {
        return Err(Error::format("messages", "no UTF-8"));
    };
    let tokenizer = tokenizer::open(Path::new("tests/data/small-tokenizer.model"))?;
    let default = "{% for m in messages %}{{ m | tojson }}{{ m.content }}{% endfor %}".into();
    let sources = Sources {
        default,
        tool_use: None,
    };
    let chat = Chat::new(Some(Ok(sources)), Vec::new(), &*tokenizer, Some(0));
    let request = |continue_final| ChatRequest {
        messages,
        continue_final,
        ..ChatRequest::default()
    };
    // Not every last message can be continued.
    let _continued = chat.render(&request(true), None);
    let done = chat.render(&request(false), None)?;
    let runs = done.runs.iter().map(|run| run.len);
    assert_eq!(runs.sum::<usize>(), done.text.len());
    Ok(())
}

/// Every byte that an accepted table of contents promises is there.
fn check(file: &TensorFile, len: usize) {
    for (name, info) in &file.tensors {
        let numbers: usize = info.shape.iter().product();
        assert_eq!(info.len, (numbers * info.encoding.size()) as u64, "{name}");
        assert!(info.offset + info.len <= len as u64, "{name}");
        let mut bytes = vec![0; info.len as usize];
        file.read(info, 0, &mut bytes).unwrap();
    }
}

/// A tokenizer.json: whatever is taken encodes texts and decodes all ids.
pub fn tokenizer_json(data: &[u8]) -> Result<()> {
    try_tokenizer("tokenizer.json", data)
}

/// Llama 3's ranks, likewise.
pub fn tiktoken(data: &[u8]) -> Result<()> {
    try_tokenizer("tokenizer.model", data)
}

/// A message between ranks in several processes.
pub fn rank_message(data: &[u8]) -> Result<()> {
    let limits = Limits {
        page_size: 16,
        n_pages: 10,
        max_positions: 64,
        max_rows: 8,
        max_wanted: 4,
        vocab_size: 100,
    };
    let is_page = |n: u32| (n as usize) < limits.n_pages;
    let adapter = |id| {
        Arc::new(Requested {
            id,
            matrices: Vec::new(),
            on_device: None,
            on_ranks: None,
        })
    };
    let known = |id: u32| (id == 3).then(|| adapter(id));
    let message = Message::read(data, 0)?;
    let mut reader = message.reader();
    match message.kind {
        Kind::Hello => Hello::read(&message, 1, 2).map(drop),
        Kind::Options => Offer::read(&message).map(drop),
        Kind::Plan => Found::read(&message).map(drop),
        Kind::Step => reader.step(&limits, &known, &mut Step::default()),
        Kind::Adapt => adapters::read_order(&mut reader).map(drop),
        Kind::Adapted => adapters::Answer::read(&mut reader).map(drop),
        Kind::Forget => reader.u32().map(drop),
        Kind::Copy => {
            let _from = reader.list("pages", limits.n_pages, &is_page)?;
            reader.list("pages", limits.n_pages, &is_page).map(drop)
        }
        Kind::Save | Kind::Load => reader.list("pages", limits.n_pages, &is_page).map(drop),
        Kind::Failed => reader.error().map(drop),
        Kind::Progress => reader.f32().map(drop),
        Kind::Ready => reader.size().map(drop),
        _ => Ok(()),
    }
}

/// The source of a grammar: its first byte says of which kind. What compiles is followed for some
/// tokens, which the source itself chooses.
pub fn grammar(data: &[u8]) -> Result<()> {
    static KIT: LazyLock<(Arc<dyn Tokenizer>, Grammars)> = LazyLock::new(|| {
        let bytes = include_bytes!("../../../demo/meta/tokenizer.model");
        let tokenizer = tokenizer::from_bytes(Path::new("tokenizer.model"), bytes).unwrap();
        let grammars = Grammars::new(tokenizer.vocab_size(), vec![tokenizer.eos_id()]);
        (tokenizer, grammars)
    });
    let refused = |what: &str| Error::Grammar(what.into());
    let (kind, text) = data.split_first().ok_or_else(|| refused("nothing"))?;
    let text = std::str::from_utf8(text).map_err(|_| refused("no text"))?;
    let source = match kind % 4 {
        0 => Source::JsonSchema(text),
        1 => Source::Regex(text),
        2 => Source::Lark(text),
        _ => Source::Choice(text),
    };
    let (tokenizer, grammars) = &*KIT;
    let grammar = Arc::new(grammars.compile(&**tokenizer, source)?);
    let (mut cursor, mut mask) = (Cursor::new(&grammar)?, vec![0; grammar.mask_words()]);
    for byte in text.bytes().take(50) {
        cursor.mask_to_generate(&mut mask)?;
        let is_allowed = |t: &Token| mask[*t as usize / 32] >> (t % 32) & 1 == 1;
        let ids = 0..tokenizer.vocab_size() as Token;
        let allowed: Vec<Token> = ids.filter(is_allowed).collect();
        let Some(&token) = allowed.get(byte as usize % allowed.len().max(1)) else {
            return Ok(());
        };
        if token == tokenizer.eos_id() {
            return Ok(());
        }
        assert!(cursor.take(token)?, "its mask allows token {token}");
        if cursor.is_complete()? {
            return Ok(());
        }
    }
    Ok(())
}

fn try_tokenizer(name: &str, data: &[u8]) -> Result<()> {
    try_texts(tokenizer::from_bytes(Path::new(name), data)?)
}

/// Encodes texts, and decodes all ids and some that are none.
fn try_texts(tokenizer: Arc<dyn Tokenizer>) -> Result<()> {
    let n = tokenizer.vocab_size() as i32;
    for text in [
        "",
        " a  b\n",
        "ab<s>e\u{301}\u{4f60}1234",
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    ] {
        let run = Run {
            len: text.len(),
            from_template: true,
        };
        let mut tokens = tokenizer.encode(text)?;
        let _whole =
            tokenizer.encode_rendered_onto(text, &[run], true, &mut tokens, Bound::default())?;
        assert!(tokens.iter().all(|id| (0..n).contains(id)));
        tokenizer.decode(&tokens)?;
    }
    let ids: Vec<i32> = (-1..n.min(600) + 2).collect();
    let mut text = String::new();
    let mut detokenizer = Detokenizer::with_special(tokenizer);
    ids.iter().for_each(|&id| detokenizer.push(id, &mut text));
    detokenizer.finish(&mut text);
    Ok(())
}
