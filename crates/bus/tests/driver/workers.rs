//! Workers: pipes, exits, and the handling of unread requests.

use narrows_bus::StartError;
use narrows_bus::core::{StuckReason, WorkerExit};
use narrows_process::Controller;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};

use super::*;

fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

fn ended(event: Event) -> WorkerExit {
    match event {
        Event::Ended(0, end) => end,
        other => panic!("{other:?}"),
    }
}

fn pid(event: &Event) -> Option<u32> {
    match event {
        Event::Up(_, pid) => Some(*pid),
        _ => None,
    }
}

#[test]
fn lines_go_through_a_worker_unchanged() {
    let rig = Rig::new(Mode::Pairs, config("exec cat"));
    let mut peers: Vec<Peer> = (0..4).map(|_| rig.connect()).collect();
    for (number, peer) in peers.iter_mut().enumerate() {
        let mut writer = peer.reader.get_ref().try_clone().unwrap();
        let lines: Vec<String> =
            (0..2000).map(|line| format!("[{number},{line},\"{}\"]\n", "y".repeat(line))).collect();
        let text = lines.concat();
        let sender = std::thread::spawn(move || writer.write_all(text.as_bytes()).unwrap());
        for line in lines {
            assert_eq!(peer.read_line(), line);
        }
        sender.join().unwrap();
    }
    // The end of input reaches the worker, and the connection ends only after that.
    peers[0].send("[\"last\"]\n");
    peers[0].shut();
    assert_eq!(peers[0].read_rest(), "[\"last\"]\n");
    let end = rig.until(|event| matches!(event, Event::Ended(..)));
    assert!(matches!(&end, Event::Ended(_, end) if end.reason == "exited with status 0"), "{end:?}");
    rig.finish();
}

#[test]
fn long_lines_pass_unchanged_to_slow_readers() {
    let rig = Rig::new(Mode::Pairs, config("exec cat"));
    let mut peers: Vec<Peer> = (0..3).map(|_| rig.connect()).collect();
    let lines = |number: usize| -> Vec<String> {
        (0..60).map(|line| format!("[{number},{line},\"{}\"]\n", "z".repeat(line * line * 131))).collect()
    };
    let senders: Vec<_> = peers
        .iter()
        .enumerate()
        .map(|(number, peer)| {
            let mut writer = peer.reader.get_ref().try_clone().unwrap();
            std::thread::spawn(move || writer.write_all(lines(number).concat().as_bytes()).unwrap())
        })
        .collect();
    // Sent one after the other, so that lines for the others have to wait.
    for (number, peer) in peers.iter_mut().enumerate() {
        for line in lines(number) {
            assert!(peer.read_line() == line, "a line of {} bytes", line.len());
        }
    }
    senders.into_iter().for_each(|sender| sender.join().unwrap());
    rig.finish();
}

#[test]
fn a_worker_gets_the_original_descriptor_limit() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(500), maximum }).unwrap();
    let rig = Rig::new(Mode::Pairs, config("read line; echo \"[$(ulimit -n)]\"; exec cat"));
    assert_eq!(getrlimit(Resource::Nofile).current, maximum);
    let mut peer = rig.connect();
    peer.send("[]\n");
    assert_eq!(peer.read_line(), "[500]\n");
    rig.finish();
}

#[test]
fn more_workers_than_there_can_be_are_refused() {
    let mut config = config("exec cat");
    config.pools[0].instances = u32::MAX;
    let (tell, _events) = sync_channel(1);
    let refused = Bus::start_with(config, Vec::new(), |config| SimpleRouter::new(Mode::Pairs, config, tell));
    assert!(
        matches!(refused, Err(StartError::Descriptors { needed, limit }) if needed > limit),
        "{refused:?}"
    );
}

#[test]
fn a_worker_exit_reports_its_reason_and_the_bytes_read() {
    // A shell reads byte by byte, so the second line stays in the pipe.
    let rig = Rig::new(Mode::Pairs, config("read a; read b; echo \"[\\\"$a\\\"]\"; echo oops >&2; exit 3"));
    let mut peer = rig.connect();
    rig.until(|event| matches!(event, Event::Up(..)));
    peer.send("[1]\n[22]\n[333]\n");
    assert_eq!(peer.read_rest(), "[\"[1]\"]\n", "the last output of the worker is delivered");
    let end = ended(rig.until(|event| matches!(event, Event::Ended(..))));
    let reason = "exited with status 3; stderr: oops".to_owned();
    assert_eq!(end, WorkerExit { reason, bytes_read: 9, ..WorkerExit::default() });
    rig.finish();
}

