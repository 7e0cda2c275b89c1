//! Frames over a network: WebSocket and Streamable HTTP on one port, TLS, client identities, and connections that
//! outlive their sockets.

mod announced;
pub mod client;
pub mod identity;
pub mod resume;
pub mod server;
pub mod server_tls;
pub mod tokens;
