//! What no agent should do, done on purpose.

use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;

use bytes::Bytes;
use narrows_acp::method;
use narrows_wire::message;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use crate::agent::Ended;
use crate::player::{End, Flow, Player};
use crate::script::step::{Fault, Voice};

/// How much of a giant line is written at a time.
const PIECE: usize = 64 << 10;

/// The answer to a request that nobody made.
const UNKNOWN: &[u8] = b"{\"jsonrpc\":\"2.0\",\"id\":\"never-asked\",\"result\":{}}\n";

impl Player {
    /// Commits a fault.
    pub(crate) async fn fault(&mut self, fault: &Fault) -> Flow {
        match fault {
            Fault::Pollute(text) => self.write_raw(format!("{}\n", self.facts.fill(text)).into()).await,
            Fault::HalfLine(text) => self.write_raw(self.facts.fill(text).into()).await,
            Fault::GiantLine(bytes) => self.giant_line(*bytes).await,
            Fault::BadUtf8 => {
                let (head, tail) = self.line_around();
                self.write_raw([&head[..], b"\xff\xfe \xc3\x28", &tail[..]].concat().into()).await
            }
            Fault::UnknownResponse => self.write_raw(Bytes::from_static(UNKNOWN)).await,
            Fault::Flood { updates, bytes } => self.flood(*updates, *bytes).await,
            Fault::Hang => {
                self.agent.silence.fall();
                Err(End::Silent)
            }
            Fault::Crash => self.end(Ended::Abort).await,
            Fault::Exit(code) => self.end(Ended::Exit(*code)).await,
            Fault::CloseStdout => {
                self.flush().await?;
                // Whoever has no output any more hears nothing either, but does not end.
                self.agent.ignores_eof.store(true, Ordering::Release);
                self.agent.silence.fall();
                self.agent.raw.close();
                self.agent.peer.close();
                Err(End::Silent)
            }
            Fault::IgnoreCancel(ignore) => {
                self.agent.ignores_cancel.store(*ignore, Ordering::Release);
                Ok(())
            }
            Fault::IgnoreEof => {
                self.agent.ignores_eof.store(true, Ordering::Release);
                Ok(())
            }
            Fault::IgnoreSigterm => {
                // Once somebody has listened, the signal never does its own work again.
                if let Err(error) = signal(SignalKind::terminate()) {
                    tracing::warn!(%error, "SIGTERM cannot be ignored");
                }
                Ok(())
            }
            Fault::Stderr(text) => {
                let line = format!("{}\n", self.facts.fill(text));
                // A closed stderr is no reason not to go on.
                let _ = io::stderr().write_all(line.as_bytes());
                Ok(())
            }
            Fault::Orphan(command) => {
                let words: Vec<String> = command.iter().map(|word| self.facts.fill(word)).collect();
                orphan(&words);
                Ok(())
            }
        }
    }

    /// Writes a line of its own, for an answer that is given twice.
    pub(crate) async fn write_line(&self, line: Bytes) {
        // Whoever has gone needs no second answer.
        let _ = self.write_raw([&line[..], b"\n"].concat().into()).await;
    }

    async fn end(&self, ended: Ended) -> Flow {
        // What was said before is said.
        let _ = self.flush().await;
        self.agent.end(ended);
        Err(End::Silent)
    }

    async fn giant_line(&mut self, bytes: u64) -> Flow {
        let (head, tail) = self.line_around();
        self.write_raw(head).await?;
        let piece = Bytes::from(vec![b'x'; PIECE]);
        let mut left = bytes;
        while left > 0 {
            let length = usize::try_from(left).unwrap_or(PIECE).min(PIECE);
            self.agent.raw.write(piece.slice(..length)).await;
            left -= length as u64;
        }
        self.agent.raw.write(tail).await;
        Ok(())
    }

    async fn flood(&mut self, updates: u64, bytes: usize) -> Flow {
        for number in 1..=updates {
            let mut text = number.to_string();
            // Not by a width in the format, which ends at 65,535.
            text.extend(std::iter::repeat_n(' ', bytes.saturating_sub(text.len())));
            let update = self.chunk(Voice::Message, &text);
            self.unless_cancelled(self.replay(update)).await??;
        }
        Ok(())
    }

    /// What stands before and after the text in a line that tells a piece of a message.
    fn line_around(&mut self) -> (Bytes, Bytes) {
        const HERE: &str = "(here)";
        let update = self.chunk(Voice::Message, HERE);
        let params = json!({"sessionId": self.facts.session, "update": update});
        let line = message::notification(method::SESSION_UPDATE, &params).unwrap_or_default();
        let text = String::from_utf8_lossy(&line);
        let at = text.find(&format!("\"text\":\"{HERE}\"")).map_or(0, |at| at + "\"text\":\"".len());
        let tail = [&line[at + HERE.len()..], b"\n"].concat();
        (line.slice(..at), tail.into())
    }

    /// Writes bytes that are no message, behind all messages so far.
    async fn write_raw(&self, bytes: Bytes) -> Flow {
        self.flush().await?;
        self.agent.raw.write(bytes).await;
        Ok(())
    }

    async fn flush(&self) -> Flow {
        self.agent.peer.flush().await.map_err(|_| End::Silent)
    }
}

/// Starts a process that nobody looks after.
fn orphan(command: &[String]) {
    let Some((program, arguments)) = command.split_first() else { return };
    let started = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn();
    if let Err(error) = started {
        tracing::warn!(%error, program, "the orphan could not be started");
    }
}
