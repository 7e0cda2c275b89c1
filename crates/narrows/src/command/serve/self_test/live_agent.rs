//! Initializes the agent of the manifest itself.

use std::path::Path;
use std::time::{Duration, Instant};

use narrows_govern::{GateTimeouts, Principal};
use narrows_link::{Link, memory};
use narrows_manifest::Capabilities;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::point::{PointResult, fails, not_applicable, passes, passes_if};
use crate::cli::{Acp, Serve};
use crate::command::serve::agent;
use crate::command::serve::bridge::stop_ladder;
use crate::command::serve::manifest::LoadedManifest;
use crate::failure::Failure;

const INITIALIZE_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(super) enum LiveAgent {
    Introduced {
        answer: Value,
        /// How the process ended, and how long that took after its input was closed. `None` for the built-in
        /// agent.
        ended: Option<(String, Duration)>,
    },
    Failed(String),
}

pub(super) async fn probe(manifest: &LoadedManifest, args: &Serve, data: &Path) -> LiveAgent {
    match manifest.bundle.agent {
        Some(_) => probe_process(manifest).await,
        None => probe_built_in(args, data).await,
    }
    .unwrap_or_else(LiveAgent::Failed)
}

async fn probe_process(manifest: &LoadedManifest) -> Result<LiveAgent, String> {
    let words = |failure: Failure| failure.message();
    // No log is passed, because the sandbox of the self-test must not be recorded in the real log.
    let prepared = agent::prepare(manifest, None).await.map_err(words)?;
    let started =
        prepared.start(manifest, &narrows_link::Options::default(), None, &Principal::default()).await;
    let (mut link, process) = started.map_err(words)?;
    let answer = initialize(&mut link).await;
    link.sender.close();
    let began = Instant::now();
    let exit = process.stop(stop_ladder(None, &manifest.patience)).await.exit;
    let ended = Some((exit.to_string(), began.elapsed()));
    Ok(LiveAgent::Introduced { answer: answer?, ended })
}

async fn probe_built_in(args: &Serve, data: &Path) -> Result<LiveAgent, String> {
    let settings = crate::command::acp::settings(Acp {
        model: args.model.clone(),
        errors: None,
        data_dir: Some(data.to_owned()),
        no_store: false,
        mcp: None,
        local: true,
        ignored: Vec::new(),
    })
    .map_err(|failure| failure.message())?;
    let (inner, mut outer) = memory::pair(&narrows_link::Options::default());
    let (peer, inbox) = narrows_rpc::start(inner, narrows_agent::options());
    let playing = tokio::spawn(narrows_agent::run(peer, inbox, settings));
    let answer = initialize(&mut outer).await;
    outer.sender.close();
    let ended = timeout(INITIALIZE_TIMEOUT, playing).await;
    match (answer, ended) {
        (Ok(answer), _) => Ok(LiveAgent::Introduced { answer, ended: None }),
        (Err(_), Ok(Ok(Err(error)))) => Err(error.to_string()),
        (Err(why), _) => Err(why),
    }
}

async fn initialize(link: &mut Link) -> Result<Value, String> {
    let info = json!({"name": "narrows-self-test", "version": env!("CARGO_PKG_VERSION")});
    let params = json!({"protocolVersion": 1, "clientCapabilities": {}, "clientInfo": info});
    let line = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params});
    let gone = || "exited before it answered initialize".to_owned();
    link.sender.send(line.to_string().into()).await.map_err(|_| gone())?;
    let answering = async {
        loop {
            let frame = link.receiver.recv().await.ok_or_else(gone)?;
            let message: Value = serde_json::from_slice(frame.bytes()).unwrap_or_default();
            if message["id"] == 1 {
                return Ok(message);
            }
        }
    };
    let slow = || format!("no answer to initialize within {} s", INITIALIZE_TIMEOUT.as_secs());
    timeout(INITIALIZE_TIMEOUT, answering).await.map_err(|_| slow())?
}

impl LiveAgent {
    pub(super) fn conformance(&self, declared: &Capabilities) -> PointResult {
        let answer = match self {
            Self::Introduced { answer, .. } => answer,
            Self::Failed(why) => return fails(format!("the agent cannot be started: {why}")),
        };
        let can = &answer["result"]["agentCapabilities"];
        let is = |place: &str| can.pointer(place) == Some(&Value::Bool(true));
        let agent = Capabilities {
            load_session: is("/loadSession"),
            image: is("/promptCapabilities/image"),
            audio: is("/promptCapabilities/audio"),
            embedded_context: is("/promptCapabilities/embeddedContext"),
            mcp_http: is("/mcpCapabilities/http"),
            mcp_sse: is("/mcpCapabilities/sse"),
            mcp_acp: is("/mcpCapabilities/acp"),
            // The other capabilities belong to the client, or have no flag in `initialize`.
            ..*declared
        };
        if !can.is_object() {
            return fails(format!("the agent answered initialize with {}", answer["error"]));
        }
        let missing = declared.missing_in(&agent);
        if !missing.is_empty() {
            return fails(format!("declared, but missing in the agent: {}", missing.join(", ")));
        }
        let name = answer["result"]["agentInfo"]["name"].as_str().unwrap_or("the agent");
        let version = &answer["result"]["protocolVersion"];
        passes(format!("{name} speaks version {version} and has all declared capabilities"))
    }

    pub(super) fn ending(&self) -> PointResult {
        match self {
            Self::Introduced { ended: Some((exit, took)), .. } => {
                let ladder = stop_ladder(None, &GateTimeouts::default());
                let most = ladder.eof_grace + ladder.term_grace + Duration::from_secs(3);
                passes_if(
                    *took < most,
                    format!("the process {exit} {} ms after its input was closed", took.as_millis()),
                )
            }
            Self::Introduced { ended: None, .. } => not_applicable("the built-in agent is not a process"),
            Self::Failed(_) => not_applicable("the agent cannot be started"),
        }
    }
}