#[test]
fn unwritten_lines_are_returned_to_the_router() {
    let rig = Rig::new(Mode::Pairs, config("read a; sleep 1000"));
    let mut peer = rig.connect();
    let up = rig.until(|event| matches!(event, Event::Up(..)));
    let long = format!("[{}]\n", "1".repeat(2_000_000));
    peer.send(&format!("[1]\n{long}[2]\n[\"flood\",1]\n"));
    assert_eq!(peer.read_line(), "x\n", "all earlier lines were read");
    let shell = Pid::from_raw(pid(&up).unwrap().cast_signed()).unwrap();
    kill_process(shell, Signal::KILL).unwrap();
    let end = ended(rig.until(|event| matches!(event, Event::Ended(..))));
    assert_eq!(end.bytes_read, 4);
    assert!(end.unsent.ends_with(b"1]\n[2]\n") && end.unsent.len() > 1_000_000, "{}", end.unsent.len());
    rig.finish();
}

#[test]
fn closed_pipes_are_reported() {
    for (script, why) in [
        ("exec >&-; sleep 1000", StuckReason::OutputClosed),
        ("exec <&-; sleep 1000", StuckReason::InputClosed { bytes_read: 0 }),
    ] {
        let rig = Rig::new(Mode::Pairs, config(script));
        let _peer = rig.connect();
        let up = rig.until(|event| matches!(event, Event::Up(..)));
        rig.until(|event| *event == Event::Stuck(0, why));
        let end = ended(rig.until(|event| matches!(event, Event::Ended(..))));
        assert_eq!(end.reason, "killed by SIGKILL");
        assert!(!is_alive(pid(&up).unwrap()));
        rig.finish();
    }
}

#[test]
fn a_stopped_worker_is_reported() {
    let rig = Rig::new(Mode::Pairs, config("read a; kill -STOP $$; exec cat"));
    let mut peer = rig.connect();
    peer.send("[1]\n");
    rig.until(|event| *event == Event::Stuck(0, StuckReason::Stopped));
    rig.until(|event| matches!(event, Event::Ended(..)));
    rig.finish();
}

/// Takes six seconds: there is a check every five seconds, and another one a second later.
#[test]
fn a_worker_that_is_stopped_for_a_moment_is_kept() {
    let rig = Rig::new(Mode::Pairs, config("exec cat"));
    let mut peer = rig.connect();
    rig.until(|event| matches!(event, Event::Up(..)));
    peer.send("[\"fuse\",\"pause\"]\n");
    assert_eq!(peer.read_line(), "[\"lit\"]\n");
    for _ in 0..2 {
        rig.until(|event| *event == Event::PendingWorkQueried);
    }
    peer.send("[1]\n");
    assert_eq!(peer.read_line(), "[1]\n");
    rig.finish();
}

/// Takes fifteen seconds.
#[test]
fn a_worker_that_does_not_read_is_reported() {
    let rig = Rig::new(Mode::Pairs, config("read a; sleep 1000"));
    let mut peer = rig.connect();
    peer.send(&format!("[1]\n[{}]\n", "1".repeat(2_000_000)));
    let event = rig.until(|event| matches!(event, Event::Stuck(..) | Event::Ended(..)));
    assert_eq!(event, Event::Stuck(0, StuckReason::Undrained));
    let end = ended(rig.until(|event| matches!(event, Event::Ended(..))));
    assert_eq!((end.bytes_read, end.reason.as_str()), (4, "killed by SIGKILL"));
    rig.finish();
}

#[test]
fn no_worker_process_outlives_the_bus() {
    let rig = Rig::new(Mode::Pairs, config("trap '' TERM; setsid sleep 1000 & echo [$!]; cat; sleep 1000"));
    let mut peer = rig.connect();
    let up = rig.until(|event| matches!(event, Event::Up(..)));
    let detached: u32 = peer.read_line().trim_matches(['[', ']', '\n']).parse().unwrap();
    assert!(is_alive(detached));
    rig.finish();
    assert!(!is_alive(pid(&up).unwrap()) && !is_alive(detached));
}

