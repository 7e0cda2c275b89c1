//! Errors of outgoing requests.

use std::time::Duration;

use narrows_link::CloseReason;
use narrows_wire::{Code, Effects, RpcError};

/// Reason why a request has no result.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    #[error("{0}")]
    Refused(RpcError),
    #[error("malformed response: {0}")]
    Malformed(String),
    /// The request timed out after this duration and was cancelled.
    #[error("no response within {0:?}")]
    Deadline(Duration),
    /// The peer was lost before it answered the request.
    #[error("{reason}")]
    Lost {
        reason: CloseReason,
        /// `Possible` if the request had been sent.
        effects: Effects,
    },
    /// The parameters could not be serialized. Nothing was sent.
    #[error("the parameters cannot be serialized: {0}")]
    NotSerializable(String),
}

impl CallError {
    /// Returns the error for the peer on whose behalf the request was made.
    #[must_use]
    pub fn to_rpc(&self) -> RpcError {
        match self {
            Self::Refused(error) => error.clone(),
            Self::Malformed(_) => RpcError::new(Code::Internal, self.to_string()).effects(Effects::Possible),
            Self::Deadline(_) => RpcError::new(Code::Deadline, self.to_string()).effects(Effects::Possible),
            Self::Lost { effects, .. } => RpcError::new(Code::WorkerLost, self.to_string()).effects(*effects),
            Self::NotSerializable(_) => RpcError::new(Code::Internal, self.to_string()),
        }
    }
}
