//! Resolves an ACP.md: reads all files that it refers to.

mod agent;
mod audit;
mod governance;
mod operator;
mod plan;
mod policies;
mod reader;
mod sandbox;

#[cfg(test)]
mod tests;

pub use agent::Agent;
pub use audit::AuditTarget;
pub use governance::EffectiveGovernance;
pub use operator::{Skill, ToolSet};
pub use plan::{Bundle, Loaded, McpBinding, Pin};
pub use policies::BoundPolicy;
pub use sandbox::{PlannedMount, RunnerPlan, SandboxPlan};

use std::path::{Path, PathBuf};

use narrows_policy::GovernanceRuleset;

use crate::capabilities::Capabilities;
use crate::code::Code;
use crate::files::{Files, Workspace};
use crate::finding::{Draft, Findings};
use crate::kind::ManifestKind;
use crate::types::acp::{Acp, Role, Tier};
use crate::yaml::SourcePos;
use reader::ManifestReader;

/// Loads a manifest from disk, with all files that it refers to. Files outside of `root` are not read. The
/// default of `root` is the directory of the manifest.
pub fn load(path: &Path, root: Option<&Path>) -> Result<Bundle, Findings> {
    let broken = |code, message: String| {
        let mut findings = Findings::default();
        findings.push(Draft::error(code, SourcePos::START, message).into_finding(path));
        findings
    };
    let unreadable = |error: std::io::Error| {
        let code =
            if error.kind() == std::io::ErrorKind::NotFound { Code::NotFound } else { Code::Unreadable };
        broken(code, format!("this cannot be read: {}", error.kind()))
    };
    let whole = std::path::absolute(path).map_err(unreadable)?;
    let name = whole.file_name().ok_or_else(|| broken(Code::NotFound, "not a file path".into()))?;
    let directory = whole.parent().unwrap_or(Path::new("/")).canonicalize().map_err(unreadable)?;
    let workspace = Workspace::open(root.unwrap_or(&directory)).map_err(unreadable)?;
    let Ok(inside) = directory.strip_prefix(workspace.root()) else {
        return Err(broken(Code::Outside, "the manifest is outside the workspace".into()));
    };
    resolve(&workspace, &inside.join(name))
}

/// Like [`load`], with files from any source. `path` is relative to the root of the workspace.
pub fn resolve(files: &dyn Files, path: &Path) -> Result<Bundle, Findings> {
    let mut reader = ManifestReader::new(files);
    let bundle = bundle(&mut reader, path);
    let findings = reader.findings;
    match bundle {
        Some(bundle) if !findings.has_errors() => {
            Ok(Bundle { pins: reader.pins, warnings: findings, ..bundle })
        }
        _ => Err(findings),
    }
}

fn bundle(reader: &mut ManifestReader<'_>, path: &Path) -> Option<Bundle> {
    let acp = reader.manifest::<Acp>(path)?;
    let aip44 = &acp.front.metadata.aip44;
    let role = acp.front.kind;

    let operator = operator::load(reader, &acp);
    let governance = governance::load(reader, &acp, operator.as_ref());
    let policies = match &governance {
        Some(governance) => policies::load(reader, governance, operator.as_ref()),
        None => policies::without_governance(reader, operator.as_ref()),
    };
    let ruleset = policies::ruleset(reader, governance.as_ref(), operator.as_ref(), &policies);
    contradictions(reader, &acp, operator.as_ref(), governance.as_ref());

    let sandbox = match &aip44.sandbox {
        Some(reference) => {
            let at = acp.place(&["metadata", "aip44", "sandbox"]);
            sandbox::at(reader, &acp, reference, at, "metadata.aip44.sandbox")
        }
        None => None,
    };
    let skills = operator.as_ref().map(|operator| operator::skills(reader, operator)).unwrap_or_default();
    let tools = operator.as_ref().map(|operator| ToolSet::new(operator, &skills)).unwrap_or_default();
    let agent = agent::load(reader, &acp, operator.as_ref());
    let audit = audit::target(reader, &acp, governance.as_ref(), operator.as_ref());
    let mcp_servers = plan::mcp_servers(reader, &acp);
    let per_turn_approval = operator.as_ref().is_some_and(operator::is_gated);
    Some(Bundle {
        capabilities: Capabilities::declared(aip44),
        protocol_version: crate::revision::protocol_version(&aip44.acp_rev),
        role,
        operator,
        governance,
        policies,
        ruleset,
        per_turn_approval,
        sandbox,
        skills,
        tools,
        agent,
        audit: audit?,
        mcp_servers,
        pins: Vec::new(),
        warnings: Findings::default(),
        acp,
    })
}

/// Point 13 of AIP-44: contradictions between several files.
fn contradictions(
    reader: &mut ManifestReader<'_>,
    acp: &Loaded<Acp>,
    operator: Option<&Loaded<crate::types::operator::Operator>>,
    governance: Option<&EffectiveGovernance>,
) {
    let tier = acp.front.metadata.aip44.tier;
    let at = acp.place(&["metadata", "aip44", "tier"]);
    let governed = operator.is_some_and(|operator| operator.front.governance.is_some());
    if tier == Tier::Basic && governed {
        let message = "the tier is basic, but the operator has a governance";
        let draft = Draft::error(Code::Contradiction, at, message).key("metadata.aip44.tier").value("basic");
        reader.find(acp, draft.hint("write governance-aware, or remove the governance from the operator"));
    }
    // If the governance is missing, that was already reported.
    let aip44 = &acp.front.metadata.aip44;
    let invalid = reader
        .findings
        .iter()
        .any(|finding| ManifestKind::from_path(&finding.file) == Some(ManifestKind::Governance));
    let sought = aip44.governance.is_none() && aip44.operator.is_some() == operator.is_some() && !invalid;
    if tier > Tier::Basic && acp.front.kind != Role::Client && governance.is_none() && sought {
        let message = "the tier requires a governance, but none is declared";
        let draft = Draft::error(Code::Unbound, at, message).key("metadata.aip44.tier").value(tier.name());
        reader.find(
            acp,
            draft.hint("put a GOVERNANCE.md beside the operator, or write metadata.aip44.governance"),
        );
    }
}

impl Bundle {
    /// Returns the ruleset of the governance. Without a governance, every change needs an approval.
    pub fn ruleset(&self) -> &GovernanceRuleset {
        &self.ruleset
    }

    /// Returns the directory of the manifest, relative to the root of the workspace.
    pub fn directory(&self) -> PathBuf {
        self.acp.directory()
    }
}
