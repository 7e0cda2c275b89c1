//! Manifests of kind `server`: the built-in agent runs the operator.

use std::sync::Arc;

use narrows_agent::{EndpointError, Settings, ToolDecision, ToolDecisionFuture, ToolGate, ToolRequest};
use narrows_govern::{GateRequest, ToolCheck, mcp_server_config};
use narrows_link::Link;
use narrows_link::memory::pair;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::manifest::LoadedManifest;
use super::memory::{self, MemoryWriter};
use super::system_prompt;
use crate::cli::{Acp, Serve};
use crate::failure::Failure;
use crate::output;
use crate::terminal::line;

/// Asks the gate before a tool is announced or run.
#[derive(Debug)]
struct GateClient(mpsc::Sender<GateRequest>);

impl ToolGate for GateClient {
    fn check<'a>(&'a self, request: &'a ToolRequest) -> ToolDecisionFuture<'a> {
        Box::pin(async move {
            let ToolRequest { session, id: call, server, tool, name, arguments } = request.clone();
            let (answer, verdict) = oneshot::channel();
            let inquiry =
                GateRequest::CheckTool(ToolCheck { session, call, server, tool, name, arguments }, answer);
            // A gate that does not answer has not allowed anything.
            if self.0.send(inquiry).await.is_err() {
                return ToolDecision::Deny("no decision: the gate has stopped".to_owned());
            }
            match verdict.await {
                Ok(None) => ToolDecision::Allow,
                Ok(Some(why)) => ToolDecision::Deny(why),
                Err(_) => ToolDecision::Deny("no decision: the gate did not answer".to_owned()),
            }
        })
    }
}

/// Returns the settings of the agent that runs the operator.
pub(super) fn settings(manifest: &LoadedManifest, args: &Serve) -> Result<Settings, Failure> {
    let operator = manifest.bundle.operator.as_ref().ok_or_else(Failure::no_operator)?;
    let system = system_prompt::build(&operator.front, &manifest.bundle);
    let settings = super::super::acp::settings(Acp {
        model: args.model.clone(),
        errors: None,
        data_dir: args.data_dir.clone(),
        // The sessions of an operator without memory are not stored.
        no_store: memory::keeps_nothing(&operator.front),
        mcp: None,
        local: true,
        ignored: Vec::new(),
    })?;
    for binding in manifest.bundle.mcp_servers.iter().filter(|binding| mcp_server_config(binding).is_none()) {
        let name = line(&binding.server.name);
        output::write_stderr(&format!("warning: the MCP server {name:?} is not started: no command or URL"));
    }
    Ok(Settings { system: Some(system), ..settings })
}

/// Starts an agent that asks the gate before it uses a tool. The agent ends with its link.
pub(super) fn start(
    settings: &Settings,
    ask: mpsc::Sender<GateRequest>,
    memory_writer: Option<Arc<MemoryWriter>>,
) -> (Link, JoinHandle<Result<(), EndpointError>>) {
    let mut settings = Settings { gate: Arc::new(GateClient(ask)), ..settings.clone() };
    if let Some(memory_writer) = memory_writer {
        settings.memory = memory_writer;
    }
    let (inner, outer) = pair(&narrows_link::Options::default());
    let (peer, inbox) = narrows_rpc::start(inner, narrows_agent::options());
    (outer, tokio::spawn(narrows_agent::run(peer, inbox, settings)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn requested(arguments: serde_json::Value) -> ToolRequest {
        let (session, id) = ("s".into(), "c".into());
        ToolRequest { session, id, server: None, tool: "t".into(), name: "t".into(), arguments }
    }

    async fn verdict(answer: Option<Option<String>>) -> ToolDecision {
        let (ask, mut asked) = mpsc::channel(1);
        let gate = GateClient(ask);
        let request = requested(json!({"a": 1}));
        let answering = async {
            let Some(GateRequest::CheckTool(request, to)) = asked.recv().await else { return };
            assert_eq!((request.tool.as_str(), request.arguments), ("t", json!({"a": 1})));
            match answer {
                Some(answer) => drop(to.send(answer)),
                None => drop(to),
            }
        };
        tokio::join!(gate.check(&request), answering).0
    }

    #[tokio::test]
    async fn only_an_explicit_allow_lets_a_tool_run() {
        assert_eq!(verdict(Some(None)).await, ToolDecision::Allow);
        assert_eq!(verdict(Some(Some("no".into()))).await, ToolDecision::Deny("no".into()));
        assert_eq!(verdict(None).await, ToolDecision::Deny("no decision: the gate did not answer".into()));
        let (ask, asked) = mpsc::channel(1);
        drop(asked);
        assert!(matches!(GateClient(ask).check(&requested(json!({}))).await, ToolDecision::Deny(_)));
    }
}
