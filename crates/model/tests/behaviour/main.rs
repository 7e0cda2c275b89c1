//! The client against endpoints of all kinds: its requests, and its handling of responses.
//!
//! One program with a module per topic: linking it once is most of its cost. The endpoints are scripted, see
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
mod support;
mod timeouts;
mod tool_calls;
mod usage;
