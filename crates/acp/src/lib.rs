//! The types and rules of the Agent Client Protocol, versions 1 and 2.
//!
//! The types are those of the pinned official schema crate, under [`v1`] and [`v2`]. This crate adds what the schema
//! does not contain: who may send which [`method`], how a version is negotiated ([`agree`] for an agent, [`offer`] for
//! a client), how to keep unknown data ([`raw`], [`union`](mod@union)), and which members a message may have
//! ([`shape`]).
//!
//! The crate does no I/O, has no clock, and does not convert one version into the other.

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
