//! One HTTP socket: checks its requests, routes them and responds.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::{
    ACCEPT, ACCESS_CONTROL_REQUEST_METHOD, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue,
};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode, Version};
use narrows_base::sync::lock;
use narrows_wire::{Code, RpcError, message};
use serde_json::json;
use tokio::sync::{Notify, Semaphore};
use tokio::time::timeout;

use super::admission::AdmittedClient;
use super::authorize::{self, Caller, Denied};
use super::certificate::ClientCertificate;
use super::events::{Body, Events};
use super::http_session::HttpSession;
use super::listener::HttpListener;
use super::open_sockets::{Guarded, OpenSocket, RequestGuard};
use super::refusal_stats::RefusalReason;
use super::response::{self, CONNECTION_ID, LAST_EVENT_ID, Refusal, Reply, SESSION_ID};
use super::route::{self, Access, Handler};
use super::shared::HttpServerState;
use super::socket::SocketPermit;
use super::streams::OpenFault;
use super::unfinished::FreeAllowance;
use super::{post, websocket};
use crate::identity::Identity;

const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// Limits for reading the body of a refused request: bytes and time.
const READ_OUT_LIMITS: (usize, Duration) = (64 << 10, Duration::from_secs(1));

pub(super) const MAX_CONCURRENT_READ_OUTS: usize = 4;

pub(super) const TOO_MANY_CONNECTIONS: Refusal = Refusal::Later(10, "too many connections\n");

pub(super) struct HttpConnection {
    pub(super) shared: Arc<HttpServerState>,
    pub(super) http_listener: Arc<HttpListener>,
    pub(super) peer: IpAddr,
    /// The identity that the socket itself proves: by client certificate, or by its user.
    pub(super) socket_identity: Option<Identity>,
    pub(super) certificate: Option<Mutex<ClientCertificate>>,
    pub(super) socket: OpenSocket,
    /// Notified when an unauthorized request was refused.
    pub(super) refused: Notify,
    pub(super) read_out: Semaphore,
    pub(super) permit: SocketPermit,
    /// The right of one message on this socket to use a little memory that is not counted.
    pub(super) allowance: FreeAllowance,
}

impl HttpConnection {
    pub(super) async fn respond(
        self: Arc<Self>,
        mut request: Request<Incoming>,
    ) -> Result<Response<Guarded<Body>>, Infallible> {
        // Only a WebSocket needs the upgrade, but it must be taken before the request is split.
        let upgrade = hyper::upgrade::on(&mut request);
        let (parts, mut body) = request.into_parts();
        let allowed = authorize::check_host(&self.http_listener, &parts)
            .and_then(|()| authorize::check_origin(&self.http_listener, &parts.headers));
        let mut request = None;
        let (result, origin) = match allowed {
            Ok(origin) => (self.dispatch(&parts, origin, &mut body, upgrade, &mut request).await, origin),
            Err(denied) => (Err(denied), None),
        };
        let is_refused =
            result.as_ref().map_or(true, |reply| RefusalReason::from_status(reply.status()).is_some());
        let is_head = parts.method == Method::HEAD;
        let is_http2 = parts.version == Version::HTTP_2;
        let origin = origin.map(str::to_owned);
        // The headers are freed before the body is read out, which may take a while.
        drop(parts);
        if is_refused
            && is_http2
            && let Ok(_permit) = self.read_out.try_acquire()
        {
            read_out(&mut body).await;
        }
        let mut reply = result.map_or_else(|denied| self.deny(denied), |reply| self.count_refusal(reply));
        response::add_common_headers(&mut reply, origin.as_deref());
        if is_head {
            *reply.body_mut() = Body::Whole(Bytes::new());
        }
        Ok(reply.map(|body| Guarded { body, _request: request }))
    }

    /// Counts the refusal if the response to an authorized client is one.
    fn count_refusal(&self, reply: Reply) -> Reply {
        let told = reply.extensions().get().copied();
        if let Some(reason) = told.or_else(|| RefusalReason::from_status(reply.status())) {
            self.shared.refusals.add(reason);
        }
        reply
    }

