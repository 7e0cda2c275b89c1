//! Accepts, reads and disconnects clients.

use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use narrows_wire::{Code, Fault, Kind, LineRef, RpcError, Splitter, View, is_one_line, make_line, message};
use rustix::io::Errno;

use crate::core::{ANYONE, ClientId, ClientInfo, Time};
use crate::listen::{BoundListener, Family, StdioStreams};

use super::commands::IncomingClient;
use super::connections::{ClientConn, Connections};
use super::handshake::{FirstLine, FirstRead};
use super::silent_clients::crowded_error;
use super::stream::Stream;
use super::websocket::{self, ClientDecoder};
use super::{About, Driver, LINGER_TIMEOUT, PollToken, Router};

/// Interval of write attempts for a client that is being closed while its queue is blocked.
const LINGER_RETRY_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum number of connections that are accepted before other sources are handled.
const MAX_ACCEPTS_PER_ROUND: usize = 64;

impl<B: Router> Driver<B> {
    pub(super) fn list_listener(&mut self, slot: u32) {
        if let Some(listener_slot) = self.listeners.get_mut(slot as usize) {
            listener_slot.readable = true;
            if !listener_slot.listed && !self.checks.is_accept_paused() {
                listener_slot.listed = true;
                self.conns.ready.push(PollToken::Listener(slot));
            }
        }
    }

