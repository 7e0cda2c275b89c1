//! Manifests of kind `bridge`: an external agent behind a gate.

use std::time::Duration;

use narrows_govern::{GateExit, GateTimeouts};
use narrows_process::Ladder;

use super::manifest::LoadedManifest;

/// Kills the agent at once.
pub(super) const NO_GRACE: Ladder = Ladder { eof_grace: Duration::ZERO, term_grace: Duration::ZERO };

/// Returns the steps in which an agent is ended: at once if it disobeyed, and without closing its input first if it
/// did not answer.
pub(super) fn stop_ladder(ended: Option<&GateExit>, patience: &GateTimeouts) -> Ladder {
    let GateTimeouts { close, terminate, .. } = *patience;
    match ended {
        Some(GateExit::AgentViolation(_)) => NO_GRACE,
        Some(GateExit::AgentUnresponsive(_)) => Ladder { eof_grace: Duration::ZERO, term_grace: terminate },
        _ => Ladder { eof_grace: close, term_grace: terminate },
    }
}

/// Returns the id of the agent in its manifest.
pub(super) fn agent_name(manifest: &LoadedManifest) -> String {
    manifest.bundle.agent.as_ref().map(|agent| agent.cli.front.id.clone()).unwrap_or_default()
}
