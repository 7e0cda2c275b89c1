//! Posted messages: `initialize` opens a connection, others belong to one.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::StatusCode;
use hyper::body::{Body, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use narrows_acp::method::{self, METHODS, Scope, Side};
use narrows_wire::{Code, Kind, RpcError, View, message as write};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout, timeout_at};

use super::authorize::Caller;
use super::codec;
use super::http_connection::{TOO_MANY_CONNECTIONS, admit, find_http_session, header_text, is_type};
use super::http_session::{HttpSession, SendFault};
use super::response::{self, CONNECTION_ID, POST, Refusal, Reply, SESSION_ID};
use super::shared::HttpServerState;
use super::streams::ResponseTarget;
use super::unfinished::{FreeAllowance, MessageMemory, time_for};

const INITIALIZE_TIMEOUT: Duration = Duration::from_secs(120);

/// Accepts a posted message. `allowance` is the uncounted memory that one message on the socket may use.
pub(super) async fn accept_post(
    shared: &Arc<HttpServerState>,
    headers: &HeaderMap,
    body: &mut Incoming,
    caller: Caller,
    allowance: &FreeAllowance,
) -> Result<Reply, Refusal> {
    let json = header_text(headers, &CONTENT_TYPE)?.is_some_and(|value| is_type(value, "application/json"));
    if !json {
        return Err(response::refusal(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "only application/json is accepted\n",
        ));
    }
    // The memory of the message is counted until the agent has received the message.
    let mut part = shared.unfinished.part_on(&caller.identity, allowance);
    let body = read_body(shared, size_of_headers(headers), body, &mut part).await?;
    let part = Some(part);
    let view = View::parse(&body);
    match view.kind() {
        Kind::Invalid(_) => {
            // JSON-RPC forbids answering an invalid response, but every HTTP request has a response.
            let wrong = || write::error(b"null", &RpcError::new(Code::InvalidRequest, "invalid message"));
            Err(Refusal::Message(StatusCode::BAD_REQUEST, view.refusal().unwrap_or_else(wrong)))
        }
        Kind::Batch => {
            let error = RpcError::new(Code::InvalidRequest, "batches are not supported over HTTP");
            Err(Refusal::Message(StatusCode::BAD_REQUEST, write::error(b"null", &error)))
        }
        Kind::Request if view.method().as_deref() == Some(method::INITIALIZE) => {
            initialize(shared, &view, caller, part).await
        }
        _ => forward(shared, headers, &view, &caller, part).await,
    }
}

/// Estimates the memory of headers, which are held while the body is read.
fn size_of_headers(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 32).sum()
}

/// Reads the body. Fails if the body is too long or too slow, and waits while there is no room. `part` counts
/// the memory of the body, plus `others` bytes that the request holds besides.
async fn read_body<B>(
    shared: &HttpServerState,
    others: usize,
    body: &mut B,
    part: &mut MessageMemory,
) -> Result<Bytes, Refusal>
where
    B: Body<Data = Bytes> + Unpin,
{
    let too_long = || response::refusal(StatusCode::PAYLOAD_TOO_LARGE, "the message is too long\n");
    let limit = shared.limits.max_message;
    if body.size_hint().lower() > limit as u64 {
        return Err(too_long());
    }
    let mut whole = BytesMut::new();
    let each = shared.limits.header_timeout;
    let began = Instant::now();
    // All waits for room together may take this long.
    let mut time_left = each;
    loop {
        // One message of the maximum length always fits.
        let held = (others + whole.len()).min(limit);
        let waiting = Instant::now();
        if timeout(time_left, part.grow(held)).await.is_err() {
            return Err(Refusal::Later(1, "too many long messages\n"));
        }
        time_left = time_left.saturating_sub(waiting.elapsed());
        // The deadline depends on the bytes received, because a client may announce any length or none.
        let last = began + (each - time_left) + each + time_for(whole.len());
        match timeout_at(last.min(Instant::now() + each), body.frame()).await {
            Err(_) => {
                return Err(response::refusal(
                    StatusCode::REQUEST_TIMEOUT,
                    "timeout while reading the body\n",
                ));
            }
            Ok(None) => return Ok(whole.freeze()),
            Ok(Some(Err(_))) => {
                return Err(response::refusal(StatusCode::BAD_REQUEST, "the body cannot be read\n"));
            }
            Ok(Some(Ok(frame))) => {
                let Ok(data) = frame.into_data() else { continue };
                if whole.len() + data.len() > limit {
                    return Err(too_long());
                }
                whole.extend_from_slice(&data);
            }
        }
    }
}

