//! Unanswered requests of the link's user, which receive errors if the connection is lost.

use std::collections::HashMap;

use bytes::Bytes;
use narrows_wire::{
    Batch, BatchStep, Check, Code, DEFAULT_MAX_BATCH_ENTRIES, Effects, Frame, Kind, RawId, RpcError, message,
    scan,
};
use serde_json::json;

use super::ConnectionLost;
use super::reconnect::words;

/// Requests that are tracked. Others are sent as well, but receive no error when the link ends.
const MAX_PENDING_REQUESTS: usize = 4096;

/// Pending requests, each with the number of the message that contained it.
#[derive(Debug, Default)]
pub(super) struct Open {
    requests: HashMap<RawId, u64>,
}

impl Open {
    /// Records the requests in `line`, the message with this number.
    pub(super) fn asked(&mut self, line: &Bytes, number: u64) {
        let (kind, envelope) = scan(line, Check::Envelope);
        match kind {
            Kind::Request => self.note(envelope.id.slice(line), number),
            Kind::Batch => each(&Frame::parse(line.clone()), |entry| {
                if entry.kind() == Kind::Request {
                    self.note(entry.id(), number);
                }
            }),
            _ => {}
        }
    }

    fn note(&mut self, id: Option<&[u8]>, number: u64) {
        if let Some(id) = id
            && self.requests.len() < MAX_PENDING_REQUESTS
        {
            self.requests.insert(RawId::copy(id), number);
        }
    }

    /// Removes the requests in `line`, which is too long for the server, and returns errors for them.
    pub(super) fn refuse(&mut self, line: &Bytes, why: &str) -> Vec<Frame> {
        let mut asked = Self::default();
        asked.asked(line, 0);
        let error = RpcError::new(Code::MessageTooLarge, why.to_owned());
        let answer = |id: RawId| {
            self.settle(Some(id.as_bytes()));
            Frame::parse(message::error(id.as_bytes(), &error))
        };
        asked.requests.into_keys().map(answer).collect()
    }

    /// Removes the requests that `frame` answers.
    pub(super) fn answered(&mut self, frame: &Frame) {
        match frame.kind() {
            Kind::Response => self.settle(frame.id()),
            Kind::Batch => each(frame, |entry| {
                if entry.kind() == Kind::Response {
                    self.settle(entry.id());
                }
            }),
            _ => {}
        }
    }

    /// Removes a request.
    pub(super) fn settle(&mut self, id: Option<&[u8]>) {
        if let Some(id) = id {
            self.requests.remove(&RawId::copy(id));
        }
    }

    /// Records that a request has certainly not reached the server.
    pub(super) fn unheard(&mut self, id: &RawId) {
        if let Some(number) = self.requests.get_mut(id) {
            *number = u64::MAX;
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Removes all requests and returns errors for them, in the order they were sent. Those in messages up to the
    /// number `reached` may have had an effect.
    pub(super) fn fail(&mut self, lost: &ConnectionLost, reached: u64) -> Vec<Frame> {
        let why = words(lost);
        let mut open: Vec<(RawId, u64)> = self.requests.drain().collect();
        open.sort_by_key(|(_, number)| *number);
        let answer = |(id, number): &(RawId, u64)| {
            let effects = if *number <= reached { Effects::Possible } else { Effects::None };
            failed(id.as_bytes(), &why, effects, lost.is_final())
        };
        open.iter().map(answer).collect()
    }
}

/// Returns the error for a request that will not be answered.
fn failed(id: &[u8], why: &str, effects: Effects, is_final: bool) -> Frame {
    let error = RpcError::new(Code::WorkerLost, why.to_owned()).effects(effects);
    let error = if is_final { error.with("retryable", json!(false)) } else { error };
    Frame::parse(message::error(id, &error))
}

/// Calls `show` for each entry of a batch.
fn each(frame: &Frame, mut show: impl FnMut(&Frame)) {
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
    fn what_was_not_answered_is_told_so() {
        let mut open = Open::default();
        open.asked(&request("1").into(), 1);
        open.asked(&request("\"1\"").into(), 2);
        open.asked(&r#"{"jsonrpc":"2.0","method":"m"}"#.into(), 3);
        open.asked(&format!("[{},{}]", request("2"), request("3")).into(), 4);
        open.asked(&request("4").into(), 5);
        open.answered(&Frame::parse(response("1").into()));
        open.answered(&Frame::parse(request("4").into()));
        open.answered(&Frame::parse(format!("[{}]", response("3")).into()));
        let told: Vec<String> = open
            .fail(&ConnectionLost::Plain("it is gone".to_owned()), 4)
            .iter()
            .map(|frame| {
                let error = frame.error().unwrap();
                let data = error.data.unwrap();
                format!("{} {} {}", frame.id().unwrap().escape_ascii(), error.code, data["effects"])
            })
            .collect();
        assert_eq!(told, [r#"\"1\" -32010 "possible""#, r#"2 -32010 "possible""#, r#"4 -32010 "none""#]);
        assert!(open.is_empty());
    }
}
