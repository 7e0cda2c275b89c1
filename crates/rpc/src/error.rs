//! How a request of ours can fail.

use std::time::Duration;

use narrows_link::CloseReason;
use narrows_wire::{Code, Effects, RpcError};

/// Why a request of ours has no result.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The peer answered with an error.
    #[error("{0}")]
    Refused(RpcError),
    /// The peer answered with something that is no valid response, or not of the expected type.
    #[error("the answer is malformed: {0}")]
    Malformed(String),
    /// No answer in time; the peer has been told to give up.
    #[error("no answer within {0:?}")]
    Deadline(Duration),
    /// The peer was lost first.
    #[error("{reason}")]
    Lost {
        /// Why.
        reason: CloseReason,
        /// Whether the request may have had effects: it had been sent.
        effects: Effects,
    },
    /// The parameters could not be written as JSON.
    #[error("the parameters cannot be written as JSON: {0}")]
    Unwritable(String),
}

impl CallError {
    /// What to tell somebody else on whose behalf the request was made.
    #[must_use]
    pub fn to_rpc(&self) -> RpcError {
        match self {
            Self::Refused(error) => error.clone(),
            Self::Malformed(_) => RpcError::new(Code::Internal, self.to_string()).effects(Effects::Possible),
            Self::Deadline(_) => RpcError::new(Code::Deadline, self.to_string()).effects(Effects::Possible),
            Self::Lost { effects, .. } => RpcError::new(Code::WorkerLost, self.to_string()).effects(*effects),
            Self::Unwritable(_) => RpcError::new(Code::Internal, self.to_string()),
        }
    }
}
