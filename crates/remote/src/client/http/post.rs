//! Posting one message, as often as it takes and may be.

use bytes::Bytes;
use narrows_wire::{Code, Effects, Frame, Kind, RpcError, message};
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap};
use reqwest::{Method, StatusCode};
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};

use super::super::backoff::Backoff;
use super::super::{DialError, Lost};
use super::{JSON, POST, WORDS, Wire, body};

/// What came of it.
pub(super) enum Posted {
    /// The server has taken it; what it says at once, if it does.
    Taken(Option<Frame>),
    /// The server has not, or it is not known whether it has; the answer to the request, if it was one.
    Failed(Option<Frame>),
    /// The connection is lost.
    Lost(Lost),
}

/// What one attempt comes to.
enum Tried {
    Posted(Posted),
    /// Nothing has happened: the same may be tried again.
    Undone(DialError),
    /// Something may have happened.
    Doubtful(DialError),
}

/// Posts `line`. Where the server does not count posts, a request is posted anew only if it certainly was not taken; anything else
/// may arrive twice, which does no harm.
pub(super) async fn post(wire: &Wire, connection: &str, session: Option<&str>, line: Bytes) -> Posted {
    let frame = Frame::parse(line);
    let grace = wire.options.grace;
    let deadline = Instant::now() + grace;
    let mut backoff = Backoff::new();
    let mut missing = None;
    let number = wire.number();
    loop {
        let last = match attempt(wire, connection, session, &frame, number).await {
            Tried::Posted(posted) => return posted,
            Tried::Undone(error) => error,
            Tried::Doubtful(error) if is_old(&error) || number.is_none() && frame.kind() == Kind::Request => {
                let why = format!("it is not known whether the request has arrived: {error}");
                let error = RpcError::new(Code::WorkerLost, why).effects(Effects::Possible);
                return Posted::Failed(answer(&frame, &error));
            }
            Tried::Doubtful(error) => error,
        };
        if last.is_final() {
            return Posted::Lost(Lost::Dial(last));
        }
        // Whoever answers is there.
        if !matches!(last, DialError::Status { .. }) {
            missing.get_or_insert_with(|| wire.watch.lost(Instant::now(), deadline));
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let wait = backoff.after(&last, left, wire.options.connect);
        if wait >= left {
            return Posted::Lost(Lost::Grace { grace, last });
        }
        sleep(wait).await;
    }
}

/// Whether the server does not know any more either.
fn is_old(error: &DialError) -> bool {
    matches!(error, DialError::Status { status: 410, .. })
}

async fn attempt(
    wire: &Wire,
    connection: &str,
    session: Option<&str>,
    frame: &Frame,
    number: Option<u64>,
) -> Tried {
    let mut request = wire
        .request(Method::POST, Some(connection), session)
        .header(CONTENT_TYPE, JSON)
        .header(ACCEPT, JSON)
        .body(frame.bytes().clone());
    if let Some(number) = number {
        request = request.header(POST, number);
    }
    let limit = wire.options.silence;
    let response = match timeout(limit, request.send()).await {
        Ok(Ok(response)) => response,
        Ok(Err(error)) if error.is_connect() => return Tried::Undone(wire.failed(&error)),
        Ok(Err(error)) => return Tried::Doubtful(wire.failed(&error)),
        Err(_) => return Tried::Doubtful(DialError::Timeout(limit)),
    };
    wire.cookies.keep(response.headers());
    let (status, headers) = (response.status(), response.headers().clone());
    let most = if status == StatusCode::OK { wire.options.link.max_line } else { WORDS };
    let body = timeout(limit, body(response, most)).await.ok().and_then(Result::ok).unwrap_or_default();
    judge(frame, status.as_u16(), &headers, body)
}

/// What a status means.
fn judge(frame: &Frame, status: u16, headers: &HeaderMap, body: Bytes) -> Tried {
    let error = DialError::of_status(status, headers, &body);
    let said = Some(Frame::parse(body)).filter(|said| matches!(said.kind(), Kind::Response | Kind::Batch));
    let code = match status {
        200..=299 => return Tried::Posted(Posted::Taken(said)),
        401 | 403 => return Tried::Posted(Posted::Lost(Lost::Dial(error))),
        404 => return Tried::Posted(Posted::Lost(Lost::Forgotten)),
        408 | 425 | 429 | 503 => return Tried::Undone(error),
        410 | 500.. => return Tried::Doubtful(error),
        413 => Code::MessageTooLarge,
        _ => Code::InvalidRequest,
    };
    // The server's own words are better than ours, if they are about this.
    let said = said.filter(|said| said.id().is_some() && said.id() == frame.id());
    let refused = RpcError::new(code, error.to_string()).with("status", json!(status));
    Tried::Posted(Posted::Failed(said.or_else(|| answer(frame, &refused))))
}

/// The answer to a request that failed; nothing else is answered, but it is noted.
fn answer(frame: &Frame, error: &RpcError) -> Option<Frame> {
    match frame.kind() {
        Kind::Request => Some(Frame::parse(message::error(frame.id()?, error))),
        _ => {
            tracing::warn!(?frame, %error, "a message was not taken by the server");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(status: u16, body: &'static str, expected: &str) {
        let frame = Frame::parse(r#"{"jsonrpc":"2.0","id":7,"method":"m"}"#.into());
        let shown = match judge(&frame, status, &HeaderMap::new(), body.into()) {
            Tried::Posted(Posted::Taken(said)) => format!("taken {}", said.is_some()),
            Tried::Posted(Posted::Failed(answer)) => {
                let answer = answer.unwrap();
                assert_eq!(answer.id(), Some(b"7".as_slice()));
                format!("failed {}", answer.error().unwrap().code)
            }
            Tried::Posted(Posted::Lost(lost)) => format!("lost {lost}"),
            Tried::Undone(_) => "again".to_owned(),
            Tried::Doubtful(_) => "doubtful".to_owned(),
        };
        assert_eq!(shown, expected);
    }

    #[test]
    fn a_status_says_what_became_of_a_message() {
        check(202, "", "taken false");
        check(200, r#"{"jsonrpc":"2.0","id":7,"result":1}"#, "taken true");
        check(400, "what?", "failed -32600");
        check(400, r#"{"jsonrpc":"2.0","id":7,"error":{"code":-1,"message":"x"}}"#, "failed -1");
        check(400, r#"{"jsonrpc":"2.0","id":8,"error":{"code":-1,"message":"x"}}"#, "failed -32600");
        check(413, "", "failed -32013");
        check(404, "", "lost the server no longer knows it");
        check(401, "", "lost there is no connection");
        check(429, "", "again");
        check(503, "", "again");
        check(502, "", "doubtful");
        check(410, "", "doubtful");
    }
}
