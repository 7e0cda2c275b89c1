//! Tests of the view of a tree with a private root, and of its gateway as the only network path.
#![expect(clippy::unwrap_used, reason = "what goes wrong in a role or a helper fails the test")]
#![expect(clippy::print_stderr, reason = "a test that cannot be run here says so")]

#[path = "common/cage.rs"]
mod cage;
mod common;

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::time::Duration;

use cage::{as_nobody, copy_itself, directory, has_pid_namespace, launches, mechanisms, output};
use common::{Mark, QUICK, STEP_TIMEOUT, read_all, read_until};
use narrows_process::{ExitClass, Mount, Sandbox, SpawnError, Spec, Support, spawn};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

const ROLE: &str = "NARROWS_TEST_ROLE";

async fn viewers() -> Vec<Support> {
    mechanisms().await.into_iter().filter(|support| support.confined().view).collect()
}

/// Returns a script in a view. It runs in the first of the mounts.
fn seeing(support: &Support, mounts: Vec<Mount>, script: &str) -> Spec {
    let mut spec = Mark::new().shell(script);
    spec.cwd = mounts.first().map(|mount| mount.source.clone());
    spec.merge_stderr = true;
    spec.sandbox = Some(Sandbox { view: Some(mounts), ..Sandbox::new(support.clone()) });
    spec
}

fn at(source: &Path, at: &str, writable: bool) -> Mount {
    Mount { source: source.to_owned(), at: at.into(), writable }
}

#[tokio::test]
async fn mounts_have_their_paths_and_permissions() {
    for support in viewers().await.into_iter().filter(|support| !launches(support)) {
        let root = directory();
        let top = root.path();
        fs::create_dir_all(top.join("docs")).unwrap();
        fs::create_dir_all(top.join("keep/log")).unwrap();
        fs::write(top.join("docs/text"), "text\n").unwrap();
        let mounts = vec![
            Mount::here(top, true),
            at(top, "/mounted", true),
            at(&top.join("docs"), "/mounted/docs", false),
            at(&top.join("docs"), "/deep/down", true),
        ];
        let script =
            "cat /mounted/docs/text; echo one > /mounted/new; cat new; echo two >> /deep/down/text; cat docs/text
            (echo x > /mounted/docs/text) 2>/dev/null && echo escaped
            (echo x > keep/log/x) 2>/dev/null && echo escaped
            (mv /mounted/keep /mounted/kept) 2>/dev/null && echo escaped
            (rm -rf /mounted/keep) 2>/dev/null; test -d keep/log || echo escaped; exit 0";
        let mut spec = seeing(&support, mounts, script);
        spec.sandbox.as_mut().unwrap().protected = vec![top.join("keep/log")];
        assert_eq!(output(spec).await, "text\none\ntext\ntwo\n", "{support}");
        assert_eq!(fs::read_to_string(top.join("docs/text")).unwrap(), "text\ntwo\n");
        assert_eq!(fs::read_to_string(top.join("new")).unwrap(), "one\n");
    }
}

/// A launcher follows links, and a command could put a link in place of a mount's source.
#[tokio::test]
async fn a_launcher_mounts_nothing_within_a_writable_directory() {
    for support in viewers().await.into_iter().filter(launches) {
        let root = directory();
        let top = root.path();
        fs::create_dir(top.join("docs")).unwrap();
        fs::write(top.join("docs/text"), "text\n").unwrap();
        let here = Mount::here(top, true);
        let script =
            "cat /mounted/docs/text; echo x > new; cat new /mounted/new; (echo x > /docs/y) 2>/dev/null";
        let docs = directory();
        let mounts = vec![here.clone(), at(top, "/mounted", true), at(docs.path(), "/docs", false)];
        assert_eq!(output(seeing(&support, mounts, script)).await, "text\nx\nx\n", "{support}");
        for (more, protected, hidden) in [
            (Some(at(&top.join("docs"), "/docs", false)), None, None),
            (Some(at(docs.path(), top.join("docs").to_str().unwrap(), true)), None, None),
            (None, Some("docs"), None),
            (None, None, Some("docs/text")),
        ] {
            let mounts = [here.clone()].into_iter().chain(more).collect();
            let mut spec = seeing(&support, mounts, "touch ran");
            let sandbox = spec.sandbox.as_mut().unwrap();
            sandbox.protected = protected.map(|path| top.join(path)).into_iter().collect();
            sandbox.hidden = hidden.map(|path| top.join(path)).into_iter().collect();
            let error = spawn(spec).await.unwrap_err();
            assert!(matches!(error, SpawnError::SandboxPlace { .. }), "{error:?}");
        }
        assert!(!top.join("ran").exists());
    }
}

