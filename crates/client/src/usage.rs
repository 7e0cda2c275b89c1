//! Determines the usage of a turn from the agent's reports.
//!
//! According to the protocol, agents count over the whole session, and a turn is the difference of two
//! reports. Some agents report each turn separately. A [`Meter`] detects this by the settings, by the name of
//! the agent, or by the numbers. The second and every later report covers one turn if
//!
//! - a counter is lower than before,
//! - the report equals the previous one although the model was called meanwhile, or it equals the previous
//!   one for the second time (a turn without the model, such as `/status`, repeats the total of the session),
//!   or
//! - its total exceeds the previous total by less than the context at the end of the turn, which the turn has
//!   certainly used.
//!
//! Until one of these occurs, reports count as totals of the session, as the protocol says. Afterwards every
//! report covers one turn. If the settings or the name say `session`, a lower counter means a reset, and its
//! value belongs to this turn.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Usage of one turn. Values that the agent did not report are `None`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// Input tokens, including cached ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_tokens: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_read_tokens: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_write_tokens: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<u64>,
    /// Sum of input and output tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_tokens: Option<u64>,
    /// Tokens in the context of the last model call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_length: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_output_tokens: Option<u64>,
    /// Cost, if the agent reports US dollars.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// The agent's last reports about the turn: `usage` at its end, and `usage_update` and `_meta.usage`
    /// during the turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw: Option<Value>,
}

/// Scope of the usage report at the end of a turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UsageScope {
    /// The scope is detected by the name of the agent and by its reports.
    #[default]
    Detect,
    /// A report covers all turns of the session so far, as the protocol says.
    Session,
    /// A report covers only one turn, as in some agents.
    Turn,
}

impl UsageScope {
    /// Returns `self`. For `Detect`, returns the known scope of agents that report `name` in `initialize`.
    pub(crate) fn or_known(self, name: &str) -> Self {
        if self != Self::Detect {
            return self;
        }
        // Package names may have a scope: `@zed-industries/codex-acp`.
        let name = name.rsplit('/').next().unwrap_or(name).to_ascii_lowercase();
        match name.as_str() {
            "opencode" | "codex-acp" => Self::Turn,
            "narrows" | "mistral-vibe" | "vibe" | "vibe-acp" => Self::Session,
            _ => Self::Detect,
        }
    }
}

/// Computes the usage of each turn from the counters of one session.
#[derive(Clone, Debug, Default)]
pub(crate) struct Meter {
    usage_scope: UsageScope,
    /// Counters at the end of the last turn.
    before: Counters,
    has_reported: bool,
    turn: Option<Counters>,
    cost_before: Option<Cost>,
    last_cost: Option<Cost>,
    has_cost: bool,
    begun: bool,
    context: Option<u64>,
    context_before: Option<u64>,
    /// Number of reports in a row that equal the previous report.
    repeats: u32,
    end: Option<Value>,
    update: Option<Value>,
    call: Option<Value>,
    /// Sum of the reports about single model calls of this turn.
    calls: Counters,
}

impl Meter {
    pub(crate) fn new(usage_scope: UsageScope) -> Self {
        Self { usage_scope, ..Self::default() }
    }

    /// Begins a turn. Reports from before the first turn belong to the history of a resumed session: they do
    /// not count for this turn, and session totals are counted from there.
    pub(crate) fn begin(&mut self) {
        if !std::mem::replace(&mut self.begun, true) {
            let end = self.end.take();
            if let Some(Value::Object(fields)) = end.filter(|_| self.usage_scope != UsageScope::Turn) {
                self.before = Counters::read(&fields);
            }
            (self.call, self.calls) = (None, Counters::default());
        }
    }

    /// Records a `usage_update`: the context size, and the cost so far.
    ///
    /// Before the first turn, the update is the previous state of a resumed session. Between turns, it is a
    /// late report of the previous turn and counts for the next turn, so that the sum stays right.
    pub(crate) fn update(&mut self, update: &Value) {
        let Value::Object(fields) = update else { return };
        if let Some(used) = number(fields, &["used"]) {
            self.context = Some(used);
        }
        if let Some(cost) = Cost::read(fields) {
            if self.begun {
                self.has_cost = true;
            } else {
                self.cost_before = Some(cost.clone());
            }
            self.last_cost = Some(cost);
        }
        if self.begun {
            self.update = Some(update.clone());
        }
    }

