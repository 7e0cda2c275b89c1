//! What an agent may use of this machine: files and terminals, within the roots.

pub(crate) mod confinement;
pub(crate) mod files;
mod git_config;
pub(crate) mod links;
pub(crate) mod protected;
mod repository;
pub(crate) mod terminal;
