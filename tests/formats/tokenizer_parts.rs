//! Parts of a tokenizer.json around a small vocabulary. The ids are those of tokenizers 0.23.3.

use crate::tokenizer_ranks::{changed, special};
use llamabi::Token;
use llamabi::tokenizer::{self, Bound, Encoded, Run, Tokenizer};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;

/// Of characters, without a token for what is unknown.
fn characters() -> Value {
    json!({
        "added_tokens": [],
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never",
            "split": false},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "Fuse"}]},
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "▁": 3}, "merges": ["a b"]},
    })
}

fn open(json: &Value) -> Arc<dyn Tokenizer> {
    tokenizer::from_bytes(Path::new("some.json"), json.to_string().as_bytes()).unwrap()
}

#[test]
fn what_vanishes_makes_neighbours_of_what_it_parts() {
    let ids = |json: &Value, text: &str| -> Vec<Token> { open(json).encode(text).unwrap() };
    let mut json = characters();
    assert_eq!(ids(&json, "a!b"), [2]);
    assert_eq!(ids(&json, "a!!b a"), [2, 3, 0]);
    json["model"]["vocab"]["<unk>"] = 4.into();
    json["model"]["unk_token"] = "<unk>".into();
    assert_eq!(ids(&json, "a!!b"), [0, 4, 4, 1]);
    json["model"]["fuse_unk"] = true.into();
    assert_eq!(ids(&json, "a!!b"), [0, 4, 1]);
}

#[test]
fn nothing_goes_in_front_of_nothing() {
    let mut json = characters();
    json["pre_tokenizer"]["prepend_scheme"] = "always".into();
    json["normalizer"] = json!({"type": "Replace", "pattern": {"String": "x"}, "content": ""});
    json["added_tokens"] =
        json!([{"id": 4, "content": "<e>", "special": true, "normalized": false}]);
    let tokenizer = open(&json);
    assert_eq!(special(&*tokenizer, "x<e>xx<e>ax"), [4, 4, 3, 0]);
    assert!(tokenizer.encode("x").unwrap().is_empty());
}

/// As transformers 5.24 writes it for a SentencePiece model that removes extra white space and has
/// user-defined pieces.
fn of_sentencepiece(scheme: &str) -> Value {
    let replace = |pattern: Value, content: &str| json!({"type": "Replace", "pattern": pattern, "content": content});
    let mut normalizers = vec![
        replace(json!({"Regex": r"\A +| +\z"}), ""),
        replace(json!({"Regex": " {2,}"}), " "),
        replace(json!({"String": " "}), "▁"),
    ];
    if scheme == "always" {
        normalizers.push(replace(json!({"Regex": r"\A▁"}), "▁▁"));
    }
    let mut json = characters();
    json["added_tokens"] =
        json!([{"id": 10, "content": "<e>", "special": true, "normalized": false}]);
    json["normalizer"] = json!({"type": "Sequence", "normalizers": normalizers});
    let metaspace = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme,
        "split": false});
    let split = json!({"type": "Split", "pattern": {"Regex": r"b▁|\&\ |aa"},
        "behavior": "Isolated", "invert": false});
    json["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": [metaspace, split]});
    json["model"] = json!({"type": "BPE", "ignore_merges": true,
        "vocab": {"a": 0, "b": 1, "ab": 2, "▁": 3, "▁a": 4, "▁▁": 5, "b▁": 6, "aa": 7, "▁ab": 8,
            "c": 9},
        "merges": ["a b", "▁ a", "▁ ▁", "▁ ab"]});
    json
}

