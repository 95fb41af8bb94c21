#![no_main]
#[path = "../../tests/fuzz_harness/mod.rs"]
mod fuzz_harness;
libfuzzer_sys::fuzz_target!(|data: &[u8]| drop(fuzz_harness::config(data)));
