//! Tests that processes and sockets outside a sandbox cannot be reached from inside.
#![expect(clippy::unwrap_used, reason = "what goes wrong in a role or a helper fails the test")]
#![expect(clippy::print_stderr, reason = "a test that cannot be run here says so")]

#[path = "common/cage.rs"]
mod cage;
mod common;

use std::fs;
use std::io::{BufRead, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use cage::{as_nobody, confined, copy_itself, directory, has_pid_namespace, launches, mechanisms, output};
use common::Mark;
use narrows_process::{Sandbox, Spec, Support};
use rustix::fs::{
    CWD, IFlags, Mode, OFlags, XattrFlags, getxattr, ioctl_getflags, ioctl_setflags, openat, removexattr,
    setxattr,
};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, Protocol, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, connect,
    connect_unspec, netlink, send, sendto, shutdown, socket_with, socketpair,
};
use rustix::process::{
    Pid, PidfdFlags, PidfdGetfdFlags, Resource, Rlimit, getpid, pidfd_getfd, pidfd_open, prlimit,
    setpriority_pgrp, setpriority_process,
};
use rustix::thread::{sched_getaffinity, sched_setaffinity};
use tempfile::TempDir;

const ROLE: &str = "NARROWS_TEST_ROLE";

/// Runs the role that the environment names; passes at once if there is none.
#[test]
fn role() {
    let Some(role) = std::env::var_os(ROLE) else { return };
    let role = role.into_string().unwrap();
    let mut lines = String::from("\n");
    let mut say = |name: &str, result: Result<(), Errno>| {
        let result = match result {
            Ok(()) => "done".to_owned(),
            Err(Errno::PERM) => "PERM".to_owned(),
            Err(Errno::ACCESS) => "ACCESS".to_owned(),
            Err(Errno::SRCH) => "SRCH".to_owned(),
            Err(Errno::ISCONN) => "ISCONN".to_owned(),
            Err(Errno::PROTOTYPE) => "PROTOTYPE".to_owned(),
            Err(errno) => format!("{errno:?}"),
        };
        lines.push_str(&format!("@{name}: {result}\n"));
    };
    match role.split(' ').collect::<Vec<_>>()[..] {
        ["processes", victim] => act_on(victim.parse().unwrap(), &mut say),
        ["itself"] => act_on_itself(&mut say),
        ["datagrams", path] => send_datagrams(path, &mut say),
        ["streams", path] => reconnect(path, &mut say),
        ["families"] => make_sockets(&mut say),
        ["attributes", path] => change_attributes(path, &mut say),
        _ => panic!("unknown role {role}"),
    }
    std::io::stdout().write_all(lines.as_bytes()).unwrap();
}

fn change_attributes(path: &str, say: &mut impl FnMut(&str, Result<(), Errno>)) {
    say("set", setxattr(path, "user.new", b"x", XattrFlags::empty()));
    say("remove", removexattr(path, "user.old"));
    let file = openat(CWD, path, OFlags::RDONLY, Mode::empty());
    say("flags", file.and_then(|file| ioctl_setflags(file, IFlags::NODUMP)));
}

fn act_on(victim: i32, say: &mut impl FnMut(&str, Result<(), Errno>)) {
    let pid = Pid::from_raw(victim);
    let limit = Rlimit { current: Some(0), maximum: Some(0) };
    say("file size", prlimit(pid, Resource::Fsize, limit).map(drop));
    say("descriptors", prlimit(pid, Resource::Nofile, limit).map(drop));
    say("processors", sched_getaffinity(None).and_then(|set| sched_setaffinity(pid, &set)));
    say("priority", setpriority_process(pid, 19));
    say("priority of its group", setpriority_pgrp(pid, 19));
    let stolen = pidfd_open(pid.unwrap(), PidfdFlags::empty())
        .and_then(|pidfd| pidfd_getfd(pidfd, 0, PidfdGetfdFlags::empty()));
    say("descriptor", stolen.map(drop));
}

fn act_on_itself(say: &mut impl FnMut(&str, Result<(), Errno>)) {
    let limit = rustix::process::getrlimit(Resource::Core);
    say("limit", prlimit(None, Resource::Core, limit).map(drop));
    say("processors", sched_getaffinity(None).and_then(|set| sched_setaffinity(None, &set)));
    // The test sets the lowest priority, because it may already run with a low one.
    say("priority", setpriority_process(None, 19));
    say("limit by its own id", prlimit(Some(getpid()), Resource::Core, limit).map(drop));
}