    fn deny(&self, denied: Denied) -> Reply {
        tracing::debug!(peer = %self.peer, reason = ?denied, "request refused");
        let reason = match denied {
            Denied::Host => Some(RefusalReason::Host),
            Denied::Origin => Some(RefusalReason::Origin),
            Denied::Unauthenticated => Some(RefusalReason::Token),
            Denied::Certificate => Some(RefusalReason::Tls),
            Denied::User => Some(RefusalReason::User),
            Denied::Locked(_) => Some(RefusalReason::AuthRateLimit),
            Denied::Rate => Some(RefusalReason::Rate),
            Denied::TooManySockets => Some(RefusalReason::Limit),
            // An eviction was already counted when the socket was chosen to make room.
            Denied::Evicted => None,
        };
        if let Some(reason) = reason {
            self.shared.refusals.add(reason);
        }
        // A client over the rate limit is authenticated, so its socket stays open.
        if denied != Denied::Rate {
            self.refused.notify_one();
        }
        response::denied(denied)
    }

    /// Handles a request after the host and origin checks. The socket counts as busy until `request` is
    /// dropped.
    async fn dispatch(
        &self,
        parts: &Parts,
        origin: Option<&str>,
        body: &mut Incoming,
        upgrade: hyper::upgrade::OnUpgrade,
        request: &mut Option<RequestGuard>,
    ) -> Result<Reply, Denied> {
        let row = (parts.uri.path() == self.http_listener.path)
            .then(|| route::find(&parts.method, &parts.headers))
            .flatten();
        let of_page = origin.is_some() && parts.headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD);
        if row.is_some_and(|row| row.access == Access::Page) && of_page {
            return Ok(response::preflight());
        }
        let headers = &parts.headers;
        let socket_identity = self.socket_identity.as_ref();
        let certificate = self.accepted_certificate()?;
        let caller = authorize::authenticate(
            &self.shared,
            &self.http_listener,
            self.peer,
            socket_identity,
            certificate,
            headers,
        )?;
        *request = Some(self.socket.begin(&caller.identity)?);
        if let Some(error) = names_pool(parts.uri.query().unwrap_or_default()) {
            return Ok(response::json(StatusCode::BAD_REQUEST, message::error(b"null", &error)));
        }
        let Some(row) = row else {
            return Ok(if parts.uri.path() == self.http_listener.path {
                response::method_not_allowed()
            } else {
                response::refusal(StatusCode::NOT_FOUND, "not found\n").reply()
            });
        };
        Ok(match row.handler {
            Handler::Message => {
                let taken = post::accept_post(&self.shared, headers, body, caller, &self.allowance);
                taken.await.unwrap_or_else(Refusal::reply)
            }
            Handler::Events => self.events(headers, &caller).unwrap_or_else(Refusal::reply),
            Handler::WebSocket => {
                websocket::upgrade(&self.shared, parts, caller, upgrade, Arc::clone(&self.permit))
            }
            Handler::End => self.end(headers, &caller).unwrap_or_else(Refusal::reply),
            Handler::Preflight => response::preflight(),
        })
    }

    /// Returns the client certificate, if there is one. Fails if the listener no longer accepts the
    /// certificate.
    fn accepted_certificate(&self) -> Result<Option<ClientCertificate>, Denied> {
        let Some(certificate) = &self.certificate else { return Ok(None) };
        let mut certificate = lock(certificate);
        if certificate.is_accepted() { Ok(Some(certificate.clone())) } else { Err(Denied::Certificate) }
    }

    fn events(&self, headers: &HeaderMap, caller: &Caller) -> Result<Reply, Refusal> {
        let mut accepted = headers.get_all(ACCEPT).into_iter().filter_map(|value| value.to_str().ok());
        let is_event_stream = |part: &str| is_type(part, "text/event-stream") && !is_unwanted(part);
        let wanted = |value: &str| value.split(',').any(is_event_stream);
        if !accepted.any(wanted) {
            return Err(response::refusal(
                StatusCode::NOT_ACCEPTABLE,
                "only text/event-stream is available\n",
            ));
        }
        let http_session = find_http_session(&self.shared, headers, caller)?;
        let session = header_text(headers, &SESSION_ID)?.map(str::to_owned);
        let cursor = match header_text(headers, &LAST_EVENT_ID)? {
            None | Some("") => None,
            Some(cursor) => match cursor.parse() {
                Ok(cursor) => Some(cursor),
                Err(_) => {
                    return Err(response::refusal(StatusCode::BAD_REQUEST, "invalid Last-Event-ID\n"));
                }
            },
        };
        let opened = http_session.subscribe(session.as_deref(), cursor).map_err(|fault| match fault {
            OpenFault::Taken => response::refusal(StatusCode::CONFLICT, "the stream already has a reader\n"),
            OpenFault::Unknown => response::refusal(StatusCode::NOT_FOUND, "session not found\n"),
            OpenFault::Gap => {
                let error =
                    RpcError::new(Code::NotFound, "events after this Last-Event-ID are not available")
                        .with("condition", json!("cursor_gap"));
                Refusal::Message(StatusCode::GONE, message::error(b"null", &error))
            }
        })?;
        let every = KEEP_ALIVE_INTERVAL.min(self.shared.limits.idle_timeout / 3);
        let mut reply =
            Response::new(Body::Events(Box::new(Events::new(http_session, session, opened, every))));
        reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        // This header disables response buffering in proxies.
        reply.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
        Ok(reply)
    }

    fn end(&self, headers: &HeaderMap, caller: &Caller) -> Result<Reply, Refusal> {
        let http_session = find_http_session(&self.shared, headers, caller)?;
        self.shared.http_sessions(|http_sessions| http_sessions.remove(&http_session.name));
        http_session.end();
        Ok(response::empty(StatusCode::ACCEPTED))
    }
}

