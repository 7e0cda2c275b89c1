//! Tests with several processes: this test binary starts itself in a role.

use std::io::{BufRead, BufReader, Lines, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use narrows_store::{NewSession, Store, StoreError, Turn};

use crate::{new, on_disk, turn};

const ROLE: &str = "NARROWS_TEST_ROLE";
const PLACE: &str = "NARROWS_TEST_PLACE";

/// Runs the role that the environment names; passes at once if there is none. A role prints lines that
/// begin with `@`.
#[test]
fn role() {
    let Some(role) = std::env::var_os(ROLE) else { return };
    let place = std::env::var_os(PLACE).unwrap();
    let store = Store::new(place.clone().into());
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    match role.to_str().unwrap() {
        "hold" => runtime.block_on(hold(&store)),
        "append" => runtime.block_on(append(&store)),
        "crowd" => runtime.block_on(crowd(&store)),
        "full" => runtime.block_on(full(&store, Path::new(&place))),
        other => panic!("unknown role {other}"),
    }
}

fn say(line: &str) {
    // On a separate line, because libtest also writes to stdout.
    std::io::stdout().write_all(format!("\n@{line}\n").as_bytes()).unwrap();
}

/// Keeps session `a` open until the end of input.
async fn hold(store: &Store) {
    let claim = match store.claim("a").await {
        Ok((claim, _)) => claim,
        Err(StoreError::NotFound) => store.create(new("a")).await.unwrap(),
        Err(error) => return say(&error.to_string()),
    };
    say("open");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    drop(claim);
}

/// Appends turns of several pages each to session `a` and prints their numbers, until killed.
async fn append(store: &Store) {
    let (claim, record) = store.claim("a").await.unwrap();
    say(&record.turns.to_string());
    loop {
        let number = store.append(&claim, whole(store).await).await.unwrap();
        say(&number.to_string());
    }
}

/// Returns the next turn of session `a`: size and content follow from its number.
async fn whole(store: &Store) -> Turn {
    numbered(store.record("a").await.unwrap().unwrap().turns + 1)
}

fn numbered(number: u64) -> Turn {
    turn(&format!("{number} ").repeat(usize::try_from(number % 7).unwrap() * 1000 + 1))
}

/// Creates and uses a session, concurrently with other processes.
async fn crowd(store: &Store) {
    let id = std::process::id().to_string();
    let claim = store.create(NewSession { id: id.clone(), ..NewSession::default() }).await.unwrap();
    for number in 1..=20 {
        assert_eq!(store.append(&claim, numbered(number)).await.unwrap(), number);
    }
    assert_eq!(store.history(&id).await.unwrap().len(), 20);
    say("done");
}

/// Fills the disk, frees space, and continues.
async fn full(store: &Store, place: &Path) {
    let ballast = place.join("ballast");
    std::fs::write(&ballast, vec![1; 512 << 10]).unwrap();
    let claim = store.create(new("a")).await.unwrap();
    let mut stored = 0;
    let refused = loop {
        match store.append(&claim, numbered(stored + 1)).await {
            Ok(number) => stored = number,
            Err(error) => break error,
        }
    };
    assert_eq!(refused, StoreError::Full);
    let expected: Vec<Turn> = (1..=stored).map(|number| Turn { number, ..numbered(number) }).collect();
    assert_eq!(store.history("a").await.unwrap(), expected);
    std::fs::remove_file(ballast).unwrap();
    assert_eq!(store.append(&claim, numbered(stored + 1)).await, Ok(stored + 1));
    // Another connection sees all turns.
    assert_eq!(Store::new(place.to_owned()).history("a").await.unwrap().len() as u64, stored + 1);
    say(&format!("stored {stored}"));
}

struct Player {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Player {
    fn start(role: &str, place: &Path) -> Self {
        Self::start_with(Command::new(std::env::current_exe().unwrap()), role, place)
    }

    fn start_with(mut program: Command, role: &str, place: &Path) -> Self {
        program.args(["--exact", "processes::role", "--nocapture"]);
        program.env(ROLE, role).env(PLACE, place).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = program.spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        Self { process, lines }
    }

    /// Returns the next line, or `None` at the end of output.
    fn next(&mut self) -> Option<String> {
        let lines = self.lines.by_ref().map_while(Result::ok);
        lines.filter_map(|line| line.strip_prefix('@').map(str::to_owned)).next()
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        assert_eq!(self.process.wait().unwrap().signal(), Some(9));
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        // It may have exited already.
        _ = self.process.kill();
        _ = self.process.wait();
    }
}

#[tokio::test]
async fn a_session_is_open_in_one_process_until_it_exits() {
    let (store, place) = on_disk();
    let mut first = Player::start("hold", place.path());
    assert_eq!(first.next().as_deref(), Some("open"));
    let in_use = StoreError::InUse { by_us: false };
    assert_eq!(store.claim("a").await.unwrap_err(), in_use);
    assert_eq!(store.delete("a").await.unwrap_err(), in_use);
    store.fork("a", new("b")).await.unwrap();
    let mut second = Player::start("hold", place.path());
    assert_eq!(second.next(), Some(in_use.to_string()));

    first.kill();
    let locks = || std::fs::read_dir(place.path().join("locks")).unwrap().count();
    assert_eq!(locks(), 1, "the lock file is left, but not locked");
    let (claim, _) = store.claim("a").await.unwrap();
    drop(claim);
    assert_eq!(locks(), 0);

    let mut third = Player::start("hold", place.path());
    assert_eq!(third.next().as_deref(), Some("open"));
    drop(third.process.stdin.take());
    assert!(third.process.wait().unwrap().success());
    assert_eq!(locks(), 0);
    store.claim("a").await.unwrap();
}

#[tokio::test]
async fn locks_of_killed_processes_are_removed() {
    let (_, place) = on_disk();
    let mut first = Player::start("hold", place.path());
    assert_eq!(first.next().as_deref(), Some("open"));
    first.kill();
    let store = Store::new(place.path().to_owned());
    store.list(None, None, 1).await.unwrap();
    assert_eq!(std::fs::read_dir(place.path().join("locks")).unwrap().count(), 0);
}

#[tokio::test]
async fn a_killed_process_loses_no_acknowledged_turn() {
    let (store, place) = on_disk();
    drop(store.create(new("a")).await.unwrap());
    let mut stored = 0;
    for round in 0..40u32 {
        let mut player = Player::start("append", place.path());
        let start: u64 = player.next().unwrap().parse().unwrap();
        assert_eq!(start, stored, "the next process reads the same history");
        let mut told = start;
        for _ in 0..=round % 5 {
            told = player.next().unwrap().parse().unwrap();
        }
        // Delays the kill by a different time in every round.
        for _ in 0..(round * 37 % 400) * 50 {
            std::hint::spin_loop();
        }
        player.kill();
        // Reads the output that the process wrote before its death.
        while let Some(line) = player.next() {
            told = line.parse().unwrap();
        }
        let (claim, record) = store.claim("a").await.unwrap();
        assert!(record.turns == told || record.turns == told + 1, "told {told}, found {}", record.turns);
        let history = store.history("a").await.unwrap();
        let expected = (1..=record.turns).map(|number| Turn { number, ..numbered(number) });
        assert!(history.into_iter().eq(expected), "turns are whole and in order");
        stored = record.turns;
        drop(claim);
    }
    let file = rusqlite::Connection::open(place.path().join("sessions.db")).unwrap();
    let verdict: String = file.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(verdict, "ok");
}

#[tokio::test]
async fn a_process_killed_while_creating_the_file_leaves_a_usable_one() {
    for round in 0..25 {
        let (store, place) = on_disk();
        let player = Player::start("crowd", place.path());
        while !place.path().join("locks").exists() {
            std::thread::yield_now();
        }
        // sleep: the moment of the kill is the subject
        std::thread::sleep(Duration::from_micros(round * 400));
        drop(player);
        let claim = store.create(new("a")).await.unwrap();
        assert_eq!(store.append(&claim, turn("1")).await.unwrap(), 1);
        let others = store.list(None, None, 9).await.unwrap().sessions;
        for record in others.into_iter().filter(|record| record.id != "a") {
            store.claim(&record.id).await.unwrap();
        }
    }
}

#[tokio::test]
async fn many_processes_can_create_the_file_at_once() {
    let (store, place) = on_disk();
    let mut crowd: Vec<Player> = (0..6).map(|_| Player::start("crowd", place.path())).collect();
    for player in &mut crowd {
        assert_eq!(player.next().as_deref(), Some("done"));
        assert!(player.process.wait().unwrap().success());
    }
    let page = store.list(None, None, 100).await.unwrap();
    assert_eq!(page.sessions.iter().map(|record| record.turns).collect::<Vec<_>>(), [20; 6]);
}

/// Uses a real file system of 1.5 MB if this user may mount one.
#[test]
fn a_full_file_system_is_survived() {
    let place = tempfile::tempdir().unwrap();
    let mount = r#"mount -t tmpfs -o size=1536k none "$0" || exit 77; exec "$@""#;
    let mut program = Command::new("unshare");
    program.args(["--user", "--map-root-user", "--mount", "sh", "-c", mount]).arg(place.path());
    program.arg(std::env::current_exe().unwrap());
    let probe = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", mount])
        .arg(place.path())
        .arg("true")
        .output();
    if !probe.is_ok_and(|probe| probe.status.success()) {
        println!("skipped: no file system can be mounted here");
        return;
    }
    let mut player = Player::start_with(program, "full", place.path());
    let said = player.next().expect("the role went well");
    let stored: u64 = said.strip_prefix("stored ").unwrap().parse().unwrap();
    assert!(stored > 10, "{stored}");
    assert!(player.process.wait().unwrap().success());
}
