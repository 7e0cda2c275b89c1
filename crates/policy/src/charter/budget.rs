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
            Self::Amount => "cents of this day",
        })
    }
}

/// A bound that one more request would exceed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Excess {
    /// Which.
    pub what: Exhausted,
    /// How much of it is used, at most all; `None` if nobody knows.
    pub used: Option<u64>,
    /// How much there is.
    pub limit: u64,
}

impl Excess {
    fn of(what: Exhausted, used: u64, limit: Option<u64>) -> Self {
        let limit = limit.unwrap_or_default();
        // More than all of it tells nothing, and one that waits for an approval must not seem to be another for it.
        Self { what, used: (used < u64::MAX).then_some(used.min(limit)), limit }
    }
}

impl fmt::Display for Excess {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = if self.what == Exhausted::Amount { " cents" } else { "" };
        match self.used {
            Some(used) => write!(out, "{used} of {}{unit}", self.limit)?,
            None => write!(out, "of {}{unit} nobody knows how much is left", self.limit)?,
        }
        match self.what {
            Exhausted::Hour => out.write_str(", renewed at the next full hour"),
            Exhausted::Day | Exhausted::Amount => out.write_str(", renewed at 00:00 UTC"),
        }
    }
}

impl Budget {
    /// What would be exceeded by one more request.
    pub fn exhausted(&self, ledger: &Ledger<'_>, clause: &str) -> Option<Excess> {
        let usage = (ledger.usage)(clause);
        let full = |used: u64, bound: Option<u64>| bound.is_some_and(|bound| used >= bound);
        // What this request costs counts as well; if nobody knows, what was spent does.
        let spent = usage.amount_cents.saturating_add(ledger.amount_cents.unwrap_or(0));
        let overspent = self.amount_cents.is_some_and(|bound| {
            spent > bound
                || ledger.amount_cents.is_none_or(|amount| amount > 0) && usage.amount_cents >= bound
        });
        if full(usage.hour, self.per_hour) {
            Some(Excess::of(Exhausted::Hour, usage.hour, self.per_hour))
        } else if full(usage.day, self.per_day) {
            Some(Excess::of(Exhausted::Day, usage.day, self.per_day))
        } else if overspent {
            Some(Excess::of(Exhausted::Amount, usage.amount_cents, self.amount_cents))
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
        let what = budget.exhausted(&ledger, "x").map(|excess| excess.what);
        assert_eq!(what, expected, "{budget:?} {usage:?} {amount_cents:?}");
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

    #[test]
    fn what_is_used_up_is_told_with_its_bound_and_when_it_is_renewed() {
        let check = |what, used, limit, expected: &str| {
            assert_eq!(Excess::of(what, used, Some(limit)).to_string(), expected);
        };
        check(Exhausted::Hour, 2, 2, "2 of 2, renewed at the next full hour");
        check(Exhausted::Day, 7, 3, "3 of 3, renewed at 00:00 UTC");
        check(Exhausted::Amount, 60, 100, "60 of 100 cents, renewed at 00:00 UTC");
        check(Exhausted::Day, u64::MAX, 3, "of 3 nobody knows how much is left, renewed at 00:00 UTC");
    }
}
