//! Checks of what a manifest needs besides its files, before anything is served: keys, signers, sandboxes, programs.

use std::path::{Path, PathBuf};

use narrows_audit::Timestamp;
use narrows_base::suggest::nearest;
use narrows_govern::{PolicyCoverage, Principal, is_signer, mcp_server_config};
use narrows_manifest::types::acp::Tier;
use narrows_manifest::types::agent_cli::Block;
use narrows_manifest::types::policy::Decision;
use narrows_manifest::{AuditTarget, BoundPolicy, Bundle, Code, Finding, Findings, Severity};
use narrows_policy::Signer;
use narrows_process::{SpawnError, Spec};

use super::agent::{resolve_program, with_search_path};
use super::keys::{DEFAULT_KEYS_FILE, KeyFiles, Keys};
use super::os_users::approver_roles;
use super::sandbox_bounds::{SandboxBounds, Unenforceable, requested_sandboxes};
use super::unavailable_tools;
use super::version_check;
use super::version_managers::Shim;
use crate::terminal::line;

/// Loads a manifest as it would be served. Findings that do not prevent serving are warnings of the bundle.
///
/// # Errors
/// Returns all findings if the manifest cannot be served.
pub(super) fn load(manifest: &Path, root: Option<&Path>) -> Result<(Bundle, KeyFiles), Findings> {
    let mut bundle = narrows_manifest::load(manifest, root)?;
    let (keys, findings) = inspect(root.unwrap_or_else(|| parent(manifest)), &bundle);
    findings.into_iter().for_each(|finding| bundle.warnings.push(finding));
    if bundle.warnings.has_errors() { Err(bundle.warnings) } else { Ok((bundle, keys)) }
}

/// Returns all findings about serving a manifest. With an error among them it cannot be served.
pub(in crate::command) fn findings(manifest: &Path) -> Findings {
    match load(manifest, None) {
        Ok((mut bundle, _)) => {
            let missed = policies_without_tools(&bundle);
            missed.into_iter().for_each(|finding| bundle.warnings.push(finding));
            bundle.warnings
        }
        Err(findings) => findings,
    }
}

/// Returns the directory of a file, also for a bare file name.
pub(super) fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."))
}

/// Returns the signing keys, and the findings about keys, signers, sandboxes and tools.
fn inspect(root: &Path, bundle: &Bundle) -> (KeyFiles, Findings) {
    let mut findings = Findings::default();
    let keys = KeyFiles::read(root, bundle, &mut findings);
    let known = keys.keys.as_ref();
    let beyond = bundle.policies.iter().filter_map(|policy| unreachable_quorum(policy, bundle, known));
    beyond.for_each(|finding| findings.push(finding));
    let runs =
        bundle.agent.is_some() || bundle.mcp_servers.iter().any(|server| mcp_server_config(server).is_some());
    if runs && let Err(refused) = sandbox_bounds(root, bundle) {
        findings.push(unenforceable(&refused, bundle));
    }
    if runs && !requested_sandboxes(bundle, bundle.agent.as_ref()).is_empty() {
        log_beside_workspace(root, bundle).into_iter().for_each(|finding| findings.push(finding));
    }
    emptied_by_agent(bundle).into_iter().for_each(|finding| findings.push(finding));
    unavailable_tools::findings(bundle).into_iter().for_each(|finding| findings.push(finding));
    (keys, findings)
}

/// Reports a log in the root of the workspace: a sandbox can hide the directory of a log, but not the files
/// that rotations add to a directory that the agent uses.
fn log_beside_workspace(root: &Path, bundle: &Bundle) -> Option<Finding> {
    let AuditTarget::Log(log) = &bundle.audit else { return None };
    let log = root.join(log);
    let is_same = |directory: &Path| directory.canonicalize().ok() == root.canonicalize().ok();
    log.parent().filter(|directory| is_same(directory))?;
    let place = bundle.acp.place_of(&["metadata", "aip44", "audit", "ref"]);
    let message =
        "the log is in the root of the workspace, where a sandbox cannot hide it (sandbox_unenforceable)";
    let finding =
        Finding::new(Severity::Error, Code::Unenforceable, &bundle.acp.path, place, message.to_owned());
    let hint = "write a path in a directory that has nothing else in it, such as ./audit/audit-log.jsonl";
    Some(finding.with_key("metadata.aip44.audit.ref").with_hint(hint))
}

