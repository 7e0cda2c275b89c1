//! Streamable HTTP: connects to an endpoint, and limits the bytes read from its answers.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt, future};
use narrows_process::Environment;
use reqwest::header::{
    ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, WWW_AUTHENTICATE,
};
use reqwest::redirect::{Attempt, Policy};
use reqwest::{NoProxy, Proxy, StatusCode, Url};
use rmcp::model::{ClientJsonRpcMessage, JsonRpcMessage};
use rmcp::transport::common::client_side_sse::{BoxedSseResponse, ExponentialBackoff};
use rmcp::transport::common::http_header::{EVENT_STREAM_MIME_TYPE, HEADER_SESSION_ID, JSON_MIME_TYPE};
use rmcp::transport::streamable_http_client::{
    AuthRequiredError, StreamableHttpClient, StreamableHttpClientTransportConfig, StreamableHttpError,
    StreamableHttpPostResponse,
};
use rmcp::transport::{StreamableHttpClientTransport, WorkerTransport};
use rustls::{ClientConfig, RootCertStore};
use sse_stream::{Error as SseError, Sse, SseStream};

use crate::stdio_transport::MAX_MESSAGE_BYTES;
use crate::text::{clipped, error_chain};
use crate::verbatim::Verbatim;

const MAX_REDIRECTS: usize = 5;
/// Maximum number of characters that are quoted from an error body.
const MAX_REFUSAL_CHARS: usize = 200;
/// Maximum number of attempts to reopen a lost event stream.
const MAX_REOPENS: usize = 8;
const MAX_REOPEN_DELAY: Duration = Duration::from_secs(30);

#[derive(Debug, thiserror::Error)]
pub(crate) enum HttpError {
    #[error("the URL of the server is not an HTTP URL")]
    Address,
    #[error("invalid header {0:?}")]
    Header(String),
    #[error("{0}")]
    Client(String),
}

/// Returns a transport to the endpoint. Nothing is sent yet.
pub(crate) fn transport(
    url: &str,
    headers: &[(String, String)],
    env: &Environment,
    connect_limit: Duration,
    verbatim: Verbatim,
) -> Result<StreamableHttpClientTransport<HttpClient>, HttpError> {
    let url = Url::parse(url).map_err(|_| HttpError::Address)?;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err(HttpError::Address);
    }
    let http = client(url.scheme() == "https", env, connect_limit)?;
    let client = HttpClient { http, limit: MAX_MESSAGE_BYTES, verbatim };
    let mut retry = ExponentialBackoff::default();
    retry.max_times = Some(MAX_REOPENS);
    retry.max_delay = Some(MAX_REOPEN_DELAY);
    let mut config = StreamableHttpClientTransportConfig::with_uri(url.as_str())
        .custom_headers(allowed_headers(headers)?)
        .max_sse_event_size(MAX_MESSAGE_BYTES);
    config.retry_config = Arc::new(retry);
    Ok(WorkerTransport::spawn(rmcp::transport::streamable_http_client::StreamableHttpClientWorker::new(
        client, config,
    )))
}

/// Returns the configured headers, without those that the transport sets itself.
fn allowed_headers(headers: &[(String, String)]) -> Result<HashMap<HeaderName, HeaderValue>, HttpError> {
    const TRANSPORT_HEADERS: [&str; 6] =
        ["accept", "content-type", "content-length", "host", "last-event-id", "mcp-session-id"];
    let mut map = HashMap::new();
    for (name, value) in headers {
        let refused = || HttpError::Header(name.clone());
        let key = HeaderName::from_bytes(name.as_bytes()).map_err(|_| refused())?;
        let mut value = HeaderValue::from_str(value).map_err(|_| refused())?;
        value.set_sensitive(true);
        if TRANSPORT_HEADERS.contains(&key.as_str()) {
            tracing::debug!(header = %key, "reserved header of an MCP server ignored");
            continue;
        }
        map.insert(key, value);
    }
    Ok(map)
}

