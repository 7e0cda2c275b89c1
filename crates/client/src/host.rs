//! Files and terminals of this machine that an agent may use, within the session's directories.

pub(crate) mod command_sandbox;
pub(crate) mod created;
pub(crate) mod files;
mod git_config;
mod indirect_git_files;
pub(crate) mod links;
pub(crate) mod protected;
pub(crate) mod terminal;
