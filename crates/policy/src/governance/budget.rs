//! Budgets of governance rules. All functions are pure; the caller counts the requests.

use std::fmt;

use serde::Serialize;

/// Limits of a rule per hour and per day. `None` stands for no limit.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Budget {
    pub per_hour: Option<u64>,
    pub per_day: Option<u64>,
    /// Maximum cost per day, in cents.
    pub amount_cents: Option<u64>,
    pub currency: Option<String>,
}

/// Use of one rule's budget before the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RuleUsage {
    pub hour: u64,
    pub day: u64,
    pub amount_cents: u64,
}

/// Counters of all rules before a request, and the cost of the request.
#[derive(Clone, Copy)]
pub struct BudgetUsage<'a> {
    /// Function that returns the counters of the rule with this slug.
    pub usage: &'a dyn Fn(&str) -> RuleUsage,
    /// Cost of the request in cents, if it is known.
    pub amount_cents: Option<u64>,
}

impl BudgetUsage<'_> {
    /// Budgets that were never used, for a request without a cost.
    pub const EMPTY: Self =
        Self { usage: &|_| RuleUsage { hour: 0, day: 0, amount_cents: 0 }, amount_cents: None };
}

impl fmt::Debug for BudgetUsage<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("BudgetUsage").field("amount_cents", &self.amount_cents).finish_non_exhaustive()
    }
}

/// Which limit of a budget is exhausted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BudgetLimit {
    Hour,
    Day,
    Amount,
}

impl fmt::Display for BudgetLimit {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Hour => "requests of this hour",
            Self::Day => "requests of this day",
            Self::Amount => "cents of this day",
        })
    }
}

/// A limit that the request would exceed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExhaustedBudget {
    pub what: BudgetLimit,
    /// Used amount, at most `limit`. `None` if the use is unknown.
    pub used: Option<u64>,
    pub limit: u64,
}

impl ExhaustedBudget {
    fn new(what: BudgetLimit, used: u64, limit: Option<u64>) -> Self {
        let limit = limit.unwrap_or_default();
        // A larger amount is reported as the limit, so that the reason does not change while the request
        // waits for an approval.
        Self { what, used: (used < u64::MAX).then_some(used.min(limit)), limit }
    }
}

impl fmt::Display for ExhaustedBudget {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = if self.what == BudgetLimit::Amount { " cents" } else { "" };
        match self.used {
            Some(used) => write!(out, "{used} of {}{unit}", self.limit)?,
            None => write!(out, "an unknown part of {}{unit} is used", self.limit)?,
        }
        match self.what {
            BudgetLimit::Hour => out.write_str(", renewed at the next full hour"),
            BudgetLimit::Day | BudgetLimit::Amount => out.write_str(", renewed at 00:00 UTC"),
        }
    }
}

impl Budget {
    /// Returns the first limit that the request would exceed.
    pub fn exhausted(&self, budget_usage: &BudgetUsage<'_>, clause: &str) -> Option<ExhaustedBudget> {
        let usage = (budget_usage.usage)(clause);
        let full = |used: u64, bound: Option<u64>| bound.is_some_and(|bound| used >= bound);
        // If the cost of the request is unknown, only earlier costs count.
        let spent = usage.amount_cents.saturating_add(budget_usage.amount_cents.unwrap_or(0));
        let overspent = self.amount_cents.is_some_and(|bound| {
            spent > bound
                || budget_usage.amount_cents.is_none_or(|amount| amount > 0) && usage.amount_cents >= bound
        });
        if full(usage.hour, self.per_hour) {
            Some(ExhaustedBudget::new(BudgetLimit::Hour, usage.hour, self.per_hour))
        } else if full(usage.day, self.per_day) {
            Some(ExhaustedBudget::new(BudgetLimit::Day, usage.day, self.per_day))
        } else if overspent {
            Some(ExhaustedBudget::new(BudgetLimit::Amount, usage.amount_cents, self.amount_cents))
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(budget: &Budget, usage: RuleUsage, amount_cents: Option<u64>, expected: Option<BudgetLimit>) {
        let budget_usage = BudgetUsage { usage: &|_| usage, amount_cents };
        let what = budget.exhausted(&budget_usage, "x").map(|excess| excess.what);
        assert_eq!(what, expected, "{budget:?} {usage:?} {amount_cents:?}");
    }

    #[test]
    fn a_budget_allows_exactly_its_limit() {
        let hour = Budget { per_hour: Some(2), ..Budget::default() };
        check(&hour, RuleUsage { hour: 1, ..RuleUsage::default() }, None, None);
        check(&hour, RuleUsage { hour: 2, ..RuleUsage::default() }, None, Some(BudgetLimit::Hour));
        let day = Budget { per_day: Some(2), ..Budget::default() };
        check(&day, RuleUsage { hour: 9, day: 1, amount_cents: 9 }, None, None);
        check(&day, RuleUsage { day: 2, ..RuleUsage::default() }, None, Some(BudgetLimit::Day));
        let money = Budget { amount_cents: Some(100), ..Budget::default() };
        check(&money, RuleUsage { amount_cents: 60, ..RuleUsage::default() }, Some(40), None);
        check(
            &money,
            RuleUsage { amount_cents: 60, ..RuleUsage::default() },
            Some(41),
            Some(BudgetLimit::Amount),
        );
        check(&money, RuleUsage { amount_cents: 99, ..RuleUsage::default() }, None, None);
        check(
            &money,
            RuleUsage { amount_cents: 100, ..RuleUsage::default() },
            None,
            Some(BudgetLimit::Amount),
        );
        check(&money, RuleUsage { amount_cents: 100, ..RuleUsage::default() }, Some(0), None);
        check(
            &money,
            RuleUsage { amount_cents: u64::MAX, ..RuleUsage::default() },
            Some(9),
            Some(BudgetLimit::Amount),
        );
        check(&Budget::default(), RuleUsage { hour: 9, day: 9, amount_cents: 9 }, Some(9), None);
    }

    #[test]
    fn an_exhausted_budget_names_its_limit_and_its_renewal() {
        let check = |what, used, limit, expected: &str| {
            assert_eq!(ExhaustedBudget::new(what, used, Some(limit)).to_string(), expected);
        };
        check(BudgetLimit::Hour, 2, 2, "2 of 2, renewed at the next full hour");
        check(BudgetLimit::Day, 7, 3, "3 of 3, renewed at 00:00 UTC");
        check(BudgetLimit::Amount, 60, 100, "60 of 100 cents, renewed at 00:00 UTC");
        check(BudgetLimit::Day, u64::MAX, 3, "an unknown part of 3 is used, renewed at 00:00 UTC");
    }
}
