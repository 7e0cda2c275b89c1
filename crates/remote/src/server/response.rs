//! HTTP responses and refusals.

use std::borrow::Cow;

use bytes::Bytes;
use hyper::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderName,
    HeaderValue, RETRY_AFTER, SEC_WEBSOCKET_VERSION, VARY, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use hyper::{Response, StatusCode};

use super::authorize::Denied;
use super::events::Body;
use super::refusal_stats::RefusalReason;
use super::route;

pub(super) const CONNECTION_ID: HeaderName = HeaderName::from_static("acp-connection-id");
pub(super) const SESSION_ID: HeaderName = HeaderName::from_static("acp-session-id");
/// The id of the last event of a stream that the client has received.
pub(super) const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// The number of a post, for deduplication.
pub(super) const POST: HeaderName = HeaderName::from_static("narrows-post");
/// The header that announces deduplication of POSTs, and shows that no proxy wrote the response.
pub(super) const POSTS: HeaderName = HeaderName::from_static("narrows-posts");

const ALLOWED: HeaderValue = HeaderValue::from_static(
    "accept, acp-connection-id, acp-protocol-version, acp-session-id, authorization, content-type, last-event-id",
);
const EXPOSED: HeaderValue = HeaderValue::from_static("acp-connection-id, acp-session-id");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

pub(super) type Reply = Response<Body>;

pub(super) fn empty(status: StatusCode) -> Reply {
    let mut reply = Response::new(Body::Whole(Bytes::new()));
    *reply.status_mut() = status;
    reply
}

pub(super) fn json(status: StatusCode, message: Bytes) -> Reply {
    let mut reply = Response::new(Body::Whole(message));
    *reply.status_mut() = status;
    reply.headers_mut().insert(CONTENT_TYPE, JSON);
    reply
}

#[derive(Debug)]
pub(super) enum Refusal {
    Words(StatusCode, Cow<'static, str>),
    Message(StatusCode, Bytes),
    /// A limit is reached. The client may retry after this many seconds.
    Later(u64, &'static str),
    /// The agent is unavailable, for the reason given. The client may retry after this many seconds.
    Unavailable(u64, String),
    Unverified,
    /// The client requested a WebSocket version that is not supported.
    Version,
}

impl Refusal {
    pub(super) fn reply(self) -> Reply {
        match self {
            Self::Words(status, words) => text_response(status, words),
            Self::Message(status, message) => json(status, message),
            Self::Later(seconds, words) => retry_later(seconds, words),
            Self::Unavailable(seconds, words) => {
                let mut reply = text_response(StatusCode::SERVICE_UNAVAILABLE, words);
                reply.headers_mut().insert(RETRY_AFTER, seconds.into());
                reply
            }
            Self::Unverified => {
                let words = "tokens cannot be verified at present\n";
                let mut reply = text_response(StatusCode::SERVICE_UNAVAILABLE, words);
                reply.headers_mut().insert(RETRY_AFTER, 10.into());
                // Counted by its status alone, this response would look like an unavailable agent.
                reply.extensions_mut().insert(RefusalReason::Token);
                reply
            }
            Self::Version => {
                let mut reply =
                    text_response(StatusCode::UPGRADE_REQUIRED, "only WebSocket version 13 is supported\n");
                reply.headers_mut().insert(SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
                reply
            }
        }
    }
}

pub(super) fn refusal(status: StatusCode, words: impl Into<Cow<'static, str>>) -> Refusal {
    Refusal::Words(status, words.into())
}

fn text_response(status: StatusCode, words: impl Into<Cow<'static, str>>) -> Reply {
    let words = match words.into() {
        Cow::Borrowed(words) => Bytes::from_static(words.as_bytes()),
        Cow::Owned(words) => words.into(),
    };
    let mut reply = Response::new(Body::Whole(words));
    *reply.status_mut() = status;
    reply.headers_mut().insert(CONTENT_TYPE, TEXT);
    reply
}

pub(super) fn denied(denied: Denied) -> Reply {
    match denied {
        Denied::Host => text_response(StatusCode::FORBIDDEN, "host not allowed\n"),
        Denied::Origin => text_response(StatusCode::FORBIDDEN, "origin not allowed\n"),
        Denied::User => text_response(StatusCode::FORBIDDEN, "only the user of this bus may connect\n"),
        Denied::Unauthenticated | Denied::Certificate => {
            let mut reply = text_response(StatusCode::UNAUTHORIZED, "not authorized\n");
            reply
                .headers_mut()
                .insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"narrows\""));
            reply
        }
        Denied::Locked(wait) => retry_later(wait.as_secs() + 1, "too many failures\n"),
        Denied::Rate => retry_later(1, "too many requests\n"),
        Denied::Evicted => retry_later(1, "too many sockets\n"),
        Denied::TooManySockets => retry_later(10, "too many sockets of this identity\n"),
    }
}

fn retry_later(seconds: u64, words: &'static str) -> Reply {
    let mut reply = text_response(StatusCode::TOO_MANY_REQUESTS, words);
    reply.headers_mut().insert(RETRY_AFTER, seconds.into());
    reply
}

pub(super) fn method_not_allowed() -> Reply {
    let mut reply = text_response(StatusCode::METHOD_NOT_ALLOWED, "method not allowed\n");
    reply.headers_mut().insert(ALLOW, route::METHODS);
    reply
}

pub(super) fn preflight() -> Reply {
    let mut reply = empty(StatusCode::NO_CONTENT);
    let headers = reply.headers_mut();
    headers.insert(ALLOW, route::METHODS);
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, route::METHODS);
    headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, ALLOWED);
    headers.insert(ACCESS_CONTROL_MAX_AGE, 600.into());
    reply
}

/// Adds the headers of every response: they prevent caching and content sniffing, show that no proxy
/// responded, and permit pages of `origin` to read the response.
pub(super) fn add_common_headers(reply: &mut Reply, origin: Option<&str>) {
    let headers = reply.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(POSTS, HeaderValue::from_static("counted"));
    if let Some(origin) = origin.and_then(|origin| HeaderValue::from_str(origin).ok()) {
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
        headers.insert(VARY, HeaderValue::from_static("Origin"));
    }
}
