//! Commands with a timeout, and the processes that they leave behind.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::command::{tool, works};

/// Time for the descendants of a command to exit after it.
const EXIT_GRACE: Duration = Duration::from_secs(10);

const POLL_INTERVAL: Duration = Duration::from_millis(50);

#[derive(Debug, Default)]
pub(super) struct End {
    /// The exit code; `None` if a signal or the timeout ended it.
    pub(super) code: Option<i32>,
    pub(super) out: String,
    pub(super) err: String,
    pub(super) is_late: bool,
    pub(super) took: Duration,
}

impl End {
    /// Returns the last line of output that is meant for people.
    pub(super) fn last_words(&self) -> &str {
        let lines = || self.err.lines().chain(self.out.lines()).map(str::trim);
        let told = lines().find(|line| line.to_ascii_lowercase().contains("error"));
        told.or_else(|| lines().rfind(|line| !line.is_empty())).unwrap_or("no words")
    }
}

/// Runs `command` with its output in files of `place`. Kills it after `limit`.
pub(super) fn run(mut command: Command, place: &Path, limit: Duration) -> io::Result<End> {
    let (out, err) = (place.join("stdout.log"), place.join("stderr.log"));
    command.stdin(Stdio::null()).stdout(File::create(&out)?).stderr(File::create(&err)?);
    let started = Instant::now();
    let mut process = command.spawn()?;
    let mut end = End::default();
    loop {
        if let Some(status) = process.try_wait()? {
            end.code = status.code();
            break;
        }
        if started.elapsed() > limit {
            end.is_late = true;
            process.kill()?;
            process.wait()?;
            break;
        }
        thread::sleep(POLL_INTERVAL);
    }
    end.took = started.elapsed();
    end.out = String::from_utf8_lossy(&fs::read(&out)?).into_owned();
    end.err = String::from_utf8_lossy(&fs::read(&err)?).into_owned();
    Ok(end)
}

/// Returns the name and id of each process that still has `mark` in its environment after the grace period.
///
/// Kills these processes, so that they do not disturb later tries.
pub(super) fn left_behind(mark: &str) -> Vec<String> {
    let started = Instant::now();
    loop {
        let found = marked(mark);
        if found.is_empty() {
            return Vec::new();
        }
        if started.elapsed() > EXIT_GRACE {
            let end = |(name, number): (String, String)| {
                works(tool("kill", &["-9", &number]));
                format!("{name} ({number})")
            };
            return found.into_iter().map(end).collect();
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// Returns the names and ids of the processes with this mark.
fn marked(mark: &str) -> Vec<(String, String)> {
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let is_marked = |place: &Path| {
        let variables = fs::read(place.join("environ")).unwrap_or_default();
        variables.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
    };
    processes
        .flatten()
        .filter(|process| process.file_name().to_string_lossy().bytes().all(|byte| byte.is_ascii_digit()))
        .filter(|process| is_marked(&process.path()))
        .map(|process| {
            let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            (name.trim().to_owned(), process.file_name().to_string_lossy().into_owned())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::target;

    fn place(name: &str) -> std::path::PathBuf {
        let place = target().join("xtask-tests").join(name);
        fs::create_dir_all(&place).expect("the target directory can be written to");
        place
    }

    #[test]
    fn a_finished_command_has_a_code_and_output() {
        let command = tool("sh", &["-c", "echo fine; echo oh >&2; exit 3"]);
        let end = run(command, &place("ends"), Duration::from_secs(60)).expect("sh is there");
        assert_eq!((end.code, end.is_late, &*end.out, &*end.err), (Some(3), false, "fine\n", "oh\n"));
    }

    #[test]
    fn a_command_over_its_timeout_is_killed() {
        let command = tool("sleep", &["600"]);
        let end = run(command, &place("hangs"), Duration::from_millis(200)).expect("sleep is there");
        assert_eq!((end.code, end.is_late), (None, true));
    }

    #[test]
    fn leftover_processes_are_found_by_their_mark() {
        let value = format!("here-{}", std::process::id());
        let mut process =
            tool("sleep", &["600"]).env("XTASK_TEST_MARK", &value).spawn().expect("sleep is there");
        let mark = format!("XTASK_TEST_MARK={value}");
        let number = process.id().to_string();
        // A program that has just been started shows no environment yet.
        let begun = Instant::now();
        let mut found = marked(&mark);
        while found.is_empty() && begun.elapsed() < Duration::from_secs(20) {
            thread::yield_now();
            found = marked(&mark);
        }
        process.kill().expect("it is ours");
        process.wait().expect("it is ours");
        assert_eq!(found.iter().map(|(_, number)| number).collect::<Vec<_>>(), [&number]);
        assert_eq!(marked(&mark), []);
    }

    #[track_caller]
    fn check(out: &str, err: &str, expected: &str) {
        let end = End { out: out.to_owned(), err: err.to_owned(), ..End::default() };
        assert_eq!(end.last_words(), expected);
    }

    #[test]
    fn an_error_is_quoted_before_anything_else() {
        check("", "note\nERROR: no such package\nbye\n", "ERROR: no such package");
        check("one\ntwo\n\n", "", "two");
        check("", "", "no words");
    }
}