/// A connection that is being opened. If this value is dropped first, the connection is ended.
struct Attempt(Option<Arc<HttpSession>>);

impl Drop for Attempt {
    fn drop(&mut self) {
        if let Some(http_session) = self.0.take() {
            http_session.end();
        }
    }
}

/// Opens a connection with `initialize`, whose response is in the body.
async fn initialize(
    shared: &Arc<HttpServerState>,
    view: &View<'_>,
    caller: Caller,
    part: Option<MessageMemory>,
) -> Result<Reply, Refusal> {
    let mut client = admit(shared, caller)?;
    if !client.claim() {
        return Err(TOO_MANY_CONNECTIONS);
    }
    let http_session = HttpSession::open(shared, client).await.map_err(|error| {
        tracing::warn!(%error, "backend unavailable");
        response::refusal(StatusCode::SERVICE_UNAVAILABLE, "no agent is available\n")
    })?;
    let mut attempt = Attempt(Some(Arc::clone(&http_session)));
    let (sender, answer) = oneshot::channel();
    let id = view.id().unwrap_or_default();
    let sent =
        http_session.send(to_line(view.bytes()), Some((id, ResponseTarget::Body(sender))), None, part).await;
    sent.map_err(|fault| match fault {
        SendFault::Gone => backend_refusal(&http_session),
        fault => send_refusal(fault),
    })?;
    let answer = match timeout(INITIALIZE_TIMEOUT, answer).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(_)) => return Err(backend_refusal(&http_session)),
        Err(_) => return Err(response::refusal(StatusCode::GATEWAY_TIMEOUT, "the agent did not answer\n")),
    };
    let failed = View::parse(&answer).result().is_none();
    let mut reply = response::json(StatusCode::OK, answer);
    if !failed && let Ok(name) = HeaderValue::from_str(&http_session.name) {
        attempt.0 = None;
        reply.headers_mut().insert(CONNECTION_ID, name);
    }
    Ok(reply)
}

/// Returns the refusal for a connection that ended before `initialize` was answered, with the backend's error
/// if there is one.
fn backend_refusal(http_session: &HttpSession) -> Refusal {
    match http_session.backend_error() {
        Some(error) => {
            let words = format!("{}\n", error.message);
            let wait = error.data.as_ref().and_then(|data| data.get("retryAfterMs")?.as_u64());
            match wait {
                Some(wait) => Refusal::Unavailable(wait.div_ceil(1000).max(1), words),
                None => response::refusal(StatusCode::SERVICE_UNAVAILABLE, words),
            }
        }
        None => response::refusal(StatusCode::BAD_GATEWAY, "the agent has ended\n"),
    }
}

/// Sends a message other than `initialize`. The response to a request arrives on an event stream.
async fn forward(
    shared: &HttpServerState,
    headers: &HeaderMap,
    view: &View<'_>,
    caller: &Caller,
    part: Option<MessageMemory>,
) -> Result<Reply, Refusal> {
    let http_session = find_http_session(shared, headers, caller)?;
    let named = header_text(headers, &SESSION_ID)?;
    let (line, session) =
        addressed(view, named).map_err(|words| response::refusal(StatusCode::BAD_REQUEST, words))?;
    let asked = match (view.kind(), view.id()) {
        (Kind::Request, Some(id)) => {
            let is_prompt = view.method().is_some_and(|named| named == method::SESSION_PROMPT);
            let target = match session {
                Some(session) if is_prompt => ResponseTarget::Turn(session),
                session => ResponseTarget::Stream(session),
            };
            Some((id, target))
        }
        _ => None,
    };
    let number = match header_text(headers, &POST)?.map(str::parse) {
        None => None,
        Some(Ok(number)) if number > 0 => Some(number),
        Some(_) => return Err(response::refusal(StatusCode::BAD_REQUEST, "invalid Narrows-Post\n")),
    };
    http_session.send(line, asked, number, part).await.map_err(send_refusal)?;
    Ok(response::empty(StatusCode::ACCEPTED))
}

