//! The agent's side of version negotiation.
//!
//! A request for a supported version must match its schema. A request for a newer version follows unknown
//! rules, so only its version number must be valid: invalid members are dropped.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::raw::{ReadError, read, read_object};
use crate::version::{Version, Versions};
use crate::{ProtocolVersion, v1, v2};

/// An accepted `initialize` request, in the version that the connection now speaks.
///
/// The `protocol_version` field still holds the version that the client requested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Agreed {
    V1(Box<v1::InitializeRequest>),
    V2(Box<v2::InitializeRequest>),
}

impl Agreed {
    /// Returns the version of the connection, for the answer.
    pub fn version(&self) -> Version {
        match self {
            Self::V1(_) => Version::V1,
            Self::V2(_) => Version::V2,
        }
    }

    /// Returns the version number that the client requested.
    pub fn requested(&self) -> u16 {
        match self {
            Self::V1(request) => request.protocol_version,
            Self::V2(request) => request.protocol_version,
        }
        .as_u16()
    }
}

/// Reason to refuse `initialize` or an early request. `Display` is the message of the error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("initialize: {0}")]
    Params(#[from] ReadError),
    /// All supported versions are newer than the requested one. The client may try again on this
    /// connection.
    #[error("protocol version {requested} is not supported, only {supported}")]
    Version { requested: u16, supported: Versions },
    #[error("initialize cannot be repeated after another request: open a new connection")]
    Late,
    #[error("the first request of a connection must be initialize")]
    Early,
}

impl Refusal {
    /// Returns the JSON-RPC error code.
    pub fn code(&self) -> i32 {
        match self {
            Self::Params(_) => v2::ErrorCode::InvalidParams,
            Self::Version { .. } => v2::ErrorCode::UnsupportedProtocolVersion,
            Self::Late | Self::Early => v2::ErrorCode::InvalidRequest,
        }
        .into()
    }

    /// Returns the `data` that the protocol requires for this code.
    pub fn data(&self) -> Option<Value> {
        let Self::Version { requested, supported } = self else { return None };
        let supported: Vec<_> = supported.all().iter().map(|version| version.number()).collect();
        Some(json!({ "requested": requested, "supported": supported }))
    }
}

/// Negotiates the version of a connection from the params of `initialize`.
///
/// # Errors
/// [`Refusal::Params`] or [`Refusal::Version`].
pub fn agree(params: Option<&RawValue>, supported: Versions) -> Result<Agreed, Refusal> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Asked {
        protocol_version: u16,
    }
    let params = params.unwrap_or(RawValue::NULL);
    let Asked { protocol_version: requested } = read_object(params)?;
    let version = supported.answer_to(requested).ok_or(Refusal::Version { requested, supported })?;
    let newer = requested > version.number();
    Ok(match version {
        Version::V1 if newer => Agreed::V1(Box::new(newer_as_v1(requested.into(), params)?)),
        Version::V1 => Agreed::V1(read_object(params)?),
        Version::V2 if newer => Agreed::V2(Box::new(newer_as_v2(requested.into(), params)?)),
        Version::V2 => Agreed::V2(read_object(params)?),
    })
}

/// The members of an object as unparsed text, so that an invalid one does not affect the others.
type Members<'a> = BTreeMap<String, &'a RawValue>;

fn member<'a, T: Deserialize<'a>>(members: &Members<'a>, name: &str) -> Option<T> {
    members.get(name).and_then(|text| read(text.get()).ok())
}

fn newer_as_v2(requested: ProtocolVersion, params: &RawValue) -> Result<v2::InitializeRequest, ReadError> {
    let params: Members<'_> = read_object(params)?;
    let info = member(&params, "info").unwrap_or_else(|| v2::Implementation::new(UNKNOWN, UNKNOWN));
    Ok(v2::InitializeRequest::new(requested, info)
        .capabilities(member(&params, "capabilities").unwrap_or_default())
        .meta(member::<v2::Meta>(&params, "_meta")))
}

/// The name and version of a newer client that sends none or malformed ones.
const UNKNOWN: &str = "unknown";

/// Reads the members that v1 and v2 share. `clientCapabilities` is not read: v2 does not define it, and a
/// member of unknown meaning must not grant an agent access to the client's files and terminals.
fn newer_as_v1(requested: ProtocolVersion, params: &RawValue) -> Result<v1::InitializeRequest, ReadError> {
    let params: Members<'_> = read_object(params)?;
    let shared: Members<'_> = member(&params, "capabilities").unwrap_or_default();
    let terminal = member::<v2::ClientAuthCapabilities>(&shared, "auth").and_then(|auth| auth.terminal);
    let capabilities = v1::ClientCapabilities::new()
        .auth(v1::AuthCapabilities::new().terminal(terminal.is_some()))
        .elicitation(member::<v1::ElicitationCapabilities>(&shared, "elicitation"))
        .meta(member::<v1::Meta>(&shared, "_meta"));
    Ok(v1::InitializeRequest::new(requested)
        .client_info(member::<v1::Implementation>(&params, "info"))
        .client_capabilities(capabilities)
        .meta(member::<v1::Meta>(&params, "_meta")))
}

/// The version state of an agent's connection.
///
/// `initialize` may be repeated until the first other request, and the last success counts. After that a v2
/// connection refuses `initialize`. A v1 connection, whose specification lacks that rule, answers it again
/// and stays v1.
#[derive(Debug, Clone)]
pub struct Handshake {
    supported: Versions,
    state: State,
}

#[derive(Debug, Clone, Copy)]
enum State {
    Fresh,
    Agreed(Version),
    Settled(Version),
}

impl Handshake {
    /// Creates the state of a new connection.
    pub fn new(supported: Versions) -> Self {
        Self { supported, state: State::Fresh }
    }

    /// Returns the version of the connection, or `None` before it is negotiated.
    pub fn version(&self) -> Option<Version> {
        match self.state {
            State::Fresh => None,
            State::Agreed(version) | State::Settled(version) => Some(version),
        }
    }

    /// Handles an `initialize` request. The returned agreement is already in force; the caller only has to
    /// answer.
    ///
    /// # Errors
    /// If [`agree`] refuses, or with [`Refusal::Late`]. A refusal leaves an earlier agreement in force.
    pub fn initialize(&mut self, params: Option<&RawValue>) -> Result<Agreed, Refusal> {
        match self.state {
            State::Fresh | State::Agreed(_) => {
                let agreed = agree(params, self.supported)?;
                self.state = State::Agreed(agreed.version());
                Ok(agreed)
            }
            State::Settled(Version::V1) => agree(params, Versions::OnlyV1),
            State::Settled(Version::V2) => Err(Refusal::Late),
        }
    }

    /// Records a request other than `initialize`. Returns the version in which to read the request.
    ///
    /// # Errors
    /// [`Refusal::Early`] before the first successful `initialize`.
    pub fn other_request(&mut self) -> Result<Version, Refusal> {
        let version = self.version().ok_or(Refusal::Early)?;
        self.state = State::Settled(version);
        Ok(version)
    }
}

#[cfg(test)]
#[path = "agree_tests.rs"]
mod tests;
