//! State that all listeners and connections of a server share.

use std::collections::HashMap;
use std::io;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::{Arc, Mutex};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use narrows_base::sync::lock;
use narrows_link::WebSocketHandoff;
use ring::rand::{SecureRandom, SystemRandom};
use tokio::net::UnixStream;
use tokio::sync::watch;

use super::admission::{AdmittedClient, ConnectionQuota};
use super::auth_rate_limit::AuthRateLimit;
use super::connection::Resumable;
use super::detached::{Detached, DetachedConnection};
use super::disconnect_stats::DisconnectStats;
use super::http_session::HttpSession;
use super::io::Scratch;
use super::open_sockets::OpenSockets;
use super::refusal_stats::RefusalStats;
use super::replay_memory::ReplayMemory;
use super::unfinished::Unfinished;
use super::{Backend, HttpLimits, Served};

pub(super) struct HttpServerState {
    pub(super) limits: HttpLimits,
    backend: Arc<dyn Backend>,
    pub(super) scratch: Scratch,
    pub(super) quota: Arc<ConnectionQuota>,
    pub(super) refusals: RefusalStats,
    pub(super) disconnects: Arc<DisconnectStats>,
    pub(super) sockets: Arc<OpenSockets>,
    pub(super) unfinished: Arc<Unfinished>,
    pub(super) replay_memory: Arc<ReplayMemory>,
    auth_rate_limit: Mutex<AuthRateLimit>,
    pub(super) resumable: Resumable,
    pub(super) detached: Arc<Detached>,
    http_sessions: Mutex<HashMap<String, Arc<HttpSession>>>,
    stop: watch::Sender<bool>,
    random: SystemRandom,
}

impl HttpServerState {
    pub(super) fn new(limits: HttpLimits, backend: Arc<dyn Backend>) -> Arc<Self> {
        Arc::new(Self {
            backend,
            scratch: Scratch::default(),
            quota: ConnectionQuota::new(limits.max_connections_per_identity, limits.max_requests_per_second),
            sockets: OpenSockets::new(
                limits.max_sockets,
                limits.max_sockets_per_identity(),
                limits.max_unauthenticated_sockets,
            ),
            refusals: RefusalStats::default(),
            disconnects: Arc::default(),
            unfinished: Unfinished::new(&limits),
            replay_memory: ReplayMemory::new(&limits),
            auth_rate_limit: Mutex::new(AuthRateLimit::new(limits.max_failures)),
            resumable: Resumable::default(),
            detached: Arc::default(),
            http_sessions: Mutex::default(),
            stop: watch::Sender::new(false),
            random: SystemRandom::new(),
            limits,
        })
    }

    pub(super) async fn open_backend(&self, client: &AdmittedClient) -> io::Result<UnixStream> {
        let (identity, listener) = (client.identity(), client.listener());
        let opened = self.backend.open(identity.clone(), listener).await;
        let has_made_room = match opened.as_ref().map_err(io::Error::kind) {
            Err(io::ErrorKind::WouldBlock) => self.end_detached(None),
            Err(io::ErrorKind::QuotaExceeded) => self.end_detached(Some(&identity.to_string())),
            _ => false,
        };
        let stream: StdUnixStream = match has_made_room {
            true => self.backend.open_later(identity.clone(), listener).await?,
            false => opened?,
        };
        stream.set_nonblocking(true)?;
        UnixStream::from_std(stream)
    }

    /// Ends a detached connection of the identity `only`, or of any identity. Returns `false` if there is
    /// none.
    fn end_detached(&self, only: Option<&str>) -> bool {
        let http_sessions: Vec<DetachedConnection> = self
            .http_sessions(|http_sessions| http_sessions.values().filter_map(|it| it.detached()).collect());
        self.detached.end_one(only, &http_sessions)
    }

    pub(super) fn may_continue(&self, from: usize, to: usize) -> bool {
        from == to || self.backend.may_continue(from, to)
    }

    /// Hands a WebSocket to the backend, if the backend supports that.
    pub(super) fn hand_off(
        &self,
        client: &AdmittedClient,
        socket: WebSocketHandoff,
    ) -> Result<Box<dyn Served>, WebSocketHandoff> {
        self.backend.serve(client.identity().clone(), client.listener(), socket)
    }

    pub(super) async fn stopping(&self) {
        let mut stop = self.stop.subscribe();
        // Waiting fails only if the sender of `stop` is dropped, but `self` owns the sender.
        _ = stop.wait_for(|stop| *stop).await;
    }

    pub(super) fn stop(&self) {
        self.stop.send_replace(true);
    }

    pub(super) fn random(&self) -> Option<[u8; 16]> {
        let mut random = [0; 16];
        self.random.fill(&mut random).ok()?;
        Some(random)
    }

    pub(super) fn random_name(&self) -> Option<String> {
        self.random().map(|random| URL_SAFE_NO_PAD.encode(random))
    }

    pub(super) fn auth_rate_limit<T>(&self, act: impl FnOnce(&mut AuthRateLimit) -> T) -> T {
        act(&mut lock(&self.auth_rate_limit))
    }

    pub(super) fn http_sessions<T>(
        &self,
        act: impl FnOnce(&mut HashMap<String, Arc<HttpSession>>) -> T,
    ) -> T {
        act(&mut lock(&self.http_sessions))
    }
}
