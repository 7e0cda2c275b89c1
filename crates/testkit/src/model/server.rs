//! The server: a socket, a thread, and what was seen.

use std::collections::HashSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Instant;

use narrows_base::sync::lock;
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::play::{Outcome, play};
use super::{Plan, Seen, http};

/// What the test and the connections share.
pub(super) struct Shared {
    state: Mutex<State>,
    changed: watch::Sender<()>,
}

/// What has happened so far.
pub(super) struct State {
    plan: Plan,
    seen: Vec<Seen>,
    pub(super) released: HashSet<String>,
    connections: usize,
    stopped: bool,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let changed = change(&mut self.state());
        self.changed.send_replace(());
        changed
    }

    /// Waits until `condition` holds.
    pub(super) async fn wait(&self, condition: impl Fn(&State) -> bool) {
        let mut changed = self.changed.subscribe();
        while !condition(&self.state()) {
            // It lives as long as this does.
            let _ = changed.changed().await;
        }
    }
}

/// A scripted Chat Completions server on this machine. Dropping it stops it.
pub struct ModelServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl ModelServer {
    /// Starts a server on a port of its own.
    ///
    /// # Panics
    /// When the machine gives no port or no thread.
    #[must_use]
    pub fn start(plan: impl Into<Plan>) -> Self {
        Self::start_at(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), plan)
    }

    /// Starts a server at this address.
    ///
    /// # Panics
    /// When the address is taken, or the machine gives no thread.
    #[must_use]
    pub fn start_at(address: SocketAddr, plan: impl Into<Plan>) -> Self {
        let listener = std::net::TcpListener::bind(address).expect("the address is free");
        listener.set_nonblocking(true).expect("a socket can be polled");
        let address = listener.local_addr().expect("a bound socket has an address");
        let state = State {
            plan: plan.into(),
            seen: Vec::new(),
            released: HashSet::new(),
            connections: 0,
            stopped: false,
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: watch::Sender::new(()) });
        let served = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("model-server".to_owned()).spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime can be made").block_on(serve(listener, served));
        });
        Self { address, shared, thread: Some(thread.expect("a thread can be started")) }
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `http://127.0.0.1:PORT/v1`.
    #[must_use]
    pub fn base_url(&self) -> String {
        self.url("/v1")
    }

    /// The URL of this path.
    #[must_use]
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Every request so far.
    #[must_use]
    pub fn seen(&self) -> Vec<Seen> {
        self.shared.state().seen.clone()
    }

    /// Waits until so many requests have come.
    pub async fn seen_count(&self, count: usize) {
        self.shared.wait(|state| state.seen.len() >= count).await;
    }

    /// Waits until a client has closed a connection in the middle of a reply.
    pub async fn hung_up(&self) {
        self.shared.wait(|state| state.seen.iter().any(|seen| seen.hung_up)).await;
    }

    /// How many connections have been made.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.state().connections
    }

    /// Lets every reply through that waits at the gate of this name, now or later.
    pub fn release(&self, gate: &str) {
        self.shared.change(|state| state.released.insert(gate.to_owned()));
    }

    /// Replies from now on as this plan says.
    pub fn replan(&self, plan: impl Into<Plan>) {
        let plan = plan.into();
        self.shared.change(|state| state.plan = plan);
    }
}

impl Drop for ModelServer {
    fn drop(&mut self) {
        self.shared.change(|state| state.stopped = true);
        if let Some(thread) = self.thread.take() {
            // It has told what was wrong by panicking.
            let _ = thread.join();
        }
    }
}

/// A base URL at which nobody listens, and its address.
///
/// # Panics
/// When the machine gives no port.
#[must_use]
pub fn nobody() -> (String, SocketAddr) {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
    let address = listener.local_addr().expect("a bound socket has an address");
    (format!("http://{address}/v1"), address)
}

async fn serve(listener: std::net::TcpListener, shared: Arc<Shared>) {
    let listener = TcpListener::from_std(listener).expect("a socket can be polled");
    tokio::select! {
        () = accept(&listener, &shared) => {}
        () = shared.wait(|state| state.stopped) => {}
    }
}

async fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    while let Ok((stream, _)) = listener.accept().await {
        let number = shared.change(|state| {
            state.connections += 1;
            state.connections - 1
        });
        tokio::spawn(converse(Arc::clone(shared), stream, number));
    }
}

/// Answers one request after the other. A request that cannot be read ends the connection.
async fn converse(shared: Arc<Shared>, mut stream: TcpStream, connection: usize) {
    // Without it, small pieces would wait for the acknowledgement of those before them.
    let _ = stream.set_nodelay(true);
    let mut held = Vec::new();
    while let Ok(Some(request)) = http::read(&mut stream, &mut held).await {
        let seen = see(request, connection);
        let (index, reply) = shared.change(|state| {
            let reply = state.plan.reply_to(&seen);
            state.seen.push(seen);
            (state.seen.len() - 1, reply)
        });
        match play(&shared, &mut stream, &mut held, &reply).await {
            Outcome::Open => {}
            Outcome::Close => return,
            Outcome::Cut => {
                let _ = stream.set_zero_linger();
                return;
            }
            Outcome::HungUp => {
                shared.change(|state| state.seen[index].hung_up = true);
                return;
            }
        }
    }
}

fn see(request: http::Request, connection: usize) -> Seen {
    let http::Request { method, target, headers, body: bytes } = request;
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let text = || Value::String(String::from_utf8_lossy(&bytes).into_owned());
    let body = if bytes.is_empty() {
        Value::Null
    } else {
        serde_json::from_slice(&bytes).unwrap_or_else(|_| text())
    };
    let (path, query) = (path.to_owned(), query.to_owned());
    Seen { method, path, query, headers, body, bytes, at: Instant::now(), connection, hung_up: false }
}
