//! The `redact` target for cargo-fuzz.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| narrows_fuzz_targets::redact(data));
