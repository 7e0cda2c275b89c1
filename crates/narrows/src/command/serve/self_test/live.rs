//! The agent of the manifest itself, asked to introduce itself and no more.

use std::path::Path;
use std::time::{Duration, Instant};

use narrows_govern::{Patience, Principal};
use narrows_link::{Link, memory};
use narrows_manifest::Capabilities;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::point::{Outcome, fails, holds, not_applicable, passes};
use crate::cli::{Acp, Serve};
use crate::command::serve::agent;
use crate::command::serve::bridge::ladder;
use crate::command::serve::charge::Charge;
use crate::failure::Failure;

/// How long it may take to introduce itself.
const PATIENCE: Duration = Duration::from_secs(30);

/// What was seen of it.
#[derive(Debug)]
pub(super) enum Live {
    /// It has introduced itself.
    Introduced {
        answer: Value,
        /// How it ended, and after how long, if it is a process.
        ended: Option<(String, Duration)>,
    },
    /// It did not.
    Failed(String),
}

/// Starts it, hears what it says of itself, and ends it.
pub(super) async fn introduce(charge: &Charge, args: &Serve, data: &Path) -> Live {
    match charge.bundle.agent {
        Some(_) => process(charge).await,
        None => built_in(args, data).await,
    }
    .unwrap_or_else(Live::Failed)
}

async fn process(charge: &Charge) -> Result<Live, String> {
    let words = |failure: Failure| failure.message();
    // What it runs in is told by what serves, into the real log.
    let prepared = agent::prepare(charge, None).await.map_err(words)?;
    let started =
        prepared.start(charge, &narrows_link::Options::default(), None, &Principal::default()).await;
    let (mut link, process) = started.map_err(words)?;
    let answer = initialize(&mut link).await;
    link.sender.close();
    let began = Instant::now();
    let exit = process.stop(ladder(None, &charge.patience)).await.exit;
    let ended = Some((exit.to_string(), began.elapsed()));
    Ok(Live::Introduced { answer: answer?, ended })
}

async fn built_in(args: &Serve, data: &Path) -> Result<Live, String> {
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
    let ended = timeout(PATIENCE, playing).await;
    match (answer, ended) {
        (Ok(answer), _) => Ok(Live::Introduced { answer, ended: None }),
        (Err(_), Ok(Ok(Err(error)))) => Err(error.to_string()),
        (Err(why), _) => Err(why),
    }
}

async fn initialize(link: &mut Link) -> Result<Value, String> {
    let info = json!({"name": "narrows-self-test", "version": env!("CARGO_PKG_VERSION")});
    let params = json!({"protocolVersion": 1, "clientCapabilities": {}, "clientInfo": info});
    let line = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params});
    let gone = || "it has gone".to_owned();
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
    let slow = || format!("it did not introduce itself within {} s", PATIENCE.as_secs());
    timeout(PATIENCE, answering).await.map_err(|_| slow())?
}

impl Live {
    /// Point 1.
    pub(super) fn conformance(&self, declared: &Capabilities) -> Outcome {
        let answer = match self {
            Self::Introduced { answer, .. } => answer,
            Self::Failed(why) => return fails(format!("the agent does not start: {why}")),
        };
        let can = &answer["result"]["agentCapabilities"];
        let is = |place: &str| can.pointer(place) == Some(&Value::Bool(true));
        let live = Capabilities {
            load_session: is("/loadSession"),
            image: is("/promptCapabilities/image"),
            audio: is("/promptCapabilities/audio"),
            embedded_context: is("/promptCapabilities/embeddedContext"),
            mcp_http: is("/mcpCapabilities/http"),
            mcp_sse: is("/mcpCapabilities/sse"),
            mcp_acp: is("/mcpCapabilities/acp"),
            // These are the client's, or have no flag.
            ..*declared
        };
        if !can.is_object() {
            return fails(format!("the agent answers initialize with {}", answer["error"]));
        }
        let missing = declared.missing_in(&live);
        if !missing.is_empty() {
            return fails(format!("declared, and the agent lacks it: {}", missing.join(", ")));
        }
        let name = answer["result"]["agentInfo"]["name"].as_str().unwrap_or("the agent");
        let version = &answer["result"]["protocolVersion"];
        passes(format!("{name} speaks version {version} and has everything that is declared"))
    }

    /// Point 18.
    pub(super) fn ending(&self) -> Outcome {
        match self {
            Self::Introduced { ended: Some((exit, took)), .. } => {
                let ladder = ladder(None, &Patience::default());
                let most = ladder.eof_grace + ladder.term_grace + Duration::from_secs(3);
                holds(
                    *took < most,
                    format!("the process {exit} {} ms after its input was closed", took.as_millis()),
                )
            }
            Self::Introduced { ended: None, .. } => not_applicable("the agent is built in, and no process"),
            Self::Failed(_) => not_applicable("the agent does not start"),
        }
    }
}
