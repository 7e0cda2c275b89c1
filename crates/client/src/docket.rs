//! Requests that are being decided: each is told once, and so is what became of it.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use narrows_base::sync::lock;

use crate::event::PermissionResolved;

/// What of this machine the agent has asked for and was not told yet. Whoever decides a request and whoever ends the
/// turn may come at the same time; what stands here first is what happens, and what is told.
#[derive(Default)]
pub(crate) struct Docket {
    open: Mutex<HashMap<String, Option<PermissionResolved>>>,
}

impl Docket {
    fn open(&self) -> MutexGuard<'_, HashMap<String, Option<PermissionResolved>>> {
        lock(&self.open)
    }

    /// The request `id` is being decided.
    pub(crate) fn enter(&self, id: &str) {
        self.open().insert(id.to_owned(), None);
    }

    /// The request is decided so, which is yet to be told; `false` if it was given up before.
    pub(crate) fn decide(&self, resolved: &PermissionResolved) -> bool {
        match self.open().get_mut(&resolved.request_id) {
            Some(slot) => {
                slot.get_or_insert_with(|| resolved.clone());
                true
            }
            None => false,
        }
    }

    /// It is told now; `false` if it was told before.
    pub(crate) fn tell(&self, id: &str) -> bool {
        self.open().remove(id).is_some()
    }

    /// Gives the request up, unless it was told. What it was decided to be, if it was, stands.
    pub(crate) fn give_up(&self, id: &str) -> Option<PermissionResolved> {
        let given_up = || PermissionResolved {
            request_id: id.to_owned(),
            outcome: "refused".to_owned(),
            decision: Some(crate::event::Json::write(&serde_json::json!({"by": "cancelled"}))),
            ..PermissionResolved::default()
        };
        Some(self.open().remove(id)?.unwrap_or_else(given_up))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(outcome: &str) -> PermissionResolved {
        PermissionResolved {
            request_id: "1".to_owned(),
            outcome: outcome.to_owned(),
            ..PermissionResolved::default()
        }
    }

    #[test]
    fn whoever_comes_first_decides_and_each_is_told_once() {
        let docket = Docket::default();
        docket.enter("1");
        assert!(docket.decide(&resolved("allowed")));
        assert!(docket.tell("1"));
        assert!(!docket.tell("1"));
        assert_eq!(docket.give_up("1"), None);

        // Decided, but the turn ends before it is told.
        docket.enter("1");
        assert!(docket.decide(&resolved("allowed")));
        assert_eq!(docket.give_up("1").expect("untold").outcome, "allowed");
        assert!(!docket.tell("1"));

        // The turn ends before it is decided.
        docket.enter("1");
        assert_eq!(docket.give_up("1").expect("undecided").outcome, "refused");
        assert!(!docket.decide(&resolved("allowed")));
        assert!(!docket.tell("1"));
    }
}
