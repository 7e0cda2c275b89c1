//! A link to a child process that speaks on its stdin and stdout.

use std::future::pending;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use narrows_process::Child;
/// What it takes to start a process and to tell how it ended, so that users of links need no other crate.
pub use narrows_process::{AllowList, Environment, Exit, ExitClass, Ladder, SpawnError, Spec, StderrTail};

use crate::close::CloseReason;
use crate::link::{Link, Options};
use crate::other_end;
use crate::stream::{Signs, stream_until};

/// How long a process that has closed its stdout may take to exit and so explain itself.
const EXPLAIN: Duration = Duration::from_millis(500);

/// How much of its stderr explains an end.
const TAIL_LINES: usize = 20;

/// The process at the other end of a link. Dropping it ends the process and everything it started.
#[derive(Debug)]
pub struct Process {
    child: Arc<Child>,
    gateway: Option<TcpListener>,
}

/// Starts a process and links to it. Must be called inside a runtime.
///
/// When the link ends because the process has, the reason says how, with the last lines of its stderr.
///
/// # Errors
/// When it cannot be started.
pub async fn spawn(spec: Spec, options: &Options) -> Result<(Link, Process), SpawnError> {
    let mut child = narrows_process::spawn(spec).await?;
    let (Some(stdin), Some(stdout)) = (child.take_stdin(), child.take_stdout()) else {
        return Err(SpawnError::Guardian);
    };
    let gateway = child.take_gateway();
    let deaf = other_end::deaf(stdin.as_fd().try_clone_to_owned());
    let child = Arc::new(child);
    // The reader must not keep the process alive: its end is what ends the reader.
    let watched = Arc::downgrade(&child);
    let why = async move {
        let Some(child) = watched.upgrade() else { return CloseReason::Local };
        // When all of it has ended its stderr has been read to the end; if only the process itself has, it will do.
        let exit = match tokio::time::timeout(EXPLAIN, child.wait()).await {
            Ok(exit) => Some(exit),
            Err(_) => tokio::time::timeout(Duration::ZERO, child.worker_ended()).await.ok(),
        };
        match exit {
            Some(exit) => CloseReason::Exited { exit, stderr: child.stderr().tail(TAIL_LINES) },
            None => CloseReason::Eof,
        }
    };
    let signs = Signs { why, deaf, hung_up: pending() };
    Ok((stream_until(stdout, stdin, options, signs), Process { child, gateway }))
}

impl Process {
    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// The last it wrote to stderr.
    #[must_use]
    pub fn stderr(&self) -> StderrTail {
        self.child.stderr()
    }

    /// The listener in its own network, if its sandbox has a gateway.
    pub fn take_gateway(&mut self) -> Option<TcpListener> {
        self.gateway.take()
    }

    /// Ends it at once, with everything it started, if it has not ended after this time. It tells whether it came to that.
    pub fn end_after(&self, limit: Duration) -> tokio::task::JoinHandle<bool> {
        let child = Arc::downgrade(&self.child);
        tokio::spawn(async move {
            tokio::time::sleep(limit).await;
            let Some(child) = child.upgrade() else { return false };
            if child.try_wait().is_none() {
                child.kill();
            }
            true
        })
    }

    /// Waits until it and everything it started has ended.
    pub async fn wait(&self) -> Exit {
        self.child.wait().await
    }

    /// Ends it and everything it started, gently at first. The end of input that comes first needs the link's
    /// sender to be closed or dropped.
    pub async fn stop(self, ladder: Ladder) -> Exit {
        self.child.stop(ladder).await
    }
}
