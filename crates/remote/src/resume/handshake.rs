//! The request that resumes a connection, which is the first message on a new socket, and its response.

use bytes::Bytes;
use narrows_wire::{Code, Kind, RpcError, View, message};
use serde::Deserialize;
use serde_json::json;

use super::capability::{ConnectionName, asks};

/// The method of the resume request.
pub const METHOD: &str = "_narrows/resume";

const GAP_CONDITION: &str = "cursor_gap";

/// The meaning of the first message on a socket.
#[derive(Debug)]
pub enum FirstMessage {
    /// Any message other than a resume request or a marked `initialize`. The connection ends with its socket.
    Plain,
    /// `initialize` with the resume capability: the client wants a resumable connection.
    Marked,
    /// Resumes an earlier connection.
    Resume(ResumeRequest),
    /// A malformed resume request. Contains the error response to the request.
    Broken(Bytes),
}

/// Classifies the first message on a socket.
#[must_use]
pub fn first(view: &View<'_>) -> FirstMessage {
    if asks(view) {
        return FirstMessage::Marked;
    }
    if view.kind() != Kind::Request || view.method().as_deref() != Some(METHOD) {
        return FirstMessage::Plain;
    }
    match ResumeRequest::read(view) {
        Ok(ask) => FirstMessage::Resume(ask),
        Err(error) => FirstMessage::Broken(message::error(view.id().unwrap_or(b"null"), &error)),
    }
}

/// A request to resume a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResumeRequest {
    pub id: Bytes,
    pub connection: ConnectionName,
    /// Messages of the connection that the client has received.
    pub received: u64,
}

impl ResumeRequest {
    fn read(view: &View<'_>) -> Result<Self, RpcError> {
        #[derive(Deserialize)]
        struct Params {
            connection: ConnectionName,
            received: u64,
        }

        let Params { connection, received } = serde_json::from_slice(view.params().unwrap_or(b"null"))
            .map_err(|error| RpcError::new(Code::InvalidParams, format!("{METHOD}: {error}")))?;
        let id = Bytes::copy_from_slice(view.id().unwrap_or(b"null"));
        Ok(Self { id, connection, received })
    }

    /// Returns the request as a message.
    #[must_use]
    pub fn line(&self) -> Bytes {
        let params = json!({"connection": self.connection.as_str(), "received": self.received});
        // Plain data with string keys always serializes.
        message::request(&self.id, METHOD, &params).unwrap_or_default()
    }

    /// Returns the response to the request.
    #[must_use]
    pub fn answer(&self, answer: &ResumeResponse) -> Bytes {
        let error = match answer {
            ResumeResponse::Resumed { received } => {
                return message::response(&self.id, &json!({"received": received})).unwrap_or_default();
            }
            ResumeResponse::Unknown => RpcError::new(Code::NotFound, "connection not found"),
            ResumeResponse::Gap => RpcError::new(Code::NotFound, "unreceived messages are no longer kept")
                .with("condition", json!(GAP_CONDITION)),
            ResumeResponse::Refused(error) => error.clone(),
        };
        message::error(&self.id, &error)
    }
}

/// The result of a [`ResumeRequest`].
#[derive(Clone, Debug, PartialEq)]
pub enum ResumeResponse {
    Resumed {
        /// Messages that the responding end has received.
        received: u64,
    },
    /// The connection does not exist, or belongs to another identity.
    Unknown,
    /// Messages that the client has not received are no longer kept.
    Gap,
    Refused(RpcError),
}

impl ResumeResponse {
    /// Reads a response to a resume request. Returns `None` if `view` is not the response to the request with
    /// this id.
    #[must_use]
    pub fn read(view: &View<'_>, id: &[u8]) -> Option<Self> {
        #[derive(Deserialize)]
        struct Resumed {
            received: u64,
        }

        if view.kind() != Kind::Response || view.id().is_some_and(|found| found != id) {
            return None;
        }
        if let Some(result) = view.result() {
            let Resumed { received } = serde_json::from_slice(result).ok()?;
            return view.id().map(|_| Self::Resumed { received });
        }
        let error = view.error()?;
        let condition = error.data.as_ref().and_then(|data| data.get("condition"));
        Some(if condition.is_some_and(|condition| condition == GAP_CONDITION) {
            Self::Gap
        } else if error.is(Code::NotFound) || error.is(Code::MethodNotFound) {
            Self::Unknown
        } else {
            Self::Refused(error)
        })
    }
}

/// Returns the message for an old socket that is closed because a newer socket has taken over its connection.
#[must_use]
pub fn fence() -> Bytes {
    message::error(b"null", &RpcError::new(Code::ConnectionFenced, "a newer connection has taken over"))
}

