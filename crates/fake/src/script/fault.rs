//! Parses the steps for faults.

use narrows_config::SettingValue;

use super::action::Action;
use super::parse::{only_true, strings};
use super::step::{Fault, Step};

pub(super) const FAULTS: &[Action] = &[
    Action { name: "pollute", other_keys: &[], read: |n, _, _| text(n, Fault::Pollute) },
    Action { name: "half_line", other_keys: &[], read: |n, _, _| text(n, Fault::HalfLine) },
    Action {
        name: "giant_line",
        other_keys: &[],
        read: |n, _, _| Some(Step::Fault(Fault::GiantLine(n.size(0, u64::MAX)?))),
    },
    Action { name: "bad_utf8", other_keys: &[], read: |n, _, _| set(n, Fault::BadUtf8) },
    Action { name: "flood", other_keys: &[], read: |n, _, _| flood(n) },
    Action { name: "reorder", other_keys: &[], read: |n, _, _| only_true(n).map(|()| Step::Reorder) },
    Action {
        name: "duplicate_response",
        other_keys: &[],
        read: |n, _, _| only_true(n).map(|()| Step::DuplicateResponse),
    },
    Action { name: "unknown_response", other_keys: &[], read: |n, _, _| set(n, Fault::UnknownResponse) },
    Action { name: "hang", other_keys: &[], read: |n, _, _| set(n, Fault::Hang) },
    Action { name: "crash", other_keys: &[], read: |n, _, _| set(n, Fault::Crash) },
    Action { name: "exit", other_keys: &[], read: |n, _, _| exit(n) },
    Action { name: "close_stdout", other_keys: &[], read: |n, _, _| set(n, Fault::CloseStdout) },
    Action {
        name: "ignore_cancel",
        other_keys: &[],
        read: |n, _, _| Some(Step::Fault(Fault::IgnoreCancel(n.flag()?))),
    },
    Action { name: "ignore_eof", other_keys: &[], read: |n, _, _| set(n, Fault::IgnoreEof) },
    Action { name: "ignore_sigterm", other_keys: &[], read: |n, _, _| set(n, Fault::IgnoreSigterm) },
    Action { name: "stderr", other_keys: &[], read: |n, _, _| text(n, Fault::Stderr) },
    Action { name: "orphan", other_keys: &[], read: |n, _, _| Some(Step::Fault(Fault::Orphan(strings(n)?))) },
];

fn text(node: SettingValue<'_>, fault: fn(String) -> Fault) -> Option<Step> {
    Some(Step::Fault(fault(node.string()?.to_owned())))
}

fn set(node: SettingValue<'_>, fault: Fault) -> Option<Step> {
    only_true(node).map(|()| Step::Fault(fault))
}

fn exit(node: SettingValue<'_>) -> Option<Step> {
    Some(Step::Fault(Fault::Exit(node.count(0, u8::MAX)?)))
}

fn flood(node: SettingValue<'_>) -> Option<Step> {
    let fields = node.table()?;
    fields.only(&["updates", "bytes"], &[]);
    let updates = fields.required("updates", None)?.count(1, i64::MAX)?;
    let bytes = fields.get("bytes").and_then(|bytes| bytes.size(0, u64::MAX)).unwrap_or(100);
    Some(Step::Fault(Fault::Flood { updates, bytes: usize::try_from(bytes).unwrap_or(usize::MAX) }))
}
