//! Listener settings shared by all commands, in the form that the HTTP server takes.

use std::net::{SocketAddr, ToSocketAddrs};

use narrows_bus::config::{self, ListenAddr, ListenerSettings, Web};
use narrows_remote::server::{ClientAuth, HttpLimits, HttpListenerConfig};
use narrows_remote::server_tls::TlsFiles;

use crate::failure::Failure;

const UNAUTHENTICATED_SOCKET_BYTES: usize = 32 << 10;

const MIN_UNAUTHENTICATED_SOCKETS: usize = 64;

/// Returns the settings of a listener. `local` decides how local clients without a proof are identified.
pub(super) fn listener(web: &Web, number: usize, local: ClientAuth) -> Result<HttpListenerConfig, Failure> {
    let address = web.address.to_socket_addrs().and_then(|mut addresses| {
        addresses.next().ok_or_else(|| std::io::ErrorKind::AddrNotAvailable.into())
    });
    Ok(HttpListenerConfig {
        number,
        address: address.map_err(|error| Failure::web_address_unresolved(web, &error))?,
        path: web.path.clone(),
        auth: match (web.auth, &web.tokens) {
            (config::ListenerAuth::Token, Some(tokens)) => ClientAuth::Token(tokens.clone()),
            (config::ListenerAuth::Mtls, _) => ClientAuth::Mtls,
            _ => local,
        },
        origins: web.origins.clone(),
        hosts: web.hosts.clone(),
        tls: tls_files(web),
    })
}

pub(super) fn tls_files(web: &Web) -> Option<TlsFiles> {
    web.tls.as_ref().map(|tls| TlsFiles {
        cert: tls.cert.clone(),
        key: tls.key.clone(),
        client_ca: tls.client_ca.clone(),
    })
}

pub(super) fn with_address(web: &Web, address: SocketAddr) -> Web {
    Web { address: address.to_string(), ..web.clone() }
}

/// Converts the limits of a bus to those of the HTTP server.
pub(super) fn limits(limits: &config::BusLimits) -> HttpLimits {
    let rate = match limits.max_rate_per_identity {
        0 => u32::MAX,
        rate => u32::try_from(rate).unwrap_or(u32::MAX),
    };
    let (unfinished, unfinished_per_identity) = limits.unfinished();
    let (replay_memory, replay_memory_per_identity) = limits.replay_memory();
    HttpLimits {
        max_message: limits.max_line,
        unfinished,
        unfinished_per_identity,
        header_timeout: limits.header_timeout,
        idle_timeout: limits.idle_timeout,
        max_sockets: limits.max_connections,
        max_unauthenticated_sockets: max_unauthenticated_sockets(limits),
        max_connections_per_identity: limits.max_connections_per_identity,
        max_requests_per_second: rate,
        replay_bytes: limits.replay_bytes,
        replay_time: limits.replay_time,
        replay_memory,
        replay_memory_per_identity,
        grace: limits.replay_time,
        ..HttpLimits::default()
    }
}

/// Returns the limit of sockets without an identity: as many as fit into an eighth of the memory budget, or
/// with TLS into a quarter. Without a budget there is no limit.
fn max_unauthenticated_sockets(limits: &config::BusLimits) -> usize {
    match usize::try_from(limits.memory).unwrap_or(usize::MAX) {
        0 => usize::MAX,
        memory => (memory / 8 / UNAUTHENTICATED_SOCKET_BYTES).max(MIN_UNAUTHENTICATED_SOCKETS),
    }
}

pub(super) fn find_duplicate_listener(listen: &[ListenerSettings]) -> Option<(&ListenAddr, &ListenAddr)> {
    let mut pairs = listen
        .iter()
        .enumerate()
        .flat_map(|(at, one)| listen[..at].iter().map(|other| (&one.addr, &other.addr)));
    pairs.find(|(one, other)| one.is_same(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_memory_budget_limits_unauthenticated_sockets() {
        let most = |memory| limits(&config::BusLimits { memory, ..config::BusLimits::default() });
        let found = [0, 1 << 20, 64 << 20, 1 << 30].map(|memory| most(memory).max_unauthenticated_sockets);
        assert_eq!(found, [usize::MAX, 64, 256, 4096]);
    }
}
