//! A manifest of the kind `bridge`: another agent, spoken for.

use std::time::Duration;

use narrows_govern::{Ended, Patience};
use narrows_process::Ladder;

use super::charge::Charge;

/// Not at all.
pub(super) const AT_ONCE: Ladder = Ladder { eof_grace: Duration::ZERO, term_grace: Duration::ZERO };

/// How patiently an agent is ended: not at all if it does not do as it is told, and if it does not answer, its input is
/// not to end first.
pub(super) fn ladder(ended: Option<&Ended>, patience: &Patience) -> Ladder {
    let Patience { close, terminate, .. } = *patience;
    match ended {
        Some(Ended::Unruly(_)) => AT_ONCE,
        Some(Ended::Stuck(_)) => Ladder { eof_grace: Duration::ZERO, term_grace: terminate },
        _ => Ladder { eof_grace: close, term_grace: terminate },
    }
}

/// What the agent is called in its manifest.
pub(super) fn agent_name(charge: &Charge) -> String {
    charge.bundle.agent.as_ref().map(|agent| agent.cli.front.id.clone()).unwrap_or_default()
}
