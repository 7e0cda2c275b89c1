//! HTTP handlers of the admin API.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde::Serialize;
use tokio::time::timeout;

use super::{BusInfo, HttpCounters, ReadHttpCounters, metrics};
use crate::bus::Handle;
use crate::core::Status;
use crate::driver::Queues;

const STATUS_TIMEOUT: Duration = Duration::from_secs(5);

const NOT_FOUND_TEXT: &str = "available: /health, /ready, /status, /metrics\n";
const REMOTE_HOST_TEXT: &str = "Host must be 127.0.0.1, [::1] or localhost\n";
const ORIGIN_REFUSED_TEXT: &str = "requests with an Origin header are refused\n";
const MANY_HOSTS_TEXT: &str = "exactly one Host header is required\n";

pub(super) struct AdminState {
    pub(super) bus: Handle,
    pub(super) facts: BusInfo,
    pub(super) network: ReadHttpCounters,
    pub(super) refused_users: Arc<AtomicU64>,
}

/// Returns the HTTP routes for a unix socket, to which only the user of the bus can connect.
pub(super) fn private(state: Arc<AdminState>) -> Router {
    Router::new()
        .route("/health", get(health))
        .route("/ready", get(ready))
        .route("/status", get(status))
        .route("/metrics", get(metrics_page))
        .fallback(|| async { (StatusCode::NOT_FOUND, format!("not found; {NOT_FOUND_TEXT}")) })
        .method_not_allowed_fallback(|| async {
            (StatusCode::METHOD_NOT_ALLOWED, format!("method not allowed; {NOT_FOUND_TEXT}"))
        })
        .with_state(state)
}

/// Returns the HTTP routes for a TCP port, to which a web browser can also connect.
pub(super) fn local(state: Arc<AdminState>) -> Router {
    private(state).layer(middleware::from_fn(only_this_machine))
}

/// Refuses requests under a foreign host name, so that a web page cannot read the answers by DNS rebinding.
async fn only_this_machine(request: Request, next: Next) -> Response {
    match check_host(&request) {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    }
}

/// Checks that a request has no Origin and exactly one Host header, which names this machine. A host in the
/// request line must name this machine too: it takes precedence over the header (RFC 9112, section 3.2.2).
fn check_host(request: &Request) -> Result<(), (StatusCode, &'static str)> {
    let headers = request.headers();
    if headers.contains_key(header::ORIGIN) {
        return Err((StatusCode::FORBIDDEN, ORIGIN_REFUSED_TEXT));
    }
    let mut hosts = headers.get_all(header::HOST).iter();
    let host = hosts.next().and_then(|host| host.to_str().ok());
    if hosts.next().is_some() {
        return Err((StatusCode::BAD_REQUEST, MANY_HOSTS_TEXT));
    }
    if request.uri().authority().is_some_and(|authority| !is_this_machine(authority.as_str())) {
        return Err((StatusCode::BAD_REQUEST, REMOTE_HOST_TEXT));
    }
    match host {
        Some(host) if is_this_machine(host) => Ok(()),
        _ => Err((StatusCode::FORBIDDEN, REMOTE_HOST_TEXT)),
    }
}

fn is_this_machine(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    matches!(name, "127.0.0.1" | "[::1]") || name.eq_ignore_ascii_case("localhost")
}

async fn request_report(state: &AdminState) -> Result<(Status, Queues), Response> {
    let gone = |why: &'static str| (StatusCode::SERVICE_UNAVAILABLE, why).into_response();
    match timeout(STATUS_TIMEOUT, state.bus.report()).await {
        Ok(Ok((mut status, queues))) => {
            status.counters.refused_users += state.refused_users.load(Ordering::Relaxed);
            Ok((status, queues))
        }
        Ok(Err(_)) => Err(gone("bus does not respond\n")),
        Err(_) => Err(gone("bus does not respond in time\n")),
    }
}

async fn health(State(state): State<Arc<AdminState>>) -> Response {
    match request_report(&state).await {
        Ok(_) => "alive\n".into_response(),
        Err(gone) => gone,
    }
}

async fn ready(State(state): State<Arc<AdminState>>) -> Response {
    match request_report(&state).await.map(|(status, _)| missing(&status)) {
        Ok(None) => "ready\n".into_response(),
        Ok(Some(missing)) => (StatusCode::SERVICE_UNAVAILABLE, missing).into_response(),
        Err(gone) => gone,
    }
}

