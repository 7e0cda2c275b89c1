//! Metrics of a bus in the text format of Prometheus.
//!
//! The set of series is fixed except for the names of pools, listeners and identities. Those come from the
//! configuration, token files and certificates, so no peer can add a series.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::{BusInfo, HttpCounters};
use crate::core::{Counters, IdentityStatus, PoolStatus, Status};
use crate::driver::Queues;

pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

const STATES: [&str; 6] = ["starting", "greeting", "ready", "busy", "retiring", "stopping"];

/// A counter since the start of the bus: its name, help text and value.
type Counter = (&'static str, &'static str, fn(&Counters) -> u64);

const COUNTERS: [Counter; 16] = [
    ("connections", "Accepted connections.", |c| c.connections),
    ("lines_from_clients", "Lines from clients.", |c| c.from_clients),
    ("lines_to_clients", "Lines of workers sent to clients.", |c| c.to_clients),
    ("lines_from_workers", "Lines from workers.", |c| c.from_workers),
    ("lines_to_workers", "Lines sent to workers.", |c| c.to_workers),
    ("sessions_opened", "Opened sessions.", |c| c.sessions),
    ("sessions_revived", "Sessions restored after their worker was lost.", |c| c.revived),
    ("requests_refused", "Requests that the bus answered with an error.", |c| c.refused),
    ("messages_dropped", "Messages that were dropped because they have no recipient.", |c| c.dropped),
    ("updates_unseen", "Updates of sessions whose client had disconnected.", |c| c.unseen),
    ("worker_strikes", "Protocol violations of workers.", |c| c.strikes),
    ("workers_spawned", "Started workers.", |c| c.spawned),
    ("workers_lost", "Lost workers.", |c| c.lost),
    ("mcp_refused", "Requests refused because of an MCP server that the pool does not permit.", |c| {
        c.refused_mcp
    }),
    ("pools_refused", "Requests refused because of a pool that the client may not use.", |c| c.refused_pools),
    ("users_refused", "Connections refused because of their user.", |c| c.refused_users),
];