#[tokio::test]
async fn hidden_paths_are_empty_in_every_mount() {
    for support in viewers().await {
        for writable in [true, false].into_iter().filter(|writable| !writable || !launches(&support)) {
            let root = directory();
            let top = root.path();
            fs::create_dir_all(top.join("log/old")).unwrap();
            for file in ["log/lock", "log/old/one", "file"] {
                fs::write(top.join(file), "SECRET\n").unwrap();
            }
            let mounts = vec![
                Mount::here(top, writable),
                at(top, "/mounted", writable),
                at(&top.join("log"), "/shown", false),
                at(&top.join("log/old"), "/mounted/log/old", false),
            ];
            let script = "for one in log file /mounted/log /mounted/file /shown; do ls -A $one; cat $one $one/lock; done \
                2>/dev/null | grep -v -x -e file -e /mounted/file
                (echo x > log/new) 2>/dev/null && echo escaped; exec 3< log/lock && echo opened; exit 0";
            let mut spec = seeing(&support, mounts, script);
            let sandbox = spec.sandbox.as_mut().unwrap();
            sandbox.hidden = vec![top.join("log"), top.join("file"), top.join("missing")];
            sandbox.protected = vec![top.join("log")];
            let seen = output(spec).await;
            assert!(
                !seen.contains("SECRET") && !seen.contains("escaped") && !seen.contains("opened"),
                "{support}: {seen}"
            );
            assert_eq!(fs::read_to_string(top.join("log/lock")).unwrap(), "SECRET\n");
        }
    }
}

#[tokio::test]
async fn a_view_is_invisible_outside_and_leaves_nothing() {
    let mounts = || fs::read_to_string("/proc/self/mountinfo").unwrap();
    for support in viewers().await {
        let (root, temp) = (directory(), directory());
        let before = mounts();
        let mut spec = seeing(
            &support,
            vec![Mount::here(root.path(), true)],
            "echo x > kept; echo ready; exec sleep 1000",
        );
        spec.sandbox.as_mut().unwrap().temp = temp.path().to_owned();
        let mut child = spawn(spec).await.unwrap();
        read_until(&mut child.take_stdout().unwrap(), "ready\n").await;
        assert_eq!(mounts(), before, "{support}");
        timeout(STEP_TIMEOUT, child.stop(QUICK)).await.unwrap();
        drop(child);
        while fs::read_dir(temp.path()).unwrap().next().is_some() {
            tokio::time::sleep(Duration::from_millis(5)).await; // sleep: polls the directory
        }
        assert_eq!(fs::read_to_string(root.path().join("kept")).unwrap(), "x\n");
    }
}