fn send_refusal(fault: SendFault) -> Refusal {
    match fault {
        SendFault::Gone => response::refusal(StatusCode::NOT_FOUND, "there is no such connection\n"),
        SendFault::Forgotten => {
            response::refusal(StatusCode::GONE, "the server no longer knows whether it accepted this POST\n")
        }
        SendFault::TooMany(_) => Refusal::Later(1, "too many pending requests\n"),
    }
}

/// Returns the message for the agent, and the session of the message. The session is named in the params, or
/// else in the header.
fn addressed(view: &View<'_>, named: Option<&str>) -> Result<(Bytes, Option<String>), &'static str> {
    let Some(method) = view.method() else { return Ok((to_line(view.bytes()), None)) };
    let own = view.session();
    if let (Some(own), Some(named)) = (&own, named)
        && own != named
    {
        return Err("header and message name different sessions\n");
    }
    let scope =
        METHODS.iter().find(|row| row.name == method && row.is_received_by(Side::Agent)).map(|row| row.scope);
    let (scoped, unknown) = (scope == Some(Scope::Session), scope.is_none() && !method.starts_with("$/"));
    match (own, named) {
        (Some(own), _) => Ok((to_line(view.bytes()), Some(own.into_owned()))),
        (None, Some(named)) if scoped || unknown => match with_session(view, named) {
            Some(with) => Ok((with, Some(named.to_owned()))),
            None if unknown => Ok((to_line(view.bytes()), Some(named.to_owned()))),
            None => Err("cannot add a session to these params\n"),
        },
        (None, None) if scoped => Err("no session given\n"),
        (None, _) => Ok((to_line(view.bytes()), None)),
    }
}

fn with_session(view: &View<'_>, session: &str) -> Option<Bytes> {
    let bytes = view.bytes();
    let session = serde_json::to_string(session).ok()?;
    let span = view.envelope().params.range();
    let (place, text) = match view.params() {
        // The session id is added before the last brace, after all other members.
        None => {
            let end = memchr::memrchr(b'}', bytes)?;
            (end..end, format!(",\"params\":{{\"sessionId\":{session}}}"))
        }
        Some(b"null") => (span, format!("{{\"sessionId\":{session}}}")),
        Some(params) => {
            let inner = params.strip_prefix(b"{")?;
            let comma = if inner.trim_ascii_start() == b"}" { "" } else { "," };
            (span.start + 1..span.start + 1, format!("\"sessionId\":{session}{comma}"))
        }
    };
    let whole = [&bytes[..place.start], text.as_bytes(), &bytes[place.end..]].concat();
    // If there is a `sessionId` of another type already, the result has a duplicate key and is invalid.
    matches!(View::parse(&whole).kind(), Kind::Request | Kind::Notification).then(|| to_line(&whole))
}

fn to_line(message: &[u8]) -> Bytes {
    let mut line = Vec::with_capacity(message.len() + 1);
    codec::put_line(&mut line, message);
    line.into()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::stream;
    use http_body_util::StreamBody;
    use hyper::body::Frame;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::super::HttpLimits;
    use super::super::tests::kit::Agent;
    use super::*;
    use crate::identity::Identity;

    /// Reads a body of unknown length that arrives in `count` pieces, one per `interval`. Returns the length
    /// of the body, or the status of the refusal.
    async fn read_slowly(count: usize, piece: usize, interval: Duration) -> Result<usize, u16> {
        let shared = HttpServerState::new(HttpLimits::default(), Arc::new(Agent::default()));
        let frames = stream::unfold(0, |sent| async move {
            if sent == count {
                return None;
            }
            tokio::time::sleep(interval).await; // sleep: the slow client; the clock is paused.
            Some((Ok::<_, Infallible>(Frame::data(Bytes::from(vec![b'x'; piece]))), sent + 1))
        });
        let mut body = StreamBody::new(Box::pin(frames));
        let mut part = shared.unfinished.part(&Identity::local());
        let read = read_body(&shared, 100, &mut body, &mut part).await;
        read.map(|body| body.len()).map_err(|refusal| refusal.reply().status().as_u16())
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_body_without_a_length_is_refused_soon() {
        let began = Instant::now();
        assert_eq!(read_slowly(1 << 20, 1, Duration::from_secs(3)).await, Err(408));
        assert!(began.elapsed() < Duration::from_secs(12), "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_and_fast_body_is_read() {
        assert_eq!(read_slowly(200, 64 << 10, Duration::from_secs(1)).await, Ok(200 * (64 << 10)));
        assert_eq!(read_slowly(200, 32 << 10, Duration::from_secs(1)).await, Err(408));
    }

    #[track_caller]
    fn check(message: &str, named: Option<&str>, expected: Result<(Option<&str>, Value), &str>) {
        let view = View::parse(message.as_bytes());
        assert!(!matches!(view.kind(), Kind::Invalid(_)), "{message}");
        match (addressed(&view, named), expected) {
            (Ok((line, session)), Ok((expected, params))) => {
                assert_eq!(session.as_deref(), expected);
                let value: Value = serde_json::from_slice(&line).unwrap();
                assert_eq!(value.get("params").cloned().unwrap_or_default(), params);
            }
            (Err(error), Err(part)) => assert!(error.contains(part), "{error}"),
            (got, _) => panic!("{message}: {got:?}"),
        }
    }

    fn request(method: &str, params: &str) -> String {
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}"{params}}}"#)
    }

    #[test]
    fn sessions_of_messages() {
        let prompt = |params| request("session/prompt", params);
        check(&prompt(r#","params":{"sessionId":"a"}"#), None, Ok((Some("a"), json!({"sessionId": "a"}))));
        check(
            &prompt(r#","params":{"sessionId":"a"}"#),
            Some("a"),
            Ok((Some("a"), json!({"sessionId": "a"}))),
        );
        check(&prompt(r#","params":{"sessionId":"a"}"#), Some("b"), Err("different sessions"));
        check(&prompt(r#","params":{}"#), Some("b"), Ok((Some("b"), json!({"sessionId": "b"}))));
        check(
            &prompt(r#","params": { "x" : 1 } "#),
            Some("b"),
            Ok((Some("b"), json!({"sessionId": "b", "x": 1}))),
        );
        check(&prompt(r#","params":null"#), Some("b"), Ok((Some("b"), json!({"sessionId": "b"}))));
        check(&prompt(""), Some("b\"c"), Ok((Some("b\"c"), json!({"sessionId": "b\"c"}))));
        check(&prompt(r#","params":{"sessionId":7}"#), Some("b"), Err("cannot add a session"));
        check(&prompt(r#","params":["a"]"#), Some("b"), Err("cannot add a session"));
        check(&prompt(r#","params":{}"#), None, Err("no session"));
        check(&prompt(""), None, Err("no session"));
        // Messages of the connection get no session from the header.
        check(
            &request("session/new", r#","params":{"cwd":"/"}"#),
            Some("b"),
            Ok((None, json!({"cwd": "/"}))),
        );
        check(
            &request("$/cancel_request", r#","params":{"requestId":1}"#),
            Some("b"),
            Ok((None, json!({"requestId": 1}))),
        );
        check(&request("_x/y", r#","params":{}"#), Some("b"), Ok((Some("b"), json!({"sessionId": "b"}))));
        check(&request("_x/y", r#","params":[1]"#), Some("b"), Ok((Some("b"), json!([1]))));
        check(&request("_x/y", r#","params":{}"#), None, Ok((None, json!({}))));
        check(&request("$/x", r#","params":{}"#), Some("b"), Ok((None, json!({}))));
        check(
            &request("_x/y", r#","params":{"sessionId":"a"}"#),
            None,
            Ok((Some("a"), json!({"sessionId": "a"}))),
        );
        check(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#, Some("b"), Ok((None, Value::Null)));
    }

    proptest! {
        #[test]
        fn a_session_is_put_in_and_nothing_else_changes(session: String, key in "[a-r]{1,8}", text: String, pretty: bool) {
            let value = json!({"jsonrpc": "2.0", "id": 1, "method": "session/prompt", "params": {key.clone(): text}});
            let message = if pretty { format!("{value:#}") } else { value.to_string() };
            let view = View::parse(message.as_bytes());
            let (line, of) = addressed(&view, Some(&session)).unwrap();
            prop_assert_eq!(of.as_deref(), Some(&*session));
            let mut expected = value.clone();
            expected["params"]["sessionId"] = json!(session);
            prop_assert_eq!(serde_json::from_slice::<Value>(&line).unwrap(), expected);
        }
    }
}