/// A metric of each identity: its name, type, help text and value.
type IdentitySeries = (&'static str, &'static str, &'static str, fn(&IdentityStatus) -> u64);

const IDENTITY_GAUGES: [IdentitySeries; 3] = [
    ("identity_clients", "gauge", "Connected clients of an identity.", |has| has.clients as u64),
    ("identity_sessions", "gauge", "Sessions of an identity.", |has| has.sessions as u64),
    (
        "identity_refused_total",
        "counter",
        "Connections and sessions refused because the identity had too many.",
        |has| has.refused,
    ),
];

/// Totals of all pools with one name. After a reload, a pool and its replacement can have the same name.
#[derive(Default)]
struct PoolTotals {
    ready: bool,
    open: bool,
    waiting: usize,
    sessions: usize,
    pending: usize,
    asking: usize,
    paused: usize,
    queued: u64,
    states: [usize; STATES.len()],
}

impl PoolTotals {
    fn add(&mut self, pool: &PoolStatus, queues: &Queues) {
        self.ready |= pool.state == "ready";
        self.open |= pool.state == "tripped";
        self.waiting += pool.waiting;
        for worker in &pool.workers {
            self.sessions += worker.sessions;
            self.pending += worker.pending;
            self.asking += worker.asking;
            self.paused += usize::from(worker.paused);
            self.queued += queues.workers.get(&worker.worker).copied().unwrap_or(0);
            if let Some(at) = STATES.iter().position(|state| *state == worker.state) {
                self.states[at] += 1;
            }
        }
    }
}

/// A gauge of each pool: its name, help text and value.
type Gauge = (&'static str, &'static str, fn(&PoolTotals) -> u64);

const GAUGES: [Gauge; 8] = [
    ("pool_ready", "1 if the pool can be used.", |sum| u64::from(sum.ready)),
    ("pool_circuit_open", "1 if the circuit breaker is open.", |sum| u64::from(sum.open)),
    ("pool_waiting_clients", "Clients that wait for a worker.", |sum| sum.waiting as u64),
    ("pool_sessions", "Sessions at the workers of the pool.", |sum| sum.sessions as u64),
    ("pool_pending_requests", "Requests that workers have not answered.", |sum| sum.pending as u64),
    ("pool_asked_requests", "Requests of workers that clients have not answered.", |sum| sum.asking as u64),
    ("pool_paused_workers", "Workers whose output is not read, because a client reads slowly.", |sum| {
        sum.paused as u64
    }),
    ("pool_queue_bytes", "Bytes that wait to be written to workers.", |sum| sum.queued),
];

pub(super) fn text(
    info: &BusInfo,
    max_connections: usize,
    status: &Status,
    queues: &Queues,
    network: &HttpCounters,
) -> String {
    let mut out = String::with_capacity(8 << 10);
    head(&mut out, "info", "gauge", "1, with the version of the program.");
    _ = writeln!(out, "narrows_bus_info{{version=\"{}\"}} 1", label(&info.version));
    let whole = [
        ("draining", "1 while the bus is draining.", usize::from(status.draining)),
        ("clients", "Connected clients.", status.clients),
        ("max_clients", "Clients that can be connected at once.", max_connections),
        ("sessions", "Known sessions.", status.sessions),
        ("pending_requests", "Requests that no worker has answered yet.", status.pending),
        ("full_clients", "Clients whose queue is full.", queues.full),
    ];
    head(&mut out, "uptime_seconds", "gauge", "Seconds since the start.");
    _ = writeln!(out, "narrows_bus_uptime_seconds {:.3}", status.uptime);
    for (name, meaning, value) in whole {
        head(&mut out, name, "gauge", meaning);
        _ = writeln!(out, "narrows_bus_{name} {value}");
    }
    let queued = [
        ("client_queue_bytes", "Bytes that wait to be written to clients.", queues.clients),
        (
            "client_queue_longest_bytes",
            "Bytes that wait to be written to the client with the longest queue.",
            queues.longest,
        ),
    ];
    for (name, meaning, value) in queued {
        head(&mut out, name, "gauge", meaning);
        _ = writeln!(out, "narrows_bus_{name} {value}");
    }
    head(&mut out, "listener_clients", "gauge", "Connected clients of a listener.");
    for (listener, count) in info.listen.iter().zip(&status.listeners) {
        let listener = label(listener);
        _ = writeln!(out, "narrows_bus_listener_clients{{listener=\"{listener}\"}} {count}");
    }
    for (name, kind, meaning, value) in IDENTITY_GAUGES {
        head(&mut out, name, kind, meaning);
        for (identity, has) in &status.identities {
            _ = writeln!(out, "narrows_bus_{name}{{identity=\"{}\"}} {}", label(identity), value(has));
        }
    }
    for (name, meaning, value) in COUNTERS {
        let name = format!("{name}_total");
        head(&mut out, &name, "counter", meaning);
        _ = writeln!(out, "narrows_bus_{name} {}", value(&status.counters));
    }
    let name = "network_refused_total";
    head(&mut out, name, "counter", "Requests and sockets refused by the HTTP server.");
    for (reason, count) in &network.refused {
        _ = writeln!(out, "narrows_bus_{name}{{reason=\"{reason}\"}} {count}");
    }
    let name = "network_connections_total";
    head(&mut out, name, "counter", "Interrupted network connections, by outcome.");
    for (event, count) in &network.connections {
        _ = writeln!(out, "narrows_bus_{name}{{event=\"{event}\"}} {count}");
    }
    let mut pools: BTreeMap<&str, PoolTotals> = BTreeMap::new();
    for pool in &status.pools {
        pools.entry(&pool.name).or_default().add(pool, queues);
    }
    for (name, meaning, value) in GAUGES {
        head(&mut out, name, "gauge", meaning);
        for (pool, sum) in &pools {
            _ = writeln!(out, "narrows_bus_{name}{{pool=\"{}\"}} {}", label(pool), value(sum));
        }
    }
    head(&mut out, "pool_workers", "gauge", "Workers by state.");
    for (pool, sum) in &pools {
        for (state, count) in STATES.iter().zip(sum.states) {
            let pool = label(pool);
            _ = writeln!(out, "narrows_bus_pool_workers{{pool=\"{pool}\",state=\"{state}\"}} {count}");
        }
    }
    out
}

fn head(out: &mut String, name: &str, kind: &str, meaning: &str) {
    _ = writeln!(out, "# HELP narrows_bus_{name} {meaning}\n# TYPE narrows_bus_{name} {kind}");
}

fn label(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;
    use crate::core::WorkerStatus;

    pub(in super::super) fn status() -> Status {
        let worker = |state, sessions, paused| WorkerStatus {
            worker: 1,
            pid: 4711,
            state,
            age: 1.5,
            sessions,
            pending: 1,
            asking: 0,
            strikes: 0,
            paused,
        };
        let pool = |name: &str, state, workers| PoolStatus {
            name: name.to_owned(),
            manifest: None,
            state,
            retry_after_ms: None,
            last_loss: None,
            waiting: 2,
            workers,
        };
        Status {
            uptime: 12.5,
            draining: false,
            clients: 3,
            sessions: 5,
            listeners: vec![3],
            identities: [("token:a".to_owned(), IdentityStatus { clients: 2, sessions: 4, refused: 1 })]
                .into(),
            pending: 2,
            pools: vec![
                pool("default", "leaving", vec![worker("retiring", 2, true)]),
                pool("default", "ready", vec![worker("busy", 3, false), worker("ready", 0, false)]),
                pool("spare", "tripped", Vec::new()),
            ],
            counters: Counters { connections: 9, to_clients: 7, ..Counters::default() },
        }
    }

    #[test]
    fn pools_of_one_name_are_one_series() {
        let listen = vec!["stdio:".to_owned()];
        let info = BusInfo { version: "1.2.3".to_owned(), listen, ..BusInfo::default() };
        let queues = Queues { clients: 30, longest: 20, full: 1, workers: [(1, 5), (7, 9)].into() };
        let network = HttpCounters {
            refused: vec![("host", 2), ("origin", 0)],
            connections: vec![("broken", 3), ("resumed", 1)],
        };
        let text = text(&info, 100, &status(), &queues, &network);
        for line in [
            "narrows_bus_info{version=\"1.2.3\"} 1",
            "narrows_bus_uptime_seconds 12.500",
            "narrows_bus_clients 3",
            "narrows_bus_max_clients 100",
            "narrows_bus_full_clients 1",
            "narrows_bus_client_queue_bytes 30",
            "narrows_bus_pool_queue_bytes{pool=\"default\"} 15",
            "narrows_bus_listener_clients{listener=\"stdio:\"} 3",
            "narrows_bus_identity_clients{identity=\"token:a\"} 2",
            "narrows_bus_identity_sessions{identity=\"token:a\"} 4",
            "narrows_bus_identity_refused_total{identity=\"token:a\"} 1",
            "narrows_bus_connections_total 9",
            "narrows_bus_lines_to_clients_total 7",
            "narrows_bus_network_refused_total{reason=\"host\"} 2",
            "narrows_bus_network_refused_total{reason=\"origin\"} 0",
            "narrows_bus_network_connections_total{event=\"broken\"} 3",
            "narrows_bus_network_connections_total{event=\"resumed\"} 1",
            "narrows_bus_pool_ready{pool=\"default\"} 1",
            "narrows_bus_pool_circuit_open{pool=\"spare\"} 1",
            "narrows_bus_pool_sessions{pool=\"default\"} 5",
            "narrows_bus_pool_paused_workers{pool=\"default\"} 1",
            "narrows_bus_pool_workers{pool=\"default\",state=\"busy\"} 1",
            "narrows_bus_pool_workers{pool=\"spare\",state=\"busy\"} 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }

    /// Checks that each series appears once, after its own header, and that there are no other lines.
    #[track_caller]
    fn judge(text: &str) {
        let mut series = HashSet::new();
        let mut headed = String::new();
        for line in text.lines() {
            if let Some(head) = line.strip_prefix("# TYPE ") {
                headed = head.split(' ').next().unwrap_or_default().to_owned();
                continue;
            }
            if line.starts_with("# HELP ") {
                continue;
            }
            let (name, value) = line.rsplit_once(' ').expect("a name and a value");
            assert!(value.parse::<f64>().is_ok(), "{line}");
            assert_eq!(name.split('{').next(), Some(headed.as_str()), "{line}");
            assert!(series.insert(name.to_owned()), "{line} stands there twice");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn any_pool_name_gives_valid_metrics(names in prop::collection::vec("\\PC{0,12}|\"\\\\\n", 0..5)) {
            let mut status = status();
            let pool = status.pools.remove(1);
            status.pools.extend(names.into_iter().map(|name| PoolStatus { name, ..pool.clone() }));
            let network = HttpCounters { refused: vec![("host", 1)], connections: vec![("broken", 1)] };
            judge(&text(&BusInfo::default(), 0, &status, &Queues::default(), &network));
        }
    }

    #[test]
    fn every_series_is_in_the_documentation_and_no_other() {
        let page = include_str!("../../../../docs/reference/metrics.md");
        let rows = page.lines().filter(|line| line.starts_with("| `narrows_bus_"));
        let documented: Vec<&str> = rows.filter_map(|row| row.split(['`', '{']).nth(1)).collect();
        let text = text(&BusInfo::default(), 0, &status(), &Queues::default(), &HttpCounters::default());
        let heads = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        let told: Vec<&str> = heads.filter_map(|head| head.split(' ').next()).collect();
        assert_eq!(documented, told);
    }
}
