//! Tests of the permissions of a sandboxed tree, and that its guardian still ends the tree.
#![expect(clippy::unwrap_used, reason = "what goes wrong in a role or a helper fails the test")]
#![expect(clippy::print_stderr, reason = "a test that cannot be run here says so")]

#[path = "common/cage.rs"]
mod cage;
mod common;

use std::fs;
use std::io::Write;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use cage::{LAUNCHER, confined, copy_itself, directory, has_pid_namespace, launches, mechanisms, output};
use common::{
    HOSTILE, HOSTILE_COUNT, Mark, QUICK, STEP_TIMEOUT, eventually, exists, read_all, read_until, state,
};
use narrows_process::{CwdLinks, ExitClass, Sandbox, SpawnError, Spec, Support, spawn};
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::timeout;

const ROLE: &str = "NARROWS_TEST_ROLE";

/// Runs the role that the environment names; passes at once if there is none.
#[test]
fn role() {
    let Some(role) = std::env::var_os(ROLE) else { return };
    let role = role.into_string().unwrap();
    match role.split(' ').collect::<Vec<_>>()[..] {
        [tcp, udp, unix] => reach(tcp, udp, unix),
        ["probe"] => probe(),
        [depth] => nest(depth.parse().unwrap()),
        _ => panic!("unknown role {role}"),
    }
}

fn reach(tcp: &str, udp: &str, unix: &str) {
    let mut lines = String::from("\n");
    let mut say = |name: &str, worked: bool| lines.push_str(&format!("@{name} {worked}\n"));
    say("tcp", TcpStream::connect(tcp).is_ok());
    let sent = UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.send_to(b"x", udp));
    say("udp", sent.is_ok());
    say("listen", TcpListener::bind("127.0.0.1:0").is_ok());
    say("unix", UnixStream::connect(unix).is_ok());
    say("pair", UnixStream::pair().is_ok());
    std::io::stdout().write_all(lines.as_bytes()).unwrap();
}

fn probe() {
    tracing::subscriber::set_global_default(Warnings).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let support = runtime.block_on(Support::namespaces());
    std::io::stdout().write_all(format!("\n@{support}\n").as_bytes()).unwrap();
}

struct Warnings;

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        std::io::stdout().write_all(format!("\n@warning {event:?}\n").as_bytes()).unwrap();
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

fn nest(depth: u32) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let text = runtime.block_on(async {
        let mut spec = itself(&std::env::current_exe().unwrap(), &(depth + 1).to_string());
        let mut sandbox = Sandbox::new(Support::landlock());
        sandbox.temp = std::env::temp_dir();
        sandbox.writable = vec![std::env::temp_dir()];
        spec.sandbox = Some(sandbox);
        match spawn(spec).await {
            Ok(mut child) => {
                let text = read_all(&mut child).await;
                child.wait().await;
                text
            }
            Err(error) => format!("\n@{depth} {error:?}\n"),
        }
    });
    std::io::stdout().write_all(text.as_bytes()).unwrap();
}

fn itself(program: &Path, role: &str) -> Spec {
    let mut spec = Spec::new(program);
    spec.args = ["--exact", "role", "--nocapture"].map(Into::into).to_vec();
    spec.env.set(ROLE, role);
    spec
}

fn said(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix('@')).collect();
    lines.join(", ")
}

#[tokio::test]
async fn support_is_described_correctly() {
    let support = Sandbox::support().await;
    let usable = mechanisms().await;
    assert!(!support.confined().files || usable.contains(&support) || std::env::var_os(LAUNCHER).is_some());
    let missing = Support::bubblewrap_at("/no/such/launcher").await;
    assert_eq!(missing.confined(), narrows_process::Confined::default());
    let told = missing.to_string();
    assert!(told.starts_with("bubblewrap does not work here (cannot execute /no/such/launcher: "), "{told}");
}