#[tokio::test]
async fn a_view_shows_nothing_else_of_this_machine() {
    for support in viewers().await {
        let (root, outside) = (directory(), directory());
        fs::write(outside.path().join("secret"), "secret").unwrap();
        let out = outside.path().display();
        let me = std::process::id();
        let attempts = [
            format!("cat {out}/secret"),
            format!("echo x > {out}/new"),
            "echo x > /etc/narrows-test".to_owned(),
            "echo x > /narrows-test".to_owned(),
            "ls /root".to_owned(),
            "ls /home".to_owned(),
            "ls /var/log".to_owned(),
            // The files are hidden from root too, who can read them outside.
            "grep . /etc/shadow /etc/gshadow".to_owned(),
            "echo x > /etc/shadow".to_owned(),
            "test -e /etc/ssl/private && ls -A /etc/ssl/private | grep .".to_owned(),
            format!("cat /proc/{me}/environ"),
            format!("readlink /proc/{me}/fd/0"),
            format!("cat /proc/{me}/root{out}/secret"),
            format!("cat /proc/$PPID/root{out}/secret"),
            // Process 1 has an empty environment if it is the init of the tree's namespace.
            "grep -q . /proc/1/environ".to_owned(),
            format!("kill -0 {me}"),
            "mkdir m && mount -t tmpfs none m".to_owned(),
            "chroot / true".to_owned(),
            "umount /proc".to_owned(),
            "echo core > /proc/sys/kernel/core_pattern".to_owned(),
            "mknod disk b 8 0".to_owned(),
            "chmod 755 /usr/bin".to_owned(),
        ];
        // Bubblewrap cannot stop root from changing the modes of devices; therefore root uses another
        // sandbox if there is one.
        let devices = (!launches(&support) || !rustix::process::geteuid().is_root())
            .then(|| "chmod 600 /dev/zero".to_owned());
        for attempt in attempts.into_iter().chain(devices) {
            let script = format!("if ({attempt}) >/dev/null 2>&1; then echo escaped; else echo held; fi");
            let text = output(seeing(&support, vec![Mount::here(root.path(), true)], &script)).await;
            assert_eq!(text, "held\n", "{support}: {attempt}");
        }
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
        // Programs get the directories that they need.
        let script = "cd $HOME && echo x > y && cat y && echo z > $TMPDIR/z && echo null > /dev/null && cat /dev/fd/0 < y
            grep -q root /etc/passwd || echo nobody; cat /proc/self/comm; test -e /dev/shm && ls /usr/bin > list && test -s list && pwd";
        let text = output(seeing(&support, vec![Mount::here(root.path(), false)], script)).await;
        assert_eq!(text, "x\nx\ncat\n/tmp/home\n", "{support}");
        // Other processes are visible only if the kernel cannot hide them.
        let script = format!("test -d /proc/{me} && echo seen || echo hidden");
        let text = output(seeing(&support, vec![Mount::here(root.path(), true)], &script)).await;
        let can_hide = has_pid_namespace(&support) || rustix::process::geteuid().is_root();
        assert!(text == "hidden\n" || !can_hide, "{support}: {text}");
    }
}

#[tokio::test]
async fn a_path_that_cannot_be_shown_is_an_error() {
    let (root, outside) = (directory(), directory());
    for support in viewers().await {
        let mounts = vec![Mount::here(root.path(), true)];
        let mut spec = seeing(&support, mounts.clone(), "exit");
        spec.cwd = Some(outside.path().to_owned());
        let error = spawn(spec).await.unwrap_err();
        assert!(
            matches!(&error, SpawnError::SandboxPlace { path, .. } if path == outside.path()),
            "{error:?}"
        );
        let mut spec = seeing(&support, mounts.clone(), "exit");
        spec.program = std::env::current_exe().unwrap().into();
        assert!(matches!(spawn(spec).await.unwrap_err(), SpawnError::SandboxPlace { .. }));
        let mut spec = seeing(&support, mounts, "exit");
        spec.sandbox.as_mut().unwrap().writable = vec![root.path().to_owned()];
        assert!(matches!(spawn(spec).await.unwrap_err(), SpawnError::Sandbox { .. }));
    }
    let alone = Support::landlock();
    if alone.confined().files {
        let error =
            spawn(seeing(&alone, vec![Mount::here(root.path(), true)], "touch ran")).await.unwrap_err();
        assert!(matches!(error, SpawnError::NoSandbox { .. }), "{error:?}");
        let gateway = Sandbox { gateway: true, ..Sandbox::new(alone) };
        assert!(gateway.try_out("/").await.is_err());
    }
    assert!(!root.path().join("ran").exists());
}

