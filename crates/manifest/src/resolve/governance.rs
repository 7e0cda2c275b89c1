//! Finds the governance in effect, and merges it with its parents.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::plan::Loaded;
use super::reader::ManifestReader;
use crate::code::Code;
use crate::files::{FilesError, join};
use crate::finding::Draft;
use crate::kind::ManifestKind;
use crate::types::OtherKeys;
use crate::types::acp::Acp;
use crate::types::governance::{Approver, Audit, Autonomy, Governance, PolicyEntry, Signing};
use crate::types::operator::Operator;

const MAX_PARENTS: usize = 8;

/// A governance merged with all its parents.
#[derive(Debug, Clone)]
pub struct EffectiveGovernance {
    pub config: Governance,
    /// Paths of the merged files: the governance itself first, its topmost parent last.
    pub chain: Vec<PathBuf>,
    /// Directory of the governance, relative to the root of the workspace. The audit log is in this
    /// directory.
    pub scope: PathBuf,
    /// For each policy of `config`, the file that names the policy. The policy's path is relative to that
    /// file.
    pub(super) sources: Vec<Loaded<Governance>>,
}

impl EffectiveGovernance {
    /// Returns the approvers of an action. An approver without a list of actions may approve all.
    pub fn approvers_of(&self, action: &str) -> Vec<&Approver> {
        let may = |approver: &&Approver| match &approver.can_approve {
            Some(actions) => actions.iter().any(|known| known == action),
            None => true,
        };
        self.config.approvers.iter().filter(may).collect()
    }

    /// Returns the path of the file with the signers' public keys, relative to the root of the workspace, and
    /// the governance that names the file. If several governances name one, the most specific counts.
    pub fn keyring(&self) -> Option<(&Loaded<Governance>, PathBuf)> {
        self.sources.iter().find_map(|source| {
            let keyring = source.front.signing.as_ref()?.keyring.as_ref()?;
            Some((source, join(&source.directory(), keyring)?))
        })
    }

    /// Returns the governance file that defines a policy with this id. If several do, the most specific
    /// counts.
    pub(super) fn source_of(&self, id: &str) -> Option<&Loaded<Governance>> {
        let has = |source: &&Loaded<Governance>| source.front.policies.iter().any(|entry| entry.id == id);
        self.sources.iter().find(has)
    }
}

/// Loads the governance of a manifest: the one that the manifest names, or else the one in the operator's
/// directory, or else the one in the root.
pub(super) fn load(
    reader: &mut ManifestReader<'_>,
    acp: &Loaded<Acp>,
    operator: Option<&Loaded<Operator>>,
) -> Option<EffectiveGovernance> {
    let first = match &acp.front.metadata.aip44.governance {
        Some(reference) => {
            let at = acp.place(&["metadata", "aip44", "governance"]);
            reader.read_manifest_reference::<Governance, _>(
                acp,
                reference,
                at,
                "metadata.aip44.governance",
                None,
            )
        }
        None => {
            let beside =
                operator.map(|operator| operator.directory().join(ManifestKind::Governance.file_name()));
            let beside = beside.and_then(|path| reader.optional::<Governance>(&path));
            beside.or_else(|| reader.optional::<Governance>(Path::new(ManifestKind::Governance.file_name())))
        }
    }?;
    applies(reader, &first, operator);
    let sources = chain(reader, first);
    let config = merged(reader, &sources)?;
    keyrings(reader, &sources);
    let scope = sources.first()?.directory();
    let chain = sources.iter().map(|source| source.path.clone()).collect();
    Some(EffectiveGovernance { config, chain, scope, sources })
}

/// Reports key files that are not in this workspace.
fn keyrings(reader: &mut ManifestReader<'_>, sources: &[Loaded<Governance>]) {
    for source in sources {
        let keyring = source.front.signing.as_ref().and_then(|signing| signing.keyring.as_deref());
        if let Some(keyring) = keyring.filter(|keyring| join(&source.directory(), keyring).is_none()) {
            let at = source.place(&["signing", "keyring"]);
            let draft = Draft::error(Code::Outside, at, "the keyring is outside the workspace")
                .key("signing.keyring");
            reader.find(
                source,
                draft.value(keyring).hint("write a path in it such as ./.well-known/governance-keys.json"),
            );
        }
    }
}

/// Reports a governance for certain operators whose `appliesTo` does not exist.
fn applies(reader: &mut ManifestReader<'_>, first: &Loaded<Governance>, operator: Option<&Loaded<Operator>>) {
    for reference in &first.front.applies_to {
        let found = match reference.strip_prefix("ws://") {
            Some(named) => {
                let (folder, slug) = named.split_once('/').unwrap_or((named, ""));
                let ours =
                    folder == "operators" && operator.is_some_and(|operator| operator.front.id == slug);
                ours || reader.files.has_directory(&Path::new(folder).join(slug))
            }
            None => join(&first.directory(), reference).is_some_and(|path| reader.files.has_directory(&path)),
        };
        if !found {
            let at = first.place(&["appliesTo"]);
            let message = "the target does not exist in this workspace";
            let draft = Draft::error(Code::AppliesTo, at, message).key("appliesTo").value(reference);
            reader.find(first, draft.hint("name the operator of this manifest, or remove it"));
        }
    }
}

