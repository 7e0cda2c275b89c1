//! A manifest of the kind `server`: its operator, played by the built-in agent.

use std::process::ExitCode;
use std::sync::Arc;

use narrows_agent::{Checking, Settings, ToolGate, ToolRequest, Verdict};
use narrows_govern::{Ended, Inquiry, Request, provided};
use narrows_link::memory;
use tokio::sync::{mpsc, oneshot};

use super::stand::{self, Outcome, QUESTIONS};
use super::{Post, door, persona};
use crate::cli::{Acp, Serve};
use crate::failure::{Code, Failure};
use crate::interrupt::Interrupts;
use crate::output;
use crate::terminal::line;

/// Asks the gate before a tool is announced or run.
#[derive(Debug)]
struct Counsel(mpsc::Sender<Inquiry>);

impl ToolGate for Counsel {
    fn check<'a>(&'a self, request: &'a ToolRequest) -> Checking<'a> {
        Box::pin(async move {
            let ToolRequest { session, server, tool, name, arguments } = request.clone();
            let (answer, said) = oneshot::channel();
            let inquiry = Inquiry::Consult(Request { session, server, tool, name, arguments }, answer);
            // Whoever cannot be asked has not agreed.
            if self.0.send(inquiry).await.is_err() {
                return Verdict::Deny("nobody decides about it any more".to_owned());
            }
            match said.await {
                Ok(None) => Verdict::Allow,
                Ok(Some(why)) => Verdict::Deny(why),
                Err(_) => Verdict::Deny("nobody has decided about it".to_owned()),
            }
        })
    }
}

/// Serves until the client has gone.
pub(super) fn serve(post: Post, args: &Serve) -> Result<ExitCode, Failure> {
    let operator = post.charge.bundle.operator.as_ref().ok_or_else(Failure::no_operator)?;
    let system = persona::of(&operator.front, &post.charge.bundle);
    let settings = super::super::acp::settings(Acp {
        model: args.model.clone(),
        errors: None,
        data_dir: args.data_dir.clone(),
        no_store: false,
        ignored: Vec::new(),
    })?;
    for binding in post.charge.bundle.mcp_servers.iter().filter(|binding| provided(binding).is_none()) {
        let name = line(&binding.server.name);
        output::complain(&format!("warning: the MCP server {name:?} is not started: nothing says how\n"));
    }
    super::super::block_on(run(post, Settings { system: Some(system), ..settings }))?
}

async fn run(post: Post, settings: Settings) -> Result<ExitCode, Failure> {
    let Post { charge, log, who } = post;
    let mut interrupts = Interrupts::take().map_err(|error| Failure::setup("get ready", &error))?;
    let options = narrows_link::Options::default();
    let (ask, asked) = mpsc::channel(QUESTIONS);
    let settings = Settings { gate: Arc::new(Counsel(ask.clone())), ..settings };
    let gate = stand::gate(&charge, who)?;
    let door = door::open(&charge, ask.clone())?;
    let client = narrows_link::stdio::take(&options)
        .map_err(|error| Failure::setup("take stdin and stdout", &error))?;
    let output = client.sender.clone();
    let (inner, outer) = memory::pair(&options);
    let (peer, inbox) = narrows_rpc::start(inner, narrows_agent::options());
    let agent = tokio::spawn(narrows_agent::run(peer, inbox, settings));
    let outcome = stand::stand(gate, client, outer, log.clone(), (ask, asked), &mut interrupts).await;
    drop(door);
    stand::drain(&output).await;
    // The gate has closed its link, so it ends; what it has done is to be stored.
    let played = agent.await;
    if let Some(log) = log {
        log.close();
    }
    if let Ok(Err(error)) = &played {
        return Err(Failure::endpoint_setting(error));
    }
    match outcome {
        Outcome::Ended(Ended::Client | Ended::Told) => Ok(Code::Success.exit()),
        Outcome::Ended(Ended::Agent) => Err(Failure::operator_gone()),
        Outcome::Ended(Ended::Unruly(why)) => Err(Failure::unruly("narrows acp", &why)),
        Outcome::Left(signal) => Err(Failure::left(signal)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn wanted(arguments: serde_json::Value) -> ToolRequest {
        ToolRequest { session: "s".into(), server: None, tool: "t".into(), name: "t".into(), arguments }
    }

    async fn said(answer: Option<Option<String>>) -> Verdict {
        let (ask, mut asked) = mpsc::channel(1);
        let gate = Counsel(ask);
        let request = wanted(json!({"a": 1}));
        let answering = async {
            let Some(Inquiry::Consult(request, to)) = asked.recv().await else { return };
            assert_eq!((request.tool.as_str(), request.arguments), ("t", json!({"a": 1})));
            match answer {
                Some(answer) => drop(to.send(answer)),
                None => drop(to),
            }
        };
        tokio::join!(gate.check(&request), answering).0
    }

    #[tokio::test]
    async fn only_a_clear_yes_lets_a_tool_run() {
        assert_eq!(said(Some(None)).await, Verdict::Allow);
        assert_eq!(said(Some(Some("no".into()))).await, Verdict::Deny("no".into()));
        assert_eq!(said(None).await, Verdict::Deny("nobody has decided about it".into()));
        let (ask, asked) = mpsc::channel(1);
        drop(asked);
        assert!(matches!(Counsel(ask).check(&wanted(json!({}))).await, Verdict::Deny(_)));
    }
}
