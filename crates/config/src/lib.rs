//! Reads TOML and JSON configuration files: values with positions, typed access, and findings about errors.
//!
//! Only a mechanism: each crate that has a configuration file keeps its own schema.

mod finding;
mod json;
mod paths;
mod reader;
mod tree;

pub use finding::{Finding, Findings, Severity, SourcePos};
pub use paths::Paths;
pub use reader::{Item, Table, quoted};
pub use tree::{Entry, Kind, Node};
