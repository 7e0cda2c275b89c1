//! The behavior of a client: bursts of requests, invalid messages, and different ways to disconnect.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fastrand::Rng;
use narrows_bus::config::ListenAddr;
use serde_json::{Value, json};

use super::claims::Claim;
use super::conn::{Conn, Progress, RequestType};

const OVERSIZE_BYTES: usize = 100 << 10;
/// Number and size of updates for a slow reader: more than a socket and a queue hold.
const FLOOD: (u64, u64) = (60, 40 << 10);

/// Faults of a worker during a turn that it always logs.
const FAULTS: [&str; 13] = [
    "noise", "noise", "stranger", "twice", "both", "huge", "giant", "exit", "half", "last", "mute", "deaf",
    "daemon",
];
const BROKEN: [&[u8]; 6] =
    [b"nonsense", b"{\"jsonrpc\":\"2.0\",\"id\":5,", b"{\"a\":\"\xff\"}", b"[]", b"\"text\"", b"{]"];

pub(crate) struct Client<'a> {
    pub(crate) number: usize,
    pub(crate) listener: &'a ListenAddr,
    /// `true` if its workers are shared, so that it is disconnected when it does not read.
    pub(crate) shared: bool,
    pub(crate) random: Rng,
    pub(crate) enough: &'a AtomicBool,
    /// Number of workers that it may stop (SIGSTOP). The bus needs some time to detect each.
    pub(crate) stops: u32,
}

#[derive(Default)]
pub(crate) struct Report {
    pub(crate) claims: Vec<(String, Claim)>,
    pub(crate) tally: HashMap<i64, u64>,
    pub(crate) connections: u64,
    pub(crate) updates: u64,
}

impl Client<'_> {
    pub(crate) fn live(mut self) -> Result<Report, String> {
        let mut report = Report::default();
        let mut sessions = Vec::new();
        while !self.enough.load(Ordering::SeqCst) {
            let mut conn = Conn::open(self.listener, self.number, report.connections)?;
            report.connections += 1;
            self.converse(&mut conn, &mut sessions)?;
            report.updates += conn.updates;
            for (code, count) in &conn.tally {
                *report.tally.entry(*code).or_default() += count;
            }
            // A turn that still floods its session would block the next client of that session.
            let flooded = conn.slow;
            let (claims, left) = conn.leave();
            report.claims.extend(claims);
            sessions.extend(left.into_iter().filter(|_| !flooded));
            // Sessions that are never resumed expire.
            let excess = sessions.len().saturating_sub(4);
            sessions.drain(..excess);
        }
        Ok(report)
    }

    fn converse(&mut self, conn: &mut Conn, sessions: &mut Vec<String>) -> Result<(), String> {
        while !conn.initialized {
            conn.request(
                RequestType::Plain,
                "initialize",
                &json!({"protocolVersion": 1, "clientCapabilities": {}}),
            );
            conn.send()?;
            conn.settle()?;
        }
        for session in std::mem::take(sessions) {
            load(conn, &session);
        }
        for _ in 0..self.random.u32(1..6) {
            self.burst(conn);
            conn.send()?;
            if conn.settle()? == Progress::End {
                return Ok(());
            }
            if self.enough.load(Ordering::SeqCst) {
                break;
            }
        }
        self.end(conn)
    }

    fn burst(&mut self, conn: &mut Conn) {
        for session in std::mem::take(&mut conn.lost) {
            load(conn, &session);
        }
        if conn.idle.is_empty() || self.random.u32(0..8) == 0 && conn.idle.len() < 3 {
            let params = json!({"cwd": "/", "mcpServers": [], "_meta": {"tag": conn.tag()}});
            conn.request(RequestType::New, "session/new", &params);
        }
        for _ in 0..self.random.u32(1..7) {
            match self.random.u32(0..24) {
                0..=4 => conn.echo(),
                5 => conn.request(RequestType::Plain, "session/list", &json!({})),
                6 => conn.batch(self.random.usize(1..5)),
                7 => conn.send_invalid_line(BROKEN[self.random.usize(..BROKEN.len())]),
                8 if self.random.bool() => conn.send_long_line(OVERSIZE_BYTES),
                9 => conn.notify("_chaos/nothing", &json!({})),
                _ => self.turn(conn),
            }
        }
    }

    fn turn(&mut self, conn: &mut Conn) {
        let Some(session) = conn.idle.pop() else { return conn.echo() };
        let mut order = json!({"updates": self.random.u32(0..6), "slowly": self.random.bool()});
        match self.random.u32(0..20) {
            0..=2 => {
                order["then"] = json!("hold");
                conn.prompt(&session, order, "");
                if self.random.u32(0..3) == 0 {
                    conn.duplicate();
                }
                if self.random.bool() {
                    conn.notify("$/cancel_request", &json!({"requestId": conn.last()}));
                }
                conn.notify("session/cancel", &json!({"sessionId": session}));
            }
            3..=6 => {
                order["then"] = json!("ask");
                conn.prompt(&session, order, "");
            }
            7 if self.stops > 0 => {
                self.stops -= 1;
                conn.prompt(&session, order, "stop");
            }
            8 => {
                let fault = FAULTS[self.random.usize(..FAULTS.len())];
                conn.prompt(&session, order, fault);
            }
            _ => conn.prompt(&session, order, ""),
        }
    }

    fn end(&mut self, conn: &mut Conn) -> Result<(), String> {
        match self.random.u32(0..8) {
            // Waits until everything is answered.
            0 | 1 => conn.shut(),
            // Ends its output during a burst, but still reads.
            2 | 3 => {
                self.burst(conn);
                conn.send()?;
                conn.shut();
            }
            // Closes during a burst, with or without a reset.
            4 | 5 => {
                self.burst(conn);
                if self.random.bool() {
                    conn.send_part(self.random.usize(..2000))?;
                } else {
                    conn.send()?;
                    for _ in 0..self.random.u32(0..6) {
                        if conn.has_pending() {
                            conn.read_line()?;
                        }
                    }
                }
                if self.random.bool() {
                    conn.reset();
                }
                return Ok(());
            }
            _ => {
                self.read_slowly(conn)?;
                conn.shut();
            }
        }
        while conn.read_line()? == Progress::Line {}
        Ok(())
    }

    fn read_slowly(&mut self, conn: &mut Conn) -> Result<(), String> {
        let Some(session) = conn.idle.pop() else { return Ok(()) };
        conn.slow = self.shared;
        conn.prompt(&session, json!({"updates": FLOOD.0, "size": FLOOD.1}), "");
        conn.echo();
        conn.send()?;
        let pause = self.random.u64(50..400);
        std::thread::sleep(Duration::from_millis(pause)); // sleep: being slow is what is wrong with it
        conn.settle()?;
        Ok(())
    }
}

fn load(conn: &mut Conn, session: &str) {
    let params: Value = json!({"sessionId": session, "cwd": "/", "mcpServers": []});
    conn.request(RequestType::Load, "session/load", &params);
}
