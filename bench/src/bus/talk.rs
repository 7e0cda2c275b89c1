//! The messages of one client of the load, and the checks of everything it receives.

use std::collections::VecDeque;
use std::time::Instant;

use serde_json::Value;

use super::message::{
    Dialect, HEAD, ID, Session, TAG, Tag, Template, initialize, new_session, number, session,
};

/// First id of a client. It determines the number of digits.
const FIRST_ID: u64 = 100_000_000_000;
/// Distance between the ids of clients, for routers that cannot distinguish equal ids of two clients.
const STRIDE: u64 = 10_000_000;

/// The sessions of a client, and its requests in them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Habit {
    pub(crate) sessions: usize,
    /// Number of concurrent requests, each in a separate session.
    pub(crate) depth: usize,
    /// Bytes of a text, including the tag.
    pub(crate) text: usize,
    /// Updates that a prompt requests.
    pub(crate) chunks: u16,
}

#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) answered: u64,
    /// Answers that came twice, or that answer no request.
    pub(crate) doubled: u64,
    pub(crate) crossed: u64,
    /// Lines with a wrong byte, or out of order.
    pub(crate) torn: u64,
    pub(crate) refused: u64,
    /// Nanoseconds from request to answer.
    pub(crate) latencies: Vec<u32>,
}

pub(crate) struct Talk {
    number: u32,
    habit: Habit,
    /// Added to request numbers to get ids.
    base: u64,
    prompt: Template,
    answer: Template,
    update: Template,
    stage: Stage,
    sessions: Vec<Session>,
    free: VecDeque<u32>,
    /// The requests from `oldest` to `next`. `None` for those that are answered.
    pending: VecDeque<Option<Pending>>,
    oldest: u32,
    next: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Introducing,
    Opening,
    Ready,
    /// Waits for answers and sends no more requests.
    Leaving,
}

struct Pending {
    session: u32,
    chunks: u16,
    since: Instant,
}

impl Talk {
    /// Creates a client with this number, and appends its first message.
    pub(crate) fn begin(number: u32, dialect: Dialect, habit: Habit, out: &mut Vec<u8>) -> Self {
        let letters =
            (0..habit.text.saturating_sub(TAG)).map(|at| b'a' + ((number as usize * 7 + at) % 26) as u8);
        let text: Vec<u8> = letters.collect();
        let apart = if dialect == Dialect::Top { u64::from(number) * STRIDE } else { 0 };
        let mut talk = Self {
            number,
            habit,
            base: FIRST_ID + apart,
            prompt: Template::prompt(dialect, &text),
            answer: Template::answer(dialect, &text),
            update: Template::update(dialect, &text),
            stage: Stage::Introducing,
            sessions: Vec::with_capacity(habit.sessions),
            free: VecDeque::new(),
            pending: VecDeque::new(),
            oldest: 0,
            next: 0,
        };
        if dialect == Dialect::Top {
            let owner = u64::from(number);
            talk.sessions = (0..habit.sessions).map(|place| session(b'p', owner, place as u64)).collect();
            talk.stage = Stage::Ready;
        } else {
            Self::say(&initialize(talk.base, talk.tag(0, 0)), out);
        }
        talk
    }

    /// Returns `true` if all sessions of the client are open.
    pub(crate) fn is_ready(&self) -> bool {
        self.stage == Stage::Ready
    }

    pub(crate) fn missing(&self) -> u64 {
        self.pending.iter().flatten().count() as u64
    }

    /// Sends requests until the intended number is in flight.
    pub(crate) fn go(&mut self, now: Instant, out: &mut Vec<u8>) {
        self.free = (0..self.sessions.len() as u32).collect();
        (0..self.habit.depth).for_each(|_| self.ask(now, out));
    }

    pub(crate) fn leave(&mut self) {
        self.stage = Stage::Leaving;
    }

    /// Checks a line, and appends the next messages.
    pub(crate) fn receive(&mut self, line: &[u8], now: Instant, out: &mut Vec<u8>, tally: &mut Tally) {
        match self.stage {
            Stage::Introducing | Stage::Opening => self.prepare(line, out, tally),
            Stage::Ready | Stage::Leaving if line.starts_with(HEAD) => self.end_turn(line, now, out, tally),
            Stage::Ready | Stage::Leaving => self.take_update(line, tally),
        }
    }

