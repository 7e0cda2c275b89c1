//! A manifest of the kind `bridge`: another agent, spoken for.

use std::time::Duration;

use narrows_process::Ladder;

use super::charge::Charge;

/// How patiently an agent is ended.
pub(super) const LADDER: Ladder =
    Ladder { eof_grace: Duration::from_secs(2), term_grace: Duration::from_secs(5) };

/// For one that does not do as it is told.
pub(super) const AT_ONCE: Ladder = Ladder { eof_grace: Duration::ZERO, term_grace: Duration::ZERO };

/// What the agent is called in its manifest.
pub(super) fn agent_name(charge: &Charge) -> String {
    charge.bundle.agent.as_ref().map(|agent| agent.cli.front.id.clone()).unwrap_or_default()
}
