//! Limits how many refusals of one connection are recorded.
//!
//! Without a limit, a peer could fill the log with messages that have no effect. Beyond the rate, refusals
//! are counted, and one entry for each action records the count. A turn whose agent continues with denied
//! calls is stopped. An event about something that has an effect is always recorded separately.

use std::collections::BTreeMap;
use std::time::Duration;

use narrows_audit::{Event, LoggedDecision};
use serde_json::json;

use super::GateCtx;
use super::api::{GateOutput, GateTime};
use super::retained::value_bytes;
use crate::audit_events::DECISION;

/// Maximum number of refusals that get their own audit entry within one interval.
const MAX_RECORDED: u32 = 100;

/// Maximum total size of the inputs of refusals that get their own audit entry within one interval. A single
/// input has at most 256 KiB.
const MAX_RECORDED_BYTES: usize = 4 << 20;

/// Maximum number of calls that are not allowed within one interval. More of them stop the turn.
const MAX_CALLS_NOT_ALLOWED: u32 = 1_000;

const INTERVAL: Duration = Duration::from_secs(60);

/// Member of `metadata` with the number of refusals that one audit entry stands for. A missing member means
/// one refusal.
const COUNT: &str = "count";

#[derive(Debug, Default)]
pub(super) struct RefusalLog {
    /// End of the interval that contains the latest refusal.
    until: Option<GateTime>,
    /// Refusals of the current interval that got their own audit entry.
    recorded: u32,
    recorded_bytes: usize,
    /// Decisions of the current interval that did not allow a call.
    calls_not_allowed: u32,
    /// Refusals without an audit entry of their own, by action: the first event, and the number of all.
    omitted: BTreeMap<String, (Event, u64)>,
}

impl RefusalLog {
    /// Returns the event if it gets its own audit entry.
    ///
    /// # Errors
    ///
    /// If the rate is exceeded: the time at which the counts of refusals must be recorded.
    pub(super) fn admit(&mut self, now: GateTime, event: Event) -> Result<Event, GateTime> {
        if !is_refusal(&event) {
            return Ok(event);
        }
        let until = match self.until {
            Some(until) if now < until => until,
            _ => {
                (self.recorded, self.recorded_bytes, self.calls_not_allowed) = (0, 0, 0);
                now + INTERVAL
            }
        };
        self.until = Some(until);
        self.calls_not_allowed += u32::from(event.action == DECISION);
        let bytes = event.input.as_ref().map_or(0, value_bytes);
        if self.recorded < MAX_RECORDED && self.recorded_bytes + bytes <= MAX_RECORDED_BYTES {
            self.recorded += 1;
            self.recorded_bytes += bytes;
            return Ok(event);
        }
        match self.omitted.get_mut(&event.action) {
            Some((_, count)) => *count += 1,
            None => {
                self.omitted.insert(event.action.clone(), (event, 1));
            }
        }
        Err(until)
    }

    pub(super) fn has_too_many_calls(&self) -> bool {
        self.calls_not_allowed > MAX_CALLS_NOT_ALLOWED
    }

    pub(super) fn next_due(&self) -> Option<GateTime> {
        self.until.filter(|_| !self.omitted.is_empty())
    }

    fn take_omitted(&mut self) -> impl Iterator<Item = Event> + use<> {
        let omitted = std::mem::take(&mut self.omitted);
        omitted.into_values().map(|(mut event, count)| {
            event.metadata.insert(COUNT.to_owned(), json!(count));
            event
        })
    }
}

/// Returns `true` for events that a peer can cause at will and without any effect. A decision that requires
/// an approval is such an event, because the outcome of the approval gets its own entry.
fn is_refusal(event: &Event) -> bool {
    let decision = event.policy.as_ref().and_then(|policy| policy.decision);
    event.action.ends_with(".refused")
        || event.action == "agent.violation"
        || event.action == DECISION && decision != Some(LoggedDecision::Allow)
}

impl<O: GateOutput> GateCtx<'_, O> {
    pub(super) fn record_omitted(&mut self) {
        for event in self.gate.refusals.take_omitted() {
            self.record_always(event);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(action: &str) -> Event {
        Event { action: action.to_owned(), ..Event::default() }
    }

    #[test]
    fn refusals_beyond_the_rate_are_counted_by_their_action() {
        let mut log = RefusalLog::default();
        let start = GateTime::from_secs(5);
        let mut recorded = 0_u32;
        for _ in 0..1_000 {
            recorded += u32::from(log.admit(start, event("method.refused")).is_ok());
            let _ = log.admit(start, event("meta.refused"));
            assert!(
                log.admit(start, event("tool.call")).is_ok(),
                "an event with an effect is always recorded"
            );
        }
        assert_eq!((recorded, log.next_due()), (MAX_RECORDED / 2, Some(start + INTERVAL)));
        let counts: Vec<_> =
            log.take_omitted().map(|event| (event.action, event.metadata[COUNT].clone())).collect();
        assert_eq!(
            counts,
            [("meta.refused".to_owned(), json!(950)), ("method.refused".to_owned(), json!(950))]
        );
        assert_eq!(log.next_due(), None);
        assert!(log.admit(start, event("method.refused")).is_err(), "the interval goes on");
        assert!(log.admit(start + INTERVAL, event("method.refused")).is_ok());
    }

    #[test]
    fn refusals_with_long_inputs_reach_the_limit_sooner() {
        let mut log = RefusalLog::default();
        let long = || Event { input: Some(json!("x".repeat(1 << 20))), ..event("tool.refused") };
        let recorded = (0..10).filter(|_| log.admit(GateTime::ZERO, long()).is_ok()).count();
        assert_eq!(recorded, 3);
        assert!(log.admit(GateTime::ZERO, event("tool.refused")).is_ok(), "a short one is recorded");
    }
}
