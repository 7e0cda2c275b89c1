//! Files and terminals of this machine that an agent may use, within the session's directories.

pub(crate) mod confinement;
pub(crate) mod created;
pub(crate) mod files;
mod git_config;
pub(crate) mod links;
pub(crate) mod protected;
mod repository;
pub(crate) mod terminal;