/// Reports hosts that the tier's sandbox allows and the agent's own sandbox does not mention, which blocks
/// them.
fn emptied_by_agent(bundle: &Bundle) -> Vec<Finding> {
    let aip44 = &bundle.acp.front.metadata.aip44;
    let (Tier::Sandboxed, Some(outer), Some(agent)) = (aip44.tier, &bundle.sandbox, &bundle.agent) else {
        return Vec::new();
    };
    let Block::Inline(inner) = &agent.cli.front.sandbox else { return Vec::new() };
    let named = aip44.sandbox.as_deref().unwrap_or("./SANDBOX.md");
    let lost = [
        ("network", "network: {egress: []}", !outer.egress.is_empty()),
        ("env", "env: {}", !outer.env.is_empty()),
    ];
    let lost = lost.into_iter().filter(|(key, _, says)| *says && !inner.contains_key(*key));
    lost.map(|(key, none, _)| {
        let message =
            format!("missing `{key}`, which disables that of {named}: the stricter of two sandboxes applies");
        let place = agent.cli.place_of(&["sandbox"]);
        let finding =
            Finding::new(Severity::Error, Code::Contradiction, &agent.cli.path, place, line(&message));
        finding.with_key(format!("sandbox.{key}")).with_hint(format!(
            "use sandbox: {named} for both, or {none} to deny \
                                                                  everything"
        ))
    })
    .collect()
}

/// Returns the findings of `narrows check`, including missing programs, which may exist on the machine that
/// serves.
pub(in crate::command) fn survey(root: &Path, bundle: &Bundle) -> Findings {
    let (_, mut findings) = inspect(root, bundle);
    missing_programs(root, bundle).into_iter().for_each(|finding| findings.push(finding));
    policies_without_tools(bundle).into_iter().for_each(|finding| findings.push(finding));
    findings
}

/// Reports policies about tools that the operator does not have: a denial of such a policy would never apply.
fn policies_without_tools(bundle: &Bundle) -> Vec<Finding> {
    let reach = PolicyCoverage::new(bundle);
    let told = |bound: &BoundPolicy| {
        let subject = bound.policy.front.r#match.subject.as_deref().unwrap_or_default();
        let message = format!("`{subject}` matches no tool of the operator, so this policy has no effect");
        let place = bound.policy.place_of(&["match", "subject"]);
        let finding =
            Finding::new(Severity::Warning, Code::Subject, &bound.policy.path, place, line(&message));
        let hint = match nearest(subject, reach.tools()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => match reach.tools().collect::<Vec<_>>().as_slice() {
                [] => "add it to `tools` of the OPERATOR.md, which has no tools".to_owned(),
                tools => {
                    format!("use one of {}, or add it to `tools` of the OPERATOR.md", short_list(tools))
                }
            },
        };
        finding.with_key("match.subject").with_hint(line(&hint))
    };
    reach.unmatched_policies().into_iter().map(told).collect()
}

fn short_list(names: &[&str]) -> String {
    const MAX_NAMES: usize = 12;
    let mut told: Vec<&str> = names.iter().copied().take(MAX_NAMES).collect();
    if names.len() > MAX_NAMES {
        told.push("…");
    }
    told.join(", ")
}

/// Converts the error to a finding at the key in the manifest.
fn unenforceable(refused: &Unenforceable, bundle: &Bundle) -> Finding {
    let (file, place, key) = match (&bundle.agent, refused.file.as_str()) {
        (Some(agent), "AGENT-CLI.md") => {
            let keys: Vec<&str> = std::iter::once("sandbox").chain(refused.field.split('.')).collect();
            (&agent.cli.path, agent.cli.place_of(&keys), "sandbox")
        }
        _ => {
            let place = bundle.acp.place_of(&["metadata", "aip44", "sandbox"]);
            (&bundle.acp.path, place, "metadata.aip44.sandbox")
        }
    };
    let code = if refused.code == Code::ReadOnly.name() { Code::ReadOnly } else { Code::Unenforceable };
    let message = format!("{refused} ({})", refused.code);
    Finding::new(Severity::Error, code, file, place, message).with_key(key).with_hint(refused.hint.clone())
}

fn sandbox_bounds(root: &Path, bundle: &Bundle) -> Result<SandboxBounds, Unenforceable> {
    let agent = bundle.agent.as_ref();
    SandboxBounds::merge(
        root,
        &requested_sandboxes(bundle, agent),
        agent.and_then(|agent| agent.runner.as_ref()),
    )
}

