//! Any sequence of sends, cuts and reconnects delivers each message once and in order, or reports a gap.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;
use proptest::prelude::*;

use super::{Keep, ReplayGap, ResumableEnd};

/// A step of the model. `ours` is `true` for the connecting end.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// An end queues a message.
    Send { ours: bool, length: usize },
    /// An end writes up to this many messages to the socket.
    Write { ours: bool, count: usize },
    /// This many messages arrive.
    Arrive { ours: bool, count: usize },
    /// The socket is lost with everything in it.
    Cut,
    /// The connecting end asks to resume over a new socket, and no longer reads the previous one.
    Ask,
    /// The other end reads the request made `back` requests before the last; it may be outdated.
    Answer { back: usize },
    /// The response arrives.
    Resume,
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (any::<bool>(), 0..40_usize).prop_map(|(ours, length)| Step::Send { ours, length }),
        4 => (any::<bool>(), 1..6_usize).prop_map(|(ours, count)| Step::Write { ours, count }),
        4 => (any::<bool>(), 1..6_usize).prop_map(|(ours, count)| Step::Arrive { ours, count }),
        1 => Just(Step::Cut),
        2 => Just(Step::Ask),
        2 => (0..3_usize).prop_map(|back| Step::Answer { back }),
        2 => Just(Step::Resume),
    ]
}

/// One end: the messages that it has sent and received.
struct End {
    held: ResumableEnd,
    said: Vec<Bytes>,
    got: Vec<Bytes>,
    /// Written messages that have not arrived, and the socket they were written to.
    pipe: VecDeque<Bytes>,
    socket: usize,
    /// The largest number of bytes that was ever in flight.
    most: usize,
}

impl End {
    fn new(keep: Keep) -> Self {
        let held = ResumableEnd::new(keep);
        Self { held, said: Vec::new(), got: Vec::new(), pipe: VecDeque::new(), socket: 0, most: 0 }
    }

    fn write(&mut self, socket: usize, count: usize, now: Instant) {
        self.change(socket);
        self.pipe.extend(std::iter::from_fn(|| self.held.next(now).cloned()).take(count));
        self.most = self.most.max(self.pipe.iter().map(|line| line.len() + 1).sum());
    }

    /// Continues on another socket.
    fn change(&mut self, socket: usize) {
        if self.socket != socket {
            self.socket = socket;
            self.pipe.clear();
        }
    }
}

struct World {
    ours: End,
    theirs: End,
    /// The current socket of each end. One end may know of a newer one before the other does.
    our_socket: Option<usize>,
    their_socket: Option<usize>,
    /// The connecting end has received a response on its socket.
    ready: bool,
    /// Unread requests by socket, with their counts of received messages. The first socket has none.
    asks: Vec<Option<u64>>,
    /// The response in flight on the socket of the connecting end.
    answer: Option<Result<u64, ReplayGap>>,
    next: usize,
    now: Instant,
}

