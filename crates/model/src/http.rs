//! Sends requests. Every endpoint has one HTTP client, which is built on first use.

use std::fs;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::{Bytes, BytesMut};
use reqwest::header::{ACCEPT, CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderValue, LOCATION};
use reqwest::{Method, Proxy, Response, redirect};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use rustls_platform_verifier::Verifier;
use tokio::time::{Duration, Instant, timeout, timeout_at};
use url::Url;

use crate::provider::is_loopback;
use crate::{Endpoint, EndpointError, ErrorKind, Limits, ModelError, error_response};

const USER_AGENT: &str = concat!("narrows/", env!("CARGO_PKG_VERSION"));
const MAX_REDIRECTS: usize = 4;
/// Maximum time to wait for an error body after its status arrived.
const ERROR_BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for which an idle connection is kept for the next request.
const IDLE_CONNECTION_TIMEOUT: Duration = Duration::from_secs(90);

#[derive(Debug)]
pub(crate) struct Transport {
    authorities: Vec<CertificateDer<'static>>,
    proxy: Option<Proxy>,
    /// `true` if the endpoint or the proxy uses TLS.
    encrypted: bool,
    limits: Limits,
}

impl Transport {
    /// Checks the certificate authorities and the proxy of `endpoint`. `url` is the target of its requests.
    pub(crate) fn new(endpoint: &Endpoint, url: &Url) -> Result<Self, EndpointError> {
        let authorities = authorities(endpoint)?;
        // A proxy is never used for loopback addresses.
        let via = proxy_url(endpoint)?.filter(|_| !is_loopback(url));
        let encrypted = url.scheme() == "https" || via.as_ref().is_some_and(|via| via.scheme() == "https");
        let proxy = via.map(Proxy::all).transpose().map_err(|_| proxy_error("is not the URL of a proxy"))?;
        Ok(Self { authorities, proxy, encrypted, limits: endpoint.limits })
    }

    /// Builds the client. Reads the system's certificates if the endpoint uses TLS.
    pub(crate) fn build(&self, url: &Url) -> Result<reqwest::Client, ModelError> {
        let fail = |message: &str| ModelError::new(ErrorKind::Network, url.as_str(), message);
        let mut builder = reqwest::Client::builder()
            .user_agent(USER_AGENT)
            .connect_timeout(self.limits.connect)
            .pool_idle_timeout(IDLE_CONNECTION_TIMEOUT)
            .tcp_nodelay(true)
            .referer(false)
            .redirect(redirects())
            .tls_backend_preconfigured(self.tls().map_err(|error| fail(&error))?)
            .no_proxy();
        if let Some(proxy) = &self.proxy {
            builder = builder.proxy(proxy.clone());
        }
        builder.build().map_err(|error| fail(&error_chain(&error)))
    }

    fn tls(&self) -> Result<ClientConfig, String> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        let mut config = if self.encrypted {
            let verifier = Verifier::new_with_extra_roots(self.authorities.iter().cloned(), provider)
                .map_err(|error| {
                    format!(
                        "no certificate authorities to trust ({error}): install the system's or set `ca_file`"
                    )
                })?;
            config.dangerous().with_custom_certificate_verifier(Arc::new(verifier)).with_no_client_auth()
        } else {
            // Without TLS no certificates are needed: redirects to TLS are not followed.
            config.with_root_certificates(RootCertStore::empty()).with_no_client_auth()
        };
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }
}

fn authorities(endpoint: &Endpoint) -> Result<Vec<CertificateDer<'static>>, EndpointError> {
    let Some(path) = &endpoint.ca_file else { return Ok(Vec::new()) };
    let fail = |why: String| EndpointError::new("ca_file", format!("{}: {why}", path.display()));
    let pem = fs::read(path).map_err(|error| fail(error.to_string()))?;
    let mut store = RootCertStore::empty();
    let mut all = Vec::new();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|error| fail(format!("is not a PEM file: {error}")))?;
        store.add(certificate.clone()).map_err(|error| fail(format!("has a bad certificate: {error}")))?;
        all.push(certificate);
    }
    if all.is_empty() {
        return Err(fail("contains no certificate in PEM format".to_owned()));
    }
    Ok(all)
}

fn proxy_error(why: &str) -> EndpointError {
    EndpointError::new("proxy", why)
}

fn proxy_url(endpoint: &Endpoint) -> Result<Option<Url>, EndpointError> {
    let Some(given) = endpoint.proxy.as_deref().map(str::trim).filter(|given| !given.is_empty()) else {
        return Ok(None);
    };
    let url = Url::parse(given).map_err(|error| proxy_error(&format!("is not a URL: {error}")))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(proxy_error("must begin with http:// or https://"));
    }
    Ok(Some(url))
}

/// Follows only redirects that keep the method and the origin, so that no other host gets the key or the
/// conversation.
fn redirects() -> redirect::Policy {
    redirect::Policy::custom(|attempt| {
        let keeps_method = matches!(attempt.status().as_u16(), 307 | 308);
        let first = attempt.previous().first();
        let same = first.is_some_and(|first| first.origin() == attempt.url().origin());
        if keeps_method && same && attempt.previous().len() <= MAX_REDIRECTS {
            attempt.follow()
        } else {
            attempt.stop()
        }
    })
}

