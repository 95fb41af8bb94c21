//! Whether ranks in several processes notice that they have opened different checkpoints.

use llamabi::backend::cpu::Cpu;
use llamabi::checkpoint::{self, Plan, fingerprint};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/reference/mha-f32/hf")
}

/// A copy of the checkpoint.
fn copied(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("llamabi-{}-{name}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    for file in fs::read_dir(source()).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), dir.join(file.file_name())).unwrap();
    }
    dir
}

fn of(dir: &Path) -> u64 {
    let checkpoint = checkpoint::open(dir).unwrap();
    let config = checkpoint.config(0).unwrap();
    let files = checkpoint.open(None).unwrap();
    let plan = Plan::new::<Cpu>(&*checkpoint, &files, &config, None, &[]).unwrap();
    fingerprint(&config, &files, &plan).unwrap()
}

/// Changes the last byte but three of a tensor: the lowest bits of its last number.
fn change(dir: &Path, tensor: &str) {
    let files = checkpoint::open(dir).unwrap().open(None).unwrap();
    let file = &files.files[0];
    let info = &file.tensors[tensor];
    let at = info.offset + info.len - 4;
    let open = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(&file.path);
    let open = open.unwrap();
    let mut byte = [0];
    open.read_exact_at(&mut byte, at).unwrap();
    open.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

#[test]
fn the_same_files_elsewhere_are_the_same_checkpoint() {
    let dir = copied("same");
    assert_eq!(of(&dir), of(&source()));
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn one_bit_of_any_norm_is_noticed() {
    let norms = [
        "model.norm.weight",
        "model.layers.0.input_layernorm.weight",
        "model.layers.2.post_attention_layernorm.weight",
    ];
    for norm in norms {
        let dir = copied(norm);
        change(&dir, norm);
        assert_ne!(of(&dir), of(&source()), "{norm}");
        fs::remove_dir_all(dir).unwrap();
    }
}

#[test]
fn another_configuration_is_noticed() {
    let dir = copied("configuration");
    let config = fs::read_to_string(dir.join("config.json")).unwrap();
    let changed = config.replace("1e-05", "2e-05");
    assert_ne!(changed, config);
    fs::write(dir.join("config.json"), changed).unwrap();
    assert_ne!(of(&dir), of(&source()));
    fs::remove_dir_all(dir).unwrap();
}
