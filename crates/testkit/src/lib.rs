//! Counterparts for tests.
//!
//! [`peer`] is a scripted client that sees every line, so that nothing an agent does escapes a test. [`sdk`] is the
//! official Rust SDK in both roles: it shares no code with this project, so a misunderstanding here shows. [`model`] is
//! a scripted Chat Completions server. [`wait`] waits for events outside of the process, and [`example`] finds helper
//! programs.

pub mod example;
pub mod model;
pub mod peer;
pub mod sdk;
pub mod tap;
pub mod wait;

/// The scripted agent, for crates that may not depend on it.
pub use narrows_fake as fake;
