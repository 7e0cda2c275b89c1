//! The admin API: health, status and metrics of a bus, over HTTP on a private socket.
//!
//! | path
//! answer |
//! |---|---|
//! | `/health`
//! 200 if the event loop answers |
//! | `/ready`
//! 200 if every pool is ready, else 503 and the pools that are not |
//! | `/status`
//! the whole status, as JSON |
//! | `/metrics`
//! metrics, for Prometheus |

mod client;
mod handlers;
mod listener;
mod metrics;
mod slots;

pub use client::{AskError, ask};

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::bus::Handle;
use crate::config::{self, ListenAddr};
use crate::listen::ListenError;
use listener::AdminListener;

/// Listeners of the admin API that are bound but not served yet.
#[derive(Debug)]
pub struct AdminServer {
    listeners: Vec<AdminListener>,
    addresses: Vec<ListenAddr>,
}

impl AdminServer {
    /// Binds the listeners of the admin API.
    ///
    /// # Errors
    /// If one of the listeners cannot be bound. The others are closed again.
    pub fn bind(settings: &config::AdminConfig) -> Result<Self, ListenError> {
        let socket = settings.socket.iter().map(|path| ListenAddr::Unix(path.clone()));
        let port = settings.port.iter().map(|address| ListenAddr::Tcp(address.clone()));
        let mut admin = Self { listeners: Vec::new(), addresses: Vec::new() };
        let only = (!settings.is_open).then(|| rustix::process::geteuid().as_raw());
        for address in socket.chain(port) {
            let (listener, address) = AdminListener::open(&address, only)?;
            admin.listeners.push(listener);
            admin.addresses.push(address);
        }
        Ok(admin)
    }

    /// Returns the bound addresses, with the real port in place of port 0.
    #[must_use]
    pub fn addresses(&self) -> &[ListenAddr] {
        &self.addresses
    }

    /// Serves requests to the admin API until the future is dropped. Must be polled inside a tokio runtime.
    /// `network` is called for each request, to read the counters of the HTTP server.
    pub async fn serve(self, bus: Handle, facts: BusInfo, network: ReadHttpCounters) {
        let state = Arc::new(handlers::AdminState { bus, facts, network, refused_users: Default::default() });
        // Dropping the `JoinSet` ends all tasks that serve listeners.
        let mut served = tokio::task::JoinSet::new();
        for listener in self.listeners {
            served.spawn(listener.serve(Arc::clone(&state)));
        }
        while let Some(ended) = served.join_next().await {
            if let Err(error) = ended {
                tracing::error!(%error, "admin listener failed");
            }
        }
        // The future must not end when a listener fails: the caller would take that for the end of the bus.
        std::future::pending::<()>().await;
    }
}

/// Counters of the HTTP server since its start. The names in the lists never change.
#[derive(Clone, Debug, Default)]
pub struct HttpCounters {
    /// Number of refused requests and sockets, by reason.
    pub refused: Vec<(&'static str, u64)>,
    /// Number of network connections that were interrupted, resumed or lost, by outcome.
    pub connections: Vec<(&'static str, u64)>,
}

/// Reads the current counters of the HTTP server.
pub type ReadHttpCounters = Box<dyn Fn() -> HttpCounters + Send + Sync>;

/// Static information about a bus, which `/status` shows beside the changing state.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct BusInfo {
    pub version: String,
    pub pid: u32,
    pub listen: Vec<String>,
    pub worker_limits: Vec<String>,
    /// The worker limits that this machine cannot enforce, each with the reason.
    pub worker_limits_missing: BTreeMap<String, String>,
}
