//! Parses JSON of a peer into values, within a limit.
//!
//! Values are counted before parsing, because the values of one message could take gigabytes of memory.

use narrows_base::json::{MAX_PEER_VALUES, has_more_values_than};
use serde::Deserialize;

/// Reason why JSON of a peer was not read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PeerJsonError {
    #[error("more than {MAX_PEER_VALUES} JSON values")]
    TooManyValues,
    #[error(transparent)]
    Malformed(#[from] serde_json::Error),
}

/// Parses `json`.
///
/// # Errors
/// Returns [`PeerJsonError::TooManyValues`] before anything is parsed.
pub(crate) fn read<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Result<T, PeerJsonError> {
    check_count(json)?;
    Ok(serde_json::from_slice(json)?)
}

/// Checks that `json` has no more values than a peer may send.
///
/// # Errors
/// [`PeerJsonError::TooManyValues`].
pub(crate) fn check_count(json: &[u8]) -> Result<(), PeerJsonError> {
    match has_too_many_values(json) {
        true => Err(PeerJsonError::TooManyValues),
        false => Ok(()),
    }
}

pub(crate) fn has_too_many_values(json: &[u8]) -> bool {
    has_more_values_than(json, MAX_PEER_VALUES)
}
