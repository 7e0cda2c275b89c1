//! The client's side of version negotiation.
//!
//! A client offers its highest version and evaluates the answer. The result ends the attempt, asks for
//! another connection with a lower version, or is final. Because the version only goes down, the attempts
//! always end.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::raw::{ReadError, read_object};
use crate::version::{Version, Versions};
use crate::{v1, v2};

/// Next step after an agent has answered `initialize`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NegotiationOutcome {
    /// Continue: the agent accepted the offered version.
    Accepted(InitializeAnswer),
    /// Disconnect, and open another connection with an `initialize` in this lower version.
    ///
    /// The same connection cannot be used: the agent has read a request of the higher version, in which the
    /// client's file and terminal capabilities are missing.
    Reconnect(Version),
}

/// The agent's answer, in the version of the connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InitializeAnswer {
    V1(Box<v1::InitializeResponse>),
    V2(Box<v2::InitializeResponse>),
}

/// Reason why the client cannot use this agent. `Display` is for the user.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NegotiationError {
    /// The agent chose an unsupported version, or one above the offer.
    #[error("the agent chose protocol version {chosen}; this client offered {offered} and speaks {spoken}")]
    Chosen {
        /// The version number in the agent's answer.
        chosen: u16,
        offered: Version,
        spoken: Versions,
    },
    /// The agent supports no version at or below the offered one.
    #[error("the agent supports protocol versions {supported:?}; this client speaks {spoken}")]
    Unsupported {
        /// The versions that the agent reports. Empty if it reports none.
        supported: Vec<u16>,
        spoken: Versions,
    },
    #[error("the agent's response to initialize is invalid: {0}")]
    Answer(#[from] ReadError),
    #[error("the agent refused initialize with error {code}")]
    Refused { code: i32 },
}

/// Evaluates the result of an `initialize` that offered `offered`.
///
/// # Errors
/// [`NegotiationError`]: disconnect, and report it to the user.
pub fn judge_result(
    spoken: Versions,
    offered: Version,
    result: &RawValue,
) -> Result<NegotiationOutcome, NegotiationError> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Chosen {
        protocol_version: u16,
    }
    let Chosen { protocol_version: chosen } = read_object(result)?;
    match Version::from_number(chosen) {
        Some(version) if version == offered => Ok(NegotiationOutcome::Accepted(match version {
            Version::V1 => InitializeAnswer::V1(read_object(result)?),
            Version::V2 => InitializeAnswer::V2(read_object(result)?),
        })),
        Some(version) if version < offered && spoken.contains(version) => {
            Ok(NegotiationOutcome::Reconnect(version))
        }
        _ => Err(NegotiationError::Chosen { chosen, offered, spoken }),
    }
}

