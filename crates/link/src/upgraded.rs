//! A WebSocket that whoever let it in leaves to another.

use std::os::fd::OwnedFd;
use std::time::Duration;

use bytes::Bytes;
use narrows_wire::websocket::Decoder;

/// A socket without TLS on which WebSocket is spoken, and what has been read from it.
#[derive(Debug)]
pub struct Upgraded {
    /// The socket.
    pub socket: OwnedFd,
    /// What reads it from here on; it may hold the beginning of a frame.
    pub decoder: Decoder,
    /// The messages that have come already.
    pub messages: Vec<Bytes>,
    /// Within which time it is to be noticed that nobody is there.
    pub idle: Duration,
}
