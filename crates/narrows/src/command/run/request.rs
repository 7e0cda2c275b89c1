//! The prompt of a run, from arguments, files and stdin.

use std::io::{self, IsTerminal};
use std::path::Path;

use narrows_client::{Input, RunRequest};

use crate::cli::Run;
use crate::failure::Failure;
use crate::text_input;

/// Seconds without input after which a pipe counts as left open by accident.
const PIPE_WAIT_SECS: i64 = 3;

pub(super) fn read(args: &Run) -> Result<RunRequest, Failure> {
    let mut input: Vec<Input> = vec![prompt(args)?.into()];
    let here =
        std::env::current_dir().map_err(|error| Failure::setup("find the current directory", &error))?;
    for path in &args.image {
        // A relative path starts from the user's directory, not from the working directory of the agent.
        let image = Input::Image(here.join(path));
        // The image is checked now, so that an error is reported before the agent is started.
        image.check(&here).map_err(|error| Failure::file_unreadable("--image", path, &error))?;
        input.push(image);
    }
    let output_schema = args.schema.as_deref().map(schema).transpose()?;
    Ok(RunRequest { input, output_schema, timeout: args.timeout })
}

fn schema(path: &Path) -> Result<serde_json::Value, Failure> {
    let text =
        text_input::read_file(path).map_err(|error| Failure::file_unreadable("--schema", path, &error))?;
    serde_json::from_str(&text).map_err(|error| Failure::json_invalid("--schema", path, &error))
}

fn prompt(args: &Run) -> Result<String, Failure> {
    let piped =
        || text_input::read_all(io::stdin().lock()).map_err(|error| Failure::prompt_unreadable(&error));
    let prompt = match args.prompt.as_deref() {
        None if io::stdin().is_terminal() => return Err(Failure::no_prompt()),
        None | Some("-") => piped()?,
        Some(prompt) => {
            let mut prompt = match prompt.strip_prefix('@') {
                Some(path) => from_file(Path::new(path))?,
                None => prompt.to_owned(),
            };
            // Piped input is appended to the prompt, unless stdin carries answers to permission requests.
            if args.input.is_none() && has_input() {
                let more = piped()?;
                if !more.trim().is_empty() {
                    prompt.push_str("\n\n");
                    prompt.push_str(&more);
                }
            }
            prompt
        }
    };
    if prompt.trim().is_empty() { Err(Failure::no_prompt()) } else { Ok(prompt) }
}

fn from_file(path: &Path) -> Result<String, Failure> {
    text_input::read_file(path).map_err(|error| Failure::file_unreadable("the prompt", path, &error))
}

/// Returns `true` if stdin is a file, or a pipe with data. The run must not wait for an inherited pipe that
/// never carries data.
fn has_input() -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::fs::FileType;
    let stdin = io::stdin();
    let Ok(stat) = rustix::fs::fstat(&stdin) else { return false };
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => stat.st_size > 0,
        FileType::Fifo | FileType::Socket => {
            let mut waits = [PollFd::new(&stdin, PollFlags::IN)];
            let patience = Timespec { tv_sec: PIPE_WAIT_SECS, tv_nsec: 0 };
            let comes = poll(&mut waits, Some(&patience)).is_ok_and(|ready| ready > 0);
            if !comes {
                tracing::warn!("no input on stdin within {PIPE_WAIT_SECS} s, continuing without it");
            }
            comes
        }
        _ => false,
    }
}
