//! Manifests of kind `client`: one turn with the agent through the gate, printed like that of `narrows run`.

use std::process::ExitCode;
use std::sync::Arc;

use narrows_client::{
    Agent, Offer, Pending, PermissionHandler, PermissionReply, PermissionRequest, RunRequest, SessionConfig,
};
use narrows_govern::{GateExit, GateRequest};
use narrows_link::memory;
use narrows_policy::{Access, Narrowing, Policy, Rules};
use narrows_process::{AllowList, Environment};
use tokio::sync::mpsc;

use super::bridge::{agent_name, stop_ladder};
use super::gate_registry::GateRegistry;
use super::run_gate::{self, MAX_QUEUED_REQUESTS};
use super::{ClientRun, agent, approval_server};
use crate::agent_source::{SelectedAgent, SessionRequest, SessionStart};
use crate::cli::Output;
use crate::command::run;
use crate::environment;
use crate::failure::{ExitStatus, Failure, GATE_RULES};
use crate::permission_prompt::{self, ApprovalSource};
use crate::permission_queue::PermissionQueue;

/// A policy that asks for every request: the gate has already denied what its rules deny, and the user
/// decides about the rest.
const ASK_POLICY: &str = "[[rule]]\nname = \"the gate asks\"\neffect = \"ask\"\nkind = \"*\"\n";

/// Allows requests that the gate has already decided, and forwards its permission requests to the user, if
/// there is one.
struct GatedDecider {
    user_prompt: Option<Arc<dyn PermissionHandler>>,
}

impl PermissionHandler for GatedDecider {
    fn decide(&self, question: Arc<PermissionRequest>) -> Pending {
        // Requests for files and commands have no options, and were decided by the gate.
        if question.options.is_empty() {
            return Box::pin(std::future::ready(PermissionReply::Allow));
        }
        match &self.user_prompt {
            Some(user_prompt) => user_prompt.decide(question),
            None => Box::pin(std::future::ready(PermissionReply::NoApprover)),
        }
    }
}

pub(super) fn run(run: ClientRun, prompt: &[String]) -> Result<ExitCode, Failure> {
    let request = RunRequest::text(prompt.join(" "));
    let (rules, _) = Rules::parse(ASK_POLICY, GATE_RULES).map_err(|error| Failure::rules_invalid(&error))?;
    let policy = Policy::new(Access::High, Narrowing::default()).with_rules(rules);
    super::super::block_on(run_turn(run, request, policy))?
}

async fn run_turn(run: ClientRun, request: RunRequest, policy: Policy) -> Result<ExitCode, Failure> {
    let ClientRun { manifest, log, who, .. } = run;
    let options = narrows_link::Options::default();
    let (behind, process) =
        agent::prepare(&manifest, log.as_ref()).await?.start(&manifest, &options, log.as_ref(), &who).await?;
    let (desk, questions) = PermissionQueue::open(ApprovalSource::OwnGate);
    let user_prompt =
        permission_prompt::is_possible(Output::Text).then(|| Arc::new(desk) as Arc<dyn PermissionHandler>);
    let mut config = SessionConfig::new(manifest.root.clone(), Arc::new(policy));
    config.on_permission = Some(Arc::new(GatedDecider { user_prompt }));
    config.environment = Environment::filtered(environment::variables(), &AllowList::default());
    config.git_settings = environment::git_settings();
    let can = manifest.bundle.capabilities;
    let offer = Offer {
        read_files: can.read_text_file,
        write_files: can.write_text_file,
        run_commands: can.terminal,
    };
    let chosen = SelectedAgent::from_agent(
        Agent::new(agent_name(&manifest), process.spec.clone()),
        manifest.root.clone(),
    );
    let wanted = SessionRequest { config, offer, start: SessionStart::New };
    let gate = run_gate::build(&manifest, who)?;
    let (inner, outer) = memory::pair(&options);
    let (ask, asked) = mpsc::channel(MAX_QUEUED_REQUESTS);
    let gates = GateRegistry::default();
    let _registration = gates.register(ask.clone());
    let admin_socket = approval_server::open(&manifest, gates)?;
    let input = behind.sender.clone();
    let standing =
        tokio::spawn(run_gate::on_thread(narrows_govern::run_gate(gate, outer, behind, log.clone(), asked))?);
    let outcome = run::run_over_link(inner, chosen, wanted, request, questions).await;
    // If the gate has already ended with its client, this request fails, which does no harm.
    let _ = ask.send(GateRequest::Stop).await;
    let ended = standing.await.unwrap_or(GateExit::Stopped);
    drop(admin_socket);
    let reason = input.reason();
    let overdue = process.stop(stop_ladder(Some(&ended), &manifest.patience)).await.overdue;
    if let Some(log) = log {
        log.close();
    }
    match ended {
        GateExit::AgentViolation(why) | GateExit::AgentUnresponsive(why) => {
            Err(Failure::agent_ended(&agent_name(&manifest), &why))
        }
        GateExit::AgentLost if overdue => Err(Failure::lifetime_exceeded(&agent_name(&manifest))),
        GateExit::AgentLost if outcome.is_err() => {
            Err(Failure::agent_exited(&agent_name(&manifest), &reason))
        }
        _ => outcome.map(|()| ExitStatus::Success.exit_code()),
    }
}
