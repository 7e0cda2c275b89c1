//! What is served, on any number of connections: each has a gate and an agent of its own, and all share the log.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use narrows_agent::Settings;
use narrows_audit::Log;
use narrows_govern::{Ended, Gate, Inquiry, Method, Owners, Principal};
use narrows_link::{Link, Sender};
use narrows_manifest::types::acp::Kind;
use narrows_wire::{self as wire, Code as Problem, Frame, RpcError, message};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::{OnceCell, mpsc};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::agent::{Prepared, Running};
use super::bridge::{AT_ONCE, agent_name, ladder};
use super::charge::Charge;
use super::guests::{self, Guests};
use super::leaving::Leaving;
use super::memory::Keeper;
use super::refusals::Refusals;
use super::roster::Roster;
use super::stand::{self, Outcome, QUESTIONS};
use super::{agent, door, peer, proxy, server};
use crate::failure::{Code, Failure};

/// How a bus says whose connection it is, before anything else.
const IDENTITY: &str = "narrows/identity";

/// Who plays the operator.
pub(super) enum Cast {
    /// A program, and how it is started once that was looked up.
    Program(Box<OnceCell<Prepared>>),
    /// The agent that is built in.
    Builtin(Box<Settings>),
}

/// What is served.
pub(super) struct Host {
    pub(super) charge: Charge,
    pub(super) log: Option<Log>,
    /// Where memories are kept.
    pub(super) data: PathBuf,
    pub(super) guests: Guests,
    pub(super) owners: Arc<dyn Owners>,
    pub(super) roster: Roster,
    pub(super) refusals: Refusals,
    pub(super) cast: Cast,
}

/// An agent that was started for one connection.
pub(super) struct Started {
    link: Link,
    player: Player,
    questions: (mpsc::Sender<Inquiry>, mpsc::Receiver<Inquiry>),
}

enum Player {
    Program(Box<Running>, Sender),
    Builtin(JoinHandle<Result<(), narrows_agent::EndpointError>>, Option<Arc<Keeper>>),
}

/// Whether a client may be a conductor, which is its own agent: only the process that started this one, on stdin and stdout.
/// Over a listener or a bus a client would answer for the agent of everybody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Chain {
    Possible,
    Impossible,
}

impl Host {
    /// Looks up the agent, so that what is wrong with it is known before anybody comes.
    pub(super) async fn get_ready(&self) -> Result<(), Failure> {
        if let Cast::Program(prepared) = &self.cast {
            prepared.get_or_try_init(|| agent::prepare(&self.charge, self.log.as_ref())).await?;
        }
        Ok(())
    }

    /// Serves a client whose first message is about to come, until it is over, or until the identities file says something else
    /// about its client.
    pub(super) async fn receive(
        &self,
        client: Link,
        who: Principal,
        chain: Chain,
        leaving: &Leaving,
    ) -> Result<(), Failure> {
        let branch = leaving.branch();
        let revoked = async {
            self.guests.changed(&who).await;
            tracing::info!(who = who.id, "the identities file has changed, closing connection");
            branch.be_over();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            biased;
            served = self.serve(client, who.clone(), chain, &branch) => served,
            // Neither ends.
            () = leaving.pass_on(&branch) => Ok(()),
            () = revoked => Ok(()),
        }
    }

    /// Serves a client until it is over. A conductor has the agent itself; for anybody else one is started.
    async fn serve(
        &self,
        mut client: Link,
        who: Principal,
        chain: Chain,
        leaving: &Leaving,
    ) -> Result<(), Failure> {
        // Elsewhere nobody has to say anything first.
        if self.charge.bundle.role == Kind::Bridge && chain == Chain::Possible {
            let Some(in_chain) = leaving.unless(proxy::is_wanted(&mut client)).await else { return Ok(()) };
            if in_chain && self.charge.is_sandboxed() {
                tell_unstarted(client).await;
                return Err(Failure::sandboxed_in_chain());
            }
            if in_chain {
                return proxy::stand(self, client, who, leaving).await;
            }
        }
        let Some(started) = leaving.unless(self.start(&who)).await else { return Ok(()) };
        match started {
            Ok(started) => self.attend(started, client, who, leaving).await,
            Err(failure) => {
                tell_unstarted(client).await;
                Err(failure)
            }
        }
    }