/// Checked with a sandbox of every kind, and without one.
#[tokio::test]
async fn a_working_directory_that_became_a_link_is_refused() {
    let sandboxes = mechanisms().await.into_iter().map(Some).chain([None]);
    for support in sandboxes {
        let (root, outside) = (directory(), directory());
        let at = root.path().join("a/b");
        let start = |links: CwdLinks| {
            let mark = Mark::new();
            let mut spec = match &support {
                Some(support) => confined(support, &mark, root.path(), "pwd -P"),
                None => mark.shell("pwd -P"),
            };
            spec.cwd = Some(at.clone());
            spec.cwd_links = links;
            spec
        };
        fs::create_dir_all(&at).unwrap();
        for links in [CwdLinks::Refuse, CwdLinks::Follow] {
            assert_eq!(output(start(links)).await.trim_end(), at.to_str().unwrap(), "{support:?}");
        }
        fs::rename(root.path().join("a"), root.path().join("c")).unwrap();
        std::os::unix::fs::symlink(outside.path(), root.path().join("a")).unwrap();
        fs::create_dir(outside.path().join("b")).unwrap();
        let error = spawn(start(CwdLinks::Refuse)).await.unwrap_err();
        assert!(matches!(&error, SpawnError::Cwd { path, .. } if *path == at), "{support:?}: {error:?}");
        let followed = outside.path().join("b");
        assert_eq!(output(start(CwdLinks::Follow)).await.trim_end(), followed.to_str().unwrap());
    }
}

#[tokio::test]
async fn only_the_writable_path_is_writable() {
    for support in mechanisms().await {
        let (root, outside) = (directory(), directory());
        let precious = outside.path().join("precious");
        fs::write(&precious, "precious").unwrap();
        fs::create_dir(outside.path().join("empty")).unwrap();
        let out = outside.path().display();
        let inside = "
            set -e
            mkdir -p a/b; echo one > a/b/file; mv a/b/file a/moved; ln a/moved a/linked; ln -s moved a/soft
            echo two >> a/soft; chmod 600 a/moved; rm a/linked; rmdir a/b; cat a/moved
            echo three > /dev/null; echo four > /dev/stdout; cat /proc/self/comm; ls / > list; test -s list";
        let text = output(confined(&support, &Mark::new(), root.path(), inside)).await;
        assert_eq!(text, "one\ntwo\nfour\ncat\n", "{support}");

        let attempts = [
            format!("echo x > {out}/new"),
            format!("echo x >> {out}/precious"),
            format!(": > {out}/precious"),
            format!("truncate -s 0 {out}/precious"),
            format!("rm {out}/precious"),
            format!("mv {out}/precious ."),
            format!("mv {out}/precious {out}/renamed"),
            format!("rmdir {out}/empty"),
            format!("mkdir {out}/other"),
            format!("ln {out}/precious here && echo x > here"),
            format!("ln -s {out} link && echo x > link/new"),
            format!("touch mine; mv mine {out}/mine"),
            "echo x > /etc/narrows-test".to_owned(),
            format!("cat /proc/{}/environ", std::process::id()),
            "mkdir m && mount -t tmpfs none m".to_owned(),
            "mknod disk b 8 0".to_owned(),
            "mknod null c 1 3 && echo x > null".to_owned(),
        ];
        for attempt in attempts {
            let script = format!("if ({attempt}) 2>/dev/null; then echo escaped; else echo held; fi");
            let text = output(confined(&support, &Mark::new(), root.path(), &script)).await;
            assert_eq!(text, "held\n", "{support}: {attempt}");
        }
        // If a command replaces a path by a link to the outside, that path is not writable for the next
        // command.
        let mut spec = confined(&support, &Mark::new(), root.path(), "rm -rf inner; ln -s / inner");
        output(spec.clone()).await;
        spec.args = vec!["-c".into(), format!("echo x > {out}/new || echo held").into()];
        let inner = root.path().join("inner");
        spec.sandbox.as_mut().unwrap().writable.push(inner);
        assert!(output(spec).await.ends_with("held\n"), "{support}");

        assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
        let mut left: Vec<_> =
            fs::read_dir(outside.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["empty", "precious"]);
    }
}

#[tokio::test]
async fn files_outside_the_writable_path_can_be_read() {
    for support in mechanisms().await {
        let (root, outside) = (directory(), directory());
        fs::write(outside.path().join("text"), "text").unwrap();
        // If all of /tmp is hidden, the directory of this test is hidden too.
        if launches(&support) && outside.path().starts_with("/tmp") {
            continue;
        }
        let script = format!("cat {}/text", outside.path().display());
        assert_eq!(output(confined(&support, &Mark::new(), root.path(), &script)).await, "text");
    }
}

