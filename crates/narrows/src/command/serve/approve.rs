//! `narrows approve`: lists pending actions of running gates, and sends signed approvals.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use narrows_audit::{Approval, ApprovalDecision, ApprovalSigner, Timestamp, key};
use narrows_base::text::approval_line;
use serde_json::json;

use super::approval_protocol::{
    MAX_RESPONSE_BYTES, PendingAction, PendingActionSummary, SocketRequest, SocketResponse,
};
use super::approval_text;
use super::socket_files;
use crate::cli::Approve;
use crate::config::{Variables, runtime_dir};
use crate::failure::{ExitStatus, Failure};
use crate::output;
use crate::terminal::line;

/// Maximum number of characters of an input in a list. A gate sends fewer.
const MAX_LINE_CHARS: usize = 8 << 10;

const RESPONSE_TIMEOUT: Duration = Duration::from_secs(15);

pub(in crate::command) fn execute(args: &Approve) -> Result<ExitCode, Failure> {
    let sockets = gate_sockets(args.socket.as_deref())?;
    let Some(id) = &args.id else { return list(&sockets, args) };
    let Some((socket, action)) = find(id, &sockets, args)? else {
        return Err(Failure::no_pending_approval(id));
    };
    let Some(file) = args.key.as_ref().filter(|_| !args.show) else {
        match args.json {
            true => output::print_json(json!(action))?,
            false => output::print(approval_text::render(&action).as_bytes())?,
        }
        return Ok(ExitStatus::Success.exit_code());
    };
    let key = key::read_signing(file).map_err(|error| Failure::key_file("--key", file, &error))?;
    let artifact = action
        .signed_artifact()
        .map_err(|_| Failure::approval_not_counted("the action is nested too deeply"))?;
    let decision = if args.reject.is_some() { ApprovalDecision::Reject } else { ApprovalDecision::Approve };
    let signer = ApprovalSigner { id: key.public().to_string(), role: None, display_name: None };
    let mut approval = Approval::new(artifact, decision, signer, Timestamp::now().to_string());
    approval.reason.clone_from(&args.reject);
    let approval =
        approval.sign(&key).map_err(|_| Failure::approval_not_counted("the action is nested too deeply"))?;
    match send_request(&socket, &SocketRequest::Approval(Box::new(approval))) {
        Ok(SocketResponse::Counted) => {
            let word = if args.reject.is_some() { "rejected" } else { "approved" };
            let told =
                approval_line(&format!("{word}: {} {}", action.tool, action.input_summary()), MAX_LINE_CHARS);
            output::print(told.as_bytes())?;
            output::print(b"\n")?;
            Ok(ExitStatus::Success.exit_code())
        }
        Ok(SocketResponse::Refused(why)) => Err(Failure::approval_not_counted(&why)),
        Ok(SocketResponse::Open(_) | SocketResponse::Whole(_)) => {
            Err(Failure::approval_not_counted("the gate does not support this request"))
        }
        Err(error) => Err(Failure::gate_unreachable(&socket, &error)),
    }
}

/// Returns `true` if no process listens on the socket any more.
fn is_disconnected(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound)
}

/// Returns the failure for the last socket that did not answer, and prints those for the others.
fn last_silent(mut silent: Vec<(PathBuf, io::Error)>) -> Option<Failure> {
    let (socket, error) = silent.pop()?;
    for (socket, error) in &silent {
        let told = line(&format!("no answer on {:?}: {error}", socket.display().to_string()));
        output::write_stderr(&format!("{told}\n"));
    }
    Some(Failure::gate_unreachable(&socket, &error))
}

/// Returns the pending action with this id, and the socket of its gate. Fails if no gate has it and one did not
/// answer.
fn find(id: &str, sockets: &[PathBuf], args: &Approve) -> Result<Option<(PathBuf, PendingAction)>, Failure> {
    let mut silent = Vec::new();
    for socket in sockets {
        match send_request(socket, &SocketRequest::Show(id.to_owned())) {
            Ok(SocketResponse::Whole(Some(action))) => return Ok(Some((socket.clone(), *action))),
            Ok(SocketResponse::Whole(None)) => {}
            Ok(_) => silent.push((socket.clone(), io::ErrorKind::InvalidData.into())),
            // The gate of this socket has exited, so it has no pending actions.
            Err(error) if args.socket.is_none() && is_disconnected(&error) => {}
            Err(error) => silent.push((socket.clone(), error)),
        }
    }
    last_silent(silent).map_or(Ok(None), Err)
}

