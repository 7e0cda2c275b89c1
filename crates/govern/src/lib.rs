//! The gate between a client and an agent: who may do what, decided, recorded, and only then done.
//!
//! A [`Gate`] stands on one connection. It is a pure state machine: messages of both sides go in, and messages, events for
//! the audit log and, at worst, the order to end the agent come out. What a [`Mandate`] does not grant and what the policy
//! does not allow is neither shown nor done; whatever is, was recorded before. [`stand`] puts one on two links and a log.

mod batches;
mod call;
mod chain;
mod desk;
mod gate;
mod guard;
mod life;
mod mandate;
mod meta;
mod once;
mod proxy;
mod record;
mod roots;

pub use chain::join;
pub use desk::foresee;
pub use gate::{Ballot, BallotError, Gate, Open, Out, Request, Setting, Ticket, Time};
pub use guard::{Ended, Inquiry, stand};
pub use mandate::{Autonomy, Mandate, Patience, Principal, policy_of, provided};
pub use proxy::{Moves, Neighbour, Place, is_for_proxy};
pub use roots::{Disk, Ground, Outside, admit};
