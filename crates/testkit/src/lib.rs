//! Peers for tests.
//!
//! [`peer`] is a scripted client that receives every line, so that a test sees everything an agent sends.
//! [`sdk`] is the official Rust SDK in both roles. It shares no code with this project, so a
//! misunderstanding of the protocol shows. [`model`] is a scripted Chat Completions server. [`wait`] waits
//! for events outside of the process, and [`example`] finds helper programs.

pub mod example;
pub mod model;
pub mod peer;
pub mod sdk;
pub mod tap;
pub mod wait;

/// The scripted agent, re-exported for crates that may not depend on its crate.
pub use narrows_fake as fake;
