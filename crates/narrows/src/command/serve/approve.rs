//! `narrows approve`: somebody's word from elsewhere, signed.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use narrows_audit::{Approval, Signer, Timestamp, Verdict, key};

use super::case::{Answer, Ask, Case, LONGEST};
use crate::cli::Approve;
use crate::config::{Variables, runtime_dir};
use crate::failure::{Code, Failure};
use crate::output;
use crate::terminal::line;

/// How long a gate may take to answer.
const PATIENCE: Duration = Duration::from_secs(15);

/// Approves or rejects, or tells what waits.
pub(in crate::command) fn execute(args: &Approve) -> Result<ExitCode, Failure> {
    let mut waiting = Vec::new();
    for socket in sockets(args.socket.as_deref())? {
        match ask(&socket, &Ask::List) {
            Ok(Answer::Open(cases)) => waiting.extend(cases.into_iter().map(|case| (socket.clone(), case))),
            Ok(_) => {}
            // One that has just gone, unless it was named.
            Err(error) if args.socket.is_some() => return Err(Failure::no_gate(&socket, &error)),
            Err(_) => {}
        }
    }
    let (Some(id), Some(file)) = (&args.id, &args.key) else {
        return list(&waiting);
    };
    let found = waiting.into_iter().find(|(_, case)| case.id == *id);
    let (socket, case) = found.ok_or_else(|| Failure::nothing_waits(id))?;
    let key = key::read_signing(file).map_err(|error| Failure::key_file("--key", file, &error))?;
    let artifact = case.artifact().map_err(|_| Failure::not_approved("what waits is nested too deeply"))?;
    let decision = if args.reject.is_some() { Verdict::Reject } else { Verdict::Approve };
    let signer = Signer { id: key.public().to_string(), role: None, display_name: None };
    let mut approval = Approval::new(artifact, decision, signer, Timestamp::now().to_string());
    approval.reason.clone_from(&args.reject);
    let approval =
        approval.sign(&key).map_err(|_| Failure::not_approved("what waits is nested too deeply"))?;
    match ask(&socket, &Ask::Approval(Box::new(approval))) {
        Ok(Answer::Counted) => {
            let word = if args.reject.is_some() { "rejected" } else { "approved" };
            output::print(line(&format!("{word}: {} {}", case.tool, case.input)).as_bytes())?;
            output::print(b"\n")?;
            Ok(Code::Success.exit())
        }
        Ok(Answer::Refused(why)) => Err(Failure::not_approved(&why)),
        Ok(Answer::Open(_)) => Err(Failure::not_approved("the gate does not understand it")),
        Err(error) => Err(Failure::no_gate(&socket, &error)),
    }
}

fn list(waiting: &[(PathBuf, Case)]) -> Result<ExitCode, Failure> {
    if waiting.is_empty() {
        output::complain("nothing waits for an approval\n");
    }
    for (_, Case { id, tool, input, reason, .. }) in waiting {
        let told = line(&format!("{id}  {tool} {input}  ({reason})"));
        output::print(format!("{told}\n").as_bytes())?;
    }
    Ok(Code::Success.exit())
}

/// The sockets of the gates that may be running.
fn sockets(named: Option<&Path>) -> Result<Vec<PathBuf>, Failure> {
    if let Some(named) = named {
        return Ok(vec![named.to_owned()]);
    }
    let Some(directory) = runtime_dir(&Variables::of_process()) else {
        return Err(Failure::no_runtime_dir());
    };
    let entries = match std::fs::read_dir(&directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Failure::no_gate(&directory, &error)),
    };
    let is_gate = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with("serve-") && name.ends_with(".sock")
    };
    let mut paths: Vec<PathBuf> =
        entries.filter_map(Result::ok).map(|entry| entry.path()).filter(is_gate).collect();
    paths.sort();
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
    BufReader::new(stream.take(LONGEST)).read_line(&mut answer)?;
    Ok(serde_json::from_str(&answer)?)
}