/// Returns the reasons why the bus is not ready, one per line. `None`: it is ready.
fn missing(status: &Status) -> Option<String> {
    let mut text = String::new();
    if status.draining {
        text.push_str("bus is shutting down\n");
    }
    // A pool in state `leaving` was replaced or removed by a reload, so its workers no longer count.
    for pool in status.pools.iter().filter(|pool| !matches!(pool.state, "ready" | "leaving")) {
        let why = if pool.state == "tripped" { ", circuit breaker is open" } else { "" };
        _ = writeln!(text, "pool {:?}: {}{why}", pool.name, pool.state);
    }
    (!text.is_empty()).then_some(text)
}

#[derive(Serialize)]
struct StatusPage<'a> {
    #[serde(flatten)]
    facts: &'a BusInfo,
    max_connections: usize,
    #[serde(flatten)]
    status: Status,
    queues: Queues,
    network_refused: BTreeMap<&'static str, u64>,
    network_connections: BTreeMap<&'static str, u64>,
}

async fn status(State(state): State<Arc<AdminState>>) -> Response {
    let (status, queues) = match request_report(&state).await {
        Ok(report) => report,
        Err(gone) => return gone,
    };
    let max_connections = state.bus.max_connections();
    let HttpCounters { refused, connections } = (state.network)();
    let page = StatusPage {
        facts: &state.facts,
        max_connections,
        status,
        queues,
        network_refused: refused.into_iter().collect(),
        network_connections: connections.into_iter().collect(),
    };
    match serde_json::to_string(&page) {
        Ok(text) => with_type("application/json", text + "\n"),
        Err(error) => {
            tracing::error!(%error, "cannot serialize status");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

async fn metrics_page(State(state): State<Arc<AdminState>>) -> Response {
    match request_report(&state).await {
        Ok((status, queues)) => {
            let text = metrics::text(
                &state.facts,
                state.bus.max_connections(),
                &status,
                &queues,
                &(state.network)(),
            );
            with_type(metrics::CONTENT_TYPE, text)
        }
        Err(gone) => gone,
    }
}

fn with_type(kind: &'static str, body: String) -> Response {
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
    (headers, body).into_response()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::metrics::tests::status;
    use super::*;

    #[test]
    fn host_names_of_this_machine_are_accepted() {
        for (host, ours) in [
            ("localhost", true),
            ("LocalHost:9090", true),
            ("127.0.0.1", true),
            ("127.0.0.1:80", true),
            ("[::1]", true),
            ("[::1]:9090", true),
            ("::1", false),
            ("127.0.0.1.evil.example", false),
            ("evil.example:9090", false),
            ("localhost.", false),
            ("localhost:", false),
            ("localhost:x", false),
            ("", false),
        ] {
            assert_eq!(is_this_machine(host), ours, "{host}");
        }
    }

    proptest! {
        #[test]
        fn other_host_names_are_refused(name in "[a-z0-9.:\\[\\]]{0,24}", port: u16) {
            let known = ["localhost", "127.0.0.1", "[::1]"];
            prop_assert_eq!(is_this_machine(&format!("{name}:{port}")), known.contains(&name.as_str()));
        }
    }

    #[test]
    fn a_request_with_several_or_foreign_hosts_is_refused() {
        let check = |url: &str, hosts: &[&str]| {
            let request =
                hosts.iter().fold(Request::builder().uri(url), |request, host| request.header("host", *host));
            check_host(&request.body(axum::body::Body::empty()).unwrap())
                .map_err(|(status, _)| status.as_u16())
        };
        assert_eq!(check("/health", &["localhost"]), Ok(()));
        assert_eq!(check("http://localhost:9/health", &["localhost:9"]), Ok(()));
        assert_eq!(check("/health", &[]), Err(403));
        assert_eq!(check("/health", &["evil.example"]), Err(403));
        assert_eq!(check("http://localhost/health", &["evil.example"]), Err(403));
        for hosts in
            [["localhost", "evil.example"], ["evil.example", "localhost"], ["localhost", "localhost"]]
        {
            assert_eq!(check("/health", &hosts), Err(400), "{hosts:?}");
        }
        for url in
            ["http://evil.example/health", "http://localhost@evil.example/", "http://evil.example@localhost/"]
        {
            assert_eq!(check(url, &["localhost"]), Err(400), "{url}");
        }
    }

    #[test]
    fn pools_that_are_not_ready_are_named() {
        let mut status = status();
        assert_eq!(missing(&status).as_deref(), Some("pool \"spare\": tripped, circuit breaker is open\n"));
        status.pools.retain(|pool| pool.name != "spare");
        assert_eq!(missing(&status), None, "a leaving pool does not make the bus unready");
        status.draining = true;
        assert_eq!(missing(&status).as_deref(), Some("bus is shutting down\n"));
    }
}
