//! Manifests of kind `bridge`: an external agent behind a gate.

use std::time::Duration;

use narrows_govern::{GateExit, GateTimeouts};
use narrows_process::Ladder;

use super::manifest::LoadedManifest;

pub(super) const NO_GRACE: Ladder = Ladder { eof_grace: Duration::ZERO, term_grace: Duration::ZERO };

/// Returns the steps to stop an agent. An agent that broke the rules of its gate is killed at once. For an
/// agent that did not answer, the step of closing its input is left out.
pub(super) fn stop_ladder(ended: Option<&GateExit>, patience: &GateTimeouts) -> Ladder {
    let GateTimeouts { close, terminate, .. } = *patience;
    match ended {
        Some(GateExit::AgentViolation(_)) => NO_GRACE,
        Some(GateExit::AgentUnresponsive(_)) => Ladder { eof_grace: Duration::ZERO, term_grace: terminate },
        _ => Ladder { eof_grace: close, term_grace: terminate },
    }
}

pub(super) fn agent_name(manifest: &LoadedManifest) -> String {
    manifest.bundle.agent.as_ref().map(|agent| agent.cli.front.id.clone()).unwrap_or_default()
}
