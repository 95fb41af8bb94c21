#![no_main]
#[path = "../../tests/formats/fuzz/harness.rs"]
mod harness;
libfuzzer_sys::fuzz_target!(|data: &[u8]| drop(harness::grammar(data)));
