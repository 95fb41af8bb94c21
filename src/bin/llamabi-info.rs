//! `llamabi-info DIR|FILE [TOKENIZER]`: what a checkpoint is, what it needs, or why it would be
//! refused. Loads no weights. `llamabi-info --self-test`: whether the kernels are right here.

use llamabi::backend::cpu::detect::{TIER_VARIABLE, TIERS, Tier};
use llamabi::backend::cpu::selftest;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

const USAGE: &str = "usage: llamabi-info DIR|FILE [TOKENIZER]

What a checkpoint is, how it is kept and what memory it needs, or why it would be refused.

       llamabi-info --self-test

Whether this processor computes as it must: every CPU kernel beside a plain one in double precision, with
every instruction set there is. Takes a minute.

       llamabi-info --version
";

const VERSION: &str = concat!("llamabi-info ", env!("CARGO_PKG_VERSION"), "\n");

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    let (path, tokenizer) = match &args[..] {
        [help] if help == "--help" || help == "-h" => return print(USAGE, Ok(())),
        [version] if version == "--version" => return print(VERSION, Ok(())),
        [test] if test == "--self-test" => {
            let said = match Tier::choose().map(|_| self_test(&mut std::io::stdout())) {
                Err(error) => error.to_string(),
                Ok(Ok(0)) => return ExitCode::SUCCESS,
                Ok(Ok(n)) => format!("{n} checks failed: do not use llamabi here, and report this"),
                Ok(Err(error)) => format!("standard output: {error}"),
            };
            let _ = writeln!(std::io::stderr(), "{said}");
            return ExitCode::FAILURE;
        }
        [path] => (path, None),
        [path, tokenizer] => (path, Some(Path::new(tokenizer))),
        _ => {
            let _ = std::io::stderr().write_all(USAGE.as_bytes());
            return ExitCode::from(2);
        }
    };
    let mut text = String::new();
    let outcome = llamabi::llama::inspect::report(Path::new(path), tokenizer, &mut text);
    print(&text, outcome)
}

/// Runs the checks of every instruction set, or of the one that the variable names. Says of each
/// tier what came of it, and how many checks failed in all.
fn self_test(out: &mut impl Write) -> std::io::Result<usize> {
    let asked = std::env::var(TIER_VARIABLE).unwrap_or_default();
    let mut failures = 0;
    // What a check says when it fails is in the report.
    std::panic::set_hook(Box::new(|_| {}));
    for name in TIERS {
        if !asked.is_empty() && asked != name {
            continue;
        }
        let Ok(tier) = Tier::named(name) else {
            writeln!(
                out,
                "{name}: not on this processor, or the system does not let it be used"
            )?;
            continue;
        };
        let (mut passed, mut failed, begun) = (0, Vec::new(), Instant::now());
        selftest::run(selftest::CHECKS, tier, &mut |check, why| match why {
            None => passed += 1,
            Some(why) => failed.push(format!("{check} FAILED: {why}")),
        });
        for sentence in &failed {
            writeln!(out, "{name}: {sentence}")?;
        }
        let seconds = begun.elapsed().as_secs_f32();
        writeln!(out, "{name}: {passed} checks passed in {seconds:.1} s")?;
        failures += failed.len();
    }
    Ok(failures)
}

/// A reader that has gone, or a full disk, is no panic.
fn print(text: &str, outcome: llamabi::Result<()>) -> ExitCode {
    let mut out = std::io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    let said = match (outcome, written) {
        (Ok(()), Ok(())) => return ExitCode::SUCCESS,
        (Err(error), _) => format!("refused: {error}"),
        (Ok(()), Err(error)) => format!("standard output: {error}"),
    };
    let _ = writeln!(std::io::stderr(), "{said}");
    ExitCode::FAILURE
}
