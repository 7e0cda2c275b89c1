//! Forwards MCP requests to the user's servers. Lists are always forwarded. Requests for contents and effects
//! pass the gate. Other requests are refused.

use narrows_mcp::{CallError, CallProgress, RawAnswer, ServerInfo, Servers};
use narrows_wire::{Code, Effects, RpcError};
use serde_json::{Map, Value, json};

use super::message::{Inner, failure, unavailable};
use super::{Gate, ServerRequest};

/// Newest MCP version with a handshake. Reported to an agent that sends a handshake if the server itself uses
/// a version without one.
const HANDSHAKE_VERSION: &str = "2025-11-25";
const HANDSHAKELESS_VERSION: &str = "2026-07-28";

/// Answers one MCP request to the server `name`. An error is a transport error. A refusal by the server or
/// the gate is a normal answer.
pub(super) async fn answer(
    servers: &Servers,
    name: &str,
    gate: &dyn Gate,
    method: &str,
    params: Map<String, Value>,
    news: impl FnMut(CallProgress) + Send,
) -> Result<Inner, RpcError> {
    match method {
        // The agent's handshake is answered here, because the client has already initialized the server.
        "initialize" => Inner::result(&initialized(&server_info(servers, name).await?)),
        "server/discover" => Inner::result(&discovered(&server_info(servers, name).await?)),
        "ping" => Inner::result(&json!({})),
        "tools/list" | "prompts/list" | "resources/list" | "resources/templates/list" => {
            forward(servers, name, method, params, news).await
        }
        "tools/call" | "prompts/get" | "resources/read" => {
            let asked = match server_request(name, method, &params) {
                Ok(asked) => asked,
                Err(words) => return Ok(Inner::Error(RpcError::new(Code::InvalidParams, words))),
            };
            match gate.authorize(asked).await {
                Ok(()) => forward(servers, name, method, params, news).await,
                Err(refusal) => refused(method, &refusal.0),
            }
        }
        _ => Ok(Inner::Error(RpcError::new(
            Code::MethodNotFound,
            "this method is not forwarded to MCP servers",
        ))),
    }
}

/// Waits until the server is ready, and returns its description.
pub(super) async fn server_info(servers: &Servers, name: &str) -> Result<ServerInfo, RpcError> {
    servers.server_info(name).await.map_err(|error| unavailable(error.to_string(), Effects::None))
}

async fn forward(
    servers: &Servers,
    name: &str,
    method: &str,
    params: Map<String, Value>,
    news: impl FnMut(CallProgress) + Send,
) -> Result<Inner, RpcError> {
    match servers.request(name, method, params, news).await {
        Ok(RawAnswer::Result(result)) => Ok(Inner::Result(result)),
        Ok(RawAnswer::Error { code, message, data }) => {
            Ok(Inner::Error(RpcError { code, message: message.into(), data }))
        }
        Err(error @ (CallError::NotRunning(_) | CallError::NoServer)) => {
            Err(unavailable(error.to_string(), Effects::Possible))
        }
        Err(error) => Err(failure(error.to_string())),
    }
}

/// Returns the request in the form that the gate judges.
fn server_request(
    server: &str,
    method: &str,
    params: &Map<String, Value>,
) -> Result<ServerRequest, &'static str> {
    let (server, method) = (server.to_owned(), method.to_owned());
    if method == "resources/read" {
        if !params.get("uri").is_some_and(Value::is_string) {
            return Err("the uri of the resource is missing");
        }
        return Ok(ServerRequest { server, method, tool: None, arguments: params.clone() });
    }
    let Some(Value::String(name)) = params.get("name") else { return Err("the name is missing") };
    let mut arguments = match params.get("arguments") {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(arguments)) => arguments.clone(),
        Some(_) => return Err("the arguments are not an object"),
    };
    let tool = (method == "tools/call").then(|| name.clone());
    if tool.is_none() {
        arguments = Map::from_iter([
            ("name".to_owned(), name.as_str().into()),
            ("arguments".to_owned(), arguments.into()),
        ]);
    }
    Ok(ServerRequest { server, method, tool, arguments })
}

/// Returns a refusal. The refusal of a tool call is a result, so that the model reads the reason. Other
/// requests get an error.
fn refused(method: &str, words: &str) -> Result<Inner, RpcError> {
    if method == "tools/call" {
        let content = json!([{"type": "text", "text": words}]);
        return Inner::result(&json!({"content": content, "isError": true}));
    }
    Ok(Inner::Error(RpcError::new(Code::PolicyDenied, words.to_owned())))
}

/// Returns the capabilities that the agent sees. Omits change notifications, which are not forwarded.
fn capabilities(about: &ServerInfo) -> Value {
    let passed =
        ["tools", "prompts", "resources"].into_iter().filter(|key| about.capabilities[key].is_object());
    passed.map(|key| (key.to_owned(), json!({}))).collect::<Map<_, _>>().into()
}

fn initialized(about: &ServerInfo) -> Value {
    let version = if about.handshake { about.protocol.as_str() } else { HANDSHAKE_VERSION };
    let mut result = json!({
        "protocolVersion": version,
        "capabilities": capabilities(about),
        "serverInfo": implementation(about),
    });
    if let Some(instructions) = &about.instructions {
        result["instructions"] = instructions.as_str().into();
    }
    result
}

fn discovered(about: &ServerInfo) -> Value {
    let mut result = json!({
        "resultType": "complete",
        "supportedVersions": [HANDSHAKELESS_VERSION],
        "capabilities": capabilities(about),
        "ttlMs": 0,
        "cacheScope": "private",
        "serverInfo": implementation(about),
        "_meta": {"io.modelcontextprotocol/serverInfo": implementation(about)},
    });
    if let Some(instructions) = &about.instructions {
        result["instructions"] = instructions.as_str().into();
    }
    result
}

fn implementation(about: &ServerInfo) -> Value {
    about.implementation.clone().unwrap_or_else(|| json!({"name": "unknown", "version": "0"}))
}
