//! The body of an answer, whatever form it has, decoded as its bytes come.

use std::mem;

use bytes::Bytes;

use crate::chunk::{Assembly, Piece, Taken};
use crate::problem::Problem;
use crate::sse::{Shape, Sse, TooLong};
use crate::{Completion, Error, Event, Kind, Limits};

/// The length of the mark that some servers put before UTF-8, and that may come in parts.
const MARK: usize = 3;

/// One body, as far as its bytes have come.
pub(crate) struct Decoder {
    form: Form,
    assembly: Assembly,
    max_line: usize,
    max_reply: usize,
    /// How many bytes have come.
    count: usize,
}

/// What the body turns out to be.
enum Form {
    /// Too early to tell: nothing but white space.
    Unknown(Vec<u8>),
    /// Events.
    Events(Sse),
    /// A whole answer, or the error in its place.
    Whole(Vec<u8>),
    /// A web page.
    Page(Vec<u8>),
}

impl Decoder {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            form: Form::Unknown(Vec::new()),
            assembly: Assembly::new(),
            max_line: limits.max_line,
            max_reply: limits.max_reply,
            count: 0,
        }
    }

    /// Takes bytes that have come.
    pub(crate) fn feed(&mut self, bytes: Bytes) -> Result<(), Problem> {
        self.count = self.count.saturating_add(bytes.len());
        if self.count > self.max_reply {
            let message = format!("an answer of more than {} bytes", self.max_reply);
            return Err(Problem::new(Kind::Garbage, &message, false));
        }
        match &mut self.form {
            Form::Events(events) => events.feed(bytes),
            Form::Whole(whole) | Form::Page(whole) => whole.extend_from_slice(&bytes),
            Form::Unknown(start) => {
                // Nearly always the first byte tells.
                let all = if start.is_empty() { bytes } else { [&start[..], &bytes].concat().into() };
                if let Some(shape) = Shape::of(&all) {
                    self.form = self.formed(shape, all);
                    return Ok(());
                }
                *start = all.into();
                if start.len() > MARK {
                    // White space means nothing in any form, and some servers send it for minutes.
                    start.clear();
                }
            }
        }
        Ok(())
    }

    fn formed(&self, shape: Shape, start: Bytes) -> Form {
        match shape {
            Shape::Json => Form::Whole(start.into()),
            Shape::Page => Form::Page(start.into()),
            Shape::Events => {
                let mut events = Sse::new(self.max_line);
                events.feed(start);
                Form::Events(events)
            }
        }
    }

    /// Takes the next event of what has come; `None` if more must come first.
    pub(crate) fn take(&mut self, out: &mut Vec<Piece>) -> Result<Option<Taken>, Problem> {
        let Form::Events(events) = &mut self.form else { return Ok(None) };
        let too_long = |error: TooLong| Problem::new(Kind::Garbage, &error.to_string(), false);
        let Some(data) = events.next().map_err(too_long)? else { return Ok(None) };
        let taken = self.assembly.take(&data, out)?;
        if matches!(taken, Taken::Skipped) {
            // What it says may be a part of the conversation, which no log shall have.
            tracing::warn!(bytes = data.len(), "skipped a line of the answer that is no chunk");
        }
        Ok(Some(taken))
    }

    /// Takes what only the end of the body completes.
    pub(crate) fn last(&mut self, out: &mut Vec<Piece>) -> Result<(), Problem> {
        match &mut self.form {
            Form::Events(events) => {
                if let Some(data) = events.finish() {
                    self.assembly.take(&data, out)?;
                }
                Ok(())
            }
            Form::Whole(body) => {
                let body = mem::take(body);
                self.assembly.take_whole(&body, out)
            }
            Form::Page(body) => Err(Problem::of_page(body)),
            Form::Unknown(_) => Ok(()),
        }
    }

    /// The whole answer, and what had been held back of it.
    pub(crate) fn finish(self, out: &mut Vec<Piece>) -> Result<Completion, Problem> {
        self.assembly.finish(out)
    }
}

/// Reads an answer that was recorded, in the pieces in which it came: what would have been shown, and the whole.
///
/// # Errors
/// As [`Reply::next`](crate::Reply::next), but for what only a network can do. The URL of the error is empty.
pub fn read_recorded(
    reads: impl IntoIterator<Item = Bytes>,
    limits: Limits,
) -> Result<(Vec<Event>, Completion), Error> {
    let mut decoder = Decoder::new(limits);
    let mut pieces = Vec::new();
    let read = |decoder: &mut Decoder, pieces: &mut Vec<Piece>| {
        for bytes in reads {
            decoder.feed(bytes)?;
            while let Some(taken) = decoder.take(pieces)? {
                if matches!(taken, Taken::Done) {
                    return Ok(());
                }
            }
        }
        decoder.last(pieces)
    };
    let outcome = read(&mut decoder, &mut pieces).and_then(|()| decoder.finish(&mut pieces));
    let completion = outcome.map_err(|problem: Problem| problem.into_error("", None))?;
    Ok((pieces.into_iter().map(Event::from).collect(), completion))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_is_read_however_it_was_cut() {
        let body = "data: {\"choices\":[{\"delta\":{\"content\":\"Hé\"}}]}\n\ndata: \
            {\"choices\":[{\"delta\":{\"content\":\"llo\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";
        for size in 1..body.len() {
            let reads = body.as_bytes().chunks(size).map(Bytes::copy_from_slice);
            let (events, completion) = read_recorded(reads, Limits::default()).unwrap();
            assert_eq!(events, [Event::Text("Hé".to_owned()), Event::Text("llo".to_owned())], "{size}");
            assert_eq!(completion.message.text, "Héllo");
        }
    }
}