    /// Starts an agent for one connection.
    async fn start(&self, who: &Principal) -> Result<Started, Failure> {
        self.admit_scripts().await?;
        let questions = mpsc::channel(QUESTIONS);
        let (link, player) = match &self.cast {
            Cast::Program(prepared) => {
                let log = self.log.as_ref();
                let prepared = prepared.get_or_try_init(|| agent::prepare(&self.charge, log)).await?;
                let options = narrows_link::Options::default();
                let (link, process) = prepared.start(&self.charge, &options, log, who).await?;
                let input = link.sender.clone();
                (link, Player::Program(Box::new(process), input))
            }
            Cast::Builtin(settings) => {
                let keeper = Keeper::of(&self.charge, &self.data, self.log.as_ref(), &who.id)?;
                let (link, playing) = server::play(settings, questions.0.clone(), keeper.clone());
                (link, Player::Builtin(playing, keeper))
            }
        };
        Ok(Started { link, player, questions })
    }

    /// What one agent has changed is not run for the next.
    async fn admit_scripts(&self) -> Result<(), Failure> {
        let Err(failure) = self.charge.admit_scripts() else { return Ok(()) };
        let about = json!({"kind": "refusal", "code": "pin_changed", "reason": failure.message()});
        let id = agent_name(&self.charge);
        agent::record(&self.charge, self.log.as_ref(), "agent.refused", &id, about).await?;
        Err(failure)
    }

    /// Stands between a client and its agent until it is over. What was to be recorded is when this returns.
    async fn attend(
        &self,
        started: Started,
        client: Link,
        who: Principal,
        leaving: &Leaving,
    ) -> Result<(), Failure> {
        let Started { link, player, questions } = started;
        let gate = self.gate(who)?;
        let output = client.sender.clone();
        let seat = self.roster.enter(questions.0.clone());
        let outcome = stand::stand(gate, client, link, self.log.clone(), questions, leaving).await;
        drop(seat);
        stand::drain(&output).await;
        self.end(player, outcome, leaving).await
    }

    /// A gate for somebody.
    pub(super) fn gate(&self, who: Principal) -> Result<Gate, Failure> {
        Ok(stand::gate(&self.charge, who)?.with_owners(Arc::clone(&self.owners)))
    }

    async fn end(&self, player: Player, outcome: Outcome, leaving: &Leaving) -> Result<(), Failure> {
        let name = match player {
            Player::Program(process, input) => {
                let reason = input.reason();
                let ended = match &outcome {
                    Outcome::Ended(ended) => Some(ended),
                    Outcome::Left => None,
                };
                let ladder = match leaving.is_urgent() {
                    true => AT_ONCE,
                    false => ladder(ended, &self.charge.patience),
                };
                let is_confined = process.spec.sandbox.is_some();
                let overdue = process.stop(ladder).await.overdue;
                let name = agent_name(&self.charge);
                if outcome == Outcome::Ended(Ended::Agent) && overdue {
                    return Err(Failure::overdue(&name));
                }
                if outcome == Outcome::Ended(Ended::Agent) {
                    return Err(match is_confined {
                        true => Failure::confined_agent_gone(&name, &reason),
                        false => Failure::agent_gone(&name, &reason),
                    });
                }
                name
            }
            Player::Builtin(playing, keeper) => {
                // The gate has closed its link, so it ends; what it has done is to be stored.
                let played = playing.await;
                let kept = match keeper {
                    Some(keeper) => keeper.finish().await,
                    None => Ok(()),
                };
                if let Ok(Err(error)) = played {
                    return Err(Failure::endpoint_setting(&error));
                }
                kept?;
                if outcome == Outcome::Ended(Ended::Agent) {
                    return Err(Failure::operator_gone());
                }
                "narrows acp".to_owned()
            }
        };
        match outcome {
            Outcome::Ended(Ended::Unruly(why) | Ended::Stuck(why)) => Err(Failure::unruly(&name, &why)),
            Outcome::Ended(_) | Outcome::Left => Ok(()),
        }
    }

    /// Tells somebody who may not come in how to, for a while.
    pub(super) async fn turn_away(&self, stranger: &Principal, client: Link, leaving: &Leaving) {
        self.refusals.record(&self.charge, self.log.as_ref(), stranger).await;
        guests::turn_away(stranger, client, leaving.wanted()).await;
    }