/// Loads a governance and its parents. The chain ends with a warning at a parent that is missing, repeated,
/// or beyond the maximum depth.
fn chain(reader: &mut ManifestReader<'_>, first: Loaded<Governance>) -> Vec<Loaded<Governance>> {
    let mut chain = vec![first];
    while let Some(last) = chain.last()
        && let Some(reference) = last.front.extends.clone()
    {
        let last = last.clone();
        let found = match join(&last.directory(), &reference) {
            None => Err(FilesError::Outside),
            Some(path) => reader.bytes(&path).map(|bytes| (path, bytes)),
        };
        let mut stop = |message: String| {
            let draft = Draft::warning(Code::Extends, last.place(&["extends"]), message).key("extends");
            let draft = draft.value(&reference).hint("nothing is inherited from it until this is fixed");
            reader.findings.push(draft.into_finding(&last.path));
        };
        let (path, bytes) = match found {
            Ok(found) => found,
            Err(error) => {
                stop(format!("the parent governance cannot be read: {error}"));
                break;
            }
        };
        if chain.iter().any(|known| known.path == path) {
            stop("the governance inherits from itself".into());
            break;
        }
        if chain.len() == MAX_PARENTS {
            stop(format!("more than {MAX_PARENTS} levels of inheritance"));
            break;
        }
        match reader.parse::<Governance>(&path, &bytes) {
            Some(parent) => chain.push(parent),
            None => {
                let message = "the parent governance is invalid";
                let draft = Draft::error(Code::Workspace, last.place(&["extends"]), message).key("extends");
                reader.find(&last, draft.value(&reference).hint("fix that file first"));
                break;
            }
        }
    }
    chain
}

/// Merges a chain from the top down. Values of a child replace those of its parents.
fn merged(reader: &mut ManifestReader<'_>, chain: &[Loaded<Governance>]) -> Option<Governance> {
    let (top, below) = chain.split_last()?;
    let mut config = top.front.clone();
    for child in below.iter().rev() {
        let locked = |value: Option<bool>| value == Some(true);
        let audit = config.audit.as_ref().and_then(|audit| audit.append_only);
        let child_audit = child.front.audit.as_ref().and_then(|audit| audit.append_only);
        if locked(audit) && child_audit == Some(false) {
            let at = child.place(&["audit", "appendOnly"]);
            let message = "the parent governance requires an append-only log";
            let draft = Draft::error(Code::AppendOnly, at, message).key("audit.appendOnly").value("false");
            reader.find(child, draft.hint("leave it out"));
        }
        let signing = config.signing.as_ref().and_then(|signing| signing.required);
        let child_signing = child.front.signing.as_ref().and_then(|signing| signing.required);
        if locked(signing) && child_signing == Some(false) {
            let at = child.place(&["signing", "required"]);
            let message = "the parent governance requires signatures";
            let draft = Draft::error(Code::Signing, at, message).key("signing.required").value("false");
            reader.find(child, draft.hint("leave it out"));
        }
        config = merge(config, child.front.clone());
    }
    Some(config)
}

fn merge(parent: Governance, child: Governance) -> Governance {
    Governance {
        schema: child.schema,
        name: child.name,
        title: child.title,
        description: child.description,
        version: child.version,
        extends: child.extends,
        applies_to: child.applies_to,
        autonomy: leafwise(parent.autonomy, child.autonomy, |parent, child| Autonomy {
            level: child.level.or(parent.level),
            default_approval: child.default_approval.or(parent.default_approval),
            approval_escalation: child.approval_escalation.or(parent.approval_escalation),
        }),
        signing: leafwise(parent.signing, child.signing, |parent, child| Signing {
            algo: child.algo.or(parent.algo),
            keyring: child.keyring.or(parent.keyring),
            required: child.required.or(parent.required),
        }),
        audit: leafwise(parent.audit, child.audit, |parent, child| Audit {
            retention: child.retention.or(parent.retention),
            hash_algo: child.hash_algo.or(parent.hash_algo),
            append_only: child.append_only.or(parent.append_only),
            storage: child.storage.or(parent.storage),
            head_pointer_sign: child.head_pointer_sign.or(parent.head_pointer_sign),
        }),
        policies: by_id(parent.policies, child.policies, |entry: &PolicyEntry| entry.id.clone()),
        approvers: by_id(parent.approvers, child.approvers, |approver: &Approver| approver.id.clone()),
        executor: child.executor.or(parent.executor),
        escalate_to: child.escalate_to.or(parent.escalate_to),
        work: child.work.or(parent.work),
        knowledge: child.knowledge.or(parent.knowledge),
        display: child.display.or(parent.display),
        metadata: deep(parent.metadata, child.metadata),
    }
}

fn leafwise<T>(parent: Option<T>, child: Option<T>, merge: impl Fn(T, T) -> T) -> Option<T> {
    match (parent, child) {
        (Some(parent), Some(child)) => Some(merge(parent, child)),
        (parent, child) => child.or(parent),
    }
}

/// Replaces entries of the parent by entries of the child with the same id, and appends the others.
fn by_id<T>(mut parent: Vec<T>, child: Vec<T>, id: impl Fn(&T) -> String) -> Vec<T> {
    for entry in child {
        match parent.iter_mut().find(|known| id(known) == id(&entry)) {
            Some(known) => *known = entry,
            None => parent.push(entry),
        }
    }
    parent
}

fn deep(mut parent: OtherKeys, child: OtherKeys) -> OtherKeys {
    for (key, value) in child {
        let merged = match (parent.remove(&key), value) {
            (Some(Value::Object(below)), Value::Object(value)) => Value::Object(deep(below, value)),
            (_, value) => value,
        };
        parent.insert(key, merged);
    }
    parent
}
