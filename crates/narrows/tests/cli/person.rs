//! A person at a terminal: what they type, and what they see.

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

use crate::support::{MARK, Place};

/// Longer than anything takes here, however loaded the machine is.
const PATIENCE: Duration = Duration::from_secs(40);

/// So many that nothing leaves the screen.
const ROWS: u16 = 200;
const COLUMNS: u16 = 120;

/// What Ctrl-C and Ctrl-D send.
pub(crate) const CTRL_C: &str = "\x03";
pub(crate) const CTRL_D: &str = "\x04";

/// The screen, and word that it has changed.
type Screen = Arc<(Mutex<Parser>, Condvar)>;

fn size(cells: u16) -> NonZero<u16> {
    NonZero::new(cells).expect("a window has some size")
}

/// Somebody who sits before a terminal in which narrows runs.
pub(crate) struct Person<'a> {
    place: &'a Place,
    pty: Arc<Pty>,
    child: Child,
    screen: Screen,
}

impl<'a> Person<'a> {
    /// Starts `narrows chat` with these arguments.
    pub(crate) fn starts(place: &'a Place, args: &[&str]) -> Self {
        Self::begins(place, "chat", args)
    }

    /// Starts `narrows run` with one of the scripted agents.
    pub(crate) fn runs(place: &'a Place, script: &str, args: &[&str]) -> Self {
        let agent = format!("narrows fake-agent {script}");
        Self::begins(place, "run", &[&["--agent", &agent], args].concat())
    }

    /// Starts narrows with these arguments, and an agent that is somewhere else.
    pub(crate) fn reaches(place: &'a Place, args: &[&str]) -> Self {
        Self::sits(place, args)
    }

    /// Starts `narrows serve` with these arguments.
    pub(crate) fn serves(place: &'a Place, args: &[&str]) -> Self {
        Self::sits(place, &[&["serve"], args].concat())
    }

    fn begins(place: &'a Place, command: &str, args: &[&str]) -> Self {
        Self::sits(place, &[&[command, "--pass-env", MARK], args].concat())
    }