    /// Records the usage of one model call. Some agents report nothing else. A report at the end of the turn
    /// takes precedence.
    pub(crate) fn call(&mut self, usage: &Value) {
        let Value::Object(fields) = usage else { return };
        self.calls = self.calls.plus(&Counters::read(fields));
        self.call = Some(usage.clone());
    }

    pub(crate) fn end(&mut self, usage: &Value) {
        if usage.is_object() {
            self.end = Some(usage.clone());
        }
    }

    /// Ends a prompt that is followed by another prompt in the same turn.
    pub(crate) fn next_prompt(&mut self) {
        if let Some(end) = self.end.take() {
            self.count(&end);
        }
    }

    /// Adds the report at the end of a prompt to this turn.
    fn count(&mut self, end: &Value) {
        let Value::Object(fields) = end else { return };
        let now = Counters::read(fields);
        let is_first = !std::mem::replace(&mut self.has_reported, true);
        if self.usage_scope == UsageScope::Detect && !is_first && self.is_of_one_turn(&now) {
            tracing::debug!("agent reports usage per turn");
            self.usage_scope = UsageScope::Turn;
        }
        let took = match self.usage_scope {
            UsageScope::Turn => now.clone(),
            UsageScope::Session | UsageScope::Detect => now.since(&self.before),
        };
        self.before = now.or(&self.before);
        self.turn = Some(match self.turn.take() {
            Some(sum) => sum.plus(&took),
            None => took,
        });
    }

    /// Returns `true` if the counters cannot be totals of the session.
    fn is_of_one_turn(&mut self, now: &Counters) -> bool {
        if *now == self.before {
            self.repeats += 1;
            let is_grown = self.update.is_some() && self.context != self.context_before;
            // The second prompt of a turn was certainly answered by the model, so an unchanged report cannot
            // be a total.
            return is_grown || self.call.is_some() || self.turn.is_some() || self.repeats > 1;
        }
        let took_too_little = || {
            let (now, before) = (now.total?, self.before.total?);
            // Some agents report their total as the context size. The comparison then proves nothing.
            let context = self.update.as_ref().and(self.context).filter(|context| *context != now)?;
            Some(now.saturating_sub(before) < context)
        };
        now.is_below(&self.before) || took_too_little() == Some(true)
    }

    /// Ends the turn, which took `duration`. Returns `None` if the agent reported no usage.
    pub(crate) fn finish(&mut self, duration: Duration) -> Option<Usage> {
        let end = self.end.take();
        if let Some(end) = &end {
            self.count(end);
        }
        self.context_before = self.context;
        let (turn, update) = (self.turn.take(), self.update.take());
        let (call, calls) = (self.call.take(), std::mem::take(&mut self.calls));
        let has_cost = std::mem::take(&mut self.has_cost);
        if turn.is_none() && update.is_none() && call.is_none() {
            return None;
        }
        let mut usage = Usage {
            context_length: self.context,
            duration_ms: Some(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)),
            ..Usage::default()
        };
        match &turn {
            Some(turn) => turn.write_to(&mut usage),
            None => calls.write_to(&mut usage),
        }
        if let Some(Value::Object(fields)) = &end {
            usage.max_output_tokens = number(fields, &["maxOutputTokens", "max_output_tokens"]);
        }
        if has_cost {
            usage.cost_usd =
                self.last_cost.as_ref().and_then(|last_cost| last_cost.since(self.cost_before.as_ref()));
            self.cost_before = self.last_cost.clone();
        }
        let said = [("usage", end), ("usage_update", update), ("_meta.usage", call)];
        let said = said.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
        usage.raw = Some(Value::Object(said.collect()));
        Some(usage)
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Counters {
    input: Option<u64>,
    output: Option<u64>,
    total: Option<u64>,
    cache_read: Option<u64>,
    cache_write: Option<u64>,
    thought: Option<u64>,
}

impl Counters {
    fn read(fields: &Map<String, Value>) -> Self {
        Self {
            input: number(fields, &["inputTokens", "input_tokens", "promptTokens"]),
            output: number(fields, &["outputTokens", "output_tokens", "completionTokens"]),
            total: number(fields, &["totalTokens", "total_tokens"]),
            cache_read: number(
                fields,
                &[
                    "cachedReadTokens",
                    "cached_read_tokens",
                    "cacheReadTokens",
                    "cache_read_tokens",
                    "cachedTokens",
                ],
            ),
            cache_write: number(
                fields,
                &["cachedWriteTokens", "cached_write_tokens", "cacheWriteTokens", "cache_write_tokens"],
            ),
            thought: number(fields, &["thoughtTokens", "thought_tokens", "thoughtsTokens"]),
        }
    }

