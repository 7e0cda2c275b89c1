//! Starts an agent process, negotiates the protocol version and ends the process.

use std::collections::BTreeSet;
use std::time::Duration;

use narrows_acp::capability::{AUTHORIZES, AgentCan};
use narrows_acp::method::INITIALIZE;
use narrows_acp::offer::{InitializeAnswer, NegotiationError, NegotiationOutcome, judge_error, judge_result};
use narrows_acp::{ProtocolVersion, Version, Versions, v1, v2};
use narrows_link::Link;
use narrows_link::child::{self, Process};
use narrows_process::{Ladder, Spec};
use narrows_rpc::{CallError, Inbox, Item, Options, Peer};
use narrows_wire::{Code, RpcError};
use serde::Serialize;
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

use crate::deadline::Deadlines;
use crate::early_requests::unknown_method;
use crate::error::{AgentOutput, ClientError, Login, LoginKind, Problem, Stage};
use crate::peer_json;
use crate::usage::UsageScope;

/// Number of stderr lines that are kept to explain a failure.
const MAX_STDERR_LINES: usize = 20;

/// Settings of an agent: how it is started, and its deadlines.
#[derive(Clone, Debug)]
pub struct Agent {
    /// Name that the user gave the agent; appears as `provider` in events.
    pub name: String,
    pub spec: Spec,
    /// Protocol version to offer first. If the agent answers with a lower version, the client restarts the
    /// agent and offers the lower version.
    pub protocol: Version,
    pub deadlines: Deadlines,
    /// Scope of the usage reports at the end of a turn.
    pub usage_scope: UsageScope,
    /// `true` if the agent is known to change files and run commands only through its client, so that the
    /// policy covers all of its actions.
    pub acts_through_client: bool,
    /// Program that runs commands, as stated by the user. Only used if `acts_through_client` is unknown.
    pub commands_run_by: CommandRunner,
}

/// The program that runs the commands for which an agent requests permission.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CommandRunner {
    /// The agent may run the commands itself, without a sandbox.
    #[default]
    Agent,
    /// The client runs all commands, by `terminal/create` or its MCP tool, so a permission request is judged
    /// with the client's sandbox. The client cannot verify this statement of the user: an agent that runs a
    /// command itself is reported, not stopped.
    Client,
}

impl Agent {
    /// Creates settings with default deadlines and protocol version 1, which nearly all agents speak.
    pub fn new(name: impl Into<String>, spec: Spec) -> Self {
        Self {
            name: name.into(),
            spec,
            protocol: Version::V1,
            deadlines: Deadlines::default(),
            usage_scope: UsageScope::default(),
            acts_through_client: false,
            commands_run_by: CommandRunner::default(),
        }
    }
}

/// Client capabilities that are offered to the agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    pub read_files: bool,
    pub write_files: bool,
    pub run_commands: bool,
}

/// Name and version that the agent reports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Info {
    pub name: String,
    pub version: String,
}

/// Answer of an agent to `initialize`.
#[derive(Clone, Debug)]
pub struct AgentDescription {
    pub version: Version,
    pub info: Option<Info>,
    pub can: AgentCan,
    pub logins: Vec<Login>,
    pub raw: Value,
}

impl AgentDescription {
    /// Returns `true` if the agent has the name of the built-in agent, which acts only through its client.
    pub(crate) fn is_built_in_agent(&self) -> bool {
        self.info.as_ref().is_some_and(|info| info.name == "narrows")
    }
}

enum InitializeOutcome {
    Agreed(AgentDescription),
    /// The agent must be restarted, and offered this lower protocol version.
    Again(Version),
}

#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) peer: Peer,
    pub(crate) inbox: Inbox,
    /// `None` if the agent was started by another program.
    pub(crate) process: Option<Process>,
    pub(crate) known: AgentDescription,
}

/// Starts the agent, and restarts it if it requires a lower version.
pub(crate) async fn start(agent: &Agent, offer: Offer) -> Result<Running, ClientError> {
    let mut version = agent.protocol;
    loop {
        let started = child::spawn(agent.spec.clone(), &narrows_link::Options::default()).await;
        let (link, process) = started.map_err(|source| {
            ClientError::new(Stage::Start, Problem::Spawn { agent: agent.name.clone(), source })
        })?;
        let (peer, mut inbox) = narrows_rpc::start(link, Options::client(is_known_method));
        match refuse_requests_while(&mut inbox, initialize(&peer, version, offer, agent)).await {
            Ok(InitializeOutcome::Agreed(known)) => {
                return Ok(Running { peer, inbox, process: Some(process), known });
            }
            Ok(InitializeOutcome::Again(lower)) => {
                tracing::info!(%version, %lower, "agent requires a lower protocol version");
                // The process may be ended quickly, because no session is open yet.
                end(&peer, process, Ladder { eof_grace: Duration::from_millis(200), ..Ladder::default() })
                    .await;
                version = lower;
            }
            Err(problem) => {
                let mut error = ClientError::new(Stage::Initialize, problem);
                let lost = matches!(*error.problem, Problem::Lost(_));
                error.agent_output =
                    end(&peer, process, if lost { Ladder::default() } else { short_ladder() }).await;
                return Err(error);
            }
        }
    }
}

