//! A simulated user at a terminal.

use std::io::{Read, Write};
use std::num::NonZero;
use std::process::Child;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use pty_process::Size;
use pty_process::blocking::{Command, Pty};
use rustix::process::{Pid, Signal, kill_process};
use rustix::termios::LocalModes;
use vt100::Parser;

use crate::test_dir::{MARK, TestDir};

/// Longer than any test step, even on a loaded machine.
const TEST_TIMEOUT: Duration = Duration::from_secs(40);

/// Large enough that nothing scrolls away.
const ROWS: u16 = 200;
const COLUMNS: u16 = 120;

pub(crate) const CTRL_C: &str = "\x03";
pub(crate) const CTRL_D: &str = "\x04";

type Screen = Arc<(Mutex<Parser>, Condvar)>;

fn size(cells: u16) -> NonZero<u16> {
    NonZero::new(cells).expect("a window has some size")
}

/// A user at a terminal in which narrows runs.
pub(crate) struct TerminalUser<'a> {
    dir: &'a TestDir,
    pty: Arc<Pty>,
    child: Child,
    screen: Screen,
}

impl<'a> TerminalUser<'a> {
    pub(crate) fn start(dir: &'a TestDir, args: &[&str]) -> Self {
        Self::begin(dir, "chat", args)
    }

    /// Starts `narrows run` with a scripted agent.
    pub(crate) fn run(dir: &'a TestDir, script: &str, args: &[&str]) -> Self {
        let agent = format!("narrows fake-agent {script}");
        Self::begin(dir, "run", &[&["--agent", &agent], args].concat())
    }

    /// Starts narrows with a remote agent.
    pub(crate) fn connect(dir: &'a TestDir, args: &[&str]) -> Self {
        Self::spawn(dir, args)
    }

    pub(crate) fn serve(dir: &'a TestDir, args: &[&str]) -> Self {
        Self::spawn(dir, &[&["serve"], args].concat())
    }

    fn begin(dir: &'a TestDir, command: &str, args: &[&str]) -> Self {
        Self::spawn(dir, &[&[command, "--pass-env", MARK], args].concat())
    }