/// Returns `true` if a message is a fence, which is not counted.
#[must_use]
pub fn is_fence(view: &View<'_>) -> bool {
    view.kind() == Kind::Response
        && view.id().is_none()
        && view.error().is_some_and(|error| error.is(Code::ConnectionFenced))
}

/// Returns the message with which the connecting end announces that it ends the connection. Without a
/// farewell, a closed socket may only be lost, and the connection is kept.
#[must_use]
pub fn farewell() -> Bytes {
    Bytes::from_static(br#"{"jsonrpc":"2.0","method":"_narrows/close"}"#)
}

/// Returns `true` if a message is a farewell, which is not counted.
#[must_use]
pub fn is_farewell(view: &View<'_>) -> bool {
    view.kind() == Kind::Notification && view.method().as_deref() == Some("_narrows/close")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> ResumeRequest {
        ResumeRequest {
            id: Bytes::from_static(b"\"r\""),
            connection: ConnectionName::new([1; 16]),
            received: 7,
        }
    }

    #[test]
    fn a_resume_request_round_trips() {
        let line = example().line();
        let expected = format!(
            r#"{{"jsonrpc":"2.0","id":"r","method":"_narrows/resume","params":{{"connection":"{}","received":7}}}}"#,
            "01".repeat(16)
        );
        assert_eq!(line, expected);
        match first(&View::parse(&line)) {
            FirstMessage::Resume(ask) => assert_eq!(ask, example()),
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    fn check_broken(params: &str) {
        let line = format!(r#"{{"jsonrpc":"2.0","id":5,"method":"_narrows/resume"{params}}}"#);
        match first(&View::parse(line.as_bytes())) {
            FirstMessage::Broken(answer) => {
                let answer = View::parse(&answer);
                assert_eq!(answer.id(), Some(b"5".as_slice()));
                assert!(answer.error().unwrap().is(Code::InvalidParams));
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_malformed_resume_request_is_answered() {
        check_broken("");
        check_broken(r#","params":{"connection":"a"}"#);
        check_broken(r#","params":{"connection":"","received":1}"#);
        check_broken(r#","params":{"connection":"a","received":-1}"#);
        check_broken(r#","params":["a",1.5]"#);
    }

    #[test]
    fn other_first_messages_are_plain_or_marked() {
        for plain in [
            r#"{"jsonrpc":"2.0","method":"_narrows/resume","params":{}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}"#,
            "[]",
            "",
        ] {
            assert!(matches!(first(&View::parse(plain.as_bytes())), FirstMessage::Plain), "{plain}");
        }
        let capability =
            r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"_meta":{"narrows":{"resume":1}}}}"#;
        assert!(matches!(first(&View::parse(capability.as_bytes())), FirstMessage::Marked));
    }

    #[test]
    fn a_resume_response_round_trips() {
        let refused = ResumeResponse::Refused(RpcError::new(Code::Backpressure, "later"));
        for answer in
            [ResumeResponse::Resumed { received: 3 }, ResumeResponse::Unknown, ResumeResponse::Gap, refused]
        {
            let line = example().answer(&answer);
            let view = View::parse(&line);
            assert_eq!(ResumeResponse::read(&view, b"\"r\""), Some(answer));
            assert_eq!(ResumeResponse::read(&view, b"1"), None);
            assert!(!is_fence(&view));
        }
    }

    proptest::proptest! {
        #[test]
        fn any_first_message_is_classified(text in "[ -~]{0,30}", received: i64) {
            for params in [text.clone(), format!(r#"{{"connection":"{text}","received":{received}}}"#)] {
                let line = format!(r#"{{"jsonrpc":"2.0","id":5,"method":"_narrows/resume","params":{params}}}"#);
                let view = View::parse(line.as_bytes());
                if let FirstMessage::Resume(ask) = first(&view) {
                    let again = ask.line();
                    proptest::prop_assert!(matches!(first(&View::parse(&again)), FirstMessage::Resume(same) if same == ask));
                }
                _ = ResumeResponse::read(&view, b"5");
            }
        }
    }

    #[test]
    fn a_farewell_is_recognized() {
        assert!(is_farewell(&View::parse(&farewell())));
        assert!(!is_farewell(&View::parse(&example().line())));
    }

    #[test]
    fn a_fence_is_recognized() {
        let fence = fence();
        assert!(is_fence(&View::parse(&fence)));
        assert!(matches!(ResumeResponse::read(&View::parse(&fence), b"1"), Some(ResumeResponse::Refused(_))));
    }
}
