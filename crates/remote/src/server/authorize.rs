//! Authorizes requests, in this order: host, origin, identity.

use std::net::IpAddr;
use std::time::Duration;

use hyper::HeaderMap;
use hyper::header::{AUTHORIZATION, HOST, ORIGIN, SEC_WEBSOCKET_PROTOCOL};
use hyper::http::request::Parts;
use tokio::time::Instant;

use super::admission::Credential;
use super::auth_rate_limit::FailureLog;
use super::certificate::ClientCertificate;
use super::listener::{Admits, HttpListener};
use super::shared::HttpServerState;
use crate::identity::Identity;
use crate::tokens::Digest;

/// The subprotocol of a WebSocket.
pub(super) const PROTOCOL: &str = "acp";

/// Prefix of a token in the WebSocket subprotocols, the only place where a browser can send one.
const BEARER_PROTOCOL: &str = "narrows.bearer.";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Denied {
    Host,
    Origin,
    /// No valid token or certificate was shown.
    Unauthenticated,
    /// The certificate is no longer accepted.
    Certificate,
    User,
    /// The address sent too many wrong tokens. The client may retry after this time.
    Locked(Duration),
    Rate,
    /// The socket was closed to make room before its client was authenticated.
    Evicted,
    TooManySockets,
}

#[derive(Debug)]
pub(super) struct Caller {
    pub(super) identity: Identity,
    pub(super) credential: Credential,
    pub(super) listener: usize,
    /// `true` if the token may have been revoked, because its file cannot be read. The client may use its
    /// open connections and streams, but open no new ones.
    pub(super) is_unverified: bool,
}

/// Checks the `Host` header. Protects against DNS rebinding: a foreign name that resolves to this machine is not on the
/// list.
pub(super) fn check_host(http_listener: &HttpListener, parts: &Parts) -> Result<(), Denied> {
    let mut named = parts.headers.get_all(HOST).into_iter();
    let header = named.next();
    if named.next().is_some() {
        return Err(Denied::Host);
    }
    let authority = parts.uri.authority().map(hyper::http::uri::Authority::as_str);
    let header = header.map(|host| host.to_str().unwrap_or_default());
    let names: Vec<&str> = authority.into_iter().chain(header).collect();
    let known = |name: &str| {
        let name = name.to_ascii_lowercase();
        let bare = match name.rsplit_once(':') {
            Some((bare, port)) if !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) => bare,
            _ => &name,
        };
        http_listener.hosts.iter().any(|host| *host == name || host == bare)
    };
    if !names.is_empty() && names.into_iter().all(known) { Ok(()) } else { Err(Denied::Host) }
}

/// Checks the `Origin` header and returns its value. A request without the header does not come from a web
/// page.
pub(super) fn check_origin<'a>(
    http_listener: &HttpListener,
    headers: &'a HeaderMap,
) -> Result<Option<&'a str>, Denied> {
    let mut named = headers.get_all(ORIGIN).into_iter();
    match (named.next().map(|origin| origin.to_str().unwrap_or_default()), named.next()) {
        (None, _) => Ok(None),
        (Some(origin), None) if http_listener.origins.iter().any(|allowed| allowed == origin) => {
            Ok(Some(origin))
        }
        _ => Err(Denied::Origin),
    }
}

/// Authenticates a request. `known` is the identity that the socket proves, by its certificate or its user.
/// `certificate` is the accepted client certificate, if there is one.
pub(super) fn authenticate(
    shared: &HttpServerState,
    http_listener: &HttpListener,
    peer: IpAddr,
    known: Option<&Identity>,
    certificate: Option<ClientCertificate>,
    headers: &HeaderMap,
) -> Result<Caller, Denied> {
    let (identity, token) = match &http_listener.admits {
        Admits::Everybody => (Identity::local(), None),
        Admits::Users => (known.cloned().unwrap_or_else(Identity::local), None),
        Admits::Owner(user) => match known {
            Some(identity) if identity.is_user(*user) => (Identity::local(), None),
            _ => {
                tracing::warn!(
                    listener = http_listener.number,
                    user = known.map(|identity| &*identity.name),
                    "connection refused: not the user of the bus"
                );
                return Err(Denied::User);
            }
        },
        Admits::Certificates => match known {
            Some(identity) => (identity.clone(), None),
            None => return Err(Denied::Unauthenticated),
        },
        Admits::Tokens(store) => {
            let now = Instant::now();
            let Some(shown) = token(headers).map(Digest::new) else { return Err(Denied::Unauthenticated) };
            // A known token is accepted even during a lockout: behind a proxy, all clients have one address.
            let tokens = store.known().subscribe();
            let found = tokens.borrow().find(&shown).cloned();
            let Some(identity) = found else {
                if let Some(wait) = shared.auth_rate_limit(|limit| limit.lockout_time(peer, now)) {
                    return Err(Denied::Locked(wait));
                }
                log_failure(shared.auth_rate_limit(|limit| limit.record_failure(peer, now)), peer);
                return Err(Denied::Unauthenticated);
            };
            (identity, Some((shown, tokens)))
        }
    };
    let is_unverified = matches!(&http_listener.admits, Admits::Tokens(store) if store.is_unverified());
    match shared.quota.count_request(&identity) {
        true => Ok(Caller {
            identity,
            credential: Credential { token, certificate },
            listener: http_listener.number,
            is_unverified,
        }),
        false => Err(Denied::Rate),
    }
}

fn log_failure(failure: FailureLog, peer: IpAddr) {
    match failure {
        FailureLog::First => tracing::info!(%peer, "unknown token"),
        FailureLog::Locked => tracing::warn!(%peer, "address locked out after too many wrong tokens"),
        FailureLog::Nothing => {}
    }
}

fn token(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(AUTHORIZATION).into_iter();
    if let Some(value) = values.next() {
        // If a client sends two of these headers, a proxy may have checked the other one.
        if values.next().is_some() {
            return None;
        }
        let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
        return scheme.eq_ignore_ascii_case("bearer").then(|| token.trim());
    }
    protocols(headers).find_map(|protocol| protocol.strip_prefix(BEARER_PROTOCOL))
}

pub(super) fn protocols(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let values = headers.get_all(SEC_WEBSOCKET_PROTOCOL).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim)
}
