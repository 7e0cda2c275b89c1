//! A proxy that cuts connections after some bytes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

#[derive(Debug)]
pub(crate) struct Cutter {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    calm: AtomicBool,
    closed: AtomicBool,
    /// Incremented to turn all open connections into black holes.
    holes: AtomicU64,
    passed: AtomicU64,
    cuts: AtomicU64,
    now: Notify,
    refused: Notify,
}

impl Cutter {
    /// Cuts each connection to `server` after up to `most` bytes in one direction.
    pub(crate) async fn start(server: SocketAddr, most: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared::default());
        let cutting = Arc::clone(&shared);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                if cutting.closed.load(Ordering::Relaxed) {
                    cutting.refused.notify_one();
                } else {
                    tokio::spawn(one(Arc::clone(&cutting), stream, server, most));
                }
            }
        });
        Self { address, shared }
    }

    /// Stops or starts cutting new connections.
    pub(crate) fn calm(&self, calm: bool) {
        self.shared.calm.store(calm, Ordering::Relaxed);
    }

    /// Cuts all open connections and refuses new ones, or accepts them again.
    pub(crate) fn close(&self, closed: bool) {
        self.shared.closed.store(closed, Ordering::Relaxed);
        if closed {
            self.shared.now.notify_waiters();
        }
    }

    /// Discards all data on the open connections from now on, and keeps them open.
    pub(crate) fn swallow(&self) {
        self.shared.holes.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn passed(&self) -> u64 {
        self.shared.passed.load(Ordering::SeqCst)
    }

    /// Waits until a connection was refused.
    pub(crate) async fn refused(&self) {
        self.shared.refused.notified().await;
    }

    pub(crate) fn cuts(&self) -> u64 {
        self.shared.cuts.load(Ordering::Relaxed)
    }
}

async fn one(shared: Arc<Shared>, client: TcpStream, server: SocketAddr, most: u64) {
    let now = shared.now.notified();
    let holes = shared.holes.load(Ordering::SeqCst);
    shared.passed.fetch_add(1, Ordering::SeqCst);
    let is_hole = || shared.holes.load(Ordering::SeqCst) != holes;
    let Ok(server) = TcpStream::connect(server).await else { return };
    for stream in [&client, &server] {
        stream.set_nodelay(true).unwrap();
        if fastrand::bool() {
            // A reset instead of an end: data in flight is lost.
            stream.set_zero_linger().unwrap();
        }
    }
    let budget = |calm: bool| if calm { u64::MAX } else { fastrand::u64(1..=most) };
    let calm = shared.calm.load(Ordering::Relaxed);
    let (there, back) = (budget(calm), budget(calm));
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let was_cut = tokio::select! {
        was_cut = copy(&mut from_client, &mut to_server, there, &is_hole) => was_cut,
        was_cut = copy(&mut from_server, &mut to_client, back, &is_hole) => was_cut,
        () = now => true,
    };
    if was_cut {
        shared.cuts.fetch_add(1, Ordering::Relaxed);
    }
}

/// Copies up to `budget` bytes. Returns `true` if that was the end of the input.
async fn copy(
    from: &mut (impl AsyncReadExt + Unpin),
    to: &mut (impl AsyncWriteExt + Unpin),
    mut budget: u64,
    is_hole: &(dyn Fn() -> bool + Sync),
) -> bool {
    let mut buffer = [0; 4096];
    while budget > 0 {
        let most = usize::try_from(budget).unwrap_or(usize::MAX).min(buffer.len());
        match from.read(&mut buffer[..most]).await {
            Ok(0) | Err(_) => return false,
            Ok(_) if is_hole() => {}
            Ok(read) => {
                budget -= read as u64;
                if to.write_all(&buffer[..read]).await.is_err() {
                    return false;
                }
            }
        }
    }
    true
}
