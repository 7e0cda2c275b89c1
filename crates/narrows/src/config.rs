//! The configuration: `narrows.toml`, environment variables and flags. A later source overrides an earlier one.
//!
//! Nothing is read from the workspace: a repository must not decide where prompts and keys are sent.

mod agents;
mod endpoint_settings;
mod error;
mod file;
mod key;
mod locations;
mod proxy;
mod resolve;
mod settings;
mod variables;

pub(crate) use agents::{AgentEntry, BUILT_IN, InvalidAgents};
pub(crate) use endpoint_settings::{EndpointSettings, Header, Key, Proxy};
pub(crate) use error::{ConfigError, Origin};
pub(crate) use file::{Acp, NarrowsToml};
pub(crate) use locations::{data_dir, default_file, load, runtime_dir};
pub(crate) use resolve::{Flags, resolve};
pub(crate) use variables::Variables;
