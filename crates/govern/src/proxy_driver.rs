//! A place in a chain at work: one link to a conductor becomes a link to each neighbour.

use narrows_link::{Link, Options, memory};
use narrows_wire::Frame;

use crate::proxy::{Moves, Neighbour, Place};

/// Takes a proxy's place in a chain: links to the predecessor and to the successor, by way of the conductor. When the
/// conductor goes, so does the predecessor; when both links are closed, so is that to the conductor.
#[must_use]
pub fn join(conductor: Link, options: &Options) -> (Link, Link) {
    let (predecessor, before) = memory::pair(options);
    let (successor, behind) = memory::pair(options);
    tokio::spawn(Chain { place: Place::default(), conductor, before, behind }.run());
    (predecessor, successor)
}

struct Chain {
    place: Place,
    conductor: Link,
    before: Link,
    behind: Link,
}

impl Chain {
    async fn run(mut self) {
        let (mut heard, mut said, mut told) = (Vec::new(), Vec::new(), Vec::new());
        let (mut listens, mut before_speaks, mut behind_speaks) = (true, true, true);
        let (mut room_outside, mut room_before, mut room_behind) = (true, true, true);
        while before_speaks || behind_speaks {
            tokio::select! {
                () = self.conductor.sender.room(), if !room_outside => room_outside = true,
                () = self.before.sender.room(), if !room_before => room_before = true,
                () = self.behind.sender.room(), if !room_behind => room_behind = true,
                more = self.conductor.receiver.recv_all(&mut heard), if listens && room_before && room_behind => {
                    if !more {
                        // Whoever stands between closes the other one, once it has ended what is open.
                        listens = false;
                        self.before.sender.close();
                    }
                    (room_before, room_behind) = (false, false);
                    for frame in heard.drain(..) {
                        self.hear(frame);
                    }
                }
                more = self.before.receiver.recv_all(&mut said), if before_speaks && room_outside => {
                    (before_speaks, room_outside) = (more, false);
                    for frame in said.drain(..) {
                        self.say(Neighbour::Predecessor, &frame);
                    }
                }
                more = self.behind.receiver.recv_all(&mut told), if behind_speaks && room_outside => {
                    (behind_speaks, room_outside) = (more, false);
                    for frame in told.drain(..) {
                        self.say(Neighbour::Successor, &frame);
                    }
                }
            }
        }
        self.conductor.sender.close();
    }

    fn hear(&mut self, frame: Frame) {
        let mut moves = Moves::default();
        self.place.conductor(frame, &mut moves);
        self.make(moves);
    }

    fn say(&mut self, to: Neighbour, frame: &Frame) {
        let mut moves = Moves::default();
        self.place.say(to, frame, &mut moves);
        self.make(moves);
    }

    /// Nobody is there to hear it: then nobody is told.
    fn make(&self, moves: Moves) {
        for line in moves.to_conductor {
            let _ = self.conductor.sender.push(line);
        }
        for (from, line) in moves.from {
            let _ = match from {
                Neighbour::Predecessor => self.before.sender.push(line),
                Neighbour::Successor => self.behind.sender.push(line),
            };
        }
    }
}
