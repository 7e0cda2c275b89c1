//! How the client behaves towards endpoints of all sorts: what it sends, and what it makes of what comes back.
//!
//! One program and a module for each theme: linking it once is most of its cost. The endpoints are scripted, see
//! `narrows_testkit::model`.

mod chunks;
mod discovery;
mod errors;
mod framing;
mod hostile;
mod providers;
mod reasoning;
mod repairs;
mod requests;
mod retries;
mod stage;
mod timeouts;
mod tool_calls;
mod usage;
