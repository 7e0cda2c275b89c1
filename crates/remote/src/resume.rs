//! Connections that outlive their sockets: both ends count received messages, and replay the others on the next socket.
//!
//! A client announces the capability in `initialize` ([`ask`]), and a server grants it in the response ([`grant`]); no
//! other message is changed. Each end has a [`ResumableEnd`]: a [`Ring`] of sent messages and a count of received ones.
//! After a loss, the first message on the next socket is a [`ResumeRequest`], and its response a [`ResumeResponse`]. Both carry the
//! count of received messages, and each end replays what follows. The connecting end announces a deliberate close
//! ([`farewell`]); a socket that was replaced by a newer one is sent a [`fence`]. None of these messages is counted.
//!
//! No I/O and no clock: sockets, deadlines and authorization belong to the callers.

mod capability;
mod endpoint;
mod handshake;
mod ring;
mod splice;
#[cfg(test)]
mod tests;

pub use capability::{ConnectionName, Granted, ask, asks, forget_asked, grant, granted};
pub use endpoint::{Counts, ResumableEnd};
pub use handshake::{
    FirstMessage, METHOD, ResumeRequest, ResumeResponse, farewell, fence, first, is_farewell, is_fence,
};
pub use ring::{Keep, ReplayGap, Ring};