/// Reports a policy that requires more approvals than possible. Each signer with a key can approve once, and
/// so can a signer who is the client.
fn unreachable_quorum(bound: &BoundPolicy, bundle: &Bundle, keys: Option<&Keys>) -> Option<Finding> {
    let policy = &bound.policy.front;
    let asks = matches!(policy.decision, Decision::RequireApproval | Decision::Escalate);
    if !asks || policy.signers.is_empty() {
        return None;
    }
    let signer = |signer: &narrows_manifest::types::policy::Signer| Signer {
        role: signer.role.clone(),
        user_id: signer.user_id.clone(),
    };
    let signers: Vec<Signer> = policy.signers.iter().map(signer).collect();
    let governance = bundle.governance.as_ref();
    let approvers = governance.map(|governance| governance.config.approvers.as_slice()).unwrap_or_default();
    let mut holders = keys.map(|keys| keys.holders(Timestamp::now(), approvers)).unwrap_or_default();
    holders.retain(|holder| is_signer(&signers, holder));
    let has_key = |id: &str| holders.iter().any(|holder| holder.id == id);
    let named = signers.iter().filter_map(|signer| signer.user_id.clone());
    let of_role = approvers.iter().map(|approver| approver.id.clone()).filter(|name| {
        let user = name.strip_prefix("user:").unwrap_or(name);
        let who = Principal {
            id: format!("user:{user}"),
            roles: approver_roles(user, approvers),
            ..Principal::default()
        };
        is_signer(&signers, &who)
    });
    // One approver may be the client, who needs no key.
    let client = named.chain(of_role).any(|name| {
        let user = name.strip_prefix("user:").unwrap_or(&name);
        !has_key(&format!("user:{user}"))
    });
    let (can, quorum) = (holders.len() + usize::from(client), policy.quorum.unwrap_or(1));
    if can as u64 >= quorum {
        return None;
    }
    let who: Vec<String> = policy.signers.iter().map(signer_name).collect();
    let message = match can {
        0 => format!(
            "this approval is impossible, so every action that needs it is denied: no approver or key is {}",
            who.join(" or ")
        ),
        can => format!(
            "this approval is impossible, so every action that needs it is denied: it needs {quorum}, and only \
             {can} of {} are available",
            who.join(" or ")
        ),
    };
    let keyring = governance.and_then(|governance| Some(governance.keyring()?.1));
    let keyring = keyring.unwrap_or_else(|| {
        governance.map_or(PathBuf::from(DEFAULT_KEYS_FILE), |it| it.scope.join(DEFAULT_KEYS_FILE))
    });
    let hint = format!("add keys to {} (`narrows audit keygen`), or name other signers", keyring.display());
    let place = bound.policy.place_of(&[if policy.quorum.is_some() { "quorum" } else { "signers" }]);
    let finding = Finding::new(Severity::Warning, Code::Quorum, &bound.policy.path, place, line(&message));
    Some(finding.with_key("signers").with_hint(line(&hint)))
}

fn signer_name(signer: &narrows_manifest::types::policy::Signer) -> String {
    match (&signer.role, &signer.user_id) {
        (Some(role), None) => format!("role {role:?}"),
        (_, Some(user)) => format!("user {user:?}"),
        (None, None) => "anybody".to_owned(),
    }
}

fn missing_programs(root: &Path, bundle: &Bundle) -> Vec<Finding> {
    let Some(agent) = &bundle.agent else { return Vec::new() };
    let beside = root.join(agent.cli.directory());
    let bin = resolve_program(&agent.launch.program, &beside).map(Spec::new);
    let check = version_check::command(agent, &beside);
    let both = [("bin", &["bin"][..], bin), ("version_check.cmd", &["version_check", "cmd"], check)];
    let missing = |(key, keys, spec): (&str, &[&str], Result<Spec, _>)| {
        let spec = with_search_path(root, [&spec.ok()?]).pop()?;
        let error = match narrows_process::find(&spec) {
            Ok(path) => {
                let shim = Shim::at_path(&path).filter(|_| agent.sandbox.is_some())?;
                let place = agent.cli.place_of(keys);
                let finding =
                    Finding::new(Severity::Warning, Code::Program, &agent.cli.path, place, shim.to_string());
                return Some(finding.with_key(key).with_hint(shim.hint()));
            }
            Err(error) => error,
        };
        let message = match error {
            // The message leaves out the search path, which differs between machines.
            SpawnError::NotFound { program, .. } => format!("program {program:?} not found"),
            error => error.to_string(),
        };
        let message = line(&format!("cannot start the agent on this machine: {message}"));
        let file = &agent.cli.path;
        let finding = Finding::new(Severity::Warning, Code::Program, file, agent.cli.place_of(keys), message);
        Some(finding.with_key(key).with_hint("install it as described in `install`, or use its full path"))
    };
    let mut found: Vec<Finding> = both.into_iter().filter_map(missing).collect();
    // The manifest may name one program twice.
    found.dedup_by(|next, first| next.message == first.message);
    found
}
