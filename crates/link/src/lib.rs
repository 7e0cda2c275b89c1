//! How frames travel.
//!
//! A [`Link`] is two bounded queues of frames and the reason why it ended, whatever carries them: a pair in memory
//! ([`memory`]), our own stdin and stdout ([`stdio`]), a child process ([`child`]), TCP and unix sockets
//! ([`socket`]), or what another crate knows ([`carried`]). Whoever holds a link sees no difference but the [`CloseReason`].
//!
//! Back-pressure is the same everywhere: a full outgoing queue makes [`Sender::send`] wait, a full incoming queue
//! stops reading from the peer.

mod carried;
pub mod child;
mod close;
mod input_budget;
mod link;
pub mod memory;
mod other_end;
pub mod peer;
pub mod queue;
pub mod socket;
pub mod stdio;
mod stream;
mod upgraded;

pub use carried::{Inlet, Outlet, carried};
pub use close::CloseReason;
pub use input_budget::{InputBudget, InputShare};
pub use link::{Closed, Link, Options, Receiver, Sender, Stats};
pub use stream::stream;
pub use upgraded::Upgraded;