/// Prints the pending actions. Fails if a gate did not answer, because it may have more of them.
fn list(sockets: &[PathBuf], args: &Approve) -> Result<ExitCode, Failure> {
    let (mut waiting, mut omitted, mut silent) = (Vec::new(), 0, Vec::new());
    for socket in sockets {
        match send_request(socket, &SocketRequest::List) {
            Ok(SocketResponse::Open(open)) => {
                waiting.extend(open.actions);
                omitted += open.omitted;
            }
            Ok(_) => silent.push((socket.clone(), io::ErrorKind::InvalidData.into())),
            Err(error) if args.socket.is_none() && is_disconnected(&error) => {}
            Err(error) => silent.push((socket.clone(), error)),
        }
    }
    if args.json {
        let mut told = json!({ "pending": waiting });
        if omitted > 0 {
            told["omitted"] = json!(omitted);
        }
        output::print_json(told)?;
        return last_silent(silent).map_or_else(|| Ok(ExitStatus::Success.exit_code()), Err);
    }
    if waiting.is_empty() && silent.is_empty() {
        output::write_stderr("no pending approvals\n");
    }
    for listed in &waiting {
        output::print(format!("{}\n", render(listed)).as_bytes())?;
    }
    if omitted > 0 {
        output::write_stderr(&format!("{omitted} more pending approvals, not listed\n"));
    }
    last_silent(silent).map_or_else(|| Ok(ExitStatus::Success.exit_code()), Err)
}

fn render(listed: &PendingActionSummary) -> String {
    let PendingActionSummary { id, tool, input, reason, needs, until } = listed;
    let needs = if needs.is_empty() { String::new() } else { format!("; needs {needs}") };
    let left = approval_text::time_left(*until);
    let left = if left.is_empty() { left } else { format!("; expires {left}") };
    approval_line(&format!("{id}  {tool} {input}  ({reason}{needs}{left})"), MAX_LINE_CHARS)
}

fn gate_sockets(named: Option<&Path>) -> Result<Vec<PathBuf>, Failure> {
    if let Some(named) = named {
        return Ok(vec![named.to_owned()]);
    }
    let Some(directory) = runtime_dir(&Variables::of_process()) else {
        return Err(Failure::no_runtime_dir());
    };
    let paths =
        socket_files::list(&directory).map_err(|error| Failure::gate_unreachable(&directory, &error))?;
    if !paths.is_empty()
        && let Ok(_lock) = socket_files::lock(&directory)
    {
        socket_files::sweep(&directory);
    }
    Ok(paths)
}

fn send_request(socket: &Path, ask: &SocketRequest) -> io::Result<SocketResponse> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(RESPONSE_TIMEOUT))?;
    stream.set_write_timeout(Some(RESPONSE_TIMEOUT))?;
    let mut text = serde_json::to_vec(ask)?;
    text.push(b'\n');
    stream.write_all(&text)?;
    let mut answer = String::new();
    BufReader::new(stream.take(MAX_RESPONSE_BYTES)).read_line(&mut answer)?;
    Ok(serde_json::from_str(&answer)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_shows_every_character() {
        let listed = PendingActionSummary {
            id: "n-1".into(),
            tool: "kind:delete".into(),
            input: "\"/a\u{ad}b\u{3164}\u{115f}\u{2800}\u{200b}\"".into(),
            reason: "r".into(),
            needs: String::new(),
            until: 0,
        };
        let expected = r#"n-1  kind:delete "/a\u{ad}b\u{3164}\u{115f}\u{2800}\u{200b}"  (r)"#;
        assert_eq!(render(&listed), expected);
    }
}
