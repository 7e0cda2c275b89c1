//! The load: many clients on one thread. Each sends its next request when one is answered.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

use super::buffer::{Got, Outbox, READ, Rest, read};
use super::message::Dialect;
use super::talk::{Habit, Talk, Tally};
use crate::agent::usage;
use crate::remote::frames::{self, Frames};

const OPEN_TIMEOUT: Duration = Duration::from_secs(60);
/// Silence after a run after which missing messages count as lost.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(2);

/// The address and the dialect of a client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way<'a> {
    pub(crate) address: SocketAddr,
    pub(crate) dialect: Dialect,
    /// The path, for WebSocket. `None` means lines.
    pub(crate) web_socket: Option<&'a str>,
}

/// A number of clients with the same behavior.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) clients: u32,
    pub(crate) habit: Habit,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    pub(crate) rate: f64,
    /// Median time from request to answer, in microseconds.
    pub(crate) p50: f64,
    /// 99th percentile of the time from request to answer, in microseconds.
    pub(crate) p99: f64,
    /// Processor time of the router per answer, in microseconds.
    pub(crate) cpu: f64,
    /// Like `cpu`, with the descendants of the router.
    pub(crate) tree: f64,
    /// Missing, duplicate, misrouted, wrong and refused answers.
    pub(crate) lost: Lost,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lost {
    pub(crate) missing: u64,
    pub(crate) doubled: u64,
    pub(crate) crossed: u64,
    pub(crate) torn: u64,
    pub(crate) refused: u64,
    /// Connections that the router closed.
    pub(crate) closed: u64,
}

impl Lost {
    pub(crate) fn total(self) -> u64 {
        self.missing + self.doubled + self.crossed + self.torn + self.refused + self.closed
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { missing, doubled, crossed, torn, refused, closed } = self;
        write!(
            f,
            "{missing} missing, {doubled} doubled, {crossed} crossed, {torn} torn, {refused} refused, {closed} closed"
        )
    }
}

/// Reason why a measurement was impossible.
#[derive(Debug)]
pub(crate) enum Failure {
    Io(io::Error),
    /// This number of clients could not open their sessions.
    Unready(usize, Lost),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::Unready(clients, lost) => {
                write!(f, "{clients} clients have no sessions after {} s ({lost})", OPEN_TIMEOUT.as_secs())
            }
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Clients that are connected and have their sessions.
pub(crate) struct Crowd {
    poll: Poll,
    events: Events,
    scratch: Vec<u8>,
    clients: Vec<Client>,
    tally: Tally,
    closed: u64,
}

struct Client {
    stream: TcpStream,
    form: Form,
    out: Outbox,
    talk: Talk,
    open: bool,
}

/// The framing of a connection, with the incomplete message.
enum Form {
    Lines(Rest),
    Frames(Frames),
}

impl Crowd {
    /// Connects all clients and opens their sessions.
    pub(crate) fn gather(way: Way<'_>, load: Load) -> Result<Self, Failure> {
        let poll = Poll::new()?;
        let mut crowd = Self {
            poll,
            events: Events::with_capacity(1024),
            scratch: vec![0; READ],
            clients: Vec::with_capacity(load.clients as usize),
            tally: Tally::default(),
            closed: 0,
        };
        let until = Instant::now() + OPEN_TIMEOUT;
        for number in 0..load.clients {
            let mut stream = std::net::TcpStream::connect_timeout(&way.address, OPEN_TIMEOUT)?;
            stream.set_nodelay(true)?;
            let form = match way.web_socket {
                None => Form::Lines(Rest::default()),
                Some(path) => {
                    frames::shake_hands(&mut stream, path)?;
                    Form::Frames(Frames::default())
                }
            };
            stream.set_nonblocking(true)?;
            let mut stream = TcpStream::from_std(stream);
            let both = Interest::READABLE | Interest::WRITABLE;
            crowd.poll.registry().register(&mut stream, Token(number as usize), both)?;
            let mut said = Vec::new();
            let talk = Talk::begin(number, way.dialect, load.habit, &mut said);
            let mut client = Client { stream, form, out: Outbox::default(), talk, open: true };
            client.send(said);
            crowd.clients.push(client);
        }
        loop {
            let waiting = crowd.clients.iter().filter(|client| !client.talk.is_ready()).count();
            let refused = crowd.tally.wrong() + crowd.closed > 0;
            if waiting == 0 && !refused {
                return Ok(crowd);
            }
            if refused || Instant::now() > until {
                return Err(Failure::Unready(waiting, crowd.lost()));
            }
            crowd.turn(Duration::from_millis(100))?;
        }
    }

