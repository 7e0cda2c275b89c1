//! Output to stdout and stderr that is not streamed.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use crate::error_report::{self, ErrorFormat};
use crate::failure::{ExitStatus, Failure};
use crate::terminal::line;

/// The time for the last write at exit, if stderr blocks.
const FINAL_WRITE_TIMEOUT: Duration = Duration::from_secs(3);

pub(crate) fn stdout() -> io::Result<File> {
    Ok(File::from(io::stdout().as_fd().try_clone_to_owned()?))
}

pub(crate) fn print(bytes: &[u8]) -> Result<(), Failure> {
    stdout().and_then(|mut stdout| stdout.write_all(bytes)).map_err(|error| Failure::output_failed(&error))
}

/// Writes `json` as a line to stdout, with terminal control characters escaped: peers chose some of the text.
pub(crate) fn print_json(json: impl std::fmt::Display) -> Result<(), Failure> {
    print(narrows_base::text::escape_json(format!("{json}\n")).as_bytes())
}

/// Writes to stderr. Errors cannot be reported.
pub(crate) fn write_stderr(text: &str) {
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

pub(crate) fn warn(text: &str) {
    write_stderr(&format!("warning: {}\n", line(text)));
}

/// Writes the last text to stderr. If stderr blocks, the exit is delayed only for a bounded time.
pub(crate) fn write_stderr_bounded(text: String) {
    let (done, written) = sync_channel::<()>(0);
    let writing = std::thread::Builder::new().spawn(move || {
        write_stderr(&text);
        drop(done);
    });
    if writing.is_ok() {
        // Either the write has ended or the time is over.
        let _ = written.recv_timeout(FINAL_WRITE_TIMEOUT);
    }
}

/// Prints help, version or an argument error of clap. With `errors`, an argument error is also written to
/// stdout in that format.
pub(crate) fn print_clap(answer: &clap::Error, errors: Option<ErrorFormat>) -> ExitCode {
    if !answer.use_stderr() && narrows_process::stdout_was_closed() {
        return ExitStatus::OutputClosed.exit_code();
    }
    let printed = answer.print();
    if answer.use_stderr() {
        if let Some(errors) = errors {
            errors.print(&error_report::from_clap(answer));
        }
        return ExitStatus::Usage.exit_code();
    }
    match printed {
        Ok(()) => ExitStatus::Success.exit_code(),
        Err(error) => Failure::output_failed(&error).report(),
    }
}
