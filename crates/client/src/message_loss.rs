//! Counts dropped messages of an agent, and reports them.

use serde_json::json;

use crate::event::{Json, Payload};

/// Numbers of dropped messages of an agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessageLoss {
    pub too_long: u64,
    /// Number of messages that were dropped because their sessions were not open yet and too many messages
    /// waited.
    pub unclaimed: u64,
    /// Number of lines that look like a message but cannot be parsed.
    pub unreadable: u64,
    pub nameless: u64,
    /// Number of updates without a session id that may belong to an answer.
    pub nameless_answers: u64,
}

impl MessageLoss {
    /// Returns the numbers of messages that were dropped after `before`.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            too_long: self.too_long.saturating_sub(before.too_long),
            unclaimed: self.unclaimed.saturating_sub(before.unclaimed),
            unreadable: self.unreadable.saturating_sub(before.unreadable),
            nameless: self.nameless.saturating_sub(before.nameless),
            nameless_answers: self.nameless_answers.saturating_sub(before.nameless_answers),
        }
    }

    /// Returns an event that reports the dropped messages; `None` if there are none. A lost message does not
    /// show its session, because all sessions share the agent's output. So the loss is not an error of a run.
    pub(crate) fn to_payload(self) -> Option<Payload> {
        let Self { too_long, unclaimed, unreadable, nameless, nameless_answers: _ } = self;
        let counts = [too_long, unclaimed, unreadable, nameless];
        let count = counts.into_iter().fold(0, u64::saturating_add);
        let reasons = [
            ("too long", too_long),
            ("too early to be kept", unclaimed),
            ("unreadable", unreadable),
            ("an update that names no session", nameless),
        ];
        let reasons = reasons.into_iter().filter(|(_, count)| *count > 0);
        let reasons: Vec<_> =
            reasons.map(|(reason, count)| json!({"reason": reason, "count": count})).collect();
        let data = Json::write(&json!({"count": count, "reasons": reasons}));
        (count > 0).then(|| Payload::Other { name: "messages.lost".to_owned(), data })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(now: [u64; 4], before: [u64; 4], expected: &[(&str, u64)]) {
        let message_loss = |[too_long, unclaimed, unreadable, nameless]: [u64; 4]| MessageLoss {
            too_long,
            unclaimed,
            unreadable,
            nameless,
            nameless_answers: nameless,
        };
        let told = message_loss(now).since(message_loss(before)).to_payload();
        let told = told.map(|told| serde_json::to_value(told).expect("plain data")["data"].clone());
        let reasons = expected.iter().map(|(reason, count)| json!({"reason": reason, "count": count}));
        let count: u64 = expected.iter().map(|(_, count)| count).sum();
        let expected = json!({"count": count, "reasons": reasons.collect::<Vec<_>>()});
        assert_eq!(told, (count > 0).then_some(expected));
    }

    #[test]
    fn only_new_losses_are_reported() {
        check([0, 0, 0, 0], [0, 0, 0, 0], &[]);
        check([3, 1, 4, 2], [3, 1, 4, 2], &[]);
        check([3, 0, 0, 0], [1, 0, 0, 0], &[("too long", 2)]);
        check([0, 0, 2, 0], [0, 0, 1, 0], &[("unreadable", 1)]);
        check(
            [0, 1, 0, 5],
            [0, 0, 0, 4],
            &[("too early to be kept", 1), ("an update that names no session", 1)],
        );
    }
}