/// Initializes a running agent at the other end of `link`.
pub(crate) async fn initialize_over(link: Link, agent: &Agent, offer: Offer) -> Result<Running, ClientError> {
    let (peer, mut inbox) = narrows_rpc::start(link, Options::client(is_known_method));
    let failed = |problem| ClientError::new(Stage::Initialize, problem);
    let opening = initialize(&peer, agent.protocol, offer, agent);
    match refuse_requests_while(&mut inbox, opening).await.map_err(failed)? {
        InitializeOutcome::Agreed(known) => Ok(Running { peer, inbox, process: None, known }),
        InitializeOutcome::Again(lower) => {
            let words = format!("the agent requires protocol version {lower}");
            Err(failed(Problem::Unsupported(words)))
        }
    }
}

/// Accepts every method, so that an unknown request is reported as an event and refused.
fn is_known_method(_: &str) -> bool {
    true
}

/// Waits for `opening`, and refuses all requests of the agent meanwhile. Without answers, the agent may wait
/// for ever. A program that is not an agent may echo the client's requests.
async fn refuse_requests_while<T>(inbox: &mut Inbox, opening: impl Future<Output = T>) -> T {
    let mut opening = std::pin::pin!(opening);
    loop {
        tokio::select! {
            biased;
            opened = &mut opening => return opened,
            Some(item) = inbox.recv() => {
                if let Item::Request(request) = item {
                    request.responder.fail(&unknown_method());
                }
            }
        }
    }
}

/// Returns short grace periods for ending an agent that did not answer.
fn short_ladder() -> Ladder {
    Ladder { eof_grace: Duration::from_millis(500), term_grace: Duration::from_secs(2) }
}

/// Ends the agent and its process tree. Returns the last output of the agent.
pub(crate) async fn end(peer: &Peer, process: Process, ladder: Ladder) -> AgentOutput {
    let stderr = process.stderr();
    peer.close();
    let exit = process.stop(ladder).await;
    if exit.survivors > 0 {
        tracing::warn!(%exit, "agent left processes behind");
    }
    AgentOutput {
        stray_lines: stray_lines(peer),
        strays: peer.stray_lines(),
        stderr: stderr.tail(MAX_STDERR_LINES),
    }
}

pub(crate) fn agent_output(peer: &Peer, process: Option<&Process>) -> AgentOutput {
    let stderr = process.map(|process| process.stderr().tail(MAX_STDERR_LINES));
    AgentOutput {
        stray_lines: stray_lines(peer),
        strays: peer.stray_lines(),
        stderr: stderr.unwrap_or_default(),
    }
}

fn stray_lines(peer: &Peer) -> u64 {
    let stats = peer.stats();
    stats.noise + stats.invalid
}

async fn initialize(
    peer: &Peer,
    offered: Version,
    offer: Offer,
    agent: &Agent,
) -> Result<InitializeOutcome, Problem> {
    let (name, number) = ("narrows", env!("CARGO_PKG_VERSION"));
    let limit = agent.deadlines.initialize;
    let answer: Result<Box<RawValue>, CallError> = match offered {
        Version::V1 => {
            let files = v1::FileSystemCapabilities::new()
                .read_text_file(offer.read_files)
                .write_text_file(offer.write_files);
            let shown = v1::ClientSessionCapabilities::new().notices(v1::NoticeCapabilities::new());
            let can = v1::ClientCapabilities::new()
                .fs(files)
                .terminal(offer.run_commands)
                .session(shown)
                .meta(v1::Meta::from_iter([(AUTHORIZES.to_owned(), true.into())]));
            let params = v1::InitializeRequest::new(ProtocolVersion::V1)
                .client_info(v1::Implementation::new(name, number))
                .client_capabilities(can);
            peer.request(INITIALIZE, &params, limit).await
        }
        Version::V2 => {
            let can = v2::ClientCapabilities::new()
                .meta(v2::Meta::from_iter([(AUTHORIZES.to_owned(), true.into())]));
            let params =
                v2::InitializeRequest::new(ProtocolVersion::V2, v2::Implementation::new(name, number))
                    .capabilities(can);
            peer.request(INITIALIZE, &params, limit).await
        }
    };
    let (verdict, raw) = match answer {
        Ok(result) => {
            let raw = peer_json::read(result.get().as_bytes())
                .map_err(|error| CallError::Malformed(error.to_string()))?;
            (judge_result(Versions::Both, offered, &result), raw)
        }
        Err(CallError::Refused(error)) => match refused(offered, &error) {
            // The agent has refused `initialize`. Its own error message is more helpful than the version
            // number.
            Err(NegotiationError::Refused { .. }) => return Err(Problem::Refused(error)),
            verdict => (verdict, Value::Null),
        },
        Err(error) => return Err(error.into()),
    };
    let verdict = match verdict {
        // Some agents echo any offered version, but answer in the format of version 1.
        Err(NegotiationError::Answer(_)) if offered == Version::V2 => {
            Ok(NegotiationOutcome::Reconnect(Version::V1))
        }
        verdict => verdict,
    };
    match verdict.map_err(Problem::NoCommonVersion)? {
        NegotiationOutcome::Accepted(answer) => {
            Ok(InitializeOutcome::Agreed(introduced(&answer, raw, &agent.spec)))
        }
        NegotiationOutcome::Reconnect(version) => Ok(InitializeOutcome::Again(version)),
    }
}

