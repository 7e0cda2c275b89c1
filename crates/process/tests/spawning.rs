//! Tests of the environment of a worker, and of failures to start it.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use common::{Mark, STEP_TIMEOUT, eventually, read_all, read_until};
use narrows_process::{Environment, ExitClass, Ladder, SpawnError, Spec, spawn};
use tokio::io::AsyncWriteExt;

#[tokio::test]
async fn the_environment_is_what_was_given_and_nothing_else() {
    let mut spec = Spec::new("env");
    spec.env = Environment::empty();
    spec.env.extend([("PATH", "/usr/bin:/bin"), ("ONE", "1"), ("TWO", "=2=")]);
    let mut child = spawn(spec).await.unwrap();
    let text = read_all(&mut child).await;
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["ONE=1", "PATH=/usr/bin:/bin", "TWO==2="]);
    assert_eq!(child.wait().await.class, ExitClass::Clean);
}

#[tokio::test]
async fn arguments_and_directory_arrive_untouched() {
    let dir = tempfile::tempdir().unwrap();
    let mut spec = Mark::new().shell(r#"pwd -P; printf '<%s>' "$@""#);
    spec.args.extend(["zero", "a b", "$(id)", "", "*", "--x;y"].map(Into::into));
    spec.cwd = Some(dir.path().to_owned());
    let text = read_all(&mut spawn(spec).await.unwrap()).await;
    let expected = format!("{}\n<a b><$(id)><><*><--x;y>", dir.path().canonicalize().unwrap().display());
    assert_eq!(text, expected);
}

#[tokio::test]
async fn the_worker_has_three_blocking_descriptors() {
    // A descriptor that a worker would inherit without special care.
    let inheritable = rustix::io::dup(fs::File::open("/dev/null").unwrap()).unwrap();
    let script =
        "read line; ls /proc/self/fd; cat /proc/self/fdinfo/0 /proc/self/fdinfo/1 /proc/self/fdinfo/2";
    let mut child = spawn(Mark::new().shell(script)).await.unwrap();
    // The end in this process is already non-blocking, which must not affect the other end.
    child.take_stdin().unwrap().write_all(b"x\n").await.unwrap();
    let text = read_all(&mut child).await;
    // The fourth descriptor is the directory that `ls` has open.
    assert!(text.starts_with("0\n1\n2\n3\npos:"), "{text}");
    let flags: Vec<u32> = text
        .lines()
        .filter_map(|line| Some(u32::from_str_radix(line.strip_prefix("flags:")?.trim(), 8).unwrap()))
        .collect();
    assert_eq!(flags, [0o0, 0o1, 0o1], "read, write and write only, all of them blocking");
    drop(inheritable);
}

#[tokio::test]
async fn the_descriptor_limit_is_applied() {
    for (descriptors, expected) in [(Some(77), "77"), (None, "")] {
        let mut spec = Mark::new().shell("ulimit -S -n; ulimit -H -n");
        spec.descriptors = descriptors;
        let text = read_all(&mut spawn(spec).await.unwrap()).await;
        let ours = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let show = |limit: Option<u64>| limit.map_or("unlimited".to_owned(), |limit| limit.to_string());
        let soft = if expected.is_empty() { show(ours.current) } else { expected.to_owned() };
        assert_eq!(text, format!("{soft}\n{}\n", show(ours.maximum)));
    }
}

#[tokio::test]
async fn a_worker_has_default_signals_and_its_own_group() {
    narrows_process::ignore_file_size_signal();
    let script = "grep -E '^Sig(Blk|Ign)' /proc/self/status; cut -d' ' -f 5,6 /proc/$$/stat";
    let mut child = spawn(Mark::new().shell(script)).await.unwrap();
    let (pid, guardian) = (child.pid(), child.guardian_pid());
    let text = read_all(&mut child).await;
    // Rust programs ignore SIGPIPE, and this one also SIGXFSZ, so SigIgn is empty only because of the
    // reset.
    let none = "0000000000000000";
    assert_eq!(text, format!("SigBlk:\t{none}\nSigIgn:\t{none}\n{pid} {guardian}\n"));
}

#[tokio::test]
async fn input_reaches_the_worker_and_its_end_ends_it() {
    let mut child = spawn(Mark::new().shell("exec cat")).await.unwrap();
    let (mut stdin, mut stdout) = (child.take_stdin().unwrap(), child.take_stdout().unwrap());
    stdin.write_all(b"hello\n").await.unwrap();
    assert_eq!(read_until(&mut stdout, "\n").await, "hello\n");
    assert!(child.take_stdin().is_none() && child.take_stdout().is_none());
    assert!(child.try_wait().is_none());
    drop(stdin);
    let exit = child.wait().await;
    assert_eq!((exit.class, exit.code, exit.swept), (ExitClass::Clean, Some(0), 0));
    assert_eq!(child.wait().await, exit, "it can be asked again");
    assert_eq!((child.try_wait(), child.worker_ended().await), (Some(exit), exit));
}

#[tokio::test]
async fn missing_programs_and_directories_are_distinguished() {
    let dir = tempfile::tempdir().unwrap();
    let plain = dir.path().join("plain");
    fs::write(&plain, "#!/bin/sh\n").unwrap();
    fs::set_permissions(&plain, fs::Permissions::from_mode(0o644)).unwrap();

    let error = spawn(Spec::new("no-such-program")).await.unwrap_err();
    assert!(matches!(error, SpawnError::NotFound { searched: Some(_), .. }), "{error:?}");
    let error = spawn(Spec::new("/no/such/program")).await.unwrap_err();
    assert!(matches!(error, SpawnError::NotFound { searched: None, .. }), "{error:?}");
    assert_eq!(error.to_string(), r#"program "/no/such/program" not found"#);
    let error = spawn(Spec::new(&plain)).await.unwrap_err();
    assert!(matches!(error, SpawnError::NotExecutable { path } if path == plain));
    let error = spawn(Spec::new(dir.path())).await.unwrap_err();
    assert!(matches!(error, SpawnError::IsDirectory { path } if path == dir.path()));
    let mut spec = Spec::new("sh");
    spec.cwd = Some(dir.path().join("missing"));
    let error = spawn(spec).await.unwrap_err();
    assert!(matches!(error, SpawnError::Cwd { path, .. } if path == dir.path().join("missing")));
    let mut spec = Spec::new("sh");
    spec.args.push("nul\0".into());
    assert!(matches!(spawn(spec).await.unwrap_err(), SpawnError::Invalid { what: "an argument" }));
    let mut spec = Spec::new("sh");
    spec.env.set("A=B", "C");
    assert!(matches!(spawn(spec).await.unwrap_err(), SpawnError::Invalid { .. }));
}

/// Errors that only the kernel detects are reported through the fork as errors, not as status 127.
#[tokio::test]
async fn a_failed_exec_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let broken = dir.path().join("broken");
    for contents in ["#!/no/such/interpreter\n", "neither script nor binary"] {
        fs::write(&broken, contents).unwrap();
        fs::set_permissions(&broken, fs::Permissions::from_mode(0o755)).unwrap();
        let error = spawn(Spec::new(&broken)).await.unwrap_err();
        assert!(matches!(&error, SpawnError::Exec { path, .. } if *path == broken), "{error:?}");
    }
}

#[tokio::test]
async fn exits_are_classified() {
    let cases = [
        ("exit 0", ExitClass::Clean, Some(0), None, "exited with status 0"),
        ("exit 3", ExitClass::Failed, Some(3), None, "exited with status 3"),
        ("kill -SEGV $$", ExitClass::Crashed, None, Some(11), "killed by SIGSEGV"),
        ("kill -TERM $$", ExitClass::Crashed, None, Some(15), "killed by SIGTERM"),
        ("kill -KILL $$", ExitClass::Crashed, None, Some(9), "killed by SIGKILL"),
    ];
    for (script, class, code, signal, words) in cases {
        let exit = spawn(Mark::new().shell(script)).await.unwrap().wait().await;
        assert_eq!((exit.class, exit.code, exit.signal, exit.swept), (class, code, signal, 0), "{script}");
        assert_eq!(exit.to_string(), words);
    }
}

#[tokio::test]
async fn a_stop_uses_only_the_steps_it_needs() {
    let long = Duration::from_secs(60);
    let patient = Ladder { eof_grace: long, term_grace: long };
    let impatient = Ladder { eof_grace: Duration::ZERO, term_grace: long };
    let hasty = Ladder { eof_grace: Duration::ZERO, term_grace: Duration::ZERO };
    let ready_then = |script: &str| format!("echo ready; {script}");
    let cases = [
        (ready_then("cat; exit 7"), patient, Some(7), None),
        (ready_then("exec sleep 1000"), impatient, None, Some(15)),
        ("trap 'exit 9' TERM; echo ready; while :; do sleep 0.01; done".into(), impatient, Some(9), None),
        ("trap '' TERM; echo ready; while :; do sleep 0.01; done".into(), hasty, None, Some(9)),
    ];
    for (script, ladder, code, signal) in cases {
        let mark = Mark::new();
        let mut child = spawn(mark.shell(&script)).await.unwrap();
        let mut stdout = child.take_stdout().unwrap();
        read_until(&mut stdout, "ready\n").await;
        let exit = tokio::time::timeout(STEP_TIMEOUT, child.stop(ladder)).await.unwrap();
        assert_eq!((exit.class, exit.code, exit.signal), (ExitClass::Stopped, code, signal), "{script}");
        assert_eq!(mark.alive(), [], "{script}");
    }
}

#[tokio::test]
async fn a_stopped_process_still_handles_sigterm() {
    let child = spawn(Mark::new().shell("kill -STOP $$; exec sleep 1000")).await.unwrap();
    let stat = format!("/proc/{}/stat", child.pid());
    eventually("it is stopped", || fs::read_to_string(&stat).unwrap().contains(") T "));
    let ladder = Ladder { eof_grace: Duration::ZERO, term_grace: Duration::from_secs(60) };
    let exit = tokio::time::timeout(STEP_TIMEOUT, child.stop(ladder)).await.unwrap();
    assert_eq!((exit.class, exit.signal), (ExitClass::Stopped, Some(15)));
}

#[tokio::test]
async fn stderr_is_drained_kept_short_and_complete_at_the_end() {
    let mut spec =
        Mark::new().shell("yes 0123456 | head -c 100000000 >&2; printf 'the \\033[1mend' >&2; exit 1");
    spec.stderr_limit = 4096;
    let child = spawn(spec).await.unwrap();
    let tail = child.stderr();
    let exit = tokio::time::timeout(STEP_TIMEOUT, child.wait()).await.unwrap();
    assert_eq!(exit.class, ExitClass::Failed);
    assert_eq!(tail.bytes_seen(), 100_000_000 + 11);
    assert_eq!(tail.tail(2), "0123456\nthe \\u{1b}[1mend");
    assert!(tail.tail(usize::MAX).len() < 4096 + 16);
}

/// An error that quotes stderr must not lose the last lines to a race.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_stderr_is_available_when_the_end_is_known() {
    for _ in 0..40 {
        let script = "yes 0123456 | head -c 60000 >&2; echo 'last words' >&2; exit 1";
        let child = spawn(Mark::new().shell(script)).await.unwrap();
        child.wait().await;
        assert_eq!(child.stderr().tail(1), "last words");
    }
}

#[tokio::test]
async fn merged_output_is_in_order() {
    let script = "for i in 1 2 3 4 5; do echo out $i; echo err $i >&2; done; exec 2>&-; echo end";
    let mut spec = Mark::new().shell(script);
    spec.merge_stderr = true;
    let mut child = spawn(spec).await.unwrap();
    let text = read_all(&mut child).await;
    let expected: String = (1..=5).map(|i| format!("out {i}\nerr {i}\n")).collect();
    assert_eq!(text, expected + "end\n");
    assert_eq!(child.wait().await.class, ExitClass::Clean);
    assert_eq!((child.stderr().tail(9).as_str(), child.stderr().bytes_seen()), ("", 0));
}
