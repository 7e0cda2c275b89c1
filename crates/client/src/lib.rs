//! Drives any agent under a policy, and gives programs one event model.

mod event;
mod host;
pub mod map;
#[cfg_attr(not(test), expect(dead_code, unused_imports, reason = "the session will use it"))]
mod mcp;
#[cfg_attr(not(test), expect(dead_code, reason = "the session will use it"))]
mod structured;
#[cfg_attr(not(test), expect(dead_code, reason = "the session will use it"))]
mod usage;

pub use event::{
    Completed, EventBody, Json, Message, Payload, PermissionRequested, PermissionResolved, Role, RuntimeEvent, Status,
    ToolOutput,
};
pub use mcp::{ConfigError, ServerConfig, Transport};
pub use usage::Usage;
