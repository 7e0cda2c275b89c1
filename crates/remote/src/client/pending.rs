//! Unanswered requests of the link's user, which receive errors if the connection is lost.

use std::collections::HashMap;

use bytes::Bytes;
use narrows_wire::{
    Batch, BatchStep, Check, Code, DEFAULT_MAX_BATCH_ENTRIES, Effects, Frame, Kind, RawId, RpcError, message,
    scan,
};
use serde_json::json;

use super::ConnectionLost;
use super::reconnect::describe_loss;

/// Maximum number of tracked requests. Requests over the limit are sent too, but receive no error when the
/// link ends.
const MAX_PENDING_REQUESTS: usize = 4096;

/// Pending requests, each with the number of the message that contained it.
#[derive(Debug, Default)]
pub(super) struct PendingRequests {
    requests: HashMap<RawId, u64>,
}

impl PendingRequests {
    pub(super) fn record(&mut self, line: &Bytes, number: u64) {
        let (kind, envelope) = scan(line, Check::Envelope);
        match kind {
            Kind::Request => self.insert(envelope.id.slice(line), number),
            Kind::Batch => for_each_entry(&Frame::parse(line.clone()), |entry| {
                if entry.kind() == Kind::Request {
                    self.insert(entry.id(), number);
                }
            }),
            _ => {}
        }
    }

    fn insert(&mut self, id: Option<&[u8]>, number: u64) {
        if let Some(id) = id
            && self.requests.len() < MAX_PENDING_REQUESTS
        {
            self.requests.insert(RawId::copy(id), number);
        }
    }

    /// Removes the requests in `line`, which is too long for the server, and returns errors for them.
    pub(super) fn refuse_oversized(&mut self, line: &Bytes, why: &str) -> Vec<Frame> {
        let mut added = Self::default();
        added.record(line, 0);
        let error = RpcError::new(Code::MessageTooLarge, why.to_owned());
        let answer = |id: RawId| {
            self.remove(Some(id.as_bytes()));
            Frame::parse(message::error(id.as_bytes(), &error))
        };
        added.requests.into_keys().map(answer).collect()
    }

    pub(super) fn record_answers(&mut self, frame: &Frame) {
        match frame.kind() {
            Kind::Response => self.remove(frame.id()),
            Kind::Batch => for_each_entry(frame, |entry| {
                if entry.kind() == Kind::Response {
                    self.remove(entry.id());
                }
            }),
            _ => {}
        }
    }

    pub(super) fn remove(&mut self, id: Option<&[u8]>) {
        if let Some(id) = id {
            self.requests.remove(&RawId::copy(id));
        }
    }

    /// Records that a request has certainly not reached the server.
    pub(super) fn mark_unsent(&mut self, id: &RawId) {
        if let Some(number) = self.requests.get_mut(id) {
            *number = u64::MAX;
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Removes all requests and returns errors for them, in the order they were sent. Requests in messages up
    /// to the number `reached` may have had an effect.
    pub(super) fn fail_all(&mut self, lost: &ConnectionLost, reached: u64) -> Vec<Frame> {
        let why = describe_loss(lost);
        let mut pending: Vec<(RawId, u64)> = self.requests.drain().collect();
        pending.sort_by_key(|(_, number)| *number);
        let answer = |(id, number): &(RawId, u64)| {
            let effects = if *number <= reached { Effects::Possible } else { Effects::None };
            lost_error(id.as_bytes(), &why, effects, lost.is_final())
        };
        pending.iter().map(answer).collect()
    }
}

fn lost_error(id: &[u8], why: &str, effects: Effects, is_final: bool) -> Frame {
    let error = RpcError::new(Code::WorkerLost, why.to_owned()).effects(effects);
    let error = if is_final { error.with("retryable", json!(false)) } else { error };
    Frame::parse(message::error(id, &error))
}

fn for_each_entry(frame: &Frame, mut show: impl FnMut(&Frame)) {
    if frame.kind() != Kind::Batch {
        return;
    }
    if let Ok((_, steps)) = Batch::open(frame, DEFAULT_MAX_BATCH_ENTRIES) {
        for step in steps {
            if let BatchStep::Deliver(entry) = step {
                show(&entry);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(id: &str) -> String {
        format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"m"}}"#)
    }

    fn response(id: &str) -> String {
        format!(r#"{{"jsonrpc":"2.0","id":{id},"result":1}}"#)
    }

    #[test]
    fn unanswered_requests_receive_errors() {
        let mut pending = PendingRequests::default();
        pending.record(&request("1").into(), 1);
        pending.record(&request("\"1\"").into(), 2);
        pending.record(&r#"{"jsonrpc":"2.0","method":"m"}"#.into(), 3);
        pending.record(&format!("[{},{}]", request("2"), request("3")).into(), 4);
        pending.record(&request("4").into(), 5);
        pending.record_answers(&Frame::parse(response("1").into()));
        pending.record_answers(&Frame::parse(request("4").into()));
        pending.record_answers(&Frame::parse(format!("[{}]", response("3")).into()));
        let errors: Vec<String> = pending
            .fail_all(&ConnectionLost::Plain("the server closed the connection".to_owned()), 4)
            .iter()
            .map(|frame| {
                let error = frame.error().unwrap();
                let data = error.data.unwrap();
                format!("{} {} {}", frame.id().unwrap().escape_ascii(), error.code, data["effects"])
            })
            .collect();
        assert_eq!(errors, [r#"\"1\" -32010 "possible""#, r#"2 -32010 "possible""#, r#"4 -32010 "none""#]);
        assert!(pending.is_empty());
    }
}
