//! A small server that can resume: it answers requests, and streams notifications as fast as they are read.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use narrows_remote::resume::{
    self, ConnectionName, FirstMessage, Granted, Keep, ResumableEnd, ResumeResponse,
};
use narrows_wire::{Kind, View, message};
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

/// The kind of socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carrier {
    Web,
    Lines,
}

/// The behavior of the server.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    carrier: Carrier,
    /// `true` if the server grants the resume capability.
    resumes: bool,
    /// Streams notifications.
    streams: AtomicBool,
    /// Each socket is closed after this number of messages was read or written; 0 is never.
    cut_after: AtomicU64,
    cuts: AtomicU64,
    fenced: AtomicU64,
    farewells: AtomicU64,
    resumed: AtomicU64,
    connections: Mutex<HashMap<ConnectionName, Arc<Logical>>>,
}

/// A connection that outlives its sockets.
#[derive(Debug)]
struct Logical {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug)]
struct State {
    endpoint: ResumableEnd,
    epoch: u64,
    /// Notifications sent.
    streamed: u64,
    /// Requests received, without `initialize`.
    asked: u64,
}

impl Server {
    pub(crate) async fn start(carrier: Carrier, resumes: bool, streams: bool) -> Self {
        Self::start_at("127.0.0.1:0", carrier, resumes, streams).await
    }

    pub(crate) async fn start_at(place: &str, carrier: Carrier, resumes: bool, streams: bool) -> Self {
        let listener = TcpListener::bind(place).await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            carrier,
            resumes,
            streams: AtomicBool::new(streams),
            cut_after: AtomicU64::new(0),
            cuts: AtomicU64::new(0),
            fenced: AtomicU64::new(0),
            farewells: AtomicU64::new(0),
            resumed: AtomicU64::new(0),
            connections: Mutex::default(),
        });
        let serve = Arc::clone(&shared);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                stream.set_nodelay(true).unwrap();
                tokio::spawn(serve_one(Arc::clone(&serve), stream));
            }
        });
        Self { address, shared }
    }

    pub(crate) fn url(&self, address: SocketAddr) -> String {
        match self.shared.carrier {
            Carrier::Web => format!("ws://{address}/acp"),
            Carrier::Lines => format!("tcp://{address}"),
        }
    }

    pub(crate) fn cut_after(&self, messages: u64) {
        self.shared.cut_after.store(messages, Ordering::Relaxed);
    }

    pub(crate) fn cuts(&self) -> u64 {
        self.shared.cuts.load(Ordering::Relaxed)
    }

    pub(crate) fn fenced(&self) -> u64 {
        self.shared.fenced.load(Ordering::Relaxed)
    }

    pub(crate) fn farewells(&self) -> u64 {
        self.shared.farewells.load(Ordering::Relaxed)
    }

    pub(crate) fn resumed(&self) -> u64 {
        self.shared.resumed.load(Ordering::Relaxed)
    }

    pub(crate) fn stop_streaming(&self) {
        self.shared.streams.store(false, Ordering::Relaxed);
    }

    /// Forgets every connection, as after a restart.
    pub(crate) fn forget(&self) {
        self.shared.connections.lock().unwrap().clear();
    }

    /// Returns the name of the only connection.
    pub(crate) fn only_connection(&self) -> ConnectionName {
        self.shared.connections.lock().unwrap().keys().next().unwrap().clone()
    }

    /// Returns the requests received and the notifications sent, over all connections.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let connections = self.shared.connections.lock().unwrap();
        connections.values().fold((0, 0), |(asked, streamed), logical| {
            let state = logical.state.lock().unwrap();
            (asked + state.asked, streamed + state.streamed)
        })
    }
}

enum Reader {
    Web(SplitStream<WebSocketStream<TcpStream>>),
    Lines(BufReader<OwnedReadHalf>),
}

impl Reader {
    async fn next(&mut self) -> Option<Bytes> {
        match self {
            Self::Web(stream) => loop {
                match stream.next().await?.ok()? {
                    Message::Text(text) => return Some(text.into()),
                    Message::Close(_) => return None,
                    _ => {}
                }
            },
            Self::Lines(half) => {
                let mut line = Vec::new();
                half.read_until(b'\n', &mut line).await.ok()?;
                // A line without its end is incomplete.
                (line.pop()? == b'\n').then(|| line.into())
            }
        }
    }
}

enum Writer {
    Web(SplitSink<WebSocketStream<TcpStream>, Message>),
    Lines(OwnedWriteHalf),
}

impl Writer {
    async fn put(&mut self, line: Bytes) -> Option<()> {
        match self {
            Self::Web(sink) => sink.send(Message::Text(line.try_into().unwrap())).await.ok(),
            Self::Lines(half) => half.write_all(&[&line, b"\n".as_slice()].concat()).await.ok(),
        }
    }
}

