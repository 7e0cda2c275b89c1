//! Decides about calls by the operator's tools, the policy and the budgets.

use std::collections::HashMap;
use std::path::PathBuf;

use narrows_acp::method;
use narrows_manifest::ToolSet;
use narrows_policy::{
    Action, BudgetUsage, Class, GovernanceDecision, GovernanceReason, GovernanceRule, Kind, Policy,
    RequestContext, RuleUsage,
};
use serde_json::Value;

use crate::call::{Call, Digest};
use crate::config::{Autonomy, GateConfig};
use crate::identity::Principal;

use crate::shared_budget::{BudgetSource, BudgetUse, MAX_CENTS};

const HOUR: u64 = 3_600;
const DAY: u64 = 86_400;

#[derive(Clone, Debug)]
pub(crate) struct CallDecision {
    pub(crate) ruling: GovernanceDecision,
    /// Reason of a decision that was not made by the policy. `None` if the policy decided.
    pub(crate) override_reason: Option<String>,
    /// Cost of the call in cents, if its input states a cost.
    pub(crate) amount: Option<u64>,
}

impl CallDecision {
    pub(crate) fn class(&self) -> Class {
        self.ruling.class
    }

    /// Returns the stricter of two decisions about one call. The approvals of both are required.
    pub(crate) fn stricter(self, other: Self) -> Self {
        let (mut stricter, milder) = if self.class() > other.class() { (self, other) } else { (other, self) };
        if milder.class() != Class::Allow {
            let known = std::mem::take(&mut stricter.ruling.approvals);
            let more = milder.ruling.approvals.into_iter().filter(|approval| !known.contains(approval));
            stricter.ruling.approvals = known.iter().cloned().chain(more).collect();
        }
        stricter
    }

    pub(crate) fn reason(&self) -> String {
        self.override_reason.clone().unwrap_or_else(|| self.ruling.to_string())
    }
}

/// Decides about calls and counts the allowed ones against budgets.
#[derive(Debug)]
pub(crate) struct Authorizer {
    policy: Policy,
    used: HashMap<String, PolicyUsage>,
    /// Name of this gate in the shared record of budget use.
    name: String,
    budget_source: Option<Box<dyn BudgetSource>>,
    /// `true` if reading the use of other gates has failed. Every budget counts as exhausted while it is set.
    budgets_unknown: bool,
}

/// Use of a policy's budget in the hour and the day of the latest counted call.
#[derive(Clone, Copy, Debug, Default)]
struct PolicyUsage {
    hour: u64,
    day: u64,
    usage: RuleUsage,
}

impl PolicyUsage {
    /// Adds one call. A call that is older than the latest one counts only if both are on the same day.
    fn add_use(&mut self, at: u64, cents: u64) {
        let (hour, day) = (at / HOUR, at / DAY);
        if day > self.day {
            *self = Self { hour, day, usage: RuleUsage::default() };
        }
        if day < self.day {
            return;
        }
        if hour > self.hour {
            (self.hour, self.usage.hour) = (hour, 0);
        }
        self.usage.hour += u64::from(hour == self.hour);
        self.usage.day += 1;
        self.usage.amount_cents = self.usage.amount_cents.saturating_add(cents);
    }

    fn usage_at(&self, at: u64) -> RuleUsage {
        if self.day != at / DAY {
            return RuleUsage::default();
        }
        RuleUsage { hour: if self.hour == at / HOUR { self.usage.hour } else { 0 }, ..self.usage }
    }
}

/// Budget use that was counted for one call with the input of this digest. A changed input is counted again.
#[derive(Clone, Debug)]
pub(crate) struct CountedCall {
    digest: Digest,
    policies: Vec<String>,
    /// The largest amount that was counted for the call.
    cents: u64,
    at: u64,
    /// `true` once the call was granted or is running. A later change of the input then counts as another
    /// call, at full cost.
    is_used: bool,
}

impl CountedCall {
    pub(crate) fn set_used(&mut self) {
        self.is_used = true;
    }

    pub(crate) fn set_digest(&mut self, digest: Digest) {
        self.digest = digest;
    }

    pub(crate) fn is_for(&self, digest: &Digest) -> bool {
        self.digest == *digest
    }

    /// Returns the use of a policy's budget without the share of this call, because the call is judged again
    /// with the input of `digest`.
    fn usage_without(&self, policy: &str, digest: &Digest, at: u64, usage: RuleUsage) -> RuleUsage {
        let is_same = self.is_for(digest);
        let is_counted = self.at / DAY == at / DAY && self.policies.iter().any(|counted| counted == policy);
        if !is_counted || usage == EXHAUSTED || self.is_used && !is_same {
            return usage;
        }
        let amount_cents = usage.amount_cents.saturating_sub(self.cents);
        let (day, hour) = (u64::from(is_same), u64::from(is_same && self.at / HOUR == at / HOUR));
        RuleUsage { hour: usage.hour.saturating_sub(hour), day: usage.day.saturating_sub(day), amount_cents }
    }
}

