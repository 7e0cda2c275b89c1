//! A link over the Streamable HTTP profile: messages are sent by POST and received from event streams.

mod conversation;
mod event_stream;
mod post;
mod sse;

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::{Bytes, BytesMut};
use narrows_link::{CloseReason, IncomingFrames, OutgoingLines};
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, COOKIE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, RequestBuilder, Response, StatusCode, redirect};
use tokio::time::{Instant, sleep, timeout};
use url::Url;

use super::backoff::Backoff;
use super::cookies::Cookies;
use super::state::OutageTracker;
use super::{ClientOptions, ConnectionLost, DialError, Target, connect, reconnect, tls_roots};
use conversation::Conversation;

const CONNECTION: HeaderName = HeaderName::from_static("acp-connection-id");
const SESSION: HeaderName = HeaderName::from_static("acp-session-id");
const LAST_EVENT: HeaderName = HeaderName::from_static("last-event-id");
/// The header in which the client numbers a POST, so that the server can deduplicate it.
const POST: HeaderName = HeaderName::from_static("narrows-post");
const POSTS: HeaderName = HeaderName::from_static("narrows-posts");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const EVENTS: HeaderValue = HeaderValue::from_static("text/event-stream");

const MAX_ERROR_BODY_BYTES: usize = 4096;

pub(super) struct HttpClient {
    requester: Arc<HttpRequester>,
}

impl HttpClient {
    pub(super) fn new(url: &Url, options: &ClientOptions, outages: OutageTracker) -> Result<Self, DialError> {
        let target = Target::Http(url.clone());
        let bearer = connect::bearer_header(&target, options)?;
        connect::check_client_certificate(&target, options)?;
        let tls = match url.scheme() {
            "https" => tls_roots::config(options, &["h2", "http/1.1"])?,
            _ => tls_roots::config_without_roots()?,
        };
        // Keepalives close a dead HTTP connection within the silence timeout. Without them, each attempt
        // would reuse it.
        let third = options.silence_timeout / 3;
        let http = reqwest::Client::builder()
            .user_agent(connect::USER_AGENT_VALUE)
            .connect_timeout(options.connect_timeout)
            .tcp_nodelay(true)
            .tcp_keepalive(third)
            .tcp_keepalive_interval(third)
            .tcp_user_timeout(third * 2)
            .http2_keep_alive_interval(third)
            .http2_keep_alive_timeout(third)
            .http2_keep_alive_while_idle(true)
            .referer(false)
            .redirect(redirect::Policy::none())
            .tls_backend_preconfigured(tls)
            .no_proxy()
            .build()
            .map_err(|error| DialError::Io(causes(&error)))?;
        let (url, options) = (url.clone(), options.clone());
        let (cookies, posts) = (Cookies::default(), AtomicU64::new(0));
        Ok(Self {
            requester: Arc::new(HttpRequester { url, http, bearer, cookies, posts, options, outages }),
        })
    }

    /// Carries messages until the link's user is done or the connection is lost for good.
    pub(super) async fn run(
        self,
        mut outgoing: OutgoingLines,
        incoming: IncomingFrames,
    ) -> Result<(), ConnectionLost> {
        let requester = Arc::clone(&self.requester);
        let mut conversation = Conversation::new(self.requester);
        let abandoned = outgoing.abandoned();
        let result = tokio::select! {
            biased;
            () = abandoned => Ok(()),
            result = conversation.run(&mut outgoing, &incoming) => result,
        };
        match result {
            Ok(()) => {
                conversation.close().await;
                incoming.close(CloseReason::Local);
                Ok(())
            }
            Err(lost) => {
                let lost = match lost {
                    ConnectionLost::Dial(error) => {
                        ConnectionLost::Dial(error.with_credentials(&requester.options))
                    }
                    lost => lost,
                };
                let lost = if conversation.is_begun() { lost.into_reconnect_error() } else { lost };
                let answers = conversation.fail_pending(&lost);
                reconnect::fail_link(&lost, answers, &mut outgoing, incoming).await;
                Err(lost)
            }
        }
    }
}

struct HttpRequester {
    url: Url,
    http: reqwest::Client,
    bearer: Option<HeaderValue>,
    cookies: Cookies,
    /// The number of the next POST; 0 if the server does not deduplicate POSTs.
    posts: AtomicU64,
    options: ClientOptions,
    outages: OutageTracker,
}

