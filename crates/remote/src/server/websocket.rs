//! Upgrades an HTTP request to a WebSocket.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::StatusCode;
use hyper::header::{
    CONNECTION, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL,
    SEC_WEBSOCKET_VERSION, UPGRADE,
};
use hyper::http::request::Parts;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use hyper_util::server::conn::auto::upgrade::downcast;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

use super::authorize::{self, Caller, PROTOCOL};
use super::codec::Codec;
use super::connection;
use super::http_connection::{admit, header_text};
use super::io::Io;
use super::response::{self, CONNECTION_ID, Refusal, Reply};
use super::shared::HttpServerState;
use super::socket::{ClientSocket, SocketPermit};

pub(super) fn upgrade(
    shared: &Arc<HttpServerState>,
    parts: &Parts,
    caller: Caller,
    upgrade: OnUpgrade,
    permit: SocketPermit,
) -> Reply {
    try_upgrade(shared, parts, caller, upgrade, permit).unwrap_or_else(Refusal::reply)
}

fn try_upgrade(
    shared: &Arc<HttpServerState>,
    parts: &Parts,
    caller: Caller,
    upgrade: OnUpgrade,
    permit: SocketPermit,
) -> Result<Reply, Refusal> {
    let headers = &parts.headers;
    if header_text(headers, &SEC_WEBSOCKET_VERSION)? != Some("13") {
        return Err(Refusal::Version);
    }
    let key = header_text(headers, &SEC_WEBSOCKET_KEY)?.unwrap_or_default();
    let accept = HeaderValue::from_str(&derive_accept_key(key.as_bytes()));
    let name = shared.random_name().map(|name| HeaderValue::from_str(&name));
    let (Ok(accept), Some(Ok(name)), true) =
        (accept, name, STANDARD.decode(key).is_ok_and(|key| key.len() == 16))
    else {
        return Err(response::refusal(StatusCode::BAD_REQUEST, "invalid WebSocket handshake\n"));
    };
    let client = admit(shared, caller)?;
    let shared = Arc::clone(shared);
    tokio::spawn(async move {
        let upgraded = match upgrade.await {
            Ok(upgraded) => upgraded,
            Err(error) => return tracing::debug!(%error, "WebSocket upgrade failed"),
        };
        // The downcast succeeds: the library was given an object of this type.
        let Ok(parts) = downcast::<TokioIo<Io>>(upgraded) else { return };
        let limits = &shared.limits;
        let codec = Codec::frames(limits.max_message);
        let part = shared.unfinished.part(client.identity());
        let socket = ClientSocket::new(
            parts.io.into_inner(),
            codec,
            parts.read_buf,
            limits.idle_timeout,
            Some(permit),
            part,
        );
        // Pings wait behind all data in the kernel's buffers: over a slow network that must not take long.
        socket.limit_kernel_buffers();
        connection::serve(shared, socket, client).await;
    });
    let mut reply = response::empty(StatusCode::SWITCHING_PROTOCOLS);
    let headers = reply.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
    headers.insert(CONNECTION_ID, name);
    // The response names this subprotocol, and never the one that contains a token.
    if authorize::protocols(&parts.headers).any(|protocol| protocol == PROTOCOL) {
        headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(PROTOCOL));
    }
    Ok(reply)
}
