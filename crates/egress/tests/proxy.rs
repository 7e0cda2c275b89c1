//! Tests of the proxy on real sockets: only listed hosts are reachable.
#![expect(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use narrows_egress::{Denial, HostAllowList, Options, Reason, Resolve, serve};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Longer than any step of a test takes.
const STEP_TIMEOUT: Duration = Duration::from_secs(30);

/// A resolver that returns this address for every name.
struct Everywhere(IpAddr);

impl Resolve for Everywhere {
    fn resolve<'a>(
        &'a self,
        _: &'a str,
    ) -> Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send + 'a>> {
        Box::pin(std::future::ready(Ok(vec![self.0])))
    }
}

struct Proxy {
    address: SocketAddr,
    denials: mpsc::Receiver<Denial>,
    task: JoinHandle<()>,
}

impl Proxy {
    async fn new(entries: &[String], options: Options) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, denials) = mpsc::channel(16);
        let resolver = Arc::new(Everywhere([127, 0, 0, 1].into()));
        let list = HostAllowList::parse(entries).unwrap();
        let task = tokio::spawn(serve(listener, list, options, resolver, sender));
        Self { address, denials, task }
    }

    async fn exchange(&self, text: &[u8]) -> String {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(text).await.unwrap();
        read(&mut stream).await
    }

    async fn denial(&mut self) -> (String, Reason) {
        let denial = timeout(STEP_TIMEOUT, self.denials.recv()).await.unwrap().unwrap();
        (denial.target.map(|target| target.to_string()).unwrap_or_default(), denial.reason)
    }
}

async fn read(stream: &mut TcpStream) -> String {
    let mut text = Vec::new();
    timeout(STEP_TIMEOUT, stream.read_to_end(&mut text)).await.unwrap().unwrap();
    String::from_utf8(text).unwrap()
}

async fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut told = Vec::new();
                while !told.ends_with(b"\r\n\r\n") && !told.ends_with(b"BODY") {
                    if stream.read_buf(&mut told).await.unwrap_or(0) == 0 {
                        return;
                    }
                }
                let _ = stream.write_all(b"heard: ").await;
                let _ = stream.write_all(&told).await;
            });
        }
    });
    address
}

#[tokio::test]
async fn listed_hosts_are_reachable() {
    let server = echo().await;
    let port = server.port();
    for name in ["127.0.0.1", "localhost"] {
        let proxy = Proxy::new(&[format!("{name}:{port}")], Options::default()).await;
        let tunnel = format!("CONNECT {name}:{port} HTTP/1.1\r\n\r\nhello\r\n\r\n");
        assert_eq!(
            proxy.exchange(tunnel.as_bytes()).await,
            "HTTP/1.1 200 Connection established\r\n\r\nheard: hello\r\n\r\n"
        );
        let plain = format!(
            "POST http://{name}:{port}/x HTTP/1.1\r\nHost: evil\r\nProxy-Authorization: secret\r\nContent-Length: 4\r\n\r\nBODYGET / HTTP/1.1\r\n\r\n"
        );
        let heard = proxy.exchange(plain.as_bytes()).await;
        let expected = format!(
            "heard: POST /x HTTP/1.1\r\nHost: {name}:{port}\r\nConnection: close\r\nContent-Length: 4\r\n\r\nBODY"
        );
        // The proxy may answer before it has read everything.
        assert!(
            expected.starts_with(&heard) && heard.starts_with("heard: POST /x HTTP/1.1\r\nHost: "),
            "{heard}"
        );
    }
}

