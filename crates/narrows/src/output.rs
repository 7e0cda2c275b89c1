//! The way to stdout and stderr for everything that is not streamed.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use crate::error_report::{self, ErrorFormat};
use crate::failure::{Code, Failure};

/// How long the last words wait for somebody to read them.
const PATIENCE: Duration = Duration::from_secs(3);

/// Our stdout, without a buffer in between.
pub(crate) fn stdout() -> io::Result<File> {
    Ok(File::from(io::stdout().as_fd().try_clone_to_owned()?))
}

/// Writes all of `bytes` to stdout.
pub(crate) fn print(bytes: &[u8]) -> Result<(), Failure> {
    stdout().and_then(|mut stdout| stdout.write_all(bytes)).map_err(|error| Failure::output(&error))
}

/// Writes `json` and the end of a line to stdout, with characters that steer a terminal escaped: peers chose some of them.
pub(crate) fn print_json(json: impl std::fmt::Display) -> Result<(), Failure> {
    print(narrows_base::text::escape_json(format!("{json}\n")).as_bytes())
}

/// Writes all of `text` to stderr. There is nobody to tell if that fails.
pub(crate) fn complain(text: &str) {
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// The same as the last thing we do: a stderr that nobody reads does not keep us for long.
pub(crate) fn complain_briefly(text: String) {
    let (done, written) = sync_channel::<()>(0);
    let writing = std::thread::Builder::new().spawn(move || {
        complain(&text);
        drop(done);
    });
    if writing.is_ok() {
        // It is dropped, or the time is over.
        let _ = written.recv_timeout(PATIENCE);
    }
}

/// Prints what clap has to say: the help, the version, or what is wrong with the arguments.
/// Programs that read stdout get the errors there as well, in the form `errors`.
pub(crate) fn clap_says(answer: &clap::Error, errors: Option<ErrorFormat>) -> ExitCode {
    if !answer.use_stderr() && narrows_process::stdout_was_closed() {
        return Code::OutputClosed.exit();
    }
    let printed = answer.print();
    if answer.use_stderr() {
        if let Some(errors) = errors {
            errors.print(&error_report::of_arguments(answer));
        }
        return Code::Usage.exit();
    }
    match printed {
        Ok(()) => Code::Success.exit(),
        Err(error) => Failure::output(&error).tell(),
    }
}
