//! What quantising does to the demo model: `cargo run --release --example fidelity`.
//!
//! For every format: size, and on stories that the model was not trained on (tests/data/quant, as
//! demo/held_out.py makes them) the perplexity and the mean Kullback-Leibler divergence of its
//! distributions from float32's, for prompt rows and for generated rows, which have arithmetic of their own.

use llamabi::backend::cpu::Cpu;
use llamabi::backend::{Backend, Limits, RowKind, Run, Span, Step};
use llamabi::checkpoint::weights::{LoadControl, load};
use llamabi::checkpoint::{self, Plan};
use llamabi::model::{Runner, rope};
use llamabi::{Dtype, Result, Token};
use std::path::Path;

const MAX_SEQ_LEN: usize = 512;

fn runner(dir: &Path, weights: Dtype, kv: Dtype) -> Result<(Runner<Cpu>, u64, usize)> {
    let checkpoint = checkpoint::open(dir)?;
    let config = checkpoint.config(0)?;
    let files = checkpoint.open(None)?;
    let plan = Plan::new::<Cpu>(&*checkpoint, &files, &config, Some(weights), &[])?;
    let rope = rope::table(&config, MAX_SEQ_LEN)?;
    let cpu = Cpu::new(&config.shape, rope, 0, MAX_SEQ_LEN)?;
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
        RowKind::Decode => 1,
    };
    let vocab_size = runner.limits().vocab_size;
    let mut out = Vec::new();
    for (i, tokens) in tokens.chunks(rows).enumerate() {
        let position = i * rows;
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
        for logits in runner.run(&step)?.logits().chunks(vocab_size) {
            let max = logits.iter().fold(f32::NEG_INFINITY, |m, &x| m.max(x));
            let shifted = logits.iter().map(|&x| f64::from(x - max));
            let log = shifted.clone().map(f64::exp).sum::<f64>().ln();
            out.extend(shifted.map(|x| x - log));
        }
    }
    Ok(out)
}

fn main() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let stories = std::fs::read(root.join("tests/data/quant/held-out.json")).expect("the stories");
    let stories: Vec<Vec<Token>> = serde_json::from_slice(&stories).expect("lists of ids");
    let dir = root.join("demo/meta");
    let kinds = [RowKind::Prefill, RowKind::Decode];
    let mut want: Vec<Vec<f64>> = Vec::new();
    println!(
        "{:6} {:6} {:>12} {:>12} {:>10} {:>12} {:>10}",
        "weight", "cache", "bytes", "KL prompt", "perplexity", "KL generated", "perplexity"
    );
    for (weights, kv) in [
        (Dtype::F32, Dtype::F32),
        (Dtype::Bf16, Dtype::Bf16),
        (Dtype::Bf16, Dtype::Int8),
        (Dtype::Int8, Dtype::Bf16),
        (Dtype::Int8, Dtype::Int8),
        (Dtype::Int4, Dtype::Bf16),
        (Dtype::Nf4, Dtype::Bf16),
    ] {
        let (mut runner, bytes, vocab_size) = runner(&dir, weights, kv)?;
        let mut line = format!("{:6} {:6} {bytes:12}", weights.name(), kv.name());
        for kind in kinds {
            let (mut divergence, mut loss, mut n) = (0.0, 0.0, 0);
            for (i, tokens) in stories.iter().enumerate() {
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