async fn serve_one(shared: Arc<Shared>, stream: TcpStream) -> Option<()> {
    let (mut reader, mut writer) = match shared.carrier {
        Carrier::Web => {
            let (sink, stream) = tokio_tungstenite::accept_async(stream).await.ok()?.split();
            (Reader::Web(stream), Writer::Web(sink))
        }
        Carrier::Lines => {
            let (reader, writer) = stream.into_split();
            (Reader::Lines(BufReader::new(reader)), Writer::Lines(writer))
        }
    };
    let line = reader.next().await?;
    let (logical, epoch) = match resume::first(&View::parse(&line)) {
        FirstMessage::Resume(ask) => {
            let logical = shared.connections.lock().unwrap().get(&ask.connection).cloned();
            let Some(logical) = logical else {
                writer.put(ask.answer(&ResumeResponse::Unknown)).await;
                return None;
            };
            let (answer, epoch) = {
                let mut state = logical.state.lock().unwrap();
                match state.endpoint.resume(ask.received) {
                    Ok(received) => {
                        state.epoch += 1;
                        (ResumeResponse::Resumed { received }, state.epoch)
                    }
                    Err(_) => (ResumeResponse::Gap, 0),
                }
            };
            logical.changed.notify_waiters();
            writer.put(ask.answer(&answer)).await?;
            shared.resumed.fetch_add(1, Ordering::Relaxed);
            (logical, epoch)
        }
        FirstMessage::Marked | FirstMessage::Plain => {
            let state =
                State { endpoint: ResumableEnd::new(Keep::default()), epoch: 1, streamed: 0, asked: 0 };
            let logical = Arc::new(Logical { state: Mutex::new(state), changed: Notify::new() });
            let name = ConnectionName::new(fastrand::u128(..).to_be_bytes());
            let granted = Granted { connection: name.clone(), grace: Duration::from_secs(300) };
            shared.connections.lock().unwrap().insert(name, Arc::clone(&logical));
            let mut state = logical.state.lock().unwrap();
            state.endpoint.count_received();
            let answer = message::response(View::parse(&line).id()?, &json!({"protocolVersion": 1})).unwrap();
            let answer = if shared.resumes { resume::grant(&answer, &granted).unwrap() } else { answer };
            state.endpoint.send(answer);
            drop(state);
            (logical, 1)
        }
        FirstMessage::Broken(answer) => {
            writer.put(answer).await;
            return None;
        }
    };
    let left = AtomicU64::new(shared.cut_after.load(Ordering::Relaxed));
    let count = || {
        if left.load(Ordering::Relaxed) > 0 && left.fetch_sub(1, Ordering::Relaxed) == 1 {
            shared.cuts.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(())
    };
    tokio::select! {
        ended = read(&shared, &logical, epoch, &mut reader, &count) => ended,
        ended = write(&shared, &logical, epoch, &mut writer, &count) => ended,
    }
}

impl Logical {
    /// Accepts a message, unless it arrives on a socket that was replaced.
    fn takes(&self, view: &View<'_>, epoch: u64) -> bool {
        let mut state = self.state.lock().unwrap();
        if state.epoch != epoch {
            return false;
        }
        state.endpoint.count_received();
        if view.kind() == Kind::Request {
            state.asked += 1;
            assert_eq!(view.params().unwrap(), format!("[{}]", state.asked).into_bytes(), "in order, once");
            if view.method().unwrap() != "never" {
                let answer = message::response(view.id().unwrap(), &json!({"n": state.asked})).unwrap();
                state.endpoint.send(answer);
            }
        }
        true
    }
}

async fn read(
    shared: &Shared,
    logical: &Logical,
    epoch: u64,
    reader: &mut Reader,
    count: &(dyn Fn() -> Option<()> + Sync),
) -> Option<()> {
    loop {
        let line = reader.next().await?;
        let view = View::parse(&line);
        if resume::is_farewell(&view) {
            shared.farewells.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        if !logical.takes(&view, epoch) {
            // The writer sends the fence, and ends both.
            std::future::pending::<()>().await;
        }
        logical.changed.notify_waiters();
        count()?;
    }
}

async fn write(
    shared: &Shared,
    logical: &Logical,
    epoch: u64,
    writer: &mut Writer,
    count: &(dyn Fn() -> Option<()> + Sync),
) -> Option<()> {
    loop {
        let changed = logical.changed.notified();
        tokio::pin!(changed);
        changed.as_mut().enable();
        let (is_mine, line) = {
            let mut state = logical.state.lock().unwrap();
            let is_mine = state.epoch == epoch;
            let mut line = if is_mine { state.endpoint.next(Instant::now()).cloned() } else { None };
            if is_mine && line.is_none() && shared.streams.load(Ordering::Relaxed) && state.asked > 0 {
                state.streamed += 1;
                let filler = "x".repeat(fastrand::usize(..200));
                let n = state.streamed;
                let update = message::notification("update", &json!({"n": n, "filler": filler})).unwrap();
                state.endpoint.send(update);
                line = state.endpoint.next(Instant::now()).cloned();
            }
            (is_mine, line)
        };
        if !is_mine {
            shared.fenced.fetch_add(1, Ordering::Relaxed);
            writer.put(resume::fence()).await;
            return None;
        }
        match line {
            Some(line) => {
                writer.put(line).await?;
                count()?;
            }
            None => changed.await,
        }
    }
}
