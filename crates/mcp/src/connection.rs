//! The connection to one server, and the process of a stdio server.

use std::sync::Arc;
use std::time::Duration;

use narrows_process::{Child, Ladder, Spec, StderrTail};
use rmcp::model::{
    ClientConfig, ClientRequest, ErrorCode, ErrorData, Implementation, ListToolsRequest,
    PaginatedRequestParams, ProtocolVersion, ServerCapabilities, ServerPeerInfo, SubscriptionFilter,
    SubscriptionsListenRequest, SubscriptionsListenRequestParams, ToolsCapability,
};
use rmcp::service::{
    ClientInitializeError, PeerRequestOptions, RequestContext, RequestHandle, RunningService, serve_directly,
};
use rmcp::transport::Transport;
use rmcp::{ClientHandler, ClientLifecycleMode, Peer, RoleClient, ServiceError, serve_client_with_lifecycle};

use crate::acp_transport::AcpTransport;
use crate::bounded_transport::{BoundedTransport, ServerEvents};
use crate::stdio_transport::{Stdin, StdioTransport, StrayOutput};
use crate::text::{error_chain, last_chars, one_line};
use crate::tool::{Tool, ToolList};
use crate::verbatim::Verbatim;
use crate::{Confinement, EgressGuard, Options, Server, http};

/// Maximum number of pages of tools that are requested.
const MAX_PAGES: usize = 64;
/// Maximum number of stderr lines that explain the end of a process.
const MAX_STDERR_LINES: usize = 5;
/// Maximum number of characters of stderr that explain the end of a process. The last characters are kept.
const MAX_STDERR_CHARS: usize = 400;
/// Time for a process that has closed its stdout to exit.
const EXIT_REASON_TIMEOUT: Duration = Duration::from_millis(500);
/// Time for rmcp to close a connection. Over HTTP, rmcp sends a request to end the session.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error("{}", error_chain(.0))]
    Spawn(#[from] narrows_process::SpawnError),
    #[error("{0}")]
    Http(#[from] http::HttpError),
    #[error("{}", handshake_error(.0))]
    Initialize(Box<ClientInitializeError>),
    #[error("the client does not support MCP over ACP")]
    NoBridge,
    #[error("listing the server's tools failed: {}", service_error_text(.0))]
    List(ServiceError),
}

pub(crate) struct Connection {
    pub(crate) peer: Peer<RoleClient>,
    pub(crate) events: Arc<ServerEvents>,
    running: RunningService<RoleClient, McpClient>,
    /// Guard that keeps the subscription to tool changes open.
    _subscription: Option<RequestHandle<RoleClient>>,
}

pub(crate) struct Process {
    child: Child,
    stdin: Stdin,
    stray: StrayOutput,
    /// Guard that serves the network access of the process until it is dropped.
    _egress: Option<EgressGuard>,
}

/// The client role towards a server, without any capability.
struct McpClient {
    config: ClientConfig,
}

impl McpClient {
    fn new(options: &Options) -> Self {
        let implementation = Implementation::new(&options.client_name, &options.client_version);
        let mut config = ClientConfig::new(rmcp::model::ClientCapabilities::default(), implementation);
        config.protocol_version = ProtocolVersion::LATEST_WITH_INITIALIZE;
        Self { config }
    }
}

/// The default methods of this trait refuse sampling and decline elicitation.
impl ClientHandler for McpClient {
    #[expect(deprecated, reason = "servers ask for roots as long as there are old ones")]
    async fn list_roots(
        &self,
        _: RequestContext<RoleClient>,
    ) -> Result<rmcp::model::ListRootsResult, ErrorData> {
        Err(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, "roots/list", None))
    }

    fn get_info(&self) -> ClientConfig {
        self.config.clone()
    }
}

