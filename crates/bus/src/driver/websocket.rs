//! Clients that use WebSocket: frames, pings, and closing.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use narrows_link::WebSocketHandoff;
use narrows_wire::websocket::{self, Decoder, Event, Violation};
use narrows_wire::{LineRef, Splitter, make_line};
use tokio::sync::oneshot;

use crate::core::{ClientCloseReason, ClientId, Time};

use super::commands::{CloseRequest, IncomingClient};
use super::connections::{ClientConn, Connections};
use super::flow::{Intake, Outflow};
use super::stream::Stream;
use super::{About, Driver, Router};

/// The close code of WebSocket for a connection that the bus closes.
const GOING_AWAY_CODE: u16 = 1001;
const TRY_AGAIN_LATER_CODE: u16 = 1013;
const MAX_UNANSWERED_PINGS: u8 = 2;
/// The idle timeout of a WebSocket divided by the interval of its checks.
const IDLE_CHECK_DIVISOR: u32 = 30;
/// Maximum bytes in the output queue at which a ping is answered at once.
const MAX_PONG_BACKLOG_BYTES: usize = 64 << 10;

#[derive(Debug)]
pub(super) enum ClientDecoder {
    Lines(Splitter),
    Frames(Decoder),
}

#[derive(Debug)]
pub(super) struct WebSocketState {
    /// The number of the client's [`WebSocketHandle`](super::WebSocketHandle).
    number: u64,
    idle: Duration,
    /// The time of the client's last activity, or of the last ping to it.
    since: Time,
    pings: u8,
    closed: bool,
    /// The payload of the client's last ping, if that is not answered yet.
    pong: Option<Box<[u8]>>,
    fault: Option<Violation>,
    ended: oneshot::Sender<Option<Violation>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Activity {
    Recent,
    Ping,
    Lost,
}

impl WebSocketState {
    pub(super) fn new(
        now: Time,
        idle: Duration,
        number: u64,
        ended: oneshot::Sender<Option<Violation>>,
    ) -> Self {
        Self { number, idle, since: now, pings: 0, closed: false, pong: None, fault: None, ended }
    }

    /// Tells the [`WebSocketHandle`](super::WebSocketHandle) that the client has disconnected.
    pub(super) fn notify_closed(self) {
        // The owner of the handle may have dropped it.
        _ = self.ended.send(self.fault);
    }

    fn record_activity(&mut self, now: Time) {
        self.since = now;
        self.pings = 0;
    }

    /// Checks whether the client was active. Called 30 times per idle timeout.
    fn check_activity(&mut self, now: Time, intake: &Intake, flow: &Outflow) -> Activity {
        // While the bus has paused reading, it does not see answers to pings.
        if intake.paused {
            self.record_activity(now);
        }
        if flow.blocked {
            if now >= flow.progress + self.idle {
                return Activity::Lost;
            }
            // A slow write is activity too. The ping is still queued behind the output.
            if flow.progress > self.since {
                self.record_activity(flow.progress);
            }
        }
        if now + self.idle / IDLE_CHECK_DIVISOR < self.since + self.idle / 3 {
            return Activity::Recent;
        }
        if self.pings == MAX_UNANSWERED_PINGS {
            return Activity::Lost;
        }
        self.pings += 1;
        self.since = now;
        Activity::Ping
    }
}

impl Connections {
    fn put_frames(&mut self, slot: u32, write: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = Vec::new();
        write(&mut bytes);
        self.put_raw(slot, &bytes);
    }

    fn pong(&mut self, slot: u32, payload: &[u8]) {
        let Some(conn) = self.client(slot) else { return };
        if conn.outflow.outbox.waiting() < MAX_PONG_BACKLOG_BYTES {
            self.put_frames(slot, |out| websocket::put_pong(out, payload));
        } else if let Some(websocket) = &mut conn.websocket {
            // A peer that does not read gets the answer to its last ping when it reads again.
            websocket.pong = Some(payload.into());
        }
    }

    /// Answers a ping that was not answered at once, if the queue has room now.
    fn pong_late(&mut self, slot: u32) {
        let waiting = self.client(slot).filter(|conn| conn.outflow.outbox.waiting() < MAX_PONG_BACKLOG_BYTES);
        let pong = waiting.and_then(|conn| conn.websocket.as_mut()?.pong.take());
        if let Some(pong) = pong {
            self.put_frames(slot, |out| websocket::put_pong(out, &pong));
        }
    }

