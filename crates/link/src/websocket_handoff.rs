//! An upgraded WebSocket that is handed to another owner.

use std::os::fd::OwnedFd;
use std::time::Duration;

use bytes::Bytes;
use narrows_wire::websocket::Decoder;

/// A WebSocket without TLS, and what was already read from it.
#[derive(Debug)]
pub struct WebSocketHandoff {
    /// The socket.
    pub socket: OwnedFd,
    /// Its decoder, which may hold an incomplete frame.
    pub decoder: Decoder,
    /// The messages received so far.
    pub messages: Vec<Bytes>,
    /// How soon a missing peer must be noticed.
    pub idle: Duration,
}