fn client(tls: bool, env: &Environment, connect_limit: Duration) -> Result<reqwest::Client, HttpError> {
    let proxies = proxies(env);
    let mut builder = reqwest::Client::builder()
        .connect_timeout(connect_limit)
        .redirect(Policy::custom(
            |attempt| if keeps_origin(&attempt) { attempt.follow() } else { attempt.stop() },
        ))
        // This call also makes the client ignore the environment of this process. Only the session's
        // environment counts.
        .no_proxy();
    if tls || !proxies.is_empty() {
        // reqwest uses the TLS provider of the process. Installing fails if the process has one already.
        _ = rustls::crypto::ring::default_provider().install_default();
    } else {
        // Redirects cannot lead to TLS, so no certificates need to be loaded.
        builder = builder.tls_backend_preconfigured(tls_without_roots()?);
    }
    for proxy in proxies {
        builder = builder.proxy(proxy);
    }
    builder.build().map_err(|error| HttpError::Client(error_chain(&error)))
}

fn tls_without_roots() -> Result<ClientConfig, HttpError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| HttpError::Client(error_chain(&error)))?;
    Ok(config.with_root_certificates(RootCertStore::empty()).with_no_client_auth())
}

/// Returns `true` if a redirect stays within the origin for which the headers are configured.
fn keeps_origin(attempt: &Attempt<'_>) -> bool {
    let Some(first) = attempt.previous().first() else { return false };
    // Redirects with other status codes turn a POST into a GET.
    let repeats = matches!(attempt.status(), StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT);
    repeats && attempt.previous().len() <= MAX_REDIRECTS && first.origin() == attempt.url().origin()
}

fn proxies(env: &Environment) -> Vec<Proxy> {
    let get = |names: [&str; 2]| {
        let value = names.iter().find_map(|name| env.get(name)).and_then(|value| value.to_str());
        value.map(str::trim).filter(|value| !value.is_empty())
    };
    let except = get(["no_proxy", "NO_PROXY"]).and_then(NoProxy::from_string);
    let given = [
        get(["http_proxy", "HTTP_PROXY"]).map(Proxy::http),
        get(["https_proxy", "HTTPS_PROXY"]).map(Proxy::https),
        get(["all_proxy", "ALL_PROXY"]).map(Proxy::all),
    ];
    let mut proxies = Vec::new();
    for proxy in given.into_iter().flatten() {
        match proxy {
            Ok(proxy) => proxies.push(proxy.no_proxy(except.clone())),
            Err(_) => tracing::warn!("invalid URL in a proxy variable"),
        }
    }
    proxies
}

type Error = StreamableHttpError<reqwest::Error>;

/// A client like rmcp's own for reqwest, with a size limit for the answer to a POST.
#[derive(Debug, Clone)]
pub(crate) struct HttpClient {
    http: reqwest::Client,
    limit: usize,
    verbatim: Verbatim,
}

impl StreamableHttpClient for HttpClient {
    type Error = reqwest::Error;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, Error> {
        let limit = self.limit;
        self.post_message_with_max_sse_event_size(
            uri,
            message,
            session_id,
            auth_header,
            custom_headers,
            limit,
        )
        .await
    }

