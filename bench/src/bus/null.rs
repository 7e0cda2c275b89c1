//! The null router: what the driver of a bus costs when the bus decides nothing.
//!
//! It reads, keeps ready lists and writes once per wake-up as the bus does, and has as many workers. In between it
//! copies: whole lines of a client to the worker of its slot, unseen. Which client a worker's line is for cannot be
//! known without looking, so it looks at one place of fixed width, the client's number in the tag that ends every
//! line of the load, and groups runs of lines for one client. It scans no JSON and touches no id.

use std::io;
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use mio::net::{TcpListener, TcpStream};
use mio::unix::pipe::{Receiver, Sender};
use mio::{Events, Interest, Poll, Registry, Token};
use slab::Slab;

use super::buffer::{Got, Outbox, READ, Rest, read};
use super::message::{TAG, TAIL, Tag, number};

const LISTENER: Token = Token(usize::MAX);
/// Tokens of clients follow those of workers, which have two each.
const WORKER_TOKENS: usize = 2;

/// Listens at an address and starts so many workers: `bus-null ADDRESS WORKERS`.
pub(crate) fn serve(arguments: &[String]) -> io::Result<()> {
    let [address, workers] = arguments else {
        return Err(io::Error::other("the null router takes an address and a number of workers"));
    };
    let address = address.parse().map_err(|_| io::Error::other("this is no address"))?;
    let workers = workers.parse().map_err(|_| io::Error::other("this is no number"))?;
    Null::start(address, workers)?.run()
}

struct Null {
    poll: Poll,
    listener: TcpListener,
    workers: Vec<Worker>,
    clients: Slab<Client>,
    /// The slot of each client by the number in its tags.
    slots: Vec<usize>,
    /// Sources that may have more to read.
    ready: Vec<Source>,
    /// Sinks that got something in this round.
    dirty: Vec<Source>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    Client(usize),
    Worker(usize),
}

struct Worker {
    /// Ends with its stdin, which ends with us.
    _child: Child,
    stdin: Sender,
    stdout: Receiver,
    rest: Rest,
    out: Outbox,
    dirty: bool,
    ready: bool,
}

struct Client {
    stream: TcpStream,
    rest: Rest,
    out: Outbox,
    introduced: bool,
    dirty: bool,
    ready: bool,
}

impl Null {
    fn start(address: SocketAddr, workers: usize) -> io::Result<Self> {
        let poll = Poll::new()?;
        let mut listener = TcpListener::bind(address)?;
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        let workers = (0..workers).map(|place| Worker::start(place, poll.registry()));
        let workers = workers.collect::<io::Result<_>>()?;
        let (slots, ready, dirty) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Self { poll, listener, workers, clients: Slab::new(), slots, ready, dirty })
    }

    fn run(&mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(1024);
        let mut scratch = vec![0; READ];
        loop {
            let patience = (!self.ready.is_empty()).then_some(std::time::Duration::ZERO);
            self.poll.poll(&mut events, patience)?;
            for event in &events {
                match event.token() {
                    LISTENER => self.accept()?,
                    Token(token) => self.note(token, event.is_readable(), event.is_writable()),
                }
            }
            for source in std::mem::take(&mut self.ready) {
                match source {
                    Source::Client(slot) => self.read_client(slot, &mut scratch),
                    Source::Worker(place) => self.read_worker(place, &mut scratch)?,
                }
            }
            for sink in std::mem::take(&mut self.dirty) {
                self.flush(sink)?;
            }
        }
    }

    fn accept(&mut self) -> io::Result<()> {
        while let Ok((mut stream, _)) = self.listener.accept() {
            stream.set_nodelay(true)?;
            let token = Token(self.clients.vacant_key() + WORKER_TOKENS * self.workers.len());
            self.poll.registry().register(&mut stream, token, Interest::READABLE | Interest::WRITABLE)?;
            let (rest, out) = (Rest::default(), Outbox::default());
            let client = Client { stream, rest, out, introduced: false, dirty: false, ready: false };
            self.clients.insert(client);
        }
        Ok(())
    }

    fn note(&mut self, token: usize, readable: bool, writable: bool) {
        let workers = WORKER_TOKENS * self.workers.len();
        let (source, is_ready, is_dirty) = if token < workers {
            let worker = &mut self.workers[token / WORKER_TOKENS];
            (Source::Worker(token / WORKER_TOKENS), &mut worker.ready, &mut worker.dirty)
        } else {
            let Some(client) = self.clients.get_mut(token - workers) else { return };
            (Source::Client(token - workers), &mut client.ready, &mut client.dirty)
        };
        if readable && !std::mem::replace(is_ready, true) {
            self.ready.push(source);
        }
        if writable && !std::mem::replace(is_dirty, true) {
            self.dirty.push(source);
        }
    }

    fn read_client(&mut self, slot: usize, scratch: &mut [u8]) {
        let Some(client) = self.clients.get_mut(slot) else { return };
        client.ready = false;
        let Ok((got, bytes)) = read(&mut client.stream, scratch) else { return self.forget(slot) };
        if got == Got::Ended {
            return self.forget(slot);
        }
        if !client.introduced {
            // The first line is short and comes whole.
            let line = bytes.strip_suffix(b"\n").unwrap_or(bytes);
            if let Some(tag) = Tag::of(line) {
                let number = tag.client as usize;
                let known = self.slots.len().max(number + 1);
                self.slots.resize(known, usize::MAX);
                self.slots[number] = slot;
                client.introduced = true;
            }
        }
        let place = slot % self.workers.len();
        let worker = &mut self.workers[place];
        let out = worker.out.bytes();
        client.rest.whole(bytes, |piece| out.extend_from_slice(piece));
        if !out.is_empty() && !std::mem::replace(&mut worker.dirty, true) {
            self.dirty.push(Source::Worker(place));
        }
        if got == Got::More {
            client.ready = true;
            self.ready.push(Source::Client(slot));
        }
    }

    fn read_worker(&mut self, place: usize, scratch: &mut [u8]) -> io::Result<()> {
        let worker = &mut self.workers[place];
        worker.ready = false;
        let (got, bytes) = read(&mut worker.stdout, scratch)?;
        match got {
            Got::Ended => return Err(io::Error::other("a worker has ended")),
            Got::More => {
                worker.ready = true;
                self.ready.push(Source::Worker(place));
            }
            Got::Drained => {}
        }
        let (clients, slots, dirty) = (&mut self.clients, &self.slots, &mut self.dirty);
        worker.rest.whole(bytes, |lines| {
            runs(lines, |number, run| {
                let slot = slots.get(number).copied().unwrap_or(usize::MAX);
                let Some(client) = clients.get_mut(slot) else { return };
                client.out.bytes().extend_from_slice(run);
                if !std::mem::replace(&mut client.dirty, true) {
                    dirty.push(Source::Client(slot));
                }
            });
        });
        Ok(())
    }

    fn flush(&mut self, sink: Source) -> io::Result<()> {
        match sink {
            Source::Worker(place) => {
                let worker = &mut self.workers[place];
                worker.dirty = false;
                worker.out.flush(&mut worker.stdin)
            }
            Source::Client(slot) => {
                let Some(client) = self.clients.get_mut(slot) else { return Ok(()) };
                client.dirty = false;
                if client.out.flush(&mut client.stream).is_err() {
                    self.forget(slot);
                }
                Ok(())
            }
        }
    }

    fn forget(&mut self, slot: usize) {
        self.clients.try_remove(slot);
    }
}

