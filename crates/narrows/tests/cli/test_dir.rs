//! Runs the binary in a temporary directory, and renders its output for comparison.

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

/// Longer than any test step, even on a loaded machine.
const TEST_TIMEOUT: Duration = Duration::from_secs(40);

/// An environment variable that marks all processes of a test.
pub(crate) const MARK: &str = "NARROWS_TEST_MARK";

/// A temporary directory, and the mark of its processes.
pub(crate) struct TestDir {
    directory: TempDir,
    mark: String,
}

impl TestDir {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let mark = format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        Self { directory: TempDir::new().expect("a directory"), mark }
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn mark(&self) -> &str {
        &self.mark
    }

    #[track_caller]
    pub(crate) fn wait_for(&self, so: impl Fn() -> bool) {
        let deadline = Instant::now() + TEST_TIMEOUT;
        while !so() {
            assert!(Instant::now() < deadline, "it never happens");
            // sleep: other processes can only be polled
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn file(&self, name: &str, content: &str) -> PathBuf {
        let path = self.path().join(name);
        std::fs::write(&path, content).expect("a file");
        path
    }

    /// Returns a command that runs the binary in a clean environment.
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

    pub(crate) fn run(&self, agent: &str, args: &[&str]) -> Command {
        let first = ["run", "--pass-env", MARK, "--agent", agent];
        self.narrows(first.iter().chain(args))
    }

    /// Writes an agent that answers each message with the next of these texts, whatever the message is. A text may
    /// have several lines. [`TestDir::received`] returns the messages.
    pub(crate) fn scripted_agent(&self, answers: &[&str]) -> String {
        let mut script = String::new();
        for answer in answers {
            script.push_str("read -r message || exit 0\nprintf '%s\\n' \"$message\" >> got\n");
            for line in answer.lines().map(str::trim) {
                // A shell's `echo` would interpret escapes.
                script.push_str(&format!("printf '%s\\n' '{line}'\n"));
            }
        }
        script.push_str("while read -r message; do :; done\n");
        self.file("agent.sh", &script);
        "sh agent.sh".to_owned()
    }

    /// Writes `mcp.json` with an MCP server that has one tool, which returns `POKED`.
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

    /// Returns the messages that a scripted agent received, one per line.
    pub(crate) fn received(&self) -> String {
        self.normalized(&std::fs::read(self.path().join("got")).expect("the agent received messages"))
    }

    /// Runs `command` and renders its output and exit code.
    pub(crate) fn output_of(&self, mut command: Command) -> String {
        let output = command.output().expect("narrows starts");
        self.assert_no_process_left();
        self.render(&output)
    }

    /// Runs `command` while other processes of the test are running.
    pub(crate) fn output_beside_others(&self, mut command: Command) -> String {
        self.render(&command.output().expect("narrows starts"))
    }

    /// Runs `command` with `input` on stdin.
    pub(crate) fn output_with_input(&self, mut command: Command, input: &[u8]) -> String {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("narrows starts");
        child.stdin.take().expect("piped").write_all(input).expect("the peer reads");
        let output = child.wait_with_output().expect("the process ends");
        self.assert_no_process_left();
        self.render(&output)
    }

    /// Starts `command` for interaction.
    pub(crate) fn start(&self, mut command: Command) -> Running<'_> {
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("narrows starts");
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        Running { dir: self, child, stdout, stderr }
    }

    fn render(&self, output: &Output) -> String {
        let mut text = self.normalized(&output.stdout);
        let stderr = self.normalized(&output.stderr);
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

    /// Replaces what differs between runs.
    fn normalized(&self, bytes: &[u8]) -> String {
        let directory = self.path().canonicalize().expect("it exists");
        let text = std::str::from_utf8(bytes).expect("UTF-8");
        let text = text.replace(directory.to_str().expect("UTF-8"), "[DIR]");
        text.replace(env!("CARGO_PKG_VERSION"), "[VERSION]").replace(std::env::consts::ARCH, "[ARCH]")
    }

    /// Waits until no process with our mark is alive.
    #[track_caller]
    pub(crate) fn assert_no_process_left(&self) {
        let deadline = Instant::now() + TEST_TIMEOUT;
        loop {
            let left = self.alive();
            if left.is_empty() {
                return;
            }
            assert!(Instant::now() < deadline, "still alive: {left:?}");
            // sleep: processes that are not our children can only be polled
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns the command lines of processes with our mark.
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

/// Returns both ends of a terminal: the user's and the program's.
pub(crate) fn terminal() -> (File, OwnedFd) {
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
    grantpt(&terminal).expect("an own terminal");
    unlockpt(&terminal).expect("an own terminal");
    let name = ptsname(&terminal, Vec::new()).expect("it has a name");
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let screen = rustix::fs::open(name, flags, Mode::empty()).expect("it can be opened");
    (File::from(terminal), screen)
}

/// A running narrows.
pub(crate) struct Running<'a> {
    dir: &'a TestDir,
    child: Child,
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
}

impl Running<'_> {
    /// Reads stdout, which must continue with `expected`.
    #[track_caller]
    pub(crate) fn expect_stdout(&mut self, expected: &str) {
        expect_bytes(self.stdout.as_mut().expect("it is open"), expected);
    }

    /// Reads the rest of a line of stdout.
    pub(crate) fn skip_line(&mut self) {
        let stdout = self.stdout.as_mut().expect("it is open");
        let mut byte = [0];
        while byte != *b"\n" {
            stdout.read_exact(&mut byte).expect("more output");
        }
    }

    /// Reads stderr, which must continue with `expected`.
    #[track_caller]
    pub(crate) fn expect_stderr(&mut self, expected: &str) {
        expect_bytes(self.stderr.as_mut().expect("it is open"), expected);
    }

    /// Closes our end of its stdout.
    pub(crate) fn close_stdout(&mut self) {
        self.stdout = None;
    }

    pub(crate) fn take_stdout(&mut self) -> ChildStdout {
        self.stdout.take().expect("it is open")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).expect("a pid")).expect("not zero");
        kill_process(pid, signal).expect("the process runs");
    }

    /// Renders the rest of its output and its exit code.
    pub(crate) fn finish(mut self) -> String {
        let (stdout, stderr) = (read_rest(self.stdout.take()), read_rest(self.stderr.take()));
        let status = self.child.wait().expect("the process ends");
        self.dir.assert_no_process_left();
        self.dir.render(&Output { status, stdout, stderr })
    }
}

#[track_caller]
fn expect_bytes(stream: &mut impl Read, expected: &str) {
    let mut said = vec![0; expected.len()];
    stream.read_exact(&mut said).expect("more output");
    assert_eq!(String::from_utf8_lossy(&said), expected);
}

fn read_rest(stream: Option<impl Read>) -> Vec<u8> {
    let mut rest = Vec::new();
    if let Some(mut stream) = stream {
        stream.read_to_end(&mut rest).expect("it can be read");
    }
    rest
}
