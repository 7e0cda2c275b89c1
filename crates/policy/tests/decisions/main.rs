//! Decisions as a caller sees them.

mod common;
mod described;
mod hostile;
mod properties;
mod protected;
mod rule_files;
mod table;
