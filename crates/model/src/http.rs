//! How requests travel: one HTTP client per endpoint, built when it is first needed.

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
use crate::{Endpoint, EndpointError, Error, Kind, Limits, problem};

/// What we call ourselves.
const USER_AGENT: &str = concat!("narrows/", env!("CARGO_PKG_VERSION"));
/// How many redirects are followed.
const REDIRECTS: usize = 4;
/// How long the words of a failure are waited for at most once its status is known.
const WORDS: Duration = Duration::from_secs(10);
/// How long a connection is kept for the next request.
const KEPT: Duration = Duration::from_secs(90);

/// What is needed to build the client, checked.
#[derive(Debug)]
pub(crate) struct Transport {
    authorities: Vec<CertificateDer<'static>>,
    proxy: Option<Proxy>,
    /// Whether TLS is spoken with the endpoint or the proxy.
    encrypted: bool,
    limits: Limits,
}

impl Transport {
    /// Checks the certificate authorities and the proxy of `endpoint`, whose requests go to `url`.
    pub(crate) fn of(endpoint: &Endpoint, url: &Url) -> Result<Self, EndpointError> {
        let authorities = authorities(endpoint)?;
        // Whatever listens on this machine is not behind a proxy.
        let via = proxy_url(endpoint)?.filter(|_| !is_loopback(url));
        let encrypted = url.scheme() == "https" || via.as_ref().is_some_and(|via| via.scheme() == "https");
        let proxy = via.map(Proxy::all).transpose().map_err(|_| no_proxy("is no address of a proxy"))?;
        Ok(Self { authorities, proxy, encrypted, limits: endpoint.limits })
    }

    /// The client. Reads the system's certificates if the endpoint speaks TLS.
    pub(crate) fn build(&self, url: &Url) -> Result<reqwest::Client, Error> {
        let fail = |message: &str| Error::new(Kind::Network, url.as_str(), message);
        let mut builder = reqwest::Client::builder()
            .user_agent(USER_AGENT)
            .connect_timeout(self.limits.connect)
            .pool_idle_timeout(KEPT)
            .tcp_nodelay(true)
            .referer(false)
            .redirect(redirects())
            .tls_backend_preconfigured(self.tls().map_err(|error| fail(&error))?)
            .no_proxy();
        if let Some(proxy) = &self.proxy {
            builder = builder.proxy(proxy.clone());
        }
        builder.build().map_err(|error| fail(&causes(&error)))
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
            // Nothing is encrypted, so there is nothing to load; whoever redirects to TLS is not followed.
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
        let certificate = certificate.map_err(|error| fail(format!("is no PEM file: {error}")))?;
        store.add(certificate.clone()).map_err(|error| fail(format!("has a bad certificate: {error}")))?;
        all.push(certificate);
    }
    if all.is_empty() {
        return Err(fail("has no certificate in PEM form".to_owned()));
    }
    Ok(all)
}

fn no_proxy(why: &str) -> EndpointError {
    EndpointError::new("proxy", why)
}

fn proxy_url(endpoint: &Endpoint) -> Result<Option<Url>, EndpointError> {
    let Some(given) = endpoint.proxy.as_deref().map(str::trim).filter(|given| !given.is_empty()) else {
        return Ok(None);
    };
    let url = Url::parse(given).map_err(|error| no_proxy(&format!("is not a URL: {error}")))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(no_proxy("must begin with http:// or https://"));
    }
    Ok(Some(url))
}

/// Follows redirects that keep the method, within one origin: nobody else gets the key or the conversation.
fn redirects() -> redirect::Policy {
    redirect::Policy::custom(|attempt| {
        let keeps_method = matches!(attempt.status().as_u16(), 307 | 308);
        let first = attempt.previous().first();
        let same = first.is_some_and(|first| first.origin() == attempt.url().origin());
        if keeps_method && same && attempt.previous().len() <= REDIRECTS {
            attempt.follow()
        } else {
            attempt.stop()
        }
    })
}