    fn prepare(&mut self, line: &[u8], out: &mut Vec<u8>, tally: &mut Tally) {
        let message: Value = serde_json::from_slice(line).unwrap_or_default();
        if message.get("method").is_some() {
            return;
        }
        let result = &message["result"];
        let opened = result["sessionId"].as_str().and_then(|id| id.as_bytes().try_into().ok());
        match (self.stage, opened) {
            (Stage::Introducing, _) if result.is_object() && message["id"] == self.base => {
                self.stage = Stage::Opening;
                for place in 1..=self.habit.sessions as u64 {
                    Self::say(&new_session(self.base + place, self.tag(0, 0)), out);
                }
            }
            (Stage::Opening, Some(id)) => self.sessions.push(id),
            _ => tally.refused += 1,
        }
        if self.stage == Stage::Opening && self.sessions.len() == self.habit.sessions {
            self.stage = Stage::Ready;
        }
    }

    fn end_turn(&mut self, line: &[u8], now: Instant, out: &mut Vec<u8>, tally: &mut Tally) {
        let id = line.get(HEAD.len()..HEAD.len() + ID).and_then(number);
        let request = id.and_then(|id| u32::try_from(id.checked_sub(self.base)?).ok());
        let Some(request) = request else { return self.misfit(line, tally) };
        let place = request.wrapping_sub(self.oldest) as usize;
        let Some(Some(pending)) = self.pending.get(place) else { return self.misfit(line, tally) };
        let tag = Tag { client: self.number, request, chunk: self.habit.chunks };
        let session = self.sessions[pending.session as usize];
        let expected = self.answer.filled(self.base + u64::from(request), &session, tag);
        if line == expected && pending.chunks == self.habit.chunks {
            let took = now.duration_since(pending.since).as_nanos();
            tally.answered += 1;
            tally.latencies.push(u32::try_from(took).unwrap_or(u32::MAX));
        } else if line != expected && memchr::memmem::find(line, b"\"error\":").is_some() {
            tally.refused += 1;
        } else {
            // The answer itself may be right while an update before it is missing.
            self.misfit(line, tally);
        }
        self.settle(place);
        if self.stage == Stage::Ready {
            self.ask(now, out);
        }
    }

    fn take_update(&mut self, line: &[u8], tally: &mut Tally) {
        let Some(tag) = Tag::parse(line) else { return tally.torn += 1 };
        let place = tag.request.wrapping_sub(self.oldest) as usize;
        let Some(Some(pending)) = self.pending.get_mut(place) else { return self.misfit(line, tally) };
        let session = self.sessions[pending.session as usize];
        let expected = Tag { client: self.number, request: tag.request, chunk: pending.chunks };
        if line == self.update.filled(0, &session, expected) {
            pending.chunks += 1;
        } else {
            self.misfit(line, tally);
        }
    }

    /// Counts a line that is unexpected or wrong.
    fn misfit(&self, line: &[u8], tally: &mut Tally) {
        match Tag::parse(line) {
            Some(tag) if tag.client != self.number => tally.crossed += 1,
            Some(tag) if !self.awaits(tag.request) => tally.doubled += 1,
            _ => tally.torn += 1,
        }
    }

    fn awaits(&self, request: u32) -> bool {
        matches!(self.pending.get(request.wrapping_sub(self.oldest) as usize), Some(Some(_)))
    }

    fn settle(&mut self, place: usize) {
        if let Some(pending) = self.pending.get_mut(place).and_then(Option::take) {
            self.free.push_back(pending.session);
        }
        while let Some(None) = self.pending.front() {
            self.pending.pop_front();
            self.oldest += 1;
        }
    }

    fn ask(&mut self, now: Instant, out: &mut Vec<u8>) {
        let Some(session) = self.free.pop_front() else { return };
        let tag = self.tag(self.next, self.habit.chunks);
        let id = self.base + u64::from(self.next);
        out.extend_from_slice(self.prompt.filled(id, &self.sessions[session as usize], tag));
        out.push(b'\n');
        self.pending.push_back(Some(Pending { session, chunks: 0, since: now }));
        self.next += 1;
    }

