//! Determines where the audit log is (point 21 of AIP-44).

use std::path::PathBuf;

use super::governance::EffectiveGovernance;
use super::plan::Loaded;
use super::reader::ManifestReader;
use crate::code::Code;
use crate::files::join;
use crate::finding::Draft;
use crate::types::acp::{Acp, AuditKind, Tier};
use crate::types::operator::Operator;

/// Where the audit log is, if there is one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuditTarget {
    /// Path of the log file, relative to the root of the workspace.
    Log(PathBuf),
    Off,
}

/// Path of the default log, relative to the directory of the governance.
const DEFAULT_LOG_PATH: &str = "audit/audit-log.jsonl";

pub(super) fn target(
    reader: &mut ManifestReader<'_>,
    acp: &Loaded<Acp>,
    governance: Option<&EffectiveGovernance>,
    operator: Option<&Loaded<Operator>>,
) -> Option<AuditTarget> {
    let aip44 = &acp.front.metadata.aip44;
    let audit = aip44.audit.clone().unwrap_or_default();
    match audit.kind {
        Some(AuditKind::Off) => return Some(AuditTarget::Off),
        Some(AuditKind::External) => {
            let reference = audit.r#ref.as_deref()?;
            return external(reader, acp, reference);
        }
        Some(AuditKind::Governance) | None => {}
    }
    if governance.is_none() && aip44.tier == Tier::Basic && audit.kind.is_none() {
        return Some(AuditTarget::Off);
    }
    let scope = governance.map_or_else(|| acp.directory(), |governance| governance.scope.clone());
    let binding = operator.and_then(|operator| operator.front.governance.as_ref());
    let slug = binding.and_then(|binding| binding.audit_log.strip_prefix("audit:")).unwrap_or("default");
    if slug == "default" {
        return Some(AuditTarget::Log(scope.join(DEFAULT_LOG_PATH)));
    }
    // Each part must be a plain name, so that the path cannot leave the directory of the governance.
    let plain = slug.split('/').all(|part| !part.is_empty() && part.chars().any(|letter| letter != '.'));
    if plain {
        return Some(AuditTarget::Log(scope.join("audit").join(slug).join("audit-log.jsonl")));
    }
    if let Some(operator) = operator {
        let at = operator.place(&["governance", "audit_log"]);
        let draft = Draft::error(Code::Outside, at, "invalid log name").key("governance.audit_log");
        reader.find(operator, draft.value(slug).hint("write audit:default, or audit: and a name"));
    }
    None
}

fn external(reader: &mut ManifestReader<'_>, acp: &Loaded<Acp>, reference: &str) -> Option<AuditTarget> {
    let path = reference.strip_prefix("file://").unwrap_or(reference);
    let at = acp.place(&["metadata", "aip44", "audit", "ref"]);
    if path.contains("://") {
        let draft =
            Draft::error(Code::AuditRef, at, "an audit log must be a file").key("metadata.aip44.audit.ref");
        reader.find(acp, draft.value(reference).hint("write a path such as ./audit/audit-log.jsonl"));
        return None;
    }
    let found = join(&acp.directory(), path);
    if found.is_none() {
        let message = "the log is outside the workspace";
        let draft = Draft::error(Code::Outside, at, message).key("metadata.aip44.audit.ref");
        reader.find(acp, draft.value(reference).hint("write a path in it such as ./audit/audit-log.jsonl"));
    }
    found.map(AuditTarget::Log)
}
