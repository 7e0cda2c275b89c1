//! How the tests run the binary, and what they compare.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdout, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::json;
use tempfile::TempDir;

/// Longer than anything takes here, however loaded the machine is.
const PATIENCE: Duration = Duration::from_secs(40);

/// Marks every process of one test: narrows has it in its environment, and so has all it starts.
pub(crate) const MARK: &str = "NARROWS_TEST_MARK";

/// A directory to run in, and the mark of everything that runs.
pub(crate) struct Place {
    directory: TempDir,
    mark: String,
}

impl Place {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let mark = format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        Self { directory: TempDir::new().expect("a directory"), mark }
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// The value of [`MARK`] here.
    pub(crate) fn mark(&self) -> &str {
        &self.mark
    }

    /// Waits until this is so, and fails if it never is.
    #[track_caller]
    pub(crate) fn wait_for(&self, so: impl Fn() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !so() {
            assert!(Instant::now() < deadline, "it never happens");
            // sleep: what other processes do can only be looked for
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Writes a file and returns its path.
    pub(crate) fn file(&self, name: &str, content: &str) -> PathBuf {
        let path = self.path().join(name);
        std::fs::write(&path, content).expect("a file");
        path
    }

    /// The binary with these arguments, in an environment of its own.
    pub(crate) fn narrows<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_narrows"));
        let path = std::env::var_os("PATH").expect("PATH");
        command
            .args(args)
            .env_clear()
            .env("PATH", path)
            .env(MARK, &self.mark)
            .current_dir(self.path())
            .stdin(Stdio::null());
        command
    }

    /// `narrows run` with this agent and these arguments.
    pub(crate) fn run(&self, agent: &str, args: &[&str]) -> Command {
        let first = ["run", "--pass-env", MARK, "--agent", agent];
        self.narrows(first.iter().chain(args))
    }

    /// An agent that answers one message after the other with these lines, whatever the messages say; several
    /// answers to one message stand in one text. What it got is in [`Place::got`].
    pub(crate) fn scripted(&self, answers: &[&str]) -> String {
        let mut script = String::new();
        for answer in answers {
            script.push_str("read -r message || exit 0\nprintf '%s\\n' \"$message\" >> got\n");
            for line in answer.lines().map(str::trim) {
                // A shell's `echo` would read escapes.
                script.push_str(&format!("printf '%s\\n' '{line}'\n"));
            }
        }
        script.push_str("while read -r message; do :; done\n");
        self.file("agent.sh", &script);
        "sh agent.sh".to_owned()
    }

    /// Writes `mcp.json` with an MCP server of this name. It has one tool, which returns the text `POKED`.
    pub(crate) fn mcp_server(&self, name: &str, tool: &str) {
        let script = "while read -r line; do\n\
            id=$(printf '%s' \"$line\" | sed -n 's/.*\"id\":\\([^,}]*\\).*/\\1/p')\n\
            case $line in\n\
            *'\"initialize\"'*) r='{\"protocolVersion\":\"2025-06-18\",\"capabilities\":{\"tools\":{}},\"serverInfo\":{\"name\":\"t\",\"version\":\"1\"}}';;\n\
            *'\"tools/list\"'*) r='{\"tools\":[{\"name\":\"[TOOL]\",\"inputSchema\":{\"type\":\"object\"}}]}';;\n\
            *) r='{\"content\":[{\"type\":\"text\",\"text\":\"POKED\"}]}';;\n\
            esac\n\
            [ -n \"$id\" ] && printf '{\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":%s}\\n' \"$id\" \"$r\"\ndone\n";
        let script = self.file("served.sh", &script.replace("[TOOL]", tool));
        let server = json!({"command": "sh", "args": [script], "env": {MARK: self.mark}});
        self.file("mcp.json", &json!({"mcpServers": {name: server}}).to_string());
    }

    /// The messages that a scripted agent got, a line each.
    pub(crate) fn got(&self) -> String {
        self.normal(&std::fs::read(self.path().join("got")).expect("it got something"))
    }

    /// Everything `command` writes and how it exits, as one text.
    pub(crate) fn told(&self, mut command: Command) -> String {
        let output = command.output().expect("narrows starts");
        self.nothing_is_left();
        self.render(&output)
    }

    /// The same of a command beside which others run.
    pub(crate) fn told_of(&self, mut command: Command) -> String {
        self.render(&command.output().expect("narrows starts"))
    }

    /// The same, with this on stdin.
    pub(crate) fn told_with_input(&self, mut command: Command, input: &[u8]) -> String {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("narrows starts");
        child.stdin.take().expect("piped").write_all(input).expect("it reads");
        let output = child.wait_with_output().expect("it ends");
        self.nothing_is_left();
        self.render(&output)
    }

