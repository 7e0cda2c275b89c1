//! What to say when what a manifest demands of a sandbox or of a setup is not there.

use std::error::Error;

use super::{Code, Failure};
use crate::terminal::line;

impl Failure {
    /// Something in a manifest cannot be enforced, and so is not claimed either.
    pub(crate) fn unenforceable(refused: &dyn Error, code: &str, hint: &str) -> Self {
        let message = format!("nothing is served: {refused} ({code})");
        Self::new(Code::Start, line(&message)).hint(line(hint))
    }

    /// Somebody else starts the agent.
    pub(crate) fn sandboxed_in_chain() -> Self {
        let message = "nothing is served: the tier sandboxed cannot be enforced in a proxy chain, where others start the agent \
                       (sandbox_unenforceable)";
        Self::new(Code::Start, message).hint("take it out of the chain, or take the tier governance-aware")
    }

    /// The agent has to be set up first.
    pub(crate) fn setup_required(agent: &str, step: &str, what: &str) -> Self {
        let message =
            format!("the agent {agent:?} is not set up: its step {step:?} is to be taken (setup_required)");
        Self::new(Code::Start, line(&message)).hint(line(what))
    }

    /// The agent has run for as long as it may.
    pub(crate) fn overdue(agent: &str) -> Self {
        let message = format!("the agent {agent:?} was ended: it has run for longer than limits.timeout_ms");
        Self::new(Code::Limit, line(&message))
    }
}
