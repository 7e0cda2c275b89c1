//! The agent: its process, the conversation with it, and how that begins.

use std::path::Path;
use std::time::Duration;

use narrows_acp::method::{INITIALIZE, SESSION_NEW, SESSION_REQUEST_PERMISSION, SESSION_UPDATE};
use narrows_acp::offer::{Answer, Unfit, Verdict, judge_error, judge_result};
use narrows_acp::{ProtocolVersion, Version, Versions, v1, v2};
use narrows_link::child::{self, Process};
use narrows_process::{Ladder, Spec};
use narrows_rpc::{CallError, Options, Peer};
use narrows_wire::{Code, RpcError};
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

use super::error::{DriveError, Problem, Stage};
use super::outside::Outside;
use super::turn::Turn;

/// How much of its stderr explains what an agent did.
const STDERR_LINES: usize = 20;

/// How an agent is started.
#[derive(Debug)]
pub(crate) struct Launch {
    /// The program in the words of the user.
    pub(crate) program: String,
    /// The process.
    pub(crate) spec: Spec,
}

/// A way to log in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Login {
    /// Its name.
    pub(crate) name: String,
    /// What it is.
    pub(crate) description: Option<String>,
}

/// Who the agent says it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Info {
    /// Its name.
    pub(crate) name: String,
    /// Its version.
    pub(crate) version: String,
}

/// What is known of an agent after `initialize`.
#[derive(Clone, Debug)]
pub(crate) struct Introduced {
    /// The version of the conversation.
    pub(crate) version: Version,
    /// Who it is, if it says so.
    pub(crate) info: Option<Info>,
    /// The ways to log in.
    pub(crate) logins: Vec<Login>,
}

/// How `initialize` ended.
#[derive(Debug)]
pub(crate) enum Opening {
    /// With an agreement.
    Agreed(Introduced),
    /// Another process is needed, with a lower version.
    Again(Version),
}

/// An agent that runs.
#[derive(Debug)]
pub(crate) struct Agent {
    peer: Peer,
    outside: Outside,
    process: Process,
}

impl Agent {
    /// Starts the process.
    pub(crate) async fn start(launch: &Launch) -> Result<Self, DriveError> {
        let started = child::spawn(launch.spec.clone(), &narrows_link::Options::default()).await;
        let (link, process) = started.map_err(|source| {
            DriveError::new(Stage::Start, Problem::Spawn { program: launch.program.clone(), source })
        })?;
        let (peer, inbox) = narrows_rpc::start(link, Options::client(serves));
        Ok(Self { peer, outside: Outside::new(inbox), process })
    }

    /// Settles the version of the conversation.
    pub(crate) async fn initialize(
        &mut self,
        offered: Version,
        limit: Duration,
    ) -> Result<Opening, DriveError> {
        let failed = |problem| DriveError::new(Stage::Initialize, problem);
        let (name, number) = (env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"));
        let answer: Result<Box<RawValue>, CallError> = match offered {
            Version::V1 => {
                let info = v1::Implementation::new(name, number);
                let params = v1::InitializeRequest::new(ProtocolVersion::V1).client_info(info);
                self.outside.beside(self.peer.request(INITIALIZE, &params, limit)).await
            }
            Version::V2 => {
                let params =
                    v2::InitializeRequest::new(ProtocolVersion::V2, v2::Implementation::new(name, number));
                self.outside.beside(self.peer.request(INITIALIZE, &params, limit)).await
            }
        };
        let verdict = match answer {
            Ok(result) => judge_result(Versions::Both, offered, &result),
            Err(CallError::Refused(error)) => match refused(offered, &error) {
                // The agent's own words say more than the number.
                Err(Unfit::Refused { .. }) => return Err(failed(Problem::Refused(error))),
                verdict => verdict,
            },
            Err(error) => return Err(failed(error.into())),
        };
        match verdict.map_err(|unfit| failed(Problem::Unfit(unfit)))? {
            Verdict::Accepted(answer) => Ok(Opening::Agreed(introduced(answer))),
            Verdict::Reconnect(version) => Ok(Opening::Again(version)),
        }
    }

    /// Opens a session and returns its id.
    pub(crate) async fn new_session(
        &mut self,
        cwd: &Path,
        logins: &[Login],
        limit: Duration,
    ) -> Result<String, DriveError> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Params<'a> {
            cwd: &'a Path,
            // Version 1 demands it even if there are none.
            mcp_servers: [(); 0],
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Opened {
            session_id: String,
        }
        let params = Params { cwd, mcp_servers: [] };
        match self.outside.beside(self.peer.request(SESSION_NEW, &params, limit)).await {
            Ok(Opened { session_id }) => Ok(session_id),
            Err(error) => Err(DriveError::new(Stage::NewSession, login_needed(error, logins))),
        }
    }

    /// Sends the prompt.
    pub(crate) async fn prompt(
        &mut self,
        known: &Introduced,
        session: &str,
        prompt: &str,
    ) -> Result<Turn<'_>, DriveError> {
        let turn = Turn::begin(&self.peer, &mut self.outside, known, session, prompt).await;
        turn.map_err(|problem| DriveError::new(Stage::Turn, problem))
    }

    /// Ends the agent and everything it started, and adds to `error` what was seen of it. Returns how many lines came
    /// that were no messages.
    pub(crate) async fn stop(self, error: Option<&mut DriveError>) -> u64 {
        let stats = self.peer.stats();
        let stderr = self.process.stderr();
        self.peer.close();
        let exit = self.process.stop(Ladder::default()).await;
        if exit.survivors > 0 {
            tracing::warn!(%exit, "the agent has left processes behind");
        }
        let stray_lines = stats.noise + stats.invalid;
        if let Some(error) = error {
            error.stray_lines = stray_lines;
            error.stderr = stderr.tail(STDERR_LINES);
        }
        stray_lines
    }
}

/// What an agent may ask of us.
fn serves(method: &str) -> bool {
    matches!(method, SESSION_UPDATE | SESSION_REQUEST_PERMISSION)
}

fn refused(offered: Version, error: &RpcError) -> Result<Verdict, Unfit> {
    let data = error.data.as_ref().and_then(|data| to_raw_value(data).ok());
    let code = i32::try_from(error.code).unwrap_or(Code::Internal.number());
    judge_error(Versions::Both, offered, code, data.as_deref())
}

/// What an error in answer to a request means when the agent has these ways to log in.
pub(super) fn login_needed(error: CallError, logins: &[Login]) -> Problem {
    match error {
        CallError::Refused(error) if error.is(Code::AuthRequired) => Problem::LoginNeeded(logins.to_vec()),
        error => error.into(),
    }
}

fn introduced(answer: Answer) -> Introduced {
    match answer {
        Answer::V1(answer) => Introduced {
            version: Version::V1,
            info: answer.agent_info.map(|info| Info { name: info.name, version: info.version }),
            logins: answer
                .auth_methods
                .iter()
                .map(|method| Login {
                    name: method.name().to_owned(),
                    description: method.description().map(str::to_owned),
                })
                .collect(),
        },
        Answer::V2(answer) => Introduced {
            version: Version::V2,
            info: Some(Info { name: answer.info.name, version: answer.info.version }),
            logins: answer
                .auth_methods
                .iter()
                .map(|method| Login {
                    name: method.name().to_owned(),
                    description: method.description().map(str::to_owned),
                })
                .collect(),
        },
    }
}