/// Runs the role that the environment names: tries to reach other processes, and prints the result. Passes
/// at once if there is none.
#[test]
fn role() {
    let Some(role) = std::env::var_os(ROLE) else { return };
    let role = role.into_string().unwrap();
    let [tcp, udp] = role.split(' ').map(|text| text.parse::<SocketAddr>().unwrap()).collect::<Vec<_>>()[..]
    else {
        panic!("unknown role {role}")
    };
    let mut lines = String::from("\n");
    let mut say = |name: &str, what: &str| lines.push_str(&format!("@{name} {what}\n"));
    say("tcp", if TcpStream::connect(tcp).is_ok() { "true" } else { "false" });
    // In a separate network the datagram is lost without an error.
    let _ = UdpSocket::bind("0.0.0.0:0").and_then(|socket| socket.send_to(b"x", udp));
    say("unix", if std::os::unix::net::UnixStream::connect("/x").is_ok() { "true" } else { "false" });
    let through = TcpStream::connect(Sandbox::GATEWAY).and_then(|mut stream| {
        stream.set_read_timeout(Some(STEP_TIMEOUT))?;
        stream.write_all(b"hello\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text).map(|_| text)
    });
    say("gateway", through.as_deref().unwrap_or("none").trim());
    std::io::stdout().write_all(lines.as_bytes()).unwrap();
}

#[tokio::test]
async fn the_gateway_is_the_only_way_out() {
    for support in mechanisms().await.into_iter().filter(|support| support.confined().gateway) {
        let root = directory();
        let program = copy_itself(root.path());
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut spec = Spec::new(&program);
        spec.args = ["--exact", "role", "--nocapture"].map(Into::into).to_vec();
        spec.env.set(ROLE, format!("{} {}", tcp.local_addr().unwrap(), udp.local_addr().unwrap()));
        spec.cwd = Some(root.path().to_owned());
        let view = Some(vec![Mount::here(root.path(), true)]);
        spec.sandbox = Some(Sandbox { view, gateway: true, ..Sandbox::new(support.clone()) });
        let mut child = spawn(spec).await.unwrap();
        let gateway = tokio::net::TcpListener::from_std(child.take_gateway().unwrap()).unwrap();
        assert!(child.take_gateway().is_none());
        let (mut stream, _) = timeout(STEP_TIMEOUT, gateway.accept()).await.unwrap().unwrap();
        let mut hello = [0; 6];
        stream.read_exact(&mut hello).await.unwrap();
        assert_eq!(&hello, b"hello\n");
        stream.write_all(b"through\n").await.unwrap();
        drop(stream);
        let text = read_all(&mut child).await;
        let said: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix('@')).collect();
        assert_eq!(said, ["tcp false", "unix false", "gateway through"], "{support}: {text}");
        udp.set_nonblocking(true).unwrap();
        assert!(udp.recv(&mut [0; 8]).is_err(), "nothing has arrived");
        timeout(STEP_TIMEOUT, child.wait()).await.unwrap();
    }
}

/// Runs the tests as a user other than root, who needs a user namespace.
#[tokio::test]
async fn an_unprivileged_user_has_views_and_gateways() {
    let tests = [
        "mounts_have_their_paths_and_permissions",
        "a_view_shows_nothing_else_of_this_machine",
        "the_gateway_is_the_only_way_out",
    ];
    let Some(text) = as_nobody(&tests, &[]).await else { return };
    assert!(text.contains("3 passed"), "{text}");
}

#[tokio::test]
async fn a_worker_over_its_processor_limit_is_ended() {
    let mut spec = Mark::new().shell("while :; do :; done");
    spec.processor = Some(Duration::from_millis(300));
    let child = spawn(spec).await.unwrap();
    let exit = timeout(STEP_TIMEOUT, child.wait()).await.unwrap();
    assert_eq!(exit.class, ExitClass::Crashed, "{exit:?}");
}
