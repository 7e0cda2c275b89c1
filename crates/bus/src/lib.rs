//! Pools of supervised agent processes, and a router between them and many clients.
//!
//! [`core`] makes the decisions and performs no I/O: lines and events enter, lines and [`core::CoreAction`]s
//! leave. It has no clock, no socket and no task. [`driver`] performs the I/O. A [`Bus`] is the core and the
//! driver together.

pub mod admin;
mod bus;
pub mod config;
pub mod core;
pub mod driver;
pub mod listen;
mod log_limit;
mod owner_store;
mod spawner;

pub use bus::{
    Bus, BusOutcome, Handle, ListenerDifference, NoAnswer, StartError, StartOptions, worker_limits,
};
pub use driver::{IncomingClient, ResumableConnection, ResumableConnectionHandler, WebSocketHandle};
pub use listen::ListenError;
pub use owner_store::OwnersError;