fn send_datagrams(path: &str, say: &mut impl FnMut(&str, Result<(), Errno>)) {
    let address = SocketAddrUnix::new(path).unwrap();
    for kind in [SocketType::DGRAM, SocketType::RAW] {
        let pair = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None);
        let sent = pair.and_then(|(one, other)| {
            sendto(&one, b"sent", SendFlags::empty(), &address)?;
            connect(&other, &address)?;
            send(&other, b"connected", SendFlags::empty())
        });
        say(&format!("{kind:?}"), sent.map(drop));
    }
}

fn reconnect(path: &str, say: &mut impl FnMut(&str, Result<(), Errno>)) {
    let address = SocketAddrUnix::new(path).unwrap();
    for kind in [SocketType::STREAM, SocketType::SEQPACKET] {
        let pair = || socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None);
        let (one, other) = pair().unwrap();
        say("connected", connect(&one, &address));
        say("sent", sendto(&one, b"sent", SendFlags::NOSIGNAL, &address).map(drop));
        _ = connect_unspec(&one);
        say("dissolved", connect(&one, &address));
        shutdown(&one, Shutdown::Both).unwrap();
        say("shut down", connect(&one, &address));
        drop(other);
        say("alone", connect(one.as_fd(), &address));
    }
}

fn make_sockets(say: &mut impl FnMut(&str, Result<(), Errno>)) {
    let mut make = |name: &str, family, kind, protocol: Option<Protocol>| {
        say(name, socket_with(family, kind, SocketFlags::CLOEXEC, protocol).map(drop));
    };
    make("internet", AddressFamily::INET, SocketType::STREAM, None);
    make("routing", AddressFamily::NETLINK, SocketType::RAW, None);
    make("other processes", AddressFamily::NETLINK, SocketType::RAW, Some(netlink::USERSOCK));
    make("virtual machines", AddressFamily::VSOCK, SocketType::STREAM, None);
    make("ciphers", AddressFamily::from_raw(libc::AF_ALG as _), SocketType::SEQPACKET, None);
}

/// A directory with only this program in it, for a sandbox to show.
struct Inside {
    root: TempDir,
    program: PathBuf,
}

impl Inside {
    fn new() -> Self {
        let root = directory();
        let program = copy_itself(root.path());
        Self { root, program }
    }

    fn path(&self) -> &Path {
        self.root.path()
    }

    /// Returns the output of the program in a role, in a sandbox or without one.
    async fn say(&self, support: Option<(&Support, bool)>, role: &str) -> Vec<String> {
        let mut spec = Spec::new(&self.program);
        spec.args = ["--exact", "role", "--nocapture"].map(Into::into).to_vec();
        spec.env.set(ROLE, role);
        spec.cwd = Some(self.path().to_owned());
        spec.sandbox = support.map(|(support, network)| {
            let sandbox = confined(support, &Mark::new(), self.path(), "").sandbox.unwrap();
            Sandbox { network, ..sandbox }
        });
        let text = output(spec).await;
        text.lines().filter_map(|line| line.strip_prefix('@').map(str::to_owned)).collect()
    }
}

struct Victim(Child);

impl Victim {
    fn new() -> Self {
        let mut command = Command::new("sleep");
        Self(command.arg("1000").stdin(Stdio::null()).process_group(0).spawn().unwrap())
    }

