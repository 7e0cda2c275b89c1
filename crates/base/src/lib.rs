//! Helpers that every crate needs: safe display of text, suggestions, units, secrets and locks.
//!
//! No I/O, no async, almost no dependencies: any crate may use it.

pub mod json;
pub mod secret;
pub mod suggest;
pub mod sync;
pub mod text;
pub mod units;

pub use secret::Secret;
