//! Parses messages of MCP over ACP in both forms, and creates transport errors.

use std::borrow::Cow;

use narrows_acp::method::{MCP_CONNECT, MCP_DISCONNECT};
use narrows_wire::{Code, Effects, RpcError};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};

use crate::peer_json;

const MAX_ID_BYTES: usize = 256;

#[derive(Debug, PartialEq)]
pub(super) enum Incoming {
    /// Opens a connection to the server with this id (older form).
    Connect(String),
    /// Closes the connection with this id (older form).
    Disconnect(String),
    Message(Message),
}

#[derive(Debug, PartialEq)]
pub(super) struct Message {
    pub(super) to: To,
    pub(super) method: String,
    pub(super) params: Map<String, Value>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum To {
    /// A message to a server, with the id of the agent's request (current form).
    Server { id: String, request: String },
    /// A message to the server of this connection (older form).
    Connection(String),
}

#[derive(Debug)]
pub(super) enum Inner {
    Result(Box<RawValue>),
    Error(RpcError),
}

/// Reads the parameters of `mcp/message`, `mcp/connect` or `mcp/disconnect`.
pub(super) fn read(method: &str, params: Option<&[u8]>) -> Result<Incoming, RpcError> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Connect {
        #[serde(alias = "serverId")]
        acp_id: String,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Disconnect {
        connection_id: String,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Any {
        server_id: Option<String>,
        request_id: Option<String>,
        connection_id: Option<String>,
        method: String,
        params: Option<Map<String, Value>>,
    }
    let params = params.unwrap_or(b"{}");
    match method {
        MCP_CONNECT => fields::<Connect>(params).map(|connect| Incoming::Connect(connect.acp_id)),
        MCP_DISCONNECT => {
            fields::<Disconnect>(params).map(|disconnect| Incoming::Disconnect(disconnect.connection_id))
        }
        _ => {
            let any: Any = fields(params)?;
            let to = match (any.server_id, any.request_id, any.connection_id) {
                (Some(id), Some(request), _) if request.len() <= MAX_ID_BYTES => To::Server { id, request },
                (Some(_), Some(_), _) => return Err(invalid("the requestId is too long")),
                (Some(_), None, _) => return Err(invalid("the requestId is missing")),
                (None, _, Some(connection)) => To::Connection(connection),
                (None, _, None) => return Err(invalid("the serverId is missing")),
            };
            Ok(Incoming::Message(Message { to, method: any.method, params: any.params.unwrap_or_default() }))
        }
    }
}

fn fields<T: DeserializeOwned>(params: &[u8]) -> Result<T, RpcError> {
    peer_json::read(params).map_err(|error| invalid(error.to_string()))
}

impl To {
    /// Returns the ACP result for an MCP answer: wrapped in an object in the current form, unwrapped in the
    /// older form.
    pub(super) fn answer(&self, inner: Inner) -> Result<Box<RawValue>, RpcError> {
        #[derive(Serialize)]
        #[serde(rename_all = "lowercase")]
        enum Wrapped<'a> {
            Result(&'a RawValue),
            Error(&'a RpcError),
        }
        let wrapped = match (self, &inner) {
            (Self::Server { .. }, Inner::Result(result)) => Wrapped::Result(result),
            (Self::Server { .. }, Inner::Error(error)) => Wrapped::Error(error),
            (Self::Connection(_), _) => {
                return match inner {
                    Inner::Result(result) => Ok(result),
                    Inner::Error(error) => Err(error),
                };
            }
        };
        to_raw_value(&wrapped).map_err(|error| failure(error.to_string()))
    }

    /// Returns the parameters of an `mcp/message` notification that belongs to the request.
    pub(super) fn notification(&self, method: &str, params: &Value) -> Value {
        match self {
            Self::Server { id, request } => {
                json!({"serverId": id, "requestId": request, "method": method, "params": params})
            }
            Self::Connection(id) => json!({"connectionId": id, "method": method, "params": params}),
        }
    }
}

impl Inner {
    pub(super) fn result(value: &Value) -> Result<Self, RpcError> {
        to_raw_value(value).map(Self::Result).map_err(|error| failure(error.to_string()))
    }
}

pub(super) fn invalid(words: impl Into<Cow<'static, str>>) -> RpcError {
    RpcError::new(Code::InvalidParams, words)
}

pub(super) fn limit(words: impl Into<Cow<'static, str>>) -> RpcError {
    of_the_way(-33000, "limit_reached", true, Effects::None, words.into())
}

pub(super) fn unavailable(words: impl Into<Cow<'static, str>>, effects: Effects) -> RpcError {
    of_the_way(-33001, "server_unavailable", false, effects, words.into())
}

pub(super) fn failure(words: impl Into<Cow<'static, str>>) -> RpcError {
    of_the_way(-33002, "backend_failure", false, Effects::Possible, words.into())
}

fn of_the_way(
    code: i64,
    condition: &str,
    retryable: bool,
    effects: Effects,
    words: Cow<'static, str>,
) -> RpcError {
    let data = json!({"condition": condition, "retryable": retryable, "effects": effects});
    RpcError { code, message: words, data: Some(data) }
}

#[cfg(test)]
mod tests {
    use narrows_acp::method::MCP_MESSAGE;
    use narrows_acp::v1::{McpError, MessageMcpResponse};
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(method: &str, params: &str, expected: Result<Incoming, &str>) {
        let read = read(method, Some(params.as_bytes())).map_err(|error| {
            assert_eq!(error.code, -32602);
            error.message.split(" at line").next().unwrap_or_default().to_owned()
        });
        assert_eq!(read, expected.map_err(str::to_owned), "{params}");
    }

    fn message(to: To, params: Value) -> Incoming {
        let Value::Object(params) = params else { panic!("{params} is not an object") };
        Incoming::Message(Message { to, method: "m".into(), params })
    }

    #[test]
    fn both_forms_are_read() {
        let to = To::Server { id: "s".into(), request: "r".into() };
        check(
            MCP_MESSAGE,
            r#"{"serverId":"s","requestId":"r","method":"m","params":{"a":1},"_meta":{},"x":0}"#,
            Ok(message(to.clone(), json!({"a": 1}))),
        );
        check(
            MCP_MESSAGE,
            r#"{"serverId":"s","requestId":"r","method":"m"}"#,
            Ok(message(to.clone(), json!({}))),
        );
        let null = r#"{"serverId":"s","requestId":"r","method":"m","params":null,"connectionId":"c"}"#;
        check(MCP_MESSAGE, null, Ok(message(to, json!({}))));
        let to = To::Connection("c".into());
        check(MCP_MESSAGE, r#"{"connectionId":"c","method":"m"}"#, Ok(message(to, json!({}))));
        check(MCP_CONNECT, r#"{"acpId":"s"}"#, Ok(Incoming::Connect("s".into())));
        check(MCP_CONNECT, r#"{"serverId":"s"}"#, Ok(Incoming::Connect("s".into())));
        check(MCP_DISCONNECT, r#"{"connectionId":"c"}"#, Ok(Incoming::Disconnect("c".into())));
    }

    #[test]
    fn invalid_messages_are_errors() {
        check(MCP_MESSAGE, "{}", Err("missing field `method`"));
        check(MCP_MESSAGE, r#"{"method":"m"}"#, Err("the serverId is missing"));
        check(MCP_MESSAGE, r#"{"serverId":"s","method":"m"}"#, Err("the requestId is missing"));
        let long = format!(r#"{{"serverId":"s","requestId":"{}","method":"m"}}"#, "r".repeat(257));
        check(MCP_MESSAGE, &long, Err("the requestId is too long"));
        let list = r#"{"serverId":"s","requestId":"r","method":"m","params":[]}"#;
        check(MCP_MESSAGE, list, Err("invalid type: sequence, expected a map"));
        check(MCP_CONNECT, "{}", Err("missing field `acpId`"));
        check(MCP_CONNECT, "[]", Err("invalid length 0, expected struct Connect with 1 element"));
        assert!(read(MCP_DISCONNECT, None).is_err());
    }

    #[test]
    fn responses_match_the_official_types() {
        let to = To::Server { id: "s".into(), request: "r".into() };
        let read = |inner| -> MessageMcpResponse {
            let raw = to.answer(inner).expect("an inner error is no outer one");
            serde_json::from_str(raw.get()).expect("it is an answer")
        };
        let null = RawValue::from_string("null".into()).expect("it is JSON");
        assert_eq!(read(Inner::Result(null.clone())), MessageMcpResponse::success(Value::Null));
        let error = RpcError { code: -32601, message: "no".into(), data: None };
        assert_eq!(read(Inner::Error(error.clone())), MessageMcpResponse::error(McpError::new(-32601, "no")));
        let to = To::Connection("c".into());
        assert_eq!(to.answer(Inner::Result(null)).expect("a result").get(), "null");
        assert_eq!(to.answer(Inner::Error(error.clone())).expect_err("an error"), error);
    }

    proptest! {
        #[test]
        fn any_message_is_read_without_panic(text in "[\\[\\]{}:,\"a-zI0-9]{0,80}") {
            for method in [MCP_MESSAGE, MCP_CONNECT, MCP_DISCONNECT] {
                _ = read(method, Some(text.as_bytes()));
            }
        }
    }
}