    fn state(&self) -> String {
        let file = |name: &str| fs::read_to_string(format!("/proc/{}/{name}", self.0.id())).unwrap();
        let nice = file("stat").rsplit_once(") ").unwrap().1.split(' ').nth(16).unwrap().to_owned();
        format!("nice {nice}\n{}", file("limits"))
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

#[tokio::test]
async fn a_process_outside_cannot_be_acted_on_from_inside() {
    let inside = Inside::new();
    let role = |victim: &Victim| format!("processes {}", victim.0.id());
    // Without a sandbox all attempts succeed, which shows that the checks below are significant.
    let victim = Victim::new();
    let plain = inside.say(None, &role(&victim)).await;
    assert!(plain.len() == 6 && plain[..5].iter().all(|line| line.ends_with(": done")), "{plain:?}");
    for support in mechanisms().await {
        for network in [true, false] {
            let victim = Victim::new();
            let before = victim.state();
            let lines = inside.say(Some((&support, network)), &role(&victim)).await;
            assert!(
                lines.len() == 6 && !lines.iter().any(|line| line.ends_with("done")),
                "{support}: {lines:?}"
            );
            if !launches(&support) {
                assert!(lines[..5].iter().all(|line| line.ends_with(": PERM")), "{support}: {lines:?}");
                // A process that has no id inside cannot be opened by descriptor either.
                let expected = if has_pid_namespace(&support) { "SRCH" } else { "PERM" };
                assert_eq!(lines[5], format!("descriptor: {expected}"), "{support}");
            }
            assert_eq!(victim.state(), before, "{support}");
        }
    }
}

#[tokio::test]
async fn a_process_may_still_limit_itself() {
    let inside = Inside::new();
    for support in mechanisms().await {
        let lines = inside.say(Some((&support, false)), "itself").await;
        let by_id = if launches(&support) { "done" } else { "PERM" };
        let expected = ["limit: done", "processors: done", "priority: done"].map(str::to_owned);
        assert_eq!(lines[..3], expected, "{support}");
        assert_eq!(lines[3], format!("limit by its own id: {by_id}"), "{support}");
    }
}

#[tokio::test]
async fn no_unix_datagram_leaves_a_sandbox() {
    let inside = Inside::new();
    // The socket is within the visible and writable paths, but would still lead out of the sandbox.
    let path = inside.path().join("datagrams");
    let outside = UnixDatagram::bind(&path).unwrap();
    outside.set_nonblocking(true).unwrap();
    let role = format!("datagrams {}", path.display());
    let plain = inside.say(None, &role).await;
    assert!(plain.len() == 2 && plain.iter().all(|line| line.ends_with(": done")), "{plain:?}");
    while outside.recv(&mut [0; 16]).is_ok() {}
    for support in mechanisms().await {
        for network in [true, false] {
            let lines = inside.say(Some((&support, network)), &role).await;
            assert!(
                lines.len() == 2 && lines.iter().all(|line| line.ends_with(": ACCESS")),
                "{support}: {lines:?}"
            );
            assert!(outside.recv(&mut [0; 16]).is_err(), "{support}: something has arrived");
        }
    }
}

/// Pairs of stream sockets are allowed, because the kernel does not let them connect elsewhere.
#[tokio::test]
async fn a_pair_of_stream_sockets_cannot_be_connected_to_anything_else() {
    let inside = Inside::new();
    let path = inside.path().join("streams");
    let outside = UnixListener::bind(&path).unwrap();
    outside.set_nonblocking(true).unwrap();
    let role = format!("streams {}", path.display());
    let mut found = vec![("no sandbox".to_owned(), inside.say(None, &role).await)];
    for support in mechanisms().await {
        found.push((support.to_string(), inside.say(Some((&support, false)), &role).await));
    }
    for (where_, lines) in found {
        assert_eq!(lines.len(), 10, "{where_}: {lines:?}");
        for line in lines.iter().filter(|line| !line.starts_with("sent")) {
            assert!(line.ends_with(": ISCONN") || line.ends_with(": PROTOTYPE"), "{where_}: {line}");
        }
        assert!(outside.accept().is_err(), "{where_}: a connection has come");
    }
}

#[tokio::test]
async fn with_the_network_there_are_internet_sockets_and_no_others() {
    let inside = Inside::new();
    for support in mechanisms().await {
        let lines = inside.say(Some((&support, true)), "families").await;
        let expected = [
            "internet: done",
            "routing: done",
            "other processes: ACCESS",
            "virtual machines: ACCESS",
            "ciphers: ACCESS",
        ];
        assert_eq!(lines, expected, "{support}");
    }
}

/// Queues, semaphores and memory of System V are not files, so Landlock does not cover them.
#[tokio::test]
async fn a_message_queue_of_another_process_cannot_be_removed_from_inside() {
    let run = |line: &str| {
        let output = Command::new("sh").args(["-c", line]).stderr(Stdio::null()).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let made = run("command -v ipcrm >/dev/null && ipcmk -Q");
    let Some(id) = made.split_whitespace().last().map(str::to_owned) else {
        eprintln!("not tried: it takes ipcmk and ipcrm");
        return;
    };
    let root = directory();
    for support in mechanisms().await {
        let script = format!("ipcrm -q {id} 2>/dev/null && echo removed || echo held");
        let text = output(confined(&support, &Mark::new(), root.path(), &script)).await;
        assert_eq!(text, "held\n", "{support}");
    }
    assert_eq!(run(&format!("ipcrm -q {id} && echo still there")), "still there\n");
}

struct TestTerminal {
    program: Child,
    path: String,
}

impl TestTerminal {
    /// Returns `None` if `script` is not installed.
    fn open() -> Option<Self> {
        let mut program = Command::new("script")
            .args(["-q", "-c", "tty; exec sleep 1000", "/dev/null"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .ok()?;
        let mut line = String::new();
        std::io::BufReader::new(program.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Some(Self { program, path: line.trim().to_owned() })
    }
}

impl Drop for TestTerminal {
    fn drop(&mut self) {
        // The program of the terminal ends with the terminal.
        self.program.kill().unwrap();
        self.program.wait().unwrap();
    }
}

/// A process that reads a terminal takes away the input of other programs, such as a password.
#[tokio::test]
async fn a_terminal_cannot_be_read_from_inside() {
    let Some(terminal) = TestTerminal::open() else {
        eprintln!("not tried: it takes `script`");
        return;
    };
    assert!(terminal.path.starts_with("/dev/pts/"), "{}", terminal.path);
    let opened = fs::File::open(&terminal.path);
    assert!(opened.is_ok(), "it can be opened outside: {opened:?}");
    for support in mechanisms().await {
        let root = directory();
        let script = format!(
            "for path in {0} /proc/self/root{0} /dev/tty /dev/console; do
                 (exec 3< $path) 2>/dev/null && echo \"opened $path\"
             done
             cat /dev/null && head -c 3 /dev/zero | wc -c && head -c 3 /dev/urandom | wc -c
             echo piped | cat /dev/stdin && echo x > /dev/null && ls /dev > /dev/null && ls / > /dev/null
             cat /proc/self/comm && test -r /etc/passwd && ls /dev/shm > /dev/null && echo done",
            terminal.path
        );
        let text = output(confined(&support, &Mark::new(), root.path(), &script)).await;
        assert_eq!(text, "3\n3\npiped\ncat\ndone\n", "{support}");
    }
}

#[tokio::test]
async fn an_unprivileged_user_cannot_act_on_processes_outside() {
    let tests = [
        "a_process_outside_cannot_be_acted_on_from_inside",
        "a_process_may_still_limit_itself",
        "no_unix_datagram_leaves_a_sandbox",
        "a_message_queue_of_another_process_cannot_be_removed_from_inside",
        "a_terminal_cannot_be_read_from_inside",
    ];
    if let Some(text) = as_nobody(&tests, &[]).await {
        assert!(text.contains("5 passed"), "{text}");
    }
}

#[tokio::test]
async fn attributes_and_flags_of_files_outside_stay_as_they_are() {
    for support in mechanisms().await {
        let (root, outside) = (directory(), directory());
        let file = outside.path().join("file");
        fs::write(&file, "").unwrap();
        let opened = fs::File::open(&file).unwrap();
        let before = ioctl_getflags(&opened);
        if setxattr(&file, "user.old", b"x", XattrFlags::empty()).is_err() || before.is_err() {
            eprintln!("not tried: this file system has no attributes");
            return;
        }
        let mut spec = Spec::new(copy_itself(root.path()));
        spec.args = ["--exact", "role", "--nocapture"].map(Into::into).to_vec();
        spec.env.set(ROLE, format!("attributes {}", file.display()));
        spec.cwd = Some(root.path().to_owned());
        spec.sandbox =
            Some(Sandbox { writable: vec![root.path().to_owned()], ..Sandbox::new(support.clone()) });
        let text = output(spec).await;
        assert!(text.contains("@flags: ") && !text.contains("done"), "{support}: {text}");
        assert_eq!(ioctl_getflags(&opened), before, "{support}");
        assert!(getxattr(&file, "user.new", &mut [0; 8]).is_err(), "{support}");
        assert_eq!(getxattr(&file, "user.old", &mut [0; 8]), Ok(1), "{support}");
    }
}

/// A program that copies attributes continues if the file system reports that it has none.
#[tokio::test]
async fn files_with_attributes_can_be_copied_in_every_sandbox() {
    for support in mechanisms().await {
        let root = directory();
        let file = root.path().join("file");
        fs::write(&file, "a\n").unwrap();
        _ = setxattr(&file, "user.old", b"x", XattrFlags::empty());
        let script = "set -e; cp -a file copy; cp -p file kept; mv copy moved; install -m 600 file installed
            tar cf archive file moved; mkdir out; tar xf archive -C out; sed -i s/a/b/ file; cat file out/moved; ls";
        let text = output(confined(&support, &Mark::new(), root.path(), script)).await;
        let expected = "b\na\narchive\nfile\ninstalled\nkept\nmoved\nout\n";
        assert_eq!(text, expected, "{support}");
    }
}
