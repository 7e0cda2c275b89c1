//! Requests of somebody else, passed on to a server and back without a change.

use rmcp::model::{ClientRequest, CustomRequest, GetExtensions};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::call::ask;
use crate::entry::Entry;
use crate::verbatim::{AsItIs, unsealed};
use crate::{CallError, News, Options};

/// Members of `_meta` that speak of the connection they came over, which ends here.
const OF_THE_CONNECTION: &str = "io.modelcontextprotocol/";

/// What a server answers.
#[derive(Debug, Clone)]
pub enum Answered {
    /// A result, as it came.
    Result(Box<RawValue>),
    /// An error.
    Error {
        /// The JSON-RPC code.
        code: i64,
        /// What the server says.
        message: String,
        /// What it says to programs.
        data: Option<Value>,
    },
}

/// What a server says about itself.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct About {
    /// The version of MCP that is spoken with it.
    pub protocol: String,
    /// Whether that version begins with a handshake.
    pub handshake: bool,
    /// What it can do, an object.
    pub capabilities: Value,
    /// Its name and version, an object.
    pub implementation: Option<Value>,
    /// How it wants to be used.
    pub instructions: Option<String>,
}

pub(crate) async fn request(
    entry: &Entry,
    method: &str,
    params: Map<String, Value>,
    options: &Options,
    news: impl FnMut(News) + Send,
) -> Result<Answered, CallError> {
    let wish = AsItIs::default();
    let mut request = CustomRequest::new(method, Some(Value::Object(without_hop(params))));
    request.extensions_mut().insert(wish.clone());
    let answer = ask(entry, ClientRequest::CustomRequest(request), options, news).await?;
    drop(wish);
    match answer {
        Ok(result) => match unsealed(&result) {
            Some(result) => Ok(Answered::Result(result)),
            None => Err(CallError::Nonsense("the result cannot be read".to_owned())),
        },
        Err(error) => Ok(Answered::Error {
            code: error.code.0.into(),
            message: error.message.into_owned(),
            data: error.data,
        }),
    }
}

pub(crate) async fn about(entry: &Entry) -> Result<About, CallError> {
    let peer = entry.peer().await?;
    let Some(info) = peer.peer_info() else { return Ok(About::default()) };
    Ok(About {
        protocol: info.protocol_version.to_string(),
        handshake: info.protocol_version.has_initialize(),
        capabilities: serde_json::to_value(&info.capabilities).unwrap_or_default(),
        implementation: info.server_info.as_ref().and_then(|info| serde_json::to_value(info).ok()),
        instructions: info.instructions.clone(),
    })
}

/// The parameters without what concerns only the connection they came over: this one has its own.
fn without_hop(mut params: Map<String, Value>) -> Map<String, Value> {
    if let Some(Value::Object(meta)) = params.get_mut("_meta") {
        meta.retain(|key, _| key != "progressToken" && !key.starts_with(OF_THE_CONNECTION));
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
        assert_eq!(&Value::Object(without_hop(params)), expected);
    }

    #[test]
    fn what_concerns_the_connection_ends_here() {
        check(json!({}), &json!({}));
        check(json!({"a": 1, "_meta": {"progressToken": 1}}), &json!({"a": 1}));
        check(
            json!({"_meta": {"io.modelcontextprotocol/clientInfo": {}, "traceparent": "x"}}),
            &json!({"_meta": {"traceparent": "x"}}),
        );
        check(json!({"_meta": 7}), &json!({"_meta": 7}));
    }
}
