//! One connection of a client, over one socket or, if it is resumable, over several in turn.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::Poll;

use bytes::Bytes;
use narrows_base::sync::lock;
use narrows_wire::{Code, RpcError, View, message};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};

use super::Served;
use super::admission::AdmittedClient;
use super::codec::Received;
use super::detached::Detachment;
use super::disconnect_stats::DisconnectOutcome;
use super::io::Scratch;
use super::pump::{BackendLine, PumpEnd};
use super::refusal_stats::RefusalReason;
use super::shared::HttpServerState;
use super::socket::{ClientSocket, Handoff, SocketEnd};
use crate::identity::Identity;
use crate::resume::{
    self, ConnectionName, FirstMessage, Granted, ResumableEnd, ResumeRequest, ResumeResponse,
};

/// WebSocket close code: the server shuts down.
const GOING_AWAY_CODE: u16 = 1001;
/// WebSocket close code: protocol violation, or a newer socket has taken over.
pub(super) const REFUSED_CODE: u16 = 1008;
/// WebSocket close code: a limit is reached.
const TRY_AGAIN_LATER_CODE: u16 = 1013;
/// WebSocket close code: the credential was revoked.
const UNAUTHORIZED_CODE: u16 = 4401;

const MAX_RESUME_ATTEMPTS: usize = 4;

struct Attach {
    socket: ClientSocket,
    client: AdmittedClient,
    ask: ResumeRequest,
}

#[derive(Debug, Default)]
pub(super) struct Resumable {
    by_name: Mutex<HashMap<ConnectionName, Owned>>,
}

#[derive(Clone, Debug)]
struct Owned {
    owner: Identity,
    /// The number of the listener on which the connection began.
    listener: usize,
    attach: mpsc::Sender<Attach>,
}

impl Resumable {
    fn add(&self, connection: &ConnectionName, client: &AdmittedClient) -> mpsc::Receiver<Attach> {
        let (attach, receiver) = mpsc::channel(MAX_RESUME_ATTEMPTS);
        let mut by_name = lock(&self.by_name);
        let owned = Owned { owner: client.identity().clone(), listener: client.listener(), attach };
        by_name.insert(connection.clone(), owned);
        receiver
    }

    fn remove(&self, connection: &ConnectionName) {
        lock(&self.by_name).remove(connection);
    }

    /// Finds a connection of `identity`. A connection of another identity is reported as missing.
    fn find(&self, connection: &ConnectionName, identity: &Identity) -> Option<Owned> {
        lock(&self.by_name).get(connection).filter(|owned| owned.owner == *identity).cloned()
    }
}

impl std::fmt::Debug for Attach {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Attach")
    }
}

pub(super) async fn serve(
    shared: Arc<HttpServerState>,
    mut socket: ClientSocket,
    mut client: AdmittedClient,
) {
    let first = tokio::select! {
        first = timeout(shared.limits.idle_timeout, read_first(&mut socket, &shared.scratch)) => first,
        () = shared.stopping() => return socket.close(GOING_AWAY_CODE, "going away", &shared.scratch).await,
        () = client.revoked() => return socket.close(UNAUTHORIZED_CODE, "not authorized", &shared.scratch).await,
    };
    let mut messages = match first {
        Ok(Ok(messages)) => messages,
        // A socket without a first message is closed, because it takes the place of another client.
        Err(_) => {
            shared.refusals.add(RefusalReason::WebSocketViolation);
            return socket.close(REFUSED_CODE, "no message received", &shared.scratch).await;
        }
        Ok(Err(end)) => return finish(&shared, socket, PumpEnd::Socket(end)).await,
    };
    let Some(opening) = messages.first().map(|opening| View::parse(opening)) else { return };
    match resume::first(&opening) {
        FirstMessage::Plain | FirstMessage::Marked if !client.claim() => {
            // The slot is released before the socket is closed, so that another client can resume a
            // connection.
            drop(client);
            shared.refusals.add(RefusalReason::Limit);
            socket.put(&too_many(opening.id().unwrap_or(b"null")), &shared.scratch);
            socket.close(TRY_AGAIN_LATER_CODE, "try again later", &shared.scratch).await;
        }
        FirstMessage::Plain => serve_plain(&shared, socket, client, messages).await,
        // Boxed, so that it does not enlarge the future of other connections.
        FirstMessage::Marked => {
            let id = opening.id().map(Bytes::copy_from_slice).unwrap_or_default();
            Box::pin(serve_resumable(&shared, socket, client, messages, id)).await;
        }
        FirstMessage::Resume(ask) => {
            socket.unread(messages.split_off(1));
            drop(messages);
            attach(&shared, Attach { socket, client, ask }).await;
        }
        FirstMessage::Broken(answer) => {
            drop(client);
            shared.refusals.add(RefusalReason::Resume);
            socket.put(&answer, &shared.scratch);
            socket.close(REFUSED_CODE, "refused", &shared.scratch).await;
        }
    }
}

