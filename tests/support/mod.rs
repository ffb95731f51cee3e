//! What integration tests share. Each test binary uses a part of it.
#![allow(dead_code, unreachable_pub, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

use proptest::test_runner::Config;
use serde_json::Value;
use std::path::Path;

/// How often a randomised test runs: `HEFT_TEST_SCALE=ci` (the default) or `long`.
pub fn scaled(ci: u32, long: u32) -> u32 {
    match std::env::var("HEFT_TEST_SCALE").as_deref() {
        Ok("long") => long,
        Ok("ci") | Err(_) => ci,
        Ok(other) => panic!("HEFT_TEST_SCALE is {other:?}; it may be ci or long"),
    }
}

/// Property tests print the smallest failing case; it then becomes a vector, and no file is kept
/// beside them.
pub fn property_config(ci: u32, long: u32) -> Config {
    Config { cases: scaled(ci, long), failure_persistence: None, ..Config::default() }
}

/// A file of `tests/vectors`.
pub fn vectors(file: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors").join(file);
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Bytes of a hexadecimal text.
pub fn unhex(text: &str) -> Vec<u8> {
    assert!(text.len().is_multiple_of(2), "odd number of hexadecimal digits");
    let digit =
        |byte: u8| char::from(byte).to_digit(16).unwrap_or_else(|| panic!("{byte} is not a digit"));
    text.as_bytes()
        .chunks(2)
        .map(|pair| u8::try_from(digit(pair[0]) << 4 | digit(pair[1])).expect("two digits"))
        .collect()
}
