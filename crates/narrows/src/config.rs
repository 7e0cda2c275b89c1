//! What the built-in agent is to do: `narrows.toml`, variables and flags, of which the later win.
//!
//! Nothing is read from the workspace: a repository must not choose where prompts and keys go.

mod agents;
mod error;
mod file;
mod key;
mod layer;
mod place;
mod proxy;
mod resolve;
mod settings;
mod variables;

pub(crate) use agents::{AgentEntry, BUILT_IN, WrongAgents};
pub(crate) use error::{ConfigError, Origin};
pub(crate) use file::{Acp, File};
pub(crate) use layer::{Header, Key, Layer, Proxy};
pub(crate) use place::{data_dir, load, runtime_dir, usual_file};
pub(crate) use resolve::{Flags, resolve};
pub(crate) use variables::Variables;