impl Worker {
    fn start(place: usize, registry: &Registry) -> io::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        let mut child = command.arg("bus-worker").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::Error::other("a worker without pipes"));
        };
        let (mut stdin, mut stdout) = (Sender::from(stdin), Receiver::from(stdout));
        stdin.set_nonblocking(true)?;
        stdout.set_nonblocking(true)?;
        registry.register(&mut stdin, Token(WORKER_TOKENS * place), Interest::WRITABLE)?;
        registry.register(&mut stdout, Token(WORKER_TOKENS * place + 1), Interest::READABLE)?;
        let (rest, out) = (Rest::default(), Outbox::default());
        Ok(Self { _child: child, stdin, stdout, rest, out, dirty: false, ready: false })
    }
}

/// Calls `each` with every run of whole lines that are for one client.
fn runs(lines: &[u8], mut each: impl FnMut(usize, &[u8])) {
    let (mut start, mut at, mut whose) = (0, 0, None);
    for end in memchr::memchr_iter(b'\n', lines) {
        let client = client_of(&lines[at..end]);
        if client != whose {
            if let Some(whose) = whose {
                each(whose, &lines[start..at]);
            }
            (start, whose) = (at, client);
        }
        at = end + 1;
    }
    if let Some(whose) = whose {
        each(whose, &lines[start..at]);
    }
}

/// The five digits at their place from the end.
fn client_of(line: &[u8]) -> Option<usize> {
    let tag = line.len().checked_sub(TAG + TAIL.len())?;
    number(&line[tag..tag + 5]).and_then(|number| usize::try_from(number).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_go_to_whom_they_name_and_keep_their_order() {
        let line = |client, request| {
            let tag = Tag { client, request, chunk: 0 };
            format!("text{}{}\n", tag.text(), String::from_utf8_lossy(TAIL))
        };
        let lines = [line(1, 1), line(1, 2), line(2, 1), line(1, 3)];
        let mut found = Vec::new();
        runs(lines.concat().as_bytes(), |client, run| {
            found.push((client, String::from_utf8_lossy(run).into_owned()));
        });
        let first = lines[..2].concat();
        assert_eq!(found, [(1, first), (2, lines[2].clone()), (1, lines[3].clone())]);
        runs(b"short\n", |_, _| panic!("no line of the load"));
    }
}
