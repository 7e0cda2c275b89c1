//! A proxy that cuts the first connections within the response.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener};

/// A proxy that cuts each of the first connections after some bytes from the server, and forwards the others.
#[derive(Debug)]
pub(crate) struct Breaker {
    pub(crate) address: SocketAddr,
    came: Arc<AtomicU64>,
}

impl Breaker {
    /// Cuts `count` connections to `server`, each after `most` bytes from the server.
    pub(crate) async fn start(server: SocketAddr, count: u64, most: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let came = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&came);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let is_cut = counter.fetch_add(1, Ordering::SeqCst) < count;
                tokio::spawn(one(client, server, is_cut.then_some(most)));
            }
        });
        Self { address, came }
    }

    /// Forwards the input of the clients of `count` connections, but no output of the server, without closing them.
    #[allow(dead_code, reason = "not all tests stall")]
    pub(crate) async fn start_stalling(server: SocketAddr, count: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let came = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&came);
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                if counter.fetch_add(1, Ordering::SeqCst) >= count {
                    tokio::spawn(one(client, server, None));
                    continue;
                }
                tokio::spawn(async move {
                    let (mut from_client, _to_client) = client.split();
                    let mut server = TcpStream::connect(server).await.unwrap();
                    _ = tokio::io::copy(&mut from_client, &mut server).await;
                });
            }
        });
        Self { address, came }
    }

    /// Like [`Breaker::start`] on a unix socket; the address is unused then.
    #[allow(dead_code, reason = "not all tests use sockets in files")]
    pub(crate) fn start_at(path: &Path, server: SocketAddr, count: u64, most: usize) -> Self {
        let listener = UnixListener::bind(path).unwrap();
        let came = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&came);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let is_cut = counter.fetch_add(1, Ordering::SeqCst) < count;
                tokio::spawn(one(client, server, is_cut.then_some(most)));
            }
        });
        Self { address: server, came }
    }

    pub(crate) fn connections(&self) -> u64 {
        self.came.load(Ordering::SeqCst)
    }
}

async fn one(mut client: impl AsyncRead + AsyncWrite + Unpin, server: SocketAddr, most: Option<usize>) {
    let mut server = TcpStream::connect(server).await.unwrap();
    let Some(mut most) = most else {
        _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
        return;
    };
    let (mut from_client, mut from_server) = (vec![0; 64 << 10], vec![0; 64 << 10]);
    loop {
        tokio::select! {
            read = client.read(&mut from_client) => match read {
                Ok(read @ 1..) => server.write_all(&from_client[..read]).await.unwrap(),
                _ => return,
            },
            read = server.read(&mut from_server) => match read {
                Ok(read @ 1..) if read < most => {
                    client.write_all(&from_server[..read]).await.unwrap();
                    most -= read;
                }
                Ok(read @ 1..) => {
                    client.write_all(&from_server[..read.min(most)]).await.unwrap();
                    return;
                }
                _ => return,
            },
        }
    }
}