#[test]
fn what_transformers_writes_for_sentencepiece_models() {
    type Case = (&'static str, &'static [Token], &'static [Token]);
    let cases: [Case; 10] = [
        ("a", &[4], &[4]),
        // Without its first character nothing goes in front of a text where only that gets it.
        ("  ab  ab ", &[4, 6, 2], &[0, 6, 2]),
        ("ab aab", &[4, 6, 7, 1], &[4, 6, 7, 1]),
        ("ab<e>ab", &[8, 10, 8], &[8, 10, 2]),
        (" ab<e> ab", &[8, 10, 8], &[2, 10, 2]),
        ("▁ab", &[5, 2], &[8]),
        (" ▁ab<e>▁", &[5, 2, 10, 5], &[8, 10, 3]),
        ("   ", &[], &[]),
        ("<e>  <e>", &[10, 10], &[10, 10]),
        ("aab b c", &[3, 7, 6, 6, 9], &[3, 7, 6, 6, 9]),
    ];
    let [always, first] = ["always", "first"].map(|scheme| open(&of_sentencepiece(scheme)));
    for (text, by_always, by_first) in cases {
        assert_eq!(special(&*always, text), by_always, "{text:?}");
        assert_eq!(special(&*first, text), by_first, "{text:?}");
    }
}

/// What replaces several characters comes from the last of them.
#[test]
fn a_text_whose_start_was_replaced() {
    let mut json = characters();
    json["pre_tokenizer"]["prepend_scheme"] = "first".into();
    for (from, to, ids) in [
        ("!", "b", &[3, 1, 0][..]),
        ("!", "", &[0]),
        ("!a", "b", &[1]),
        ("?", "b", &[3, 0]),
    ] {
        json["normalizer"] = json!({"type": "Replace", "pattern": {"String": from}, "content": to});
        assert_eq!(open(&json).encode("!a").unwrap(), ids, "{from:?}");
    }
}

#[test]
fn steps_that_would_come_behind_a_cut_are_refused() {
    for (step, split, words) in [
        (
            "Split",
            true,
            "`pre_tokenizer.pretokenizers[1]` comes behind the step that must be the last",
        ),
        (
            "ByteLevel",
            false,
            "`pre_tokenizer.pretokenizers[1]` comes behind Metaspace",
        ),
        (
            "Metaspace",
            false,
            "`pre_tokenizer.pretokenizers[1]` comes behind another step",
        ),
    ] {
        let mut json = of_sentencepiece("first");
        json["pre_tokenizer"]["pretokenizers"][0]["split"] = split.into();
        json["pre_tokenizer"]["pretokenizers"][1]["type"] = step.into();
        let result = tokenizer::from_bytes(Path::new("some.json"), json.to_string().as_bytes());
        let sentence = result.map(|_| ()).unwrap_err().to_string();
        assert!(sentence.contains(words), "{sentence}");
    }
}

#[test]
fn what_of_a_text_stays_between_cuts() {
    let split = |pattern: Value, behavior: &str, invert: bool| json!({"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert});
    let gpt2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
    let dot = || json!({"String": "."});
    let texts = ["ab² ab", " ab.ab. a", " "];
    type Case = (Value, [&'static [Token]; 3]);
    let cases: [Case; 9] = [
        // Without Oniguruma, whose `\w` has ² too.
        (
            json!({"type": "Whitespace"}),
            [&[2, 3, 2], &[2, 5, 2, 5, 0], &[]],
        ),
        (
            json!({"type": "WhitespaceSplit"}),
            [&[4, 2], &[2, 5, 2, 5, 0], &[]],
        ),
        (
            split(dot(), "Isolated", false),
            [&[4, 7, 2], &[7, 2, 5, 2, 5, 8], &[7]],
        ),
        (
            split(dot(), "Isolated", true),
            [&[4, 7, 2], &[7, 2, 5, 2, 5, 8], &[7]],
        ),
        (
            split(dot(), "Removed", false),
            [&[4, 7, 2], &[7, 2, 2, 8], &[7]],
        ),
        (split(dot(), "Removed", true), [&[], &[5, 5], &[]]),
        (
            split(json!({"Regex": r"\w+"}), "Removed", true),
            [&[4, 2], &[2, 2, 0], &[]],
        ),
        (
            split(json!({"Regex": r"\w+"}), "Removed", false),
            [&[7], &[7, 5, 5, 7], &[7]],
        ),
        (
            split(json!({"Regex": gpt2}), "Removed", false),
            [&[], &[], &[]],
        ),
    ];
    let mut json = characters();
    json["model"]["vocab"] = json!({"a": 0, "b": 1, "ab": 2, "²": 3, "ab²": 4, ".": 5, ".a": 6,
        " ": 7, " a": 8, "b ": 9});
    json["model"]["merges"] = json!([["a", "b"], ["ab", "²"], [".", "a"], [" ", "a"], ["b", " "]]);
    json["decoder"] = json!({"type": "Fuse"});
    for (step, expected) in cases {
        json["pre_tokenizer"] = step.clone();
        let tokenizer = open(&json);
        for (text, ids) in texts.iter().zip(expected) {
            assert_eq!(tokenizer.encode(text).unwrap(), ids, "{step} {text:?}");
        }
    }
}

#[test]
fn a_text_that_goes_is_not_too_long() {
    let tokenizer = changed(|json| {
        json["pre_tokenizer"]["pretokenizers"][0] = json!({"type": "WhitespaceSplit"});
    });
    let bound = Bound {
        max_tokens: Some(2),
        cancel: None,
    };
    let text = format!("!{}!", " ".repeat(100_000));
    let ended = tokenizer
        .unwrap()
        .encode_onto(&text, &mut Vec::new(), bound);
    assert_eq!(ended.unwrap(), Encoded::Whole);
}

#[test]
fn a_space_in_front_of_bytes() {
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true,
        "use_regex": true});
    let tokenizer = open(&json!({
        "added_tokens": [{"id": 4, "content": "<e>", "special": true, "normalized": false}],
        "pre_tokenizer": byte_level,
        "decoder": {"type": "Sequence", "decoders": [byte_level, {"type": "Fuse"}]},
        "model": {"type": "BPE", "vocab": {"Ġ": 0, "a": 1, "Ġa": 2, "ĉ": 3}, "merges": ["Ġ a"]},
    }));
    for (text, ids, decoded) in [
        ("a", &[2][..], " a"),
        (" a", &[2], " a"),
        ("a<e>a  a", &[2, 4, 2, 0, 2], " a a  a"),
        ("", &[], ""),
        ("\ta", &[0, 3, 1], " \ta"),
    ] {
        assert_eq!(special(&*tokenizer, text), ids, "{text:?}");
        assert_eq!(tokenizer.decode(ids).unwrap(), decoded, "{text:?}");
    }
}

#[test]
fn compatibility_characters() {
    let mut json = characters();
    json["normalizer"] = json!({"type": "NFKC"});
    json["model"]["vocab"] = json!({"a": 0, "b": 1, "ab": 2, "f": 3, "i": 4, "2": 5, " ": 6});
    json["pre_tokenizer"] = Value::Null;
    json["decoder"] = json!({"type": "Fuse"});
    let tokenizer = open(&json);
    for (text, ids) in [
        ("ﬁ", &[3, 4][..]),
        ("ab²", &[2, 5]),
        ("ａ\u{3000}ｂ", &[0, 6, 1]),
    ] {
        assert_eq!(tokenizer.encode(text).unwrap(), ids, "{text:?}");
    }
}

fn streamed_with_special(tokenizer: &Arc<dyn Tokenizer>, ids: &[Token]) -> String {
    crate::tokenizer_ranks::streamed(tokenizer, ids, true)
}

/// Of the texts that they have behind the normaliser, if they are looked for there.
#[test]
fn added_tokens_are_decoded_as_others_are() {
    let mut json = characters();
    json["normalizer"] = json!({"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]});
    json["added_tokens"] = json!([
        {"id": 4, "content": "x y", "normalized": true},
        {"id": 5, "content": "<t>", "normalized": true, "special": true},
        {"id": 6, "content": "<u>", "normalized": false},
        {"id": 7, "content": "▁t", "normalized": false},
        {"id": 8, "content": "<0x41>", "normalized": false},
    ]);
    let decoders = json["decoder"]["decoders"].as_array_mut().unwrap();
    decoders.insert(1, json!({"type": "ByteFallback"}));
    let kept = open(&json);
    json["decoder"]["decoders"]
        .as_array_mut()
        .unwrap()
        .push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    let stripped = open(&json);
    type Case = (&'static [Token], &'static str);
    let cases: [Case; 8] = [
        (&[4], " x y"),
        (&[0, 4, 1], "a x yb"),
        (&[5], " <t>"),
        (&[0, 5], "a <t>"),
        (&[6, 4], "<u> x y"),
        (&[7, 7], " t t"),
        (&[0, 7, 6], "a t<u>"),
        (&[8, 0], "Aa"),
    ];
    for (ids, text) in cases {
        assert_eq!(streamed_with_special(&kept, ids), text, "{ids:?}");
        let without = text.strip_prefix(' ').unwrap_or(text);
        assert_eq!(streamed_with_special(&stripped, ids), without, "{ids:?}");
        if !ids.contains(&5) {
            assert_eq!(kept.decode(ids).unwrap(), text, "{ids:?}");
        }
    }
    assert_eq!(special(&*kept, "a x y <t>"), [3, 0, 4, 5]);
    // It is known by its own text.
    assert_eq!(kept.special_text(5), Some("<t>"));
    assert_eq!(kept.added_id("<t>"), Some(5));

    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
        "use_regex": true});
    let added = |(id, content): (u32, &str)| json!({"id": id, "content": content});
    let added = [(2, "Ġq"), (3, "Ã©"), (4, "你Ġ"), (5, "é")].map(added);
    let tokenizer = open(&json!({
        "added_tokens": added,
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": {"Ġ": 0, "a": 1}, "merges": []},
    }));
    for (ids, text) in [
        (&[1, 2][..], "a q"),
        (&[3, 1], "éa"),
        (&[4], "你Ġ"),
        // U+FFFD there.
        (&[1, 5], "aé"),
    ] {
        assert_eq!(tokenizer.decode(ids).unwrap(), text, "{ids:?}");
    }
}

#[test]
fn white_space_that_a_token_takes_is_looked_at_again() {
    let mut json = characters();
    json["pre_tokenizer"] = Value::Null;
    json["decoder"] = json!({"type": "Fuse"});
    json["model"]["vocab"] = json!({"a": 0, "b": 1, "ab": 2, " ": 3});
    json["added_tokens"] = json!([
        {"id": 4, "content": "<r>", "rstrip": true},
        {"id": 5, "content": "  "},
        {"id": 6, "content": "\n"},
        {"id": 7, "content": "<l>", "lstrip": true},
    ]);
    let tokenizer = open(&json);
    for (text, ids) in [
        ("<r>  a", &[4, 5, 0][..]),
        ("<r> \n a", &[4, 6, 3, 0]),
        ("<r>   a", &[4, 5, 3, 0]),
        ("a   <l>", &[0, 5, 7]),
        ("<r>  <l>", &[4, 5, 7]),
        ("<r>\n\n  ab", &[4, 6, 6, 5, 2]),
        ("<r> <r>", &[4, 4]),
        ("<r>\n <l>a", &[4, 6, 7, 0]),
    ] {
        assert_eq!(special(&*tokenizer, text), ids, "{text:?}");
    }
    // The stretch behind it is of two runs, of which one is a message's.
    let text = "<r> \n ab";
    let runs = [("<r> \n", true), (" a", false), ("b", true)].map(|(part, from_template)| Run {
        len: part.len(),
        from_template,
    });
    let mut tokens = Vec::new();
    let bound = Bound::default();
    let whole = tokenizer.encode_rendered_onto(text, &runs, false, &mut tokens, bound);
    assert_eq!((whole.unwrap(), tokens), (Encoded::Whole, vec![4, 6, 3, 2]));

    // Nor does a long stretch of it take longer than its length.
    json["added_tokens"] = json!([
        {"id": 4, "content": "\n", "rstrip": true},
        {"id": 5, "content": "\t", "lstrip": true},
    ]);
    let tokenizer = open(&json);
    let n = 200_000;
    let ids = special(&*tokenizer, &"\n".repeat(n));
    assert!(ids.len() == n && ids.iter().all(|&id| id == 4));
    let ids = special(&*tokenizer, &"\t".repeat(n));
    assert!(ids.len() == n && ids.iter().all(|&id| id == 5));
}

#[test]
fn a_metaspace_decoder_drops_all_of_the_first_token() {
    let with = |scheme: &str| {
        let mut json = characters();
        let metaspace = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme,
            "split": false});
        json["pre_tokenizer"] = metaspace.clone();
        json["decoder"] = metaspace;
        json["model"] =
            json!({"type": "BPE", "vocab": {"a": 0, "▁": 1, "▁▁a": 2, "▁a▁": 3}, "merges": []});
        json["added_tokens"] = json!([
            {"id": 4, "content": "<s>", "special": true},
            {"id": 5, "content": "x y"},
            {"id": 6, "content": "▁t▁"},
        ]);
        json
    };
    let [always, never] = ["always", "never"].map(|scheme| open(&with(scheme)));
    for (ids, text, kept) in [
        (&[2][..], "a", "  a"),
        (&[2, 2], "a  a", "  a  a"),
        (&[3, 3], "a a ", " a  a "),
        (&[1, 1, 0], " a", "  a"),
        (&[0, 2], "a  a", "a  a"),
        (&[4, 3], "a", " a "),
        (&[5, 3], "x y a ", "x y a "),
        (&[6, 6], "t t ", " t  t "),
    ] {
        assert_eq!(always.decode(ids).unwrap(), text, "{ids:?}");
        assert_eq!(never.decode(ids).unwrap(), kept, "{ids:?}");
        if !ids.contains(&4) {
            assert_eq!(streamed_with_special(&always, ids), text, "{ids:?}");
        }
    }
    assert_eq!(streamed_with_special(&always, &[4, 3]), "<s> a ");
    let mut json = with("first");
    json["decoder"] = json!({"type": "Sequence", "decoders": [json["decoder"].clone(),
        {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]});
    let both = open(&json);
    for (ids, text) in [
        (&[2][..], "a"),
        (&[1, 2], " a"),
        (&[1, 1, 0], "a"),
        (&[3, 3], "a a "),
    ] {
        assert_eq!(both.decode(ids).unwrap(), text, "{ids:?}");
    }
}

/// What is put in front of a text is its start as well.
#[test]
fn a_text_whose_start_was_put_in_front_of_it() {
    let trim = || json!({"type": "Replace", "pattern": {"Regex": r"\A +| +\z"}, "content": ""});
    let squeeze = || json!({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "});
    let replace = |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
    type Case = (&'static str, Value, [&'static [Token]; 4]);
    let cases: [Case; 7] = [
        (" ", trim(), [&[3, 0], &[0], &[2], &[3, 1, 0]]),
        ("  ", trim(), [&[3, 0], &[0], &[2], &[3, 1, 0]]),
        (
            " b",
            trim(),
            [&[3, 1, 0], &[3, 1, 3, 0], &[3, 1, 3, 3, 2], &[3, 1, 1, 0]],
        ),
        (" ", squeeze(), [&[3, 0], &[3, 0], &[3, 2], &[3, 1, 0]]),
        (
            "b",
            replace("ba", "b"),
            [&[3, 1], &[3, 1, 3, 0], &[3, 1, 3, 3, 2], &[3, 1, 1]],
        ),
        ("a", replace("a", ""), [&[], &[3], &[3, 3, 1], &[3, 1]]),
        (
            "ab",
            replace("a", ""),
            [&[3, 1], &[3, 1, 3], &[3, 1, 3, 3, 1], &[3, 1, 1]],
        ),
    ];
    let mut json = characters();
    json["pre_tokenizer"]["prepend_scheme"] = "first".into();
    for (prefix, step, want) in cases {
        json["normalizer"] = json!({"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": prefix}, step.clone()]});
        let tokenizer = open(&json);
        for (text, ids) in ["a", " a", "  ab", "ba"].iter().zip(want) {
            assert_eq!(
                tokenizer.encode(text).unwrap(),
                ids,
                "{step} {prefix:?} {text:?}"
            );
        }
    }
}
