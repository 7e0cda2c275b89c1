//! Permission requests without a reported decision. Each request and each decision is reported once.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use narrows_base::sync::lock;

use crate::event::PermissionResolved;

/// Permission requests whose decision was not reported yet. A decision and the end of the turn may race: the
/// first one that is recorded here wins and is reported.
#[derive(Default)]
pub(crate) struct PendingPermissions {
    open: Mutex<HashMap<String, Option<PermissionResolved>>>,
}

impl PendingPermissions {
    fn open(&self) -> MutexGuard<'_, HashMap<String, Option<PermissionResolved>>> {
        lock(&self.open)
    }

    pub(crate) fn insert(&self, id: &str) {
        self.open().insert(id.to_owned(), None);
    }

    /// Records the decision on a request, to be reported later. Returns `false` if the request was given up
    /// before.
    pub(crate) fn decide(&self, resolved: &PermissionResolved) -> bool {
        match self.open().get_mut(&resolved.request_id) {
            Some(slot) => {
                slot.get_or_insert_with(|| resolved.clone());
                true
            }
            None => false,
        }
    }

    /// Removes a request because its decision is being reported. Returns `false` if a decision was reported
    /// before.
    pub(crate) fn mark_reported(&self, id: &str) -> bool {
        self.open().remove(id).is_some()
    }

    /// Gives up a request whose decision was not reported. Returns the decision that was already recorded, or
    /// else a refusal.
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
    fn the_first_decision_wins_and_each_is_reported_once() {
        let pending_permissions = PendingPermissions::default();
        pending_permissions.insert("1");
        assert!(pending_permissions.decide(&resolved("allowed")));
        assert!(pending_permissions.mark_reported("1"));
        assert!(!pending_permissions.mark_reported("1"));
        assert_eq!(pending_permissions.give_up("1"), None);

        // The request is decided, but the turn ends before the decision is reported.
        pending_permissions.insert("1");
        assert!(pending_permissions.decide(&resolved("allowed")));
        assert_eq!(pending_permissions.give_up("1").expect("unreported").outcome, "allowed");
        assert!(!pending_permissions.mark_reported("1"));

        // The turn ends before the decision.
        pending_permissions.insert("1");
        assert_eq!(pending_permissions.give_up("1").expect("undecided").outcome, "refused");
        assert!(!pending_permissions.decide(&resolved("allowed")));
        assert!(!pending_permissions.mark_reported("1"));
    }
}
