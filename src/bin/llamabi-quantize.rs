//! `llamabi-quantize SOURCE NEW FORMAT`: writes a quantised copy of a checkpoint, which loads
//! without being quantised again.

use llamabi::checkpoint;
use llamabi::llama::quantise::{Calibration, Job, SAMPLE, TOKENS, has_tokenizer};
use llamabi::quant::Quant;
use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;

const USAGE: &str = "usage: llamabi-quantize [OPTIONS] SOURCE NEW int8|int4|nf4

Writes SOURCE, a checkpoint of Meta's or Hugging Face's form or a GGUF file, to the new directory NEW with
quantised weights. A GGUF file becomes one, of Q8_0 or Q4_0; int8 and int4 only. What is cut off leaves
NEW.partial, and the same command goes on with that.

  --calibrate        int4: choose codes by what they do to the products on a sample text (GPTQ)
  --text FILE        the same, on this text in UTF-8: one like those that the model will see. May be repeated
  --tokens N         how much of that text to use (16384)
  --tokenizer FILE   use and copy this tokenizer instead of SOURCE's, where SOURCE is no GGUF file
  --quiet            no progress on standard error
  --version          which version this is
";

/// The greatest text that is read.
const MAX_TEXT: u64 = 256 << 20;

struct Arguments {
    paths: Vec<OsString>,
    calibrate: bool,
    texts: Vec<OsString>,
    tokens: Option<usize>,
    tokenizer: Option<OsString>,
    quiet: bool,
}

/// What was asked for, or what is wrong with it.
fn arguments() -> Result<Arguments, String> {
    let mut all = std::env::args_os().skip(1);
    let mut found = Arguments {
        paths: Vec::new(),
        calibrate: false,
        texts: Vec::new(),
        tokens: None,
        tokenizer: None,
        quiet: false,
    };
    while let Some(argument) = all.next() {
        let mut value = |name: &str| all.next().ok_or_else(|| format!("{name} has no value"));
        match argument.to_str() {
            Some("--calibrate") => found.calibrate = true,
            Some(option @ "--text") => found.texts.push(value(option)?),
            Some(option @ "--tokens") => {
                let given = value(option)?;
                let tokens = given.to_str().and_then(|n| n.parse().ok());
                let tokens = tokens.filter(|n| *n > 0);
                let wrong = || format!("--tokens is {given:?}, must be a number above 0");
                found.tokens = Some(tokens.ok_or_else(wrong)?);
            }
            Some(option @ "--tokenizer") => found.tokenizer = Some(value(option)?),
            Some("--quiet") => found.quiet = true,
            Some(option) if option.starts_with("--") => {
                return Err(format!("there is no option {option:?}"));
            }
            _ => found.paths.push(argument),
        }
    }
    match found.paths.len() {
        3 => Ok(found),
        n => Err(format!("SOURCE, NEW and a format are 3 arguments, not {n}")),
    }
}

impl Arguments {
    /// Whether a text is asked for.
    fn calibrates(&self) -> bool {
        self.calibrate || !self.texts.is_empty()
    }
}

fn main() -> ExitCode {
    let asks = |names: &[&str]| {
        std::env::args_os()
            .skip(1)
            .any(|a| names.iter().any(|n| a == *n))
    };
    let version = concat!("llamabi-quantize ", env!("CARGO_PKG_VERSION"), "\n");
    let told = match (asks(&["--help", "-h"]), asks(&["--version"])) {
        (true, _) => Some(USAGE),
        (_, true) => Some(version),
        _ => None,
    };
    if let Some(told) = told {
        let mut out = std::io::stdout();
        return match out.write_all(told.as_bytes()).and_then(|()| out.flush()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => failure(&format!("standard output: {error}")),
        };
    }
    let usage = || {
        let _ = std::io::stderr().write_all(USAGE.as_bytes());
        ExitCode::from(2)
    };
    let wrong = |sentence: &str| {
        say(&format!("{sentence}\n"));
        usage()
    };
    let arguments = match arguments() {
        Ok(arguments) => arguments,
        Err(sentence) => return wrong(&sentence),
    };
    let [from, to, format] = &arguments.paths[..] else {
        return usage();
    };
    let Some(quant) = format.to_str().and_then(Quant::named) else {
        return wrong(&format!(
            "the format is {format:?}, must be int8, int4 or nf4"
        ));
    };
    if arguments.tokens.is_some() && !arguments.calibrates() {
        return wrong("--tokens is how much of a text to use: it needs --calibrate or --text FILE");
    }
    let calibration = match calibration(&arguments) {
        Ok(calibration) => calibration,
        Err(sentence) => return failure(&sentence),
    };
    let job = Job {
        from: Path::new(from),
        tokenizer: arguments.tokenizer.as_deref().map(Path::new),
        to: Path::new(to),
        quant,
        calibration,
    };
    let mut progress = Progress {
        quiet: arguments.quiet,
        in_place: std::io::stderr().is_terminal(),
        said: String::new(),
    };
    let outcome = job.run(&mut |share, what| {
        progress.say(share, what);
        true
    });
    progress.end();
    if let Err(error) = outcome {
        return failure(&error.to_string());
    }
    let written = checkpoint::open(job.to);
    if written.is_ok_and(|written| !has_tokenizer(&*written)) {
        let [from, to] = [job.from, job.to].map(Path::display);
        say(&format!(
            "{to} has no tokenizer, as {from} has none: who loads it has to name one \
             (--tokenizer FILE copies one)"
        ));
    }
    ExitCode::SUCCESS
}

fn say(sentence: &str) {
    let _ = writeln!(std::io::stderr(), "llamabi-quantize: {sentence}");
}

fn failure(sentence: &str) -> ExitCode {
    say(sentence);
    ExitCode::FAILURE
}

/// The text that the arguments ask for.
fn calibration(arguments: &Arguments) -> Result<Option<Calibration>, String> {
    let mut text = String::new();
    for path in &arguments.texts {
        let path = Path::new(path);
        let named = |e: std::io::Error| format!("{}: {e}", path.display());
        let meta = std::fs::metadata(path).map_err(named)?;
        if !meta.is_file() || meta.len() > MAX_TEXT {
            let what = "is no regular file of at most";
            return Err(format!("{} {what} {MAX_TEXT} bytes", path.display()));
        }
        text += &std::fs::read_to_string(path).map_err(named)?;
        text.push('\n');
    }
    if arguments.texts.is_empty() {
        text = SAMPLE.into();
    }
    Ok(arguments.calibrates().then_some(Calibration {
        text,
        tokens: arguments.tokens.unwrap_or(TOKENS),
    }))
}

/// Progress on standard error: a line that changes, or, if nobody watches, a line for every unit.
struct Progress {
    quiet: bool,
    in_place: bool,
    said: String,
}

impl Progress {
    fn say(&mut self, share: f32, what: &str) {
        let text = match self.in_place {
            true => format!("\r{:3.0} % {what:<40}", 100.0 * share),
            false => {
                let unit = what.split(':').next().unwrap_or(what);
                format!("{:3.0} % {unit}\n", 100.0 * share)
            }
        };
        if !self.quiet && text != self.said {
            let _ = std::io::stderr().write_all(text.as_bytes());
            self.said = text;
        }
    }

    fn end(&self) {
        if self.in_place && !self.quiet {
            let _ = std::io::stderr().write_all(b"\n");
        }
    }
}
