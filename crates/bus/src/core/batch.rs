//! JSON-RPC batches: splits them into entries, and answers each batch with one array when all answers are
//! complete.

use std::borrow::Cow;
use std::collections::VecDeque;

use bytes::Bytes;
use narrows_acp::method;
use narrows_wire::{Batch, BatchStep, Code, Effects, Fault, Frame, Kind, RpcError, View, message};

use super::Ctx;
use super::api::CoreOutput;
use super::memory::{Charge, LINE_BYTES};
use super::state::RequestLocation;
use super::table::{ClientKey, Key, Table, WorkerKey};

/// Maximum number of entries in a batch of a worker. A worker that sends more is retired: the batch may hold
/// answers for several clients, which would wait forever if the batch were only ignored.
const MAX_WORKER_ENTRIES: usize = 10_000;

/// An answer up to this size is kept even over the memory limit, because an error in its place would not be
/// shorter.
const MAX_ERROR_BYTES: usize = 512;

pub(super) type BatchKey = Key<OpenBatch>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sender {
    Client(ClientKey),
    Worker(WorkerKey),
}

#[derive(Debug)]
pub(super) struct OpenBatch {
    sender: Sender,
    batch: Batch,
    /// Entries that are handled only after the request `barrier` is answered.
    rest: VecDeque<BatchStep>,
    barrier: Option<Box<[u8]>>,
    /// Ids of a client's requests whose answers are collected for the batch. The ids stay in use until the
    /// array is sent.
    ids: Vec<Box<[u8]>>,
    /// Ids of the requests in `rest`. They count as in use.
    reserved: Vec<Box<[u8]>>,
    answered: bool,
    /// Lines to send after the answer array, because they are about sessions that the array names.
    behind: Vec<Bytes>,
    bytes: usize,
    /// Bytes of the received batch. They are kept until all entries are handled.
    length: usize,
    charge: Option<Charge>,
    /// `true` while the entries are being handled, so that a lifted barrier does not handle them twice.
    working: bool,
}

impl OpenBatch {
    fn recharge(&mut self) {
        let entries = if self.rest.is_empty() { 0 } else { self.length };
        if let Some(charge) = &mut self.charge {
            charge.set(entries + self.bytes);
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Batches {
    table: Table<OpenBatch>,
}

impl Batches {
    pub(super) fn forget(&mut self, sender: Sender) {
        self.table.retain(|open| open.sender != sender);
    }
}

impl<O: CoreOutput> Ctx<'_, O> {
    pub(super) fn handle_batch(&mut self, sender: Sender, message: View<'_>) {
        let frame = Frame::parse(Bytes::copy_from_slice(message.bytes()));
        let most = match sender {
            Sender::Client(_) => self.core.limits.max_batch,
            Sender::Worker(_) => MAX_WORKER_ENTRIES,
        };
        let (batch, steps) = match Batch::open(&frame, most) {
            Ok(opened) => opened,
            Err(fault) => {
                let line = message::error(b"null", &RpcError::from(fault));
                self.send_to(sender, &line);
                match (sender, fault) {
                    (Sender::Client(_), _) => {}
                    // If the batch holds answers, the clients that wait for them get errors when the worker
                    // has exited.
                    (Sender::Worker(worker), Fault::TooManyEntries) => {
                        self.retire(worker, "sent a batch with too many messages");
                    }
                    (Sender::Worker(worker), _) => self.strike(worker, "sent an invalid message"),
                }
                return;
            }
        };
        if let Sender::Client(client) = sender {
            // The line of the batch is already counted as one message.
            self.count_messages(client, steps.len().saturating_sub(1));
        }
        let length = message.bytes().len() + steps.len() * LINE_BYTES;
        let charge = match sender {
            Sender::Client(client) => Some(self.core.charge(client, length)),
            Sender::Worker(_) => None,
        };
        let open = OpenBatch {
            sender,
            batch,
            length,
            charge,
            rest: steps.into(),
            barrier: None,
            ids: Vec::new(),
            reserved: Vec::new(),
            answered: false,
            behind: Vec::new(),
            bytes: 0,
            working: false,
        };
        let key = self.core.batches.table.insert(open);
        self.continue_batch(key);
        self.take_answers_of_rest(key);
    }

    /// Handles at once those entries behind a barrier that answer requests of a worker. The worker waits for
    /// them, and they do not depend on the other entries. Handled later, another answer to the same request
    /// could come first.
    fn take_answers_of_rest(&mut self, key: BatchKey) {
        let Some(open) = self.core.batches.table.get_mut(key) else { return };
        let Sender::Client(client) = open.sender else { return };
        let (answers, rest) = std::mem::take(&mut open.rest).into_iter().partition::<Vec<_>, _>(is_answer);
        open.rest = rest.into();
        open.recharge();
        for answer in &answers {
            self.handle_client_message(client, entry_of(answer).view(), None);
        }
    }

    /// Handles the answers in a client's batch that has to wait. Returns the batch without the answers, or
    /// `None` if no other entry remains.
    pub(super) fn take_answers<'a>(&mut self, client: ClientKey, message: View<'a>) -> Option<Cow<'a, [u8]>> {
        let frame = Frame::parse(Bytes::copy_from_slice(message.bytes()));
        // An invalid batch is refused later, when it no longer has to wait.
        let Ok((_, steps)) = Batch::open(&frame, self.core.limits.max_batch) else {
            return Some(message.bytes().into());
        };
        let (answers, rest): (Vec<_>, Vec<_>) = steps.into_iter().partition(is_answer);
        if answers.is_empty() {
            return Some(message.bytes().into());
        }
        // The line of the batch already counts as one message. The remaining entries are counted when the
        // batch is handled.
        self.count_messages(client, answers.len() - usize::from(rest.is_empty()));
        for answer in &answers {
            self.handle_client_message(client, entry_of(answer).view(), None);
        }
        let rest: Vec<&[u8]> = rest.iter().map(|step| &**entry_of(step).bytes()).collect();
        (!rest.is_empty()).then(|| [b"[", &*rest.join(&b','), b"]"].concat().into())
    }

