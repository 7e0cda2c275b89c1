//! Connections that outlive their sockets: both ends count what they have taken, and send the rest again.
//!
//! A client that can do this says so in `initialize` ([`ask`]), a server that can grants it in the answer ([`grant`]),
//! and nothing is added to any other message. Each end has a [`ResumableEnd`]: what it sends goes through a [`Ring`], what it
//! takes is counted. When a socket is lost, the first message on the next one is an [`Ask`], its answer an [`Answer`];
//! both say how much was taken, and each end goes on behind that. Who connected and wants an end says so ([`farewell`]);
//! who has lost a connection to a newer socket is told so ([`fence`]). None of these is counted itself.
//!
//! No I/O and no clock: sockets, deadlines and who may resume what are the business of both ends.

mod capability;
mod endpoint;
mod handshake;
mod ring;
mod splice;
#[cfg(test)]
mod tests;

pub use capability::{Connection, Granted, ask, asks, forget_asked, grant, granted};
pub use endpoint::{Counts, ResumableEnd};
pub use handshake::{Answer, Ask, First, METHOD, farewell, fence, first, is_farewell, is_fence};
pub use ring::{Keep, ReplayGap, Ring};