    fn tag(&self, request: u32, chunk: u16) -> Tag {
        Tag { client: self.number, request, chunk }
    }

    fn say(line: &str, out: &mut Vec<u8>) {
        out.extend_from_slice(line.as_bytes());
        out.push(b'\n');
    }
}

impl Tally {
    /// Returns the number of all errors except missing answers.
    pub(crate) fn wrong(&self) -> u64 {
        self.doubled + self.crossed + self.torn + self.refused
    }
}

#[cfg(test)]
mod tests {
    use super::super::worker::Echo;
    use super::*;

    const HABIT: Habit = Habit { sessions: 2, depth: 2, text: 20, chunks: 1 };

    /// Returns a client with a request in flight, and the messages with which the echo answers.
    fn asked(number: u32) -> (Talk, Vec<Vec<u8>>) {
        let (mut echo, mut out) = (Echo::new(), Vec::new());
        let mut talk = Talk::begin(number, Dialect::Acp, HABIT, &mut out);
        let mut tally = Tally::default();
        while !talk.is_ready() {
            for line in answers(&mut echo, &std::mem::take(&mut out)) {
                talk.receive(&line, Instant::now(), &mut out, &mut tally);
            }
        }
        assert_eq!(tally.wrong(), 0);
        talk.go(Instant::now(), &mut out);
        assert_eq!(talk.missing(), 2);
        let said = answers(&mut echo, &out);
        (talk, said)
    }

    fn answers(echo: &mut Echo, lines: &[u8]) -> Vec<Vec<u8>> {
        let mut out = Vec::new();
        lines.split(|byte| *byte == b'\n').for_each(|line| echo.answer(line, &mut out));
        out.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(<[u8]>::to_vec).collect()
    }

    /// Checks the counts after these lines: answered, doubled, crossed, torn, refused, missing.
    #[track_caller]
    fn check(change: impl FnOnce(&mut Vec<Vec<u8>>), expected: [u64; 6]) {
        let (mut talk, mut lines) = asked(1);
        talk.leave();
        assert_eq!(lines.len(), 4);
        change(&mut lines);
        let mut tally = Tally::default();
        lines.iter().for_each(|line| talk.receive(line, Instant::now(), &mut Vec::new(), &mut tally));
        let Tally { answered, doubled, crossed, torn, refused, .. } = tally;
        assert_eq!([answered, doubled, crossed, torn, refused, talk.missing()], expected);
    }

    #[test]
    fn every_fault_has_its_own_counter() {
        check(|_| {}, [2, 0, 0, 0, 0, 0]);
        check(|lines| lines.rotate_left(2), [2, 0, 0, 0, 0, 0]);
        check(|lines| drop(lines.pop()), [1, 0, 0, 0, 0, 1]);
        check(|lines| lines.push(lines[3].clone()), [2, 1, 0, 0, 0, 0]);
        check(|lines| lines.insert(1, lines[0].clone()), [2, 0, 0, 1, 0, 0]);
        // An update is missing, or comes after its answer.
        check(|lines| drop(lines.remove(0)), [1, 0, 0, 1, 0, 0]);
        check(|lines| lines.swap(0, 1), [1, 1, 0, 1, 0, 0]);
        check(|lines| lines[1].truncate(60), [1, 0, 0, 1, 0, 0]);
        check(|lines| lines[0][120] ^= 1, [1, 0, 0, 2, 0, 0]);
        check(|lines| lines.push(b"nonsense".to_vec()), [2, 0, 0, 1, 0, 0]);
        check(|lines| lines.push(asked(2).1[0].clone()), [2, 0, 1, 0, 0, 0]);
        let refusal = |lines: &mut Vec<Vec<u8>>| {
            lines[1] =
                br#"{"jsonrpc":"2.0","id":100000000000,"error":{"code":-32603,"message":"no"}}"#.to_vec();
        };
        check(refusal, [1, 0, 0, 0, 1, 0]);
    }

    #[test]
    fn the_answer_of_another_client_is_crossed_even_under_our_id() {
        check(|lines| lines[1] = asked(2).1[1].clone(), [1, 0, 1, 0, 0, 0]);
    }
}