/// Time of a decision, and the budget use that was already counted for the call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DecisionContext<'a> {
    /// Seconds since 1970.
    pub(crate) at: u64,
    pub(crate) counted: Option<(&'a CountedCall, Digest)>,
}

/// Use that exceeds every budget.
const EXHAUSTED: RuleUsage = RuleUsage { hour: u64::MAX, day: u64::MAX, amount_cents: u64::MAX };

impl Authorizer {
    pub(crate) fn new(policy: Policy, name: &str) -> Self {
        Self {
            policy,
            used: HashMap::new(),
            name: name.to_owned(),
            budget_source: None,
            budgets_unknown: false,
        }
    }

    pub(crate) fn with_budget_source(self, budget_source: Box<dyn BudgetSource>) -> Self {
        Self { budget_source: Some(budget_source), ..self }
    }

    pub(crate) fn refresh(&mut self) {
        if !self
            .policy
            .ruleset()
            .is_some_and(|ruleset| ruleset.rules().iter().any(GovernanceRule::has_budget))
        {
            return;
        }
        let Some(budget_source) = &mut self.budget_source else { return };
        let news = budget_source.read_new();
        self.budgets_unknown = news.is_err();
        for spent in news.unwrap_or_default().into_iter().filter(|spent| spent.gate != self.name) {
            for policy in &spent.policies {
                self.used.entry(policy.clone()).or_default().add_use(spent.at, spent.cents.unwrap_or(0));
            }
        }
    }

    /// Decides about a call. `at` is in seconds since 1970.
    pub(crate) fn decide(
        &self,
        call: &Call,
        config: &GateConfig,
        principal: &Principal,
        roots: &[PathBuf],
        at: u64,
    ) -> CallDecision {
        self.decide_action(
            call,
            &call.action(),
            config,
            principal,
            roots,
            DecisionContext { at, counted: None },
        )
    }

    pub(crate) fn decide_action(
        &self,
        call: &Call,
        action: &Action,
        config: &GateConfig,
        principal: &Principal,
        roots: &[PathBuf],
        DecisionContext { at, counted }: DecisionContext<'_>,
    ) -> CallDecision {
        let usage = |clause: &str| match counted {
            Some((counted, digest)) => counted.usage_without(clause, &digest, at, self.usage(clause, at)),
            None => self.usage(clause, at),
        };
        let amount = input_cents(&call.input);
        let budget_usage = BudgetUsage { usage: &usage, amount_cents: amount };
        let refused = missing_grant(call, config, principal);
        let context = RequestContext { roots, refused: refused.as_deref(), ..RequestContext::default() };
        let mut ruling = self.policy.decide_governed(action, &context, &budget_usage);
        let supervised = config.autonomy == Autonomy::Supervised
            && ruling.class == Class::Allow
            && action.kinds().iter().any(|kind| !matches!(kind, Kind::Read | Kind::Search | Kind::Think));
        if let Some(override_reason) = refused {
            ruling.class = Class::Deny;
            return CallDecision { ruling, override_reason: Some(override_reason), amount };
        }
        if supervised {
            ruling.class = Class::RequireApproval;
            ruling.reason = GovernanceReason::Default;
            let override_reason = Some("a supervised operator needs approval for changes".into());
            return CallDecision { ruling, override_reason, amount };
        }
        CallDecision { ruling, override_reason: None, amount }
    }

    /// Counts an allowed call against the budgets of its policies. Returns the use to record, if any budget
    /// applies.
    ///
    /// `counted` is the earlier use of the same call. An unchanged call is not counted again. A call that was
    /// changed before it was granted counts as one more call, at the difference in cost. Any other change
    /// counts in full.
    pub(crate) fn count_call(
        &mut self,
        decision: &CallDecision,
        at: u64,
        digest: Digest,
        counted: &mut Option<CountedCall>,
    ) -> Option<BudgetUse> {
        let before = counted.take();
        if before.as_ref().is_some_and(|before| before.is_for(&digest)) {
            *counted = before;
            return None;
        }
        let ruleset = self.policy.ruleset()?;
        let has_budget =
            |slug: &String| ruleset.rules().iter().any(|clause| clause.slug() == slug && clause.has_budget());
        let clauses = decision.ruling.clauses.iter();
        let policies: Vec<String> = clauses.filter(|slug| has_budget(slug)).cloned().collect();
        let is_replaced = |before: &CountedCall| {
            let has = |policy| before.policies.contains(policy);
            !before.is_used && before.at / DAY == at / DAY && policies.iter().all(has)
        };
        let paid = before.filter(is_replaced).map_or(0, |before| before.cents);
        let cents = decision.amount.map(|amount| amount.saturating_sub(paid));
        for policy in &policies {
            self.used.entry(policy.clone()).or_default().add_use(at, cents.unwrap_or(0));
        }
        let all = paid.max(decision.amount.unwrap_or(0));
        *counted = Some(CountedCall { digest, policies: policies.clone(), cents: all, at, is_used: false });
        // The log would write a larger number as a text. Its readers take this one for more than any budget.
        let cents = cents.map(|cents| cents.min(MAX_CENTS));
        (!policies.is_empty()).then(|| BudgetUse { gate: self.name.clone(), policies, cents, at })
    }

