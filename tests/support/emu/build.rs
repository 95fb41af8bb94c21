//! Builds `kernels/emu`: the emulator, and the stand-in driver on top of it. kernels/test.sh
//! compiles each file only after it or a header has changed.
#![allow(dead_code)] // each test binary uses its part

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

/// The emulator, a library with the functions of `kernels/emu/emu.h`.
pub fn emulator() -> PathBuf {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| built(&["plain"])).clone()
}

/// The stand-in driver, whose file has the name of the real one.
pub fn driver() -> PathBuf {
    emulator().with_file_name("libcuda.so.1")
}

/// The emulator in a mode of `kernels/test.sh`, perhaps with a planted bug.
pub fn built(what: &[&str]) -> PathBuf {
    let _share = Share::new();
    let output = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/kernels/test.sh"))
        .arg("library")
        .args(what)
        .output()
        .expect("kernels/test.sh");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "kernels/test.sh library {what:?}: {text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    PathBuf::from(text.lines().last().expect("a path"))
}

/// While a Share lives, something emulated is in use. The seconds during which this is so in a
/// process are what `kernels/test.sh` adds to its own.
pub struct Share(());

/// How many there are, since when there has been at least one, and the time before that.
static SHARES: Mutex<(usize, Option<Instant>, Duration)> = Mutex::new((0, None, Duration::ZERO));

impl Share {
    pub fn new() -> Share {
        let mut shares = SHARES.lock().unwrap();
        shares.0 += 1;
        shares.1.get_or_insert_with(Instant::now);
        Share(())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        // A test that has failed does not hold a lock here.
        let mut shares = SHARES.lock().unwrap();
        shares.0 -= 1;
        if shares.0 == 0 {
            let from = shares.1.take();
            shares.2 += from.map_or(Duration::ZERO, |from| from.elapsed());
            let name = concat!("emulator-seconds-", env!("CARGO_CRATE_NAME"));
            let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
            let _ = std::fs::write(path, format!("{:.1}\n", shares.2.as_secs_f64()));
        }
    }
}