#[tokio::test]
async fn the_temporary_directory_is_its_own_and_goes_with_the_tree() {
    for support in mechanisms().await {
        let (root, temp) = (directory(), directory());
        let spec = |script: &str| {
            let mut spec = confined(&support, &Mark::new(), root.path(), script);
            spec.env.extend([("TMPDIR", "/nonexistent"), ("TEMP", "/nonexistent")]);
            spec.sandbox.as_mut().unwrap().temp = temp.path().to_owned();
            spec
        };
        let name = Mark::new();
        let name = name.text();
        let script = format!(
            "test $TMPDIR = $TEMP && cd $TMPDIR && mkdir -p {name}/b && echo x > {name}/b/c && cat {name}/b/c && pwd"
        );
        let text = output(spec(&script)).await;
        let path = PathBuf::from(text.strip_prefix("x\n").unwrap().trim());
        assert!(path.starts_with(temp.path().canonicalize().unwrap()) || path == Path::new("/tmp"), "{text}");
        assert!(!path.join(name).exists(), "{support}");
        // A dropped handle has the same effect.
        let mut child = spawn(spec("echo x > $TMPDIR/y; echo ready; exec sleep 1000")).await.unwrap();
        read_until(&mut child.take_stdout().unwrap(), "ready\n").await;
        drop(child);
        let empty = || fs::read_dir(temp.path()).unwrap().next().is_none();
        while !empty() {
            tokio::time::sleep(Duration::from_millis(5)).await; // sleep: polls the directory
        }
    }
}

#[tokio::test]
async fn the_network_is_available_only_if_allowed() {
    for support in mechanisms().await {
        let root = directory();
        let program = root.path().join("program");
        fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        // The socket has a short path within a writable directory, but would still lead out of the sandbox.
        let socket = root.path().join("socket");
        let _unix = UnixListener::bind(&socket).unwrap();
        let role =
            format!("{} {} {}", tcp.local_addr().unwrap(), udp.local_addr().unwrap(), socket.display());
        let attempt = async |network: Option<bool>| {
            let sandbox = confined(&support, &Mark::new(), root.path(), "").sandbox.unwrap();
            let sandbox = network.map(|network| Sandbox { network, ..sandbox });
            let cwd = Some(root.path().to_owned());
            said(&output(Spec { sandbox, cwd, ..itself(&program, &role) }).await)
        };
        assert_eq!(attempt(None).await, "tcp true, udp true, listen true, unix true, pair true");
        assert_eq!(
            attempt(Some(true)).await,
            "tcp true, udp true, listen true, unix false, pair true",
            "{support}"
        );
        udp.set_nonblocking(true).unwrap();
        while udp.recv(&mut [0; 8]).is_ok() {}
        let text = attempt(Some(false)).await;
        assert!(
            text.starts_with("tcp false") && text.ends_with("unix false, pair true"),
            "{support}: {text}"
        );
        assert!(udp.recv(&mut [0; 8]).is_err(), "{support}: nothing has arrived");
    }
}

#[tokio::test]
async fn the_guardian_cannot_be_signalled_from_inside() {
    for support in mechanisms().await {
        if !support.confined().guardian {
            continue;
        }
        let (root, mark) = (directory(), Mark::new());
        let plain = mark.shell("kill -0 $PPID && echo reached");
        assert_eq!(output(plain).await, "reached\n");
        // The guardian is killed by its number, because inside, the parent may be another process.
        let mut spec = confined(&support, &mark, root.path(), "read pid; kill -KILL $pid $PPID || echo held");
        spec.merge_stderr = false;
        let mut child = spawn(spec).await.unwrap();
        let mut stdin = child.take_stdin().unwrap();
        let line = format!("{}\n", child.guardian_pid());
        tokio::io::AsyncWriteExt::write_all(&mut stdin, line.as_bytes()).await.unwrap();
        assert_eq!(read_all(&mut child).await, "held\n", "{support}");
        let exit = timeout(STEP_TIMEOUT, child.wait()).await.unwrap();
        assert_eq!(exit.class, ExitClass::Clean, "{support}");
    }
}

