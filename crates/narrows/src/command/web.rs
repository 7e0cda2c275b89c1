//! What every command that listens has in common: places that are one, and for HTTP and WebSocket settings as a front takes them.

use std::net::{SocketAddr, ToSocketAddrs};

use narrows_bus::config::{self, Door, Listen, Web};
use narrows_remote::server::{Auth, Limits, Listener};
use narrows_remote::tls::TlsFiles;

use crate::failure::Failure;

/// The listener of this number. Who is on this machine and need not prove anything is known as `local` says.
pub(super) fn listener(web: &Web, number: usize, local: Auth) -> Result<Listener, Failure> {
    let address = web.address.to_socket_addrs().and_then(|mut addresses| {
        addresses.next().ok_or_else(|| std::io::ErrorKind::AddrNotAvailable.into())
    });
    Ok(Listener {
        number,
        address: address.map_err(|error| Failure::web_address(web, &error))?,
        path: web.path.clone(),
        auth: match (web.auth, &web.tokens) {
            (config::Auth::Token, Some(tokens)) => Auth::Token(tokens.clone()),
            (config::Auth::Mtls, _) => Auth::Mtls,
            _ => local,
        },
        origins: web.origins.clone(),
        hosts: web.hosts.clone(),
        tls: tls_files(web),
    })
}

/// The files for TLS, if it is spoken there.
pub(super) fn tls_files(web: &Web) -> Option<TlsFiles> {
    web.tls.as_ref().map(|tls| TlsFiles {
        cert: tls.cert.clone(),
        key: tls.key.clone(),
        client_ca: tls.client_ca.clone(),
    })
}

/// The same place at the address that it really has.
pub(super) fn at(web: &Web, address: SocketAddr) -> Web {
    Web { address: address.to_string(), ..web.clone() }
}

/// What a front takes of the limits of a bus.
pub(super) fn limits(limits: &config::Limits) -> Limits {
    let rate = match limits.max_rate_per_identity {
        0 => u32::MAX,
        rate => u32::try_from(rate).unwrap_or(u32::MAX),
    };
    let (unfinished, unfinished_per_identity) = limits.unfinished();
    let (replay_memory, replay_memory_per_identity) = limits.replay_memory();
    Limits {
        max_message: limits.max_line,
        unfinished,
        unfinished_per_identity,
        header_timeout: limits.header_timeout,
        idle_timeout: limits.idle_timeout,
        max_sockets: limits.max_connections,
        max_connections_per_identity: limits.max_connections_per_identity,
        max_requests_per_second: rate,
        replay_bytes: limits.replay_bytes,
        replay_time: limits.replay_time,
        replay_memory,
        replay_memory_per_identity,
        grace: limits.replay_time,
        ..Limits::default()
    }
}

/// Two places of which only one can be had.
pub(super) fn listened_twice(listen: &[Listen]) -> Option<(&Door, &Door)> {
    let mut pairs =
        listen.iter().enumerate().flat_map(|(at, one)| listen[..at].iter().map(|other| (&one.at, &other.at)));
    pairs.find(|(one, other)| one.is_same(other))
}