    /// Queues a close frame if the client uses WebSocket and no close frame is queued. Returns `true` if one
    /// was queued now.
    pub(super) fn put_close(&mut self, slot: u32, code: u16, reason: &str) -> bool {
        let Some(websocket) = self.client(slot).and_then(|conn| conn.websocket.as_mut()) else {
            return false;
        };
        if std::mem::replace(&mut websocket.closed, true) {
            return false;
        }
        self.put_frames(slot, |out| websocket::put_close(out, code, reason));
        true
    }

    pub(super) fn put_going_away(&mut self, slot: u32) -> bool {
        self.put_close(slot, GOING_AWAY_CODE, "going away")
    }

    fn send_away(&mut self, slot: u32, code: u16, reason: &str) {
        if self.put_close(slot, code, reason) {
            self.close_client(slot, ClientCloseReason::SlowReader);
            self.seal_queue(slot);
        }
    }
}

impl<B: Router> Driver<B> {
    /// Adds a client whose WebSocket handshake another server has completed.
    pub(super) fn admit_upgraded(
        &mut self,
        now: Time,
        upgraded: WebSocketHandoff,
        from: &IncomingClient,
        websocket: WebSocketState,
    ) {
        let WebSocketHandoff { socket, decoder, messages, idle } = upgraded;
        let from = from.client_info();
        let mut conn = ClientConn::new(Stream::socket(socket), None, false, false);
        conn.websocket = Some(Box::new(websocket));
        // Pings also show whether the client reads, so the stall timeout does not apply.
        conn.has_own_timeout = true;
        let Some(slot) = self.admit_conn(now, from, conn, ClientDecoder::Frames(decoder)) else { return };
        self.checks.schedule_websocket_check(now + idle / IDLE_CHECK_DIVISOR);
        self.check_by(now + idle / IDLE_CHECK_DIVISOR);
        for message in messages {
            let (router, conns) = (&mut self.router, &mut self.conns);
            let mut message = Vec::from(message);
            let handled =
                catch_unwind(AssertUnwindSafe(|| handle_message(router, conns, now, slot, &mut message)));
            if handled.is_err() {
                self.on_panic(About::Client(slot));
            }
        }
    }

    pub(super) fn read_frames(&mut self, now: Time, slot: u32, read: usize) {
        let Some(ClientDecoder::Frames(decoder)) = self.client_decoders.get_mut(slot as usize) else {
            return;
        };
        let (router, conns) = (&mut self.router, &mut self.conns);
        if let Some(websocket) = conns.client(slot).and_then(|conn| conn.websocket.as_mut()) {
            websocket.record_activity(now);
        }
        let scratch = &mut self.scratch[..read];
        let mut left = None;
        let fed = catch_unwind(AssertUnwindSafe(|| {
            decoder.feed(scratch, |event| {
                if left.is_some() || !conns.accepts_lines(slot) {
                    return;
                }
                match event {
                    Event::Message(message) => handle_message(router, conns, now, slot, message),
                    Event::Ping(payload) => conns.pong(slot, payload),
                    Event::Pong => {}
                    Event::Close(code) => left = Some(code.unwrap_or(1000)),
                }
            })
        }));
        match (fed, left) {
            (Err(_), _) => self.on_panic(About::Client(slot)),
            (Ok(_), Some(code)) => {
                self.conns.put_close(slot, code, "");
                self.conns.write_last(slot, self.poll.registry());
                self.drop_client(now, slot);
            }
            (Ok(Err(fault)), None) => {
                tracing::debug!(client = slot, %fault, "closing client, protocol violation");
                if let Some(websocket) = self.conns.client(slot).and_then(|conn| conn.websocket.as_mut()) {
                    websocket.fault = Some(fault);
                }
                self.conns.send_away(slot, fault.code(), "");
            }
            (Ok(Ok(())), None) => {}
        }
    }