    pub(super) fn accept(&mut self, now: Time, slot: u32) {
        for _ in 0..MAX_ACCEPTS_PER_ROUND {
            let Some(listener_slot) = self.listeners.get_mut(slot as usize) else { return };
            listener_slot.listed = false;
            let BoundListener::Socket(listener) = &listener_slot.entry else { return };
            let family = listener.family;
            match listener.accept() {
                Ok(peer) => {
                    self.end_fd_shortage();
                    self.admit(now, slot, family, peer);
                }
                Err(Errno::AGAIN) => {
                    listener_slot.readable = false;
                    return;
                }
                Err(Errno::MFILE | Errno::NFILE) if self.evict_several(now) => {}
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    self.pause_accepting(now);
                    return;
                }
                // The peer or the network has already ended the new connection.
                Err(error) => tracing::debug!(%error, "cannot accept connection"),
            }
        }
        self.list_listener(slot);
    }

    fn admit(&mut self, now: Time, listener: u32, family: Family, peer: OwnedFd) {
        let listener = listener as usize;
        let user = match family {
            Family::Tcp if self.is_foreign(listener, &peer) => {
                self.router.count_refused_user();
                refuse_user(peer);
                return;
            }
            Family::Tcp => None,
            Family::Unix => {
                let user = peer_user(&peer);
                if !user.is_some_and(may_use_socket) {
                    self.router.count_refused_user();
                    self.log_refused_user(listener, user);
                    return;
                }
                user
            }
        };
        let identity = user.map_or_else(|| ANYONE.to_owned(), user_name);
        let is_owner = user.is_some_and(|user| user == rustix::process::geteuid().as_raw());
        let mut conn =
            ClientConn::new(Stream::socket(peer), None, family == Family::Tcp, family == Family::Unix);
        if self.hand_over.is_some() {
            conn.first_line =
                Some(Box::new(FirstLine { listener, identity: identity.clone(), read: Vec::new() }));
        }
        let from = ClientInfo { is_owner, ..ClientInfo::new(listener, &identity) };
        let lines = self.lines();
        if let Some(slot) = self.admit_conn(now, from, conn, lines) {
            self.await_first(now, slot, family);
        }
    }

    /// Returns `true` if a TCP connection is refused, because its listener admits one user and the peer is
    /// another or unknown user.
    fn is_foreign(&mut self, listener: usize, peer: &OwnedFd) -> bool {
        let Some(BoundListener::Socket(bound)) =
            self.listeners.get(listener).map(|listener_slot| &listener_slot.entry)
        else {
            return true;
        };
        let Some(only) = bound.only else { return false };
        let user = narrows_link::peer::user_of(peer.as_fd());
        if user != Some(only) {
            self.log_refused_user(listener, user);
        }
        user != Some(only)
    }

    fn log_refused_user(&mut self, listener: usize, user: Option<u32>) {
        if let Some(count) = self.refused_users.count(Instant::now()) {
            tracing::warn!(listener, user, count, "connections refused: not the user of the bus");
        }
    }

    /// Adds a client that the caller of [`Handle::connect`](crate::Handle::connect) has accepted.
    pub(super) fn admit_incoming(&mut self, now: Time, socket: OwnedFd, from: &IncomingClient) {
        let from = from.client_info();
        let mut conn = ClientConn::new(Stream::socket(socket), None, false, true);
        conn.has_own_timeout = true;
        // One descriptor is the socket. Two are the ends of the caller's bridge to the client.
        conn.descriptors = 3;
        let lines = self.lines();
        self.admit_conn(now, from, conn, lines);
    }

    pub(super) fn open_stdio(&mut self, now: Time, listener: u32, ends: StdioStreams) {
        let identity = user_name(rustix::process::geteuid().as_raw());
        self.copied.extend(ends.copied);
        let conn = ClientConn::new(ends.input, Some(ends.output), false, false);
        let listener = listener as usize;
        let from = ClientInfo { ends_bus: true, is_owner: true, ..ClientInfo::new(listener, &identity) };
        let lines = self.lines();
        self.admit_conn(now, from, conn, lines);
    }

    pub(super) fn lines(&self) -> ClientDecoder {
        ClientDecoder::Lines(Splitter::new(self.limits.max_line))
    }

    /// Adds a connection if the limits permit one more. Returns the slot of the connection.
    pub(super) fn admit_conn(
        &mut self,
        now: Time,
        from: ClientInfo<'_>,
        mut conn: ClientConn,
        decoder: ClientDecoder,
    ) -> Option<u32> {
        if let Some(error) = self.no_room(now, &from, &conn) {
            refuse(&conn, &error);
            return None;
        }
        let mut opened = self.call_router(About::All, |router, conns| router.client_open(now, from, conns));
        if let Some(None) = opened
            && !self.draining
            && self.evict_silent(now)
        {
            opened = self.call_router(About::All, |router, conns| router.client_open(now, from, conns));
        }
        let Some(Some(client)) = opened else {
            let error = match opened {
                None => RpcError::new(Code::Internal, "internal error"),
                Some(_) if self.draining => RpcError::new(Code::Draining, "bus is shutting down"),
                Some(_) => crowded_error(),
            };
            refuse(&conn, &error);
            return None;
        };
        let slot = client.0 as usize;
        if self.conns.clients.len() <= slot {
            self.conns.clients.resize_with(slot + 1, || None);
        }
        while self.client_decoders.len() <= slot {
            let lines = self.lines();
            self.client_decoders.push(lines);
        }
        self.client_decoders[slot] = decoder;
        conn.account = self.conns.accounts.number(from.identity);
        self.conns.accounts.open(&conn);
        let registered = conn.register(self.poll.registry(), client.0);
        self.conns.clients[slot] = Some(conn);
        if let Err(error) = registered {
            tracing::warn!(%error, "cannot register client socket");
            self.drop_client(now, client.0);
            return None;
        }
        let identity = Some(from.identity).filter(|identity| *identity != ANYONE);
        tracing::info!(client = slot, listener = from.listener, identity, "client connected");
        Some(client.0)
    }

    pub(super) fn read_client(&mut self, now: Time, slot: u32) {
        let Some(conn) = self.conns.client(slot) else { return };
        conn.intake.listed = false;
        if conn.intake.paused || conn.intake.ended {
            return;
        }
        let read = match conn.input.read(&mut self.scratch) {
            Ok(0) => return self.client_ended(now, slot),
            Ok(read) => read,
            Err(Errno::AGAIN) => {
                conn.intake.readable = false;
                conn.intake.hung_up = false;
                return;
            }
            Err(error) => {
                tracing::debug!(client = slot, %error, "client read failed");
                return self.drop_client(now, slot);
            }
        };
        // A read that did not fill the buffer has emptied the source, except for the end of input.
        conn.intake.readable = read == self.scratch.len() || conn.intake.hung_up;
        let (is_fresh, is_silent) = (conn.first_line.is_some(), conn.silent.is_some());
        if conn.close_state.is_none() && conn.websocket.is_some() {
            self.read_frames(now, slot, read);
        } else if conn.close_state.is_none() && !(conn.checks_json && self.refuse_non_json(slot, read)) {
            let first = if is_fresh { self.check_first_line(now, slot, read) } else { FirstRead::Read };
            let (router, conns) = (&mut self.router, &mut self.conns);
            let ClientDecoder::Lines(lines) = &mut self.client_decoders[slot as usize] else { return };
            let scratch = match &first {
                FirstRead::Read => &self.scratch[..read],
                FirstRead::All(read) => read,
                FirstRead::Nothing => &[],
            };
            let mut spoke = false;
            let handled = catch_unwind(AssertUnwindSafe(|| {
                lines.feed(scratch, |piece| {
                    spoke = true;
                    pass_line(router, conns, now, slot, piece);
                });
            }));
            if is_silent
                && spoke
                && let Some(conn) = self.conns.client(slot)
            {
                conn.silent = None;
            }
            if handled.is_err() {
                self.on_panic(About::Client(slot));
            }
        }
        self.count_unfinished(now, slot);
        self.conns.list_client(slot);
    }

    /// Closes a TCP connection that does not begin like JSON. A web page can connect to a loopback port, but
    /// cannot send input that begins like JSON.
    fn refuse_non_json(&mut self, slot: u32, read: usize) -> bool {
        let blank = |byte: &&u8| matches!(**byte, b' ' | b'\t' | b'\r' | b'\n');
        let Some(first) = self.scratch[..read].iter().find(|byte| !blank(byte)) else { return false };
        if let Some(conn) = self.conns.client(slot) {
            conn.checks_json = false;
        }
        if matches!(first, b'{' | b'[') {
            return false;
        }
        tracing::warn!(client = slot, "client does not speak JSON");
        self.conns.disconnect(slot, &Fault::Syntax.into());
        true
    }

    fn client_ended(&mut self, now: Time, slot: u32) {
        let Some(conn) = self.conns.client(slot) else { return };
        conn.intake.ended = true;
        if conn.close_state.is_some() {
            // Closing the client continues when its queue is flushed.
            return;
        }
        // A WebSocket that ends without a close frame was lost.
        if conn.intake.dead || conn.websocket.is_some() {
            return self.drop_client(now, slot);
        }
        self.handle_last_line(now, slot);
        self.call_router(About::Client(slot), |router, conns| router.client_eof(now, ClientId(slot), conns));
    }

    /// Handles a client's last line without a line end, if it is a valid message.
    fn handle_last_line(&mut self, now: Time, slot: u32) {
        let first_line = self.conns.client(slot).and_then(|conn| conn.first_line.take());
        let begun = first_line.map(|first_line| first_line.read).unwrap_or_default();
        let (router, conns) = (&mut self.router, &mut self.conns);
        let Some(ClientDecoder::Lines(lines)) = self.client_decoders.get_mut(slot as usize) else { return };
        let handled = catch_unwind(AssertUnwindSafe(|| {
            for read in [&begun[..], b"\n"] {
                lines.feed(read, |piece| match piece {
                    LineRef::Whole(line) if !matches!(View::parse(line).kind(), Kind::Invalid(_)) => {
                        pass_line(router, conns, now, slot, piece);
                    }
                    _ => tracing::debug!(client = slot, "client input ended within a line"),
                });
            }
        }));
        if handled.is_err() {
            self.on_panic(About::Client(slot));
        }
    }

    pub(super) fn drop_client(&mut self, now: Time, slot: u32) {
        let Some(conn) = self.conns.take_client(slot) else { return };
        conn.deregister(self.poll.registry());
        conn.close();
        let lines = self.lines();
        if let Some(decoder) = self.client_decoders.get_mut(slot as usize) {
            *decoder = lines;
        }
        self.call_router(About::Client(slot), |router, conns| router.client_gone(now, ClientId(slot), conns));
        tracing::info!(client = slot, "client disconnected");
        self.resume_accepting(now);
    }

    /// Continues to close those clients that are being closed.
    ///
    /// Closing a socket with unread input resets it, and the last output would be lost. The output is
    /// therefore shut down first, and input is read until the peer closes too.
    pub(super) fn close_clients(&mut self, now: Time) {
        let closing = std::mem::take(&mut self.conns.closing);
        let is_finished = self.conns.finished;
        for slot in closing {
            let Some(conn) = self.conns.client(slot) else { continue };
            let Some(close_state) = &mut conn.close_state else { continue };
            // A client whose queue makes progress, however slowly, gets the whole queue.
            let timeout =
                if close_state.until.is_none() { self.limits.stall_timeout } else { LINGER_TIMEOUT };
            let stuck_at = conn.outflow.progress + timeout;
            let has_time = close_state.reads_reason && !is_finished;
            let stuck = conn.outflow.blocked && now >= stuck_at && !has_time;
            let is_empty = conn.outflow.outbox.waiting() == 0;
            if is_empty && !close_state.shut && self.conns.put_going_away(slot) {
                self.conns.closing.push(slot);
                continue;
            }
            let Some(conn) = self.conns.client(slot) else { continue };
            let Some(close_state) = &mut conn.close_state else { continue };
            if conn.outflow.outbox.waiting() == 0 && !close_state.shut {
                close_state.shut = true;
                close_state.until = Some(close_state.until.unwrap_or(Time::MAX).min(now + LINGER_TIMEOUT));
                conn.output().shut();
                conn.intake.paused = false;
                self.conns.list_client(slot);
            }
            let Some(conn) = self.conns.client(slot) else { continue };
            let shut = conn.close_state.is_some_and(|close_state| close_state.shut);
            let until = conn.close_state.and_then(|close_state| close_state.until);
            // The output of two descriptors ends only when they are closed, so no end of input is awaited.
            let done = shut && (conn.intake.ended || conn.output.is_some());
            if done || stuck || until.is_some_and(|until| now >= until) {
                self.drop_client(now, slot);
            } else {
                self.conns.closing.push(slot);
                let again = until.unwrap_or(stuck_at.max(now + Duration::from_millis(10)));
                let blocked = self.conns.client(slot).is_some_and(|conn| conn.outflow.blocked);
                self.check_by(if blocked { again.min(now + LINGER_RETRY_INTERVAL) } else { again });
            }
        }
    }
}

