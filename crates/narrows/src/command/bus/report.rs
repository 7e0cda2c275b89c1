//! The status of a bus, parsed from JSON and rendered as a table.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use narrows_base::text::one_line;
use serde::Deserialize;

use crate::command::format_columns;
use crate::terminal::line;

const MAX_REASON_CHARS: usize = 60;

/// The beginning of the exit description of a worker whose manifest cannot be served.
const MANIFEST_REFUSED_EXIT: &str = "exited with status 2";

/// The status of a bus. Missing fields have defaults, as the bus may have another version.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct StatusReport {
    version: String,
    pid: u32,
    listen: Vec<String>,
    max_connections: usize,
    worker_limits: Option<Vec<String>>,
    uptime: f64,
    draining: bool,
    clients: usize,
    sessions: usize,
    listeners: Vec<usize>,
    identities: BTreeMap<String, Identity>,
    pending: usize,
    pools: Vec<Pool>,
    counters: BTreeMap<String, u64>,
    queues: Queues,
    network_refused: BTreeMap<String, u64>,
    network_connections: BTreeMap<String, u64>,
}

fn nonzero_counts(counts: &BTreeMap<String, u64>) -> Option<String> {
    let told = counts.iter().filter(|(_, count)| **count > 0);
    let told: Vec<String> =
        told.map(|(name, count)| format!("{count} {}", line(&name.replace('_', " ")))).collect();
    (!told.is_empty()).then(|| told.join(", "))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Queues {
    clients: u64,
    longest: u64,
    full: usize,
    workers: BTreeMap<u32, u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Identity {
    clients: usize,
    sessions: usize,
    refused: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Pool {
    name: String,
    manifest: Option<String>,
    state: String,
    retry_after_ms: Option<u64>,
    last_loss: Option<String>,
    waiting: usize,
    workers: Vec<Worker>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Worker {
    worker: u32,
    pid: u32,
    state: String,
    age: f64,
    sessions: usize,
    pending: usize,
    asking: usize,
    strikes: usize,
    paused: bool,
}

impl StatusReport {
    pub(super) fn read(answer: &str) -> Option<Self> {
        serde_json::from_str(answer).ok()
    }

    /// Renders a table with rates since `before`, or since the start.
    pub(super) fn table(&self, before: Option<&Self>) -> String {
        let mut text = String::new();
        let stopping = if self.draining { ", draining" } else { "" };
        let Self { version, pid, clients, sessions, pending, max_connections, .. } = self;
        _ = writeln!(
            text,
            "narrows {}, pid {pid}, up {}{stopping}; {}",
            line(version),
            format_elapsed(self.uptime),
            line(&self.listen.join(" "))
        );
        _ = writeln!(
            text,
            "{clients} of {max_connections} clients, {}, {} in flight",
            count_of(*sessions as u64, "session"),
            count_of(*pending as u64, "request")
        );
        let Queues { clients, longest, full, workers } = &self.queues;
        _ = writeln!(
            text,
            "write backlog: clients {} (largest {}, {} full), workers {}",
            format_bytes(*clients),
            format_bytes(*longest),
            count_of(*full as u64, "queue"),
            format_bytes(workers.values().sum())
        );
        let limits = self.worker_limits.iter().flatten().map(|limit| line(limit)).collect::<Vec<_>>();
        match (&self.worker_limits, limits.is_empty()) {
            (None, _) => {}
            (_, true) => text.push_str("worker limits supported on this host: none\n"),
            (_, false) => {
                _ = writeln!(text, "worker limits supported on this host: {}", limits.join(", "));
            }
        }
        let count = |name: &str| self.counters.get(name).copied().unwrap_or(0);
        _ = writeln!(
            text,
            "since start: {} started, {} lost; {} opened, {} restored; {} refused",
            count_of(count("spawned"), "worker"),
            count("lost"),
            count_of(count("sessions"), "session"),
            count("revived"),
            count_of(count("refused"), "request")
        );
        if let Some(refused) = nonzero_counts(&self.network_refused) {
            _ = writeln!(text, "network requests refused: {refused}");
        }
        if let Some(disconnects) = nonzero_counts(&self.network_connections) {
            _ = writeln!(text, "network disconnects: {disconnects}");
        }
        _ = writeln!(text, "messages/s: {}\n", self.rates(before));
        text.push_str(&self.pools());
        for pool in &self.pools {
            if let Some(manifest) = &pool.manifest {
                let (name, manifest) = (line(&pool.name), line(manifest));
                _ = writeln!(text, "pool {name}: governed by {manifest}");
                // The reason is not in the status, because the output of workers may contain private data.
                if pool.last_loss.as_deref().is_some_and(|loss| loss.starts_with(MANIFEST_REFUSED_EXIT)) {
                    _ = writeln!(
                        text,
                        "  the manifest cannot be served: if its files were changed on purpose, run \
                         `narrows serve --approve {manifest}`; the reason is in the log of the bus"
                    );
                }
            }
        }
        text.push('\n');
        text.push_str(&self.workers());
        text.push_str(&self.clients_text());
        text
    }

    fn clients_text(&self) -> String {
        let is_asked = |name: &String| name.starts_with("token:") || name.starts_with("cert:");
        if !self.identities.keys().any(is_asked) {
            return String::new();
        }
        let row = |(name, has): (&String, &Identity)| {
            [line(name), has.clients.to_string(), has.sessions.to_string(), has.refused.to_string()]
        };
        let identities: Vec<_> = self.identities.iter().map(row).collect();
        let listeners = self.listen.iter().zip(&self.listeners);
        let listeners: Vec<_> =
            listeners.map(|(listener, clients)| [line(listener), clients.to_string()]).collect();
        format!(
            "\n{}\n{}",
            format_columns(["IDENTITY", "CLIENTS", "SESSIONS", "REFUSED"], &identities),
            format_columns(["LISTENER", "CLIENTS"], &listeners)
        )
    }

    fn rates(&self, before: Option<&Self>) -> String {
        // The counters of another bus at the same socket started from zero, so they cannot be compared.
        let before = before.filter(|before| before.pid == self.pid && before.uptime < self.uptime);
        let seconds = (self.uptime - before.map_or(0.0, |before| before.uptime)).max(0.001);
        let of = |state: &Self, name: &str| state.counters.get(name).copied().unwrap_or(0);
        let rate = |name| {
            let since = of(self, name).saturating_sub(before.map_or(0, |before| of(before, name)));
            format!("{:.1}", since as f64 / seconds)
        };
        format!(
            "{} from clients, {} to workers, {} from workers, {} to clients",
            rate("from_clients"),
            rate("to_workers"),
            rate("from_workers"),
            rate("to_clients")
        )
    }

    fn pools(&self) -> String {
        let row = |pool: &Pool| {
            let sum = |of: fn(&Worker) -> usize| pool.workers.iter().map(of).sum::<usize>().to_string();
            // A pool with running workers may be unable to start more for a while.
            let state = match pool.retry_after_ms.filter(|_| pool.state == "tripped") {
                Some(millis) => format!("tripped, retry in {}", format_elapsed(millis as f64 / 1000.0)),
                None => pool.state.clone(),
            };
            [
                line(&pool.name),
                line(&state),
                pool.workers.len().to_string(),
                sum(|worker| usize::from(matches!(worker.state.as_str(), "ready" | "busy"))),
                sum(|worker| worker.sessions),
                sum(|worker| worker.pending),
                pool.waiting.to_string(),
                pool.last_loss
                    .as_deref()
                    .map_or_else(|| "-".to_owned(), |loss| one_line(loss, MAX_REASON_CHARS)),
            ]
        };
        let rows: Vec<_> = self.pools.iter().map(row).collect();
        format_columns(
            ["POOL", "STATE", "WORKERS", "READY", "SESSIONS", "PENDING", "WAITING", "LAST LOSS"],
            &rows,
        )
    }

    fn workers(&self) -> String {
        let row = |(pool, worker): (&Pool, &Worker)| {
            [
                line(&pool.name),
                worker.worker.to_string(),
                worker.pid.to_string(),
                line(&worker.state),
                format_elapsed(worker.age),
                worker.sessions.to_string(),
                worker.pending.to_string(),
                worker.asking.to_string(),
                format_bytes(self.queues.workers.get(&worker.worker).copied().unwrap_or(0)),
                worker.strikes.to_string(),
                if worker.paused { "yes" } else { "no" }.to_owned(),
            ]
        };
        let mut rows = Vec::new();
        for pool in &self.pools {
            let mut workers: Vec<&Worker> = pool.workers.iter().collect();
            workers.sort_by_key(|worker| worker.worker);
            rows.extend(workers.into_iter().map(|worker| row((pool, worker))));
        }
        let heading = [
            "POOL", "WORKER", "PROCESS", "STATE", "AGE", "SESSIONS", "PENDING", "ASKING", "QUEUED",
            "STRIKES", "PAUSED",
        ];
        format_columns(heading, &rows)
    }
}

fn count_of(count: u64, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

fn format_bytes(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB"];
    let mut shown = bytes as f64 / 1024.0;
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    for unit in &units[..2] {
        if shown < 1024.0 {
            return format!("{shown:.1} {unit}");
        }
        shown /= 1024.0;
    }
    format!("{shown:.1} {}", units[2])
}

fn format_elapsed(seconds: f64) -> String {
    let seconds = Duration::try_from_secs_f64(seconds).unwrap_or_default().as_secs();
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m {}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h {}m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{}d {}h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn state(uptime: f64, lines: u64) -> StatusReport {
        let worker = json!({"worker": 0, "pid": 4711, "state": "busy", "age": 61.0, "sessions": 2, "pending": 1, "paused": true});
        let answer = json!({
            "version": "1.2.3", "pid": 99, "listen": ["tcp://127.0.0.1:9000"], "max_connections": 20000, "worker_limits": ["pids"],
            "uptime": uptime, "clients": 3, "sessions": 2, "pending": 1,
            "pools": [
                {"name": "default", "state": "ready", "workers": [worker]},
                {"name": "spare", "manifest": "/w/ACP.md", "state": "tripped", "retry_after_ms": 2500, "last_loss": "exit 1\u{1b}[2J", "waiting": 4},
            ],
            "counters": {"from_clients": lines, "spawned": 1, "lost": 1}, "new": true,
            "queues": {"clients": 1536, "longest": 1023, "full": 1, "workers": {"0": 3_145_728}},
            "network_refused": {"host": 3, "origin": 0, "token": 1},
            "network_connections": {"broken": 5, "cursor_gap": 1, "expired": 0, "resumed": 4},
        });
        StatusReport::read(&answer.to_string()).expect("a state")
    }

    #[test]
    fn a_report_is_rendered_as_a_table() {
        assert_snapshot!(state(3725.0, 3725).table(None), @r#"
        narrows 1.2.3, pid 99, up 1h 2m; tcp://127.0.0.1:9000
        3 of 20000 clients, 2 sessions, 1 request in flight
        write backlog: clients 1.5 KiB (largest 1023 B, 1 queue full), workers 3.0 MiB
        worker limits supported on this host: pids
        since start: 1 worker started, 1 lost; 0 sessions opened, 0 restored; 0 requests refused
        network requests refused: 3 host, 1 token
        network disconnects: 5 broken, 1 cursor gap, 4 resumed
        messages/s: 1.0 from clients, 0.0 to workers, 0.0 from workers, 0.0 to clients

        POOL     STATE                 WORKERS  READY  SESSIONS  PENDING  WAITING  LAST LOSS
        default  ready                 1        1      2         1        0        -
        spare    tripped, retry in 2s  0        0      0         0        4        exit 1\u{1b}[2J
        pool spare: governed by /w/ACP.md

        POOL     WORKER  PROCESS  STATE  AGE    SESSIONS  PENDING  ASKING  QUEUED   STRIKES  PAUSED
        default  0       4711     busy   1m 1s  2         1        0       3.0 MiB  0        yes
        "#);
    }

    #[test]
    fn a_refused_manifest_has_a_hint() {
        let table = |loss: &str| {
            let pool = json!({"name": "p", "manifest": "/w/ACP.md", "last_loss": loss});
            StatusReport::read(&json!({"pools": [pool]}).to_string()).expect("a state").table(None)
        };
        assert!(table("exited with status 2").contains("`narrows serve --approve /w/ACP.md`"));
        for other in ["exited with status 1", "signal 9", ""] {
            assert!(!table(other).contains("--approve"), "{other}");
        }
    }

    #[test]
    fn workers_are_sorted_by_number() {
        let workers = [10, 2, 7].map(|number| json!({"worker": number}));
        let state = StatusReport::read(&json!({"pools": [{"name": "p", "workers": workers}]}).to_string())
            .expect("a state");
        let table = state.workers();
        let numbers: Vec<&str> =
            table.lines().skip(1).filter_map(|line| line.split_whitespace().nth(1)).collect();
        assert_eq!(numbers, ["2", "7", "10"]);
    }

    #[test]
    fn rates_cover_the_time_since_the_last_report() {
        let (first, second) = (state(10.0, 100), state(12.0, 150));
        assert!(second.rates(Some(&first)).starts_with("25.0 from clients"));
        assert!(second.rates(None).starts_with("12.5 from clients"));
        assert!(first.rates(Some(&second)).starts_with("10.0 from clients"));
    }

    proptest! {
        #[test]
        fn any_response_is_parsed_without_a_panic(answer in "\\PC{0,40}", uptime: f64, age: f64) {
            _ = StatusReport::read(&answer).map(|state| state.table(None));
            let odd = StatusReport { uptime, pools: vec![Pool { workers: vec![Worker { age, ..Worker::default() }], ..Pool::default() }], ..StatusReport::default() };
            prop_assert!(odd.table(Some(&StatusReport::default())).starts_with("narrows "));
        }
    }
}
