//! Reads TOML and JSON configuration files: values with positions, typed access, and findings about what is wrong.
//!
//! A mechanism only: each crate that has a file keeps its own schema.

mod finding;
mod json;
mod paths;
mod reader;
mod tree;

pub use finding::{Finding, Findings, Severity, SourcePos};
pub use paths::Paths;
pub use reader::{Item, Table, quoted};
pub use tree::{Entry, Kind, Node};