/// A request on its way out.
#[derive(Clone, Debug)]
pub(crate) struct Outgoing {
    pub(crate) url: Url,
    pub(crate) headers: HeaderMap,
    /// JSON to post; `None` gets.
    pub(crate) body: Option<Bytes>,
}

/// Why there is no answer to read.
#[derive(Debug)]
pub(crate) struct Unanswered {
    pub(crate) error: Error,
    /// Not even a connection came about.
    pub(crate) is_unconnected: bool,
}

impl From<Error> for Unanswered {
    fn from(error: Error) -> Self {
        Self { error, is_unconnected: false }
    }
}

impl From<Unanswered> for Error {
    fn from(unanswered: Unanswered) -> Self {
        unanswered.error
    }
}

/// Sends a request, whose answer must begin by `deadline`; whatever is no success is an error with the provider's
/// words, as far as they come within `patience`.
pub(crate) async fn send(
    client: reqwest::Client,
    outgoing: Outgoing,
    deadline: Instant,
    patience: Duration,
) -> Result<Response, Unanswered> {
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
        Ok(response) => response.map_err(|error| unsent(&url, error))?,
        Err(_) => {
            return Err(Error::new(Kind::Timeout, url.as_str(), "the answer did not begin in time").into());
        }
    };
    let status = response.status();
    if status.is_success() {
        // Nobody has asked for it, so nobody here can read it.
        let is_plain = |coding: &HeaderValue| {
            let coding = coding.as_bytes().trim_ascii();
            coding.is_empty() || coding.eq_ignore_ascii_case(b"identity")
        };
        let coding = response.headers().get(CONTENT_ENCODING).filter(|coding| !is_plain(coding));
        if let Some(coding) = coding {
            let message =
                format!("the answer is compressed ({})", String::from_utf8_lossy(coding.as_bytes()));
            return Err(Error::new(Kind::Garbage, url.as_str(), &message).into());
        }
        return Ok(response);
    }
    let headers = response.headers().clone();
    let body = words(response, patience.min(WORDS)).await;
    let mut error = problem::read(status.as_u16(), &headers, &body, url.as_str(), SystemTime::now());
    if let Some(elsewhere) = status.is_redirection().then(|| headers.get(LOCATION)).flatten() {
        let elsewhere = String::from_utf8_lossy(elsewhere.as_bytes());
        let elsewhere = elsewhere.split(['?', '#']).next().unwrap_or_default();
        error.message =
            Error::new(error.kind, "", &format!("redirects to {elsewhere}: set base_url to where it is"))
                .message;
    }
    Err(error.into())
}

/// The beginning of a failure's body, as far as it comes in time.
async fn words(mut response: Response, patience: Duration) -> Bytes {
    let mut body = BytesMut::new();
    let all = async {
        while body.len() < problem::MAX_BODY {
            match response.chunk().await {
                Ok(Some(bytes)) => {
                    body.extend_from_slice(&bytes[..bytes.len().min(problem::MAX_BODY - body.len())]);
                }
                Ok(None) | Err(_) => break,
            }
        }
    };
    // What has come by then has to do.
    let _ = timeout(patience, all).await;
    body.freeze()
}

/// The error of a request that got no answer.
fn unsent(url: &Url, error: reqwest::Error) -> Unanswered {
    let late = error.is_timeout();
    let built = error.is_builder();
    let is_unconnected = error.is_connect();
    let cause = causes(&error.without_url());
    let message = match (is_unconnected, late) {
        (true, true) => "no connection in time".to_owned(),
        (true, false) => format!("no connection: {cause}"),
        _ => cause,
    };
    let mut error = Error::new(Kind::Network, url.as_str(), &message);
    // A certificate does not become valid by trying again, and whoever has waited for a connection in vain does not want
    // to wait four times as long.
    let waited = is_unconnected && late;
    error.retryable = !(built || waited || message.contains("certificate"));
    Unanswered { error, is_unconnected }
}

/// An error and what caused it, without what it repeats.
pub(crate) fn causes(error: &dyn std::error::Error) -> String {
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
