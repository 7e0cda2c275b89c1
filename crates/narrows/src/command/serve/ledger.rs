//! The audit log of a manifest, opened before anything is served.

use std::path::PathBuf;

use narrows_audit::{Algorithm, Log, Options};
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
    let options = Options { algorithm, ..Options::default() };
    Log::open(&path, options).map(Some).map_err(|error| Failure::unopened_log(&path, &error))
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
