//! What a policy and its ruleset decided together, and why.

use std::fmt;

use serde::Serialize;

use super::budget::{BudgetExcess, BudgetLimit};
use super::class::{Class, Severity};
use super::rule::Signer;
use crate::action::Action;
use crate::decision::Decision;

/// A decision of a governance and its reason. Displayed, it is one sentence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GovernanceDecision {
    /// The decision.
    pub class: Class,
    /// What it follows from.
    pub reason: GovernanceReason,
    /// What of the request decided, where it has several parts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub about: Option<String>,
    /// The risk of the request, 0 to 3.
    pub risk: u8,
    /// What the request is called in policies and by those who may approve, as far as that is certain.
    pub actions: Vec<&'static str>,
    /// Every clause that matched and counts, each once.
    pub clauses: Vec<String>,
    /// Who has to approve, if it comes to that: each of these.
    pub approvals: Vec<Approval>,
    /// Clauses that matched and only want to be heard.
    pub notes: Vec<RuleNote>,
}

/// Somebody has to approve.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Approval {
    /// For this clause.
    pub clause: String,
    /// Who. None: whoever is responsible for the action.
    pub signers: Vec<Signer>,
    /// How many of them.
    pub quorum: u32,
}

/// A clause that matched and does not decide.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RuleNote {
    /// Which.
    pub clause: String,
    /// What follows from it.
    pub severity: Severity,
    /// What it would have decided.
    pub class: Class,
}

/// What a decision follows from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "by", rename_all = "snake_case")]
pub enum GovernanceReason {
    /// A rule matches.
    #[serde(rename = "clause")]
    Rule {
        /// Slug of the rule.
        clause: String,
    },
    /// A clause would be milder at a lower level of autonomy.
    Autonomy {
        /// Which.
        clause: String,
        /// The level.
        level: u8,
        /// The highest at which it would.
        ceiling: u8,
    },
    /// The budget of a clause is used up.
    Budget {
        /// Which.
        clause: String,
        /// What of it.
        what: BudgetLimit,
        /// How much of that is used, at most all; absent if nobody knows.
        #[serde(skip_serializing_if = "Option::is_none")]
        used: Option<u64>,
        /// How much there is.
        limit: u64,
    },
    /// The level of autonomy does not allow it unasked.
    Level {
        /// The level.
        level: u8,
    },
    /// No clause matches.
    Default,
    /// The policy beside the ruleset says so.
    Policy(Decision),
}

/// A clause that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ConsideredRule {
    /// Which.
    pub clause: String,
    /// What stands in it.
    pub class: Class,
    /// What it says at this level and with this budget.
    pub says: Class,
    /// What follows from it.
    pub severity: Severity,
    /// Whether it matches the request or a part of it.
    pub matched: bool,
    /// Why, or why not.
    pub why: String,
}

impl GovernanceDecision {
    pub(crate) fn new(class: Class, reason: GovernanceReason, action: &Action) -> Self {
        let risk = action.risk();
        let (actions, clauses, approvals, notes) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { class, reason, about: None, risk, actions, clauses, approvals, notes }
    }

    /// The clause that decided, if one did: what a log calls the policy.
    pub fn decided_by(&self) -> Option<&str> {
        match &self.reason {
            GovernanceReason::Rule { clause }
            | GovernanceReason::Autonomy { clause, .. }
            | GovernanceReason::Budget { clause, .. } => Some(clause),
            GovernanceReason::Level { .. } | GovernanceReason::Default | GovernanceReason::Policy(_) => None,
        }
    }

    /// The first of the strictest, with everything the others have to say about who must approve.
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
            Self::Rule { clause } => write!(out, "policy `{clause}` says so"),
            Self::Autonomy { clause, level, ceiling } => {
                write!(out, "policy `{clause}` holds up to autonomy {ceiling}, and this is {level}")
            }
            Self::Budget { clause, what, used, limit } => {
                let excess = BudgetExcess { what: *what, used: *used, limit: *limit };
                write!(out, "the {what} under policy `{clause}` are used up ({excess})")
            }
            Self::Level { level } => write!(out, "autonomy {level} does not allow it unasked"),
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
        fn each_item_is_left_where_it_comes_first(list in prop::collection::vec(0_u8..6, 0..16)) {
            let mut left = list.clone();
            dedup_stable(&mut left);
            let first = |at: &usize| !list[..*at].contains(&list[*at]);
            let expected: Vec<u8> = (0..list.len()).filter(first).map(|at| list[at]).collect();
            prop_assert_eq!(left, expected);
        }
    }
}