#[tokio::test]
async fn unlisted_and_private_hosts_are_denied() {
    let server = echo().await;
    let port = server.port();
    let mut proxy =
        Proxy::new(&[format!("*.allowed.test:{port}"), "localhost".to_owned()], Options::default()).await;
    for (target, reason) in [
        (format!("other.test:{port}"), Reason::Unlisted),
        (format!("allowed.test:{port}"), Reason::Unlisted),
        (format!("127.0.0.1:{port}"), Reason::Unlisted),
        (format!("[::1]:{port}"), Reason::Unlisted),
        (format!("localhost:{port}"), Reason::Unlisted),
        ("a.allowed.test:22".to_owned(), Reason::Unlisted),
        // Listed, but resolves to this machine.
        (format!("a.allowed.test:{port}"), Reason::Private),
    ] {
        let answer = proxy.exchange(format!("CONNECT {target} HTTP/1.1\r\n\r\n").as_bytes()).await;
        assert!(
            answer.starts_with("HTTP/1.1 403 Forbidden\r\n") && answer.contains(&reason.to_string()),
            "{answer}"
        );
        assert_eq!(proxy.denial().await, (target.clone(), reason));
        let answer = proxy.exchange(format!("GET http://{target}/ HTTP/1.1\r\n\r\n").as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{answer}");
        assert_eq!(proxy.denial().await, (target, reason));
    }
    let nothing = Proxy::new(&[], Options::default()).await;
    assert!(nothing.exchange(b"CONNECT a.test:443 HTTP/1.1\r\n\r\n").await.starts_with("HTTP/1.1 403"));
}

#[tokio::test]
async fn garbage_is_refused() {
    let mut proxy = Proxy::new(&["a.test".to_owned()], Options::default()).await;
    for garbage in [
        &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n"[..],
        b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n",
        b"CONNECT evil\0.a.test:443 HTTP/1.1\r\n\r\n",
        b"CONNECT a.test:443 HTTP/9.9\r\n\r\n",
        b"POST http://a.test/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
    ] {
        assert!(proxy.exchange(garbage).await.starts_with("HTTP/1.1 400 Bad Request\r\n"));
        assert_eq!(proxy.denial().await, (String::new(), Reason::Malformed));
    }
    let long = format!("CONNECT a.test:443 HTTP/1.1\r\nA: {}", "x".repeat(17 << 10));
    assert!(proxy.exchange(long.as_bytes()).await.starts_with("HTTP/1.1 431 "));
    assert_eq!(proxy.denial().await, (String::new(), Reason::TooLong));
}

#[tokio::test]
async fn slow_clients_time_out_and_do_not_delay_others() {
    let server = echo().await;
    let target = format!("127.0.0.1:{}", server.port());
    let options = Options { head: Duration::from_millis(200), ..Options::default() };
    let mut proxy = Proxy::new(std::slice::from_ref(&target), options).await;
    let mut slow = TcpStream::connect(proxy.address).await.unwrap();
    slow.write_all(b"CONNECT ").await.unwrap();
    let quick = proxy.exchange(format!("CONNECT {target} HTTP/1.1\r\n\r\nhello\r\n\r\n").as_bytes()).await;
    assert!(quick.ends_with("heard: hello\r\n\r\n"), "{quick}");
    assert!(read(&mut slow).await.starts_with("HTTP/1.1 408 "));
    assert_eq!(proxy.denial().await, (String::new(), Reason::TooSlow));
}

#[tokio::test]
async fn connections_over_the_limit_wait_for_a_free_slot() {
    let server = echo().await;
    let target = format!("127.0.0.1:{}", server.port());
    let proxy =
        Proxy::new(std::slice::from_ref(&target), Options { connections: 1, ..Options::default() }).await;
    let mut first = TcpStream::connect(proxy.address).await.unwrap();
    let open = format!("CONNECT {target} HTTP/1.1\r\n\r\n");
    first.write_all(open.as_bytes()).await.unwrap();
    let mut answer = [0; 39];
    timeout(STEP_TIMEOUT, first.read_exact(&mut answer)).await.unwrap().unwrap();
    let mut second = TcpStream::connect(proxy.address).await.unwrap();
    second.write_all(format!("{open}hello\r\n\r\n").as_bytes()).await.unwrap();
    drop(first);
    assert!(read(&mut second).await.ends_with("heard: hello\r\n\r\n"));
    drop(second);
    // Dropping the proxy closes all its connections.
    let mut last = TcpStream::connect(proxy.address).await.unwrap();
    last.write_all(open.as_bytes()).await.unwrap();
    timeout(STEP_TIMEOUT, last.read_exact(&mut answer)).await.unwrap().unwrap();
    proxy.task.abort();
    let _ = proxy.task.await;
    assert_eq!(read(&mut last).await, "");
}

#[tokio::test]
async fn an_unreachable_host_is_reported() {
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let target = format!("127.0.0.1:{}", gone.port());
    let proxy = Proxy::new(std::slice::from_ref(&target), Options::default()).await;
    let answer = proxy.exchange(format!("CONNECT {target} HTTP/1.1\r\n\r\n").as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 502 Bad Gateway\r\n"), "{answer}");
}