pub(super) fn too_many(id: &[u8]) -> Bytes {
    message::error(id, &RpcError::new(Code::Backpressure, "too many connections"))
}

/// Reads up to the first message, and returns all messages of that read.
async fn read_first(socket: &mut ClientSocket, scratch: &Scratch) -> Result<Vec<Bytes>, SocketEnd> {
    let mut messages = Vec::new();
    poll_fn(|cx| {
        loop {
            let mut answers = Vec::new();
            let read = socket.poll_read(cx, scratch, |heard| match heard {
                Received::Message(message) => messages.push(Bytes::copy_from_slice(message)),
                Received::TooLong(view) => answers.extend(view.refusal()),
                Received::Ping(_) | Received::Close(_) => {}
            });
            for answer in answers {
                socket.put(&answer, scratch);
            }
            if let Poll::Ready(Err(end)) = socket.poll_write(cx, scratch) {
                return Poll::Ready(Err(end));
            }
            match read {
                Poll::Ready(Ok(_)) if !messages.is_empty() => return Poll::Ready(Ok(())),
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(end)) => return Poll::Ready(Err(end)),
                Poll::Pending => return socket.poll_tick(cx, scratch).map(Err),
            }
        }
    })
    .await?;
    Ok(messages)
}

/// Opens the backend for a client that has sent `messages`, which are still to be read from the socket then.
async fn open_backend(
    shared: &HttpServerState,
    socket: &mut ClientSocket,
    client: &AdmittedClient,
    messages: Vec<Bytes>,
) -> Option<BackendLine> {
    let opening = messages.first().cloned().unwrap_or_default();
    socket.unread(messages);
    match shared.open_backend(client).await {
        Ok(backend) => Some(BackendLine::new(backend, shared.unfinished.part(client.identity()))),
        Err(error) => {
            tracing::warn!(%error, "backend unavailable");
            shared.refusals.add(RefusalReason::Backend);
            let id = View::parse(&opening).id().unwrap_or(b"null");
            let refusal = RpcError::new(Code::Backpressure, "no agent is available");
            socket.put(&message::error(id, &refusal), &shared.scratch);
            None
        }
    }
}

async fn serve_plain(
    shared: &Arc<HttpServerState>,
    socket: ClientSocket,
    mut client: AdmittedClient,
    messages: Vec<Bytes>,
) {
    let scratch = &shared.scratch;
    let mut socket = match socket.hand_off(&messages, |upgraded| shared.hand_off(&client, upgraded)) {
        Ok(Handoff::Here(socket)) => *socket,
        Ok(Handoff::Taken(served, place)) => {
            drop(messages);
            supervise_handoff(shared, served, &mut client).await;
            return drop(place);
        }
        Err(error) => return tracing::debug!(%error, "WebSocket handoff failed"),
    };
    let Some(mut line) = open_backend(shared, &mut socket, &client, messages).await else {
        return socket.close(TRY_AGAIN_LATER_CODE, "try again later", scratch).await;
    };
    let (end, code, reason) = tokio::select! {
        biased;
        end = poll_fn(|cx| line.poll_pump(cx, &mut socket, scratch)) => (Some(end), 0, ""),
        () = shared.stopping() => (None, GOING_AWAY_CODE, "going away"),
        () = client.revoked() => (None, UNAUTHORIZED_CODE, "not authorized"),
    };
    // The backend's socket is dropped first: the backend does not wait for a client to read the close frame.
    drop(line);
    match end {
        Some(end) => finish(shared, socket, end).await,
        None => socket.close(code, reason, scratch).await,
    }
}

/// Closes a connection that the backend serves at shutdown or revocation.
async fn supervise_handoff(
    shared: &HttpServerState,
    mut served: Box<dyn Served>,
    client: &mut AdmittedClient,
) {
    let (code, reason) = tokio::select! {
        biased;
        fault = served.ended() => {
            if fault.is_some() {
                shared.refusals.add(RefusalReason::WebSocketViolation);
            }
            return;
        }
        () = shared.stopping() => (GOING_AWAY_CODE, "going away"),
        () = client.revoked() => (UNAUTHORIZED_CODE, "not authorized"),
    };
    served.hang_up(code, reason);
    served.ended().await;
}