pub(crate) fn process_spec(
    options: &Options,
    command: &str,
    args: &[String],
    env: &[(String, String)],
) -> Spec {
    let mut spec = Spec::new(command);
    spec.args = args.iter().map(Into::into).collect();
    spec.cwd = Some(options.cwd.clone());
    spec.env = options.env.clone();
    spec.env.extend(env.iter().map(|(name, value)| (name, value)));
    spec.stderr_limit = 16 * 1024;
    if let Some(Confinement { sandbox, limits, processor, .. }) = &options.confinement {
        spec.sandbox = Some(sandbox.clone());
        spec.limits = *limits;
        spec.processor = *processor;
    }
    spec.orphan_grace = options.ladder.term_grace;
    spec
}

impl Process {
    pub(crate) fn new(
        mut child: Child,
        verbatim: Verbatim,
        confinement: Option<&Confinement>,
    ) -> Result<(Self, StdioTransport), StartError> {
        let gateway = confinement.zip(child.take_gateway());
        let egress = gateway.and_then(|(confinement, listener)| (confinement.open_egress)(listener));
        let (Some(stdin), Some(stdout)) = (child.take_stdin(), child.take_stdout()) else {
            return Err(narrows_process::SpawnError::Guardian.into());
        };
        let (stdin, stray) = (Stdin::new(stdin), StrayOutput::default());
        let pipe = StdioTransport::new(stdout, stdin.clone(), stray.clone(), verbatim);
        Ok((Self { child, stdin, stray, _egress: egress }, pipe))
    }

    pub(crate) async fn stop(&self, ladder: Ladder) {
        self.stdin.close().await;
        let exit = self.child.stop(ladder).await;
        if exit.survivors > 0 {
            tracing::warn!(%exit, "processes of an MCP server did not exit");
        }
    }

    /// Adds the last lines of stderr to `reason`. Adds the exit status only if the server has `disconnected`:
    /// otherwise the process exits because it is being stopped.
    pub(crate) async fn explain(&self, reason: &str, disconnected: bool) -> String {
        let timeout = if disconnected { EXIT_REASON_TIMEOUT } else { Duration::ZERO };
        let exit = tokio::time::timeout(timeout, self.child.wait()).await.ok().filter(|_| disconnected);
        let mut text = match exit {
            Some(exit) => format!("it {exit}"),
            None => one_line(reason),
        };
        if let Some(stray) = self.stray.first() {
            text.push_str("; its stdout contains text that is not a message: ");
            text.push_str(&stray);
        }
        let tail = self.stderr().tail(MAX_STDERR_LINES);
        if !tail.trim().is_empty() {
            text.push_str("; its stderr ends: ");
            text.push_str(&last_chars(&tail, MAX_STDERR_CHARS));
        }
        text
    }

    fn stderr(&self) -> StderrTail {
        self.child.stderr()
    }
}

/// Connects to a server with a handshake, or without one if `modern` is set.
pub(crate) async fn connect<T: Transport<RoleClient> + 'static>(
    options: &Options,
    transport: T,
    events: Arc<ServerEvents>,
    modern: bool,
) -> Result<Connection, StartError> {
    let transport = BoundedTransport::new(transport, events.clone());
    let lifecycle = if modern {
        ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::V_2026_07_28] }
    } else {
        ClientLifecycleMode::Initialize
    };
    let running = serve_client_with_lifecycle(McpClient::new(options), transport, lifecycle)
        .await
        .map_err(|error| StartError::Initialize(Box::new(error)))?;
    Ok(Connection { peer: running.peer().clone(), events, running, _subscription: None })
}

/// Connects to a server behind a bridge, which needs no handshake.
pub(crate) fn connect_directly(options: &Options, courier: AcpTransport) -> Connection {
    let events = Arc::new(ServerEvents::default());
    let mut capabilities = ServerCapabilities::default();
    capabilities.tools = Some(ToolsCapability::default());
    let info = ServerPeerInfo::new(ProtocolVersion::V_2026_07_28, capabilities);
    let running =
        serve_directly(McpClient::new(options), BoundedTransport::new(courier, events.clone()), Some(info));
    Connection { peer: running.peer().clone(), events, running, _subscription: None }
}

