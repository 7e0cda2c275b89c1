//! Faults: behavior that a correct agent never shows.

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
use crate::script::step::{Fault, Speaker};
use crate::step_runner::{RunEnd, StepResult, StepRunner};

/// Number of bytes of a giant line that are written at a time.
const CHUNK_BYTES: usize = 64 << 10;

const UNKNOWN_RESPONSE: &[u8] = b"{\"jsonrpc\":\"2.0\",\"id\":\"never-asked\",\"result\":{}}\n";

impl StepRunner {
    pub(crate) async fn fault(&mut self, fault: &Fault) -> StepResult {
        match fault {
            Fault::Pollute(text) => self.write_raw(format!("{}\n", self.values.fill(text)).into()).await,
            Fault::HalfLine(text) => self.write_raw(self.values.fill(text).into()).await,
            Fault::GiantLine(bytes) => self.giant_line(*bytes).await,
            Fault::BadUtf8 => {
                let (head, tail) = self.line_around();
                self.write_raw([&head[..], b"\xff\xfe \xc3\x28", &tail[..]].concat().into()).await
            }
            Fault::UnknownResponse => self.write_raw(Bytes::from_static(UNKNOWN_RESPONSE)).await,
            Fault::Flood { updates, bytes } => self.flood(*updates, *bytes).await,
            Fault::Hang => {
                self.agent.silence.set();
                Err(RunEnd::Silent)
            }
            Fault::Crash => self.end(Ended::Abort).await,
            Fault::Exit(code) => self.end(Ended::Exit(*code)).await,
            Fault::CloseStdout => {
                self.flush().await?;
                // An agent without output also stops reading, but the end of its input does not end it.
                self.agent.ignores_eof.store(true, Ordering::Release);
                self.agent.silence.set();
                self.agent.raw.close();
                self.agent.peer.close();
                Err(RunEnd::Silent)
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
                // After a handler was installed, the signal never has its default effect again.
                if let Err(error) = signal(SignalKind::terminate()) {
                    tracing::warn!(%error, "ignoring SIGTERM failed");
                }
                Ok(())
            }
            Fault::Stderr(text) => {
                let line = format!("{}\n", self.values.fill(text));
                // If stderr is closed, the text is lost, but the agent continues.
                let _ = io::stderr().write_all(line.as_bytes());
                Ok(())
            }
            Fault::Orphan(command) => {
                let words: Vec<String> = command.iter().map(|word| self.values.fill(word)).collect();
                orphan(&words);
                Ok(())
            }
        }
    }

    /// Writes a response line a second time, without the connection's checks.
    pub(crate) async fn write_line(&self, line: Bytes) {
        let _ = self.write_raw([&line[..], b"\n"].concat().into()).await;
    }

    async fn end(&self, ended: Ended) -> StepResult {
        // Messages that were sent before must also arrive before.
        let _ = self.flush().await;
        self.agent.end(ended);
        Err(RunEnd::Silent)
    }

    async fn giant_line(&mut self, bytes: u64) -> StepResult {
        let (head, tail) = self.line_around();
        self.write_raw(head).await?;
        let piece = Bytes::from(vec![b'x'; CHUNK_BYTES]);
        let mut left = bytes;
        while left > 0 {
            let length = usize::try_from(left).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES);
            self.agent.raw.write(piece.slice(..length)).await;
            left -= length as u64;
        }
        self.agent.raw.write(tail).await;
        Ok(())
    }

    async fn flood(&mut self, updates: u64, bytes: usize) -> StepResult {
        for number in 1..=updates {
            let mut text = number.to_string();
            // A format width is limited to 65,535, so the text is padded by hand.
            text.extend(std::iter::repeat_n(' ', bytes.saturating_sub(text.len())));
            let update = self.chunk(Speaker::Message, &text);
            self.unless_cancelled(self.replay(update)).await??;
        }
        Ok(())
    }

    /// Returns the parts of a message chunk's line before and after the text.
    fn line_around(&mut self) -> (Bytes, Bytes) {
        const HERE: &str = "(here)";
        let update = self.chunk(Speaker::Message, HERE);
        let params = json!({"sessionId": self.values.session, "update": update});
        let line = message::notification(method::SESSION_UPDATE, &params).unwrap_or_default();
        let text = String::from_utf8_lossy(&line);
        let at = text.find(&format!("\"text\":\"{HERE}\"")).map_or(0, |at| at + "\"text\":\"".len());
        let tail = [&line[at + HERE.len()..], b"\n"].concat();
        (line.slice(..at), tail.into())
    }

    /// Writes bytes that are not a message, after all messages that were sent before.
    async fn write_raw(&self, bytes: Bytes) -> StepResult {
        self.flush().await?;
        self.agent.raw.write(bytes).await;
        Ok(())
    }

    async fn flush(&self) -> StepResult {
        self.agent.peer.flush().await.map_err(|_| RunEnd::Silent)
    }
}

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
        tracing::warn!(%error, program, "starting the orphan failed");
    }
}
