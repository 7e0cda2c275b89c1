//! Runs a fork bomb in a worker, which must not slow down other pools.

use std::time::{Duration, Instant};

use narrows_bus::worker_limits;
use serde_json::json;

use crate::bus_support::{Bus, Peer};
use crate::test_dir::TestDir;

/// Most processes in the worker's control group.
const PIDS: usize = 24;
/// The number of measured turns.
const TURNS: u32 = 200;

/// The bomb is harmless only in a control group of its own, so it checks that first. A process that cannot
/// fork exits; the others continue after a while.
const BOMB: &str = "grep -q narrows- /proc/self/cgroup || exit 9; bomb() { bomb & bomb & sleep 0.2; bomb; }; bomb & read word";

/// Returns the time of the slowest of a hundred turns.
fn p99(peer: &mut Peer, session: &str) -> Duration {
    let mut times: Vec<Duration> = (0..TURNS)
        .map(|number| {
            let start = Instant::now();
            peer.prompt(&json!(number + 10), session, "tick");
            assert_eq!(peer.answer(&json!(number + 10))["result"]["stopReason"], "end_turn");
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    times[times.len() - 1 - times.len() / 100]
}

#[test]
fn a_fork_bomb_does_not_slow_down_other_pools() {
    if let Some((_, Err(why))) = worker_limits().into_iter().find(|(name, _)| name.to_string() == "pids") {
        eprintln!("not tried: {why}");
        return;
    }
    let dir = TestDir::new();
    let file = format!(
        "[[listen]]\nurl = 'tcp://127.0.0.1:0'\n\
         [[pool]]\nname = 'good'\ncommand = ['narrows', 'fake-agent', 'echo']\nshare = 'all'\npass_env = ['[MARK]']\n\
         [[pool]]\nname = 'bomb'\ncommand = ['sh', '-c', '{BOMB}']\npids = {PIDS}\npass_env = ['[MARK]']\n"
    );
    let bombs = || dir.alive().iter().filter(|command| command.contains("bomb()")).count();
    // The same bus without the bomb is the reference. The measurement is repeated a few times, in case the
    // machine is busy.
    let mut seen = Vec::new();
    let stood = (0..5).any(|_| {
        let calm = Bus::from_file(&dir, &file.replace("bomb & read", "read"));
        let mut peer = calm.client();
        let session = peer.session(&dir);
        let before = p99(&mut peer, &session);
        calm.stop();
        let bus = Bus::from_file(&dir, &file);
        let mut peer = bus.client();
        let session = peer.session(&dir);
        dir.wait_for(|| bombs() >= PIDS / 2);
        let during = p99(&mut peer, &session);
        assert!(bombs() <= PIDS, "{}", bombs());
        assert!(bombs() >= 2, "it goes on");
        bus.stop();
        seen.push((before, during));
        during < before * 2
    });
    assert!(stood, "p99 without and with the bomb: {seen:?}");
    eprintln!("p99 without and with the bomb: {seen:?}");
}
