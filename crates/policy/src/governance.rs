//! Decisions of a governance: its rules, level of autonomy, budgets, and default.

mod budget;
mod class;
mod decision;
mod rule;

#[cfg(test)]
mod tests;

pub use budget::{Budget, BudgetLimit, BudgetUsage, ExhaustedBudget, RuleUsage};
pub use class::{Class, Severity};
pub use decision::{Approval, ConsideredRule, GovernanceDecision, GovernanceReason, RuleNote};
pub use rule::{ACTIONS, GovernanceRule, GovernanceRuleError, Signer, is_known_action};

use crate::path::PatternBase;
use crate::target::Target;
use rule::NamedTarget;

const DEFAULT_LEVEL: u8 = 2;

/// Decision of a governance about actions that no rule matches.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum DefaultApproval {
    Auto,
    Always,
    /// Requires an approval for actions that may change something.
    #[default]
    OnMutate,
    /// Decides like the rule of this name.
    Rule(String),
}

/// All rules of a governance, with its level of autonomy and its default.
#[derive(Debug, Clone, Default)]
pub struct GovernanceRuleset {
    rules: Vec<GovernanceRule>,
    level: Option<u8>,
    default: DefaultApproval,
}

impl GovernanceRuleset {
    /// Creates a ruleset.
    pub fn new(rules: Vec<GovernanceRule>) -> Self {
        Self { rules, ..Self::default() }
    }

    /// Sets the level of autonomy: 0 only reads, 1 suggests, 2 acts within limits, 3 also performs
    /// irreversible actions.
    #[must_use]
    pub fn with_level(mut self, level: Option<u8>) -> Self {
        self.level = level;
        self
    }

    /// Sets the decision about actions that no rule matches.
    #[must_use]
    pub fn with_default(mut self, default: DefaultApproval) -> Self {
        self.default = default;
        self
    }

    /// Returns the rules.
    pub fn rules(&self) -> &[GovernanceRule] {
        &self.rules
    }

    /// Returns the level of autonomy, if one is set.
    pub fn level(&self) -> Option<u8> {
        self.level
    }

    /// Returns the decision about actions that no rule matches.
    pub fn default_approval(&self) -> &DefaultApproval {
        &self.default
    }

    pub(crate) fn judge(
        &self,
        target: &Target<'_>,
        pattern_base: PatternBase<'_>,
        budget_usage: &BudgetUsage<'_>,
    ) -> GovernanceDecision {
        let named_target = NamedTarget::new(target);
        let matching: Vec<&GovernanceRule> =
            self.rules.iter().filter(|rule| rule.is_about(&named_target, pattern_base)).collect();
        let decides = |rule: &&GovernanceRule| rule.severity == Severity::Error;
        let deciding = matching.iter().copied().filter(decides);
        let mut decided = deciding.map(|rule| self.apply_rule(rule, target, budget_usage)).peekable();
        let by_default = decided.peek().is_none().then(|| self.by_default(target, budget_usage));
        let all = decided.chain(by_default).chain(self.by_level(target));
        let mut decision = GovernanceDecision::strictest(all, target.action);
        decision.about.clone_from(&target.about);
        decision.actions.extend(named_target.actions());
        let notes = matching.iter().filter(|rule| !decides(rule));
        decision.notes.extend(notes.map(|rule| RuleNote {
            clause: rule.slug.clone(),
            severity: rule.severity,
            class: rule.class,
        }));
        decision
    }

    fn apply_rule(
        &self,
        rule: &GovernanceRule,
        target: &Target<'_>,
        budget_usage: &BudgetUsage<'_>,
    ) -> GovernanceDecision {
        let (class, reason) = self.effective(rule, budget_usage);
        let mut decision = GovernanceDecision::new(class, reason, target.action);
        decision.clauses.push(rule.slug.clone());
        if matches!(class, Class::RequireApproval | Class::Escalate) {
            decision.approvals.push(Approval {
                clause: rule.slug.clone(),
                signers: rule.signers.clone(),
                quorum: rule.quorum,
            });
        }
        decision
    }

    fn effective(&self, rule: &GovernanceRule, budget_usage: &BudgetUsage<'_>) -> (Class, GovernanceReason) {
        let slug = || rule.slug.clone();
        let level = self.level.unwrap_or(DEFAULT_LEVEL);
        if rule.class < Class::Escalate && level > rule.ceiling {
            let reason = GovernanceReason::Autonomy { clause: slug(), level, ceiling: rule.ceiling };
            return (Class::Escalate, reason);
        }
        let exhausted = rule.budget.as_ref().and_then(|budget| budget.exhausted(budget_usage, &rule.slug));
        match exhausted {
            Some(ExhaustedBudget { what, used, limit }) if rule.class < Class::RequireApproval => {
                (Class::RequireApproval, GovernanceReason::Budget { clause: slug(), what, used, limit })
            }
            _ => (rule.class, GovernanceReason::Rule { clause: slug() }),
        }
    }

    fn by_default(&self, target: &Target<'_>, budget_usage: &BudgetUsage<'_>) -> GovernanceDecision {
        let named = match &self.default {
            DefaultApproval::Rule(slug) => self.rules.iter().find(|rule| rule.slug == *slug),
            _ => None,
        };
        if let Some(rule) = named {
            return self.apply_rule(rule, target, budget_usage);
        }
        let class = match self.default {
            DefaultApproval::Auto => Class::Allow,
            DefaultApproval::OnMutate if risk(target) == 0 => Class::Allow,
            // The rule that the default names is missing, so an approval is required.
            DefaultApproval::OnMutate | DefaultApproval::Always | DefaultApproval::Rule(_) => {
                Class::RequireApproval
            }
        };
        GovernanceDecision::new(class, GovernanceReason::Default, target.action)
    }

    /// Returns the decision of the level of autonomy, which no rule can override.
    fn by_level(&self, target: &Target<'_>) -> Option<GovernanceDecision> {
        let level = self.level?;
        let class = match (level, risk(target)) {
            (0, 1..) => Class::Escalate,
            (1, 1..) | (2, 3..) => Class::RequireApproval,
            _ => return None,
        };
        Some(GovernanceDecision::new(class, GovernanceReason::Level { level }, target.action))
    }

    pub(crate) fn explain_governance(
        &self,
        targets: &[Target<'_>],
        pattern_base: PatternBase<'_>,
        budget_usage: &BudgetUsage<'_>,
    ) -> Vec<ConsideredRule> {
        let named_targets: Vec<NamedTarget<'_>> = targets.iter().map(NamedTarget::new).collect();
        let consider = |rule: &GovernanceRule| {
            let about = named_targets.iter().find(|named_target| rule.is_about(named_target, pattern_base));
            let matched = about.is_some();
            let why = about
                .or(named_targets.first())
                .map(|named_target| rule.why(named_target, pattern_base))
                .unwrap_or_default();
            let (says, _) = self.effective(rule, budget_usage);
            ConsideredRule {
                clause: rule.slug.clone(),
                class: rule.class,
                says,
                severity: rule.severity,
                matched,
                why,
            }
        };
        self.rules.iter().map(consider).collect()
    }
}

pub(crate) fn risk(target: &Target<'_>) -> u8 {
    target.kinds.iter().map(|kind| kind.risk()).max().unwrap_or(2)
}