/// Returns `true` if the server has disconnected. Its exit reason then explains more than the error.
pub(crate) fn is_disconnect(error: &StartError) -> bool {
    match error {
        StartError::Initialize(error) => matches!(
            **error,
            ClientInitializeError::ConnectionClosed(_) | ClientInitializeError::TransportError { .. }
        ),
        StartError::List(error) => {
            matches!(error, ServiceError::TransportClosed | ServiceError::TransportSend(_))
        }
        _ => false,
    }
}

/// Returns `true` if the server refused the handshake instead of failing during it.
pub(crate) fn is_handshake_refusal(error: &StartError) -> bool {
    matches!(error, StartError::Initialize(error) if matches!(**error, ClientInitializeError::JsonRpcError(_)))
}

impl Connection {
    pub(crate) async fn list(&self, server: &Server, options: &Options) -> Result<Vec<Tool>, StartError> {
        let mut listing = ToolList::new(server.name(), options.max_tools);
        let mut cursor = None;
        for _ in 0..MAX_PAGES {
            let params =
                cursor.take().map(|cursor| PaginatedRequestParams::default().with_cursor(Some(cursor)));
            let request =
                ListToolsRequest { method: Default::default(), params, extensions: Default::default() };
            let page = match self.peer.send_request(ClientRequest::ListToolsRequest(request)).await {
                Ok(page) => page,
                // A server that does not claim to have tools may refuse to list them.
                Err(ServiceError::McpError(_)) if !self.claims_tools() => break,
                Err(error) => return Err(StartError::List(error)),
            };
            cursor = listing.add(serde_json::to_value(page).unwrap_or_default());
            if cursor.is_none() {
                break;
            }
        }
        Ok(listing.into_tools())
    }

    fn claims_tools(&self) -> bool {
        self.peer.peer_info().is_none_or(|info| info.capabilities.tools.is_some())
    }

    /// Subscribes to changes of the server's tools, in MCP versions that need a subscription. In all
    /// versions, [`ServerEvents`] receives the notifications.
    pub(crate) async fn subscribe_to_changes(&mut self) {
        let must_ask = self.peer.peer_info().is_some_and(|info| {
            let changes = info.capabilities.tools.as_ref().and_then(|tools| tools.list_changed);
            !info.protocol_version.has_initialize() && changes == Some(true)
        });
        if !must_ask {
            return;
        }
        let mut filter = SubscriptionFilter::default();
        filter.tools_list_changed = Some(true);
        let params = SubscriptionsListenRequestParams::new(filter);
        let request = ClientRequest::SubscriptionsListenRequest(SubscriptionsListenRequest::new(params));
        let options = PeerRequestOptions::no_options();
        self._subscription = self.peer.send_request_with_option(request, options).await.ok();
    }

    pub(crate) async fn close(mut self) {
        _ = self.running.close_with_timeout(CLOSE_TIMEOUT).await;
    }
}

fn handshake_error(error: &ClientInitializeError) -> String {
    match error {
        ClientInitializeError::ConnectionClosed(_) => {
            "the server closed the connection during the handshake".to_owned()
        }
        ClientInitializeError::TransportError { error, .. } => http::error_text(error.error.as_ref()),
        ClientInitializeError::JsonRpcError(error) => {
            one_line(&format!("the server refuses the handshake: {} ({})", error.message, error.code.0))
        }
        error => error_chain(error),
    }
}

pub(crate) fn service_error_text(error: &ServiceError) -> String {
    match error {
        ServiceError::McpError(error) => one_line(&format!("{} ({})", error.message, error.code.0)),
        ServiceError::TransportSend(error) => http::error_text(error.error.as_ref()),
        ServiceError::TransportClosed => "the server closed the connection".to_owned(),
        error => error_chain(error),
    }
}
