//! For tests only: what stands at the other end.
//!
//! [`peer`] is a client by hand: it sends what it is told and shows every line that comes back, so that nothing an
//! agent does escapes a test. [`sdk`] is the official Rust SDK in both roles: it shares no code with ours, so that a
//! misunderstanding of ours does not agree with itself. [`model`] is a Chat Completions server that says what a test
//! tells it to. [`wait`] waits for what happens outside of this process, [`example`] finds programs to talk to.

pub mod example;
pub mod model;
pub mod peer;
pub mod sdk;
pub mod tap;
pub mod wait;

/// The scripted agent, for crates that may not use it themselves.
pub use narrows_fake as fake;
