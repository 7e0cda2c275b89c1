//! Failures of sandboxes and of the setup that a manifest requires.

use std::error::Error;

use super::{ExitStatus, Failure};
use crate::terminal::line;

impl Failure {
    pub(crate) fn unenforceable(refused: &dyn Error, code: &str, hint: &str) -> Self {
        let message = format!("not serving: {refused} ({code})");
        Self::new(ExitStatus::Start, line(&message)).with_hint(line(hint))
    }

    /// Reports a sandboxed agent in a proxy chain: the conductor starts it, outside of the sandbox.
    pub(crate) fn sandboxed_in_chain() -> Self {
        let message = "not serving: tier sandboxed cannot be enforced in a proxy chain, where the conductor starts \
                       the agent (sandbox_unenforceable)";
        Self::new(ExitStatus::Start, message)
            .with_hint("remove this agent from the proxy chain, or use tier governance-aware")
    }

    pub(crate) fn setup_required(agent: &str, step: &str, what: &str) -> Self {
        let message =
            format!("the agent {agent:?} is not set up: step {step:?} is required (setup_required)");
        Self::new(ExitStatus::Start, line(&message)).with_hint(line(what))
    }

    /// Reports that the agent was ended at the end of the lifetime that its runner allows.
    pub(crate) fn lifetime_exceeded(agent: &str) -> Self {
        let message = format!("the agent {agent:?} was stopped: it exceeded limits.timeout_ms");
        Self::new(ExitStatus::Limit, line(&message))
    }
}