fn refused(offered: Version, error: &RpcError) -> Result<NegotiationOutcome, NegotiationError> {
    let data = error.data.as_ref().and_then(|data| to_raw_value(data).ok());
    let code = i32::try_from(error.code).unwrap_or(Code::Internal.number());
    judge_error(Versions::Both, offered, code, data.as_deref())
}

fn introduced(answer: &InitializeAnswer, raw: Value, spec: &Spec) -> AgentDescription {
    let logins = logins(&raw, spec);
    match answer {
        InitializeAnswer::V1(answer) => AgentDescription {
            version: Version::V1,
            info: answer
                .agent_info
                .as_ref()
                .map(|info| Info { name: info.name.clone(), version: info.version.clone() }),
            can: AgentCan::from(&**answer),
            logins,
            raw,
        },
        InitializeAnswer::V2(answer) => AgentDescription {
            version: Version::V2,
            info: Some(Info { name: answer.info.name.clone(), version: answer.info.version.clone() }),
            can: AgentCan::from(&**answer),
            logins,
            raw,
        },
    }
}

/// Reads the login methods leniently: the current schema has no member for variables, but older agents send
/// it.
fn logins(raw: &Value, spec: &Spec) -> Vec<Login> {
    let text = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
    let login = |value: &Value| {
        let id = text(value, "id").or_else(|| text(value, "methodId"))?;
        let how = match text(value, "type").as_deref() {
            None | Some("agent") => LoginKind::Agent,
            Some("terminal") => {
                let words = value.get("args").and_then(Value::as_array).cloned().unwrap_or_default();
                let arguments = words.iter().filter_map(Value::as_str).map(str::to_owned).collect();
                LoginKind::Terminal { arguments }
            }
            Some("env_var") => environment(value, spec),
            Some(_) => LoginKind::Other,
        };
        let name = text(value, "name").unwrap_or_else(|| id.clone());
        Some(Login { id, name, description: text(value, "description"), how })
    };
    raw.get("authMethods")
        .and_then(Value::as_array)
        .map_or(Vec::new(), |all| all.iter().filter_map(login).collect())
}

/// Reads the variables of a login method: a member `varName`, or a list `vars` of names or of objects with a
/// `name`.
fn environment(value: &Value, spec: &Spec) -> LoginKind {
    let mut variables = BTreeSet::new();
    let mut missing = BTreeSet::new();
    let single = value.get("varName").into_iter();
    let several = value.get("vars").and_then(Value::as_array).into_iter().flatten();
    for variable in single.chain(several) {
        let name = variable.as_str().or_else(|| variable.get("name").and_then(Value::as_str));
        let Some(name) = name else { continue };
        let is_optional = variable.get("optional") == Some(&Value::Bool(true));
        if spec.env.get(name).is_none_or(std::ffi::OsStr::is_empty) && !is_optional {
            missing.insert(name.to_owned());
        }
        variables.insert(name.to_owned());
    }
    LoginKind::Environment {
        variables: variables.into_iter().collect(),
        missing: missing.into_iter().collect(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn login_methods_are_distinguished() {
        let mut spec = Spec::new("agent");
        spec.env.set("HAVE", "1");
        spec.env.set("EMPTY", "");
        let found = logins(
            &json!({"authMethods": [
                {"id": "a", "name": "A", "description": "browser"},
                {"type": "terminal", "methodId": "t", "name": "T", "args": ["login", 7]},
                {"type": "env_var", "id": "e", "vars": [{"name": "HAVE"}, {"name": "EMPTY"}, {"name": "X", "optional": true}]},
                {"type": "env_var", "id": "f", "varName": "HAVE"},
                {"type": "magic", "id": "m"},
                {"name": "no id"},
            ]}),
            &spec,
        );
        let kinds: Vec<_> = found.iter().map(|login| (login.id.as_str(), &login.how)).collect();
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(
            kinds,
            [
                ("a", &LoginKind::Agent),
                ("t", &LoginKind::Terminal { arguments: names(&["login"]) }),
                (
                    "e",
                    &LoginKind::Environment {
                        variables: names(&["EMPTY", "HAVE", "X"]),
                        missing: names(&["EMPTY"])
                    }
                ),
                ("f", &LoginKind::Environment { variables: names(&["HAVE"]), missing: Vec::new() }),
                ("m", &LoginKind::Other),
            ]
        );
        assert!(logins(&json!({}), &spec).is_empty());
    }
}