impl HttpRequester {
    fn next_post_number(&self) -> Option<u64> {
        let counted = |next: u64| (next > 0).then_some(next + 1);
        self.posts.fetch_update(Ordering::Relaxed, Ordering::Relaxed, counted).ok()
    }

    fn deduplicates(&self) -> bool {
        self.posts.load(Ordering::Relaxed) > 0
    }

    /// Returns `true` if a response seems to come from the server and not from a proxy.
    fn is_from_server(&self, headers: &HeaderMap) -> bool {
        !self.deduplicates() || headers.contains_key(POSTS)
    }

    fn status_error(&self, status: u16, headers: &HeaderMap, body: &[u8]) -> DialError {
        match status {
            // These statuses mean the same from a server and from a proxy.
            401 | 403 | 408 | 413 | 425 | 429 | 500.. => DialError::from_status(status, headers, body),
            _ if !self.is_from_server(headers) => DialError::ProxyResponse(status),
            _ => DialError::from_status(status, headers, body),
        }
    }

    fn request(&self, method: Method, connection: Option<&str>, session: Option<&str>) -> RequestBuilder {
        let mut headers = HeaderMap::new();
        headers.extend(self.bearer.clone().map(|bearer| (AUTHORIZATION, bearer)));
        headers.extend(self.cookies.header().map(|cookies| (COOKIE, cookies)));
        // If a header cannot carry the session id, the header is left out. The message also contains the id.
        let value = |text: Option<&str>| text.and_then(|text| HeaderValue::from_str(text).ok());
        headers.extend(value(connection).map(|connection| (CONNECTION, connection)));
        headers.extend(value(session).map(|session| (SESSION, session)));
        self.http.request(method, self.url.clone()).headers(headers)
    }

    async fn send(&self, request: RequestBuilder) -> Result<Response, DialError> {
        let response = request.send().await.map_err(|error| self.request_error(&error))?;
        self.cookies.store(response.headers());
        Ok(response)
    }