/// Evaluates the error, by `code` and `data`, of an `initialize` that offered `offered`.
///
/// # Errors
/// [`NegotiationError`]: disconnect, and report it to the user.
pub fn judge_error(
    spoken: Versions,
    offered: Version,
    code: i32,
    data: Option<&RawValue>,
) -> Result<NegotiationOutcome, NegotiationError> {
    let lower = |version: &Version| *version < offered && spoken.contains(*version);
    match code.into() {
        v2::ErrorCode::UnsupportedProtocolVersion => {
            let supported = data.and_then(|data| read_object(data).ok()).map_or(vec![], |data| {
                let data: v2::UnsupportedProtocolVersionErrorData = data;
                data.supported.iter().map(|version| version.as_u16()).collect()
            });
            let ours = supported.iter().copied().filter_map(Version::from_number);
            match ours.filter(lower).max() {
                Some(version) => Ok(NegotiationOutcome::Reconnect(version)),
                None => Err(NegotiationError::Unsupported { supported, spoken }),
            }
        }
        // A v1 agent with strict params rejects v2 params instead of answering with version 1.
        v2::ErrorCode::InvalidRequest | v2::ErrorCode::InvalidParams | v2::ErrorCode::InternalError
            if lower(&Version::V1) =>
        {
            Ok(NegotiationOutcome::Reconnect(Version::V1))
        }
        _ => Err(NegotiationError::Refused { code }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str) -> &RawValue {
        serde_json::from_str(text).unwrap()
    }

    fn describe(verdict: Result<NegotiationOutcome, NegotiationError>) -> String {
        match verdict {
            Ok(NegotiationOutcome::Accepted(InitializeAnswer::V1(answer))) => {
                format!("accepted {}", answer.protocol_version)
            }
            Ok(NegotiationOutcome::Accepted(InitializeAnswer::V2(answer))) => {
                format!("accepted {} {}", answer.protocol_version, answer.info.name)
            }
            Ok(NegotiationOutcome::Reconnect(version)) => format!("reconnect {version}"),
            Err(unfit) => unfit.to_string(),
        }
    }

    #[test]
    fn results_are_judged_by_their_version() {
        #[track_caller]
        fn check(spoken: Versions, offered: Version, result: &str, expected: &str) {
            assert_eq!(describe(judge_result(spoken, offered, raw(result))), expected, "{result}");
        }
        use Version::{V1, V2};
        use Versions::{Both, OnlyV1, OnlyV2};
        let two = r#"{"protocolVersion":2,"info":{"name":"a","version":"1"},"later":{}}"#;
        check(Both, V2, two, "accepted 2 a");
        check(Both, V2, r#"{"protocolVersion":1}"#, "reconnect 1");
        check(Both, V1, r#"{"protocolVersion":1,"agentCapabilities":{"loadSession":true}}"#, "accepted 1");
        check(OnlyV1, V1, r#"{"protocolVersion":1,"agentInfo":null}"#, "accepted 1");
        check(
            OnlyV2,
            V2,
            r#"{"protocolVersion":1}"#,
            "the agent chose protocol version 1; this client offered 2 and speaks 2",
        );
        check(Both, V1, two, "the agent chose protocol version 2; this client offered 1 and speaks 1 and 2");
        check(
            Both,
            V2,
            r#"{"protocolVersion":3}"#,
            "the agent chose protocol version 3; this client offered 2 and speaks 1 and 2",
        );
        for unreadable in [
            "null",
            "[2]",
            r#"{"protocolVersion":"1"}"#,
            r#"{"protocolVersion":65536}"#,
            r#"{"protocolVersion":2}"#,
        ] {
            let line = describe(judge_result(Both, V2, raw(unreadable)));
            assert!(
                line.starts_with("the agent's response to initialize is invalid"),
                "{unreadable}: {line}"
            );
        }
    }

    #[test]
    fn errors_are_judged_by_code_and_data() {
        #[track_caller]
        fn check(spoken: Versions, offered: Version, code: i32, data: Option<&str>, expected: &str) {
            let line = describe(judge_error(spoken, offered, code, data.map(raw)));
            assert_eq!(line, expected, "{code} {data:?}");
        }
        use Version::{V1, V2};
        use Versions::{Both, OnlyV1, OnlyV2};
        check(
            OnlyV1,
            V1,
            -32022,
            Some(r#"{"requested":1,"supported":[2]}"#),
            "the agent supports protocol versions [2]; this client speaks 1",
        );
        check(Both, V2, -32022, Some(r#"{"requested":2,"supported":[0,1]}"#), "reconnect 1");
        // After a lower version, a higher one is not tried again. Otherwise the two could alternate without
        // end.
        check(
            Both,
            V1,
            -32022,
            Some(r#"{"requested":1,"supported":[2]}"#),
            "the agent supports protocol versions [2]; this client speaks 1 and 2",
        );
        check(Both, V2, -32022, None, "the agent supports protocol versions []; this client speaks 1 and 2");
        check(
            Both,
            V2,
            -32022,
            Some("\"x\""),
            "the agent supports protocol versions []; this client speaks 1 and 2",
        );
        check(Both, V2, -32602, None, "reconnect 1");
        check(Both, V2, -32603, None, "reconnect 1");
        check(Both, V1, -32602, None, "the agent refused initialize with error -32602");
        check(OnlyV2, V2, -32602, None, "the agent refused initialize with error -32602");
        check(Both, V2, -32000, None, "the agent refused initialize with error -32000");
    }
}
