//! The server: a socket, a thread, and the recorded requests.

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

pub(super) struct Shared {
    state: Mutex<State>,
    changed: watch::Sender<()>,
}

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

    pub(super) async fn wait(&self, condition: impl Fn(&State) -> bool) {
        let mut changed = self.changed.subscribe();
        while !condition(&self.state()) {
            // Waiting cannot fail, because this value holds the sender.
            let _ = changed.changed().await;
        }
    }
}

/// A scripted Chat Completions server on this machine. Stops on drop.
pub struct ModelServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl ModelServer {
    /// Starts a server on a free port.
    ///
    /// # Panics
    /// If no port is free or no thread can be started.
    #[must_use]
    pub fn start(plan: impl Into<Plan>) -> Self {
        Self::start_at(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), plan)
    }

    /// Starts a server at this address.
    ///
    /// # Panics
    /// If the address is in use or no thread can be started.
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

    /// Returns the server's address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns `http://127.0.0.1:PORT/v1`.
    #[must_use]
    pub fn base_url(&self) -> String {
        self.url("/v1")
    }

    /// Returns the URL of this path.
    #[must_use]
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Returns all requests so far.
    #[must_use]
    pub fn seen(&self) -> Vec<Seen> {
        self.shared.state().seen.clone()
    }

    /// Waits for this number of requests.
    pub async fn seen_count(&self, count: usize) {
        self.shared.wait(|state| state.seen.len() >= count).await;
    }

    /// Waits until a client closes a connection during a reply.
    pub async fn hung_up(&self) {
        self.shared.wait(|state| state.seen.iter().any(|seen| seen.hung_up)).await;
    }

    /// Returns the number of connections so far.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.state().connections
    }

    /// Releases every reply that waits at `gate`, now or later.
    pub fn release(&self, gate: &str) {
        self.shared.change(|state| state.released.insert(gate.to_owned()));
    }

    /// Replaces the plan.
    pub fn replan(&self, plan: impl Into<Plan>) {
        let plan = plan.into();
        self.shared.change(|state| state.plan = plan);
    }
}

impl Drop for ModelServer {
    fn drop(&mut self) {
        self.shared.change(|state| state.stopped = true);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was already reported.
            let _ = thread.join();
        }
    }
}

/// Returns a base URL on which nothing listens, and its address.
///
/// # Panics
/// If there is no free port.
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

/// Answers the requests of a connection in order. A request that cannot be parsed ends the connection.
async fn converse(shared: Arc<Shared>, mut stream: TcpStream, connection: usize) {
    // With Nagle's algorithm, a small piece would wait until the previous one is acknowledged.
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
