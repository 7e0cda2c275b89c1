//! Required approvals: which identities may approve, and how many must approve.

use narrows_manifest::types::governance::Approver;
use narrows_policy::{GovernanceDecision, Signer};

use crate::identity::Principal;

/// A required approval. One of these groups must approve.
#[derive(Debug)]
pub(super) struct ApprovalRequirement(pub(super) Vec<ApproverGroup>);

impl ApprovalRequirement {
    pub(super) fn describe(&self) -> String {
        self.0.iter().map(ApproverGroup::describe).collect::<Vec<_>>().join(" or ")
    }
}

/// A group of approvers, and the number of them that must approve.
#[derive(Debug)]
pub(super) struct ApproverGroup {
    /// Identities that may approve. If the list is empty, the client is asked.
    signers: Vec<Signer>,
    quorum: u32,
}

impl ApproverGroup {
    fn describe(&self) -> String {
        let mut names: Vec<String> = Vec::new();
        for signer in &self.signers {
            let role = signer.role.as_ref().map(|role| format!("role {role}"));
            // An approver's own name also counts as one of its roles.
            let is_said = signer.role.as_ref().is_some_and(|role| names.contains(role));
            names.extend(signer.user_id.clone().or(role.filter(|_| !is_said)));
        }
        let whom = if names.is_empty() { "the clients asked".to_owned() } else { names.join(", ") };
        format!("{} of {whom}", self.quorum.max(1))
    }

    pub(super) fn includes(&self, principal: &Principal) -> bool {
        self.signers.is_empty() || is_signer(&self.signers, principal)
    }
}

/// Returns `true` if an identity is one of the signers.
#[must_use]
pub fn is_signer(signers: &[Signer], principal: &Principal) -> bool {
    signers.iter().any(|signer| {
        signer.user_id.as_ref().is_some_and(|user| is_user(user, &principal.id))
            || signer.role.as_ref().is_some_and(|role| principal.roles.contains(role))
    })
}

/// Returns `true` if the approvers in `given` satisfy all approvals that the ruling requires.
pub(super) fn satisfies_approvals(
    ruling: &GovernanceDecision,
    approvers: &[Approver],
    given: &[Principal],
) -> bool {
    requirements_met(&approval_requirements(ruling, approvers), &given.iter().collect::<Vec<_>>())
}

pub(super) fn requirements_met(needs: &[ApprovalRequirement], given: &[&Principal]) -> bool {
    needs.iter().all(|requirement| {
        requirement.0.iter().any(|group| {
            let count = given.iter().filter(|signer| group.includes(signer)).count();
            count >= group.quorum.max(1) as usize
        })
    })
}

/// Returns the required approvals: those that the policies name. If no policy names any, returns one by the
/// approvers that are responsible for the action.
pub(super) fn approval_requirements(
    ruling: &GovernanceDecision,
    approvers: &[Approver],
) -> Vec<ApprovalRequirement> {
    let responsible = |quorum: u32| {
        if approvers.is_empty() {
            return ApprovalRequirement(vec![ApproverGroup { signers: Vec::new(), quorum }]);
        }
        let may = |approver: &&Approver| match &approver.can_approve {
            Some(known) => known.iter().any(|known| ruling.actions.iter().any(|action| known == action)),
            None => true,
        };
        let group = |approver: &Approver| {
            let role = |role: String| Signer { role: Some(role), user_id: None };
            let mut signers = vec![Signer { role: None, user_id: Some(approver.id.clone()) }];
            signers.push(role(approver.id.clone()));
            signers.extend(approver.role.clone().map(role));
            ApproverGroup { signers, quorum: quorum.max(approver.needed()) }
        };
        ApprovalRequirement(approvers.iter().filter(may).map(group).collect())
    };
    if ruling.approvals.is_empty() {
        return vec![responsible(1)];
    }
    let requirement = |approval: &narrows_policy::Approval| match approval.signers.is_empty() {
        true => responsible(approval.quorum),
        false => ApprovalRequirement(vec![ApproverGroup {
            signers: approval.signers.clone(),
            quorum: approval.quorum,
        }]),
    };
    ruling.approvals.iter().map(requirement).collect()
}

/// Returns `true` if the user name in a policy denotes this identity, with or without the prefix `user:`.
fn is_user(named: &str, id: &str) -> bool {
    named == id || id.strip_prefix("user:") == Some(named)
}
