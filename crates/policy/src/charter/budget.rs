//! How often and how much a clause allows: a pure function over counters that the caller keeps.

use std::fmt;

use serde::Serialize;

/// What a clause allows in a span of time. What is absent has no bound.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Budget {
    /// How often in an hour.
    pub per_hour: Option<u64>,
    /// How often in a day.
    pub per_day: Option<u64>,
    /// How much in a day, in cents.
    pub amount_cents: Option<u64>,
    /// Of which currency.
    pub currency: Option<String>,
}

/// What was used of the budget of one clause before this request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// How often in this hour.
    pub hour: u64,
    /// How often in this day.
    pub day: u64,
    /// How much in this day, in cents.
    pub amount_cents: u64,
}

/// The counters, and what this request costs.
#[derive(Clone, Copy)]
pub struct Ledger<'a> {
    /// What was used, by the slug of a clause.
    pub usage: &'a dyn Fn(&str) -> Usage,
    /// What this request costs, in cents, as far as that is known.
    pub amount_cents: Option<u64>,
}

impl Ledger<'_> {
    /// Nothing was used, and nothing costs anything.
    pub const EMPTY: Self =
        Self { usage: &|_| Usage { hour: 0, day: 0, amount_cents: 0 }, amount_cents: None };
}

impl fmt::Debug for Ledger<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Ledger").field("amount_cents", &self.amount_cents).finish_non_exhaustive()
    }
}

/// What of a budget is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Exhausted {
    /// The requests of this hour.
    Hour,
    /// The requests of this day.
    Day,
    /// The money of this day.
    Amount,
}

impl fmt::Display for Exhausted {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Hour => "requests of this hour",
            Self::Day => "requests of this day",
            Self::Amount => "money of this day",
        })
    }
}

impl Budget {
    /// What would be exceeded by one more request.
    pub fn exhausted(&self, ledger: &Ledger<'_>, clause: &str) -> Option<Exhausted> {
        let usage = (ledger.usage)(clause);
        let full = |used: u64, bound: Option<u64>| bound.is_some_and(|bound| used >= bound);
        // What this request costs counts as well; if nobody knows, what was spent does.
        let spent = usage.amount_cents.saturating_add(ledger.amount_cents.unwrap_or(0));
        let overspent = self.amount_cents.is_some_and(|bound| {
            spent > bound
                || ledger.amount_cents.is_none_or(|amount| amount > 0) && usage.amount_cents >= bound
        });
        if full(usage.hour, self.per_hour) {
            Some(Exhausted::Hour)
        } else if full(usage.day, self.per_day) {
            Some(Exhausted::Day)
        } else if overspent {
            Some(Exhausted::Amount)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(budget: &Budget, usage: Usage, amount_cents: Option<u64>, expected: Option<Exhausted>) {
        let ledger = Ledger { usage: &|_| usage, amount_cents };
        assert_eq!(budget.exhausted(&ledger, "x"), expected, "{budget:?} {usage:?} {amount_cents:?}");
    }

    #[test]
    fn the_last_one_fits_and_the_next_does_not() {
        let hour = Budget { per_hour: Some(2), ..Budget::default() };
        check(&hour, Usage { hour: 1, ..Usage::default() }, None, None);
        check(&hour, Usage { hour: 2, ..Usage::default() }, None, Some(Exhausted::Hour));
        let day = Budget { per_day: Some(2), ..Budget::default() };
        check(&day, Usage { hour: 9, day: 1, amount_cents: 9 }, None, None);
        check(&day, Usage { day: 2, ..Usage::default() }, None, Some(Exhausted::Day));
        let money = Budget { amount_cents: Some(100), ..Budget::default() };
        check(&money, Usage { amount_cents: 60, ..Usage::default() }, Some(40), None);
        check(&money, Usage { amount_cents: 60, ..Usage::default() }, Some(41), Some(Exhausted::Amount));
        check(&money, Usage { amount_cents: 99, ..Usage::default() }, None, None);
        check(&money, Usage { amount_cents: 100, ..Usage::default() }, None, Some(Exhausted::Amount));
        check(&money, Usage { amount_cents: 100, ..Usage::default() }, Some(0), None);
        check(&money, Usage { amount_cents: u64::MAX, ..Usage::default() }, Some(9), Some(Exhausted::Amount));
        check(&Budget::default(), Usage { hour: 9, day: 9, amount_cents: 9 }, Some(9), None);
    }
}