#[tokio::test]
async fn a_sandboxed_tree_ends_like_any_other() {
    for support in mechanisms().await {
        let (root, mark) = (directory(), Mark::new());
        let start = async || {
            let mut child = spawn(confined(&support, &mark, root.path(), HOSTILE)).await.unwrap();
            read_until(&mut child.take_stdout().unwrap(), "ready\n").await;
            // A launcher's own processes carry no mark.
            eventually("the tree is complete", || mark.sleeps(HOSTILE_COUNT));
            child
        };
        let child = start().await;
        let exit = timeout(STEP_TIMEOUT, child.stop(QUICK)).await.unwrap();
        assert_eq!(mark.alive(), [], "{support}");
        assert_eq!((exit.class, exit.survivors), (ExitClass::Stopped, 0), "{support}");
        assert!(!exists(child.guardian_pid()));

        // The worker dies with its guardian: it keeps its parent-death signal in the sandbox. The watcher
        // cannot end the worker here, because it does not run while this test does not wait.
        let child = start().await;
        kill_process(Pid::from_raw(child.guardian_pid().cast_signed()).unwrap(), Signal::KILL).unwrap();
        eventually("the worker is dead", || matches!(state(child.pid()), None | Some('Z')));
        let exit = timeout(STEP_TIMEOUT, child.wait()).await.unwrap();
        assert_eq!(exit.class, ExitClass::Lost, "{support}");
        if has_pid_namespace(&support) {
            // The whole tree ends with its namespace.
            eventually("the tree is gone", || mark.alive().is_empty());
        }
        // Processes that had left the session were adopted by init, so this test ends them.
        for pid in mark.alive() {
            _ = kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::KILL);
        }
    }
}

#[tokio::test]
async fn a_sandboxed_worker_gains_no_privileges_and_inherits_nothing() {
    for support in mechanisms().await {
        let root = directory();
        let script = "
            grep -E '^(NoNewPrivs|Seccomp):' /proc/self/status | tr -d '\\t\\n'; echo
            ls /proc/self/fd | tr '\\n' ' '; echo
            grep '^CapEff:' /proc/self/status | tr -d '\\t'";
        let text = output(confined(&support, &Mark::new(), root.path(), script)).await;
        let (fixed, capabilities) = text.trim().rsplit_once("\nCapEff:").unwrap();
        assert_eq!(fixed, "NoNewPrivs:1Seccomp:2\n0 1 2 3 ", "{support}");
        let beyond = u64::from_str_radix(capabilities, 16).unwrap() & !0b1_1011;
        assert_eq!(beyond, 0, "{support}: {capabilities}");
    }
}

#[tokio::test]
async fn a_launcher_sees_nothing_of_the_environment() {
    for support in mechanisms().await.into_iter().filter(launches) {
        let root = directory();
        let mut spec =
            confined(&support, &Mark::new(), root.path(), "echo $SECRET $LD_PRELOAD; exec sleep 1000");
        spec.env.extend([("SECRET", "hunter2"), ("LD_PRELOAD", "/no/such/library")]);
        // The loader prints a warning whenever that library is requested.
        spec.merge_stderr = false;
        let mut child = spawn(spec).await.unwrap();
        read_until(&mut child.take_stdout().unwrap(), "hunter2 /no/such/library\n").await;
        let of = |name: &str| fs::read_to_string(format!("/proc/{}/{name}", child.pid())).unwrap();
        assert_eq!(of("environ"), "");
        assert!(of("cmdline").starts_with("bwrap\0--args\0") && !of("cmdline").contains("hunter2"));
        child.stop(QUICK).await;
        let mut spec = confined(&support, &Mark::new(), root.path(), "exit");
        spec.env.set("A", "x\0--bind\0/\0/");
        assert!(matches!(spawn(spec).await.unwrap_err(), SpawnError::Invalid { .. }));
    }
}