/// Passes a line of a client to the router, unless the client is being closed.
#[inline]
fn pass_line<B: Router>(router: &mut B, conns: &mut Connections, now: Time, slot: u32, piece: LineRef<'_>) {
    if !conns.accepts_lines(slot) {
        return;
    }
    match piece {
        // Some agents would split such a line into several, of which only the first was checked.
        LineRef::Whole(line) if !is_one_line(line) => {
            let mut line = line.to_vec();
            make_line(&mut line);
            router.client_line(now, ClientId(slot), LineRef::Whole(&line), conns);
        }
        piece => router.client_line(now, ClientId(slot), piece, conns),
    }
}

/// Sends a refused peer the reason, if that is possible without blocking.
pub(super) fn refuse(conn: &ClientConn, error: &RpcError) {
    let message = message::error(b"null", error);
    _ = conn.output().write(&match conn.websocket {
        Some(_) => websocket::refusal(&message),
        None => [&*message, b"\n"].concat(),
    });
    conn.output().shut();
}

/// Sends a TCP peer that is refused because of its user the reason, if that is possible without blocking.
fn refuse_user(peer: OwnedFd) {
    let error = RpcError::new(Code::PolicyDenied, "only the user of this bus may connect");
    refuse(&ClientConn::new(Stream::socket(peer), None, false, false), &error);
}

fn user_name(user: u32) -> String {
    format!("uid:{user}")
}

fn peer_user(peer: &OwnedFd) -> Option<u32> {
    Some(rustix::net::sockopt::socket_peercred(peer.as_fd()).ok()?.uid.as_raw())
}

/// Returns `true` if a user may connect to a unix socket of the bus. The file mode of the socket has the same
/// effect, but not on every file system.
fn may_use_socket(user: u32) -> bool {
    user == rustix::process::geteuid().as_raw() || user == 0
}
