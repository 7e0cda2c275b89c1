//! The router and supervisor as a pure state machine.

mod api;

pub use api::{Action, Arrival, Client, End, Identity, Note, Outlet, PoolId, Reason, Stuck, Time, Worker};