/// Reads and discards the rest of a short body. HTTP/2 resets a stream with an unread body after the
/// response, and some clients report only the reset.
async fn read_out(body: &mut Incoming) {
    let (mut left, time) = READ_OUT_LIMITS;
    let reading = async {
        while let Some(Ok(frame)) = body.frame().await {
            let length = frame.data_ref().map_or(0, Bytes::len);
            let Some(rest) = left.checked_sub(length) else { return };
            left = rest;
        }
    };
    // A client that sends its body more slowly is answered anyway.
    _ = timeout(time, reading).await;
}

/// Returns an error if a URL selects a pool in its query. Pools are selected in `initialize`, so the client
/// would get another pool.
fn names_pool(query: &str) -> Option<RpcError> {
    let is_pool = |part: &str| part.split('=').next().is_some_and(|key| key.eq_ignore_ascii_case("pool"));
    let words = "select the pool in _meta of initialize";
    query.split('&').any(is_pool).then(|| RpcError::new(Code::PolicyDenied, words))
}

pub(super) fn find_http_session(
    shared: &HttpServerState,
    headers: &HeaderMap,
    caller: &Caller,
) -> Result<Arc<HttpSession>, Refusal> {
    let Some(name) = header_text(headers, &CONNECTION_ID)? else {
        return Err(response::refusal(StatusCode::BAD_REQUEST, "Acp-Connection-Id is missing\n"));
    };
    HttpSession::find(shared, name, caller)
        .ok_or_else(|| response::refusal(StatusCode::NOT_FOUND, "there is no such connection\n"))
}

/// Returns the value of a header, or `None` if there is none. An invalid or repeated header is refused.
pub(super) fn header_text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, Refusal> {
    let mut values = headers.get_all(name).into_iter();
    match (values.next().map(HeaderValue::to_str), values.next()) {
        (None, _) => Ok(None),
        (Some(Ok(value)), None) => Ok(Some(value)),
        _ => Err(response::refusal(StatusCode::BAD_REQUEST, "invalid header\n")),
    }
}

/// Returns `true` if the header value names this media type. Parameters of the type are ignored.
pub(super) fn is_type(value: &str, expected: &str) -> bool {
    let bare = value.split_once(';').map_or(value, |(bare, _)| bare);
    bare.trim().eq_ignore_ascii_case(expected)
}

/// Returns `true` if a part of `Accept` has a weight of zero.
fn is_unwanted(part: &str) -> bool {
    let weight = part.split(';').skip(1).find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        name.trim().eq_ignore_ascii_case("q").then(|| value.trim())
    });
    weight.and_then(|weight| weight.parse().ok()).is_some_and(|weight: f32| weight <= 0.0)
}

/// Reserves a slot for a client that may want to open or resume a connection.
pub(super) fn admit(shared: &HttpServerState, caller: Caller) -> Result<AdmittedClient, Refusal> {
    if caller.is_unverified {
        return Err(Refusal::Unverified);
    }
    let slot = shared.quota.enter(caller.identity).ok_or(TOO_MANY_CONNECTIONS)?;
    Ok(AdmittedClient::new(slot, caller.credential, caller.listener))
}
