//! One server from its start to its end.

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

use crate::courier::Courier;
use crate::guard::{Guard, Hub};
use crate::pipe::{Noise, Pipe, Stdin};
use crate::text::{chain, ending, one_line};
use crate::tool::{Listing, Tool};
use crate::verbatim::Verbatim;
use crate::{Confinement, Options, Server, WayOut, http};

/// How many pages of tools are asked for.
const MAX_PAGES: usize = 64;
/// How many lines of its stderr explain the end of a process.
const TAIL_LINES: usize = 5;
/// And how many characters of them: the last are the ones that tell.
const TAIL: usize = 400;
/// How long a process that has closed its stdout may take to exit and so explain itself.
const EXPLAIN: Duration = Duration::from_millis(500);
/// How long rmcp may take to end a connection: over HTTP it takes leave of the server.
const LEAVE: Duration = Duration::from_secs(2);

/// Why a server is not there.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error("{}", chain(.0))]
    Spawn(#[from] narrows_process::SpawnError),
    #[error("{0}")]
    Http(#[from] http::HttpError),
    #[error("{}", refusal(.0))]
    Initialize(Box<ClientInitializeError>),
    #[error("the client has no way to its servers")]
    NoBridge,
    #[error("it does not list its tools: {}", service(.0))]
    List(ServiceError),
}

/// A server that answers.
pub(crate) struct Connection {
    pub(crate) peer: Peer<RoleClient>,
    pub(crate) hub: Arc<Hub>,
    running: RunningService<RoleClient, Client>,
    /// Keeps a subscription to changes open.
    _listening: Option<RequestHandle<RoleClient>>,
}

/// The process of a stdio server.
pub(crate) struct Process {
    child: Child,
    stdin: Stdin,
    noise: Noise,
    /// Open as long as the process is here.
    _way_out: Option<WayOut>,
}

/// Who we are towards a server: somebody who offers nothing.
struct Client {
    config: ClientConfig,
}

impl Client {
    fn new(options: &Options) -> Self {
        let me = Implementation::new(&options.client_name, &options.client_version);
        let mut config = ClientConfig::new(rmcp::model::ClientCapabilities::default(), me);
        config.protocol_version = ProtocolVersion::LATEST_WITH_INITIALIZE;
        Self { config }
    }
}

/// Sampling is refused and elicitation declined by what the trait does by itself.
impl ClientHandler for Client {
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

/// What a stdio server is started with.
pub(crate) fn spec(options: &Options, command: &str, args: &[String], env: &[(String, String)]) -> Spec {
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
    /// A process that was started, and the transport to it.
    pub(crate) fn new(
        mut child: Child,
        verbatim: Verbatim,
        confinement: Option<&Confinement>,
    ) -> Result<(Self, Pipe), StartError> {
        let gateway = confinement.zip(child.take_gateway());
        let way_out = gateway.and_then(|(confinement, listener)| (confinement.way_out)(listener));
        let (Some(stdin), Some(stdout)) = (child.take_stdin(), child.take_stdout()) else {
            return Err(narrows_process::SpawnError::Guardian.into());
        };
        let (stdin, noise) = (Stdin::new(stdin), Noise::default());
        let pipe = Pipe::new(stdout, stdin.clone(), noise.clone(), verbatim);
        Ok((Self { child, stdin, noise, _way_out: way_out }, pipe))
    }

    /// Ends it and everything it started.
    pub(crate) async fn stop(&self, ladder: Ladder) {
        self.stdin.close().await;
        let exit = self.child.stop(ladder).await;
        if exit.survivors > 0 {
            tracing::warn!(%exit, "not all of an MCP server could be ended");
        }
    }

    /// What the process has to say to `reason`: the last it wrote, and if `hung_up`, how it ended. Otherwise its end would
    /// only be the consequence of ours.
    pub(crate) async fn explain(&self, reason: &str, hung_up: bool) -> String {
        let patience = if hung_up { EXPLAIN } else { Duration::ZERO };
        let exit = tokio::time::timeout(patience, self.child.wait()).await.ok().filter(|_| hung_up);
        let mut words = match exit {
            Some(exit) => format!("it {exit}"),
            None => one_line(reason),
        };
        if let Some(noise) = self.noise.first() {
            words.push_str("; its stdout has what is no message: ");
            words.push_str(&noise);
        }
        let tail = self.stderr().tail(TAIL_LINES);
        if !tail.trim().is_empty() {
            words.push_str("; its stderr ends: ");
            words.push_str(&ending(&tail, TAIL));
        }
        words
    }

    fn stderr(&self) -> StderrTail {
        self.child.stderr()
    }
}

/// Connects by the handshake that all servers know, or if the server refuses that, without one.
pub(crate) async fn connect<T: Transport<RoleClient> + 'static>(
    options: &Options,
    transport: T,
    hub: Arc<Hub>,
    modern: bool,
) -> Result<Connection, StartError> {
    let transport = Guard::new(transport, hub.clone());
    let lifecycle = if modern {
        ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::V_2026_07_28] }
    } else {
        ClientLifecycleMode::Initialize
    };
    let running = serve_client_with_lifecycle(Client::new(options), transport, lifecycle)
        .await
        .map_err(|error| StartError::Initialize(Box::new(error)))?;
    Ok(Connection { peer: running.peer().clone(), hub, running, _listening: None })
}

