//! A manifest of the kind `client`: one turn with its agent, through the gate, printed as `narrows run` prints it.

use std::process::ExitCode;
use std::sync::Arc;

use narrows_client::{Agent, Decide, Offer, Pending, Question, Reply, RunRequest, SessionConfig};
use narrows_govern::{Ended, Inquiry};
use narrows_link::memory;
use narrows_policy::{Access, Narrowing, Policy, Rules};
use narrows_process::{AllowList, Environment};
use tokio::sync::mpsc;

use super::bridge::{agent_name, ladder};
use super::roster::Roster;
use super::stand::{self, QUESTIONS};
use super::{Post, agent, door};
use crate::ask::{self, ApprovalSource};
use crate::cli::Output;
use crate::command::run;
use crate::desk::Desk;
use crate::drive::{Chosen, Start, Wanted};
use crate::environment;
use crate::failure::{Code, Failure, THE_GATE};

/// Everything is asked: the gate has decided, and what it asks is for somebody to answer.
const ASK: &str = "[[rule]]\nname = \"the gate asks\"\neffect = \"ask\"\nkind = \"*\"\n";

/// Answers what the gate has let pass, and leaves its questions to a person, if there is one.
struct Behind {
    person: Option<Arc<dyn Decide>>,
}

impl Decide for Behind {
    fn decide(&self, question: Arc<Question>) -> Pending {
        // What is wanted of this machine has no options, and has come through the gate.
        if question.options.is_empty() {
            return Box::pin(std::future::ready(Reply::Allow));
        }
        match &self.person {
            Some(person) => person.decide(question),
            None => Box::pin(std::future::ready(Reply::Nobody)),
        }
    }
}

/// Runs the turn and prints its answer.
pub(super) fn run(post: Post, prompt: &[String]) -> Result<ExitCode, Failure> {
    let request = RunRequest::text(prompt.join(" "));
    let (rules, _) = Rules::parse(ASK, THE_GATE).map_err(|error| Failure::bad_rules(&error))?;
    let policy = Policy::new(Access::High, Narrowing::default()).with_rules(rules);
    super::super::block_on(turn(post, request, policy))?
}

async fn turn(post: Post, request: RunRequest, policy: Policy) -> Result<ExitCode, Failure> {
    let Post { charge, log, who, .. } = post;
    let options = narrows_link::Options::default();
    let (behind, process) =
        agent::prepare(&charge, log.as_ref()).await?.start(&charge, &options, log.as_ref(), &who).await?;
    let (desk, questions) = Desk::open(ApprovalSource::OwnGate);
    let person = ask::is_possible(Output::Text).then(|| Arc::new(desk) as Arc<dyn Decide>);
    let mut config = SessionConfig::new(charge.root.clone(), Arc::new(policy));
    config.on_permission = Some(Arc::new(Behind { person }));
    config.environment = Environment::filtered(environment::variables(), &AllowList::default());
    config.git_settings = environment::git_settings();
    let can = charge.bundle.capabilities;
    let offer = Offer {
        read_files: can.read_text_file,
        write_files: can.write_text_file,
        run_commands: can.terminal,
    };
    let chosen = Chosen::of(Agent::new(agent_name(&charge), process.spec.clone()), charge.root.clone());
    let wanted = Wanted { config, offer, start: Start::New };
    let gate = stand::gate(&charge, who)?;
    let (inner, outer) = memory::pair(&options);
    let (ask, asked) = mpsc::channel(QUESTIONS);
    let roster = Roster::default();
    let _seat = roster.enter(ask.clone());
    let door = door::open(&charge, roster)?;
    let input = behind.sender.clone();
    let standing = tokio::spawn(narrows_govern::stand(gate, outer, behind, log.clone(), asked));
    let outcome = run::over(inner, chosen, wanted, request, questions).await;
    // It has ended already if its client has.
    let _ = ask.send(Inquiry::End).await;
    let ended = standing.await.unwrap_or(Ended::Told);
    drop(door);
    let reason = input.reason();
    let overdue = process.stop(ladder(Some(&ended), &charge.patience)).await.overdue;
    if let Some(log) = log {
        log.close();
    }
    match ended {
        Ended::Unruly(why) | Ended::Stuck(why) => Err(Failure::unruly(&agent_name(&charge), &why)),
        Ended::Agent if overdue => Err(Failure::overdue(&agent_name(&charge))),
        Ended::Agent if outcome.is_err() => Err(Failure::agent_gone(&agent_name(&charge), &reason)),
        _ => outcome.map(|()| Code::Success.exit()),
    }
}
