//! The points of AIP-44. Each has a test of what it allows and what it does not. Points that need a separate
//! process are tested in `narrows/tests/cli/serve_points.rs`.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod audit;
mod authority;
mod fixture;
mod manifest;
mod session;
mod untrusted_output;

/// Files with the tests of points.
const SOURCES: [&str; 5] = [
    include_str!("manifest.rs"),
    include_str!("session.rs"),
    include_str!("audit.rs"),
    include_str!("authority.rs"),
    include_str!("../../../narrows/tests/cli/serve_points.rs"),
];

#[test]
fn every_point_has_a_test() {
    let missing: Vec<u8> = (1..=30)
        .filter(|point| {
            let name = format!("#[test]\nfn point_{point:02}_");
            !SOURCES.iter().any(|source| source.contains(&name))
        })
        .collect();
    assert!(missing.is_empty(), "no test is named after points {missing:?}");
}
