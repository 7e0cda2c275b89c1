//! Collects the policies in effect, and builds the ruleset of a governance from them.

use std::path::{Path, PathBuf};

use narrows_policy::{Budget, Class, DefaultApproval, GovernanceRule, GovernanceRuleset, Severity, Signer};

use super::governance::EffectiveGovernance;
use super::plan::Loaded;
use super::reader::ManifestReader;
use crate::code::Code;
use crate::files::FilesError;
use crate::finding::Draft;
use crate::kind::ManifestKind;
use crate::lint::action_of_other_program;
use crate::types::governance::{self, PolicyEntry};
use crate::types::operator::{Autonomy, Operator};
use crate::types::policy::{Decision, Policy};

/// A policy in effect.
#[derive(Debug, Clone)]
pub struct BoundPolicy {
    /// Entry of the policy in the governance. `None` if only the operator names the policy.
    pub entry: Option<PolicyEntry>,
    pub policy: Loaded<Policy>,
}

impl BoundPolicy {
    fn is(&self, name: &str) -> bool {
        self.policy.front.slug == name || self.entry.as_ref().is_some_and(|entry| entry.id == name)
    }
}

/// Loads the policies of the governance, then those that only the operator names.
pub(super) fn load(
    reader: &mut ManifestReader<'_>,
    governance: &EffectiveGovernance,
    operator: Option<&Loaded<Operator>>,
) -> Vec<BoundPolicy> {
    let mut policies = Vec::new();
    for entry in &governance.config.policies {
        let Some(source) = governance.source_of(&entry.id).cloned() else { continue };
        let at = source.place(&["policies"]);
        let items = source.node.get("policies").map(crate::yaml::Node::items).unwrap_or_default();
        let written = items.iter().find(|item| item.get("id").and_then(|id| id.text()) == Some(&entry.id));
        let at = written.and_then(|item| item.get("ref")).map_or(at, |reference| reference.at);
        let code = Some(Code::Policy);
        let key = format!("policies.{}.ref", narrows_base::text::quoted(&entry.id, 64));
        if let Some(policy) =
            reader.read_manifest_reference::<Policy, _>(&source, &entry.r#ref, at, &key, code)
        {
            policies.push(BoundPolicy { entry: Some(entry.clone()), policy });
        }
    }
    let Some(operator) = operator else { return policies };
    named(reader, operator, &[governance.scope.clone(), operator.directory(), PathBuf::new()], policies)
}

/// Loads the policies that an operator names, for a manifest without a governance.
pub(super) fn without_governance(
    reader: &mut ManifestReader<'_>,
    operator: Option<&Loaded<Operator>>,
) -> Vec<BoundPolicy> {
    let Some(operator) = operator else { return Vec::new() };
    named(reader, operator, &[operator.directory(), PathBuf::new()], Vec::new())
}

/// Adds the policies that an operator names. A name without a policy is an error.
fn named(
    reader: &mut ManifestReader<'_>,
    operator: &Loaded<Operator>,
    places: &[PathBuf],
    mut policies: Vec<BoundPolicy>,
) -> Vec<BoundPolicy> {
    let Some(binding) = &operator.front.governance else { return policies };
    for reference in &binding.policies {
        let name = reference.strip_prefix("policy:").unwrap_or(reference);
        if policies.iter().any(|policy| policy.is(name)) {
            continue;
        }
        match find(reader, name, places) {
            Ok(policy) => policies.push(BoundPolicy { entry: None, policy }),
            Err(unusable) => {
                let at = operator.place(&["governance", "policies"]);
                let shown = narrows_base::text::quoted(name, 64);
                let (message, hint) = match unusable {
                    None => (
                        format!("unknown policy `{shown}`"),
                        format!("add it to the governance, or put it into policies/{shown}/POLICY.md"),
                    ),
                    Some(path) => (
                        format!("the policy `{shown}` cannot be used"),
                        format!("mend {}", narrows_base::text::quoted(&path.display().to_string(), 200)),
                    ),
                };
                let draft = Draft::error(Code::Policy, at, message).key("governance.policies");
                reader.find(operator, draft.value(reference).hint(hint));
            }
        }
    }
    policies
}

/// Finds a policy by name.
///
/// # Errors
///
/// The file that cannot be used. `None` if no policy has this name.
fn find(
    reader: &mut ManifestReader<'_>,
    name: &str,
    places: &[PathBuf],
) -> Result<Loaded<Policy>, Option<PathBuf>> {
    for place in places {
        let relative = Path::new("policies").join(name).join(ManifestKind::Policy.file_name());
        let Some(path) = relative.to_str().and_then(|relative| crate::files::join(place, relative)) else {
            continue;
        };
        match reader.bytes(&path) {
            Err(FilesError::NotFound) => {}
            Err(_) => return Err(Some(path)),
            Ok(bytes) => return reader.parse(&path, &bytes).ok_or(Some(path)),
        }
    }
    Err(None)
}

/// Builds the ruleset of the policies. Of the levels of autonomy of workspace and operator, the lower one
/// counts.
pub(super) fn ruleset(
    reader: &mut ManifestReader<'_>,
    governance: Option<&EffectiveGovernance>,
    operator: Option<&Loaded<Operator>>,
    policies: &[BoundPolicy],
) -> GovernanceRuleset {
    let mut rules = Vec::new();
    for policy in policies {
        match rule(policy) {
            Ok(rule) => {
                warn_unmatched_action(reader, policy);
                rules.push(rule);
            }
            Err(error) => {
                let loaded = &policy.policy;
                let at = loaded.place(&["match", "subject"]);
                let subject = loaded.front.r#match.subject.as_deref().unwrap_or_default();
                let draft = Draft::error(Code::UnusableValue, at, error.to_string()).key("match.subject");
                reader.find(
                    loaded,
                    draft.value(subject).hint("write a name, or a path such as workspace:/finance/**"),
                );
            }
        }
    }
    let autonomy = governance.and_then(|governance| governance.config.autonomy.as_ref());
    let default = match autonomy.and_then(|autonomy| autonomy.default_approval.as_deref()) {
        None | Some("on-mutate") => DefaultApproval::OnMutate,
        Some("auto") => DefaultApproval::Auto,
        Some(other) => match other.strip_prefix("policy:") {
            None => DefaultApproval::Always,
            Some(name) => match policies.iter().find(|policy| policy.is(name)) {
                Some(policy) => DefaultApproval::Rule(policy.policy.front.slug.clone()),
                None => {
                    unknown_default(reader, governance, other);
                    DefaultApproval::Always
                }
            },
        },
    };
    let level = lower(
        autonomy.and_then(|autonomy| autonomy.level),
        operator.and_then(|operator| operator.front.governance.as_ref()).map(|binding| binding.autonomy),
    );
    GovernanceRuleset::new(rules).with_level(level).with_default(default)
}

/// Warns that a policy is about an action that only other programs have.
fn warn_unmatched_action(reader: &mut ManifestReader<'_>, bound: &BoundPolicy) {
    let policy = &bound.policy;
    let (at, denies) = (policy.place(&["match", "action"]), policy.front.decision == Decision::Deny);
    let bound_to = bound.entry.as_ref().and_then(|entry| entry.applies_to.as_deref());
    for (key, action) in
        [("match.action", Some(policy.front.r#match.action.as_str())), ("appliesTo", bound_to)]
    {
        if let Some(draft) = action.and_then(|action| action_of_other_program(at, action, denies)) {
            reader.find(policy, draft.key(key));
        }
    }
}

fn unknown_default(reader: &mut ManifestReader<'_>, governance: Option<&EffectiveGovernance>, value: &str) {
    let says = |source: &&Loaded<governance::Governance>| {
        let autonomy = source.front.autonomy.as_ref();
        autonomy.is_some_and(|autonomy| autonomy.default_approval.is_some())
    };
    if let Some(source) = governance.and_then(|governance| governance.sources.iter().find(says)).cloned() {
        let at = source.place(&["autonomy", "defaultApproval"]);
        let draft = Draft::error(Code::Policy, at, "unknown policy").key("autonomy.defaultApproval");
        reader
            .find(&source, draft.value(value).hint("add it to policies, or write auto, always or on-mutate"));
    }
}

/// Returns the lower of the workspace's level of autonomy and the level of the operator's autonomy. A
/// supervised operator has level 1: suggestions only.
pub(super) fn lower(level: Option<u8>, autonomy: Option<Autonomy>) -> Option<u8> {
    let operator = match autonomy {
        None | Some(Autonomy::Autonomous) => None,
        Some(Autonomy::Supervised | Autonomy::Gated) => Some(1),
    };
    match (level, operator) {
        (Some(level), Some(operator)) => Some(level.min(operator)),
        (level, operator) => level.or(operator),
    }
}

fn rule(bound: &BoundPolicy) -> Result<GovernanceRule, narrows_policy::GovernanceRuleError> {
    let policy = &bound.policy.front;
    let class = match policy.decision {
        Decision::Allow => Class::Allow,
        Decision::RequireApproval => Class::RequireApproval,
        Decision::Escalate => Class::Escalate,
        Decision::Deny => Class::Deny,
    };
    let signers = policy
        .signers
        .iter()
        .map(|signer| Signer { role: signer.role.clone(), user_id: signer.user_id.clone() });
    // A quorum that does not fit into the type can never be reached.
    let quorum = u32::try_from(policy.quorum.unwrap_or(1)).unwrap_or(u32::MAX);
    let mut rule = GovernanceRule::new(&policy.slug, &policy.r#match.action, class)
        .with_min_risk(policy.r#match.risk_level_min.unwrap_or(0))
        .with_max_level(policy.autonomy.unwrap_or(2))
        .with_signers(signers.collect(), quorum);
    if let Some(subject) = policy.r#match.subject.as_deref().filter(|subject| *subject != "*") {
        rule = rule.with_subject(subject)?;
    }
    if let Some(budget) = &policy.budget {
        rule = rule.with_budget(Budget {
            per_hour: budget.max_per_hour,
            per_day: budget.max_per_day,
            amount_cents: budget.max_amount_cents,
            currency: budget.currency.clone(),
        });
    }
    if let Some(entry) = &bound.entry {
        if let Some(action) = &entry.applies_to {
            rule = rule.with_action(action);
        }
        rule = rule.with_severity(match entry.severity.unwrap_or_default() {
            governance::Severity::Error => Severity::Error,
            governance::Severity::Warn => Severity::Warn,
            governance::Severity::Info => Severity::Info,
        });
    }
    Ok(rule)
}
