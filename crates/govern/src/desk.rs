//! Who decides: what the operator may use at all, what the policy says, and what was used of its budgets.

use std::collections::HashMap;
use std::path::PathBuf;

use narrows_manifest::ToolSet;
use narrows_policy::{Class, Kind, Ledger, Policy, Reason, Ruling, Scene, Usage};
use serde_json::Value;

use crate::call::Call;
use crate::identity::Principal;
use crate::mandate::{Autonomy, Mandate};

const HOUR: u64 = 3_600;
const DAY: u64 = 86_400;

/// What was decided, in the policy's words, or because it is nothing that may be used.
#[derive(Clone, Debug)]
pub(crate) struct Verdict {
    pub(crate) ruling: Ruling,
    /// Why, if not because of the policy.
    pub(crate) because: Option<String>,
    /// What it costs in cents, if it says so.
    pub(crate) amount: Option<u64>,
}

impl Verdict {
    pub(crate) fn class(&self) -> Class {
        self.ruling.class
    }

    /// Why, as one sentence.
    pub(crate) fn reason(&self) -> String {
        self.because.clone().unwrap_or_else(|| self.ruling.to_string())
    }
}

/// Decides about calls, and counts what was allowed.
#[derive(Debug)]
pub(crate) struct Desk {
    policy: Policy,
    /// What was used of each clause's budget: the hour and the day it was in, and how often.
    used: HashMap<String, (u64, Usage)>,
}

impl Desk {
    pub(crate) fn new(policy: Policy) -> Self {
        Self { policy, used: HashMap::new() }
    }

    /// Decides. `at` is the time in seconds since 1970.
    pub(crate) fn rule(
        &self,
        call: &Call,
        mandate: &Mandate,
        who: &Principal,
        roots: &[PathBuf],
        at: u64,
    ) -> Verdict {
        let action = call.action();
        let usage = |clause: &str| self.usage(clause, at);
        let amount = amount(&call.input);
        let ledger = Ledger { usage: &usage, amount_cents: amount };
        let refused = unauthorised(call, mandate, who);
        let scene = Scene { roots, refused: refused.as_deref(), ..Scene::default() };
        let mut ruling = self.policy.rule(&action, &scene, &ledger);
        let supervised = mandate.autonomy == Autonomy::Supervised
            && ruling.class == Class::Allow
            && action.kinds().iter().any(|kind| !matches!(kind, Kind::Read | Kind::Search | Kind::Think));
        if let Some(because) = refused {
            ruling.class = Class::Deny;
            return Verdict { ruling, because: Some(because), amount };
        }
        if supervised {
            ruling.class = Class::RequireApproval;
            ruling.reason = Reason::Default;
            let because = Some("a supervised operator asks before it changes anything".into());
            return Verdict { ruling, because, amount };
        }
        Verdict { ruling, because: None, amount }
    }

    /// Something was allowed under its clauses.
    pub(crate) fn count(&mut self, verdict: &Verdict, at: u64) {
        for clause in &verdict.ruling.clauses {
            let now = self.usage(clause, at);
            let amount_cents = now.amount_cents.saturating_add(verdict.amount.unwrap_or(0));
            let usage = Usage { hour: now.hour + 1, day: now.day + 1, amount_cents };
            self.used.insert(clause.clone(), (at, usage));
        }
    }

    fn usage(&self, clause: &str, at: u64) -> Usage {
        let Some((last, usage)) = self.used.get(clause) else { return Usage::default() };
        let hour = if last / HOUR == at / HOUR { usage.hour } else { 0 };
        if last / DAY == at / DAY { Usage { hour, ..*usage } } else { Usage::default() }
    }
}

/// What a call costs, where its input says so: the one place in which an amount is what will be spent.
fn amount(input: &Value) -> Option<u64> {
    ["amount_cents", "amountCents"].iter().find_map(|key| input.get(key)?.as_u64())
}

/// What a gate would say to a call that an agent tells of by `name`, if it has one, and `kind`, in the first of the
/// mandate's roots and with nothing used of any budget.
///
/// ```
/// use narrows_govern::{Mandate, Principal, foresee};
/// use narrows_policy::{Access, Charter, Class, Clause, Narrowing, Policy};
/// use serde_json::json;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let clause = Clause::new("shell", "tool.call", Class::Deny).on("kind:execute")?;
/// let policy = Policy::new(Access::High, Narrowing::default()).with_charter(Charter::new(vec![clause]));
/// let (mandate, who) = (Mandate::default(), Principal::default());
/// let ruling = foresee(&mandate, &who, &policy, (None, "execute"), &json!({"command": "ls"}));
/// assert_eq!((ruling.class, ruling.decided_by()), (Class::Deny, Some("shell")));
/// # Ok(())
/// # }
/// ```
#[must_use]
pub fn foresee(
    mandate: &Mandate,
    who: &Principal,
    policy: &Policy,
    (name, kind): (Option<&str>, &str),
    input: &Value,
) -> Ruling {
    let call = Call::told(name, kind, input.clone());
    Desk::new(policy.clone()).rule(&call, mandate, who, &mandate.roots, 0).ruling
}