    fn sits(place: &'a Place, args: &[&str]) -> Self {
        let (pty, pts) = pty_process::blocking::open().expect("a terminal");
        pty.resize(Size::new(ROWS, COLUMNS)).expect("it has a size");
        let child = Command::new(env!("CARGO_BIN_EXE_narrows"))
            .args(args)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").expect("PATH"))
            .env("TERM", "xterm-256color")
            .env("NARROWS_DATA_DIR", place.path().join("data"))
            .env("XDG_RUNTIME_DIR", place.path())
            .env(MARK, place.mark())
            .current_dir(place.path())
            .spawn(pts)
            .expect("narrows starts");
        let pty = Arc::new(pty);
        let screen: Screen =
            Arc::new((Mutex::new(Parser::new(size(ROWS), size(COLUMNS), 0)), Condvar::new()));
        let (looks, seen) = (Arc::clone(&pty), Arc::clone(&screen));
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // A terminal that nobody has open any more fails.
            while let Ok(count @ 1..) = (&*looks).read(&mut bytes) {
                seen.0.lock().expect("a screen").process(&bytes[..count]);
                seen.1.notify_all();
            }
        });
        Self { place, pty, child, screen }
    }

    /// The same with one of the scripted agents, waiting for the prompt.
    pub(crate) fn talks_to(place: &'a Place, script: &str, args: &[&str]) -> Self {
        let agent = format!("narrows fake-agent {script}");
        let person = Self::starts(place, &[&["--agent", &agent], args].concat());
        person.sees_the_prompt();
        person
    }

    /// Types, all at once.
    pub(crate) fn types(&self, text: &str) {
        self.presses(text.as_bytes());
    }

    /// The same, whatever the keys send.
    pub(crate) fn presses(&self, keys: &[u8]) {
        (&*self.pty).write_all(keys).expect("it takes keys");
    }

    /// Makes the window another size.
    pub(crate) fn resizes(&self, rows: u16, columns: u16) {
        self.screen.0.lock().expect("a screen").screen_mut().set_size(size(rows), size(columns));
        self.pty.resize(Size::new(rows, columns)).expect("it has a size");
    }

    /// Waits until the screen is so.
    #[track_caller]
    fn waits_for(&self, what: &str, so: impl Fn(&vt100::Screen) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        let mut parser = self.screen.0.lock().expect("a screen");
        while !so(parser.screen()) {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{what} never appears on:\n{}", parser.screen().contents());
            (parser, _) = self.screen.1.wait_timeout(parser, left).expect("a screen");
        }
    }

    /// Waits until this is on the screen no more.
    #[track_caller]
    pub(crate) fn sees_no_more(&self, text: &str) {
        self.waits_for("the end", |screen| !screen.contents().contains(text));
    }

    /// Waits until this is on the screen, this often.
    #[track_caller]
    pub(crate) fn sees_times(&self, text: &str, times: usize) {
        self.waits_for(text, |screen| screen.contents().matches(text).count() >= times);
    }

    /// Waits until this is on the screen.
    #[track_caller]
    pub(crate) fn sees(&self, text: &str) {
        self.sees_times(text, 1);
    }

    /// Waits until a line of the screen is just this.
    #[track_caller]
    pub(crate) fn sees_line(&self, line: &str) {
        self.waits_for(line, |screen| screen.contents().lines().any(|found| found.trim_end() == line));
    }

    /// Waits until the line under the cursor is just this.
    #[track_caller]
    pub(crate) fn edits(&self, line: &str) {
        self.waits_for(line, |screen| {
            let row = usize::from(screen.cursor_position().0);
            let found = screen.rows(0, screen.size().1.get()).nth(row).unwrap_or_default();
            found.trim_end() == line.trim_end()
        });
    }

    /// Waits until a message can be typed.
    #[track_caller]
    pub(crate) fn sees_the_prompt(&self) {
        self.edits("> ");
    }

    /// Says something and waits for the answer, and for the next prompt.
    #[track_caller]
    pub(crate) fn says(&self, text: &str, answer: &str) {
        // What is on the screen already is no answer.
        let before = self.screen().matches(answer).count() + text.matches(answer).count();
        self.types(&format!("{text}\r"));
        self.sees_times(answer, before + 1);
        self.sees_the_prompt();
    }

    /// Everything on the screen.
    pub(crate) fn screen(&self) -> String {
        self.screen.0.lock().expect("a screen").screen().contents()
    }

    /// Sends a signal to narrows.
    pub(crate) fn signals(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).expect("a pid")).expect("not zero");
        kill_process(pid, signal).expect("it runs");
    }

    /// Waits until the terminal edits lines by itself, as it did before narrows came.
    #[track_caller]
    pub(crate) fn has_the_terminal_back(&self) {
        let is_back = || {
            let modes = rustix::termios::tcgetattr(&*self.pty).expect("a terminal").local_modes;
            modes.contains(LocalModes::ICANON | LocalModes::ECHO)
        };
        self.place.wait_for(is_back);
    }

    /// Waits until narrows has ended, and everything it started. Returns its exit code.
    #[track_caller]
    pub(crate) fn ends(mut self) -> Option<i32> {
        let status = self.child.wait().expect("it ends");
        self.place.nothing_is_left();
        status.code()
    }

    /// Leaves with Ctrl-D, from a prompt.
    #[track_caller]
    pub(crate) fn leaves(self) {
        self.types(CTRL_D);
        assert_eq!(self.ends(), Some(0));
    }
}

/// The processes of `place` that have this word in their command lines.
pub(crate) fn processes(place: &Place, word: &str) -> Vec<Pid> {
    let mark = format!("{MARK}={}", place.mark());
    let has =
        |bytes: Vec<u8>, word: &str| bytes.split(|byte| *byte == 0).any(|found| found == word.as_bytes());
    let entries = std::fs::read_dir("/proc").expect("/proc").filter_map(Result::ok);
    entries
        .filter(|entry| has(std::fs::read(entry.path().join("environ")).unwrap_or_default(), &mark))
        .filter(|entry| has(std::fs::read(entry.path().join("cmdline")).unwrap_or_default(), word))
        .filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?))
        .collect()
}
