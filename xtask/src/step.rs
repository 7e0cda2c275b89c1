//! Steps of a command: runs each, prints its duration, and reports its failure.

use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    pub(crate) message: String,
}

/// A sequence of steps that ends with the first failure.
pub(crate) struct Steps {
    name: &'static str,
    started: Instant,
    done: usize,
}

impl Steps {
    pub(crate) fn new(name: &'static str) -> Self {
        Self { name, started: Instant::now(), done: 0 }
    }

    /// Runs `command` with inherited stdout and stderr, and prints its duration.
    pub(crate) fn run(&mut self, title: &str, mut command: Command) -> Result<(), Failure> {
        eprintln!("\n==> {title}: {}", shown(&command));
        let started = Instant::now();
        let outcome = command.status();
        let took = seconds(started.elapsed());
        match outcome {
            Ok(status) if status.success() => {
                eprintln!("==> {title}: done in {took}");
                self.done += 1;
                Ok(())
            }
            Ok(status) => Err(Failure {
                code: code(status),
                message: format!("{} stopped: {title} failed after {took} ({status})", self.name),
            }),
            Err(error) => Err(Failure {
                code: 1,
                message: format!("{} stopped: {title} could not start: {error}", self.name),
            }),
        }
    }

    /// Runs a check in this process, and prints its duration.
    pub(crate) fn check(
        &mut self,
        title: &str,
        work: impl FnOnce() -> Result<(), String>,
    ) -> Result<(), Failure> {
        eprintln!("\n==> {title}");
        let started = Instant::now();
        let outcome = work();
        let took = seconds(started.elapsed());
        match outcome {
            Ok(()) => {
                eprintln!("==> {title}: done in {took}");
                self.done += 1;
                Ok(())
            }
            Err(problem) => {
                let message = format!("{} stopped: {title} failed after {took}: {problem}", self.name);
                Err(Failure { code: 1, message })
            }
        }
    }

    /// Prints the closing line after all steps have passed.
    pub(crate) fn finish(&self) {
        let took = seconds(self.started.elapsed());
        eprintln!("\n==> {}: passed, {} in {took}", self.name, counted(self.done));
    }
}

/// Returns the exit code to pass on; 1 for a step that was ended by a signal.
fn code(status: ExitStatus) -> u8 {
    status.code().and_then(|code| u8::try_from(code).ok()).filter(|code| *code != 0).unwrap_or(1)
}

/// Returns the command as one could type it.
fn shown(command: &Command) -> String {
    let program = std::path::Path::new(command.get_program());
    let mut words = vec![program.file_name().unwrap_or(command.get_program()).to_string_lossy()];
    words.extend(command.get_args().map(std::ffi::OsStr::to_string_lossy));
    words.join(" ")
}

fn counted(steps: usize) -> String {
    if steps == 1 { "1 step".to_owned() } else { format!("{steps} steps") }
}

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command;

    #[test]
    fn a_failing_step_names_itself_and_passes_its_code_on() {
        let mut steps = Steps::new("test");
        let failure = steps.run("odd", command::tool("sh", &["-c", "exit 7"])).unwrap_err();
        assert_eq!(failure.code, 7);
        assert!(failure.message.starts_with("test stopped: odd failed after "), "{}", failure.message);
        assert!(failure.message.ends_with("(exit status: 7)"), "{}", failure.message);
        assert_eq!(steps.done, 0);
    }

    #[test]
    fn a_step_ended_by_a_signal_fails_with_1() {
        let failure = Steps::new("test").run("shot", command::tool("sh", &["-c", "kill -9 $$"])).unwrap_err();
        assert_eq!(failure.code, 1);
    }

    #[test]
    fn a_step_that_cannot_start_says_so() {
        let failure = Steps::new("test").run("gone", command::tool("no-such-program", &[])).unwrap_err();
        assert!(failure.message.starts_with("test stopped: gone could not start: "), "{}", failure.message);
    }

    #[test]
    fn a_step_is_shown_without_the_directory_of_its_program() {
        assert_eq!(shown(&command::tool("/usr/bin/cargo", &["fmt", "--check"])), "cargo fmt --check");
    }
}
