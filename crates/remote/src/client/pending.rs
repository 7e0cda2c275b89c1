//! Requests of the holder that have not been answered: what it must be told when nobody will answer them.

use std::collections::HashMap;

use bytes::Bytes;
use narrows_wire::{
    Batch, BatchStep, Check, Code, DEFAULT_MAX_BATCH_ENTRIES, Effects, Frame, Kind, RawId, RpcError, message,
    scan,
};
use serde_json::json;

use super::ConnectionLost;
use super::reconnect::words;

/// How many are known. What is asked beyond is carried as well, but gets no answer of ours when the link ends.
const MAX_PENDING_REQUESTS: usize = 4096;

/// The open requests, each with the number of the message it was in.
#[derive(Debug, Default)]
pub(super) struct Open {
    requests: HashMap<RawId, u64>,
}

impl Open {
    /// Notes what `line`, the message `number`, asks for.
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

    /// The answers to what `line` asks for, which the server does not take because of its length.
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

    /// Notes what `frame` answers.
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

    /// Takes one request out.
    pub(super) fn settle(&mut self, id: Option<&[u8]>) {
        if let Some(id) = id {
            self.requests.remove(&RawId::copy(id));
        }
    }

    /// Notes that a request has certainly not been heard.
    pub(super) fn unheard(&mut self, id: &RawId) {
        if let Some(number) = self.requests.get_mut(id) {
            *number = u64::MAX;
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// The answers to all of them, in the order they were asked: nobody else will give any, because the
    /// connection is lost. Those in
    /// messages up to the number `reached` may have had an effect.
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

/// The answer to a request that nobody will answer.
fn failed(id: &[u8], why: &str, effects: Effects, is_final: bool) -> Frame {
    let error = RpcError::new(Code::WorkerLost, why.to_owned()).effects(effects);
    let error = if is_final { error.with("retryable", json!(false)) } else { error };
    Frame::parse(message::error(id, &error))
}

/// Shows the entries of an array.
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
