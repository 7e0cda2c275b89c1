//! The Agent Client Protocol, versions 1 and 2, as every other crate here sees it.
//!
//! The types are those of the pinned official schema crate, under [`v1`] and [`v2`]. Around them stand the
//! few things the schema does not say: who may send which [`method`], which version a connection speaks
//! ([`agree`] for an agent, [`offer`] for a client), and how to keep what the schema does not know
//! ([`raw`], [`union`](mod@union)), and which members a receiver may find in a message ([`shape`]).
//!
//! Nothing here reads or writes a byte of transport, knows a clock, or converts one version into the other.

pub mod agree;
pub mod capability;
mod client_meta;
pub mod method;
pub mod offer;
pub mod permission;
pub mod raw;
pub mod shape;
pub mod stop;
pub mod union;
pub mod update;
pub mod version;

pub use agent_client_protocol_schema::{IntoOption, MaybeUndefined, ProtocolVersion, v1, v2};
pub use client_meta::{StrippedMeta, strip_client_meta};
pub use raw::{Raw, ReadError};
pub use union::Reading;
pub use version::{Version, Versions};
