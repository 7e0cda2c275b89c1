//! Connections that are cut repeatedly: each message arrives once and in order, or its loss is reported.
#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "../together/breaker.rs"]
mod breaker;
mod cuts;
mod cutter;
mod feeds;
mod odd;
mod pings;
mod refusals;
mod secure;
mod server;
mod twice;