async fn finish(shared: &HttpServerState, socket: ClientSocket, end: PumpEnd) {
    let scratch = &shared.scratch;
    match end {
        PumpEnd::Backend => socket.close(GOING_AWAY_CODE, "going away", scratch).await,
        PumpEnd::Socket(SocketEnd::Lost) => {}
        PumpEnd::Socket(SocketEnd::Crowded) => {
            shared.refusals.add(RefusalReason::Limit);
            socket.close(TRY_AGAIN_LATER_CODE, "too many long messages", scratch).await;
        }
        PumpEnd::Socket(SocketEnd::Flooded) => {
            shared.refusals.add(RefusalReason::Limit);
            socket.close(REFUSED_CODE, "too many invalid messages", scratch).await;
        }
        PumpEnd::Socket(SocketEnd::Left(code)) => socket.close(code.unwrap_or(1000), "", scratch).await,
        PumpEnd::Socket(SocketEnd::Fault(fault)) => {
            tracing::debug!(reason = %fault, "closing client");
            shared.refusals.add(RefusalReason::WebSocketViolation);
            socket.close(fault.code(), "", scratch).await;
        }
    }
}

async fn serve_resumable(
    shared: &Arc<HttpServerState>,
    mut socket: ClientSocket,
    client: AdmittedClient,
    messages: Vec<Bytes>,
    id: Bytes,
) {
    let scratch = &shared.scratch;
    let Some(random) = shared.random() else {
        return socket.close(TRY_AGAIN_LATER_CODE, "try again later", scratch).await;
    };
    let connection = ConnectionName::new(random);
    let Some(mut line) = open_backend(shared, &mut socket, &client, messages).await else {
        return socket.close(TRY_AGAIN_LATER_CODE, "try again later", scratch).await;
    };
    let granted = Granted { connection: connection.clone(), grace: shared.limits.grace };
    let share = shared.replay_memory.share(client.identity());
    line.make_resumable(ResumableEnd::new(shared.limits.keep()), share, id, granted);
    socket.limit_kernel_buffers();
    let mut attaching = shared.resumable.add(&connection, &client);
    let last = serve_sockets(shared, line, socket, client, &mut attaching).await;
    shared.resumable.remove(&connection);
    attaching.close();
    while let Some(late) = attaching.recv().await {
        drop(late.client);
        let answer = late.ask.answer(&ResumeResponse::Unknown);
        shared.refusals.add(RefusalReason::Resume);
        refuse(late.socket, &answer, scratch).await;
    }
    match last {
        Some((socket, LastSocket::End(end))) => finish(shared, socket, end).await,
        Some((socket, LastSocket::Close(code, reason))) => socket.close(code, reason, scratch).await,
        None => {}
    }
}

