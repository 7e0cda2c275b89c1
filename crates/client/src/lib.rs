//! Drives any agent under a policy, and gives programs one event model.

mod event;
mod host;
mod map;
mod mcp;
mod structured;
mod usage;
