//! The audit log of a manifest, opened before anything is served.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use narrows_audit::{Algorithm, AppendError, CommitObserver, Log, LogOptions};
use narrows_govern::{GatePresence, SystemPathResolver, resolve_in_roots};
use narrows_manifest::AuditTarget;
use narrows_manifest::types::acp::Tier;
use narrows_manifest::types::governance::HashAlgorithm;

use super::manifest::LoadedManifest;
use crate::failure::Failure;

/// Returns the path of the log, or `None` for an ungoverned manifest whose log is off.
pub(super) fn path(manifest: &LoadedManifest) -> Result<Option<PathBuf>, Failure> {
    let LoadedManifest { bundle, root, .. } = manifest;
    let path = match &bundle.audit {
        AuditTarget::Log(path) => root.join(path),
        AuditTarget::Off => {
            let is_basic = bundle.acp.front.metadata.aip44.tier == Tier::Basic;
            let is_free = is_basic && bundle.governance.is_none();
            return if is_free { Ok(None) } else { Err(Failure::audit_log_required()) };
        }
    };
    // A link in the workspace must not lead to a log outside of the workspace.
    let real = resolve_in_roots(&path, std::slice::from_ref(root), &SystemPathResolver);
    real.map(Some).map_err(|outside| Failure::audit_log_outside_workspace(&path, &outside))
}

/// Opens the log. Returns `None` for an ungoverned manifest whose log is off.
pub(super) fn open(manifest: &LoadedManifest) -> Result<Option<Log>, Failure> {
    let Some(path) = path(manifest)? else { return Ok(None) };
    let governance = manifest.bundle.governance.as_ref();
    let audit = governance.and_then(|governance| governance.config.audit.as_ref());
    let algorithm = match audit.and_then(|audit| audit.hash_algo) {
        Some(HashAlgorithm::Sha512) => Algorithm::Sha512,
        // Log entries cannot be hashed with BLAKE3.
        Some(HashAlgorithm::Sha256 | HashAlgorithm::Blake3) | None => Algorithm::Sha256,
    };
    let options = LogOptions { algorithm, observer: Some(commit_observer(&path)), ..LogOptions::default() };
    Log::open(&path, options).map(Some).map_err(|error| Failure::audit_log_unopened(&path, &error))
}

/// Returns an observer that logs when log writes start and stop failing. The messages are for the
/// administrator: clients only learn that an action was not recorded.
fn commit_observer(path: &Path) -> CommitObserver {
    let (log, fails) = (path.display().to_string(), AtomicBool::new(false));
    Arc::new(move |error: Option<&AppendError>| {
        let failed_before = fails.swap(error.is_some(), Ordering::Relaxed);
        match error {
            Some(error) if !failed_before => {
                let cause = std::error::Error::source(error).map(ToString::to_string);
                let reason = cause.unwrap_or_else(|| error.to_string());
                tracing::error!(log, reason, "cannot write the audit log, refusing all actions");
            }
            None if failed_before => tracing::warn!(log, "audit log writable again"),
            _ => {}
        }
    })
}

/// Announces this process to other processes that share the log. Before that, closes the calls that killed
/// gates have left open in the log. A failure does not prevent writing to the log.
pub(super) fn announce(
    manifest: &LoadedManifest,
    log: Option<&Log>,
) -> Result<Option<GatePresence>, Failure> {
    let (Some(log), Some(path)) = (log, path(manifest)?) else { return Ok(None) };
    match GatePresence::announce(log, &path) {
        Ok(presence) => {
            if presence.closed > 0 {
                tracing::warn!(entries = presence.closed, log = %path.display(), "calls of a killed gate closed in the audit log");
            }
            Ok(Some(presence))
        }
        Err(error) => {
            tracing::warn!(%error, log = %path.display(), "cannot close calls of killed gates in the audit log");
            Ok(None)
        }
    }
}
