//! Bidirectional transport of frames.
//!
//! A [`Link`] is two bounded queues of frames and the reason why it ended. The transport can be a pair in
//! memory ([`memory`]), this process's stdin and stdout ([`stdio`]), a child process ([`child`]), TCP and
//! unix sockets ([`socket`]), or code of another crate ([`external_link`]). All transports behave alike;
//! only the [`CloseReason`] differs.
//!
//! Backpressure works alike, too: a full outgoing queue makes [`Sender::send`] wait, and a full incoming
//! queue stops reading from the peer.

pub mod child;
mod close;
mod external;
mod hangup;
mod input_budget;
mod link;
pub mod memory;
pub mod peer;
pub mod queue;
pub mod socket;
pub mod stdio;
mod stream;
mod websocket_handoff;

pub use close::CloseReason;
pub use external::{IncomingFrames, OutgoingLines, external_link};
pub use input_budget::{InputBudget, InputShare};
pub use link::{Closed, Link, Options, Receiver, Sender, Stats};
pub use stream::stream;
pub use websocket_handoff::WebSocketHandoff;