    /// Loads the router with this process id for a while, and waits for every answer.
    pub(crate) fn run(
        mut self,
        process: u32,
        warm: Duration,
        measured: Duration,
    ) -> Result<Outcome, Failure> {
        let now = Instant::now();
        for client in &mut self.clients {
            let mut said = Vec::new();
            client.talk.go(now, &mut said);
            client.send(said);
            // A connection closed by the router is detected at the next read.
            let _ = client.out.flush(&mut client.stream);
        }
        self.turn_until(now + warm)?;
        self.tally.answered = 0;
        self.tally.latencies.clear();
        let used = || [usage::own_time(process), usage::processor_time(process)];
        let (from, before) = (Instant::now(), used());
        self.turn_until(from + measured)?;
        let (took, after) = (from.elapsed().as_secs_f64(), used());
        let answered = self.tally.answered as f64;
        // Without a response the figure is NaN instead of infinite.
        let each = |place: usize| {
            if answered > 0.0 { (after[place] - before[place]) / answered } else { f64::NAN }
        };
        let mut latencies = std::mem::take(&mut self.tally.latencies);
        let lost = self.leave()?;
        latencies.sort_unstable();
        let at = |share: f64| {
            let place = (latencies.len() as f64 * share) as usize;
            latencies.get(place).map_or(f64::NAN, |nanoseconds| f64::from(*nanoseconds) / 1e3)
        };
        Ok(Outcome { rate: answered / took, p50: at(0.5), p99: at(0.99), cpu: each(0), tree: each(1), lost })
    }

    /// Sends no more requests and waits for the missing answers.
    fn leave(&mut self) -> io::Result<Lost> {
        self.clients.iter_mut().for_each(|client| client.talk.leave());
        let mut last = (self.missing(), Instant::now());
        while last.0 > 0 && last.1.elapsed() < SILENCE_TIMEOUT {
            self.turn(Duration::from_millis(50))?;
            let missing = self.missing();
            if missing < last.0 {
                last = (missing, Instant::now());
            }
        }
        // A duplicate answer may arrive late.
        self.turn(Duration::from_millis(20))?;
        Ok(self.lost())
    }

    fn missing(&self) -> u64 {
        self.clients.iter().map(|client| client.talk.missing()).sum()
    }

    fn lost(&self) -> Lost {
        let Tally { doubled, crossed, torn, refused, .. } = self.tally;
        Lost { missing: self.missing(), doubled, crossed, torn, refused, closed: self.closed }
    }

    fn turn_until(&mut self, end: Instant) -> io::Result<()> {
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            self.turn(left)?;
        }
    }

    /// Handles one wake-up: reads and checks the input of every ready client, and sends the client's next
    /// messages with one write.
    fn turn(&mut self, patience: Duration) -> io::Result<()> {
        match self.poll.poll(&mut self.events, Some(patience)) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            other => other?,
        }
        for event in &self.events {
            let Some(client) = self.clients.get_mut(event.token().0).filter(|client| client.open) else {
                continue;
            };
            client.open = client.serve(&mut self.scratch, &mut self.tally).unwrap_or(false);
            if !client.open {
                self.closed += 1;
            }
        }
        Ok(())
    }
}

impl Client {
    fn serve(&mut self, scratch: &mut [u8], tally: &mut Tally) -> io::Result<bool> {
        loop {
            let (got, bytes) = read(&mut self.stream, scratch)?;
            let (now, out, talk) = (Instant::now(), self.out.bytes(), &mut self.talk);
            let goes_on = match &mut self.form {
                Form::Lines(rest) => {
                    rest.lines(bytes, |line| talk.receive(line, now, out, tally));
                    true
                }
                Form::Frames(frames) => {
                    frames.read(bytes, out, |line, said| talk.receive(line, now, said, tally))
                }
            };
            self.out.flush(&mut self.stream)?;
            match got {
                Got::More if goes_on => {}
                Got::Drained if goes_on => return Ok(true),
                _ => return Ok(false),
            }
        }
    }

    fn send(&mut self, lines: Vec<u8>) {
        match &self.form {
            Form::Lines(_) => *self.out.bytes() = lines,
            Form::Frames(_) => frames::put_lines(self.out.bytes(), &lines),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};

    use super::super::worker::Echo;
    use super::*;

    const LOAD: Load = Load { clients: 1, habit: Habit { sessions: 1, depth: 1, text: 30, chunks: 3 } };

    /// Runs a load with an echo that omits the answers for which `keep` returns `false`.
    fn run(keep: impl Fn(usize) -> bool + Send + 'static) -> Outcome {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            let mut echo = Echo::new();
            let lines = BufReader::new(stream.try_clone().expect("a stream")).split(b'\n');
            for (number, line) in lines.map_while(Result::ok).enumerate() {
                let mut out = Vec::new();
                echo.answer(&line, &mut out);
                if keep(number) && stream.write_all(&out).is_err() {
                    return;
                }
            }
        });
        let way = Way { address, dialect: Dialect::Acp, web_socket: None };
        let crowd = Crowd::gather(way, LOAD).expect("a crowd");
        let [warm, measured] = [5, 50].map(Duration::from_millis);
        crowd.run(std::process::id(), warm, measured).expect("a run")
    }

    #[test]
    fn a_faithful_router_loses_nothing() {
        let outcome = run(|_| true);
        assert_eq!(outcome.lost, Lost::default());
        assert!(outcome.rate > 0.0 && outcome.p50 <= outcome.p99, "{outcome:?}");
    }

    #[test]
    fn dropped_answers_are_counted_as_missing() {
        let outcome = run(|number| number < 5);
        assert_eq!(outcome.lost, Lost { missing: 1, ..Lost::default() });
        assert_eq!(outcome.lost.total(), 1);
    }
}