    /// Pings idle WebSockets, and disconnects clients that do not answer. Returns the time of the next check.
    pub(super) fn check_framed(&mut self, now: Time) -> Option<Time> {
        let mut next: Option<Time> = None;
        for slot in 0..u32::try_from(self.conns.clients.len()).unwrap_or(u32::MAX) {
            let Some(conn) = self.conns.client(slot).filter(|conn| conn.close_state.is_none()) else {
                continue;
            };
            if conn.websocket.is_none() {
                continue;
            }
            self.conns.pong_late(slot);
            let Some(conn) = self.conns.client(slot) else { continue };
            let Some(websocket) = &mut conn.websocket else { continue };
            let again = now + websocket.idle / IDLE_CHECK_DIVISOR;
            next = Some(next.map_or(again, |next| next.min(again)));
            match websocket.check_activity(now, &conn.intake, &conn.outflow) {
                Activity::Recent => {}
                Activity::Ping => self.conns.put_frames(slot, websocket::put_ping),
                Activity::Lost => {
                    tracing::debug!(client = slot, "client did not answer pings");
                    self.drop_client(now, slot);
                }
            }
        }
        next
    }

    pub(super) fn send_away(&mut self, close_requests: &[CloseRequest]) {
        if close_requests.is_empty() {
            return;
        }
        for slot in 0..u32::try_from(self.conns.clients.len()).unwrap_or(u32::MAX) {
            let number = self.conns.client(slot).and_then(|conn| Some(conn.websocket.as_ref()?.number));
            let said = close_requests.iter().find(|request| Some(request.number) == number);
            if let Some(CloseRequest { code, reason, .. }) = said {
                self.conns.send_away(slot, *code, reason);
            }
        }
    }
}

pub(super) fn refusal(message: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    websocket::put_text(&mut bytes, message);
    websocket::put_close(&mut bytes, TRY_AGAIN_LATER_CODE, "try again later");
    bytes
}

fn handle_message<B: Router>(
    router: &mut B,
    conns: &mut Connections,
    now: Time,
    slot: u32,
    message: &mut [u8],
) {
    make_line(message);
    router.client_line(now, ClientId(slot), LineRef::Whole(message), conns);
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE_TIMEOUT: Duration = Duration::from_secs(45);

    fn second(second: u64) -> Time {
        Time::from_secs(second)
    }

    fn websocket() -> WebSocketState {
        WebSocketState::new(second(100), IDLE_TIMEOUT, 1, oneshot::channel().0)
    }

    /// Checks every thirtieth of the idle timeout until `to`. Returns the results that differ from `Fine`.
    fn watch(websocket: &mut WebSocketState, flow: &Outflow, from: u64, to: u64) -> Vec<(u128, Activity)> {
        let mut seen = Vec::new();
        let mut now = second(from);
        while now < second(to) {
            let sign = websocket.check_activity(now, &Intake::default(), flow);
            if sign != Activity::Recent {
                seen.push((now.as_millis(), sign));
            }
            if sign == Activity::Lost {
                break;
            }
            now += IDLE_TIMEOUT / IDLE_CHECK_DIVISOR;
        }
        seen
    }

    #[test]
    fn a_silent_client_is_pinged_and_then_lost() {
        let seen = watch(&mut websocket(), &Outflow::default(), 100, 200);
        assert_eq!(seen, [(113_500, Activity::Ping), (127_000, Activity::Ping), (140_500, Activity::Lost)]);
    }

    #[test]
    fn an_answer_to_a_ping_is_activity() {
        let mut websocket = websocket();
        assert_eq!(watch(&mut websocket, &Outflow::default(), 100, 130).len(), 2);
        websocket.record_activity(second(130));
        assert_eq!(watch(&mut websocket, &Outflow::default(), 130, 150), [(143_500, Activity::Ping)]);
    }

    #[test]
    fn a_client_that_reads_slowly_is_not_idle() {
        let mut websocket = websocket();
        let mut flow = Outflow { blocked: true, progress: second(110), ..Outflow::default() };
        assert_eq!(watch(&mut websocket, &flow, 100, 120), []);
        flow.progress = second(138);
        assert_eq!(watch(&mut websocket, &flow, 138, 150), []);
        // A client that reads nothing is considered lost, even if it sends messages.
        websocket.record_activity(second(182));
        assert_eq!(watch(&mut websocket, &flow, 182, 190), [(183_500, Activity::Lost)]);
    }

    #[test]
    fn a_paused_client_is_not_idle() {
        let mut websocket = websocket();
        let paused = Intake { paused: true, ..Intake::default() };
        assert_eq!(websocket.check_activity(second(500), &paused, &Outflow::default()), Activity::Recent);
        assert_eq!(
            websocket.check_activity(second(510), &Intake::default(), &Outflow::default()),
            Activity::Recent
        );
        assert_eq!(
            websocket.check_activity(second(514), &Intake::default(), &Outflow::default()),
            Activity::Ping
        );
    }
}
