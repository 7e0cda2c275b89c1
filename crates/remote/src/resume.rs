//! Connections that outlive their sockets: both ends count what they have taken, and send the rest again.
