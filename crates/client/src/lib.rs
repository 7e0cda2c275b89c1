//! Drives any agent under a policy, and gives programs one event model.

mod event;
mod host;
mod map;
mod mcp;
#[cfg_attr(not(test), expect(dead_code, reason = "the session will use it"))]
mod structured;
#[cfg_attr(not(test), expect(dead_code, reason = "the session will use it"))]
mod usage;

pub use usage::Usage;
