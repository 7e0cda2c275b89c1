//! Tools, MCP servers, compaction, and all of version 2.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;

mod endpoint;
mod official;
mod simulated_user;

mod bridge;
mod commands;
mod compaction;
mod files;
mod permission;
mod servers;
mod turns;
mod v2_prompts;
mod v2_sessions;
mod v2_tools;
mod whole;