impl World {
    /// Executes a step. An error is a gap that was reported to an end.
    fn step(&mut self, step: Step) -> Result<(), ReplayGap> {
        let now = self.now;
        match step {
            Step::Send { ours, length } => {
                let line = Bytes::from(format!("{}:{}", self.next, "x".repeat(length)));
                self.next += 1;
                let end = if ours { &mut self.ours } else { &mut self.theirs };
                end.said.push(line.clone());
                end.held.send(line);
            }
            Step::Write { ours: true, count } => {
                if let Some(socket) = self.our_socket.filter(|_| self.ready) {
                    self.ours.write(socket, count, now);
                }
            }
            Step::Write { ours: false, count } => {
                if let Some(socket) = self.their_socket {
                    self.theirs.write(socket, count, now);
                }
            }
            Step::Arrive { ours, count } => {
                let (from, to) = if ours {
                    (&mut self.ours, &mut self.theirs)
                } else {
                    (&mut self.theirs, &mut self.ours)
                };
                let listens = if ours { self.their_socket } else { self.our_socket.filter(|_| self.ready) };
                if listens == Some(from.socket) {
                    for line in from.pipe.drain(..count.min(from.pipe.len())) {
                        to.held.count_received();
                        to.got.push(line);
                    }
                }
            }
            Step::Cut => {
                self.ours.pipe.clear();
                self.theirs.pipe.clear();
                (self.our_socket, self.their_socket, self.answer, self.ready) = (None, None, None, false);
            }
            Step::Ask => {
                self.our_socket = Some(self.asks.len());
                self.asks.push(Some(self.ours.held.counts().received));
                (self.answer, self.ready) = (None, false);
            }
            Step::Answer { back } => {
                let Some(socket) = self.asks.len().checked_sub(back + 1) else { return Ok(()) };
                let Some(received) = self.asks[socket].take() else { return Ok(()) };
                let answer = self.theirs.held.resume(received);
                if answer.is_ok() {
                    self.their_socket = Some(socket);
                    self.theirs.change(socket);
                }
                if self.our_socket == Some(socket) {
                    self.answer = Some(answer);
                }
            }
            Step::Resume => {
                let Some(answer) = self.answer.take() else { return Ok(()) };
                self.ours.held.resume(answer?)?;
                self.ready = true;
            }
        }
        Ok(())
    }

    /// Delivers all missing messages over one more socket.
    fn settle(&mut self) -> Result<(), ReplayGap> {
        self.step(Step::Ask)?;
        self.step(Step::Answer { back: 0 })?;
        self.step(Step::Resume)?;
        for ours in [true, false] {
            self.step(Step::Write { ours, count: usize::MAX })?;
            self.step(Step::Arrive { ours, count: usize::MAX })?;
        }
        Ok(())
    }
}

/// Runs `steps` with rings of `bytes`. Returns `false` if a gap was reported.
fn run_steps(steps: Vec<Step>, bytes: usize) -> Result<bool, TestCaseError> {
    let keep = Keep { bytes, time: Duration::from_secs(300) };
    let mut world = World {
        ours: End::new(keep),
        theirs: End::new(keep),
        our_socket: Some(0),
        their_socket: Some(0),
        ready: true,
        asks: vec![None],
        answer: None,
        next: 0,
        now: Instant::now(),
    };
    let mut played = Ok(());
    for step in steps {
        played = world.step(step);
        if played.is_err() {
            break;
        }
    }
    let whole = played.and_then(|()| world.settle());
    for (from, to) in [(&world.ours, &world.theirs), (&world.theirs, &world.ours)] {
        // In any case, the received messages are a prefix of the sent ones, each once and in order.
        prop_assert_eq!(Some(to.got.as_slice()), from.said.get(..to.got.len()));
        if whole.is_ok() {
            prop_assert_eq!(to.got.len(), from.said.len());
        }
    }
    if whole.is_err() {
        let most = world.ours.most.max(world.theirs.most);
        prop_assert!(most > bytes, "a gap though no more than {most} bytes were on the way");
    }
    Ok(whole.is_ok())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn with_sufficient_rings_each_message_arrives_once_and_in_order(
        steps in prop::collection::vec(any_step(), 0..120)
    ) {
        prop_assert!(run_steps(steps, 1 << 20)?);
    }

    #[test]
    fn with_small_rings_loss_is_reported_as_a_gap(
        steps in prop::collection::vec(any_step(), 0..120),
        bytes in 1..200_usize,
    ) {
        run_steps(steps, bytes)?;
    }
}

#[test]
fn too_many_bytes_in_flight_cause_a_gap() {
    let mut steps: Vec<Step> = (0..8).map(|_| Step::Send { ours: false, length: 20 }).collect();
    steps.push(Step::Write { ours: false, count: 8 });
    steps.push(Step::Cut);
    assert!(!run_steps(steps.clone(), 50).unwrap());
    assert!(run_steps(steps, 500).unwrap());
}