#[derive(Clone, Debug)]
pub(crate) struct Outgoing {
    pub(crate) url: Url,
    pub(crate) headers: HeaderMap,
    /// JSON body of a POST; `None` for a GET.
    pub(crate) body: Option<Bytes>,
}

#[derive(Debug)]
pub(crate) struct SendError {
    pub(crate) error: ModelError,
    /// `true` if no connection was established.
    pub(crate) is_unconnected: bool,
}

impl From<ModelError> for SendError {
    fn from(error: ModelError) -> Self {
        Self { error, is_unconnected: false }
    }
}

impl From<SendError> for ModelError {
    fn from(error: SendError) -> Self {
        error.error
    }
}

/// Sends a request. The response must begin by `deadline`. Returns an error for an unsuccessful status, with
/// the part of the provider's message that arrives within `patience`.
pub(crate) async fn send(
    client: reqwest::Client,
    outgoing: Outgoing,
    deadline: Instant,
    patience: Duration,
) -> Result<Response, SendError> {
    let Outgoing { url, mut headers, body } = outgoing;
    let method = if body.is_some() { Method::POST } else { Method::GET };
    let accept = HeaderValue::from_static("text/event-stream, application/json");
    headers.entry(ACCEPT).or_insert(accept);
    if body.is_some() {
        headers.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static("application/json"));
    }
    let mut request = client.request(method, url.clone()).headers(headers);
    if let Some(body) = body {
        request = request.body(body);
    }
    let response = match timeout_at(deadline, request.send()).await {
        Ok(response) => response.map_err(|error| send_error(&url, error))?,
        Err(_) => {
            return Err(ModelError::new(
                ErrorKind::Timeout,
                url.as_str(),
                "the answer did not begin in time",
            )
            .into());
        }
    };
    let status = response.status();
    if status.is_success() {
        // Only uncompressed bodies are accepted: the request allowed no encoding, so no decoder exists.
        let is_plain = |coding: &HeaderValue| {
            let coding = coding.as_bytes().trim_ascii();
            coding.is_empty() || coding.eq_ignore_ascii_case(b"identity")
        };
        let coding = response.headers().get(CONTENT_ENCODING).filter(|coding| !is_plain(coding));
        if let Some(coding) = coding {
            let message =
                format!("the answer is compressed ({})", String::from_utf8_lossy(coding.as_bytes()));
            return Err(ModelError::new(ErrorKind::Garbage, url.as_str(), &message).into());
        }
        return Ok(response);
    }
    let headers = response.headers().clone();
    let body = read_error_body(response, patience.min(ERROR_BODY_TIMEOUT)).await;
    let mut error = error_response::read(status.as_u16(), &headers, &body, url.as_str(), SystemTime::now());
    if let Some(elsewhere) = status.is_redirection().then(|| headers.get(LOCATION)).flatten() {
        let elsewhere = String::from_utf8_lossy(elsewhere.as_bytes());
        let elsewhere = elsewhere.split(['?', '#']).next().unwrap_or_default();
        error.message = ModelError::new(
            error.kind,
            "",
            &format!("redirects to {elsewhere}: set base_url to where it is"),
        )
        .message;
    }
    Err(error.into())
}

/// Reads the part of an error body that arrives in time.
async fn read_error_body(mut response: Response, patience: Duration) -> Bytes {
    let mut body = BytesMut::new();
    let all = async {
        while body.len() < error_response::MAX_ERROR_BODY_BYTES {
            match response.chunk().await {
                Ok(Some(bytes)) => {
                    body.extend_from_slice(
                        &bytes[..bytes.len().min(error_response::MAX_ERROR_BODY_BYTES - body.len())],
                    );
                }
                Ok(None) | Err(_) => break,
            }
        }
    };
    // If the time is over, the bytes read so far are used.
    let _ = timeout(patience, all).await;
    body.freeze()
}

fn send_error(url: &Url, error: reqwest::Error) -> SendError {
    let late = error.is_timeout();
    let built = error.is_builder();
    let is_unconnected = error.is_connect();
    let cause = error_chain(&error.without_url());
    let message = match (is_unconnected, late) {
        (true, true) => "no connection in time".to_owned(),
        (true, false) => format!("no connection: {cause}"),
        _ => cause,
    };
    let mut error = ModelError::new(ErrorKind::Network, url.as_str(), &message);
    // A retry does not make a certificate valid. After a timed-out connection attempt, a retry would make the
    // user wait several times as long.
    let waited = is_unconnected && late;
    error.retryable = !(built || waited || message.contains("certificate"));
    SendError { error, is_unconnected }
}

/// Returns the message of an error and of its causes, without repetitions.
pub(crate) fn error_chain(error: &dyn std::error::Error) -> String {
    let mut all = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let words = cause.to_string();
        if !all.contains(&words) {
            all.push_str(": ");
            all.push_str(&words);
        }
        next = cause.source();
    }
    all
}

#[cfg(test)]
#[path = "http/tests.rs"]
mod tests;