    /// Writes what is to be recorded.
    pub(super) async fn close(&self) {
        self.refusals.finish(self.log.as_ref()).await;
        if let Some(log) = self.log.clone() {
            log.close();
        }
    }
}

/// Serves one client on our own stdin and stdout, until it or the agent has gone. A bus says who it is; without one it is
/// the user who has started us.
pub(super) async fn on_stdio(host: Host, for_bus: bool, leaving: Leaving) -> Result<ExitCode, Failure> {
    let served = one_client(&host, for_bus, &leaving).await;
    host.close().await;
    served?;
    if leaving.is_wanted() { Err(leaving.failure()) } else { Ok(Code::Success.exit()) }
}

async fn one_client(host: &Host, for_bus: bool, leaving: &Leaving) -> Result<(), Failure> {
    let by_parent = (!for_bus).then(|| host.guests.admit(Some(peer::of_parent()), Method::Process));
    // A bus itself reads what its clients send, and writes whole messages.
    let options = match &by_parent {
        Some(Err(_)) => guests::NOT_ADMITTED_OPTIONS,
        Some(Ok(_)) | None => narrows_link::Options::default(),
    };
    let mut client = narrows_link::stdio::take(&options)
        .map_err(|error| Failure::setup("take stdin and stdout", &error))?;
    let door = door::open(&host.charge, host.roster.clone())?;
    let admitted = match by_parent {
        Some(admitted) => admitted,
        None => {
            let Some(Some(first)) = leaving.unless(client.receiver.recv()).await else { return Ok(()) };
            let Told { identity, scopes } = told_by_bus(&first).ok_or_else(Failure::no_bus_before)?;
            host.guests.admit_by_bus(&identity, scopes)
        }
    };
    let served = match admitted {
        Ok(who) => {
            let chain = if for_bus { Chain::Impossible } else { Chain::Possible };
            host.receive(client, who, chain, leaving).await
        }
        Err(stranger) => {
            host.turn_away(&stranger, client, leaving).await;
            Ok(())
        }
    };
    drop(door);
    served
}

/// Answers what a client has asked of an agent that could not be started.
async fn tell_unstarted(mut client: Link) {
    let error = RpcError::new(Problem::Internal, "the agent could not be started");
    // It has said something already if it is to be told anything.
    while let Ok(Some(frame)) = timeout(Duration::ZERO, client.receiver.recv()).await {
        if let Some(id) = frame.id().filter(|_| frame.kind() == wire::Kind::Request) {
            let _ = client.sender.push(message::error(id, &error));
        }
    }
    client.sender.close();
    stand::drain(&client.sender).await;
}

/// What a bus says of a client.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Told {
    identity: String,
    #[serde(default)]
    scopes: Option<Vec<String>>,
}

/// Whom a bus names in the first line it writes.
fn told_by_bus(first: &Frame) -> Option<Told> {
    let is_it = first.method().is_some_and(|method| method == IDENTITY) && first.id().is_none();
    serde_json::from_slice(first.params().filter(|_| is_it)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_line_of_a_bus_says_who_it_is() {
        let check = |line: &str, expected: Option<&str>| {
            let frame = Frame::parse(line.to_owned().into());
            let told = told_by_bus(&frame).map(|told| format!("{} {:?}", told.identity, told.scopes));
            assert_eq!(told.as_deref(), expected, "{line}");
        };
        check(
            r#"{"jsonrpc":"2.0","method":"narrows/identity","params":{"identity":"uid:7"}}"#,
            Some("uid:7 None"),
        );
        check(
            r#"{"jsonrpc":"2.0","method":"narrows/identity","params":{"identity":"a","scopes":["b"]}}"#,
            Some("a Some([\"b\"])"),
        );
        check(
            r#"{"jsonrpc":"2.0","method":"narrows/identity","params":{"identity":"a","scopes":"b"}}"#,
            None,
        );
        check(r#"{"jsonrpc":"2.0","method":"narrows/identity","params":{"identity":7}}"#, None);
        check(r#"{"jsonrpc":"2.0","method":"narrows/identity","params":{"identity":"a","x":1}}"#, None);
        check(r#"{"jsonrpc":"2.0","id":1,"method":"narrows/identity","params":{"identity":"a"}}"#, None);
        check(r#"{"jsonrpc":"2.0","method":"narrows/identity"}"#, None);
        check(r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"identity":"a"}}"#, None);
        check("{", None);
    }
}
