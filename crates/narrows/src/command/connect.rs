//! `narrows connect`: a remote agent on our own stdin and stdout.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use bytes::Bytes;
use narrows_link::{Link, Receiver, Sender};
use narrows_remote::client::Target;
use narrows_wire::{Code as RpcCode, Fault, Frame, Kind, RpcError, message};
use serde_json::json;
use tokio::time::timeout;

use crate::cli::Connect;
use crate::drive::Remote;
use crate::failure::{Code, Failure};
use crate::interrupt::Interrupts;
use crate::output;

/// How long an editor may take to ask its first question, to be told that there is nobody to answer it.
const FIRST: Duration = Duration::from_secs(2);

/// How long it may take to read what it was answered last.
const PATIENCE: Duration = Duration::from_secs(10);

/// Serves until the editor has gone, or the agent is lost.
pub(super) fn execute(args: Connect) -> Result<ExitCode, Failure> {
    serve(&told(Remote::of_flags(args.url, &args.remote))?)
}

/// Lets an editor know of a failure before anything is served, as it may show nobody what stands on stderr.
pub(super) fn told<T>(outcome: Result<T, Failure>) -> Result<T, Failure> {
    outcome.inspect_err(|failure| {
        if std::io::stdin().is_terminal() {
            return;
        }
        // Were there no runtime or no stdin, what stands on stderr would have to do.
        let _ = super::block_on(async {
            if let Ok(mut editor) = narrows_link::stdio::take(&Remote::local_link()) {
                explain(&mut editor, failure, true).await;
            }
        });
    })
}

/// The same for whoever knows the agent otherwise.
pub(super) fn serve(remote: &Remote) -> Result<ExitCode, Failure> {
    if std::io::stdin().is_terminal() {
        // Who has started it by hand would wait for ever.
        output::complain(&format!(
            "this is what an editor starts and talks to in JSON; to talk to the agent yourself: {} (Ctrl-D ends this)\n",
            remote.invocation()
        ));
    }
    super::block_on(async {
        let failed = |error| Failure::setup("get ready", &error);
        let mut interrupts = Interrupts::take().map_err(failed)?;
        let mut editor = narrows_link::stdio::take(&Remote::local_link())
            .map_err(|error| Failure::setup("take stdin and stdout", &error))?;
        let connected = interrupts.unless(remote.dial()).await.map_err(Failure::left)?;
        let link = match connected {
            Ok(link) => link,
            Err(error) => {
                let failure = remote.unreachable(&error);
                // What stands on stderr few editors show.
                explain(&mut editor, &failure, error.is_final()).await;
                return Err(failure);
            }
        };
        carry(editor, link, remote, &mut interrupts).await
    })?
}

/// Answers the first question with the reason why nobody else does.
async fn explain(editor: &mut Link, failure: &Failure, is_final: bool) {
    let Ok(Some(frame)) = timeout(FIRST, editor.receiver.recv()).await else { return };
    if let Some(id) = frame.id().filter(|_| frame.kind() == Kind::Request) {
        let error = RpcError::new(RpcCode::WorkerLost, failure.message());
        let error = if is_final { error.with("retryable", json!(false)) } else { error };
        // An editor that has gone need not know.
        let _ = editor.sender.push(message::error(id, &error));
    }
    editor.sender.close();
    let _ = timeout(PATIENCE, editor.sender.written()).await;
}

/// Carries messages both ways until one side has gone.
async fn carry(
    editor: Link,
    agent: Link,
    remote: &Remote,
    interrupts: &mut Interrupts,
) -> Result<ExitCode, Failure> {
    let (output, agent_input) = (editor.sender, agent.sender);
    tokio::spawn(ask(editor.receiver, agent_input.clone(), output.clone()));
    let answered = async {
        tokio::select! {
            () = answer(agent.receiver, &output) => {}
            // Whatever comes for an editor that has closed our stdout, it cannot be told.
            () = output.written() => agent_input.close(),
        }
    };
    let interrupted = interrupts.unless(answered).await;
    if interrupted.is_err() && matches!(remote.target, Target::Http(_)) {
        // The end of a connection over HTTP is said apart from the rest, so the rest need not be waited for.
        agent_input.abandon();
    }
    agent_input.close();
    // What was answered last is written, the errors of what is lost among it.
    output.close();
    let written = async {
        let _ = timeout(PATIENCE, output.written()).await;
    };
    let ((), finished) = tokio::join!(written, remote.finish());
    match interrupted {
        Ok(()) => finished.map(|()| Code::Success.exit()),
        Err(signal) => Err(Failure::left(signal)),
    }
}

/// Carries what the editor says to the agent.
async fn ask(mut editor: Receiver, agent: Sender, output: Sender) {
    while let Some(frame) = editor.recv().await {
        if let Kind::Invalid(fault) = frame.kind() {
            tracing::warn!(
                bytes = frame.bytes().len(),
                "the editor sent something that is no message: {fault}"
            );
            if let Some(refusal) = frame.refusal() {
                // An editor that has gone need not know.
                let _ = output.push(refusal);
                output.room().await;
            }
            // Whoever waits for an answer is told that it does not come.
            if let Some(error) = instead(&frame)
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

/// Carries what the agent says to the editor.
async fn answer(mut agent: Receiver, output: &Sender) {
    while let Some(frame) = agent.recv().await {
        let Some(line) = readable(frame) else { continue };
        if output.send(line).await.is_err() {
            return;
        }
    }
}

/// What the editor gets: the message as it is, or what became of one that is none.
fn readable(frame: Frame) -> Option<Bytes> {
    let Kind::Invalid(fault) = frame.kind() else { return Some(frame.into_bytes()) };
    tracing::warn!(bytes = frame.bytes().len(), "the agent sent something that is no message: {fault}");
    instead(&frame)
}

/// What goes on in place of an answer that is too long.
fn instead(frame: &Frame) -> Option<Bytes> {
    let id = frame.id().filter(|_| frame.kind() == Kind::Invalid(Fault::LongResponse))?;
    Some(message::error(id, &RpcError::new(RpcCode::MessageTooLarge, "the answer is too long to be carried")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_answer_of_the_editor_that_is_too_long_becomes_an_error() {
        let options = narrows_link::Options { max_line: 500, ..narrows_link::Options::default() };
        let (mut editor, here) = narrows_link::memory::pair(&options);
        let (there, mut agent) = narrows_link::memory::pair(&options);
        tokio::spawn(ask(here.receiver, there.sender, here.sender));
        let long = "x".repeat(1000);
        editor.sender.send(format!(r#"{{"jsonrpc":"2.0","id":7,"result":"{long}"}}"#).into()).await.unwrap();
        let told = agent.receiver.recv().await.unwrap();
        assert_eq!((told.id(), told.error().unwrap().code), (Some(&b"7"[..]), -32013));
        let asked = format!(r#"{{"jsonrpc":"2.0","id":8,"method":"m","params":"{long}"}}"#);
        editor.sender.send(asked.into()).await.unwrap();
        assert_eq!(editor.receiver.recv().await.unwrap().id(), Some(&b"8"[..]));
    }
}