    /// Handles entries of a batch until one has to be answered before the next, or none is left.
    fn continue_batch(&mut self, key: BatchKey) {
        let Some(open) = self.core.batches.table.get_mut(key) else { return };
        if std::mem::replace(&mut open.working, true) {
            return;
        }
        self.act_on_entries(key);
        if let Some(open) = self.core.batches.table.get_mut(key) {
            open.working = false;
        }
    }

    fn act_on_entries(&mut self, key: BatchKey) {
        while let Some(open) = self.core.batches.table.get_mut(key) {
            if open.barrier.is_some() {
                return;
            }
            let sender = open.sender;
            let step = open.rest.pop_front();
            open.recharge();
            let Some(step) = step else {
                if open.batch.is_silent() || open.answered {
                    self.core.batches.table.remove(key);
                }
                return;
            };
            match step {
                BatchStep::Answer { answer, entry } => {
                    if let (Sender::Worker(worker), Kind::Invalid(_)) = (sender, entry.kind()) {
                        self.fail_misdelivered(worker, entry.view());
                    }
                    self.answer_in_batch(key, answer);
                }
                BatchStep::Deliver(frame) => {
                    let is_request = frame.kind() == Kind::Request;
                    if is_request
                        && matches!(sender, Sender::Client(_))
                        && frame.method().is_some_and(|method| method::is_lifecycle(&method))
                    {
                        open.barrier = frame.id().map(Box::from);
                    }
                    if is_request && let Sender::Client(client) = sender {
                        self.unreserve(key, client, &frame);
                        self.reserve(key, client);
                    }
                    let batch = is_request.then_some(key);
                    match sender {
                        Sender::Client(client) => self.handle_client_message(client, frame.view(), batch),
                        Sender::Worker(worker) => self.handle_worker_message(worker, frame.view(), batch),
                    }
                }
            }
        }
    }

    /// Marks the ids of a batch's waiting requests as in use.
    fn reserve(&mut self, key: BatchKey, client: ClientKey) {
        let Some(open) = self.core.batches.table.get_mut(key) else { return };
        let Some(state) = self.core.clients.get_mut(client) else { return };
        if open.barrier.is_none() {
            return;
        }
        for step in &open.rest {
            if let BatchStep::Deliver(frame) = step
                && frame.kind() == Kind::Request
                && let Some(id) = frame.id()
                && !state.inflight.contains_key(id)
            {
                state.inflight.insert(id.into(), RequestLocation::InBatch);
                open.reserved.push(id.into());
            }
        }
    }

    /// Releases the id of a request that is about to be handled.
    fn unreserve(&mut self, key: BatchKey, client: ClientKey, frame: &Frame) {
        let Some(open) = self.core.batches.table.get_mut(key) else { return };
        if let Some(at) = open.reserved.iter().position(|id| Some(&**id) == frame.id()) {
            let id = open.reserved.swap_remove(at);
            if let Some(state) = self.core.clients.get_mut(client) {
                state.inflight.remove(&id);
            }
        }
    }

