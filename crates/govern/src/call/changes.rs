//! The changes of files that a call shows: what is judged and approved, and what only reports a result.
//!
//! Agents show the text of a change anew once they have written it, with other lines around it. Such a report replaces nothing
//! that was approved. It is kept all the same: if the call is judged again, it is judged by what was last shown of it.

use std::collections::BTreeSet;

use serde_json::Value;

use super::Call;
use super::content::change_blocks;

impl Call {
    /// Takes in the changes of files that `content`, a list of blocks or one more of them, shows. Returns `true` if that
    /// changes what is to be decided: another file, or another text, unless that `can_be_result`.
    pub(super) fn apply_changes(&mut self, content: &Value, can_be_result: bool) -> bool {
        let shown: Vec<Value> = match content {
            Value::Array(_) => change_blocks(content),
            block => match change_blocks(block) {
                found if found.is_empty() => found,
                found => {
                    self.reported.as_ref().unwrap_or(&self.changes).iter().cloned().chain(found).collect()
                }
            },
        };
        if shown.is_empty() {
            return false;
        }
        self.reported = None;
        if shown == self.changes {
            return false;
        }
        let before = self.kinds_and_files();
        let approved = std::mem::replace(&mut self.changes, shown);
        if can_be_result && before == self.kinds_and_files() {
            self.reported = Some(std::mem::replace(&mut self.changes, approved));
            return false;
        }
        true
    }

    /// Makes the text that was last reported as a result what is judged, shown and recorded from now on. Returns `true` if
    /// there was one.
    pub(super) fn adopt_reported(&mut self) -> bool {
        let reported = self.reported.take();
        let has_reported = reported.is_some();
        if let Some(reported) = reported {
            self.changes = reported;
        }
        has_reported
    }

    /// Notes that its agent asks whether it may be done: what it last showed is what it asks about. Returns `true` if that is
    /// another text than what was judged.
    pub(crate) fn set_asked(&mut self) -> bool {
        self.is_allowed = false;
        self.adopt_reported()
    }

    /// Notes whether it may be done as it is now.
    pub(crate) fn set_allowed(&mut self, is_allowed: bool) {
        self.is_allowed = is_allowed;
    }

    /// The kinds of the call and the files that it is about.
    fn kinds_and_files(&self) -> (Vec<narrows_policy::Kind>, BTreeSet<std::path::PathBuf>) {
        let action = self.action();
        (action.kinds(), action.paths.into_iter().collect())
    }
}
