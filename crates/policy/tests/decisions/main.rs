//! Tests of decisions through the public API.

mod addresses;
mod beside_command;
mod common;
mod corpus;
mod cost;
mod described;
mod devices;
mod evasions;
mod everyday;
mod hostile;
mod links;
mod literals;
mod path_spellings;
mod properties;
mod protected;
mod protected_git;
mod reading;
mod recursive;
mod rule_files;
mod table;
