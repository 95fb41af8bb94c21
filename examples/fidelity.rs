//! What quantising does to a model: `cargo run --release --example fidelity [CHECKPOINT TEXT...]`.
//! `--beside OTHER` measures another checkpoint of the model as well, as it is stored; `--only
//! NAMES` leaves out the formats that are not among these, `f32,int4`. float32 always comes first.
//!
//! For every format: size, perplexity, and the mean Kullback-Leibler divergence of its
//! distributions from float32's, for prompt rows and for generated rows, which may have arithmetic
//! of their own; in full precision and, where it says so, in the fast one. Without arguments it
//! takes the demo model, and stories that the model was not trained on (tests/data/quant, as
//! demo/held_out.py makes them); else the first tokens of each text file.

use llamabi::backend::cpu::{Cpu, Precision};
use llamabi::backend::{Backend, Choices, Limits, RowKind, Run, Span, Step};
use llamabi::checkpoint::gguf::vocabulary;
use llamabi::checkpoint::weights::{LoadControl, load};
use llamabi::checkpoint::{self, Plan, TokenizerSource};
use llamabi::model::{Runner, rope};
use llamabi::{Dtype, Result, Token, tokenizer};
use std::path::{Path, PathBuf};

const MAX_SEQ_LEN: usize = 512;
/// Generated rows of a step: as if they were verified together, which changes no bit of them.
const VERIFIED: usize = 32;

/// A model, its bytes, and its vocabulary; with the weights as they are stored if no format is
/// given.
fn runner(
    path: &Path,
    weights: Option<Dtype>,
    kv: Dtype,
    precision: Precision,
) -> Result<(Runner<Cpu>, u64, usize)> {
    let checkpoint = checkpoint::open(path)?;
    let config = checkpoint.config(0)?;
    let files = checkpoint.open(None)?;
    let plan = Plan::new::<Cpu>(&*checkpoint, &files, &config, weights, &[])?;
    let rope = rope::table(&config, MAX_SEQ_LEN)?;
    let cpu = Cpu::new(&config.shape, rope, 0, MAX_SEQ_LEN)?.precision(precision);
    let mut control = LoadControl {
        cancel: None,
        progress: &mut |_| true,
    };
    let loaded = load(&cpu, &plan, &mut control)?;
    let limits = Limits {
        page_size: Cpu::PAGE_SIZE,
        n_pages: MAX_SEQ_LEN / Cpu::PAGE_SIZE,
        max_positions: MAX_SEQ_LEN,
        max_rows: MAX_SEQ_LEN,
        max_wanted: MAX_SEQ_LEN,
        vocab_size: config.shape.vocab_size,
    };
    let bytes = plan.weight_bytes::<Cpu>();
    let vocab_size = config.shape.vocab_size;
    let runner = Runner::new(cpu, loaded, &config.shape, kv, limits)?;
    Ok((runner, bytes, vocab_size))
}

/// Log-probabilities of every token after each of `tokens`, all rows of one kind.
fn distributions(runner: &mut Runner<Cpu>, tokens: &[Token], kind: RowKind) -> Result<Vec<f64>> {
    let rows = match kind {
        RowKind::Prefill => tokens.len(),
        RowKind::Decode => VERIFIED,
    };
    let vocab_size = runner.limits().vocab_size;
    let mut out = Vec::new();
    for (i, tokens) in tokens.chunks(rows).enumerate() {
        let (position, rows) = (i * rows, tokens.len());
        let step = Step {
            tokens: tokens.to_vec(),
            slots: (position..position + rows).map(|p| p as u32).collect(),
            spans: vec![Span {
                rows: 0..rows,
                kind,
                position,
                pages: 0..MAX_SEQ_LEN / Cpu::PAGE_SIZE,
            }],
            pages: (0..(MAX_SEQ_LEN / Cpu::PAGE_SIZE) as u32).collect(),
            wanted: (0..rows as u32).collect(),
            ..Step::default()
        };
        for logits in runner
            .run(&step, Choices::NONE)?
            .logits()
            .chunks(vocab_size)
        {
            let max = logits.iter().fold(f32::NEG_INFINITY, |m, &x| m.max(x));
            let shifted = logits.iter().map(|&x| f64::from(x - max));
            let log = shifted.clone().map(f64::exp).sum::<f64>().ln();
            out.extend(shifted.map(|x| x - log));
        }
    }
    Ok(out)
}

/// What the arguments say.
struct Arguments {
    path: PathBuf,
    texts: Vec<Vec<Token>>,
    beside: Vec<PathBuf>,
    only: Option<String>,
}