/// The search runs inside bubblewrap, where no user namespace can be created.
#[tokio::test]
async fn searching_for_an_unavailable_sandbox_logs_no_warning() {
    for support in mechanisms().await.into_iter().filter(launches) {
        let root = directory();
        let mut spec = itself(&copy_itself(root.path()), "probe");
        spec.cwd = Some(root.path().to_owned());
        spec.sandbox = Some(Sandbox::new(support));
        let text = said(&output(spec).await);
        assert!(text.starts_with("mount namespaces are unavailable ("), "{text}");
        assert!(!text.contains("warning"), "{text}");
    }
}

#[tokio::test]
async fn many_protected_files_work_and_too_many_arguments_are_an_error() {
    for support in mechanisms().await {
        let root = directory();
        let files: Vec<PathBuf> = (0..4000).map(|number| root.path().join(format!("f{number}"))).collect();
        for file in &files {
            fs::write(file, "").unwrap();
        }
        let mut spec = confined(&support, &Mark::new(), root.path(), "echo $#");
        spec.sandbox.as_mut().unwrap().protected = files;
        assert_eq!(output(spec.clone()).await, "0\n", "{support}");
        spec.args.extend((0..8500).map(|_| "x".into()));
        assert_eq!(output(spec.clone()).await, "8499\n", "{support}");
        spec.args.extend((0..500).map(|_| "x".into()));
        match launches(&support) {
            true => {
                let error = spawn(spec).await.unwrap_err();
                assert!(matches!(&error, SpawnError::Sandbox { .. }), "{error:?}");
            }
            false => assert_eq!(output(spec).await, "8999\n", "{support}"),
        }
    }
}

#[tokio::test]
async fn an_unavailable_sandbox_is_an_error() {
    let root = directory();
    let none = Support::bubblewrap_at("/no/such/launcher").await;
    let spec = confined(&none, &Mark::new(), root.path(), "touch ran");
    let error = spawn(spec).await.unwrap_err();
    assert!(matches!(&error, SpawnError::NoSandbox { .. }), "{error:?}");
    for support in mechanisms().await {
        let mut spec = confined(&support, &Mark::new(), root.path(), "touch ran");
        let missing = PathBuf::from("/no/such/directory");
        spec.sandbox.as_mut().unwrap().writable.push(missing.clone());
        let error = spawn(spec).await.unwrap_err();
        assert!(matches!(&error, SpawnError::SandboxPlace { path, .. } if *path == missing), "{error:?}");
    }
    assert!(!root.path().join("ran").exists());
}

/// Errors that only the worker can detect are reported, and nothing runs without its sandbox. The kernel
/// permits sixteen nested sandboxes.
#[tokio::test]
async fn a_sandbox_works_within_a_sandbox_until_there_are_too_many() {
    let support = Support::landlock();
    if !support.confined().files {
        eprintln!("not tried: {support}");
        return;
    }
    let text = said(&output(itself(&std::env::current_exe().unwrap(), "0")).await);
    assert!(text.starts_with("16 Sandbox { action: \"apply the sandbox to the worker\""), "{text}");
}

#[tokio::test]
async fn an_unusable_program_is_an_error_inside_as_outside() {
    let support = Support::landlock();
    if !support.confined().files {
        eprintln!("not tried: {support}");
        return;
    }
    let root = directory();
    let broken = root.path().join("broken");
    fs::write(&broken, "#!/no/such/interpreter\n").unwrap();
    fs::set_permissions(&broken, fs::Permissions::from_mode(0o755)).unwrap();
    let mut spec = confined(&support, &Mark::new(), root.path(), "");
    spec.program = broken.clone().into();
    let error = spawn(spec).await.unwrap_err();
    assert!(matches!(&error, SpawnError::Exec { path, .. } if *path == broken), "{error:?}");
}

#[tokio::test]
async fn programs_create_processes_and_threads_but_no_user_namespaces() {
    let root = directory();
    for support in mechanisms().await {
        let script = r#"unshare --user true 2>/dev/null && echo created
            (echo forked) | cat
            code='import subprocess, threading
threading.Thread(target=lambda: subprocess.run(["echo", "threads"])).start()'
            if command -v python3 >/dev/null; then python3 -c "$code"; else echo threads; fi"#;
        let text = output(confined(&support, &Mark::new(), root.path(), script)).await;
        assert_eq!(text, "forked\nthreads\n", "{support}");
    }
}
