//! Posts one message, with retries where that is safe.

use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use narrows_wire::{Code, Effects, Frame, Kind, RpcError, message};
use reqwest::header::{ACCEPT, CONTENT_TYPE};
use reqwest::{Method, StatusCode};
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};

use super::super::backoff::Backoff;
use super::super::{ConnectionLost, DialError};
use super::{HttpRequester, JSON, MAX_ERROR_BODY_BYTES, POST, read_body};

pub(super) enum PostOutcome {
    /// The server has accepted the message. Contains the response to the message, if the server sent it at
    /// once.
    Taken(Option<Frame>),
    /// The message was refused, or its outcome is unknown. Contains the error response for the sender if the
    /// message was a request.
    Failed(Option<Frame>),
    Lost(ConnectionLost),
}

enum PostAttempt {
    Posted(PostOutcome),
    /// The server has not processed the message, so it can be posted again.
    Undone(DialError),
    Doubtful(DialError),
    Refused(RpcError, Option<Frame>),
}

pub(super) struct Post<'a> {
    pub(super) connection: &'a str,
    pub(super) session: Option<&'a str>,
    pub(super) line: Bytes,
    /// Set to `true` once the server may have received the message.
    pub(super) reached: &'a AtomicBool,
}

/// Posts a message, and repeats failed attempts. If the server does not deduplicate POSTs, a request is
/// repeated only if it was certainly not processed. Other messages may arrive twice, which is harmless.
pub(super) async fn post(requester: &HttpRequester, post: Post<'_>) -> PostOutcome {
    let Post { connection, session, line, reached } = post;
    let mut frame = Frame::parse(line);
    let grace = requester.options.grace_period;
    let deadline = Instant::now() + grace;
    let mut backoff = Backoff::new();
    let mut missing = None;
    let number = requester.next_post_number();
    let mut doubted = false;
    loop {
        reached.store(true, Ordering::Relaxed);
        let last = match attempt(requester, connection, session, &frame, number).await {
            PostAttempt::Posted(posted) => return posted,
            PostAttempt::Refused(error, said) => match replacement(&frame, &error) {
                Some(other) => {
                    frame = other;
                    continue;
                }
                None => return PostOutcome::Failed(said.or_else(|| request_error(&frame, &error))),
            },
            PostAttempt::Doubtful(error) if number.is_none() && frame.kind() == Kind::Request => {
                return unknown_outcome(&frame, &error);
            }
            PostAttempt::Doubtful(error) => {
                doubted = true;
                error
            }
            PostAttempt::Undone(error) => error,
        };
        reached.store(doubted, Ordering::Relaxed);
        if last.is_final_for_reconnect() {
            return PostOutcome::Lost(ConnectionLost::Dial(last));
        }
        // A response with a status shows that the server is reachable, so it does not count as an outage.
        if !matches!(last, DialError::Status { .. }) {
            missing.get_or_insert_with(|| requester.outages.record_loss(Instant::now(), deadline));
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let wait = backoff.after_failure(&last, left, requester.options.connect_timeout);
        if wait >= left {
            return PostOutcome::Lost(ConnectionLost::Grace { grace, last });
        }
        sleep(wait).await;
    }
}

async fn attempt(
    requester: &HttpRequester,
    connection: &str,
    session: Option<&str>,
    frame: &Frame,
    number: Option<u64>,
) -> PostAttempt {
    let mut request = requester
        .request(Method::POST, Some(connection), session)
        .header(CONTENT_TYPE, JSON)
        .header(ACCEPT, JSON)
        .body(frame.bytes().clone());
    if let Some(number) = number {
        request = request.header(POST, number);
    }
    let limit = requester.options.silence_timeout;
    let response = match timeout(limit, request.send()).await {
        Ok(Ok(response)) => response,
        Ok(Err(error)) if error.is_connect() => return PostAttempt::Undone(requester.request_error(&error)),
        Ok(Err(error)) => return PostAttempt::Doubtful(requester.request_error(&error)),
        Err(_) => return PostAttempt::Doubtful(DialError::Timeout(limit)),
    };
    requester.cookies.store(response.headers());
    let (status, headers) = (response.status(), response.headers().clone());
    let most = if status == StatusCode::OK { requester.options.link.max_line } else { MAX_ERROR_BODY_BYTES };
    let body = timeout(limit, read_body(response, most)).await.ok().and_then(Result::ok).unwrap_or_default();
    let error = requester.status_error(status.as_u16(), &headers, &body);
    classify_status(frame, status.as_u16(), error, body, number.is_some())
}

/// Classifies the response to an attempt. `error` is the error for the `status`. `counts` is `true` if the
/// server deduplicates POSTs. Such a server accepts a message only with 202.
fn classify_status(frame: &Frame, status: u16, error: DialError, body: Bytes, counts: bool) -> PostAttempt {
    let said = Some(Frame::parse(body)).filter(|said| matches!(said.kind(), Kind::Response | Kind::Batch));
    let code = match status {
        202 => return PostAttempt::Posted(PostOutcome::Taken(said)),
        200..=299 if !counts => return PostAttempt::Posted(PostOutcome::Taken(said)),
        401 | 403 => return PostAttempt::Posted(PostOutcome::Lost(ConnectionLost::Dial(error))),
        408 | 425 | 429 | 503 => return PostAttempt::Undone(error),
        413 => Code::MessageTooLarge,
        _ if matches!(error, DialError::ProxyResponse(_)) => return PostAttempt::Doubtful(error),
        404 => return PostAttempt::Posted(PostOutcome::Lost(ConnectionLost::Forgotten)),
        // With 410 the server has forgotten the number of this post, so it cannot tell if it was processed.
        410 => return PostAttempt::Posted(unknown_outcome(frame, &error)),
        ..=299 | 500.. => return PostAttempt::Doubtful(error),
        _ => Code::InvalidRequest,
    };
    // If the body is an error response to this request, that error is more precise than one made from the
    // status.
    let said = said.filter(|said| said.id().is_some() && said.id() == frame.id());
    PostAttempt::Refused(RpcError::new(code, error.to_string()).with("status", json!(status)), said)
}

/// Returns the error response that replaces a response which the server rejected.
fn replacement(frame: &Frame, error: &RpcError) -> Option<Frame> {
    frame.result()?;
    tracing::warn!(?frame, %error, "response rejected by server");
    Some(Frame::parse(message::error(frame.id()?, error)))
}

fn unknown_outcome(frame: &Frame, error: &DialError) -> PostOutcome {
    let why = format!("unknown whether the request arrived: {error}");
    PostOutcome::Failed(request_error(
        frame,
        &RpcError::new(Code::WorkerLost, why).effects(Effects::Possible),
    ))
}

/// Returns the error response for a failed request. Logs the failure of any other message.
fn request_error(frame: &Frame, error: &RpcError) -> Option<Frame> {
    match frame.kind() {
        Kind::Request => Some(Frame::parse(message::error(frame.id()?, error))),
        _ => {
            tracing::warn!(?frame, %error, "message rejected by server");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use reqwest::header::HeaderMap;

    use super::*;

    #[track_caller]
    fn check(counts: bool, status: u16, body: &'static str, expected: &str) {
        let frame = Frame::parse(r#"{"jsonrpc":"2.0","id":7,"method":"m"}"#.into());
        let error = DialError::from_status(status, &HeaderMap::new(), body.as_bytes());
        assert_eq!(shown(classify_status(&frame, status, error, body.into(), counts)), expected);
    }

    fn shown(tried: PostAttempt) -> String {
        match tried {
            PostAttempt::Posted(PostOutcome::Taken(said)) => format!("taken {}", said.is_some()),
            PostAttempt::Posted(PostOutcome::Failed(answer)) => {
                format!("failed {}", answer.unwrap().error().unwrap().code)
            }
            PostAttempt::Posted(PostOutcome::Lost(lost)) => format!("lost {lost}"),
            PostAttempt::Refused(_, Some(said)) => {
                assert_eq!(said.id(), Some(b"7".as_slice()));
                format!("refused {}", said.error().unwrap().code)
            }
            PostAttempt::Refused(error, None) => format!("refused {}", error.code),
            PostAttempt::Undone(_) => "again".to_owned(),
            PostAttempt::Doubtful(_) => "doubtful".to_owned(),
        }
    }

    #[test]
    fn a_status_decides_whether_a_post_is_repeated() {
        for counts in [true, false] {
            check(counts, 202, "", "taken false");
            check(counts, 400, "what?", "refused -32600");
            check(counts, 400, r#"{"jsonrpc":"2.0","id":7,"error":{"code":-1,"message":"x"}}"#, "refused -1");
            check(
                counts,
                400,
                r#"{"jsonrpc":"2.0","id":8,"error":{"code":-1,"message":"x"}}"#,
                "refused -32600",
            );
            check(counts, 413, "", "refused -32013");
            check(counts, 404, "", "lost the server no longer knows the connection");
            check(counts, 401, "", "lost cannot connect");
            check(counts, 429, "", "again");
            check(counts, 503, "", "again");
            check(counts, 502, "", "doubtful");
            check(counts, 410, "", "failed -32010");
        }
        let answer = r#"{"jsonrpc":"2.0","id":7,"result":1}"#;
        check(false, 200, answer, "taken true");
        check(true, 200, answer, "doubtful");
        check(false, 204, "", "taken false");
        check(true, 204, "", "doubtful");
    }

    #[test]
    fn a_response_of_a_proxy_is_not_final() {
        let frame = Frame::parse(r#"{"jsonrpc":"2.0","id":7,"method":"m"}"#.into());
        for status in [200, 204, 302, 400, 404, 407, 410] {
            let tried = classify_status(&frame, status, DialError::ProxyResponse(status), Bytes::new(), true);
            assert_eq!(shown(tried), "doubtful", "{status}");
        }
    }

    #[test]
    fn a_refused_response_is_replaced_by_an_error_once() {
        let refused = RpcError::new(Code::MessageTooLarge, "too long");
        let answered = Frame::parse(r#"{"jsonrpc":"2.0","id":7,"result":1}"#.into());
        let other = replacement(&answered, &refused).unwrap();
        assert_eq!((other.id(), other.error().unwrap().code), (Some(b"7".as_slice()), -32013));
        assert!(replacement(&other, &refused).is_none());
    }
}
