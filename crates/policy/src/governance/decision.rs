//! Combined decisions of a policy and a governance, and their reasons.

use std::fmt;

use serde::Serialize;

use super::budget::{BudgetLimit, ExhaustedBudget};
use super::class::{Class, Severity};
use super::rule::Signer;
use crate::action::Action;
use crate::decision::Decision;

/// A decision of a governance with its reason. It is displayed as one sentence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GovernanceDecision {
    pub class: Class,
    pub reason: GovernanceReason,
    /// The part of the request that decided, if the request has several parts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub about: Option<String>,
    /// Risk of the request, 0 to 3.
    pub risk: u8,
    /// Names of the request's actions, as policies and scopes of approvers contain them. Only certain names
    /// are included.
    pub actions: Vec<&'static str>,
    /// Slugs of all matching rules whose decision counts, without duplicates.
    pub clauses: Vec<String>,
    /// Required approvals. All of them are needed.
    pub approvals: Vec<Approval>,
    /// Matching rules whose decision does not count.
    pub notes: Vec<RuleNote>,
}

/// A required approval.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Approval {
    pub clause: String,
    /// Identities that may approve. If the list is empty, the approvers of the action may.
    pub signers: Vec<Signer>,
    pub quorum: u32,
}

/// A matching rule whose decision does not count.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RuleNote {
    pub clause: String,
    pub severity: Severity,
    /// Decision that the rule states.
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
    /// The level of autonomy in effect exceeds the maximum level of the rule, which makes its decision
    /// stricter.
    Autonomy {
        clause: String,
        level: u8,
        /// Maximum level of the rule.
        ceiling: u8,
    },
    Budget {
        clause: String,
        what: BudgetLimit,
        /// Used amount, at most `limit`. `None` if the use is unknown.
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

/// A rule of a governance, and what it decides about a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ConsideredRule {
    pub clause: String,
    /// Decision that the rule states.
    pub class: Class,
    /// Decision of the rule at the level of autonomy in effect and with the current budget use.
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

    /// Returns the slug of the rule that decided. Audit logs contain it as the policy.
    pub fn decided_by(&self) -> Option<&str> {
        match &self.reason {
            GovernanceReason::Rule { clause }
            | GovernanceReason::Autonomy { clause, .. }
            | GovernanceReason::Budget { clause, .. } => Some(clause),
            GovernanceReason::Level { .. } | GovernanceReason::Default | GovernanceReason::Policy(_) => None,
        }
    }

    /// Returns the strictest decision, or the first of several equal ones, with the approvals and notes of
    /// all.
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

/// Removes duplicates from a list. Of equal elements, the first one stays.
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
