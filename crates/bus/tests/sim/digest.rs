//! A digest of everything that the core sends and orders, and the file in which digests are recorded.
//!
//! Digests contain numbers and texts but no names of Rust types, so a rename does not change them. They do
//! not depend on how the core splits a line into parts.

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;

use narrows_bus::core::{ClientCloseReason, CoreAction, LogEvent, OwnedName};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Digest(u64);

impl Digest {
    pub(crate) fn client_line(&mut self, client: u32, parts: &[&[u8]]) {
        self.number(1, client);
        self.bytes(&parts.concat());
    }

    pub(crate) fn worker_line(&mut self, worker: u32, parts: &[&[u8]]) {
        self.number(2, worker);
        self.bytes(&parts.concat());
    }

    pub(crate) fn action(&mut self, action: &CoreAction) {
        match action {
            CoreAction::Spawn { worker, pool } => {
                self.number(3, worker.0);
                self.mix(u64::from(pool.0));
            }
            CoreAction::Stop { worker, kill } => {
                self.number(4, worker.0);
                self.mix(u64::from(*kill));
            }
            CoreAction::PauseWorker(worker) => self.number(5, worker.0),
            CoreAction::ResumeWorker(worker) => self.number(6, worker.0),
            CoreAction::PauseClient(client) => self.number(7, client.0),
            CoreAction::ResumeClient(client) => self.number(8, client.0),
            CoreAction::Close { client, reason } => {
                self.number(9, client.0);
                self.mix(match reason {
                    ClientCloseReason::SlowReader => 1,
                    ClientCloseReason::Draining => 2,
                    ClientCloseReason::Served => 3,
                });
            }
            CoreAction::RecordOwner { client, session, identity } => {
                self.number(10, client.map_or(u32::MAX, |client| client.0));
                self.owned_name(session);
                self.bytes(identity.as_bytes());
            }
            CoreAction::DeleteOwner { session } => {
                self.number(11, 0);
                self.owned_name(session);
            }
            CoreAction::Log(note) => self.note(note),
            CoreAction::Finished => self.number(12, 0),
        }
    }

    fn note(&mut self, note: &LogEvent) {
        match note {
            LogEvent::Ready(worker) => self.number(20, worker.0),
            LogEvent::Lost { worker, reason, requests, sessions } => {
                self.number(21, worker.0);
                self.bytes(reason.as_bytes());
                self.mix(*requests as u64);
                self.mix(*sessions as u64);
            }
            LogEvent::Strike { worker, what } => {
                self.number(22, worker.0);
                self.bytes(what.as_bytes());
            }
            LogEvent::Dropped { worker, why } => {
                self.number(23, worker.0);
                self.bytes(why.as_bytes());
            }
            LogEvent::CircuitOpened(pool) => self.number(24, pool.0),
            LogEvent::CircuitClosed(pool) => self.number(25, pool.0),
            LogEvent::McpRefused { client, pool } => {
                self.number(26, client.map_or(u32::MAX, |client| client.0));
                self.mix(u64::from(pool.0));
            }
            LogEvent::MetaRefused { client, pool } => {
                self.number(27, client.0);
                self.mix(u64::from(pool.0));
            }
            LogEvent::PoolRefused(client) => self.number(28, client.0),
        }
    }

    fn owned_name(&mut self, session: &OwnedName) {
        match &session.pool {
            Some(pool) => self.bytes(pool.as_bytes()),
            None => self.mix(u64::MAX),
        }
        self.bytes(session.name.as_bytes());
    }

    fn number(&mut self, kind: u32, slot: u32) {
        self.mix(u64::from(kind) << 32 | u64::from(slot));
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.mix(bytes.len() as u64);
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.mix(u64::from_le_bytes(word));
        }
    }

    fn mix(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x517C_C1B7_2722_0A95);
    }
}

/// Digests of a family's seeds. They are appended to the file named by `NARROWS_SIM_RECORD`.
pub(crate) struct Record {
    family: &'static str,
    lines: String,
}

impl Record {
    pub(crate) fn new(family: &'static str) -> Self {
        Self { family, lines: String::new() }
    }

    pub(crate) fn add(&mut self, seed: u64, digest: Digest) {
        writeln!(self.lines, "{} {seed} {:016x}", self.family, digest.0).expect("a String takes everything");
    }

    /// Appends all lines in one write, because families run in separate processes and share the file.
    pub(crate) fn write(self) {
        let Some(path) = std::env::var_os("NARROWS_SIM_RECORD") else { return };
        let mut file = OpenOptions::new().append(true).create(true).open(path).expect("the file of digests");
        file.write_all(self.lines.as_bytes()).expect("write the digests");
    }
}
