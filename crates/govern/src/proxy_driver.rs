//! Runs a proxy in a chain: splits its link to the conductor into a link to each neighbor.

use narrows_link::{Link, Options, memory};
use narrows_wire::Frame;

use crate::proxy::{Neighbor, ProxyCore, ProxyOutput};

/// Returns links to the predecessor and the successor of a proxy, which both lead through the conductor. When
/// the conductor closes its link, the predecessor closes. When both returned links are closed, the link to
/// the conductor closes.
#[must_use]
pub fn split_proxy_link(conductor: Link, options: &Options) -> (Link, Link) {
    let (predecessor, predecessor_side) = memory::pair(options);
    let (successor, successor_side) = memory::pair(options);
    tokio::spawn(
        ProxyDriver { core: ProxyCore::default(), conductor, predecessor_side, successor_side }.run(),
    );
    (predecessor, successor)
}

struct ProxyDriver {
    core: ProxyCore,
    conductor: Link,
    predecessor_side: Link,
    successor_side: Link,
}

impl ProxyDriver {
    async fn run(mut self) {
        let (mut from_conductor, mut to_predecessor, mut to_successor) = (Vec::new(), Vec::new(), Vec::new());
        let (mut conductor_open, mut predecessor_open, mut successor_open) = (true, true, true);
        let (mut conductor_room, mut predecessor_room, mut successor_room) = (true, true, true);
        while predecessor_open || successor_open {
            tokio::select! {
                () = self.conductor.sender.room(), if !conductor_room => conductor_room = true,
                () = self.predecessor_side.sender.room(), if !predecessor_room => predecessor_room = true,
                () = self.successor_side.sender.room(), if !successor_room => successor_room = true,
                more = self.conductor.receiver.recv_all(&mut from_conductor), if conductor_open && predecessor_room && successor_room => {
                    if !more {
                        // The link to the successor stays open: the gate closes it after it has ended active
                        // turns.
                        conductor_open = false;
                        self.predecessor_side.sender.close();
                    }
                    (predecessor_room, successor_room) = (false, false);
                    for frame in from_conductor.drain(..) {
                        self.handle_conductor_frame(frame);
                    }
                }
                more = self.predecessor_side.receiver.recv_all(&mut to_predecessor), if predecessor_open && conductor_room => {
                    (predecessor_open, conductor_room) = (more, false);
                    for frame in to_predecessor.drain(..) {
                        self.handle_neighbor_frame(Neighbor::Predecessor, &frame);
                    }
                }
                more = self.successor_side.receiver.recv_all(&mut to_successor), if successor_open && conductor_room => {
                    (successor_open, conductor_room) = (more, false);
                    for frame in to_successor.drain(..) {
                        self.handle_neighbor_frame(Neighbor::Successor, &frame);
                    }
                }
            }
        }
        self.conductor.sender.close();
    }

    fn handle_conductor_frame(&mut self, frame: Frame) {
        let mut output = ProxyOutput::default();
        self.core.handle_conductor(frame, &mut output);
        self.push_output(output);
    }

    fn handle_neighbor_frame(&mut self, to: Neighbor, frame: &Frame) {
        let mut output = ProxyOutput::default();
        self.core.send(to, frame, &mut output);
        self.push_output(output);
    }

    /// Queues the lines of `output`. A closed link drops its lines, because their reader is gone.
    fn push_output(&self, output: ProxyOutput) {
        for line in output.to_conductor {
            let _ = self.conductor.sender.push(line);
        }
        for (from, line) in output.from {
            let _ = match from {
                Neighbor::Predecessor => self.predecessor_side.sender.push(line),
                Neighbor::Successor => self.successor_side.sender.push(line),
            };
        }
    }
}