    fn usage(&self, clause: &str, at: u64) -> RuleUsage {
        match self.used.get(clause) {
            _ if self.budgets_unknown => EXHAUSTED,
            Some(used) => used.usage_at(at),
            None => RuleUsage::default(),
        }
    }
}

/// Returns the cost that the input of a call states, in cents. The larger of two amounts counts, and an
/// invalid amount exceeds every budget.
fn input_cents(input: &Value) -> Option<u64> {
    let amounts = ["amount_cents", "amountCents"].iter().filter_map(|key| input.get(key));
    amounts.map(|amount| cents(amount).unwrap_or(u64::MAX)).max()
}

/// Parses a number of cents, rounded up.
fn cents(amount: &Value) -> Option<u64> {
    if let Some(amount) = amount.as_u64() {
        return Some(amount);
    }
    let amount = amount.as_f64().filter(|amount| (0.0..9e15).contains(amount))?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "in range, and whole")]
    let amount = amount.ceil() as u64;
    Some(amount)
}

/// Returns the decision about a call that an agent reports by `kind`, and by `name` if it has one. Relative
/// paths start in the first root of the settings, and all budgets are unused.
///
/// ```
/// use narrows_govern::{GateConfig, Principal, preview_decision};
/// use narrows_policy::{Access, GovernanceRuleset, Class, GovernanceRule, Narrowing, Policy};
/// use serde_json::json;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let clause = GovernanceRule::new("shell", "tool.call", Class::Deny).with_subject("kind:execute")?;
/// let policy = Policy::new(Access::High, Narrowing::default()).with_ruleset(GovernanceRuleset::new(vec![clause]));
/// let (config, principal) = (GateConfig::default(), Principal::default());
/// let ruling = preview_decision(&config, &principal, &policy, (None, "execute"), &json!({"command": "ls"}));
/// assert_eq!((ruling.class, ruling.decided_by()), (Class::Deny, Some("shell")));
/// # Ok(())
/// # }
/// ```
#[must_use]
pub fn preview_decision(
    config: &GateConfig,
    principal: &Principal,
    policy: &Policy,
    (name, kind): (Option<&str>, &str),
    input: &Value,
) -> GovernanceDecision {
    let call = Call::reported(name, kind, input.clone());
    Authorizer::new(policy.clone(), "").decide(&call, config, principal, &config.roots, 0).ruling
}

/// Returns the reason why the operator or its client has no grant for a call. Returns `None` if both have
/// one.
fn missing_grant(call: &Call, config: &GateConfig, principal: &Principal) -> Option<String> {
    let (name, server) = call.name_and_server();
    // The built-in agent checks its tool before it sends the client request that performs the call, so the
    // grant of that tool also covers the request.
    let doers =
        if config.asks_first && server.is_none() { causing_tools(name.unwrap_or_default()) } else { &[] };
    let is_granted = |tools: &ToolSet| {
        name.is_some_and(|name| tools.has(server, name))
            // Every kind that the input shows must be granted, even if the agent reports another kind.
            || server.is_none() && call.is_only(|kind| tools.has(None, &format!("kind:{kind}")))
            || doers.iter().any(|doer| tools.has(None, doer))
    };
    if !call.is_session_change() && config.tools.as_ref().is_some_and(|tools| !is_granted(tools)) {
        return Some(format!("the operator has no tool `{}`", call.tool()));
    }
    let is_within = |doer: &&str| principal.may_use(&Call::new(None, doer, call.kind(), call.input.clone()));
    if !principal.may_use(call) && !doers.iter().any(is_within) {
        return Some(format!("`{}` is not in the scopes of {}", call.tool(), principal.id));
    }
    None
}

/// Returns the built-in tools that send this client request to do their work.
fn causing_tools(method: &str) -> &'static [&'static str] {
    match method {
        // A write tool reads the file first, to show the write as a diff.
        method::FS_READ_TEXT_FILE => &["read_file", "write_file", "edit_file"],
        method::FS_WRITE_TEXT_FILE => &["write_file", "edit_file"],
        method::TERMINAL_CREATE => &["run_command"],
        _ => &[],
    }
}

#[cfg(test)]
mod tests;
