//! The built-in MCP server: files and commands of the client, for agents that cannot request them by ACP.

use std::fmt;
use std::sync::Arc;

use narrows_wire::{Code, RpcError};
use serde_json::{Map, Value, json};

use super::{CommandService, FileService};

mod arguments;
mod tools;

pub(crate) use tools::ToolCall;

/// Name of the server, as agents see it.
pub(crate) const NAME: &str = "narrows";
/// MCP versions with a handshake, newest first.
const HANDSHAKE_VERSIONS: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];
/// The MCP version without a handshake: each request names its version.
const HANDSHAKELESS_VERSION: &str = "2026-07-28";
/// Key in `_meta` of a request for the MCP version without a handshake.
const HANDSHAKELESS_VERSION_KEY: &str = "io.modelcontextprotocol/protocolVersion";

/// Tools that the policy permits. Other tools are not listed, and calls of them are refused.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Offer {
    pub(crate) read: bool,
    pub(crate) write: bool,
    pub(crate) run: bool,
}

/// The built-in MCP server. Has no state: every request is self-contained.
#[derive(Clone)]
pub(crate) struct HostServer {
    offer: Offer,
    files: Arc<dyn FileService>,
    commands: Arc<dyn CommandService>,
}

impl HostServer {
    pub(crate) fn new(offer: Offer, files: Arc<dyn FileService>, commands: Arc<dyn CommandService>) -> Self {
        Self { offer, files, commands }
    }

    /// Answers one MCP request. An error is a protocol error. A tool that fails returns a result.
    pub(crate) async fn answer(&self, method: &str, params: Map<String, Value>) -> Result<Value, RpcError> {
        let modern = params.get("_meta").is_some_and(|meta| meta.get(HANDSHAKELESS_VERSION_KEY).is_some());
        let mut result = match method {
            "initialize" => initialized(&params),
            "server/discover" => discovered(),
            "ping" => json!({}),
            "tools/list" => {
                let mut list = json!({"tools": tools::list(self.offer)});
                if modern {
                    list["ttlMs"] = 0.into();
                    list["cacheScope"] = "private".into();
                }
                list
            }
            "tools/call" => self.call(params).await?,
            _ => return Err(RpcError::new(Code::MethodNotFound, "method not found")),
        };
        if modern {
            result["resultType"] = "complete".into();
        }
        Ok(result)
    }

    async fn call(&self, mut params: Map<String, Value>) -> Result<Value, RpcError> {
        let invalid = |words| RpcError::new(Code::InvalidParams, words);
        let Some(Value::String(tool)) = params.remove("name") else {
            return Err(invalid("the name of the tool is missing"));
        };
        let arguments = match params.remove("arguments") {
            None | Some(Value::Null) => Map::new(),
            Some(Value::Object(arguments)) => arguments,
            Some(_) => return Err(invalid("the arguments are not an object")),
        };
        let call = ToolCall::parse(self.offer, &tool, arguments).ok_or(invalid("unknown tool"))?;
        let done = match call {
            Ok(call) => call.execute(&*self.files, &*self.commands).await,
            Err(words) => Err(words),
        };
        Ok(done.unwrap_or_else(|words| tools::failed(&words)))
    }
}

/// Answers a handshake with the requested version if it is supported, or else with the newest version.
fn initialized(params: &Map<String, Value>) -> Value {
    let asked = params.get("protocolVersion").and_then(Value::as_str);
    let version =
        HANDSHAKE_VERSIONS.into_iter().find(|known| Some(*known) == asked).unwrap_or(HANDSHAKE_VERSIONS[0]);
    json!({"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": implementation()})
}

fn discovered() -> Value {
    let mut versions = vec![HANDSHAKELESS_VERSION];
    versions.extend(HANDSHAKE_VERSIONS);
    json!({
        "resultType": "complete",
        "supportedVersions": versions,
        "capabilities": {"tools": {}},
        "ttlMs": 0,
        "cacheScope": "private",
        "serverInfo": implementation(),
        "_meta": {"io.modelcontextprotocol/serverInfo": implementation()},
    })
}

fn implementation() -> Value {
    json!({"name": NAME, "version": env!("CARGO_PKG_VERSION")})
}

impl fmt::Debug for HostServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostServer").field("offer", &self.offer).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
