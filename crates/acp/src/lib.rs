//! The types and rules of the Agent Client Protocol, versions 1 and 2.
//!
//! The types are those of the pinned official schema crate, under [`v1`] and [`v2`]. This crate adds the
//! rules that the schema lacks: the side that may send each [`method`], version negotiation ([`agree`] for
//! an agent, [`offer`] for a client), lossless storage of unknown data ([`raw`], [`union`](mod@union)), and
//! the members that a message may have ([`shape`]).
//!
//! The crate does no I/O, has no clock, and does not convert between versions.

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
pub use union::VariantReading;
pub use version::{Version, Versions};
