//! Files of checkpoints: weights, tables of contents, configurations, adapters.

use super::{adapter_allowance, fuzz, fuzz_within, harness, tokenizer_allowance};

#[test]
fn safetensors() {
    let words: [&[u8]; 12] = [
        b"\"shape\"",
        b"\"data_offsets\"",
        b"\"F16\"",
        b"\"I64\"",
        b"\"__metadata__\":",
        b"[0,0]",
        b"-1",
        b"1e999",
        b"null",
        b"{",
        b"],",
        b"[[[[[[[[[[[[[[[[",
    ];
    fuzz("safetensors", &words, 6_000, 15, harness::safetensors);
}

#[test]
fn gguf() {
    let words: [&[u8]; 6] = [
        b"GGUF\x03\0\0\0",
        b"\x08\0\0\0\x01\0\0\0\0\0\0\0x",
        b"\x09\0\0\0\x08\0\0\0",
        b"\x09\0\0\0\x09\0\0\0",
        b"general.alignment",
        b"\x02\0\0\0\0\x01\0\0\0\0\0\0",
    ];
    fuzz("gguf", &words, 10_000, 20, harness::gguf);
}

#[test]
fn gguf_model() {
    let words: [&[u8]; 9] = [
        b"\x04\0\0\0\0\0\0\0",
        b"\x04\0\0\0\xff\xff\xff\xff",
        b"\x06\0\0\0\0\0\xc0\x7f",
        b"rope.scaling.type",
        b"\x08\0\0\0\x04\0\0\0\0\0\0\0yarn",
        b"attention.key_length",
        b"attention.sliding_window",
        b"tokenizer.ggml.scores",
        b"rope_factors_long.weight",
    ];
    let (target, bound) = (harness::gguf_model, tokenizer_allowance);
    fuzz_within(bound, "gguf_model", &words, 2_000, 30, target);
}

#[test]
fn quant_config() {
    let words: [&[u8]; 12] = [
        b"\"bits\": 3, ",
        b"\"group_size\": -1",
        b"\"group_size\": 24",
        b"\"sym\": false",
        b"\"quant_method\": \"hqq\", ",
        b"\"dynamic\": {\"a\": 1}, ",
        b"\"I32\"",
        b"\"U8\"",
        b"[0,1]",
        b"null",
        b"4294967295",
        b"\xff\xff\xff\xff",
    ];
    fuzz("quant_config", &words, 4_000, 20, harness::quant_config);
}

#[test]
fn pth() {
    let words: [&[u8]; 8] = [
        b"PK\x01\x02",
        b"PK\x03\x04",
        b"PK\x05\x06",
        b"PK\x06\x06",
        b"PK\x06\x07",
        b"archive/data.pkl",
        b"archive/data/0",
        b"big",
    ];
    fuzz("pth", &words, 6_000, 25, harness::pth);
}

#[test]
fn pickle() {
    let words: [&[u8]; 13] = [
        b"(",
        b"R",
        b"t",
        b"Q",
        b"b",
        b"u",
        b"q\x00",
        b"h\x00",
        b"\x85\x85\x85",
        b"ctorch\nLongStorage\n",
        b"cos\nsystem\n",
        b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f",
        b"J\xff\xff\xff\xff",
    ];
    fuzz("pickle", &words, 20_000, 25, harness::pickle);
}

#[test]
fn index() {
    let words: [&[u8]; 8] = [
        b"\"weight_map\"",
        b"\"z\":\"a.safetensors\",",
        b"..",
        b"/",
        b"null",
        b"{",
        b"}",
        b"[[[[[[[[[[[[[[[[",
    ];
    fuzz("index", &words, 3_000, 8, harness::index);
}

#[test]
fn config() {
    let words: [&[u8]; 15] = [
        b"null",
        b"true",
        b"-1",
        b"0.5",
        b"1e300",
        b"1e-300",
        b"[2, 3]",
        b"\"linear\"",
        b"\"llama3\"",
        b"\"yarn\"",
        b"\"rope_scaling\"",
        b"\"type\": ",
        b"\"head_dim\": 6, ",
        b"\"quantization_config\": {}, ",
        b"[[[[[[[[[[[[[[[[",
    ];
    fuzz("config", &words, 6_000, 20, harness::config);
}

#[test]
fn adapter() {
    let words: [&[u8]; 10] = [
        b"\"r\": 3, ",
        b"\"use_rslora\": true, ",
        b"\"rank_pattern\": {\"q_proj\": 1}, ",
        b"\"alpha_pattern\": {\"q\": 1e30}, ",
        b"\"modules_to_save\": [\"lm_head\"], ",
        b"lora_A",
        b"\"F32\"",
        b"[0,1]",
        b"null",
        b"-1",
    ];
    let (target, bound) = (harness::adapter, adapter_allowance);
    fuzz_within(bound, "adapter", &words, 4_000, 12, target);
}