/// Connects to a server behind a bridge, for which there is no handshake.
pub(crate) fn connect_directly(options: &Options, courier: Courier) -> Connection {
    let hub = Arc::new(Hub::default());
    let mut capabilities = ServerCapabilities::default();
    capabilities.tools = Some(ToolsCapability::default());
    let info = ServerPeerInfo::new(ProtocolVersion::V_2026_07_28, capabilities);
    let running = serve_directly(Client::new(options), Guard::new(courier, hub.clone()), Some(info));
    Connection { peer: running.peer().clone(), hub, running, _listening: None }
}

/// Whether a server hung up, so that its end explains more than the error.
pub(crate) fn hung_up(error: &StartError) -> bool {
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

/// Whether a server refused the handshake rather than failed at it.
pub(crate) fn refused(error: &StartError) -> bool {
    matches!(error, StartError::Initialize(error) if matches!(**error, ClientInitializeError::JsonRpcError(_)))
}

impl Connection {
    /// All tools, over as many pages as it takes.
    pub(crate) async fn list(&self, server: &Server, options: &Options) -> Result<Vec<Tool>, StartError> {
        let mut listing = Listing::new(server.name(), options.max_tools);
        let mut cursor = None;
        for _ in 0..MAX_PAGES {
            let params =
                cursor.take().map(|cursor| PaginatedRequestParams::default().with_cursor(Some(cursor)));
            let request =
                ListToolsRequest { method: Default::default(), params, extensions: Default::default() };
            let page = match self.peer.send_request(ClientRequest::ListToolsRequest(request)).await {
                Ok(page) => page,
                // It never said that it had any.
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

    /// Asks to be told of changes where that must be asked for. What comes goes to the [`Hub`], whoever asked.
    pub(crate) async fn listen(&mut self) {
        let asks = self.peer.peer_info().is_some_and(|info| {
            let changes = info.capabilities.tools.as_ref().and_then(|tools| tools.list_changed);
            !info.protocol_version.has_initialize() && changes == Some(true)
        });
        if !asks {
            return;
        }
        let mut filter = SubscriptionFilter::default();
        filter.tools_list_changed = Some(true);
        let params = SubscriptionsListenRequestParams::new(filter);
        let request = ClientRequest::SubscriptionsListenRequest(SubscriptionsListenRequest::new(params));
        let options = PeerRequestOptions::no_options();
        self._listening = self.peer.send_request_with_option(request, options).await.ok();
    }

    /// Ends the connection.
    pub(crate) async fn leave(mut self) {
        _ = self.running.close_with_timeout(LEAVE).await;
    }
}

/// A failed handshake in words.
fn refusal(error: &ClientInitializeError) -> String {
    match error {
        ClientInitializeError::ConnectionClosed(_) => "it hung up during the handshake".to_owned(),
        ClientInitializeError::TransportError { error, .. } => http::words(error.error.as_ref()),
        ClientInitializeError::JsonRpcError(error) => {
            one_line(&format!("it refuses the handshake: {} ({})", error.message, error.code.0))
        }
        error => chain(error),
    }
}

/// A failed request in words.
pub(crate) fn service(error: &ServiceError) -> String {
    match error {
        ServiceError::McpError(error) => one_line(&format!("{} ({})", error.message, error.code.0)),
        ServiceError::TransportSend(error) => http::words(error.error.as_ref()),
        ServiceError::TransportClosed => "it hung up".to_owned(),
        error => chain(error),
    }
}
