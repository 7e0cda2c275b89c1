//! Stop reasons of a turn, in one form for both versions.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::raw::{ReadError, read_object};
use crate::{v1, v2};

/// Reason why a turn ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StopReason {
    EndTurn,
    MaxTokens,
    MaxTurnRequests,
    /// The agent refused. In v1 the prompt and everything after it leave the history.
    Refusal,
    Cancelled,
    /// The turn failed. v1 has no such reason.
    Error(Option<Box<v2::Error>>),
    /// A custom or future reason, with its name in the protocol.
    Other(String),
}

impl StopReason {
    /// Returns the reason with this name in the protocol.
    pub fn from_name(name: &str) -> Self {
        match name {
            "end_turn" => Self::EndTurn,
            "max_tokens" => Self::MaxTokens,
            "max_turn_requests" => Self::MaxTurnRequests,
            "refusal" => Self::Refusal,
            "cancelled" => Self::Cancelled,
            "error" => Self::Error(None),
            _ => Self::Other(name.into()),
        }
    }

    /// Returns the name of the reason in the protocol.
    pub fn name(&self) -> &str {
        match self {
            Self::EndTurn => "end_turn",
            Self::MaxTokens => "max_tokens",
            Self::MaxTurnRequests => "max_turn_requests",
            Self::Refusal => "refusal",
            Self::Cancelled => "cancelled",
            Self::Error(_) => "error",
            Self::Other(name) => name,
        }
    }

    /// Reads the reason from the result of a v1 `session/prompt`.
    ///
    /// The schema's enum is closed: with it, a turn that ended for a newer reason would look like a
    /// malformed answer.
    ///
    /// # Errors
    /// [`ReadError::Shape`] if there is no reason.
    pub fn from_v1_result(result: &RawValue) -> Result<Self, ReadError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Result {
            stop_reason: String,
        }
        read_object(result).map(|Result { stop_reason }| Self::from_name(&stop_reason))
    }

    /// Returns the v1 form of the reason, or `None` if v1 has no such reason.
    pub fn to_v1(&self) -> Option<v1::StopReason> {
        match self {
            Self::EndTurn => Some(v1::StopReason::EndTurn),
            Self::MaxTokens => Some(v1::StopReason::MaxTokens),
            Self::MaxTurnRequests => Some(v1::StopReason::MaxTurnRequests),
            Self::Refusal => Some(v1::StopReason::Refusal),
            Self::Cancelled => Some(v1::StopReason::Cancelled),
            Self::Error(_) | Self::Other(_) => None,
        }
    }

    /// Returns the v2 form of the reason. Every reason has one.
    pub fn to_v2(&self) -> v2::StopReason {
        match self {
            Self::EndTurn => v2::StopReason::EndTurn,
            Self::MaxTokens => v2::StopReason::MaxTokens,
            Self::MaxTurnRequests => v2::StopReason::MaxTurnRequests,
            Self::Refusal => v2::StopReason::Refusal,
            Self::Cancelled => v2::StopReason::Cancelled,
            Self::Error(error) => v2::ErrorStopReason::new().error(error.as_deref().cloned()).into(),
            Self::Other(name) => v2::StopReason::Other(v2::OtherStopReason::new(name, [].into())),
        }
    }
}

impl From<&v2::StopReason> for StopReason {
    fn from(reason: &v2::StopReason) -> Self {
        match reason {
            v2::StopReason::EndTurn => Self::EndTurn,
            v2::StopReason::MaxTokens => Self::MaxTokens,
            v2::StopReason::MaxTurnRequests => Self::MaxTurnRequests,
            v2::StopReason::Refusal => Self::Refusal,
            v2::StopReason::Cancelled => Self::Cancelled,
            v2::StopReason::Error(reason) => Self::Error(reason.error.clone()),
            v2::StopReason::Other(reason) => Self::from_name(&reason.stop_reason),
            // The pinned schema lacks this variant. An unknown reason must not count as a success.
            _ => Self::Other(String::new()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 7] =
        ["end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled", "error", "_paused"];

    #[test]
    fn names_of_reasons_are_read_and_written_unchanged() {
        for name in NAMES {
            let reason = StopReason::from_name(name);
            assert_eq!(reason.name(), name);
            let v2 = reason.to_v2();
            assert_eq!(StopReason::from(&v2), reason);
            assert_eq!(serde_json::to_value(&v2).unwrap()["stopReason"], name);
            if let Some(v1) = reason.to_v1() {
                assert_eq!(serde_json::to_value(v1).unwrap(), name);
            }
        }
    }

    #[test]
    fn v1_has_no_stop_reason_for_a_failure() {
        assert_eq!(StopReason::Error(None).to_v1(), None);
        assert_eq!(StopReason::Other("_paused".into()).to_v1(), None);
    }

    #[test]
    fn the_error_of_v2_is_kept() {
        let error = v2::Error::new(-32018, "upstream");
        let reason = StopReason::Error(Some(Box::new(error)));
        assert_eq!(StopReason::from(&reason.to_v2()), reason);
    }

    #[test]
    fn a_v1_turn_may_end_with_any_reason() {
        #[track_caller]
        fn check(result: &str, expected: Option<&str>) {
            let result: &RawValue = serde_json::from_str(result).unwrap();
            let reason = StopReason::from_v1_result(result);
            assert_eq!(reason.as_ref().ok().map(StopReason::name), expected, "{result}");
        }
        check(r#"{"stopReason":"end_turn"}"#, Some("end_turn"));
        check(r#"{"usage":5,"stopReason":"cancelled","x":1}"#, Some("cancelled"));
        check(r#"{"stopReason":"snack_break"}"#, Some("snack_break"));
        check(r#"{"stopReason":"error"}"#, Some("error"));
        check(r#"{"stopReason":null}"#, None);
        check(r#"{"stopReason":"end_turn","stopReason":"refusal"}"#, None);
        check(r#"["end_turn"]"#, None);
        check("{}", None);
        check("null", None);
    }
}
