//! The audit log of a manifest, opened before anything is served.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use narrows_audit::{Algorithm, AppendError, CommitObserver, Log, Options};
use narrows_govern::{Disk, Presence, admit};
use narrows_manifest::AuditTarget;
use narrows_manifest::types::acp::Tier;
use narrows_manifest::types::governance::HashAlgorithm;

use super::charge::Charge;
use crate::failure::Failure;

/// Where it is. `None`: nothing is governed, and nothing is recorded.
pub(super) fn path(charge: &Charge) -> Result<Option<PathBuf>, Failure> {
    let Charge { bundle, root, .. } = charge;
    let path = match &bundle.audit {
        AuditTarget::Log(path) => root.join(path),
        AuditTarget::Off => {
            let is_basic = bundle.acp.front.metadata.aip44.tier == Tier::Basic;
            let is_free = is_basic && bundle.governance.is_none();
            return if is_free { Ok(None) } else { Err(Failure::unaudited()) };
        }
    };
    // A link in the workspace must not lead the log out of it.
    let real = admit(&path, std::slice::from_ref(root), &Disk);
    real.map(Some).map_err(|outside| Failure::stray_log(&path, &outside))
}

/// Opens it. `None`: nothing is governed, and nothing is recorded.
pub(super) fn open(charge: &Charge) -> Result<Option<Log>, Failure> {
    let Some(path) = path(charge)? else { return Ok(None) };
    let governance = charge.bundle.governance.as_ref();
    let audit = governance.and_then(|governance| governance.config.audit.as_ref());
    let algorithm = match audit.and_then(|audit| audit.hash_algo) {
        Some(HashAlgorithm::Sha512) => Algorithm::Sha512,
        // BLAKE3 is no algorithm of an entry.
        Some(HashAlgorithm::Sha256 | HashAlgorithm::Blake3) | None => Algorithm::Sha256,
    };
    let options = Options { algorithm, observer: Some(observer(&path)), ..Options::default() };
    Log::open(&path, options).map(Some).map_err(|error| Failure::unopened_log(&path, &error))
}

/// Tells the administrator when the log cannot be written, and when it can again. Clients only learn that it cannot.
fn observer(path: &Path) -> CommitObserver {
    let (log, fails) = (path.display().to_string(), AtomicBool::new(false));
    Arc::new(move |error: Option<&AppendError>| {
        let failed_before = fails.swap(error.is_some(), Ordering::Relaxed);
        match error {
            Some(error) if !failed_before => {
                let cause = std::error::Error::source(error).map(ToString::to_string);
                let reason = cause.unwrap_or_else(|| error.to_string());
                tracing::error!(log, reason, "audit log cannot be written, so nothing is done");
            }
            None if failed_before => tracing::warn!(log, "audit log is written again"),
            _ => {}
        }
    })
}

/// Announces this process to others that use the log, after closing what gates that were killed left open in it. A log that
/// cannot be looked after is written to all the same.
pub(super) fn announce(charge: &Charge, log: Option<&Log>) -> Result<Option<Presence>, Failure> {
    let (Some(log), Some(path)) = (log, path(charge)?) else { return Ok(None) };
    match Presence::announce(log, &path) {
        Ok(presence) => {
            if presence.closed > 0 {
                tracing::warn!(entries = presence.closed, log = %path.display(), "calls of a killed gate closed in the log");
            }
            Ok(Some(presence))
        }
        Err(error) => {
            tracing::warn!(%error, log = %path.display(), "calls of killed gates cannot be closed in the log");
            Ok(None)
        }
    }
}
