#![no_main]

#[allow(dead_code)]
#[path = "../../tests/support/file_targets.rs"]
mod file_targets;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| file_targets::tail(bytes));
