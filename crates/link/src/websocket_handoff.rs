//! An upgraded WebSocket that another part of the program takes over.

use std::os::fd::OwnedFd;
use std::time::Duration;

use bytes::Bytes;
use narrows_wire::websocket::Decoder;

/// A WebSocket without TLS, with the data that was already read from it.
#[derive(Debug)]
pub struct WebSocketHandoff {
    pub socket: OwnedFd,
    /// May hold an incomplete frame.
    pub decoder: Decoder,
    /// Complete messages that were received before the handoff.
    pub messages: Vec<Bytes>,
    /// Time within which a dead peer must be detected.
    pub idle: Duration,
}
