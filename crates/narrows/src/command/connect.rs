//! `narrows connect`: bridges stdio to a remote agent.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use bytes::Bytes;
use narrows_link::{Link, Receiver, Sender};
use narrows_remote::client::Target;
use narrows_wire::{Code as RpcCode, Fault, Frame, Kind, RpcError, message};
use serde_json::json;
use tokio::time::timeout;

use crate::agent_source::Remote;
use crate::cli::Connect;
use crate::failure::{ExitStatus, Failure};
use crate::interrupt::Interrupts;
use crate::output;

/// Time for the editor to send its first request, which is then answered with the failure.
const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// The time for an editor to read its last responses.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) fn execute(args: Connect) -> Result<ExitCode, Failure> {
    serve(&report_to_editor(Remote::from_flags(args.url, &args.remote))?)
}

/// Reports a failure to the editor if the connection cannot even be prepared, because editors may not show
/// stderr.
pub(super) fn report_to_editor<T>(outcome: Result<T, Failure>) -> Result<T, Failure> {
    outcome.inspect_err(|failure| {
        if std::io::stdin().is_terminal() {
            return;
        }
        // If this also fails, for lack of a runtime or stdin, the failure is only printed to stderr.
        let _ = super::block_on(async {
            if let Ok(mut editor) = narrows_link::stdio::take(&Remote::local_link_options()) {
                answer_with_failure(&mut editor, failure, true).await;
            }
        });
    })
}

pub(super) fn serve(remote: &Remote) -> Result<ExitCode, Failure> {
    if std::io::stdin().is_terminal() {
        // In a terminal the command would wait silently for JSON.
        output::write_stderr(&format!(
            "this command speaks JSON with an editor; to chat with the agent in a terminal: {} (Ctrl-D exits)\n",
            remote.shell_command()
        ));
    }
    super::block_on(async {
        let failed = |error| Failure::setup("listen for signals", &error);
        let mut interrupts = Interrupts::listen().map_err(failed)?;
        let mut editor = narrows_link::stdio::take(&Remote::local_link_options())
            .map_err(|error| Failure::setup("open stdin and stdout", &error))?;
        let connected = interrupts.unless_signal(remote.dial()).await.map_err(Failure::forced_exit)?;
        let link = match connected {
            Ok(link) => link,
            Err(error) => {
                let failure = remote.unreachable(&error);
                answer_with_failure(&mut editor, &failure, error.is_final()).await;
                return Err(failure);
            }
        };
        pump(editor, link, remote, &mut interrupts).await
    })?
}

/// Answers the editor's first request with the failure, because few editors show stderr.
async fn answer_with_failure(editor: &mut Link, failure: &Failure, is_final: bool) {
    let Ok(Some(frame)) = timeout(FIRST_REQUEST_TIMEOUT, editor.receiver.recv()).await else { return };
    if let Some(id) = frame.id().filter(|_| frame.kind() == Kind::Request) {
        let error = RpcError::new(RpcCode::WorkerLost, failure.message());
        let error = if is_final { error.with("retryable", json!(false)) } else { error };
        // The editor may have disconnected.
        let _ = editor.sender.push(message::error(id, &error));
    }
    editor.sender.close();
    let _ = timeout(DRAIN_TIMEOUT, editor.sender.written()).await;
}

/// Forwards messages in both directions until one side ends.
async fn pump(
    editor: Link,
    agent: Link,
    remote: &Remote,
    interrupts: &mut Interrupts,
) -> Result<ExitCode, Failure> {
    let (output, agent_input) = (editor.sender, agent.sender);
    tokio::spawn(forward_to_agent(editor.receiver, agent_input.clone(), output.clone()));
    let answered = async {
        tokio::select! {
            () = forward_to_editor(agent.receiver, &output) => {}
            // Nothing can be sent to an editor that closed the stdout of this process.
            () = output.written() => agent_input.close(),
        }
    };
    let interrupted = interrupts.unless_signal(answered).await;
    if interrupted.is_err() && matches!(remote.target, Target::Http(_)) {
        // Over HTTP the end of a connection is sent separately, so messages that are still queued can be
        // dropped.
        agent_input.abandon();
    }
    agent_input.close();
    // The last responses are still written, including errors for lost requests.
    output.close();
    let written = async {
        let _ = timeout(DRAIN_TIMEOUT, output.written()).await;
    };
    let ((), finished) = tokio::join!(written, remote.finish());
    match interrupted {
        Ok(()) => finished.map(|()| ExitStatus::Success.exit_code()),
        Err(signal) => Err(Failure::forced_exit(signal)),
    }
}

async fn forward_to_agent(mut editor: Receiver, agent: Sender, output: Sender) {
    while let Some(frame) = editor.recv().await {
        if let Kind::Invalid(fault) = frame.kind() {
            tracing::warn!(bytes = frame.bytes().len(), error = %fault, "invalid message from the editor");
            if let Some(refusal) = frame.refusal() {
                // The editor may have disconnected.
                let _ = output.push(refusal);
                output.room().await;
            }
            // The agent gets an error in place of an answer that is too long.
            if let Some(error) = oversized_answer_error(&frame)
                && agent.send(error).await.is_err()
            {
                return;
            }
        } else if agent.send(frame.into_bytes()).await.is_err() {
            return;
        }
    }
    agent.close();
}

async fn forward_to_editor(mut agent: Receiver, output: &Sender) {
    while let Some(frame) = agent.recv().await {
        let Some(line) = line_for_editor(frame) else { continue };
        if output.send(line).await.is_err() {
            return;
        }
    }
}

/// Returns the line for the editor: the message, or an error in place of an invalid one.
fn line_for_editor(frame: Frame) -> Option<Bytes> {
    let Kind::Invalid(fault) = frame.kind() else { return Some(frame.into_bytes()) };
    tracing::warn!(bytes = frame.bytes().len(), error = %fault, "invalid message from the agent");
    oversized_answer_error(&frame)
}

/// Returns the error that replaces `frame` if that is an answer that is too long.
fn oversized_answer_error(frame: &Frame) -> Option<Bytes> {
    let id = frame.id().filter(|_| frame.kind() == Kind::Invalid(Fault::LongResponse))?;
    Some(message::error(id, &RpcError::new(RpcCode::MessageTooLarge, "response too long")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_oversized_answer_of_the_editor_becomes_an_error() {
        let options = narrows_link::Options { max_line: 500, ..narrows_link::Options::default() };
        let (mut editor, here) = narrows_link::memory::pair(&options);
        let (there, mut agent) = narrows_link::memory::pair(&options);
        tokio::spawn(forward_to_agent(here.receiver, there.sender, here.sender));
        let long = "x".repeat(1000);
        editor.sender.send(format!(r#"{{"jsonrpc":"2.0","id":7,"result":"{long}"}}"#).into()).await.unwrap();
        let told = agent.receiver.recv().await.unwrap();
        assert_eq!((told.id(), told.error().unwrap().code), (Some(&b"7"[..]), -32013));
        let asked = format!(r#"{{"jsonrpc":"2.0","id":8,"method":"m","params":"{long}"}}"#);
        editor.sender.send(asked.into()).await.unwrap();
        assert_eq!(editor.receiver.recv().await.unwrap().id(), Some(&b"8"[..]));
    }
}
