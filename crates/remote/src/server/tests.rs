//! The HTTP server over real sockets, with an agent that answers every request.

mod certificates;
mod hostile;
mod http;
mod http2;
pub(super) mod kit;
mod limits;
mod logs;
mod long_lines;
mod matrix;
mod refused;
mod replay;
mod resumed;
pub(super) mod secure;
mod slow;
mod sockets;
mod unfinished;
mod unverified;
mod users;
