//! Plays one reply on a connection, and detects that the client disconnects.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::server::Shared;
use super::{Framing, Reply, Step, http};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The connection can serve another request.
    Open,
    Close,
    Cut,
    /// The client has disconnected during the reply.
    HungUp,
}

/// Plays `reply`. Bytes that the client sends meanwhile are appended to `held`.
pub(super) async fn play(
    shared: &Shared,
    stream: &mut TcpStream,
    held: &mut Vec<u8>,
    reply: &Reply,
) -> Outcome {
    let (mut reader, mut writer) = stream.split();
    let mut stage = Stage { shared, writer: &mut writer, reply };
    tokio::select! {
        biased;
        outcome = stage.run() => outcome.unwrap_or(Outcome::HungUp),
        () = until_gone(&mut reader, held) => Outcome::HungUp,
    }
}

async fn until_gone(reader: &mut (impl AsyncRead + Unpin), held: &mut Vec<u8>) {
    while let Ok(1..) = reader.read_buf(held).await {}
}

struct Stage<'a, W> {
    shared: &'a Shared,
    writer: &'a mut W,
    reply: &'a Reply,
}

impl<W: AsyncWriteExt + Unpin> Stage<'_, W> {
    async fn run(&mut self) -> io::Result<Outcome> {
        for step in &self.reply.before {
            if let Some(outcome) = self.step(step, false).await? {
                return Ok(outcome);
            }
        }
        self.writer.write_all(&http::head(self.reply)).await?;
        let chunked = self.reply.framing == Framing::Chunked;
        for step in &self.reply.steps {
            if let Some(outcome) = self.step(step, chunked).await? {
                return Ok(outcome);
            }
        }
        if chunked {
            self.writer.write_all(b"0\r\n\r\n").await?;
        }
        Ok(if self.reply.framing == Framing::UntilClose { Outcome::Close } else { Outcome::Open })
    }

    /// Runs a step of the reply. Returns the state of the connection if the reply ends with this step.
    async fn step(&mut self, step: &Step, chunked: bool) -> io::Result<Option<Outcome>> {
        match step {
            Step::Bytes(bytes) => self.write(bytes, chunked).await?,
            Step::Repeat(bytes, count) => {
                for _ in 0..*count {
                    self.write(bytes, chunked).await?;
                }
            }
            Step::Forever(bytes, pause) => loop {
                self.write(bytes, chunked).await?;
                // sleep: pauses of the server are under test
                tokio::time::sleep(*pause).await;
            },
            // sleep: pauses of the server are under test
            Step::Pause(pause) => tokio::time::sleep(*pause).await,
            Step::Gate(name) => self.shared.wait(|state| state.released.contains(name)).await,
            Step::Hang => std::future::pending().await,
            Step::Close => return Ok(Some(Outcome::Close)),
            Step::Cut => return Ok(Some(Outcome::Cut)),
        }
        Ok(None)
    }

    async fn write(&mut self, bytes: &[u8], chunked: bool) -> io::Result<()> {
        for piece in bytes.chunks(self.reply.split.unwrap_or(bytes.len()).max(1)) {
            if chunked {
                let mut framed = format!("{:x}\r\n", piece.len()).into_bytes();
                framed.extend_from_slice(piece);
                framed.extend_from_slice(b"\r\n");
                self.writer.write_all(&framed).await?;
            } else {
                self.writer.write_all(piece).await?;
            }
        }
        Ok(())
    }
}