    /// Starts `command` to talk with it.
    pub(crate) fn start(&self, mut command: Command) -> Running<'_> {
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("narrows starts");
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        Running { place: self, child, stdout, stderr }
    }

    fn render(&self, output: &Output) -> String {
        let mut text = self.normal(&output.stdout);
        let stderr = self.normal(&output.stderr);
        if !stderr.is_empty() {
            text.push_str("--- stderr ---\n");
            text.push_str(&stderr);
        }
        let ended = match output.status.code() {
            Some(code) => format!("exit {code}"),
            None => output.status.to_string(),
        };
        format!("{text}--- {ended} ---\n")
    }

    /// The text, without what differs from run to run.
    fn normal(&self, bytes: &[u8]) -> String {
        let directory = self.path().canonicalize().expect("it exists");
        let text = std::str::from_utf8(bytes).expect("UTF-8");
        let text = text.replace(directory.to_str().expect("UTF-8"), "[DIR]");
        text.replace(env!("CARGO_PKG_VERSION"), "[VERSION]").replace(std::env::consts::ARCH, "[ARCH]")
    }

    /// Waits until no process with our mark is alive, and fails if there always is one.
    #[track_caller]
    pub(crate) fn nothing_is_left(&self) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = self.alive();
            if left.is_empty() {
                return;
            }
            assert!(Instant::now() < deadline, "still alive: {left:?}");
            // sleep: the end of a process that is not our child can only be looked for
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The processes with our mark, by their command lines.
    pub(crate) fn alive(&self) -> Vec<String> {
        let mark = format!("{MARK}={}", self.mark);
        let own = std::process::id().to_string();
        let entries = std::fs::read_dir("/proc").expect("/proc").filter_map(Result::ok);
        entries
            .filter(|entry| entry.file_name() != *own)
            .filter(|entry| {
                let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
                environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
            })
            .map(|entry| {
                let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
                String::from_utf8_lossy(&line).replace('\0', " ")
            })
            .collect()
    }
}

/// A terminal: the end at which somebody sits, and the end for a program.
pub(crate) fn terminal() -> (File, OwnedFd) {
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
    grantpt(&terminal).expect("it is ours");
    unlockpt(&terminal).expect("it is ours");
    let name = ptsname(&terminal, Vec::new()).expect("it has a name");
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let screen = rustix::fs::open(name, flags, Mode::empty()).expect("it can be opened");
    (File::from(terminal), screen)
}

/// A narrows that runs.
pub(crate) struct Running<'a> {
    place: &'a Place,
    child: Child,
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
}

impl Running<'_> {
    /// Waits until it has written this to stdout.
    #[track_caller]
    pub(crate) fn says(&mut self, expected: &str) {
        says(self.stdout.as_mut().expect("it is open"), expected);
    }

    /// Reads its stdout on to the end of the line.
    pub(crate) fn skip_line(&mut self) {
        let stdout = self.stdout.as_mut().expect("it is open");
        let mut byte = [0];
        while byte != *b"\n" {
            stdout.read_exact(&mut byte).expect("it says something");
        }
    }

    /// Waits until it has written this to stderr.
    #[track_caller]
    pub(crate) fn complains(&mut self, expected: &str) {
        says(self.stderr.as_mut().expect("it is open"), expected);
    }

    /// Reads no more of its stdout, and lets it know.
    pub(crate) fn close_stdout(&mut self) {
        self.stdout = None;
    }

    /// Its stdout, for the caller to read or not to read.
    pub(crate) fn take_stdout(&mut self) -> ChildStdout {
        self.stdout.take().expect("it is open")
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).expect("a pid")).expect("not zero");
        kill_process(pid, signal).expect("it runs");
    }

    /// What it still writes and how it exits, as one text.
    pub(crate) fn told(mut self) -> String {
        let (stdout, stderr) = (read_rest(self.stdout.take()), read_rest(self.stderr.take()));
        let status = self.child.wait().expect("it ends");
        self.place.nothing_is_left();
        self.place.render(&Output { status, stdout, stderr })
    }
}

#[track_caller]
fn says(stream: &mut impl Read, expected: &str) {
    let mut said = vec![0; expected.len()];
    stream.read_exact(&mut said).expect("it says something");
    assert_eq!(String::from_utf8_lossy(&said), expected);
}

fn read_rest(stream: Option<impl Read>) -> Vec<u8> {
    let mut rest = Vec::new();
    if let Some(mut stream) = stream {
        stream.read_to_end(&mut rest).expect("it can be read");
    }
    rest
}
