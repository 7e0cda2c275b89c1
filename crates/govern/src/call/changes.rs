//! Diffs in the content of a call.
//!
//! After an agent has written a file, it often sends the diff again, with other context lines. Such a report
//! does not replace the approved text. It is stored, because a new decision must be about the text that was
//! shown last.

use std::collections::BTreeSet;

use serde_json::Value;

use super::Call;
use super::content::change_blocks;
use super::part_cache::PartCache;

impl Call {
    /// Merges the diffs of `content`, which is one block or a list of blocks. Returns `true` if the call must
    /// be decided again: another file changes, or the text differs and is not just a result
    /// (`can_be_result`).
    pub(super) fn apply_changes(&mut self, content: &Value, can_be_result: bool) -> bool {
        let shown: Vec<Value> = match content {
            Value::Array(_) => change_blocks(content),
            block => match change_blocks(block) {
                found if found.is_empty() => found,
                found => {
                    self.result_diffs.as_ref().unwrap_or(&self.changes).iter().cloned().chain(found).collect()
                }
            },
        };
        if shown.is_empty() {
            return false;
        }
        self.result_diffs = None;
        if shown == self.changes {
            return false;
        }
        let before = self.kinds_and_files();
        let approved = std::mem::replace(&mut self.changes, shown);
        let known = std::mem::take(&mut self.part_caches.changes);
        if can_be_result && before == self.kinds_and_files() {
            self.result_diffs = Some(std::mem::replace(&mut self.changes, approved));
            self.part_caches.changes = known;
            return false;
        }
        true
    }

    /// Replaces the judged diffs by those that the agent last reported as a result. Returns `true` if there
    /// were any.
    pub(super) fn adopt_reported(&mut self) -> bool {
        let reported = self.result_diffs.take();
        let has_reported = reported.is_some();
        if let Some(reported) = reported {
            self.changes = reported;
            self.part_caches.changes = PartCache::default();
        }
        has_reported
    }

    /// Records that the agent asks for permission to do what it has shown last. Returns `true` if the shown
    /// text differs from the judged text.
    pub(crate) fn set_asked(&mut self) -> bool {
        self.is_allowed = false;
        self.adopt_reported()
    }

    pub(crate) fn set_allowed(&mut self, is_allowed: bool) {
        self.is_allowed = is_allowed;
    }

    fn kinds_and_files(&self) -> (Vec<narrows_policy::Kind>, BTreeSet<std::path::PathBuf>) {
        let action = self.action();
        (action.kinds(), action.paths.into_iter().collect())
    }
}
