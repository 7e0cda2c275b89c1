//! The agent in version 1, as a client sees it.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;

mod bus;
mod cancelling;
mod choosing;
mod commands;
mod content;
mod disk;
mod failures;
mod initialize;
mod opening;
mod reopening;
mod sessions;
mod turns;
mod whole;
