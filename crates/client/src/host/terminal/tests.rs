use std::fs;
use std::path::Path;

use super::*;

const TEST_TIMEOUT: Duration = Duration::from_secs(30);

fn shell(script: &str) -> Create {
    let mut env = Environment::empty();
    env.set("PATH", "/usr/local/bin:/usr/bin:/bin");
    Create {
        program: "sh".into(),
        args: vec!["-c".into(), script.into()],
        env,
        cwd: "/".into(),
        cwd_links: CwdLinks::Follow,
        output_limit: usize::MAX,
        sandbox: None,
        guard: None,
    }
}

fn terminals() -> Terminals {
    Terminals::new(Limits::default())
}

async fn wait(terminals: &Terminals, id: &str) -> Exit {
    timeout(TEST_TIMEOUT, terminals.wait(id)).await.unwrap().unwrap()
}

/// Polls until `right` accepts the output.
async fn until(terminals: &Terminals, id: &str, right: impl Fn(&str) -> bool) -> String {
    let look = async {
        loop {
            let output = terminals.output(id).unwrap();
            if right(&output.text) {
                return output.text;
            }
            assert_eq!(output.exit, None, "ended too early: {:?}", output.text);
            tokio::time::sleep(Duration::from_millis(2)).await; // sleep: a process writes when it writes
        }
    };
    timeout(TEST_TIMEOUT, look).await.unwrap()
}