    /// Adds an answer to a batch. The last answer sends the array. An answer with the id of the barrier lifts
    /// the barrier.
    pub(super) fn answer_in_batch(&mut self, key: BatchKey, mut answer: Bytes) {
        let limit = self.core.limits.max_line;
        let Some(sender) = self.core.batches.table.get(key).map(|open| open.sender) else { return };
        let is_too_much = match sender {
            Sender::Client(client) => {
                let identity = self.core.clients.get(client).map(|state| state.identity);
                answer.len() > MAX_ERROR_BYTES
                    && identity.is_some_and(|identity| self.core.is_too_much(identity, answer.len()))
            }
            Sender::Worker(_) => false,
        };
        let Some(open) = self.core.batches.table.get_mut(key) else { return };
        if (open.bytes + answer.len() > limit || is_too_much)
            && let Some(id) = View::parse(&answer).id()
        {
            // The array of all answers is one line, so the limit for lines applies to it.
            let words = "batch response too long";
            let error = RpcError::new(Code::MessageTooLarge, words).effects(Effects::Possible);
            answer = message::error(id, &error);
        }
        open.bytes += answer.len();
        open.recharge();
        if let Sender::Client(client) = sender
            && let Some(id) = View::parse(&answer).id()
            && let Some(state) = self.core.clients.get_mut(client)
            && !state.inflight.contains_key(id)
        {
            state.inflight.insert(id.into(), RequestLocation::InBatch);
            open.ids.push(id.into());
        }
        let lifted = open.barrier.is_some() && View::parse(&answer).id() == open.barrier.as_deref();
        if lifted {
            open.barrier = None;
        }
        if let Some(whole) = open.batch.answer(answer) {
            open.answered = true;
            let ids = std::mem::take(&mut open.ids);
            let behind = std::mem::take(&mut open.behind);
            if let Sender::Client(client) = sender
                && let Some(state) = self.core.clients.get_mut(client)
            {
                for id in ids {
                    state.inflight.remove(&id);
                }
            }
            if open.rest.is_empty() {
                self.core.batches.table.remove(key);
            }
            self.send_to(sender, &whole);
            for line in behind {
                self.send_to(sender, &line);
            }
        }
        if lifted {
            self.continue_batch(key);
        }
    }

    pub(super) fn write_behind_batch(&mut self, key: BatchKey, client: ClientKey, line: Bytes) {
        let is_unanswered = |open: &&mut OpenBatch| open.sender == Sender::Client(client) && !open.answered;
        match self.core.batches.table.get_mut(key).filter(is_unanswered) {
            Some(open) => {
                open.bytes += line.len();
                open.behind.push(line);
                open.recharge();
            }
            None => self.write_client(client, &[&line]),
        }
    }

    pub(super) fn refuse_batch(&mut self, client: ClientKey, message: View<'_>, error: &RpcError) {
        let frame = Frame::parse(Bytes::copy_from_slice(message.bytes()));
        let Ok((mut batch, steps)) = Batch::open(&frame, self.core.limits.max_batch) else {
            self.handle_batch(Sender::Client(client), message);
            return;
        };
        for step in steps {
            let answer = match step {
                BatchStep::Answer { answer, .. } => answer,
                BatchStep::Deliver(frame) if frame.kind() == Kind::Request => {
                    let id = frame.id().unwrap_or(b"null");
                    let doubled =
                        self.core.client(client).is_some_and(|state| state.inflight.contains_key(id));
                    let taken = RpcError::new(Code::DuplicateId, "duplicate request id");
                    message::error(id, if doubled { &taken } else { error })
                }
                BatchStep::Deliver(frame) => {
                    // An answer is handled although the requests are refused: a worker waits for the answer.
                    match frame.kind() {
                        Kind::Response | Kind::Invalid(_) => {
                            self.handle_client_message(client, frame.view(), None);
                        }
                        _ => self.core.counters.dropped += 1,
                    }
                    continue;
                }
            };
            if let Some(whole) = batch.answer(answer) {
                self.write_client(client, &[&whole]);
            }
        }
    }

    fn send_to(&mut self, sender: Sender, line: &[u8]) {
        match sender {
            Sender::Client(client) => self.write_client(client, &[line]),
            Sender::Worker(worker) => self.write_worker(worker, &[line]),
        }
    }
}

/// Returns `true` if an entry of a batch is a response, or an invalid message that was meant as a response.
fn is_answer(step: &BatchStep) -> bool {
    matches!(step, BatchStep::Deliver(frame) if matches!(frame.kind(), Kind::Response | Kind::Invalid(_)))
}

fn entry_of(step: &BatchStep) -> &Frame {
    match step {
        BatchStep::Deliver(entry) | BatchStep::Answer { entry, .. } => entry,
    }
}