    fn list(&self) -> [Option<u64>; 6] {
        [self.input, self.output, self.total, self.cache_read, self.cache_write, self.thought]
    }

    fn each(&self, other: &Self, join: impl Fn(Option<u64>, Option<u64>) -> Option<u64>) -> Self {
        Self {
            input: join(self.input, other.input),
            output: join(self.output, other.output),
            total: join(self.total, other.total),
            cache_read: join(self.cache_read, other.cache_read),
            cache_write: join(self.cache_write, other.cache_write),
            thought: join(self.thought, other.thought),
        }
    }

    /// Returns the difference of the counters to `before`. If one counter is lower, all counters were reset.
    fn since(&self, before: &Self) -> Self {
        if self.is_below(before) {
            return self.clone();
        }
        self.each(before, |now, then| Some(now? - then.unwrap_or(0)))
    }

    fn is_below(&self, before: &Self) -> bool {
        let shown = self.list().into_iter().zip(before.list());
        shown.into_iter().any(|pair| matches!(pair, (Some(now), Some(then)) if now < then))
    }

    fn plus(&self, more: &Self) -> Self {
        self.each(more, |sum, more| match (sum, more) {
            (Some(sum), Some(more)) => Some(sum.saturating_add(more)),
            (sum, more) => sum.or(more),
        })
    }

    /// Fills missing counters from `before`.
    fn or(self, before: &Self) -> Self {
        self.each(before, Option::or)
    }

    /// Writes the counts of one turn. The input includes the cached tokens.
    fn write_to(&self, usage: &mut Usage) {
        let (mut input, mut output) = (self.input, self.output);
        let caches = self.cache_read.unwrap_or(0).saturating_add(self.cache_write.unwrap_or(0));
        let thought = self.thought.unwrap_or(0);
        // If the total exceeds the sum of input and output, the agent counts further tokens separately.
        let told = input.unwrap_or(0).saturating_add(output.unwrap_or(0));
        let mut spare = self.total.unwrap_or(0).saturating_sub(told);
        let only_thought = spare == thought && spare != caches;
        if caches > 0 && spare >= caches && !only_thought {
            input = Some(input.unwrap_or(0).saturating_add(caches));
            spare -= caches;
        }
        if thought > 0 && spare >= thought {
            output = Some(output.unwrap_or(0).saturating_add(thought));
        }
        usage.input_tokens = input;
        usage.output_tokens = output;
        usage.cache_read_tokens = self.cache_read;
        usage.cache_write_tokens = self.cache_write;
        usage.total_tokens = match (input, output) {
            (Some(input), Some(output)) => Some(input.saturating_add(output)),
            _ => self.total,
        };
    }
}

#[derive(Clone, Debug, PartialEq)]
struct Cost {
    amount: f64,
    currency: String,
}

impl Cost {
    fn read(fields: &Map<String, Value>) -> Option<Self> {
        let cost = fields.get("cost")?;
        let amount = cost.get("amount")?.as_f64().filter(|amount| *amount >= 0.0)?;
        Some(Self { amount, currency: cost.get("currency")?.as_str()?.to_ascii_uppercase() })
    }

    /// Returns the dollars spent since `before`. If the currency differs or the cost is lower, counts from
    /// zero.
    fn since(&self, before: Option<&Self>) -> Option<f64> {
        if self.currency != "USD" {
            return None;
        }
        let base = before.filter(|before| before.currency == self.currency && before.amount <= self.amount);
        let spent = self.amount - base.map_or(0.0, |before| before.amount);
        // The difference is rounded, because decimal amounts are inexact in binary.
        Some((spent * 1e9).round() / 1e9)
    }
}

/// Returns the number in the first existing field of `names`.
fn number(fields: &Map<String, Value>, names: &[&str]) -> Option<u64> {
    names.iter().find_map(|name| {
        let value = fields.get(*name)?;
        // Some languages write every number with a decimal point.
        let whole = || value.as_f64().filter(|number| number.fract() == 0.0 && (0.0..9e15).contains(number));
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked the line above")]
        value.as_u64().or_else(|| whole().map(|number| number as u64))
    })
}

#[cfg(test)]
mod tests;
