//! Where operators come in: health, state and figures of a bus, over HTTP on a private socket.
//!
//! | path | answer |
//! |---|---|
//! | `/health` | 200 if the bus lives, that is if its loop answers |
//! | `/ready` | 200 if every pool can be used, else 503 and which cannot |
//! | `/status` | everything there is to know, as JSON |
//! | `/metrics` | the figures, for Prometheus |

mod client;
mod handlers;
mod listener;
mod metrics;
mod slots;

pub use client::{AskError, ask};

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::bus::Handle;
use crate::config::{self, Door};
use crate::listen::ListenError;
use listener::Entrance;

/// The doors for operators, bound and not yet served.
#[derive(Debug)]
pub struct Admin {
    entrances: Vec<Entrance>,
    addresses: Vec<Door>,
}

impl Admin {
    /// Opens the doors.
    ///
    /// # Errors
    /// When one cannot be opened; then none is.
    pub fn bind(settings: &config::Admin) -> Result<Self, ListenError> {
        let socket = settings.socket.iter().map(|path| Door::Unix(path.clone()));
        let port = settings.port.iter().map(|address| Door::Tcp(address.clone()));
        let mut admin = Self { entrances: Vec::new(), addresses: Vec::new() };
        let only = (!settings.is_open).then(|| rustix::process::geteuid().as_raw());
        for door in socket.chain(port) {
            let (entrance, address) = Entrance::open(&door, only)?;
            admin.entrances.push(entrance);
            admin.addresses.push(address);
        }
        Ok(admin)
    }

    /// Where they are; a port 0 has become a real one.
    #[must_use]
    pub fn addresses(&self) -> &[Door] {
        &self.addresses
    }

    /// Answers until this is dropped. Must be polled inside a runtime; `facts` is what the bus itself does not know.
    /// `network` is asked each time.
    pub async fn serve(self, bus: Handle, facts: Facts, network: AskNetwork) {
        let pages = Arc::new(handlers::Pages { bus, facts, network, refused_users: Default::default() });
        // Dropping the set ends the tasks.
        let mut served = tokio::task::JoinSet::new();
        for entrance in self.entrances {
            served.spawn(entrance.serve(Arc::clone(&pages)));
        }
        while let Some(ended) = served.join_next().await {
            if let Err(error) = ended {
                tracing::error!(%error, "a door for operators is closed");
            }
        }
        // Nobody is let in, but whoever waits for us must not think that it is over.
        std::future::pending::<()>().await;
    }
}

/// What the doors of the network have counted since the start. The names are always the same.
#[derive(Clone, Debug, Default)]
pub struct Network {
    /// How often somebody was refused, by the reason.
    pub refused: Vec<(&'static str, u64)>,
    /// How often connections were broken, and what became of them.
    pub connections: Vec<(&'static str, u64)>,
}

/// Whom to ask for it.
pub type AskNetwork = Box<dyn Fn() -> Network + Send + Sync>;

/// What is told about a bus beside its state.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Facts {
    /// The version of the program.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// Where clients come in.
    pub listen: Vec<String>,
    /// Which limits of workers can be enforced.
    pub worker_limits: Vec<String>,
    /// Which cannot, and why.
    pub worker_limits_missing: BTreeMap<String, String>,
}