/// Why a call is nothing that the operator, or whoever it acts for, may make.
fn unauthorised(call: &Call, mandate: &Mandate, who: &Principal) -> Option<String> {
    let tool = call.tool();
    let kind = format!("kind:{}", call.kind());
    let (name, server) = call.parts();
    let is_granted = |tools: &ToolSet| {
        tools.has(server, name.unwrap_or(&tool)) || server.is_none() && tools.has(None, &kind)
    };
    if mandate.tools.as_ref().is_some_and(|tools| !is_granted(tools)) {
        return Some(format!("the operator has no tool `{tool}`"));
    }
    if !who.may_cause(call) {
        return Some(format!("`{tool}` is beyond what {} may cause", who.id));
    }
    None
}

#[cfg(test)]
mod tests {
    use narrows_policy::{Access, Budget, Charter, Clause, DefaultApproval, Narrowing};
    use serde_json::json;

    use super::*;

    fn desk(clauses: Vec<Clause>) -> Desk {
        let charter = Charter::new(clauses).with_level(Some(2)).with_default(DefaultApproval::Auto);
        Desk::new(Policy::new(Access::High, Narrowing::default()).with_charter(charter))
    }

    fn call(name: &str, kind: &str) -> Call {
        Call::known(None, name, kind, json!({}))
    }

    #[test]
    fn only_what_was_granted_is_decided_by_the_policy() {
        let desk = desk(Vec::new());
        let tools = ToolSet {
            names: ["notes".to_owned(), "kind:read".to_owned()].into(),
            servers: [("db".to_owned(), Some(["query".to_owned()].into()))].into(),
        };
        let mandate = Mandate { tools: Some(tools), ..Mandate::default() };
        let who = Principal::default();
        let check = |call: Call, expected: Class| {
            assert_eq!(desk.rule(&call, &mandate, &who, &[], 0).class(), expected, "{}", call.tool());
        };
        check(call("notes", "think"), Class::Allow);
        check(call("Read", "read"), Class::Allow);
        check(call("other", "think"), Class::Deny);
        check(Call::known(Some("db".into()), "query", "read", json!({})), Class::Allow);
        check(Call::known(Some("db".into()), "drop", "read", json!({})), Class::Deny);
        check(Call::known(Some("other".into()), "query", "read", json!({})), Class::Deny);
    }

    #[test]
    fn scopes_narrow_what_an_operator_may_do_for_somebody() {
        let desk = desk(Vec::new());
        let mandate = Mandate::default();
        let who =
            Principal { id: "user:ada".into(), scopes: Some(vec!["notes".into()]), ..Principal::default() };
        assert_eq!(desk.rule(&call("notes", "think"), &mandate, &who, &[], 0).class(), Class::Allow);
        let verdict = desk.rule(&call("other", "think"), &mandate, &who, &[], 0);
        assert_eq!(verdict.class(), Class::Deny);
        assert!(verdict.reason().contains("user:ada"));
    }

    #[test]
    fn a_budget_is_counted_by_hours_and_days_of_the_clock() {
        let budget = Budget { per_hour: Some(2), per_day: Some(3), ..Budget::default() };
        let mut desk = desk(vec![Clause::new("few", "tool.call", Class::Allow).up_to(4).within(budget)]);
        let (mandate, who) = (Mandate::default(), Principal::default());
        let mut spend = |at: u64| {
            let verdict = desk.rule(&call("notes", "think"), &mandate, &who, &[], at);
            if verdict.class() == Class::Allow {
                desk.count(&verdict, at);
            }
            verdict.class()
        };
        let classes: Vec<Class> = [10, 20, 30, HOUR, HOUR + 1, DAY].into_iter().map(&mut spend).collect();
        let asks = Class::RequireApproval;
        assert_eq!(classes, [Class::Allow, Class::Allow, asks, Class::Allow, asks, Class::Allow]);
    }

    #[test]
    fn money_is_counted_by_what_calls_say_they_spend() {
        let budget = Budget { amount_cents: Some(100), ..Budget::default() };
        let mut desk = desk(vec![Clause::new("few", "tool.call", Class::Allow).up_to(4).within(budget)]);
        let (mandate, who) = (Mandate::default(), Principal::default());
        let mut spend = |input: Value, at: u64| {
            let verdict = desk.rule(&Call::known(None, "pay", "think", input), &mandate, &who, &[], at);
            if verdict.class() == Class::Allow {
                desk.count(&verdict, at);
            }
            verdict.class()
        };
        let asks = Class::RequireApproval;
        assert_eq!(spend(json!({"amount_cents": 101}), 0), asks);
        assert_eq!(spend(json!({"amount_cents": 60}), 0), Class::Allow);
        assert_eq!(spend(json!({"amountCents": 41}), 0), asks);
        assert_eq!(spend(json!({"amount_cents": 40}), HOUR), Class::Allow);
        assert_eq!(spend(json!({"amount_cents": 1}), HOUR), asks);
        assert_eq!(spend(json!({}), HOUR), asks, "nobody knows what it costs, and nothing is left");
        assert_eq!(spend(json!({"amount_cents": 1}), DAY), Class::Allow);
    }
}