/// The demo model and its stories, or what the arguments say.
fn of_arguments() -> Result<Arguments> {
    let mut all = std::env::args_os().skip(1);
    let (mut paths, mut beside, mut only) = (Vec::new(), Vec::new(), None);
    while let Some(argument) = all.next() {
        match argument.to_str() {
            Some("--beside") => beside.extend(all.next().map(PathBuf::from)),
            Some("--only") => only = all.next().and_then(|names| names.into_string().ok()),
            _ => paths.push(PathBuf::from(argument)),
        }
    }
    let mut arguments = paths.into_iter();
    let Some(path) = arguments.next() else {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let stories = std::fs::read(root.join("tests/data/quant/held-out.json"));
        let stories = serde_json::from_slice(&stories.expect("the stories"));
        return Ok(Arguments {
            path: root.join("demo/meta"),
            texts: stories.expect("lists of ids"),
            beside,
            only,
        });
    };
    let checkpoint = checkpoint::open(&path)?;
    let tokenizer = match checkpoint.tokenizer() {
        TokenizerSource::Directory(dir) => tokenizer::open_in(dir)?,
        TokenizerSource::Gguf(gguf) => vocabulary(gguf)?.tokenizer(checkpoint.config_path())?,
    };
    let mut texts = Vec::new();
    for text in arguments {
        let text = std::fs::read_to_string(&text).unwrap_or_else(|e| panic!("{text:?}: {e}"));
        let mut tokens = tokenizer.encode(&text)?;
        if tokenizer.adds_bos() {
            tokens.insert(0, tokenizer.bos_id());
        }
        tokens.truncate(MAX_SEQ_LEN);
        texts.push(tokens);
    }
    Ok(Arguments {
        path,
        texts,
        beside,
        only,
    })
}

fn main() -> Result<()> {
    let Arguments {
        path,
        texts,
        beside,
        only,
    } = of_arguments()?;
    let kinds = [RowKind::Prefill, RowKind::Decode];
    let mut want: Vec<Vec<f64>> = Vec::new();
    println!(
        "{:6} {:6} {:5} {:>12} {:>12} {:>10} {:>12} {:>10}",
        "weight", "cache", "", "bytes", "KL prompt", "perplexity", "KL generated", "perplexity"
    );
    let (full, fast) = (Precision::Full, Precision::Fast(1));
    let formats = [
        (Some(Dtype::F32), Dtype::F32, full),
        (Some(Dtype::Bf16), Dtype::Bf16, full),
        (Some(Dtype::Bf16), Dtype::Bf16, fast),
        (Some(Dtype::Bf16), Dtype::Int8, full),
        (None, Dtype::F32, full),
        (None, Dtype::F32, fast),
        (Some(Dtype::Int8), Dtype::Bf16, full),
        (Some(Dtype::Int8), Dtype::Bf16, fast),
        (Some(Dtype::Int8), Dtype::Int8, full),
        (Some(Dtype::Int4), Dtype::Bf16, full),
        (Some(Dtype::Int4), Dtype::Bf16, fast),
        (Some(Dtype::Nf4), Dtype::Bf16, full),
    ];
    let named = |weights: Option<Dtype>| weights.map_or("stored", Dtype::name);
    let is_asked = |weights: Option<Dtype>| match (&only, weights) {
        (Some(names), weights) => {
            weights == Some(Dtype::F32) || names.split(',').any(|name| name == named(weights))
        }
        (None, _) => true,
    };
    let own = formats
        .into_iter()
        .filter(|&(weights, ..)| is_asked(weights));
    let rows = own.map(|(weights, kv, precision)| (&path, weights, kv, precision));
    let others = beside.iter().map(|other| (other, None, Dtype::Bf16, full));
    for (path, weights, kv, precision) in rows.chain(others) {
        let (mut runner, bytes, vocab_size) = match runner(path, weights, kv, precision) {
            Ok(made) => made,
            Err(e) if !want.is_empty() => {
                println!("{e}");
                continue;
            }
            Err(e) => return Err(e),
        };
        let name = named(weights);
        let mut line = format!(
            "{name:6} {:6} {:5} {bytes:12}",
            kv.name(),
            if precision == fast { "fast" } else { "" }
        );
        for kind in kinds {
            let (mut divergence, mut loss, mut n) = (0.0, 0.0, 0);
            for (i, tokens) in texts.iter().enumerate() {
                let got = distributions(&mut runner, tokens, kind)?;
                if want.len() == i {
                    want.push(got.clone());
                }
                let rows = want[i].chunks(vocab_size).zip(got.chunks(vocab_size));
                for ((want, got), next) in rows.zip(&tokens[1..]) {
                    let terms = want.iter().zip(got).map(|(p, q)| p.exp() * (p - q));
                    divergence += terms.sum::<f64>();
                    loss -= got[*next as usize];
                    n += 1;
                }
            }
            let n = f64::from(n);
            line += &format!(" {:12.1e} {:10.4}", divergence / n, (loss / n).exp());
        }
        println!("{line}");
    }
    Ok(())
}
