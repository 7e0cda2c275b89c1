//! Forwards another client's requests to a server, and returns the answers unchanged.

use rmcp::model::{ClientRequest, CustomRequest, GetExtensions};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::call::send_request;
use crate::server_entry::ServerEntry;
use crate::verbatim::{KeepVerbatim, unseal};
use crate::{CallError, CallProgress, Options};

/// Prefix of `_meta` members about the connection to the other client, which are not forwarded.
const CONNECTION_META_PREFIX: &str = "io.modelcontextprotocol/";

/// Answer of a server.
#[derive(Debug, Clone)]
pub enum RawAnswer {
    Result(Box<RawValue>),
    Error {
        code: i64,
        message: String,
        /// Data of the error, for programs.
        data: Option<Value>,
    },
}

/// A server's description of itself.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ServerInfo {
    pub protocol: String,
    /// `true` if the server's MCP version begins with a handshake.
    pub handshake: bool,
    pub capabilities: Value,
    pub implementation: Option<Value>,
    pub instructions: Option<String>,
}

pub(crate) async fn request(
    entry: &ServerEntry,
    method: &str,
    params: Map<String, Value>,
    options: &Options,
    progress: impl FnMut(CallProgress) + Send,
) -> Result<RawAnswer, CallError> {
    let keep = KeepVerbatim::default();
    let mut request = CustomRequest::new(method, Some(Value::Object(without_connection_meta(params))));
    request.extensions_mut().insert(keep.clone());
    let answer = send_request(entry, ClientRequest::CustomRequest(request), options, progress).await?;
    drop(keep);
    match answer {
        Ok(result) => match unseal(&result) {
            Some(result) => Ok(RawAnswer::Result(result)),
            None => Err(CallError::InvalidResult("the result cannot be read".to_owned())),
        },
        Err(error) => Ok(RawAnswer::Error {
            code: error.code.0.into(),
            message: error.message.into_owned(),
            data: error.data,
        }),
    }
}

pub(crate) async fn server_info(entry: &ServerEntry) -> Result<ServerInfo, CallError> {
    let peer = entry.peer().await?;
    let Some(info) = peer.peer_info() else { return Ok(ServerInfo::default()) };
    Ok(ServerInfo {
        protocol: info.protocol_version.to_string(),
        handshake: info.protocol_version.has_initialize(),
        capabilities: serde_json::to_value(&info.capabilities).unwrap_or_default(),
        implementation: info.server_info.as_ref().and_then(|info| serde_json::to_value(info).ok()),
        instructions: info.instructions.clone(),
    })
}

/// Removes the `_meta` members about the connection to the other client. The connection to the server sets
/// its own members.
fn without_connection_meta(mut params: Map<String, Value>) -> Map<String, Value> {
    if let Some(Value::Object(meta)) = params.get_mut("_meta") {
        meta.retain(|key, _| key != "progressToken" && !key.starts_with(CONNECTION_META_PREFIX));
        if meta.is_empty() {
            params.remove("_meta");
        }
    }
    params
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(params: Value, expected: &Value) {
        let Value::Object(params) = params else { panic!("{params} is not an object") };
        assert_eq!(&Value::Object(without_connection_meta(params)), expected);
    }

    #[test]
    fn members_about_the_connection_are_removed() {
        check(json!({}), &json!({}));
        check(json!({"a": 1, "_meta": {"progressToken": 1}}), &json!({"a": 1}));
        check(
            json!({"_meta": {"io.modelcontextprotocol/clientInfo": {}, "traceparent": "x"}}),
            &json!({"_meta": {"traceparent": "x"}}),
        );
        check(json!({"_meta": 7}), &json!({"_meta": 7}));
    }
}