#[test]
fn a_worker_that_cannot_start_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config("exec cat");
    config.pools[0].cwd = Some(dir.path().to_owned());
    let rig = Rig::new(Mode::Pairs, config);
    dir.close().unwrap();
    let mut peer = rig.connect();
    peer.send("[1]\n");
    let end = ended(rig.until(|event| matches!(event, Event::Ended(..))));
    assert!(end.reason.contains("working directory") && end.bytes_read == 0, "{end:?}");
    rig.finish();
}

#[test]
fn an_exclusive_worker_ends_with_its_client() {
    let rig = Rig::new(Mode::Pairs, config("exec sleep 1000"));
    let mut peer = rig.connect();
    let up = rig.until(|event| matches!(event, Event::Up(..)));
    peer.send("[1]\n");
    drop(peer);
    rig.until(|event| matches!(event, Event::Ended(..)));
    assert!(!is_alive(pid(&up).unwrap()));
    rig.finish();
}

#[test]
fn clients_that_disconnect_leave_no_descriptors() {
    let rig = Rig::new(Mode::Pairs, config("exec cat"));
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let mut before = None;
    for round in 0..4 {
        let mut peers: Vec<Peer> = (0..8).map(|_| rig.connect()).collect();
        for (number, peer) in peers.iter_mut().enumerate() {
            peer.send(&format!("[{round},{number}]\n"));
            assert_eq!(peer.read_line(), format!("[{round},{number}]\n"));
        }
        // Half of the clients end their input, half disconnect.
        let vanishing = peers.split_off(4);
        peers.iter_mut().for_each(Peer::shut);
        assert!(peers.iter_mut().all(|peer| peer.read_rest().is_empty()));
        drop((peers, vanishing));
        let (mut gone, mut ended) = (0, 0);
        while (gone, ended) != (8, 8) {
            match rig.next() {
                Event::Gone(_) => gone += 1,
                Event::Ended(..) => ended += 1,
                _ => {}
            }
        }
        // The first round may have opened descriptors that stay open, such as the pipe of a waker.
        let before = *before.get_or_insert_with(descriptors);
        let since = std::time::Instant::now();
        while descriptors() > before {
            // The spawner releases a guardian shortly after the exit event.
            assert!(since.elapsed() < TEST_TIMEOUT, "{} instead of {before} descriptors", descriptors());
            std::thread::yield_now();
        }
    }
    rig.finish();
}

fn can(limit: Controller) -> bool {
    let (_, can) =
        narrows_bus::worker_limits().into_iter().find(|(controller, _)| *controller == limit).unwrap();
    can.inspect_err(|why| eprintln!("not tried: {why}")).is_ok()
}

#[test]
fn a_worker_cannot_exceed_the_process_limit_of_its_pool() {
    if !can(Controller::Pids) {
        return;
    }
    // Without its own cgroup, the script exits, so that the fork bomb does no harm.
    let bomb = "bomb() { bomb & bomb & sleep 1000; }";
    let script = format!("grep -q narrows- /proc/self/cgroup || exit 9; {bomb}; bomb & read word; exit 4");
    let mut config = config(&script);
    config.pools[0].pids = Some(20);
    let rig = Rig::new(Mode::Pairs, config);
    let mut peer = rig.connect();
    rig.until(|event| matches!(event, Event::Up(..)));
    peer.send("[1]\n");
    let end = ended(rig.until(|event| matches!(event, Event::Ended(..))));
    assert!(end.reason.starts_with("exited with status 4"), "{end:?}");
    assert!(!end.oom);
    rig.finish();
}

#[test]
fn a_worker_killed_by_its_memory_limit_is_reported_as_such() {
    if !can(Controller::Memory) {
        return;
    }
    let mut config = config("grep -q narrows- /proc/self/cgroup || exit 9; read word; exec tail /dev/zero");
    config.pools[0].memory = Some(32 << 20);
    let rig = Rig::new(Mode::Pairs, config);
    let mut peer = rig.connect();
    rig.until(|event| matches!(event, Event::Up(..)));
    peer.send("[1]\n");
    let end = ended(rig.until(|event| matches!(event, Event::Ended(..))));
    assert!(end.oom && end.reason.starts_with("killed by SIGKILL: memory limit exceeded"), "{end:?}");
    rig.finish();
}
