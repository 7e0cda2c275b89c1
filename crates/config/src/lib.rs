//! Reads TOML and JSON configuration files: values with positions, typed access, and findings about errors.
//!
//! The crate knows no settings: each crate that has a configuration file keeps its own schema.

mod finding;
mod json;
mod path_base;
mod reader;
mod tree;

pub use finding::{Finding, Findings, Severity, SourcePos};
pub use path_base::PathBase;
pub use reader::{SettingValue, Table, quoted};
pub use tree::{Node, TableEntry, ValueKind};
