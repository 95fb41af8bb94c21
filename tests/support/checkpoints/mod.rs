//! What the tests of checkpoints share: folders that vanish, writers of both forms, and a backend
//! that only collects.
#![allow(dead_code)]

pub mod collect;
pub mod gguf;
pub mod lora;
pub mod write;

use llamabi::backend::cpu::Cpu;
use llamabi::backend::{Backend, Weights};
use llamabi::checkpoint::weights::{LoadControl, load};
use llamabi::checkpoint::{self, Checkpoint, Files, Plan};
use llamabi::model::Config;
use llamabi::{Dtype, Result};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// `tests/data/reference/NAME`.
pub fn reference(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data/reference")
        .join(name)
}

/// A folder of its own, removed at the end of the test.
pub struct TempDir(PathBuf);

impl TempDir {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("llamabi-test-{}-{n}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        TempDir(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Write a file and say where.
    pub fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The error of a call that must fail, as a user reads it; without the folder's name.
#[track_caller]
pub fn sentence<T>(result: llamabi::Result<T>, dir: &Path) -> String {
    match result {
        Ok(_) => panic!("must fail"),
        Err(error) => error
            .to_string()
            .replace(&format!("{}/", dir.display()), ""),
    }
}

/// The configuration of the checkpoint in `dir`.
pub fn config(dir: &Path, tokenizer_vocab: usize) -> Result<Config> {
    checkpoint::open(dir)?.config(tokenizer_vocab)
}

/// A checkpoint whose files are open.
pub struct Opened {
    pub checkpoint: Box<dyn Checkpoint>,
    pub config: Config,
    pub files: Files,
}

impl Opened {
    pub fn new(dir: &Path, tokenizer_vocab: usize) -> Result<Opened> {
        let checkpoint = checkpoint::open(dir)?;
        Ok(Opened {
            config: checkpoint.config(tokenizer_vocab)?,
            files: checkpoint.open(None)?,
            checkpoint,
        })
    }

    pub fn plan(&self, asked: Option<Dtype>) -> Result<Plan<'_>> {
        self.plan_for::<Cpu>(asked)
    }

    fn plan_for<B: Backend>(&self, asked: Option<Dtype>) -> Result<Plan<'_>> {
        Plan::new::<B>(&*self.checkpoint, &self.files, &self.config, asked, &[])
    }

    pub fn load<B: Backend>(
        &self,
        backend: &B,
        asked: Option<Dtype>,
        control: &mut LoadControl<'_>,
    ) -> Result<Weights<B>> {
        load(backend, &self.plan_for::<B>(asked)?, control)
    }
}