    /// Sends `initialize`. Returns the connection id, if the server assigns one, and the response. `reached`
    /// is set once the server may have received the request.
    ///
    /// If the connection is cut or there is no response, the attempt is repeated within the grace period. A
    /// connection whose response was lost is deleted here if its id is known. Otherwise the server ends that
    /// connection, because no client reads its streams.
    async fn initialize(
        &self,
        line: &Bytes,
        reached: &AtomicBool,
    ) -> Result<(Option<String>, Bytes), ConnectionLost> {
        let grace = self.options.grace_period;
        let deadline = Instant::now() + grace;
        let (mut backoff, mut missing, mut silent_closes) = (Backoff::new(), None, 0);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let limit = self.options.initialize_timeout.min(left);
            let answered = timeout(limit, self.post_initialize(line.clone(), reached)).await;
            let last = match answered.unwrap_or(Err(DialError::Unanswered(limit))) {
                Ok(begun) => return Ok(begun),
                Err(error) => error,
            };
            let is_cut = matches!(last, DialError::ConnectionCut(_));
            let is_stalled = matches!(last, DialError::Unanswered(_));
            if last.is_final() || missing.is_none() && !is_cut && !is_stalled {
                return Err(ConnectionLost::Dial(last));
            }
            silent_closes = if is_cut { silent_closes + 1 } else { 0 };
            if silent_closes >= reconnect::MAX_SILENT_CLOSES {
                return Err(ConnectionLost::Dial(DialError::ClosedSilently));
            }
            tracing::debug!(error = %last, "connection attempt failed");
            missing.get_or_insert_with(|| self.outages.record_loss(Instant::now(), deadline));
            let left = deadline.saturating_duration_since(Instant::now());
            let wait = backoff.after_failure(&last, left, self.options.connect_timeout);
            if wait >= left {
                return Err(ConnectionLost::Grace { grace, last });
            }
            sleep(wait).await;
        }
    }

    async fn post_initialize(
        &self,
        line: Bytes,
        reached: &AtomicBool,
    ) -> Result<(Option<String>, Bytes), DialError> {
        let request =
            self.request(Method::POST, None, None).header(CONTENT_TYPE, JSON).header(ACCEPT, JSON).body(line);
        let before = reached.swap(true, Ordering::Relaxed);
        let response = match request.send().await {
            Ok(response) => response,
            Err(error) => {
                reached.store(before || !error.is_connect(), Ordering::Relaxed);
                return Err(self.request_error(&error));
            }
        };
        self.cookies.store(response.headers());
        let (status, headers) = (response.status(), response.headers().clone());
        let connection =
            response.headers().get(CONNECTION).and_then(|name| name.to_str().ok()).map(str::to_owned);
        if headers.contains_key(POSTS) {
            self.posts.store(1, Ordering::Relaxed);
        }
        let most = if status == StatusCode::OK { self.options.link.max_line } else { MAX_ERROR_BODY_BYTES };
        let body = match read_body(response, most).await {
            Ok(body) => body,
            Err(error) => {
                if let Some(connection) = connection {
                    self.delete_connection(&connection).await;
                }
                return Err(error);
            }
        };
        match status {
            StatusCode::OK => Ok((connection, body)),
            status => {
                // The server has not processed a request that it answers with one of these statuses.
                if matches!(status.as_u16(), 408 | 425 | 429 | 503) {
                    reached.store(before, Ordering::Relaxed);
                }
                Err(DialError::from_status(status.as_u16(), &headers, &body))
            }
        }
    }

    /// Ends a connection. Errors are ignored: the server ends a connection without a reader after its grace
    /// period.
    async fn delete_connection(&self, connection: &str) {
        let request = self.request(Method::DELETE, Some(connection), None);
        let _ = timeout(reconnect::CLOSE_TIMEOUT, request.send()).await;
    }

    async fn open_stream(
        &self,
        connection: &str,
        session: Option<&str>,
        last: Option<&str>,
    ) -> Result<Response, DialError> {
        let mut request = self.request(Method::GET, Some(connection), session).header(ACCEPT, EVENTS);
        if let Some(last) = last.and_then(|last| HeaderValue::from_str(last).ok()) {
            request = request.header(LAST_EVENT, last);
        }
        let limit = self.options.connect_timeout;
        let answered = timeout(limit, self.send(request)).await;
        let response = answered.unwrap_or(Err(DialError::Timeout(limit)))?;
        match response.status() {
            StatusCode::OK if self.is_from_server(response.headers()) => Ok(response),
            status => {
                let headers = response.headers().clone();
                let body = timeout(limit, read_body(response, MAX_ERROR_BODY_BYTES))
                    .await
                    .ok()
                    .and_then(Result::ok)
                    .unwrap_or_default();
                Err(self.status_error(status.as_u16(), &headers, &body))
            }
        }
    }

    fn request_error(&self, error: &reqwest::Error) -> DialError {
        let place = self.url.host_str().unwrap_or_default();
        if error.is_timeout() && error.is_connect() {
            return DialError::Timeout(self.options.connect_timeout);
        }
        let mut cause: Option<&(dyn Error + 'static)> = Some(error);
        while let Some(now) = cause {
            if let Some(error) = now.downcast_ref::<io::Error>() {
                let found = DialError::from_io(error, self.url.authority());
                if !matches!(found, DialError::Io(_)) {
                    return found;
                }
            }
            if now.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_parse) {
                return DialError::NotHttp;
            }
            if now.to_string() == "dns error" {
                return DialError::Name(
                    place.to_owned(),
                    now.source().map(ToString::to_string).unwrap_or_default(),
                );
            }
            cause = now.source();
        }
        let words = causes(error);
        let other =
            |words| if error.is_connect() { DialError::Io(words) } else { DialError::ConnectionCut(words) };
        DialError::from_alert_text(&words).unwrap_or_else(|| other(words))
    }
}

async fn read_body(mut response: Response, most: usize) -> Result<Bytes, DialError> {
    let mut body = BytesMut::new();
    while let Some(chunk) =
        response.chunk().await.map_err(|error| DialError::ConnectionCut(causes(&error)))?
    {
        if body.len() + chunk.len() > most {
            return Err(DialError::Io("the response is too long".to_owned()));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body.freeze())
}

/// Formats the causes of an error without the URL, which may contain a secret.
fn causes(error: &reqwest::Error) -> String {
    let mut cause: Option<&dyn Error> = error.source();
    let mut words = Vec::new();
    while let Some(now) = cause {
        words.push(now.to_string());
        cause = now.source();
    }
    if words.is_empty() { "the HTTP request failed".to_owned() } else { words.join(": ") }
}
