//! The whole bus with real sockets and real processes, many of which are killed. No message is lost, doubled
//! or misdelivered, and no process is left.
//!
//! The scheduled run (`cargo xtask nightly chaos`) sets `NARROWS_CHAOS_KILLS=5000`. `NARROWS_CHAOS_SEED=17`
//! repeats the random choices, but not the timing.

#![expect(clippy::unwrap_used, reason = "these files are all tests")]

mod claims;
mod client;
mod conn;
mod leaks;
mod rig;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use fastrand::Rng;

use claims::Claim;
use client::{Client, Report};
use conn::{Conn, Progress, RequestType};
use leaks::{Holdings, memory, no_orphans};
use rig::Rig;
use rustix::process::Signal;
use serde_json::json;

const CLIENTS: usize = 20;
/// Maximum memory in KiB that this process may gain, including its clients.
const MAX_MEMORY_KIB: u64 = 96 << 10;

/// Makes the tests run one at a time, because they count resources of this process.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn no_message_is_lost_doubled_or_misdelivered_and_no_process_is_orphaned() {
    let _alone = alone();
    let seed = number("NARROWS_CHAOS_SEED").unwrap_or_else(|| fastrand::u64(..1 << 32));
    let kills = number("NARROWS_CHAOS_KILLS").unwrap_or(300);
    println!("NARROWS_CHAOS_SEED={seed}");
    let began = Instant::now();
    let rig = Rig::new(3);
    let enough = AtomicBool::new(false);
    let memory_before = memory().0;
    let mut random = Rng::with_seed(seed);
    let mut problems: Vec<String> = Vec::new();
    let mut claims = Vec::new();
    let mut tally: BTreeMap<i64, u64> = BTreeMap::new();
    let (mut connections, mut updates) = (0, 0);
    let counts = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let (listener, shared) = rig.listener([0, 1, 2, 3, 0][number % 5]);
                // A stopped shared worker delays all its clients, so few clients may stop workers.
                let stops = u32::from(number < 5);
                let random = random.fork();
                let client = Client { number, listener, shared, random, enough: &enough, stops };
                let enough = &enough;
                scope.spawn(move || {
                    let report = client.live();
                    if report.is_err() {
                        enough.store(true, Ordering::SeqCst);
                    }
                    report
                })
            })
            .collect();
        let counts = rig.kill_workers(&mut random, kills, 2, &enough);
        enough.store(true, Ordering::SeqCst);
        for client in clients {
            match client.join().unwrap() {
                Err(wrong) => problems.push(wrong),
                Ok(Report { claims: its, tally: codes, connections: count, updates: seen }) => {
                    claims.extend(its);
                    connections += count;
                    updates += seen;
                    codes.into_iter().for_each(|(code, count)| *tally.entry(code).or_default() += count);
                }
            }
        }
        counts
    });
    let status = rig.status();
    if !problems.is_empty() {
        println!("{:#?}", status.pools);
    }
    problems.extend(no_orphans(&rig.mark).err());
    let memory = (memory_before, memory());
    let log = rig.log();
    let judged = claims::find_contradictions(&log, &claims);
    problems.extend(judged.0);
    problems.extend(rig.finish().err());
    println!("{counts:?} in {:.1} s; {connections} connections", began.elapsed().as_secs_f64());
    println!("{} requests, {} begun, {updates} updates; answers by code: {tally:?}", claims.len(), judged.1);
    println!("{:?}; memory {memory:?} KiB", status.counters);
    let gained = memory.1.1.saturating_sub(memory.0);
    if gained > MAX_MEMORY_KIB {
        problems.push(format!("{gained} KiB of memory were used"));
    }
    let count = problems.len();
    problems.truncate(20);
    assert!(count == 0, "NARROWS_CHAOS_SEED={seed}: {count} wrongs:\n{}", problems.join("\n"));
    assert!(counts.kills >= kills, "{counts:?}");
}

/// All clients number their requests from 0, so every id is in use many times at any moment.
#[test]
fn a_hundred_clients_with_equal_ids_do_not_get_each_others_answers() {
    let _alone = alone();
    let rig = Rig::new(3);
    let converse = |number: usize| -> Result<Vec<(String, Claim)>, String> {
        let mut conn = Conn::open(rig.listener(if number.is_multiple_of(2) { 0 } else { 3 }).0, number, 0)?;
        conn.request(RequestType::Plain, "initialize", &json!({"protocolVersion": 1}));
        let params = |conn: &Conn| json!({"cwd": "/", "mcpServers": [], "_meta": {"tag": conn.tag()}});
        let new = params(&conn);
        conn.request(RequestType::New, "session/new", &new);
        conn.send()?;
        conn.settle()?;
        for round in 0..9 {
            let session = conn.idle.pop().ok_or("no session")?;
            let then = if round % 2 == 0 { "answer" } else { "ask" };
            conn.prompt(&session, json!({"updates": 3, "then": then}), "");
            (0..21).for_each(|_| conn.echo());
            conn.send()?;
            conn.settle()?;
        }
        conn.shut();
        while conn.read_line()? == Progress::Line {}
        match conn.tally.iter().collect::<Vec<_>>()[..] {
            [(0, 200)] => Ok(conn.leave().0),
            ref other => Err(format!("client {number}: answers by code: {other:?}")),
        }
    };
    let results: Vec<_> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..100).map(|number| scope.spawn(move || converse(number))).collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    let claims: Vec<_> = results.into_iter().flat_map(Result::unwrap).collect();
    assert_eq!(claims::find_contradictions(&rig.log(), &claims), (Vec::new(), 100 * 199));
    assert!(claims.iter().all(|(_, claim)| *claim == Claim::Done));
    rig.finish().unwrap();
}

/// Buses start and end with clients and workers that disconnect abruptly. Each bus must release all its
/// resources.
#[test]
fn a_bus_releases_all_its_resources() {
    let _alone = alone();
    let mut after_first = None;
    for round in 0..5 {
        let rig = Rig::new(2);
        let conns: Vec<Conn> = (0..12)
            .map(|number| {
                let mut conn = Conn::open(rig.listener(number % 4).0, number, 0).unwrap();
                conn.request(RequestType::Plain, "initialize", &json!({"protocolVersion": 1}));
                let params = json!({"cwd": "/", "mcpServers": [], "_meta": {"tag": conn.tag()}});
                conn.request(RequestType::New, "session/new", &params);
                conn.send().unwrap();
                conn.settle().unwrap();
                let session = conn.idle.pop().unwrap();
                conn.prompt(&session, json!({"updates": 2}), "daemon");
                conn.send().unwrap();
                conn.settle().unwrap();
                conn
            })
            .collect();
        let workers: Vec<u32> =
            rig.status().pools.iter().flat_map(|pool| &pool.workers).map(|worker| worker.pid).collect();
        let running = workers.iter().filter(|pid| **pid != 0);
        let killed = running.step_by(2).filter(|pid| rig.signal(**pid, Signal::KILL)).count();
        // Workers in use certainly run. Spare ones may still be starting.
        assert!(killed > 2, "{workers:?}");
        no_orphans(&rig.mark).unwrap();
        // Half of the clients are still connected when the bus ends.
        drop(conns.into_iter().step_by(2).collect::<Vec<_>>());
        rig.finish().unwrap();
        let now = (Holdings::now(), memory().0);
        let first = *after_first.get_or_insert(now);
        assert_eq!(now.0, first.0, "round {round}");
        assert!(now.1 < first.1 + (8 << 10), "round {round}: {} and then {} KiB", first.1, now.1);
    }
}
