//! Combined decisions of a policy and a governance, and their reasons.

use std::fmt;

use serde::Serialize;

use super::budget::{BudgetLimit, ExhaustedBudget};
use super::class::{Class, Severity};
use super::rule::Signer;
use crate::action::Action;
use crate::decision::Decision;

/// A decision of a governance and its reason. Displayed as one sentence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GovernanceDecision {
    pub class: Class,
    pub reason: GovernanceReason,
    /// The deciding part of a request with several parts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub about: Option<String>,
    /// Risk of the request, 0 to 3.
    pub risk: u8,
    /// Action names of the request in policies and approver scopes, as far as they are certain.
    pub actions: Vec<&'static str>,
    /// Slugs of all matching rules that count, without duplicates.
    pub clauses: Vec<String>,
    /// Required approvals. All of them are needed.
    pub approvals: Vec<Approval>,
    /// Matching rules that do not decide.
    pub notes: Vec<RuleNote>,
}

/// A required approval.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Approval {
    pub clause: String,
    /// Eligible approvers. If empty, those responsible for the action.
    pub signers: Vec<Signer>,
    pub quorum: u32,
}

/// A matching rule that does not decide.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RuleNote {
    pub clause: String,
    pub severity: Severity,
    /// Decision that the rule would have made.
    pub class: Class,
}

/// The reason of a decision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "by", rename_all = "snake_case")]
pub enum GovernanceReason {
    #[serde(rename = "clause")]
    Rule {
        clause: String,
    },
    /// The level in effect exceeds the rule's maximum level, so its decision is stricter.
    Autonomy {
        clause: String,
        level: u8,
        /// Maximum level of the rule.
        ceiling: u8,
    },
    Budget {
        clause: String,
        what: BudgetLimit,
        /// Used amount, at most `limit`. `None` if it is unknown.
        #[serde(skip_serializing_if = "Option::is_none")]
        used: Option<u64>,
        limit: u64,
    },
    Level {
        level: u8,
    },
    Default,
    Policy(Decision),
}

/// A rule that was considered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ConsideredRule {
    pub clause: String,
    /// Decision that the rule states.
    pub class: Class,
    /// Decision of the rule at this level and with this budget.
    pub says: Class,
    pub severity: Severity,
    /// `true` if the rule matches the request or a part of it.
    pub matched: bool,
    pub why: String,
}

impl GovernanceDecision {
    pub(crate) fn new(class: Class, reason: GovernanceReason, action: &Action) -> Self {
        let risk = action.risk();
        let (actions, clauses, approvals, notes) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { class, reason, about: None, risk, actions, clauses, approvals, notes }
    }

    /// Returns the slug of the deciding rule. Audit logs call it the policy.
    pub fn decided_by(&self) -> Option<&str> {
        match &self.reason {
            GovernanceReason::Rule { clause }
            | GovernanceReason::Autonomy { clause, .. }
            | GovernanceReason::Budget { clause, .. } => Some(clause),
            GovernanceReason::Level { .. } | GovernanceReason::Default | GovernanceReason::Policy(_) => None,
        }
    }

    /// Returns the first of the strictest decisions, with the approvals and notes of all.
    pub(crate) fn strictest(decisions: impl IntoIterator<Item = Self>, action: &Action) -> Self {
        let mut decisions = decisions.into_iter();
        let Some(mut strictest) = decisions.next() else {
            return Self::new(Class::Deny, GovernanceReason::Default, action);
        };
        for mut decision in decisions {
            strictest.actions.append(&mut decision.actions);
            strictest.clauses.append(&mut decision.clauses);
            strictest.approvals.append(&mut decision.approvals);
            strictest.notes.append(&mut decision.notes);
            if decision.class > strictest.class {
                let Self { actions, clauses, approvals, notes, .. } = strictest;
                strictest = Self { actions, clauses, approvals, notes, ..decision };
            }
        }
        dedup_stable(&mut strictest.actions);
        dedup_stable(&mut strictest.clauses);
        dedup_stable(&mut strictest.approvals);
        dedup_stable(&mut strictest.notes);
        strictest
    }
}

/// Removes duplicates, and keeps the first of each.
fn dedup_stable<T: PartialEq>(list: &mut Vec<T>) {
    let mut kept = 0;
    for at in 0..list.len() {
        if !list[..kept].contains(&list[at]) {
            list.swap(kept, at);
            kept += 1;
        }
    }
    list.truncate(kept);
}

impl fmt::Display for GovernanceReason {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule { clause } => write!(out, "policy `{clause}` matches"),
            Self::Autonomy { clause, level, ceiling } => {
                write!(out, "policy `{clause}` is limited to autonomy {ceiling}, but the level is {level}")
            }
            Self::Budget { clause, what, used, limit } => {
                let excess = ExhaustedBudget { what: *what, used: *used, limit: *limit };
                write!(out, "the {what} under policy `{clause}` are exhausted ({excess})")
            }
            Self::Level { level } => write!(out, "autonomy {level} requires an approval"),
            Self::Default => out.write_str("no policy matches"),
            Self::Policy(decision) => write!(out, "{}", decision.because),
        }
    }
}

impl fmt::Display for GovernanceDecision {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.class)?;
        if let Some(about) = &self.about {
            write!(out, " `{about}`")?;
        }
        write!(out, ": {}", self.reason)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn duplicates_are_removed_and_the_first_stays(list in prop::collection::vec(0_u8..6, 0..16)) {
            let mut left = list.clone();
            dedup_stable(&mut left);
            let first = |at: &usize| !list[..*at].contains(&list[*at]);
            let expected: Vec<u8> = (0..list.len()).filter(first).map(|at| list[at]).collect();
            prop_assert_eq!(left, expected);
        }
    }
}