    fn spawn(dir: &'a TestDir, args: &[&str]) -> Self {
        let (pty, pts) = pty_process::blocking::open().expect("a terminal");
        pty.resize(Size::new(ROWS, COLUMNS)).expect("it has a size");
        let child = Command::new(env!("CARGO_BIN_EXE_narrows"))
            .args(args)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").expect("PATH"))
            .env("TERM", "xterm-256color")
            .env("NARROWS_DATA_DIR", dir.path().join("data"))
            .env("XDG_RUNTIME_DIR", dir.path())
            .env(MARK, dir.mark())
            .current_dir(dir.path())
            .spawn(pts)
            .expect("narrows starts");
        let pty = Arc::new(pty);
        let screen: Screen =
            Arc::new((Mutex::new(Parser::new(size(ROWS), size(COLUMNS), 0)), Condvar::new()));
        let (looks, seen) = (Arc::clone(&pty), Arc::clone(&screen));
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // Reading fails once no process has the terminal open.
            while let Ok(count @ 1..) = (&*looks).read(&mut bytes) {
                seen.0.lock().expect("a screen").process(&bytes[..count]);
                seen.1.notify_all();
            }
        });
        Self { dir, pty, child, screen }
    }

    /// Starts `narrows chat` with a scripted agent and waits for the prompt.
    pub(crate) fn chat_with(dir: &'a TestDir, script: &str, args: &[&str]) -> Self {
        let agent = format!("narrows fake-agent {script}");
        let user = Self::start(dir, &[&["--agent", &agent], args].concat());
        user.expect_prompt();
        user
    }

    pub(crate) fn type_text(&self, text: &str) {
        self.press_keys(text.as_bytes());
    }

    /// Sends the bytes of keys.
    pub(crate) fn press_keys(&self, keys: &[u8]) {
        (&*self.pty).write_all(keys).expect("the terminal accepts keys");
    }

    pub(crate) fn resize(&self, rows: u16, columns: u16) {
        self.screen.0.lock().expect("a screen").screen_mut().set_size(size(rows), size(columns));
        self.pty.resize(Size::new(rows, columns)).expect("it has a size");
    }

    /// Waits until `so` holds for the screen.
    #[track_caller]
    fn wait_for_screen(&self, what: &str, so: impl Fn(&vt100::Screen) -> bool) {
        let deadline = Instant::now() + TEST_TIMEOUT;
        let mut parser = self.screen.0.lock().expect("a screen");
        while !so(parser.screen()) {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{what} never appears on:\n{}", parser.screen().contents());
            (parser, _) = self.screen.1.wait_timeout(parser, left).expect("a screen");
        }
    }

    /// Waits until `text` is gone from the screen.
    #[track_caller]
    pub(crate) fn wait_until_gone(&self, text: &str) {
        self.wait_for_screen("the end", |screen| !screen.contents().contains(text));
    }

    /// Waits until `text` is on the screen `times` times.
    #[track_caller]
    pub(crate) fn expect_times(&self, text: &str, times: usize) {
        self.wait_for_screen(text, |screen| screen.contents().matches(text).count() >= times);
    }

    /// Waits until `text` is on the screen.
    #[track_caller]
    pub(crate) fn expect(&self, text: &str) {
        self.expect_times(text, 1);
    }

    /// Waits until a line of the screen equals `line`.
    #[track_caller]
    pub(crate) fn expect_line(&self, line: &str) {
        self.wait_for_screen(line, |screen| screen.contents().lines().any(|found| found.trim_end() == line));
    }

    /// Waits until the line of the cursor equals `line`.
    #[track_caller]
    pub(crate) fn expect_edit_line(&self, line: &str) {
        self.wait_for_screen(line, |screen| {
            let row = usize::from(screen.cursor_position().0);
            let found = screen.rows(0, screen.size().1.get()).nth(row).unwrap_or_default();
            found.trim_end() == line.trim_end()
        });
    }

    /// Waits for an empty prompt.
    #[track_caller]
    pub(crate) fn expect_prompt(&self) {
        self.expect_edit_line("> ");
    }

    /// Sends a message, and waits for its answer and the next prompt.
    #[track_caller]
    pub(crate) fn chat(&self, text: &str, answer: &str) {
        // The answer must not be on the screen already.
        let before = self.screen().matches(answer).count() + text.matches(answer).count();
        self.type_text(&format!("{text}\r"));
        self.expect_times(answer, before + 1);
        self.expect_prompt();
    }

    pub(crate) fn screen(&self) -> String {
        self.screen.0.lock().expect("a screen").screen().contents()
    }

    pub(crate) fn send_signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).expect("a pid")).expect("not zero");
        kill_process(pid, signal).expect("the process runs");
    }

    /// Waits until the terminal is in its original line mode.
    #[track_caller]
    pub(crate) fn expect_terminal_restored(&self) {
        let is_back = || {
            let modes = rustix::termios::tcgetattr(&*self.pty).expect("a terminal").local_modes;
            modes.contains(LocalModes::ICANON | LocalModes::ECHO)
        };
        self.dir.wait_for(is_back);
    }

    /// Waits until all processes have ended. Returns the exit code.
    #[track_caller]
    pub(crate) fn wait_exit(mut self) -> Option<i32> {
        let status = self.child.wait().expect("the process ends");
        self.dir.assert_no_process_left();
        status.code()
    }

    /// Quits with Ctrl-D at the prompt.
    #[track_caller]
    pub(crate) fn quit(self) {
        self.type_text(CTRL_D);
        assert_eq!(self.wait_exit(), Some(0));
    }
}

/// Returns the processes of a directory with this word in their command lines.
pub(crate) fn processes(dir: &TestDir, word: &str) -> Vec<Pid> {
    let mark = format!("{MARK}={}", dir.mark());
    let has =
        |bytes: Vec<u8>, word: &str| bytes.split(|byte| *byte == 0).any(|found| found == word.as_bytes());
    let entries = std::fs::read_dir("/proc").expect("/proc").filter_map(Result::ok);
    entries
        .filter(|entry| has(std::fs::read(entry.path().join("environ")).unwrap_or_default(), &mark))
        .filter(|entry| has(std::fs::read(entry.path().join("cmdline")).unwrap_or_default(), word))
        .filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?))
        .collect()
}
