//! The tool calls of a session: open calls, and ids of completed calls.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::call::{Call, Stage};
use super::read::Problem;

const MAX_OPEN_CALLS: usize = 4096;
const MAX_CALLS_BYTES: usize = 64 << 20;
/// Maximum number of completed calls that are remembered so that no call gets two results.
const MAX_COMPLETED_CALLS: usize = 4096;
/// Maximum number of open calls from earlier runs that are kept when a run begins.
const MAX_FOREIGN_CALLS: usize = 256;
const MAX_ID_BYTES: usize = 512;

#[derive(Debug)]
pub(super) struct Calls {
    /// Maximum number of bytes kept of all open calls together.
    pub(super) max_bytes: usize,
    open: HashMap<Arc<str>, Numbered>,
    count: u64,
    bytes: usize,
    /// Completed calls, with the run in which they ended.
    completed: HashMap<Arc<str>, u64>,
    completed_order: VecDeque<Arc<str>>,
    run: u64,
}

#[derive(Debug)]
struct Numbered {
    number: u64,
    bytes: usize,
    call: Call,
}

impl Default for Calls {
    fn default() -> Self {
        Self {
            max_bytes: MAX_CALLS_BYTES,
            open: HashMap::new(),
            count: 0,
            bytes: 0,
            completed: HashMap::new(),
            completed_order: VecDeque::new(),
            run: 0,
        }
    }
}

impl Calls {
    /// Checks that another call with this id fits into the limits.
    pub(super) fn check(&self, id: &str) -> Result<(), Problem> {
        if id.is_empty() || id.len() > MAX_ID_BYTES {
            Err(format!("a tool call's id must have 1 to {MAX_ID_BYTES} bytes"))
        } else if self.open.len() >= MAX_OPEN_CALLS && !self.open.contains_key(id) {
            Err(format!("more than {MAX_OPEN_CALLS} tool calls are open"))
        } else {
            Ok(())
        }
    }

    pub(super) fn get(&self, id: &str) -> Option<&Call> {
        self.open.get(id).map(|numbered| &numbered.call)
    }

    /// Begins a run. If too many calls of earlier runs are open, drops the oldest.
    pub(super) fn next_run(&mut self) {
        self.run += 1;
        let mut numbers: Vec<u64> = self.open.values().map(|open| open.number).collect();
        if let Some(too_many) = numbers.len().checked_sub(MAX_FOREIGN_CALLS + 1) {
            numbers.sort_unstable();
            let newest_gone = numbers[too_many];
            self.open.retain(|_, open| open.number > newest_gone);
            self.bytes = self.open.values().map(|open| open.bytes).sum();
        }
    }

    /// Returns `true` if a call with this id has completed. Agents may reuse ids in every turn: if the call
    /// completed in an earlier run and `begins` is set, the completion is forgotten and the result is
    /// `false`.
    pub(super) fn is_completed(&mut self, id: &str, begins: bool) -> bool {
        match self.completed.get(id) {
            Some(run) if begins && *run < self.run => {
                self.completed.remove(id);
                self.completed_order.retain(|other| &**other != id);
                false
            }
            completed => completed.is_some(),
        }
    }

    /// Applies `change` to the call with this id, or to a new call. The arguments of `change` are the call,
    /// `true` for a new call, and the number of bytes that may be kept.
    pub(super) fn change(&mut self, id: &str, change: impl FnOnce(&mut Call, bool, usize)) {
        let new = !self.open.contains_key(id);
        let entry = self.open.entry(id.into()).or_insert_with(|| {
            self.count += 1;
            Numbered { number: self.count, bytes: 0, call: Call::new(id) }
        });
        self.bytes -= entry.bytes;
        change(&mut entry.call, new, self.max_bytes.saturating_sub(self.bytes));
        entry.bytes = entry.call.bytes();
        self.bytes += entry.bytes;
    }

    pub(super) fn announced(&mut self, id: &str) {
        if let Some(entry) = self.open.get_mut(id) {
            entry.call.stage = Stage::Announced;
        }
    }

    pub(super) fn settle(&mut self, id: &str) -> Option<Call> {
        let Numbered { bytes, call, .. } = self.open.remove(id)?;
        self.bytes -= bytes;
        if self.completed.insert(Arc::clone(&call.id), self.run).is_none() {
            self.completed_order.push_back(Arc::clone(&call.id));
        }
        if self.completed_order.len() > MAX_COMPLETED_CALLS
            && let Some(forgotten) = self.completed_order.pop_front()
        {
            self.completed.remove(&forgotten);
        }
        Some(call)
    }

    /// Removes all open calls of the run in order of arrival, and remembers them as completed.
    pub(super) fn settle_run(&mut self) -> Vec<Call> {
        let of_run = self.open.values().filter(|open| open.call.stage != Stage::Foreign);
        let mut ids: Vec<_> = of_run.map(|open| (open.number, Arc::clone(&open.call.id))).collect();
        ids.sort_unstable();
        ids.iter().filter_map(|(_, id)| self.settle(id)).collect()
    }
}
