//! Decodes the body of an answer as its bytes arrive: events, JSON, or a web page.

use std::mem;

use bytes::Bytes;

use crate::chunk::{Assembly, ChunkOutcome, Piece};
use crate::error_response::ErrorResponse;
use crate::sse::{Shape, Sse, TooLong};
use crate::{Completion, ErrorKind, Limits, ModelError, ReplyEvent};

/// Length in bytes of the byte order mark, which may be split over two reads.
const MARK: usize = 3;

pub(crate) struct Decoder {
    form: BodyKind,
    assembly: Assembly,
    max_line: usize,
    max_reply: usize,
    count: usize,
}

enum BodyKind {
    /// The format is not known yet, because only white space has arrived.
    Unknown(Vec<u8>),
    Events(Sse),
    /// A JSON body: a whole answer, or an error.
    Whole(Vec<u8>),
    Page(Vec<u8>),
}

impl Decoder {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            form: BodyKind::Unknown(Vec::new()),
            assembly: Assembly::new(),
            max_line: limits.max_line,
            max_reply: limits.max_reply,
            count: 0,
        }
    }

    pub(crate) fn feed(&mut self, bytes: Bytes) -> Result<(), ErrorResponse> {
        self.count = self.count.saturating_add(bytes.len());
        if self.count > self.max_reply {
            let message = format!("the answer exceeds {} bytes", self.max_reply);
            return Err(ErrorResponse::new(ErrorKind::Garbage, &message, false));
        }
        match &mut self.form {
            BodyKind::Events(events) => events.feed(bytes),
            BodyKind::Whole(whole) | BodyKind::Page(whole) => whole.extend_from_slice(&bytes),
            BodyKind::Unknown(start) => {
                // In nearly all responses, the first byte decides about the format.
                let all = if start.is_empty() { bytes } else { [&start[..], &bytes].concat().into() };
                if let Some(shape) = Shape::detect(&all) {
                    self.form = self.formed(shape, all);
                    return Ok(());
                }
                *start = all.into();
                if start.len() > MARK {
                    // Some servers send white space for minutes, so white space is not stored.
                    start.clear();
                }
            }
        }
        Ok(())
    }

    fn formed(&self, shape: Shape, start: Bytes) -> BodyKind {
        match shape {
            Shape::Json => BodyKind::Whole(start.into()),
            Shape::Page => BodyKind::Page(start.into()),
            Shape::Events => {
                let mut events = Sse::new(self.max_line);
                events.feed(start);
                BodyKind::Events(events)
            }
        }
    }

    /// Decodes the next event. Returns `None` if more bytes are needed.
    pub(crate) fn next_event(&mut self, out: &mut Vec<Piece>) -> Result<Option<ChunkOutcome>, ErrorResponse> {
        let BodyKind::Events(events) = &mut self.form else { return Ok(None) };
        let too_long = |error: TooLong| ErrorResponse::new(ErrorKind::Garbage, &error.to_string(), false);
        let Some(data) = events.next().map_err(too_long)? else { return Ok(None) };
        let taken = self.assembly.read_event(&data, out)?;
        if matches!(taken, ChunkOutcome::Skipped) {
            // The line may contain a part of the conversation, so its text must not be logged.
            tracing::warn!(bytes = data.len(), "skipped an invalid line of the response");
        }
        Ok(Some(taken))
    }

    /// Decodes the data that only the end of the body completes.
    pub(crate) fn last(&mut self, out: &mut Vec<Piece>) -> Result<(), ErrorResponse> {
        match &mut self.form {
            BodyKind::Events(events) => {
                if let Some(data) = events.finish() {
                    self.assembly.read_event(&data, out)?;
                }
                Ok(())
            }
            BodyKind::Whole(body) => {
                let body = mem::take(body);
                self.assembly.take_whole(&body, out)
            }
            BodyKind::Page(body) => Err(ErrorResponse::from_page(body)),
            BodyKind::Unknown(_) => Ok(()),
        }
    }

    /// Returns the complete answer. Adds text that was held back to `out`.
    pub(crate) fn finish(self, out: &mut Vec<Piece>) -> Result<Completion, ErrorResponse> {
        self.assembly.finish(out)
    }
}

/// Decodes a recorded answer in the pieces in which it arrived. Returns the events and the complete answer.
///
/// # Errors
/// Returns the same errors as [`Reply::next`](crate::Reply::next), except network errors. Their URL is empty.
pub fn read_recorded(
    reads: impl IntoIterator<Item = Bytes>,
    limits: Limits,
) -> Result<(Vec<ReplyEvent>, Completion), ModelError> {
    let mut decoder = Decoder::new(limits);
    let mut pieces = Vec::new();
    let read = |decoder: &mut Decoder, pieces: &mut Vec<Piece>| {
        for bytes in reads {
            decoder.feed(bytes)?;
            while let Some(taken) = decoder.next_event(pieces)? {
                if matches!(taken, ChunkOutcome::Done) {
                    return Ok(());
                }
            }
        }
        decoder.last(pieces)
    };
    let outcome = read(&mut decoder, &mut pieces).and_then(|()| decoder.finish(&mut pieces));
    let completion = outcome.map_err(|problem: ErrorResponse| problem.into_error("", None))?;
    Ok((pieces.into_iter().map(ReplyEvent::from).collect(), completion))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_is_decoded_for_any_split() {
        let body = "data: {\"choices\":[{\"delta\":{\"content\":\"Hé\"}}]}\n\ndata: \
            {\"choices\":[{\"delta\":{\"content\":\"llo\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";
        for size in 1..body.len() {
            let reads = body.as_bytes().chunks(size).map(Bytes::copy_from_slice);
            let (events, completion) = read_recorded(reads, Limits::default()).unwrap();
            assert_eq!(
                events,
                [ReplyEvent::Text("Hé".to_owned()), ReplyEvent::Text("llo".to_owned())],
                "{size}"
            );
            assert_eq!(completion.message.text, "Héllo");
        }
    }
}
