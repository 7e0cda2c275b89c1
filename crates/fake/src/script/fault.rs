//! Parses the steps for faults.

use super::action::Action;
use super::read::{Node, Read};
use super::step::{Fault, Step};

pub(super) const FAULTS: &[Action] = &[
    Action { name: "pollute", beside: &[], read: |n, _, _| text(n, Fault::Pollute) },
    Action { name: "half_line", beside: &[], read: |n, _, _| text(n, Fault::HalfLine) },
    Action { name: "giant_line", beside: &[], read: |n, _, _| Ok(Step::Fault(Fault::GiantLine(n.size()?))) },
    Action { name: "bad_utf8", beside: &[], read: |n, _, _| set(n, Fault::BadUtf8) },
    Action { name: "flood", beside: &[], read: |n, _, _| flood(n) },
    Action { name: "reorder", beside: &[], read: |n, _, _| n.only_true().map(|()| Step::Reorder) },
    Action {
        name: "duplicate_response",
        beside: &[],
        read: |n, _, _| n.only_true().map(|()| Step::DuplicateResponse),
    },
    Action { name: "unknown_response", beside: &[], read: |n, _, _| set(n, Fault::UnknownResponse) },
    Action { name: "hang", beside: &[], read: |n, _, _| set(n, Fault::Hang) },
    Action { name: "crash", beside: &[], read: |n, _, _| set(n, Fault::Crash) },
    Action { name: "exit", beside: &[], read: |n, _, _| exit(n) },
    Action { name: "close_stdout", beside: &[], read: |n, _, _| set(n, Fault::CloseStdout) },
    Action {
        name: "ignore_cancel",
        beside: &[],
        read: |n, _, _| Ok(Step::Fault(Fault::IgnoreCancel(n.flag()?))),
    },
    Action { name: "ignore_eof", beside: &[], read: |n, _, _| set(n, Fault::IgnoreEof) },
    Action { name: "ignore_sigterm", beside: &[], read: |n, _, _| set(n, Fault::IgnoreSigterm) },
    Action { name: "stderr", beside: &[], read: |n, _, _| text(n, Fault::Stderr) },
    Action { name: "orphan", beside: &[], read: |n, _, _| Ok(Step::Fault(Fault::Orphan(n.strings()?))) },
];

fn text(node: Node<'_>, fault: fn(String) -> Fault) -> Read<Step> {
    Ok(Step::Fault(fault(node.string()?.to_owned())))
}

fn set(node: Node<'_>, fault: Fault) -> Read<Step> {
    node.only_true().map(|()| Step::Fault(fault))
}

fn exit(node: Node<'_>) -> Read<Step> {
    let code = node.number(0, 255)?;
    Ok(Step::Fault(Fault::Exit(u8::try_from(code).unwrap_or(u8::MAX))))
}

fn flood(node: Node<'_>) -> Read<Step> {
    let fields = node.table()?;
    fields.only(&["updates", "bytes"])?;
    let updates = fields.need("updates")?.number(1, i64::MAX)?.unsigned_abs();
    let bytes = fields.get("bytes").map_or(Ok(100), Node::size)?;
    Ok(Step::Fault(Fault::Flood { updates, bytes: usize::try_from(bytes).unwrap_or(usize::MAX) }))
}