enum LastSocket {
    End(PumpEnd),
    Close(u16, &'static str),
}

enum ConnectionEvent {
    Attach(Box<Attach>),
    End(PumpEnd),
    Stop,
    Revoked,
    Over,
}

/// Serves one socket after another until the connection ends. Returns the socket that is open at the end, if
/// there is one.
async fn serve_sockets(
    shared: &Arc<HttpServerState>,
    mut line: BackendLine,
    socket: ClientSocket,
    mut client: AdmittedClient,
    attaching: &mut mpsc::Receiver<Attach>,
) -> Option<(ClientSocket, LastSocket)> {
    let scratch = &shared.scratch;
    let mut socket = Some(socket);
    let mut deadline = Instant::now();
    let mut detached_slot = None;
    let mut detachment: Option<Detachment> = None;
    loop {
        let event = tokio::select! {
            biased;
            Some(attach) = attaching.recv() => ConnectionEvent::Attach(Box::new(attach)),
            end = pump(&mut line, socket.as_mut(), scratch) => ConnectionEvent::End(end),
            () = sleep_until(deadline), if socket.is_none() => ConnectionEvent::Over,
            () = make_room(detachment.as_ref()) => ConnectionEvent::Over,
            () = shared.stopping() => ConnectionEvent::Stop,
            () = client.revoked() => ConnectionEvent::Revoked,
        };
        match event {
            ConnectionEvent::Attach(attach) => {
                let (target, message) = match take_over(&mut line, *attach, scratch) {
                    (newest, Ok(its_client)) => {
                        // A client has only one socket. If there is an old one, its loss was not noticed yet.
                        if socket.is_some() {
                            shared.disconnects.add(DisconnectOutcome::Broken);
                        }
                        shared.disconnects.add(DisconnectOutcome::Resumed);
                        drop((detached_slot.take(), detachment.take()));
                        client.resume_with(its_client);
                        (socket.replace(newest), resume::fence())
                    }
                    (refused, Err(answer)) => {
                        shared.disconnects.add(DisconnectOutcome::Gap);
                        shared.refusals.add(RefusalReason::Resume);
                        (Some(refused), answer)
                    }
                };
                if let Some(target) = target {
                    let shared = Arc::clone(shared);
                    tokio::spawn(async move { refuse(target, &message, &shared.scratch).await });
                }
            }
            ConnectionEvent::End(end) => {
                let old = socket.take()?;
                // A client that closes its socket normally does not return, and a client that floods must
                // not. After a protocol violation the client may return, because the network may have caused
                // it.
                let gone = matches!(
                    end,
                    PumpEnd::Backend
                        | PumpEnd::Socket(SocketEnd::Flooded | SocketEnd::Left(None | Some(1000)))
                );
                if gone || !line.is_granted() {
                    return Some((old, LastSocket::End(end)));
                }
                shared.disconnects.add(DisconnectOutcome::Broken);
                detached_slot = Some(client.mark_detached());
                detachment = Some(shared.detached.add(client.identity().to_string()));
                deadline = Instant::now() + shared.limits.grace;
                let shared = Arc::clone(shared);
                tokio::spawn(async move { finish(&shared, old, end).await });
            }
            ConnectionEvent::Stop => {
                return Some((socket?, LastSocket::Close(GOING_AWAY_CODE, "going away")));
            }
            ConnectionEvent::Revoked => {
                return Some((socket?, LastSocket::Close(UNAUTHORIZED_CODE, "not authorized")));
            }
            ConnectionEvent::Over => {
                shared.disconnects.add(DisconnectOutcome::Expired);
                return None;
            }
        }
    }
}

async fn make_room(detachment: Option<&Detachment>) {
    match detachment {
        Some(detachment) => detachment.ended().await,
        None => std::future::pending().await,
    }
}

/// Carries messages both ways; without a socket, collects the output of the backend and never returns.
async fn pump(line: &mut BackendLine, socket: Option<&mut ClientSocket>, scratch: &Scratch) -> PumpEnd {
    match socket {
        Some(socket) => poll_fn(|cx| line.poll_pump(cx, socket, scratch)).await,
        None => {
            poll_fn(|cx| line.poll_collect(cx, scratch)).await;
            std::future::pending().await
        }
    }
}

/// Continues the connection on a new socket. Returns the socket with its client, or the refused socket with
/// the response.
fn take_over(
    line: &mut BackendLine,
    attach: Attach,
    scratch: &Scratch,
) -> (ClientSocket, Result<AdmittedClient, Bytes>) {
    let Attach { mut socket, client, ask } = attach;
    let resumed = match line.resumable().map(|end| end.resume(ask.received)) {
        Some(Ok(received)) => {
            socket.limit_kernel_buffers();
            socket.put(&ask.answer(&ResumeResponse::Resumed { received }), scratch);
            Ok(client)
        }
        Some(Err(resume::ReplayGap)) => Err(ask.answer(&ResumeResponse::Gap)),
        None => Err(ask.answer(&ResumeResponse::Unknown)),
    };
    (socket, resumed)
}

/// Passes a socket to the connection that it wants to resume.
async fn attach(shared: &Arc<HttpServerState>, attach: Attach) {
    let found = shared.resumable.find(&attach.ask.connection, attach.client.identity());
    // Another listener may grant fewer rights, and the connection keeps the rights of its first listener.
    let found = found.filter(|owned| shared.may_continue(owned.listener, attach.client.listener()));
    let attach = match found {
        Some(owned) => match owned.attach.send(attach).await {
            Ok(()) => return,
            Err(mpsc::error::SendError(attach)) => attach,
        },
        None => attach,
    };
    drop(attach.client);
    shared.refusals.add(RefusalReason::Resume);
    let answer = attach.ask.answer(&ResumeResponse::Unknown);
    refuse(attach.socket, &answer, &shared.scratch).await;
}

async fn refuse(mut socket: ClientSocket, answer: &[u8], scratch: &Scratch) {
    socket.put(answer, scratch);
    socket.close(REFUSED_CODE, "refused", scratch).await;
}