/// Returns `true` if a process runs. A zombie does not count.
fn runs(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

async fn until_dead(pids: &[String]) {
    let look = async {
        while pids.iter().any(|pid| runs(pid)) {
            tokio::time::sleep(Duration::from_millis(2)).await; // sleep: the process table is watched by looking again
        }
    };
    timeout(TEST_TIMEOUT, look).await.unwrap();
}

fn exited(code: u32) -> Exit {
    Exit { code: Some(code), signal: None }
}

fn killed(signal: &str) -> Exit {
    Exit { code: None, signal: Some(signal.to_owned()) }
}

#[track_caller]
fn is_unknown<T: std::fmt::Debug>(outcome: &Result<T, TerminalError>) {
    assert!(matches!(outcome, Err(TerminalError::Unknown { .. })), "{outcome:?}");
}

#[tokio::test]
async fn output_and_exit_of_commands() {
    let cases = [
        ("echo out; echo err >&2; echo out", "out\nerr\nout\n", exited(0)),
        ("exit 3", "", exited(3)),
        ("printf x; kill -TERM $$", "x", killed("SIGTERM")),
        ("kill -40 $$", "", killed("signal 40")),
        ("yes | head -n 3", "y\ny\ny\n", exited(0)),
        ("cat; echo 'no input'", "no input\n", exited(0)),
        ("pwd", "/\n", exited(0)),
        ("printf 'a\\377b'", "a\u{fffd}b", exited(0)),
        ("printf 'a\\360\\237'", "a\u{fffd}", exited(0)),
    ];
    let terminals = terminals();
    for (script, text, exit) in cases {
        let id = terminals.create(shell(script)).await.unwrap();
        assert_eq!(wait(&terminals, &id).await, exit, "{script}");
        let expected = Output { text: text.to_owned(), truncated: false, exit: Some(exit) };
        assert_eq!(terminals.output(&id).unwrap(), expected, "{script}");
        terminals.release(&id).await.unwrap();
    }
}

#[tokio::test]
async fn no_shell_reads_the_command() {
    let terminals = terminals();
    let mut create = shell("");
    create.program = "echo".into();
    create.args = vec!["$HOME; `id` | x".into(), "*".into()];
    let id = terminals.create(create).await.unwrap();
    wait(&terminals, &id).await;
    assert_eq!(terminals.output(&id).unwrap().text, "$HOME; `id` | x *\n");
    let mut create = shell("");
    create.program = "echo hello".into();
    let error = terminals.create(create).await.unwrap_err();
    assert!(matches!(error, TerminalError::Spawn(SpawnError::NotFound { .. })), "{error:?}");
}

#[tokio::test]
async fn output_is_there_while_the_command_runs() {
    let terminals = terminals();
    let id = terminals.create(shell("echo one; exec sleep 1000")).await.unwrap();
    assert_eq!(until(&terminals, &id, |text| !text.is_empty()).await, "one\n");
    terminals.kill(&id).await.unwrap();
    let output = terminals.output(&id).unwrap();
    assert_eq!((output.text.as_str(), output.exit), ("one\n", Some(killed("SIGTERM"))));
}

#[tokio::test]
async fn a_character_split_over_two_writes_stays_whole() {
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("fifo");
    let script =
        format!("mkfifo {0}; printf 'a\\360\\237'; read line < {0}; printf '\\230\\200b'", fifo.display());
    let terminals = terminals();
    let id = terminals.create(shell(&script)).await.unwrap();
    assert_eq!(until(&terminals, &id, |text| !text.is_empty()).await, "a");
    let go = tokio::task::spawn_blocking({
        let fifo = fifo.clone();
        move || {
            while !fifo.exists() {
                std::thread::yield_now();
            }
            fs::write(fifo, "go\n")
        }
    });
    go.await.unwrap().unwrap();
    wait(&terminals, &id).await;
    assert_eq!(terminals.output(&id).unwrap().text, "a😀b");
}

#[tokio::test]
async fn a_flood_of_output_is_read_and_its_end_kept() {
    let terminals = terminals();
    let create = |output_limit| Create { output_limit, ..shell("yes 0123456 | head -c 10000000; echo end") };
    let small = terminals.create(create(1000)).await.unwrap();
    let large = terminals.create(create(usize::MAX)).await.unwrap();
    for (id, length) in [(small, 1000), (large, Limits::default().output)] {
        assert_eq!(wait(&terminals, &id).await, exited(0));
        let output = terminals.output(&id).unwrap();
        assert_eq!((output.text.len(), output.truncated), (length, true));
        assert!(output.text.ends_with("0123456\nend\n"));
    }
    // A command that never ends must not block on its output either.
    let endless = terminals.create(shell("echo begin; exec yes")).await.unwrap();
    until(&terminals, &endless, |text| !text.contains("begin") && !text.is_empty()).await;
    timeout(TEST_TIMEOUT, terminals.release(&endless)).await.unwrap().unwrap();
}

#[tokio::test]
async fn kill_ends_the_whole_tree_and_keeps_the_terminal() {
    let terminals = terminals();
    let script = "
        trap '' TERM HUP
        sleep 1000 & echo $!
        setsid sh -c 'echo $$; exec sleep 1000' &
        (setsid sh -c 'echo $$; exec sleep 1000' &)
        echo $$; while :; do sleep 0.01; done";
    let id = terminals.create(shell(script)).await.unwrap();
    let text = until(&terminals, &id, |text| text.lines().count() == 4).await;
    let pids: Vec<String> = text.lines().map(str::to_owned).collect();
    assert!(pids.iter().all(|pid| runs(pid)), "{pids:?}");
    timeout(TEST_TIMEOUT, terminals.kill(&id)).await.unwrap().unwrap();
    // Checked at once, without waiting.
    assert!(!pids.iter().any(|pid| runs(pid)), "{pids:?}");
    let output = terminals.output(&id).unwrap();
    assert_eq!((output.text, output.exit), (text, Some(killed("SIGKILL"))));
    assert_eq!(wait(&terminals, &id).await, killed("SIGKILL"));
    // Killing an ended command changes nothing.
    terminals.kill(&id).await.unwrap();
    assert_eq!(wait(&terminals, &id).await, killed("SIGKILL"));
}

#[tokio::test]
async fn the_end_of_a_command_ends_its_children() {
    let terminals = terminals();
    let id = terminals.create(shell("setsid sleep 1000 & echo $!; exit 5")).await.unwrap();
    assert_eq!(wait(&terminals, &id).await, exited(5));
    let pid = terminals.output(&id).unwrap().text.trim().to_owned();
    assert!(!runs(&pid));
}

#[tokio::test]
async fn a_hundred_callers_can_wait() {
    let terminals = Arc::new(terminals());
    let id = terminals.create(shell("exec sleep 1000")).await.unwrap();
    let (arrived, count) = watch::channel(0);
    let waiting: Vec<_> = (0..100)
        .map(|_| {
            let (terminals, id, arrived) = (Arc::clone(&terminals), id.clone(), arrived.clone());
            tokio::spawn(async move {
                // On a runtime with one thread, no other task runs between this and the wait.
                arrived.send_modify(|count| *count += 1);
                terminals.wait(&id).await
            })
        })
        .collect();
    count.clone().wait_for(|count| *count == 100).await.unwrap();
    assert!(waiting.iter().all(|each| !each.is_finished()));
    // Callers get the exit even if the terminal is released meanwhile.
    terminals.release(&id).await.unwrap();
    for each in waiting {
        assert_eq!(timeout(TEST_TIMEOUT, each).await.unwrap().unwrap().unwrap(), killed("SIGTERM"));
    }
    is_unknown(&terminals.wait(&id).await);
}

#[tokio::test]
async fn a_released_terminal_is_unknown() {
    let terminals = terminals();
    let id = terminals.create(shell("echo $$; exec sleep 1000")).await.unwrap();
    let pid = until(&terminals, &id, |text| text.ends_with('\n')).await.trim().to_owned();
    terminals.release(&id).await.unwrap();
    assert!(!runs(&pid));
    is_unknown(&terminals.output(&id));
    is_unknown(&terminals.wait(&id).await);
    is_unknown(&terminals.kill(&id).await);
    is_unknown(&terminals.release(&id).await);
    is_unknown(&terminals.output("term-0"));
}

#[tokio::test]
async fn an_abandoned_release_completes() {
    let terminals = terminals();
    let id = terminals.create(shell("trap '' TERM; echo $$; while :; do sleep 0.01; done")).await.unwrap();
    let pid = until(&terminals, &id, |text| text.ends_with('\n')).await.trim().to_owned();
    assert!(timeout(Duration::ZERO, terminals.release(&id)).await.is_err());
    is_unknown(&terminals.output(&id));
    until_dead(&[pid]).await;
}

#[tokio::test]
async fn the_number_of_terminals_is_limited() {
    let terminals = Terminals::new(Limits { max: 2, ..Limits::default() });
    let first = terminals.create(shell("exec sleep 1000")).await.unwrap();
    // A terminal whose command has ended still counts, because it keeps its output.
    let second = terminals.create(shell("exit")).await.unwrap();
    wait(&terminals, &second).await;
    let error = terminals.create(shell("exit")).await.unwrap_err();
    assert!(matches!(error, TerminalError::TooMany { max: 2 }), "{error:?}");
    terminals.release(&first).await.unwrap();
    // A command that fails to start does not count.
    let nowhere = Create { cwd: "/no/such/directory".into(), ..shell("exit") };
    let error = terminals.create(nowhere).await.unwrap_err();
    assert!(matches!(error, TerminalError::Spawn(SpawnError::Cwd { .. })), "{error:?}");
    terminals.create(shell("exit")).await.unwrap();
}

#[tokio::test]
async fn all_are_released_together() {
    let terminals = terminals();
    let mut pids = Vec::new();
    for _ in 0..4 {
        // Each kill takes its grace period. One after the other would take four times as long.
        let script = "trap '' TERM; echo $$; while :; do sleep 0.01; done";
        let id = terminals.create(shell(script)).await.unwrap();
        pids.push(until(&terminals, &id, |text| text.ends_with('\n')).await.trim().to_owned());
    }
    // Releases a terminal that is still starting.
    let late = terminals.create(shell("exec sleep 1000"));
    let (late, ()) = tokio::join!(late, terminals.release_all());
    assert!(matches!(late, Err(TerminalError::Released)), "{late:?}");
    assert!(!pids.iter().any(|pid| runs(pid)), "{pids:?}");
    // New terminals can be created.
    terminals.create(shell("exit")).await.unwrap();
}

#[tokio::test]
async fn commands_end_with_the_terminals() {
    let terminals = terminals();
    let id = terminals.create(shell("setsid sleep 1000 & echo $!; echo $$; exec sleep 1000")).await.unwrap();
    let text = until(&terminals, &id, |text| text.lines().count() == 2).await;
    let pids: Vec<String> = text.lines().map(str::to_owned).collect();
    drop(terminals);
    until_dead(&pids).await;
}

#[test]
fn commands_end_with_the_runtime() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let terminals = terminals();
    let pid = runtime.block_on(async {
        let id = terminals.create(shell("echo $$; exec sleep 1000")).await.unwrap();
        until(&terminals, &id, |text| text.ends_with('\n')).await.trim().to_owned()
    });
    drop(runtime);
    drop(terminals);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(until_dead(&[pid]));
}

#[tokio::test]
async fn a_sandbox_confines_a_command() {
    let support = Sandbox::support().await;
    let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let place = root.path().canonicalize().unwrap();
    let script = format!("echo in > inside; echo out > {}/file; echo done", outside.path().display());
    let create = Create {
        cwd: root.path().to_owned(),
        sandbox: Some(Sandbox { writable: vec![place], ..Sandbox::new(support.clone()) }),
        ..shell(&script)
    };
    let terminals = terminals();
    let outcome = terminals.create(create).await;
    let written = |path: &Path| fs::read_to_string(path).ok();
    if support.confined().files {
        let id = outcome.unwrap();
        assert_eq!(wait(&terminals, &id).await, exited(0));
        assert_eq!(written(&root.path().join("inside")).as_deref(), Some("in\n"));
        assert!(terminals.output(&id).unwrap().text.ends_with("done\n"));
    } else {
        assert!(matches!(outcome, Err(TerminalError::Spawn(SpawnError::NoSandbox { .. }))), "{outcome:?}");
        assert_eq!(written(&root.path().join("inside")), None);
    }
    assert_eq!(written(&outside.path().join("file")), None);
}
