//! What of an agent's messages was not taken, and how that is told.

use serde_json::json;

use crate::event::{Json, Payload};

/// How much of what an agent sent was not taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Lines that were too long.
    pub too_long: u64,
    /// What came for sessions that nobody had opened yet, and was too much to keep.
    pub unclaimed: u64,
    /// Updates that named no session.
    pub nameless: u64,
    /// Those of them that may be a piece of the answer.
    pub nameless_answers: u64,
}

impl Losses {
    /// What was lost since it was no more than `before`.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            too_long: self.too_long.saturating_sub(before.too_long),
            unclaimed: self.unclaimed.saturating_sub(before.unclaimed),
            nameless: self.nameless.saturating_sub(before.nameless),
            nameless_answers: self.nameless_answers.saturating_sub(before.nameless_answers),
        }
    }

    /// How this is told, if it is anything. An agent has one output for all of its sessions, so nobody knows whose
    /// the messages were: it is no error of a run.
    pub(crate) fn told(self) -> Option<Payload> {
        let Self { too_long, unclaimed, nameless, nameless_answers: _ } = self;
        let count = too_long.saturating_add(unclaimed).saturating_add(nameless);
        let reasons = [
            ("too long", too_long),
            ("too early to be kept", unclaimed),
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
    fn check(now: [u64; 3], before: [u64; 3], expected: &[(&str, u64)]) {
        let losses = |[too_long, unclaimed, nameless]: [u64; 3]| Losses {
            too_long,
            unclaimed,
            nameless,
            nameless_answers: nameless,
        };
        let told = losses(now).since(losses(before)).told();
        let told = told.map(|told| serde_json::to_value(told).expect("plain data")["data"].clone());
        let reasons = expected.iter().map(|(reason, count)| json!({"reason": reason, "count": count}));
        let count: u64 = expected.iter().map(|(_, count)| count).sum();
        let expected = json!({"count": count, "reasons": reasons.collect::<Vec<_>>()});
        assert_eq!(told, (count > 0).then_some(expected));
    }

    #[test]
    fn only_what_is_new_is_told() {
        check([0, 0, 0], [0, 0, 0], &[]);
        check([3, 1, 2], [3, 1, 2], &[]);
        check([3, 0, 0], [1, 0, 0], &[("too long", 2)]);
        check([0, 1, 5], [0, 0, 4], &[("too early to be kept", 1), ("an update that names no session", 1)]);
    }
}
