//! Many clients and many agents: pools of supervised workers, and a router between them that loses nothing.
//!
//! [`core`] decides everything and does nothing: lines and events go in, lines and [`core::Action`]s come out, and there is
//! no clock, no socket and no task inside. [`driver`] does everything and decides nothing, and a [`Bus`] is both together.

pub mod admin;
mod bus;
pub mod config;
pub mod core;
pub mod driver;
pub mod listen;
mod log_limit;
mod owner_store;
mod spawner;

pub use bus::{Bus, Ended, Handle, NoAnswer, StartError, StartOptions, Unmoved, worker_limits};
pub use driver::{HandOver, Handoff, IncomingClient, WebSocketHandle};
pub use listen::ListenError;
pub use owner_store::OwnersError;
