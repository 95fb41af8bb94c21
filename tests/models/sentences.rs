//! Names that files bring along, in the sentences of the C API: nothing in them acts, nothing cuts
//! the sentence, and however long they are, what was expected and what was found stay in it.

use crate::common::*;
use llamabi::capi::*;
use std::fs;
use std::path::{Path, PathBuf};

/// What `llama_error.message` has room for, without the NUL.
const ROOM: usize = 1015;

/// The sentence of a build that fails with `status`.
#[track_caller]
fn sentence_of(dir: &Path, status: llama_status) -> String {
    let Err((got, sentence)) = Model::open(dir, None, &build_options()) else {
        panic!("{} was built", dir.display());
    };
    assert_eq!(got, status, "{sentence}");
    assert!(!sentence.contains(char::is_control), "{sentence:?}");
    assert!(sentence.len() <= ROOM, "{}", sentence.len());
    sentence
}

#[track_caller]
fn assert_says(sentence: &str, words: &[&str]) {
    for word in words {
        assert!(
            sentence.contains(word),
            "{sentence:?} does not say {word:?}"
        );
    }
}

/// A copy of a checkpoint whose weights are a safetensors file with one tensor of this name too
/// many.
fn with_tensor(dir: &Path, name: &str) -> PathBuf {
    let source = reference("mha-f32/hf");
    fs::create_dir_all(dir).unwrap();
    for entry in fs::read_dir(&source).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), dir.join(entry.file_name())).unwrap();
    }
    let file = dir.join("model.safetensors");
    let bytes = fs::read(&file).unwrap();
    let (len, rest) = bytes.split_at(8);
    let len = u64::from_le_bytes(len.try_into().unwrap()) as usize;
    let (header, data) = rest.split_at(len);
    let mut header: serde_json::Value = serde_json::from_slice(header).unwrap();
    header[name] = serde_json::json!({
        "dtype": "F32", "shape": [1], "data_offsets": [data.len(), data.len() + 4],
    });
    let header = header.to_string();
    let parts = [
        &(header.len() as u64).to_le_bytes()[..],
        header.as_bytes(),
        data,
        &[0; 4],
    ];
    fs::write(file, parts.concat()).unwrap();
    dir.into()
}

fn scratch(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("sentences");
    let dir = dir.join(name);
    let _ = fs::remove_dir_all(&dir);
    dir
}

#[test]
fn control_characters_are_escaped() {
    let hostile = "a\nb\r\u{1b}[31mc\u{7f}\u{202e}d";
    let escaped = "a\\nb\\r\\u{1b}[31mc\\u{7f}\\u{202e}d";
    let missing = sentence_of(&scratch("none").join(hostile), LLAMA_E_IO);
    assert_says(&missing, &[escaped, "No such file"]);
    // A NUL, which no path can have, must not end the sentence.
    let dir = with_tensor(&scratch("control").join(hostile), "x\0y\nz\u{1b}");
    let surplus = sentence_of(&dir, LLAMA_E_FORMAT);
    assert_says(
        &surplus,
        &[escaped, "`x\\0y\\nz\\u{1b}`", "expected", "found"],
    );
}

#[test]
fn long_names_lose_their_middle_and_both_values_stay() {
    let name = format!("head.{}.tail", "n".repeat(100_000));
    let mut deep = scratch("deep");
    for i in 0..14 {
        deep.push(format!("{i}{}", "d".repeat(240)));
    }
    let missing = sentence_of(&deep, LLAMA_E_IO);
    assert_says(&missing, &["deep/0dddd", "...", "dddd: No such file"]);
    let surplus = sentence_of(&with_tensor(&deep, &name), LLAMA_E_FORMAT);
    let words = [
        "deep/0ddd",
        "ddd",
        "`head.nnn",
        "nnn.tail`: expected ",
        ", found ",
    ];
    assert_says(&surplus, &words);
}

#[test]
fn names_inside_details_are_shown_the_same_way() {
    let dir = with_tensor(&scratch("index"), "x");
    fs::remove_file(dir.join("model.safetensors")).unwrap();
    let shard = format!("../\u{1b}{}\0.end", "s".repeat(5000));
    let index = serde_json::json!({"weight_map": {"x": shard}});
    fs::write(dir.join("model.safetensors.index.json"), index.to_string()).unwrap();
    let sentence = sentence_of(&dir, LLAMA_E_FORMAT);
    let words = [
        "names `../\\u{1b}sss",
        "sss\\0.end`",
        "expected a .safetensors file beside it",
    ];
    assert_says(&sentence, &words);
}
