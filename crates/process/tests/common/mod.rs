//! Helpers of the tests: workers that carry a mark, and a search for the mark in `/proc`.
#![allow(dead_code, reason = "every test file uses another part of it")]
#![expect(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use narrows_process::{Child, Ladder, Spec};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

pub(crate) const STEP_TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) const QUICK: Ladder =
    Ladder { eof_grace: Duration::from_millis(100), term_grace: Duration::from_millis(100) };

/// Starts five processes that ignore SIGTERM: the worker, a child, a child in a separate session, and two
/// daemonised ones. None of them reads its stdin.
pub(crate) const HOSTILE: &str = "
    trap '' TERM HUP INT
    sleep 1000 &
    setsid sleep 1000 &
    (setsid sh -c '(sleep 1000 &); exec sleep 1000' &)
    echo ready
    exec sleep 1000";
pub(crate) const HOSTILE_COUNT: usize = 5;

#[derive(Clone)]
pub(crate) struct Mark(String);

impl Mark {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        Self(format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)))
    }

    pub(crate) fn from_text(text: &str) -> Self {
        Self(text.to_owned())
    }

    pub(crate) fn text(&self) -> &str {
        &self.0
    }

    /// Returns a shell script with this mark in its environment, and nothing else but `PATH`.
    pub(crate) fn shell(&self, script: &str) -> Spec {
        let mut spec = Spec::new("sh");
        spec.args = vec!["-c".into(), script.into()];
        spec.env.set("PATH", "/usr/local/bin:/usr/bin:/bin");
        spec.env.set("NARROWS_TEST_MARK", &self.0);
        spec.orphan_grace = Duration::from_millis(100);
        spec
    }

    /// Returns `true` if the tree consists of `count` processes that have become `sleep`, and no others.
    pub(crate) fn sleeps(&self, count: usize) -> bool {
        let alive = self.alive();
        let sleeps =
            |pid| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm == "sleep\n");
        alive.len() == count && alive.into_iter().all(sleeps)
    }

    pub(crate) fn alive(&self) -> Vec<u32> {
        let entry = format!("NARROWS_TEST_MARK={}", self.0).into_bytes();
        processes()
            .filter(|pid| {
                let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
                environment.split(|byte| *byte == 0).any(|variable| variable == entry)
            })
            .collect()
    }
}

fn processes() -> impl Iterator<Item = u32> {
    fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

pub(crate) fn exists(pid: u32) -> bool {
    fs::exists(format!("/proc/{pid}")).unwrap()
}

pub(crate) fn state(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Checks repeatedly until `condition` holds.
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + STEP_TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(5)); // sleep: polls the process table
    }
}

pub(crate) async fn read_until(stdout: &mut pipe::Receiver, end: &str) -> String {
    let mut text = Vec::new();
    tokio::time::timeout(STEP_TIMEOUT, async {
        while !text.ends_with(end.as_bytes()) {
            assert_ne!(stdout.read_buf(&mut text).await.unwrap(), 0, "ended too early: {text:?}");
        }
    })
    .await
    .unwrap();
    String::from_utf8(text).unwrap()
}

pub(crate) async fn read_all(child: &mut Child) -> String {
    let mut text = String::new();
    let mut stdout = child.take_stdout().unwrap();
    tokio::time::timeout(STEP_TIMEOUT, stdout.read_to_string(&mut text)).await.unwrap().unwrap();
    text
}

pub(crate) async fn hostile(mark: &Mark) -> Child {
    let mut child = narrows_process::spawn(mark.shell(HOSTILE)).await.unwrap();
    read_until(&mut child.take_stdout().unwrap(), "ready\n").await;
    eventually("the tree is complete", || mark.sleeps(HOSTILE_COUNT));
    child
}
