//! `narrows approve`: somebody's word from elsewhere, signed.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use narrows_audit::{Approval, ApprovalDecision, Signer, Timestamp, key};
use narrows_base::text::visible_line;

use super::case::{Answer, Ask, LONGEST_ANSWER, Listed};
use super::{sheet, sockets};
use crate::cli::Approve;
use crate::config::{Variables, runtime_dir};
use crate::failure::{Code, Failure};
use crate::output;
use crate::terminal::line;

/// How many characters tell one of many: more than there are of an input there.
const LISTED: usize = 8 << 10;

/// How long a gate may take to answer.
const PATIENCE: Duration = Duration::from_secs(15);

/// Approves or rejects, or tells what waits.
pub(in crate::command) fn execute(args: &Approve) -> Result<ExitCode, Failure> {
    let (mut waiting, mut silent) = (Vec::new(), Vec::new());
    for socket in sockets_of(args.socket.as_deref())? {
        match ask(&socket, &Ask::List) {
            Ok(Answer::Open(cases)) => waiting.extend(cases.into_iter().map(|case| (socket.clone(), case))),
            Ok(_) => silent.push((socket, io::ErrorKind::InvalidData.into())),
            // Whoever was there has gone, and nothing waits there.
            Err(error) if args.socket.is_none() && has_gone(&error) => {}
            Err(error) => silent.push((socket, error)),
        }
    }
    let Some(id) = &args.id else { return list(&waiting, silent) };
    let Some((socket, _)) = waiting.into_iter().find(|(_, case)| case.id == *id) else {
        return Err(unanswered(silent).unwrap_or_else(|| Failure::nothing_waits(id)));
    };
    let case = match ask(&socket, &Ask::Show(id.clone())) {
        Ok(Answer::Whole(Some(case))) => case,
        Ok(Answer::Whole(None)) => return Err(Failure::nothing_waits(id)),
        Ok(_) => return Err(Failure::not_approved("the gate does not understand it")),
        Err(error) => return Err(Failure::no_gate(&socket, &error)),
    };
    let Some(file) = args.key.as_ref().filter(|_| !args.show) else {
        output::print(sheet::write(&case).as_bytes())?;
        return Ok(Code::Success.exit());
    };
    let key = key::read_signing(file).map_err(|error| Failure::key_file("--key", file, &error))?;
    let artifact = case.artifact().map_err(|_| Failure::not_approved("what waits is nested too deeply"))?;
    let decision = if args.reject.is_some() { ApprovalDecision::Reject } else { ApprovalDecision::Approve };
    let signer = Signer { id: key.public().to_string(), role: None, display_name: None };
    let mut approval = Approval::new(artifact, decision, signer, Timestamp::now().to_string());
    approval.reason.clone_from(&args.reject);
    let approval =
        approval.sign(&key).map_err(|_| Failure::not_approved("what waits is nested too deeply"))?;
    match ask(&socket, &Ask::Approval(Box::new(approval))) {
        Ok(Answer::Counted) => {
            let word = if args.reject.is_some() { "rejected" } else { "approved" };
            let told = visible_line(&format!("{word}: {} {}", case.tool, case.shown()), LISTED);
            output::print(told.as_bytes())?;
            output::print(b"\n")?;
            Ok(Code::Success.exit())
        }
        Ok(Answer::Refused(why)) => Err(Failure::not_approved(&why)),
        Ok(Answer::Open(_) | Answer::Whole(_)) => {
            Err(Failure::not_approved("the gate does not understand it"))
        }
        Err(error) => Err(Failure::no_gate(&socket, &error)),
    }
}

/// Whether this says that nobody listens any more.
fn has_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound)
}

/// The last of the sockets that have not answered; the others are complained of.
fn unanswered(mut silent: Vec<(PathBuf, io::Error)>) -> Option<Failure> {
    let (socket, error) = silent.pop()?;
    for (socket, error) in &silent {
        let told = line(&format!("nobody answers at {:?}: {error}", socket.display().to_string()));
        output::complain(&format!("{told}\n"));
    }
    Some(Failure::no_gate(&socket, &error))
}

/// Tells what waits, and fails if there may be more.
fn list(waiting: &[(PathBuf, Listed)], silent: Vec<(PathBuf, io::Error)>) -> Result<ExitCode, Failure> {
    if waiting.is_empty() && silent.is_empty() {
        output::complain("nothing waits for an approval\n");
    }
    for (_, listed) in waiting {
        output::print(format!("{}\n", render(listed)).as_bytes())?;
    }
    unanswered(silent).map_or_else(|| Ok(Code::Success.exit()), Err)
}

/// Returns the line of the list for what waits.
fn render(listed: &Listed) -> String {
    let Listed { id, tool, input, reason, needs, until } = listed;
    let needs = if needs.is_empty() { String::new() } else { format!("; needs {needs}") };
    let left = sheet::left(*until);
    let left = if left.is_empty() { left } else { format!("; refused {left}") };
    visible_line(&format!("{id}  {tool} {input}  ({reason}{needs}{left})"), LISTED)
}

/// The sockets of the gates that may be running.
fn sockets_of(named: Option<&Path>) -> Result<Vec<PathBuf>, Failure> {
    if let Some(named) = named {
        return Ok(vec![named.to_owned()]);
    }
    let Some(directory) = runtime_dir(&Variables::of_process()) else {
        return Err(Failure::no_runtime_dir());
    };
    let paths = sockets::list(&directory).map_err(|error| Failure::no_gate(&directory, &error))?;
    if !paths.is_empty()
        && let Ok(_lock) = sockets::lock(&directory)
    {
        sockets::sweep(&directory);
    }
    Ok(paths)
}

fn ask(socket: &Path, ask: &Ask) -> io::Result<Answer> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut text = serde_json::to_vec(ask)?;
    text.push(b'\n');
    stream.write_all(&text)?;
    let mut answer = String::new();
    BufReader::new(stream.take(LONGEST_ANSWER)).read_line(&mut answer)?;
    Ok(serde_json::from_str(&answer)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_hides_no_character() {
        let listed = Listed {
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