    async fn post_message_with_max_sse_event_size(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
        limit: usize,
    ) -> Result<StreamableHttpPostResponse, Error> {
        let mut headers: HeaderMap = custom_headers.into_iter().collect();
        if let Some(token) = auth_header {
            headers.insert(AUTHORIZATION, header_value(&format!("Bearer {token}"))?);
        }
        let in_session = session_id.is_some();
        if let Some(session) = session_id {
            headers.insert(HeaderName::from_static("mcp-session-id"), header_value(&session)?);
        }
        headers.insert(ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(JSON_MIME_TYPE));
        let body = serde_json::to_vec(&message)?;
        let response = self.http.post(&*uri).headers(headers).body(body).send().await;
        // The URL is removed from the error, because users see the error and the query may contain a secret.
        let response = response.map_err(reqwest::Error::without_url)?;
        let asked = matches!(message, JsonRpcMessage::Request(_));
        read_response(response, asked, in_session, limit, &self.verbatim).await
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), Error> {
        self.http.delete_session(uri, session_id, auth_header, custom_headers).await
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<BoxedSseResponse, Error> {
        let stream = self.http.get_stream_with_max_sse_event_size(
            uri,
            session_id,
            last_event_id,
            auth_header,
            custom_headers,
            self.limit,
        );
        Ok(seal_events(stream.await?, self.verbatim.clone()))
    }
}

/// Describes a failed request with its cause, which rmcp omits.
pub(crate) fn error_text(error: &(dyn std::error::Error + 'static)) -> String {
    match error.downcast_ref::<Error>() {
        Some(StreamableHttpError::Client(error)) => error_chain(error),
        _ => error_chain(error),
    }
}

fn header_value(text: &str) -> Result<HeaderValue, Error> {
    HeaderValue::from_str(text).map_err(|_| unexpected("its id is not a valid header value"))
}

fn unexpected(what: impl Into<Cow<'static, str>>) -> Error {
    StreamableHttpError::UnexpectedServerResponse(what.into())
}

async fn read_response(
    response: reqwest::Response,
    asked: bool,
    in_session: bool,
    limit: usize,
    verbatim: &Verbatim,
) -> Result<StreamableHttpPostResponse, Error> {
    let status = response.status();
    let header = |name| response.headers().get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
        && let Some(challenge) = header(WWW_AUTHENTICATE.as_str())
    {
        let challenge = clipped(challenge, MAX_REFUSAL_CHARS);
        return Err(StreamableHttpError::AuthRequired(AuthRequiredError::new(challenge)));
    }
    match status {
        StatusCode::ACCEPTED | StatusCode::NO_CONTENT => return Ok(StreamableHttpPostResponse::Accepted),
        StatusCode::NOT_FOUND if in_session => return Err(StreamableHttpError::SessionExpired),
        status if status.is_redirection() => {
            return Err(unexpected(format!(
                "HTTP {status}: only redirects that repeat the request at the same host are followed"
            )));
        }
        _ => {}
    }
    let session = header(HEADER_SESSION_ID).map(str::to_owned);
    let kind = header(CONTENT_TYPE.as_str()).unwrap_or_default().to_ascii_lowercase();
    if status.is_success() && kind.starts_with(EVENT_STREAM_MIME_TYPE) {
        let events = limit_stream(response.bytes_stream(), limit);
        let events = seal_events(SseStream::from_bytes_stream(events).boxed(), verbatim.clone());
        return Ok(StreamableHttpPostResponse::Sse(events, session));
    }
    let body = read_body(response, limit).await?;
    let message = verbatim.read(&body).or_else(|| serde_json::from_slice(&body).ok());
    if !status.is_success() {
        return match message {
            Some(message @ JsonRpcMessage::Error(_)) => {
                Ok(StreamableHttpPostResponse::Json(message, session))
            }
            _ => {
                let said = clipped(
                    &String::from_utf8_lossy(&body[..body.len().min(4 * MAX_REFUSAL_CHARS)]),
                    MAX_REFUSAL_CHARS,
                );
                Err(unexpected(format!("HTTP {status}: {said}")))
            }
        };
    }
    match message {
        Some(message) => Ok(StreamableHttpPostResponse::Json(message, session)),
        None if !asked => Ok(StreamableHttpPostResponse::Accepted),
        None if kind.starts_with(JSON_MIME_TYPE) => Err(unexpected("its response cannot be read")),
        None => Err(StreamableHttpError::UnexpectedContentType(Some(clipped(&kind, MAX_REFUSAL_CHARS)))),
    }
}

/// Seals results in an event stream that must be returned without changes.
fn seal_events(events: BoxedSseResponse, verbatim: Verbatim) -> BoxedSseResponse {
    let seal = move |event: Result<Sse, SseError>| {
        let mut event = event?;
        if let Some(text) = event.data.as_deref().and_then(|text| verbatim.seal(text)) {
            event.data = Some(text);
        }
        Ok(event)
    };
    events.map(seal).boxed()
}

async fn read_body(mut response: reqwest::Response, limit: usize) -> Result<Vec<u8>, Error> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(reqwest::Error::without_url)? {
        if body.len() + chunk.len() > limit {
            return Err(unexpected(format!("its response exceeds {limit} bytes")));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// Forwards a stream up to the first event that exceeds the limit, and then an error.
fn limit_stream(
    stream: impl Stream<Item = reqwest::Result<Bytes>> + Send + 'static,
    limit: usize,
) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
    let meter = Some(Meter::new(limit));
    stream.scan(meter, |state, chunk| {
        let Some(meter) = state else { return future::ready(None) };
        let item = chunk.map_err(io::Error::other).and_then(|chunk| {
            if meter.fits(&chunk) { Ok(chunk) } else { Err(io::Error::other("event too long")) }
        });
        if item.is_err() {
            *state = None;
        }
        future::ready(Some(item))
    })
}

/// Counts the bytes of the current event. An empty line ends an event.
struct Meter {
    limit: usize,
    event: usize,
    line: usize,
    /// `true` if the last byte was a carriage return. A line feed after it belongs to the same line end.
    returned: bool,
}

impl Meter {
    fn new(limit: usize) -> Self {
        Self { limit, event: 0, line: 0, returned: false }
    }

    fn fits(&mut self, chunk: &[u8]) -> bool {
        for byte in chunk {
            let second = std::mem::replace(&mut self.returned, *byte == b'\r') && *byte == b'\n';
            match byte {
                _ if second => {}
                b'\n' | b'\r' if self.line == 0 => self.event = 0,
                b'\n' | b'\r' => self.line = 0,
                _ => {
                    self.line += 1;
                    self.event += 1;
                }
            }
            if self.event > self.limit {
                return false;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_event_over_the_limit_is_found_for_any_split() {
        #[track_caller]
        fn check(chunks: &[&str], limit: usize, expected: bool) {
            let mut meter = Meter::new(limit);
            assert_eq!(chunks.iter().all(|chunk| meter.fits(chunk.as_bytes())), expected, "{chunks:?}");
        }
        check(&["data: a\n\ndata: b\n\n"], 7, true);
        check(&["data: a\r\n", "\r\ndata: b\r\n\r\n"], 7, true);
        check(&["data: aa\n\n"], 7, false);
        check(&["data", ": aaaa"], 7, false);
        check(&["data: a\n", "data: a\n\n"], 13, false);
        check(&["data: a\r", "\ndata: a\r\n\r\n"], 13, false);
        check(&["data: a\n", "data: a\n\n"], 14, true);
    }

    proptest! {
        /// An event is refused exactly if it has more bytes than the limit.
        #[test]
        fn an_event_fits_exactly_if_within_the_limit(text in "[ab\\n]{0,80}", limit in 0usize..10) {
            let mut meter = Meter::new(limit);
            let longest = text.split("\n\n").map(|event| event.replace('\n', "").len()).max().unwrap_or(0);
            prop_assert_eq!(meter.fits(text.as_bytes()), longest <= limit);
        }
    }

    #[test]
    fn headers() {
        let pair = |name: &str, value: &str| vec![(name.to_owned(), value.to_owned())];
        let map = allowed_headers(&pair("X-Key", "hunter2")).unwrap();
        assert_eq!(map[&HeaderName::from_static("x-key")], "hunter2");
        assert!(!format!("{map:?}").contains("hunter2"));
        assert!(allowed_headers(&pair("Host", "elsewhere")).unwrap().is_empty());
        assert!(allowed_headers(&pair("two words", "x")).is_err());
        assert!(allowed_headers(&pair("x", "two\nlines")).is_err());
    }

    #[test]
    fn proxies_come_from_the_session() {
        #[track_caller]
        fn check(variables: &[(&str, &str)], expected: usize) {
            let mut env = Environment::empty();
            env.extend(variables.iter().copied());
            assert_eq!(proxies(&env).len(), expected, "{variables:?}");
        }
        check(&[], 0);
        check(&[("http_proxy", "http://127.0.0.1:1"), ("HTTPS_PROXY", "http://127.0.0.1:1")], 2);
        check(&[("ALL_PROXY", " "), ("http_proxy", "http://[")], 0);
    }

    #[tokio::test]
    async fn addresses() {
        for url in ["", "mcp", "file:///etc/passwd", "ftp://host/", "http://"] {
            let result =
                transport(url, &[], &Environment::empty(), Duration::from_secs(1), Verbatim::default());
            assert!(matches!(result, Err(HttpError::Address)), "{url:?}");
        }
    }
}
